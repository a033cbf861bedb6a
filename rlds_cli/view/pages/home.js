// The home: its datasets, searched, and what the command named.

import { get, h, link, note, plural, size } from "./base.js";
import { follow } from "./follow.js";

const SIZES = { "": [0, Infinity], small: [0, 1e8], middle: [1e8, 1e10], large: [1e10, Infinity] };
const SORTS = {
  name: (a, b) => (a.id < b.id ? -1 : 1),
  newest: (a, b) => ((a.created ?? "") < (b.created ?? "") ? 1 : -1),
  largest: (a, b) => (b.bytes ?? 0) - (a.bytes ?? 0),
  "most episodes": (a, b) => (b.episodes ?? 0) - (a.episodes ?? 0),
};
const AT_ONCE = 100;
const DETAILS = 10000; // milliseconds between two looks at what takes the server longer

export async function home(main, parts, query) {
  const life = new AbortController();
  const [about, first] = await Promise.all([get("about"), get("home", {}, life.signal)]);
  const state = Object.fromEntries(["q", "family", "licence", "size", "findings", "sort"].map((name) => [name, query.get(name) ?? ""]));
  const set = (name) => (e) => ((state[name] = e.target.value), note({ [name]: state[name] }), draw());
  const options = (name, values) => values.map(([value, text]) => h("option", { value, selected: state[name] === value }, text));
  const choice = (name, said, values) => h("label.hm-choice", {}, h("span.soft", {}, said), h("select", { change: set(name) }, options(name, values)));
  const search = h("input.hm-search", { type: "search", value: state.q, placeholder: "words of names, tasks, descriptions", "aria-label": "search datasets", input: set("q"), keydown: (e) => e.key === "Enter" && list.querySelector("a")?.click() });
  const count = h("output.soft", { role: "status" });
  const list = h("ul.hm-list");
  const end = h("div.hm-end");
  const observer = new IntersectionObserver((seen) => seen.some((s) => s.isIntersecting) && more());
  const chosen = Object.fromEntries(["family", "licence"].map((name) => [name, choice(name, name, [])]));
  const items = new Map(); // key -> {said, element}: elements stay while what they say does
  let listed = [], datasets = [], details = {}, found = [], shown = AT_ONCE, asked = 0, timer = 0;

  /** Take a list of the server: of all datasets, or what is known of them besides. */
  function take({ list = listed, more = details }) {
    [listed, details] = [list, more];
    datasets = listed.map((d) => {
      const one = { ...d, ...details[d.key] };
      one.text = [d.id, d.description, d.env_id, d.licence, d.family, ...d.tags, ...(one.tasks ?? [])].filter(Boolean).join("\n").toLowerCase();
      return one;
    });
    for (const [name, label] of Object.entries(chosen)) {
      const values = [...new Set([...datasets.map((d) => d[name]), state[name]].filter(Boolean))].sort();
      const select = label.querySelector("select");
      if (select.options.length !== values.length + 1) select.replaceChildren(...options(name, [["", "all"], ...values.map((x) => [x, x.length > 24 ? `${x.slice(0, 23)}…` : x])]));
    }
    draw({ stay: true });
  }

  async function detail() {
    asked = performance.now();
    try {
      const { datasets: more } = await get("home", { details: 1 }, life.signal);
      take({ more });
    } catch (e) {
      if (e.name !== "AbortError") count.textContent = e.message;
    }
  }

  function draw({ stay = false } = {}) {
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
    const [low, high] = SIZES[state.size] ?? SIZES[""];
    found = datasets.filter((d) => words.every((w) => d.text.includes(w)) && (!state.family || d.family === state.family) && (!state.licence || d.licence === state.licence)
      && (!state.size || (d.bytes >= low && d.bytes < high)) && (!state.findings || (state.findings === "errors" ? d.errors : state.findings === "none" ? !d.errors && !d.warnings && !d.damage : d.errors || d.warnings || d.damage)));
    found.sort(SORTS[state.sort] ?? SORTS.name);
    count.textContent = found.length === datasets.length ? plural(found.length, "dataset") : `${found.length.toLocaleString("en")} of ${plural(datasets.length, "dataset")}`;
    if (!stay) shown = AT_ONCE;
    const wanted = found.slice(0, shown).map(item);
    if (!found.length) wanted.push(h("li.soft.hm-none", {}, datasets.length ? "No dataset is like this." : "No datasets are here yet. ", datasets.length ? "" : h("code", {}, "rlds import FILES --name local/NAME")));
    for (const old of [...list.children]) if (!wanted.includes(old)) old.remove();
    wanted.forEach((element, k) => element !== list.children[k] && list.insertBefore(element, list.children[k] ?? null));
  }

  function more() {
    if (shown >= found.length) return;
    shown += AT_ONCE;
    draw({ stay: true });
  }

  function item(d) {
    const said = JSON.stringify(d), before = items.get(d.key);
    if (before?.said === said) return before.element;
    const element = entry(d);
    items.set(d.key, { said, element });
    return element;
  }

  function entry(d) {
    const marks = [d.damage ? h("span.ds-mark.ds-error", { title: d.damage }, "damaged") : null, d.errors ? h("span.ds-mark.ds-error", {}, plural(d.errors, "error")) : null, d.warnings ? h("span.ds-mark.ds-warning", {}, plural(d.warnings, "warning")) : null, d.grows ? h("span.tag", {}, "grows") : null, d.version > 1 && !d.grows ? h("span.tag", {}, `v${d.version}`) : null, d.tags.map((t) => h("span.tag", {}, t))];
    const said = d.tasks?.length ? `${d.tasks.slice(0, 3).join(" · ")}${d.tasks.length > 3 ? ` · and more` : ""}` : d.description ?? d.env_id ?? d.damage ?? "";
    return h("li", {}, h("a.hm-entry", { href: link(["d", d.key]) }, h("span.hm-name", {}, h("span.id", {}, d.id), marks), h("span.hm-said.soft", {}, said),
      h("span.hm-figures", {}, d.episodes === null ? "" : plural(d.episodes, "episode"), h("span.soft", {}, [d.steps === null ? null : plural(d.steps, "step"), d.bytes === undefined ? null : size(d.bytes), d.licence].filter(Boolean).join(" · ")))));
  }

  const named = about.named.length ? h("section.hm-named", {}, h("h2", {}, "Named on the command line"), h("ul.hm-list", {}, about.named.map((d) => h("li", {}, h("a.hm-entry", { href: link(["d", d.key]) }, h("span.hm-name", {}, h("span.id", {}, d.id)), h("span.hm-said.soft", {}, d.address), h("span.hm-figures", {}, d.episodes === undefined ? "" : [plural(d.episodes, "episode"), h("span.soft", {}, plural(d.steps, "step"))])))))) : null;
  main.append(h("h1.hidden", {}, "Datasets"), named ?? "", h("div.hm-bar", { role: "search" }, search,
    chosen.family, chosen.licence,
    choice("size", "size", [["", "any"], ["small", "up to 100 MB"], ["middle", "up to 10 GB"], ["large", "more"]]), choice("findings", "findings", [["", "any"], ["some", "some"], ["errors", "errors"], ["none", "none"]]), choice("sort", "sort", Object.keys(SORTS).map((s, k) => [k ? s : "", s]))), count, list, end);
  take({ list: first.datasets });
  observer.observe(end);
  detail();
  follow(main, {
    path: "home",
    known: first,
    signal: life.signal,
    changed({ datasets: list }) {
      take({ list });
      clearTimeout(timer);
      timer = setTimeout(detail, Math.max(0, asked + DETAILS - performance.now()));
    },
  });
  return () => (life.abort(), observer.disconnect(), clearTimeout(timer));
}
