"""The download of one file: what has arrived of it, and how a URL completes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, Self

from rlds_cli.base.files import disk
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.locks import LockHeld, file_lock
from rlds_cli.base.http.client import Client
from rlds_cli.base.http.connections import Budget, Permanent, Stopped, reason
from rlds_cli.errors import RldsError
from rlds_cli.places.files import arriving, parts
from rlds_cli.places.files.parts import PartFile, PartOrigin, part_path
from rlds_cli.places.files.records import FileRecord
from rlds_cli.places.files.remote_file import RemoteFile
from rlds_cli.places.files.spans import Spans, spans_path

P = ParamSpec("P")


class FileDownload:
    """The download of a file that appears at ``target`` complete and checked, or not at all; see `begun`.

    Attributes
    ----------
    file : RemoteFile
    resumed : int
        Bytes at which it was resumed.
    """

    def __init__(self, part: PartFile, file: RemoteFile) -> None:
        self.file, self._part = file, part

    @classmethod
    @contextmanager
    def begun(cls, target: Path, file: RemoteFile) -> Iterator[Self]:
        """Begin to download, with the bytes that an earlier run has left; the caller holds `locked`."""
        with parts.opened(target, file) as part:
            yield cls(part, file)

    @staticmethod
    @contextmanager
    def locked(
        target: Path, destination: Path, check: Callable[[], None], say: Callable[[str], None]
    ) -> Iterator[None]:
        """Hold the lock of a file below ``destination``; others ``say`` that they wait, and ``check`` every second."""
        path = target.with_name(target.name + ".part.lock")
        try:
            safe_files.directory(target.parent, destination.parent)
            lock, waiting = file_lock(path), False
            while True:
                check()
                try:
                    lock.acquire(timeout=1)
                    break
                except LockHeld:
                    if not waiting:
                        say(f"locked by another process: waiting for {path}")
                    waiting = True
        except OSError as exc:
            raise disk.disk_error(exc, target) from exc
        try:
            yield
        finally:
            with suppress(PermissionError):  # a file of another user in a directory with the sticky bit
                path.unlink(missing_ok=True)
            lock.release()

    @staticmethod
    def kept(target: Path) -> int:
        """Return the bytes of ``target`` that an earlier download has left and that can be resumed."""
        part = part_path(target)
        try:
            size = part.stat().st_size if PartOrigin.read(part) else 0
        except OSError:
            return 0
        spans = Spans.read(spans_path(part), size) if size else None
        return size if spans is None else spans.total

    @staticmethod
    def discard(target: Path) -> None:
        """Remove a file with its record, and what is left of its download."""
        part = part_path(target)
        for path in (target, FileRecord.beside(target), part, FileRecord.beside(part), spans_path(part)):
            path.unlink(missing_ok=True)

    @property
    def there(self) -> int:
        """Bytes on the disk."""
        return self._part.there

    @property
    def resumed(self) -> int:
        """Bytes at which it was resumed."""
        return self._part.resumed

    @property
    def size(self) -> int | None:
        """Bytes of the file, as far as known."""
        origin = self._part.origin
        return origin.tag.size if origin and origin.tag.size is not None else self.file.size

    def bring(
        self, client: Client, url: str, *, told: Callable[[bool], None], say: Callable[[str], None]
    ) -> FileRecord:
        """Complete the file from a URL, check it, and give it its name.

        If resumed bytes, or those of several connections, make up another file, all are fetched once more.

        Parameters
        ----------
        url : str
            An HTTP address.
        told : callable
            Is called after each block that was written, and with True after the last one.
        say : callable
            Receives notes: reasons for long waits, and warnings about bytes that cannot be checked.

        Raises
        ------
        Permanent
            This URL does not give the file; another may. ``wrong`` if it gave other bytes, which are removed.
        RldsError
            The disk is the cause. What has arrived is kept.
        """
        file, part, budget = self.file, self._part, Budget(client.policy.requests, lambda: self._part.there)
        again = False
        while True:
            self._pull(client, url, budget, told, say)
            told(True)
            record = part.record(revision=file.revision, promised=file.promise and file.promise[0])
            misfit = file.misfit(record)
            if misfit is None:
                part.publish(record)
                return record
            is_mixed = part.resumed or part.joined
            part.restart()
            if again or not is_mixed:
                raise Permanent(misfit, wrong=True)
            again = True

    def _pull(
        self, client: Client, url: str, budget: Budget, told: Callable[[bool], None], say: Callable[[str], None]
    ) -> None:
        """Complete the part. All failures become Permanent, but those of the disk and of the caller's functions."""
        objections: list[Exception] = []

        def heard(call: Callable[P, None]) -> Callable[P, None]:
            def hear(*args: P.args, **more: P.kwargs) -> None:
                try:
                    call(*args, **more)
                except Exception as exc:
                    objections.append(exc)
                    raise

            return hear

        tell = heard(told)
        try:
            arriving.pull(client, url, self.file, self._part, budget=budget, told=lambda: tell(False), say=heard(say))
        except (Permanent, RldsError, Stopped):
            raise
        except Exception as exc:
            if exc in objections:
                raise
            if isinstance(exc, OSError):  # those of the network are Permanent
                raise disk.disk_error(exc, self._part.path) from exc
            raise Permanent(reason(exc)) from exc  # an unforeseen error: other URLs are tried
