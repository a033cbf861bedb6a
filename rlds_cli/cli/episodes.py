"""``rlds episodes``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlds_cli.base.text import plural
from rlds_cli.cli import options, out, remote
from rlds_cli.cli.commands import app

if TYPE_CHECKING:
    from rlds_cli.look.report.episodes import EpisodePage


@app.command("episodes")
def episodes(
    ref: Annotated[
        str,
        typer.Argument(
            metavar="ID|ADDRESS",
            help="A dataset on this disk, or at an address.",
            autocompletion=options.complete_here,
        ),
    ],
    where: options.Where = None,
    sort: Annotated[
        str | None,
        typer.Option("--sort", metavar="COLUMN", help="Sort by an episode column, or by episode.", show_default=False),
    ] = None,
    descending: Annotated[bool, typer.Option("--descending", help="From the greatest to the least.")] = False,
    first: Annotated[int, typer.Option("--first", metavar="N", min=0, help="Leave out N episodes before.")] = 0,
    count: Annotated[int, typer.Option("--count", metavar="N", min=0, max=1000, help="Show N episodes.")] = 20,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """List the episodes of a dataset, filtered and sorted. Episodes without a value come last.

    The text shows the usual columns, and --json all of them.

    Example: rlds episodes local/day1 --where "not success" --sort length --descending
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.dataset import open_dataset
    from rlds_cli.look import EpisodeTable

    there = remote.opened(ref, home)
    table = EpisodeTable(there or open_dataset(ref, home=home))
    found = table.page(
        where=where,
        sort=sort,
        descending=descending,
        first=first,
        count=count,
        ref=ref,
        home=None if home is None else str(home),
    )
    out.result(found, _table(found))
    out.note(_counted(found))
    remote.tell(there)


def _table(found: EpisodePage) -> str:
    names = [c.name for c in found.columns if c.usual]
    numbers = " ".join(c.name for c in found.columns if c.kind == "number")
    rows = [[f"{row.number:,}", *(_cell(row.values[name]) for name in names)] for row in found.episodes]
    if not rows:
        return ""
    header, texts = ["EPISODE", *names], [c.name for c in found.columns if c.kind == "text"]
    fit = out.fitting(header, rows, texts=texts)
    if fit < len(header):
        out.note(f"note: not on this terminal: {', '.join(header[fit:])}; a pipe and --json have them")
    return out.table(header[:fit], [row[:fit] for row in rows], right=f"EPISODE {numbers}", texts=texts)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}" if value == value else "-"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _counted(found: EpisodePage) -> str:
    """Say how many episodes there are, and which of them are shown."""
    all_of_them = f"{plural(found.of, 'episode')} of {found.id}"
    matching = f"{found.matching:,} of {all_of_them} match" if found.where else all_of_them
    last = found.first + len(found.episodes)
    if not found.episodes or (not found.first and last == found.matching):
        return matching
    return f"{matching}; these are number {found.first + 1:,} to {last:,} in this order"
