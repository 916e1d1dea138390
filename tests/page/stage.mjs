// The built kvpin in front of simulated replicas, with agents that talk to them, and a gate between its admin listener and
// the browser that can be closed.

import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { sleep, until } from "./browser.mjs";

export const MODEL = "qwen3-4b";
/** How many times faster than a card the engines are: an agent's minutes pass in seconds. */
const SPEED = 8;
const TURNS = 8;
const WORDS = ["read", "the", "file", "then", "change", "what", "it", "says", "about", "ports", "and", "run", "tests", "again"];

export class Stage {
  #children = [];
  #agents = [];
  #isTalking = false;
  #token;

  /** Starts so many replicas and a kvpin in front of them; with a token, its admin listener asks for it. */
  static async start(binary, replicas, token = undefined) {
    const stage = new Stage();
    stage.#token = token;
    stage.directory = await mkdtemp(join(tmpdir(), "kvpin-stage-"));
    try {
      await stage.#begin(binary, replicas);
    } catch (error) {
      await stage.stop();
      throw error;
    }
    return stage;
  }

  async #begin(binary, replicas) {
    const urls = [];
    for (let index = 0; index < replicas; index += 1) {
      const replica = this.#spawn(binary, ["replica", "--port", "0", "--model", MODEL, "--time-scale", String(SPEED)]);
      urls.push(await firstMatch(replica.stdout, /^(http:\/\/\S+)/));
    }
    this.file = join(this.directory, "kvpin.yaml");
    const models = { [MODEL]: { aliases: ["claude-sonnet-4-5"], replicas: urls, max_num_seqs: 32 } };
    const guarded = this.#token ? { admin_token_file: "token" } : {};
    if (this.#token) await writeFile(join(this.directory, "token"), this.#token, { mode: 0o600 });
    this.config = { listen: "127.0.0.1:0", admin: "127.0.0.1:0", scrape_interval_ms: 200, models, ...guarded };
    // JSON is YAML.
    await writeFile(this.file, JSON.stringify(this.config));
    this.kvpin = this.#spawn(binary, ["run", "--config", this.file]);
    const lines = createInterface({ input: this.kvpin.stderr });
    const addresses = {};
    lines.on("line", (line) => {
      const [, what, address] = line.match(/(listening|admin) on (\S+)$/) ?? [];
      if (what) addresses[what] = address;
    });
    await until("kvpin listens", () => addresses.listening && addresses.admin);
    this.url = `http://${addresses.listening}`;
    this.admin = `http://${addresses.admin}`;
    await until("the replicas are up", async () => (await this.status()).models[0].replicas.every((replica) => replica.health === "up"));
  }

  #spawn(binary, args) {
    const child = spawn(binary, args, { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, RUST_LOG: "info" } });
    child.stderr.resume();
    this.#children.push(child);
    return child;
  }

  status() {
    return this.#ask("/api/v1/status");
  }

  history() {
    return this.#ask("/api/v1/history");
  }

  async #ask(path) {
    const headers = this.#token ? { authorization: `Bearer ${this.#token}` } : {};
    return (await fetch(this.admin + path, { headers })).json();
  }

  /** Has so many agents talk, each in sessions of growing conversations, until `hush`. */
  talk(agents) {
    this.#isTalking = true;
    for (let agent = 0; agent < agents; agent += 1) this.#agents.push(this.#agent(agent));
  }

  /** Waits until every turn has ended, and been seen to have ended. */
  async hush() {
    this.#isTalking = false;
    await Promise.all(this.#agents.splice(0));
    await until("all turns have ended", async () => (await this.status()).kvpin.open_requests === 0);
  }

  async #agent(agent) {
    for (let session = 0; this.#isTalking; session += 1) {
      const id = `agent-${agent}-session-${session}`;
      const messages = [{ role: "user", content: textOf(5000, `${id} begins`) }];
      for (let turn = 0; turn < TURNS && this.#isTalking; turn += 1) {
        messages.push({ role: "assistant", content: await this.#turn(id, messages) }, { role: "user", content: textOf(300, `${id} turn ${turn}`) });
        await sleep(80 + 40 * (agent % 5));
      }
    }
  }

  /** One turn as Claude Code sends it, read to the end of its stream. */
  async #turn(id, messages) {
    const headers = { "content-type": "application/json", "anthropic-version": "2023-06-01", "x-claude-code-session-id": id };
    const body = JSON.stringify({ model: MODEL, max_tokens: 48, stream: true, messages });
    const response = await fetch(`${this.url}/v1/messages`, { method: "POST", headers, body });
    const text = await response.text();
    if (!response.ok) throw new Error(`a turn got ${response.status}: ${text}`);
    return [...text.matchAll(/"text_delta","text":"((?:[^"\\]|\\.)*)"/g)].map(([, piece]) => JSON.parse(`"${piece}"`)).join("") || "yes";
  }

  /** Has kvpin read a changed configuration. */
  async reload(change) {
    await writeFile(this.file, JSON.stringify(change(this.config)));
    this.kvpin.kill("SIGHUP");
  }

  /** Has the first replica fall; gives its name. */
  async fell() {
    const { models: [model] } = await this.status();
    await end(this.#children.shift());
    return model.replicas[0].name;
  }

  async stop() {
    this.#isTalking = false;
    await Promise.allSettled(this.#agents.splice(0));
    for (const child of this.#children.splice(0)) await end(child);
    await rm(this.directory, { recursive: true, force: true });
  }
}

async function end(child) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGKILL");
  await ended;
}

/** Words that are the conversation's own. */
function textOf(words, seed) {
  const text = [seed];
  let state = [...seed].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) >>> 0, 7);
  while (text.length < words) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    text.push(WORDS[state % WORDS.length]);
  }
  return text.join(" ");
}

async function firstMatch(stream, pattern) {
  for await (const line of createInterface({ input: stream })) {
    const found = line.match(pattern);
    if (found) return found[1];
  }
  throw new Error(`the process ended without saying ${pattern}`);
}

/** Stands between the browser and an admin listener: passes everything on as it comes, or nothing, or all but the stream. */
export class Gate {
  /** `open`, `no-stream`: the live stream is cut and refused, `shut`: every connection is. */
  #state = "open";
  #streams = new Set();

  static async start(target) {
    const gate = new Gate();
    gate.server = http.createServer((request, response) => gate.#pass(target, request, response));
    await new Promise((resolve) => gate.server.listen(0, "127.0.0.1", resolve));
    gate.url = `http://127.0.0.1:${gate.server.address().port}/`;
    return gate;
  }

  /** Live streams that pass. */
  get streams() {
    return this.#streams.size;
  }

  set(state) {
    this.#state = state;
    if (state !== "open") this.#streams.forEach((response) => response.destroy());
    if (state === "shut") this.server.closeAllConnections();
  }

  async stop() {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  #pass(target, request, response) {
    const isStream = request.url === "/api/v1/live";
    if (this.#state === "shut") return request.destroy();
    if (this.#state === "no-stream" && isStream) return response.writeHead(503).end();
    const { host, ...headers } = request.headers;
    const onward = http.request(target + request.url, { method: request.method, headers, agent: false }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
      answer.on("error", () => response.destroy());
    });
    onward.on("error", () => response.destroy());
    response.on("close", () => onward.destroy());
    request.pipe(onward);
    if (!isStream) return undefined;
    this.#streams.add(response);
    response.on("close", () => this.#streams.delete(response));
    return undefined;
  }
}
