// One browser for the tests of a file, and ways to look at the page in it.

import { after, afterEach, before } from "node:test";

import { Browser, Tab } from "./browser.mjs";

let browser;
before(async () => { browser = await Browser.start(process.env.KVPIN_CHROMIUM); });
after(() => browser?.stop());

const tabs = [];

/** A tab, closed when its test has ended. */
export async function tabAt(url, options) {
  const tab = await Tab.open(browser, options);
  tabs.push(tab);
  await tab.go(url);
  return tab;
}
/** Closes them. */
export const close = async () => { for (const tab of tabs.splice(0)) await tab.close(); };
afterEach(close);

/** The same, on a page that has shown its first status and history. */
export async function open(url, options) {
  const tab = await tabAt(url, options);
  await tab.until("the first status and history are shown", () => Boolean(document.querySelector(".replicas tbody tr") && document.querySelector(".panel path.base")));
  return tab;
}

export const textOf = (tab, selector) => tab.run((wanted) => document.querySelector(wanted)?.textContent ?? null, selector);
export const feedOf = (tab) => tab.run(() => document.body.dataset.feed ?? "");

/** The cells of a replica's row, by column, and its health. */
export function rowOf(name) {
  const row = [...document.querySelectorAll(".replicas tbody tr")].find((candidate) => candidate.querySelector(".name")?.textContent === name);
  if (!row) return null;
  const cells = [...row.querySelectorAll("[data-column]")].map((cell) => [cell.dataset.column, cell.querySelector(".value").textContent]);
  return { health: row.dataset.health, ...Object.fromEntries(cells) };
}
