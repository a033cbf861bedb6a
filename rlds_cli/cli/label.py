"""``rlds label``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlds_cli.base import refs
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app
from rlds_cli.errors import InvalidArgument

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


@app.command("label")
def label(
    id: options.Here,
    labels: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COLUMN=VALUE]...", help="Values for all selected episodes; null takes one away."),
    ] = None,
    where: options.Where = None,
    split: options.Split = None,
    episodes: options.Episodes = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE.csv",
            help="Values by episode: a column id, or episode (number in ID#vN), and labels; or first, stop, subtask.",
            show_default=False,
        ),
    ] = None,
    measures: Annotated[
        str | None,
        typer.Option("--measures", metavar="NAMES", help="Measures as labels: quality_jerk,... or all that there are."),
    ] = None,
    facts: options.Facts = None,
    name: options.NewName = None,
    force: options.Force = False,
    copy: options.Copy = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Set episode columns and facts of a dataset. No row is copied.

    A dataset of the registry is not changed in its place: --name makes ID@NAME.

    \b
    Examples:
      rlds label local/day1 --where "episode in [3, 7]" quality=bad
      rlds label local/day1 --measures quality_idle_share,quality_jerk
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.cli import selecting

    if file is not None and (labels or where or split or episodes or measures):
        raise InvalidArgument("--from names the episodes and their labels itself.", hint="two commands")
    columns, values = selecting.assignments(labels or []), selecting.typed(selecting.assignments(facts or []))
    how: dict[str, Any] = {"name": name, "force": force, "copy": copy, "home": home}

    def change() -> tuple[Dataset, Dataset]:
        ds = selecting.selected(id, where=where, split=split, episodes=episodes, home=home)
        if file is None:
            measured = selecting.measured(measures, ds) if measures else {}
            return ds, ds.label({**selecting.typed(columns, ds), **measured}, facts=values, **how)
        chosen, read = selecting.from_file(file, ds, named=refs.parse(id).selector is not None)
        return ds, chosen.label(read, facts=values, **how)

    before, made = selecting.on_newest(id, change, numbered=episodes is not None)
    out.new_version(made)
    if (made.id, made.version) == (before.id, before.version):
        out.note("note: nothing changed: these labels and facts are set already, so there is no new version")
