"""Charts as SVG files; contact sheets of frames; videos of episodes (H.264 in MP4, by av).

::

    +----------------------------- width
    |        title
    |  y |   ____
    |    |  |    |__
    |    |__|____|__|___
    |           x
    height
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base.files import safe as safe_files
from rlds_cli.dataset import Rows
from rlds_cli.errors import MissingPackage, RldsError, UnknownField
from rlds_cli.look.report import rendering
from rlds_cli.look.report.columns import Histogram, as_bytes, distribution, evenly, number_of, sampled_steps
from rlds_cli.look.report.rendering import tick

if TYPE_CHECKING:
    from PIL import Image

    from rlds_cli.base.array_types import Array, IntArray
    from rlds_cli.base.settings import StrPath
    from rlds_cli.dataset import Dataset
    from rlds_cli.ted import Field


WIDTH, HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, WIDTH - 16, 36, HEIGHT - 44
_TICKS = 5
COLOURS = 8
_FINEST = 1e-300  # least distance of ticks: a power of ten that is subnormal has no exact value
_BINS = 60
_POINTS = 2000  # points of a curve, more than a chart has pixels
_EPISODE_COLUMNS = {"returns": "total_reward", "lengths": "length"}
_ELEMENT = re.compile(r"(.+)\[([\d, ]+)\]")
_EPISODES, _FRAMES = 6, 8  # rows and columns of a sheet
_THUMB = 160  # pixels of the longer side of a frame on a sheet
_GAP, _MARGIN = 4, 16  # pixels between frames, and above them for the caption
_FPS = 20.0  # if the dataset does not say
_AT_ONCE = 64  # frames that are read at a time
_LEAST = 256  # pixels of the shorter side; smaller frames are enlarged


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart; None, NaN and infinities are gaps. ``x`` is 0, 1, ... unless given."""

    name: str
    y: Sequence[float | None]
    x: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear map from values [low, high] to pixels [start, stop]."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Map a value to pixels."""
        span = self.high - self.low
        share = (value - self.low) / span if span > 0 else 0.5
        return self.start + share * (self.stop - self.start)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Round values as (pixel, label)."""
        return [(self(value), tick(value)) for value in ticks(self.low, self.high)]


def bars(h: Histogram, *, title: str, x: str = "", y: str = "") -> str:
    """Draw a histogram; every bar has its range and count as a tooltip."""
    low, high = (h.low, h.high) if h.high > h.low else (h.low - 0.5, h.low + 0.5)
    across, up = Scale(low, high, _LEFT, _RIGHT), Scale(0, max(h.counts, default=0) or 1, _BOTTOM, _TOP)
    edges = [low + (high - low) * k / len(h.counts) for k in range(len(h.counts) + 1)] if h.counts else []
    marks = []
    for (a, b), count in zip(pairwise(edges), h.counts, strict=True):
        if count:
            values = f"{tick(a)} to {tick(b)}" if h.high > h.low else tick(h.low)
            width, height = max(across(b) - across(a) - 1, 0.5), max(_BOTTOM - up(count), 0.5)
            place = {"x": across(a) + 0.5, "y": up(count), "width": width, "height": height}
            marks.append(place | {"says": f"{values}: {count:,}"})
    return _chart(across, up, title, f"{title}: {sum(h.counts):,} values", x, y, bars=marks)


def curves(lines: Sequence[Curve], *, title: str, x: str = "", y: str = "") -> str:
    """Draw curves over a common axis in eight repeating colours; several curves have a legend."""
    known = [v for c in lines for v in c.y if v is not None and math.isfinite(v)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    first = min((c.x[0] for c in lines if c.x is not None and len(c.x)), default=0.0)
    last = max((c.x[-1] if c.x is not None else len(c.y) - 1 for c in lines if len(c.y)), default=1.0)
    across, up = Scale(first, max(last, first + 1e-9), _LEFT, _RIGHT), Scale(low, high, _BOTTOM, _TOP)
    paths = []
    for c in lines:
        steps, pen = [], "M"
        for at, value in zip(c.x if c.x is not None else range(len(c.y)), c.y, strict=True):
            if value is None or not math.isfinite(value):
                pen = "M"
                continue
            steps.append(f"{pen}{across(at):.1f} {up(value):.1f}")
            pen = "L"
        paths.append((c.name, "".join(steps)))
    return _chart(across, up, title, title, x, y, curves=paths)


def _chart(across: Scale, up: Scale, title: str, says: str, x: str, y: str, **marks: Any) -> str:
    frame = {"width": WIDTH, "height": HEIGHT, "left": _LEFT, "right": _RIGHT, "top": _TOP, "bottom": _BOTTOM}
    words = {"title": title, "says": says, "x": x, "y": y, "x_ticks": across.ticks, "y_ticks": up.ticks}
    return rendering.render("chart.svg", **frame, **words, **({"bars": [], "curves": []} | marks))


def ticks(low: float, high: float, count: int = _TICKS) -> list[float]:
    """About ``count`` round numbers in [low, high], 1, 2 or 5 times a power of ten apart."""
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    raw = span / count
    if raw < _FINEST:
        return [low]
    size = 10.0 ** math.floor(math.log10(raw))
    step = size * next(m for m in (1, 2, 5, 10) if m * size >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


# -- charts of a dataset


def plot(ds: Dataset, what: str, *, episode: int | None = None) -> str:
    """Draw a histogram, or with ``episode`` a field over its steps.

    Parameters
    ----------
    what : str
        ``returns``, ``lengths``, a numeric column of the episode table, a numeric field (``action``), or one element
        of its rows (``action[2]``). Fields are drawn from a sample of at most 65,536 steps.
    episode : int, optional
        The number of an episode; negative numbers count from the end.

    Returns
    -------
    str
        An SVG document.

    Raises
    ------
    UnknownField, RldsError
        There is no field, column or episode of that name or number, or it has no numbers.
    """
    if episode is not None:
        return _curves(ds, *_field(ds, what), number_of(ds, episode))
    column = _EPISODE_COLUMNS.get(what, what)
    if column in ds.episodes and what not in ds.schema:
        return _histogram(_numbers(ds, column), f"{what} of {ds.id}", what, "episodes")
    if what in _EPISODE_COLUMNS:
        raise UnknownField(f"{ds.id} has no {what}: it has no rewards.")
    f, element = _field(ds, what)
    values = sampled_steps(ds, f).reshape(-1, max(1, int(np.prod(f.shape, dtype=np.int64))))
    values = values if element is None else values[:, element]
    return _histogram(values, f"{what} of {ds.id}", what, "steps" if element is not None or not f.shape else "values")


def _numbers(ds: Dataset, column: str) -> Array:
    values = np.asarray(ds.episodes[column])
    if values.dtype.kind not in "biuf":
        raise RldsError(f"{column} is not a column of numbers.", hint="rlds inspect --plot returns, lengths or a field")
    return values


def _histogram(values: Array, title: str, x: str, y: str) -> str:
    found = distribution(values, bins=_BINS)
    if found is None:
        raise RldsError(f"{title}: there are no finite numbers to draw.")
    return bars(found.histogram, title=title, x=x, y=y)


def _field(ds: Dataset, what: str) -> tuple[Field, int | None]:
    """Parse the name of a numeric field or of an element of its rows; the element is None for the whole field."""
    match = _ELEMENT.fullmatch(what) if what not in ds.schema else None
    f = ds.field(match[1] if match else what)
    if f.kind != "array" or np.dtype(f.dtype).kind not in "biuf" or 0 in f.shape:
        raise RldsError(f"{f.name} of {ds.id} holds no numbers to draw.")
    if match is None:
        return f, None
    place = tuple(int(k) for k in match[2].split(","))
    if len(place) != len(f.shape) or any(k >= n for k, n in zip(place, f.shape, strict=True)):
        raise RldsError(f"{f.name} has rows of shape {list(f.shape)}: there is no element {list(place)}.")
    return f, int(np.ravel_multi_index(place, f.shape))


def _curves(ds: Dataset, f: Field, element: int | None, episode: int) -> str:
    rows = Rows(ds)
    start, count = int(rows.start[episode]), int(rows.count(f)[episode])
    values = np.asarray(rows.between(f.name, start, start + count), np.float64).reshape(count, -1)
    shown = range(min(values.shape[1], COLOURS)) if element is None else [element]
    places = [list(map(int, np.unravel_index(k, f.shape))) if f.shape else [] for k in shown]
    lines = [_curve(str(p) if p else f.name, values[:, k]) for k, p in zip(shown, places, strict=True)]
    more = values.shape[1] - len(lines) if element is None else 0
    name = f.name + (str(places[0]) if element is not None else "")
    title = f"{name}, episode {episode:,} of {ds.id}"
    return curves(lines, title=title, x="step" + (f"   ({more} more elements are not drawn)" if more else ""))


def _curve(name: str, values: npt.NDArray[np.float64]) -> Curve:
    """Make a curve of at most about 2,000 points; longer ones keep the least and the greatest value of each range."""
    if len(values) <= _POINTS:
        return Curve(name, values.tolist())
    edges = np.linspace(0, len(values), _POINTS // 2 + 1).astype(np.int64)
    kept = set[int]()
    for a, b in pairwise(edges):
        part = values[a:b]
        if np.isfinite(part).any():
            kept |= {int(a + np.nanargmin(part)), int(a + np.nanargmax(part))}
    at = sorted(kept)
    return Curve(name, values[at].tolist(), [float(k) for k in at])


# -- frames: contact sheets and videos


def image_field(ds: Dataset, name: str | None = None) -> Field:
    """The image field called ``name``, or the only one.

    Raises
    ------
    UnknownField
        There is no field of that name.
    RldsError
        The field has no images; no field has any; several have, and no name is given.
    """
    images = [f for f in ds.schema.values() if f.is_image]
    names = ", ".join(f.name for f in images)
    if name is not None:
        f = ds.field(name)
        if not f.is_image:
            raise RldsError(f"{f.name} of {ds.id} holds no images.", hint=names or "no field does")
        return f
    if len(images) != 1:
        what = f"has {len(images)} image fields" if images else "has no image fields"
        raise RldsError(f"{ds.id} {what}.", hint=f"field= with one of {names}" if images else None)
    return images[0]


def pictures(rows: Rows, f: Field, at: IntArray) -> Array:
    """Read the frames at the rows ``at`` [n] as uint8 [n, H, W, 3].

    Channels may be first or last. Four channels of an encoded frame are red, green, blue and alpha, which is dropped;
    four channels of an array are a stack of frames, of which the newest is taken.
    """
    values = as_bytes(rows.values(f.name, at))
    if values.ndim == 3:
        values = values[..., None]
    elif values.shape[-1] > 4:
        values = np.moveaxis(values, 1, -1)
    channels = values.shape[-1]
    if channels == 3 or (channels == 4 and f.kind == "frames"):
        return np.ascontiguousarray(values[..., :3])
    newest = values[..., :1] if f.kind == "frames" else values[..., -1:]
    return np.repeat(newest, 3, axis=-1)


def episode_rows(rows: Rows, f: Field, episode: int) -> IntArray:
    """The rows of one episode's frames, with the final one if it is recorded."""
    k = number_of(rows.dataset, episode)
    return np.arange(rows.start[k], rows.start[k] + rows.count(f)[k])


