"""The files below an address: read, listed, written and copied in the same way in every kind of store.

A pushed dataset has files that never change, named by their content, and one index that is replaced as a whole. So a
store needs no more than this: read a range, write a new file, replace the index if it is still the one that was seen.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

from rlds_cli.errors import DownloadFailed, UploadFailed
from rlds_cli.http.client import Client, RetryPolicy
from rlds_cli.http.connections import Permanent, Retryable
from rlds_cli.remote.addresses import Address
from rlds_cli.settings import Settings

T = TypeVar("T")
Chunk = bytes | memoryview

LONGEST = 64 << 20  # bytes of a document that is read into memory
POLICY = RetryPolicy()
_CHECK = "check the address and the connection; nothing that is here was changed"


class Overtaken(Exception):
    """Somebody else has replaced a document since it was read."""


@dataclass(frozen=True, slots=True)
class Document:
    """A small file, and the tag by which its store knows this version of it."""

    data: bytes
    tag: str


@dataclass(frozen=True, slots=True)
class Body:
    """Content to be written. Each attempt opens it anew: ``open`` returns a stream that can be read and sought."""

    size: int
    open: Callable[[], BinaryIO]

    @classmethod
    def of(cls, data: bytes) -> Body:
        """Return the body that is ``data``."""
        return cls(len(data), lambda: io.BytesIO(data))


class Objects(ABC):
    """The files below one address. Names are relative, with ``/`` between their parts.

    All methods may be called from several threads at a time. Transports implement the methods that begin with ``_``:
    one attempt, which raises `Retryable` or `Permanent`. The public ones try again, and raise errors for people.

    Attributes
    ----------
    address : Address
    client : Client
        Its policy of retries holds for every transport; ``client.stop()`` ends all waiting.
    commits : bool
        True of a store that writes all files of a push in one step, with `replace`.
    compares : bool
        False once the store has shown that it cannot write on a condition.
    """

    commits = False

    def __init__(self, address: Address, where: Settings, *, policy: RetryPolicy | None = None) -> None:
        self.address = address
        self.where = where
        self.compares = True
        self.client = Client(where, policy=policy or POLICY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self.client.__exit__(None, None, None)

    # -- reading

    def read(self, name: str, *, longest: int = LONGEST) -> Document | None:
        """Return a small file, or None if there is none.

        Raises
        ------
        DownloadFailed
            The store does not give it, or it has more than ``longest`` bytes.
        """
        return self._reading(name, lambda: self._read(name, longest))

    def size(self, name: str) -> int | None:
        """Return the size of a file, or None if there is none; raises DownloadFailed."""
        return self._reading(name, lambda: self._size(name))

    def fetch(self, name: str, start: int, length: int, take: Callable[[Chunk], None]) -> None:
        """Give bytes [start, start + length) to ``take``, in order; what has arrived is not asked for again.

        Raises
        ------
        DownloadFailed
            The store does not give them all.
        """
        done = 0

        def attempt() -> None:
            nonlocal done
            for chunk in self._stream(name, start + done, length - done):
                if len(chunk) > length - done:
                    raise Retryable("it sent more bytes than it was asked for")
                take(chunk)
                done += len(chunk)
            if done < length:
                raise Retryable("the connection closed early")

        if length:
            self._reading(name, attempt, lambda: done)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Return bytes [start, start + length) of a file; raises DownloadFailed."""
        parts: list[bytes] = []
        self.fetch(name, start, length, lambda chunk: parts.append(bytes(chunk)))
        return b"".join(parts)

    def has_ranges(self, name: str) -> bool:
        """Return whether a part of a file can be fetched without what is before it; raises DownloadFailed."""
        return True

    def names(self, prefix: str = "") -> dict[str, int]:
        """Return names and sizes of all files below ``prefix``, which ends in ``/`` or is empty; raises DownloadFailed.

        Only stores that can be written need it.
        """
        return self._reading(prefix, lambda: dict(self._names(prefix)))

    def siblings(self) -> Iterator[Objects]:
        """Yield the places beside this one that may hold datasets whose files `copy` can take over."""
        yield from ()

    # -- writing

    def put(self, name: str, body: Body) -> int:
        """Write a file that is not there, or that is there with the same content; return the bytes that were sent.

        It is there at the latest when `replace` has returned.

        Raises
        ------
        UploadFailed
        """
        return self._writing(name, lambda: self._put(name, body))

    def replace(self, name: str, data: bytes, seen: str | None, beside: Mapping[str, bytes] = {}) -> None:
        """Write a document if the one that is there still has the tag ``seen``; None: if there is none.

        Where the store cannot compare, this is done before, and the document is read again afterwards.

        Parameters
        ----------
        beside : mapping of str to bytes
            Documents for people. A store that writes several files in one step does so; else they follow.

        Raises
        ------
        Overtaken
            Another one is there.
        UploadFailed
        """

        def attempt() -> None:
            try:
                self._replace(name, data, seen, beside)
            except Overtaken:  # by an attempt of our own whose answer was lost?
                there = self._read(name, LONGEST)
                if there is None or there.data != data:
                    raise

        self._writing(name, attempt)
        for other, text in beside.items() if not self.commits else ():
            self.put(other, Body.of(text))

    def copy(self, source: Objects, name: str) -> bool:
        """Copy a file of a sibling within the store; False if it cannot be, and has to be sent."""
        return False

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens if there is none. Raises UploadFailed."""
        self._writing(name, lambda: self._delete(name))

    def tidy(self) -> None:
        """Remove what pushes left that were killed, where the store shows it."""
        return

    def delete_all(self, names: Iterable[str]) -> None:
        """Remove files, in one step where the store can; raises UploadFailed."""
        for name in names:
            self.delete(name)

    # -- one attempt each

    @abstractmethod
    def _read(self, name: str, longest: int) -> Document | None: ...

    @abstractmethod
    def _size(self, name: str) -> int | None: ...

    @abstractmethod
    def _stream(self, name: str, start: int, length: int) -> Iterator[Chunk]: ...

    def _names(self, prefix: str) -> Iterator[tuple[str, int]]:
        raise Permanent("it cannot be listed")

    def _put(self, name: str, body: Body) -> int:
        raise Permanent("it can only be read")

    def _replace(self, name: str, data: bytes, seen: str | None, beside: Mapping[str, bytes]) -> None:
        raise Permanent("it can only be read")

    def _delete(self, name: str) -> None:
        raise Permanent("it can only be read")

    def _reading(self, name: str, act: Callable[[], T], reached: Callable[[], int] = lambda: 0) -> T:
        try:
            return self.client.persist(lambda left: act(), reached)
        except Permanent as exc:
            message = f"{self._place(name)} could not be read: {exc.reason}."
            raise DownloadFailed(message, hint=self._hint(exc) or _CHECK) from exc

    def _writing(self, name: str, act: Callable[[], T]) -> T:
        try:
            return self.client.persist(lambda left: act())
        except Permanent as exc:
            raise UploadFailed(
                f"{self._place(name)} could not be written: {exc.reason}.",
                hint=self._hint(exc) or "the same command goes on where it ended",
            ) from exc

    def _place(self, name: str) -> str:
        return f"{str(self.address).rstrip('/')}/{name}"

    def _hint(self, exc: Permanent) -> str | None:
        """Return what to do about a failure, if this kind of store knows."""
        return None
