// What the charts show: the panels, their series, and how a point of the history becomes the values that are drawn.

import { average, percent, rate, roundTokens, seconds } from "./format.js";

/** Steps that are drawn are at least this wide; on a week, several are put together for it. */
const STEP_MIN_PX = 1.5;

/** The points as they are drawn on so many pixels, and how long each is. */
export function coarsened({ points, stepS }, spanS, pixels) {
  const together = Math.max(1, Math.ceil((spanS / stepS) * (STEP_MIN_PX / pixels)));
  if (together === 1) return { points, stepS };
  const wide = stepS * together;
  // By the clock, so that what is together stays together while time goes on.
  const groups = new Map();
  for (const point of points) {
    const at = Math.floor(point.at_s / wide) * wide;
    groups.set(at, [...(groups.get(at) ?? []), point]);
  }
  return { points: [...groups.values()].map(joined), stepS: wide };
}

/** Several steps as one: sums of counts, averages of the rest, by time or by turns. */
function joined(group) {
  const sum = (of) => group.reduce((total, point) => total + of(point), 0);
  const passed = sum((point) => point.length_s) || 1;
  const byTurns = (field) => {
    const known = group.filter((point) => point[field] !== null);
    const weight = known.reduce((total, point) => total + Math.max(1, point.turns), 0);
    return known.length > 0 ? known.reduce((total, point) => total + point[field] * Math.max(1, point.turns), 0) / weight : null;
  };
  const counts = ["turns", "cached_tokens", "computed_tokens", "estimated_tokens", "completion_tokens"];
  return {
    at_s: group[0].at_s,
    length_s: sum((point) => point.length_s),
    ...Object.fromEntries(counts.map((field) => [field, sum((point) => point[field])])),
    first_byte_p50_s: byTurns("first_byte_p50_s"),
    first_byte_p95_s: byTurns("first_byte_p95_s"),
    busy_replicas: sum((point) => point.busy_replicas * point.length_s) / passed,
    in_flight: sum((point) => point.in_flight * point.length_s) / passed,
    ...(group[0].held_turns === undefined ? {} : { held_turns: sum((point) => point.held_turns * point.length_s) / passed }),
  };
}

/** A step of which less has passed than this says little about its rate. */
const PASSED_MIN_S = 2;

/** A point with what is drawn of it: rates per second, and sums for what is stacked. */
export function valuesOf({ points, stepS }) {
  const whole = points.filter((point) => point.length_s >= PASSED_MIN_S);
  return whole.map((point) => {
    const per = (count) => count / point.length_s;
    const prompt = point.cached_tokens + point.computed_tokens;
    const [cached, computed, estimated] = [per(point.cached_tokens), per(point.computed_tokens), per(point.estimated_tokens)];
    return {
      at: point.at_s,
      end: point.at_s + Math.min(point.length_s, stepS),
      cached,
      computed,
      estimated,
      toComputed: cached + computed,
      toEstimated: cached + computed + estimated,
      completion: per(point.completion_tokens),
      share: prompt > 0 ? (point.cached_tokens * 100) / prompt : null,
      p50: point.first_byte_p50_s,
      p95: point.first_byte_p95_s,
      busy: point.busy_replicas,
      inFlight: point.in_flight,
      held: point.held_turns ?? null,
      point,
    };
  });
}

const ZERO = () => 0;
const known = (value, format) => (value === null || value === undefined ? "–" : format(value));

/**
 * From the top down. `grid`: where lines are, as shares of the top. `least`: the top that a panel has at least. `look`: the
 * class by which a series is coloured.
 */
export const PANELS = [
  {
    id: "prompt",
    title: "Prompt tokens a second",
    height: 132,
    least: 10,
    grid: [0, 0.5, 1],
    tick: roundTokens,
    series: [
      { title: "cached", look: "cached", shape: "area", from: ZERO, to: (v) => v.cached, says: (v) => rate(v.cached) },
      { title: "computed", look: "computed", shape: "area", from: (v) => v.cached, to: (v) => v.toComputed, says: (v) => rate(v.computed) },
      { title: "estimated", look: "estimated", shape: "area", from: (v) => v.toComputed, to: (v) => v.toEstimated, says: (v) => rate(v.estimated) },
    ],
  },
  {
    id: "completion",
    title: "Completion tokens a second",
    height: 44,
    least: 10,
    grid: [0, 1],
    tick: roundTokens,
    series: [{ title: "generated", look: "completion", shape: "area", from: ZERO, to: (v) => v.completion, says: (v) => rate(v.completion) }],
  },
  {
    id: "share",
    title: "Share of the prompt tokens found in cache",
    height: 44,
    least: 100,
    grid: [0, 1],
    tick: (value) => percent(value, 0),
    series: [{ title: "cached", look: "share", shape: "line", to: (v) => v.share, says: (v) => known(v.share, percent) }],
  },
  {
    id: "first-byte",
    title: "Time to first byte",
    height: 64,
    least: 0.1,
    grid: [0, 1],
    tick: (value) => (value === 0 ? "0" : seconds(value).replace(".0", "")),
    series: [
      { title: "p50", look: "half", shape: "line", to: (v) => v.p50, says: (v) => known(v.p50, seconds) },
      { title: "p95", look: "most", shape: "line", to: (v) => v.p95, says: (v) => known(v.p95, seconds) },
    ],
  },
  {
    id: "busy",
    title: "Busy replicas",
    height: 44,
    least: 1,
    grid: [0, 1],
    tick: average,
    top: (view) => Math.max(1, view.replicas),
    series: [
      { title: "busy", look: "busy", shape: "area", from: ZERO, to: (v) => v.busy, says: (v) => average(v.busy) },
      { title: "turns in flight", look: "none", says: (v) => average(v.inFlight) },
    ],
  },
  {
    id: "held",
    title: "Held turns",
    height: 44,
    least: 1,
    grid: [0, 1],
    tick: average,
    hides: (view) => !view.values.some((value) => value.held !== null),
    series: [{ title: "waiting for admission", look: "held", shape: "area", from: ZERO, to: (v) => v.held, says: (v) => known(v.held, average) }],
  },
];
