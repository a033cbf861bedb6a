// The episode viewer: one step for all curves, film strips and texts; a place of a finding is an address of the page.
(() => {
  if (!DATA.episodes.length) return;
  const stage = { charts: [], films: [], texts: [], episode: null, k: 0, timer: null };
  const slider = byId("step");
  const chooser = byId("episode");

  function section(kind, name, ...content) {
    return make("section", { class: `group ${kind}` }, make("h3", {}, make("code", {}, name)), ...content);
  }

  // A film strip: a large frame, the last one at or before the step, and all frames as buttons.
  function filmOf(name) {
    const large = make("img", { class: "large", alt: "" });
    const list = make("ol", { class: "film", tabindex: 0, "aria-label": `Frames of ${name}` });
    let frames = [];
    let buttons = [];
    let current = -1;
    return {
      element: section("wide", name, make("div", { class: "screen" }, large, list)),
      show(episode) {
        frames = episode.frames[name] || [];
        current = -1;
        buttons = frames.map(([step, uri, width, height]) => {
          const size = { width, height, alt: `${name} at step ${step}` };
          const button = make("button", { type: "button" }, make("img", { src: uri, ...size }), make("span", {}, whole(step)));
          button.addEventListener("click", () => toStep(step));
          return button;
        });
        list.replaceChildren(...buttons.map((button) => make("li", {}, button)));
        large.hidden = frames.length === 0;
      },
      point(step) {
        let found = frames.findIndex((frame) => frame[0] > step);
        found = found === -1 ? frames.length - 1 : Math.max(0, found - 1);
        if (found === current || found < 0) return;
        if (current >= 0) buttons[current].removeAttribute("aria-current");
        buttons[found].setAttribute("aria-current", "true");
        current = found;
        const [at, uri, width, height] = frames[found];
        large.src = uri;
        large.alt = `${name} at step ${at}, large`;
        large.classList.toggle("small-pixels", Math.max(width, height) <= 64);
        const left = buttons[found].offsetLeft - list.offsetLeft;
        if (left < list.scrollLeft || left + buttons[found].offsetWidth > list.scrollLeft + list.clientWidth) {
          list.scrollLeft = left - list.clientWidth / 2;
        }
      },
    };
  }

  function textOf(name) {
    const words = make("p", { class: "words" });
    let changes = [];
    return {
      element: section("", name, words),
      show(episode) { changes = episode.texts[name] || []; },
      point(step) {
        const before = changes.filter(([at]) => at <= step);
        words.textContent = before.length ? before[before.length - 1][1] || "(empty)" : "–";
      },
    };
  }

  function build() {
    const lanes = byId("lanes");
    stage.films = DATA.images.map(filmOf);
    stage.texts = Object.keys(DATA.episodes[0].texts).map(textOf);
    for (const part of [...stage.films, ...stage.texts]) lanes.append(part.element);
    DATA.fields.forEach((field, f) => {
      const charts = field.indices.map((_, i) => chartOf(f, i, toStep));
      stage.charts.push(...charts);
      lanes.append(section(charts.length > 1 ? "wide" : "", field.name, make("div", { class: "lanes" }, ...charts.map((chart) => chart.element))));
    });
  }

  function chips(episode) {
    const found = DATA.places.filter(([number, step]) => number === episode.number && step !== null)
      .map(([, step, severity, text]) => [step, severity, text]);
    const flags = episode.events.map(([step, kind]) => [step, kind, kind]);
    const few = [...found, ...flags].sort((a, b) => a[0] - b[0]).slice(0, 24);
    byId("events").replaceChildren(...few.map(([step, kind, words]) => {
      const button = make("button", { type: "button", class: `chip is-${kind}` }, `${words} · step ${whole(step)}`);
      button.addEventListener("click", () => toStep(step));
      return make("li", {}, button);
    }));
  }

  function point(k) {
    stage.k = k;
    const steps = stepsOf(stage.episode);
    const step = steps[k] || 0;
    const of = `step ${whole(step)} of ${whole(stage.episode.length)}`;
    slider.value = k;
    slider.setAttribute("aria-valuetext", of);
    byId("step-number").textContent = of;
    for (const chart of stage.charts) chart.point(k);
    for (const part of [...stage.films, ...stage.texts]) part.point(step);
  }

  // The nearest of the steps that are in the file.
  function toStep(wanted) {
    const steps = stepsOf(stage.episode);
    let [a, b] = [0, steps.length - 1];
    while (b - a > 1) {
      const middle = (a + b) >> 1;
      if (steps[middle] <= wanted) a = middle;
      else b = middle;
    }
    point(b > a && steps[b] - wanted < wanted - steps[a] ? b : a);
  }

  function show(number, step = 0) {
    stop();
    stage.episode = DATA.episodes[number];
    chooser.value = String(number);
    const row = DATA.columns.number.indexOf(stage.episode.number);
    const [total, score] = [DATA.columns.total, DATA.columns.score];
    const facts = [plural(stage.episode.length, "step"), total && `return ${figure(total[row])}`,
      score && `score ${score[row] === null ? "–" : score[row].toFixed(1)}`, DATA.ends[DATA.columns.end[row]],
      stage.episode.source && `from ${stage.episode.source}`];
    byId("episode-facts").textContent = facts.filter(Boolean).join(" · ");
    slider.max = Math.max(0, stepsOf(stage.episode).length - 1);
    byId("episode-before").disabled = number === 0;
    byId("episode-after").disabled = number === DATA.episodes.length - 1;
    for (const chart of stage.charts) chart.show(stage.episode, byId("common").checked);
    for (const part of [...stage.films, ...stage.texts]) part.show(stage.episode);
    chips(stage.episode);
    toStep(step);
  }

  function stop() {
    clearInterval(stage.timer);
    stage.timer = null;
    byId("play").textContent = "Play";
    byId("play").setAttribute("aria-pressed", "false");
  }

  // About eight seconds for an episode, whatever its length.
  function play() {
    if (stage.timer) return stop();
    const last = Number(slider.max);
    const by = Math.max(1, Math.round(last / 200));
    if (stage.k >= last) point(0);
    byId("play").textContent = "Pause";
    byId("play").setAttribute("aria-pressed", "true");
    stage.timer = setInterval(() => {
      point(Math.min(last, stage.k + by));
      if (stage.k >= last) stop();
    }, Math.max(40, 8000 / Math.max(1, last)));
    return undefined;
  }

  function visit() {
    const found = /^#episode-(\d+)(?:-step-(\d+))?$/.exec(location.hash);
    if (!found || !VIEWED.has(Number(found[1]))) return;
    show(VIEWED.get(Number(found[1])), Number(found[2] || 0));
    byId("viewer").scrollIntoView({ behavior: "instant" });
    slider.focus({ preventScroll: true });
  }

  const current = () => Number(chooser.value);
  chooser.addEventListener("change", () => show(current()));
  slider.addEventListener("input", () => { stop(); point(Number(slider.value)); });
  byId("episode-before").addEventListener("click", () => show(current() - 1));
  byId("episode-after").addEventListener("click", () => show(current() + 1));
  byId("play").addEventListener("click", play);
  byId("common").addEventListener("change", () => show(current(), stepsOf(stage.episode)[stage.k]));
  addEventListener("hashchange", visit);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#episode-']");
    if (link && link.getAttribute("href") === location.hash) visit(); // the same address again changes nothing
  });
  build();
  show(0);
  visit();
})();
