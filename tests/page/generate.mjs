// A status and a history of any size, the same for the same seed: what the page is shown where no kvpin of that size can be run.

/** Numbers from 0 to 1 that only look like chance. */
function chance(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

export const HOSTILE = "<img src=x onerror=\"document.title='owned'\"><b>bold</b> & \u202e\"quoted'";
const REASONS = ["evicted", "prefix_changed", "unexplained", "spilled", "restarted", "moved"];
const CAPACITY = 460_000;

/** A fleet that is asked for its status at any moment: counters grow with the time. */
export class Fleet {
  constructor({ models, replicas, seed = 1, hostile = false, overfull = false, hours = 1 }) {
    this.begun = Date.now() / 1000 - hours * 3600;
    this.shape = Array.from({ length: models }, (_, model) => ({
      name: hostile && model === 0 ? HOSTILE : `model-${String(model + 1).padStart(2, "0")}`,
      replicas: Array.from({ length: replicas }, (_, replica) => (hostile && replica === 1 ? `${HOSTILE} ${replica}` : `10.0.${model}.${replica + 1}:8000`)),
    }));
    Object.assign(this, { seed, overfull });
  }

  status() {
    const up = Date.now() / 1000 - this.begun;
    return {
      kvpin: { version: "0.0.0-generated", uptime_s: up, since_s: this.begun, open_requests: 7, last_reload: { at_unix_s: this.begun + up / 2, outcome: "applied", changes: [], problems: [] }, last_failed_upgrade: null },
      models: this.shape.map((model, at) => this.#model(model, at, up)),
    };
  }

  #model({ name, replicas }, at, up) {
    const all = replicas.map((replica, index) => this.#replica(replica, chance(this.seed + at * 1000 + index), up));
    const sum = (of) => all.reduce((total, replica) => total + of(replica), 0);
    const tokens = Object.fromEntries(["cached", "computed", "estimated", "completion"].map((key) => [key, sum((r) => r.tokens[key])]));
    const cold = Object.fromEntries(REASONS.map((reason) => [reason, Object.fromEntries(["turns", "tokens", "survived"].map((key) => [key, sum((r) => r.cold[reason][key])]))]));
    return {
      name, aliases: [`${name}-alias`], affinity: at % 5 !== 4, mode: at % 5 === 4 ? "least_loaded" : "affinity",
      spill_threshold: { configured: "auto" }, conversations: sum((r) => r.conversations.active + r.conversations.idle),
      sticky_percent: 99.97, prefix_hit_percent: 91.2, in_flight: sum((r) => r.in_flight),
      tokens, cold, turns_measured: sum((r) => r.turns_measured), turns_unmeasured: sum((r) => r.turns_unmeasured), turns_untold: 0,
      cached_percent: (tokens.cached * 100) / (tokens.cached + tokens.computed),
      first_byte: { p50_s: 0.42, p95_s: 3.1, count: sum((r) => r.turns_measured) },
      working_set: { conversations: sum((r) => r.conversations.active), tokens: sum((r) => r.working_set_tokens), capacity_tokens: CAPACITY * all.length },
      admission: { mode: "auto", held_turns: 0, longest_hold_s: 0, needed_tokens: 0, held_turns_total: 0, forced_turns_total: 0, left_turns_total: 0, refused_turns_total: 0, parked_conversations_total: 0, hold: { p50_s: null, p95_s: null, count: 0 } },
      refused: { no_replica_up: 0 }, notes: ["max_num_seqs is not configured: 32 is assumed"], replicas: all,
    };
  }

  #replica(name, random, up) {
    const health = random() < 0.94 ? "up" : ["suspect", "down", "draining", "sleeping"][Math.floor(random() * 4)];
    const rate = 0.05 + random() * 0.2;
    const turns = Math.floor(up * rate);
    const active = 2 + Math.floor(random() * 6);
    const cold = Object.fromEntries(REASONS.map((reason, at) => {
      const count = at < 4 ? Math.floor(turns * 0.02 * random()) : 0;
      return [reason, { turns: count, tokens: count * 21_000, survived: count * 4_000 }];
    }));
    const workingSet = Math.round(active * 58_000 * (this.overfull ? 2.2 : 1));
    return {
      name, address: name.startsWith("10.") ? name : "10.0.9.9:8000", rank: null, health, health_reason: health === "down" ? "connect_refused" : health === "suspect" ? "probe_failed" : null,
      health_age_s: random() * up, drain: health === "draining" ? "ordered" : null, ramp_percent: 100, restarts: random() < 0.05 ? 1 : 0,
      in_flight: health === "up" ? Math.floor(random() * 7) : 0, conversations: { active, relatives: 1, idle: 3, lost: 0 },
      sticky: Math.floor(turns * 0.94), placed: Math.floor(turns * 0.05), replaced: 1, forked: 2, spilled_in: Math.floor(turns * 0.01), client_pinned: 0, unpinned: 3, side: 9,
      outcomes: { completed: turns, rejected: 0, failed: 0, abandoned: 1, moved_on: 0 },
      tokens: { cached: turns * 51_000, computed: turns * 6_200, estimated: Math.floor(turns * 210), completion: turns * 380 },
      turns_measured: turns, turns_unmeasured: Math.floor(turns * 0.01), turns_untold: 0, cached_percent: (51_000 * 100) / 57_200, cold, working_set_tokens: workingSet,
      residents: active, resident_tokens: Math.min(workingSet, CAPACITY), admission_limit_tokens: CAPACITY,
      spill_threshold: 8, max_num_seqs: 32, max_num_seqs_source: "assumed", retired: false,
      engine: health === "down" ? null : { scrape_age_s: 0.4, running: Math.floor(random() * 7), waiting: Math.floor(random() * 2), kv_use_percent: random() * 80, kv_capacity_tokens: CAPACITY,
        prefix_queries_tokens: turns * 57_200, prefix_hits_tokens: turns * 51_000, prefix_hit_percent: 89.16, prompt_tokens: turns * 57_200, generation_tokens: turns * 380 },
    };
  }

  history(range) {
    const [rangeS, stepS] = range === "1w" ? [604_800, 300] : [3_600, 10];
    const now = Date.now() / 1000;
    const events = [];
    const models = this.shape.map(({ name, replicas }, at) => {
      const first = Math.max(Math.floor(this.begun / stepS), Math.floor((now - rangeS) / stepS) + 1) * stepS;
      const points = [];
      for (let begin = first; begin <= now; begin += stepS) points.push(this.#point(begin, Math.min(stepS, now - begin), replicas.length, at));
      const happen = (share, kind, replica, text) => events.push({ at_s: now - rangeS * share, kind, model: name, replica, text });
      happen(0.42, "health", replicas[0], "is down (connect_refused), was up");
      happen(0.39, "restart", replicas[0], "restarted (the engine says so): its cache is empty");
      happen(0.385, "health", replicas[0], "is up, was down");
      return { name, points };
    });
    events.push({ at_s: now - rangeS * 0.2, kind: "reload", model: null, replica: null, text: "reloaded: no changes" });
    events.sort((one, other) => one.at_s - other.at_s);
    return { range_s: rangeS, step_s: stepS, now_s: now, models, events };
  }

  #point(begin, length, replicas, model) {
    const random = chance(begin + model * 7919);
    const wave = 0.7 + 0.3 * Math.sin(begin / 500 + model) + 0.25 * (random() - 0.5);
    const isCold = Math.sin(begin / 260 + 2) > 0.94;
    const tokens = Math.max(0, wave) * replicas * 6_000 * length;
    const share = isCold ? 0.35 + 0.2 * random() : 0.86 + 0.08 * random();
    const p50 = (isCold ? 1.2 : 0.35) + 0.2 * random();
    return {
      at_s: begin, length_s: length, turns: Math.round(tokens / 57_000), cached_tokens: Math.round(tokens * share), computed_tokens: Math.round(tokens * (1 - share)),
      estimated_tokens: Math.round(tokens * 0.03 * (random() > 0.7)), completion_tokens: Math.round(tokens * 0.006 * (0.6 + random())),
      first_byte_p50_s: p50, first_byte_p95_s: p50 * (2.4 + 2 * random()), busy_replicas: Math.min(replicas, Math.max(0, wave) * replicas * 0.9), in_flight: Math.max(0, wave) * replicas * 2.4,
    };
  }
}
