// A dataset: what it is, and its episodes.

import { h, link } from "./base.js";

export async function dataset(main, [key]) {
  main.append(h("p", {}, h("a", { href: link(["e", key, "0"]) }, "episode 0")));
}
