"""``rlds list``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlds_cli import look, registry
from rlds_cli.base import ids, refs, visible
from rlds_cli.base.files.hashing import short
from rlds_cli.cli import options, out, remote
from rlds_cli.cli.commands import app
from rlds_cli.cli.out import short_path
from rlds_cli.look.report.catalogue import FamilyRow, HomeRow, Overview, Row


@app.command("list")
def list_(
    query: Annotated[
        list[str] | None, typer.Argument(metavar="[QUERY]...", help="Words in ids, or patterns; or an address.")
    ] = None,
    family: Annotated[
        str | None, typer.Option("--family", "-f", help="List only this family.", show_default=False)
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="List datasets on this disk with their steps, episodes and bytes.")
    ] = False,
    all_: Annotated[bool, typer.Option("--all", help="Also list datasets whose source is closed.")] = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """List families of datasets, or datasets that match a query. Datasets on this disk are marked.

    Example: rlds list hopper medium
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    if not (query or family or local or all_):
        found = look.overview(home)
        out.result(found, _families(found))
        return _tell_problems()
    if query and len(query) == 1 and refs.is_address(query[0]) and not (family or local or all_):
        return _show_address(query[0], home)
    words = " ".join(query or ())
    rows = look.listing(words, family=family, local=local, all_=all_, home=home)
    out.result(rows, _contents(rows) if local else _rows(rows))
    for content in (c for r in rows for c in r.contents if c.steps is None):
        out.note(f"{content.id} cannot be read: rlds info {content.id} says why")
    if not rows:
        out.note(_nothing(words, family, local=local))
    return _tell_problems()


def _tell_problems() -> None:
    """Print how many lines of own registries are left out, and of which."""
    for found in registry.own_registries():
        if found.problems:
            more = f" (and {len(found.problems) - 1:,} more)" if len(found.problems) > 1 else ""
            out.note(f"left out: {found.problems[0]}{more}; rlds registry list shows all")


def _show_address(ref: str, home: Path | None) -> None:
    """Print the datasets at an address."""
    from rlds_cli.dataset import listed_at

    found = listed_at(ref, home=home)
    header = ("ID", "VERSIONS", "SIZE", "FINGERPRINT", "TAGS", "ADDRESS")
    rows = [
        (d.id, f"{d.versions:,}", out.size(d.size), short(d.fingerprint), " ".join(d.tags), d.address)
        for d in found.datasets
    ]
    out.result(found.datasets, out.table(header, rows, right="VERSIONS SIZE"))
    remote.tell_bytes(found.fetched, found.requests, found.address)


def _families(o: Overview) -> str:
    header = ("FAMILY", "DATASETS", "HERE", "ON DISK", "")
    right = " ".join(("DATASETS", "HERE"))
    rows = [_family(f) for f in o.families]
    offered = [f.datasets for f in o.families if f.datasets and f.family != "sample"]
    closed = sum(f.closed for f in o.families)
    homes = "; ".join(_home(h) for h in o.homes) or "nothing here yet"
    count = f"{sum(offered):,} datasets of {len(offered)} families can be downloaded, {closed:,} no longer; {homes}"
    return visible.lines([out.table(header, rows, right=right), out.by_semicolons(count, indent="")])


def _family(f: FamilyRow) -> tuple[str, ...]:
    count = f"{f.datasets + f.closed:,}{'+' if f.open else ''}" if f.datasets + f.closed else "-"
    title = f"{f.title}{f' ({f.closed:,} of a closed source)' if f.closed else ''}"
    return f.family, count, str(f.here or "-"), out.size(f.bytes_on_disk).rjust(9) if f.here else "-".rjust(9), title


def _home(h: HomeRow) -> str:
    return (
        f"{h.datasets} here, {out.size(h.bytes_on_disk)} in {short_path(h.path)}{'' if h.writable else ' (read-only)'}"
    )


def _rows(rows: tuple[Row, ...]) -> str:
    if not rows:
        return ""
    header: tuple[str, ...] = ("ID", "SIZE", "SHA256", "HERE", "NOTE")
    cells = [(r.id, _size(r), "known" if r.sha256_known else "-", _here(r), _note(r)) for r in rows]
    if not any(c[-1] for c in cells):
        header, cells = header[:-1], [c[:-1] for c in cells]  # type: ignore[misc]
    return out.table(header, cells, right="SIZE SHA256")


def _contents(rows: tuple[Row, ...]) -> str:
    """Datasets and variants on this disk, a line each."""
    found = [c for r in rows for c in r.contents]
    header: tuple[str, ...] = ("ID", "STEPS", "EPISODES", "DISK")
    cells: list[tuple[str, ...]]
    cells = [(c.id, _count(c.steps), _count(c.episodes), out.size(c.bytes_on_disk)) for c in found]
    if any(c.tags for c in found):
        header = (*header, "TAGS")
        cells = [(*cell, c.tags) for cell, c in zip(cells, found, strict=True)]
    return out.table(header, cells, right="STEPS EPISODES DISK") if found else ""


def _count(n: int | None) -> str:
    return "?" if n is None else f"{n:,}"


def _size(r: Row) -> str:
    """Bytes to download; none for a local dataset."""
    return "-" if r.id.startswith(f"{ids.LOCAL}/") else out.size(r.size)


def _here(r: Row) -> str:
    return ", ".join([*(["yes"] if r.here else []), *(f"@{v}" for v in r.variants)]) or "-"


def _note(r: Row) -> str:
    if r.status == "open":
        return ""
    return f"{r.status}{f', see {r.replaced_by}' if r.replaced_by else ''}"


def _nothing(words: str, family: str | None, *, local: bool) -> str:
    what = " ".join(p for p in (f'"{words}"' if words else "", f"in {family}" if family else "") if p)
    if local:
        return f"nothing here{f' matches {what}' if what else ''}; omit --local to list datasets to download"
    near = look.nearest(words)
    return f"nothing matches {what}" + (f"; did you mean {', '.join(near)}?" if near else "; rlds list shows families")
