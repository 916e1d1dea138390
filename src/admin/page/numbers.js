// The numbers of the charts as a table, for those who would rather read them, or can't see them.

import { el, show, write } from "./dom.js";
import { average, count, moment, percent, seconds } from "./format.js";
import { valuesOf } from "./panels.js";

const known = (value, format) => (value === null || value === undefined ? "–" : format(value));

const COLUMNS = [
  ["Step begins", (v) => moment(v.at)],
  ["Turns", (v) => count(v.point.turns)],
  ["Cached", (v) => count(v.point.cached_tokens)],
  ["Computed", (v) => count(v.point.computed_tokens)],
  ["Estimated", (v) => count(v.point.estimated_tokens)],
  ["Completion", (v) => count(v.point.completion_tokens)],
  ["Share cached", (v) => known(v.share, percent)],
  ["First byte p50", (v) => known(v.p50, seconds)],
  ["First byte p95", (v) => known(v.p95, seconds)],
  ["Busy replicas", (v) => average(v.busy)],
  ["In flight", (v) => average(v.inFlight)],
];

/** The button that shows it, and the table: `{button, node, update(view)}`. It is made only while it is shown. */
export function numbersTable(name, id) {
  const node = el("div", { class: "numbers wide", id, role: "region", tabindex: "0", "aria-label": `Numbers of the charts of ${name}` });
  const button = el("button", { type: "button", class: "plain", "aria-expanded": "false", "aria-controls": id }, "Show as a table");
  let view = null;
  node.hidden = true;
  button.addEventListener("click", () => {
    show(node, node.hidden);
    button.setAttribute("aria-expanded", String(!node.hidden));
    write(button, node.hidden ? "Show as a table" : "Hide the table");
    fill();
  });
  function fill() {
    if (node.hidden || !view) return node.replaceChildren();
    const head = el("tr", {}, ...COLUMNS.map(([title]) => el("th", { scope: "col" }, title)));
    const rows = valuesOf(view).reverse().map((value) =>
      el("tr", {}, ...COLUMNS.map(([, text], at) => el(at === 0 ? "th" : "td", at === 0 ? { scope: "row" } : {}, text(value)))));
    const table = el("table", {}, el("caption", {}, `Tokens are of steps of ${view.stepS} s, the newest first.`), el("thead", {}, head), el("tbody", {}, ...rows));
    // What is being read stays in place.
    const at = node.scrollTop;
    node.replaceChildren(table);
    node.scrollTop = at;
  }
  return {
    button,
    node,
    update(next) {
      view = next;
      if (!node.hidden) fill();
    },
  };
}
