// What happened: reloads, restarts, changes of health, drains.

import { Listing, el, mark, show, write } from "./dom.js";
import { moment } from "./format.js";

const SHOWN = 6;
/** A fleet that flaps makes hundreds; they are in the history as well. */
const LISTED_MAX = 100;

/** The section, as `{node, update(events)}`: the newest first. */
export function eventsSection() {
  const none = el("p", { class: "quiet" }, "Nothing happened in this time.");
  const newest = el("ol", { class: "happenings" });
  const older = el("ol", { class: "happenings" });
  const summary = el("summary");
  const rest = el("details", {}, summary, older);
  const node = el("section", { class: "events" }, el("h3", {}, "Events"), none, newest, rest);
  const [near, far] = [new Listing(newest, happening), new Listing(older, happening)];
  return {
    node,
    update(events) {
      const listed = events.slice(-LISTED_MAX).reverse();
      const keyOf = (event) => `${event.at_s} ${event.replica} ${event.text}`;
      near.show(listed.slice(0, SHOWN), keyOf);
      far.show(listed.slice(SHOWN), keyOf);
      show(none, events.length === 0);
      show(rest, listed.length > SHOWN);
      write(summary, `${listed.length - SHOWN} more`);
    },
  };
}

function happening(event) {
  const at = el("time", { datetime: new Date(event.at_s * 1000).toISOString() });
  const who = el("b");
  const text = el("span");
  const node = el("li", {}, at, el("i", { class: "kind", "aria-hidden": "true" }), el("span", { class: "what" }, who, " ", text));
  return {
    node,
    update(next) {
      mark(node, "data-kind", kindOf(next));
      write(at, moment(next.at_s));
      write(who, next.replica ?? "");
      write(text, next.text);
    },
  };
}

/** The kind of an event; of a change of health, whether it got better. */
export function kindOf(event) {
  if (event.kind !== "health") return event.kind;
  return event.text.startsWith("is up") ? "up" : event.text.startsWith("is down") ? "down" : "health";
}
