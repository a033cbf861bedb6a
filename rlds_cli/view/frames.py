"""Frames of rows as pictures: as stored where a browser shows them, else decoded and encoded anew."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from rlds_cli.base.array_types import BoolArray, IntArray
from rlds_cli.base.media import image_header
from rlds_cli.base.media.image_header import MAX_PIXELS
from rlds_cli.dataset import Rows
from rlds_cli.errors import ArchiveError, Elsewhere, FrameError, InvalidArgument, RldsError
from rlds_cli.ted import VIDEO, Field
from rlds_cli.view import decoding, pictures
from rlds_cli.view.decoding import Decoding, Encoded
from rlds_cli.view.pictures import Range, Showing
from rlds_cli.view.query import NotThere, Query
from rlds_cli.view.ranges import KEPT, is_known

_HIGHEST = 4320  # pixels
_MOST_BYTES = 4 * MAX_PIXELS  # of a raw image
_FEW = 4  # frames that tell the range of a camera of depth
_GIVEN_UP = 499  # nobody reads it


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    """A frame that is asked for: its row, how it is shown, and the names of its bytes."""

    rows: Rows
    row: IntArray
    how: Showing
    headers: dict[str, str]


async def frame(query: Query) -> Response:
    """Answer with the frame of a row."""
    wanted = await run_in_threadpool(_wanted, query)
    if is_known(wanted.headers["etag"], query.headers):
        return Response(status_code=304, headers=wanted.headers)
    if not query.decode:
        stored = await run_in_threadpool(_as_stored, wanted)
        if stored is not None:
            return stored
    done = await run_in_threadpool(_begun, wanted, query.decoding)
    if not await decoding.finished(done, query.is_gone):
        return Response(status_code=_GIVEN_UP)
    data, codec = done.result()
    return Response(data, headers=wanted.headers, media_type=pictures.TYPES[codec])


def _wanted(query: Query) -> _Wanted:
    ds = query.dataset
    rows, number, at = query.once(ds, Rows), query.episode(ds), query.integer("step")
    f, height = ds.field(query.text("field")), query.integer("height", None)
    depth = Range(low=query.number("low"), high=query.number("high"))
    if not f.is_image:
        raise InvalidArgument(f"{f.name} holds no images.")
    if height is not None and not 1 <= height <= _HIGHEST:
        raise InvalidArgument(f"The parameter height is {height:,}, not from 1 to {_HIGHEST:,}.")
    count = int(rows.count(f)[number])
    if not 0 <= at < count:
        raise NotThere(f"Episode {number:,} has no {f.name} at row {at:,}: it has {count:,}.")
    row = np.array([int(rows.start[number]) + at])
    if not _has_frame(rows, f, row)[0]:
        raise NotThere(f"Episode {number:,} has no frame of {f.name} at row {at:,}.")
    named = (ds.store.version_id, f.name, int(rows.stored(row)[0]), height, depth, query.decode)
    etag = f'"{hashlib.sha256(repr(named).encode()).hexdigest()[:32]}"'
    how = Showing(field=f, height=height, depth=depth)
    return _Wanted(rows=rows, row=row, how=how, headers={"etag": etag, "cache-control": KEPT})


def _has_frame(rows: Rows, f: Field, of: IntArray) -> BoolArray:
    """Return which rows have a frame [n]."""
    if f.kind != "frames":
        return np.ones(len(of), bool)
    return rows.at(f.name, of)[:, 0] >= 0 if f.codec == VIDEO else rows.sizes(f.name, of) > 0


def frames_of(rows: Rows, f: Field, of: IntArray) -> IntArray:
    """Return those of the rows [n] that have a frame, by their places among them."""
    return np.flatnonzero(_has_frame(rows, f, of))


def _as_stored(wanted: _Wanted) -> Response | None:
    """Return a picture as it is stored, if that is what a browser shows."""
    f = wanted.how.field
    if f.kind != "frames" or f.codec == VIDEO or f.dtype != "uint8" or wanted.how.height is not None:
        return None
    data = wanted.rows.frames(f.name, wanted.row)[0]
    header = image_header.read(data)
    if header is None or header.height * header.width > MAX_PIXELS:
        return None
    return Response(data, headers=wanted.headers, media_type=pictures.TYPES[header.codec])


# -- decoding


def _begun(wanted: _Wanted, by: Decoding) -> Future[tuple[bytes, str]]:
    """Have a frame decoded and drawn: a picture, and its codec."""
    how, rows, row = wanted.how, wanted.rows, wanted.row
    if how.field.kind == "array":
        if how.field.row_bytes > _MOST_BYTES:
            raise FrameError(f"{how.field.name}: an image of {how.field.row_bytes:,} bytes is not drawn.")
        return by.submit(None, lambda: pictures.draw(rows.values(how.field.name, row)[0], how))
    (of,) = _encoded(rows, how.field, row)
    return by.submit(_key(how.field, of), lambda: _asked(how.field, decoding.drawn, of, how))


def _key(f: Field, of: Encoded) -> Hashable:
    """Return what frames share that one decoder brings up in turn; None for an image."""
    return (of.store, f.name, of.video) if of.store else None


def range_of(rows: Rows, f: Field, there: IntArray, by: Decoding) -> Range:
    """Return the range of most values of a few frames of depth, of these rows; none if they do not decode."""
    chosen = there[np.unique(np.linspace(0, len(there) - 1, _FEW).astype(np.int64))] if len(there) else there
    if not len(chosen):
        return Range()
    of = _encoded(rows, f, chosen)
    try:
        found: Range = by.submit(_key(f, of[0]), lambda: _asked(f, decoding.depth_of, of, f)).result()
        return found
    except (RldsError, CancelledError):
        return Range()


def _encoded(rows: Rows, f: Field, of: IntArray) -> list[Encoded]:
    """Return frames as they are stored, of rows that have one."""
    make = partial(Encoded, name=f"{rows.store.manifest.id}, {f.name}")
    stored = rows.stored(of).tolist()
    if f.codec != VIDEO:
        return [make(row=r, image=image) for r, image in zip(stored, rows.frames(f.name, of), strict=True)]
    store, entries = pickle.dumps(rows.store), rows.at(f.name, of).tolist()
    return [make(row=r, store=store, video=v, frame=n) for r, (v, n) in zip(stored, entries, strict=True)]


def _asked(f: Field, function: Callable[..., object], *arguments: object) -> object:
    """Return what a function of `decoding` returns; raises FrameError for all that a frame can do."""
    try:
        return decoding.ask(function, *arguments)
    except ArchiveError as e:  # the process ended, or took too much memory
        raise FrameError(e.message, hint=e.hint) from e
    except Elsewhere as e:
        raise FrameError(f"{f.name}: a frame cannot be read: {e.kind}: {e.text}") from e
    except OSError as e:
        raise FrameError(f"{f.name}: a frame cannot be read: {e.strerror}") from e
