"""The page of ``rlds diff A B``: two datasets side by side."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from functools import partial
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType

from rlds_cli.base import text
from rlds_cli.base.figures import figure, number
from rlds_cli.base.files.hashing import short
from rlds_cli.look.pages import Grid, fitting, line, plain
from rlds_cli.look.report.columns import Distribution
from rlds_cli.look.report.diff import Deviation, Difference, Drift, EpisodesDifference, FieldDifference, Side

_STYLES = {"same": "dim", "content": "yellow", "type": "bold yellow", "added": "green", "removed": "red"}
_FAR = 0.1  # standard deviations
_LONGEST = 40  # characters of a value
_MATCHED_BY = {"origin": "place in the archive", "content": "first, middle and last step"}


class DifferencePage:
    """The page of a comparison."""

    def __init__(self, difference: Difference, *, verbose: bool = False) -> None:
        self.difference, self.verbose = difference, verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        d = self.difference
        yield line(console, f"a  {_side(d.a)}", "bold")
        yield line(console, f"b  {_side(d.b)}", "bold")
        if d.same:
            yield line(console, "the same content" + ("" if d.a.encoding == d.b.encoding else ", in other encodings"))
            yield from (line(console, text) for text in _facts(d))
            return
        if d.close:
            yield line(console, f"equal within the tolerance: rtol {d.tolerance.rtol:g}, atol {d.tolerance.atol:g}")
        yield fitting(options, [lambda: _counts(d, self.verbose)])
        yield fitting(options, [partial(_fields, d, detail) for detail in (2, 1, 0)])
        if d.episodes:
            yield from (line(console, text) for text in (*_episodes(d.episodes), *d.why))
        yield from (line(console, text) for text in (*_columns(d), *_facts(d)))


def _side(s: Side) -> str:
    return f"{s.id}#v{s.version}   {short(s.fingerprint)}   {s.encoding}"


def _columns(d: Difference) -> Iterator[str]:
    for c in d.columns:
        kind = f"only in b: {c.b}, " if c.a is None else f"only in a: {c.a}, " if c.b is None else ""
        kind = kind or (f"{c.a} -> {c.b}, " if c.a != c.b else "")
        values = "; ".join(f"episode {e.episode:,}: {_value(e.a)} -> {_value(e.b)}" for e in c.examples)
        more = "; ..." if c.differing > len(c.examples) else ""
        differ = f"differs in {c.differing:,} of {text.plural(c.episodes, 'episode')}"
        yield f"episode column {c.name}  {kind}{differ}{f': {values}{more}' if values else ''}"


def _facts(d: Difference) -> Iterator[str]:
    return (f"fact {f.name}  {_value(f.a)} -> {_value(f.b)}" for f in d.facts)


def _value(value: Any) -> str:
    """A value of an episode column or a fact; a dash for none."""
    if isinstance(value, str):
        return json.dumps(textwrap.shorten(value, _LONGEST, placeholder="..."), ensure_ascii=False)
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


def _counts(d: Difference, verbose: bool) -> Grid:
    table = Grid([("", "left"), ("A", "right"), ("B", "right"), ("", "right")])
    for c in d.counts:
        if verbose or c.a != c.b or c.name in ("steps", "episodes"):
            change = f"{c.b - c.a:+,}" if c.a != c.b else ""
            table.add_row(*(plain(x) for x in (c.name.replace("_", " "), f"{c.a:,}", f"{c.b:,}", change)))
    for name, (one, other) in (("returns", d.returns), ("lengths", d.lengths)):
        if one or other:
            table.add_row(plain(f"{name} (median)"), plain(_median(one)), plain(_median(other)), plain(""))
    return table


def _median(d: Distribution | None) -> str:
    return "-" if d is None else figure(d.median)


def _fields(d: Difference, detail: int) -> Grid:
    """Fields and their changes; ``detail`` 1 adds drift of means, 2 also drift of ranges."""
    columns = [("FIELD", "left"), ("", "left"), *([("", "left")] if detail else [])]
    table = Grid(columns)
    for f in d.fields:
        cells = [f.name, _what(f), *([_drift(f.drift, ranges=detail > 1)] if detail else [])]
        table.add_row(*(plain(cell, _STYLES[f.change]) for cell in cells))
    return table


def _what(f: FieldDifference) -> str:
    match f.change:
        case "same":
            return "same"
        case "added":
            return f"only in b: {f.b}"
        case "removed":
            return f"only in a: {f.a}"
        case "type":
            return f"{f.a} -> {f.b}{_deviation(f.deviation)}"
    if f.differing is None:
        return "content differs"
    where = f"in {text.plural(f.differing, 'episode')}, from episode {f.first:,} on"
    return f"content differs {where}{_deviation(f.deviation)}"


def _deviation(d: Deviation | None) -> str:
    """The greatest difference of the numbers, and the count of those beyond the tolerance."""
    if d is None or d.at is None:
        return "" if d is None else "; equal numbers"
    return f"; by at most {d.greatest:.3g} at {d.at}, {d.beyond:,} of {text.plural(d.values, 'value')}"


def _drift(d: Drift | None, *, ranges: bool) -> str:
    if d is None:
        return ""
    parts = [f"mean {number(d.mean_a)} -> {number(d.mean_b)}"]
    if d.shift >= _FAR:
        parts.append(f"moved {d.shift:.1f} std{f' at {d.element}' if d.element else ''}")
    if ranges and (d.min_a, d.max_a) != (d.min_b, d.max_b):
        parts.append(f"range {_range(d.min_a, d.max_a)} -> {_range(d.min_b, d.max_b)}")
    return ", ".join(parts)


def _range(low: float, high: float) -> str:
    return f"[{number(low)}, {number(high)}]"


def _episodes(e: EpisodesDifference) -> Iterator[str]:
    order = ", in another order" if e.reordered else ""
    yield f"{text.plural(e.in_both, 'episode')} in both{order} (matched by their {_MATCHED_BY[e.told_by]})"
    for n, what, which in ((e.num_removed, "only in a", e.removed), (e.num_added, "only in b", e.added)):
        if n:
            yield f"{n:,} {what}: {', '.join(f'{k:,}' for k in which)}{', ...' if n > len(which) else ''}"
