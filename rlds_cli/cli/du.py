"""``rlds du``."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli.base import visible
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app
from rlds_cli.cli.out import short_path
from rlds_cli.errors import RldsError

if TYPE_CHECKING:
    from rlds_cli.homes.measuring import DatasetUsage, Usage
    from rlds_cli.keep.gc import Collection

_MOST = 3  # names in a row


@app.command("du")
def du(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID|GLOB]...", help="Only these datasets of your home.", autocompletion=options.complete_here
        ),
    ] = None,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show the disk usage of your home by dataset. Shared files count once in the sums.

    A dataset counts with all its versions. SHARED are its bytes that also belong to the datasets SHARED WITH.

    \b
    Examples:
      rlds du local/day1
      rlds du --home /shared/rlds
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import homes, keep

    found = homes.usage(ids or (), home=home)
    out.result(found, _table(found, sums=not ids))
    for d in found.datasets:
        for source in d.refers_to:
            out.note(f"note: rows of {d.id} are stored in {source}")
    if not json and not ids:
        with suppress(RldsError):  # from a read-only home nothing can be removed
            hint = _freeable(found, keep.find_garbage(home=home))
            if hint:
                out.note(hint)


def _freeable(u: Usage, c: Collection) -> str:
    """A hint at the bytes that ``rlds gc`` would free; empty when there are none."""
    archives = sum(d.archive for d in u.datasets)
    lines = [f"rlds gc frees {out.size(c.bytes)}"] if c.bytes else []
    if archives:
        more = "more " if c.bytes else ""
        lines.append(
            f"rlds gc --archives frees up to {out.size(archives)} {more}in archives that can be downloaded again"
        )
    if u.remote:
        lines.append(f"rlds gc --remote frees up to {out.size(u.remote)} in blocks that are fetched again")
    return out.by_semicolons(f"hint: {'; '.join(lines)}", stream=sys.stderr, indent=" " * 6) if lines else ""


def _table(u: Usage, *, sums: bool) -> str:
    """Sizes of the datasets of a home, a line each, and their sums."""
    header = ("", "ARCHIVE", "CACHE", "SHARED", "LAST OPENED", "SHARED WITH")
    ids = {d.id for d in u.datasets}
    rows = [_row(d, ids) for d in u.datasets]
    if not sums:
        return out.table(header, rows, right="ARCHIVE CACHE SHARED")
    if u.packed:
        rows.append(("packed rows (rebuilt when needed)", "-", out.size(u.packed), "-", "", ""))
    if u.frames:
        rows.append(("cached frames (decoded when needed)", "-", out.size(u.frames), "-", "", ""))
    if u.remote:
        rows.append(("blocks of datasets at an address", "-", out.size(u.remote), "-", "", ""))
    if u.measures:
        rows.append(("measures of episodes (computed when needed)", "-", out.size(u.measures), "-", "", ""))
    if u.partial:
        rows.append(("partial downloads and conversions", out.size(u.partial), "-", "-", "", ""))
    where = f"{out.size(u.total)} in {short_path(u.home)}, {out.size(u.free)} free"
    if not rows:
        return where
    sum_of_caches = u.caches + u.packed + u.frames + u.remote + u.measures
    rows.append(("", out.size(u.archives + u.partial), out.size(sum_of_caches), "", "", ""))
    return visible.lines([out.table(header, rows, right="ARCHIVE CACHE SHARED"), where])


def _row(d: DatasetUsage, ids: set[str]) -> tuple[str, ...]:
    base, at, variant = d.id.partition("@")
    name = f"  @{variant}" if at and base in ids else d.id
    sizes = (d.archive, d.cache, d.shared)
    archive, cache, shared = (out.size(n) if n else "-" for n in sizes)
    more = len(d.shared_with) - _MOST
    others = ", ".join(d.shared_with[:_MOST]) + (f" and {more:,} more" if more > 0 else "")
    return name, archive, cache, shared, ago(d.last_opened) if d.last_opened else "-", others


def ago(time: str, now: datetime | None = None) -> str:
    """Format an ISO-8601 time relative to today: ``today``, ``3 weeks ago``."""
    days = ((now or datetime.now(UTC)).date() - datetime.fromisoformat(time).date()).days
    if days <= 1:
        return "yesterday" if days == 1 else "today"
    unit, length = next((u, n) for u, n in (("year", 730), ("month", 60), ("week", 14), ("day", 0)) if days >= n)
    return f"{days // max(1, length // 2)} {unit}s ago"
