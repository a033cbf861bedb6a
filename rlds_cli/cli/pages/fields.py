"""The fields of a dataset as a tree: what is nested stands below its name, like ones share a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from rlds_cli import sizes
from rlds_cli.cli import out
from rlds_cli.cli.pages.figures import grid, number, plain, shape
from rlds_cli.report.columns import FieldSummary
from rlds_cli.report.histograms import sparkline

_NARROW = ("FIELD", "DTYPE", "SHAPE", "MIN", "MAX")
_MEDIUM = ("FIELD", "AT", "DTYPE", "SHAPE", "SIZE", "MIN", "MAX", "")
_ALL = ("FIELD", "AT", "DTYPE", "SHAPE", "SIZE", "MEAN", "STD", "MIN", "MAX", "")
# Columns and the width of histograms: the first that fits is taken.
DETAIL = (
    (_ALL, 16),
    (_ALL, 8),
    (_MEDIUM, 8),
    (_MEDIUM, 0),
    (_MEDIUM[:-1], 0),
    (_NARROW, 0),
    (("FIELD", "MIN", "MAX"), 0),
)
_LEFT = ("FIELD", "AT", "DTYPE", "SHAPE", "")
_NAMES = 40  # characters of the names of fields that share a line; the others are counted
_FLAT = ("next",)  # rewards and flags are known by their whole names


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the tree: a heading for those below it, or fields; ``names`` as shown, without the heading's."""

    fields: tuple[FieldSummary, ...]
    names: tuple[str, ...]
    mark: str = ""
    heading: bool = False


def table(fields: Sequence[FieldSummary], names: Sequence[str], width: int, ascii_only: bool) -> Table:
    """The tree with the columns ``names``, histograms ``width`` wide."""
    found = grid((name, "left" if name in _LEFT else "right") for name in names)
    for entry in tree(fields, ascii_only):
        cells = _cells(entry, width, ascii_only)
        found.add_row(*(plain(cells.get(name, "")) for name in names), style="dim" if entry.heading else "")
    return found


def tree(fields: Sequence[FieldSummary], ascii_only: bool = False) -> Iterator[_Line]:
    """Lines in the order of ``fields``; names with a first part in common, but for ``next``, below that part."""
    roots: dict[str, list[FieldSummary]] = {}
    for f in fields:
        root = f.name.split("/")[0]
        roots.setdefault(f.name if root in _FLAT else root, []).append(f)
    branch, last = ("|-", "`-") if ascii_only else ("├─", "└─")
    for root, members in roots.items():
        groups = _alike(members)
        if len(members) == 1:
            yield _Line(tuple(members), (members[0].name,))
            continue
        yield _Line(tuple(members), (root,), heading=True)
        for k, group in enumerate(groups):
            names = tuple(f.name.removeprefix(f"{root}/") for f in group)
            yield _Line(tuple(group), names, f"{last if k == len(groups) - 1 else branch} ")


def _alike(fields: Sequence[FieldSummary]) -> list[list[FieldSummary]]:
    """Fields one by one; of those that a loader leaves out, the like ones together."""
    groups: dict[object, list[FieldSummary]] = {}
    for f in fields:
        alike = (f.placement, f.dtype, f.shape, f.kind) if not f.default and f.elements is None else f.name
        groups.setdefault(alike, []).append(f)
    return list(groups.values())


def _cells(entry: _Line, width: int, ascii_only: bool) -> dict[str, str]:
    size = out.size(sum(f.bytes for f in entry.fields))
    if entry.heading:
        return {"FIELD": entry.names[0], "SIZE": size}
    f = entry.fields[0]
    cells = {
        "FIELD": entry.mark + _joined(entry.names),
        "AT": f.placement,
        "DTYPE": f.codec or ("text" if f.kind == "text" else f.dtype),
        "SHAPE": shape(f.shape),
        "SIZE": size,
    }
    if len(entry.fields) > 1:
        return cells
    if f.mean is not None:
        cells |= {"MEAN": number(f.mean), "STD": number(f.std), "MIN": number(f.min, f.dtype)}
        cells["MAX"] = number(f.max, f.dtype)
    chart = sparkline(f.histogram.counts, width=width, ascii_only=ascii_only) if width and f.histogram else ""
    return cells | {"": f"{chart.ljust(width)}  {_remark(f)}".rstrip() if width else _remark(f)}


def _joined(names: Sequence[str]) -> str:
    shown = max(k for k in range(1, len(names) + 1) if k == 1 or len(", ".join(names[:k])) <= _NAMES)
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f", {more} more" if more else "")


def _remark(f: FieldSummary) -> str:
    remarks = [f"{100 * f.saturation.share:.0f} % saturated"] if f.saturation else []
    remarks += [f"{f.nonfinite:,} not finite"] if f.nonfinite else []
    remarks += [sizes.plural(f.distinct, "text")] if f.distinct is not None else []
    return ", ".join(remarks)
