// An admin listener that serves the page's files with kvpin's own heads, and any status: for what a test can't have a real
// kvpin say, and for looking at the page while it is changed:
//
//   node tests/page/stub.mjs [MODELS] [REPLICAS]

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { Fleet } from "./generate.mjs";

const SOURCE = join(dirname(fileURLToPath(import.meta.url)), "../../src/admin/page");
const TYPES = { html: "text/html; charset=utf-8", js: "text/javascript; charset=utf-8", css: "text/css; charset=utf-8", svg: "image/svg+xml" };

/** The policy, from the one place where it stands. */
async function policy() {
  const source = await readFile(join(SOURCE, "mod.rs"), "utf8");
  return source.match(/const POLICY: &str = "([^"]*)"/)[1].replace(/\\\n\s*/g, "");
}

/**
 * Serves until `close` is called. `live` can be turned off: the stream is then refused, as it is to one reader too many.
 * Where there is a `token`, whoever shows another one is refused; while `refused` is a list, only once it is given up by
 * `refuse`.
 */
export class Stub {
  live = true;
  token = null;
  refused = null;
  #readers = new Set();

  static async start(fleet, port = 0) {
    const stub = new Stub();
    const headers = { "content-security-policy": await policy(), "x-content-type-options": "nosniff", "cache-control": "no-cache" };
    stub.server = createServer((request, response) => stub.#answer(fleet, headers, request, response).catch(() => response.destroy()));
    await new Promise((resolve) => stub.server.listen(port, "127.0.0.1", resolve));
    stub.url = `http://127.0.0.1:${stub.server.address().port}/`;
    stub.ticks = setInterval(() => stub.#tell(fleet), 1000);
    return stub;
  }

  async close() {
    clearInterval(this.ticks);
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  refuse() {
    for (const response of this.refused) response.writeHead(401).end();
    this.refused = null;
  }

  #tell(fleet) {
    if (this.#readers.size === 0) return;
    const event = `data: ${JSON.stringify(fleet.status())}\n\n`;
    for (const reader of this.#readers) reader.write(event);
  }

  async #answer(fleet, headers, request, response) {
    const { pathname, searchParams } = new URL(request.url, this.url);
    const json = (body) => response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(body));
    if (pathname.startsWith("/api/") && this.token && request.headers.authorization !== `Bearer ${this.token}`) {
      return this.refused ? this.refused.push(response) : response.writeHead(401).end();
    }
    if (pathname === "/api/v1/status") return json(fleet.status());
    if (pathname === "/api/v1/history") return json(fleet.history(searchParams.get("range")));
    if (pathname === "/api/v1/live") return this.#stream(fleet, response);
    const name = pathname === "/" ? "index.html" : pathname.match(/^\/page\/([a-z]+\.[a-z]+)$/)?.[1];
    if (!name) return response.writeHead(404).end();
    response.writeHead(200, { ...headers, "content-type": TYPES[name.split(".")[1]] });
    return response.end(await readFile(join(SOURCE, name)));
  }

  #stream(fleet, response) {
    if (!this.live) return response.writeHead(503).end();
    response.writeHead(200, { "content-type": "text/event-stream" }).write(`data: ${JSON.stringify(fleet.status())}\n\n`);
    this.#readers.add(response);
    response.on("close", () => this.#readers.delete(response));
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [models = 1, replicas = 4] = process.argv.slice(2).map(Number);
  const stub = await Stub.start(new Fleet({ models, replicas, overfull: true }));
  console.log(stub.url);
}
