"""Judges the report of `kvpin demo --json`: does affinity do what it is for?

    check_demo.py REPORT
"""

import json
import sys

STICKY_PERCENT_AT_LEAST = 99
MARGIN_POINTS_AT_LEAST = 25


def faults(arms):
    affinity, off = arms["affinity"], arms["off"]
    for name, arm in arms.items():
        if arm["errors"]:
            yield f"{arm['errors']} errors in the arm {name}"
        if not arm["turns"]:
            yield f"no turns in the arm {name}"
    if affinity["sticky_percent"] < STICKY_PERCENT_AT_LEAST:
        yield f"sticky_percent is {affinity['sticky_percent']}, under {STICKY_PERCENT_AT_LEAST}"
    margin = affinity["prefix_hit_percent"] - off["prefix_hit_percent"]
    if margin < MARGIN_POINTS_AT_LEAST:
        yield f"affinity's cached share is {margin:.1f} points above the other arm's, under {MARGIN_POINTS_AT_LEAST}"


def main(report):
    with open(report, encoding="utf-8") as file:
        arms = {arm["arm"]: arm for arm in json.load(file)["arms"]}
    for arm in arms.values():
        print(json.dumps(arm))
    found = list(faults(arms))
    for fault in found:
        print("demo:", fault)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
