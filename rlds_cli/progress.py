"""How the library tells what it is doing: a callable that receives events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Stage = Literal["plan", "adopt", "fetch", "verify", "convert", "preprocess", "publish", "check", "ready", "note"]


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a piece of work.

    ``done`` and ``total`` count ``unit`` ("B", "steps", "files"); ``total`` is None where it is not known ahead.
    ``what`` names the file or part at hand. Events of one (id, stage, what) come in order; threads may interleave them.
    """

    id: str
    stage: Stage
    what: str = ""
    done: int = 0
    total: int | None = None
    unit: str = "B"
    note: str = ""


Progress = Callable[[Event], None]


def silent(event: Event) -> None:
    """Show nothing."""
