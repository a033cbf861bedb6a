// The cameras of an episode: a canvas each, which shows the frame of a row, or says why there is none.

import { h, media, style } from "./base.js";
import { Frames } from "./frames.js";
import { playable, Stream } from "./stream.js";

class Camera {
  constructor(facts, parameters, { arrived, decode, prefix }) {
    Object.assign(this, { facts, field: facts.field, parameters, arrived, wanted: null, shown: null, range: {}, map: null });
    this.canvas = h("canvas", { role: "img", "aria-label": this.field });
    this.note = h("span.soft.cam-note");
    this.why = h("p.cam-why", { hidden: true });
    this.view = h("div.cam-view", {}, this.canvas, this.why);
    const name = this.field.slice(prefix);
    const larger = h("button.cam-larger", { "aria-pressed": "false", "aria-label": `only ${this.field}`, title: "only this camera" }, "⤢");
    larger.addEventListener("click", () => this.alone(larger));
    this.figure = h("figure.cam", {}, this.view, h("figcaption", {}, h("span.cam-name", { title: this.field }, name), this.note, larger));
    if (facts.depth && facts.depth.low !== null) {
      Promise.all([import("./depth.js"), style("depth")]).then(([{ depthControls }]) => this.figure.append(depthControls(facts, (range, map) => this.redraw(range, map))));
      this.range = { low: facts.depth.low, high: facts.depth.high };
    }
    this.view.style.aspectRatio = `${facts.width || 4} / ${facts.height || 3}`;
    this.view.classList.toggle("cam-small", (facts.width || 999) <= 160);
    if (!decode && !facts.depth && playable(facts.stream)) this.stream();
    else this.frames(facts.turned ? "Players turn this video upright. Training gets its frames as they are shown here." : facts.stream ? "This browser cannot play the video: the server decodes it." : "");
  }

  stream() {
    const url = media("video", { ...this.parameters, episode: null, field: this.field, video: this.facts.stream.video });
    this.source = new Stream(url, this.facts.stream.times, (row) => this.came(row), (reason) => {
      this.frames(`The server decodes the video: ${reason}.`);
      if (this.wanted !== null) this.source.request(this.wanted);
      this.arrived();
    });
    this.view.prepend(this.source.video);
    if (!this.source.ordered || !this.source.pictures.length) this.frames("");
  }

  frames(why) {
    this.source?.close();
    this.how = why;
    this.source = new Frames((row) => media("frame", this.address(row)), (row) => this.came(row));
  }

  address(row) {
    const shown = this.canvas.clientHeight * devicePixelRatio;
    const height = shown && this.facts.height > 1.5 * shown ? Math.ceil(shown / 64) * 64 : null;
    this.height = height;
    return { ...this.parameters, field: this.field, step: row, height, ...this.range };
  }

  /** Whether a row has a frame. */
  has(row) {
    const { rows, stream } = this.facts;
    return rows !== null && row >= rows[0] && row < rows[1] && !(this.source instanceof Stream && stream.times[row] == null);
  }

  came(row) {
    if (row === this.wanted) this.draw(row);
    this.arrived();
  }

  ready(row, slack) {
    return !this.has(row) || this.source.ready(row, slack);
  }

  /** Show a row when its frame is there; meanwhile the former one looks old. */
  show(row) {
    this.wanted = row;
    if (this.ready(row)) this.draw(row);
    else {
      this.view.classList.add("cam-late");
      this.source.request(row);
    }
  }

  draw(row) {
    this.wanted = row;
    const found = this.has(row) ? this.source.take(row) : { problem: "no frame at this step", row, calm: true };
    if (!found) return;
    this.view.classList.remove("cam-late");
    this.why.hidden = !found.problem;
    this.why.textContent = found.problem ?? "";
    this.why.classList.toggle("soft", Boolean(found.calm));
    this.canvas.dataset.row = found.problem ? "" : found.row;
    this.shown = found.row;
    const note = this.facts.turned ? "stored turned" : this.how ? "decoded by the server" : "";
    if (this.note.textContent !== note) Object.assign(this.note, { textContent: note, title: this.how });
    this.paint(found);
  }

