// Conditions of single columns within an expression of `--where`: put in, changed, and taken out again.

const WORD = /^(?!(?:and|or|not|in|is|True|False|None|if|else|for|lambda|async|await)$)[A-Za-z_][A-Za-z0-9_]*$/;
const NUMBER = "-?\\d+(?:\\.\\d+)?(?:e[-+]?\\d+)?";
const TEXT = "'(?:\\\\.|[^'\\\\])*'";
const escape = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

export const quoted = (name) => (WORD.test(name) ? name : `\`${name}\``);
export const text = (value) => `'${value.replace(/[\\']/g, "\\$&").replace(/\n/g, "\\n").replace(/\r/g, "\\r")}'`;

/** The condition of a column that an expression has, as these pages write it: {at, length, low, high, values, not}. */
export function condition(where, name) {
  const q = escape(quoted(name));
  const forms = [`(?<low>${NUMBER}) <= ${q} <= (?<high>${NUMBER})`, `${q} >= (?<from>${NUMBER})`, `${q} <= (?<to>${NUMBER})`,
    `${q} in \\((?<list>${TEXT}(?:, ${TEXT})+)\\)`, `${q} == (?<one>${TEXT})`, `${q} is (?<none>None)`, `${q} == (?<no>False)`, `(?<not>not )?${q}(?! *[-+*/<>=!.(]| in| is| not)`];
  const found = new RegExp(`(?<=^|\\band |\\()(?:${forms.join("|")})(?=$| and|\\))`).exec(where);
  if (!found) return null;
  const g = found.groups;
  const number = (...of) => Number(of.find((x) => x !== undefined) ?? NaN);
  const values = (g.list ?? g.one)?.match(new RegExp(TEXT, "g")).map((t) => t.slice(1, -1).replace(/\\(.)/g, (_, c) => ({ n: "\n", r: "\r" })[c] ?? c));
  const flag = found[0].endsWith(quoted(name)) ? [!g.not] : null;
  return { at: found.index, length: found[0].length, low: number(g.low, g.from), high: number(g.high, g.to), values: values ?? (g.none ? [null] : g.no ? [false] : flag) ?? [] };
}

/** The expression with another condition of a column; none takes it out. */
export function withCondition(where, name, wanted) {
  const found = condition(where, name);
  if (!found) {
    if (!wanted || !where.trim()) return wanted || where;
    return `${/\bor\b|\bif\b|\|/.test(where) && !/^\([^()]*\)$/.test(where) ? `(${where})` : where} and ${wanted}`;
  }
  const before = where.slice(0, found.at), after = where.slice(found.at + found.length);
  if (wanted) return before + wanted + after;
  return before.endsWith(" and ") ? before.slice(0, -5) + after : before + after.replace(/^ and /, "");
}

/** The condition that numbers lie between two others, either of which may be missing. */
export function between(name, low, high) {
  const q = quoted(name);
  if (low !== null && high !== null) return `${low} <= ${q} <= ${high}`;
  return low !== null ? `${q} >= ${low}` : high !== null ? `${q} <= ${high}` : "";
}

/** The condition that a column has one of some values. */
export function among(name, values) {
  const q = quoted(name);
  if (!values.length) return "";
  if (values[0] === null) return `${q} is None`;
  if (typeof values[0] === "boolean") return values[0] ? q : `${q} == False`; // not q has those without a value, too
  return values.length === 1 ? `${q} == ${text(values[0])}` : `${q} in (${values.map(text).join(", ")})`;
}
