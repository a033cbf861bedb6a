"use strict";
// Draws the charts, the table of episodes and the viewer of a report from the data in its page.

// -- elements made without HTML text, and numbers for people

const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, ...content) {
  const drawn = ["svg", "path", "line", "rect", "text", "title"].includes(name);
  const element = drawn ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(key, "");
    else if (value !== null && value !== false) element.setAttribute(key, value);
  }
  element.append(...content.filter((part) => part !== null));
  return element;
}

const whole = (n) => n.toLocaleString("en");

// As the page's own numbers: 1,000, 0.25, 1e-7.
function figure(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const size = Math.abs(x);
  if (size < 1e-12) return "0";
  if (size >= 1e6 || size < 1e-3) return x.toExponential(2).replace("e+", "e");
  return size < 1e4 ? Number(x.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 })
    : Math.round(x).toLocaleString("en");
}

const plural = (n, word) => `${whole(n)} ${word}${n === 1 ? "" : "s"}`;

async function copy(button, words) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(words);
    button.textContent = "copied";
  } catch {
    button.textContent = "could not copy";
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}

const VIEWED = new Map(DATA.episodes.map((episode, k) => [episode.number, k]));

document.documentElement.classList.add("scripted");
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", () => copy(button, button.dataset.copy));
}
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});

// -- charts over episodes and steps

const CHART = { width: 460, height: 280, left: 64, right: 444, top: 36, bottom: 236 };

function scale(low, high, start, stop) {
  const span = high - low;
  return (value) => start + (span > 0 ? (value - low) / span : 0.5) * (stop - start);
}

// About five round numbers in [low, high], 1, 2 or 5 times a power of ten apart.
function ticks(low, high) {
  const raw = (high - low) / 5;
  if (!(raw > 1e-300 && raw < Infinity)) return [low];
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = size * [1, 2, 5, 10].find((m) => m * size >= raw * (1 - 1e-9));
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: Math.min(count, 20) }, (_, k) => (first + k) * step);
}

// Scales, grid, axes and labels of a chart; `marks` makes what is drawn over them from the scales.
function framed(svg, [x0, x1], [y0, y1], xName, yName, marks) {
  const { width, height, left, right, top, bottom } = CHART;
  const across = scale(x0, x1, left, right);
  const up = scale(y0, y1, bottom, top);
  const label = (x, y, anchor, words) => make("text", { class: "label", x, y, "text-anchor": anchor }, words);
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height })) svg.setAttribute(name, value);
  for (const y of ticks(y0, y1)) {
    svg.append(make("path", { class: "grid", d: `M${left} ${up(y)}H${right}` }), label(left - 6, up(y) + 4, "end", figure(y)));
  }
  svg.append(
    ...ticks(x0, x1).filter((x) => xName !== "steps" || Number.isInteger(x)).map((x) => label(across(x), bottom + 16, "middle", figure(x))),
    make("path", { class: "axis", d: `M${left} ${top}V${bottom}H${right}` }),
    label((left + right) / 2, bottom + 34, "middle", xName),
    label(left, top - 6, "start", yName),
    ...marks(across, up),
  );
}

