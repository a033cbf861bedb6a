"""The files of a TFDS directory: two descriptions, and shards of named splits.

::

    <name>/<version>/dataset_info.json                           splits, and the number of episodes of each shard
                     features.json                               see ``features``
                     <name>-<split>.tfrecord-00000-of-00004      one tf.Example per episode
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds_cli.archives.openx import features
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ordering import natural
from rlds_cli.ted import Note

FEATURES, INFO = "features.json", "dataset_info.json"

SHARD = re.compile(r"(?P<name>.+)-(?P<split>[^-]+)\.tfrecord(-(?P<index>\d{5,})-of-(?P<of>\d{5,}))?(\.gz)?")


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a split: its index among the archive's files, and its episodes where the directory says."""

    file: int
    split: str
    index: int
    of: int
    episodes: int | None


@dataclass(frozen=True, slots=True)
class Located:
    """A TFDS directory. ``info`` is empty where there is no ``dataset_info.json``."""

    features: Path
    info: Mapping[str, Any]
    shards: tuple[Shard, ...]

    @property
    def name(self) -> str:
        """Name and version, as far as they are said."""
        said = [str(self.info[k]) for k in ("name", "version") if self.info.get(k)]
        return " ".join(said) or self.features.parent.name


def locate(files: Sequence[Path]) -> Located | None:
    """Find the parts of a TFDS directory among files, or beside them; None where there is none.

    Raises
    ------
    UnknownLayout
        There is more than one dataset.
    CorruptArchive
        A description cannot be read.
    """
    found = {i: m for i, p in enumerate(files) if (m := SHARD.fullmatch(p.name))}
    directories = sorted({files[i].parent for i in found})
    if not found or not (directories[0] / FEATURES).is_file():
        return None
    if len(directories) > 1:
        raise UnknownLayout(
            f"There are {len(directories)} TFDS directories: {directories[0]}, {directories[1]} ...",
            hint="import them one by one, each under a name of its own",
        )
    info = features.read_json(path) if (path := directories[0] / INFO).is_file() else {}
    return Located(directories[0] / FEATURES, info, ordered(found, info))


def ordered(found: Mapping[int, re.Match[str]], info: Mapping[str, Any]) -> tuple[Shard, ...]:
    """The shards in the order in which they are read: splits as the description has them, then by number."""
    lengths = _lengths(info)
    order = {split: n for n, split in enumerate(lengths)}
    shards = [_shard(i, m, lengths) for i, m in found.items()]
    return tuple(sorted(shards, key=lambda s: (order.get(s.split, len(order)), natural(s.split), s.index)))


def notes(located: Located) -> list[Note]:
    """Which splits and shards the description names and the archive lacks."""
    found = []
    there = {s.split for s in located.shards}
    absent = [split for split in _lengths(located.info) if split not in there]
    if absent:
        text = f"splits that {INFO} names have no files here: {', '.join(absent)}"
        found.append(Note("missing-splits", text, len(absent), absent[0]))
    for split in sorted(there):
        of = max(s.of for s in located.shards if s.split == split)
        missing = of - len({s.index for s in located.shards if s.split == split})
        if missing > 0:
            found.append(Note("missing-shards", f"files of {split} are not here, of {of:,}", missing, split))
    return found


def _lengths(info: Mapping[str, Any]) -> dict[str, list[int]]:
    """Episodes per shard, by split."""
    try:
        splits = info.get("splits", [])
        if isinstance(splits, Mapping):  # written so by early versions
            splits = [{"name": name, **split} for name, split in splits.items()]
        return {str(s["name"]): [int(n) for n in s.get("shardLengths", ())] for s in splits}
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as e:
        raise CorruptArchive(f"{INFO} does not describe splits as TFDS does: {e!r}") from e


def _shard(file: int, match: re.Match[str], lengths: Mapping[str, Sequence[int]]) -> Shard:
    split, index, of = match["split"], int(match["index"] or 0), int(match["of"] or 1)
    said = lengths.get(split, ())
    return Shard(file, split, index, of, said[index] if len(said) == of and index < of else None)
