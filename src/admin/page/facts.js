// The figures at the head of a model: each with its name above and what it is made of below.

import { el, mark, show, write } from "./dom.js";
import { age, count, percent, seconds, tokens, words } from "./format.js";

/** `hides(model)`: where it has nothing to say. `over(model)`: where it is worth a look. */
const FACTS = [
  {
    id: "cached",
    title: "Found in cache",
    value: (m) => percent(m.cached_percent),
    below: (m) => (m.turns_measured > 0 ? `of ${tokens(m.tokens.cached + m.tokens.computed)} measured prompt tokens` : "no turn was measured yet"),
  },
  {
    id: "sticky",
    title: "Sticky",
    value: (m) => percent(m.sticky_percent),
    below: (m) => `${count(sum(m, (r) => r.sticky))} turns went home, ${count(sum(m, (r) => r.spilled_in))} spilled`,
  },
  {
    id: "in_flight",
    title: "In flight",
    value: (m) => count(m.in_flight),
    below: (m) => `${m.replicas.filter((r) => r.in_flight > 0).length} of ${m.replicas.length} replicas busy`,
  },
  {
    id: "first_byte",
    title: "First byte, p50",
    value: (m) => seconds(m.first_byte?.p50_s),
    below: (m) => `p95 ${seconds(m.first_byte?.p95_s)}, ${count(m.first_byte?.count)} turns`,
    hides: (m) => !m.first_byte,
  },
  {
    id: "working_set",
    title: "Working set",
    value: (m) => tokens(m.working_set?.tokens),
    below: (m) => `of ${tokens(m.working_set?.capacity_tokens)} tokens of KV cache`,
    over: isOverfull,
    hides: (m) => !m.working_set,
  },
  {
    id: "conversations",
    title: "Conversations",
    value: (m) => count(sum(m, (r) => r.conversations?.active ?? 0)),
    below: (m) => `active, ${count(m.conversations)} remembered`,
  },
  {
    id: "held",
    title: "Held turns",
    value: (m) => count(m.admission.held_turns),
    below: (m) => `${count(m.admission.held_turns_total)} had to wait, p50 ${seconds(m.admission.hold?.p50_s)}, p95 ${seconds(m.admission.hold?.p95_s)}`,
    over: (m) => m.admission.held_turns > 0,
    hides: (m) => !(m.admission?.held_turns_total > 0),
  },
  { id: "affinity", title: "Affinity", value: (m) => (m.affinity ? "on" : "off"), below: (m) => (m.affinity ? "a conversation goes home" : words(m.mode)) },
  { id: "spill_threshold", title: "Spill threshold", value: threshold, below: () => "turns in flight a replica" },
];

/** The list, as `{node, update(model)}`. */
export function facts() {
  const parts = FACTS.map((fact) => {
    const value = el("dd", { class: "value" });
    const below = el("dd", { class: "below" });
    return { fact, value, below, node: el("div", { "data-fact": fact.id }, el("dt", {}, fact.title), value, below) };
  });
  return {
    node: el("dl", { class: "facts" }, ...parts.map((part) => part.node)),
    update(model) {
      for (const { fact, value, below, node } of parts) {
        show(node, !fact.hides?.(model));
        if (node.hidden) continue;
        write(value, fact.value(model));
        write(below, fact.below(model));
        mark(node, "data-over", fact.over?.(model));
      }
    },
  };
}

const sum = (model, of) => model.replicas.reduce((before, replica) => before + of(replica), 0);

/** As configured, and what it comes to: of `auto` each replica has its own. */
function threshold(model) {
  const { configured } = model.spill_threshold;
  const all = model.replicas.map((replica) => replica.spill_threshold);
  if (all.length === 0) return String(configured);
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const told = least === most ? String(least) : `${least} to ${most}`;
  return configured === "auto" ? `${told} (auto)` : told;
}

/** Who waits for room in the caches, and for how much; nothing where nobody does. */
export function held(model) {
  const { held_turns: turns, longest_hold_s: longest, needed_tokens: needed } = model.admission ?? {};
  if (!(turns > 0)) return "";
  const wanted = needed + sum(model, (r) => r.resident_tokens ?? 0);
  const limit = sum(model, (r) => r.admission_limit_tokens ?? 0);
  return `${turns === 1 ? "1 turn waits" : `${count(turns)} turns wait`}, the first for ${age(longest)}: ` +
    `the conversations at work need ${tokens(wanted)} tokens, the replicas hold ${tokens(limit)}.`;
}

export function isOverfull(model) {
  const { tokens: wanted, capacity_tokens: capacity } = model.working_set ?? {};
  return capacity > 0 && wanted > capacity;
}

/** The rule of thumb, where the caches are too small; else nothing. */
export function overfull(model) {
  if (!isOverfull(model)) return "";
  const { conversations, tokens: wanted, capacity_tokens: capacity } = model.working_set;
  const each = conversations > 0 ? ` of about ${tokens(wanted / conversations)} tokens` : "";
  const many = conversations === 1 ? "1 conversation" : `${count(conversations)} conversations`;
  return `${many}${each} need ${tokens(wanted)} tokens; the replicas hold ${tokens(capacity)}. ` +
    "What doesn't fit is computed again with each turn: fewer agents at a time or more KV cache make every one of them faster.";
}
