"""Which shards hold a part of a TFDS directory: their names tell the split, its description the episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlds_cli import documents
from rlds_cli.archives.openx import directory
from rlds_cli.archives.openx.directory import INFO, SHARD, Shard
from rlds_cli.errors import CorruptArchive
from rlds_cli.portions import Portion


def choose(names: Sequence[str], portion: Portion, read: Callable[[str], bytes]) -> tuple[Sequence[str], Portion]:
    """The descriptions, and the shards that hold the wanted episodes.

    Raises
    ------
    ArchiveError
        There is no such split, or there are not so many episodes.
    """
    found = {i: m for i, n in enumerate(names) if (m := SHARD.fullmatch(n.rpartition("/")[2]))}
    described = next((n for n in names if n.rpartition("/")[2] == INFO), None)
    if portion.split is not None:
        kept = {i: m for i, m in found.items() if m["split"] == portion.split}
        if not kept:
            raise portion.no_split(dict.fromkeys(m["split"] for m in found.values()))
    else:
        kept = found
    rest = replace(portion, split=None)
    if portion.episodes is not None and described is not None:
        shards = directory.ordered(kept, _json(read(described)))
        counts = [s.episodes for s in shards if s.episodes is not None]
        if len(counts) == len(shards):
            chosen, before = _holding(portion.numbers(sum(counts)), shards)
            start, stop = portion.episodes
            rest = replace(rest, episodes=(start - before, None if stop is None else stop - before))
            kept = {s.file: found[s.file] for s in chosen}
    return [n for i, n in enumerate(names) if i not in found or i in kept], rest


def _holding(wanted: range, shards: Iterable[Shard]) -> tuple[list[Shard], int]:
    """The shards that hold the episodes, and how many episodes are in the shards before these."""
    chosen: list[Shard] = []
    at = before = 0
    for shard in shards:
        count = shard.episodes or 0
        if at + count > wanted.start and at < wanted.stop:
            before = before if chosen else at
            chosen.append(shard)
        at += count
    return chosen, before


def _json(content: bytes) -> Mapping[str, Any]:
    try:
        value = documents.loads(content)
    except ValueError as e:
        raise CorruptArchive(f"{INFO} is not JSON: {e}.") from e
    return value if isinstance(value, dict) else {}
