"""From steps of a dataset back to the archive, to see whether the same stands there.

The archive is looked up value by value (``cells`` of its reader), not by the code that converted it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from rlds_cli import archives, ids, provenance, settings, targets
from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.dataset import Dataset
from rlds_cli.errors import RldsError
from rlds_cli.hashing import sha256_of
from rlds_cli.home import Home
from rlds_cli.provenance import Source
from rlds_cli.settings import StrPath
from rlds_cli.store.opening import Store
from rlds_cli.ted import CUT, FLAGS, IntArray


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that is not what stands in the archive; ``field`` also names next values, as ``next/observation``."""

    episode: int
    step: int
    field: str
    key: str
    stored: str
    archived: str

    def __str__(self) -> str:
        return (
            f"episode {self.episode:,} step {self.step:,}: {self.field} is {self.stored}, {self.key} is {self.archived}"
        )


@dataclass(frozen=True, slots=True)
class Trace:
    """Steps compared with the archive.

    ``values`` counts what was compared, of ``fields``; the ``others`` do not stand in the archive as they are: flags
    that follow from where an episode ends, or fields that functions made. ``example`` shows one step's places.
    """

    id: str
    steps: int
    values: int
    fields: tuple[str, ...]
    others: tuple[str, ...]
    example: tuple[str, ...]
    differences: tuple[Difference, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def trace(
    ref: StrPath | Dataset,
    steps: int = 100,
    *,
    seed: int = 0,
    archive: StrPath | None = None,
    cache_dir: StrPath | None = None,
) -> Trace:
    """Compare steps of a dataset with its archive: half of them first and last ones, half drawn from all.

    Parameters
    ----------
    ref : str, path or Dataset
    steps : int
        How many; all where there are no more.
    seed : int
        Of the draw.
    archive : path, optional
        The directory of the archive, or its only file; by default where it was downloaded to or imported from.

    Raises
    ------
    RldsError
        The archive is not there, is another one, or its reader cannot look values up; the dataset has none, or its
        steps were moved.
    """
    ds = ref if isinstance(ref, Dataset) else Dataset(Store(targets.dataset(ref, cache_dir=cache_dir)))
    if not provenance.keeps_rows(ds.manifest):
        source = ds.manifest.provenance[0]["from"]
        raise RldsError(
            f"{ds.id} was made by functions that dropped or moved steps: they cannot be followed.",
            hint=f"rlds verify {source} --trace {steps}",
        )
    changed = {name for step in ds.manifest.provenance for name in step.get("changed", ())}
    places = _places(ds, steps, seed)
    files = _files(ds, {p.file for p in places}, archive)
    look = _lookup(ds, [*files.values()])
    compared: set[str] = set()
    example: tuple[str, ...] = ()
    values, differences = 0, []
    for place in places:
        found = ((c, _base(ds, c.field)) for c in look(_spot(ds, files, place)))
        cells = [(c, name) for c, name in found if name and name not in changed and not _is_ours(ds, c, name, place)]
        example = example or tuple(f"{c.field} = {c.key}" for c, _ in cells)
        compared |= {name for _, name in cells}
        values += len(cells)
        differences += [d for c, name in cells if (d := _compare(ds, c, name, place)) is not None]
    others = tuple(sorted(set(ds.schema) - compared))
    return Trace(ds.id, len(places), values, tuple(sorted(compared)), others, example, tuple(differences))


def _lookup(ds: Dataset, files: Sequence[Path]) -> Callable[[Spot], Iterator[Cell]]:
    """The function of the reader that looks values up."""
    name = ds.manifest.reader
    if name == "preprocess":
        name = (archives.recognise(files) or ("",))[0]
    look: Callable[[Spot], Iterator[Cell]] | None = getattr(archives.reader(name), "cells", None)
    if look is None:
        raise RldsError(f"{name} archives are not looked up value by value.", hint=f"rlds verify {ds.id}")
    return look


def _files(ds: Dataset, wanted: Collection[str], archive: StrPath | None) -> dict[str, Path]:
    """Files of the archive by their names in the manifest, after a look at their hashes."""
    root = None if archive is None else settings.expanded(archive)
    found = {}
    for source in (s for s in ds.sources if s["file"] in wanted):
        name = str(source["file"])
        candidates = _kept(ds, source) if root is None else _below(root, name)
        file = next((p for p in candidates if p.is_file()), None)
        if file is None:
            raise RldsError(
                f"{name} of the archive of {ds.id} is not {'here' if root is None else f'in {root}'}.",
                hint=f"rlds verify {ds.id} --trace 100 --archive DIR, where DIR holds it",
            )
        if source.get("sha256") and sha256_of(file) != source["sha256"]:
            raise RldsError(
                f"{file} is not the file that {ds.id} was made of: its sha256 is not {source['sha256']}.",
                hint=f"rlds verify {ds.id} --fix",
            )
        found[name] = file
    return found


def _below(root: Path, name: str) -> Iterator[Path]:
    yield from (root / name, root / Path(name).name)
    if root.is_file():
        yield root


def _kept(ds: Dataset, source: Mapping[str, Any]) -> Iterator[Path]:
    home = ds.path.parents[2] if len(ds.path.parents) > 2 else ds.path
    yield Home(home).archive(ids.parse(ds.id)) / str(source["file"])
    url = str(source.get("url") or "")
    if url.startswith("file://"):
        yield Path(unquote(urlsplit(url).path))


def _places(ds: Dataset, steps: int, seed: int) -> list[Source]:
    groups = ds.store.episode_strings("group")
    return [provenance.place(ds, e, t, group=groups[e]) for e, t in _drawn(ds, steps, seed)]


def _drawn(ds: Dataset, steps: int, seed: int) -> Iterator[tuple[int, int]]:
    """(episode, step), in their order, each once."""
    length: IntArray = ds.store.episodes["length"]
    ends = np.cumsum(length)
    total = int(length.sum())
    if total <= steps:
        chosen = np.arange(total)
    else:
        rng = np.random.default_rng(seed)
        some = rng.choice(len(length), min(len(length), max(1, steps // 4)), replace=False)
        edges = np.concatenate([ends[some] - length[some], ends[some] - 1])[:steps]
        others = rng.choice(total, steps, replace=False)
        chosen = np.sort(np.unique(np.concatenate([edges, others[: steps - len(edges)]])))
    episodes = np.searchsorted(ends, chosen, "right")
    firsts = ends - length
    yield from ((int(e), int(i - firsts[e])) for e, i in zip(episodes, chosen, strict=True))


def _spot(ds: Dataset, files: Mapping[str, Path], place: Source) -> Spot:
    columns, file = ds.store.episodes, files[place.file]
    root = Path(str(file).removesuffix(place.file)) if str(file).endswith(place.file) else file.parent
    return Spot(
        file=file,
        root=root,
        group=place.group,
        first=int(columns["row"][place.episode]),
        step=place.step,
        length=int(columns["length"][place.episode]),
        facts=ds.manifest.facts,
        fields=ds.manifest.options.get("fields") or {},
    )


def _base(ds: Dataset, field: str) -> str | None:
    """The field of the store that holds a cell's value: ``next/x`` is ``x``, one row later, where that is kept once."""
    if field in ds.schema:
        return field
    base = field.removeprefix("next/")
    return base if base in ds.schema and ds.schema[base].placement == "both" else None


def _is_ours(ds: Dataset, cell: Cell, name: str, place: Source) -> bool:
    """Whether a value does not stand in the archive: an encoded frame that was decoded, the flag of an end without."""
    columns = ds.store.episodes
    is_last = place.step == columns["length"][place.episode] - 1
    if name == FLAGS[1] and is_last and columns["end"][place.episode] == CUT:
        return True
    return isinstance(cell.value, bytes) and ds.schema[name].kind == "array"


def _compare(ds: Dataset, cell: Cell, name: str, place: Source) -> Difference | None:
    row = int(ds.store.episodes["start"][place.episode]) + place.step + (name != cell.field)
    stored = _stored(ds, name, row, encoded=isinstance(cell.value, bytes))
    archived = cell.value
    if isinstance(archived, bytes) and ds.schema[name].kind == "text":  # as HDF5 has it
        archived = archived.decode("utf-8", "replace")
    if _same(stored, archived):
        return None
    return Difference(place.episode, place.step, cell.field, cell.key, _shown(stored), _shown(archived))


def _stored(ds: Dataset, name: str, row: int, *, encoded: bool) -> Any:
    if ds.schema[name].kind == "frames" and encoded:
        return ds.store.frame(name, row)
    return ds.gather(name, np.array([row]))[0]


def _same(stored: Any, archived: Any) -> bool:
    if isinstance(archived, str | bytes) or archived is None or stored is None:
        return bool(stored == archived)
    a, b = np.asarray(stored), np.asarray(archived)
    return a.size == b.size and bool(np.array_equal(a.reshape(-1), b.reshape(-1), equal_nan=a.dtype.kind == "f"))


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return value if isinstance(value, str) else np.array2string(np.asarray(value), threshold=6, edgeitems=2)
