// The charts of a model: panels over one axis of time, one cursor through all of them.

import { el, mark, show, svg, write } from "./dom.js";
import { kindOf } from "./events.js";
import { moment, tick } from "./format.js";
import { PANELS, coarsened, valuesOf } from "./panels.js";
import { area, floorOf, line, marksOf, niceCeiling } from "./shapes.js";

/** Room for the numbers of the axis, left of a panel, and for a last label right of it. */
const LEFT = 46;
const RIGHT = 10;
/** A young process has little to show: it gets a short axis. */
const SPAN_MIN_S = 300;
/** Marks of events that are nearer to each other than this are one. */
const APART_PX = 5;
const AXIS_HEIGHT = 30;

export class Charts {
  #panels;
  #axis = svg("svg", { class: "axis", height: AXIS_HEIGHT, "aria-hidden": "true" });
  /** Which moment the figures of the legends are of. */
  when = el("p", { class: "when", "aria-hidden": "true" });
  #slider;
  #view = null;
  /** The same as it is drawn: with its scale, and what the points come to. */
  #drawn = null;
  /** The point that the cursor is on; the newest where it is on none. */
  #chosen = null;
  #width = 0;

  constructor(name) {
    this.#panels = PANELS.map((panel) => panelOf(panel));
    this.#slider = el("div", { class: "panels", tabindex: "0", role: "slider", "aria-label": `Time in the charts of ${name}` });
    this.#slider.append(...this.#panels.map((panel) => panel.node), this.#axis);
    this.node = el("figure", { class: "charts", "aria-label": `Charts of ${name}` }, this.#slider);
    this.#slider.addEventListener("keydown", (event) => this.#onKey(event));
    this.#slider.addEventListener("pointermove", (event) => this.#onPoint(event));
    this.#slider.addEventListener("pointerleave", () => this.#choose(null));
    this.#slider.addEventListener("blur", () => this.#choose(null));
    new ResizeObserver(([entry]) => {
      this.#width = Math.floor(entry.contentRect.width);
      this.#draw();
    }).observe(this.#slider);
  }

  /** `view`: `{points, stepS, nowS, rangeS, events, replicas}`. */
  update(view) {
    this.#view = view;
    this.#draw();
  }

  #draw() {
    if (!this.#view || this.#width < 80) return;
    const { nowS, rangeS, points: [oldest] } = this.#view;
    const plot = this.#width - LEFT - RIGHT;
    const beginS = Math.max(nowS - rangeS, Math.min(oldest?.at_s ?? nowS, nowS - SPAN_MIN_S));
    const x = (at) => LEFT + (plot * (at - beginS)) / (nowS - beginS);
    const { points, stepS } = coarsened(this.#view, nowS - beginS, plot);
    const drawn = { ...this.#view, beginS, x, stepS, values: valuesOf({ points, stepS }) };
    if (!drawn.values.some((value) => value.at === this.#chosen)) this.#chosen = null;
    this.#drawn = drawn;
    const marks = marksOf(beginS, nowS, plot);
    for (const panel of this.#panels) panel.draw(drawn, { x, width: this.#width, marks });
    this.#drawAxis(drawn, x, marks);
    this.#read();
  }

  #drawAxis(view, x, marks) {
    mark(this.#axis, "width", this.#width);
    const parts = marks.at.map((at) => {
      const label = svg("text", { x: x(at), y: 26, "text-anchor": "middle" });
      label.textContent = tick(at, marks.step);
      return label;
    });
    parts.push(svg("path", { class: "base", d: `M${LEFT} 8.5H${this.#width - RIGHT}` }));
    let before = -Infinity;
    for (const event of view.events) {
      const at = x(event.at_s);
      if (at < LEFT || at - before < APART_PX) continue;
      before = at;
      const title = svg("title");
      title.textContent = `${moment(event.at_s)} ${event.replica ?? ""} ${event.text}`;
      parts.push(svg("circle", { class: "event", "data-kind": kindOf(event), cx: at, cy: 8.5, r: 3.5 }, title));
    }
    this.#axis.replaceChildren(...parts);
  }

  #onKey(event) {
    const values = this.#drawn?.values ?? [];
    if (values.length === 0) return;
    const at = this.#chosen === null ? values.length - 1 : values.findIndex((value) => value.at === this.#chosen);
    const to = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, PageDown: at - 30, PageUp: at + 30, Home: 0, End: values.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.#choose(values[Math.min(Math.max(to, 0), values.length - 1)].at);
  }

  #onPoint(event) {
    const view = this.#drawn;
    if (!view || view.values.length === 0) return;
    const wanted = event.clientX - this.#slider.getBoundingClientRect().left;
    const at = view.beginS + ((wanted - LEFT) / (this.#width - LEFT - RIGHT)) * (view.nowS - view.beginS);
    const found = view.values.findLast((value) => value.at <= at) ?? view.values[0];
    this.#choose(found.at);
  }

  #choose(at) {
    if (this.#chosen === at) return;
    this.#chosen = at;
    this.#read();
  }

  /** Shows the figures of the chosen point, or of the newest. */
  #read() {
    const { values, x, stepS } = this.#drawn ?? {};
    const chosen = values?.find((value) => value.at === this.#chosen);
    const value = chosen ?? values?.at(-1);
    for (const panel of this.#panels) panel.read(value, chosen ? x(chosen.at + stepS / 2) : null);
    write(this.when, chosen ? `at ${moment(chosen.at)}` : "");
    mark(this.#slider, "aria-valuemin", 0);
    mark(this.#slider, "aria-valuemax", Math.max(0, (values?.length ?? 0) - 1));
    mark(this.#slider, "aria-valuenow", value ? values.indexOf(value) : 0);
    mark(this.#slider, "aria-valuetext", value ? `${moment(value.at)}: ${this.#panels.map((panel) => panel.says(value)).join(", ")}` : "nothing yet");
  }
}

/** One panel: its title with a legend that tells the figures, and its drawing. */
function panelOf(panel) {
  const readings = panel.series.map((series) => el("b"));
  const legend = el("ul", { class: "legend" }, ...panel.series.map((series, at) =>
    el("li", {}, el("i", { class: `swatch ${series.look}`, "aria-hidden": "true" }), series.title, " ", readings[at])));
  const drawing = svg("svg", { height: panel.height, "aria-hidden": "true" });
  const cursor = svg("path", { class: "cursor" });
  const node = el("div", { class: "panel", "data-panel": panel.id }, el("div", { class: "panel-head" }, el("h4", {}, panel.title), legend), drawing);
  return {
    node,
    draw(view, { x, width, marks }) {
      show(node, !panel.hides?.(view));
      mark(drawing, "width", width);
      drawing.replaceChildren(...drawingOf(panel, view, { x, width, marks }), cursor);
    },
    read(value, at) {
      panel.series.forEach((series, index) => write(readings[index], value ? series.says(value) : ""));
      mark(cursor, "d", at === null ? null : `M${Math.round(at) + 0.5} 0V${panel.height}`);
    },
    says: (value) => panel.series.map((series) => `${series.spoken ?? series.title} ${series.says(value)}`).join(", "),
  };
}

function drawingOf(panel, view, { x, width, marks }) {
  const top = panel.top?.(view) ?? niceCeiling(floorOf(panel, view.values));
  // A line at the very top would be cut in half.
  const y = (value) => 2 + (panel.height - 3) * (1 - Math.min(value, top) / top);
  const parts = [];
  for (const at of panel.grid.map((share) => share * top)) {
    parts.push(svg("path", { class: at === 0 ? "base" : "grid", d: `M${LEFT} ${Math.round(y(at)) - 0.5}H${width - RIGHT}` }));
    const label = svg("text", { x: LEFT - 6, y: Math.min(Math.max(y(at) + 3.5, 9), panel.height - 1), "text-anchor": "end" });
    label.textContent = panel.tick(at);
    parts.push(label);
  }
  parts.push(svg("path", { class: "grid", d: marks.at.map((at) => `M${Math.round(x(at)) + 0.5} 0V${panel.height}`).join("") }));
  for (const event of view.events) {
    if (x(event.at_s) >= LEFT) parts.push(svg("path", { class: "event-line", "data-kind": kindOf(event), d: `M${Math.round(x(event.at_s)) + 0.5} 0V${panel.height}` }));
  }
  for (const series of panel.series) {
    if (series.shape === "area") parts.push(svg("path", { class: `fill ${series.look}`, d: area(view.values, view.stepS, x, y, series.from, series.to) }));
    if (series.shape === "line") parts.push(svg("path", { class: `stroke ${series.look}`, d: line(view.values, view.stepS, x, y, series.to) }));
  }
  return parts;
}
