"""The frames of one episode as a video: H.264 in MP4, which every browser plays. Needs the package ``av``."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import safe_files
from rlds_cli.dataset import Dataset
from rlds_cli.errors import MissingPackage
from rlds_cli.report.images import episode_rows, image_field, pictures
from rlds_cli.settings import StrPath
from rlds_cli.ted import Array

_FPS = 20.0  # where nobody says
_AT_ONCE = 64
_LEAST = 256  # pixels of the shorter side: small frames are enlarged


def write_video(ds: Dataset, path: StrPath, episode: int, *, field: str | None = None, fps: float | None = None) -> int:
    """Write an episode's frames, in order, and return their number.

    Parameters
    ----------
    path : path
        Replaced when the video is complete.
    episode : int
        Its number; negative ones count from the end.
    field : str, optional
        The image field, where there are several.
    fps : float, optional
        Frames per second: by default as recorded with the data, else 20.

    Raises
    ------
    MissingPackage
        ``av`` is not installed.
    UnknownField, RldsError
        There is no such image field, or episode.
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
    """Frames enlarged by a whole number where they are small, with sides that are even, as H.264 wants them."""
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
