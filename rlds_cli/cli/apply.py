"""``rlds apply``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from rlds_cli.base import visible
from rlds_cli.base.text import plural
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app


@app.command("apply")
def apply(
    id: options.Here,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[DECISIONS.csv]", help="Decisions; else those of the home that ID does not have yet."),
    ] = None,
    by: Annotated[
        str, typer.Option("--by", metavar="NAME", help="Who has made those that do not say it.", show_default=False)
    ] = "",
    take: Annotated[
        list[str] | None,
        typer.Option(
            "--take",
            metavar="mine|theirs|NAME",
            help="What wins where decisions clash: what was decided, what ID has now, or what an annotator says.",
            show_default=False,
        ),
    ] = None,
    name: options.NewName = None,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE.csv", help="Write the decisions as a file instead.", show_default=False),
    ] = None,
    agreement: Annotated[
        bool, typer.Option("--agreement", help="Show how far annotators agree instead, and on what they do not.")
    ] = False,
    dry_run: options.DryRun = False,
    force: options.Force = False,
    copy: options.Copy = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Apply decisions on episodes: labels, drops, trims, sub-tasks. One transaction, and no row is copied.

    A file has a column id, the id of an episode (32 hexadecimal digits); do: drop, keep or subtask, or nothing; first
    and stop: the first step, and the one behind the last; text of a subtask; one column for each label; by, time,
    version (that was looked at) and comment. An empty cell changes nothing, null takes a label away.

    Decisions on an earlier version are applied to the newest. --name makes ID@NAME: needed where steps are left out,
    and for a dataset of the registry. rlds restore undoes it, rlds log --verbose shows who decided what.

    \b
    Examples:
      rlds apply local/day1
      rlds apply local/day1 decisions.csv --name clean
      rlds apply local/day1 --export decisions.csv
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.cli import selecting

    ds = selecting.selected(id, where=None, split=None, episodes=None, home=home)
    journal = ds.decisions(home=home)
    given: Any = journal if file is None else file
    if export is not None:
        count = journal.export(export, force=force)
        out.result({"file": export, "decisions": count}, f"{export}  {plural(count, 'decision')}")
        return
    if agreement:
        found = journal.agreement(file)
        out.result(found, visible.lines(_agreement(found)))
        return
    if dry_run:
        plan = ds.plan(given, by=by, take=take or ())
        out.result(plan, visible.lines(_planned(plan)))
        return
    made = ds.apply(given, by=by, take=take or (), name=name, force=force, copy=copy, home=home)
    out.new_version(made)
    if (made.id, made.version) == (ds.id, ds.version):
        out.note(f"note: {ds.id} has all of these decisions already, so there is no new version")


def _planned(plan: Any) -> Iterator[str]:
    by = ", ".join(f"{n:,} of {who}" for who, n in plan.by.items() if who)
    yield f"{plan.id}#v{plan.version}  {plural(plan.decisions, 'decision')}{f': {by}' if by else ''}"
    for label, count in plan.labels.items():
        yield f"{label} of {plural(count, 'episode')}"
    if plan.subtasks:
        yield f"subtasks of {plural(plan.subtasks, 'episode')}"
    if plan.dropped:
        yield f"drop {plural(plan.dropped, 'episode')}"
    if plan.trimmed:
        yield f"trim {plural(plan.trimmed, 'episode')}, which become {plan.parts:,}"
    for clash in plan.clashes:
        yield f"clash: {clash}"


def _agreement(found: Any) -> Iterator[str]:
    for of in found.labels:
        kappa = "-" if of.kappa is None else f"{of.kappa:.3f}"
        yield f"{of.about}  {of.a}, {of.b}  kappa {kappa}  {of.agreed:,} of {plural(of.episodes, 'episode')} agree"
        yield from (f"  {d.id}  {d.a} against {d.b}" for d in of.disagreements)
    for r in found.reviews:
        yield f"{r.by} has reviewed {r.of}: {r.confirmed:,} confirmed, {r.contradicted:,} contradicted"
    if not found.labels and not found.reviews:
        yield "no two annotators have decided on the same"
