// The elements of a field: their colours, names and values. A click hides one, a double click leaves it alone.

import { figure, h, short } from "./base.js";

const DASHES = [[], [6, 3], [2, 2]];

export class Legend {
  constructor(field, changed) {
    const count = Math.max(1, field.elements.length);
    this.off = new Set(Array.from({ length: count }, (_, k) => k).filter((k) => k >= 24)); // at first no more than can be told apart
    this.count = count;
    this.changed = changed;
    this.values = [];
    this.items = Array.from({ length: count }, (_, k) => {
      const name = field.elements[k] || field.name;
      const value = h("span.lg-value", {}, "–");
      this.values.push(value);
      const swatch = h("span.lg-swatch");
      swatch.style.borderTopColor = `var(--c${k % 8})`;
      swatch.style.borderTopStyle = ["solid", "dashed", "dotted"][Math.floor(k / 8) % 3];
      return h("button.lg-item", { "aria-pressed": !this.off.has(k) + "", title: `${name}: click hides it, double click hides the others`, click: () => this.toggle(k), dblclick: () => this.solo(k) },
        swatch, count > 1 ? h("span.lg-name", {}, name) : null, value);
    });
    const hidden = field.hidden ? h("span.soft", {}, `and ${figure(field.hidden)} more`) : null;
    this.element = h("div.lg", { role: "group", "aria-label": `elements of ${field.name}` }, this.items, hidden);
    const set = (text, off) => h("button.lg-all", { "aria-label": `${text} elements of ${field.name}`, click: () => this.set(off) }, text);
    this.choice = count > 1 ? h("span.lg-choice", {}, set("all", []), set("none", Array.from({ length: count }, (_, k) => k))) : null;
  }

  get shown() {
    return Array.from({ length: this.count }, (_, k) => k).filter((k) => !this.off.has(k));
  }

  dash(k) {
    return DASHES[Math.floor(k / 8) % 3];
  }

  set(off) {
    this.off = new Set(off);
    this.items.forEach((item, k) => item.setAttribute("aria-pressed", !this.off.has(k)));
    this.changed();
  }

  toggle(k) {
    this.set(this.off.has(k) ? [...this.off].filter((o) => o !== k) : [...this.off, k]);
  }

  solo(k) {
    const others = this.items.map((_, o) => o).filter((o) => o !== k);
    this.set(this.off.size === others.length && !this.off.has(k) ? [] : others);
  }

  /** Show values: of an element by its number, or none. */
  tell(of) {
    this.values.forEach((value, k) => {
      const text = of ? short(of(k)) : "…";
      if (value.textContent !== text) value.textContent = text;
    });
  }
}
