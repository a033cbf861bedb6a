"""``rlds check``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rlds_cli.base import visible
from rlds_cli.base.refs import Ref
from rlds_cli.base.text import size_of
from rlds_cli.cli import options, out, remote
from rlds_cli.cli.commands import app

_LONGEST_WORD = 128 * 1024 - 1  # bytes of an argument of a command on Linux


def _codes() -> list[str]:
    from rlds_cli.look import CODES

    return list(CODES)


@app.command("check")
def check(
    ref: Annotated[
        str,
        typer.Argument(
            metavar="ID|PATH|FILE|ADDRESS",
            help="A dataset on this disk or at an address, or an archive.",
            autocompletion=options.complete_here,
        ),
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on warnings as well.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Read the manifest and the episode table only, and no rows.")
    ] = False,
    episodes: Annotated[
        str | None,
        typer.Option(
            "--episodes",
            metavar="CODE",
            help="Print the episodes of one finding as an expression for --where, and nothing else.",
            autocompletion=_codes,
        ),
    ] = None,
    reader: options.Reader = None,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Check the content of a dataset for errors. Exit 1 if there are any.

    The checks find NaN, merged episodes, duplicates, missing frames, and wrong flags, bounds and counts:

    Errors: not-finite, final-not-finite, no-frame, broken-frame, truncated-inside,
    unflagged-end, end-differs.

    Warnings: constant, no-reward, saturated, out-of-bounds, jump, step-restarts, step-offset, step-gap, id-changes,
    length-multiple, length-outlier, duplicate, terminated-inside, never-flagged, too-long, limit-terminated,
    counts-differ, reward-isolated, age-gap.

    Notes: constant-element, constant-reward, constant-info, spike, never-terminated, both-flags, next-unknown,
    not-decoded, uneven-rate.

    docs/check.md explains them.

    With --episodes, the exit code does not depend on the findings.

    Example: rlds check d4rl/antmaze-umaze-diverse-v2 --strict
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import home, look
    from rlds_cli.make import import_files

    there = remote.opened(ref, cache_dir)
    target, is_dataset = (Ref(there.path), True) if there else home.version_or_file(ref, cache_dir=cache_dir)
    if quick and not is_dataset:
        raise typer.BadParameter(f"--quick needs a dataset; {ref} is an archive, of which all rows are read")
    if reader is not None and is_dataset:
        raise typer.BadParameter(f"--reader reads files; {ref} is a dataset")
    with out.progress() as progress:
        if is_dataset:
            report = look.check(there or str(target), quick=quick, progress=progress)
        else:
            report = look.check_archive(
                Path(target.place), partial(import_files, reader=reader), cache_dir=cache_dir, progress=progress
            )
    if episodes is not None:
        found = look.episodes_of(report, episodes)
        out.result(found, visible.Lines(found.where))
        if not found.num_episodes:
            unread = "; no rows were read" if quick else ""
            out.note(f"{report.id}: nothing was found by the name {episodes}{unread}")
        elif len(found.where) > _LONGEST_WORD:
            out.note(f"{size_of(len(found.where))} do not fit on a command line; in Python: ds.select(episodes=...)")
        return
    out.page(look.page(report, ref=ref if is_dataset else ""), report)
    remote.tell(there)
    if report.errors or (strict and report.warnings):
        raise typer.Exit(1)
