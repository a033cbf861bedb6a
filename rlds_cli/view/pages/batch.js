// A batch of a loader, as training gets it: its fields, and some samples with their windows, padding and masks.

import { figure, get, h, link, media, plural, problem, short } from "./base.js";
import { follow } from "./follow.js";
import { canvasOf, colours, extent, GUTTER, line, range, ticks } from "./chart.js";

const COUNT = 8; // samples that are shown at once
const HEIGHT = 84;

export async function batch(main, [number]) {
  const life = new AbortController();
  const [drawn] = (await get("about")).named; // a mixture names none
  const followed = drawn ? { parameters: { d: drawn.key }, known: await get("changed", { d: drawn.key }) } : { path: "about" };
  const old = h("p.ds-pinned", { role: "status" });
  const record = await get("batch", { n: number, count: COUNT });
  const { size, of, fields, samples } = record;
  const to = (n) => (n < 0 || (of !== null && n >= of) ? null : link(["b", n]));
  const other = (by, text, name) => {
    const href = to(record.number + by);
    return href ? h("a.ep-other", { href, title: name, "aria-label": name }, text) : h("span.ep-other.soft", { "aria-hidden": true }, text);
  };
  const cards = h("div.ba-cards", {}, samples.map((s) => card(record, s)));
  const more = h("button", { click: add }, "");
  const count = () => {
    const left = size - cards.children.length;
    more.textContent = `${Math.min(COUNT, left)} more of ${figure(left)}`;
    more.hidden = left <= 0;
  };
  async function add() {
    try {
      const next = await get("batch", { n: record.number, first: cards.children.length, count: COUNT });
      cards.append(...next.samples.map((s) => card(record, s)));
    } catch (e) {
      cards.after(problem(e));
    }
    count();
    draw();
  }
  count();
  main.append(old,
    h("header.ep-head", {},
      h("div.ep-title", {}, other(-1, "‹", "previous batch (P)"), h("h1", {}, `Batch ${figure(record.number)}`), other(1, "›", "next batch (N)"),
        h("span.soft", {}, of === null ? "of a loader that does not end" : `of ${figure(of)}`)),
      h("details.st", {}, h("summary", {}, record.loader), h("pre.ba-text", {}, record.text))),
    h("details.st.ba-fields", { open: fields.length <= 12 }, h("summary", {}, plural(fields.length, "field")), h("table", {}, h("thead", {}, h("tr", {}, ["field", "shape", "dtype", "range"].map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", {}, fields.map((f) => h("tr", {}, h("th", { scope: "row" }, f.name), h("td", {}, f.shape.join(" × ")), h("td", {}, f.dtype),
        h("td", {}, f.low === null ? "" : f.low === f.high ? short(f.low) : `${short(f.low)} to ${short(f.high)}`)))))),
    cards, more);
  const draw = () => cards.querySelectorAll("canvas").forEach((canvas) => canvas.redraw());
  const keys = (e) => {
    const by = { n: 1, N: 1, p: -1, P: -1 }[e.key];
    const href = by && to(record.number + by);
    if (href && !e.ctrlKey && !e.metaKey && !e.altKey) location.hash = href;
  };
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  addEventListener("keydown", keys);
  addEventListener("resize", draw);
  scheme.addEventListener("change", draw);
  draw();
  follow(main, { ...followed, signal: life.signal, changed: () => drawn && (old.textContent = `${drawn.id} has changed: the loader draws from what it opened.`) });
  return () => {
    life.abort();
    removeEventListener("keydown", keys);
    removeEventListener("resize", draw);
    scheme.removeEventListener("change", draw);
  };
}

