"""Which files a Minari archive consists of: one HDF5 file, or a directory per episode, and ``metadata.json``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlds_cli.archives.hdf5 import is_hdf5
from rlds_cli.errors import UnknownLayout
from rlds_cli.ordering import natural
from rlds_cli.portions import EVERYTHING, Portion

Format = Literal["hdf5", "arrow", "parquet"]
SUFFIXES: dict[str, Format] = {".arrow": "arrow", ".parquet": "parquet"}
METADATA = "metadata.json"
_EPISODE = re.compile(r"0|[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class Located:
    """The files, by their index among those of the archive.

    ``metadata`` is a path, since it may lie beside files that were named one by one; None where there is none.
    ``parts`` are the data files of each episode in order, empty for HDF5; ``described`` the episodes' own metadata.
    """

    format: Format
    metadata: Path | None
    main: int
    parts: dict[int, list[int]]
    described: dict[int, int]


def locate(files: Sequence[Path]) -> Located | None:
    """Find the parts of an archive by the names that Minari gives them; None where there are none.

    Raises
    ------
    UnknownLayout
        There is more than one dataset.
    """
    parts = [i for i, p in enumerate(files) if p.suffix in SUFFIXES and _EPISODE.fullmatch(p.parent.name)]
    if parts:
        return _episodes(files, parts)
    main = [i for i, p in enumerate(files) if p.name == "main_data.hdf5"]
    main = main or [i for i, p in enumerate(files) if p.suffix in (".hdf5", ".h5") or is_hdf5(p)]
    if not main:
        return None
    _single([files[i] for i in main])
    others = [p for i, p in enumerate(files) if i != main[0] and (p.suffix in (".hdf5", ".h5") or is_hdf5(p))]
    if others:
        raise UnknownLayout(
            f"{others[0]} lies beside a Minari dataset and is not of it.", hint="import them one by one"
        )
    return Located("hdf5", _metadata(files, files[main[0]].parent), main[0], {}, {})


def choose(names: Sequence[str], portion: Portion, read: object) -> tuple[Sequence[str], Portion]:
    """The directories of the episodes wanted; one HDF5 file holds them all."""
    number = {n: int(parts[-2]) for n in names if len(parts := n.split("/")) > 1 and _EPISODE.fullmatch(parts[-2])}
    if portion.split is not None or not number:
        return names, portion
    episodes = sorted(set(number.values()))
    wanted = {episodes[k] for k in portion.numbers(len(episodes))}
    return [n for n in names if n not in number or number[n] in wanted], EVERYTHING


def _episodes(files: Sequence[Path], indices: Sequence[int]) -> Located:
    roots = {files[i].parent.parent: None for i in indices}
    _single(list(roots))
    formats = {SUFFIXES[files[i].suffix] for i in indices}
    if len(formats) > 1:
        raise UnknownLayout(f"{next(iter(roots))} holds episodes in arrow and in parquet.")
    parts: dict[int, list[int]] = {}
    for i in sorted(indices, key=lambda i: natural(files[i].name)):
        parts.setdefault(int(files[i].parent.name), []).append(i)
    names = {str(number) for number in parts}
    described = {int(p.parent.name): i for i, p in enumerate(files) if p.name == METADATA and p.parent.name in names}
    return Located(formats.pop(), _metadata(files, next(iter(roots))), -1, dict(sorted(parts.items())), described)


def _metadata(files: Sequence[Path], directory: Path) -> Path | None:
    path = directory / METADATA
    return path if path in files or path.exists() else None


def _single(datasets: Sequence[Path]) -> None:
    if len(datasets) > 1:
        raise UnknownLayout(
            f"There are {len(datasets)} Minari datasets: " + ", ".join(str(d) for d in datasets[:3]) + " ...",
            hint="import them one by one",
        )
