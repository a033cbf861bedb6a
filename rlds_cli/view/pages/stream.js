// Frames of a stored video, which the browser decodes: each with the row that it belongs to, by its time in the file.

import { clamp, last } from "./base.js";

const NEAR = 0.005; // seconds that the time of a frame may differ from that of its row
const MOST = 5; // frames kept: some decoders have no more
const PATIENCE = 15000;
const SETTLED = 250; // milliseconds after a seek and a frame, in which the right one may follow
const OTHER = "the browser shows another frame than that of the step";
const SLOW = 3000; // milliseconds after a seek, in which a busy browser shows a frame

/** Whether the browser may play this stream. */
export function playable(stream) {
  return stream && globalThis.VideoFrame && "requestVideoFrameCallback" in HTMLVideoElement.prototype && document.createElement("video").canPlayType(stream.mime) !== "";
}

export class Stream {
  /** `arrived(row)` is called when a frame that was asked for is there, `failed(reason)` when there will be none. */
  constructor(url, times, arrived, failed) {
    Object.assign(this, { arrived, failed, kept: [], wanted: null, at: -1, presented: 0, closed: false, running: false, period: 0, turn: 0 });
    this.pictures = []; // {time, first, last}: rows that show the same one follow each other
    for (const [row, time] of times.entries()) {
      const before = this.pictures.at(-1);
      if (time === null) continue;
      if (before && before.time === time && before.last === row - 1) before.last = row;
      else this.pictures.push({ time, first: row, last: row });
    }
    this.ordered = this.pictures.every((p, k) => !k || p.time > this.pictures[k - 1].time);
    this.video = document.createElement("video");
    Object.assign(this.video, { muted: true, playsInline: true, preload: "auto", disablePictureInPicture: true });
    this.video.setAttribute("aria-hidden", "true");
    this.video.tabIndex = -1;
    this.video.addEventListener("error", () => this.end(this.video.error?.message || "the browser cannot decode it"));
    const collect = () => {
      if (this.closed) return;
      this.video.requestVideoFrameCallback(collect);
      this.presented++;
      this.keep();
    };
    this.video.requestVideoFrameCallback(collect);
    this.video.src = url;
  }

  end(reason) {
    if (!this.closed) this.failed(reason);
  }

  /** The number of the picture of a row; without one -1, or that of the next. */
  place(row, { next = false } = {}) {
    const k = last(this.pictures.length, (k) => this.pictures[k].first <= row);
    if (k >= 0 && row <= this.pictures[k].last) return k;
    return next ? Math.min(k + 1, this.pictures.length - 1) : -1;
  }

  gap(k) {
    const next = this.pictures[k + 1], before = this.pictures[k - 1];
    return next ? next.time - this.pictures[k].time : before ? this.pictures[k].time - before.time : 0.02;
  }

  /** The number of the picture with this time, -1 if it belongs to no row. */
  match(time) {
    const k = last(this.pictures.length, (k) => this.pictures[k].time <= time);
    const fits = (k) => this.pictures[k] && Math.abs(this.pictures[k].time - time) <= Math.min(NEAR, 0.45 * this.gap(k));
    return [k, k + 1].find(fits) ?? -1;
  }

  /** Keep the frame that the video shows, if it is one of a row: a copy with its own time, as the video goes on. */
  keep() {
    if (this.video.readyState < 2) return;
    let frame;
    try {
      frame = new VideoFrame(this.video);
    } catch {
      return; // there is none yet
    }
    const k = this.match(frame.timestamp / 1e6);
    if (k < 0 || this.has(k)) frame.close();
    else this.kept.push({ k, frame });
    this.kept.sort((a, b) => a.k - b.k);
    if (k >= 0) this.at = k;
    if (this.running && this.kept.length >= MOST) this.video.pause();
    if (!this.running) while (this.kept.length > MOST + 2) this.drop(k < this.kept.at(-1).k ? this.kept.length - 1 : 0);
    this.seen?.();
  }

  drop(index) {
    this.kept.splice(index, 1)[0].frame.close();
  }

  ready(row, slack = 0) {
    const k = this.place(row);
    if (this.has(k)) return true;
    return slack > 0 && this.kept.some((f) => f.k < k && k - f.k <= slack) && this.kept.some((f) => f.k > k);
  }

  take(row) {
    const k = this.place(row);
    const found = this.kept.findLast((f) => f.k <= k);
    if (!found) return null;
    const { first, last } = this.pictures[found.k];
    return { picture: found.frame, row: Math.max(first, Math.min(last, row)) };
  }