const DRAW = {
  // A histogram; every bar has its range and count as a tooltip.
  bars(svg, { counts, low, high, x }) {
    const [a, b] = high > low ? [low, high] : [low - 0.5, low + 0.5];
    const edge = (k) => a + ((b - a) * k) / counts.length;
    framed(svg, [a, b], [0, Math.max(1, ...counts)], x, "episodes", (across, up) => counts.map((count, k) => {
      const [left, right, top] = [across(edge(k)), across(edge(k + 1)), up(count)];
      const range = high > low ? `${figure(edge(k))} to ${figure(edge(k + 1))}` : figure(low);
      const size = { width: Math.max(right - left - 1, 0.5), height: count ? Math.max(up(0) - top, 0.5) : 0 };
      return make("rect", { class: "bar", x: left + 0.5, y: top, ...size }, make("title", {}, `${range}: ${whole(count)}`));
    }));
  },

  // Returns against lengths, a dot for each episode in the colour of its end.
  dots(svg, { points }) {
    const range = (i) => {
      const [low, high] = extremes(points.map((point) => point[i]));
      const margin = (high - low) * 0.04 || 0.5;
      return [low - margin, high + margin];
    };
    framed(svg, range(0), range(1), "steps", "return", (across, up) => DATA.ends.map((end, k) => {
      const path = points.filter((point) => point[2] === k).map(([x, y]) => `M${across(x).toFixed(1)} ${up(y).toFixed(1)}h0`);
      return make("path", { class: `dots is-${end}`, d: path.join("") }, make("title", {}, end));
    }));
  },

  // The histogram of an element of a field; a line marks the mean.
  small(svg, { counts, low, high, mean }) {
    const [width, height] = [240, 60];
    const up = scale(0, Math.max(1, ...counts), height, 4);
    const slot = width / counts.length;
    const bar = Math.min(slot, width / 4) - (counts.length <= 40 ? 1 : 0.3);
    const path = counts.map((count, k) => {
      const tall = Math.max(height - up(count), 1);
      return count ? `M${((k + 0.5) * slot - bar / 2).toFixed(1)} ${height}v${(-tall).toFixed(1)}h${bar.toFixed(1)}v${tall.toFixed(1)}z` : "";
    });
    svg.setAttribute("viewBox", `0 0 ${width} ${height + 1}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.append(make("path", { class: "bar", d: path.join("") }), make("path", { class: "axis", d: `M0 ${height}H${width}` }));
    if (mean !== null && high > low && low <= mean && mean <= high) {
      svg.append(make("path", { class: "mean", d: `M${scale(low, high, 0, width)(mean).toFixed(1)} 0V${height}` }));
    }
  },

  // One bar divided by how episodes end.
  shares(svg, { parts }) {
    const total = parts.reduce((sum, n) => sum + n, 0) || 1;
    let x = 0;
    svg.setAttribute("viewBox", "0 0 1000 10");
    svg.setAttribute("preserveAspectRatio", "none");
    parts.forEach((n, k) => {
      const share = (1000 * n) / total;
      const width = n ? Math.max(share - 2, 0.5) : 0;
      svg.append(make("rect", { class: `is-${DATA.ends[k]}`, x, y: 0, width, height: 10 }, make("title", {}, `${DATA.ends[k]}: ${whole(n)}`)));
      x += share;
    });
  },
};

for (const svg of document.querySelectorAll("svg[data-chart]")) {
  const chart = DATA.charts[svg.dataset.chart];
  svg.append(make("title", {}, svg.getAttribute("aria-label")));
  DRAW[chart.kind](svg, chart);
}

// -- curves of one episode, a small chart for each element of a field; all share the step under the cursor

const WIDTH = 600;
const HEIGHT = 64;

// The values of an episode: per field and element a Float32Array over the episode's steps.
function unpack(episode) {
  if (episode.curves) return episode.curves;
  const count = stepsOf(episode).length;
  episode.curves = episode.values.map((text, f) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const numbers = new Float32Array(bytes.buffer);
    return DATA.fields[f].indices.map((_, i) => numbers.subarray(i * count, (i + 1) * count));
  });
  return episode.curves;
}

function stepsOf(episode) {
  if (typeof episode.steps === "number") episode.steps = [...Array(episode.steps).keys()];
  return episode.steps;
}

function extremes(values, start = [Infinity, -Infinity]) {
  let [low, high] = start;
  for (const v of values) {
    if (!Number.isFinite(v)) continue;
    if (v < low) low = v;
    if (v > high) high = v;
  }
  return [low, high];
}

// The range of an element over all episodes of the viewer.
function commonRange(f, i) {
  return DATA.episodes.reduce((range, episode) => extremes(unpack(episode)[f][i], range), [Infinity, -Infinity]);
}

// A path through the finite values; those that hold until the next step are drawn as stairs.
function outline(values, steps, across, up, hold) {
  let path = "";
  let pen = false;
  for (let k = 0; k < values.length; k += 1) {
    if (!Number.isFinite(values[k])) {
      pen = false;
      continue;
    }
    const [x, y] = [across(steps[k]).toFixed(1), up(values[k]).toFixed(1)];
    path += !pen ? `M${x} ${y}` : hold ? `H${x}V${y}` : `L${x} ${y}`;
    const alone = !pen && !Number.isFinite(values[k + 1]);
    if (alone) path += "h0.1";
    pen = true;
  }
  return path;
}

// One chart: `show` draws an episode, `point` moves the cursor to the k-th of its steps.
function chartOf(f, i, moved) {
  const field = DATA.fields[f];
  const label = field.indices[i];
  const line = make("path", { class: `curve c${i % 8}` });
  const cursor = make("line", { class: "cursor", y1: 0, y2: HEIGHT });
  const view = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" };
  const drawing = make("svg", view, make("path", { class: "axis", d: `M0 ${HEIGHT}H${WIDTH}` }), line, cursor);
  const now = make("span", { class: "now" });
  const range = make("span", { class: "range" });
  const caption = make("figcaption", {}, make("span", { class: "label" }, label), now);
  const element = make("figure", { class: "lane" }, caption, drawing, range);
  let shown = null;

  const across = (step) => (step / Math.max(1, shown.last)) * WIDTH;
  const locate = (event) => {
    const box = drawing.getBoundingClientRect();
    moved(((event.clientX - box.left) / box.width) * shown.last);
  };
  drawing.addEventListener("pointermove", locate);
  drawing.addEventListener("pointerdown", locate);

  return {
    element,
    show(episode, common) {
      const steps = stepsOf(episode);
      const values = unpack(episode)[f][i];
      shown = { steps, values, last: steps[steps.length - 1] || 0 };
      let [low, high] = common ? commonRange(f, i) : extremes(values);
      range.textContent = low > high ? "no value" : `${figure(low)} to ${figure(high)}`;
      drawing.setAttribute("aria-label", `${field.name}${field.indices[i]} over ${plural(steps.length, "step")}: ${range.textContent}`);
      const pad = Math.max(1, Math.abs(low) / 100); // of a constant, however great
      if (!(high > low)) [low, high] = [low - pad, high + pad];
      const up = (value) => HEIGHT - 3 - ((value - low) / (high - low)) * (HEIGHT - 6);
      line.setAttribute("d", outline(values, steps, across, up, field.hold));
    },
    point(k) {
      const x = across(shown.steps[k] || 0).toFixed(1);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      now.textContent = figure(shown.values[k]);
    },
  };
}

// -- the table of episodes: sorts by any column, filters, turns pages; below it is the filter as a selection in Python

(() => {
  const table = byId("episode-table");
  const columns = DATA.columns;
  const heads = [...table.tHead.rows[0].cells];
  const all = columns.number.map((_, k) => k);
  const state = { key: "number", down: false, page: 0, rows: all };

  const control = (id) => byId(`filter-${id}`);
  const bound = (id) => {
    const value = control(id) ? control(id).value : "";
    return value === "" ? null : Number(value);
  };

  function comparable(key, kind, row) {
    const value = columns[key][row];
    if (kind === "splits") return value.map((i) => DATA.splits[i]).join(", ");
    return kind === "end" ? DATA.ends[value] : value;
  }

  // Values that are not there come last, whichever way; equal ones by number.
  function sorted(rows) {
    const kind = heads.find((head) => head.dataset.key === state.key).dataset.kind;
    const numeric = state.key === "seed" && columns.seed.every((s) => s.length < 16);
    const value = (row) => {
      const found = comparable(state.key, kind, row);
      return found === "" || found === null ? null : numeric ? Number(found) : found;
    };
    const text = new Intl.Collator("en", { numeric: true });
    const way = state.down ? -1 : 1;
    return [...rows].sort((i, j) => {
      const [a, b] = [value(i), value(j)];
      if (a === null || b === null) return (a === null) - (b === null) || i - j;
      return (typeof a === "string" ? text.compare(a, b) : a - b) * way || i - j;
    });
  }

  function conditions() {
    const found = [];
    const within = (key, name) => {
      const [least, most] = [bound(`${key}-least`), bound(`${key}-most`)];
      if (least !== null) found.push([(k) => columns[key][k] !== null && columns[key][k] >= least, `${name} >= ${least}`]);
      if (most !== null) found.push([(k) => columns[key][k] !== null && columns[key][k] <= most, `${name} <= ${most}`]);
    };
    const end = control("end").value;
    if (end) found.push([(k) => DATA.ends[columns.end[k]] === end, `end == '${end}'`]);
    within("length", "length");
    within("total", "total_reward");
    const split = control("split") ? control("split").value : "";
    if (split) found.push([(k) => columns.splits[k].includes(Number(split)), null]);
    const words = control("group") ? control("group").value.toLowerCase() : "";
    if (words) found.push([(k) => columns.group[k].toLowerCase().includes(words), null]);
    if (control("findings").checked) found.push([(k) => columns.findings[k] > 0, null]);
    if (control("viewed").checked) found.push([(k) => VIEWED.has(columns.number[k]), null]);
    return found;
  }

  function python(found) {
    const split = control("split") ? control("split").value : "";
    const where = found.map((pair) => pair[1]).filter(Boolean).join(" and ");
    const parts = [split && `split=${JSON.stringify(DATA.splits[split])}`, where && `where=${JSON.stringify(where)}`];
    const rest = parts.filter(Boolean).join(", ");
    return `rlds_cli.open_dataset(${JSON.stringify(DATA.id)})${rest && `.select(${rest})`}`;
  }

  function cell(head, row) {
    const { key, kind } = head.dataset;
    const value = columns[key][row];
    if (kind === "episode") {
      const words = whole(value);
      const shown = VIEWED.has(value) ? make("a", { href: `#episode-${value}` }, words) : words;
      return make("th", { scope: "row" }, shown);
    }
    const words = {
      whole: () => whole(value), count: () => (value ? whole(value) : "–"), number: () => figure(value),
      tenth: () => (value === null ? "–" : value.toFixed(1)), end: () => DATA.ends[value],
      yes: () => (value ? "yes" : "no"), splits: () => value.map((i) => DATA.splits[i]).join(", "),
    }[kind];
    return make("td", { class: head.className || null }, words ? words() : value);
  }

  function draw() {
    const pages = Math.max(1, Math.ceil(state.rows.length / DATA.rows));
    state.page = Math.min(state.page, pages - 1);
    const first = state.page * DATA.rows;
    const shown = state.rows.slice(first, first + DATA.rows);
    const line = (row) => make("tr", {}, ...heads.map((head) => cell(head, row)));
    table.tBodies[0].replaceChildren(...shown.map(line));
    for (const head of heads) {
      const way = head.dataset.key !== state.key ? "none" : state.down ? "descending" : "ascending";
      head.setAttribute("aria-sort", way);
    }
    const listed = plural(all.length, "episode");
    const some = state.rows.length < all.length ? `${whole(state.rows.length)} of ${listed} match` : listed;
    const range = shown.length ? `${whole(first + 1)} to ${whole(first + shown.length)} shown` : "none shown";
    byId("listed").textContent = `${some}; ${range}.`;
    byId("page-number").textContent = `Page ${whole(state.page + 1)} of ${whole(pages)}`;
    byId("page-before").disabled = state.page === 0;
    byId("page-after").disabled = state.page >= pages - 1;
  }

  function filter() {
    const found = conditions();
    state.rows = sorted(all.filter((row) => found.every(([holds]) => holds(row))));
    byId("selection").textContent = python(found);
    state.page = 0;
    draw();
  }

  for (const head of heads) {
    head.querySelector("button").addEventListener("click", () => {
      const { key, kind } = head.dataset;
      const numbers = ["number", "tenth", "whole", "count"].includes(kind);
      state.down = state.key === key ? !state.down : numbers;
      state.key = key;
      state.rows = sorted(state.rows);
      state.page = 0;
      draw();
    });
  }
  const form = byId("filters");
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", (event) => event.preventDefault());
  const turn = (by) => () => { state.page += by; draw(); };
  byId("page-before").addEventListener("click", turn(-1));
  byId("page-after").addEventListener("click", turn(1));
  byId("copy-selection").addEventListener("click", (event) => copy(event.currentTarget, byId("selection").textContent));
  filter();
})();

