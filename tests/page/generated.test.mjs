// The page in a real browser, over statuses that no kvpin at hand would tell: of 20 models of 64 replicas, and of other shapes.
// The name of a test is the fact that it proves.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import * as format from "../../src/admin/page/format.js";
import { faintTexts, overflowing } from "./audits.mjs";
import { sleep, until } from "./browser.mjs";
import { Fleet, HOSTILE } from "./generate.mjs";
import { feedOf, open, rowOf, tabAt, textOf } from "./looks.mjs";
import { Stub } from "./stub.mjs";

describe("with 20 models of 64 replicas", () => {
  let stub;
  before(async () => { stub = await Stub.start(new Fleet({ models: 20, replicas: 64, hostile: true, overfull: true })); });
  after(() => stub?.close());

  test("all of them are shown, names are nothing but text, and it stays cheap", async () => {
    const tab = await open(stub.url, { width: 1400 });
    await tab.send("Performance.enable");
    await tab.until("all rows are there", () => document.querySelectorAll(".replicas tbody tr").length === 1280);
    assert.equal(await tab.run(() => document.querySelectorAll("#overview tbody tr").length), 20);
    assert.equal(await tab.run(() => document.querySelector(".card h2").textContent), HOSTILE);
    assert.equal(await tab.run(() => document.querySelectorAll("main img, main b b").length), 0);
    assert.equal(await tab.run(() => document.title), "kvpin");
    assert.deepEqual(await tab.run(overflowing), []);
    assert.deepEqual(tab.complaints, []);
    const spent = async () => Object.fromEntries((await tab.send("Performance.getMetrics")).metrics.map(({ name, value }) => [name, value]));
    const [first] = [await spent(), await sleep(10_000)];
    const last = await spent();
    const share = (name) => `${name} ${(((last[name] - first[name]) / 10) * 100).toFixed(1)} %`;
    console.log(`20 x 64, of one core: ${["TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration"].map(share).join(", ")}; ${last.Nodes} nodes, heap ${(last.JSHeapUsedSize / 2 ** 20).toFixed(0)} MiB`);
  });

  test("where more is wanted than the caches hold, it says so in words", async () => {
    const tab = await open(stub.url, { width: 400 });
    const { models: [model] } = await (await fetch(`${stub.url}api/v1/status`)).json();
    const { conversations, tokens, capacity_tokens } = model.working_set;
    const sentence = `${format.count(conversations)} conversations of about ${format.tokens(tokens / conversations)} tokens need ${format.tokens(tokens)} tokens; the replicas hold ${format.tokens(capacity_tokens)}.`;
    await tab.until("the rule of thumb", (wanted) => document.querySelector(".notes .over")?.textContent.startsWith(wanted), sentence);
    assert.deepEqual(await tab.run(overflowing), []);
  });

  test("a reason for cold turns comes with what it means and where it usually comes from", async () => {
    const tab = await open(stub.url);
    const shown = await tab.run(() => [...document.querySelectorAll(".card:first-child [data-reason]")].filter((node) => !node.hidden).map((node) => node.dataset.reason));
    assert.deepEqual(shown, ["evicted", "prefix_changed", "unexplained", "spilled", "turns_unmeasured"]);
    const text = await textOf(tab, "[data-reason='prefix_changed']");
    for (const word of ["billing header", "hoists", "time of day", "another order"]) assert.ok(text.includes(word), word);
    const others = await textOf(tab, ".card:first-child .cold details");
    assert.ok(others.includes("--enable-prompt-tokens-details"), "what did not happen is explained too");
  });
});

describe("with a token that is given while a wrong one is still being refused", () => {
  test("the refusal says nothing of the right one", async () => {
    const stub = await Stub.start(new Fleet({ models: 1, replicas: 1 }));
    try {
      stub.token = "right";
      const tab = await tabAt(stub.url);
      const enter = async (text) => {
        await tab.send("Input.insertText", { text });
        await tab.press("Enter");
      };
      await tab.until("it asks for the token", () => document.activeElement?.id === "token");
      stub.refused = [];
      await enter("wrong");
      await until("it is asked with", () => stub.refused.length > 0);
      await enter("right");
      stub.refuse();
      await until("it is live", async () => (await feedOf(tab)) === "live");
    } finally {
      await stub.close();
    }
  });
});

