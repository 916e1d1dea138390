// The table of a model's replicas.

import { Listing, el, mark, show, write } from "./dom.js";
import { age, count, percent, tokens, words } from "./format.js";
import { gpuRow, gpusOf } from "./gpus.js";
import { HEALTH } from "./words.js";

/**
 * The columns: `text(replica)` is what stands there, `full(replica)` what it is to the last digit, `share(replica)` fills the
 * bar under it (0 to 1; over 1 is over-full), `alone` names it where there is no room for the name of its group.
 */
const COLUMNS = [
  { id: "in_flight", group: "Turns", title: "In flight", text: (r) => count(r.in_flight), share: (r) => r.in_flight / r.spill_threshold, full: (r) => `${r.in_flight} of ${r.spill_threshold} before turns may spill` },
  { id: "sticky", group: "Turns", title: "Sticky", text: (r) => count(r.sticky) },
  { id: "spilled_in", group: "Turns", title: "Spilled in", text: (r) => count(r.spilled_in) },
  { id: "client_pinned", group: "Turns", title: "Client-pinned", text: (r) => count(r.client_pinned) },
  { id: "cached", group: "Prompt tokens", title: "Cached", alone: "Cached tokens", text: (r) => tokens(r.tokens?.cached), full: (r) => count(r.tokens?.cached) },
  { id: "computed", group: "Prompt tokens", title: "Computed", alone: "Computed tokens", text: computed, full: fullComputed },
  { id: "share", group: "Prompt tokens", title: "Share cached", text: (r) => percent(r.cached_percent ?? shareCached(r)), share: (r) => (r.cached_percent ?? shareCached(r)) / 100, plain: true },
  { id: "conversations", group: "Conversations", title: "Active", alone: "Conversations", text: (r) => count(r.conversations?.active), full: (r) => conversations(r) },
  { id: "working_set", group: "Conversations", title: "Working set", text: (r) => tokens(r.working_set_tokens), share: (r) => r.working_set_tokens / r.engine?.kv_capacity_tokens, full: workingSet },
  { id: "resident", group: "Conversations", title: "Resident", alone: "Resident tokens", text: (r) => tokens(r.resident_tokens), share: (r) => r.resident_tokens / r.admission_limit_tokens, full: residents },
  { id: "running", group: "Engine", title: "Running", text: (r) => count(r.engine?.running) },
  { id: "waiting", group: "Engine", title: "Waiting", text: (r) => count(r.engine?.waiting), warn: (r) => r.engine?.waiting > 0 },
  { id: "kv_use", group: "Engine", title: "KV used", text: (r) => percent(r.engine?.kv_use_percent, 0), share: (r) => r.engine?.kv_use_percent / 100, full: (r) => `${percent(r.engine?.kv_use_percent, 2)} of ${count(r.engine?.kv_capacity_tokens)} tokens` },
  { id: "prefix_hits", group: "Engine", title: "Prefix hits", text: (r) => percent(r.engine?.prefix_hit_percent), full: (r) => `${count(r.engine?.prefix_hits_tokens)} of ${count(r.engine?.prefix_queries_tokens)} tokens looked up` },
];

/** The table, as `{node, update(model, gpus)}`: under each replica, the GPUs that it runs on. */
export function replicaTable(model) {
  const body = el("tbody", { role: "rowgroup" });
  const rows = new Listing(body, ({ gpu }) => (gpu ? inItem("gpu", gpuRow(COLUMNS.length + 1)) : inItem("replica", replicaRow())));
  const table = el("table", { class: "replicas", role: "table", "aria-label": `Replicas of ${model.name}` }, head(), body);
  const node = el("div", { class: "wide", role: "region", tabindex: "0", "aria-label": `Replicas of ${model.name}` }, table);
  return {
    node,
    update(next, gpus) {
      const items = next.replicas.flatMap((replica) => [{ replica }, ...gpusOf(replica, gpus).map((gpu) => ({ replica, gpu }))]);
      rows.show(items, ({ replica, gpu }) => [replica.name, replica.address, replica.retired, gpu?.index].join(" "));
    },
  };
}

/** A row that stands for one of the parts of an item. */
function inItem(part, { node, update }) {
  return { node, update: (item) => update(item[part]) };
}

function head() {
  const groups = [];
  for (const column of COLUMNS) {
    const last = groups.at(-1);
    if (last?.title === column.group) last.columns += 1;
    else groups.push({ title: column.group, columns: 1 });
  }
  const above = el("tr", { role: "row" }, el("td", { colspan: 2, role: "cell" }));
  above.append(...groups.map((group) => el("th", { colspan: group.columns, scope: "colgroup", role: "columnheader", class: "group" }, el("span", {}, group.title))));
  const below = el("tr", { role: "row" }, el("th", { scope: "col", role: "columnheader" }, "Replica"), el("th", { scope: "col", role: "columnheader" }, "Health"));
  below.append(...COLUMNS.map((column) => el("th", { scope: "col", role: "columnheader", class: `number ${opens(column)}` }, column.title)));
  return el("thead", { role: "rowgroup" }, above, below);
}

