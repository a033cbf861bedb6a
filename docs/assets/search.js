// The search of the site, in the page itself: the theme's own runs in a worker, which a page from a disk may not start.
//
// The theme asks a worker, and shows what it answers; `Search` speaks to it as one (messages by number: 0 the index,
// 1 ready, 2 a query, 3 the results). `Index` ranks sections: BM25 over the words of heading and text, where the
// heading counts more, a word that a section lacks costs it, and a page may have a boost.
"use strict";

const STOP = new Set(
  "a an and are as at be but by can couldn do does doesn don for from has have how i if in into is isn it its me my of on or s t the there this to versus vs was what when where which use using usage who why will with won you your".split(" "),
);

// What people type, and the words of these pages.
const SAME = {
  bad: ["broken", "error"],
  browser: ["view"],
  bucket: ["s3"],
  checkpoint: ["resume", "state"],
  chunk: ["window", "slice"],
  citation: ["cite"],
  clip: ["trim"],
  combine: ["merge", "mixture"],
  concatenate: ["merge"],
  crop: ["augmentation"],
  cuda: ["gpu"],
  dataset: ["data"],
  ddp: ["torchrun", "rank"],
  delete: ["remove", "rm"],
  demonstration: ["episode"],
  denormalize: ["unnormalize"],
  directory: ["folder", "home"],
  fast: ["performance", "speed"],
  filter: ["select", "where"],
  folder: ["directory"],
  gpu: ["cuda"],
  hindsight: ["her"],
  hub: ["hf"],
  hugging: ["hub", "hf"],
  huggingface: ["hugging", "hub", "hf"],
  join: ["merge"],
  license: ["licence"],
  migrate: ["coming"],
  multiple: ["several"],
  mix: ["mixture"],
  ram: ["memory"],
  remove: ["delete", "rm"],
  rename: ["move"],
  resume: ["resuming"],
  rollout: ["episode"],
  share: ["push"],
  slow: ["performance", "speed"],
  storage: ["store", "disk"],
  trajectory: ["episode"],
  undo: ["restore"],
  uninstall: ["remove", "rm"],
  upload: ["push"],
  validation: ["held"],
  visualize: ["view"],
};

// A word without its ending: `stacking`, `stacked` and `stacks` are one.
function stem(word) {
  if (word.length < 4 || /\d/.test(word)) return word;
  let w = word.replace(/ies$/, "y").replace(/(ss|us|is)$|s$/, "$1");
  const short = w.replace(/(?:ation|ating|ated|ate|ing|ed|e)$/, "");
  if (short.length >= 3) w = short;
  w = w.replace(/([bdgmnprt])\1$/, "$1"); // mapping, map
  return w.replace(/is$/, "iz").replace(/^(.{4,})our$/, "$1or"); // normalise, normalize; behaviour, behavior
}

function words(text) {
  return (text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []).map(stem);
}

function plain(html) {
  return html.replace(/<[^>]*>/g, " ").replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&").replace(/\s+/g, " ");
}

class Index {
  constructor(docs) {
    this.pages = new Map();
    this.sections = docs.map((doc) => {
      const [page, anchor] = doc.location.split("#");
      const section = { ...doc, page, top: !anchor, title: plain(doc.title), text: plain(doc.text), counts: new Map() };
      if (section.top) this.pages.set(page, section);
      return section;
    });
    this.having = new Map(); // how many sections have a word
    let total = 0;
    for (const section of this.sections) {
      const page = this.pages.get(section.page);
      const add = (text, weight) => {
        for (const w of words(text)) section.counts.set(w, (section.counts.get(w) ?? 0) + weight);
      };
      add(section.text, 1);
      section.length = words(section.text).length;
      total += section.length;
      add(section.title, 4);
      if (page && page !== section) add(page.title, 2);
      section.heading = new Set(words(section.title));
      for (const w of section.counts.keys()) this.having.set(w, (this.having.get(w) ?? 0) + 1);
    }
    this.mean = total / Math.max(this.sections.length, 1);
    this.known = [...this.having.keys()].sort();
  }

