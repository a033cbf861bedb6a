// The time line of an episode: a slider over its rows, with bands, marks, the range that is looped and what is seen.

import { h } from "./base.js";
import { canvasOf, colours } from "./chart.js";

const HEIGHT = 34;

export class Timeline {
  /** `look` has seek(row), name(row), hold() and release() around a drag. */
  constructor(facts, look) {
    Object.assign(this, { facts, look, row: 0, loop: null, view: null });
    this.canvas = h("canvas");
    this.range = h("div.tl-loop", { hidden: true });
    this.window = h("div.tl-window", { hidden: true });
    this.cursor = h("div.tl-cursor");
    this.tip = h("div.tl-tip", { hidden: true });
    this.element = h("div.tl", { role: "slider", tabindex: "0", "aria-label": "step", "aria-valuemin": "0", "aria-valuemax": facts.rows - 1, "aria-orientation": "horizontal" },
      this.canvas, this.range, this.window, this.cursor, this.tip);
    let dragged = false;
    this.element.addEventListener("pointerdown", (e) => {
      if (e.button) return;
      dragged = true;
      this.element.setPointerCapture(e.pointerId);
      look.hold();
      look.seek(this.rowAt(e.clientX));
    });
    this.element.addEventListener("pointermove", (e) => {
      const row = this.rowAt(e.clientX);
      if (dragged) look.seek(row);
      this.point(e.pointerType === "touch" && !dragged ? null : row);
    });
    const up = () => {
      if (dragged) look.release();
      dragged = false;
    };
    this.element.addEventListener("pointerup", up);
    this.element.addEventListener("pointercancel", up);
    this.element.addEventListener("pointerleave", () => this.point(null));
    this.sized = new ResizeObserver(() => this.draw());
    this.sized.observe(this.element);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.draw();
    this.scheme.addEventListener("change", this.redraw);
  }

  rowAt(clientX) {
    const box = this.element.getBoundingClientRect();
    return Math.min(this.facts.rows - 1, Math.max(0, Math.floor(((clientX - box.left) / box.width) * this.facts.rows)));
  }

  part(row) {
    return `${(100 * (row + 0.5)) / this.facts.rows}%`;
  }

  setRow(row) {
    this.row = row;
    this.cursor.style.left = this.part(row);
    this.element.setAttribute("aria-valuenow", row);
    this.element.setAttribute("aria-valuetext", this.look.name(row));
  }

  span(element, first, stop, seen) {
    element.hidden = !seen;
    if (!seen) return;
    element.style.left = `${(100 * first) / this.facts.rows}%`;
    element.style.width = `${(100 * (stop - first)) / this.facts.rows}%`;
  }

  setLoop(loop) {
    this.span(this.range, loop?.[0], loop?.[1] + 1, loop !== null);
  }

  setView({ first, stop }) {
    this.span(this.window, first, stop, stop - first < this.facts.rows);
  }

  /** What is at a row, in words. */
  point(row) {
    this.tip.hidden = row === null;
    if (row === null) return;
    const { rows, bands, marks } = this.facts;
    const near = rows / Math.max(1, this.element.clientWidth);
    const here = [...bands.filter((b) => b.first <= row && row < b.stop), ...marks.filter((m) => Math.abs(m.step - row) <= 4 * near)];
    this.tip.textContent = [this.look.name(row), ...new Set(here.map((b) => b.text))].join(" · ");
    this.tip.style.left = this.part(row);
    this.tip.classList.toggle("tl-left", row > rows / 2);
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width) return;
    const brush = canvasOf(this.canvas, width, HEIGHT), paint = colours(this.element);
    const x = (row) => (row / this.facts.rows) * width;
    brush.fillStyle = paint.grid;
    brush.fillRect(0, HEIGHT / 2 - 2, width, 4);
    const tasks = [...new Set(this.facts.bands.filter((b) => b.kind === "subtask").map((b) => b.text))];
    brush.font = "11px system-ui, sans-serif";
    brush.textBaseline = "middle";
    for (const { first, stop, kind, text } of this.facts.bands) {
      const wide = Math.max(2, x(stop) - x(first) - 1);
      if (kind === "finding") {
        brush.fillStyle = paint.warn;
        brush.fillRect(x(first), HEIGHT - 5, wide, 3);
        continue;
      }
      brush.fillStyle = paint.pens[tasks.indexOf(text) % 8] + "40";
      brush.fillRect(x(first), 4, wide, HEIGHT - 10);
      if (wide < 30) continue;
      brush.save();
      brush.beginPath();
      brush.rect(x(first), 0, wide - 4, HEIGHT);
      brush.clip();
      brush.fillStyle = paint.text;
      brush.fillText(text, x(first) + 6, HEIGHT / 2);
      brush.restore();
    }
    for (const { step, kind } of this.facts.marks) {
      brush.fillStyle = kind === "finding" ? paint.warn : kind === "terminated" ? paint.bad : paint.soft;
      const at = x(step + 0.5);
      brush.beginPath();
      brush.moveTo(at - 4, 0);
      brush.lineTo(at + 4, 0);
      brush.lineTo(at, 7);
      brush.fill();
    }
  }

  close() {
    this.sized.disconnect();
    this.scheme.removeEventListener("change", this.redraw);
  }
}
