"""``rlds export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli.base import text, visible
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app, resumable

if TYPE_CHECKING:
    from rlds_cli.archives.exports.exporting import Exported, ExportPlan


def _formats() -> list[str]:
    from rlds_cli.archives import FORMATS

    return list(FORMATS)


@app.command("export")
def export(
    id: Annotated[str, typer.Argument(metavar="ID", help="A dataset.", autocompletion=options.complete_here)],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the exported dataset.")],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="FORMAT", help="The format.", autocompletion=_formats, show_default="required"),
    ] = None,
    form: Annotated[str | None, typer.Option("--form", help="A form of the format, if it has several.")] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="NAME", help="The column or field of texts that is the instruction, not task."),
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help="Only the episodes of a named split.")] = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="EXPR", help="Only some episodes, as in --where 'length >= 500'.")
    ] = None,
    lossy: Annotated[bool, typer.Option("--lossy", help="Accept that the format cannot represent everything.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Import the files again and compare the fingerprint.")
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Replace DIR if it is an earlier export.")] = False,
    jobs: options.Jobs = None,
    dry_run: options.DryRun = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Write a dataset in the format of another library.

    The files are imported again and compared. If the format cannot represent something, the command lists it and stops.

    Example: rlds export d4rl/hopper-medium-v2 hopper --to lerobot
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    if to is None:
        raise typer.BadParameter(f"choose one of {', '.join(_formats())}", param_hint="--to")
    from rlds_cli import archives
    from rlds_cli.dataset import open_dataset

    ds = open_dataset(id, home=home)
    ds = ds if split is None and where is None else ds.select(split=split, where=where)
    if dry_run:
        planned = archives.plan_export(ds, to, directory, form=form, task=task)
        out.result(planned, _plan(planned))
        return
    with resumable(), out.progress() as progress:
        made = archives.export(
            ds,
            to,
            directory,
            form=form,
            task=task,
            lossy=lossy,
            verify=verify,
            force=force,
            jobs=jobs,
            progress=progress,
        )
    out.result(made, _report(made))


def _plan(p: ExportPlan) -> str:
    lines = [f"{p.id}  {_amount(p)}, about {out.size(p.bytes)}", *_losses(p), *p.notes]
    accepted = " with --lossy" if p.losses else ""
    return visible.lines([*lines, f"Run without --dry-run{accepted} to write {p.directory}"])


def _report(e: Exported) -> str:
    files = f"{text.plural(e.files, 'file')}, {out.size(e.bytes)}"
    proof = f"imported again: {e.fingerprint}" if e.proved else "not imported again"
    return visible.lines([f"{e.directory}  {_amount(e)}, {files}", *_losses(e), proof, *e.notes])


def _amount(e: ExportPlan | Exported) -> str:
    return f"{text.plural(e.episodes, 'episode')}, {text.plural(e.steps, 'step')}"


def _losses(e: ExportPlan | Exported) -> list[str]:
    return [f"lost: {loss.text}" for loss in e.losses]
