// The clock of an episode. A row is shown when every camera has its frame: all of them at once, and the cursors with
// them. While a frame is awaited the clock waits too.

import { clamp, last } from "./base.js";

export const SPEEDS = [0.25, 0.5, 1, 2, 4];
const AHEAD = 0.05; // seconds of the wall that the clock may be ahead of what is shown

export class Player {
  /** `cameras` have parts with ready(row), draw(row), show(row) and a source; `told(what)` hears of "row" and "state". */
  constructor({ rows, time, cameras, told }) {
    Object.assign(this, { rows, cameras, told, row: 0, speed: 1, direction: 0, loop: null, clock: 0, stuck: 0, frame: 0, waits: false, awaited: null });
    this.rate = time.rate || 20;
    this.times = time.at;
  }

  /** Seconds from the first row. */
  at(row) {
    return this.times ? this.times[row] : row / this.rate;
  }

  rowAt(seconds) {
    const row = this.times ? last(this.rows, (k) => this.times[k] <= seconds + 1e-9) : Math.floor(seconds * this.rate + 1e-6);
    return clamp(row, 0, this.rows - 1);
  }

  get playing() {
    return this.direction !== 0;
  }

  /** First and last row that are played. */
  get range() {
    return this.loop ?? [0, this.rows - 1];
  }

  /** Rows a second of the wall. */
  get pace() {
    const span = this.at(this.rows - 1) - this.at(0);
    return (span > 0 ? (this.rows - 1) / span : this.rate) * this.speed;
  }

  /** Rows from one that is shown to the next: more than one where frames do not come faster. */
  get stride() {
    const slowest = Math.max(0, ...this.cameras.parts.map((c) => c.source.period));
    const most = Math.min(this.direction < 0 ? 10 : 60, slowest ? 1000 / slowest : 60);
    return slowest || this.direction < 0 ? Math.max(1, Math.ceil(this.pace / most - 0.1)) : 1;
  }

  /** Rows that a camera may be behind where the screen does not show all of them: those of 50 ms. */
  get slack() {
    return this.pace > 50 ? Math.floor(this.pace * 0.05) : 0;
  }

  /** Go to a row; what plays plays on from there. */
  seek(row) {
    this.row = clamp(Math.round(row), 0, this.rows - 1);
    if (this.playing) this.begin();
    else this.cameras.show(this.row);
    this.told("row");
  }

  move(rows) {
    this.pause();
    this.seek(this.row + rows);
  }

  /** Go on by seconds of the recording. */
  skip(seconds) {
    const row = this.rowAt(this.at(this.row) + seconds);
    this.seek(row === this.row ? row + Math.sign(seconds) : row);
  }

  play(direction = 1, speed = this.speed) {
    const [first, stop] = this.range;
    Object.assign(this, { direction, speed });
    if (direction > 0 && (this.row >= stop || this.row < first)) this.row = first;
    if (direction < 0 && (this.row <= first || this.row > stop)) this.row = stop;
    this.begin();
    this.told("state");
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame((now) => this.tick((this.last = now)));
  }

  /** Play on from a row: every camera goes there, and the clock waits for it. */
  begin(row = this.row) {
    this.clock = this.at(row);
    this.awaited = row;
    this.stuck = performance.now();
    for (const { source } of this.cameras.parts) {
      if (this.direction > 0) source.play(row, this.speed, (row) => this.at(row));
      else {
        source.stop();
        source.request(row);
      }
    }
  }

