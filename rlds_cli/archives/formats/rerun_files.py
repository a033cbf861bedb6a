"""Recordings of Rerun that `rlds export` wrote, read by rerun-sdk: each field is a topic, each of its rows a message.

The property ``rlds`` of such a file says what its fields are, and how many steps a second has. Recordings of others
have any entities and timelines, and no rule says which of them is an observation: they are refused.
"""

from __future__ import annotations

import heapq
import io
import json
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.formats.topics import SECOND, Message, Recording, Topic, readable
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.media import video_files
from rlds_cli.errors import CorruptArchive, MissingPackage, UnknownLayout

MAGIC = b"RRF"
RECORD, KEY = "rlds", "episode"
VALUE = "rlds:value"  # whole numbers of 64 bits as they are
_HINT = "export it again"
_BYTES = ("EncodedImage:blob", "EncodedDepthImage:blob")
_BUFFERS = ("Image:buffer", "DepthImage:buffer")
_NUMBERS = (VALUE, "Scalars:scalars")  # the first that is there
_FORMS = {1: "gray", 3: "rgb24", 4: "rgba"}  # of the pixels of a video, by channels
_FRAME, _VIDEO = "VideoFrameReference:timestamp", "AssetVideo:blob"


def is_rerun(path: Path) -> bool:
    """Return whether a file begins as recordings of Rerun do."""
    with path.open("rb") as f:
        return f.read(len(MAGIC)) == MAGIC


def read(path: Path) -> Recording:
    """Open a recording that was exported.

    Raises
    ------
    MissingPackage
        ``rerun-sdk`` is not installed.
    UnknownLayout
        It is a recording of somebody else.
    CorruptArchive
        It is damaged.
    """
    try:
        import rerun
    except ImportError as e:
        raise MissingPackage(f"{path.name} is a recording of Rerun.", hint="pip install 'rlds-cli[rerun]'") from e
    with readable(path, hint=_HINT), warnings.catch_warnings():
        warnings.simplefilter("error")
        reader = rerun.chunk.RrdReader(path)
        count = len(reader.recordings())
        store = reader.store() if count == 1 else None
    said = _record(store, path) if store is not None else None
    if store is None or said is None:
        raise UnknownLayout(
            f"{path.name} is a recording of Rerun that rlds did not write: which of its entities is what, and on "
            "which timeline steps are, it does not say.",
            hint="write it as Parquet (rerun's catalog gives dataframes), or read it in `rlds_cli.create`",
        )
    with readable(path, hint=_HINT):
        about = json.loads(said)
        hz, of = float(about["hz"]), dict[str, _Rows]()
        for name, f in about["fields"].items():
            entity = str(rerun.new_entity_path(name.split("/")))
            of[f"/{name}"] = _Rows(path, store, entity, str(f["dtype"]), tuple(f["shape"]), hz)

    def messages(names: Collection[str], first: int, last: int) -> Iterator[Message]:
        wanted = [of[name].messages(name, first, last) for name in sorted(names) if name in of]
        with readable(path, hint=_HINT):
            yield from heapq.merge(*wanted, key=lambda m: m.time)

    found = Recording(path, [Topic(name, "Rerun") for name in of], messages)
    found.metadata = {RECORD: {KEY: said}}
    return found


def _record(store: Any, path: Path) -> str | None:
    with readable(path, hint=_HINT):
        for chunk in store.stream().filter(content=f"/__properties/{RECORD}"):
            batch = chunk.to_record_batch()
            if KEY in batch.schema.names and batch.num_rows:
                values = batch[KEY][0].as_py()
                return str(values[0]) if values else None
    return None


class _Rows:
    """The rows of an entity. Calls that continue where the last one ended read no chunk twice."""

    def __init__(self, path: Path, store: Any, entity: str, dtype: str, shape: tuple[int, ...], hz: float) -> None:
        self._path, self._store, self._entity, self._hz = path, store, entity, hz
        self._dtype, self._shape = dtype, shape
        self._chunks: Iterator[_Chunk] = iter(())
        self._now: _Chunk | None = None
        self._video: _Video | None = None

    def messages(self, name: str, first: int, last: int) -> Iterator[Message]:
        """Yield the rows between two times."""
        if self._now is None or self._now.times[0] > first:
            self._chunks = self._read()
            self._now = next(self._chunks, None)
        while (now := self._now) is not None:
            for k, time in enumerate(now.times.tolist()):
                if first <= time <= last:
                    yield Message(name, time, lambda now=now, k=k: {"": now.value(k)})  # type: ignore[misc]
            if now.times[-1] >= last:
                return
            self._now = next(self._chunks, None)

    def _read(self) -> Iterator[_Chunk]:
        for chunk in self._store.stream().filter(content=self._entity):
            if chunk.entity_path != self._entity:
                continue
            batch = chunk.to_record_batch()
            if chunk.is_static:
                if _VIDEO in batch.schema.names:
                    self._video = _Video(self._path, _flat(batch[_VIDEO]).tobytes(), self._shape)
            elif batch.num_rows:
                steps = batch["step"].to_numpy(zero_copy_only=False).astype(np.int64)
                times = np.array([round(k * SECOND / self._hz) for k in steps.tolist()], np.int64)
                yield _Chunk(times, _values(batch, self._dtype, self._video))


