"""``rlds sync``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli.base import visible
from rlds_cli.base.files.hashing import short
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app

if TYPE_CHECKING:
    from rlds_cli.keep.pinning import Synced


@app.command("sync")
def sync(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A lock file, written by rlds lock.")] = Path(
        "rlds.lock"
    ),
    allow_code: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-code",
            metavar="MOD:FUNC|FILE.py:FUNC|all",
            help="Run this function of yours if its source is the one in the lock file.",
        ),
    ] = None,
    allow_address: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-address",
            metavar="HOST|all",
            help="Fetch datasets of the lock file from this web server; those of the registry need no permission.",
        ),
    ] = None,
    depends_on: Annotated[
        list[str] | None,
        typer.Option(
            "--depends-on", metavar="FILE", help="Let functions read this file outside the current directory."
        ),
    ] = None,
    jobs: options.Jobs = None,
    force: options.Force = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Make the datasets of a lock file again. Exit 1 and name the differences if fingerprints differ.

    Selections, trims and labels are data of the lock and run no code; measures by which episodes were chosen are
    computed again, and differences are named. Built-in functions run without
    asking; your own functions need --allow-code, and web servers that the registry does not name
    --allow-address, or your consent on a terminal.

    Example: rlds sync rlds.lock
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import keep

    functions, hosts = allow_code or [], allow_address or []
    if out.can_ask():
        functions, hosts = _ask(file, functions, hosts, home)
    how = {"allow_code": functions, "allow_address": hosts, "depends_on": depends_on or (), "home": home}
    with out.progress() as progress:
        done = keep.sync(file, jobs=jobs or 0, force=force, progress=progress, **how)  # type: ignore[arg-type]
    out.result(done, _synced(done))
    for d in done:
        if d.selected_from is not None:
            _compare_measures(d, d.selected_from, jobs, home)
        if d.version < d.newest:
            out.note(f"note: {d.id} without #v{d.version} is version {d.newest:,}, which is also on this disk")


def _ask(file: Path, functions: Sequence[str], hosts: Sequence[str], home: Path | None) -> tuple[list[str], list[str]]:
    """Ask the user about functions and web servers that are not allowed yet; return all that are allowed."""
    from rlds_cli import keep

    wanted = keep.unallowed(file, allow_code=functions, allow_address=hosts, home=home)
    more = [h for h in wanted.hosts if typer.confirm(f"Fetch datasets of {file} from {h}?", err=True)]
    for one in wanted.functions:
        typer.echo(f"{file} would run {one}", err=True)
    references = dict.fromkeys(one.reference for one in wanted.functions)
    run = [r for r in references if typer.confirm(f"Run {r}?", err=True)]
    return [*functions, *run], [*hosts, *more]


def _compare_measures(d: Synced, source: Path, jobs: int | None, home: Path | None) -> None:
    """Compute the measures by which episodes were chosen once more, and say where they are other ones here."""
    from rlds_cli import look
    from rlds_cli.dataset import open_dataset

    measures = look.Measures(open_dataset(source), home=home)
    for account in open_dataset(d.path).manifest.provenance[-1]["args"].get("measured", ()):
        with out.progress() as progress:
            differing = measures.differing(account, jobs=jobs, progress=progress)
        for says in differing:
            out.note(f"note: {d.id} has the episodes of the lock; {says}")


def _synced(done: Sequence[Synced]) -> str:
    """The datasets, and how each of them was made."""
    names = [f"{d.id}#v{d.version}" if d.newest > 1 else d.id for d in done]
    width = max(map(len, names), default=0)
    return visible.lines(
        f"{name:{width}}  {d.how:10}  {short(d.fingerprint)}" for d, name in zip(done, names, strict=True)
    )