  pause() {
    if (!this.playing) return;
    this.direction = 0;
    cancelAnimationFrame(this.frame);
    for (const { source } of this.cameras.parts) source.stop();
    this.cameras.show(this.row);
    this.wait(false);
    this.told("state");
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  /** L and J: play, or play faster. */
  shuttle(direction) {
    const faster = SPEEDS[Math.min(SPEEDS.length - 1, SPEEDS.indexOf(this.speed) + 1)];
    this.play(direction, this.direction === direction ? faster : 1);
  }

  setSpeed(speed) {
    this.speed = speed;
    if (this.playing) this.play(this.direction);
    else this.told("state");
  }

  setLoop(first, last) {
    this.loop = first === null ? null : [Math.min(first, last), Math.max(first, last)];
    this.told("state");
  }

  tick(now) {
    if (!this.playing) return;
    this.frame = requestAnimationFrame((t) => this.tick(t));
    const passed = Math.min(0.1, (now - this.last) / 1000);
    this.last = now;
    if (this.awaited !== null) {
      if (this.direction < 0) this.clock = Math.max(this.clock - passed * this.speed, this.at(this.awaited) - 0.3 * this.speed);
      if (this.allReady(this.awaited, this.direction > 0 ? this.slack : 0)) this.commit(this.awaited, now);
      else this.late(now);
      return;
    }
    if (this.direction > 0) this.forward(passed, now);
    else this.back(passed, now);
  }

  allReady(row, slack = 0) {
    return this.cameras.parts.every((c) => c.ready(row, slack));
  }

  forward(passed, now) {
    const last = this.range[1], stride = this.stride;
    const next = Math.min(last, this.row + stride);
    const most = Math.max(this.at(next) + 1e-6, this.at(this.row) + AHEAD * this.speed);
    this.clock = Math.min(this.clock + passed * this.speed, most);
    const goal = Math.min(last, this.rowAt(this.clock));
    const row = this.latest(goal, stride, now);
    if (row !== this.row) this.commit(row, now);
    else if (goal > this.row && (goal === last || Math.floor(goal / stride) > Math.floor(this.row / stride))) this.late(now);
    else this.stuck = now;
    for (const { source } of this.cameras.parts) source.ahead(this.row, { direction: 1, stride, first: 0, last });
    if (this.row >= last && this.clock >= this.at(last)) this.finish();
  }

  /** The last row until `goal` that can be shown; behind it, where the frames between were dropped. */
  latest(goal, stride, now) {
    const last = this.range[1], late = goal > this.row && now - this.stuck > 60;
    const fits = (row) => row % stride === 0 || row === last;
    for (let row = goal; row > this.row; row--) if (fits(row) && this.allReady(row)) return row;
    if (this.slack) for (let row = goal; row > this.row; row--) if (fits(row) && this.allReady(row, this.slack)) return row;
    if (late) this.meet();
    return this.row;
  }

  /** The browser dropped frames: go on at the next row of which all videos have theirs. */
  meet() {
    const { parts } = this.cameras, videos = parts.filter((c) => c.source.next);
    for (let row = this.row + 1; row <= Math.min(this.range[1], this.row + 60); row++) {
      if (!videos.every((c) => c.ready(row, this.slack))) continue;
      this.awaited = row;
      for (const camera of parts) if (!camera.source.next && camera.has(row)) camera.source.request(row);
      return;
    }
    const first = Math.max(0, ...videos.map((c) => c.has(this.row + 1) && c.source.next(this.row)));
    if (first > this.range[1]) return this.begin(this.row + 1); // what is left was dropped
    for (const { source } of videos) source.leave(this.row + 1, first);
  }

  back(passed, now) {
    const first = this.range[0];
    this.clock = Math.max(this.at(first), this.clock - passed * this.speed);
    const goal = this.rowAt(this.clock), stride = this.stride;
    if (goal < this.row && (this.row - goal >= stride || goal === first)) {
      this.awaited = Math.max(first, Math.floor(goal / stride) * stride);
      for (const camera of this.cameras.parts) if (camera.has(this.awaited)) camera.source.request(this.awaited);
      for (const { source } of this.cameras.parts) if (source.pending) source.ahead(this.awaited, { direction: -1, stride, first, last: this.rows - 1 });
      this.stuck = now;
      if (this.allReady(this.awaited)) this.commit(this.awaited, now);
    }
    if (this.row <= first) this.finish();
  }

  commit(row, now) {
    this.awaited = null;
    this.row = row;
    this.stuck = now;
    if (this.direction > 0) this.clock = Math.max(this.clock, this.at(row));
    for (const camera of this.cameras.parts) camera.draw(row);
    this.wait(false);
    this.told("row");
  }

  late(now) {
    if (now - this.stuck > 400) this.wait(true);
    const { awaited } = this; // their source may be another one since they were asked
    if (awaited !== null) for (const c of this.cameras.parts) c.has(awaited) && !c.ready(awaited) && c.source.request(awaited);
    else if (now - this.stuck > 3000) this.begin(this.row + 1); // the cameras have come apart
  }

  wait(on) {
    if (on === this.waits) return;
    this.waits = on;
    this.told("state");
  }

  finish() {
    if (!this.loop) return this.pause();
    this.row = this.range[this.direction > 0 ? 0 : 1];
    this.begin();
  }

  close() {
    this.direction = 0;
    cancelAnimationFrame(this.frame);
  }
}
