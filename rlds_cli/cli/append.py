"""``rlds append``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlds_cli.base import text, visible
from rlds_cli.base.files import child
from rlds_cli.base.files.hashing import short
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app
from rlds_cli.cli.import_ import mapping, plan_lines, tell_account

if TYPE_CHECKING:
    from rlds_cli.make.convert.appending import Appended, AppendPlan


@app.command("append")
def append(
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="A dataset of your own; it is made if needed.", autocompletion=options.complete_here
        ),
    ],
    path: Annotated[list[str], typer.Argument(metavar="PATH|GLOB...", help="Files, directories or patterns.")],
    reader: options.Reader = None,
    map: options.Map = None,
    episodes_by: options.EpisodesBy = None,
    last_step: options.LastStep = None,
    rewards: options.Rewards = None,
    missing: options.Missing = None,
    topics: options.Topics = None,
    hz: options.Hz = None,
    nearest: options.Nearest = None,
    episode_info: options.EpisodeInfo = None,
    facts: options.Facts = None,
    protected: Annotated[
        bool, typer.Option("--protected", help="Episodes that never leave, such as demonstrations.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Also append files that were appended before.")] = False,
    jobs: options.Jobs = None,
    skip_bad: options.SkipBad = False,
    dry_run: options.DryRun = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Append the episodes of your own files to a dataset.

    All of them are committed together, as the next version. A file that was appended before is left out. Options that
    say how files are read are those of the import or append that made the dataset, unless they are given. Images and
    videos stay encoded. A dataset that is not here is made; it grows.

    Example: rlds append local/press day3/*.h5 --map observation=state/q --map action=cmd
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import make
    from rlds_cli.cli import selecting

    what: dict[str, Any] = {"reader": reader, **mapping(map or [], episodes_by, rewards)}
    what |= {"last_step": last_step, "missing": missing}
    what |= {"skip_bad": skip_bad, "again": again, "home": home}
    what |= {"topics": topics.split(",") if topics else None, "hz": hz, "nearest": nearest}
    what |= {"episode_info": episode_info}
    what |= selecting.facts(facts or [])
    started = child.reading("rlds_cli.make.convert.reading", both=["rlds_cli.make.convert.appending"])
    with started, out.progress() as progress, child.reading(id=id, progress=progress):
        if dry_run:
            planned = make.plan_append(id, path, **what)
            out.page(_plan(planned), planned.summary())
            return
        done = make.append(id, path, **what, protected=protected, jobs=jobs, progress=progress)
    out.result(done, _appended(done))
    for n in done.notes:
        out.note(f"{n.get('severity', 'note')}: {out.note_line(n)}")
    _tell_skipped(done.skipped)
    tell_account(done.account, "--dry-run --again --json lists all")


def _tell_skipped(files: tuple[Path, ...]) -> None:
    if files:
        more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
        out.note(f"note: appended before, left out: {files[0]}{more}; --again appends them once more")


def _appended(done: Appended) -> str:
    counts = f"{text.plural(done.steps, 'step')}  {text.plural(done.episodes, 'episode')} appended"
    if not done.files:
        counts = "nothing to append"
    return f"{done.id}  {counts}  version {done.version:,}  {short(done.fingerprint)}"


def _plan(p: AppendPlan) -> str:
    lines = [f"{p.id} {'will be made' if p.new else 'exists'}"]
    lines += [f"appended before, left out: {f}" for f in p.skipped]
    if p.remembered:
        lines.append(f"read as in the first append: {', '.join(f'{k} {v}' for k, v in p.remembered.items())}")
    lines += plan_lines(p.reader) if p.reader else ["nothing to append"]
    kinds = {f.name: f.kind for f in p.fields}
    if p.reader and any(f.kind == "frames" and kinds.get(f.name) == "array" for f in p.reader.fields):
        lines.append("frames are decoded")
    return visible.lines([*lines, f"Run without --dry-run to append to {p.id}"])
