// What was decided comes to: counts, what two people see differently, the command that does the same, and saving it.

import { figure, get, h, link, media, plural, post, problem, say, style } from "./base.js";
import { spoken } from "./decide.js";
import { sent } from "./marks.js";

export async function save(main, [key], query) {
  await sent();
  const take = query.get("take");
  const [plan] = await Promise.all([get("plan", { d: key, field: take }), style("decide"), style("begin")]);
  document.title = `save decisions on ${plan.id} · rlds view`;
  main.append(h("h1", {}, `Decisions on ${plan.id}`), h("p.soft", {}, `version ${plan.version} · ${plural(plan.decisions, "decision")}${plan.people.length ? ` of ${plan.people.map((p) => p.by || "somebody").join(", ")}` : ""}`));
  if (!plan.may.decide) return main.append(h("p.dc-may", {}, plan.may.why));
  const compared = plan.agreement.length || plan.reviews.length ? agreement(plan, key) : "";
  if (!plan.decisions) return main.append(h("p.dc-may", {}, "This version has all that was decided. ", h("a", { href: link(["q", key]) }, "Decide")), compared);
  if (plan.num_clashes || take) main.append(clashes(plan, key, take));
  main.append(h("div.dc-two", {}, counts(plan, key), saving(plan, key, take)), compared);
}

/** Where an episode is decided on, or what is left of it. */
const episode = (plan, key, { number, id }) => (number === null ? h("code", {}, id.slice(0, 8)) : h("a", { href: link(["e", key, String(number)], { v: plan.version, decide: "table" }) }, `episode ${figure(number)}`));

function counts(plan, key) {
  const lines = plan.counts.filter(({ episodes }) => episodes).map(({ what, episodes, some }) => h("li", {}, h("details", {}, h("summary", {}, h("strong", {}, plural(episodes, "episode")), ` ${what}`),
    h("p.sv-some", {}, some.flatMap((e) => [episode(plan, key, e), " "]), some.length < episodes ? "…" : ""))));
  return h("section.dc-card.sv-counts", {}, h("h2", {}, "What it comes to"), h("ul.sv-list", {}, lines),
    h("p.soft", {}, `${plural(plan.episodes, "episode")} before, ${figure(plan.after)} after it.`));
}

/** What two people, or a person and the dataset, say differently, with both values; and what wins. */
function clashes(plan, key, take) {
  const choice = h("select", { change: () => (location.hash = link(["s", key], { take: choice.value })) },
    [["", "nothing: it is not saved"], ...plan.people.map((p) => [p.by, `what ${p.by} says`]), ["mine", "what was decided"], ["theirs", "what the dataset has"]].map(([value, said]) => h("option", { value, selected: value === (take ?? "") }, said)));
  const value = ({ by, value }, k) => h("td", {}, h("strong", {}, by || (k ? "the dataset" : "decided")), ` ${said(value)}`);
  return h("section.dc-card.sv-clash", {}, h("h2", {}, plan.num_clashes ? `${figure(plan.num_clashes)} ${plan.num_clashes === 1 ? "clash" : "clashes"}` : "Clashes are settled"),
    h("label.dc-who", {}, "Where decisions clash, this wins: ", choice),
    plan.clashes.length ? table(["episode", "about", "", ""], plan.clashes.map((c) => [episode(plan, key, c), h("td", {}, c.about === "do" ? "steps" : c.about), c.sides.map(value)])) : null);
}

const said = (value) => (value === null ? "none" : spoken(value));
const table = (names, rows) => h("div.sv-table", {}, h("table", {}, h("thead", {}, h("tr", {}, names.map((t) => h("th", { scope: "col" }, t)))),
  h("tbody", {}, rows.map(([first, ...cells]) => h("tr", {}, h("th", { scope: "row" }, first), cells)))));

/** How far each two people agree who have decided by themselves, where they do not, and what reviews say. */
function agreement(plan, key) {
  const value = (about, v) => (about === "do" ? { drop: "reject", keep: "accept" }[v] : said(v));
  const apart = ({ about, a, b, apart, episodes, agreed }) => agreed < episodes && h("details", {}, h("summary", {}, plural(episodes - agreed, "episode")),
    h("ul.sv-list", {}, apart.map((d) => h("li", {}, episode(plan, key, d), `: ${a || "somebody"} ${value(about, d.a)}, ${b || "somebody"} ${value(about, d.b)}`))));
  const rows = plan.agreement.map((of) => [of.about === "do" ? "accept, reject" : of.about, h("td", {}, `${of.a || "somebody"} and ${of.b || "somebody"}`),
    h("td", {}, `${figure(of.agreed)} of ${figure(of.episodes)}`), h("td", {}, of.kappa === null ? "–" : of.kappa.toFixed(2)), h("td", {}, apart(of))]);
  return h("section.dc-card.sv-agree", {}, h("h2", {}, "How far people agree"),
    rows.length ? [table(["about", "", "the same", "kappa", "apart"], rows), h("p.soft", {}, "Cohen's kappa: 1 is full agreement, 0 as much as by chance. It is not defined where both always say one value.")] : null,
    plan.reviews.map((r) => h("p.soft", {}, `${r.by} has looked at what ${r.of} decided: ${figure(r.confirmed)} confirmed, ${figure(r.contradicted)} contradicted.`)));
}

function saving(plan, key, take) {
  const must = !plan.may.version || plan.trims;
  const name = h("input.sv-name", { type: "text", maxlength: 60, pattern: "[A-Za-z0-9._\\-]+", placeholder: must ? "name" : "the next version, or a name", "aria-label": "name", autocomplete: "off", spellcheck: "false", required: must, input: () => tell() });
  const line = h("code", {});
  const file = h("a", { href: media("decisions", { d: key }), download: "decisions.csv" }, "decisions.csv");
  const go = h("button.dc-start", { type: "submit" }, "Save");
  const said = h("div");
  function tell() {
    line.textContent = [plan.command, name.value.trim() ? `--name ${name.value.trim()}` : must ? "--name NAME" : ""].filter(Boolean).join(" ");
    go.disabled = Boolean(plan.num_clashes) || (must && !name.value.trim());
  }
  const form = h("form", { submit: async (e) => {
    e.preventDefault();
    go.disabled = true;
    said.replaceChildren(h("p.soft", { role: "status" }, "…"));
    try {
      const made = await post("apply", { d: key }, { as: name.value.trim(), revision: plan.revision, take: take ? [take] : [] });
      say("saved");
      form.replaceChildren(saved(made));
    } catch (error) {
      said.replaceChildren(problem(error));
      tell();
    }
  } },
    h("h2", {}, "Save"),
    h("p.soft", {}, plan.may.why || (plan.trims ? "Steps are cut off: the result is another dataset, and this one stays as it is." : "Without a name, it is the next version; earlier ones stay.")),
    h("p.dc-done", {}, h("label", {}, `${plan.id.split("@")[0]}@ `, name), go), said,
    h("p.soft", {}, "The command that does the same, with ", file, ":"), h("p", {}, line));
  tell();
  return h("section.dc-card", {}, form);
}

function saved(made) {
  const home = link(["d", made.id]);
  return h("div.sv-saved", {}, h("h2", {}, "Saved"), h("p", {}, h("a", { href: home }, `${made.id}, version ${made.version}`), `: ${plural(made.episodes, "episode")}${made.back ? "" : ", as it was: nothing changes"}`),
    h("p.soft", {}, "fingerprint ", h("code", {}, made.fingerprint)), h("p.soft", {}, made.back ? ["To take it back: ", h("code", {}, made.back)] : null));
}
