"""Read what ``rlds export --to tensordict`` wrote: a TensorDict, with a description of its fields and episodes.

``rlds_episodes.json`` beside the TensorDict says what TED has no place for: whether a final observation is recorded,
that an episode was cut, seeds, reset options, splits, and columns of the user's own. TorchRL leaves it alone.

::

    {"version": 1, "form": "memmap", "spaces": {...}, "env": {...},
     "fields": [{"name": ..., "dtype": ..., "shape": ..., "placement": ..., "kind": ...}],
     "episodes": {"length": [3, 2], "end": "02", "observed": "10", "seed": [...], "splits": {"train": "11"}, ...}}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from rlds_cli.archives.readers import Archive, Part, Plan
from rlds_cli.archives.torchrl import accounting, stores
from rlds_cli.archives.torchrl.boundaries import LaneEpisode, place
from rlds_cli.archives.torchrl.lanes import NEXT, Lane, Lanes, opened
from rlds_cli.archives.torchrl.names import DESCRIPTION, METADATA, VERSION
from rlds_cli.archives.torchrl.signs import HDF5
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.files import json as documents
from rlds_cli.errors import CorruptArchive
from rlds_cli.ted import CUT, FLAGS, REWARD, TERMINATED, Chunk, EpisodeData, Field, LazyColumn, Placement, chunks

# Of a part. Files are mapped part by part, since pages of a map count as memory; opening HDF5 takes long.
PART_ROWS, PART_BYTES, HDF5_BYTES = 1 << 19, 64 << 20, 512 << 20
LONGEST = 128 << 20
_PLACEMENTS = ("root", "next", "both")


def described(archive: Archive) -> Path | None:
    """Return the description among the files; None if there is none, or if the user says how to read them."""
    if archive.episodes_by is not None or archive.fields:
        return None
    return next((p for p in archive.files if p.name == DESCRIPTION), None)


def plan(archive: Archive, file: Path) -> Plan:
    """Plan reading as the description says.

    Raises
    ------
    CorruptArchive
        The description does not fit the TensorDict.
    """
    about = _load(file, archive.root)
    found = stores.find(archive)
    if len(found) != 1:
        raise CorruptArchive(f"{file} describes one TensorDict, and the archive has {len(found)}.")
    with opened(found[0]) as lanes:
        table = _Table(file, about["episodes"], lanes)
        fields, keys = _fields(file, about["fields"], lanes)
    width = sum(f.row_bytes for f in fields)
    most = HDF5_BYTES if found[0].file.suffix in HDF5 else PART_BYTES
    size = max(1, min(PART_ROWS, most // max(width, 1)))
    rows = np.cumsum(table.length + 1)
    stops = np.unique(np.append(np.searchsorted(rows, np.arange(size, int(rows[-1]), size), "right"), len(rows)))
    parts, first = [], 0
    for stop in stops[stops > 0].tolist():
        args = {"first": first, "stop": stop, "episodes": stop - first}
        parts.append(Part(int((table.length[first:stop] + 1).sum()), args))
        first = stop
    facts = {"own_next": [], "keys": keys, "stored": {}, "described": archive.files.index(file)}
    spaces, env = (_object(file, about.get(key, {}), key) for key in ("spaces", "env"))
    account = accounting.account_of(archive, found, keys, {}, exported=True)
    return Plan("torchrl", archive, fields, tuple(parts), "field:episode", facts, spaces, env, account=account)


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the episodes of one part."""
    file = plan.archive.files[int(plan.facts["described"])]
    about = _load(file, plan.archive.root)
    (store,) = stores.find(plan.archive)
    with opened(store) as lanes:
        table = _Table(file, about["episodes"], lanes)
        yield from chunks(plan.schema, _episodes(plan, part, table, lanes))