  // The words of the index that a typed word means: itself, what is the same, and at its end also longer ones.
  meant(typed, last) {
    const found = new Map();
    const add = (w, worth) => this.having.has(w) && found.set(w, Math.max(worth, found.get(w) ?? 0));
    add(stem(typed), 1);
    for (const other of SAME[typed] ?? SAME[stem(typed)] ?? []) add(stem(other), 0.7);
    if (last && typed.length > 2) for (const w of this.known) if (w.startsWith(typed)) add(w, 0.5);
    return found;
  }

  // Pages in the order of their best sections: [{page, score, sections: [{section, score, terms}]}].
  search(query) {
    const all = query.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
    const asked = all.filter((w) => !STOP.has(w)).length ? all.filter((w) => !STOP.has(w)) : all;
    const terms = asked.map((w, i) => this.meant(w, i === asked.length - 1));
    const weight = terms.map((found) => {
      const having = Math.max(1, ...[...found.keys()].map((w) => this.having.get(w)));
      return Math.log(1 + this.sections.length / having);
    });
    const sum = weight.reduce((a, b) => a + b, 0);
    const pages = new Map();
    for (const section of this.sections) {
      let score = 0;
      let covered = 0;
      const titled = [];
      const said = {};
      terms.forEach((found, i) => {
        let best = 0;
        for (const [w, worth] of found) {
          const count = section.counts.get(w);
          if (count) best = Math.max(best, (worth * count * 2.2) / (count + 1.2 * (0.25 + (0.75 * section.length) / this.mean)));
        }
        said[asked[i]] = best > 0;
        if (best) covered += weight[i];
        score += best * weight[i];
        for (const [w, worth] of found) if (section.heading.has(w)) titled[i] = Math.max(titled[i] ?? 0, worth);
      });
      // A heading that is what was asked is the answer: by how much of either the other has.
      const hits = titled.reduce((a, b, i) => a + (b ?? 0) * weight[i], 0);
      score += (section.top ? 3 : 2.4) * hits * Math.sqrt(titled.filter(Boolean).length / section.heading.size || 0);
      if (!score) continue;
      score *= (covered / sum) ** 1.4 * (section.boost ?? this.pages.get(section.page)?.boost ?? 1);
      const page = pages.get(section.page) ?? { page: section.page, score: 0, sections: [] };
      page.sections.push({ section, score, terms: said });
      page.score = Math.max(page.score, score);
      pages.set(section.page, page);
    }
    for (const page of pages.values()) page.sections.sort((a, b) => b.score - a.score);
    return [...pages.values()].sort((a, b) => b.score - a.score);
  }
}

function escaped(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

// The text around the first word that was found, with all of them marked.
function excerpt(text, terms) {
  const found = new Set(terms.map(stem));
  const pieces = text.split(/([\p{L}\p{N}]+)/u);
  const hit = (piece) => found.has(stem(piece.toLowerCase()));
  const first = Math.max(0, pieces.findIndex(hit) - 16);
  const shown = pieces.slice(first, first + 60).map((p) => (hit(p) ? `<mark>${escaped(p)}</mark>` : escaped(p)));
  return (first ? "... " : "") + shown.join("") + (first + 60 < pieces.length ? " ..." : "");
}

class Search extends EventTarget {
  postMessage({ type, data }) {
    if (type === 0) {
      this.docs = data.docs;
      this.answer({ type: 1 });
    } else if (type === 2) {
      this.index ??= new Index(this.docs); // when something is typed: most pages are read without
      const items = this.index
        .search(data)
        .slice(0, 20)
        .map(({ page, sections }) => this.shown(page, sections.slice(0, 5)));
      this.answer({ type: 3, data: { items } });
    }
  }

  // A page first, then its sections, as the theme lists them.
  shown(page, sections) {
    const listed = sections.map(({ section, score, terms }) => this.entry(section, score, terms));
    const top = this.index.pages.get(page);
    if (top && !sections.some(({ section }) => section === top)) listed.unshift(this.entry(top, listed[0].score, listed[0].terms));
    return listed;
  }

  entry(section, score, terms) {
    const said = Object.keys(terms).filter((w) => terms[w]);
    return { location: section.location, title: excerpt(section.title, said), text: excerpt(section.text, said), score, terms };
  }

  answer(data) {
    setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })));
  }
}

if (typeof window === "undefined") module.exports = { Index };
else {
  const Threads = window.Worker;
  window.Worker = function (url, options) {
    return String(url).includes("/workers/search.") ? new Search() : new Threads(url, options);
  };
}
