// Ask once a second for what may change: no stream stays open, as each takes one of a browser's six connections to a host.

import { get, problem } from "./base.js";

/**
 * Ask for a record again and again while the page is seen, until `signal` ends it. `changed(record, before)` hears of
 * one that is not `known`. What fails is said at the top of `box`, until there is an answer again.
 */
export function follow(box, { path = "changed", parameters, known, signal, changed }) {
  let failed = null, timer = 0;
  async function look() {
    try {
      if (!document.hidden) {
        const now = await get(path, parameters, signal);
        failed?.remove();
        failed = null;
        const before = known;
        known = now;
        if (now !== before) await changed(now, before);
      }
    } catch (e) {
      if (e.name === "AbortError") return;
      const said = [...(box?.querySelectorAll(":scope > .problem > p:first-child") ?? [])].some((p) => p.textContent === e.message);
      if (!failed && !said) box?.prepend((failed = problem(e)));
    }
    if (!signal.aborted) timer = setTimeout(look, 1000);
  }
  timer = setTimeout(look, 1000);
  signal.addEventListener("abort", () => clearTimeout(timer));
}

/** Whether a dataset is another one by the name of the former: its versions begin anew. */
export const isOther = (now, before) => now.created !== before.created && now.version <= before.version;