def _episodes(plan: Plan, part: Part, table: _Table, lanes: Lanes) -> Iterator[EpisodeData]:
    keys = plan.facts["keys"]
    for number in range(int(part.args["first"]), int(part.args["stop"])):
        spot = _Spot.of(lanes, table.bounds, int(table.first[number]), int(table.first[number + 1]))
        end, observed = int(table.end[number]), bool(table.observed[number])
        terminated, truncated = (_flag(spot, keys[flag]) for flag in FLAGS)
        if terminated[-1] != (end == TERMINATED) or not (terminated | truncated)[-1]:
            raise CorruptArchive(f"{table.file}: episode {number:,} does not end as its flags say.")
        yield EpisodeData(
            {f.name: _Column(spot, keys[f.name], f, final=observed and f.placement == "both") for f in plan.schema},
            spot.steps,
            end,
            source=plan.archive.files.index(lanes.store.file),
            row=int(table.first[number]),
            group=spot.group,
            observed=observed,
            **table.of(number),
        )


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Read the data that are not per row."""
    file = plan.archive.files[int(plan.facts["described"])]
    about = _object(file, _load(file, plan.archive.root).get("metadata", {}), "metadata")
    for name, text in _object(file, about.get("texts", {}), "texts").items():
        if not isinstance(text, str):
            raise CorruptArchive(f"{file}: {name} is not a text.")
        yield name, text
    for name, array in _object(file, about.get("arrays", {}), "arrays").items():
        if not isinstance(array, str) or Path(array).name != array:
            raise CorruptArchive(f"{file}: {name} is not a name of a file in {METADATA}.")
        yield name, np.load(stores.within(file.parent / METADATA / array, plan.archive.root), "r", allow_pickle=False)


def _flag(spot: _Spot, key: str) -> BoolArray:
    return np.asarray(spot.take(key, 0, spot.steps).reshape(-1) != 0)


class _Table:
    """The episodes of a description, checked against the steps of the lanes.

    Attributes
    ----------
    length, end, observed : arrays [episodes]
    first : int array [episodes + 1]
        First step of each episode, and the number of steps.
    bounds : int array [lanes + 1]
        First step of each lane, and the number of steps.
    """

    def __init__(self, file: Path, about: Any, lanes: Lanes) -> None:
        self.file, self._about = file, _object(file, about, "episodes")
        length = self._about.get("length")
        if not isinstance(length, list) or not length or not all(type(n) is int and 0 < n < 1 << 40 for n in length):
            raise CorruptArchive(f"{file}: the lengths of episodes are not a list of positive numbers.")
        self.length: IntArray = np.array(length, np.int64)
        self.first: IntArray = np.concatenate([[0], np.cumsum(self.length)])
        self.end = self._digits("end", self._about.get("end"), CUT)
        self.observed = self._digits("observed", self._about.get("observed"), 1)
        self.bounds: IntArray = np.concatenate([[0], np.cumsum([lane.steps for lane in lanes.lanes], dtype=np.int64)])
        if self.first[-1] != self.bounds[-1]:
            raise CorruptArchive(
                f"{file} describes {self.first[-1]:,} steps, and the TensorDict has {self.bounds[-1]:,}.",
                hint=f"remove {DESCRIPTION} if the TensorDict was changed: it is then read like any other",
            )
        splits = _object(file, self._about.get("splits", {}), "splits")
        self._splits = {name: self._digits(f"split {name}", marks, 1) for name, marks in splits.items()}
        columns = _object(file, self._about.get("columns", {}), "columns")
        self._columns = {name: self._list(name, values, (bool, int, float, str)) for name, values in columns.items()}
        self._seeds = self._list("seed", self._about.get("seed", [None] * len(self)), (int,))
        self._options = self._list("options", self._about.get("options", [None] * len(self)), (str,))

    def __len__(self) -> int:
        return len(self.length)

    def of(self, number: int) -> dict[str, Any]:
        """Return seed, reset options, splits and the user's columns of an episode."""
        return {
            "seed": self._seeds[number],
            "options": self._options[number],
            "splits": tuple(name for name, marks in self._splits.items() if marks[number]),
            "extra": {name: values[number] for name, values in self._columns.items()},
        }

    def _digits(self, what: str, text: Any, most: int) -> Array:
        if not isinstance(text, str) or len(text) != len(self) or not set(text) <= set("012"[: most + 1]):
            raise CorruptArchive(f"{self.file}: {what} is not a text of a digit for each of {len(self):,} episodes.")
        return np.frombuffer(text.encode(), np.uint8) - ord("0")

    def _list(self, what: str, values: Any, kinds: tuple[type, ...]) -> list[Any]:
        fits = isinstance(values, list) and len(values) == len(self)
        if not fits or not all(x is None or type(x) in kinds for x in values):
            raise CorruptArchive(f"{self.file}: {what} is not a list of a value for each of {len(self):,} episodes.")
        return cast("list[Any]", values)


