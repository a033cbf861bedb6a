"""Progress events as bars on a terminal, or as one line per finished stage elsewhere."""

from __future__ import annotations

from threading import Lock
from typing import Any, TextIO

from tqdm import tqdm

from rlds_cli import sizes
from rlds_cli.progress import Event

_STAGE = 7  # the width of "convert"


class Bars:
    """A ``Progress`` that draws; safe to call from several threads."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._bars: dict[tuple[str, str, str], tqdm[Any]] = {}
        self._told: set[tuple[str, str, str, str]] = set()
        self._lock = Lock()

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *exc: object) -> None:
        for bar in self._bars.values():
            bar.close()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        with self._lock:
            if event.total is None or event.stage in ("adopt", "ready", "note", "plan"):
                if event.note:
                    self._line(event)
            elif self._live:
                self._advance(event)
            elif self._is_new(event) or (event.total and event.done >= event.total and event.stage != "verify"):
                self._line(event)

    def _is_new(self, event: Event) -> bool:
        """Whether an event has a note that its file has not had yet: one of a transfer has it each time."""
        told = (event.id, event.stage, event.what, event.note)
        new = bool(event.note) and told not in self._told
        self._told.add(told)
        return new

    def _line(self, event: Event) -> None:
        said = event.note or (_amount(event.total, event.unit) if event.total else "")
        text = f"{event.id}  {event.stage:{_STAGE}}  {': '.join(p for p in (event.what, said) if p)}".rstrip()
        if self._live:
            tqdm.write(text, file=self._stream)
        else:
            print(text, file=self._stream, flush=True)

    def _advance(self, event: Event) -> None:
        key = (event.id, event.stage, event.what)
        bar = self._bars.get(key)
        if bar is None:
            label = " ".join(p for p in (event.id, event.stage, event.what) if p)
            bytes_ = event.unit == "B"
            bar = self._bars[key] = tqdm(
                total=event.total,
                desc=label,
                unit=event.unit,
                unit_scale=True,
                unit_divisor=1024 if bytes_ else 1000,
                file=self._stream,
                leave=False,
                dynamic_ncols=True,
            )
        bar.update(event.done - bar.n)
        if event.total and event.done >= event.total:
            bar.close()
            del self._bars[key]
            self._line(event)


def _amount(n: int, unit: str) -> str:
    return sizes.text(n) if unit == "B" else sizes.plural(n, unit.removesuffix("s"))
