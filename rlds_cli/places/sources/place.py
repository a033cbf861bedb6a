"""The protocol of a place: what can be read, listed and written below an address, in one attempt each.

==========================  ======================================================================
`web.WebPlace`              a directory of a web server: read, and listed where it shows pages of links
`hub.HubPlace`              a dataset repository of the hub
`buckets.BucketPlace`       a bucket of S3 or Google Cloud Storage
`buckets.SignedPlace`       a bucket, read by plain requests that are signed
`directory.DirectoryPlace`  a directory of this machine
==========================  ======================================================================

A pushed dataset has files that never change, named by their content, and one index that is replaced as a whole. So a
source needs no more than this: read a range, write a file, replace a file if it is still the one that was seen.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, ClassVar, Final, Self

from rlds_cli.base.http.client import Client
from rlds_cli.base.http.connections import Permanent
from rlds_cli.base.http.ranges import RangeRequest, Reply
from rlds_cli.places.sources.addresses import Address

Chunk = bytes | memoryview

LONGEST = 64 << 20  # bytes of a document that is read into memory
_READ = 1 << 20


class Overtaken(Exception):
    """Somebody else has replaced a document since it was read."""


class Unconditional:
    """The type of `ANY`."""


ANY: Final = Unconditional()  # `Place.write` on no condition


@dataclass(frozen=True, slots=True)
class Meta:
    """A file of a source: its name below the address, and what the source says of its content.

    ``size`` is in bytes. Hashes are lower-case hexadecimal; ``git_sha1`` is the id of the blob in git. ``revision`` is
    the commit of a repository, or the generation of an object of Google Cloud Storage.
    """

    name: str
    size: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None
    md5: str | None = None
    crc32c: str | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A small file, and the tag by which its source knows this version of it."""

    data: bytes
    tag: str


@dataclass(frozen=True, slots=True)
class Body:
    """Content to be written. Each attempt opens it anew: ``open`` returns a stream that can be read and sought.

    ``mapped`` yields the same in pieces of at most `PIECE` bytes, which are mapped and not read, where there is a way.
    """

    PIECE: ClassVar = 8 << 20

    size: int
    open: Callable[[], BinaryIO]
    mapped: Callable[[], Iterator[Chunk]] | None = None

    @classmethod
    def of(cls, data: bytes) -> Body:
        """Return the body that is ``data``."""
        return cls(len(data), lambda: io.BytesIO(data))

    def pieces(self) -> Iterator[Chunk]:
        """Yield the content in order, in pieces of at most `PIECE` bytes."""
        if self.mapped is not None:
            yield from self.mapped()
            return
        with self.open() as content:
            while piece := content.read(_READ):
                yield piece


class Place(ABC):
    """The files below one address. Names are relative, with ``/`` between their parts.

    All methods may be called from several threads at a time. Each is one attempt, and raises
    `base.http.connections.Retryable` or `Permanent`: `objects.Objects` tries again, and raises errors for people.

    Attributes
    ----------
    address : Address
    client : Client
        Its policy of retries holds for every kind of source; ``client.stop()`` ends all waiting.
    where : Settings
        Endpoints and credentials.
    commits : bool
        True of a source that makes all writes visible in one step, with the next write on a condition.
    compares : bool
        False once the source has shown that it cannot write on a condition.
    at_once : int
        Large files that are best written at a time.
    """

    commits = False
    at_once = 1

    def __init__(self, address: Address, client: Client) -> None:
        self.address, self.client, self.where = address, client, client.where
        self.compares = True

    def beside(self, address: Address) -> Self:
        """Return the source of the same kind at another address, with connections of its own."""
        return type(self)(address, Client(self.where, policy=self.client.policy))

    # -- reading

    @abstractmethod
    def document(self, name: str, longest: int) -> Document | None:
        """Return a small file with its tag; None if there is none. Permanent if it has more than ``longest`` bytes."""

    @abstractmethod
    def stat(self, name: str) -> Meta | None:
        """Return what the source says of a file; None if there is none."""

    @abstractmethod
    def open(self, name: str, request: RangeRequest) -> AbstractContextManager[Reply]:
        """Make one request for bytes of a file.

        Raises
        ------
        NoRange
            The source does not give this range; it may give the whole file.
        """

    def list(self, prefix: str) -> Iterator[Meta]:
        """Yield the files below ``prefix``, which ends in ``/`` or is empty."""
        raise Permanent("it cannot be listed")

    def siblings(self) -> Iterator[Place]:
        """Yield the places beside this one that may hold datasets whose files `copy` can take over."""
        yield from ()

    # -- writing

    def write(self, name: str, body: Body, *, if_tag: str | Unconditional | None = ANY) -> int:
        """Write a file and return the bytes that were sent.

        ``if_tag`` is the tag that the file must still have, None if there must be none. Where the source cannot
        compare, this is done before, and the file is read again afterwards. Raises Overtaken if another one exists.
        """
        raise Permanent("it can only be read")

    def copy(self, source: Place, name: str) -> bool:
        """Copy a file of a sibling within the place; False if it cannot be, and has to be sent."""
        return False

    def delete(self, names: Sequence[str]) -> None:
        """Remove files; nothing happens to those that are not there."""
        raise Permanent("it can only be read")

    def tidy(self) -> None:
        """Remove what pushes left that were killed, where the source shows it."""
        return

    def hint(self, exc: Permanent) -> str | None:
        """Return what to do about a failure, if this kind of source knows."""
        return None
