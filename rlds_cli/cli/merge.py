"""``rlds merge``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlds_cli.base import text, visible
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app

if TYPE_CHECKING:
    from rlds_cli.make.convert.merging import MergePlan


@app.command("merge")
def merge(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Datasets on this disk.", autocompletion=options.complete_here)
    ],
    name: Annotated[str, typer.Option("--name", metavar="local/NAME", help="Id of the new dataset.")],
    fields: Annotated[
        str | None,
        typer.Option("--fields", metavar="A,B", help="Fields of the new dataset; default: all, which must agree."),
    ] = None,
    column: Annotated[
        str, typer.Option("--column", metavar="NAME", help="Episode column that says where an episode came from.")
    ] = "dataset",
    storage: options.Storage = options.Encoding.memmap,
    copy: options.Copy = False,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Make one dataset of several. The episode table says where each episode came from.

    Growing datasets give the episodes of their newest version.

    Example: rlds merge local/monday local/tuesday --name local/all
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import make

    what: dict[str, Any] = {"fields": fields.split(",") if fields else None, "column": column, "home": home}
    what |= {"storage": storage.value, "copy": copy}
    if dry_run:
        planned = make.plan_merge(ids, name, **what)
        out.result(planned, _plan(planned))
        return
    with out.progress() as progress:
        ds = make.merge(ids, name, **what, force=force, progress=progress)
    out.new_dataset(ds)


def _plan(p: MergePlan) -> str:
    lines = [
        f"{m.id}#v{m.version}  {text.plural(m.steps, 'step')}  {text.plural(m.episodes, 'episode')}" for m in p.members
    ]
    lines += [f"fields: {', '.join(f.name for f in p.fields)}"]
    lines += [f"left out: {', '.join(p.left_out)}"] if p.left_out else []
    none = "no other row is copied" if p.converted else "no row is copied"
    copied = f"rows are copied: {', '.join(p.copied)}" if p.copied else none
    lines += [f"rows stay where they are: {', '.join(p.referred)}; --copy copies them"] if p.referred else []
    lines += [f"fields of different dtypes are written anew: {', '.join(p.converted)}"] if p.converted else []
    lines += [copied, f"{out.size(p.bytes)} of rows will be written"]
    return visible.lines([*lines, f"Run without --dry-run to make {p.id}"])
