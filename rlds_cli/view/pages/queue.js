// The episodes that one person is to decide on, one after the other; and who that is.

import { ahead, get, link } from "./base.js";
import { changes, sent } from "./marks.js";

let person = "";

/** Who decides: the name that was given here before. */
export function who() {
  try {
    return person || (localStorage.getItem("rlds-by") ?? "");
  } catch {
    return person; // a browser that keeps nothing
  }
}

/** Remember who decides, and return it. */
export function setWho(name) {
  person = name.trim();
  try {
    localStorage.setItem("rlds-by", person);
  } catch {
    // it is asked for again
  }
  return person;
}

/** What of an address says which queue it is. */
export const choice = (query) => Object.fromEntries(["decide", "seed", "of", "where", "sort", "desc"].map((n) => [n, query.get(n)]));

class Queue {
  constructor(key, v, chosen, by) {
    const { decide, desc, ...rest } = chosen;
    Object.assign(this, { key, v, chosen, list: [], passed: new Set(), now: new Map(), base: new Map(), of: null, decided: 0 });
    this.asked = { d: key, v, by, order: decide, descending: desc, ...rest };
  }

  /** Ask for those that are left, behind those that were passed over. */
  async fill() {
    await sent();
    const before = changes, count = 100, found = [];
    let record;
    do {
      record = await get("queue", { ...this.asked, first: found.length, count });
      if (changes !== before) return this.fill();
      found.push(...record.episodes);
    } while (record.episodes.length === count && found.every((n) => this.passed.has(n)));
    Object.assign(this, record, { list: found, base: new Map(this.now) });
  }

  /** Say whether an episode is decided; how many are. */
  mark(number, decided) {
    if (!this.base.has(number)) this.base.set(number, decided);
    this.now.set(number, decided);
    return this.decided + [...this.now].reduce((sum, [n, is]) => sum + is - this.base.get(n), 0);
  }

  upcoming(current) {
    return this.list.filter((n) => n !== current && !this.passed.has(n));
  }

  /** The episode after one, which is passed now; null if none is left. */
  async next(current) {
    this.passed.add(current);
    if (!this.upcoming(current).length) await this.fill();
    return this.upcoming(current)[0] ?? null;
  }

  /** Ask for what comes next before it is wanted. */
  async prepare(current) {
    this.shown = current;
    if (this.of === null || this.upcoming(current).length < 5) await this.fill();
    const [next] = this.upcoming(current);
    if (next === undefined || this.shown !== current) return; // the answers would be old
    for (const path of ["episode", "decisions"]) ahead(path, { d: this.key, v: this.v, episode: next });
  }

  link(number) {
    return link(["e", this.key, number], { v: this.v, ...this.chosen });
  }
}

let current = null;

/** The queue that an address names; the same one as long as it is the same. */
export function queueOf(key, v, query) {
  const made = new Queue(key, String(v), choice(query), who());
  if (JSON.stringify(current?.asked) !== JSON.stringify(made.asked)) current = made;
  return current;
}
