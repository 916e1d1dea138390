// The geometry of the charts: steps as areas and lines, and round numbers for axes.

/** The runs of values that follow each other without a gap and are known. */
function runs(values, stepS, of) {
  const found = [];
  let run = null;
  for (const value of values) {
    if (of(value) === null) {
      run = null;
    } else if (run && value.at - run.at(-1).at <= stepS) {
      run.push(value);
    } else {
      run = [value];
      found.push(run);
    }
  }
  return found;
}

const round = (number) => Math.round(number * 10) / 10;

/** Each value as a step from `from` up to `to`. */
export function area(values, stepS, x, y, from, to) {
  return runs(values, stepS, to).map((run) => {
    const upper = run.map((value) => `V${round(y(to(value)))}H${round(x(value.end))}`).join("");
    const lower = run.toReversed().map((value) => `V${round(y(from(value)))}H${round(x(value.at))}`).join("");
    return `M${round(x(run[0].at))} ${round(y(from(run[0])))}${upper}${lower}Z`;
  }).join("");
}

/** Each value as a flat piece, joined where they touch. */
export function line(values, stepS, x, y, to) {
  return runs(values, stepS, to).map((run) => {
    const rest = run.map((value) => `V${round(y(to(value)))}H${round(x(value.end))}`).join("");
    return `M${round(x(run[0].at))} ${round(y(to(run[0])))}${rest}`;
  }).join("");
}

/** The highest that a panel's series reach, and no less than its least top. */
export function floorOf(panel, values) {
  let most = panel.least;
  for (const series of panel.series) {
    if (!series.to) continue;
    for (const value of values) most = Math.max(most, series.to(value) ?? 0);
  }
  return most;
}

/** The next round number: 1, 1.5, 2, 3, 4, 5, 6 or 8 times a power of ten. */
export function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((candidate) => candidate * power >= value * (1 - 1e-9));
  return step * power;
}

const STEPS_S = [60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800];
/** The least room that a label of the axis needs. */
const LABEL_PX = 62;

/** Round moments of local time between two, far enough apart for so many pixels. */
export function marksOf(begin, end, pixels) {
  const step = STEPS_S.find((candidate) => (candidate * pixels) / (end - begin) >= LABEL_PX) ?? STEPS_S.at(-1);
  const offset = new Date(begin * 1000).getTimezoneOffset() * 60;
  const at = [];
  for (let moment = Math.ceil((begin - offset) / step) * step + offset; moment <= end; moment += step) at.push(moment);
  return { step, at };
}
