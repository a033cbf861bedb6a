"""What the episode of a dataset keeps of it when `create` writes it again: everything that was not changed.

``ds.episode(k)`` gives arrays: frames decoded, next observations beside observations. A field whose values are still
those of the dataset is taken as the dataset stores it, with its JPEG or video bytes and its final row; what arrays do
not say (a cut, the seed, the splits, the episode columns) is taken from there too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds_cli.episodes import Flat, Value, is_single
from rlds_cli.provenance import Origin
from rlds_cli.store.opening import Store
from rlds_cli.store.videos import Extent
from rlds_cli.ted import CUT, FLAGS, VIDEO, Array, EncodedFrames, Field, Scalar, VideoFrames


@dataclass(slots=True)
class Original:
    """A trajectory with what its dataset knows of it.

    ``fields`` are those taken as they are stored, ``both`` those known at both ends of a step, ``apart`` those whose
    next values are a field of their own. ``cut``: it ends where the data end, which its flags do not tell from a
    truncation.
    """

    flat: Flat
    fields: dict[str, Field] = field(default_factory=dict)
    both: frozenset[str] = frozenset()
    apart: frozenset[str] = frozenset()
    cut: bool = False
    seed: int | None = None
    options: str | None = None
    splits: tuple[str, ...] = ()
    extra: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(slots=True)
class Films:
    """Where the videos lie that frames are taken from, by the name that a dataset under construction calls them."""

    known: dict[str, tuple[Store, str, int]] = field(default_factory=dict)

    def name(self, store: Store, name: str, number: int) -> str:
        """A name for video ``number`` of a field."""
        key = f"{store.manifest.fingerprint} {store.path} {name} {number}"
        self.known[key] = (store, name, number)
        return key

    def locate(self, _field: str, key: str) -> Extent:
        """Where its bytes are."""
        store, name, number = self.known[key]
        return store.videos(name).extent(number)


def original(
    origin: Origin, flat: Flat, filled: frozenset[str], schema: Mapping[str, Field], films: Films, *, keep_frames: bool
) -> Original:
    """Compare the fields of a trajectory with its origin, and take what is the same from there.

    Parameters
    ----------
    origin : Origin
    flat : dict
        Its fields; those ``filled`` have T rows and no next values, as the final observation is not known.
    schema : mapping
        The fields of the dataset under construction; empty before its first episode.
    keep_frames : bool
        Keep frames encoded; else they stay the arrays that they are.
    """
    store, k = origin.store, origin.number
    e = store.episodes
    start, length = int(e["start"][k]), int(e["length"][k])
    observed = bool(e["num_observed"][k] > length)
    of = Original(dict(flat), splits=tuple(s for s in splits_of(store) if e[f"split/{s}"][k]), extra=_extra(store, k))
    of.apart = frozenset(n for n in store.fields if f"next/{n}" in store.fields)
    of.both = filled
    if any(not _has_rows(flat, name, length) for name in (*FLAGS, "action") if name in flat):
        return of  # a part of it
    of.both = filled | {n for n, f in store.fields.items() if f.placement == "both"}
    of.seed = int(e["seed"][k]) if "seed" in e and e["has_seed"][k] else None
    of.options = store.episode_strings("options")[k] or None
    for name, f in store.fields.items():
        wanted = schema.get(name)
        frames = f.kind == "frames" and (not keep_frames or (wanted is not None and wanted.kind == "array"))
        if frames or not _unchanged(store, f, flat, start, length, filled):
            continue
        rows = length + (f.placement == "both" and observed)
        of.flat[name] = _stored(store, f, start, start + rows, films)
        of.fields[name] = f
        if f.placement == "both" and name not in of.apart:
            of.flat.pop(f"next/{name}", None)
    of.cut = int(e["end"][k]) == CUT and all(name in of.fields for name in FLAGS)
    return of


def splits_of(store: Store) -> list[str]:
    """The named splits of a dataset."""
    return [name.removeprefix("split/") for name in store.episodes if name.startswith("split/")]


def _extra(store: Store, k: int) -> dict[str, Scalar]:
    return {name: store.own_column(name).scalar(k) for name in store.own_columns}


def _has_rows(flat: Flat, name: str, rows: int) -> bool:
    return not is_single(flat[name]) and len(flat[name]) == rows


def _unchanged(store: Store, f: Field, flat: Flat, start: int, length: int, filled: frozenset[str]) -> bool:
    """Whether the values given are those of the dataset."""
    if f.name not in flat or len(flat[f.name]) != length:
        return False
    paired = f.placement == "both" and f"next/{f.name}" not in store.fields and f.name not in filled
    if paired and f"next/{f.name}" not in flat:
        return False
    there = store.gather(f.name, np.arange(start, start + length + paired))
    same = _same(flat[f.name], there[:length], f)
    return same and (not paired or _same(flat[f"next/{f.name}"], there[1:], f))


def _same(given: Value, there: Array, f: Field) -> bool:
    if f.kind == "text":
        return isinstance(given, list) and given == there.tolist()
    if not isinstance(given, np.ndarray) or given.dtype != there.dtype:
        return False
    given = given[:, 0] if given.ndim == there.ndim + 1 and given.shape[1:] == (1,) else given
    return given.shape == there.shape and given.tobytes() == there.tobytes()


def _stored(store: Store, f: Field, a: int, b: int, films: Films) -> Any:
    """Rows ``a`` to ``b`` as the dataset stores them."""
    if f.codec == VIDEO:
        return _of_videos(store, f, store.rows(f.name)[a:b], films)
    if f.kind == "frames":
        offsets = store.frame_offsets(f.name)[a : b + 1]
        data = np.array(store.frame_bytes(f.name)[int(offsets[0]) : int(offsets[-1])])
        return EncodedFrames(data, np.diff(offsets), f.shape, f.codec)
    values = store.gather(f.name, np.arange(a, b))
    return values.tolist() if f.kind == "text" else values


def _of_videos(store: Store, f: Field, index: Array, films: Films) -> VideoFrames:
    numbers, place = np.unique(index[:, 0], return_inverse=True)
    names = [films.name(store, f.name, int(n)) if n >= 0 else "" for n in numbers]
    where = np.where(index[:, 0] >= 0, place.reshape(-1), -1)
    return VideoFrames(tuple(names), np.stack([where, index[:, 1]], 1).astype(np.int32))
