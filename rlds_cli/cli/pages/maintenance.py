"""What ``rlds verify``, ``convert``, ``rm``, ``gc`` and ``du`` say to people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rlds_cli import visible
from rlds_cli.cli import out
from rlds_cli.files.hashing import short

if TYPE_CHECKING:
    from rlds_cli.home.usage import DatasetUsage, Usage
    from rlds_cli.maintenance.gc import Collection, Garbage
    from rlds_cli.maintenance.pinning import Synced
    from rlds_cli.maintenance.reencode import Reencoded
    from rlds_cli.maintenance.remove import Removal
    from rlds_cli.maintenance.repair import Repair
    from rlds_cli.maintenance.verification import Trace
    from rlds_cli.store.integrity import Verification

_MOST = 8  # problems of one dataset that are listed


def verifications(found: Sequence[Verification]) -> str:
    """A line for each, more where there is more to say; and a count."""
    if not found:
        return "nothing here"
    width = max(len(v.id) for v in found)
    lines = [line for v in found for line in _verification(v, width)]
    good = sum(v.ok for v in found)
    bad = f", {len(found) - good} bad" if good < len(found) else ""
    return visible.lines([*lines, f"{good} ok{bad}"])


def repairs(done: Sequence[Repair]) -> str:
    """What a verification found in the end, and what was done before."""
    lines = [f"{r.found.id}  {_repaired(r)}" for r in done if not r.found.ok]
    return visible.lines([*lines, verifications([r.now for r in done])])


def _repaired(r: Repair) -> str:
    if r.why:
        return f"not repaired: {r.why}"
    files = [f"fetched {', '.join(r.fetched[:3])}{' ...' if len(r.fetched) > 3 else ''}"] if r.fetched else []
    deleted = [f"deleted {', '.join(f.name for f in r.deleted[:3])}{' ...' if len(r.deleted) > 3 else ''}"]
    done = [*(deleted if r.deleted else []), *files, *(["converted again"] if r.converted else [])]
    return f"was bad ({r.found.problems[0]}); {', '.join(done)}: {'as it was' if r.now.ok else 'still bad'}"


def _verification(v: Verification, width: int) -> list[str]:
    known = ", ".join([f"{v.arrays} arrays", *v.remarks])
    if v.ok:
        return [f"{v.id:{width}}  ok    {known}"]
    blank = " " * (width + 8)
    lines = [f"{v.id:{width}}  BAD   {v.problems[0]}", *(f"{blank}{p}" for p in v.problems[1:_MOST])]
    more = len(v.problems) - _MOST
    lines += [f"{blank}{more:,} more"] if more > 0 else []
    return lines + ([f"{blank}hint: {v.hint}"] if v.hint else [])


def traces(found: Sequence[Trace]) -> str:
    """What was looked up in the archive, one step's places, and what differs."""
    return visible.lines(line for t in found for line in _trace(t))


def _trace(t: Trace) -> list[str]:
    head = f"{t.values:,} values of {t.steps:,} steps, of {', '.join(t.fields)}"
    shown = [f"  {line}" for line in t.example[:_MOST]]
    others = [f"not in the archive as they are: {', '.join(t.others)}"] if t.others else []
    if t.ok:
        return [f"{t.id}  ok    {head}: as in the archive", *others, "for example", *shown]
    wrong = [f"  {d}" for d in t.differences[:_MOST]]
    more = [f"  {len(t.differences) - _MOST:,} more"] if len(t.differences) > _MOST else []
    return [f"{t.id}  BAD   {len(t.differences):,} of {head}", *wrong, *more]


def synced(done: Sequence[Synced]) -> str:
    """What was done to have each."""
    width = max((len(d.id) for d in done), default=0)
    return visible.lines(f"{d.id:{width}}  {d.how:10}  {short(d.fingerprint)}" for d in done)


def reencoded(r: Reencoded) -> str:
    """What became of a dataset."""
    if not r.changed:
        return f"{r.id} is {r.encoding} already: {r.path}"
    sizes = f"{out.size(r.bytes_before)} before, {out.size(r.bytes_after)} now"
    return visible.lines([f"{r.id}  {short(r.fingerprint)}  {r.encoding}: {sizes}, the same content", str(r.path)])


