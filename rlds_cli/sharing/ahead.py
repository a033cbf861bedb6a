"""Send objects of a dataset while it is made, before there is anything to index.

The rows of a field are cut at places that follow from the sizes of all fields alone (`cuts`). So a part of a file can
be sent as soon as its rows are final, and the push of the finished dataset, which cuts at the same places, finds it at
the address: objects are named by their content.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from rlds_cli import text
from rlds_cli.errors import RldsError
from rlds_cli.progress import Event, Progress
from rlds_cli.settings import Settings
from rlds_cli.sharing import packing, pushing
from rlds_cli.sharing.packing import Cuts, Span
from rlds_cli.sources.addresses import Address
from rlds_cli.sources.opening import open_objects
from rlds_cli.store import arrays
from rlds_cli.store.manifest import StoredField
from rlds_cli.ted import Field


def cuts(fields: Collection[Field | StoredField], paths: Mapping[str, str], rows: int) -> dict[str, Cuts]:
    """Return the places at which files of rows are cut: those of arrays, whose sizes are known before they are made.

    Parameters
    ----------
    fields : collection of Field
        All fields of the dataset.
    paths : mapping of str to str
        Directories below the dataset of the fields whose cuts are wanted.
    """
    plain = [f for f in fields if f.kind == "array"]
    size = packing.object_size(sum(rows * width_of(f) for f in plain))
    return {file_of(f, paths[f.name]): packing.cut(rows * width_of(f), size) for f in plain if f.name in paths}


def file_of(f: Field | StoredField, path: str) -> str:
    """Return the file of an array's rows, below the dataset."""
    return arrays.data_file(Path(path), 1 + len(f.shape)).as_posix()


def width_of(f: Field | StoredField) -> int:
    """Return the bytes of a row of an array."""
    return arrays.row_bytes((0, *f.shape), f.dtype)


class Sender:
    """Sends parts of files in a thread, in the order in which they are offered; a context manager.

    If the store fails, the thread says so and ends: the push of the finished dataset sends what is missing. The block
    waits for all that was offered, unless it ends with an error.

    Raises
    ------
    UploadFailed, DownloadFailed
        Nothing can be pushed to the address, or it cannot be listed.
    """

    def __init__(self, address: Address, where: Settings, id: str, progress: Progress) -> None:
        pushing.check_writable(address)
        self._id, self._progress = id, progress
        self._offered: SimpleQueue[Sequence[Span] | None] = SimpleQueue()
        self._failed = threading.Event()
        self._bytes = 0
        self._objects = open_objects(address, where)
        try:
            self._there = pushing.stored(self._objects)
        except BaseException:
            self._objects.close()
            raise
        self._thread = threading.Thread(target=self._work, name="rlds-ahead", daemon=True)

    @property
    def is_useful(self) -> bool:
        """False of a store that takes all files of a push in one step, at the end."""
        return not self._objects.commits

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        if exc is not None:
            self._failed.set()
            self._objects.client.stop()
        self._offered.put(None)
        self._thread.join()
        self._objects.close()
        if self._bytes:
            self._say(f"{text.size_of(self._bytes)} were sent to {self._objects.address} already")

    def offer(self, spans: Sequence[Span]) -> None:
        """Send spans, end to end, as an object. Their bytes do not change any more."""
        self._offered.put(spans)

    def _work(self) -> None:
        try:
            while (spans := self._offered.get()) is not None and not self._failed.is_set():
                made = packing.hashed(tuple(spans))
                if not pushing.is_there(made.object, self._there):
                    pushing.put_object(self._objects, made)
                    self._there |= made.object.stored
                    self._bytes += made.object.size
        except (RldsError, OSError) as e:
            if not self._failed.is_set():
                why = (e.message if isinstance(e, RldsError) else str(e)).rstrip(".")
                self._say(f"the rest is sent when the dataset is made: {why}")

    def _say(self, note: str) -> None:
        self._progress(Event(self._id, "note", note=note))
