// Below the time line: which steps stay, and what is done in which of them; their ends are moved by handles.

import { clamp, figure, h } from "./base.js";

/** The range of steps that a step is in, or the nearest. */
function rangeAt({ ranges }, step) {
  const away = ([first, stop]) => Math.max(first - step, step - stop + 1, 0);
  return ranges.reduce((a, b) => (away(b) < away(a) ? b : a), ranges[0] ?? null);
}

function begin(marks, step) {
  const range = rangeAt(marks, step);
  if (!range) marks.ranges = [[step, marks.steps]];
  else if (step < range[1]) range[0] = step;
}

function end(marks, step) {
  const range = rangeAt(marks, step);
  if (!range) marks.ranges = [[0, step + 1]];
  else if (step >= range[0]) range[1] = step + 1;
}

function split(marks, step) {
  const range = rangeAt(marks, step) ?? [0, marks.steps];
  if (step > range[0] && step < range[1]) marks.ranges = [...marks.ranges.filter((r) => r !== range), [range[0], step], [step, range[1]]];
}

/** Put in a segment from a step on: until the next one, or for the rest of the one that is there. */
function segment(marks, step) {
  const all = (marks.segments ??= structuredClone(marks.before));
  const here = all.find((s) => s.first <= step && step < s.stop);
  if (here?.first === step) return;
  const stop = here?.stop ?? Math.min(marks.steps, ...all.filter((s) => s.first > step).map((s) => s.first));
  if (here) here.stop = step;
  all.push({ first: step, stop, text: "" });
  all.sort((a, b) => a.first - b.first);
}

export class Lane {
  /** `look` has marks(), change(), seek(row) and row(). */
  constructor(facts, look) {
    Object.assign(this, { facts, look, chosen: null });
    this.stay = h("div.ln-track", { role: "group", "aria-label": "steps that stay" });
    this.tasks = h("div.ln-track.ln-tasks", { role: "group", "aria-label": "sub-tasks" });
    const known = [...new Set(facts.bands.filter((b) => b.kind === "subtask").map((b) => b.text))];
    this.texts = h("datalist", { id: "ln-texts" }, known.map((t) => h("option", { value: t })));
    this.text = h("input.ln-text", { type: "text", maxlength: 400, list: "ln-texts", placeholder: "what is done here", "aria-label": "what is done in this sub-task", spellcheck: "false",
      input: () => this.said(), change: () => this.said(), keydown: (e) => ["Enter", "Escape"].includes(e.key) && this.text.blur() });
    this.remove = h("button", { click: () => this.gone() }, "Remove");
    this.editor = h("span.ln-editor", { hidden: true }, this.text, this.remove);
    const tool = (name, key, title, click) => h("button", { title: `${title} (${key})`, "aria-keyshortcuts": key, click }, name, h("kbd", {}, key));
    this.whole = h("button", { hidden: true, click: () => this.change(() => (look.marks().ranges = [])) }, "All steps");
    this.element = h("div.ln", {}, this.stay, this.tasks, h("div.ln-tools", {},
      tool("Begins here", "B", "steps before this one go", () => this.begin()), tool("Ends here", "E", "steps behind this one go", () => this.end()),
      tool("Split", "T", "two episodes, the second from this step on", () => this.split()), this.whole,
      tool("Sub-task", "G", "a sub-task from this step on", () => this.task()), this.editor, this.texts));
  }

  get step() {
    return clamp(this.look.row(), 0, this.facts.steps - 1);
  }

  change(does) {
    does();
    this.look.change();
  }

  begin = () => this.cut(begin);
  end = () => this.cut(end);
  split = () => this.cut(split);

  cut(how) {
    this.change(() => {
      how(this.look.marks(), this.step);
      this.look.marks().tidy();
    });
  }

  /** A sub-task from this step on, whose text is asked for. */
  task() {
    const { step } = this;
    segment(this.look.marks(), step);
    this.chosen = step;
    this.look.change();
    this.text.focus();
    this.text.select();
  }

  get selected() {
    return this.segments.find((s) => s.first === this.chosen) ?? null;
  }

  get segments() {
    return this.look.marks().segments ?? this.look.marks().before;
  }

  said() {
    const marks = this.look.marks();
    marks.segments ??= structuredClone(marks.before);
    const { selected } = this;
    if (!selected || selected.text === this.text.value) return;
    selected.text = this.text.value;
    this.look.change();
  }

  gone() {
    const marks = this.look.marks(), { chosen } = this;
    this.change(() => (marks.segments = structuredClone(this.segments).filter((s) => s.first !== chosen)));
  }