  /** Get the frame of a row; the last one asked for wins. A video that plays comes there, or has gone on. */
  async request(row) {
    if (this.running) return;
    this.wanted = row === this.sought ? null : row;
    if (this.seeking) return;
    this.seeking = true;
    while (this.wanted !== null && !this.closed) {
      const wanted = (this.sought = this.wanted), turn = ++this.turn, k = this.place(wanted);
      this.wanted = null;
      if (this.ready(wanted) || (await this.creep(k, turn)) || (await this.seek(k, turn))) this.arrived(wanted);
      else if (turn === this.turn && this.wanted === null) this.end(OTHER);
    }
    this.seeking = false;
    this.sought = null;
  }

  /** Go on by some frames without a seek, which decodes from the last key frame. */
  async creep(k, turn) {
    const steps = k - this.at;
    if (this.at < 0 || steps < 1 || steps > 6) return false;
    this.video.playbackRate = 1;
    this.video.play().catch(() => {});
    await this.until(() => this.at >= k || turn !== this.turn, 1000);
    if (turn === this.turn) this.video.pause();
    return this.has(k);
  }

  has(k) {
    return this.kept.some((f) => f.k === k);
  }

  /** Whether the video shows a picture then, perhaps at the third try; it is given up for a later turn, to go elsewhere. */
  async seek(k, turn = this.turn) {
    if (k < 0) return false;
    const half = this.gap(k) / 2;
    for (const [offset, settled] of [...(half > NEAR ? [[NEAR, SETTLED]] : []), [half, SETTLED], [half, SLOW]]) {
      if (turn !== this.turn) return false;
      while (this.kept.length) this.drop(0);
      let done = 0;
      const before = this.presented;
      const isOther = () => done && performance.now() - done > (this.presented > before ? settled : SLOW);
      const seeked = () => {
        done = performance.now();
        this.keep();
      };
      this.video.addEventListener("seeked", seeked, { once: true });
      this.video.currentTime = this.pictures[k].time + offset;
      await this.until(() => this.has(k) || isOther() || turn !== this.turn, PATIENCE);
      this.video.removeEventListener("seeked", seeked);
      if (this.has(k) || this.closed) return true;
    }
    return false;
  }

  until(condition, patience) {
    const end = performance.now() + patience;
    return new Promise((resolve) => {
      const look = () => {
        if (!condition() && !this.closed && performance.now() < end) return;
        clearInterval(timer);
        this.seen = null;
        resolve();
      };
      const timer = setInterval(look, 20);
      this.seen = look;
      look();
    });
  }

  /** Play on from a row. */
  async play(row, speed, span) {
    const turn = ++this.turn;
    this.running = true;
    this.wanted = this.sought = null;
    const k = this.place(row, { next: true });
    this.rate = clamp(speed * this.pace(span), 0.0625, 16);
    const found = (this.has(k) && this.kept.at(-1).k === this.at) || (await this.seek(k, turn));
    if (turn !== this.turn || !this.running) return;
    if (found) this.resume();
    else this.end(OTHER);
  }

  resume() {
    if (this.video.ended) return; // it would begin anew
    this.video.playbackRate = this.rate;
    this.video.play().catch(() => {});
  }

  /** Seconds of the video for one second of the rows. */
  pace(span) {
    const [first, last] = [this.pictures[0], this.pictures.at(-1)];
    const ratio = (last.time - first.time) / (span(last.first) - span(first.first));
    return Number.isFinite(ratio) && ratio > 0 && Math.abs(ratio - 1) > 0.01 ? ratio : 1;
  }

  /** While playing: what lies behind a row goes, and the video goes on if it waited. */
  ahead(row) {
    const k = this.place(row);
    while (this.kept.length > 1 && this.kept[1].k <= k) this.drop(0);
    if (this.running && this.video.paused && !this.video.seeking && this.kept.length < MOST - 1) this.resume();
  }

  /** The first row behind this one whose frame is there: 0 as long as it may come, none once the video has ended. */
  next(row) {
    const found = this.kept.find((f) => this.pictures[f.k].last > row);
    return found ? this.pictures[found.k].first : this.video.ended ? Infinity : 0;
  }

  /** Give up the frames of rows from `first` on and before `row`, which another camera has no frames for. */
  leave(first, row) {
    for (let i = this.kept.length - 1; i >= 0; i--) {
      const { first: from, last } = this.pictures[this.kept[i].k];
      if (from >= first && last < row) this.drop(i);
    }
  }

  stop() {
    this.running = false;
    this.video.pause();
  }

  close() {
    this.closed = true;
    this.stop();
    while (this.kept.length) this.drop(0);
    this.video.removeAttribute("src");
    this.video.load();
    this.video.remove();
  }
}
