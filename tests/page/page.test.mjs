// The page in a real browser, over the built kvpin with agents that talk to simulated replicas through it.
// The name of a test is the fact that it proves.

import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";

import * as format from "../../src/admin/page/format.js";
import { clipped, faintTexts, focused, markReachable, overflowing } from "./audits.mjs";
import { sleep, until } from "./browser.mjs";
import { close, feedOf, open, rowOf, tabAt, textOf } from "./looks.mjs";
import { Gate, MODEL, Stage } from "./stage.mjs";

const KVPIN = process.env.KVPIN_BIN;
const PICTURES = process.env.KVPIN_PAGE_PICTURES;
/** How long agents talk before anything is looked at; longer makes fuller pictures. */
const TALK_S = Number(process.env.KVPIN_PAGE_TALK_S ?? 12);
const SIZES = [[2000, 1250], [400, 860]];
const SCHEMES = ["light", "dark"];

/** What a row has to say, from the status. */
function rowFor(replica) {
  const { count, percent, tokens } = format;
  const { engine, tokens: spent } = replica;
  return {
    health: replica.health,
    in_flight: count(replica.in_flight),
    sticky: count(replica.sticky),
    spilled_in: count(replica.spilled_in),
    client_pinned: count(replica.client_pinned),
    cached: tokens(spent.cached),
    computed: spent.estimated > 0 ? `${tokens(spent.computed)} + ~${tokens(spent.estimated)}` : tokens(spent.computed),
    share: percent(replica.cached_percent),
    conversations: count(replica.conversations.active),
    working_set: tokens(replica.working_set_tokens),
    resident: tokens(replica.resident_tokens),
    running: count(engine.running),
    waiting: count(engine.waiting),
    kv_use: percent(engine.kv_use_percent, 0),
    prefix_hits: percent(engine.prefix_hit_percent),
  };
}