  place(element, first, stop) {
    element.style.left = `${(100 * first) / this.facts.rows}%`;
    element.style.width = `${(100 * (stop - first)) / this.facts.rows}%`;
    return element;
  }

  /** A handle at the border before a step, which `move(step)` moves while it is dragged. */
  handle(at, name, low, high, move) {
    const to = (step) => {
      const now = clamp(Math.round(step), low, high);
      if (now === at) return;
      move((at = now));
      this.look.seek(name.startsWith("end") ? now - 1 : now);
      show();
    };
    const element = h("div.ln-handle", { role: "slider", tabindex: "0", "aria-label": name, "aria-valuemin": low, "aria-valuemax": high });
    const show = () => {
      element.style.left = `${(100 * at) / this.facts.rows}%`;
      element.setAttribute("aria-valuenow", at);
      element.setAttribute("aria-valuetext", `step ${figure(at)}`);
    };
    show();
    element.addEventListener("keydown", (e) => {
      const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10, Home: low - at, End: high - at }[e.key];
      if (by === undefined || e.ctrlKey || e.metaKey || e.altKey) return;
      e.preventDefault();
      const track = element.parentElement;
      to(at + by * (e.shiftKey ? 10 : 1));
      this.moved();
      [...track.children].find((x) => x.getAttribute("aria-label") === name)?.focus();
    });
    let drag = false;
    element.addEventListener("pointerdown", (e) => {
      drag = !e.button;
      element.setPointerCapture(e.pointerId);
    });
    element.addEventListener("pointermove", (e) => {
      const box = element.parentElement.getBoundingClientRect();
      if (drag) to(((e.clientX - box.left) / box.width) * this.facts.rows);
    });
    const up = () => drag && ((drag = false), this.moved());
    element.addEventListener("pointerup", up);
    element.addEventListener("pointercancel", up);
    return element;
  }

  moved() {
    this.change(() => this.look.marks().tidy());
  }

  /** The handles of the k-th of some spans: where one begins as another ends there is one for both. */
  handles(spans, k, name, moving) {
    const [first, stop] = spans[k], last = spans[k - 1]?.[1] ?? 0, next = spans[k + 1];
    const both = next?.[0] === stop;
    return [
      k && last === first ? null : this.handle(first, `begin of ${name}`, last, stop - 1, (step) => moving(k, 0, step)),
      this.handle(stop, `end of ${name}`, first + 1, both ? next[1] - 1 : next?.[0] ?? this.facts.steps, (step) => {
        moving(k, 1, step);
        if (both) moving(k + 1, 0, step);
      }),
    ].filter(Boolean);
  }

  draw() {
    const marks = this.look.marks();
    this.element.classList.toggle("ln-dropped", marks.verdict === "drop");
    this.whole.hidden = !marks.ranges.length;
    this.drawRanges(marks);
    this.drawSegments(marks);
    const { selected } = this;
    this.editor.hidden = !selected;
    if (selected && document.activeElement !== this.text) this.text.value = selected.text;
  }

  drawRanges(marks) {
    const ranges = marks.ranges.length ? marks.ranges : [[0, this.facts.steps]];
    const spans = ranges.map(([first, stop]) => this.place(h("div.ln-range"), first, stop));
    const moving = (k, side, step) => {
      marks.ranges = ranges;
      ranges[k][side] = step;
      this.place(spans[k], ...ranges[k]);
    };
    const copy = ranges.map((r) => [...r]);
    this.stay.replaceChildren(...spans, ...ranges.flatMap((_, k) => this.handles(copy, k, ranges.length > 1 ? `part ${k + 1}` : "what stays", moving)));
  }

  drawSegments(marks) {
    const all = this.segments, texts = [...new Set(all.map((s) => s.text))];
    const bands = all.map((s) => {
      const band = this.place(h("button.ln-task", { title: s.text, "aria-pressed": String(s.first === this.chosen), click: () => {
        this.chosen = s.first === this.chosen ? null : s.first;
        this.look.seek(s.first);
        this.draw();
      } }, s.text || "…"), s.first, s.stop);
      band.style.setProperty("--pen", `var(--c${texts.indexOf(s.text) % 8})`);
      return band;
    });
    const moving = (k, side, step) => {
      marks.segments ??= structuredClone(marks.before);
      const own = marks.segments[k];
      if (own.first === this.chosen && side === 0) this.chosen = step;
      own[side ? "stop" : "first"] = step;
      this.place(bands[k], own.first, own.stop);
    };
    const spans = all.map((s) => [s.first, s.stop]);
    this.tasks.replaceChildren(...bands, ...all.flatMap((s, k) => this.handles(spans, k, s.text || `sub-task ${k + 1}`, moving)));
  }
}
