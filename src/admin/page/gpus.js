// A GPU's row, under the replica that runs on it.

import { el, mark, show, write } from "./dom.js";
import { bytes, count, percent, watts } from "./format.js";

/** What stands in a row: nothing where the GPU doesn't tell it. `share` fills the bar under it, 0 to 1. */
const FIGURES = [
  { id: "utilization", title: "Busy", text: (g) => percent(g.utilization_percent, 0), has: (g) => g.utilization_percent, share: (g) => g.utilization_percent / 100 },
  { id: "memory", title: "Memory", text: (g) => `${bytes(g.memory_used_bytes)} of ${bytes(g.memory_total_bytes)}`, has: (g) => g.memory_total_bytes, share: (g) => g.memory_used_bytes / g.memory_total_bytes },
  { id: "power", title: "Power", text: (g) => (known(g.power_limit_watts) ? `${watts(g.power_watts)} of ${watts(g.power_limit_watts)}` : watts(g.power_watts)), has: (g) => g.power_watts, share: (g) => g.power_watts / g.power_limit_watts },
  { id: "temperature", title: "Temperature", text: (g) => `${count(g.temperature_celsius)}\u202f°C`, has: (g) => g.temperature_celsius },
  { id: "sm_clock", title: "SM clock", text: (g) => `${count(g.sm_clock_mhz)}\u202fMHz`, has: (g) => g.sm_clock_mhz },
  { id: "memory_clock", title: "Memory clock", text: (g) => `${count(g.memory_clock_mhz)}\u202fMHz`, has: (g) => g.memory_clock_mhz },
];

const known = (value) => value !== null && value !== undefined;

/** The GPUs that a replica runs on; none where nothing is known of any. */
export function gpusOf(replica, gpus) {
  const ours = new Set(replica.gpus ?? []);
  return gpus.filter((gpu) => ours.has(gpu.index));
}

/** The row, as `{node, update(gpu)}`, in a table of so many columns after the first one. */
export function gpuRow(columns) {
  const name = el("span", { class: "device" });
  const lost = el("span", { class: "lost" }, "lost: it has fallen off the bus or needs a reset");
  const figures = FIGURES.map(figure);
  const node = el("tr", { role: "row", class: "gpu" },
    el("th", { scope: "row", role: "rowheader" }, name),
    el("td", { role: "cell", colspan: columns }, el("span", { class: "figures" }, lost, ...figures.map((part) => part.node))));
  return {
    node,
    update(gpu) {
      write(name, `GPU ${gpu.index}`);
      mark(node, "title", [gpu.name, gpu.uuid].filter(Boolean).join(", "));
      mark(node, "data-gpu", gpu.index);
      show(lost, Boolean(gpu.lost));
      for (const part of figures) part.update(gpu);
    },
  };
}

function figure({ id, title, text, has, share }) {
  const value = el("span", { class: "value" });
  const bar = share ? el("i", { class: "meter", "aria-hidden": "true" }, el("b")) : null;
  const node = el("span", { class: "figure", "data-figure": id }, el("span", { class: "label" }, title), " ", value, bar);
  return {
    node,
    update(gpu) {
      show(node, known(has(gpu)));
      if (!known(has(gpu))) return;
      write(value, text(gpu));
      if (!bar) return;
      const part = share(gpu);
      show(bar, Number.isFinite(part));
      const width = `${Math.round(Math.min(part, 1) * 1000) / 10}%`;
      if (Number.isFinite(part) && bar.firstChild.style.width !== width) bar.firstChild.style.width = width;
    },
  };
}
