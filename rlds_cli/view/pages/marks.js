// What one person decides on one episode, as the page shows it, and how it reaches the server.

import { post } from "./base.js";

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

export class Marks {
  /** `decisions` are those that the server has of this person on an episode. */
  constructor({ id, steps, bands }, decisions) {
    const before = bands.filter((b) => b.kind === "subtask").map(({ first, stop, text }) => ({ first, stop, text })); // sub-tasks that it has
    Object.assign(this, { id, steps, before, verdict: "", ranges: [], labels: {}, segments: null, comment: "", reviewed: [] });
    for (const d of decisions) {
      if (d.do === "drop") this.verdict = "drop";
      if (d.do === "keep") {
        if (this.verdict !== "drop") this.verdict = "keep";
        if (d.first !== 0 || d.stop !== steps) this.ranges.push([d.first, d.stop]);
      }
      if (d.do === "subtask") this.segments = [...(this.segments ?? []), ...(d.text ? [{ first: d.first, stop: d.stop, text: d.text }] : [])];
      Object.assign(this.labels, d.labels);
      this.comment ||= d.comment;
      if (d.reviews) this.reviewed.push({ ...d, key: d.reviews });
    }
    this.ranges.sort((a, b) => a[0] - b[0]);
    this.segments?.sort((a, b) => a.first - b.first);
  }

  /** The decisions that say this. */
  get decisions() {
    const found = [], { verdict, comment, labels, steps } = this;
    if (verdict === "drop") found.push({ do: "drop" });
    else for (const [first, stop] of this.ranges.length || verdict !== "keep" ? this.ranges : [[0, steps]]) found.push({ do: "keep", first, stop });
    for (const s of this.segments ?? []) if (s.text) found.push({ do: "subtask", ...s });
    if (this.segments) for (const [first, stop] of this.gaps) found.push({ do: "subtask", first, stop });
    if (Object.keys(labels).length) found.push({ do: "", labels: { ...labels } });
    if (comment) (found.at(-1) ?? (found.push({ do: "" }), found[0])).comment = comment;
    for (const d of found) {
      const key = this.reviewed.find((r) => r.do === d.do && (r.first ?? undefined) === d.first && (r.stop ?? undefined) === d.stop)?.key;
      if (key) d.reviews = key;
    }
    return found;
  }

  /** Steps of which something was said, and is not any more. */
  get gaps() {
    let left = this.before.map((s) => [s.first, s.stop]);
    for (const s of this.segments.filter((s) => s.text)) left = left.flatMap(([a, b]) => [[a, Math.min(b, s.first)], [Math.max(a, s.stop), b]].filter(([x, y]) => x < y));
    return left;
  }

  get decided() {
    return this.decisions.length > 0;
  }

  label(name, value) {
    if (this.labels[name] === value || value === "") delete this.labels[name];
    else this.labels[name] = value;
  }

  /** Ranges in their order, none over another; the whole episode needs none. */
  tidy() {
    this.ranges.sort((a, b) => a[0] - b[0]);
    this.ranges.forEach((r, k) => k && (r[0] = Math.max(r[0], this.ranges[k - 1][1])));
    this.ranges = this.ranges.filter(([first, stop]) => first < stop);
    if (same(this.ranges, [[0, this.steps]])) this.ranges = [];
    if (this.ranges.length && this.verdict === "drop") this.verdict = "";
  }
}

const outbox = new Map(); // dataset and episode -> what the server shall know of it
const listeners = new Set();
const SHOWN = 40; // milliseconds in which the page shows a decision before it is sent
let sending = false, problem = null, soon = 0;
export let changes = 0; // of what is decided
export const change = () => (changes += 1);

/** Hear, now and whenever it changes, of how many episodes are not kept yet, and why. */
export function onKept(listener) {
  listeners.add(listener);
  listener(outbox.size, problem);
  return () => listeners.delete(listener);
}

const tell = () => listeners.forEach((f) => f(outbox.size, problem));

/** Send what is decided of an episode, once it is shown; the latest counts. */
export function keep(where, by, marks) {
  const { id, decisions } = marks;
  outbox.set(`${where.d} ${by} ${id}`, { where, by, episode: { id, decisions } });
  change();
  tell();
  soon ||= setTimeout(send, SHOWN);
}

/** Wait until all is kept, or cannot be. */
export const sent = () => new Promise((resolve) => {
  send();
  const done = (left, problem) => (!left || problem) && (listeners.delete(done), resolve());
  listeners.add(done);
  done(outbox.size, problem);
});

async function send() {
  clearTimeout(soon);
  soon = 0;
  if (sending) return;
  sending = true;
  for (let wait = 250; outbox.size; ) {
    const [first] = outbox.values();
    const some = [...outbox].filter(([, m]) => m.by === first.by && same(m.where, first.where)).slice(0, 50);
    try {
      await post("decide", first.where, { by: first.by, episodes: some.map(([, m]) => m.episode) });
      for (const [key, m] of some) if (outbox.get(key) === m) outbox.delete(key);
      problem = null;
    } catch (e) {
      problem = e;
      if (e.status >= 400 && e.status < 500) for (const [key, m] of some) if (outbox.get(key) === m) outbox.delete(key); // it will never be taken
      tell();
      await new Promise((resolve) => setTimeout(resolve, (wait = Math.min(4000, 2 * wait))));
    }
    tell();
  }
  sending = false;
}

addEventListener("beforeunload", (e) => outbox.size && e.preventDefault());
addEventListener("visibilitychange", send);