@dataclass(frozen=True)
class _Spot:
    """The steps of an episode: pieces (lane, first position, end) of one lane, or of several."""

    lanes: Lanes
    pieces: tuple[tuple[Lane, int, int], ...]

    @classmethod
    def of(cls, lanes: Lanes, bounds: IntArray, first: int, stop: int) -> _Spot:
        """Find the pieces of steps ``first`` to ``stop``."""
        low, high = int(np.searchsorted(bounds, first, "right")) - 1, int(np.searchsorted(bounds, stop - 1, "right"))
        return cls(
            lanes,
            tuple(
                (lanes.lanes[k], max(first - int(bounds[k]), 0), min(stop, int(bounds[k + 1])) - int(bounds[k]))
                for k in range(low, high)
            ),
        )

    @cached_property
    def steps(self) -> int:
        """Number of steps."""
        return sum(stop - start for _, start, stop in self.pieces)

    @property
    def group(self) -> str:
        """Place of the episode, as other readers of TensorDicts give it; empty if it is in several lanes."""
        if len(self.pieces) > 1:
            return ""
        lane, start, stop = self.pieces[0]
        return place(self.lanes, LaneEpisode(lane, start, stop))

    def take(self, key: str, start: int, stop: int) -> Array:
        """Read the values of steps."""
        parts, at = [], 0
        for lane, a, b in self.pieces:
            low, high = max(start, at), min(stop, at + b - a)
            if low < high:
                parts.append(self.lanes.take(key, lane, a + low - at, a + high - at))
            at += b - a
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def final(self, key: str) -> Array:
        """Read the next value of the last step [1, ...]."""
        lane, _, stop = self.pieces[-1]
        return self.lanes.after(key, lane, stop - 1, stop)


class _Column(LazyColumn):
    """A column of an episode, with its final observation or without."""

    def __init__(self, spot: _Spot, key: str, f: Field, *, final: bool) -> None:
        self._spot, self._key, self._shape, self._final = spot, key, f.shape, final
        self._width = f.row_bytes

    def __len__(self) -> int:
        return self._spot.steps + self._final

    @property
    def nbytes(self) -> int:
        """The approximate bytes of all rows in memory."""
        return len(self) * self._width

    def cut(self, start: int, stop: int) -> Array:
        """Read rows [start, stop)."""
        steps = self._spot.steps
        parts = [self._spot.take(self._key, start, min(stop, steps))] if start < steps else []
        if stop > steps:
            parts.append(self._spot.final(self._key))
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return joined.reshape(len(joined), *self._shape)


def _load(file: Path, root: Path) -> dict[str, Any]:
    about = file.stat()
    return _loaded(file, root, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=1)
def _loaded(file: Path, root: Path, changed: int, size: int) -> dict[str, Any]:
    about = documents.load_object(stores.within(file, root), longest=LONGEST)
    if about.get("version") != VERSION:
        raise CorruptArchive(
            f"{file}: version {str(about.get('version'))[:20]} of the description is not known.",
            hint="a later version of rlds wrote it: pip install -U rlds-cli",
        )
    for key, kind in (("fields", list), ("episodes", dict)):
        if not isinstance(about.get(key), kind):
            raise CorruptArchive(f"{file} does not describe {key}.")
    return about


def _object(file: Path, value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CorruptArchive(f"{file}: {what} is not an object.")
    return cast("dict[str, Any]", value)


def _fields(file: Path, listed: Sequence[Any], lanes: Lanes) -> tuple[tuple[Field, ...], dict[str, str]]:
    """Return the fields, and the key of each; refuse fields that the TensorDict does not hold as described."""
    fields, keys = [], {}
    short = not any(key.startswith(NEXT + "done") for key in lanes.keys)
    for about in listed:
        f = _field(file, about)
        key = f.name.removeprefix(NEXT) if short and f.name in (REWARD, *FLAGS) else f.name
        held = lanes.keys.get(key)
        shapes = (f.shape, (1,)) if f.name in (REWARD, *FLAGS) and f.shape == () else (f.shape,)
        after = lanes.keys.get(NEXT + key)
        final = held is not None and (f.placement != "both" or held.observed or after == held or after is None)
        if held is None or held.dtype != f.dtype or held.shape not in shapes or not final:
            raise CorruptArchive(f"{file} describes {f.name} as {f.dtype}{list(f.shape)}; the TensorDict has {held}.")
        if f.name in keys:
            raise CorruptArchive(f"{file} describes {f.name} twice.")
        fields.append(f)
        keys[f.name] = key
    if any(flag not in keys for flag in FLAGS):
        raise CorruptArchive(f"{file} describes no {' or no '.join(FLAGS)}.")
    return tuple(fields), keys


def _field(file: Path, about: Any) -> Field:
    values: Mapping[str, Any] = _object(file, about, "a field")
    name, dtype, shape, placement, kind = (values.get(k) for k in ("name", "dtype", "shape", "placement", "kind"))
    known = isinstance(name, str) and isinstance(dtype, str) and placement in _PLACEMENTS and kind in ("array", "text")
    if not known or not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise CorruptArchive(f"{file} describes a field as {str(values)[:80]}.")
    return Field(str(name), str(dtype), tuple(shape), cast("Placement", placement), cast("Any", kind))
