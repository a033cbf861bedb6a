"""``rlds restore``."""

from __future__ import annotations

from typing import Annotated

import typer

from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app
from rlds_cli.errors import InvalidArgument


@app.command("restore")
def restore(
    ref: Annotated[
        str,
        typer.Argument(
            metavar="ID#VERSION",
            help="An earlier version of a dataset on this disk: ID#vN, or ID#TAG.",
            autocompletion=options.complete_here,
        ),
    ],
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Make a next version with the content of an earlier one.

    The versions between stay, and no row is copied. rlds log ID shows all versions.

    Example: rlds restore local/day1#v2
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.base import refs
    from rlds_cli.cli import selecting

    if refs.parse(ref).selector is None:
        raise InvalidArgument(f"Which version of {ref}?", hint=f"rlds restore {ref}#v1; rlds log {ref} shows them")
    ds = selecting.selected(ref, where=None, split=None, episodes=None, home=home)
    newest = ds.versions[-1].number
    made = ds.restore()
    out.new_version(made)
    if made.version == newest:
        out.note(f"note: nothing changed: {made.id}#v{made.version} has this content already")
