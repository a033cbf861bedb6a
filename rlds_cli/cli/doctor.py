"""``rlds doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rlds_cli import __version__
from rlds_cli.base import text, visible
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app

if TYPE_CHECKING:
    from rlds_cli.look.report.doctor import Diagnosis


_NO_LINKS = (
    "no hard links: versions and selections refer to the files of earlier versions, which rlds compact ID copies; a "
    "selection of a growing dataset is a copy, by --copy"
)


@app.command("doctor")
def doctor(
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show what is installed, what is missing and what is wrong. It also says where the home is, and asks no server.

    Exit 1 if something is wrong.

    Example: rlds doctor
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.look import diagnose

    found = diagnose(home=home)
    out.result(found, _found(found))
    if found.problems:
        raise typer.Exit(1)


def _found(d: Diagnosis) -> str:
    missing = f"; missing: {', '.join(d.missing)}  (pip install 'rlds-cli[NAME]')" if d.missing else ""
    shared = f"; also reads {', '.join(map(str, d.shared))}" if d.shared else ""
    links = "hard links: versions and selections share files" if d.links else _NO_LINKS
    rows = [
        ("rlds", f"{__version__}, Python {d.python}, {d.system}"),
        ("kernel", "compiled" if d.compiled else "not compiled"),
        ("torch", d.torch or 'not installed: batches of NumPy and JAX, backend="numpy"'),
        ("extras", f"{', '.join(d.extras) or 'none'}{missing}"),
        ("home", f"{d.home}: {text.plural(d.datasets, 'dataset')}, {out.size(d.free)} free{shared}"),
        ("sharing", links),
        ("network", "off (RLDS_OFFLINE)" if d.offline else "on"),
    ]
    lines = [out.by_words(f"{name:<9}{value}", indent=" " * 9) for name, value in rows]
    return visible.lines([*lines, *(f"problem  {p}" for p in d.problems)] if d.problems else [*lines, "no problems"])
