"""``rlds clear``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli.base.text import plural
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app

if TYPE_CHECKING:
    from rlds_cli.keep.compacting import Cleared


@app.command("clear")
def clear(
    id: Annotated[str, typer.Argument(metavar="ID", help="A growing dataset.", autocompletion=options.complete_here)],
    protected: Annotated[bool, typer.Option("--protected", help="Protected episodes leave, too.")] = False,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Remove all episodes of a growing dataset; its fields stay.

    Readers keep the version that they opened. Protected episodes stay without --protected.

    Example: rlds clear local/run7 --yes
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import keep

    planned = keep.clear(id, protected=protected, dry_run=True, home=home)
    if dry_run:
        return out.result(planned, _cleared(planned))
    if not yes and planned.left:
        out.confirm(_cleared(planned))
    done = keep.clear(id, protected=protected, home=home)
    return out.result(done, _cleared(done))


def _cleared(done: Cleared) -> str:
    stay = f"; {plural(done.kept, 'protected episode')} stay" if done.kept else ""
    will = "would leave" if done.dry_run else "left"
    return f"{done.id}  version {done.version:,}  {plural(done.left, 'episode')} {will}{stay}"
