"""``rlds select``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app
from rlds_cli.errors import InvalidArgument, PreprocessError


@app.command("select")
def select(
    id: options.Here,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The new dataset is ID@NAME.")],
    where: options.Where = None,
    split: options.Split = None,
    episodes: options.Episodes = None,
    trim: Annotated[
        str | None,
        typer.Option(
            "--trim",
            metavar="idle|openpi-idle|FILE.py:FUNCTION",
            help="Cut idle steps out: by findings, or by openpi's rule; or a function of an episode that returns the "
            "ranges of steps that stay.",
            show_default=False,
        ),
    ] = None,
    drop_findings: Annotated[
        str | None,
        typer.Option(
            "--drop-findings",
            metavar="CODES",
            help="Leave out the episodes of these findings, such as idle,frozen-camera.",
            show_default=False,
        ),
    ] = None,
    force: options.Force = False,
    copy: options.Copy = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Make a dataset of some episodes, or of ranges of their steps. No row is copied.

    The function of --trim gets an episode, and returns a flag for each step, a pair (first, stop), a list of pairs, or
    None to leave the episode out. Each range becomes an episode.

    --drop-findings and --trim idle go by measures, which rlds check --measure computes. What they decided is written
    down in the dataset, and in its lock: versions of measures, limits, episodes and ranges.

    \b
    Examples:
      rlds select local/day1 --where "success" --name clean
      rlds select local/day1 --drop-findings idle,frozen-camera --name clean
      rlds select local/day1 --trim idle --name awake
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.cli import selecting

    ds = selecting.selected(id, where=where, split=split, episodes=episodes, home=home)
    if drop_findings is not None:
        ds = selecting.without_findings(ds, drop_findings, home)
    if trim in selecting.TRIMS:
        out.new_dataset(selecting.trimmed(ds, trim, name, force=force, copy=copy, home=home))
        return
    if trim is None:
        out.new_dataset(ds.save(name, force=force, copy=copy, home=home))
        return
    out.new_dataset(ds.trim(_function(trim), name, force=force, copy=copy, home=home))


def _function(reference: str) -> Callable[..., Any]:
    """Return the function of ``--trim``."""
    from rlds_cli.preprocess import find_function

    hint = "--trim FILE.py:FUNCTION, as in examples/idle.py:moving: a function of an episode, for the steps that stay"
    if ":" not in reference and not reference.endswith(".py"):
        raise InvalidArgument(f"--trim {reference}: this names no function in a file or module.", hint=hint)
    try:
        return find_function(reference).load()
    except PreprocessError as e:
        raise InvalidArgument(f"--trim {reference}: {e.message}", hint=hint) from e
