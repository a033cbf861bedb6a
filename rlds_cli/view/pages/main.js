// Which page is shown: the home, a dataset with its episodes, or one episode.

import { ended, get, h, link, place, problem, style } from "./base.js";

const PAGES = { d: "dataset", e: "episode", b: "batch", q: "begin", c: "compare", s: "save" }; // modules, which are fetched when they are shown
const STYLES = { home: "lists", dataset: "lists", batch: "batch" }; // rules of them alone
let leave = null; // what the page that is shown has to end
let turn = 0;

async function show() {
  const { parts, query } = place();
  const main = document.getElementById("main");
  leave?.();
  leave = null;
  const mine = ++turn;
  const box = h("div"); // of this page alone: one that comes late shows nothing
  main.replaceChildren(box);
  document.getElementById("top").replaceChildren(
    h("strong", {}, h("a", { href: link([]) }, "rlds view")),
    parts[1] && parts[0] !== "b" ? h("a.id", { href: link(["d", parts[1]], { v: query.get("v") }) }, about.named.find((n) => n.key === parts[1])?.id ?? parts[1]) : "",
    parts[0] === "e" ? h("span", {}, `episode ${parts[2]}`) : "",
  );
  const name = PAGES[parts[0]] ?? "home";
  try {
    const [module] = await Promise.all([import(`./${name}.js`), STYLES[name] && style(STYLES[name])]);
    const page = module[name];
    if (mine !== turn) return;
    const end = await page(box, parts.slice(1), query);
    if (mine === turn) leave = end ?? null;
    else end?.();
  } catch (error) {
    if (error.name === "AbortError" || mine !== turn) return;
    // a module that does not come is a server that has ended
    box.replaceChildren(problem(error instanceof TypeError && /import/.test(error.message) ? ended() : error));
    if (!error.type && error.status === undefined) console.error(error);
  }
}

const about = await get("about");
document.body.dataset.version = about.rlds_version;
addEventListener("hashchange", show);
show();
