"""What a group of measurements comes to: lines of a table with their aims, and every case by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from loader.report import Line

from preprocess.measuring import Times


@dataclass(frozen=True)
class Group:
    """``lines`` for the table, ``times`` of all cases in ``unit``, and what is to be said of them."""

    title: str
    lines: tuple[Line, ...]
    times: Mapping[str, Times]
    unit: str
    note: str = ""


def against(
    work: str,
    ours: float,
    unit: str,
    peer: str,
    figure: float,
    aim: float | None,
    sense: Literal["at least", "at most"] = "at least",
) -> Line:
    """Ours beside another's, both times: ``at least`` so many times as fast, or ``at most`` so many times as long."""
    ratio = figure / ours if sense == "at least" else ours / figure
    return Line(work, ours, peer, figure, unit, ratio, aim, sense, _verdict(ratio, aim, sense))


def alone(work: str, ours: float, unit: str, aim: float | None, sense: Literal["at least", "at most"]) -> Line:
    """A figure by itself."""
    return Line(work, ours, "", None, unit, None, aim, sense, _verdict(ours, aim, sense))


def failed(work: str, peer: str, why: str) -> Line:
    """What could not be measured."""
    return Line(work, float("nan"), peer, None, "", None, None, "at least", f"not run: {why}"[:90])


def _verdict(value: float, aim: float | None, sense: str) -> str:
    if aim is None:
        return ""
    return "reached" if (value <= aim if sense == "at most" else value >= aim) else "short"
