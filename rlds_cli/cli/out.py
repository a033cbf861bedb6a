"""All printing: results as text or JSON on stdout; progress, notes, errors and questions on stderr.

With ``--json`` an error is the result, nothing is asked, and stderr stays empty, unless ``--verbose`` asks for more.
Text is escaped before it reaches the terminal, since names in it come from files and servers. The functions at the end
format numbers, shapes, spaces and paths, which pages and commands share.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from rlds_cli.base import visible
from rlds_cli.base.files.hashing import short
from rlds_cli.base.progress import Bars, Progress, silent
from rlds_cli.base.text import plural, size_of
from rlds_cli.cli import styles
from rlds_cli.errors import RldsError, causes, described

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


_LEAST = 16  # columns of a cell that is cut
_PROSE = re.compile("(note|warning|error): ")  # what a line says that is neither a command nor a figure
_mode = {"json": False, "quiet": False, "verbose": False}  # set once per process by the options of a command


def configure(*, json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
    """Set the mode of this process; every command calls it first."""
    _mode.update(json=json, quiet=quiet, verbose=verbose)
    logging.lastResort = _OnStandardError(logging.WARNING)  # where no handler is configured
    log = logging.getLogger("rlds_cli")
    log.setLevel(logging.DEBUG if verbose else logging.NOTSET)
    if verbose:
        log.addHandler(_on_standard_error)
    else:
        log.removeHandler(_on_standard_error)


class _OnStandardError(logging.Handler):
    """Prints messages to the standard error of the moment, escaped: they quote addresses and names."""

    def emit(self, record: logging.LogRecord) -> None:
        if _mode["json"] and not _mode["verbose"]:
            return
        text, ours = self.format(record), record.name.startswith("rlds_cli")
        shown = visible.lines(map(visible.message, text.splitlines())) if ours else visible.line(text)
        print(shown, file=sys.stderr)  # noqa: T201


_on_standard_error = _OnStandardError()


def result(value: Any, text: str | None = None) -> None:
    """Print a command's result: ``value`` as JSON with ``--json``, else ``text``."""
    if _mode["json"]:
        print(json.dumps(plain(value), indent=1, allow_nan=False).replace("\x7f", "\\u007f"))  # noqa: T201
    elif text is not None and text != "":
        print(visible.line(text))  # noqa: T201


def wants_json() -> bool:
    """True with ``--json``."""
    return _mode["json"]


def page(renderable: Any, value: Any) -> None:
    """Print a rich renderable, or with ``--json`` the ``value``."""
    if _mode["json"]:
        return result(value)
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    _draw(Console(highlight=False, emoji=False, width=width), renderable)
    return None


def aside(renderable: Any) -> None:
    """Print a rich renderable on stderr, as a part of an error; nothing with ``--json``."""
    if _mode["json"]:
        return
    from rich.console import Console

    _draw(Console(highlight=False, emoji=False, stderr=True), renderable)


def _draw(console: Any, renderable: Any) -> None:
    """Print on a rich console without cropping lines, without trailing blanks, and without markup."""
    from rich.text import Text

    styled = styles.wanted(console.file)
    drawn = Text(visible.line(renderable)) if isinstance(renderable, str) else _Visible(renderable, styled=styled)
    with console.capture() as captured:
        console.print(drawn, crop=False)
    text = "\n".join(line.rstrip() for line in captured.get().split("\n"))
    console.file.write(text)
    console.file.flush()


