// The keys of a video editor.

import { h, style } from "./base.js";

/** Listen to keys until `close` is called; `act` has a function for each, `more` those that it is given besides. */
export function keys(act, more = { help: [], pressed: {} }) {
  const dialog = h("dialog.keys", { "aria-label": "keys", click: (e) => e.target === dialog && dialog.close() });
  document.body.append(dialog);
  const help = async () => {
    const [list] = await Promise.all([import("./help.js"), style("help")]);
    dialog.replaceChildren(...list.help(more.help));
    if (!dialog.open) dialog.showModal();
  };
  const pressed = {
    " ": act.toggle, k: act.toggle, l: () => act.shuttle(1), j: () => act.shuttle(-1), ",": () => act.move(-1), ".": () => act.move(1),
    Home: act.first, End: act.last, i: act.mark_in, o: act.mark_out, x: act.unloop, n: () => act.other(1), p: () => act.other(-1),
    "+": () => act.zoom(0.5), "=": () => act.zoom(0.5), "-": () => act.zoom(2), "−": () => act.zoom(2), 0: () => act.zoom(null), "?": help,
    ...more.pressed,
  };
  const listen = (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented || dialog.open) return;
    const tag = e.target.tagName, kind = e.target.type;
    if (["SELECT", "TEXTAREA"].includes(tag) || (tag === "INPUT" && kind !== "checkbox")) return;
    if (e.key === " " && ["BUTTON", "SUMMARY", "INPUT", "A"].includes(tag)) return;
    const arrow = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[e.key];
    const vertical = e.key === "ArrowUp" || e.key === "ArrowDown";
    let known = pressed[e.key] ?? pressed[e.key.toLowerCase()];
    if (arrow && (!vertical || e.target.role === "slider")) known = () => (e.shiftKey ? act.skip(arrow) : act.move(arrow));
    if (e.key === "PageUp" || e.key === "PageDown") known = e.target.role === "slider" ? () => act.skip(e.key === "PageUp" ? 10 : -10) : null;
    if (!known) return;
    e.preventDefault();
    known(e);
  };
  addEventListener("keydown", listen);
  return {
    help,
    close() {
      removeEventListener("keydown", listen);
      dialog.remove();
    },
  };
}
