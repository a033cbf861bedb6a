// What is at a row: texts, and the value of every field.

import { figure, get, h } from "./base.js";

const MOST = 32; // elements of a field that are listed at first

export class Step {
  constructor(facts, parameters) {
    Object.assign(this, { facts, parameters, row: null, abort: null, whole: new Set() });
    this.texts = h("dl.st-texts", { hidden: !Object.keys(facts.texts ?? {}).length });
    this.lines = Object.entries(facts.texts ?? {}).map(([field, changes]) => {
      const text = h("dd");
      this.texts.append(h("dt.soft", {}, field), text);
      return { changes, text };
    });
    this.body = h("tbody");
    this.caption = h("summary", {}, "All values");
    this.table = h("details.st", { open: innerWidth >= 1100, toggle: () => this.load() }, this.caption, h("table", {}, this.body));
  }

  setRow(row, { playing }) {
    if (row === this.row) return;
    this.row = row;
    for (const { changes, text } of this.lines) {
      const now = changes.findLast(([step]) => step <= row)?.[1] ?? "–";
      if (text.textContent !== now) text.textContent = now;
    }
    clearTimeout(this.timer);
    const wait = playing ? Math.max(0, 300 - (performance.now() - (this.asked ?? 0))) : 60;
    this.timer = setTimeout(() => this.load(), wait);
  }

  async load() {
    if (!this.table.open || this.row === null || this.shown === this.row) return;
    this.abort?.abort();
    this.abort = new AbortController();
    this.asked = performance.now();
    const row = this.row;
    let record;
    try {
      record = await get("step", { ...this.parameters, step: row }, this.abort.signal);
    } catch (e) {
      if (e.name !== "AbortError") this.caption.textContent = `All values: ${e.message}`;
      return;
    }
    this.shown = row;
    this.caption.textContent = `All values at row ${figure(row)}`;
    this.body.replaceChildren(...Object.entries(record.values).map(([name, value]) => this.line(name, value)));
  }

  line(name, value) {
    const field = this.facts.fields.find((f) => f.name === name);
    const cell = h("td");
    this.fill(cell, field, name, value);
    return h("tr", {}, h("th", { scope: "row" }, name, field?.unit ? h("span.soft", {}, ` ${field.unit}`) : null), cell);
  }

  fill(cell, field, name, value) {
    const flat = Array.isArray(value) ? value.flat(9) : null;
    if (!flat) return cell.replaceChildren(word(value, field?.dtype));
    const shown = this.whole.has(name) ? flat : flat.slice(0, MOST);
    cell.replaceChildren(...shown.flatMap((v, k) => [h("span.st-value", {}, h("span.soft", {}, field?.elements[k] ?? String(k)), " ", word(v, field?.dtype)), " "]));
    if (shown.length === flat.length) return;
    const more = h("button", { click: () => (this.whole.add(name), this.fill(cell, field, name, value)) }, `${flat.length - shown.length} more`);
    cell.append(more);
  }

  close() {
    clearTimeout(this.timer);
    this.abort?.abort();
  }
}

/** A value as text: of a float32 no more digits than it has. */
function word(value, dtype) {
  if (dtype === "float32" && typeof value === "number") {
    for (let digits = 6; digits < 9; digits++) if (Math.fround(value.toPrecision(digits)) === value) return String(Number(value.toPrecision(digits)));
  }
  return String(value ?? "–");
}