/** Whether a column is the first of its group, as a class. */
function opens(column) {
  const at = COLUMNS.indexOf(column);
  return at > 0 && COLUMNS[at - 1].group === column.group ? "" : "opens";
}

function replicaRow() {
  const name = el("span", { class: "name" });
  const address = el("span", { class: "address" });
  const glyph = el("i", { class: "glyph", "aria-hidden": "true" });
  const word = el("span", { class: "word" });
  const reason = el("span", { class: "reason" });
  const cells = COLUMNS.map(cell);
  const node = el("tr", { role: "row" },
    el("th", { scope: "row", role: "rowheader" }, name, address),
    el("td", { role: "cell", class: "health" }, glyph, word, reason),
    ...cells.map((part) => part.node));
  return {
    node,
    update(replica) {
      write(name, replica.name);
      write(address, addressOf(replica));
      show(address, addressOf(replica) !== "");
      mark(node, "data-health", replica.health);
      mark(node, "data-retired", replica.retired);
      write(word, words(replica.health));
      write(reason, reasonOf(replica));
      mark(reason.parentNode, "title", `${HEALTH[replica.health] ?? ""}, for ${age(replica.health_age_s)}`);
      for (const part of cells) part.update(replica);
    },
  };
}

function cell(column) {
  const value = el("span", { class: "value" });
  const bar = column.share ? el("i", { class: column.plain ? "meter plain" : "meter", "aria-hidden": "true" }, el("b")) : null;
  const node = el("td", { role: "cell", class: `number ${opens(column)}`, "data-column": column.id, "data-label": column.alone ?? column.title }, value, bar);
  return {
    node,
    update(replica) {
      write(value, column.text(replica));
      if (column.full) mark(node, "title", column.full(replica));
      if (column.warn) mark(node, "data-over", column.warn(replica));
      if (!bar) return;
      const share = column.share(replica);
      show(bar, Number.isFinite(share));
      if (!Number.isFinite(share)) return;
      const width = `${Math.round(Math.min(share, 1) * 1000) / 10}%`;
      if (bar.firstChild.style.width !== width) bar.firstChild.style.width = width;
      mark(node, "data-over", !column.plain && share > 1);
    },
  };
}

/** Where it is, unless its name says so; of several ranks behind one address, which. */
function addressOf(replica) {
  const rank = replica.rank === null || replica.rank === undefined ? "" : `rank ${replica.rank}`;
  const address = replica.name.startsWith(replica.address) ? "" : replica.address;
  return [address, rank].filter(Boolean).join(", ");
}

function reasonOf(replica) {
  const parts = [];
  if (replica.health_reason) parts.push(words(replica.health_reason));
  else if (replica.drain) parts.push(`drain ${words(replica.drain)}`);
  if (replica.health !== "up") parts.push(age(replica.health_age_s));
  if (replica.ramp_percent < 100) parts.push(`ramp ${replica.ramp_percent}\u202f%`);
  if (replica.restarts > 0) parts.push(replica.restarts === 1 ? "restarted once" : `restarted ${count(replica.restarts)} times`);
  if (replica.retired) parts.push("taken out by a reload");
  return parts.join(" · ");
}

function computed(replica) {
  if (!replica.tokens) return tokens(undefined);
  const { computed: measured, estimated } = replica.tokens;
  return estimated > 0 ? `${tokens(measured)} + ~${tokens(estimated)}` : tokens(measured);
}

function fullComputed(replica) {
  if (!replica.tokens) return null;
  return `${count(replica.tokens.computed)} measured, ${count(replica.tokens.estimated)} estimated`;
}

function shareCached(replica) {
  const { cached, computed: measured } = replica.tokens ?? {};
  return cached + measured > 0 ? (cached * 100) / (cached + measured) : undefined;
}

function conversations(replica) {
  const { active, idle, relatives, lost } = replica.conversations ?? {};
  return `${count(active)} with a turn in the last minute (${count(relatives)} of them subagents or forks), ${count(idle)} idle, ${count(lost)} lost with a restart`;
}

function residents(replica) {
  if (!Number.isFinite(replica.residents)) return "nobody is held: admission is off, or the size of the cache isn't known";
  return `${count(replica.residents)} conversations with room in the cache, ${count(replica.resident_tokens)} tokens of the ${count(replica.admission_limit_tokens)} up to which others are let in`;
}

function workingSet(replica) {
  const capacity = replica.engine?.kv_capacity_tokens;
  return `${count(replica.working_set_tokens)} tokens of active conversations, ${count(capacity)} tokens of KV cache`;
}
