// Before one decides on episodes: what it leads to, in which order, by whom, and with which labels and keys.

import { figure, get, h, link, plural, style } from "./base.js";
import { spoken } from "./decide.js";
import { queueOf, setWho, who } from "./queue.js";

const ORDERS = { table: "as in the table", random: "at random", outliers: "unusual ones first", twins: "near duplicates first" };

export async function begin(main, [key], query) {
  const v = query.get("v") ?? String((await get("changed", { d: key })).version), where = query.get("where") ?? "";
  const [info] = await Promise.all([get("decisions", { d: key, v, by: who() }), style("decide"), style("begin")]);
  document.title = `decide on ${info.id} · rlds view`;
  if (info.named) setWho(info.by);
  main.append(h("h1", {}, `Decide on ${info.id}`), h("p.soft", {}, `version ${info.version} · ${plural(info.of, "episode")}`),
    h("p.dc-may", {}, !info.may.decide ? info.may.why : info.may.version
      ? "What you decide is kept at once, and changes nothing yet. In the end it is saved as the next version, or as another dataset."
      : `${info.may.why} What you decide is kept at once; in the end it is saved as another dataset, ${info.id.split("@")[0]}@NAME.`));
  if (!info.may.decide) return;

  const name = h("input", { type: "text", value: who() || info.by, maxlength: 60, required: true, autocomplete: "name", change: count });
  const order = h("select", { change: count }, Object.entries(ORDERS).map(([value, said]) => h("option", { value, selected: value === query.get("decide") }, said)));
  const seed = h("input.dc-seed", { type: "number", min: 0, max: 2 ** 31, step: 1, value: query.get("seed") ?? 0 });
  const others = h("input", { type: "checkbox", change: count });
  const progress = h("progress.dc-progress", { "aria-label": "decided", max: 1, value: 0 });
  const said = h("output", {});
  const problem = h("p.soft", { role: "alert" });
  const chosen = () => ({ v, where, sort: query.get("sort"), desc: query.get("desc"), decide: order.value, seed: order.value === "random" ? seed.value : null, of: others.checked ? "others" : null });
  const queue = () => queueOf(key, v, new URLSearchParams(Object.entries(chosen()).filter(([, x]) => x)));

  async function count() {
    if (!name.value.trim()) return;
    setWho(name.value);
    seed.parentElement.hidden = order.value !== "random";
    try {
      const asked = queue();
      asked.passed.clear();
      await asked.fill();
      progress.max = asked.of || 1;
      progress.value = asked.decided;
      said.textContent = `${figure(asked.decided)} of ${plural(asked.of, "episode")} decided`;
      for (const option of order.options) option.disabled = !asked.orders.includes(option.value);
      start.disabled = !asked.list.length;
      problem.textContent = asked.list.length ? "" : asked.of ? "All of them are decided." : "There is none.";
    } catch (e) {
      start.disabled = true;
      problem.textContent = [e.message, e.hint].filter(Boolean).join(" ");
    }
  }
  const start = h("button.dc-start", { type: "submit", disabled: true }, "Begin");
  const form = h("form.dc-form", { submit: async (e) => {
    e.preventDefault();
    await count();
    const [next] = queue().list;
    if (next !== undefined) location.hash = queue().link(next);
  } },
    h("label", {}, h("span", {}, "your name"), name),
    h("label", {}, h("span", {}, "order"), order), h("label", { hidden: true }, h("span", {}, "seed"), seed),
    h("label.dc-check", {}, others, "only those that others have decided on"),
    where ? h("p", {}, "those where ", h("code", {}, where)) : null,
    h("p.dc-done", {}, progress, said), problem, h("p.dc-done", {}, start, h("a", { href: link(["s", key]) }, "Review and save")));
  const keys = (label) => (label.choices.length ? label.choices.map((c) => h("span.dc-key", {}, c.key ? h("kbd", {}, c.key.toUpperCase()) : null, c.key === spoken(c.value) ? "" : ` ${spoken(c.value)}`)) : h("span.soft", {}, "a text"));
  main.append(h("div.dc-two", {}, h("section.dc-card", {}, form),
    h("section.dc-card", {}, h("h2", {}, "Labels"), info.guideline ? h("p.dc-guide", {}, info.guideline) : null,
      h("dl.dc-labels", {}, info.labels.map((l) => [h("dt", {}, l.name), h("dd", {}, keys(l))])),
      h("p.soft", {}, h("kbd", {}, "A"), " accepts, ", h("kbd", {}, "D"), " rejects, ", h("kbd", {}, "S"), " skips, ", h("kbd", {}, "Z"), " takes back, ", h("kbd", {}, "?"), " shows all keys."),
      h("p.soft", {}, info.file ? `They are those of ${info.file}.` : h("span", {}, "These are the usual ones. Your own are in ", h("code", {}, info.beside), ", or in a file that ", h("code", {}, "rlds view --labels FILE"), " names.")),
      info.people.length ? h("p.soft", {}, `Decided until now: ${info.people.map((p) => `${p.by} ${figure(p.episodes)}`).join(", ")}.`) : null)));
  await count();
}