describe("in front of simulated replicas", () => {
  let stage;
  let gate;
  before(async () => {
    stage = await Stage.start(KVPIN, 2);
    gate = await Gate.start(stage.admin);
    stage.talk(6);
    await sleep(TALK_S * 1000);
  });
  after(async () => {
    await gate?.stop();
    await stage?.stop();
  });

  test("the chart grows while agents work", async () => {
    const tab = await open(gate.url);
    const steps = () => tab.run(() => {
      const fill = document.querySelector("[data-panel='prompt'] .fill.cached").getAttribute("d");
      return (fill.match(/H/g) ?? []).length / 2;
    });
    const first = await steps();
    await until("another step is drawn", async () => (await steps()) > first);
    const drawn = await tab.run(() => document.querySelector("[data-panel='first-byte'] .stroke.half").getAttribute("d"));
    assert.match(drawn, /^M/, "turns have begun to be answered");
    assert.deepEqual(tab.complaints, []);
  });

  test("it has no complaint in any size and theme, and pictures are taken", async () => {
    if (PICTURES) await mkdir(PICTURES, { recursive: true });
    for (const scheme of SCHEMES) {
      for (const [width, height] of SIZES) {
        const tab = await open(gate.url, { width, height, scheme });
        await tab.until("the cards are drawn", () => document.querySelectorAll(".panel path.fill").length > 0);
        assert.deepEqual(await tab.run(overflowing), [], `${width} ${scheme}`);
        assert.deepEqual(await tab.run(clipped), [], `${width} ${scheme}`);
        const { looked, found } = await tab.run(faintTexts);
        assert.ok(looked > 60, `${looked} texts`);
        assert.deepEqual(found, [], `${width} ${scheme}`);
        if (PICTURES) await tab.picture(join(PICTURES, `page-${width}-${scheme}.png`));
        assert.deepEqual(tab.complaints, []);
        await close();
      }
    }
  });

  test("rows and figures are those of the status", async () => {
    await stage.hush();
    const tab = await open(gate.url);
    await until("every row is as the status says", async () => {
      const { models: [model] } = await stage.status();
      const rows = await Promise.all(model.replicas.map((replica) => tab.run(rowOf, replica.name)));
      return model.replicas.every((replica, at) => same(rows[at], rowFor(replica)));
    }).catch(async (error) => {
      const { models: [model] } = await stage.status();
      for (const replica of model.replicas) assert.deepEqual(await tab.run(rowOf, replica.name), rowFor(replica));
      throw error;
    });
    const { kvpin, models: [model] } = await stage.status();
    const fact = (id) => textOf(tab, `[data-fact="${id}"] .value`);
    assert.equal(await textOf(tab, ".card h2"), MODEL);
    assert.equal(await fact("sticky"), format.percent(model.sticky_percent));
    assert.equal(await fact("cached"), format.percent(model.cached_percent));
    assert.equal(await fact("in_flight"), "0");
    assert.equal(await fact("spill_threshold"), "8 (auto)");
    assert.equal(await fact("affinity"), "on");
    assert.equal(await fact("first_byte"), format.seconds(model.first_byte.p50_s));
    const isHidden = await tab.run(() => document.querySelector("[data-fact='held']").hidden);
    assert.equal(isHidden, model.admission.held_turns_total === 0, "of turns that wait it tells once there were any");
    if (!isHidden) assert.equal(await fact("held"), format.count(model.admission.held_turns));
    assert.match(await textOf(tab, "#process"), new RegExp(`version${kvpin.version.replaceAll(".", "\\.")}`));
    assert.ok(model.replicas.reduce((sum, replica) => sum + replica.sticky, 0) > 0, "there was something to show");
    assert.deepEqual(tab.complaints, []);
  });

  test("the table of the charts has every step of the history", async () => {
    await stage.hush();
    const tab = await open(gate.url);
    await tab.run(() => document.querySelector(".section-head button").click());
    const shown = () => tab.run(() => [...document.querySelectorAll(".numbers tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent)));
    const number = (text) => Number(text.replaceAll(",", ""));
    await until("the table sums up to the history", async () => {
      const { models: [{ points }] } = await stage.history();
      const rows = await shown();
      const sum = (of, list) => list.reduce((total, item) => total + of(item), 0);
      return rows.length > 0
        && sum((row) => number(row[1]), rows) === sum((point) => point.turns, points)
        && sum((row) => number(row[2]), rows) === sum((point) => point.cached_tokens, points)
        && sum((row) => number(row[5]), rows) === sum((point) => point.completion_tokens, points);
    });
    assert.equal(await tab.run(() => document.querySelector(".section-head button").getAttribute("aria-expanded")), "true");
  });

  test("the theme can be switched, and is remembered", async () => {
    const tab = await open(gate.url, { scheme: "light" });
    const ground = () => tab.run(() => getComputedStyle(document.body).backgroundColor);
    const system = await ground();
    const press = () => tab.run(() => document.getElementById("theme").click());
    await press();
    assert.equal(await ground(), system, "light is what the system has");
    await press();
    const dark = await ground();
    assert.notEqual(dark, system);
    await tab.send("Page.reload");
    await tab.until("it is there again", () => Boolean(document.querySelector(".replicas tbody tr")));
    assert.equal(await ground(), dark, "after a reload");
    assert.equal(await textOf(tab, "#theme"), "Theme: dark");
    await press();
    await tab.prefer("dark");
    assert.equal(await ground(), dark, "the system's");
  });

  test("the keyboard reaches everything, and what it is on can be seen", async () => {
    const tab = await open(gate.url);
    await tab.run(() => document.activeElement.blur());
    const marks = new Set(await tab.run(markReachable));
    const reached = new Set();
    for (let press = 0; press <= marks.size + 2; press += 1) {
      await tab.press("Tab");
      const on = await tab.run(focused);
      if (!on) continue;
      assert.ok(on.seen, `the focus on ${on.what} can be seen`);
      reached.add(on.mark);
    }
    assert.deepEqual([...marks].filter((mark) => !reached.has(mark)), []);
    assert.ok(marks.size >= 12, `${marks.size} things`);
  });

  test("the keyboard moves through the charts, opens the table and chooses the range", async () => {
    const tab = await open(gate.url);
    const focus = (selector) => tab.run((wanted) => document.querySelector(wanted).focus(), selector);
    const said = () => tab.run(() => document.querySelector(".panels").getAttribute("aria-valuetext"));
    await focus(".panels");
    const newest = await said();
    await tab.press("Home");
    const oldest = await said();
    assert.notEqual(oldest, newest);
    assert.match(oldest, /: cached .*, computed .*, p50 .*, busy /);
    await tab.press("ArrowRight");
    assert.notEqual(await said(), oldest);
    await focus(".section-head button");
    await tab.press("Enter");
    assert.ok(await tab.run(() => document.querySelector(".numbers tbody tr") !== null));
    await focus("[data-range='1w']");
    await tab.press(" ");
    await tab.until("the steps are those of a week", () => document.querySelector(".numbers caption").textContent.includes("300 s"));
  });

  test("everything that can be used has a name and a role", async () => {
    const tab = await open(gate.url);
    const { nodes } = await tab.send("Accessibility.getFullAXTree");
    const roles = new Map();
    for (const node of nodes.filter((candidate) => !candidate.ignored)) {
      const [role, name] = [node.role.value, node.name?.value ?? ""];
      roles.set(role, (roles.get(role) ?? 0) + 1);
      const isUsed = node.properties?.some(({ name: property, value }) => property === "focusable" && value.value);
      if (isUsed && role !== "RootWebArea" && role !== "main") assert.notEqual(name.trim(), "", `${role} has a name`);
      if (role === "table" || role === "article") assert.notEqual(name.trim(), "", `${role} has a name`);
    }
    for (const role of ["banner", "main", "contentinfo", "heading", "table", "slider", "status", "columnheader", "rowheader"]) assert.ok(roles.get(role) > 0, role);
  });

  test("motion is reduced where that is asked for", async () => {
    const tab = await open(gate.url);
    const motion = () => tab.run(() => [getComputedStyle(document.querySelector(".meter b")).transitionDuration, getComputedStyle(document.documentElement).scrollBehavior]);
    assert.deepEqual(await motion(), ["0.4s", "smooth"]);
    await tab.prefer("light", "reduce");
    assert.deepEqual(await motion(), ["0s", "auto"]);
  });

  test("without the stream it asks for the status, says so, and takes the stream again when it is back", async () => {
    const tab = await open(gate.url);
    await until("it is live", async () => (await feedOf(tab)) === "live");
    gate.set("no-stream");
    await until("it polls", async () => (await feedOf(tab)) === "polling");
    assert.match(await textOf(tab, "#feed"), /no live stream/);
    const uptime = async () => Number((await stage.status()).kvpin.uptime_s);
    const begun = await uptime();
    await until("figures still come", async () => (await uptime()) > begun + 3 && (await feedOf(tab)) === "polling");
    gate.set("open");
    await until("it is live again", async () => (await feedOf(tab)) === "live");
    gate.set("shut");
    await until("it says that nothing answers", async () => (await feedOf(tab)) === "lost");
    assert.match(await textOf(tab, "#feed"), /no answer since \d/);
    gate.set("open");
    await until("it is live once more", async () => (await feedOf(tab)) === "live");
    const others = tab.complaints.filter((complaint) => !/Failed to load resource|ERR_/.test(complaint));
    assert.deepEqual(others, [], "but the browser's own about what couldn't be had");
  });

  test("a page that nobody sees reads no stream", async () => {
    const tab = await open(gate.url);
    await until("it reads", () => gate.streams === 1);
    const hide = (hidden) => tab.run((value) => {
      Object.defineProperty(document, "hidden", { value, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
    await hide(true);
    await until("it has let go", () => gate.streams === 0);
    await hide(false);
    await until("it reads again", () => gate.streams === 1);
    await close();
    await until("a closed tab reads nothing", () => gate.streams === 0);
  });

  test("a reload that was refused is told with its reason, until one is applied", async () => {
    const tab = await open(gate.url);
    const told = () => textOf(tab, "#troubles");
    assert.equal(await told(), "");
    await stage.reload((config) => ({ ...config, no_such_key: 1 }));
    await until("it is told", async () => /The reload at .* was refused.*no_such_key/s.test(await told()));
    assert.match(await textOf(tab, "#process"), /reloadrefused /);
    await stage.reload((config) => config);
    await until("all is well again", async () => (await told()) === "");
    assert.match(await textOf(tab, "#process"), /reloadapplied /);
    assert.deepEqual(tab.complaints, []);
  });

  test("a replica that goes down is shown as down, with its reason, and stands among the events", async () => {
    const tab = await open(gate.url);
    const name = await stage.fell();
    await tab.until("its row says so", (wanted) => {
      const row = [...document.querySelectorAll(".replicas tbody tr")].find((candidate) => candidate.querySelector(".name").textContent === wanted);
      return row?.dataset.health === "down" && row.querySelector(".reason").textContent.includes("connect refused");
    }, name);
    await tab.until("the time line has it", () => Boolean(document.querySelector(".axis circle[data-kind='down'], .axis circle[data-kind='health']")));
    await tab.until("the list has it", (wanted) => [...document.querySelectorAll(".happenings li")].some((item) => item.textContent.includes(wanted) && item.textContent.includes("down")), name);
    assert.deepEqual(tab.complaints, []);
  });
});

describe("with an admin token", () => {
  test("it asks for the token, and shows the figures to whoever has it", async () => {
    const token = "a-token-for-the-page-of-the-test";
    const stage = await Stage.start(KVPIN, 1, token);
    try {
      const tab = await tabAt(`${stage.admin}/`);
      const enter = async (text) => {
        await tab.until("it asks for the token", () => document.getElementById("gate")?.checkVisibility());
        assert.ok(await tab.run(() => document.activeElement.id === "token"), "one can type at once");
        await tab.send("Input.insertText", { text });
        await tab.press("Enter");
      };
      await enter("not-the-token-of-this-kvpin");
      await until("a wrong one is no good", async () => (await feedOf(tab)) === "locked");
      await enter(token);
      await tab.until("the figures are shown", () => Boolean(document.querySelector(".replicas tbody tr")) && document.body.dataset.feed === "live");
      assert.ok(await tab.run(() => document.getElementById("gate").hidden));
    } finally {
      await stage.stop();
    }
  });
});

const same = (one, other) => one !== null && Object.keys(other).every((key) => one[key] === other[key]);