// -- the episode viewer: one step for all curves, film strips and texts; a place of a finding is an address of the page

(() => {
  if (!DATA.episodes.length) return;
  const stage = { charts: [], films: [], texts: [], episode: null, k: 0, timer: null };
  const slider = byId("step");
  const chooser = byId("episode");

  function section(kind, name, ...content) {
    return make("section", { class: `group ${kind}` }, make("h3", {}, make("code", {}, name)), ...content);
  }

  // A film strip: a large frame, the last one at or before the step, and all frames as buttons.
  function filmOf(name) {
    const large = make("img", { class: "large", alt: "" });
    const list = make("ol", { class: "film", tabindex: 0, "aria-label": `Frames of ${name}` });
    let frames = [];
    let buttons = [];
    let current = -1;
    return {
      element: section("wide", name, make("div", { class: "screen" }, large, list)),
      show(episode) {
        frames = episode.frames[name] || [];
        current = -1;
        buttons = frames.map(([step, uri, width, height]) => {
          const size = { width, height, alt: `${name} at step ${step}` };
          const button = make("button", { type: "button" }, make("img", { src: uri, ...size }), make("span", {}, whole(step)));
          button.addEventListener("click", () => toStep(step));
          return button;
        });
        list.replaceChildren(...buttons.map((button) => make("li", {}, button)));
        large.hidden = frames.length === 0;
      },
      point(step) {
        let found = frames.findIndex((frame) => frame[0] > step);
        found = found === -1 ? frames.length - 1 : Math.max(0, found - 1);
        if (found === current || found < 0) return;
        if (current >= 0) buttons[current].removeAttribute("aria-current");
        buttons[found].setAttribute("aria-current", "true");
        current = found;
        const [at, uri, width, height] = frames[found];
        large.src = uri;
        large.alt = `${name} at step ${at}, large`;
        large.classList.toggle("small-pixels", Math.max(width, height) <= 64);
        const left = buttons[found].offsetLeft - list.offsetLeft;
        if (left < list.scrollLeft || left + buttons[found].offsetWidth > list.scrollLeft + list.clientWidth) {
          list.scrollLeft = left - list.clientWidth / 2;
        }
      },
    };
  }

  function textOf(name) {
    const words = make("p", { class: "words" });
    let changes = [];
    return {
      element: section("", name, words),
      show(episode) { changes = episode.texts[name] || []; },
      point(step) {
        const before = changes.filter(([at]) => at <= step);
        words.textContent = before.length ? before[before.length - 1][1] || "(empty)" : "–";
      },
    };
  }

  function build() {
    const lanes = byId("lanes");
    stage.films = DATA.images.map(filmOf);
    stage.texts = Object.keys(DATA.episodes[0].texts).map(textOf);
    for (const part of [...stage.films, ...stage.texts]) lanes.append(part.element);
    DATA.fields.forEach((field, f) => {
      const charts = field.indices.map((_, i) => chartOf(f, i, toStep));
      stage.charts.push(...charts);
      lanes.append(section(charts.length > 1 ? "wide" : "", field.name, make("div", { class: "lanes" }, ...charts.map((chart) => chart.element))));
    });
  }

  function chips(episode) {
    const found = DATA.places.filter(([number, step]) => number === episode.number && step !== null)
      .map(([, step, severity, text]) => [step, severity, text]);
    const flags = episode.events.map(([step, kind]) => [step, kind, kind]);
    const few = [...found, ...flags].sort((a, b) => a[0] - b[0]).slice(0, 24);
    byId("events").replaceChildren(...few.map(([step, kind, words]) => {
      const button = make("button", { type: "button", class: `chip is-${kind}` }, `${words} · step ${whole(step)}`);
      button.addEventListener("click", () => toStep(step));
      return make("li", {}, button);
    }));
  }

  function point(k) {
    stage.k = k;
    const steps = stepsOf(stage.episode);
    const step = steps[k] || 0;
    const of = `step ${whole(step)} of ${whole(stage.episode.length)}`;
    slider.value = k;
    slider.setAttribute("aria-valuetext", of);
    byId("step-number").textContent = of;
    for (const chart of stage.charts) chart.point(k);
    for (const part of [...stage.films, ...stage.texts]) part.point(step);
  }

  // The nearest of the steps that are in the file.
  function toStep(wanted) {
    const steps = stepsOf(stage.episode);
    let [a, b] = [0, steps.length - 1];
    while (b - a > 1) {
      const middle = (a + b) >> 1;
      if (steps[middle] <= wanted) a = middle;
      else b = middle;
    }
    point(b > a && steps[b] - wanted < wanted - steps[a] ? b : a);
  }

  function show(number, step = 0) {
    stop();
    stage.episode = DATA.episodes[number];
    chooser.value = String(number);
    const row = DATA.columns.number.indexOf(stage.episode.number);
    const [total, score] = [DATA.columns.total, DATA.columns.score];
    const facts = [plural(stage.episode.length, "step"), total && `return ${figure(total[row])}`,
      score && `score ${score[row] === null ? "–" : score[row].toFixed(1)}`, DATA.ends[DATA.columns.end[row]],
      stage.episode.source && `from ${stage.episode.source}`];
    byId("episode-facts").textContent = facts.filter(Boolean).join(" · ");
    slider.max = Math.max(0, stepsOf(stage.episode).length - 1);
    byId("episode-before").disabled = number === 0;
    byId("episode-after").disabled = number === DATA.episodes.length - 1;
    for (const chart of stage.charts) chart.show(stage.episode, byId("common").checked);
    for (const part of [...stage.films, ...stage.texts]) part.show(stage.episode);
    chips(stage.episode);
    toStep(step);
  }

  function stop() {
    clearInterval(stage.timer);
    stage.timer = null;
    byId("play").textContent = "Play";
    byId("play").setAttribute("aria-pressed", "false");
  }

  // About eight seconds for an episode, whatever its length.
  function play() {
    if (stage.timer) return stop();
    const last = Number(slider.max);
    const by = Math.max(1, Math.round(last / 200));
    if (stage.k >= last) point(0);
    byId("play").textContent = "Pause";
    byId("play").setAttribute("aria-pressed", "true");
    stage.timer = setInterval(() => {
      point(Math.min(last, stage.k + by));
      if (stage.k >= last) stop();
    }, Math.max(40, 8000 / Math.max(1, last)));
    return undefined;
  }

  function visit() {
    const found = /^#episode-(\d+)(?:-step-(\d+))?$/.exec(location.hash);
    if (!found || !VIEWED.has(Number(found[1]))) return;
    show(VIEWED.get(Number(found[1])), Number(found[2] || 0));
    byId("viewer").scrollIntoView({ behavior: "instant" });
    slider.focus({ preventScroll: true });
  }

  const current = () => Number(chooser.value);
  chooser.addEventListener("change", () => show(current()));
  slider.addEventListener("input", () => { stop(); point(Number(slider.value)); });
  byId("episode-before").addEventListener("click", () => show(current() - 1));
  byId("episode-after").addEventListener("click", () => show(current() + 1));
  byId("play").addEventListener("click", play);
  byId("common").addEventListener("change", () => show(current(), stepsOf(stage.episode)[stage.k]));
  addEventListener("hashchange", visit);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#episode-']");
    if (link && link.getAttribute("href") === location.hash) visit(); // the same address again changes nothing
  });
  build();
  show(0);
  visit();
})();
