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

/**
 * Calls `onStatus(status)` and `onHistory(history)` as they come, and `onState(state, newest)` when that changes: `live`,
 * `polling` or `lost`, with the time of the newest status. Rests while the page can't be seen.
 *
 * Nothing is chained: twice a second it looks at what is the case, and does what is due.
 */
export class Feed {
  #on;
  #range = "1h";
  #state = "";
  #newest = 0;
  #looks = 0;
  #stream = null;
  /** Whether the open stream has said something, and when it last did. */
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

  /** A browser has six connections to a server: a page that nobody sees gives its own back. */
  #rest() {
    clearInterval(this.#looks);
    this.#looks = 0;
    this.#close();
  }

  #look() {
    const now = performance.now();
    if (this.#stream && now - this.#heard > SILENCE_MS) this.#lose();
    if (!this.#stream && now >= this.#due.stream) this.#open();
    if (!this.#streams && !this.#asking.status && now >= this.#due.status) this.#askStatus();
    if (!this.#asking.history && now >= this.#due.history) this.#askHistory();
  }

  #open() {
    this.#heard = performance.now();
    this.#stream = new EventSource(LIVE);
    this.#stream.onmessage = (event) => {
      this.#heard = performance.now();
      this.#streams = true;
      this.#retryMs = RETRY_MS;
      this.#take(JSON.parse(event.data), "live");
    };
    // The browser's own tries to come back are not relied on: after some failures it makes none.
    this.#stream.onerror = () => this.#lose();
  }

  #close() {
    this.#stream?.close();
    this.#stream = null;
    this.#streams = false;
  }

  #lose() {
    this.#close();
    const now = performance.now();
    this.#due.stream = now + this.#retryMs;
    this.#due.status = Math.min(this.#due.status, now);
    this.#retryMs = Math.min(this.#retryMs * 2, RETRY_MAX_MS);
  }

  async #askStatus() {
    this.#asking.status = true;
    let status = null;
    try {
      status = await ask(STATUS);
    } catch {
      // Told below.
    }
    this.#asking.status = false;
    this.#due.status = performance.now() + POLL_MS;
    // The stream may have come back meanwhile, or the page been left.
    if (this.#streams || !this.#looks) return;
    if (status) this.#take(status, "polling");
    else this.#set("lost");
  }

  async #askHistory() {
    this.#asking.history = true;
    const begun = performance.now();
    const range = this.#range;
    let history = null;
    try {
      history = await ask(`${HISTORY}?range=${range}`);
    } catch {
      // The status says whether kvpin answers at all.
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
    this.#on.onState(state, this.#newest);
  }
}

async function ask(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(ANSWER_MS), cache: "no-store" });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}
