"""Progress of work that reads a remote dataset: what arrived meanwhile, and for how long it was waited for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rlds_cli.base.progress import Event, Progress
from rlds_cli.base.text import size_of

if TYPE_CHECKING:  # not loaded for a local dataset
    from rlds_cli.places.remote.presence import BlockMap


def beside(progress: Progress, arriving: BlockMap, waiting: BlockMap) -> Progress:
    """Return a progress whose events also say what arrived by one map, and how long the readers of another waited."""
    arrived_before, waited_before = arriving.figures[0], waiting.figures[1]

    def told(event: Event) -> None:
        if event.total is not None:
            arrived = int(arriving.figures[0] - arrived_before)
            waited = waiting.figures[1] - waited_before
            event = replace(event, beside=f"{size_of(arrived)} came, {waited:.1f} s waiting")
        progress(event)

    return told
