"""Frames of strangers are decoded in processes that are used for nothing else, at most two at once.

A frame that makes a decoder crash, or takes too much memory or time, ends such a process, and is an error of one
request. Two threads have a process each, and do what is asked of them in turn: frames of one video are asked of the
same one, whose decoder is where it was. A request that waits is given up when nobody waits for its answer.

The process keeps some decoded frames: those before a frame come out of the decoder with it, and are often asked for
next.
"""

from __future__ import annotations

import asyncio
import pickle
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.files import child
from rlds_cli.base.progress import Event
from rlds_cli.errors import FrameError
from rlds_cli.store import Store, decode_frame
from rlds_cli.ted import Field
from rlds_cli.view import pictures
from rlds_cli.view.pictures import Range, Showing

_AT_ONCE = 2
_KNOWN = 256  # videos whose thread is remembered
_LONGEST = 25.0  # seconds for a frame; blocks of an address arrive meanwhile
_LOOK = 0.05  # seconds between two looks whether somebody waits
_PATIENCE = 2.0  # seconds for a thread to end
_HELD_BYTES = 48 << 20  # decoded frames that a process keeps
_STORES = 4  # that a process keeps open
_BEFORE = 16  # frames that are kept of those that a decoder brings up before the one that is asked for


# -- what is decoded, in a process of its own


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """A frame as it is stored.

    Attributes
    ----------
    name : str
        Of the dataset and the field, for messages.
    row : int
        Of the store, for messages.
    image : bytes
        A JPEG or a PNG; empty for a frame of a video.
    store : bytes
        The pickled store of a video.
    video, frame : int
        Their numbers.
    """

    name: str
    row: int
    image: bytes = b""
    store: bytes = b""
    video: int = -1
    frame: int = -1


def drawn(of: Encoded, how: Showing) -> tuple[bytes, str]:
    """Decode a frame, and return it as a picture, and its codec."""
    return pictures.draw(_decoded(of, how.field), how)


def depth_of(frames: list[Encoded], f: Field) -> Range:
    """Decode frames of depth, and return the range of most of their values."""
    return pictures.spread(np.concatenate([_decoded(of, f).reshape(-1) for of in frames]))


def _decoded(of: Encoded, f: Field) -> Array:
    child.note(Path(of.name))
    if of.store:
        films: _Films = _here.__dict__.setdefault("films", _Films())
        return films.frame(of, f)
    return decode_frame(of.image, f, of.row, any_size=not f.shape[0])


