"""The sections on distributions: returns and lengths over episodes, every element of every field over steps."""

from __future__ import annotations

from rlds_cli import sizes
from rlds_cli.report import svg
from rlds_cli.report.columns import FieldSummary
from rlds_cli.report.histograms import Distribution
from rlds_cli.report.page import charts
from rlds_cli.report.page.content import Content
from rlds_cli.report.page.markup import Markup, join, tag
from rlds_cli.report.page.spreads import Spread, Spreads
from rlds_cli.report.svg import tick

_HEADINGS = ("Field", "Placed", "Type", "Shape", "On disk", "Mean", "Std", "Min", "Max", "Remarks")
_FIGURES = (4, 5, 6, 7, 8)  # columns of numbers


def over_episodes(c: Content) -> Markup:
    """The section on returns and lengths."""
    parts = [_distribution("Returns", "return", c.returns, c), _distribution("Lengths", "steps", c.lengths, c)]
    if len(c.dots) > 1:
        of = c.summary.counts.episodes
        sampled = (
            f"{len(c.dots):,} evenly spaced episodes of {of:,}." if len(c.dots) < of else "Every episode is a dot."
        )
        parts.append(tag("figure", charts.dots(c.dots), tag("figcaption", sampled)))
    return tag("section", tag("h2", "Episodes at large"), tag("div", parts, class_="charts"), id="distributions")


def _distribution(title: str, x: str, d: Distribution | None, c: Content) -> Markup | None:
    if d is None:
        return None
    chart = Markup(svg.bars(d.histogram, title=title, x=x, y="episodes", standalone=False))
    said = f"Least {tick(d.min)}, median {tick(d.median)}, mean {tick(d.mean)}, greatest {tick(d.max)}."
    s = c.summary.scores
    if x == "return" and s:
        said += f" Scores: {s.min:.1f}, {s.median:.1f}, {s.mean:.1f}, {s.max:.1f}."
    return tag("figure", chart, tag("figcaption", said))


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
        groups,
        tag("p", left, class_="aside") if left else None,
        id="fields",
    )


def _sampling(c: Content) -> str:
    sampled = [s.steps for s in c.spreads if s.sampled]
    steps = sizes.plural(c.summary.counts.steps, "step")
    some = f"at most {max(sampled):,} of {steps}, in evenly spaced stretches" if sampled else f"all {steps}"
    return f"Histograms are of {some}; the line marks the mean. Figures are over all steps."


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
    title = tag("summary", tag("code", s.field.name), " ", tag("span", f"{s.field.dtype} · {shape}{hidden}"))
    return tag(
        "details", title, tag("div", (_element(s, e) for e in s.elements), class_="elements"), open=f.default,
        class_="field",
    )  # fmt: skip


def _element(s: Spreads, e: Spread) -> Markup:
    name = s.field.name + e.index
    images = not e.index and bool(s.field.shape)
    label = "all values" if images else e.index or s.field.name.rpartition("/")[2]
    low, mean, std, high = (tick(x) for x in (e.min, e.mean, e.std, e.max))
    says = f"{name}: least {low}, mean {mean}, standard deviation {std}, greatest {high}"
    remarks = [f"{e.outside:,} beyond the bars"] if e.outside else []
    remarks += [f"{e.nonfinite:,} not finite"] if e.nonfinite else []
    ends = join(tag("span", low), tag("span", f"{mean} ± {std}", class_="middle"), tag("span", high))
    return tag(
        "figure",
        tag("figcaption", label),
        charts.small(e, says),
        tag("p", ends, class_="ends", aria_hidden="true"),
        tag("p", ", ".join(remarks), class_="remark") if remarks else None,
    )
