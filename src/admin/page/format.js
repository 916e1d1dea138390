// Numbers as people read them. What is not known is a dash.

const NONE = "–";
/** Between a number and its unit. */
const GAP = "\u202f";

const grouped = new Intl.NumberFormat("en-US");

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A count, to the last one. */
export function count(value) {
  return isNumber(value) ? grouped.format(value) : NONE;
}

/** Tokens, to three digits. */
export function tokens(value) {
  if (!isNumber(value)) return NONE;
  if (value < 1000) return String(Math.round(value));
  let unit = 0;
  let rest = value;
  // What would round to 1,000 of a unit is 1 of the next.
  while (rest >= 999.5 && unit < 3) {
    rest /= 1000;
    unit += 1;
  }
  const digits = rest < 9.995 ? 2 : rest < 99.95 ? 1 : 0;
  return rest.toFixed(digits) + ["", "k", "M", "B"][unit];
}

/** Tokens, of a round number. */
export function roundTokens(value) {
  return tokens(value).replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");
}

/** Bytes of memory, in GiB. */
export function bytes(value) {
  return isNumber(value) ? (value / 2 ** 30).toFixed(1) + GAP + "GiB" : NONE;
}

/** Power. */
export function watts(value) {
  return isNumber(value) ? Math.round(value) + GAP + "W" : NONE;
}

/** Tokens per second. */
export function rate(value) {
  if (!isNumber(value)) return NONE;
  return value > 0 && value < 9.95 ? value.toFixed(1) : tokens(value);
}

/** A percentage, cut and not rounded: nearly all is not all. */
export function percent(value, digits = 1) {
  if (!isNumber(value)) return NONE;
  const factor = 10 ** digits;
  return (Math.floor(value * factor + 1e-6) / factor).toFixed(digits) + GAP + "%";
}

/** How long something took. */
export function seconds(value) {
  if (!isNumber(value)) return NONE;
  if (value < 0.9995) return Math.round(value * 1000) + GAP + "ms";
  if (value < 9.95) return value.toFixed(1) + GAP + "s";
  return value < 99.5 ? Math.round(value) + GAP + "s" : age(value);
}

/** How long ago something was, or how long it has been so. */
export function age(value) {
  if (!isNumber(value)) return NONE;
  const whole = Math.max(0, Math.floor(value));
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days > 0) return `${days}${GAP}d ${hours}${GAP}h`;
  if (hours > 0) return `${hours}${GAP}h ${minutes}${GAP}min`;
  return minutes > 0 ? `${minutes}${GAP}min` : `${whole}${GAP}s`;
}

const time = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const shortTime = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const weekday = new Intl.DateTimeFormat("en-GB", { weekday: "short" });

/** A moment, with its day if that isn't today. */
export function moment(unix) {
  if (!isNumber(unix)) return NONE;
  const at = new Date(unix * 1000);
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? time.format(at) : `${day.format(at)}, ${time.format(at)}`;
}

/** A moment on an axis whose marks are so far apart. */
export function tick(unix, step) {
  const at = new Date(unix * 1000);
  const isDay = step >= 21600 && at.getHours() === 0;
  return step >= 86400 || isDay ? `${weekday.format(at)} ${at.getDate()}` : shortTime.format(at);
}

/** An average of counts. */
export function average(value) {
  if (!isNumber(value)) return NONE;
  return Number.isInteger(value) ? grouped.format(value) : value.toFixed(1);
}

/** A word of the status, as words. */
export function words(word) {
  return word.replaceAll("_", " ");
}
