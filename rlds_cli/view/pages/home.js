// The home: its datasets, searched, and what the command named.

import { get, h, link, note, plural, size } from "./base.js";

const SIZES = { "": [0, Infinity], small: [0, 1e8], middle: [1e8, 1e10], large: [1e10, Infinity] };
const SORTS = {
  name: (a, b) => (a.id < b.id ? -1 : 1),
  newest: (a, b) => ((a.created ?? "") < (b.created ?? "") ? 1 : -1),
  largest: (a, b) => (b.bytes ?? 0) - (a.bytes ?? 0),
  "most episodes": (a, b) => (b.episodes ?? 0) - (a.episodes ?? 0),
};
const AT_ONCE = 100;

export async function home(main, parts, query) {
  const life = new AbortController();
  const [about, { datasets }] = await Promise.all([get("about"), get("home", {}, life.signal)]);
  const state = Object.fromEntries(["q", "family", "licence", "size", "findings", "sort"].map((name) => [name, query.get(name) ?? ""]));
  const unique = (name) => [...new Set(datasets.map((d) => d[name]).filter(Boolean))].sort();
  const set = (name) => (e) => ((state[name] = e.target.value), note({ [name]: state[name] }), draw());
  const choice = (name, said, options) => h("label.hm-choice", {}, h("span.soft", {}, said), h("select", { change: set(name) }, options.map(([value, text]) => h("option", { value, selected: state[name] === value }, text))));
  const search = h("input.hm-search", { type: "search", value: state.q, placeholder: "words of names, tasks, descriptions", "aria-label": "search datasets", input: set("q"), keydown: (e) => e.key === "Enter" && list.querySelector("a")?.click() });
  const count = h("output.soft", { role: "status" });
  const list = h("ul.hm-list");
  const end = h("div.hm-end");
  const observer = new IntersectionObserver((seen) => seen.some((s) => s.isIntersecting) && more());
  let found = [], shown = 0;

  for (const d of datasets) d.text = [d.id, d.description, d.env_id, d.licence, d.family, ...d.tags].filter(Boolean).join("\n").toLowerCase();

  function draw() {
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
    const [low, high] = SIZES[state.size] ?? SIZES[""];
    found = datasets.filter((d) => words.every((w) => d.text.includes(w)) && (!state.family || d.family === state.family) && (!state.licence || d.licence === state.licence)
      && (!state.size || (d.bytes >= low && d.bytes < high)) && (!state.findings || (state.findings === "errors" ? d.errors : state.findings === "none" ? !d.errors && !d.warnings && !d.damage : d.errors || d.warnings || d.damage)));
    found.sort(SORTS[state.sort] ?? SORTS.name);
    count.textContent = found.length === datasets.length ? plural(found.length, "dataset") : `${found.length.toLocaleString("en")} of ${plural(datasets.length, "dataset")}`;
    shown = 0;
    list.replaceChildren();
    more();
  }

  function more() {
    if (shown >= found.length && shown) return;
    list.append(...found.slice(shown, (shown += AT_ONCE)).map(entry));
    if (!found.length) list.append(h("li.soft.hm-none", {}, datasets.length ? "No dataset is like this." : "No datasets are here yet. ", datasets.length ? "" : h("code", {}, "rlds import FILES --as local/NAME")));
  }

  function entry(d) {
    const marks = [d.damage ? h("span.ds-mark.ds-error", { title: d.damage }, "damaged") : null, d.errors ? h("span.ds-mark.ds-error", {}, plural(d.errors, "error")) : null, d.warnings ? h("span.ds-mark.ds-warning", {}, plural(d.warnings, "warning")) : null, d.grows ? h("span.tag", {}, "grows") : null, d.version > 1 && !d.grows ? h("span.tag", {}, `v${d.version}`) : null, d.tags.map((t) => h("span.tag", {}, t))];
    const said = d.tasks?.length ? `${d.tasks.slice(0, 3).join(" · ")}${d.tasks.length > 3 ? ` · and more` : ""}` : d.description ?? d.env_id ?? d.damage ?? "";
    return h("li", {}, h("a.hm-entry", { href: link(["d", d.key]) }, h("span.hm-name", {}, h("span.id", {}, d.id), marks), h("span.hm-said.soft", {}, said),
      h("span.hm-figures", {}, d.episodes === null ? "" : plural(d.episodes, "episode"), h("span.soft", {}, [d.steps === null ? null : plural(d.steps, "step"), d.bytes === undefined ? null : size(d.bytes), d.licence].filter(Boolean).join(" · ")))));
  }

  const named = about.named.length ? h("section.hm-named", {}, h("h2", {}, "Named on the command line"), h("ul.hm-list", {}, about.named.map((d) => h("li", {}, h("a.hm-entry", { href: link(["d", d.key]) }, h("span.hm-name", {}, h("span.id", {}, d.id)), h("span.hm-said.soft", {}, d.address)))))) : null;
  main.append(h("h1.hidden", {}, "Datasets"), named ?? "", h("div.hm-bar", { role: "search" }, search,
    choice("family", "family", [["", "all"], ...unique("family").map((f) => [f, f])]), choice("licence", "licence", [["", "all"], ...unique("licence").map((f) => [f, f.length > 24 ? `${f.slice(0, 23)}…` : f])]),
    choice("size", "size", [["", "any"], ["small", "up to 100 MB"], ["middle", "up to 10 GB"], ["large", "more"]]), choice("findings", "findings", [["", "any"], ["some", "some"], ["errors", "errors"], ["none", "none"]]), choice("sort", "sort", Object.keys(SORTS).map((s, k) => [k ? s : "", s]))), count, list, end);
  draw();
  observer.observe(end);
  get("home", { details: 1 }, life.signal).then(({ datasets: details }) => {
    for (const d of datasets) {
      const more = details[d.key];
      if (more) Object.assign(d, more, { text: `${d.text}\n${more.tasks.join("\n").toLowerCase()}` });
    }
    draw();
  }).catch((e) => e.name === "AbortError" || (count.textContent = e.message));
  return () => (life.abort(), observer.disconnect());
}
