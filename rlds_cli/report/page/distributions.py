"""The sections on distributions: returns and lengths over episodes, every element of every field over steps."""

from __future__ import annotations

from rlds_cli import sizes
from rlds_cli.report import svg
from rlds_cli.report.columns import FieldSummary
from rlds_cli.report.histograms import Distribution
from rlds_cli.report.page import charts
from rlds_cli.report.page.content import MOST_DOTS, Content
from rlds_cli.report.page.markup import Markup, tag
from rlds_cli.report.page.spreads import Spread, Spreads
from rlds_cli.report.svg import tick

_HEADINGS = ("Field", "Placed", "Type", "Shape", "On disk", "Mean", "Std", "Min", "Max", "Remarks")
_FIGURES = (4, 5, 6, 7, 8)  # columns of numbers


def over_episodes(c: Content) -> Markup:
    """The section on returns and lengths."""
    parts = [_distribution("Returns", "return", c.returns, c), _distribution("Lengths", "steps", c.lengths, c)]
    if len(c.dots) > 1:
        of = c.summary.counts.episodes
        sampled = f"{len(c.dots):,} of {of:,} episodes." if of > MOST_DOTS else "Every episode is a dot."
        parts.append(_figure("Return against length", charts.dots(c.dots), sampled))
    return tag("section", tag("h2", "Episodes at large"), tag("div", parts, class_="charts"), id="distributions")


def _distribution(title: str, x: str, d: Distribution | None, c: Content) -> Markup | None:
    if d is None:
        return None
    wide, high = charts.CHART
    chart = svg.bars(d.histogram, title=title, x=x, y="episodes", width=wide, height=high, standalone=False)
    said = f"Least {tick(d.min)}, median {tick(d.median)}, mean {tick(d.mean)}, greatest {tick(d.max)}."
    s = c.summary.scores
    if x == "return" and s:
        said += f" As scores: {s.min:.1f}, {s.median:.1f}, {s.mean:.1f}, {s.max:.1f}."
    return _figure(title, Markup(chart), said)


def _figure(title: str, chart: Markup, says: str) -> Markup:
    return tag("figure", tag("h3", title), chart, tag("figcaption", says))


def over_steps(c: Content) -> Markup:
    """The section on fields and their elements."""
    summaries = {f.name: f for f in c.summary.fields}
    groups = [_group(s, summaries[s.field.name]) for s in c.spreads]
    left = f"No histograms of {', '.join(c.uncounted)}." if c.uncounted else ""
    return tag(
        "section",
        tag("h2", "Fields"),
        _table(c),
        tag("h3", "How values are spread"),
        tag("p", _sampling(c), class_="aside"),
        tag("div", groups, class_="spreads"),
        tag("p", left, class_="aside") if left else None,
        id="fields",
    )


def _sampling(c: Content) -> str:
    steps = sizes.plural(c.summary.counts.steps, "step")
    some = "evenly spaced stretches where a field says so, else " if any(s.sampled for s in c.spreads) else ""
    return f"Histograms are of {some}all {steps}; the line marks the mean. Figures are over all steps."


def _table(c: Content) -> Markup:
    head = (tag("th", h, scope="col", class_="figure" if k in _FIGURES else None) for k, h in enumerate(_HEADINGS))
    rows = (_row(f) for f in c.summary.fields)
    table = tag("table", tag("caption", "All fields"), tag("thead", tag("tr", head)), tag("tbody", rows))
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="All fields")


def _row(f: FieldSummary) -> Markup:
    numbers = [("" if x is None else tick(x)) for x in (f.mean, f.std, f.min, f.max)]
    remarks = [] if f.default else ["not loaded by default"]
    remarks += [f"{100 * f.saturation.share:.0f} % saturated"] if f.saturation else []
    remarks += [f"{f.nonfinite:,} not finite"] if f.nonfinite else []
    remarks += [sizes.plural(f.distinct, "text")] if f.distinct is not None else []
    shape = " × ".join(map(str, f.shape)) or "scalar"
    cells = [f.placement, f.codec or ("text" if f.kind == "text" else f.dtype), shape, sizes.text(f.bytes), *numbers]
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
        charts.small(e, says),
        tag("p", tag("span", left), tag("span", right), class_="ends", aria_hidden="true"),
        tag("p", ", ".join(remarks), class_="remark") if remarks else None,
    )
