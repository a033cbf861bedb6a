// What the keys of a page do, as a list: fetched when somebody asks for it.

import { h } from "./base.js";

const KEYS = [
  ["Space, K", "play, pause"],
  ["L, J", "play on, play back; again: faster"],
  ["→ ←, . ,", "one step on, one back"],
  ["Shift → ←", "one second on, one back"],
  ["Home, End", "first step, last step"],
  ["I, O", "in and out: the range that is looped"],
  ["X", "end the loop"],
  ["N, P", "next, previous episode"],
  ["+ − 0", "zoom in, out, whole episode"],
  ["Drag over a curve", "zoom into this range; with Shift: pan"],
  ["Ctrl and wheel, pinch", "zoom; Shift and wheel: pan"],
  ["?", "this list"],
];

/** What the dialog of the keys shows: those that only this page has first. */
export const help = (more) => [
  h("h2", {}, "Keys"),
  h("dl", {}, [...more, ...KEYS].map(([key, what]) => [h("dt", {}, key), h("dd", {}, what)])),
  h("form", { method: "dialog" }, h("button", { type: "submit" }, "Close")),
];
