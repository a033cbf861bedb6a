// The table of episodes: sorts by any column, filters, pages; the filter stands below it as a selection in Python.
(() => {
  const table = byId("episode-table");
  const columns = DATA.columns;
  const heads = [...table.tHead.rows[0].cells];
  const all = columns.number.map((_, k) => k);
  const state = { key: "number", down: false, page: 0, rows: all };

  const control = (id) => byId(`filter-${id}`);
  const bound = (id) => {
    const value = control(id) ? control(id).value : "";
    return value === "" ? null : Number(value);
  };

  function comparable(key, kind, row) {
    const value = columns[key][row];
    if (kind === "splits") return value.map((i) => DATA.splits[i]).join(", ");
    return kind === "end" ? DATA.ends[value] : value;
  }

  // Values that are not there come last, whichever way; equal ones by number.
  function sorted(rows) {
    const kind = heads.find((head) => head.dataset.key === state.key).dataset.kind;
    const numeric = state.key === "seed" && columns.seed.every((s) => s.length < 16);
    const value = (row) => {
      const found = comparable(state.key, kind, row);
      return found === "" || found === null ? null : numeric ? Number(found) : found;
    };
    const text = new Intl.Collator("en", { numeric: true });
    const way = state.down ? -1 : 1;
    return [...rows].sort((i, j) => {
      const [a, b] = [value(i), value(j)];
      if (a === null || b === null) return (a === null) - (b === null) || i - j;
      return (typeof a === "string" ? text.compare(a, b) : a - b) * way || i - j;
    });
  }

  function conditions() {
    const found = [];
    const within = (key, name) => {
      const [least, most] = [bound(`${key}-least`), bound(`${key}-most`)];
      if (least !== null) found.push([(k) => columns[key][k] !== null && columns[key][k] >= least, `${name} >= ${least}`]);
      if (most !== null) found.push([(k) => columns[key][k] !== null && columns[key][k] <= most, `${name} <= ${most}`]);
    };
    const end = control("end").value;
    if (end) found.push([(k) => DATA.ends[columns.end[k]] === end, `end == '${end}'`]);
    within("length", "length");
    within("total", "total_reward");
    const split = control("split") ? control("split").value : "";
    if (split) found.push([(k) => columns.splits[k].includes(Number(split)), null]);
    const words = control("group") ? control("group").value.toLowerCase() : "";
    if (words) found.push([(k) => columns.group[k].toLowerCase().includes(words), null]);
    if (control("findings").checked) found.push([(k) => columns.findings[k] > 0, null]);
    if (control("viewed").checked) found.push([(k) => VIEWED.has(columns.number[k]), null]);
    return found;
  }

  function python(found) {
    const split = control("split") ? control("split").value : "";
    const where = found.map((pair) => pair[1]).filter(Boolean).join(" and ");
    const parts = [split && `split=${JSON.stringify(DATA.splits[split])}`, where && `where=${JSON.stringify(where)}`];
    const rest = parts.filter(Boolean).join(", ");
    return `rlds_cli.open_dataset(${JSON.stringify(DATA.id)})${rest && `.select(${rest})`}`;
  }

  function cell(head, row) {
    const { key, kind } = head.dataset;
    const value = columns[key][row];
    if (kind === "episode") {
      const words = whole(value);
      const shown = VIEWED.has(value) ? make("a", { href: `#episode-${value}` }, words) : words;
      return make("th", { scope: "row" }, shown);
    }
    const words = {
      whole: () => whole(value), count: () => (value ? whole(value) : "–"), number: () => figure(value),
      tenth: () => (value === null ? "–" : value.toFixed(1)), end: () => DATA.ends[value],
      yes: () => (value ? "yes" : "no"), splits: () => value.map((i) => DATA.splits[i]).join(", "),
    }[kind];
    return make("td", { class: head.className || null }, words ? words() : value);
  }

  function draw() {
    const pages = Math.max(1, Math.ceil(state.rows.length / DATA.rows));
    state.page = Math.min(state.page, pages - 1);
    const first = state.page * DATA.rows;
    const shown = state.rows.slice(first, first + DATA.rows);
    const line = (row) => make("tr", {}, ...heads.map((head) => cell(head, row)));
    table.tBodies[0].replaceChildren(...shown.map(line));
    for (const head of heads) {
      const way = head.dataset.key !== state.key ? "none" : state.down ? "descending" : "ascending";
      head.setAttribute("aria-sort", way);
    }
    const listed = plural(all.length, "episode");
    const some = state.rows.length < all.length ? `${whole(state.rows.length)} of ${listed} match` : listed;
    const range = shown.length ? `${whole(first + 1)} to ${whole(first + shown.length)} shown` : "none shown";
    byId("listed").textContent = `${some}; ${range}.`;
    byId("page-number").textContent = `Page ${whole(state.page + 1)} of ${whole(pages)}`;
    byId("page-before").disabled = state.page === 0;
    byId("page-after").disabled = state.page >= pages - 1;
  }

  function filter() {
    const found = conditions();
    state.rows = sorted(all.filter((row) => found.every(([holds]) => holds(row))));
    byId("selection").textContent = python(found);
    state.page = 0;
    draw();
  }

  for (const head of heads) {
    head.querySelector("button").addEventListener("click", () => {
      const { key, kind } = head.dataset;
      const numbers = ["number", "tenth", "whole", "count"].includes(kind);
      state.down = state.key === key ? !state.down : numbers;
      state.key = key;
      state.rows = sorted(state.rows);
      state.page = 0;
      draw();
    });
  }
  const form = byId("filters");
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", (event) => event.preventDefault());
  const turn = (by) => () => { state.page += by; draw(); };
  byId("page-before").addEventListener("click", turn(-1));
  byId("page-after").addEventListener("click", turn(1));
  byId("copy-selection").addEventListener("click", (event) => copy(event.currentTarget, byId("selection").textContent));
  filter();
})();
