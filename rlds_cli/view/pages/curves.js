// Curves of the fields that are chosen, one chart below the other, over the same rows.

import { bytes, clamp, h, short } from "./base.js";
import { canvasOf, colours, extent, GUTTER, line, range, ticks } from "./chart.js";
import { chooser as fieldChooser } from "./chooser.js";
import { gestures } from "./gestures.js";
import { Legend } from "./legend.js";

const BLOCK = 512; // rows whose values are fetched at once, to be read under the pointer
const MOST = 1e6; // elements times columns of one request
const HEIGHTS = { curve: 132, flag: 34 };

class Chart {
  constructor(panel, field) {
    Object.assign(this, { panel, field, piece: null, whole: null, over: false });
    this.partner = panel.facts.fields.find((f) => f.name === field.partner && f.kind === "curve");
    this.canvas = h("canvas", { role: "img" });
    this.cursor = h("div.cv-cursor");
    this.pointer = h("div.cv-pointer", { hidden: true });
    this.plot = h("div.cv-plot", {}, this.canvas, this.cursor, this.pointer);
    this.legend = new Legend(field, () => this.draw());
    const over = this.partner && h("label.soft", { title: `Draw ${this.partner.name} pale behind it` }, h("input", { type: "checkbox", change: (e) => this.overlay(e.target.checked) }), ` over ${this.partner.name}`);
    const head = h("div.cv-head", {}, h("h3.cv-name", {}, field.name), field.unit ? h("span.soft", {}, field.unit) : null, over, this.legend.choice,
      h("button.cv-close", { title: "Hide this field", "aria-label": `hide ${field.name}`, click: () => panel.choose(panel.chosen.filter((n) => n !== field.name)) }, "×"));
    this.card = h("article.cv-card", { "aria-label": field.name }, head, this.plot, this.legend.element);
    this.height = HEIGHTS[field.kind];
    this.plot.style.height = `${this.height}px`;
  }

  /** The fields whose values it needs. */
  get names() {
    return this.over ? [this.field.name, this.partner.name] : [this.field.name];
  }

  overlay(on) {
    this.over = on;
    this.panel.load();
    this.draw();
  }

  x(row) {
    const { first, stop } = this.panel.view;
    return GUTTER + ((row + 0.5 - first) / (stop - first)) * (this.width - GUTTER);
  }

  draw() {
    this.width = this.plot.clientWidth;
    if (!this.width) return;
    const { panel, field, height } = this;
    const paint = (panel.colours ??= colours(panel.element));
    const brush = canvasOf(this.canvas, this.width, height);
    const piece = panel.piece(field.name), behind = this.over ? panel.piece(this.partner.name) : null;
    const shown = this.legend.shown, flag = field.kind === "flag";
    const ends = flag ? [0, 1] : range(extent(piece, shown, panel.view), extent(behind, shown, panel.view));
    const y = (v) => height - 5 - ((v - ends[0]) / (ends[1] - ends[0])) * (height - 10);
    const x = (row) => this.x(row);
    this.ground(brush, paint, { x, y, ends, flag });
    brush.save();
    brush.beginPath();
    brush.rect(GUTTER, 0, this.width - GUTTER, height);
    brush.clip();
    if (behind) for (const k of shown) line(brush, behind, k, { x, y, colour: paint.pens[k % 8] + "66", width: 3 });
    if (piece) for (const k of shown) {
      line(brush, piece, k, { x, y, hold: field.hold, colour: paint.pens[k % 8], dash: this.legend.dash(k), fill: flag ? height - 5 : null });
    }
    brush.restore();
    this.canvas.setAttribute("aria-label", flag ? field.name : `${field.name}, from ${short(ends[0])} to ${short(ends[1])}`);
    this.place();
  }

  ground(brush, paint, { x, y, ends, flag }) {
    for (const band of this.panel.facts.bands) {
      if (band.kind !== "finding" || band.stop - band.first >= this.panel.facts.steps) continue;
      brush.fillStyle = paint.wash;
      const from = Math.max(GUTTER, x(band.first - 0.5));
      brush.fillRect(from, 0, x(band.stop - 0.5) - from, this.height);
    }
    brush.font = "11px system-ui, sans-serif";
    brush.textAlign = "right";
    brush.textBaseline = "middle";
    for (const value of flag ? [] : ticks(ends[0], ends[1], 3)) {
      brush.fillStyle = paint.grid;
      brush.fillRect(GUTTER, Math.round(y(value)), this.width - GUTTER, 1);
      brush.fillStyle = paint.soft;
      brush.fillText(short(value), GUTTER - 6, Math.min(this.height - 6, Math.max(6, y(value))));
    }
    for (const mark of this.panel.facts.marks) {
      const at = x(mark.step);
      if (at < GUTTER) continue;
      brush.fillStyle = mark.kind === "finding" ? `${paint.warn}55` : paint.line;
      brush.fillRect(Math.round(at), 0, 1, this.height);
    }
  }

