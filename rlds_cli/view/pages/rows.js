// A list of any number of rows, of which only those on the screen are elements.

const MOST = 6e6; // pixels: browsers draw elements of up to 16 million
const PAGE = 100; // rows that are fetched together

export class Rows {
  /**
   * `fetchPage(first, count, signal)` gives rows, `draw(row, number)` an element; `renew(element, row, number)` tells
   * whether one that is there will do; `settled(number)` hears of the first row in sight.
   */
  constructor(box, { height, fetchPage, draw, renew, open, settled, failed }) {
    Object.assign(this, { box, height, fetchPage, draw, renew, open, settled, failed, count: 0, position: 0, last: 0, pages: new Map(), pending: new Map(), shown: new Map(), current: 0 });
    this.inner = document.createElement("div");
    this.inner.className = "rw-inner";
    this.inner.setAttribute("role", "rowgroup");
    box.append(this.inner);
    this.listeners = { scroll: () => this.scrolled(), keydown: (e) => this.key(e) };
    for (const [name, f] of Object.entries(this.listeners)) box.addEventListener(name, f);
    this.observer = new ResizeObserver(() => this.box.clientHeight && this.back());
    this.observer.observe(box);
  }

  get top() { return this.inner.offsetTop; } // what stands above: the head
  get view() { return Math.max(this.height, this.box.clientHeight - this.top); }
  get whole() { return this.count * this.height; }
  get tall() { return Math.min(this.whole, MOST); }
  get most() { return Math.max(0, this.whole - this.view); }
  get reach() { return Math.max(0, this.tall - this.view); }

  /** Forget rows; those that are shown stay until others are there. */
  reset({ count = this.count, first = null } = {}) {
    for (const abort of this.pending.values()) abort.abort();
    this.pending.clear();
    this.pages.clear();
    for (const element of this.shown.values()) element.stale = true;
    this.setCount(count);
    if (first !== null) this.show(first);
    else this.update();
  }

  setCount(count) {
    this.count = count;
    this.inner.style.height = `${this.tall}px`;
    this.box.setAttribute("aria-rowcount", count + 1);
    this.position = Math.min(this.position, this.most);
    this.current = Math.max(0, Math.min(this.current, count - 1));
  }

  put(first, rows) {
    this.pages.set(first / PAGE, rows);
  }

  /** Bring a row to the top, or just into sight. */
  show(number, { near = false } = {}) {
    const at = number * this.height;
    if (near && at >= this.position && at + this.height <= this.position + this.view) return this.update();
    this.go(near && at > this.position ? at + this.height - this.view : at);
  }

  go(position) {
    this.position = Math.max(0, Math.min(this.most, position));
    this.last = this.most ? Math.round((this.position / this.most) * this.reach) : 0;
    this.box.scrollTop = this.last;
    this.last = this.box.scrollTop;
    this.update();
  }

  /** Show the same rows again; a box that was out of the page has lost its place. */
  back() {
    this.go(this.position);
  }

  scrolled() {
    const now = this.box.scrollTop, moved = now - this.last;
    if (!moved) return this.update();
    this.last = now;
    if (this.tall === this.whole) this.position = now;
    else if (now <= 0 || now >= this.reach) this.position = now <= 0 ? 0 : this.most;
    else if (Math.abs(moved) < this.view * 2) this.position = Math.max(0, Math.min(this.most, this.position + moved));
    else this.position = (now / this.reach) * this.most;
    this.update();
    clearTimeout(this.still);
    this.still = setTimeout(() => {
      if (this.box.scrollTop !== this.last) return; // it goes on: its event is about to come
      if (this.tall !== this.whole) this.go(this.position);
      this.settled?.(Math.round(this.position / this.height));
    }, 150);
  }

  key(e) {
    if (e.target !== this.box) return;
    const page = Math.max(1, Math.floor(this.view / this.height) - 1);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.count, End: this.count }[e.key];
    if (e.key === "Enter" && this.count) this.open(this.row(this.current), e);
    if (!step || e.altKey || e.ctrlKey || e.metaKey) return;
    e.preventDefault();
    this.current = Math.max(0, Math.min(this.count - 1, this.current + step));
    this.show(this.current, { near: true });
    this.settled?.(Math.round(this.position / this.height));
  }

  row(number) {
    return this.pages.get(Math.floor(number / PAGE))?.[number % PAGE];
  }

  update() {
    if (this.closed) return;
    const first = Math.max(0, Math.floor(this.position / this.height) - 4);
    const stop = Math.min(this.count, Math.ceil((this.position + this.view) / this.height) + 4);
    for (const [number, element] of this.shown) {
      const row = this.row(number), seen = number >= first && number < stop;
      if (seen && (!element.stale || !row)) continue;
      if (seen && this.renew?.(element, row, number)) {
        element.stale = false;
        continue;
      }
      element.remove();
      this.shown.delete(number);
    }
    for (let k = stop - 1; k >= first; k--) {
      let element = this.shown.get(k);
      const row = this.row(k);
      if (!element || (!element.row && row)) {
        element?.remove();
        element = this.draw(row, k);
        element.row = row;
        element.id = `row${k}`;
        element.setAttribute("aria-rowindex", k + 2);
        this.shown.set(k, element);
        const after = this.shown.get(k + 1);
        this.inner.insertBefore(element, after?.isConnected ? after : null);
      }
      element.style.transform = `translateY(${Math.round(this.last + k * this.height - this.position)}px)`;
      element.classList.toggle("rw-current", k === this.current);
    }
    if (this.count) this.box.setAttribute("aria-activedescendant", `row${this.current}`);
    clearTimeout(this.asking);
    const wanted = [];
    for (let p = Math.floor(first / PAGE); p * PAGE < stop; p++) if (!this.pages.has(p)) wanted.push(p);
    for (const [p, abort] of this.pending) if (!wanted.includes(p)) (abort.abort(), this.pending.delete(p));
    if (wanted.some((p) => !this.pending.has(p))) this.asking = setTimeout(() => wanted.forEach((p) => this.ask(p)), 40);
  }

  async ask(p) {
    if (this.pending.has(p) || this.closed) return;
    const abort = new AbortController();
    this.pending.set(p, abort);
    try {
      const rows = await this.fetchPage(p * PAGE, PAGE, abort.signal);
      if (!rows || abort.signal.aborted) return;
      this.pages.set(p, rows);
      if (this.pages.size > 40) this.pages.delete(this.pages.keys().next().value);
    } catch (e) {
      if (e.name !== "AbortError") this.failed?.(e);
      return;
    } finally {
      if (this.pending.get(p) === abort) this.pending.delete(p);
    }
    this.update();
  }

  close() {
    this.closed = true;
    for (const abort of this.pending.values()) abort.abort();
    this.observer.disconnect();
    clearTimeout(this.still);
    clearTimeout(this.asking);
  }
}