def contact_sheet(ds: Dataset, name: str | None = None, *, episode: int | None = None) -> Image.Image:
    """Draw frames spread evenly over one episode, or over six episodes spread evenly over the dataset.

    Returns
    -------
    PIL.Image.Image
        Frames in order of time from left to right, with their episode and step above them.

    Raises
    ------
    UnknownField, RldsError
        As in ``image_field``, or there is no such episode.
    """
    f, rows = image_field(ds, name), Rows(ds)
    if episode is not None:
        own = episode_rows(rows, f, episode)
        picked = own[evenly(len(own), _EPISODES * _FRAMES)]
    else:
        numbers = evenly(ds.num_episodes, _EPISODES)
        parts = [episode_rows(rows, f, int(k)) for k in numbers]
        picked = np.concatenate([r[evenly(len(r), _FRAMES)] for r in parts])
    of = rows.episodes_at(picked)
    lines = [picked[of == k] for k in dict.fromkeys(of.tolist())] if episode is None else _lines(picked)
    captions = {int(r): f"{k} / {r - rows.start[k]}" for r, k in zip(picked, of, strict=True)}
    return _sheet(rows, f, lines, captions)


def _lines(rows: IntArray) -> list[IntArray]:
    return [rows[a : a + _FRAMES] for a in range(0, len(rows), _FRAMES)]


