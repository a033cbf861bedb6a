"""``rlds import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rlds_cli.cli import options, out
from rlds_cli.errors import RldsError, UnknownLayout


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_)


def import_(
    path: Annotated[list[str], typer.Argument(metavar="PATH|GLOB...", help="Files, directories or patterns.")],
    as_: Annotated[str, typer.Option("--as", metavar="local/NAME", help="The id to be.")],
    format: Annotated[str | None, typer.Option("--format", help="The reader to use.", show_default=False)] = None,
    map: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="FIELD=KEY",
            help="Read FIELD from KEY: a name, a pattern (data/*/act, obs_*) or a list ([x, y]).",
        ),
    ] = None,
    map_file: Annotated[
        Path | None, typer.Option("--map-file", metavar="FILE", help="The same from a JSON or TOML file.")
    ] = None,
    episodes_by: Annotated[
        str | None,
        typer.Option(
            "--episodes-by", metavar="RULE", help="flags, timeouts, jumps, field:KEY, steps:KEY, starts:KEY, file."
        ),
    ] = None,
    last_step: Annotated[
        str | None,
        typer.Option("--last-step", metavar="action|observation", help="What the last step of an RLDS episode holds."),
    ] = None,
    store: options.Store = options.Encoding.memmap,
    frames: options.Frames = "encoded",
    jobs: options.Jobs = None,
    skip_bad: options.SkipBad = False,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Make a dataset of your own files.

    Example: rlds import run42.h5 --as local/press --map observation=state/q --map action=cmd
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import importing
    from rlds_cli.cli import render

    said = importing.read(map_file) if map_file else importing.FieldMapping()
    fields, rule = {**said.fields, **_mapping(map or [])}, episodes_by or said.episodes_by
    what: dict[str, Any] = {"format": format, "fields": fields, "episodes_by": rule}
    what |= {"skip_bad": skip_bad, "last_step": last_step}
    how: dict[str, Any] = {"store": store.value, "frames": frames, "jobs": jobs, "force": force}
    try:
        planned = importing.plan_import(path, as_, **what)
    except UnknownLayout as e:
        if format or fields or rule:  # the error is about what was asked for
            raise
        raise render.unknown(path[0], as_, e) from e
    if dry_run:
        out.page(render.import_plan(planned), planned.summary())
        return
    del planned  # of millions of episodes it is large
    with out.progress() as progress:
        ds = importing.import_archive(path, as_, **what, **how, cache_dir=cache_dir, progress=progress)
    render.ready(ds)


def _mapping(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise RldsError(f'--map "{pair}" is not FIELD=KEY.', hint="as in --map observation=state/q")
    return {pair.partition("=")[0]: pair.partition("=")[2] for pair in pairs}
