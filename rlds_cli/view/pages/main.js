// Which page is shown: the home, a dataset with its episodes, or one episode.

import { ended, get, h, latest, link, place, problem, style } from "./base.js";
import { follow } from "./follow.js";

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
  const table = Object.fromEntries(["v", "where", "sort", "desc", "at"].map((n) => [n, parts[0] === "e" || n === "v" ? query.get(n) : null]));
  document.getElementById("top").replaceChildren(
    h("strong", {}, h("a", { href: link([]) }, "rlds view")),
    parts[1] && parts[0] !== "b" ? h("a.id", { href: link(["d", parts[1]], table) }, about.named.find((n) => n.key === parts[1])?.id ?? parts[1]) : "",
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
    const said = error instanceof TypeError && /import/.test(error.message) ? ended() : error;
    box.replaceChildren(problem(said));
    if (said.status === undefined) console.error(error);
    leave = again(parts, said);
  }
}

/** Show a page that failed again when what it lacked may be there: an answer, a dataset, an episode of one that grows. */
function again([kind, key], { status, type }) {
  const life = new AbortController();
  const of = PAGES[kind] && kind !== "b" ? { path: "changed", parameters: { d: key } } : status === 0 ? { path: "about" } : null;
  const isThere = status !== 0 && type !== "DatasetNotFound";
  const known = of && isThere ? latest(of.path, of.parameters) : null; // what is asked for now may be newer than what failed
  if (of) follow(null, { ...of, known, signal: life.signal, changed: () => show() });
  return () => life.abort();
}

const about = await get("about");
document.body.dataset.version = about.rlds_version;
addEventListener("hashchange", show);
show();
