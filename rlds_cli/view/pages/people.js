// What is said now and then while one decides: who does, what others have decided, and that all is; what takes it back.

import { figure, h, plural, post, say } from "./base.js";
import { spoken } from "./decide.js";
import { change, sent } from "./marks.js";
import { setWho } from "./queue.js";

/** The form that asks for a name, and then shows the page again. */
export function asking(suggested) {
  const input = h("input", { type: "text", value: suggested, maxlength: 60, required: true, autocomplete: "name", "aria-label": "your name" });
  return h("form.dc-who", { submit: (e) => (e.preventDefault(), input.value.trim() && (setWho(input.value), dispatchEvent(new Event("hashchange")))) },
    h("label", {}, "Who decides? ", input), h("button", { type: "submit" }, "Begin"), h("span.soft", {}, "The name is kept with every decision."));
}

function words(d) {
  const range = () => `${figure(d.first)} to ${figure(d.stop - 1)}`;
  return [{ drop: () => "reject", keep: () => `steps ${range()}`, subtask: () => `${d.text ?? "nothing"} in ${range()}` }[d.do]?.(),
    ...Object.entries(d.labels).map(([name, value]) => `${name}: ${value === null ? "none" : spoken(value)}`), d.comment && `“${d.comment}”`].filter(Boolean);
}

/** What others have decided on an episode; `take(decisions)` makes it one's own. */
export function others(decisions, take) {
  const names = [...new Set(decisions.map((d) => d.by))];
  return h("details.dc-more", {}, h("summary", {}, `${plural(names.length, "other")} decided on it`), names.map((by) => {
    const theirs = decisions.filter((d) => d.by === by);
    return h("p", {}, h("strong", {}, by), ` ${theirs.flatMap(words).join(" · ")} `, h("button", { click: () => take(theirs) }, "The same"));
  }));
}

/** What is said where no episode is left but those that were skipped. */
export const ending = (skipped, save, again) => (skipped
  ? [`What is left was skipped: ${plural(skipped, "episode")}. `, h("button", { click: again }, "Show them")]
  : ["All are decided. ", h("a", { href: save }, "Review and save")]);

/** Take back what a person decided last, and say of which episode; null if there is nothing, or it has left. */
export async function takeBack(where, by, shown) {
  await sent();
  change(); // before it, and after it: an answer meanwhile may know of it, or not
  try {
    const found = await post("undo", where, { by }).finally(change);
    say(found.number === shown ? "taken back" : `taken back: episode ${figure(found.number ?? 0)}`);
    return found.number === null ? null : found;
  } catch (e) {
    say(e.message);
    return null;
  }
}