describe("with a status that changes its shape", () => {
  const fleet = new Fleet({ models: 2, replicas: 3 });
  /** What becomes of a status before it is told. */
  let change = (status) => status;
  let stub;
  before(async () => {
    const told = { status: () => change(fleet.status()), history: (range) => fleet.history(range) };
    stub = await Stub.start(told);
  });
  after(() => stub?.close());

  const shown = (tab) => tab.run(() => [...document.querySelectorAll(".card")].map((card) => [card.querySelector("h2").textContent, ...[...card.querySelectorAll(".replicas .name")].map((name) => name.textContent)]));
  const told = async () => (await (await fetch(`${stub.url}api/v1/status`)).json()).models.map((model) => [model.name, ...model.replicas.map((replica) => replica.name)]);

  test("models and replicas that come, go and change places are shown as they are", async () => {
    const tab = await open(stub.url);
    const isAsTold = async () => JSON.stringify(await shown(tab)) === JSON.stringify(await told());
    await until("all are shown", isAsTold);
    change = (status) => ({ ...status, models: status.models.slice(1) });
    await until("one model is gone", isAsTold);
    assert.ok(await tab.run(() => document.getElementById("overview").hidden), "one alone needs no overview");
    change = (status) => ({ ...status, models: status.models.toReversed().map((model) => ({ ...model, replicas: [...model.replicas.slice(1).toReversed(), { ...model.replicas[0], name: "new" }, { ...model.replicas[0], name: "new", retired: true }] })) });
    await until("they are in another order, and two have one name", isAsTold);
    change = (status) => ({ ...status, models: [] });
    await tab.until("there is none", () => document.getElementById("empty").textContent.includes("no models"));
    change = (status) => status;
    await until("all are back", isAsTold);
    assert.deepEqual(tab.complaints, []);
  });

  test("the GPUs of a replica stand under it with what they tell, and nothing does where there are none", async () => {
    const gpu = (index, figures) => ({ index, uuid: `GPU-${index}`, name: "NVIDIA H200", lost: false, utilization_percent: null, memory_used_bytes: null, memory_total_bytes: null, power_watts: null, power_limit_watts: null, temperature_celsius: null, sm_clock_mhz: null, memory_clock_mhz: null, ...figures });
    const whole = { utilization_percent: 93, memory_used_bytes: 120.25 * 2 ** 30, memory_total_bytes: 139.8 * 2 ** 30, power_watts: 512.4, power_limit_watts: 700, temperature_celsius: 61, sm_clock_mhz: 1980, memory_clock_mhz: 3201 };
    const gpus = [gpu(0, whole), gpu(1, { temperature_celsius: 48 }), gpu(2, { lost: true })];
    change = (status) => ({ ...status, gpus, models: status.models.map((model) => ({ ...model, replicas: model.replicas.map((replica, at) => ({ ...replica, gpus: [[0, 1], [2], []][at] })) })) });
    const tab = await open(stub.url, { width: 1400 });
    const rows = () => tab.run(() => [...document.querySelectorAll(".card:first-child .replicas tbody tr")].map((row) => (row.dataset.gpu === undefined ? "replica" : [row.querySelector("th").textContent, ...[...row.querySelectorAll("td .lost, .figure")].filter((part) => !part.hidden).map((part) => part.textContent)].join(" | "))));
    const gap = "\u202f";
    assert.deepEqual(await rows(), [
      "replica",
      `GPU 0 | Busy 93${gap}% | Memory 120.3${gap}GiB of 139.8${gap}GiB | Power 512${gap}W of 700${gap}W | Temperature 61${gap}°C | SM clock 1,980${gap}MHz | Memory clock 3,201${gap}MHz`,
      `GPU 1 | Temperature 48${gap}°C`,
      "replica",
      "GPU 2 | lost: it has fallen off the bus or needs a reset",
      "replica",
    ]);
    assert.deepEqual(await tab.run(overflowing), []);
    assert.deepEqual((await tab.run(faintTexts)).found, []);
    const narrow = await open(stub.url, { width: 400, scheme: "dark" });
    await narrow.until("the rows are there", () => document.querySelectorAll("tr.gpu").length === 6);
    assert.deepEqual(await narrow.run(overflowing), []);
    assert.deepEqual((await narrow.run(faintTexts)).found, []);
    change = (status) => status;
    await tab.until("the rows are gone", () => document.querySelectorAll("tr.gpu").length === 0);
    assert.deepEqual([...tab.complaints, ...narrow.complaints], []);
  });

  test("what a status does not say is unknown, and what a later one may say is shown", async () => {
    const news = ["tokens", "turns_measured", "turns_unmeasured", "turns_untold", "cold", "cached_percent", "first_byte", "working_set", "working_set_tokens", "admission", "residents", "resident_tokens", "admission_limit_tokens"];
    const without = (object) => Object.fromEntries(Object.entries(object).filter(([key]) => !news.includes(key)));
    change = ({ kvpin: { version, uptime_s, open_requests }, models }) => ({ kvpin: { version, uptime_s, open_requests }, models: models.map((model) => ({ ...without(model), replicas: model.replicas.map(without) })) });
    const tab = await open(stub.url);
    const fact = (id) => textOf(tab, `[data-fact="${id}"] .value`);
    assert.equal(await fact("cached"), "–");
    assert.equal((await tab.run(rowOf, "10.0.0.1:8000")).cached, "–");
    assert.ok(await tab.run(() => document.querySelector(".cold").hidden && document.querySelector("[data-fact='held']").hidden));
    assert.match(await textOf(tab, "#process"), /counting since/);
    change = (status) => ({ ...status, kvpin: { ...status.kvpin, last_failed_upgrade: { at_unix_s: Date.now() / 1000, failed: "the new one ended at once" } }, models: status.models.map((model) => ({ ...model, admission: { ...model.admission, held_turns: 3, longest_hold_s: 40, needed_tokens: 620_000, held_turns_total: 1200, hold: { p50_s: 1.2, p95_s: 14, count: 1190 } } })) });
    await until("held turns are shown", async () => (await fact("held")) === "3");
    assert.match(await textOf(tab, "#troubles"), /upgrade at .* came to nothing: the new one ended at once$/);
    assert.equal(await textOf(tab, "[data-fact='held'] .below"), `1,200 had to wait, p50 ${format.seconds(1.2)}, p95 ${format.seconds(14)}`);
    assert.match(await textOf(tab, ".notes .over"), /^3 turns wait, the first for 40.s: the conversations at work need .* tokens, the replicas hold .*\.$/);
    assert.deepEqual(tab.complaints, []);
  });
});
