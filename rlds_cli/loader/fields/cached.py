"""Frames in the size of training, read from the cache of a home, or decoded once and added to it.

A video is decoded in whole groups of pictures: one frame alone takes half of its group on average, and an epoch needs
the others, too.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.media.mp4 import Track
from rlds_cli.base.repeated import copy_repeated, distinct
from rlds_cli.base.text import size_of
from rlds_cli.dataset import Resize
from rlds_cli.errors import FrameError, NoPermission
from rlds_cli.loader.fields.columns import BatchColumn, Decoding, decoded_by
from rlds_cli.loader.fields.frame_names import ImageNames, VideoNames
from rlds_cli.loader.storage import packed
from rlds_cli.loader.storage.frame_cache import FrameCache
from rlds_cli.ted import VIDEO, Field

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

_LOCKS = 16
_AT_ONCE = 16  # frames that are in memory in their own size
_MOST_FRAMES = 256  # of a group of pictures that is decoded whole; of a longer one, those up to the last wanted
_FILTER = "bilinear, torch"  # what else values depend on


def is_cached(f: Field) -> bool:
    """Return whether frames of a field can be cached: those of 8 bits and one size, which are decoded."""
    return f.kind == "frames" and f.dtype == "uint8" and math.prod(f.shape) > 0


def cached(column: BatchColumn, resize: Resize) -> BatchColumn:
    """Return a column of frames that are resized when they are decoded, and cached."""
    assert column.decoding is not None
    made = CachedFrames(column.decoding.dataset, column.decoding.name, resize)
    return decoded_by(column, made, made.about)


class CachedFrames(Decoding):
    """A field of frames in another size.

    Parameters
    ----------
    dataset : Dataset
    name : str
        A field for which `is_cached` is true.
    resize : Resize
        With a limit for the cache.
    """

    def __init__(self, dataset: Dataset, name: str, resize: Resize) -> None:
        super().__init__(dataset, name)
        self._resize, self._field, self._store = resize, dataset.schema[name], dataset.store
        self.shape = (*resize.size, *self._field.shape[2:])
        self.key, self.row_bytes = f"{name} {resize.size}", math.prod(self.shape)
        self._cache, place = _opened(dataset, name, self.shape, int(resize.cache or 0))
        self.about = f"decoded and resized, {place}"
        self._busy, self._process = list[threading.Lock](), 0

    @property
    def together(self) -> bool:
        """False: groups of pictures are decoded whole, once."""
        return False

    @cached_property
    def _videos(self) -> VideoNames:
        return VideoNames(self._store, self.name)

    @cached_property
    def _images(self) -> ImageNames:
        return ImageNames(self._store, self.name)

    def _claim(self, number: int, group: int) -> threading.Lock:
        """Return the lock that is held while a group of pictures is decoded."""
        if self._process != os.getpid():  # a thread of the parent may have had one when this process was forked
            self._busy, self._process = [threading.Lock() for _ in range(_LOCKS)], os.getpid()
        return self._busy[hash((number, group)) % _LOCKS]

    def _gather(self, rows: IntArray) -> Array:
        once, place, which = np.unique(rows, return_index=True, return_inverse=True)
        out: Array = np.zeros((rows.size, *self.shape), np.uint8)
        if self._field.codec == VIDEO:
            self._read_videos(once, out, place)
        else:
            self._read_images(once, out, place)
        copy_repeated(out, place, which)
        return out.reshape(*rows.shape, *self.shape)

    def _read_images(self, rows: IntArray, out: Array, place: IntArray) -> None:
        """Write the frames of distinct rows [n] to ``out[place]``, with zeros for rows without one."""
        starts, ends = self._store.frames(self.name).spans(rows)
        there = starts < ends
        self._store.check_absent(self._field, rows[~there])
        rows, place = rows[there], place[there]
        names = self._images.of(rows)
        missing = self._read(names, out, place)
        for part in _parts(missing):
            out[place[part]] = frames = self._resized(super()._gather(rows[part]))
            proved = self._images.are_proved(rows[part]) if self._takes_more else np.zeros(0, bool)
            if proved.any():
                self._add(names[part][proved], frames[proved])

    def _read_videos(self, rows: IntArray, out: Array, place: IntArray) -> None:
        """Write the frames of distinct rows [n] to ``out[place]``, with zeros for rows without one."""
        index = self._store.rows(self.name)[rows]
        there = index[:, 0] >= 0
        self._store.check_absent(self._field, rows[~there])
        index, place = index[there], place[there]
        number, frame = index[:, 0], index[:, 1]
        if number.max(initial=-1) >= len(self._videos):
            self._store.videos(self.name).video(int(number.max()))  # raises DamagedDataset
        missing = self._read(self._videos.of(number, frame), out, place)
        for n in distinct(number[missing]).tolist():
            of = missing[number[missing] == n]
            self._read_video(n, frame[of], out, place[of])

    def _read_video(self, number: int, wanted: IntArray, out: Array, place: IntArray) -> None:
        """Write frames of a video that are not cached to ``out[place]``."""
        videos = self._store.videos(self.name)
        track = videos.video(number).track
        if not 0 <= wanted.min() <= wanted.max() < len(track.groups):
            videos.gather(self._field, np.stack([np.full(len(wanted), number), wanted], 1))  # raises DamagedDataset
        for g in distinct(track.groups[wanted]).tolist():
            of = np.flatnonzero(track.groups[wanted] == g)
            with self._claim(number, g):
                missing = self._read(self._videos.of(np.full(len(of), number), wanted[of]), out, place[of])
                of = of[missing]  # another thread may have decoded the others
                if len(of):
                    self._decode_group(number, track, g, wanted[of], out, place[of])

    def _decode_group(
        self, number: int, track: Track, group: int, wanted: IntArray, out: Array, place: IntArray
    ) -> None:
        """Decode a group of pictures for the frames ``wanted`` of it; these alone where there is no room for more."""
        whole = wanted
        if self._takes_more and self._videos.is_proved(number):
            whole, last = np.flatnonzero(track.groups == group), track.frames[wanted].max()
            whole = whole if len(whole) <= _MOST_FRAMES else whole[track.frames[whole] <= last]
        try:
            self._decode(number, whole, wanted, out, place)
        except FrameError:  # of one that is not wanted, maybe
            self._decode(number, wanted, wanted, out, place)

    def _decode(self, number: int, frames: IntArray, wanted: IntArray, out: Array, place: IntArray) -> None:
        """Decode and cache ``frames`` of a video; write those ``wanted`` to ``out[place]``."""
        for part in _parts(distinct(frames)):
            index = np.stack([np.full(len(part), number), part], 1)
            made = self._resized(self._store.videos(self.name).gather(self._field, index))
            here = np.flatnonzero(np.isin(wanted, part))
            out[place[here]] = made[np.searchsorted(part, wanted[here])]
            if self._takes_more and self._videos.is_proved(number):
                self._add(self._videos.of(index[:, 0], part), made)

    def _read(self, names: Array, out: Array, place: IntArray) -> IntArray:
        """Read frames by their names [n, 2] into ``out[place]``; return which of them are not cached."""
        if self._cache is None:
            return np.arange(len(names))
        found = self._cache.find(names).tolist()
        read = [at >= 0 and self._cache.read(at, out[to]) for at, to in zip(found, place.tolist(), strict=True)]
        return np.flatnonzero(~np.array(read, bool))

    def _resized(self, frames: Array) -> Array:
        import torch  # resizes bytes ten times as fast as Pillow

        return np.asarray(self._resize.apply(self.name, torch.from_numpy(frames)))

    @property
    def _takes_more(self) -> bool:
        return self._cache is not None and not self._cache.full

    def _add(self, names: Array, frames: Array) -> None:
        if self._cache is not None:
            self._cache.add(names, frames)


_open: WeakValueDictionary[tuple[Any, ...], FrameCache] = WeakValueDictionary()  # versions of a dataset share one


def _opened(dataset: Dataset, name: str, shape: tuple[int, ...], limit: int) -> tuple[FrameCache | None, str]:
    """Open the cache of a field in the first home that takes it; return it and its place, or the reason for none."""
    reasons = []
    seen = dataset.store.files.unproved if dataset.store.address else ""
    key = {"dataset": dataset.id.partition("@")[0], "field": name, "filter": _FILTER, "seen": seen}
    for home in packed.homes(dataset):
        try:
            known = home, *key.values(), shape, limit
            if (cache := _open.get(known)) is None:
                cache = _open[known] = FrameCache(home, key, shape, limit)
            return cache, f"cached in {cache.directory} (of {size_of(limit)} for all)"
        except (OSError, NoPermission) as e:
            reasons.append(e.message.rstrip(".") if isinstance(e, NoPermission) else str(e))
    return None, f"not cached: {'; '.join(reasons)}"


def _parts(numbers: IntArray) -> Iterator[IntArray]:
    """Yield parts of an array that are decoded at once."""
    for first in range(0, len(numbers), _AT_ONCE):
        yield numbers[first : first + _AT_ONCE]
