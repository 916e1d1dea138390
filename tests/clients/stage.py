"""Simulated replicas, kvpin in front of them, and what each of them says of the requests that it has had."""

import contextlib
import json
import urllib.error
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import servers
from servers import MODEL, Child, get, wait_until

REPLICAS = 3
SCRIPT = Path(__file__).with_name("script.yaml")
START_S = 15
SETTLED_WITHIN_S = 10

# Large enough for what Claude Code asks for, and fast, because the engines' pace is not what is looked at.
ENGINE = ["--kv-tokens", "400000", "--max-model-len", "200000", "--time-scale", "20"]

COUNT_TOKENS = "/v1/messages/count_tokens"


@dataclass(frozen=True)
class Arrival:
    """A request as a replica had it."""

    replica: str
    path: str  # without the query
    headers: dict
    tools: int  # that it offered to the model

    @property
    def is_side_call(self):
        """Whether it is none of a conversation's turns: a count of tokens, or a call without tools as for a title."""
        return self.path == COUNT_TOKENS or self.tools == 0


class Replica:
    def __init__(self, binary, log):
        command = [str(binary), "replica", "--port", "0", "--model", MODEL, "--script", str(SCRIPT), *ENGINE]
        self.child = Child("a simulated replica", command, log)
        try:
            self.url = wait_until("a replica says its address", START_S, self._announced)
        except BaseException:
            self.child.stop()
            raise
        self.name = self.url.removeprefix("http://")

    def arrivals(self):
        listed = json.loads(get(f"{self.url}/sim/requests"))
        return [
            Arrival(self.name, entry["path"].split("?")[0], dict(entry["headers"]), entry["offered_tools"] or 0)
            for entry in listed
            if entry["method"] == "POST"
        ]

    def _announced(self):
        self.child.fail_if_ended()
        line, newline, _ = self.child.log.read_text().partition("\n")
        return line if newline else None


@dataclass(frozen=True)
class Counted:
    """kvpin's own count of what it did, over all replicas."""

    pins: int
    first_turns: int
    forks: int  # of the first turns, those that were sent to the conversation that they go on from
    sticky_turns: int
    side_calls: int
    elsewhere: int  # spilled, unpinned, or of a conversation that lost its replica

    @classmethod
    def by(cls, kvpin):
        """Waits until no turn is open: an agent may end before kvpin has booked the end of its last one."""
        status = wait_until("all turns have ended", SETTLED_WITHIN_S, lambda: _settled_status(kvpin))
        total = lambda *fields: sum(replica[field] for replica in status["replicas"] for field in fields)  # noqa: E731
        return cls(
            pins=status["conversations"],
            first_turns=total("placed"),
            forks=total("forked"),
            sticky_turns=total("sticky"),
            side_calls=total("side"),
            elsewhere=total("spilled_in", "unpinned", "replaced"),
        )


def _settled_status(kvpin):
    status = kvpin.status(MODEL)
    return status if status["in_flight"] == 0 else None


@dataclass
class Stage:
    replicas: list
    kvpin: servers.Kvpin

    def arrivals(self):
        return [arrival for replica in self.replicas for arrival in replica.arrivals()]

    def homes(self, identify):
        """The replicas of each conversation's turns; `identify` reads the conversation from a request's headers."""
        homes = defaultdict(list)
        for arrival in self.arrivals():
            if not arrival.is_side_call:
                homes[identify(arrival.headers)].append(arrival.replica)
        return dict(homes)

    def side_calls(self):
        return [arrival for arrival in self.arrivals() if arrival.is_side_call]

    def fail_if_ended(self):
        for child in [self.kvpin.child, *(replica.child for replica in self.replicas)]:
            child.fail_if_ended()


@contextlib.contextmanager
def set_up(binary, folder):
    with contextlib.ExitStack() as running:
        replicas = []
        for number in range(REPLICAS):
            replicas.append(Replica(binary, folder / f"replica-{number}.log"))
            running.callback(replicas[-1].child.stop)
        kvpin = running.enter_context(kvpin_in_front_of(replicas, binary, folder))
        yield Stage(replicas, kvpin)


@contextlib.contextmanager
def kvpin_in_front_of(replicas, binary, folder):
    config = {
        "listen": ["127.0.0.1:0"],
        "admin": "127.0.0.1:0",
        "models": {MODEL: {"replicas": [replica.url for replica in replicas]}},
    }
    with servers.running_kvpin(binary, folder, config) as kvpin:
        wait_until("all replicas are up", START_S, lambda: _all_up(kvpin))
        yield kvpin


def _all_up(kvpin):
    try:
        return all(replica["health"] == "up" for replica in kvpin.status(MODEL)["replicas"])
    except urllib.error.URLError:
        return False


# --- What every conversation is held to --------------------------------------------------------------------------------


def assert_one_home_each(stage, identify, conversations, forks=0):
    """All turns of a conversation came to one replica, and kvpin has as many pins. Returns each conversation's replica."""
    homes = stage.homes(identify)
    print("turns of each conversation:", {key: len(replicas) for key, replicas in homes.items()})
    assert len(homes) == conversations, homes
    assert all(len(set(replicas)) == 1 for replicas in homes.values()), homes
    counted = Counted.by(stage.kvpin)
    print(counted)
    turns = sum(map(len, homes.values()))
    assert counted == Counted(
        pins=conversations,
        first_turns=conversations,
        forks=forks,
        sticky_turns=turns - conversations,
        side_calls=len(stage.side_calls()),
        elsewhere=0,
    )
    return {key: replicas[0] for key, replicas in homes.items()}
