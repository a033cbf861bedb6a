"""``rlds check``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli.base import visible
from rlds_cli.base.refs import Ref
from rlds_cli.base.text import plural, size_of
from rlds_cli.cli import options, out, remote
from rlds_cli.cli.commands import app

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset
    from rlds_cli.look.checks.check_report import CheckReport

_LONGEST_WORD = 128 * 1024 - 1  # bytes of an argument of a command on Linux
_NEW = 3  # exit code of --since


def _codes() -> list[str]:
    from rlds_cli.look import CODES

    return list(CODES)


@app.command("check")
def check(
    ref: Annotated[
        str | None,
        typer.Argument(
            metavar="ID|PATH|FILE|ADDRESS",
            help="A dataset on this disk or at an address, or an archive.",
            autocompletion=options.complete_here,
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on warnings as well.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Read the manifest and the episode table only, and no rows.")
    ] = False,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            "--measure",
            metavar="time|motion|action|camera|labels|all",
            help="Compute measures of episodes, and find those unlike their siblings.",
        ),
    ] = None,
    fn: Annotated[
        list[str] | None,
        typer.Option(
            "--fn",
            metavar="FILE.py:FUNCTION",
            help="Compute a measure of your own: a function of an episode that returns a number, or numbers by name.",
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Explain all measures.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="VERSION|TAG", help="Print what that version does not have; exit 3 if it is not a note."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="ID|ADDRESS", help="Find the episodes that are in this dataset as well."),
    ] = None,
    suppress: Annotated[
        str | None,
        typer.Option("--suppress", metavar="CODE", help="Do not count these findings again.", autocompletion=_codes),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why --suppress is right; it is kept.")] = "",
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
    jobs: options.Jobs = None,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Check the content of a dataset for errors. Exit 1 if there are any.

    Errors: not-finite, final-not-finite, no-frame, broken-frame, truncated-inside,
    unflagged-end, end-differs.

    Warnings: constant, no-reward, saturated, out-of-bounds, jump, step-restarts, step-offset, step-gap, id-changes,
    length-multiple, length-outlier, duplicate, terminated-inside, never-flagged, too-long, limit-terminated,
    counts-differ, reward-isolated, age-gap, stale-observation, zero-rows, early-reward, flags-in-runs,
    missing-frames.

    Notes: constant-element, constant-reward, constant-info, spike, never-terminated, both-flags, next-unknown,
    not-decoded, uneven-rate, continues.

    With --measure, episodes that differ from their siblings are warnings, such as idle, frozen-camera and action-lag;
    measures are words of --where from then on. docs/guides/check.md and docs/reference/measures.md explain all codes.
    With --episodes, the exit code does not depend on the findings.

    \b
    Examples:
      rlds check d4rl/antmaze-umaze-diverse-v2 --strict
      rlds check local/day1 --measure all --since v3
      rlds check local/day1 --measure motion --suppress idle --reason waits
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import homes, look
    from rlds_cli.make import import_files

    if list_:
        _print_measures()
        return
    if ref is None:
        raise typer.BadParameter("Missing argument 'ID|PATH|FILE|ADDRESS'.")
    there = remote.opened(ref, home)
    target, is_dataset = (Ref(there.path), True) if there else homes.version_or_file(ref, home=home)
    if quick and not is_dataset:
        raise typer.BadParameter(f"--quick needs a dataset; {ref} is an archive, of which all rows are read")
    if reader is not None and is_dataset:
        raise typer.BadParameter(f"--reader reads files; {ref} is a dataset")
    if not is_dataset and (measure or fn or since or suppress or against):
        raise typer.BadParameter(f"measures, --since, --against and --suppress need a dataset; {ref} is an archive")
    groups = [g for given in measure or () for g in given.split(",")]
    other: Dataset | None = None
    with out.progress() as progress:
        if is_dataset:
            ds = there or str(target)
            _measure_own(ds, fn or (), home)
            other = None if against is None else _opened(against, home)
            _tell_costs(ds, groups, home)
            _tell_costs(other, ["motion"] if other and not quick else [], home)
            how = {"quick": quick, "measures": groups, "since": since, "against": other, "jobs": jobs}
            report = look.check(ds, **how, home=home, progress=progress)  # type: ignore[arg-type]
        else:
            report = look.check_archive(
                Path(target.place), partial(import_files, reader=reader), home=home, progress=progress
            )
    if suppress is not None:
        _suppress(there or str(target), report, suppress, reason, home)
        return
    if episodes is not None:
        _print_episodes(report, episodes, quick=quick)
        return
    out.page(look.page(report, ref=ref if is_dataset else ""), report)
    remote.tell(there, other)
    if since is not None and (report.errors or report.warnings):
        raise typer.Exit(_NEW)
    if since is None and (report.errors or (strict and report.warnings)):
        raise typer.Exit(1)


def _print_measures() -> None:
    """Print all measures, with their units, sources, needs and findings."""
    from rlds_cli import look

    found = look.Measures.explained()
    parts = list[str]()
    for m in found:
        parts += [f"{m.name} [{m.unit}]  group {m.group}, version {m.version}", f"    {m.text}"]
        parts.append(f"    source: {m.source};  needs {m.needs}")
        parts += [f"    finding {limit.code}: {limit.why}" for limit in m.findings]
    parts.append("Quantiles of measures and columns are exact, here as in --where: of all episodes that have a value.")
    out.result(found, visible.lines(parts))


def _measure_own(ds: Dataset | str, references: Sequence[str], home: Path | None) -> None:
    """Compute the measures of functions of the user's own, and say what they are called."""
    from rlds_cli import look
    from rlds_cli.preprocess import find_function

    for reference in references:
        found = find_function(reference)
        measures = look.Measures(_opened(ds, home), home=home)
        with out.progress() as progress:
            names = measures.compute_own(found.load(), reference, found.code, progress=progress)
        out.note(f"{reference}: {', '.join(names)} are measured; they are words of --where")


def _tell_costs(ds: Dataset | str | None, groups: Sequence[str], home: Path | None) -> None:
    """Say what the computation of measures will read."""
    if not groups or ds is None:
        return
    from rlds_cli import look

    for cost in look.Measures(_opened(ds, home), home=home).costs(groups):
        out.note(str(cost))


def _opened(ds: Dataset | str, home: Path | None) -> Dataset:
    from rlds_cli.dataset import open_dataset

    return open_dataset(ds, home=home) if isinstance(ds, str) else ds


def _suppress(ds: Dataset | str, report: CheckReport, code: str, reason: str, home: Path | None) -> None:
    """Suppress the findings of a code, and say so."""
    from rlds_cli import look

    done = look.Measures(_opened(ds, home), home=home).suppress(report, code, reason)
    of = f"in {plural(len(done.episodes), 'episode')}" if done.episodes else "of the dataset"
    out.result(done, f"{code} {of} is suppressed: {done.reason}")


def _print_episodes(report: CheckReport, code: str, *, quick: bool) -> None:
    """Print the expression that selects the episodes of a finding."""
    found = report.episodes_of(code)
    out.result(found, visible.Lines(found.where))
    if not found.num_episodes:
        unread = "; no rows were read" if quick else ""
        out.note(f"{report.id}: nothing was found by the name {code}{unread}")
    elif len(found.where) > _LONGEST_WORD:
        out.note(f"{size_of(len(found.where))} do not fit on a command line; in Python: ds.select(episodes=...)")
