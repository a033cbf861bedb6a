"""Compare single steps of a dataset with its archive.

The archive is read value by value (``look_up`` of its reader), not with the code that converted it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from rlds_cli import homes
from rlds_cli.archives import ArchivedStep, ReaderName, check_name, look_up, planner
from rlds_cli.archives.readers import ArchivedValue
from rlds_cli.base import ids, settings
from rlds_cli.base.array_types import IntArray
from rlds_cli.base.files import bundles
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset, ReadAs, source_of_step
from rlds_cli.dataset.provenance import TransitionSource
from rlds_cli.errors import ReaderError, RldsError
from rlds_cli.homes import Home
from rlds_cli.store import encode_frames, open_store
from rlds_cli.ted import CUT, FLAGS, TASK, TASK_AT, VIDEO


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A value that differs from the archive. ``field`` may be a next value, such as ``next/observation``."""

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

    ``values`` is the number of compared values, of ``fields``. ``others`` are fields that the archive does not hold:
    flags derived from episode ends, or fields made by functions. ``example`` names the keys of one step.
    """

    id: str
    steps: int
    values: int
    fields: tuple[str, ...]
    others: tuple[str, ...]
    example: tuple[str, ...]
    differences: tuple[ValueDifference, ...]
    version: int = 1

    @property
    def ok(self) -> bool:
        """True if no value differs."""
        return not self.differences


def _opened(ref: StrPath, home: StrPath | None) -> Dataset:
    named = homes.version(ref, home=home)
    return Dataset(open_store(Path(named.place), named))


def trace(
    ref: StrPath | Dataset,
    steps: int = 100,
    *,
    seed: int = 0,
    archive: StrPath | None = None,
    reader: str | None = None,
    home: StrPath | None = None,
) -> Trace:
    """Compare steps of a dataset with its archive: half are first and last steps, half are drawn from all.

    Parameters
    ----------
    ref : str, path or Dataset
    steps : int
        Number of steps; all if there are fewer.
    seed : int
        Seed of the draw.
    archive : path, optional
        Directory of the archive, or its only file; by default the one it was downloaded to or imported from.
    reader : str, optional
        The reader that looks values up, as in `importing.plan_import`; by default the one that made the dataset. It
        must be named if that was a file of code.

    Raises
    ------
    RldsError
        The archive is missing or has changed, its reader cannot look values up, or the steps of the dataset were moved.
    """
    ds = ref if isinstance(ref, Dataset) else _opened(ref, home)
    places = _places(ds, steps, seed)
    files = _files(ds, {_source_of(ds, p) for p in places}, archive)
    compared: set[str] = set()
    example: tuple[str, ...] = ()
    values, differences = 0, []
    with planner():
        for place in places:
            changed = ReadAs.of(ds.manifest, ds.sources[_source_of(ds, place)]).changed
            found = ((c, _base(ds, c.field)) for c in _look_up(ds, files, place, reader))
            cells = [
                (c, name) for c, name in found if name and name not in changed and not _is_ours(ds, c, name, place)
            ]
            example = example or tuple(f"{c.field} = {c.key}" for c, _ in cells)
            compared |= {name for _, name in cells}
            values += len(cells)
            differences += [d for c, name in cells if (d := _compare(ds, c, name, place)) is not None]
    others = tuple(sorted(set(ds.schema) - compared))
    return Trace(ds.id, len(places), values, tuple(sorted(compared)), others, example, tuple(differences), ds.version)


def _source_of(ds: Dataset, place: TransitionSource) -> int:
    """Return the number of the archive's file that a step comes from."""
    return int(ds.store.episodes["source"][place.episode])


def _look_up(
    ds: Dataset, files: Mapping[int, Path], place: TransitionSource, reader: str | None
) -> Sequence[ArchivedValue]:
    """Look up the values of a step in the archive, in another process."""
    number = _source_of(ds, place)
    read = ReadAs.of(ds.manifest, ds.sources[number])
    name = read.reader if reader is None else ReaderName(reader).resolved()
    if reader is None and ReaderName(name).is_file:
        raise ReaderError(
            f"{files[number].name} of {ds.id} was read by {name} ({read.reader_source}), a file of code, which is not "
            "run unless it is named.",
            hint=f"rlds verify {ds.id} --trace 100 --reader {name}, with the directory of the file",
        )
    named = "" if name == "preprocess" else name  # else the files tell
    if named:
        check_name(named, read.reader_source if reader is None else "")
    all_files, spot = (*files.values(),), _spot(ds, files[number], place)
    found = look_up(named, spot, all_files)
    return [replace(c, field=TASK_AT) if c.field == TASK and TASK_AT in ds.schema else c for c in found]


def _files(ds: Dataset, wanted: Collection[int], archive: StrPath | None) -> dict[int, Path]:
    """Return files of the archive by their numbers in the sources, after checking their hashes."""
    root = None if archive is None else settings.expanded(archive)
    found = {}
    for number, source in ((n, ds.sources[n]) for n in sorted(wanted)):
        name = str(source["file"])
        candidates = _kept(ds, source) if root is None else _below(root, name)
        file = next((p for p in candidates if bundles.is_file(p)), None)
        if file is None:
            raise RldsError(
                f"{name} of the archive of {ds.id} is not {'here' if root is None else f'in {root}'}.",
                hint=f"rlds verify {ds.id} --trace 100 --archive DIR, where DIR holds it",
            )
        if source.get("sha256") and bundles.sha256_of(file) != source["sha256"]:
            raise RldsError(
                f"{file} is not the file that {ds.id} was made of: its sha256 is not {source['sha256']}.",
                hint=f"rlds verify {ds.id} --fix",
            )
        found[number] = file
    return found


