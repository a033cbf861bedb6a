// One episode: its cameras and curves, which one clock moves.

import { figure, get, h, link, note, plural, say, short, style } from "./base.js";
import { cameras } from "./cameras.js";
import { ticks } from "./chart.js";
import { Curves, drawable } from "./curves.js";
import { follow, isOther } from "./follow.js";
import { keys } from "./keys.js";
import { Player, SPEEDS } from "./player.js";
import { Timeline } from "./timeline.js";

const remembered = new Map(); // dataset -> names of the fields that were chosen
let speed = 1; // the one that was chosen last

export async function episode(main, [key, number], query) {
  const abort = new AbortController();
  const values = query.has("decide") ? null : stepOf();
  const parameters = { d: key, v: query.get("v"), episode: number };
  const known = await get("changed", { d: key }, abort.signal); // before the episode: of the dataset that it is of, or of one before
  const [facts, about] = await Promise.all([get("episode", parameters, abort.signal), get("about")]);
  parameters.v ??= facts.version;
  const named = about.named.find((n) => n.key === key);
  const clock = clockOf(facts);
  const stage = cameras(facts.cameras, parameters, about);
  const player = new Player({ rows: facts.rows, time: facts.time, cameras: stage, told: (what) => (what === "row" ? moved() : changed()) });
  player.speed = speed;
  const name = (row) => {
    const step = row < facts.steps ? `step ${figure(row)} of ${figure(facts.steps)}` : "final observation";
    return clock.known ? `${step}, ${clock.text(player.at(row))}` : step;
  };
  let held = 0;
  const timeline = new Timeline(facts, {
    name,
    seek: (row) => player.seek(row),
    hold() {
      held = player.direction;
      player.pause();
    },
    release() {
      if (held) player.play(held);
    },
  });
  const curves = new Curves(facts, parameters, chosen(), {
    name,
    seek: (row) => player.seek(row),
    viewed: (view) => timeline.setView(view),
    ticks: (first, stop, count) => clock.ticks(player, first, stop, count),
    failed: (e) => say(e.message),
    changed(fields) {
      remembered.set(key, fields);
      note({ fields: fields.map(encodeURIComponent).join(",") });
    },
  });
  const step = values ? new (await values).Step(facts, parameters) : later(facts, parameters);
  const deciding = query.has("decide") ? await (await import("./decide.js")).deciding({ key, number, query, facts, player }) : null;
  const around = await neighbours(key, Number(number), query, abort.signal);
  const board = keys({
    toggle: () => player.toggle(),
    shuttle: (direction) => player.shuttle(direction),
    move: (rows) => player.move(rows),
    skip: (seconds) => player.skip(seconds),
    first: () => player.seek(0),
    last: () => player.seek(facts.rows - 1),
    mark_in: () => player.setLoop(player.row, player.loop?.[1] > player.row ? player.loop[1] : facts.rows - 1),
    mark_out: () => player.setLoop(player.loop?.[0] < player.row ? player.loop[0] : 0, player.row),
    unloop: () => player.setLoop(null),
    other: (by) => (around[by] ? (location.hash = around[by]) : say(`This is the ${by > 0 ? "last" : "first"} episode.`)),
    zoom: (factor) => (factor ? curves.zoom(factor) : curves.show(0, facts.rows)),
  }, deciding?.keys);
  const controls = transport();

  const newer = h("p.soft.ep-newer", { role: "status", hidden: true });
  main.append(newer, h("div.ep", { class: `ep${facts.cameras.length ? "" : " ep-blind"}${deciding ? " ep-deciding" : ""}` },
    heading(),
    h("div.ep-left", {}, facts.cameras.length ? stage.stage : null, step.texts, marks(), step.table, columns()),
    deciding ? h("div.dc-right", {}, deciding.panel, curves.element) : curves.element,
    h("div.ep-bar", { role: "group", "aria-label": "player" }, deciding?.bar, controls.element, timeline.element, deciding?.lane)));
  document.title = `${named?.id ?? key} · episode ${number}`;

  let noted = 0;
  function moved() {
    const { row } = player;
    timeline.setRow(row);
    curves.setRow(row, { follow: player.playing });
    step.setRow(row, player);
    controls.row(row);
    clearTimeout(noted);
    noted = setTimeout(() => note({ step: row || null }), 400);
  }
  function changed() {
    timeline.setLoop(player.loop);
    controls.state();
    if (!player.playing) moved();
  }
  player.seek(Number(query.get("step")) || 0);
  changed();

  /** Say that there is a newer version than the one that is played. */
  function told(now) {
    newer.hidden = Boolean(deciding) || now.version === facts.version; // a decision makes a version, too
    const more = known.version === facts.version ? now.episodes - known.episodes : 0;
    const said = `This is version ${facts.version}; the newest ${more > 0 ? `has ${plural(more, "episode")} more` : `is ${now.version}`}. `;
    if (newer.firstChild?.textContent !== said) newer.replaceChildren(said, h("button", { click: renew }, "Show the newest"));
  }
  function renew() {
    const order = query.get("sort") ? { where: null, sort: null, desc: null, at: null } : {}; // its place is another one there
    note({ v: null, ...order });
    dispatchEvent(new Event("hashchange"));
  }
  told(known);
  follow(main, {
    parameters: { d: key },
    known,
    signal: abort.signal,
    changed(now, before) {
      if (!isOther(now, before)) return told(now);
      note({ v: null, step: null });
      dispatchEvent(new Event("hashchange")); // the page begins anew
      say("another dataset has taken its place");
    },
  });
  return () => {
    abort.abort();
    clearTimeout(noted);
    speed = player.speed;
    for (const part of [player, stage, curves, step, timeline, board, deciding]) part?.close();
    document.title = "rlds view";
  };

  function chosen() {
    const fields = drawable(facts);
    if (query.has("fields")) return query.get("fields").split(",").map(decodeURIComponent);
    const before = remembered.get(key)?.filter((n) => fields.some((f) => f.name === n));
    return before?.length ? before : fields.filter((f) => f.elements.length <= 64).slice(0, 6).map((f) => f.name);
  }

  function heading() {
    const ref = around.selected ? null : `${named?.ref ?? key}#v${facts.version}`;
    const python = `${ref ? `ds = rlds_cli.open_dataset("${ref}")\n` : ""}ds.episode(${number})`;
    const copy = (text, what) => h("button", { click: () => copied(text(), what) }, what);
    const other = (by, text, title) =>
      around[by] ? h("a.ep-other", { href: around[by], rel: by > 0 ? "next" : "prev", title, "aria-label": title }, text) : h("span.ep-other.soft", { "aria-hidden": "true" }, text);
    return h("header.ep-head", {},
      h("div.ep-title", {}, other(-1, "‹", "previous episode (P)"), h("h1", {}, `Episode ${figure(Number(number))}`), other(1, "›", "next episode (N)"),
        around.of, h("span.soft", {}, [plural(facts.steps, "step"), clock.known && clock.text(player.at(facts.rows - 1)), facts.end].filter(Boolean).join(" · ")),
        h("span.ep-copy", {}, deciding ? null : h("a", { href: link(["e", key, number], { ...Object.fromEntries(query), v: facts.version, decide: "table" }) }, "decide"),
          h("a", { href: link(["c", key, number], { v: facts.version, with: Number(number) + (around[1] || !around[-1] ? 1 : -1), step: query.get("step") }) }, "compare"), copy(() => location.href, "copy link"), copy(() => python, "copy Python"), ref && copy(() => `rlds inspect ${ref} --episode ${number}`, "copy command"))),
      facts.task ? h("p.ep-task", {}, facts.task) : null);
  }

  function marks() {
    const found = [...facts.marks, ...facts.bands.map((b) => ({ ...b, step: b.first }))].sort((a, b) => a.step - b.step);
    if (!found.length) return null;
    const item = (m) => h("li", {}, h("button.ep-mark", { click: () => player.seek(m.step) }, h("span.soft", {}, figure(m.step)), h("span", { class: `ep-${m.kind}` }, m.text)));
    return h("details.ep-marks", { open: found.length <= 6 && innerWidth >= 1100 }, h("summary", {}, `Marks: ${figure(found.length)}`), h("ol", {}, found.slice(0, 200).map(item)));
  }

  function columns() {
    const rows = [...facts.columns, facts.source ? { name: "source", value: facts.source } : null, facts.id ? { name: "id", value: facts.id } : null].filter(Boolean);
    if (!rows.length) return null;
    const value = (v) => (typeof v === "number" ? short(v) : Array.isArray(v) ? v.join(", ") : v === null ? "–" : String(v));
    return h("details.st", {}, h("summary", {}, "About this episode"), h("table", {}, h("tbody", {}, rows.map((c) => h("tr", {}, h("th", { scope: "row" }, c.name), h("td", {}, value(c.value)))))));
  }

  function transport() {
    const button = (label, icon, click, name = "tr-button") => h(`button.${name}`, { "aria-label": label, title: label, click }, symbol(icon));
    const play = button("play (space)", "play", () => player.toggle(), "tr-play");
    const speeds = h("select", { "aria-label": "speed", change: () => player.setSpeed(Number(speeds.value)) }, SPEEDS.map((s) => h("option", { value: s }, s === 0.25 ? "¼×" : s === 0.5 ? "½×" : `${s}×`)));
    const where = h("output.tr-where", { "aria-live": "off", title: "steps are counted from 0" });
    const state = h("span.soft.tr-state", { role: "status" });
    const loop = h("button.tr-loop", { title: "end the loop (X)", hidden: true, click: () => player.setLoop(null) });
    const element = h("div.tr", {}, button("first step (Home)", "first", () => player.seek(0)), button("one step back (,)", "back", () => player.move(-1)), play,
      button("one step on (.)", "on", () => player.move(1)), speeds, where, loop, state,
      h("span.tr-right", {}, h("span.soft", {}, clock.note), h("button", { "aria-label": "keys (?)", title: "keys (?)", click: () => board.help() }, "?")));
    return {
      element,
      row(row) {
        where.textContent = name(row);
      },
      state() {
        play.replaceChildren(symbol(player.playing ? "pause" : "play"));
        play.setAttribute("aria-label", player.playing ? "pause (space)" : "play (space)");
        speeds.value = String(player.speed);
        loop.hidden = !player.loop;
        if (player.loop) loop.textContent = `loop ${figure(player.loop[0])}–${figure(player.loop[1])} ×`;
        state.textContent = player.waits ? "waiting for pictures" : player.direction < 0 ? "backwards" : "";
      },
    };
  }
}

