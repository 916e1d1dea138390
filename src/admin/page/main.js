// Puts the page together: what comes from the feed goes to the head, to the overview and to a card a model.

import { Card } from "./card.js";
import { Listing, el, mark, show, write } from "./dom.js";
import { Feed } from "./feed.js";
import { age, count, moment } from "./format.js";
import { overview } from "./overview.js";

const byId = (id) => document.getElementById(id);

const table = overview(byId("overview"));
const cards = new Listing(byId("cards"), ({ model }) => new Card(model));
/** Cards that can be seen, or nearly. */
const seen = new Set();
let status = null;
let history = null;

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) seen.add(target.id);
    else seen.delete(target.id);
  }
  renderSeen();
}, { rootMargin: "300px" });

const feed = new Feed({ onStatus, onHistory, onState });

function onStatus(next) {
  // Another version answers: its page is another one too.
  if (status && status.kvpin.version !== next.kvpin.version) return location.reload();
  status = next;
  const known = new Set(cards.parts.values());
  const gpus = next.gpus ?? [];
  cards.show(next.models.map((model) => ({ model, gpus })), ({ model }) => model.name);
  for (const card of cards.parts.values()) {
    if (known.has(card)) continue;
    watcher.observe(card.node);
    giveHistory(card);
  }
  for (const card of known) {
    if (![...cards.parts.values()].includes(card)) watcher.unobserve(card.node);
  }
  table.update(next.models, cards.parts);
  renderProcess(next.kvpin);
  show(byId("empty"), next.models.length === 0);
  if (next.models.length === 0) write(byId("empty"), "The configuration has no models.");
  renderSeen();
  renderRest();
}

function onHistory(next) {
  history = next;
  cards.parts.forEach(giveHistory);
  renderSeen();
  renderRest();
}

function onState(state, newest) {
  const told = {
    live: "live",
    polling: "no live stream, asking every 2 s",
    lost: newest ? `no answer since ${moment(newest)}` : "no answer",
    locked: "the token is asked for",
  };
  show(byId("gate"), state === "locked");
  if (state === "locked") byId("token").focus();
  document.body.dataset.feed = state;
  show(byId("empty"), status === null && state !== "locked");
  write(byId("feed"), told[state]);
}

/** Gives a card its part of the history: its points, and the events that concern it. */
function giveHistory(card) {
  const name = [...cards.parts].find(([, part]) => part === card)?.[0];
  if (!history || name === undefined) return;
  card.setHistory({
    points: history.models.find((model) => model.name === name)?.points ?? [],
    events: history.events.filter((event) => event.model === null || event.model === name),
    stepS: history.step_s,
    rangeS: history.range_s,
    nowS: history.now_s,
  });
}

/** When the counters began. */
const sinceS = () => status.kvpin.since_s ?? Date.now() / 1000 - status.kvpin.uptime_s;

function renderSeen() {
  if (!status) return;
  for (const card of cards.parts.values()) {
    if (seen.has(card.id) && card.isBehind) card.render(sinceS());
  }
}

const whenIdle = window.requestIdleCallback ?? ((call) => setTimeout(call, 50));

/** How old the figures of a card may be that can't be seen. */
const UNSEEN_MS = 10_000;

/** The others, one at a time and when there is nothing else to do: so that they can be searched, and are there at once. */
let isResting = true;
function renderRest() {
  if (!isResting) return;
  isResting = false;
  whenIdle(function next() {
    const card = [...cards.parts.values()].find((candidate) => candidate.isBehind && candidate.age > UNSEEN_MS);
    card?.render(sinceS());
    isResting = !card;
    if (card) whenIdle(next);
  });
}

const processFacts = new Listing(byId("process"), ({ title }) => {
  const value = el("dd");
  const node = el("div", {}, el("dt", {}, title), value);
  return { node, update: (fact) => { write(value, fact.text); mark(node, "title", fact.full); mark(node, "data-over", fact.over); } };
});

function renderProcess(kvpin) {
  const { last_reload: reload } = kvpin;
  processFacts.show([
    { title: "version", text: kvpin.version },
    { title: "up", text: age(kvpin.uptime_s) },
    { title: "counting since", text: moment(Math.round(sinceS())) },
    { title: "open requests", text: count(kvpin.open_requests) },
    ...(reload ? [{ title: "reload", text: `${reload.outcome} ${moment(reload.at_unix_s)}`, full: reload.changes.join("\n"), over: reload.outcome === "refused" }] : []),
  ], (fact) => fact.title);
  troubles.show(troublesOf(kvpin), (trouble) => trouble);
}

const troubles = new Listing(byId("troubles"), () => {
  const node = el("li");
  return { node, update: (text) => write(node, text) };
});

/** What an operator wanted and did not get. */
function troublesOf({ last_reload: reload, last_failed_upgrade: upgrade }) {
  const found = [];
  if (reload?.outcome === "refused") {
    found.push(`The reload at ${moment(reload.at_unix_s)} was refused, and nothing has changed:`);
    for (const { line, path, reason } of reload.problems) found.push([line ? `line ${line}` : "", path, reason].filter(Boolean).join(": "));
  }
  if (upgrade) found.push(`The upgrade at ${moment(upgrade.at_unix_s)} came to nothing: ${upgrade.failed}`);
  return found;
}

byId("range").addEventListener("click", ({ target }) => {
  const { range } = target.dataset;
  if (!range) return;
  for (const button of byId("range").children) mark(button, "aria-pressed", String(button === target));
  feed.setRange(range);
});

byId("gate").addEventListener("submit", (event) => {
  event.preventDefault();
  feed.setToken(byId("token").value);
  byId("token").value = "";
});

feed.start();
