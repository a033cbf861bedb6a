"""Recordings of Rerun (``.rrd``), one for each episode, which its viewer opens side by side.

::

    <directory>/episode_0000.rrd
        /observation/q      Scalars             rows 0 to T of fields placed both, at step k
        /observation/map    Tensor              of more than `_PLOTTED` values
        /observation/top    EncodedImage        JPEG and PNG as they are; of 16 bits EncodedDepthImage
        /observation/side   AssetVideo          the MP4 file, or its packets of the episode; VideoFrameReference of rows
        /observation/pic    Image               uint8 [H, W, 1|3|4]; uint16 [H, W] is a DepthImage
        /action             Scalars             rows 0 to T-1
        /next/reward        Scalars             the result of step k, at step k + 1
        /note               TextDocument        texts
        property episode    a component for each column of the episode
        property rlds       what the rows do not say: see `archives.recorded_episode`

Timelines are ``step``, and ``time`` where the times of steps are known. Whole numbers of 64 bits, which a Scalar
rounds, are also there as they are (``rlds:value``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.archives.exports.content import Content, Loss, first_references
from rlds_cli.archives.exports.format import Unit, sync
from rlds_cli.archives.exports.recorded import KEY, RECORD, RecordedFormat
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import json as documents
from rlds_cli.base.media import video_files
from rlds_cli.errors import MissingPackage
from rlds_cli.store import Facts
from rlds_cli.ted import VIDEO, Field

if TYPE_CHECKING:
    import pyarrow as pa

VALUE = "rlds:value"  # the component of exact whole numbers
_PLOTTED = 64  # values of a row that are lines of a plot
_IMAGE = 8  # pixels of each side of an array that is an image
_CODECS = ("h264", "hevc", "av1", "vp9")  # which Rerun decodes
_LARGEST = 1 << 30  # bytes of a video that one recording holds
_EPOCH = 1_000_000_000  # seconds: times from here on are dates
_PER_METER = {"mm": 1000.0, "m": 1.0}
_OWN = "__"  # with which names begin that Rerun keeps for itself
_INFO = "lerobot/info.json"  # metadata of a dataset that was imported from LeRobot
_MODELS = {1: "L", 3: "RGB", 4: "RGBA"}


class Rerun(RecordedFormat):
    """A recording for each episode."""

    name = "rerun"
    suffix = ".rrd"

    def losses_of_fields(self) -> Iterator[Loss]:
        """Yield the losses of fields: those of all recordings, and names that Rerun keeps for itself."""
        for loss in super().losses_of_fields():
            if not loss.field.startswith(_OWN):
                yield loss
        for name in self.content.fields:
            if name.startswith(_OWN):
                yield Loss("field", f"{name}: Rerun keeps names that begin with {_OWN} for itself", name)

    def of_video(self, f: Field) -> Loss:
        """Return the loss of a field in videos: they stay videos where Rerun plays them, else become PNG images."""
        why_not = self._why_no_video(f)
        if not why_not:
            return Loss("encoding", f"{f.name}: each episode keeps its video, which an import decodes", f.name)
        return Loss("encoding", f"{f.name}, {why_not}: will be images in PNG", f.name, "png")

    def check(self) -> None:
        """Refuse to write without Rerun."""
        _rerun()

    # -- videos

    def _why_no_video(self, f: Field) -> str:
        """Say why Rerun does not play the videos of a field; empty if it does."""
        videos = self.content.videos(f.name)
        if f.dtype != "uint8":
            return "videos of depth"
        for k in range(len(videos)):
            extent = videos.extent(k)
            codec = videos.video(k).track.codec if video_files.is_mp4(extent) else "another container than MP4"
            if codec not in _CODECS:
                return f"videos in {codec}, which Rerun does not play"
            if extent.size > _LARGEST:
                return f"of which a video has {extent.size:,} bytes"
        for k, (start, length) in enumerate(zip(self.content.starts.tolist(), self.content.table.length, strict=True)):
            shown = self.content.video_rows(f.name, start, start + int(length) + 1)[:, 0]
            if len(first_references(shown)) != 1 or (shown[: int(length)] < 0).any():
                return f"of which episode {k:,} is not in one video"
        return ""

    @cached_property
    def _published(self) -> Content:
        """The videos of fields that an import decodes, as they are stored."""
        return Content(self.content.dataset)

    @cached_property
    def _apart(self) -> Content:
        """The same, with a video for each episode."""
        return Content(self.content.dataset, [Loss("videos", "", name) for name in self._videos])

    @cached_property
    def _videos(self) -> set[str]:
        """The fields that stay videos."""
        stored = self.content.source.store.fields
        return {n for n, f in self.content.fields.items() if f.kind == "array" and stored[n].codec == VIDEO}

    def _video(self, name: str, episode: int) -> _Video:
        """Return the video of an episode: the published one if it shows nothing else."""
        start, stop = int(self.content.starts[episode]), int(self.content.starts[episode])
        stop += int(self.content.table.length[episode] + self.content.table.observed[episode])
        rows = self._published.video_rows(name, start, stop)
        track = self._published.videos(name).video(int(rows[0, 0])).track
        packets = track.frames[rows[:, 1]]
        if len(np.unique(rows[:, 1])) == len(track.frames):
            file, times = self._published.video(name, int(rows[0, 0])), track.time
        else:
            first, last = (int(track.frames[n]) for n in (rows[:, 1].min(), rows[:, 1].max()))
            shown = track.frames[rows[:, 1].min() : rows[:, 1].max() + 1]
            begin, end = track.begin(first), max(int(shown.max()), last) + 1
            file, times = self._apart.video(name, episode), track.time[begin:end]
        return _Video(b"".join(file.pieces()), np.searchsorted(np.sort(times), track.time[packets]))

    # -- what is written

    def write(self, unit: Unit, directory: Path) -> Any:
        """Write the recordings of some episodes."""
        rr = _rerun()
        application = re.sub(r"[^A-Za-z0-9_-]+", "-", self.content.id)
        version = self.content.dataset.fingerprint.rpartition(":")[2][:8]
        for k in range(unit.first, unit.stop):
            path = self.file(directory, k)
            with _strict(rr):
                rr.chunk.LazyChunkStream.from_iter(self._chunks(rr, k)).write_rrd(
                    path, application_id=application, recording_id=f"{self.stem(k)}-{version}"
                )
            sync(path)
        return None

    def _chunks(self, rr: Any, episode: int) -> Iterator[Any]:
        """Yield the chunks of a recording: its properties, then rows field by field."""
        info = rr.archetypes.RecordingInfo.columns(name=[f"episode {episode}"])
        yield rr.chunk.Chunk.from_columns("/__properties", [], info)
        yield _static(rr, f"/__properties/{RECORD}", {KEY: [json.dumps(self.said(episode))]})
        if about := self._about(episode):
            yield _static(rr, "/__properties/episode", about)
        start, times = int(self.content.starts[episode]), self._times(episode)
        for name, f in self.content.fields.items():
            entity = rr.new_entity_path(name.split("/"))
            count = int(self.content.table.length[episode])
            count += f.placement == "both" and bool(self.content.table.observed[episode])
            shift = int(f.placement == "next")
            if name in self._videos:
                video = self._video(name, episode)
                yield rr.chunk.Chunk.from_columns(
                    entity, [], rr.AssetVideo.columns(blob=[video.data], media_type=["video/mp4"])
                )
                columns = rr.VideoFrameReference.columns(timestamp=video.nanoseconds(rr)[video.ranks])
                yield rr.chunk.Chunk.from_columns(entity, _indexes(rr, shift, shift + count, times), columns)
                continue
            yield from self._described(rr, f, entity)
            for a, b in self.content.pieces(name, start, start + count):
                columns = self._columns(rr, f, self.rows(f, episode, a, b))
                first, stop = a - start + shift, b - start + shift
                yield rr.chunk.Chunk.from_columns(entity, _indexes(rr, first, stop, times), columns)

    def _about(self, episode: int) -> dict[str, list[Any]]:
        """Return what the table says of an episode, as components of a property."""
        said = self.said(episode)
        found = {"steps": said["steps"], "end": said["end"], "seed": said["seed"], "options": said["options"]}
        for name, value in said["columns"].items():
            found.setdefault(_shown(name).replace(":", "_"), value)
        return {name: [_shown(value)] for name, value in found.items() if value is not None}

    def _times(self, episode: int) -> Array | None:
        """Return the seconds of rows, as `timestamp` says them, else by the rate of steps; None without either."""
        steps, f = int(self.content.table.length[episode]), self.content.fields.get("timestamp")
        if f is not None and f.kind == "array" and f.dtype in ("float32", "float64") and f.shape in ((), (1,)):
            start = int(self.content.starts[episode])
            times = self.content.rows(f.name, start, start + steps).reshape(-1).astype(np.float64)
            passed = np.diff(times)
            if np.isfinite(times).all() and (passed >= 0).all() and np.abs(times).max() < 1 << 33:
                after = float(np.median(passed)) if steps > 1 else 1 / self.rate
                return np.round(np.append(times, times[-1] + after), 6)
        said = self.content.dataset.manifest.env.get("fps")
        return np.arange(steps + 1) / self.rate if said else None

    def _described(self, rr: Any, f: Field, entity: str) -> Iterator[Any]:
        """Yield the names of the elements of a row that is plotted."""
        if _form(f) == "scalars" and (count := int(np.prod(f.shape, dtype=np.int64))) > 1:
            names = self._elements.get(f.name, ())
            if len(names) != count:
                names = ["".join(f"[{i}]" for i in at) for at in np.ndindex(*f.shape)]
            columns = rr.SeriesLines.columns(names=list(names)).partition([count])
            yield rr.chunk.Chunk.from_columns(entity, [], columns)

    @cached_property
    def _elements(self) -> Mapping[str, Sequence[str]]:
        """The names of the elements of fields, as LeRobot's ``info.json`` said them."""
        text = self.content.metadata_text(_INFO)
        said = documents.loads(text) if text else {}
        features = said.get("features") if isinstance(said, dict) else None
        found = dict[str, Sequence[str]]()
        for key, about in features.items() if isinstance(features, dict) else ():
            names = about.get("names") if isinstance(about, dict) else None
            names = next(iter(names.values()), None) if isinstance(names, dict) and len(names) == 1 else names
            if isinstance(names, list) and all(isinstance(n, str) for n in names):
                found[key.replace(".", "/")] = names
        return found

    @cached_property
    def _per_meter(self) -> Mapping[str, float]:
        """How many units of depth a metre has, by field."""
        depth = Facts(self.content.dataset.manifest).depth
        return {name: _PER_METER[about["unit"]] for name, about in depth.items() if about.get("unit") in _PER_METER}

    def _columns(self, rr: Any, f: Field, rows: Any) -> Any:
        """Return the components of rows."""
        form, count = _form(f), len(rows)
        meter = [self._per_meter[f.name]] * count if f.name in self._per_meter else None
        if form == "text":
            return rr.TextDocument.columns(text=[text or "" for text in rows])
        if form == "encoded":
            return rr.EncodedImage.columns(blob=rows, media_type=[f"image/{f.codec}"] * count)
        if form == "encoded depth":
            return rr.EncodedDepthImage.columns(blob=rows, media_type=[f"image/{f.codec}"] * count, meter=meter)
        if form in ("image", "depth"):
            buffers = [np.ascontiguousarray(row).view(np.uint8).ravel() for row in rows]
            shown = {"width": f.shape[1], "height": f.shape[0]}
            if form == "depth":
                formats = [rr.components.ImageFormat(**shown, channel_datatype="U16")] * count
                return rr.DepthImage.columns(buffer=buffers, format=formats, meter=meter)
            model = _MODELS[f.shape[2]]
            formats = [rr.components.ImageFormat(**shown, color_model=model, channel_datatype="U8")] * count
            return rr.Image.columns(buffer=buffers, format=formats)
        values = np.asarray(rows)
        if form == "tensor":
            return [_tensors(rr, values)]
        flat = values.reshape(count, -1)
        columns = [*rr.Scalars.columns(scalars=flat.astype(np.float64).ravel()).partition([flat.shape[1]] * count)]
        if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
            import pyarrow as pa

            columns.append(_component(rr, VALUE, pa.array(flat.ravel()), [flat.shape[1]] * count))
        return columns


