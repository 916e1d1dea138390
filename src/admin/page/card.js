// A model: its figures, its charts, its replicas, why turns were cold, and what happened.

import { Charts } from "./chart.js";
import { coldSection } from "./cold.js";
import { el, show, write } from "./dom.js";
import { eventsSection } from "./events.js";
import { facts, held, overfull } from "./facts.js";
import { count, moment } from "./format.js";
import { numbersTable } from "./numbers.js";
import { replicaTable } from "./replicas.js";

/** A longer table than this pushes what stands under it out of sight. */
const REPLICAS_FEW = 10;

let made = 0;

/** A model's card. It takes in what comes, and shows it when it is told to: only what can be seen is worth doing at once. */
export class Card {
  #left = el("div", { class: "left" });
  #right = el("div", { class: "right" });
  #name = el("h2");
  #aliases = el("p", { class: "aliases" });
  #health = el("p", { class: "tally" });
  #facts = facts();
  #notes = el("ul", { class: "notes" });
  #replicas;
  #charts;
  #numbers;
  #cold = coldSection();
  #events = eventsSection();
  #since = el("p", { class: "quiet since" });
  #model = null;
  #gpus = [];
  #history = null;
  /** What has come and isn't shown yet. */
  #owes = { model: false, history: false };
  #rendered = -Infinity;

  constructor(model) {
    made += 1;
    this.id = `model-${made}`;
    this.#replicas = replicaTable(model);
    this.#charts = new Charts(model.name);
    this.#numbers = numbersTable(model.name, `numbers-${made}`);
    this.#name.id = `${this.id}-name`;
    this.node = el("article", { class: "card", id: this.id, "aria-labelledby": this.#name.id, tabindex: "-1" },
      el("header", { class: "card-head" }, this.#name, this.#aliases, this.#health),
      this.#facts.node,
      this.#notes,
      el("div", { class: "card-body" }, this.#left, this.#right));
    const over = el("div", { class: "section-head" }, el("h3", {}, "Over time"), this.#charts.when, this.#numbers.button);
    this.#left.append(el("section", {}, over, this.#charts.node, this.#numbers.node), this.#events.node);
    this.#right.append(el("section", {}, el("h3", {}, "Replicas"), this.#replicas.node, this.#since));
  }

  /** Takes a model's status in, and the GPUs of the machine; it is shown with `render`. */
  update({ model, gpus }) {
    this.#model = model;
    this.#gpus = gpus;
    this.#owes.model = true;
  }

  /** `history`: `{points, stepS, rangeS, nowS, events}`. */
  setHistory(history) {
    this.#history = history;
    this.#owes.history = true;
  }

  get isBehind() {
    return this.#owes.model || this.#owes.history;
  }

  /** For how many milliseconds it has shown the same; for ever, until it has shown both. */
  get age() {
    return performance.now() - this.#rendered;
  }

  /** Shows what has come. `sinceS`: when the counters began. */
  render(sinceS) {
    if (this.#owes.model) this.#renderModel(sinceS);
    if (this.#owes.history && this.#model) this.#renderHistory();
    this.#owes = { model: false, history: this.#owes.history && !this.#model };
    if (this.#history && this.#model) this.#rendered = performance.now();
  }

  #renderModel(sinceS) {
    const model = this.#model;
    write(this.#name, model.name);
    write(this.#aliases, model.aliases.length > 0 ? `also ${model.aliases.join(", ")}` : "");
    write(this.#health, tally(model.replicas));
    this.#facts.update(model);
    this.#renderNotes(model);
    this.#replicas.update(model, this.#gpus);
    const beside = model.replicas.length > REPLICAS_FEW ? this.#left : this.#right;
    if (this.#cold.node.parentNode !== beside) beside.append(this.#cold.node);
    this.#cold.update(model);
    write(this.#since, `Turns and tokens since ${moment(sinceS)}, or since a replica was added; an engine's own figures since it started.`);
  }

  #renderNotes(model) {
    const refused = Object.entries(model.refused ?? {}).filter(([, turns]) => turns > 0);
    const over = [held(model), overfull(model)].filter(Boolean);
    const notes = [...over, ...refused.map(([reason, turns]) => `${count(turns)} turns refused: ${reason.replaceAll("_", " ")}`), ...model.notes].filter(Boolean);
    const key = notes.join("\n");
    if (this.#notes.dataset.key === key) return;
    this.#notes.dataset.key = key;
    this.#notes.replaceChildren(...notes.map((note, at) => el("li", { class: at < over.length ? "over" : null }, note)));
    show(this.#notes, notes.length > 0);
  }

  #renderHistory() {
    const view = { ...this.#history, replicas: this.#model.replicas.length };
    this.#charts.update(view);
    this.#numbers.update(view);
    this.#events.update(view.events);
  }
}

/** How many replicas are how well, the good ones first. */
export function tally(replicas) {
  const order = ["up", "unknown", "suspect", "draining", "sleeping", "down"];
  const counts = new Map(order.map((health) => [health, 0]));
  for (const replica of replicas) counts.set(replica.health, (counts.get(replica.health) ?? 0) + 1);
  const told = [...counts].filter(([, many]) => many > 0).map(([health, many]) => `${count(many)} ${health}`);
  return told.length > 0 ? told.join(" · ") : "no replicas";
}
