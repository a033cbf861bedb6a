"""``rlds tag``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlds_cli.base import visible
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app


@app.command("tag")
def tag(
    ref: Annotated[
        str,
        typer.Argument(
            metavar="ID[#VERSION]",
            help="A dataset, at its newest version or another one.",
            autocompletion=options.complete_here,
        ),
    ],
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The tag; without it, tags are listed.", show_default=False)
    ] = None,
    delete: Annotated[
        str | None, typer.Option("--delete", metavar="NAME", help="Remove a tag.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Move a tag that another version has.")] = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Name versions of a dataset, or list their names.

    A tag stands for the number of a version: ID#NAME. It begins with a letter, and has letters, digits, dots,
    underscores and dashes.

    \b
    Examples:
      rlds tag local/day1 icra
      rlds tag local/day1#v1 first
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import homes
    from rlds_cli.base import refs
    from rlds_cli.dataset import open_dataset
    from rlds_cli.store import History

    if delete is not None and name is not None:
        raise typer.BadParameter("give either NAME or --delete NAME")
    named = homes.version(ref, home=home)
    history = History(Path(named.place))
    if delete is not None:
        refs.whole(ref)
        history.untag(delete)
    elif name is not None:
        open_dataset(str(named)).tag(name, force=force)
    found = history.tags if named.selector is None else _of_version(str(named))
    out.result(found, _lines(found))


def _of_version(ref: str) -> dict[str, int]:
    """Return the tags of one version."""
    from rlds_cli.dataset import open_dataset

    ds = open_dataset(ref)
    return {name: number for name, number in ds.tags.items() if number == ds.version}


def _lines(tags: dict[str, int]) -> str:
    return visible.lines([f"{name}  version {number:,}" for name, number in tags.items()] or ["no tags"])
