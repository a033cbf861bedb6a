// Depth as brightness or colour, in a range that is stated.

import { h, short } from "./base.js";

// Nine colours of even steps in lightness, dark violet to yellow, after Matplotlib's "viridis".
const STOPS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];

const COLOURS = Uint8ClampedArray.from({ length: 768 }, (_, k) => {
  const place = (Math.floor(k / 3) / 255) * (STOPS.length - 1);
  const low = Math.min(STOPS.length - 2, Math.floor(place));
  return STOPS[low][k % 3] + (place - low) * (STOPS[low + 1][k % 3] - STOPS[low][k % 3]);
});

/** Controls of a camera of depth; `change(range, map)` is told what they say. */
export function depthControls({ field, depth }, change) {
  const { unit } = depth;
  const rest = (depth.high - depth.low) / 2 || 1;
  const [low, high] = [Math.max(0, depth.low - rest), depth.high + rest];
  const step = (high - low) / 200;
  let timer = 0;
  const tell = (told = true) => {
    const [from, to] = handles.map((i) => Number(i.value));
    said.textContent = `${short(from)} to ${short(to)} ${unit ?? ""}`;
    handles.forEach((i) => i.setAttribute("aria-valuetext", `${short(Number(i.value))} ${unit ?? ""}`));
    fill.style.left = `${(100 * (from - low)) / (high - low)}%`;
    fill.style.right = `${(100 * (high - to)) / (high - low)}%`;
    clearTimeout(timer);
    if (told) timer = setTimeout(() => change({ low: from, high: to }, colours.checked ? COLOURS : null), 60);
  };
  const moved = (k) => {
    const [from, to] = handles.map((i) => Number(i.value));
    if (to - from < step) handles[k].value = k ? from + step : to - step;
    tell();
  };
  const handle = (value, k, name) =>
    h("input", { type: "range", min: low, max: high, step: "any", value, "aria-label": `${name} of ${field}`, input: () => moved(k) });
  const handles = [handle(depth.low, 0, "nearest"), handle(depth.high, 1, "farthest")];
  const fill = h("span.depth-fill");
  const said = h("output.soft");
  const colours = h("input", { type: "checkbox", change: () => tell() });
  tell(false);
  return h("div.depth", {}, h("div.depth-range", {}, fill, handles), said, h("label.soft", {}, colours, " colours"));
}
