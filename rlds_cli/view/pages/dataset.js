// A dataset: its episodes, what it is, what checks found, and its versions.

import { get, h, link, note, plural, problem, say, short, size } from "./base.js";
import { follow, isOther } from "./follow.js";
import { bars } from "./histogram.js";
import { episodeTable } from "./table.js";

const TABS = { episodes: "Episodes", about: "About", findings: "Findings", versions: "Versions" };

export async function dataset(main, [key], query) {
  const life = new AbortController();
  let newest = await get("changed", { d: key }, life.signal);
  let v = query.get("v");
  if (v === String(newest.version)) note({ v: (v = null) });
  const id = document.querySelector("#top a.id")?.textContent ?? key;
  document.title = `${id} · rlds view`;
  let info = get("dataset", { d: key, v }, life.signal);
  info.catch(() => null);
  const facts = h("p.soft.ds-facts", {}, `${plural(newest.episodes, "episode")} · ${plural(newest.steps, "step")}`);
  const pinned = h("p.ds-pinned", { hidden: true });
  const tabs = Object.entries(TABS).map(([name, said]) => h("button.ds-tab", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "ds-panel", click: () => show(name, true), keydown: (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!step) return;
    const names = Object.keys(TABS), next = names[(names.indexOf(name) + step + names.length) % names.length];
    show(next, true);
    document.getElementById(`tab-${next}`).focus();
  } }, said));
  const table = episodeTable({ key, v, query });
  const panel = h("div", { id: "ds-panel", role: "tabpanel" });
  main.append(h("div.ds-head", {}, h("h1", {}, id), facts), pinned, h("div.ds-tabs", { role: "tablist", "aria-label": "what is shown" }, tabs), panel);

  let current = null;
  async function show(name, push = false) {
    const now = (current = TABS[name] ? name : "episodes");
    if (push) note({ tab: now === "episodes" ? null : now }, { push: true });
    Object.keys(TABS).forEach((t, k) => {
      tabs[k].setAttribute("aria-selected", String(t === now));
      tabs[k].tabIndex = t === now ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", `tab-${now}`);
    if (now === "episodes") {
      if (!table.element.isConnected) (panel.replaceChildren(table.element), table.back());
      return;
    }
    panel.replaceChildren(h("p.soft", {}, "…"));
    try {
      const record = await info;
      if (now !== current) return;
      panel.replaceChildren({ about, findings, versions }[now](record, { key, v, filter: (where) => (show("episodes", true), table.filter(where)) }));
    } catch (e) {
      if (e.name !== "AbortError" && now === current) panel.replaceChildren(problem(e));
    }
  }

  async function describe() {
    try {
      const record = await info;
      const s = record.summary;
      const at = v && newest ? { version: record.version, episodes: s.counts.episodes, steps: s.counts.steps } : newest;
      facts.textContent = [plural(at.episodes, "episode"), plural(at.steps, "step"), size(s.bytes), s.about.licence, `version ${at.version}`, s.tags.join(", "), s.keeps && `keeps ${s.keeps}`].filter(Boolean).join(" · ");
      const wrong = record.findings.filter((f) => f.severity !== "note").length;
      tabs[2].textContent = wrong ? `Findings (${wrong})` : "Findings";
      tabs[3].textContent = record.versions.length > 1 ? `Versions (${record.versions.length})` : "Versions";
    } catch (e) {
      if (e.name !== "AbortError") facts.textContent = e.message;
    }
  }

  const pin = () => pinned.replaceChildren(`This is version ${v}; the newest is ${newest.version}. `, h("a", { href: link(["d", key]) }, "Show the newest"));
  if (v) {
    pinned.hidden = false;
    pin();
  }
  describe();
  show(query.get("tab") ?? "episodes");

  const changed = (now, before) => {
    if (isOther(now, before)) {
      note({ v: null });
      dispatchEvent(new Event("hashchange")); // the page begins anew
      return say("another dataset has taken its place");
    }
    newest = now;
    if (v) return pin();
    const more = now.episodes - before.episodes;
    say(more > 0 ? `${plural(more, "more episode")}` : "the dataset has changed");
    info = get("dataset", { d: key }, life.signal);
    info.catch(() => null);
    describe();
    table.refresh();
  };
  follow(main, { parameters: { d: key }, known: newest, signal: life.signal, changed });
  return () => {
    life.abort();
    table.close();
    document.title = "rlds view";
  };
}

const section = (title, ...children) => h("section.ds-card", {}, h("h2", {}, title), ...children);
const list = (pairs) => h("dl.ds-list", {}, pairs.filter(([, x]) => x !== null && x !== undefined && x !== "").map(([name, x]) => [h("dt", {}, name), h("dd", {}, x)]));
const web = (url) => (/^https?:\/\//.test(url ?? "") ? h("a", { href: url, rel: "noreferrer", target: "_blank" }, url) : url);

function about({ summary: s, ref, made, selected }, { key }) {
  const a = s.about;
  const spread = (name, d) => d && h("figure.ds-spread", {}, h("figcaption", {}, name, h("span.soft", {}, ` ${short(d.min)} to ${short(d.max)}, median ${short(d.median)}`)), bars(d.histogram.counts, null, `${name}: ${short(d.min)} to ${short(d.max)}`));
  return h("div.ds-about", {},
    selected === null ? null : h("p.soft", {}, `${plural(selected, "episode")} of it are selected; this is about all of them.`),
    section("What it is", a.description ? h("p.ds-text", {}, a.description) : null, list([
      ["id", h("code", {}, s.id)], ["open it", ref ? h("code", {}, `rlds_cli.open_dataset(${JSON.stringify(ref)})`) : null], ["title", a.title], ["task or environment", s.env_id], ["licence", a.licence], ["algorithm", a.algorithm], ["author", a.author], ["portion", a.portion],
      ["paper", web(a.paper)], ["home page", web(a.homepage)], ["splits", Object.entries(s.splits).map(([n, k]) => `${n}: ${k.toLocaleString("en")}`).join(", ")], ["time limit", a.max_episode_steps], ["storage", `${s.encoding}, ${size(s.bytes)}`], ["fingerprint", s.fingerprint ? h("code", {}, s.fingerprint) : null]])),
    section("Episodes", h("div.ds-spreads", {}, spread("return", s.returns), spread("score", s.scores), spread("length", s.lengths)), s.counts.cut ? h("p.soft", {}, `${plural(s.counts.cut, "episode")} cut`) : null),
    section("Fields", h("div.ds-scroll", {}, h("table.ds-fields", {}, h("thead", {}, h("tr", {}, ["field", "type", "per row", "mean ± deviation", "range", "distribution", "size"].map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", {}, s.fields.map((f) => h("tr", {}, h("th.id", { scope: "row" }, f.name), h("td", {}, f.codec ?? f.dtype), h("td", {}, f.shape.join("×") || "1"), h("td", {}, f.mean === null ? (f.distinct === null ? "" : plural(f.distinct, "text")) : `${short(f.mean)} ± ${short(f.std)}`), h("td", {}, f.min === null ? "" : `${short(f.min)} to ${short(f.max)}`), h("td", {}, f.histogram ? bars(f.histogram.counts, null, `distribution of ${f.name}`) : ""), h("td", {}, size(f.bytes)))))))),
    section("Where it came from", list([["source", web(a.source)], ["archive", s.archive.files ? `${plural(s.archive.files, "file")}, ${size(s.archive.bytes ?? 0)}` : null], ["read by", s.reader], ["made", `${s.created.slice(0, 16).replace("T", " ")} by rlds ${s.rlds_version}`], ["rows are stored in", s.refers_to.join(", ")]]),
      made.length ? h("ol.ds-made", {}, made.map((m) => h("li", {}, m.from && m.from !== s.id ? [h("a.id", { href: link(["d", m.from]) }, m.from), " → "] : null, h("code", {}, m.text)))) : null));
}

function findings({ findings: found, version }, { key, v, filter }) {
  if (!found.length) return h("p.ds-card", {}, "Nothing was found by the checks that read no rows. ", h("code", {}, "rlds check"), " reads them as well.");
  const to = (episode, step) => link(["e", key, String(episode)], { v: v ?? version, step: step ?? null });
  return h("div.ds-about", {}, found.map((f) => h(`section.ds-card.ds-${f.severity}`, {}, h("h2", {}, h("span.ds-mark", {}, f.severity), ` ${f.text}`), h("p.soft", {}, [f.code, f.field, ...f.known].filter(Boolean).join(" · ")),
    f.where ? h("p", {}, h("button", { type: "button", click: () => filter(f.where) }, `Show ${f.num_episodes === 1 ? "this episode" : `these ${plural(f.num_episodes, "episode")}`}`)) : null,
    f.places.length ? h("ul.ds-places", {}, f.places.map((p) => h("li", {}, h("a", { href: to(p.episode, p.step) }, `episode ${p.episode.toLocaleString("en")}${p.step === null ? "" : `, step ${p.step.toLocaleString("en")}`}`)))) : null)));
}

function versions({ versions: found, version }, { key }) {
  if (!found.length) return h("p.ds-card", {}, "A selection has no versions.");
  return h("div.ds-scroll.ds-card", {}, h("table.ds-fields", {}, h("thead", {}, h("tr", {}, ["version", "tags", "made", "change", "episodes", "steps"].map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", {}, [...found].reverse().map((x) => h("tr", { "aria-current": x.number === version ? "true" : null }, h("th", { scope: "row" }, h("a", { href: link(["d", key], { v: x.number }) }, `v${x.number}`)), h("td", {}, x.tags.map((t) => h("span.tag", {}, t))), h("td", {}, x.created.slice(0, 16).replace("T", " ")), h("td", {}, h("code", {}, x.change)), h("td", {}, x.episodes.toLocaleString("en")), h("td", {}, x.steps.toLocaleString("en")))))));
}