  /** Put the cursor at the row of the clock, and the line of the pointer. */
  place() {
    const { view, row, hover } = this.panel;
    for (const [element, at] of [[this.cursor, row], [this.pointer, hover]]) {
      const seen = at !== null && at >= view.first && at < view.stop;
      element.hidden = !seen;
      if (seen) element.style.transform = `translateX(${this.x(at)}px)`;
    }
  }
}

/** The fields that can be drawn, those first that one wants to see: what is done, earned and the state. */
export function drawable({ fields }) {
  const weight = ({ name, kind, elements }) =>
    (elements.length > 64 ? 10 : 0) + (kind === "flag" ? 5 : /^action$/.test(name) ? 0 : /reward$/.test(name) ? 1 : /^observation$|state$|qpos$/.test(name) ? 2 : /index$|^timestamp$|id$/.test(name) ? 6 : 3);
  return fields.filter((f) => f.kind === "curve" || f.kind === "flag").sort((a, b) => weight(a) - weight(b));
}

export class Curves {
  /** `look` has at(row) in seconds, seek(row), changed(fields) and viewed(view). */
  constructor(facts, parameters, chosen, look) {
    Object.assign(this, { facts, parameters, look, row: 0, hover: null, pieces: new Map(), wholes: new Map(), blocks: new Map(), charts: [], abort: null });
    this.drawable = drawable(facts);
    this.view = { first: 0, stop: Math.max(1, facts.rows) };
    this.list = h("div.cv-list");
    this.axis = h("canvas", { "aria-hidden": "true" });
    this.under = h("span.cv-under", { role: "status", "aria-live": "off" });
    this.chooser = fieldChooser(this.drawable, () => this.chosen, (names) => this.choose(names));
    const zoom = (text, name, click) => h("button", { "aria-label": name, title: name, click }, text);
    this.element = h("section.curves", { "aria-label": "curves" },
      h("div.cv-bar", {}, h("div.cv-tools", {}, this.chooser.element, this.under,
        h("span.cv-zoom", {}, zoom("−", "zoom out (−)", () => this.zoom(2)), zoom("+", "zoom in (+)", () => this.zoom(0.5)), zoom("whole", "whole episode (0)", () => this.show(0, facts.rows)))),
      h("div.cv-axis", {}, this.axis)), this.list);
    this.seen = new Set();
    this.watch = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) this.seen[isIntersecting ? "add" : "delete"](target);
      this.tell();
    });
    this.sized = new ResizeObserver(() => this.resize());
    this.sized.observe(this.list);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.scheme.onchange = () => {
      this.colours = null;
      this.draw();
    };
    gestures(this.list, this);
    this.choose(chosen, false);
  }

  choose(names, told = true) {
    this.chosen = this.drawable.map((f) => f.name).filter((n) => names.includes(n));
    const before = new Map(this.charts.map((c) => [c.field.name, c]));
    this.charts = this.chosen.map((n) => before.get(n) ?? new Chart(this, this.drawable.find((f) => f.name === n)));
    this.list.replaceChildren(...this.charts.map((c) => c.card));
    if (!this.charts.length) this.list.append(h("p.soft", {}, this.drawable.length ? "No field is chosen." : "No field of this episode is a curve."));
    this.watch.disconnect();
    for (const chart of this.charts) this.watch.observe(chart.card);
    this.blocks.clear();
    this.chooser.update();
    this.resize();
    if (told) this.look.changed(this.chosen);
  }

  get width() {
    return Math.max(64, Math.round(((this.list.clientWidth || 600) - GUTTER) * (devicePixelRatio || 1)));
  }

  resize() {
    this.load();
    this.draw();
  }

  draw() {
    for (const chart of this.charts) chart.draw();
    this.drawAxis();
    this.tell();
  }

  /** What is known of a field: of the rows that are seen, else of all. */
  piece(name) {
    const { first, stop } = this.view, found = this.pieces.get(name), whole = this.wholes.get(name);
    return found && found.first <= first && found.stop >= stop ? found : whole ?? found;
  }

  /** Fetch what the charts lack for the rows that are seen. */
  load() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch().catch((e) => e.name === "AbortError" || this.look.failed(e)), this.pieces.size ? 60 : 0);
  }

  async fetch() {
    const { first, stop } = this.view, width = this.width;
    const fits = (p) => p && p.first === first && p.stop === stop && (p.columns === p.stop - p.first || p.columns >= 0.8 * width);
    const names = [...new Set(this.charts.flatMap((c) => c.names))].filter((n) => !fits(this.pieces.get(n)));
    if (!names.length) return;
    this.abort?.abort();
    this.abort = new AbortController();
    for (const [name, piece] of await this.values(names, first, stop, width, this.abort.signal)) {
      this.pieces.set(name, piece);
      if (first === 0 && stop === this.facts.rows) this.wholes.set(name, piece);
    }
    this.draw();
  }

  count(name) {
    return Math.max(1, this.drawable.find((f) => f.name === name).elements.length);
  }

  /** Pieces of fields by name, in requests that are not too large. */
  async values(names, first, stop, width, signal) {
    const parts = [];
    let room = 0;
    for (const name of names) {
      room -= this.count(name) * width;
      if (room < 0 || parts.at(-1).length === 16) {
        parts.push([]);
        room = MOST - this.count(name) * width;
      }
      parts.at(-1).push(name);
    }
    return (await Promise.all(parts.map((part) => this.ask(part, first, stop, width, signal)))).flat();
  }

  async ask(names, first, stop, width, signal) {
    const { data, headers } = await bytes("curves", { ...this.parameters, field: names, first, stop, width }, signal);
    const columns = Number(headers.get("x-columns"));
    const all = new Float32Array(data);
    let from = 0;
    return names.map((name) => {
      const values = all.subarray(from, (from += this.count(name) * columns * 2));
      return [name, { first, stop, columns, values }];
    });
  }

  /** The values of a field at a row, null while they are not known. */
  at(chart, row) {
    const piece = [this.piece(chart.field.name), this.blocks.get(Math.floor(row / BLOCK))?.get?.(chart.field.name)].find(
      (p) => p && p.columns === p.stop - p.first && p.first <= row && row < p.stop,
    );
    if (piece) return (k) => piece.values[2 * (k * piece.columns + row - piece.first)];
    this.block(Math.floor(row / BLOCK));
    return null;
  }

  async block(number) {
    if (this.blocks.has(number)) return;
    this.blocks.set(number, "asked");
    if (this.blocks.size > 8) this.blocks.delete(this.blocks.keys().next().value);
    const first = number * BLOCK, stop = Math.min(this.facts.rows, first + BLOCK);
    try {
      this.blocks.set(number, new Map(await this.values(this.chosen, first, stop, BLOCK)));
    } catch {
      return this.blocks.delete(number);
    }
    this.tell();
  }

  /** The row of the clock: cursors, and values in the legends. */
  setRow(row, { follow = false } = {}) {
    this.row = row;
    const { first, stop } = this.view;
    if (follow && (row < first || row >= stop)) this.show(row - Math.round(0.1 * (stop - first)), row + Math.round(0.9 * (stop - first)));
    for (const chart of this.charts) chart.place();
    if (this.hover === null) this.tell();
  }

  point(row) {
    this.hover = row;
    for (const chart of this.charts) chart.place();
    this.tell();
  }

  tell() {
    if (this.telling) return;
    this.telling = setTimeout(() => {
      this.telling = 0;
      const row = this.hover ?? this.row;
      for (const chart of this.charts) if (this.seen.has(chart.card)) chart.legend.tell(this.at(chart, row));
      this.under.textContent = this.hover === null ? "" : this.look.name(row);
    }, 40);
  }

  zoom(factor, around = this.row) {
    const { first, stop } = this.view;
    const middle = around >= first && around < stop ? around + 0.5 : (first + stop) / 2;
    const count = Math.min(this.facts.rows, Math.max(4, Math.round((stop - first) * factor)));
    const start = middle - ((middle - first) / (stop - first)) * count;
    this.show(Math.round(start), Math.round(start) + count);
  }

  pan(rows) {
    this.show(this.view.first + Math.round(rows), this.view.stop + Math.round(rows));
  }

  show(first, stop) {
    const count = Math.min(this.facts.rows, Math.max(Math.min(4, this.facts.rows), stop - first));
    first = Math.min(this.facts.rows - count, Math.max(0, first));
    this.view = { first, stop: first + count };
    this.load();
    this.draw();
    this.look.viewed(this.view);
  }

  /** The row below a place on the screen. */
  rowAt(clientX) {
    const box = this.list.querySelector(".cv-plot")?.getBoundingClientRect();
    if (!box) return null;
    const { first, stop } = this.view;
    const part = (clientX - box.left - GUTTER) / (box.width - GUTTER);
    return Math.min(stop - 1, Math.max(first, Math.floor(first + part * (stop - first))));
  }

  drawAxis() {
    const width = this.axis.parentElement.clientWidth;
    if (!width) return;
    const paint = (this.colours ??= colours(this.element));
    const brush = canvasOf(this.axis, width, 18);
    const { first, stop } = this.view, box = this.list.querySelector(".cv-plot")?.clientWidth ?? width;
    const left = (width - box) / 2;
    brush.font = "11px system-ui, sans-serif";
    brush.textAlign = "center";
    brush.textBaseline = "middle";
    for (const { row, text } of this.look.ticks(first, stop, Math.max(2, box / 110))) {
      const x = left + GUTTER + ((row + 0.5 - first) / (stop - first)) * (box - GUTTER);
      brush.fillStyle = paint.soft;
      brush.fillText(text, clamp(x, GUTTER, width - brush.measureText(text).width / 2), 8);
      brush.fillStyle = paint.line;
      brush.fillRect(Math.round(x), 15, 1, 3);
    }
  }

  close() {
    this.abort?.abort();
    this.chooser.close();
    clearTimeout(this.timer);
    clearTimeout(this.telling);
    this.watch.disconnect();
    this.sized.disconnect();
    this.scheme.onchange = null;
  }
}