def _below(root: Path, name: str) -> Iterator[Path]:
    yield from (root / name, root / Path(name).name)
    if bundles.is_file(root):
        yield root


def _kept(ds: Dataset, source: Mapping[str, Any]) -> Iterator[Path]:
    root = ds.path.parents[2] if len(ds.path.parents) > 2 else ds.path
    for id in dict.fromkeys((ReadAs.of(ds.manifest, source).id, ds.id)):
        yield Home(root).archive(ids.parse(id)) / str(source["file"])
    url = str(source.get("url") or "")
    if url.startswith("file://"):
        yield Path(unquote(urlsplit(url).path))


def _places(ds: Dataset, steps: int, seed: int) -> list[TransitionSource]:
    """Return the places in the archive of some steps; raises RldsError if there are none."""
    groups, index = ds.store.table.episode_strings("group"), ds.episodes.index
    read = [None if s.get("recorded") else ReadAs.of(ds.manifest, s) for s in ds.sources]
    if not read:
        raise RldsError(f"{ds.id} has no archive: it was created from values in Python.")
    traced = np.array([r is not None and r.keeps_rows for r in read])
    index = index[traced[ds.store.episodes["source"][index]]]
    if not len(index) and any(read):
        source = ds.manifest.provenance[0]["from"] if ds.manifest.provenance else None
        raise RldsError(
            f"{ds.id} was made by functions that dropped or moved steps: they cannot be traced.",
            hint=f"rlds verify {source} --trace {steps}" if source else None,
        )
    if not len(index):
        raise RldsError(f"{ds.id} has no archive: its episodes were recorded from values.")
    drawn = _drawn(ds.store.episodes["length"][index], steps, seed)
    return [source_of_step(ds.store, int(index[e]), t, group=groups[int(index[e])]) for e, t in drawn]


def _drawn(length: IntArray, steps: int, seed: int) -> Iterator[tuple[int, int]]:
    """Draw pairs of episode and step, in order, each once."""
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


def _spot(ds: Dataset, file: Path, place: TransitionSource) -> ArchivedStep:
    columns = ds.store.episodes
    read = ReadAs.of(ds.manifest, ds.sources[_source_of(ds, place)])
    root = Path(str(file).removesuffix(place.file)) if str(file).endswith(place.file) else file.parent
    return ArchivedStep(
        file=file,
        root=root,
        group=place.group,
        first=int(columns["row"][place.episode]),
        step=place.step,
        length=int(columns["length"][place.episode]),
        facts=read.facts,
        fields=read.fields,
    )


def _base(ds: Dataset, field: str) -> str | None:
    """Return the field that stores a cell's value: ``next/x`` may be stored as ``x``, one row later."""
    if field in ds.schema:
        return field
    base = field.removeprefix("next/")
    return base if base in ds.schema and ds.schema[base].placement == "both" else None


def _is_ours(ds: Dataset, cell: ArchivedValue, name: str, place: TransitionSource) -> bool:
    """Return whether the archive does not hold a value: a decoded or resized frame, or the flag of a cut episode."""
    columns = ds.store.episodes
    is_last = place.step == columns["length"][place.episode] - 1
    if name == FLAGS[1] and is_last and columns["end"][place.episode] == CUT:
        return True
    given, shape = np.shape(cell.value), ds.schema[name].shape
    if ids.FRAME_SIZE.fullmatch(str(ds.manifest.options.get("frames"))) and len(given) == len(shape) and given != shape:
        return True
    return isinstance(cell.value, bytes) and ds.schema[name].kind == "array"


def _compare(ds: Dataset, cell: ArchivedValue, name: str, place: TransitionSource) -> ValueDifference | None:
    row = int(ds.store.episodes["start"][place.episode]) + place.step + (name != cell.field)
    archived = cell.value
    if ds.schema[name].codec == "jpeg" and isinstance(archived, np.ndarray):  # encoded by the import
        archived = encode_frames(archived[None], "jpeg", name=name).data.tobytes()
    stored = _stored(ds, name, row, encoded=isinstance(archived, bytes))
    if isinstance(archived, bytes) and ds.schema[name].kind == "text":  # as HDF5 stores text
        archived = archived.decode("utf-8", "replace")
    if _same(stored, archived):
        return None
    return ValueDifference(place.episode, place.step, cell.field, cell.key, _shown(stored), _shown(archived))


def _stored(ds: Dataset, name: str, row: int, *, encoded: bool) -> Any:
    if ds.schema[name].kind == "frames" and encoded:
        if ds.schema[name].codec != VIDEO:
            return ds.store.frames(name).packet(row)
        number, frame = ds.store.rows(name)[row].tolist()
        return ds.store.videos(name).packet(number, frame) if number >= 0 else b""
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