  paint({ picture }) {
    const { canvas } = this;
    const brush = canvas.getContext("2d", { willReadFrequently: Boolean(this.facts.depth) });
    if (!picture) return brush.clearRect(0, 0, canvas.width, canvas.height);
    // a player stretches pixels that are not square: training gets them as they are
    const { width, height } = picture instanceof ImageBitmap ? picture : this.facts;
    const scale = Math.min(1, Math.max(0.1, (this.view.clientWidth * devicePixelRatio || width) / width));
    const [w, g] = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== w || canvas.height !== g) Object.assign(canvas, { width: w, height: g });
    brush.drawImage(picture, 0, 0, w, g);
    if (!this.map) return;
    const image = brush.getImageData(0, 0, w, g), data = image.data;
    for (let k = 0; k < data.length; k += 4) {
      const colour = 3 * data[k];
      data[k] = this.map[colour];
      data[k + 1] = this.map[colour + 1];
      data[k + 2] = this.map[colour + 2];
    }
    brush.putImageData(image, 0, 0);
  }

  redraw(range, map) {
    const other = JSON.stringify(range) !== JSON.stringify(this.range);
    Object.assign(this, { range, map });
    if (other && this.source instanceof Frames) this.source.clear();
    if (this.wanted !== null) this.show(this.wanted);
  }

  alone(button) {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", on);
    this.figure.parentElement.classList.toggle("cam-one", on);
    this.figure.classList.toggle("cam-alone", on);
    dispatchEvent(new Event("resize"));
  }
}

/** All cameras: `stage` is their element, `show(row)` shows one, `parts` are the cameras. */
export function cameras(facts, parameters, { decode }) {
  const share = () => {
    const slow = parts.filter((c) => c.source instanceof Frames); // a browser has six connections to a host
    for (const camera of slow) camera.source.most = Math.max(1, Math.floor(4 / slow.length));
  };
  const folders = facts.map((c) => c.field.split("/").slice(0, -1));
  const same = folders[0]?.findIndex((part, k) => folders.some((f) => f[k] !== part)) ?? 0;
  const prefix = folders[0]?.slice(0, same < 0 ? folders[0].length : same).join("/").length;
  const parts = facts.map((camera) => new Camera(camera, parameters, { arrived: share, decode, prefix: prefix ? prefix + 1 : 0 }));
  const stage = h("section.stage", { "aria-label": "cameras" }, parts.map((c) => c.figure));
  share();

  /** Columns for which the pictures become largest. */
  function arrange() {
    const seen = stage.classList.contains("cam-one") ? parts.filter((c) => c.figure.classList.contains("cam-alone")) : parts;
    const width = stage.clientWidth, height = Math.max(200, innerHeight * (innerWidth < 900 ? 0.5 : 0.62));
    let best = { width: 0 };
    for (let columns = 1; columns <= seen.length; columns++) {
      const rows = Math.ceil(seen.length / columns);
      const ratio = Math.max(...seen.map((c) => (c.facts.height || 3) / (c.facts.width || 4)));
      const each = Math.min((width - 8 * (columns - 1)) / columns, (height / rows - 30) / ratio);
      if (each > best.width) best = { columns, width: each };
    }
    stage.style.gridTemplateColumns = `repeat(${best.columns ?? 1}, minmax(0, ${Math.floor(best.width)}px))`;
  }
  const observer = new ResizeObserver(() => arrange());
  observer.observe(stage);
  const again = () => {
    arrange();
    for (const camera of parts) {
      if (camera.shown === null) continue;
      if (camera.source instanceof Frames && camera.height !== camera.address(0).height) camera.source.clear();
      camera.show(camera.wanted);
    }
  };
  addEventListener("resize", again);
  return {
    stage,
    parts,
    show: (row) => parts.forEach((c) => c.show(row)),
    close() {
      observer.disconnect();
      removeEventListener("resize", again);
      parts.forEach((c) => c.source.close());
    },
  };
}
