// Frames that the server sends one by one: as stored, or decoded there.

const BUDGET = 48e6; // bytes of decoded pictures kept for a camera

export class Frames {
  /** `url(row)` is the address of a frame; `arrived(row)` is called when it is there, or why it is not. */
  constructor(url, arrived) {
    Object.assign(this, { url, arrived, kept: new Map(), pending: new Map(), wanted: null, closed: false, most: 2, period: 0, size: 1e6 });
  }

  ready(row) {
    return this.kept.has(row);
  }

  take(row) {
    const found = this.kept.get(row);
    return found ? { ...found, row } : null;
  }

  request(row) {
    this.wanted = row;
    if (this.ready(row)) this.arrived(row);
    else if (this.pending.size < this.most) this.load(row);
  }

  async load(row) {
    if (this.pending.has(row) || this.closed) return;
    const abort = new AbortController();
    const start = performance.now();
    this.pending.set(row, abort);
    let found;
    try {
      found = await picture(this.url(row), abort.signal);
    } catch (e) {
      if (e.name !== "AbortError") found = { problem: e.message };
    }
    if (this.pending.get(row) === abort) this.pending.delete(row);
    if (this.closed || !found || abort.signal.aborted) return found?.picture?.close();
    const took = (performance.now() - start) / this.most;
    this.period = this.period ? 0.85 * this.period + 0.15 * took : took;
    this.put(row, found);
    this.arrived(row);
    if (this.wanted !== null && !this.ready(this.wanted)) this.load(this.wanted);
  }

  put(row, found) {
    if (found.picture) this.size = 4 * found.picture.width * found.picture.height;
    this.kept.get(row)?.picture?.close();
    this.kept.set(row, found);
    while (this.kept.size > Math.max(12, BUDGET / this.size)) {
      const [old, value] = this.kept.entries().next().value;
      value.picture?.close();
      this.kept.delete(old);
    }
  }

  play(row) {
    this.request(row);
  }

  /** While playing: ask for the next ones, and for none that would come too late. */
  ahead(row, { direction, stride, first, last }) {
    for (const [waiting, abort] of this.pending) {
      if ((waiting - row) * direction < 0 || Math.abs(waiting - row) > 12 * stride) {
        this.pending.delete(waiting);
        abort.abort();
      }
    }
    const start = Math.floor(row / stride) * stride;
    for (let k = 0, next = start; k < 9 && this.pending.size < this.most; k++, next += direction * stride) {
      if (next >= first && next <= last && !this.kept.has(next)) this.load(next);
    }
  }

  stop() {}

  /** Forget what is there: the address of a frame has changed. */
  clear() {
    for (const abort of this.pending.values()) abort.abort();
    for (const { picture } of this.kept.values()) picture?.close();
    this.pending.clear();
    this.kept.clear();
  }

  close() {
    this.closed = true;
    this.clear();
  }
}

async function picture(url, signal) {
  const response = await fetch(url, { signal });
  if (!response.ok) {
    const body = await response.json().catch(() => ({ error: `The server answers ${response.status}.` }));
    return { problem: [body.error, body.hint].filter(Boolean).join(" ") };
  }
  const blob = await response.blob();
  try {
    return { picture: await createImageBitmap(blob) };
  } catch {
    return { problem: "The browser cannot decode this picture." };
  }
}