function card({ number, fields }, sample) {
  const masked = (f, step) => sample.mask[f.name]?.[step] === false;
  const strip = (f) => {
    const steps = Array.from({ length: f.steps ?? 1 }, (_, k) => k);
    const [high, wide] = f.shape.at(-1) <= 4 || f.shape.length < (f.steps ? 5 : 4) ? f.shape.slice(-3) : f.shape.slice(-2);
    const image = (step) => h("img", { class: masked(f, step) ? "ba-pad" : false, loading: "lazy", alt: `${f.name}, step ${step}${masked(f, step) ? ", padding" : ""}`,
      title: `step ${step}`, height: 72, width: Math.round((72 * wide) / high), src: media("batch", { n: number, field: f.name, sample: sample.number, step, height: 72 }) });
    return h("figure.ba-field", {}, h("figcaption.cv-name", {}, f.name), h("div.ba-strip", {}, steps.map(image)));
  };
  const scalars = fields.filter((f) => f.kind === "values" && sample.values[f.name]);
  const text = (f) => {
    const words = sample.values[f.name].flat().map((v) => (typeof v === "number" ? short(v) : String(v ?? "–")));
    return f.steps ? words.filter((w, k) => w !== words[k - 1]).join(" → ") : words.join("   ");
  };
  return h("article.cv-card", { "aria-label": `sample ${sample.number}` }, h("h2.cv-name", {}, `Sample ${figure(sample.number)}`),
    h("div.ba-images", {}, fields.filter((f) => f.kind === "image").map(strip)),
    h("div.ba-plots", {}, fields.filter((f) => f.kind === "curve" && sample.values[f.name]).map((f) => plot(f, sample))),
    scalars.length ? h("div.st", {}, h("table", {}, h("tbody", {}, scalars.map((f) => h("tr", {}, h("th", { scope: "row" }, f.name), h("td", {}, text(f))))))) : null);
}

/** Curves of a field over the window; what is padding lies below a veil. */
function plot(field, sample) {
  const canvas = h("canvas", { role: "img", "aria-label": `${field.name} of sample ${sample.number}` });
  const rows = sample.values[field.name], columns = rows.length, count = rows[0]?.length ?? 0, mask = sample.mask[field.name];
  const values = new Float32Array(2 * count * columns);
  rows.forEach((row, c) => row.forEach((v, k) => values.fill(v === null ? NaN : Number(v), 2 * (k * columns + c), 2 * (k * columns + c) + 2)));
  const piece = { first: 0, stop: columns, columns, values }, shown = Array.from({ length: count }, (_, k) => k);
  canvas.redraw = () => {
    const width = canvas.clientWidth, paint = colours(canvas), brush = canvasOf(canvas, width, HEIGHT);
    const [low, high] = range(extent(piece, shown, piece));
    const x = (row) => GUTTER + ((row + 0.5) / columns) * (width - GUTTER - 4), y = (v) => HEIGHT - 5 - ((v - low) / (high - low)) * (HEIGHT - 10);
    brush.font = "11px system-ui, sans-serif";
    brush.textAlign = "right";
    brush.textBaseline = "middle";
    for (const value of ticks(low, high, 2)) {
      brush.fillStyle = paint.grid;
      brush.fillRect(GUTTER, Math.round(y(value)), width - GUTTER, 1);
      brush.fillStyle = paint.soft;
      brush.fillText(short(value), GUTTER - 6, y(value));
    }
    for (const k of shown) line(brush, piece, k, { x, y, colour: paint.pens[k % 8], hold: /^u?int|bool/.test(field.dtype) });
    for (let row = 0; mask && row < columns; row++) {
      if (mask[row]) continue;
      brush.fillStyle = paint.card + "c0";
      brush.fillRect(x(row - 0.5), 0, x(row + 0.5) - x(row - 0.5), HEIGHT);
      brush.fillStyle = paint.line;
      brush.fillRect(x(row - 0.5), HEIGHT - 3, x(row + 0.5) - x(row - 0.5) - 1, 3);
    }
  };
  const padded = mask ? mask.filter((m) => !m).length : 0;
  return h("figure.ba-field", {}, h("figcaption", {}, h("span.cv-name", {}, field.name), h("span.soft", {}, padded ? ` ${padded} of ${columns} are padding` : "")), h("div.ba-plot", {}, canvas));
}