def _sheet(rows: Rows, f: Field, lines: list[IntArray], captions: dict[int, str]) -> Image.Image:
    from PIL import Image, ImageDraw

    frames = [pictures(rows, f, line) for line in lines]
    high, wide = frames[0].shape[1:3]
    scale = _THUMB / max(high, wide)
    size = max(1, round(wide * scale)), max(1, round(high * scale))
    across, down = size[0] + _GAP, size[1] + _MARGIN
    sheet = Image.new("RGB", (max(map(len, lines)) * across + _GAP, len(lines) * down + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    smooth = Image.Resampling.BOX if scale < 1 else Image.Resampling.NEAREST
    for j, (line, images) in enumerate(zip(lines, frames, strict=True)):
        for i, (row, image) in enumerate(zip(line, images, strict=True)):
            corner = _GAP + i * across, _MARGIN + j * down
            draw.text((corner[0], corner[1] - _MARGIN + 2), captions[int(row)], fill="black")
            sheet.paste(Image.fromarray(image).resize(size, smooth), corner)
    return sheet


def write_video(ds: Dataset, path: StrPath, episode: int, *, field: str | None = None, fps: float | None = None) -> int:
    """Write the frames of an episode as a video, and return their number.

    Parameters
    ----------
    path : path
        An existing file is replaced when the video is complete.
    episode : int
        The number of the episode; negative numbers count from the end.
    field : str, optional
        The image field, needed if there are several.
    fps : float, optional
        Frames per second; by default as recorded with the data, else 20.

    Raises
    ------
    MissingPackage
        ``av`` is not installed.
    UnknownField, RldsError
        There is no such image field or episode.
    """
    av = _av()
    f, rows = image_field(ds, field), Rows(ds)
    at = episode_rows(rows, f, episode)
    rate = Fraction(fps or ds.manifest.env.get("fps") or _FPS).limit_denominator(1000)
    target = Path(path)
    work = target.with_name(f"{safe_files.temporary_name(target.name)}.mp4")
    try:
        with av.open(str(work), "w", format="mp4") as container:
            stream = container.add_stream("libx264", rate=rate, options={"crf": "18"})
            stream.pix_fmt = "yuv420p"
            stream.height, stream.width = _fitted(pictures(rows, f, at[:1])).shape[1:3]
            for a in range(0, len(at), _AT_ONCE):
                for image in _fitted(pictures(rows, f, at[a : a + _AT_ONCE])):
                    container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode())
        work.replace(target)
    finally:
        work.unlink(missing_ok=True)
    return len(at)


def _fitted(images: Array) -> Array:
    """Enlarge small frames by a whole factor, and pad them to the even sides that H.264 needs."""
    times = max(1, -(-_LEAST // min(images.shape[1:3])))
    large = images.repeat(times, axis=1).repeat(times, axis=2)
    odd = [(0, n % 2) for n in large.shape[1:3]]
    return np.ascontiguousarray(np.pad(large, ((0, 0), *odd, (0, 0)), mode="edge"))


def _av() -> Any:
    try:
        import av
    except ImportError as e:
        raise MissingPackage(
            "Videos are written with the package av, which is not installed.", hint="pip install 'rlds-cli[video]'"
        ) from e
    return av


def plot_suffixes(ds: Dataset, what: str) -> tuple[str, ...]:
    """Return the suffixes of files that show a field: of pictures for images, of a chart for others."""
    return (".png", ".mp4") if what in ds.schema and ds.schema[what].is_image else (".svg",)


def write_plot(ds: Dataset, what: str, file: Path, *, episode: int | None = None) -> int | None:
    """Write a chart, frames of an image field, or an episode of it as a video, of which the number of frames returns.

    The suffix is one of `plot_suffixes`.
    """
    if file.suffix.lower() == ".mp4":
        return write_video(ds, file, episode or 0, field=what)
    if file.suffix.lower() == ".png":
        sheet = io.BytesIO()
        contact_sheet(ds, what, episode=episode).save(sheet, "PNG")
        file.write_bytes(sheet.getvalue())
    else:
        file.write_text(plot(ds, what, episode=episode))
    return None
