// Frames of a stored video, which the browser decodes: each with the row that it belongs to, by its time in the file.

const NEAR = 0.005; // seconds that the time of a frame may differ from that of its row
const MOST = 5; // frames kept: some decoders have no more
const PATIENCE = 15000;

/** Whether the browser may play this stream. */
export function playable(stream) {
  return stream && "requestVideoFrameCallback" in HTMLVideoElement.prototype && document.createElement("video").canPlayType(stream.mime) !== "";
}

/** The frame that a video shows now, with its own time: the video itself may go on at any moment. */
function capture(video, metadata) {
  if (globalThis.VideoFrame) return new VideoFrame(video);
  if (!metadata) return null;
  const copy = new OffscreenCanvas(video.videoWidth, video.videoHeight);
  copy.getContext("2d").drawImage(video, 0, 0);
  return Object.assign(copy, { timestamp: metadata.mediaTime * 1e6, close() {} });
}

export class Stream {
  /** `arrived(row)` is called when a frame that was asked for is there, `failed(reason)` when there will be none. */
  constructor(url, times, arrived, failed) {
    Object.assign(this, { arrived, failed, kept: [], wanted: null, at: -1, closed: false, running: false, period: 0 });
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
    this.collect = (now, metadata) => {
      if (this.closed) return;
      this.video.requestVideoFrameCallback(this.collect);
      this.keep(metadata);
    };
    this.video.requestVideoFrameCallback(this.collect);
    this.video.src = url;
  }

  end(reason) {
    if (!this.closed) this.failed(reason);
  }

  /** The number of the picture of a row, -1 without one. */
  place(row) {
    let low = 0, high = this.pictures.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.pictures[middle].first <= row) low = middle;
      else high = middle - 1;
    }
    const found = this.pictures[low];
    return found && found.first <= row && row <= found.last ? low : -1;
  }

  /** The number of the picture of a row, or of the next one. */
  placeFrom(row) {
    const k = this.pictures.findIndex((p) => p.last >= row);
    return k < 0 ? this.pictures.length - 1 : k;
  }

  gap(k) {
    const next = this.pictures[k + 1], before = this.pictures[k - 1];
    return next ? next.time - this.pictures[k].time : before ? this.pictures[k].time - before.time : 0.02;
  }

  /** The number of the picture with this time, -1 if it belongs to no row. */
  match(time) {
    let low = 0, high = this.pictures.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.pictures[middle].time < time - NEAR) low = middle + 1;
      else high = middle;
    }
    const near = [low, low + 1].filter((k) => this.pictures[k]);
    near.sort((a, b) => Math.abs(this.pictures[a].time - time) - Math.abs(this.pictures[b].time - time));
    return near.length && Math.abs(this.pictures[near[0]].time - time) <= Math.min(NEAR, 0.45 * this.gap(near[0])) ? near[0] : -1;
  }

  /** Keep the frame that the video shows, if it is one of a row. */
  keep(metadata) {
    if (this.video.readyState < 2) return;
    let frame;
    try {
      frame = capture(this.video, metadata);
    } catch {
      return;
    }
    if (!frame) return;
    const k = this.match(frame.timestamp / 1e6);
    if (k < 0 || this.kept.some((f) => f.k === k)) frame.close();
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
    if (this.kept.some((f) => f.k === k)) return true;
    return slack > 0 && this.kept.some((f) => f.k < k && k - f.k <= slack) && this.kept.some((f) => f.k > k);
  }

  take(row) {
    const k = this.place(row);
    const found = this.kept.findLast((f) => f.k <= k);
    if (!found) return null;
    const { first, last } = this.pictures[found.k];
    return { picture: found.frame, row: Math.max(first, Math.min(last, row)) };
  }

  /** Get the frame of a row; the last one asked for wins. */
  async request(row) {
    this.wanted = row;
    if (this.seeking) return;
    this.seeking = true;
    while (this.wanted !== null && !this.closed) {
      const wanted = this.wanted;
      this.wanted = null;
      const k = this.place(wanted);
      if (this.ready(wanted) || (await this.creep(k)) || (await this.seek(k))) this.arrived(wanted);
      else if (this.wanted === null) this.end("the browser shows another frame than that of the row");
    }
    this.seeking = false;
  }

  /** Go on by some frames without a seek, which decodes from the last key frame. */
  async creep(k) {
    const steps = k - this.at;
    if (this.at < 0 || steps < 1 || steps > 6) return false;
    this.video.playbackRate = 1;
    this.video.play().catch(() => {});
    await this.until(() => this.at >= k, 1000);
    this.video.pause();
    return this.has(k);
  }

  has(k) {
    return this.kept.some((f) => f.k === k);
  }

  async seek(k) {
    if (k < 0) return false;
    const half = this.gap(k) / 2;
    for (const offset of half > NEAR ? [NEAR, half] : [half]) {
      while (this.kept.length) this.drop(0);
      let done = 0;
      const seeked = () => {
        done = performance.now();
        this.keep(null);
      };
      this.video.addEventListener("seeked", seeked, { once: true });
      this.video.currentTime = this.pictures[k].time + offset;
      await this.until(() => this.has(k) || (done && performance.now() - done > 250), PATIENCE);
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
    const turn = (this.turn = (this.turn ?? 0) + 1);
    this.running = true;
    this.wanted = null;
    const k = this.placeFrom(row);
    this.rate = Math.min(16, Math.max(0.0625, speed * this.pace(span)));
    if (!this.has(k) || this.kept.at(-1).k !== this.at) await this.seek(k);
    if (turn === this.turn && this.running) this.resume();
  }

  resume() {
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

  /** The first row behind this one whose frame is there. */
  next(row) {
    const found = this.kept.find((f) => this.pictures[f.k].last > row);
    return found ? this.pictures[found.k].first : 0;
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