def removals(planned: Sequence[Removal]) -> str:
    """What would be removed."""
    return visible.lines(f"  {r.id}  {out.size(r.bytes)}{_kept(r)}{_lost(r)}" for r in planned)


def removed(done: Sequence[Removal]) -> str:
    """What was removed."""
    lines = [f"removed {r.id}: {out.size(r.bytes)} freed{_kept(r)}{_lost(r)}" for r in done]
    if len(done) > 1:
        lines.append(f"{out.size(sum(r.bytes for r in done))} freed")
    return visible.lines(lines)


def _kept(r: Removal) -> str:
    return f"; its archive ({out.size(r.archive)}) stays" if r.archive else ""


def _lost(r: Removal) -> str:
    return f"; nothing can make it again: {r.lost}" if r.lost else ""


def garbage(c: Collection) -> str:
    """What would be removed, and what would not."""
    return visible.lines(f"  {name}  {out.size(size)}  {note}" for name, size, note in _garbage(c))


def collected(c: Collection) -> str:
    """What was removed, and what was not."""
    lines = [f"{name}  {out.size(size)}  {note}" for name, size, note in _garbage(c)]
    return visible.lines([*lines, f"{out.size(c.bytes)} freed" if c.removed else "nothing to remove"])


_NOTES = {"partial": "work that was broken off", "archive": "archive, can be downloaded again"}


def _garbage(c: Collection) -> list[tuple[str, int, str]]:
    """Name, bytes and a note of what goes, packed rows all together, and of what stays."""
    packed = [g.bytes for g in c.removed if g.kind == "packed"]
    lines = [(f"packed rows ({len(packed):,})", sum(packed), "built again when needed")] if packed else []
    lines += [(_name(g, c), g.bytes, _NOTES[g.kind]) for g in c.removed if g.kind != "packed"]
    return lines + [(_name(g, c), g.bytes, f"stays: {g.why}") for g in c.kept]


def _name(g: Garbage, c: Collection) -> str:
    return g.id if g.id and g.kind == "archive" else str(g.path.relative_to(c.home))


def freeable(u: Usage, c: Collection) -> str:
    """What ``rlds gc`` would do to a home, in a line; empty where that is nothing."""
    archives = sum(d.archive for d in u.datasets)
    lines = [f"rlds gc frees {out.size(c.bytes)}"] if c.bytes else []
    if archives:
        more = "more, " if c.bytes else ""
        lines.append(f"rlds gc --archives up to {out.size(archives)} {more}of what can be downloaded again")
    return f"hint: {';  '.join(lines)}" if lines else ""


def usage(u: Usage) -> str:
    """The table of a home."""
    header = ("", "ARCHIVE", "CACHE", "SHARED", "LAST OPENED")
    ids = {d.id for d in u.datasets}
    rows = [_usage(d, ids) for d in u.datasets]
    if u.packed:
        rows.append(("packed rows (rebuilt when needed)", "-", out.size(u.packed), "-", ""))
    if u.partial:
        rows.append(("partial downloads and conversions", out.size(u.partial), "-", "-", ""))
    where = f"{out.size(u.total)} in {_tilde(u.home)}, {out.size(u.free)} free"
    if not rows:
        return where
    sums = ("", out.size(u.archives + u.partial), out.size(u.caches + u.packed), "", where)
    return out.table(header, [*rows, sums], right="ARCHIVE CACHE SHARED")


def _usage(d: DatasetUsage, ids: set[str]) -> tuple[str, str, str, str, str]:
    base, at, variant = d.id.partition("@")
    name = f"  @{variant}" if at and base in ids else d.id
    sizes = (d.archive, d.cache, d.shared)
    archive, cache, shared = (out.size(n) if n else "-" for n in sizes)
    return name, archive, cache, shared, ago(d.last_opened) if d.last_opened else "-"


def ago(time: str, now: datetime | None = None) -> str:
    """An ISO-8601 time for people: ``today``, ``3 weeks ago``."""
    days = ((now or datetime.now(UTC)).date() - datetime.fromisoformat(time).date()).days
    if days <= 1:
        return "yesterday" if days == 1 else "today"
    unit, length = next((u, n) for u, n in (("year", 730), ("month", 60), ("week", 14), ("day", 0)) if days >= n)
    return f"{days // max(1, length // 2)} {unit}s ago"


def _tilde(path: Path) -> str:
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)
