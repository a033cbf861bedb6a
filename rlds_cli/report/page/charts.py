"""Charts of the page that no other output has: the small histogram of an element, episodes as dots, shares of a bar."""

from __future__ import annotations

from collections.abc import Sequence

from rlds_cli.report.page.content import Dot
from rlds_cli.report.page.markup import Markup, join, tag
from rlds_cli.report.page.spreads import Spread
from rlds_cli.report.svg import Scale, tick, ticks
from rlds_cli.ted import END_NAMES

_WIDTH, _HEIGHT = 240, 60
CHART = (460, 280)  # width and height of the charts over episodes
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 36, 44  # as of the charts in `svg`


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
    """Shares of a whole as one bar."""
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
