"""The sections of the page, except the episodes: head, summary, findings, and distributions with their charts.

Places of findings are links into the viewer if it has the episode.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlds_cli import text
from rlds_cli.dataset import history
from rlds_cli.dataset.provenance import CHANGES
from rlds_cli.files.hashing import short
from rlds_cli.registry import link
from rlds_cli.report import plots
from rlds_cli.report.html.content import MOST_DOTS, Dot, PageContent
from rlds_cli.report.html.markup import Markup, join, tag
from rlds_cli.report.plots import Scale, tick, ticks
from rlds_cli.ted import END_NAMES

if TYPE_CHECKING:
    from rlds_cli.checks.findings import Finding, FindingPlace
    from rlds_cli.report.columns import Distribution
    from rlds_cli.report.html.spreads import Spread, Spreads
    from rlds_cli.report.summary import FieldSummary, Summary

_LINKS = ("https://", "http://")
_LONGEST = 2000  # characters of a description
_WORDS = {"error": "Error", "warning": "Warning", "note": "Note"}
_HEADINGS = ("Field", "Placed", "Type", "Shape", "On disk", "Mean", "Std", "Min", "Max", "Remarks")
_FIGURES = (4, 5, 6, 7, 8)  # columns of numbers
_WIDTH, _HEIGHT = 240, 60
CHART = (460, 280)  # width and height of the charts over episodes
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 36, 44  # as of the charts in `svg`


def head(c: PageContent) -> Markup:
    """The name of the dataset, one line about it, and the most important figures."""
    s = c.summary
    lead = " · ".join(filter(None, (s.about.title, s.about.env_id, s.about.algorithm)))
    return tag(
        "header",
        tag("p", "Dataset report", class_="kind"),
        tag("h1", s.id),
        tag("p", lead, class_="lead") if lead else None,
        tag("ul", (tag("li", tag("strong", n), " ", tag("span", what)) for n, what in _tiles(c)), class_="tiles"),
        class_="top",
    )


def _tiles(c: PageContent) -> Iterator[tuple[str, str]]:
    s, counts = c.summary, c.summary.counts
    yield f"{counts.steps:,}", "step" if counts.steps == 1 else "steps"
    yield f"{counts.episodes:,}", "episode" if counts.episodes == 1 else "episodes"
    yield f"{counts.transitions:,}", "transitions"
    if c.returns:
        yield tick(c.returns.median), "median return"
    if s.scores:
        yield f"{s.scores.median:.1f}", "median score"
    yield text.size_of(s.bytes), f"on disk, {s.encoding}"


def about(c: PageContent) -> Markup:
    """The section with a description of the dataset and its origin."""
    s = c.summary
    description = s.about.description
    return tag(
        "section",
        tag("h2", "Summary"),
        tag("p", description[:_LONGEST], class_="description") if description else None,
        tag(
            "div",
            _facts("Dataset", _dataset(s)),
            _facts("Origin", _origin(s)),
            class_="pair",
        ),
        _ends(s),
        _chain(s.provenance),
        id="summary",
    )


def _facts(title: str, facts: Iterator[tuple[str, Markup | str]]) -> Markup:
    pairs = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    return tag("div", tag("h3", title), tag("dl", pairs, class_="facts"), class_="card")


def _dataset(s: Summary) -> Iterator[tuple[str, Markup | str]]:
    a = s.about
    if a.portion:
        yield "Part of the archive", a.portion
    if a.env_id:
        yield "Environment", a.env_id
    if a.max_episode_steps:
        yield "Time limit", text.plural(a.max_episode_steps, "step")
    if a.algorithm:
        yield "Behaviour", a.algorithm
    if a.ref_min_score is not None and a.ref_max_score is not None:
        yield "Score", f"0 for a return of {tick(a.ref_min_score)}, 100 for {tick(a.ref_max_score)}"
    known, of = s.counts.final_observations, s.counts.episodes
    yield "Final observations", "recorded" if known == of else f"recorded for {known:,} of {of:,} episodes"
    if s.splits:
        yield "Splits", ", ".join(f"{name} ({text.plural(n, 'episode')})" for name, n in list(s.splits.items())[:20])
    yield "Fingerprint", join(tag("code", short(s.fingerprint)), " ", _copy(s.fingerprint, "whole fingerprint"))
    yield "Converted", f"{s.created} by rlds {s.rlds_version}, reader {s.reader}"
    if s.metadata:
        more = len(s.metadata) - 8
        yield "Metadata", ", ".join(s.metadata[:8]) + (f", {more} more" if more > 0 else "")


def _origin(s: Summary) -> Iterator[tuple[str, Markup | str]]:
    a, archive = s.about, s.archive
    first = archive.get("first") or {}
    if first:
        more = int(archive.get("files") or 1) - 1
        yield "Archive", str(first.get("file")) + (f" and {more:,} more" if more > 0 else "")
    if archive.get("bytes") is not None and first:
        yield "Size", text.size_of(float(archive["bytes"]))
    if archive.get("sha256"):
        sha = str(archive["sha256"])
        yield "SHA-256", join(tag("code", f"{sha[:12]}…"), " ", _copy(sha, "whole SHA-256"))
    if a.source:
        yield "Source", _linked(a.source)
    if a.author:
        yield "Author", a.author
    yield "Licence", a.licence or "not stated"
    if a.paper:
        yield "Paper", _linked(link(a.paper), a.paper)
    if a.homepage:
        yield "Homepage", _linked(a.homepage)


def _linked(url: str, words: str | None = None) -> Markup | str:
    """A link for a web address; other addresses stay text."""
    return tag("a", words or url, href=url, rel="noreferrer") if url.startswith(_LINKS) else words or url


def _copy(value: str, what: str) -> Markup:
    return tag("button", "copy", type="button", class_="copy needs-script", data_copy=value, aria_label=f"Copy {what}")


def _ends(s: Summary) -> Markup:
    c = s.counts
    parts = [("terminated", c.terminated), ("truncated", c.truncated), ("cut", c.cut)]
    says = "Episode ends: " + ", ".join(f"{n:,} {name}" for name, n in parts)
    key = (
        tag("li", tag("span", class_=f"swatch is-{name}"), f"{name} ", tag("strong", f"{n:,}"))
        for name, n in parts
        if n
    )
    inside = (
        tag("p", f"{text.plural(c.terminated_inside, 'terminated step')} inside episodes.", class_="aside")
        if c.terminated_inside
        else None
    )
    return tag("div", tag("h3", "Episode ends"), shares(parts, says), tag("ul", key, class_="key"), inside)


def _chain(steps: tuple[Mapping[str, Any], ...]) -> Markup | None:
    if not steps:
        return None
    return tag("div", tag("h3", "Provenance"), tag("ol", (tag("li", _made(step)) for step in steps)))


def _made(step: Mapping[str, Any]) -> Markup:
    args = ", ".join(f"{k}={v}" for k, v in step["args"].items())
    source = short(step.get("of", step["source"]))
    if step["unit"] in CHANGES:
        return join(tag("code", history.described(step)), ", from ", tag("code", step["from"]), f" ({source})")
    return join(
        tag("code", f"{step['reference']}({args})"), f", unit {step['unit']}, from ", tag("code", step["from"]),
        f" ({source})",
    )  # fmt: skip


# -- findings


def findings(c: PageContent) -> Markup:
    """The section on findings."""
    r, viewed = c.check, {v.number for v in c.viewing.episodes}
    counts = (text.plural(r.errors, "error"), text.plural(r.warnings, "warning"), text.plural(r.notes, "note"))
    said = ", ".join(counts) if r.findings else "nothing found"
    return tag(
        "section",
        tag("h2", "Integrity"),
        tag("p", f"Every row was read: {said}.", class_="aside"),
        tag("ul", (_finding(f, viewed) for f in r.findings), class_="findings") if r.findings else None,
        tag("p", tag("span", "✓ ", aria_hidden="true"), f"No findings: {', '.join(r.ok)}.", class_="aside")
        if r.ok
        else None,
        tag("ul", (tag("li", f"Not checked: {name} ({why})") for name, why in r.skipped.items()), class_="aside")
        if r.skipped
        else None,
        id="integrity",
    )


def _finding(f: Finding, viewed: Collection[int]) -> Markup:
    places = [_place(p, viewed) for p in f.places]
    more = f.count - len(places)
    return tag(
        "li",
        tag("span", _WORDS[f.severity], class_="severity"),
        tag(
            "div",
            tag("p", f.text),
            tag("p", _spaced(places), f" and {more:,} more" if places and more > 0 else None, class_="places")
            if places
            else None,
            tag("p", f.in_episodes, class_="places") if places and f.num_episodes > 1 else None,
            tag(
                "p", tag("code", f.code), f" · field {f.field}" if f.field else None,
                f" · known as {', '.join(f.known)}" if f.known else None, class_="aside",
            ),
        ),
        class_=f"finding {f.severity}",
    )  # fmt: skip


def _spaced(parts: list[Markup | str]) -> Markup:
    return join(*(item for k, part in enumerate(parts) for item in ((" · ", part) if k else (part,))))


def _place(p: FindingPlace, viewed: Collection[int]) -> Markup | str:
    if p.episode not in viewed:
        return str(p)
    return tag("a", str(p), href=f"#episode-{p.episode}" + ("" if p.step is None else f"-step-{p.step}"))


# -- distributions over episodes and steps


def over_episodes(c: PageContent) -> Markup:
    """The section on returns and lengths."""
    parts = [_distribution("Returns", "return", c.returns, c), _distribution("Lengths", "steps", c.lengths, c)]
    if len(c.dots) > 1:
        of = c.summary.counts.episodes
        sampled = f"{len(c.dots):,} of {of:,} episodes." if of > MOST_DOTS else "Every episode is a dot."
        parts.append(_figure("Return against length", dots(c.dots), sampled))
    return tag("section", tag("h2", "Episode distributions"), tag("div", parts, class_="charts"), id="distributions")


def _distribution(title: str, x: str, d: Distribution | None, c: PageContent) -> Markup | None:
    if d is None:
        return None
    wide, high = CHART
    chart = plots.bars(d.histogram, title=title, x=x, y="episodes", width=wide, height=high, standalone=False)
    said = f"Minimum {tick(d.min)}, median {tick(d.median)}, mean {tick(d.mean)}, maximum {tick(d.max)}."
    s = c.summary.scores
    if x == "return" and s:
        said += f" As scores: {s.min:.1f}, {s.median:.1f}, {s.mean:.1f}, {s.max:.1f}."
    return _figure(title, Markup(chart), said)


def _figure(title: str, chart: Markup, says: str) -> Markup:
    return tag("figure", tag("h3", title), chart, tag("figcaption", says))


def over_steps(c: PageContent) -> Markup:
    """The section on fields and their elements."""
    summaries = {f.name: f for f in c.summary.fields}
    groups = [_group(s, summaries[s.field.name]) for s in c.spreads]
    left = f"No histograms of {', '.join(c.uncounted)}." if c.uncounted else ""
    return tag(
        "section",
        tag("h2", "Fields"),
        _table(c),
        tag("h3", "Value distributions"),
        tag("p", _sampling(c), class_="aside"),
        tag("div", groups, class_="spreads"),
        tag("p", left, class_="aside") if left else None,
        id="fields",
    )


def _sampling(c: PageContent) -> str:
    steps = text.plural(c.summary.counts.steps, "step")
    some = ", or of evenly spaced ones for fields marked as sampled" if any(s.sampled for s in c.spreads) else ""
    return f"Histograms are of all {steps}{some}; the line marks the mean. Figures are over all steps."


def _table(c: PageContent) -> Markup:
    head = (tag("th", h, scope="col", class_="figure" if k in _FIGURES else None) for k, h in enumerate(_HEADINGS))
    rows = (_row(f) for f in c.summary.fields)
    table = tag("table", tag("caption", "All fields"), tag("thead", tag("tr", head)), tag("tbody", rows))
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="All fields")


def _row(f: FieldSummary) -> Markup:
    numbers = [("" if x is None else tick(x)) for x in (f.mean, f.std, f.min, f.max)]
    remarks = [] if f.default else ["not loaded by default"]
    remarks += [f"{100 * f.saturation.share:.0f} % saturated"] if f.saturation else []
    remarks += [f"{f.nonfinite:,} not finite"] if f.nonfinite else []
    remarks += [text.plural(f.distinct, "text")] if f.distinct is not None else []
    shape = " × ".join(map(str, f.shape)) or "scalar"
    cells = [f.placement, f.codec or ("text" if f.kind == "text" else f.dtype), shape, text.size_of(f.bytes), *numbers]
    tags = [tag("td", v, class_="figure" if k in _FIGURES else None) for k, v in enumerate(cells, 1)]
    return tag("tr", tag("th", tag("code", f.name), scope="row"), tags, tag("td", ", ".join(remarks)))


def _group(s: Spreads, f: FieldSummary) -> Markup:
    shape = " × ".join(map(str, s.field.shape)) or "scalar"
    hidden = f", the first {len(s.elements):,} of {len(s.elements) + s.hidden:,}" if s.hidden else ""
    some = f", {s.steps:,} steps sampled" if s.sampled else ""
    title = tag("summary", tag("code", s.field.name), " ", tag("span", f"{s.field.dtype} · {shape}{hidden}{some}"))
    return tag(
        "details", title, tag("div", (_element(s, e) for e in s.elements), class_="elements"), open=f.default,
        class_="field" if len(s.elements) > 1 else "field single",
    )  # fmt: skip


def _element(s: Spreads, e: Spread) -> Markup:
    name = s.field.name + e.index
    images = not e.index and bool(s.field.shape)
    label = "all values" if images else e.index
    low, mean, std, high = (tick(x) for x in (e.min, e.mean, e.std, e.max))
    says = f"{name}: least {low}, mean {mean}, standard deviation {std}, greatest {high}"
    remarks = [f"{e.outside:,} beyond the bars, from {low} to {high}"] if e.outside else []
    left, right = (tick(e.histogram.low), tick(e.histogram.high)) if e.outside else (low, high)
    remarks += [f"{e.nonfinite:,} not finite"] if e.nonfinite else []
    return tag(
        "figure",
        tag("figcaption", tag("span", label), tag("span", f"{mean} ± {std}", class_="middle")),
        small(e, says),
        tag("p", tag("span", left), tag("span", right), class_="ends", aria_hidden="true"),
        tag("p", ", ".join(remarks), class_="remark") if remarks else None,
    )


# -- charts


def small(s: Spread, says: str) -> Markup:
    """The histogram of one element; a line marks the mean."""
    h = s.histogram
    top, n = max(h.counts, default=0) or 1, len(h.counts)
    across, up = Scale(0, n, 0, _WIDTH), Scale(0, top, _HEIGHT, 4)
    gap = 1.0 if n <= 40 else 0.3
    steps = []
    for k, count in enumerate(h.counts):
        if count:
            height = max(_HEIGHT - up(count), 1.0)
            width = min(across(k + 1) - across(k), _WIDTH / 4) - gap
            middle = (across(k) + across(k + 1)) / 2
            steps.append(f"M{middle - width / 2:.1f} {_HEIGHT}v-{height:.1f}h{width:.1f}v{height:.1f}z")
    mean = Scale(h.low, h.high, 0, _WIDTH)(s.mean) if h.low <= s.mean <= h.high and h.high > h.low else None
    marks = [tag("path", class_="bar", d="".join(steps)), tag("path", class_="axis", d=f"M0 {_HEIGHT}H{_WIDTH}")]
    if mean is not None:
        marks.append(tag("path", class_="mean", d=f"M{mean:.1f} 0V{_HEIGHT}"))
    return tag(
        "svg", tag("title", says), marks, viewBox=f"0 0 {_WIDTH} {_HEIGHT + 1}", preserveAspectRatio="none",
        role="img", class_="small",
    )  # fmt: skip


def shares(parts: Sequence[tuple[str, int]], says: str) -> Markup:
    """One bar divided into shares."""
    whole, at, marks = sum(n for _, n in parts) or 1, 0.0, []
    for name, n in parts:
        width = 1000 * n / whole
        marks.append(tag("rect", tag("title", f"{name}: {n:,}"), class_=f"is-{name}", x=f"{at:.2f}", y=0,
                         width=f"{max(width - 2, 0.5) if n else 0:.2f}", height=10))  # fmt: skip
        at += width
    return tag(
        "svg", tag("title", says), marks, viewBox="0 0 1000 10", preserveAspectRatio="none", role="img", class_="shares"
    )


def dots(episodes: Sequence[Dot]) -> Markup:
    """Returns against lengths, a dot per episode."""
    x, y = [float(d.length) for d in episodes], [d.total for d in episodes]
    wide, high = CHART
    across = Scale(*_margin(min(x), max(x)), _LEFT, wide - _RIGHT)
    up = Scale(*_margin(min(y), max(y)), high - _BOTTOM, _TOP)
    marks = [_axes(across, up)]
    for end in END_NAMES:
        here = [f"M{across(d.length):.1f} {up(d.total):.1f}h0" for d in episodes if d.end == end]
        if here:
            marks.append(tag("path", tag("title", end), class_=f"dots is-{end}", d="".join(here)))
    says = f"Return against length of {len(episodes):,} episodes"
    view = f"0 0 {wide} {high}"
    return tag("svg", tag("title", says), marks, viewBox=view, width=wide, height=high, role="img", class_="chart")


def _margin(low: float, high: float) -> tuple[float, float]:
    span = (high - low) * 0.04 or 0.5
    return low - span, high + span


def _axes(across: Scale, up: Scale) -> Markup:
    parts = []
    for value in ticks(up.low, up.high):
        parts.append(tag("path", class_="grid", d=f"M{across.start:.1f} {up(value):.1f}H{across.stop:.1f}"))
        parts.append(_label(across.start - 6, up(value) + 4, tick(value), "end"))
    whole = (value for value in ticks(across.low, across.high) if value == int(value))
    parts += [_label(across(value), up.start + 16, tick(value), "middle") for value in whole]
    frame = f"M{across.start:.1f} {up.stop:.1f}V{up.start:.1f}H{across.stop:.1f}"
    middle = (across.start + across.stop) / 2
    names = (_label(middle, up.start + 34, "steps", "middle"), _label(across.start, up.stop - 6, "return", "start"))
    return join(parts, tag("path", class_="axis", d=frame), names)


def _label(x: float, y: float, words: str, anchor: str, kind: str = "label") -> Markup:
    return tag("text", words, class_=kind, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)
