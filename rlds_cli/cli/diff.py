"""``rlds diff``."""

from __future__ import annotations

from typing import Annotated

import typer

from rlds_cli.cli import options, out, remote
from rlds_cli.cli.commands import app
from rlds_cli.errors import RldsError


@app.command("diff")
def diff(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="A dataset on this disk or at an address.", autocompletion=options.complete_here
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="Another dataset.", autocompletion=options.complete_here)],
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", metavar="X", help="Numbers are equal where |a - b| <= X + X * |b|.", min=0),
    ] = 0.0,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Compare two datasets. Exit 0 if equal, 1 if different, 2 on errors.

    Fields, counts, statistics, hashes, episodes, episode columns and facts are compared. Other facts (fps, license,
    description) alone are not different content.

    \b
    Examples:
      rlds diff d4rl/hopper-medium-v2 d4rl/hopper-medium-v2@norm --tolerance 1e-6
      rlds diff local/day1#v1 local/day1
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import homes, look

    try:
        one = remote.opened(a, home)
        other = remote.opened(b, home)
        found = look.compare(
            one or str(homes.version(a, home=home)),
            other or str(homes.version(b, home=home)),
            rtol=tolerance,
            atol=tolerance,
            home=home,
        )
    except RldsError as e:
        out.error(e)
        raise typer.Exit(2) from None
    out.page(look.page(found, everything=verbose), found)
    remote.tell(one, other)
    if not found.close:
        raise typer.Exit(1)