/** The script and the rules of what is at a row. */
const stepOf = async () => (await Promise.all([import("./step.js"), style("step")]))[0];

/** The values of a row, whose script is fetched when they are opened: who decides looks at the rest first. */
function later(facts, parameters) {
  let step = null, now = [0, { direction: 0 }];
  const table = h("details.st", { toggle: async () => {
    if (step || !table.open) return;
    step = new (await stepOf()).Step(facts, parameters);
    step.table.open = true;
    table.replaceWith(step.texts, step.table);
    step.setRow(...now);
  } }, h("summary", {}, "All values"));
  return { texts: null, table, setRow: (...at) => ((now = at), step?.setRow(...at)), close: () => step?.close() };
}

async function copied(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what.replace("copy ", "")}: ${text}`);
  } catch {
    say(text);
  }
}

const PATHS = {
  play: "M4 2l10 6-10 6z", pause: "M3 2h4v12H3zM9 2h4v12H9z", first: "M2 2h2v12H2zM14 2v12L5 8z", back: "M11 2v12L3 8zM12 2h2v12h-2z", on: "M5 2l8 6-8 6zM2 2h2v12H2z",
};

function symbol(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

/** How times of an episode are said. */
function clockOf({ time, rows }) {
  const known = Boolean(time.rate || time.at);
  const text = (s) => (s >= 60 ? `${Math.floor(s / 60)}:${(s % 60).toFixed(1).padStart(4, "0")} min` : `${s.toFixed(2)} s`);
  return {
    known,
    text,
    note: !known ? "no rate is known: 20 steps a second" : time.rate ? `${short(time.rate)} Hz` : `times by ${time.by}`,
    ticks(player, first, stop, count) {
      if (!known) return ticks(first, stop - 1, count).filter(Number.isInteger).map((row) => ({ row, text: figure(row) }));
      const places = ticks(player.at(first), player.at(Math.min(rows, stop) - 1), count);
      return places.map((s) => ({ row: player.rowAt(s), text: s >= 60 ? `${Math.floor(s / 60)}:${String(Math.round(s % 60)).padStart(2, "0")}` : `${Number(s.toFixed(3))} s` }));
    },
  };
}

/** The episodes before and behind this one, in the order of the table that led here: {"-1": link, 1: link, of}. */
async function neighbours(key, number, query, signal) {
  const ordered = query.has("at"), at = ordered ? Number(query.get("at")) : number, v = query.get("v");
  const order = ordered ? Object.fromEntries(["where", "sort", "desc"].map((n) => [n, query.get(n)])) : {};
  const first = Math.max(0, at - 1);
  const page = await get("episodes", { d: key, v, where: order.where, sort: order.sort, descending: order.desc, first, count: at - first + 2 }, signal).catch(() => null);
  const to = (k) => {
    const other = k >= 0 && page?.episodes[k - first];
    return other ? link(["e", key, String(other.number)], { v, ...order, at: ordered ? k : null }) : null;
  };
  const place = page && `${figure(at + 1)} of ${figure(page.matching)}${order.where ? " that match" : ""}`;
  return { selected: page?.shell === null, "-1": to(at - 1), 1: to(at + 1), of: place && h("a.soft", { href: link(["d", key], { v, ...order, at: at || null }) }, place) };
}
