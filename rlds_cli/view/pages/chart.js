// How curves are drawn on a canvas: of each element the lowest and highest value of each column.

export const GUTTER = 48; // pixels at the left of a chart, for the numbers


export function colours(element) {
  const style = getComputedStyle(element);
  const named = {};
  for (const name of ["text", "soft", "grid", "line", "wash", "bad", "warn", "accent", "card"]) named[name] = style.getPropertyValue(`--${name}`).trim();
  return { ...named, pens: Array.from({ length: 8 }, (_, k) => style.getPropertyValue(`--c${k}`).trim()) };
}

/** Numbers at even steps between two others: about `count` of them. */
export function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  if (!(raw > 0) || !Number.isFinite(raw)) return [];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

/** Canvas of a size in CSS pixels, as sharp as the screen. */
export function canvasOf(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [w, g] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== g) Object.assign(canvas, { width: w, height: g });
  const brush = canvas.getContext("2d");
  brush.setTransform(ratio, 0, 0, ratio, 0, 0);
  brush.clearRect(0, 0, width, height);
  return brush;
}

/** Lowest and highest value of the elements that are shown, in the columns of a view. */
export function extent(piece, shown, view) {
  let low = Infinity, high = -Infinity;
  if (!piece) return [low, high];
  const { first, stop, columns, values } = piece;
  const from = Math.max(0, Math.floor(((view.first - first) / (stop - first)) * columns));
  const to = Math.min(columns, Math.ceil(((view.stop - first) / (stop - first)) * columns));
  for (const k of shown) {
    for (let c = from, i = 2 * (k * columns + from); c < to; c++, i += 2) {
      if (values[i] < low) low = values[i];
      if (values[i + 1] > high) high = values[i + 1];
    }
  }
  return [low, high];
}

/** The ends of an axis for what lies between some lowest and highest values. */
export function range(...pairs) {
  let low = Math.min(...pairs.map((p) => p[0])), high = Math.max(...pairs.map((p) => p[1]));
  if (!(low <= high)) return [0, 1];
  const rest = high > low ? 0.04 * (high - low) : Math.abs(low) * 0.1 || 1;
  return [low - rest, high + rest];
}

/** Draw an element of a piece: {first, stop, columns, values}. */
export function line(brush, piece, k, { x, y, hold, colour, dash = [], width = 1.4, fill = null }) {
  const { first, stop, columns, values } = piece;
  const rows = (stop - first) / columns;
  brush.strokeStyle = brush.fillStyle = colour;
  if (rows > 1) return bars(brush, piece, k, { x, y, rows, width });
  brush.lineWidth = width;
  brush.setLineDash(dash);
  brush.lineJoin = "round";
  brush.beginPath();
  let open = false, count = 0;
  const half = hold ? (x(first + 1) - x(first)) / 2 : 0;
  const alone = [];
  for (let c = 0, i = 2 * k * columns; c < columns; c++, i += 2) {
    const value = values[i];
    if (Number.isNaN(value)) {
      open = false;
      continue;
    }
    const [px, py] = [x(first + c), y(value)];
    if (fill !== null && hold && value > 0.5) brush.fillRect(Math.floor(px - half), py, Math.ceil(px + half) - Math.floor(px - half), fill - py);
    if (open) brush.lineTo(px - half, py);
    else brush.moveTo(px - half, py);
    if (hold) brush.lineTo(px + half, py);
    if (!open && !hold && (c + 1 === columns || Number.isNaN(values[i + 2]))) alone.push([px, py]);
    open = true;
    if (++count % 400 === 0) {
      brush.stroke(); // long paths are slow to stroke
      brush.beginPath();
      brush.moveTo(px + half, py);
    }
  }
  brush.stroke();
  brush.setLineDash([]);
  if (x(first + 1) - x(first) > 9 && !hold) {
    for (let c = 0, i = 2 * k * columns; c < columns; c++, i += 2) if (!Number.isNaN(values[i])) alone.push([x(first + c), y(values[i])]);
  }
  for (const [px, py] of alone) brush.fillRect(px - 1.75, py - 1.75, 3.5, 3.5);
}

function bars(brush, { first, columns, values }, k, { x, y, rows, width }) {
  const ratio = devicePixelRatio || 1;
  const edge = (c) => Math.round((x(first + c * rows) - (x(first + rows) - x(first)) / 2) * ratio) / ratio; // whole pixels of the screen
  let before = null;
  for (let c = 0, i = 2 * k * columns; c < columns; c++, i += 2) {
    if (Number.isNaN(values[i])) {
      before = null;
      continue;
    }
    const top = y(values[i + 1]), bottom = y(values[i]);
    const from = before ? Math.min(top, before[1]) : top, to = before ? Math.max(bottom, before[0]) : bottom;
    brush.fillRect(edge(c), from - width / 2, Math.max(1 / ratio, edge(c + 1) - edge(c)), to - from + width);
    before = [top, bottom];
  }
}
