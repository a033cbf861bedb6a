// The table of episodes: filtered by an expression, sorted by a column, and as long as it is.

import { get, h, link, media, note, plural, problem, say, short } from "./base.js";
import { numbers, values } from "./histogram.js";
import { Rows } from "./rows.js";
import { Pictures, sheet } from "./sheet.js";
import { among, between, condition, withCondition } from "./where.js";

const WIDTHS = { number: 8.6, flag: 5.6, id: 19 }; // rem
const PICTURE = 4.65;

export function episodeTable({ key, v, query }) {
  const state = { where: query.get("where") ?? "", sort: query.get("sort") ?? "", desc: query.get("desc") === "1" };
  const pictures = new Pictures();
  const wide = {}; // rem of the columns of texts, as the first rows need
  let goal = { ...state }; // what is asked for, before it is there
  let columns = [], shown = null, cameras = [], spreads = new Map(), asking = null, matching = 0, first = Number(query.get("at")) || 0, open = null, version = null;

  const input = h("input.tb-where", { type: "text", value: state.where, spellcheck: "false", autocomplete: "off", autocapitalize: "off", placeholder: "all, or for example: length > 100", "aria-label": "show episodes where", "aria-describedby": "tb-error",
    input: () => (clearTimeout(input.timer), (input.timer = setTimeout(() => apply({ where: input.value }, { typed: true }), 450))),
    keydown: (e) => e.key === "Enter" && (clearTimeout(input.timer), apply({ where: input.value })) });
  const clear = h("button", { type: "button", click: () => apply({ where: "" }) }, "Clear");
  const count = h("output.tb-count", {}, "");
  const error = h("div.tb-error", { id: "tb-error" });
  const choose = h("div.ch-list");
  const chooser = h("details.ch", { keydown: (e) => e.key === "Escape" && (chooser.open = false) }, h("summary", {}, "Columns"), h("div.ch-card.tb-right", {}, choose));
  const view = h("button", { type: "button", "aria-pressed": "false", hidden: true, click: () => toggle() }, "Play the first seconds");
  const decide = h("a.tb-decide", { href: link(["q", key], { v }) }, "Decide");
  const head = h("div.tb-head", { role: "row" });
  const box = h("div.tb-box", { role: "grid", tabindex: "0", "aria-label": "episodes", "aria-readonly": "true" }, h("div.tb-top", { role: "rowgroup" }, head));
  const lines = h("div.tb-lines");
  let held = false, later = new Set(); // what is under a finger stays until it is lifted: else a click, or a drag, is lost
  const lift = () => setTimeout(() => {
    held = false;
    const waiting = later;
    later = new Set();
    for (const act of waiting) act();
  });
  const calmly = (act) => (held ? later.add(act) : act());
  box.addEventListener("pointerdown", () => (held = true));
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, lift);
  const where = h("div");
  const element = h("section.tb", {}, h("div.tb-bar", {}, h("label.tb-label", {}, "where ", input), clear, count, view, decide, chooser), error, where, box, h("details.tb-same", {}, h("summary", {}, "The same in a shell and in Python"), lines));

  const asked = () => ({ d: key, v, where: state.where, sort: state.sort, descending: state.desc ? 1 : null });
  /** Where an episode is shown, which is the k-th one of the table. */
  const to = (r, k) => link(["e", key, String(r.number)], { v: v ?? version, ...(state.where || state.sort || state.desc ? { where: state.where, sort: state.sort, desc: state.desc ? 1 : null, at: k } : {}) });
  const rows = new Rows(box, {
    height: 34,
    fetchPage: async (from, number, signal) => (await get("episodes", { ...asked(), first: from, count: number }, signal)).episodes,
    draw: row,
    renew,
    open: (r) => r && (location.hash = to(r, rows.current)),
    settled: (k) => note({ at: k || null }),
    failed: (e) => error.replaceChildren(problem(e)),
  });

  /** Ask for other episodes, or for others of a version that has grown. */
  async function apply(change, { typed = false, again = false } = {}) {
    const wanted = (goal = { ...goal, ...change });
    asking?.abort();
    const mine = (asking = new AbortController());
    let page;
    box.setAttribute("aria-busy", "true");
    try {
      page = await get("episodes", { d: key, v, where: wanted.where, sort: wanted.sort, descending: wanted.desc ? 1 : null, first: 0, count: 100 }, mine.signal);
    } catch (e) {
      if (e.name === "AbortError") return;
      box.removeAttribute("aria-busy");
      if (!shown && (wanted.sort || wanted.where)) { // of a link that is wrong, what can be shown
        Object.assign(state, wanted.sort ? { sort: "", desc: false } : { where: "" });
        goal = { ...state };
        await apply({}, { typed: true });
      }
      goal = { ...state };
      input.setAttribute("aria-invalid", String(input.value !== state.where));
      error.replaceChildren(problem(e));
      return;
    }
    box.removeAttribute("aria-busy");
    error.replaceChildren();
    input.removeAttribute("aria-invalid");
    const moved = wanted.where !== state.where || wanted.sort !== state.sort || wanted.desc !== state.desc;
    Object.assign(state, wanted);
    if (moved) note({ where: state.where, sort: state.sort, desc: state.desc ? 1 : null, at: null }, { push: !typed });
    if (input.value !== state.where && !typed) input.value = state.where;
    clear.hidden = !state.where;
    decide.href = link(["q", key], { v, where: state.where, sort: state.sort, desc: state.desc ? 1 : null });
    ({ columns, cameras, matching, version } = page);
    for (const c of columns) if (c.kind === "text") wide[c.name] ??= Math.min(18, Math.max(5.5, ...page.episodes.map((r) => 0.48 * (r.values[c.name]?.length ?? 0) + 1)));
    if (!shown) shown = columns.filter((c) => c.usual).map((c) => c.name);
    count.textContent = state.where ? `${page.matching.toLocaleString("en")} of ${plural(page.of, "episode")}` : plural(page.of, "episode");
    tell(page);
    calmly(frame);
    if (!page.matching && state.where) error.replaceChildren(h("p.soft", {}, "No episode matches."));
    rows.reset({ count: page.matching });
    rows.put(0, page.episodes);
    if (again) rows.update();
    else rows.show(moved ? 0 : first);
    if (open) (open.close(), show());
    spread();
  }

  async function spread() {
    try {
      const fields = shown.filter((name) => columns.find((c) => c.name === name && c.kind !== "id"));
      const found = fields.length ? await get("columns", { d: key, v, where: state.where, field: fields }, asking.signal) : { columns: [] };
      spreads = new Map(found.columns.map((c) => [c.name, c]));
      calmly(frame);
    } catch (e) {
      if (e.name !== "AbortError") error.replaceChildren(problem(e));
    }
  }

  const some = () => shown.map((name) => columns.find((c) => c.name === name)).filter(Boolean);
  const strip = () => cameras.slice(0, innerWidth < 700 ? 1 : 2);

  /** The heads of the columns, which stay while their focus does. */
  function frame() {
    const focus = document.activeElement?.closest?.("[data-column]");
    const kept = focus && head.contains(focus) ? { name: focus.dataset.column, k: [...focus.querySelectorAll("button, [tabindex]")].indexOf(document.activeElement) } : null;
    const tracks = ["5.6rem", ...(cameras.length ? [`${strip().length * 2 * PICTURE + 0.6}rem`] : []), ...some().map((c) => `${Math.max(WIDTHS[c.kind] ?? wide[c.name], Math.min(16, 0.62 * c.name.length + 0.8))}rem`)];
    box.style.setProperty("--tracks", tracks.join(" "));
    rows.height = cameras.length ? 60 : 34;
    box.style.setProperty("--row", `${rows.height}px`);
    view.hidden = !cameras.length;
    const of = (name, said, more) => {
      const on = (state.sort || "episode") === name && (state.sort || state.desc);
      const order = on ? (state.desc ? "descending" : "ascending") : "none";
      const next = order === "none" ? { sort: name, desc: name === "episode" } : state.desc || name === "episode" ? { sort: "", desc: false } : { sort: name, desc: true };
      return h("div.tb-th", { role: "columnheader", "aria-sort": order, "data-column": name }, h("button.tb-sort", { type: "button", title: `sort by ${name}`, click: () => apply(next) }, said, h("span.tb-arrow", { "aria-hidden": "true" }, order === "none" ? "" : state.desc ? "▾" : "▴")), more);
    };
    head.replaceChildren(of("episode", "episode"), cameras.length ? h("div.tb-th", { role: "columnheader" }, h("span.tb-sort", {}, "first and last frame")) : "",
      ...some().map((c) => {
        const s = spreads.get(c.name);
        const now = () => condition(goal.where, c.name);
        const set = (wanted) => apply({ where: withCondition(goal.where, c.name, wanted) });
        return of(c.name, c.name, !s ? null : c.kind === "number" ? numbers(s, now(), (low, high) => set(between(c.name, low, high))) : values(s, now, (chosen) => set(among(c.name, chosen))));
      }));
    if (kept) [...(head.querySelector(`[data-column="${CSS.escape(kept.name)}"]`)?.querySelectorAll("button, [tabindex]") ?? [])][Math.max(0, kept.k)]?.focus();
    choose.replaceChildren(...columns.map((c) => h("label.ch-row", {}, h("input", { type: "checkbox", checked: shown.includes(c.name), change: (e) => {
      shown = columns.map((x) => x.name).filter((name) => (name === c.name ? e.target.checked : shown.includes(name)));
      frame();
      rows.reset();
      spread();
    } }), h("span.ch-name", {}, c.name))));
  }

  function row(r, k) {
    if (!r) return h("div.tb-row.tb-wait", { role: "row" }, h("span", {}, "…"));
    const href = to(r, k);
    const element = h("div.tb-row", { role: "row", click: (e) => e.target.closest("a") || ((rows.current = k), rows.update()), dblclick: () => (location.hash = to(r, k)) },
      h("span", { role: "gridcell" }, h("a", { href, tabindex: "-1", "aria-label": `episode ${r.number}` }, r.number.toLocaleString("en"))),
      cameras.length ? h("a.tb-strip", { role: "gridcell", href, tabindex: "-1" }, strip().flatMap((field) => [0, Math.max(0, r.values.length - 1)].map((step, last) =>
        pictures.picture(media("frame", { d: key, v, episode: r.number, step, field, height: 64 }), `${last ? "last" : "first"} frame of ${field}`)))) : null,
      some().map((c) => cell(c, r.values[c.name])));
    element.said = said(r);
    return element;
  }

  const said = (r) => JSON.stringify([r, some().map((c) => c.name), strip()]);

  /** Keep the element of a row that says the same in another version: its pictures stay. */
  function renew(element, r, k) {
    if (element.said !== said(r)) return false;
    for (const a of element.querySelectorAll("a")) a.href = to(r, k);
    return true;
  }

  function cell(c, value) {
    const none = value === null || value === undefined;
    const said = none ? "–" : typeof value === "boolean" ? (value ? "yes" : "no") : typeof value === "number" ? short(value) : value.slice(0, 400);
    return h(`span.tb-${none ? "none" : c.kind}`, { role: "gridcell", title: typeof value === "string" ? value.slice(0, 2000) : none ? null : String(value) }, said);
  }

  function tell(page) {
    lines.replaceChildren(...[["shell", page.shell], ["a dataset of them", page.select], ["Python", page.python]].filter(([, line]) => line).map(([said, line]) => {
      const code = h("code", {}, line);
      const copy = async () => {
        try {
          await navigator.clipboard.writeText(line);
          say("copied");
        } catch {
          getSelection().selectAllChildren(code);
          say("selected: Ctrl-C copies it");
        }
      };
      return h("div.tb-line", {}, h("span.soft", {}, said), code, h("button", { type: "button", "aria-label": `copy the line: ${said}`, click: copy }, "Copy"));
    }));
  }

  function show() {
    open = sheet({ key, v, cameras, total: () => matching, rows: async (from, number, signal) => (await get("episodes", { ...asked(), first: from, count: number }, signal)).episodes });
    where.replaceChildren(open.element);
  }

  const refresh = () => apply({}, { again: true });

  function toggle() {
    if (open) {
      open.close();
      open = null;
      where.replaceChildren();
    } else show();
    view.setAttribute("aria-pressed", String(Boolean(open)));
    box.hidden = Boolean(open);
  }

  clear.hidden = !state.where;
  apply({});
  return {
    element,
    back: () => rows.back(),
    refresh: () => calmly(refresh),
    filter: (expression) => apply({ where: expression }),
    close() {
      asking?.abort();
      for (const name of ["pointerup", "pointercancel"]) removeEventListener(name, lift);
      rows.close();
      pictures.close();
      open?.close();
      clearTimeout(input.timer);
    },
  };
}
