"""Episodes for the viewer: curves of every element over common steps, film strips, texts, events.

Long episodes are sampled at evenly spaced steps; values are not averaged. Images are data URIs of a few kilobytes. An
image with four planes is mostly a stack of grey frames: its last plane is shown.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image as Pillow

from rlds_cli.checks.findings import Finding
from rlds_cli.dataset import Dataset
from rlds_cli.errors import RldsError
from rlds_cli.report.columns import as_bytes, channels_last, evenly, is_image, places, rank
from rlds_cli.report.html.listing import cut
from rlds_cli.report.html.spreads import DatasetRows
from rlds_cli.ted import FLAGS, Array, Field, IntArray

MOST_ELEMENTS = 32  # curves of one field
MOST_CURVES = 80  # curves of all fields
_VALUES = 300_000  # values of all episodes: 1.6 MB as text
_PICTURE_BYTES = 1_700_000  # for all episodes
_MOST_STEPS, _FEWEST_STEPS = 1200, 100
_MOST_FRAMES, _FEWEST_FRAMES = 24, 4
_MOST_IMAGES = 6  # image fields
_MOST_TEXTS = 40  # changes of a text field in an episode
_MOST_EVENTS = 200


@dataclass(frozen=True, slots=True)
class Picture:
    """A frame as a data URI, and its size in pixels."""

    uri: str
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class CurveField:
    """A field with curves: ``indices`` are the elements that are shown, ``hidden`` counts the others."""

    name: str
    dtype: str
    placement: str
    indices: tuple[str, ...]
    hidden: int


@dataclass(frozen=True, slots=True)
class Viewed:
    """One episode of the viewer.

    ``steps`` are the sampled steps, up to T if the final observation is recorded. ``values`` has per field, in the
    order of ``Viewing.fields``, little-endian float32 [elements, steps] in base64. ``frames`` are (step, picture) per
    image field, ``texts`` are (step, text) for every change of a text, ``events`` are (step, kind). ``why`` are the
    reasons for which the episode was chosen.
    """

    number: int
    length: int
    why: tuple[str, ...]
    steps: list[int]
    values: list[str]
    frames: dict[str, list[tuple[int, Picture]]]
    texts: dict[str, list[tuple[int, str]]]
    events: list[tuple[int, str]]
    source: str


@dataclass(frozen=True, slots=True)
class Viewing:
    """The content of the viewer; ``left_out`` are names of fields that it does not show."""

    fields: tuple[CurveField, ...]
    images: tuple[str, ...]
    episodes: tuple[Viewed, ...]
    most_steps: int
    left_out: tuple[str, ...]


def view(ds: Dataset, rows: DatasetRows, chosen: Mapping[int, Sequence[str]], findings: Iterable[Finding]) -> Viewing:
    """Read the ``chosen`` episodes (number -> reasons)."""
    schema = sorted(ds.schema.values(), key=rank)
    pictured = [f for f in schema if is_image(f)][:_MOST_IMAGES]
    numeric = [f for f in schema if f.kind == "array" and f.name not in FLAGS and not is_image(f) and 0 not in f.shape]
    curves = _curves(numeric)
    kept = [f for f in numeric if f.name in {c.name for c in curves}]
    elements = max(1, sum(len(c.indices) for c in curves))
    most = max(_FEWEST_STEPS, min(_MOST_STEPS, _VALUES // (elements * max(1, len(chosen)))))
    film = _Film(rows, pictured, len(chosen))
    reader = _EpisodeReader(
        ds, rows, kept, curves, [f for f in schema if f.kind == "text"], film, most, ds.store.episode_strings("group")
    )
    places = {k: [p.step for f in findings for p in f.places if p.episode == k and p.step is not None] for k in chosen}
    episodes = tuple(reader.read(k, tuple(why), places[k]) for k, why in chosen.items())
    shown = {f.name for f in (*kept, *pictured)} | {f.name for f in schema if f.kind == "text"} | set(FLAGS)
    left = tuple(f.name for f in schema if f.name not in shown)
    return Viewing(tuple(curves), tuple(f.name for f in pictured), episodes, most, left)


def _curves(fields: Sequence[Field]) -> list[CurveField]:
    """Choose fields and elements for the curves: the first ones, up to the limits above."""
    room, found = MOST_CURVES, []
    for f in fields:
        if room <= 0:
            break
        width = int(np.prod(f.shape, dtype=np.int64))
        take = min(width, MOST_ELEMENTS, room)
        names = places(f.shape)[:take] if f.shape else [""]
        found.append(CurveField(f.name, f.dtype, f.placement, tuple(names), width - take))
        room -= take
    return found


@dataclass(frozen=True, slots=True)
class _EpisodeReader:
    ds: Dataset
    rows: DatasetRows
    fields: Sequence[Field]
    curves: Sequence[CurveField]
    texts: Sequence[Field]
    film: _Film
    most: int
    groups: Sequence[str]

    def read(self, number: int, why: tuple[str, ...], named: Sequence[int]) -> Viewed:
        e = self.ds.episodes
        start, length = int(e["start"][number]), int(e["length"][number])
        observed = int(e["num_observed"][number])
        steps = evenly(observed, self.most)
        steps = np.union1d(steps, np.array([s for s in named if s < observed], np.int64)).astype(np.int64)
        values = [_curve(self.rows, f, c, start, steps, length) for f, c in zip(self.fields, self.curves, strict=True)]
        return Viewed(
            number=number,
            length=length,
            why=why,
            steps=steps.tolist(),
            values=values,
            frames=self.film.frames(start, length, observed),
            texts={f.name: _changes(self.ds, self.rows, f, start, steps, length) for f in self.texts},
            events=_events(self.ds, self.rows, start, length),
            source=_source(self.ds, number, self.groups[number]),
        )


def _known(f: Field, steps: IntArray, length: int) -> IntArray:
    """The steps at which a field has a value; the final one only for a field with placement ``both``."""
    return steps if f.placement == "both" else steps[steps < length]


def _curve(rows: DatasetRows, f: Field, c: CurveField, start: int, steps: IntArray, length: int) -> str:
    known = _known(f, steps, length)
    out = np.full((len(c.indices), len(steps)), np.nan, "<f4")
    values = rows.at(f, start + known).reshape(len(known), -1)[:, : len(c.indices)]
    with np.errstate(over="ignore"):
        out[:, : len(known)] = values.T
    return base64.b64encode(out.tobytes()).decode()


def _changes(
    ds: Dataset, rows: DatasetRows, f: Field, start: int, steps: IntArray, length: int
) -> list[tuple[int, str]]:
    known = _known(f, steps, length)
    codes = rows.at(f, start + known)
    changed = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    at = np.array([0, *changed[: _MOST_TEXTS - 1]][: len(codes)], np.int64)
    texts = zip(known[at].tolist(), ds.store.texts(f.name, codes[at]), strict=True)
    return [(step, "" if text is None else cut(str(text), 300)) for step, text in texts]


def _events(ds: Dataset, rows: DatasetRows, start: int, length: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for name in FLAGS:
        if name in ds.schema and length:
            values = rows.at(ds.schema[name], np.arange(start, start + length)).reshape(length, -1).any(1)
            found += [(int(step), name.partition("/")[2]) for step in np.flatnonzero(values)[:_MOST_EVENTS]]
    return sorted(found)


def _source(ds: Dataset, number: int, group: str) -> str:
    e: Any = ds.episodes
    index = int(e["source"][number])
    file = str(ds.store.sources[index].get("file") or "") if index < len(ds.store.sources) else ""
    where = [cut(part) for part in (file, group) if part]
    return ", ".join([*where, f"row {int(e['row'][number]):,}"]) if where else ""


class _Film:
    """Reads film strips within a budget of bytes for all episodes."""

    def __init__(self, rows: DatasetRows, fields: Sequence[Field], episodes: int) -> None:
        self._rows, self._fields = rows, fields
        self._room = _PICTURE_BYTES / max(1, len(fields) * episodes)  # of one field in one episode

    def frames(self, start: int, length: int, observed: int) -> dict[str, list[tuple[int, Picture]]]:
        """(step, picture) at evenly spaced steps, per image field."""
        return {f.name: self._strip(f, start, observed if f.placement == "both" else length) for f in self._fields}

    def _strip(self, f: Field, start: int, count: int) -> list[tuple[int, Picture]]:
        first = next((p for p in (self._picture(f, start + step) for step in range(min(count, 1))) if p), None)
        size = len(first.uri) if first else 4096
        most = int(min(_MOST_FRAMES, max(_FEWEST_FRAMES, self._room // size)))
        found, used = list[tuple[int, Picture]](), 0
        for step in evenly(count, most).tolist():
            shown = self._picture(f, start + step)
            if shown is None:
                continue
            used += len(shown.uri)
            if found and used > 1.5 * self._room:
                break
            found.append((step, shown))
        return found

    def _picture(self, f: Field, row: int) -> Picture | None:
        try:
            frame = self._rows.frame(f, row) if f.kind == "frames" else self._rows.at(f, np.array([row]))[0]
        except RldsError:
            return None  # a frame that does not decode is a finding, not the end of a report
        return None if frame is None else picture(f, frame)


# -- images

HEIGHT = 112  # greatest height of a frame in a strip, in pixels
_SMALL = 64  # images with sides up to this are pixel art, which JPEG would blur


def picture(f: Field, frame: Array, *, height: int = HEIGHT) -> Picture:
    """Encode a frame [*f.shape], at most ``height`` pixels high, as PNG or JPEG, whichever is smaller."""
    image = Pillow.fromarray(np.ascontiguousarray(_plane(f, as_bytes(frame))))
    image = image.convert("L" if image.mode in ("L", "LA") else "RGB")
    if image.height > height:
        width = max(1, round(image.width * height / image.height))
        image = image.resize((min(width, 4 * height), height), Pillow.Resampling.BOX)
    kind, encoded = min(_encodings(image), key=lambda pair: len(pair[1]))
    uri = f"data:image/{kind};base64,{base64.b64encode(encoded).decode()}"
    return Picture(uri, image.width, image.height)


def _plane(f: Field, frame: Array) -> Array:
    if frame.ndim == 2:
        return frame
    last = f.kind == "frames" or channels_last(f.shape)
    channels = f.shape[2] if last else f.shape[0]
    frame = frame if last else np.moveaxis(frame, 0, -1)
    if channels == 1:
        return frame[..., 0]
    return frame[..., -1] if channels == 4 and f.kind == "array" else frame


def _encodings(image: Pillow.Image) -> list[tuple[str, bytes]]:
    kinds: list[tuple[str, dict[str, int | bool]]] = [("png", {"optimize": True})]
    if max(image.size) > _SMALL:
        kinds.append(("jpeg", {"quality": 78}))
    encoded = []
    for kind, options in kinds:
        file = io.BytesIO()
        image.save(file, kind, **options)
        encoded.append((kind, file.getvalue()))
    return encoded
