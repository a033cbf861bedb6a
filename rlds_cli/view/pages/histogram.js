// How a column is distributed: bars of numbers, of which a range is dragged, and values that are pressed.

import { h, short } from "./base.js";

const NS = "http://www.w3.org/2000/svg";
export function svg(name, attributes, ...children) {
  const element = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Bars over each other: all episodes, and those that match. */
export function bars(counts, matched, label) {
  const top = Math.max(1, ...counts);
  const of = (values, kind) => svg("path", { class: kind, d: values.map((n, k) => (n ? `M${k + 0.06} 1h.88v${-Math.max(0.03, n / top)}h-.88z` : "")).join("") });
  const drawn = svg("svg", { viewBox: `0 0 ${counts.length} 1`, preserveAspectRatio: "none", class: "hg-bars", ...(label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" }) });
  drawn.append(of(counts, "hg-all"));
  if (matched) drawn.append(of(matched, "hg-some"));
  return drawn;
}

/** Numbers with two handles; `choose(low, high)` gets numbers, or null for an end that is open. */
export function numbers(column, chosen, choose) {
  const { low, high, counts, matched, whole } = column;
  if (low === null) return h("div.hg.soft", {}, "no value");
  const span = high - low, bins = counts.length;
  const digits = Math.max(0, Math.min(12, 2 - Math.floor(Math.log10(span / bins || 1))));
  const said = (x) => (whole ? Math.round(x) : Number(x.toFixed(digits)));
  let range = [Number.isNaN(chosen?.low ?? NaN) ? 0 : (chosen.low - (whole ? 0.5 : 0) - low) / span, Number.isNaN(chosen?.high ?? NaN) ? 1 : (chosen.high + (whole ? 0.5 : 0) - low) / span].map((x) => Math.min(1, Math.max(0, x)));
  const value = (k) => said(low + range[k] * span + (whole ? (k ? -0.5 : 0.5) : 0));
  const shade = [h("span.hg-shade"), h("span.hg-shade")];
  const handles = ["least", "greatest"].map((end, k) => h("span.hg-handle", {
    role: "slider", tabindex: "0", "aria-label": `${end} ${column.name}`, "aria-valuemin": short(low), "aria-valuemax": short(high),
    keydown: (e) => {
      const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -5, PageUp: 5, Home: -bins, End: bins }[e.key];
      if (e.key === "Escape") return pick(0, 1);
      if (!step) return;
      e.preventDefault();
      e.stopPropagation();
      range[k] = Math.min(1, Math.max(0, range[k] + step / bins));
      if (range[0] > range[1]) range[1 - k] = range[k];
      draw();
      clearTimeout(later);
      later = setTimeout(tell, 350);
    },
  }));
  let later = 0, start = null;
  const plot = h("div.hg-plot", {}, bars(counts, matched), shade, handles);
  const ends = h("div.hg-ends", {}, h("span"), h("span"));
  const draw = () => {
    shade[0].style.width = `${100 * range[0]}%`;
    shade[1].style.width = `${100 * (1 - range[1])}%`;
    handles.forEach((handle, k) => {
      handle.style.left = `${100 * range[k]}%`;
      handle.setAttribute("aria-valuenow", value(k));
      handle.setAttribute("aria-valuetext", String(value(k)));
      ends.children[k].textContent = short(value(k));
      ends.children[k].className = range[k] === k ? "" : "hg-set";
    });
  };
  const tell = () => choose(range[0] > 0 ? value(0) : null, range[1] < 1 ? value(1) : null);
  const pick = (a, b) => ((range = [a, b]), draw(), tell());
  const place = (e) => {
    const box = plot.getBoundingClientRect();
    const x = Math.min(1, Math.max(0, (e.clientX - box.left) / box.width));
    return whole ? x * bins : x;
  };
  plot.addEventListener("pointerdown", (e) => {
    if (e.button) return;
    plot.setPointerCapture(e.pointerId);
    start = place(e);
    e.preventDefault();
  });
  const drag = (e) => {
    const [a, b] = [start, place(e)].sort((x, y) => x - y);
    range = whole ? [Math.floor(Math.min(a, bins - 1)) / bins, Math.ceil(Math.max(b, 0.001)) / bins] : [a, b];
    draw();
  };
  plot.addEventListener("pointermove", (e) => start !== null && drag(e));
  const end = (e) => {
    if (start === null) return;
    const moved = Math.abs(place(e) - start) > (whole ? 0.1 : 0.01);
    if (moved) drag(e);
    start = null;
    if (moved) tell();
    else if (range[0] > 0 || range[1] < 1) pick(0, 1); // a press takes the range away
  };
  plot.addEventListener("pointerup", end);
  plot.addEventListener("pointercancel", () => (start = null));
  draw();
  return h("div.hg", { title: "drag: only episodes in this range; a press shows all again" }, plot, ends);
}

/** The most frequent values, each a button; `chosen()` is the condition that holds now. */
export function values(column, chosen, choose) {
  const chosenValues = () => chosen()?.values ?? [];
  const shown = chosenValues();
  const { missing, distinct } = column;
  const total = column.values.reduce((n, v) => n + v.episodes, missing) || 1;
  const rows = column.values.slice(0, column.kind === "flag" ? 2 : 12).map((v) => ({ ...v, said: v.value === true ? "yes" : v.value === false ? "no" : v.value || "(empty)" }));
  if (missing && rows.length) rows.push({ value: null, said: "none", episodes: missing });
  rows.sort((a, b) => b.episodes - a.episodes);
  if (!rows.length) return h("div.hg.soft", {}, distinct ? `${distinct.toLocaleString("en")} different` : "no value");
  const single = (v) => typeof v !== "string";
  return h("div.hg.hg-values", { role: "group", "aria-label": column.name }, rows.map((v) => {
    const press = () => {
      const now = chosenValues();
      choose(now.includes(v.value) ? now.filter((x) => x !== v.value) : single(v.value) || now.some(single) ? [v.value] : [...now, v.value]);
    };
    const bar = h("span.hg-bar"), some = h("span.hg-bar.hg-part");
    bar.style.width = `${(100 * v.episodes) / total}%`;
    some.style.width = `${(100 * (v.matching ?? 0)) / total}%`;
    return h("button.hg-value", { type: "button", "aria-pressed": String(shown.includes(v.value)), title: `${v.said}: ${v.episodes.toLocaleString("en")}`, click: press }, bar, some, h("span.hg-said", {}, v.said));
  }));
}
