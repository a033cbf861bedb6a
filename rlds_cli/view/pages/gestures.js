// What hands do to the charts: point, click, select a range, pan, turn the wheel, pinch.

import { h } from "./base.js";

export function gestures(list, curves) {
  const fingers = new Map();
  const selection = h("div.cv-selection", { "aria-hidden": "true", hidden: true });
  let start = null; // {x, row, pan, view, plot}
  let pinch = null;

  const plotOf = (e) => e.target.closest?.(".cv-plot");
  const rowsPerPixel = (plot) => (curves.view.stop - curves.view.first) / Math.max(1, plot.clientWidth - 48);

  list.addEventListener("pointerdown", (e) => {
    const plot = plotOf(e);
    if (!plot || e.button) return;
    fingers.set(e.pointerId, e.clientX);
    plot.setPointerCapture(e.pointerId);
    start = { x: e.clientX, row: curves.rowAt(e.clientX), pan: e.shiftKey || e.pointerType === "touch", view: curves.view, plot, moved: false };
    if (fingers.size === 2) {
      const [a, b] = [...fingers.values()];
      pinch = { apart: Math.max(20, Math.abs(a - b)), view: curves.view, middle: curves.rowAt((a + b) / 2) };
    }
  });
  list.addEventListener("pointermove", (e) => {
    const plot = plotOf(e);
    if (fingers.has(e.pointerId)) fingers.set(e.pointerId, e.clientX);
    if (pinch && fingers.size === 2) {
      const [a, b] = [...fingers.values()];
      const { first, stop } = pinch.view;
      const count = ((stop - first) * pinch.apart) / Math.max(20, Math.abs(a - b));
      const from = Math.round(pinch.middle - ((pinch.middle - first) / (stop - first)) * count);
      curves.show(from, from + Math.round(count));
      return;
    }
    if (!start) return curves.point(plot && e.pointerType !== "touch" ? curves.rowAt(e.clientX) : null);
    if (Math.abs(e.clientX - start.x) > 5) start.moved = true;
    if (!start.moved) return;
    if (start.pan) {
      const rows = Math.round((start.x - e.clientX) * rowsPerPixel(start.plot));
      curves.show(start.view.first + rows, start.view.stop + rows);
    } else {
      curves.point(curves.rowAt(e.clientX));
      const box = start.plot.getBoundingClientRect();
      const [from, to] = [start.x, e.clientX].map((x) => Math.min(box.width, Math.max(48, x - box.left))).sort((a, b) => a - b);
      start.plot.append(selection);
      selection.hidden = false;
      Object.assign(selection.style, { left: `${from}px`, width: `${to - from}px` });
    }
  });
  const up = (e) => {
    fingers.delete(e.pointerId);
    if (fingers.size < 2 && pinch) {
      pinch = null;
      start = null;
    }
    if (!start || e.type === "pointercancel") {
      start = null;
      selection.hidden = true;
      return;
    }
    const { row, moved, pan } = start;
    start = null;
    selection.hidden = true;
    const to = curves.rowAt(e.clientX);
    if (!moved) curves.look.seek(to);
    else if (!pan) curves.show(Math.min(row, to), Math.max(row, to) + 1);
  };
  list.addEventListener("pointerup", up);
  list.addEventListener("pointercancel", up);
  list.addEventListener("pointerleave", () => curves.point(null));
  list.addEventListener("dblclick", (e) => plotOf(e) && curves.show(0, curves.facts.rows));
  list.addEventListener(
    "wheel",
    (e) => {
      const plot = plotOf(e);
      if (!plot) return;
      if (e.ctrlKey || e.metaKey || e.altKey) curves.zoom(Math.exp(Math.max(-40, Math.min(40, e.deltaY)) * 0.01), curves.rowAt(e.clientX));
      else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) curves.pan(e.deltaX * rowsPerPixel(plot));
      else if (e.shiftKey) curves.pan(e.deltaY * rowsPerPixel(plot));
      else return; // the page scrolls
      e.preventDefault();
    },
    { passive: false },
  );
}
