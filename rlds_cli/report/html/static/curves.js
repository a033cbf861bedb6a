// Curves of one episode, a small chart per element of a field; all share the step under the cursor.
const WIDTH = 600;
const HEIGHT = 64;

// The values of an episode: per field and element a Float32Array over the episode's steps.
function unpack(episode) {
  if (episode.curves) return episode.curves;
  const count = stepsOf(episode).length;
  episode.curves = episode.values.map((text, f) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const numbers = new Float32Array(bytes.buffer);
    return DATA.fields[f].indices.map((_, i) => numbers.subarray(i * count, (i + 1) * count));
  });
  return episode.curves;
}

function stepsOf(episode) {
  if (typeof episode.steps === "number") episode.steps = [...Array(episode.steps).keys()];
  return episode.steps;
}

function extremes(values, start = [Infinity, -Infinity]) {
  let [low, high] = start;
  for (const v of values) {
    if (!Number.isFinite(v)) continue;
    if (v < low) low = v;
    if (v > high) high = v;
  }
  return [low, high];
}

// The range of an element over all episodes of the viewer.
function commonRange(f, i) {
  return DATA.episodes.reduce((range, episode) => extremes(unpack(episode)[f][i], range), [Infinity, -Infinity]);
}

// A path through the finite values; those that hold until the next step are drawn as stairs.
function outline(values, steps, across, up, hold) {
  let path = "";
  let pen = false;
  for (let k = 0; k < values.length; k += 1) {
    if (!Number.isFinite(values[k])) {
      pen = false;
      continue;
    }
    const [x, y] = [across(steps[k]).toFixed(1), up(values[k]).toFixed(1)];
    path += !pen ? `M${x} ${y}` : hold ? `H${x}V${y}` : `L${x} ${y}`;
    const alone = !pen && !Number.isFinite(values[k + 1]);
    if (alone) path += "h0.1";
    pen = true;
  }
  return path;
}

// One chart: `show` draws an episode, `point` moves the cursor to the k-th of its steps.
function chartOf(f, i, moved) {
  const field = DATA.fields[f];
  const label = field.indices[i];
  const line = make("path", { class: `curve c${i % 8}` });
  const cursor = make("line", { class: "cursor", y1: 0, y2: HEIGHT });
  const view = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" };
  const drawing = make("svg", view, make("path", { class: "axis", d: `M0 ${HEIGHT}H${WIDTH}` }), line, cursor);
  const now = make("span", { class: "now" });
  const range = make("span", { class: "range" });
  const caption = make("figcaption", {}, make("span", { class: "label" }, label), now);
  const element = make("figure", { class: "lane" }, caption, drawing, range);
  let shown = null;

  const across = (step) => (step / Math.max(1, shown.last)) * WIDTH;
  const locate = (event) => {
    const box = drawing.getBoundingClientRect();
    moved(((event.clientX - box.left) / box.width) * shown.last);
  };
  drawing.addEventListener("pointermove", locate);
  drawing.addEventListener("pointerdown", locate);

  return {
    element,
    show(episode, common) {
      const steps = stepsOf(episode);
      const values = unpack(episode)[f][i];
      shown = { steps, values, last: steps[steps.length - 1] || 0 };
      let [low, high] = common ? commonRange(f, i) : extremes(values);
      range.textContent = low > high ? "no value" : `${figure(low)} to ${figure(high)}`;
      drawing.setAttribute("aria-label", `${field.name}${field.indices[i]} over ${plural(steps.length, "step")}: ${range.textContent}`);
      const pad = Math.max(1, Math.abs(low) / 100); // of a constant, however great
      if (!(high > low)) [low, high] = [low - pad, high + pad];
      const up = (value) => HEIGHT - 3 - ((value - low) / (high - low)) * (HEIGHT - 6);
      line.setAttribute("d", outline(values, steps, across, up, field.hold));
    },
    point(k) {
      const x = across(shown.steps[k] || 0).toFixed(1);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      now.textContent = figure(shown.values[k]);
    },
  };
}
