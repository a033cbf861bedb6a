"""The only code that prints: people's text or JSON on stdout, everything else on stderr.

Warnings that libraries log, where nothing else listens: they quote addresses and names of strangers.

Asking before something is removed.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from rlds_cli import visible
from rlds_cli.errors import RldsError, causes, described
from rlds_cli.progress import Progress, silent
from rlds_cli.text import size_of

_mode = {"json": False, "quiet": False, "verbose": False}  # set once per process by the options of a command


def configure(*, json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
    """Say how to speak; called first by every command."""
    _mode.update(json=json, quiet=quiet, verbose=verbose)


def result(value: Any, text: str | None = None) -> None:
    """Print a command's result: ``value`` as JSON with ``--json``, else ``text``."""
    if _mode["json"]:
        print(json.dumps(plain(value), indent=1, allow_nan=False).replace("\x7f", "\\u007f"))  # noqa: T201
    elif text is not None and text != "":
        print(visible.line(text))  # noqa: T201


def wants_json() -> bool:
    """Whether ``--json`` was given."""
    return _mode["json"]


def page(renderable: Any, value: Any) -> None:
    """Print a rich renderable for people, or ``value`` as JSON."""
    if _mode["json"]:
        return result(value)
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    _draw(Console(highlight=False, width=width), renderable)
    return None


def aside(renderable: Any) -> None:
    """Print a rich renderable on stderr: what belongs to an error."""
    from rich.console import Console

    _draw(Console(highlight=False, stderr=True), renderable)


def _draw(console: Any, renderable: Any) -> None:
    """Print on a rich console; lines that may not break run on, and none ends in blanks. Brackets are no markup."""
    from rich.text import Text

    drawn = Text(visible.line(renderable)) if isinstance(renderable, str) else _Visible(renderable)
    with console.capture() as captured:
        console.print(drawn, crop=False)
    text = "\n".join(line.rstrip() for line in captured.get().split("\n"))
    console.file.write(text)
    console.file.flush()


class _Visible:
    """What another renderable draws, with its styles and without control characters that came with its text."""

    def __init__(self, renderable: Any) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.segment import Segment

        for s in console.render(self._renderable, options):
            yield s if s.control else Segment("\n".join(map(visible.line, s.text.split("\n"))), s.style)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> str:
    """Columns for people, as wide as they need; those named in ``right`` (words) are right-aligned.

    On a terminal the last column is cut at its edge; in a pipe nothing is cut.
    """
    aligned = right.split()
    rows = [[*map(visible.line, row)] for row in rows]
    widths = [max(len(r[k]) for r in (header, *rows)) for k in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = [c.rjust(w) if h in aligned else c.ljust(w) for c, w, h in zip(row, widths, header, strict=True)]
        lines.append(_fit("  ".join(cells).rstrip(), sum(widths[:-1]) + 2 * len(widths)))
    return visible.lines(lines)


def terminal_width() -> int | None:
    """Columns of the terminal that stdout goes to; None for a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _fit(line: str, least: int) -> str:
    width = terminal_width()
    room = len(line) if width is None else max(width, least)
    return line if len(line) <= room else line[: room - 1] + "…"


def note(text: str) -> None:
    """A line for people, on stderr; not with ``--quiet``."""
    if not _mode["quiet"]:
        print(visible.message(text), file=sys.stderr)  # noqa: T201


def error(exc: RldsError) -> None:
    """One line and a hint, on stderr; with ``--verbose`` what caused it, too."""
    public = next(c for c in type(exc).__mro__ if c.__module__ == RldsError.__module__)  # others are a module's own
    kind = "Error" if public is RldsError else public.__name__
    said = [f"{kind}: {exc.message}", *([f"  hint: {exc.hint}"] if exc.hint else [])]
    if _mode["verbose"]:
        said += [visible.message(f"  caused by: {kind}: {text}") for kind, text, _ in map(described, causes(exc))]
    print(visible.lines(said), file=sys.stderr)  # noqa: T201


def crash(exc: BaseException) -> None:
    """The traceback of an error that nobody expected, on stderr."""
    print(traceback(exc), file=sys.stderr)  # noqa: T201


def traceback(exc: BaseException) -> visible.Lines:
    """Where an error was raised and what led to it, the first cause first; further lines of a text are indented."""
    shown: list[str] = []
    for kind, text, at in reversed([*map(described, (exc, *causes(exc)))]):
        shown += ["Traceback (most recent call last):", *at.splitlines()] if at else []
        first, *more = f"{kind}: {text}".split("\n")
        shown += [first, *(f"    {line}" for line in more)]
    return visible.lines(shown)


@contextmanager
def guarded() -> Iterator[None]:
    """Warnings of libraries are shown as visible text; they quote names that come from files."""
    import warnings

    usual = warnings.formatwarning

    def formatted(message: Warning | str, *where: Any, **more: Any) -> str:
        return usual(visible.line(str(message)), *where, **more)

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = usual


def plain(value: Any) -> Any:
    """Turn dataclasses, paths and NumPy values into what JSON holds; NaN and infinities become None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, str):
        return visible.within(value)
    if isinstance(value, int | bool) or value is None:
        return value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, Sequence | set | frozenset) or hasattr(value, "__iter__"):
        return [plain(v) for v in value]
    return str(value)


def size(n: float | None) -> str:
    """Bytes for people: ``145.7 MiB``; a question mark where nobody knows."""
    return "?" if n is None else size_of(n)


@contextmanager
def progress() -> Iterator[Progress]:
    """Progress bars on a terminal, plain lines elsewhere, nothing with ``--quiet``; always on stderr."""

    show()
    if _mode["quiet"]:
        yield silent
        return
    from rlds_cli.progress import Bars

    with Bars(sys.stderr) as bars:
        yield bars


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{visible.line(self.format(record))}\n")


def show() -> None:
    """Print them on stderr, as text that a terminal does not obey."""
    logging.lastResort = _Handler(logging.WARNING)


def confirm(what: str, question: str = "Remove?") -> None:
    """Show ``what`` would go and ask.

    Raises
    ------
    RldsError
        The answer is no, or nobody can be asked.
    """
    typer.echo(visible.line(what), err=True)
    if not sys.stdin.isatty():
        raise RldsError("Nothing was removed, since nobody can be asked here.", hint="--yes removes it")
    if not typer.confirm(question, err=True):
        raise RldsError("Nothing was removed.")