class _Visible:
    """A renderable that draws another one, with its styles or without, and with its control characters escaped."""

    def __init__(self, renderable: Any, *, styled: bool) -> None:
        self._renderable, self._styled = renderable, styled

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.segment import Segment

        for s in console.render(self._renderable, options):
            shown = "\n".join(map(visible.line, s.text.split("\n")))
            yield s if s.control else Segment(shown, s.style if self._styled else None)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "", texts: Sequence[str] = ()) -> str:
    """Format a table with columns as wide as their cells; headings in ``right`` (words) are right-aligned.

    On a terminal, cells of columns in ``texts`` are cut if the table is wider, and lines at its edge; in a pipe nothing
    is cut.
    """
    aligned = right.split()
    rows = [[*map(visible.line, row)] for row in rows]
    widths = [max(len(r[k]) for r in (header, *rows)) for k in range(len(header))]
    over = sum(widths) + 2 * len(widths) - 2 - (terminal_width() or sys.maxsize)
    narrowed = [k for k, name in enumerate(header) if name in texts]
    while over > 0 and (wide := [k for k in narrowed if widths[k] > max(_LEAST, len(header[k]))]):
        widths[max(wide, key=lambda k: widths[k])] -= 1
        over -= 1
    rows = [[_cut(cell, width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines = []
    for row in (header, *rows):
        cells = [c.rjust(w) if h in aligned else c.ljust(w) for c, w, h in zip(row, widths, header, strict=True)]
        lines.append(_fit("  ".join(cells).rstrip(), sum(widths[:-1]) + 2 * len(widths)))
    return visible.lines(lines)


def fitting(header: Sequence[str], rows: Sequence[Sequence[str]], *, texts: Sequence[str] = ()) -> int:
    """How many of the first columns of a table a terminal has room for, with those in ``texts`` cut; all in a pipe."""
    taken, room = -2, terminal_width() or sys.maxsize
    for k, name in enumerate(header):
        width = max(len(row[k]) for row in (header, *rows))
        taken += 2 + (min(width, max(_LEAST, len(name))) if name in texts else width)
        if taken > room:
            return max(k, 1)
    return len(header)


def terminal_width() -> int | None:
    """Columns of the terminal that stdout goes to; None for a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _fit(line: str, least: int) -> str:
    width = terminal_width()
    return _cut(line, len(line) if width is None else max(width, least))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def by_semicolons(text: str, *, stream: TextIO | None = None, indent: str = "  ") -> visible.Lines:
    """Break a text at its semicolons where a terminal is narrower: commands in it stay whole."""
    return visible.lines(_broken(text.split("; "), "; ", stream or sys.stdout, indent))


def by_words(text: str, *, stream: TextIO | None = None, indent: str = "  ") -> visible.Lines:
    """Break a text between words where a terminal is narrower."""
    return visible.lines(_broken(text.split(" "), " ", stream or sys.stdout, indent))


def _broken(parts: Sequence[str], joint: str, stream: TextIO, indent: str) -> list[str]:
    """Join parts to lines that a terminal has room for; a longer part has a line of its own."""
    width = shutil.get_terminal_size().columns if stream.isatty() else sys.maxsize
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(joint) + len(part) < width:
            lines[-1] += joint + part
        else:
            lines[-1] += joint.rstrip()
            lines.append(indent + part)
    return lines


def note(text: str) -> None:
    """Print a line on stderr, unless ``--quiet`` or ``--json``."""
    if not _mode["quiet"] and not _mode["json"]:
        said = visible.message(text)
        is_prose = _PROSE.match(said) and not isinstance(text, visible.Lines)
        print(by_words(said, stream=sys.stderr) if is_prose else said, file=sys.stderr)  # noqa: T201


def error(exc: RldsError) -> None:
    """Print an error and its hint on stderr, or with ``--json`` as the result; with ``--verbose`` also its causes."""
    if _mode["json"]:
        result(error_facts(exc))
    else:
        failure(exc)


def error_facts(exc: RldsError) -> dict[str, object]:
    """An error for ``--json``; with what a process printed that failed, if it printed something."""
    facts: dict[str, object] = {"error": exc.message, "kind": _kind(exc), "hint": exc.hint}
    said = _printed(exc)
    return {**facts, "printed": said} if said else facts


def _printed(exc: RldsError) -> list[str]:
    """The lines that a process of an error printed, which are notes of the error."""
    return [visible.message(line) for note in getattr(exc, "__notes__", ()) for line in note.splitlines()]


def failure(exc: RldsError) -> None:
    """Print an error and its hint on stderr: the command continues; nothing with ``--json``."""
    if _mode["json"]:
        return
    kind = _kind(exc)
    first, *more = f"{kind}: {exc.message}".split("\n")  # such as what a function of the user's raised
    said = [*by_words(first, stream=sys.stderr).split("\n"), *(f"    {line}" for line in more)]
    if exc.hint:
        said += by_semicolons(f"  hint: {exc.hint}", stream=sys.stderr, indent=" " * 8).split("\n")
    if printed := _printed(exc):
        print(visible.lines(printed), file=sys.stderr)  # noqa: T201
    if _mode["verbose"]:
        said += [visible.message(f"  caused by: {kind}: {text}") for kind, text, _ in map(described, causes(exc))]
    shown = visible.lines(said)
    print(styles.error(shown) if styles.wanted(sys.stderr) else shown, file=sys.stderr)  # noqa: T201


def _kind(exc: RldsError) -> str:
    public = next(c for c in type(exc).__mro__ if c.__module__ == RldsError.__module__)  # subclasses may be private
    return "Error" if public is RldsError else public.__name__


def crash(exc: BaseException) -> None:
    """Print the traceback of an unexpected error on stderr, or with ``--json`` as a part of the result."""
    if _mode["json"]:
        said = {"error": visible.message(str(exc)), "kind": type(exc).__name__, "hint": None}
        result({**said, "traceback": traceback(exc).split("\n")})
    else:
        print(traceback(exc), file=sys.stderr)  # noqa: T201


def stopped(text: str, hint: str | None = None) -> None:
    """Say on stderr that Ctrl-C ended the command, or with ``--json`` as the result."""
    if _mode["json"]:
        result({"error": text, "kind": "Interrupted", "hint": hint})
    else:
        note(f"{text} {hint}" if hint else text)


def traceback(exc: BaseException) -> visible.Lines:
    """Format the traceback of an error and of its causes, the first cause first; continued lines are indented."""
    shown: list[str] = []
    for kind, text, at in reversed([*map(described, (exc, *causes(exc)))]):
        shown += ["Traceback (most recent call last):", *at.splitlines()] if at else []
        first, *more = f"{kind}: {text}".split("\n")
        shown += [first, *(f"    {line}" for line in more)]
    return visible.lines(shown)


@contextmanager
def escaped_warnings() -> Iterator[None]:
    """Escape the text of Python warnings, since libraries quote names from files in them; show our own as one line.

    With ``--json`` they are left out.
    """
    import warnings

    usual, package = warnings.formatwarning, f"{Path(__file__).parents[1]}{os.sep}"

    def formatted(message: Warning | str, category: type[Warning], filename: str, *where: Any, **more: Any) -> str:
        text = visible.line(str(message))
        if _mode["json"] and not _mode["verbose"]:
            return ""
        if category is UserWarning and filename.startswith(package):
            return f"warning: {text}\n"
        return usual(text, category, filename, *where, **more)

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = usual


def plain(value: Any) -> Any:
    """Convert dataclasses, paths and NumPy values to JSON values; NaN and infinities become None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.metadata.get("json", True)
        }
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
    """Format a number of bytes: ``145.7 MiB``; a question mark when it is unknown."""
    return "?" if n is None else size_of(n)


@contextmanager
def progress() -> Iterator[Progress]:
    """Show progress on stderr: bars on a terminal, plain lines elsewhere, nothing with ``--quiet`` or ``--json``."""
    if _mode["quiet"] or _mode["json"]:
        yield silent
        return
    with Bars(sys.stderr) as bars:
        yield bars


def can_ask() -> bool:
    """True if questions are answered: on a terminal, and not with ``--json``."""
    return sys.stdin.isatty() and not _mode["json"]


def confirm(removals: str, question: str = "Remove?") -> None:
    """Print what would be removed, and ask.

    Raises
    ------
    RldsError
        The answer is no, or nobody can be asked.
    """
    if _mode["json"]:
        hint = "--yes removes without asking; --dry-run lists what would be removed"
        raise RldsError("Nothing was removed: --json asks no questions.", hint=hint)
    typer.echo(visible.line(removals), err=True)
    if not can_ask():
        raise RldsError("Nothing was removed: stdin is not a terminal.", hint="pass --yes to remove without asking")
    if not typer.confirm(question, err=True):
        raise RldsError("Nothing was removed.")


# -- numbers, shapes, spaces and paths as text


def short_path(path: Path) -> str:
    """Abbreviate the user's home directory: ``~/.cache/rlds``."""
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


# -- a dataset that was just made


def dataset_facts(ds: Dataset) -> dict[str, object]:
    """Facts of a dataset for ``--json``."""
    m = ds.manifest
    return {"id": ds.id, "path": ds.path, "fingerprint": ds.fingerprint, "counts": m.counts, "notes": m.notes}


def new_dataset(ds: Dataset) -> None:
    """Print one line on a new dataset, its notes, and the line of code that loads it."""
    m = ds.manifest
    counts = f"{plural(m.counts.steps, 'step')}  {plural(m.counts.episodes, 'episode')}"
    result(dataset_facts(ds), f"{ds.id}  {counts}  {short(ds.fingerprint)}")
    _rows_elsewhere(ds)
    for n in m.notes:
        note(f"{n.get('severity', 'note')}: {note_line(n)}")
    held_out = ds.held_out
    if held_out:
        note(f"note: outside the split train: {plural(held_out, 'episode')} of {m.counts.episodes:,}")
        taken = f'rlds_cli.open_dataset("{ds.id}").select(split="train")'
        note(f"use:  import rlds_cli; loader = rlds_cli.Loader({taken}, batch_size=256)")
    else:
        note(f'use:  import rlds_cli; loader = rlds_cli.Loader("{ds.id}", batch_size=256)')


def new_version(ds: Dataset) -> None:
    """Print one line on a new version of a dataset."""
    m = ds.manifest
    counts = f"{plural(m.counts.steps, 'step')}  {plural(m.counts.episodes, 'episode')}"
    result(dataset_facts(ds), f"{ds.id}#v{ds.version}  {counts}  {short(ds.fingerprint)}")
    if ds.version == 1:
        _rows_elsewhere(ds)


def _rows_elsewhere(ds: Dataset) -> None:
    """Say in which other datasets the rows of a new one are stored."""
    for source in ds.store.files.refers_to:
        note(f"note: rows stay in {source}; --copy copies them")


def note_line(note: Mapping[str, Any]) -> str:
    """A note with its first place; with its count if it is a reader's, since the text of a finding contains it."""
    count, where = note["count"], note["where"]
    if note["text"].endswith(where):  # it says so itself
        where = ""
    often = f" ({count:,} times)" if count > 1 and "severity" not in note else ""
    return f"{note['text']}{often}" + (f", e.g. {where}" if where and count > 1 else f": {where}" if where else "")
