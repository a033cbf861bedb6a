// The home: its datasets, and what the command named.

import { get, h, link } from "./base.js";

export async function home(main) {
  const about = await get("about");
  main.append(h("ul", {}, about.named.map((d) => h("li", {}, h("a.id", { href: link(["d", d.key]) }, d.id)))));
}
