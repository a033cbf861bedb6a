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
    rtol: Annotated[
        float,
        typer.Option("--rtol", metavar="X", help="Numbers are equal where |a - b| <= atol + rtol * |b|.", min=0),
    ] = 0.0,
    atol: Annotated[float, typer.Option("--atol", metavar="X", help="The atol of this.", min=0)] = 0.0,
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
      rlds diff local/day1 local/day1@norm --rtol 1e-5 --atol 1e-8
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
            rtol=rtol,
            atol=atol,
            home=home,
        )
    except RldsError as e:
        out.error(e)
        raise typer.Exit(2) from None
    out.page(look.page(found, verbose=verbose), found)
    remote.tell(one, other)
    if not found.close:
        raise typer.Exit(1)
