"""``rlds gc``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlds_cli.base import text, visible
from rlds_cli.base.files.hashing import short
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app

if TYPE_CHECKING:
    from rlds_cli.keep.gc import Collection, Garbage
    from rlds_cli.share.collecting import Collected


_NOTES = {
    "frames": "cached frames, decoded again when needed",
    "measures": "of a dataset that is not here; computed again when needed",
    "partial": "interrupted work",
    "archive": "archive, can be downloaded again",
    "remote": "blocks of a dataset at an address, fetched again when needed",
    "versions": "rows of episodes that left",
}


@app.command("gc")
def gc(
    address: Annotated[
        str | None,
        typer.Argument(metavar="[ADDRESS]", help="Remove versions there instead.", show_default=False),
    ] = None,
    keep_last: Annotated[
        int, typer.Option("--keep-last", metavar="N", min=1, help="Versions at ADDRESS that stay, from the newest on.")
    ] = 1,
    keep_tags: Annotated[
        bool, typer.Option("--keep-tags/--no-keep-tags", help="Versions at ADDRESS with tags stay, too.")
    ] = True,
    archives: Annotated[
        bool,
        typer.Option("--archives", help="Also remove archives that can be downloaded again and whose datasets verify."),
    ] = False,
    remote: Annotated[
        bool, typer.Option("--remote", help="Also remove cached blocks of datasets at an address that nobody reads.")
    ] = False,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Free disk space: remove caches of loaders and interrupted work. Datasets stay.

    Growing datasets: rows of episodes that left are freed, unless a process reads a version that has them. At an
    address, earlier versions are removed, with the objects that no other version there needs.

    \b
    Examples:
      rlds gc --archives --yes
      rlds gc s3://our-bucket/arm --keep-last 3
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    if address is not None:
        if archives or remote:
            raise typer.BadParameter("give either ADDRESS or --archives and --remote, which are about the home")
        how: dict[str, Any] = {"keep_last": keep_last, "keep_tags": keep_tags, "home": home}
        return _collect_address(address, how, yes=yes, dry_run=dry_run)
    from rlds_cli import keep

    planned = keep.find_garbage(archives=archives, remote=remote, home=home)
    if dry_run:
        return out.result(planned, _planned(planned) or "nothing to remove")
    if planned.removed and not yes:
        out.confirm(_planned(planned), f"Remove {out.size(planned.bytes)}?")
    with out.progress() as progress:
        done = keep.collect(planned, progress=progress)
    return out.result(done, _collected(done))


def _collect_address(address: str, how: dict[str, Any], *, yes: bool, dry_run: bool) -> None:
    """Remove versions from an address."""
    from rlds_cli import share

    done = share.collect(address, **how, dry_run=True)
    if not dry_run:
        if done.removed and not yes:
            out.confirm(_versions(done), f"Remove {out.size(done.bytes)} from {done.address}?")
        done = share.collect(address, **how)
    out.result(done, _versions(done))


def _versions(done: Collected) -> str:
    """Versions that stay, those that are removed, and the space that they take."""
    would = "would be" if done.dry_run else "were"
    lines = [f"v{v.number}  stays" for v in done.kept]
    lines += [f"v{v.number}  {short(v.fingerprint)}  removed" for v in done.removed]
    lines += [f"tag {tag}  removed" for tag in done.tags]
    freed = f"{text.plural(done.objects, 'object')} ({out.size(done.bytes)}) {would} removed"
    return visible.lines([*lines, freed if done.objects else "nothing to remove"])


def _planned(c: Collection) -> str:
    """Files that would be removed, and files that would stay."""
    return visible.lines(f"  {name}  {out.size(size)}  {note}" for name, size, note in _lines(c))


def _collected(c: Collection) -> str:
    """Files that were removed, files that stayed, and the space freed."""
    lines = [f"{name}  {out.size(size)}  {note}" for name, size, note in _lines(c)]
    return visible.lines([*lines, f"{out.size(c.bytes)} freed" if c.removed else "nothing to remove"])


def _lines(c: Collection) -> list[tuple[str, int, str]]:
    """Name, bytes and note of everything that goes (packed rows as one line) or stays."""
    packed = [g.bytes for g in c.removed if g.kind == "packed"]
    lines = [(f"packed rows ({len(packed):,})", sum(packed), "built again when needed")] if packed else []
    lines += [(_name(g, c), g.bytes, _NOTES[g.kind]) for g in c.removed if g.kind != "packed"]
    return lines + [(_name(g, c), g.bytes, f"stays: {g.why}") for g in c.kept]


def _name(g: Garbage, c: Collection) -> str:
    return g.id if g.id and g.kind in ("archive", "versions") else str(g.path.relative_to(c.home))