@dataclass(frozen=True, slots=True)
class _Video:
    """A video, and which of its frames, in the order of their times, each row shows."""

    data: bytes
    ranks: IntArray

    def nanoseconds(self, rr: Any) -> IntArray:
        """Return the times of all frames as Rerun counts them."""
        found = rr.AssetVideo(contents=self.data, media_type="video/mp4").read_frame_timestamps_nanos()
        return np.sort(np.asarray(found, np.int64))


@dataclass(frozen=True, slots=True)
class _Batch:
    """Values of a component as Rerun takes them."""

    values: pa.Array

    def as_arrow_array(self) -> pa.Array:
        """Return them."""
        return self.values


def _shown(value: Any) -> Any:
    """Return a value as Arrow can hold it; the property ``rlds`` has it as it is."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    return str(value) if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63 else value


def _rerun() -> Any:
    try:
        import rerun
    except ImportError as e:
        raise MissingPackage(
            "Recordings of Rerun are written by rerun-sdk.", hint="pip install 'rlds-cli[rerun]'"
        ) from e
    return rerun


@contextmanager
def _strict(rr: Any) -> Iterator[None]:
    """Have Rerun raise its errors, which it otherwise prints."""
    before = rr.strict_mode()
    rr.set_strict_mode(True)
    try:
        yield
    finally:
        rr.set_strict_mode(before)


def _form(f: Field) -> str:
    """Return what a field becomes."""
    if f.kind == "text":
        return "text"
    if f.kind == "frames":
        return "encoded" if f.dtype == "uint8" else "encoded depth"
    is_picture = len(f.shape) in (2, 3) and min(f.shape[:2]) >= _IMAGE
    if is_picture and f.dtype == "uint8" and len(f.shape) == 3 and f.shape[2] in _MODELS:
        return "image"
    if is_picture and f.dtype == "uint16" and f.shape[2:] in ((), (1,)):
        return "depth"
    return "scalars" if np.prod(f.shape, dtype=np.int64) <= _PLOTTED else "tensor"


def _indexes(rr: Any, first: int, stop: int, times: Array | None) -> list[Any]:
    """Return the timelines of some steps; of a clock that counts from 1970, dates."""
    found = [rr.TimeColumn("step", sequence=np.arange(first, stop))]
    if times is not None:
        kind = "timestamp" if times[0] >= _EPOCH else "duration"
        found.append(rr.TimeColumn("time", **{kind: times[first:stop]}))
    return found


def _static(rr: Any, entity: str, values: Mapping[str, Sequence[Any]]) -> Any:
    """Return a chunk with one row of some components, which holds for the whole recording."""
    import pyarrow as pa

    columns = [_component(rr, name, pa.array(of), [len(of)]) for name, of in values.items()]
    return rr.chunk.Chunk.from_columns(entity, [], columns)


def _component(rr: Any, name: str, values: pa.Array, lengths: Sequence[int] | None = None) -> Any:
    return rr.ComponentColumn(name, _Batch(values), lengths=[1] * len(values) if lengths is None else lengths)


def _tensors(rr: Any, values: Array) -> Any:
    """Return a tensor for each row; Rerun has no batches of them."""
    import pyarrow as pa

    (batch,) = rr.Tensor(_plain(values[:1])[0]).as_component_batches()
    of = rr.encodings
    rows = [of.TensorDataBatch(of.TensorData(array=row)).as_arrow_array() for row in _plain(values)]
    return rr.ComponentColumn(batch.component_descriptor(), _Batch(pa.concat_arrays(rows)))


def _plain(values: Array) -> Array:
    return values.astype(np.uint8) if values.dtype == bool else values
