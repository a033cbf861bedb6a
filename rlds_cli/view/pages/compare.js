// Two episodes side by side, or one in two versions: one clock moves both.

import { clamp, figure, get, h, link, plural, problem, say, style } from "./base.js";
import { cameras } from "./cameras.js";
import { Curves, drawable } from "./curves.js";
import { keys } from "./keys.js";
import { Player } from "./player.js";
import { Timeline } from "./timeline.js";

/** A camera of an episode whose rows are those of another clock: `to` gives its row, `from` the first row of the clock. */
class Follower {
  constructor(camera, { rows, span, to, from }) {
    Object.assign(this, { camera, to });
    const source = () => camera.source, last = rows - 1;
    this.source = {
      get period() { return source().period; },
      get pending() { return source().pending; },
      get next() { return source().next && ((row) => from(source().next(to(row)))); },
      request: (row) => source().request(to(row)),
      play: (row, speed) => source().play(to(row), speed, span),
      stop: () => source().stop(),
      leave: (first, row) => source().leave(to(first), to(row)),
      ahead: (row, o) => (to(row) >= last && o.direction > 0 ? source().stop() : source().ahead(to(row), { ...o, first: to(o.first), last: to(o.last) })),
    };
  }

  has(row) { return this.camera.has(this.to(row)); }
  ready(row, slack) { return this.camera.ready(this.to(row), slack); }
  draw(row) { this.camera.draw(this.to(row)); }
  show(row) { this.camera.show(this.to(row)); }
}

