// One episode.

import { h } from "./base.js";

export async function episode(main, [key, number]) {
  main.append(h("h1", {}, `${key} ${number}`));
}
