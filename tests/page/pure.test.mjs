// What the page computes without a browser: numbers as people read them, and the geometry of the charts.

import assert from "node:assert/strict";
import { test } from "node:test";

import { age, average, count, percent, rate, roundTokens, seconds, tokens } from "../../src/admin/page/format.js";
import { coarsened, valuesOf } from "../../src/admin/page/panels.js";
import { area, line, marksOf, niceCeiling } from "../../src/admin/page/shapes.js";

const plain = (text) => text.replaceAll("\u202f", " ");

test("tokens have three digits, and none reads as a thousand of its unit", () => {
  const cases = [[0, "0"], [999, "999"], [1000, "1.00k"], [9994, "9.99k"], [9996, "10.0k"], [58_249, "58.2k"], [99_960, "100k"], [999_499, "999k"], [999_500, "1.00M"], [1_530_000, "1.53M"], [2_300_000_000, "2.30B"], [4e12, "4000B"]];
  for (const [value, told] of cases) assert.equal(tokens(value), told, String(value));
  assert.deepEqual([30_000, 7_500, 250_000, 0, 1_500_000].map(roundTokens), ["30k", "7.5k", "250k", "0", "1.5M"]);
  assert.deepEqual([0, 0.4, 9.9, 10, 12_345].map(rate), ["0", "0.4", "9.9", "10", "12.3k"]);
});

test("nearly all is never all", () => {
  assert.deepEqual([100, 99.99, 99.95, 0, 33.3].map((value) => plain(percent(value))), ["100.0 %", "99.9 %", "99.9 %", "0.0 %", "33.3 %"]);
  assert.equal(plain(percent(28.999, 0)), "28 %");
});

test("times are told in the unit that fits them", () => {
  assert.deepEqual([0.0004, 0.42, 0.9996, 3.14, 9.96, 99, 125, 7300].map((value) => plain(seconds(value))), ["0 ms", "420 ms", "1.0 s", "3.1 s", "10 s", "99 s", "2 min", "2 h 1 min"]);
  assert.deepEqual([-1, 0, 59.9, 60, 3_600, 90_000].map((value) => plain(age(value))), ["0 s", "0 s", "59 s", "1 min", "1 h 0 min", "1 d 1 h"]);
});

test("what is not known is a dash, and never a zero", () => {
  for (const format of [age, average, count, percent, rate, seconds, tokens]) {
    for (const nothing of [null, undefined, NaN, Infinity]) assert.equal(format(nothing), "–", format.name);
  }
});

test("the top of an axis is round, and holds the highest value", () => {
  for (const value of [0.001, 0.1, 0.99, 1, 1.01, 7, 10, 14_999, 15_000, 15_001, 1e9]) {
    const top = niceCeiling(value);
    assert.ok(top >= value * (1 - 1e-9) && top <= value * 1.51, `${value} ${top}`);
  }
  assert.deepEqual([10, 15_001, 61, 250].map(niceCeiling), [10, 20_000, 80, 300]);
});

const point = (at_s, more = {}) => ({ at_s, length_s: 10, turns: 1, cached_tokens: 80, computed_tokens: 20, estimated_tokens: 0, completion_tokens: 5, first_byte_p50_s: 1, first_byte_p95_s: 2, busy_replicas: 1, in_flight: 2, ...more });
const same = (value) => value;

test("a gap in the history is a gap in the chart", () => {
  const values = valuesOf({ points: [point(0), point(10), point(40)], stepS: 10 });
  assert.equal(line(values, 10, same, same, (value) => value.cached), "M0 8V8H10V8H20M40 8V8H50");
  const unknown = valuesOf({ points: [point(0), point(10, { first_byte_p50_s: null }), point(20)], stepS: 10 });
  assert.equal(line(unknown, 10, same, same, (value) => value.p50), "M0 1V1H10M20 1V1H30");
  assert.equal(area(values.slice(0, 1), 10, same, same, () => 0, (value) => value.cached), "M0 0V8H10V0H0Z");
});

test("a step that has hardly begun is not drawn, and its rate is that of the time that has passed", () => {
  const values = valuesOf({ points: [point(0), point(10, { length_s: 5 }), point(20, { length_s: 1.5 })], stepS: 10 });
  assert.deepEqual(values.map(({ at, end, cached, share }) => [at, end, cached, share]), [[0, 10, 8, 80], [10, 15, 16, 80]]);
});

test("steps that have no room are put together, and nothing is lost", () => {
  const points = Array.from({ length: 2016 }, (_, at) => point(at * 300, { length_s: 300, turns: at % 3, first_byte_p50_s: at % 3 ? 1 + (at % 3) : null }));
  const { points: fewer, stepS } = coarsened({ points, stepS: 300 }, 604_800, 800);
  assert.equal(stepS, 1200);
  assert.equal(fewer.length, 504);
  const sum = (list, field) => list.reduce((total, item) => total + item[field], 0);
  for (const field of ["turns", "cached_tokens", "computed_tokens", "completion_tokens", "length_s"]) assert.equal(sum(fewer, field), sum(points, field), field);
  assert.ok(fewer.every(({ first_byte_p50_s: p50 }) => p50 >= 2 && p50 <= 3));
  assert.deepEqual(fewer.map(({ busy_replicas: busy }) => busy), fewer.map(() => 1));
  assert.equal(coarsened({ points: points.slice(0, 300), stepS: 300 }, 90_000, 800).stepS, 300);
});

test("marks of an axis are round moments that leave room for their labels", () => {
  for (const [span, pixels] of [[300, 300], [300, 2000], [3600, 250], [3600, 800], [604_800, 300], [604_800, 1200]]) {
    const begin = 1_700_000_123;
    const { step, at } = marksOf(begin, begin + span, pixels);
    assert.ok(at.length > 0, `${span} ${pixels}`);
    assert.ok((step * pixels) / span >= 62, `${span} ${pixels}: ${step}`);
    for (const moment of at) assert.ok(moment >= begin && moment <= begin + span && moment % 60 === 0);
  }
});
