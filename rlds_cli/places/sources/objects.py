"""The files below an address: read, listed, written and copied, with retries, in the same way in every source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.base.http.connections import Permanent, Retryable
from rlds_cli.errors import DamagedDataset, DownloadFailed, UploadFailed, WrongHash
from rlds_cli.places.sources.place import LONGEST, Body, Document, Meta, Overtaken, Place
from rlds_cli.places.sources.transfer import ATTEMPTS, Sink, Stream, Wrong, transfer

P = ParamSpec("P")
T = TypeVar("T")

POLICY = RetryPolicy()
_CHECK = "check the address and the connection; nothing that is here was changed"


class Objects:
    """The files below one address. Names are relative, with ``/`` between their parts.

    All methods may be called from several threads at a time. Every failure that may pass is tried again here, and
    nowhere else; ``policy.told`` receives a line about each long wait.

    Attributes
    ----------
    place : Place
    address : Address
    client : Client
        The connections and the policy of retries; ``client.stop()`` ends all waiting.
    where : Settings
    """

    def __init__(self, place: Place) -> None:
        self.place, self.address, self.client, self.where = place, place.address, place.client, place.where

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self.client.__exit__(None, None, None)

    @property
    def commits(self) -> bool:
        """True where all files of a push become visible in one step, with `replace`."""
        return self.place.commits

    @property
    def compares(self) -> bool:
        """False once the source has shown that it cannot write on a condition."""
        return self.place.compares

    # -- reading

    def read(
        self, name: str, *, longest: int = LONGEST, check: Callable[[bytes], object] = lambda data: None
    ) -> Document | None:
        """Return a small file, or None if there is none.

        Parameters
        ----------
        check : callable
            Raises DamagedDataset for content that is wrong: on the way, or at its place.

        Raises
        ------
        DownloadFailed
            The source does not give it, or it has more than ``longest`` bytes.
        DamagedDataset
            It is wrong each time.
        """

        def attempt() -> Document | None:
            found = self.place.document(name, longest)
            try:
                if found is not None:
                    check(found.data)
            except DamagedDataset as e:
                raise Retryable("it is damaged", attempts=ATTEMPTS, error=e) from e
            return found

        return self._reading(name, attempt)

    def size(self, name: str) -> int | None:
        """Return the size of a file, or None if there is none; raises DownloadFailed."""
        found = self._reading(name, self.place.stat, name)
        return None if found is None else found.size

    def bring(self, name: str, sink: Sink) -> None:
        """Fill a sink with bytes of a file; what has arrived is not asked for again.

        Raises
        ------
        WrongHash
            The bytes are wrong each time.
        DownloadFailed
            The source does not give them all.
        """
        try:
            transfer(self.place, name, sink)
        except Permanent as exc:
            if isinstance(exc.__cause__, Wrong):
                raise self._wrong_bytes(name, exc.__cause__) from exc.__cause__
            raise self._unread(name, exc) from exc

    def stream(
        self, name: str, start: int, stop: int, take: Callable[[memoryview], object], *, size: int | None = None
    ) -> None:
        """Give bytes [start, stop) of a file of ``size`` to a function, in order, as they come; raises as `bring`."""
        self.bring(name, Stream(start, stop, take, size=size))

    def _wrong_bytes(self, name: str, wrong: Wrong) -> WrongHash:
        return WrongHash(
            f"Bytes {wrong.at:,}-{wrong.at + wrong.size - 1:,} of {self._place(name)} do not have the sha256 that the "
            f"index names, in {ATTEMPTS} attempts. They are not used.",
            hint=self.push_again
            if name.startswith(("objects/", "blocks/"))
            else "that file changed after it was indexed: rlds index DIR, where its directory is mounted",
        )

    @property
    def push_again(self) -> str:
        """The hint for an address with damaged objects."""
        if self.address.scheme in ("http", "https"):
            return "whoever pushed it can remove the damaged object there, and push again"
        return f"rlds push ID {self.address} --verify, by who has the dataset, sends it again"

    def files(self, prefix: str = "") -> dict[str, Meta]:
        """Return all files below ``prefix``, which ends in ``/`` or is empty, by name; raises DownloadFailed.

        Only sources that can be written need it.
        """

        def attempt() -> dict[str, Meta]:
            return {m.name: m for m in self.place.list(prefix)}

        return self._reading(prefix, attempt)

    def names(self, prefix: str = "") -> dict[str, int]:
        """Return names and sizes of all files below ``prefix``; see `files`."""
        return {name: m.size or 0 for name, m in self.files(prefix).items()}

    def siblings(self) -> Iterator[Objects]:
        """Yield the places beside this one that may hold datasets whose files `copy` can take over."""
        return map(Objects, self.place.siblings())

    # -- writing

    def put(self, name: str, body: Body) -> int:
        """Write a file that is named by its content, also over one that is damaged; return the bytes that were sent.

        It is there at the latest when `replace` has returned.

        Raises
        ------
        UploadFailed
        """
        return self._writing(name, self.place.write, name, body)

    def replace(self, name: str, data: bytes, seen: str | None, beside: Mapping[str, bytes] = {}) -> None:
        """Write a document if the existing one still has the tag ``seen``; None: if there is none.

        Parameters
        ----------
        beside : mapping of str to bytes
            Documents for people. A source that writes several files in one step does so; else they follow.

        Raises
        ------
        Overtaken
            Another one exists.
        UploadFailed
        """

        def attempt() -> None:
            try:
                self.place.write(name, Body.of(data), if_tag=seen)
            except Overtaken:  # by an attempt of our own whose answer was lost?
                there = self.place.document(name, LONGEST)
                if there is None or there.data != data:
                    raise

        def write_beside() -> None:
            for other, text in beside.items():
                self.put(other, Body.of(text))

        if self.commits:
            write_beside()
        self._writing(name, attempt)
        if not self.commits:
            write_beside()

    def copy(self, other: Objects, name: str) -> bool:
        """Copy a file of a sibling within the place; False if it cannot be, and has to be sent."""
        return self.place.copy(other.place, name)

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens if there is none. Raises UploadFailed."""
        self.delete_all([name])

    def delete_all(self, names: Iterable[str]) -> None:
        """Remove files, in one step where the source can; raises UploadFailed."""
        every = list(names)
        for some in [every] if self.commits and every else [[name] for name in every]:
            self._writing(some[0], self.place.delete, some)

    def tidy(self) -> None:
        """Remove what pushes left that were killed, where the source shows it."""
        self.place.tidy()

    # -- retries

    def _reading(self, name: str, act: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        try:
            return self.client.persist(lambda left: act(*args, **more))
        except Permanent as exc:
            if exc.error is not None:  # of what came
                raise exc.error from exc.__cause__
            raise self._unread(name, exc) from exc

    def _unread(self, name: str, exc: Permanent) -> DownloadFailed:
        message = f"{self._place(name)} could not be read: {exc.reason}."
        return DownloadFailed(message, hint=self.place.hint(exc) or _CHECK)

    def _writing(self, name: str, act: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        try:
            return self.client.persist(lambda left: act(*args, **more))
        except Permanent as exc:
            raise UploadFailed(
                f"{self._place(name)} could not be written: {exc.reason}.",
                hint=self.place.hint(exc) or "the same command continues where it ended",
            ) from exc

    def _place(self, name: str) -> str:
        return f"{str(self.address).rstrip('/')}/{name}"
