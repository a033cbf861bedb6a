"""Videos as they were published, in ranges of their bytes; and what a page knows of one that it plays."""

from __future__ import annotations

from typing import Any

import numpy as np
from starlette.responses import Response

from rlds_cli.base.array_types import IntArray
from rlds_cli.errors import InvalidArgument
from rlds_cli.store import Store
from rlds_cli.ted import VIDEO
from rlds_cli.view.codecs import container_of, is_turned, mime_of
from rlds_cli.view.query import Query
from rlds_cli.view.ranges import NOT_KEPT, Content, answer

_AT_ONCE = 512 << 10  # bytes: what a browser takes off a connection before its player needs them

Json = dict[str, Any]


def video(query: Query) -> Response:
    """Answer with the bytes of a video file."""
    ds = query.dataset
    f, number = ds.field(query.text("field")), query.integer("video")
    if f.codec != VIDEO:
        raise InvalidArgument(f"{f.name} is not in videos.", hint="media/frame has its frames")
    if query.decode:
        raise InvalidArgument("This viewer was started with --decode: it sends no video.", hint="media/frame")
    videos = ds.store.videos(f.name)
    if not 0 <= number < len(videos):
        raise InvalidArgument(f"{f.name} has no video {number:,}: there are {len(videos):,}.")
    data = videos.published(number)
    content = Content(
        size=len(data),
        read=lambda first, stop: np.asarray(data[first:stop]).tobytes(),
        etag=videos.files[number].tobytes().hex(),
        media_type=container_of(data),
        at_once=_AT_ONCE,
        cache=NOT_KEPT,  # else Chromium asks for one range of a file at a time, and waits for one that it does not read
    )
    return answer(content, query.headers, method=query.method)


def turned(store: Store, name: str, index: IntArray) -> bool:
    """Return whether players turn the first video of some rows, by their entries [rows, 2]."""
    numbers = index[index[:, 0] >= 0, 0]
    return len(numbers) > 0 and is_turned(store.videos(name).video(int(numbers[0])).data)


def stream(store: Store, name: str, index: IntArray) -> Json | None:
    """Return how a browser plays the rows of an episode, by their entries [rows, 2]; None if it cannot.

    ``times`` are those that a browser tells of the frames that it shows (``mediaTime``).
    """
    there = np.flatnonzero(index[:, 0] >= 0)
    numbers = np.unique(index[there, 0])
    if len(numbers) != 1:
        return None
    number = int(numbers[0])
    videos = store.videos(name)
    of = videos.video(number)
    mime = mime_of(of.data, of.track)
    seconds = np.round(of.track.seconds, 6)
    frames = index[there, 1]
    if mime is None or not 0 <= frames.min() <= frames.max() < len(seconds):
        return None
    times: list[float | None] = [None] * len(index)
    for row, time in zip(there.tolist(), seconds[frames].tolist(), strict=True):
        times[row] = time
    return {"video": number, "mime": mime, "bytes": len(of.data), "times": times}