class _Chunk:
    """Rows of a chunk: their times, and a function from the number of a row to its value."""

    def __init__(self, times: IntArray, value: Callable[[int], Any]) -> None:
        self.times, self.value = times, value


def _values(batch: Any, dtype: str, video: _Video | None) -> Callable[[int], Any]:
    """Return the function that gives the value of a row of a chunk."""
    names = batch.schema.names
    if (text := "TextDocument:text") in names:
        return lambda k: batch[text][k].as_py()[0]
    if (name := next((n for n in _BYTES if n in names), None)) is not None:
        return lambda k: _flat(batch[name][k : k + 1]).tobytes()
    if (name := next((n for n in _BUFFERS if n in names), None)) is not None:
        return lambda k: _flat(batch[name][k : k + 1]).view(dtype)
    if (name := next((n for n in _NUMBERS if n in names), None)) is not None:
        return lambda k: batch[name][k].values.to_numpy(zero_copy_only=False)
    if (tensor := "Tensor:data") in names:
        return lambda k: batch[tensor][k].values.field("buffer")[0].value.values.to_numpy(zero_copy_only=False)
    if _FRAME in names and video is not None:
        return lambda k: video.frame(batch[_FRAME][k].values.to_numpy(zero_copy_only=False)[0])
    raise CorruptArchive(f"{names} hold no values that an export writes.")


def _flat(column: Any) -> Array:
    """Return the bytes of the first row of lists of lists."""
    inner = column[0].values
    return np.asarray(inner.flatten().to_numpy(zero_copy_only=False), np.uint8)


class _Video:
    """A video in a recording, whose frames are found by their times, as Rerun counts them."""

    def __init__(self, path: Path, data: bytes, shape: tuple[int, ...]) -> None:
        import rerun

        try:
            import av
        except ImportError as e:
            raise MissingPackage(
                f"{path.name} holds videos, which av decodes.", hint="pip install 'rlds-cli[video]'"
            ) from e
        self._av, self._data = av, data
        self._form = _FORMS[shape[2] if len(shape) == 3 else 1]
        asset = rerun.AssetVideo(contents=data, media_type="video/mp4")
        self._nanoseconds = np.sort(np.asarray(asset.read_frame_timestamps_nanos(), np.int64))
        with self._open() as file:
            packets = [p.pts for p in file.demux(video=0) if p.pts is not None]
        self._times = np.sort(np.array(packets, np.int64))
        self._frames: Iterator[tuple[int, Array]] = iter(())
        self._last: tuple[int, Array] | None = None

    def _open(self) -> Any:
        return self._av.open(io.BytesIO(self._data), options={"ignore_editlist": "1"})

    def frame(self, nanoseconds: int) -> Array:
        """Decode the frame of a time: forward from the last one, or from the beginning."""
        number = int(np.searchsorted(self._nanoseconds, nanoseconds))
        if number >= len(self._times):
            raise ValueError(f"a video has no frame at {nanoseconds:,} ns")
        time = int(self._times[number])
        if self._last is None or self._last[0] > time:
            self._frames, self._last = self._decoded(), None
        while self._last is None or self._last[0] < time:
            self._last = next(self._frames)
        if self._last[0] != time:
            raise ValueError(f"a video has no frame at {nanoseconds:,} ns")
        return self._last[1]

    def _decoded(self) -> Iterator[tuple[int, Array]]:
        with self._open() as file:
            alone = video_files.one_thread(self._av)
            reformat = self._av.video.reformatter.VideoReformatter().reformat
            for frame in file.decode(video=0):
                yield frame.pts, reformat(frame, format=self._form, **alone).to_ndarray()
