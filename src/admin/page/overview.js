// All models in a line each, where there are several.

import { Listing, el, mark, show, write } from "./dom.js";
import { isOverfull } from "./facts.js";
import { count, percent, seconds, tokens } from "./format.js";
import { tally } from "./card.js";

const COLUMNS = [
  { title: "Replicas", text: (m) => tally(m.replicas), words: true, over: (m) => m.replicas.some((r) => r.health === "down") },
  { title: "Affinity", text: (m) => (m.affinity ? "on" : "off"), words: true },
  { title: "In flight", text: (m) => count(m.in_flight) },
  { title: "Sticky", text: (m) => percent(m.sticky_percent) },
  { title: "Cached", text: (m) => percent(m.cached_percent) },
  { title: "First byte p50", text: (m) => seconds(m.first_byte?.p50_s) },
  { title: "p95", text: (m) => seconds(m.first_byte?.p95_s) },
  { title: "Working set", text: (m) => tokens(m.working_set?.tokens), over: isOverfull },
  { title: "KV cache", text: (m) => tokens(m.working_set?.capacity_tokens) },
];

/** Puts the table into the section, as `{update(models, cards)}`: `cards` has the card of each model, by its name. */
export function overview(section) {
  const body = el("tbody");
  const head = el("tr", {}, el("th", { scope: "col" }, "Model"), ...COLUMNS.map((column) => el("th", { scope: "col", class: column.words ? null : "number" }, column.title)));
  const table = el("table", {}, el("thead", {}, head), body);
  section.append(el("div", { class: "wide", role: "region", tabindex: "0", "aria-labelledby": "overview-title" }, table));
  const rows = new Listing(body, row);
  return {
    update(models, cards) {
      show(section, models.length > 1);
      if (models.length > 1) rows.show(models.map((model) => ({ model, id: cards.get(model.name).id })), ({ model }) => model.name);
    },
  };
}

function row() {
  const link = el("a");
  const cells = COLUMNS.map((column) => el("td", { class: column.words ? null : "number" }));
  return {
    node: el("tr", {}, el("th", { scope: "row" }, link), ...cells),
    update({ model, id }) {
      write(link, model.name);
      mark(link, "href", `#${id}`);
      COLUMNS.forEach((column, at) => {
        write(cells[at], column.text(model));
        mark(cells[at], "data-over", column.over?.(model));
      });
    },
  };
}