class _Films:
    """Decoded frames of videos, the last ones that were brought up."""

    def __init__(self) -> None:
        self._stores: OrderedDict[bytes, Store] = OrderedDict()
        self._held: OrderedDict[Hashable, Array] = OrderedDict()
        self._bytes = 0
        self._at: OrderedDict[Hashable, int] = OrderedDict()  # frame of each video that its decoder gave last

    def frame(self, of: Encoded, f: Field) -> Array:
        """Return a frame of a video, in the field's dtype and shape."""
        film = of.store, f.name, of.video
        if (film, of.frame) not in self._held:
            self._bring_up(film, of, f)
        self._held.move_to_end((film, of.frame))
        return self._held[film, of.frame]

    def _bring_up(self, film: Hashable, of: Encoded, f: Field) -> None:
        """Decode a frame, and those before it that the decoder comes by: they may be asked for next."""
        videos = self._opened(of.store).videos(f.name)
        most = min(_BEFORE, max(1, _HELD_BYTES // 4 // max(1, f.row_bytes)))
        ahead = of.frame - self._at.pop(film, of.frame)
        if not 0 < ahead <= most:  # it begins with a key frame
            groups = videos.video(of.video).track.groups
            before = groups[max(0, of.frame + 1 - most) : of.frame + 1]
            ahead = int((before == before[-1]).sum()) if of.frame < len(groups) else 1
        numbers = np.arange(of.frame + 1 - ahead, of.frame + 1)
        index = np.stack([np.full(ahead, of.video), numbers], 1)
        for number, values in zip(numbers.tolist(), videos.gather(f, index, on=True), strict=True):
            self._hold((film, number), values.copy())  # the memory of all of them would stay with one
        self._at[film] = of.frame
        while len(self._at) > _KNOWN:
            self._at.popitem(last=False)

    def _hold(self, place: Hashable, values: Array) -> None:
        before = self._held.pop(place, None)
        self._bytes += values.nbytes - (0 if before is None else before.nbytes)
        self._held[place] = values
        while self._bytes > _HELD_BYTES and len(self._held) > 1:
            self._bytes -= self._held.popitem(last=False)[1].nbytes

    def _opened(self, store: bytes) -> Store:
        found = self._stores.pop(store, None) or pickle.loads(store)  # of the process that asks, which opened it
        self._stores[store] = found
        while len(self._stores) > _STORES:
            self._stores.popitem(last=False)
        return found


_here = threading.local()  # as decoders are: each thread has its own where requests are answered in one process


# -- who asks for it


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    call: Callable[[], Any]
    done: Future[Any]


class Decoding:
    """Two threads, each with a process that decodes; they start when they are needed, and end with `close`."""

    def __init__(self) -> None:
        self._queues: list[queue.SimpleQueue[_Task | None]] = [queue.SimpleQueue() for _ in range(_AT_ONCE)]
        self._threads: dict[int, threading.Thread] = {}
        self._places: OrderedDict[Hashable, int] = OrderedDict()
        self._loads = [0] * _AT_ONCE  # tasks of each thread that are not done
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, key: Hashable, call: Callable[[], Any]) -> Future[Any]:
        """Have one of the threads call a function, which may `ask` its process: the same one for a key, unless None."""
        done = Future[Any]()
        with self._lock:
            if self._closed:
                done.cancel()
                return done
            number = self._place(key)
            self._start(number)
            self._loads[number] += 1
            self._queues[number].put(_Task(call=call, done=done))
        return done

    def begin(self) -> None:
        """Start a thread and its process, which takes a moment: frames will be asked for."""
        if not self._threads:
            self.submit(None, lambda: None)

    def close(self) -> None:
        """End the threads and their processes; what waits is given up."""
        with self._lock:
            self._closed = True
            for waiting in self._queues:
                waiting.put(None)
        for thread in self._threads.values():
            thread.join(_PATIENCE)

    def _start(self, number: int) -> None:
        if number not in self._threads:
            name = f"rlds view: frames {number}"
            self._threads[number] = threading.Thread(target=self._work, args=(number,), name=name, daemon=True)
            self._threads[number].start()

    def _place(self, key: Hashable) -> int:
        """Return the thread of a key: that of before, else the one with fewer keys; without a key, with fewer tasks."""
        if key is None:
            return self._loads.index(min(self._loads))
        number = self._places.pop(key, None)
        if number is None:
            counts = [sum(n == k for n in self._places.values()) for k in range(_AT_ONCE)]
            number = counts.index(min(counts))
        self._places[key] = number
        while len(self._places) > _KNOWN:
            self._places.popitem(last=False)
        return number

    def _work(self, number: int) -> None:
        watch = _Watch()
        with ExitStack() as process:
            while (task := self._queues[number].get()) is not None:
                if self._closed:
                    task.done.cancel()
                if task.done.set_running_or_notify_cancel():
                    try:
                        if not watch.begins:
                            process.enter_context(child.reading(__name__, progress=watch))
                        watch.begins = time.monotonic()
                        task.done.set_result(task.call())
                    except BaseException as e:
                        task.done.set_exception(e)
                with self._lock:
                    self._loads[number] -= 1


class _Watch:
    """Is told now and then that a process has not answered yet; an error that it raises ends the process."""

    def __init__(self) -> None:
        self.begins = 0.0  # when the process was asked

    def __call__(self, event: Event) -> None:
        seconds = time.monotonic() - self.begins
        if seconds > _LONGEST:
            raise FrameError(f"A frame did not decode in {seconds:.0f} s, and was given up.")


async def finished(done: Future[Any], is_gone: Callable[[], Awaitable[bool]]) -> bool:
    """Wait until a task is done; give up one that has not begun when nobody waits for it any more, and return False."""
    waiting = asyncio.wrap_future(done)
    while not waiting.done():
        await asyncio.wait([waiting], timeout=_LOOK)
        if not waiting.done() and await is_gone():
            done.cancel()  # what runs goes on
            break
    await asyncio.wait([waiting])
    if waiting.cancelled():
        return False
    waiting.exception()  # of which who asks for the result is told
    return True


def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of this module returns in the process of a thread of `Decoding`."""
    return child.ask(function, *arguments, names=(), types=(Range,))
