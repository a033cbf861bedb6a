// What is at a row: texts, and the value of every field.

import { clamp, figure, get, h } from "./base.js";

const MOST = 32; // elements of a field that are listed at first
const VALUES = 4000; // that are asked for at once, of the rows that are played next
const ROWS = 64; // at most
const KEPT = 256; // rows
const EVERY = 100; // milliseconds between two rows of the table while they play

export class Step {
  constructor(facts, parameters) {
    Object.assign(this, { facts, parameters, row: null, direction: 0, kept: new Map(), pending: null, drawn: 0, lines: new Map(), whole: new Set() });
    this.texts = h("dl.st-texts", { hidden: !Object.keys(facts.texts ?? {}).length });
    this.said = Object.entries(facts.texts ?? {}).map(([field, changes]) => {
      const text = h("dd");
      this.texts.append(h("dt.soft", {}, field), text);
      return { changes, text };
    });
    const size = facts.fields.reduce((sum, f) => sum + (f.kind === "text" ? 40 : f.elements.length + 1), 1);
    this.ahead = clamp(Math.floor(VALUES / size), 1, ROWS);
    this.body = h("tbody");
    this.caption = h("summary", {}, "All values");
    this.table = h("details.st", { open: innerWidth >= 1100, toggle: () => this.load() }, this.caption, h("table", {}, this.body));
  }

  setRow(row, { direction }) {
    if (row === this.row && direction === this.direction) return;
    Object.assign(this, { row, direction });
    for (const { changes, text } of this.said) {
      const now = changes.findLast(([step]) => step <= row)?.[1] ?? "–";
      if (text.textContent !== now) text.textContent = now;
    }
    clearTimeout(this.timer);
    const wait = direction ? Math.max(0, this.drawn + EVERY - performance.now()) : this.kept.has(row) ? 0 : 60;
    this.timer = setTimeout(() => this.load(), wait);
  }

  /** Show the values of the row, and ask for those that are missing: while it plays, of the next rows, too. */
  load() {
    if (!this.table.open || this.row === null) return;
    this.draw();
    const back = this.direction < 0, { rows } = this.facts;
    let row = this.row;
    for (let k = 0; this.kept.has(row) && k < (this.direction ? this.ahead / 2 : 1); k++) row += back ? -1 : 1;
    if (row < 0 || row >= rows || this.kept.has(row) || (!this.direction && row !== this.row)) return;
    const count = this.direction ? this.ahead : 1;
    this.ask(clamp(back ? row - count + 1 : row, 0, rows - 1), count, row);
  }

  async ask(first, count, row) {
    if (this.pending && row >= this.pending.first && row < this.pending.first + this.pending.count) return;
    this.pending?.abort.abort();
    const mine = (this.pending = { first, count, abort: new AbortController() });
    try {
      const { values } = await get("step", { ...this.parameters, step: first, count }, mine.abort.signal);
      values.forEach((v, k) => this.kept.set(first + k, v));
      for (const old of this.kept.keys()) if (this.kept.size > KEPT) this.kept.delete(old);
      this.pending = null;
      this.draw();
    } catch (e) {
      if (e.name !== "AbortError") this.caption.textContent = `All values: ${e.message}`;
      if (this.pending === mine) this.pending = null;
    }
  }

  draw() {
    const { row } = this, values = this.kept.get(row), { steps } = this.facts;
    if (!values || this.shown === row) return;
    this.shown = row;
    this.drawn = performance.now();
    this.caption.textContent = row < steps ? `All values at step ${figure(row)}` : "All values of the final observation";
    for (const [name, value] of Object.entries(values)) {
      let line = this.lines.get(name);
      if (!line) {
        const field = this.facts.fields.find((f) => f.name === name);
        line = { field, name, cell: h("td"), words: [] };
        this.lines.set(name, line);
        this.body.append(h("tr", {}, h("th", { scope: "row" }, name, field?.unit ? h("span.soft", {}, ` ${field.unit}`) : null), line.cell));
      }
      line.value = value;
      this.fill(line);
    }
  }

  /** Say the values of a field; the elements of the page stay while there are as many. */
  fill(line) {
    const { field, name, cell, value } = line;
    const flat = Array.isArray(value) ? value.flat(9) : null;
    const shown = !flat ? [value] : this.whole.has(name) ? flat : flat.slice(0, MOST);
    if (!shown.length || line.words.length !== shown.length || line.flat !== Boolean(flat)) {
      line.flat = Boolean(flat);
      line.words = shown.map(() => document.createTextNode(""));
      cell.replaceChildren(...(flat ? shown.flatMap((_, k) => [h("span.st-value", {}, h("span.soft", {}, field?.elements[k] ?? String(k)), " ", line.words[k]), " "]) : line.words));
      if (flat && shown.length < flat.length) cell.append(h("button", { click: () => (this.whole.add(name), this.fill(line)) }, `${flat.length - shown.length} more`));
    }
    shown.forEach((v, k) => {
      const said = word(v, field?.dtype);
      if (line.words[k].data !== said) line.words[k].data = said;
    });
  }

  close() {
    clearTimeout(this.timer);
    this.pending?.abort.abort();
  }
}

/** A value as text: of a float32 no more digits than it has. */
function word(value, dtype) {
  if (dtype === "float32" && typeof value === "number") {
    for (let digits = 6; digits < 9; digits++) if (Math.fround(value.toPrecision(digits)) === value) return String(Number(value.toPrecision(digits)));
  }
  return String(value ?? "–");
}
