// A headless Chromium, driven by the DevTools protocol over a pipe: one browser, one tab at a time.

import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** What one command of the protocol may take. */
const COMMAND_MS = 30_000;
/** How long anything may take to become true. Generous: a test that passes never waits for it. */
const DEADLINE_MS = 30_000;
const LOOK_MS = 50;

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits until `look` gives something, and gives that. */
export async function until(what, look, deadlineMs = DEADLINE_MS) {
  const deadline = Date.now() + deadlineMs;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > deadline) throw new Error(`${what}: not within ${deadlineMs} ms`);
    await sleep(LOOK_MS);
  }
}

export class Browser {
  #process;
  #profile;
  #waiting = new Map();
  #listeners = [];
  #last = 0;
  #rest = "";

  static async start(binary) {
    const browser = new Browser();
    browser.#profile = await mkdtemp(join(tmpdir(), "kvpin-page-"));
    // A sandbox can't be had by root, nor in most containers; and the shared memory of those is small.
    const args = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run",
      "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--force-color-profile=srgb",
      "--font-render-hinting=none", `--user-data-dir=${browser.#profile}`, "about:blank"];
    browser.#process = spawn(binary, args, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    browser.#process.stdio[4].setEncoding("utf8").on("data", (text) => browser.#read(text));
    browser.#process.on("exit", () => browser.#waiting.forEach(({ reject }) => reject(new Error("the browser has ended"))));
    await browser.send("Browser.getVersion");
    return browser;
  }

  async stop() {
    const ended = new Promise((resolve) => this.#process.once("exit", resolve));
    this.#process.kill("SIGTERM");
    const killed = setTimeout(() => this.#process.kill("SIGKILL"), 5000);
    await ended;
    clearTimeout(killed);
    await rm(this.#profile, { recursive: true, force: true, maxRetries: 5 });
  }

  send(method, params = {}, sessionId = undefined) {
    const id = ++this.#last;
    this.#process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error(`${method}: no answer`)), COMMAND_MS);
      const settle = (end) => (value) => { clearTimeout(late); this.#waiting.delete(id); end(value); };
      this.#waiting.set(id, { resolve: settle(resolve), reject: settle(reject), method });
    });
  }

  listen(listener) {
    this.#listeners.push(listener);
  }

  #read(text) {
    const parts = (this.#rest + text).split("\0");
    this.#rest = parts.pop();
    for (const part of parts) this.#take(JSON.parse(part));
  }

  #take(message) {
    const waiting = this.#waiting.get(message.id);
    if (!waiting) this.#listeners.forEach((listener) => listener(message));
    else if (message.error) waiting.reject(new Error(`${waiting.method}: ${message.error.message}`));
    else waiting.resolve(message.result);
  }
}

/** A tab, with all that its console says. */
export class Tab {
  /** Errors and warnings of the console, what was thrown and not caught, and what the policy forbade. */
  complaints = [];

  static async open(browser, { width = 1280, height = 900, scheme = "light" } = {}) {
    const tab = new Tab();
    tab.browser = browser;
    const { targetId } = await browser.send("Target.createTarget", { url: "about:blank" });
    tab.target = targetId;
    ({ sessionId: tab.session } = await browser.send("Target.attachToTarget", { targetId, flatten: true }));
    browser.listen((message) => { if (message.sessionId === tab.session) tab.#hear(message); });
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await tab.send(`${domain}.enable`);
    // Without it, only one of several tabs has a focus that can be seen.
    await tab.send("Emulation.setFocusEmulationEnabled", { enabled: true });
    await tab.resize(width, height);
    await tab.prefer(scheme);
    return tab;
  }

  send(method, params) {
    return this.browser.send(method, params, this.session);
  }

  async close() {
    await this.browser.send("Target.closeTarget", { targetId: this.target });
  }

  async go(url) {
    await this.send("Page.navigate", { url });
  }

  /** `height` of the window; the page may be longer. */
  async resize(width, height) {
    await this.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: false });
  }

  async prefer(scheme, motion = "no-preference") {
    const features = [{ name: "prefers-color-scheme", value: scheme }, { name: "prefers-reduced-motion", value: motion }];
    await this.send("Emulation.setEmulatedMedia", { features });
  }

  /** The value of a function in the page, called with arguments that JSON can carry. */
  async run(code, ...args) {
    const expression = `(${code})(...${JSON.stringify(args)})`;
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  /** Waits until a function in the page gives something. */
  until(what, code, ...args) {
    return until(what, () => this.run(code, ...args));
  }

  async press(key, modifiers = 0) {
    const codes = { Tab: 9, Enter: 13, " ": 32, ArrowLeft: 37, ArrowRight: 39, Home: 36, End: 35 };
    const event = { key, code: key === " " ? "Space" : key, windowsVirtualKeyCode: codes[key], modifiers, text: { Enter: "\r", " ": " " }[key] };
    await this.send("Input.dispatchKeyEvent", { type: "keyDown", ...event });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", ...event });
  }

  async point(x, y) {
    await this.send("Input.dispatchMouseEvent", { type: "mouseMoved", x, y });
  }

  /** A picture of the window. */
  async picture(file) {
    const { data } = await this.send("Page.captureScreenshot", { format: "png" });
    await writeFile(file, Buffer.from(data, "base64"));
  }

  #hear({ method, params }) {
    if (method === "Runtime.exceptionThrown") this.complaints.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    if (method === "Runtime.consoleAPICalled" && ["error", "warning", "assert"].includes(params.type)) {
      this.complaints.push(params.args.map((arg) => arg.value ?? arg.description).join(" "));
    }
    if (method === "Log.entryAdded" && ["error", "warning"].includes(params.entry.level)) this.complaints.push(`${params.entry.text} ${params.entry.url ?? ""}`);
  }
}
