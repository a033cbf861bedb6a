// Decide on the episode that is shown: labels, whether it stays, a comment, steps and sub-tasks; by buttons and by keys.

import { figure, get, h, link, say, style } from "./base.js";
import { keep, Marks, onKept } from "./marks.js";
import { queueOf, setWho, who } from "./queue.js";

export const spoken = (value) => (value === true ? "yes" : value === false ? "no" : String(value));
const pressed = (button, on) => button.setAttribute("aria-pressed", String(on));
let wide = false; // whether the steps were shown last
/** Do something once what was changed is on the screen. */
const seen = (does) => requestAnimationFrame(() => setTimeout(does));

/** The parts of the page of an episode that decide on it. */
export async function deciding({ key, number, query, facts, player }) {
  const v = String(facts.version), where = { d: key, v };
  const [info] = await Promise.all([get("decisions", { ...where, episode: number }), style("decide")]);
  const by = info.named ? setWho(info.by) : who();
  const nothing = (...what) => ({ panel: h("section.dc", { "aria-label": "decide" }, what), bar: null, lane: null, keys: undefined, close() {} });
  if (!info.may.decide) return nothing(h("p", {}, info.may.why));
  const people = () => import("./people.js"); // what is needed now and then
  if (!by) return nothing((await people()).asking(info.by));

  const queue = queueOf(key, v, query), mine = Number(number);
  let marks = new Marks(facts, info.decisions.filter((d) => d.by === by)), left = false, typing = 0;
  queue.mark(mine, marks.decided);

  // -- what is changed

  function change() {
    show();
    keep(where, by, marks);
  }
  const later = () => (clearTimeout(typing), (typing = setTimeout(change, 400)));
  const decide = (verdict) => {
    if (left) return; // a key that came too late is not for the next one
    marks.verdict = verdict;
    if (verdict === "drop") marks.ranges = [];
    left = true;
    change();
    seen(() => go(verdict === "drop" ? "rejected" : "accepted"));
  };
  async function go(what) {
    left = true;
    say(`Episode ${figure(mine)} is ${what}.`);
    const next = await queue.next(mine);
    if (next !== null) return (location.hash = queue.link(next));
    left = false;
    end.replaceChildren(...(await people()).ending(queue.list.filter((n) => n !== mine && queue.passed.has(n)).length, save, () => (queue.passed.clear(), go("left"))));
    end.hidden = false;
    show();
    end.scrollIntoView({ block: "nearest" });
  }
  async function undo() {
    clearTimeout(typing);
    const found = await (await people()).takeBack(where, by, mine);
    if (!found) return;
    queue.passed.delete(found.number);
    queue.mark(found.number, found.decisions.length > 0);
    if (found.number === mine) (marks = new Marks(facts, found.decisions)), show();
    else location.hash = queue.link(found.number);
  }

  // -- what is seen

  const button = (name, key, title, click, kind = "") => h(`button.dc-do${kind}`, { title: `${title} (${key.toUpperCase()})`, "aria-keyshortcuts": key, "aria-pressed": "false", click }, name, h("kbd", {}, key.toUpperCase()));
  const accept = button("Accept", "a", "it stays: on to the next", () => decide("keep"), ".dc-yes");
  const reject = button("Reject", "d", "it is dropped: on to the next", () => decide("drop"), ".dc-no");
  const skip = h("button", { title: "on to the next, without a verdict (S)", "aria-keyshortcuts": "s", click: () => left || go(marks.decided ? "left" : "skipped") }, "Skip", h("kbd", {}, "S"));
  const back = h("button", { title: "take back what was decided last (Z)", "aria-keyshortcuts": "z", click: undo }, "Undo", h("kbd", {}, "Z"));
  const steps = h("button.dc-steps", { title: "trim, split, sub-tasks (B, E, T, G)", "aria-expanded": "false", "aria-controls": "dc-lane", click: () => open(!wide) }, "Steps");
  const progress = h("progress.dc-progress", { "aria-label": "decided", max: 1 });
  const count = h("output.dc-count", {});
  const state = h("span.soft.dc-state", { role: "status" });
  const save = link(["s", key]);
  const bar = h("div.dc-bar", { role: "group", "aria-label": "verdict" }, accept, reject, skip, back, steps, h("span.dc-far", {}, progress, count, state, h("a", { href: save }, "Review and save")));

  const press = new Map(); // key of a label -> what it does
  const rows = info.labels.map((label) => {
    const set = (value) => (marks.label(label.name, value), change());
    if (!label.choices.length) {
      const input = h("input.dc-text", { type: "text", maxlength: 2000, "aria-label": label.name, input: () => (marks.label(label.name, input.value), later()), keydown: (e) => ["Enter", "Escape"].includes(e.key) && input.blur() });
      return { element: h("label.dc-label", {}, h("span.dc-name", {}, label.name), input), show: () => document.activeElement === input || (input.value = marks.labels[label.name] ?? "") };
    }
    const buttons = label.choices.map(({ value, key: k }) => {
      if (k) press.set(k, () => left || set(value));
      return { value, element: h("button.dc-choice", { "aria-pressed": "false", "aria-keyshortcuts": k || false, click: () => set(value) }, spoken(value), k && k !== spoken(value) ? h("kbd", {}, k.toUpperCase()) : null) };
    });
    const now = facts.columns.find((c) => c.name === label.name)?.value;
    return {
      element: h("div.dc-label", { role: "group", "aria-label": label.name }, h("span.dc-name", {}, label.name), h("span.dc-choices", {}, buttons.map((b) => b.element)), now === undefined || now === null ? null : h("span.soft", {}, `was ${spoken(now)}`)),
      show: () => buttons.forEach((b) => pressed(b.element, marks.labels[label.name] === b.value)),
    };
  });
  const comment = h("input.dc-text", { type: "text", maxlength: 2000, "aria-label": "comment", "aria-keyshortcuts": "c", input: () => ((marks.comment = comment.value), later()), keydown: (e) => ["Enter", "Escape"].includes(e.key) && comment.blur() });
  const others = info.decisions.filter((d) => d.by !== by);
  const end = h("p.dc-end", { role: "status", hidden: true });
  const panel = h("section.dc", { "aria-label": "decide" }, end, rows.map((r) => r.element),
    h("label.dc-label", {}, h("span.dc-name", {}, "comment ", h("kbd", {}, "C")), comment),
    others.length ? (await people()).others(others, (theirs) => ((marks = new Marks(facts, theirs.map((d) => ({ ...d, reviews: d.key })))), change())) : null,
    info.guideline ? h("details.dc-more", {}, h("summary", {}, "Guideline"), h("p.dc-guide", {}, info.guideline)) : null);

  const below = h("div", { id: "dc-lane" });
  let lane = null;
  /** Show the steps, whose script is fetched when it is needed, or hide them. */
  async function open(on = true) {
    wide = on;
    if (on && !lane) {
      const [{ Lane }] = await Promise.all([import("./lane.js"), style("lane")]);
      lane ??= new Lane(facts, { marks: () => marks, change, seek: (row) => player.seek(row), row: () => player.row });
      below.replaceChildren(lane.element);
    }
    below.hidden = !on;
    steps.setAttribute("aria-expanded", String(on));
    lane?.draw();
    return lane;
  }
  const onLane = (what) => async () => left || (await open())[what]();

  function show() {
    pressed(accept, marks.verdict === "keep");
    pressed(reject, marks.verdict === "drop");
    skip.firstChild.textContent = marks.decided ? "Next" : "Skip";
    for (const row of rows) row.show();
    if (document.activeElement !== comment) comment.value = marks.comment;
    const done = queue.mark(mine, marks.decided);
    if (queue.of !== null) {
      progress.max = queue.of || 1;
      progress.value = done;
      count.textContent = `${figure(done)} of ${figure(queue.of)} decided`;
    }
    lane?.draw();
  }
  const hear = onKept((waiting, problem) => {
    state.textContent = problem ? `not kept: ${problem.message}` : waiting ? "…" : "";
    state.classList.toggle("dc-bad", Boolean(problem));
  });
  queue.prepare(mine).then(show, (e) => say(e.message));
  show();
  if (wide || marks.ranges.length || marks.segments) open();

  const pressedKeys = { a: () => decide("keep"), d: () => decide("drop"), s: () => skip.click(), z: undo, c: () => comment.focus(), b: onLane("begin"), e: onLane("end"), t: onLane("split"), g: onLane("task") };
  return {
    panel,
    bar,
    lane: below,
    keys: {
      help: [["A, D", "accept, reject"], ["S", "skip, next"], ["Z", "take back"], ["C", "comment"], ["B, E", "what stays begins, ends here"], ["T", "split here"], ["G", "a sub-task from here on"]],
      pressed: Object.fromEntries(Object.entries({ ...Object.fromEntries(press), ...pressedKeys }).map(([k, does]) => [k, (e) => e.repeat || does()])),
    },
    close() {
      hear();
      queue.shown = null;
      if (typing) clearTimeout(typing), keep(where, by, marks);
    },
  };
}
