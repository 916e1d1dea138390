// Why turns were cold: how many for which reason, what it cost, and what the reasons usually come from.

import { el, mark, show, write } from "./dom.js";
import { count, tokens } from "./format.js";
import { COLD, UNSURE } from "./words.js";

/** The section, as `{node, update(model)}`. */
export function coldSection() {
  const none = el("p", { class: "quiet" });
  const reasons = COLD.map((entry) => line(entry, (model) => ({ turns: model.cold?.[entry.reason]?.turns ?? 0, ...model.cold?.[entry.reason] })));
  const unsure = UNSURE.map((entry) => line(entry, (model) => ({ turns: model[entry.field] ?? 0 })));
  const list = el("dl", { class: "reasons" }, ...[...reasons, ...unsure].map((part) => part.node));
  const others = [...COLD, ...UNSURE].map(meaning);
  const glossary = el("details", {}, el("summary", {}, "Other reasons there are"), el("dl", { class: "meanings" }, ...others));
  const node = el("section", { class: "cold" }, el("h3", {}, "Cold turns, by reason ", el("span", { class: "aside" }, "with the tokens that were computed again")), none, list, glossary);
  return {
    node,
    update(model) {
      show(node, Boolean(model.cold));
      if (!model.cold) return;
      const most = Math.max(1, ...Object.values(model.cold).map((entry) => entry.tokens));
      const shown = [...reasons, ...unsure].map((part) => part.update(model, most));
      show(none, !shown.slice(0, reasons.length).includes(true));
      const many = model.turns_measured === 1 ? "The 1 turn that was" : `All ${count(model.turns_measured)} turns that were`;
      write(none, model.turns_measured > 0 ? `${many} measured found in the cache what was to be expected there.` : "No turn was measured yet.");
      show(list, shown.includes(true));
      others.forEach((other, at) => show(other, !shown[at]));
    },
  };
}

function line(entry, of) {
  const cost = el("span", { class: "cost" });
  const bar = el("i", { class: "meter", "aria-hidden": "true" }, el("b"));
  const name = el("dt", {}, el("span", { class: "reason-name" }, entry.title), cost, bar);
  const text = el("dd", {}, entry.what, " ", el("span", { class: "causes" }, "Usual causes: ", entry.causes));
  const node = el("div", { "data-reason": entry.reason ?? entry.field }, name, text);
  return {
    node,
    /** Says whether there is anything to show. */
    update(model, most) {
      const { turns, tokens: again, survived } = of(model);
      show(node, turns > 0);
      if (turns === 0) return false;
      write(cost, again === undefined ? turnsOf(turns) : `${turnsOf(turns)}, ${tokens(again)} tokens`);
      mark(cost, "title", again === undefined ? null : `${count(again)} tokens computed again, ${count(survived)} found all the same`);
      show(bar, again !== undefined);
      if (again !== undefined) bar.firstChild.style.width = `${Math.round((again / most) * 1000) / 10}%`;
      return true;
    },
  };
}

const turnsOf = (turns) => (turns === 1 ? "1 turn" : `${count(turns)} turns`);

const meaning = (entry) => el("div", {}, el("dt", {}, entry.title), el("dd", {}, entry.what, " Usual causes: ", entry.causes));
