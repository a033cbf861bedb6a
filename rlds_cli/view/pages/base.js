// What all pages use: the server's answers, elements, and the address of the page.

class Refused extends Error {
  constructor(body, status) {
    super(body.error);
    Object.assign(this, { hint: body.hint, type: body.type, status });
  }
}

export const ended = () => new Refused({ error: "The server does not answer.", hint: "rlds view starts it again, at another address" }, 0);

const known = new Map(); // address -> {etag, value}: records that the server may say are still the same

function address(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, values] of Object.entries(parameters ?? {})) {
    for (const value of [values].flat()) if (value !== undefined && value !== null && value !== "") query.append(name, value);
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** The address of a picture or a video. */
export const media = (path, parameters) => address(`media/${path}`, parameters);

async function ask(path, parameters, signal, change) {
  const url = address(`api/${path}`, parameters);
  const before = known.get(url);
  let response;
  try {
    response = await fetch(url, { signal, cache: "no-store", headers: before ? { "If-None-Match": before.etag } : {}, ...change });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw ended();
  }
  if (response.status === 304 && before) return { response, before, url };
  if (!response.ok) {
    const body = await response.json().catch(() => ({ error: `The server answers ${response.status}.` }));
    throw new Refused(body, response.status);
  }
  return { response, url };
}

const soon = new Map(); // address -> a record that was asked for before its page is shown

/** Ask for a record that will be wanted next. */
export function ahead(path, parameters) {
  const url = address(`api/${path}`, parameters);
  if (!soon.has(url)) soon.set(url, get(path, parameters));
  soon.get(url).catch(() => soon.delete(url));
  if (soon.size > 8) soon.delete(soon.keys().next().value);
}

/** Ask for a change; what is short is sent even if the page is left meanwhile. */
export async function post(path, parameters, record) {
  const body = JSON.stringify(record);
  const { response } = await ask(path, parameters, undefined, { method: "POST", body, headers: { "Content-Type": "application/json" }, keepalive: body.length < 30000 });
  return response.json();
}

/** A record of the server. */
export async function get(path, parameters, signal) {
  const wanted = soon.get(address(`api/${path}`, parameters));
  if (wanted) {
    soon.delete(address(`api/${path}`, parameters));
    return wanted;
  }
  const { response, before, url } = await ask(path, parameters, signal);
  if (before) {
    known.delete(url); // those that are asked for again stay
    known.set(url, before);
    return before.value;
  }
  const value = await response.json();
  const etag = response.headers.get("etag");
  if (etag) {
    known.set(url, { etag, value });
    if (known.size > 64) known.delete(known.keys().next().value);
  }
  return value;
}

/** A record as the server gave it last; null if it has not. */
export const latest = (path, parameters) => known.get(address(`api/${path}`, parameters))?.value ?? null;

/** Bytes of the server, with the headers of the answer. */
export async function bytes(path, parameters, signal) {
  const { response } = await ask(path, parameters, signal);
  return { data: await response.arrayBuffer(), headers: response.headers };
}

/** An element with attributes, listeners (functions) and children; texts are never markup. */
export function h(name, attributes, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag || "div");
  if (tag === "button") element.type = "button";
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat(9).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

/** Say something to everybody who looks or listens. */
export function say(text) {
  document.getElementById("said").textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (document.getElementById("said").textContent = ""), 6000);
}

/** What an error looks like. */
export function problem(error) {
  return h("div.problem", { role: "alert" }, h("p", {}, error.message), error.hint ? h("p.soft", {}, error.hint) : null);
}

const styles = new Map();

/** Fetch the rules of some pages, once. */
export function style(name) {
  const load = (resolve, reject) => document.head.append(h("link", { rel: "stylesheet", href: `pages/${name}.css`, load: resolve, error: () => (styles.delete(name), reject(ended())) }));
  if (!styles.has(name)) styles.set(name, new Promise(load));
  return styles.get(name);
}

/** The page that the address names: its parts, and its parameters. */
export function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query ?? "") };
}

/** The address of a page: ["d", ID], {v: 3} -> "#/d/ID?v=3". */
export function link(parts, parameters) {
  return `#/${address(parts.map(encodeURIComponent).join("/"), parameters)}`;
}

/** Change the parameters of the page without leaving it. */
export function note(parameters, { push = false } = {}) {
  const { parts, query } = place();
  for (const [name, value] of Object.entries(parameters)) {
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, value);
  }
  history[push ? "pushState" : "replaceState"](null, "", link(parts, Object.fromEntries(query)));
}

export const figure = (n) => n.toLocaleString("en");
export const plural = (n, noun) => `${figure(n)} ${noun}${n === 1 ? "" : "s"}`;

/** The greatest number below a count for which something holds that holds for all smaller ones; -1 for none. */
export function last(count, holds) {
  let low = -1;
  for (let high = count; high - low > 1; ) {
    const middle = (low + high) >> 1;
    if (holds(middle)) low = middle;
    else high = middle;
  }
  return low;
}

export const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let k = -1;
  for (; bytes >= 1024 && k < 3; k++) bytes /= 1024;
  return `${bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${units[k]}`;
}

/** A number in at most six characters or so. */
export function short(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (Number.isInteger(x) && Math.abs(x) < 1e7) return x.toLocaleString("en");
  const magnitude = Math.abs(x);
  return magnitude !== 0 && (magnitude >= 1e6 || magnitude < 1e-3) ? x.toExponential(2) : String(Number(x.toPrecision(4)));
}
