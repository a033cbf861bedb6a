"""Images of a dataset: frames as RGB, contact sheets, and videos of episodes (H.264 in MP4, by the package ``av``)."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.dataset import Dataset
from rlds_cli.errors import MissingPackage, RldsError
from rlds_cli.files import safe as safe_files
from rlds_cli.report.columns import as_bytes, evenly, is_image
from rlds_cli.report.episode import number_of
from rlds_cli.settings import StrPath
from rlds_cli.ted import Array, Field, IntArray

if TYPE_CHECKING:
    from PIL import Image

_EPISODES, _FRAMES = 6, 8  # rows and columns of a sheet
_THUMB = 160  # pixels of the longer side of a frame on a sheet
_GAP, _MARGIN = 4, 16  # pixels between frames, and above them for the caption


def image_field(ds: Dataset, name: str | None = None) -> Field:
    """The image field called ``name``, or the only one.

    Raises
    ------
    UnknownField
        There is no field of that name.
    RldsError
        The field has no images; no field has any; several have, and no name is given.
    """
    images = [f for f in ds.schema.values() if is_image(f)]
    names = ", ".join(f.name for f in images)
    if name is not None:
        f = ds.field(name)
        if not is_image(f):
            raise RldsError(f"{f.name} of {ds.id} holds no images.", hint=names or "no field does")
        return f
    if len(images) != 1:
        what = f"has {len(images)} image fields" if images else "has no image fields"
        raise RldsError(f"{ds.id} {what}.", hint=f"--field with one of {names}" if images else None)
    return images[0]


def pictures(ds: Dataset, f: Field, rows: IntArray) -> Array:
    """Read the frames at ``rows`` [n] as uint8 [n, H, W, 3].

    Channels may be first or last. Four channels of an encoded frame are red, green, blue and alpha, which is dropped;
    four channels of an array are a stack of frames, of which the newest is taken.
    """
    values = as_bytes(ds.gather(f.name, rows))
    if values.ndim == 3:
        values = values[..., None]
    elif values.shape[-1] > 4:
        values = np.moveaxis(values, 1, -1)
    channels = values.shape[-1]
    if channels == 3 or (channels == 4 and f.kind == "frames"):
        return np.ascontiguousarray(values[..., :3])
    newest = values[..., :1] if f.kind == "frames" else values[..., -1:]
    return np.repeat(newest, 3, axis=-1)


def episode_rows(ds: Dataset, f: Field, episode: int) -> IntArray:
    """The rows of one episode's frames, with the final one if it is recorded."""
    k = number_of(ds, episode)
    start = int(ds.episodes["start"][k])
    return np.arange(start, start + int(ds.episodes["num_observed" if f.placement == "both" else "length"][k]))


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
    f = image_field(ds, name)
    if episode is not None:
        rows = episode_rows(ds, f, episode)
        chosen = evenly(len(rows), _EPISODES * _FRAMES)
        picked, of = rows[chosen], np.full(len(chosen), number_of(ds, episode))
    else:
        numbers = evenly(ds.num_episodes, _EPISODES)
        parts = [episode_rows(ds, f, int(k)) for k in numbers]
        picked = np.concatenate([r[evenly(len(r), _FRAMES)] for r in parts])
        of = np.concatenate([np.full(min(len(r), _FRAMES), k) for k, r in zip(numbers, parts, strict=True)])
    lines = [picked[of == k] for k in dict.fromkeys(of.tolist())] if episode is None else _lines(picked)
    captions = {int(r): f"{k} / {r - ds.episodes['start'][k]}" for r, k in zip(picked, of, strict=True)}
    return _sheet(ds, f, lines, captions)


def _lines(rows: IntArray) -> list[IntArray]:
    return [rows[a : a + _FRAMES] for a in range(0, len(rows), _FRAMES)]


def _sheet(ds: Dataset, f: Field, lines: list[IntArray], captions: dict[int, str]) -> Image.Image:
    from PIL import Image, ImageDraw

    frames = [pictures(ds, f, rows) for rows in lines]
    high, wide = frames[0].shape[1:3]
    scale = _THUMB / max(high, wide)
    size = max(1, round(wide * scale)), max(1, round(high * scale))
    across, down = size[0] + _GAP, size[1] + _MARGIN
    sheet = Image.new("RGB", (max(map(len, lines)) * across + _GAP, len(lines) * down + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    smooth = Image.Resampling.BOX if scale < 1 else Image.Resampling.NEAREST
    for j, (rows, images) in enumerate(zip(lines, frames, strict=True)):
        for i, (row, image) in enumerate(zip(rows, images, strict=True)):
            corner = _GAP + i * across, _MARGIN + j * down
            draw.text((corner[0], corner[1] - _MARGIN + 2), captions[int(row)], fill="black")
            sheet.paste(Image.fromarray(image).resize(size, smooth), corner)
    return sheet


_FPS = 20.0  # if the dataset does not say
_AT_ONCE = 64  # frames that are read at a time
_LEAST = 256  # pixels of the shorter side; smaller frames are enlarged


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
    f = image_field(ds, field)
    rows = episode_rows(ds, f, episode)
    rate = Fraction(fps or ds.manifest.env.get("fps") or _FPS).limit_denominator(1000)
    target = Path(path)
    work = target.with_name(f"{safe_files.temporary_name(target.name)}.mp4")
    try:
        with av.open(str(work), "w", format="mp4") as container:
            stream = container.add_stream("libx264", rate=rate, options={"crf": "18"})
            stream.pix_fmt = "yuv420p"
            stream.height, stream.width = _fitted(pictures(ds, f, rows[:1])).shape[1:3]
            for a in range(0, len(rows), _AT_ONCE):
                for image in _fitted(pictures(ds, f, rows[a : a + _AT_ONCE])):
                    container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode())
        work.replace(target)
    finally:
        work.unlink(missing_ok=True)
    return len(rows)


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
