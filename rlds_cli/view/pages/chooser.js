// A list of fields with a search: which of them are drawn.

import { h } from "./base.js";

export function chooser(fields, chosen, choose) {
  const search = h("input", { type: "search", placeholder: "search fields", "aria-label": "search fields", input: () => update() });
  const list = h("div.ch-list");
  const boxes = fields.map((f) => {
    const box = h("input", { type: "checkbox", change: () => choose(box.checked ? [...chosen(), f.name] : chosen().filter((n) => n !== f.name)) });
    const size = f.kind === "flag" ? "flag" : f.elements.length > 1 ? `${f.elements.length + (f.hidden ?? 0)}` : "";
    const row = h("label.ch-row", {}, box, h("span.ch-name", {}, f.name), h("span.soft", {}, size));
    list.append(row);
    return { f, box, row };
  });
  const found = () => boxes.filter(({ row }) => !row.hidden).map(({ f }) => f.name);
  const summary = h("summary", {}, "");
  const element = h("details.ch", { keydown: (e) => e.key === "Escape" && ((element.open = false), summary.focus()) }, summary, h("div.ch-card", {}, search,
    h("div.ch-tools", {}, h("button", { click: () => choose([...new Set([...chosen(), ...found()])]) }, "all found"),
      h("button", { click: () => choose(chosen().filter((n) => !found().includes(n))) }, "none")), list));
  const away = (e) => element.contains(e.target) || (element.open = false);
  document.addEventListener("pointerdown", away);
  function update() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const now = chosen();
    for (const { f, box, row } of boxes) {
      const text = [f.name, ...f.elements].join(" ").toLowerCase();
      row.hidden = !words.every((w) => text.includes(w));
      box.checked = now.includes(f.name);
    }
    summary.textContent = `Fields: ${now.length} of ${fields.length}`;
  }
  return { element, update, close: () => document.removeEventListener("pointerdown", away) };
}
