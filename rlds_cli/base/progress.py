"""Progress events of the library, and their display: bars on a terminal, else a line for each finished stage."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event as Signal
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Literal, TextIO

from rlds_cli.base import text, visible
from rlds_cli.errors import InvalidArgument

if TYPE_CHECKING:
    from tqdm import tqdm

Stage = Literal[
    "plan",
    "adopt",
    "fetch",
    "verify",
    "convert",
    "preprocess",
    "export",
    "measure",
    "publish",
    "send",
    "check",
    "ready",
    "note",
]
_STAGE = 7  # the width of "convert"
_LABEL, _SHORT_LABEL = 32, 22  # characters of a bar's label, and of one that shows more than figures

# What a bar shows, in 80 columns.
_OF_TOTAL = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{remaining}, {rate_fmt}]"
_WITH_MORE = "{desc}: {n_fmt}/{total_fmt} [{rate_fmt}{postfix}]"
_WITHOUT_TOTAL = "{desc}: {n_fmt}{unit} [{elapsed}, {rate_fmt}{postfix}]"
_WORD = 30.0  # seconds without output after which a line reports the progress
_SOON = 1.0  # seconds: what a terminal would be told of work that ends sooner is left out


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a piece of work.

    ``done`` and ``total`` count ``unit`` ("B", "steps", "rows", "files"); ``total`` is None while it is not known.
    ``what`` names the file or part at hand, and ``beside`` says what else is to be shown with the
    figures. Events of one (id, stage, what) come in order; threads may interleave them.
    """

    id: str
    stage: Stage
    what: str = ""
    done: int = 0
    total: int | None = None
    unit: str = "B"
    note: str = ""
    beside: str = ""


Progress = Callable[[Event], None]


def silent(event: Event) -> None:
    """Show nothing."""


def shown(progress: Progress | bool | None) -> Progress:
    """Return the callable for an argument ``progress=``.

    True shows bars on stderr, and False nothing. None, the default, shows bars on a terminal and in a notebook.

    Raises
    ------
    InvalidArgument
        The argument is none of these, and cannot be called.
    """
    watched = sys.stderr.isatty() or "ipykernel" in sys.modules  # at once: a terminal, or a cell of a notebook
    if progress is True or (progress is None and watched):
        return Bars(sys.stderr, live=True)
    if progress is None or progress is False:
        return silent
    if not callable(progress):
        raise InvalidArgument(f"progress={progress!r}: True shows bars; else a function of events, or None.")
    return progress


class Bars:
    """A ``Progress`` that draws bars; safe to call from several threads.

    ``live`` says whether ``stream`` can show bars; by default a terminal can, where lines of the first second are
    shown with the first line or bar after it. Within ``with``, a line reports the progress after every ``word`` seconds
    without other output.
    """

    def __init__(self, stream: TextIO, *, live: bool | None = None, word: float = _WORD) -> None:
        self._stream = stream
        self._live = stream.isatty() if live is None else live
        self._bars: dict[tuple[str, str, str], tqdm[Any]] = {}
        self._told: set[tuple[str, str, str, str]] = set()
        self._lock = Lock()
        self._word = word
        self._last: Event | None = None
        self._begun = time.monotonic()
        self._held: list[str] = []  # lines of the first second
        self._shown = time.monotonic()  # when something was shown last
        self._closed = Signal()

    def __enter__(self) -> Bars:
        self._shown = time.monotonic()
        Thread(target=self._speak, name="rlds-bars", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._closed.set()
            self._release()
        for bar in self._bars.values():
            bar.close()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        with self._lock:
            self._last = event
            if event.total is None or event.stage in ("adopt", "ready", "note", "plan"):
                if event.note:
                    self._line(event)
                elif self._live and event.done and event.unit != "B":
                    self._advance(event)
            elif self._live:
                self._advance(event)
            elif self._is_new(event) or (event.total and event.done >= event.total and event.stage != "verify"):
                self._line(event)

    def _speak(self) -> None:
        """Report now and then that the work continues, unless a bar shows it."""
        while not self._closed.wait(max(0.01, self._shown + self._word - time.monotonic())):
            with self._lock:
                if self._bars or self._closed.is_set():
                    self._shown = time.monotonic()
                elif time.monotonic() >= self._shown + self._word:
                    self._line(_so_far(self._last))

    def _is_new(self, event: Event) -> bool:
        """Return whether an event has a note that its file has not had yet: one of a transfer has it each time."""
        told = (event.id, event.stage, event.what, event.note)
        new = bool(event.note) and told not in self._told
        self._told.add(told)
        return new

    def _line(self, event: Event) -> None:
        said = event.note or (_amount(event.total, event.unit) if event.total else "")
        said = ", ".join(p for p in (said, event.beside) if p)
        text = f"{event.id}  {event.stage:{_STAGE}}  {': '.join(p for p in (event.what, said) if p)}".rstrip()
        text = visible.line(text)
        self._shown = time.monotonic()
        if self._live:
            self._held.append(text)
            self._release(at_once=event.stage == "note")
        else:
            print(text, file=self._stream, flush=True)

    def _release(self, *, at_once: bool = False) -> None:
        """Show the lines that were held back, unless the work may still end soon."""
        if not self._held or not (at_once or time.monotonic() >= self._begun + _SOON):
            return
        from tqdm import tqdm  # imported late: commands and libraries start sooner without it

        for line in self._held:
            tqdm.write(line, file=self._stream)
        self._held.clear()

    def _advance(self, event: Event) -> None:
        key = (event.id, event.stage, event.what)
        self._release()
        bar = self._bars.get(key)
        label = visible.line(" ".join(p for p in (event.id, event.stage, event.what) if p))
        label = _shortened(label, _SHORT_LABEL if event.beside else _LABEL)
        shape = _WITHOUT_TOTAL if event.total is None else _WITH_MORE if event.beside else _OF_TOTAL
        if bar is None:
            from tqdm import tqdm

            bytes_ = event.unit == "B"
            bar = self._bars[key] = tqdm(
                total=event.total,
                desc=label,
                initial=event.done,
                unit=event.unit if bytes_ else f" {event.unit}",
                unit_scale=True,
                unit_divisor=1024 if bytes_ else 1000,
                file=self._stream,
                postfix=event.beside,
                leave=False,
                dynamic_ncols=True,
                bar_format=shape,
            )
        bar.total, bar.desc, bar.bar_format = event.total, label, shape
        bar.set_postfix_str(event.beside, refresh=False)
        bar.update(event.done - bar.n)
        if event.total and event.done >= event.total:
            bar.close()
            del self._bars[key]
            self._line(event)


def _shortened(label: str, most: int) -> str:
    """Leave out the middle of a label that would leave no room for figures in 80 columns."""
    return label if len(label) <= most else f"{label[: most // 3]}…{label[-(2 * most // 3 - 1) :]}"


def _so_far(last: Event | None) -> Event:
    """Return the event to report after a long silence, from the last one."""
    if last is None:
        return Event("rlds", "note", note="still at work")
    done = f"{_amount(last.done, last.unit)} so far" if last.done else "waiting"
    return Event(last.id, last.stage, last.what, note=done, beside=last.beside)


def _amount(n: int, unit: str) -> str:
    return text.size_of(n) if unit == "B" else text.plural(n, unit.removesuffix("s"))
