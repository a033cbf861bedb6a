"""What cached frames are called: by what they are decoded from, which is proved before a frame is kept under its name.

The digests of a dataset are a claim. A directory of a stranger may name the id and the digests of another dataset, and
have other pixels; these must not be taken for those of the other one. So a frame of a local file is kept only after
the bytes that it is decoded from were hashed: of an image, with each frame that is kept; of a video, its whole file,
once for each process. What is stored of a video beside its bytes, the table of its packets, is part of the name.

Rows at an address are not fetched for a hash: there, the cache belongs to what was seen (`Files.unproved`), which
names the hashes of all bytes that can arrive.
"""

from __future__ import annotations

import hashlib
import os
import threading

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.repeated import distinct
from rlds_cli.store import Store

_STRIDE = np.array([0x9E3779B97F4A7C15, 0], np.uint64)  # the names of two neighbouring frames of a video differ by it
_STEP = 8 << 20


class ImageNames:
    """The names of images of a field, by their rows."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._digests = store.table.row_digests(name)

    def of(self, rows: IntArray) -> Array:
        """Return the names of the images at ``rows`` [n], uint64 [n, 2]."""
        return np.ascontiguousarray(self._digests[rows, :16]).view("<u8")

    def are_proved(self, rows: IntArray) -> BoolArray:
        """Return whether the bytes of the images at ``rows`` [n] are those of their names [n]."""
        if self._store.address:
            return np.ones(len(rows), bool)
        frames, known = self._store.frames(self._name), self._digests[rows]
        pieces = (np.ascontiguousarray(frames.data[a:b]) for a, b in zip(*frames.spans(rows), strict=True))
        hashed = [hashlib.sha256(piece.data).digest() for piece in pieces]
        return np.array([h == of.tobytes() for h, of in zip(hashed, known, strict=True)], bool)


class VideoNames:
    """The names of frames in the videos of a field."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._videos = store, store.videos(name)
        self._digests = store.table.video_digests(name)
        self._names = np.zeros((len(self), 2), np.uint64)
        self._named = np.zeros(len(self), bool)
        self._proved = dict[int, bool]()
        self._lock, self._process = threading.Lock(), os.getpid()

    def __len__(self) -> int:
        return len(self._digests)

    def of(self, number: IntArray, frame: IntArray) -> Array:
        """Return the names of frames [n] in videos by number [n], uint64 [n, 2]."""
        for n in distinct(number[~self._named[number]]).tolist():
            beside = b"" if self._store.address else self._videos.stored_track(n)
            of = hashlib.sha256(self._digests[n].tobytes() + beside).digest()
            self._names[n], self._named[n] = np.frombuffer(of[:16], "<u8"), True
        return np.asarray(self._names[number] + frame.astype(np.uint64)[:, None] * _STRIDE)

    def is_proved(self, number: int) -> bool:
        """Return whether the bytes of a video are those of its name."""
        if self._store.address:
            return True
        if self._process != os.getpid():  # a thread of the parent may have held it when this process was forked
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:  # one video is hashed at a time, by one thread
            if number not in self._proved:
                data, h = self._videos.published(number), hashlib.sha256()
                for at in range(0, len(data), _STEP):
                    h.update(np.ascontiguousarray(data[at : at + _STEP]).data)
                self._proved[number] = h.digest() == self._digests[number].tobytes()
            return self._proved[number]
