// Where the figures come from: the live stream, or the status asked for again and again where there is no stream.

const LIVE = "/api/v1/live";
const STATUS = "/api/v1/status";
const HISTORY = "/api/v1/history";

const LOOK_MS = 500;
/** The stream says something every second; silent for so long, it is taken for dead. */
const SILENCE_MS = 4000;
const POLL_MS = 2000;
/** Between two tries to have the stream back, at first and at last. */
const RETRY_MS = 2000;
const RETRY_MAX_MS = 15000;
const ANSWER_MS = 8000;
const HISTORY_MS = 5000;
/** The share of the time that getting the history may take: of 20 models it is megabytes. */
const HISTORY_SHARE = 0.05;
/** The admin token, where there is one, is kept under this name for as long as the tab is open. */
const TOKEN = "kvpin-admin-token";

/**
 * Calls `onStatus(status)` and `onHistory(history)` as they come, and `onState(state, newest)` when that changes, with the
 * time of the newest status: `live`, `polling`, `lost`, or `locked` where a token is asked for. Rests while the page can't
 * be seen.
 *
 * Nothing is chained: twice a second it looks at what is the case, and does what is due.
 */
export class Feed {
  #on;
  #range = "1h";
  #state = "";
  #newest = 0;
  #looks = 0;
  /** Ends the stream that is open or opening. */
  #stream = null;
  /** Whether it has said something, and when it last did. */
  #streams = false;
  #heard = 0;
  #retryMs = RETRY_MS;
  #due = { stream: 0, status: 0, history: 0 };
  #asking = { status: false, history: false };

  constructor(on) {
    this.#on = on;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#rest() : this.start()));
  }

  start() {
    if (document.hidden || this.#looks) return;
    const now = performance.now();
    // The stream gets its chance before the status is asked for.
    this.#due = { stream: now, status: now + SILENCE_MS, history: now };
    this.#looks = setInterval(() => this.#look(), LOOK_MS);
    this.#look();
  }

  setRange(range) {
    this.#range = range;
    this.#due.history = 0;
    this.#asking.history = false;
    if (this.#looks) this.#look();
  }

  setToken(given) {
    keepToken(given);
    // What was asked for with the one before says nothing of this one.
    this.#close();
    this.#retryMs = RETRY_MS;
    this.#due = { stream: 0, status: 0, history: 0 };
    this.#set("");
    if (this.#looks) this.#look();
  }

  /** A browser has six connections to a server: a page that nobody sees gives its own back. */
  #rest() {
    clearInterval(this.#looks);
    this.#looks = 0;
    this.#close();
  }

  #look() {
    // Asked again and again, a wrong token would be no better.
    if (this.#state === "locked") return;
    const now = performance.now();
    if (this.#stream && now - this.#heard > SILENCE_MS) this.#lose(this.#stream);
    if (!this.#stream && now >= this.#due.stream) this.#open();
    if (!this.#streams && !this.#asking.status && now >= this.#due.status) this.#askStatus();
    if (!this.#asking.history && now >= this.#due.history) this.#askHistory();
  }

  /** Reads the stream to its end. `EventSource` can send no token, and gives up for good after some failures. */
  async #open() {
    const stream = new AbortController();
    this.#stream = stream;
    this.#heard = performance.now();
    try {
      const response = await request(LIVE, stream.signal);
      for await (const event of eventsOf(response.body)) {
        if (stream !== this.#stream) return;
        this.#heard = performance.now();
        this.#streams = true;
        this.#retryMs = RETRY_MS;
        this.#take(event, "live");
      }
    } catch (error) {
      if (stream === this.#stream && error.status === 401) this.#set("locked");
    }
    this.#lose(stream);
  }

  #close() {
    this.#stream?.abort();
    this.#stream = null;
    this.#streams = false;
  }

  #lose(stream) {
    if (stream !== this.#stream) return;
    this.#close();
    const now = performance.now();
    this.#due.stream = now + this.#retryMs;
    this.#due.status = Math.min(this.#due.status, now);
    this.#retryMs = Math.min(this.#retryMs * 2, RETRY_MAX_MS);
  }

  async #askStatus() {
    this.#asking.status = true;
    const asked = token;
    let status = null;
    let failure = null;
    try {
      status = await ask(STATUS);
    } catch (error) {
      failure = error.status === 401 ? "locked" : "lost";
    }
    this.#asking.status = false;
    this.#due.status = performance.now() + POLL_MS;
    // The stream may have come back meanwhile, or the page been left, or another token been given.
    if (this.#streams || !this.#looks || asked !== token) return;
    if (status) this.#take(status, "polling");
    else this.#set(failure);
  }

  async #askHistory() {
    this.#asking.history = true;
    const begun = performance.now();
    const range = this.#range;
    let history = null;
    try {
      history = await ask(`${HISTORY}?range=${range}`);
    } catch {
      // The stream and the status say what is wrong.
    }
    // Another range may have been chosen meanwhile, and been asked for.
    if (range !== this.#range) return;
    this.#asking.history = false;
    const now = performance.now();
    this.#due.history = now + Math.max(HISTORY_MS, (now - begun) / HISTORY_SHARE);
    if (history) this.#on.onHistory(history);
  }

  #take(status, state) {
    this.#newest = Date.now() / 1000;
    this.#set(state);
    this.#on.onStatus(status);
  }

  #set(state) {
    if (state === this.#state) return;
    this.#state = state;
    if (state !== "") this.#on.onState(state, this.#newest);
  }
}

async function ask(path) {
  const response = await request(path, AbortSignal.timeout(ANSWER_MS));
  return response.json();
}

let token = keptToken();

// A browser that keeps nothing for pages asks again after a reload.
function keptToken() {
  try { return sessionStorage.getItem(TOKEN); } catch { return null; }
}

function keepToken(given) {
  token = given;
  try { sessionStorage.setItem(TOKEN, given); } catch { /* until the page is left */ }
}

async function request(path, signal) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const response = await fetch(path, { signal, headers, cache: "no-store" });
  if (response.ok) return response;
  throw Object.assign(new Error(`${path}: ${response.status}`), { status: response.status });
}

/** The data of each server-sent event, as JSON. */
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pieces = [];
  for (;;) {
    const { value: text, done } = await reader.read();
    if (done) return;
    pieces.push(text);
    // JSON as it comes has no line breaks: with one, an event is whole.
    if (!text.includes("\n")) continue;
    const lines = pieces.join("").split("\n");
    pieces = [lines.pop()];
    for (const line of lines) {
      if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
    }
  }
}
