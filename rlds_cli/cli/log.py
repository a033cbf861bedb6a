"""``rlds log``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli.base import text, visible
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app

if TYPE_CHECKING:
    from rlds_cli.dataset import Version


@app.command("log")
def log(
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="A dataset on this disk, or an address.", autocompletion=options.complete_here
        ),
    ],
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show the versions of a dataset and what each changed.

    ID#vN opens version N, and rlds restore ID#vN makes its content the newest. rlds log ID#vN ends with version N. Tags
    of a version are in brackets. An address has the versions that were pushed there. --verbose shows who decided what,
    where decisions made a version.

    Example: rlds log local/day1
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.dataset import named_versions

    found = named_versions(id, home=home)
    lines = ([_line(v), *(f"    {line}" for line in (v.decided if verbose else ()))] for v in reversed(found))
    out.result(found, visible.lines(line for of in lines for line in of))


def _line(v: Version) -> str:
    counts = f"{text.plural(v.episodes, 'episode')}  {text.plural(v.steps, 'step')}"
    named = f"  [{', '.join(v.tags)}]" if v.tags else ""
    return f"v{v.number}{named}  {v.created[:16].replace('T', ' ')}  {counts}  {v.change}"
