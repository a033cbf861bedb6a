"""``rlds registry``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlds_cli.base import visible
from rlds_cli.base.text import plural
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app

if TYPE_CHECKING:
    from rlds_cli.registry.own import Registry


class Action(StrEnum):
    """The uses of ``rlds registry``."""

    list = "list"
    add = "add"
    remove = "remove"
    refresh = "refresh"
    check = "check"


@dataclass(frozen=True, slots=True)
class _Row:
    """A registry as it is printed: its place and prefix, who named it, its ids, and what is wrong with it."""

    place: str
    prefix: str | None
    named_by: str
    families: tuple[str, ...]
    ids: tuple[str, ...]
    sha256: str | None
    fetched: str | None
    failed: str | None
    problems: tuple[str, ...]


@app.command("registry")
def registry(
    action: Annotated[
        Action, typer.Argument(metavar="list|add|remove|refresh|check", help="What to do.", show_default=False)
    ] = Action.list,
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH|URL]",
            help="A file of JSON lines, a directory of *.jsonl files, or the http(s):// address of a file.",
        ),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", metavar="NAME", help="With add and check: put all ids below NAME/."),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """List, add, remove, refresh or check registries of your own. Their datasets are used like those of the package.

    check prints every line that is not valid; add refuses a registry with such a line. Registries at an address are
    fetched again when a day has passed, or by refresh. RLDS_REGISTRY names registries without adding them.

    Example: rlds registry add https://lab.example.org/data/lab.jsonl
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    if (place is None) == (action in (Action.add, Action.remove, Action.check)):
        raise typer.BadParameter(f"{action} takes {'a PATH or URL' if place is None else 'no PATH or URL'}")
    if prefix is not None and action not in (Action.add, Action.check):
        raise typer.BadParameter("--prefix goes with add and check")
    from rlds_cli.registry import OwnRegistries

    own = OwnRegistries()

    match action:
        case Action.list:
            _show(own.read())
        case Action.refresh:
            _show(own.refresh())
        case Action.remove:
            removed = own.remove(str(place))
            out.result({"removed": removed.place}, f"{visible.shown(removed.place)} removed; datasets stay")
        case Action.add:
            from rlds_cli.look import installed_readers

            found, readers = own.add(str(place), prefix=prefix), installed_readers()
            out.result(_row(found), _added(found))
            for e in found.entries:
                if e.format and e.format not in readers:
                    out.note(f'{e.id} needs the reader "{e.format}": install its package before a download')
        case Action.check:
            from rlds_cli.look import installed_readers

            _check(own.examine(str(place), prefix=prefix, readers=installed_readers()))


def _check(found: Registry) -> None:
    """Print every problem, a line each, and exit 1 if there is one; else the number of entries."""
    if not found.problems:
        out.result(_row(found), f"{visible.shown(found.source.place)}: {_count(found)}: ok")
        return
    out.result(_row(found), visible.lines(found.problems))
    raise typer.Exit(1)


def _added(found: Registry) -> str:
    ids = [e.id for e in found.entries]
    more = f" and {len(ids) - 3:,} more" if len(ids) > 3 else ""
    lines = [f"{visible.shown(found.source.place)}: {_count(found)}: {', '.join(ids[:3])}{more}"]
    return visible.lines([*lines, *(f"rlds list --family {f}" for f in found.families)])


def _count(found: Registry) -> str:
    return f"{len(found.entries):,} {'entry' if len(found.entries) == 1 else 'entries'}"


def _show(found: tuple[Registry, ...]) -> None:
    rows = [_row(r) for r in found]
    cells = [(r.place, r.prefix or "-", str(len(r.ids)), ", ".join(r.families) or "-", _state(r)) for r in rows]
    header = ("REGISTRY", "PREFIX", "DATASETS", "LIBRARIES", "")
    out.result(rows, out.table(header, cells, right="DATASETS") if rows else "")
    if not rows:
        out.note("no registry of your own; rlds registry add PATH|URL adds one")
    for problem in _problems(rows):
        out.note(problem)


def _state(row: _Row) -> str:
    named = "by RLDS_REGISTRY" if row.named_by == "RLDS_REGISTRY" else ""
    fetched = f"fetched {row.fetched}" if row.fetched else ""
    wrong = plural(len(row.problems), "problem") if row.problems else ""
    return ", ".join(filter(None, (named, fetched, wrong)))


def _problems(rows: list[_Row]) -> Iterator[str]:
    for row in rows:
        yield from row.problems
        if row.failed and row.ids:
            yield f"{row.place}: the copy of {row.fetched} is used: {row.failed}"


def _row(r: Registry) -> Any:
    fetched = None if r.fetched is None else datetime.fromtimestamp(r.fetched, UTC).isoformat(timespec="seconds")
    return _Row(
        visible.shown(r.source.place),
        r.source.prefix,
        r.source.named_by,
        r.families,
        tuple(e.id for e in r.entries),
        r.sha256,
        fetched,
        r.failed,
        r.problems,
    )