export async function compare(main, [key, number], query) {
  const v = query.get("v"), life = new AbortController();
  const [info, about] = await Promise.all([get("dataset", { d: key, v }, life.signal), get("about"), style("compare")]);
  const asked = [{ d: key, v, episode: number }, { d: key, v: query.get("w") ?? v, episode: query.get("with") ?? number }];
  const found = await Promise.all(asked.map((p) => get("episode", p, life.signal).catch((error) => ({ error }))));
  const facts = found.filter((f) => !f.error);
  document.title = `${info.id} · ${asked.map((p) => p.episode).join(" and ")}`;

  const go = (change) => (location.hash = link(["c", key, change.episode ?? number], { v: change.v ?? v, with: change.with ?? query.get("with"), w: change.w ?? query.get("w"), step: player?.row || null }));
  const choice = (k) => {
    const { episode, v: version } = asked[k];
    const input = h("input.cm-number", { type: "number", min: 0, step: 1, value: episode, "aria-label": `episode on the ${k ? "right" : "left"}`, change: () => input.value && go(k ? { with: input.value } : { episode: input.value }) });
    const versions = info.versions.map((x) => x.number ?? x.version);
    const select = h("select", { "aria-label": `version on the ${k ? "right" : "left"}`, change: () => go(k ? { w: select.value } : { v: select.value }) },
      versions.map((n) => h("option", { value: n, selected: String(n) === String(version ?? info.version) }, `v${n}`)));
    return h("span.cm-choice", {}, h("label", {}, "episode ", input), versions.length > 1 ? select : null);
  };
  let player = null;
  if (facts.length < 2) {
    main.append(h("div.cm", {}, found.map((f, k) => h("section.cm-side", {}, choice(k), f.error ? problem(f.error) : null))));
    return;
  }

  const longer = length(facts[0]) >= length(facts[1]) ? 0 : 1;
  const clock = at(facts[longer]);
  const sides = facts.map((f, k) => {
    const own = at(f), same = rate(f) !== null && rate(f) === rate(facts[longer]);
    const to = (row) => clamp(same ? row : own.row(clock.seconds(row)), 0, f.rows - 1);
    const from = (row) => (same ? row : clock.row(own.seconds(row)));
    const parameters = { ...asked[k], v: f.version };
    const stage = cameras(f.cameras, parameters, about);
    return { f, k, to, parameters, stage, parts: stage.parts.map((c) => new Follower(c, { rows: f.rows, span: own.seconds, to, from })) };
  });
  const all = { parts: sides.flatMap((s) => s.parts), show: (row) => all.parts.forEach((c) => c.show(row)) };
  const { rows } = facts[longer];
  player = new Player({ rows, time: facts[longer].time, cameras: all, told: (what) => (what === "row" ? moved() : changed()) });
  const name = (row) => `row ${figure(row)} of ${figure(rows)}`;
  let held = 0;
  const timeline = new Timeline({ ...facts[longer], marks: [], bands: [] }, { name, seek: (row) => player.seek(row), hold: () => ((held = player.direction), player.pause()), release: () => held && player.play(held) });
  const fields = drawable(facts[0]).filter((f) => f.elements.length <= 64 && drawable(facts[1]).some((g) => g.name === f.name)).slice(0, 4).map((f) => f.name);
  for (const side of sides) {
    side.curves = new Curves(side.f, side.parameters, fields, {
      name: (row) => `row ${figure(row)}`, seek: (row) => player.seek(row), viewed: () => {}, ticks: () => [], failed: (e) => say(e.message), changed: () => {},
    });
  }
  const board = keys({
    toggle: () => player.toggle(), shuttle: (d) => player.shuttle(d), move: (n) => player.move(n), skip: (s) => player.skip(s),
    first: () => player.seek(0), last: () => player.seek(rows - 1), mark_in: () => player.setLoop(player.row, rows - 1), mark_out: () => player.setLoop(0, player.row), unloop: () => player.setLoop(null),
    other: (by) => go({ with: Math.max(0, Number(asked[1].episode) + by) }), zoom: (factor) => sides.forEach(({ curves, f }) => (factor ? curves.zoom(factor) : curves.show(0, f.rows))),
  });
  const play = h("button.tr-play", { click: () => player.toggle() });
  const where = h("output.tr-where", {});
  main.append(h("h1", {}, "Side by side"), h("div.cm", {}, sides.map(({ f, k, stage, curves }) => h("section.cm-side", { "aria-label": k ? "right" : "left" },
    h("div.cm-head", {}, choice(k), h("a", { href: link(["e", key, String(f.number)], { v: f.version }) }, "alone"),
      h("span.soft", {}, [plural(f.steps, "step"), f.end, ...f.columns.filter((c) => c.name === "total_reward" || c.name === "success").map((c) => `${c.name} ${typeof c.value === "number" ? Number(c.value.toPrecision(4)) : c.value}`)].join(" · "))),
    f.cameras.length ? stage.stage : null, curves.element))),
    h("div.ep-bar", { role: "group", "aria-label": "player" }, h("div.tr", {}, play, where), timeline.element));

  function moved() {
    timeline.setRow(player.row);
    for (const { curves, to } of sides) curves.setRow(to(player.row), { follow: player.playing });
    where.textContent = `${figure(player.row)} / ${figure(rows - 1)}`;
  }
  function changed() {
    timeline.setLoop(player.loop);
    play.textContent = player.playing ? "Pause" : "Play";
    if (!player.playing) moved();
  }
  player.seek(Number(query.get("step")) || 0);
  changed();
  return () => {
    life.abort();
    for (const part of [player, timeline, board, ...sides.flatMap((s) => [s.stage, s.curves])]) part.close();
    document.title = "rlds view";
  };
}

const rate = (f) => (f.time.at ? null : f.time.rate || 20);
const length = (f) => at(f).seconds(f.rows - 1);

/** Seconds of the rows of an episode, and its rows by seconds. */
function at({ rows, time }) {
  const seconds = (row) => (time.at ? time.at[clamp(row, 0, rows - 1)] - time.at[0] : row / (time.rate || 20));
  return {
    seconds,
    row(wanted) {
      let low = 0, high = rows - 1;
      while (low < high) {
        const middle = Math.ceil((low + high) / 2);
        if (seconds(middle) <= wanted + 1e-6) low = middle;
        else high = middle - 1;
      }
      return low;
    },
  };
}
