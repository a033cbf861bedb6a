// Small pictures: the first and last frames of rows, and a sheet of episodes that play at once.

import { get, h, link, media, plural } from "./base.js";

const MOST = 4; // requests at once: a browser has six connections to a host, and records need one, too
const RATE = 5; // frames of the sheet in a second

/** Pictures that are loaded a few at a time, and only while they are on the page. */
export class Pictures {
  waiting = [];
  busy = 0;

  picture(url, alt) {
    const image = h("img.pic", { alt, decoding: "async" });
    this.waiting.push({ image, url });
    setTimeout(() => this.next(), 30);
    return image;
  }

  next() {
    while (this.busy < MOST && this.waiting.length) {
      const { image, url } = this.waiting.pop(); // the latest is what is seen now
      if (!image.isConnected) continue;
      this.busy++;
      const done = () => (this.busy--, this.next());
      image.addEventListener("load", done, { once: true });
      image.addEventListener("error", () => (image.classList.add("pic-bad"), done()), { once: true });
      image.src = url;
    }
  }

  close() {
    this.waiting = [];
  }
}

/** A sheet of the episodes that `rows(first, count)` gives. */
export function sheet({ key, v, cameras, rows, total }) {
  let abort = new AbortController(), tiles = [], k = 0, playing = !matchMedia("(prefers-reduced-motion: reduce)").matches, rate = null, timer = 0, seconds = 4, field = cameras[0];
  const grid = h("div.sh-grid");
  const state = h("span.soft", { role: "status" });
  const play = h("button", { type: "button", click: () => ((playing = !playing), name()) });
  const name = () => (play.textContent = playing ? "Pause" : "Play");
  const more = h("button", { type: "button", click: () => add() }, "More episodes");
  const choice = (label, values, now, change) => h("label.soft", {}, `${label} `, h("select", { change: (e) => change(e.target.value) }, values.map(([x, said]) => h("option", { value: x, selected: x === now }, said))));
  const bar = h("div.sh-bar", {}, play,
    choice("the first", [2, 4, 8].map((s) => [s, plural(s, "second")]), seconds, (s) => ((seconds = Number(s)), restart())),
    cameras.length > 1 ? choice("camera", cameras.map((c) => [c, c]), field, (c) => ((field = c), restart())) : null, more, state);
  const frames = () => seconds * RATE;
  const stepOf = (frame) => Math.round((frame * (rate ?? 10)) / RATE);

  async function add() {
    more.disabled = true;
    try {
      const found = await rows(tiles.length, 24, abort.signal);
      if (rate === null && found.length) rate = (await get("episode", { d: key, v, episode: found[0].number }, abort.signal)).time.rate || 10;
      for (const row of found) {
        const canvas = h("canvas.sh-canvas", { width: 128, height: 96, role: "img", "aria-label": `episode ${row.number}` });
        const said = h("span.sh-said", {}, `${row.number.toLocaleString("en")}`, row.values.task ? h("span.soft", {}, ` ${row.values.task}`) : null);
        grid.append(h("a.sh-tile", { href: link(["e", key, String(row.number)], { v }), title: row.values.task }, canvas, said));
        tiles.push({ row, canvas, frames: [], asked: 0, last: row.values.length - 1 });
      }
      more.hidden = tiles.length >= total();
      more.disabled = false;
      load();
    } catch (e) {
      if (e.name !== "AbortError") state.textContent = e.message;
    }
  }

  let busy = 0;
  const restart = () => {
    for (const tile of tiles) forget(tile);
    abort.abort();
    abort = new AbortController();
    k = busy = 0;
    load();
  };
  const forget = (tile) => {
    for (const f of tile.frames) f?.close?.();
    Object.assign(tile, { frames: [], asked: 0 });
  };

  function load() {
    const { signal } = abort;
    while (busy < MOST && !signal.aborted) {
      const tile = tiles.reduce((a, b) => (b.asked < (a?.asked ?? frames()) ? b : a), null); // all begin before one goes on
      if (!tile) break;
      const frame = tile.asked++;
      if (frame && stepOf(frame - 1) >= tile.last) {
        tile.frames[frame] = null; // it has ended
        continue;
      }
      busy++;
      one(tile, frame, signal).finally(() => {
        if (signal !== abort.signal) return;
        busy--;
        load();
      });
    }
    const there = tiles.reduce((n, t) => n + t.frames.filter((f) => f !== undefined).length, 0);
    state.textContent = there < tiles.length * frames() ? `${there.toLocaleString("en")} of ${plural(tiles.length * frames(), "frame")}` : plural(tiles.length, "episode");
  }

  async function one(tile, frame, signal) {
    try {
      const step = Math.min(tile.last, stepOf(frame));
      const response = await fetch(media("frame", { d: key, v, episode: tile.row.number, step, field, height: 96 }), { signal });
      const picture = response.ok ? await createImageBitmap(await response.blob()) : null;
      if (signal.aborted) return picture?.close();
      tile.frames[frame] = picture;
      if (frame === 0 && !picture) tile.canvas.classList.add("pic-bad");
      if (frame === Math.min(k, tile.frames.length - 1)) draw(tile);
    } catch (e) {
      if (e.name !== "AbortError") tile.frames[frame] = null;
    }
  }

  function draw(tile) {
    let frame = k;
    while (frame > 0 && !tile.frames[frame]) frame--;
    const picture = tile.frames[frame];
    if (!picture) return;
    const { canvas } = tile;
    if (canvas.width !== picture.width || canvas.height !== picture.height) Object.assign(canvas, { width: picture.width, height: picture.height });
    canvas.getContext("2d").drawImage(picture, 0, 0);
    canvas.classList.toggle("sh-ended", stepOf(k) > tile.last);
  }

  const tick = () => {
    if (!playing || document.hidden || !tiles.length) return;
    const next = (k + 1) % frames();
    if (!tiles.every((t) => t.frames[next] !== undefined)) return; // all step together
    k = next;
    tiles.forEach(draw);
  };

  name();
  timer = setInterval(tick, 1000 / RATE);
  add();
  return {
    element: h("div.sh", {}, bar, grid),
    close() {
      clearInterval(timer);
      abort.abort();
      tiles.forEach(forget);
    },
  };
}
