"""The table: for people, as Markdown, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loader.cases import Group, Row
from loader.session import Timed

HEADER = ("work", "ours", "peer", "its figure", "ratio", "aim", "")
CASES = ("case", "median", "best", "CPU", "anonymous MiB", "mapped MiB", "major faults", "minor faults")


@dataclass(frozen=True)
class Line:
    """One row of the table.

    ``ratio`` is how many times as good ours is, or how many times as long it takes; ``cpu`` is the same in CPU time.
    """

    work: str
    ours: float
    peer: str
    figure: float | None
    unit: str
    ratio: float | None
    aim: float | None
    sense: str
    verdict: str
    cpu: float | None = None

    def cells(self) -> tuple[str, ...]:
        more = "long" if self.unit in ("µs", "s", "ns/step") else "much"
        times = f" x as {more}" if self.sense == "at most" and self.peer else " x"
        ratio = (
            "" if self.ratio is None else f"{self.ratio:.2g}{times}" if self.ratio < 10 else f"{self.ratio:.0f}{times}"
        )
        ratio += "" if self.cpu is None else f", CPU {self.cpu:.2g}" if self.cpu < 10 else f", CPU {self.cpu:.0f}"
        unit = "" if self.peer else f" {self.unit}"
        aim = "" if self.aim is None else f"{self.sense} {self.aim:g}{unit or ' x'}"
        figure = "" if self.figure is None else number(self.figure, self.unit)
        return (self.work, number(self.ours, self.unit), self.peer, figure, ratio, aim, self.verdict)


def lines(group: Group, timed: Mapping[str, Timed]) -> list[Line]:
    return [_line(row, timed) for row in group.rows]


def _line(row: Row, timed: Mapping[str, Timed]) -> Line:
    ours = timed.get(row.ours) or _absent(row.ours, timed)
    nothing = Line(row.work, ours.median, row.peer or "", None, ours.unit, None, row.aim, row.sense, "")
    if ours.error or not ours.values:
        return _with(nothing, verdict=f"not run: {ours.error}")
    if row.peer is None:
        reached = row.aim is None or (ours.median <= row.aim if row.sense == "at most" else ours.median >= row.aim)
        return _with(nothing, verdict=_verdict(row.aim, reached))
    peer = timed.get(row.peer) or _absent(row.peer, timed)
    if peer.error or not peer.values:
        return _with(nothing, verdict=f"peer not run: {peer.error}")
    better = ours.median / peer.median if ours.more_is_better else peer.median / ours.median
    ratio = 1 / better if row.sense == "at most" else better
    reached = row.aim is None or (ratio <= row.aim if row.sense == "at most" else ratio >= row.aim)
    cpu = None
    if ours.busy and peer.busy:
        cpu = ours.busy / peer.busy if row.sense == "at most" else peer.busy / ours.busy
    return _with(nothing, figure=peer.median, ratio=ratio, verdict=_verdict(row.aim, reached), cpu=cpu)


def _absent(name: str, timed: Mapping[str, Timed]) -> Timed:
    """A case that its library could not even name."""
    whole = timed.get(f"{name.split(':')[0]}: all")
    return whole or Timed(error="no such case")


def _with(line: Line, **changes: Any) -> Line:
    return Line(**(asdict(line) | changes))


def _verdict(aim: float | None, reached: bool) -> str:
    return "" if aim is None else "reached" if reached else "short"


def number(x: float, unit: str) -> str:
    """Three digits: ``24.1 µs``, ``25,300 windows/s``."""
    if math.isnan(x):
        return "-"
    digits = 0 if abs(x) >= 100 else 1 if abs(x) >= 10 else 2
    return f"{x:,.{digits}f} {unit}"


def case_rows(timed: Mapping[str, Timed]) -> Iterator[tuple[str, ...]]:
    """Every case with its memory and page faults."""
    for name, t in timed.items():
        if t.error or not t.values:
            yield name, "-", "-", "", "", "", "", f"not run: {t.error}"[:90]
            continue
        memory = ("" if t.busy is None else number(t.busy, "µs"), f"{t.anonymous:,.1f}", f"{t.mapped:,.1f}")
        yield name, number(t.median, t.unit), number(t.best, t.unit), *memory, f"{t.major:.3g}", f"{t.minor:.3g}"


def text(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Columns for people."""
    table = [tuple(header), *map(tuple, rows)]
    widths = [max(len(r[k]) for r in table) for k in range(len(table[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in table)


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """The same for the docs."""
    names = tuple(header)
    table = [names, ("---",) * len(names), *map(tuple, rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in table)
