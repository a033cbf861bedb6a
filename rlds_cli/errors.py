"""The errors that rlds raises on purpose.

RldsError
├── InvalidId               an id that is not family/name[@variant]
├── UnknownDataset          neither in the registry nor on disk; with a "did you mean"
├── DatasetNotFound         known, but not here, and nothing may be fetched
├── NameTaken               ID@NAME exists and was made from something else
├── UnknownField            a field that a dataset does not have (also a KeyError)
│   └── NoReward
├── ArchiveError            the content of an archive
│   ├── UnknownLayout       no reader recognises the file
│   ├── CorruptArchive      truncated, not the format that it claims, rows that do not agree
│   ├── UnsafeArchive       links out of the file, pickles, shapes that cannot be
│   └── ReaderError         a reader of a file or package of the user's that is missing, or fails
├── InvalidEpisode          an episode that does not fit the schema
├── TransferError           a file that cannot be transferred
│   ├── DownloadFailed      no source gave the file
│   ├── WrongHash           the bytes are not those that were promised
│   ├── UploadFailed        a store did not take the file
│   └── Offline             a network is needed and not allowed
├── NoSpace                 the disk cannot hold it
├── NoPermission            the disk may not be written
├── DamagedDataset          files of a dataset are missing, short or altered
├── WrongFingerprint        other content than a lock file promises
├── NewerFormat             written by a later version
├── FrameError              image fields that cannot be decoded or do not fit
├── LoaderError             samples that cannot be drawn
│   ├── InvalidArgument     a value that no loader takes (also a ValueError)
│   │   ├── NotNewest       a version to be changed that is not the newest
│   │   └── ClashingDecisions   of several people, or about what was changed meanwhile
│   ├── EmptyWindow
│   ├── BatchSize
│   ├── WrongState
│   └── NeedsMemory
├── ExportError             files of another format that could not be written or proved
│   └── LossyExport         a format that cannot represent all of a dataset
├── PreprocessError         a function that failed, or a result that cannot be stored
├── NoEnvironment           one that is not known, no longer exists, or does not fit the data
├── InvalidExpression       `where=` that is not a comparison of episode columns
└── MissingPackage          an extra that is not installed

`EndlessLoop` is a warning: a ``for`` loop over an endless loader that nothing leaves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlds_cli.base import visible

Led = tuple[str, str, str]  # an exception in words: kind, text, lines of its traceback


class RldsError(Exception):
    """An expected failure: what happened, with the values, and what to type next.

    Both texts are made fit to print: without control characters, without user, password and secret parameters of
    addresses, and with long values cut short. The lines of an error that is being handled, which a message quotes,
    become one. In another text, ``f"{error}"``, an error is its message, without the hint.

    Parameters
    ----------
    message : str
        The failure, the value, and the state of the disk.
    hint : str, optional
        The next step, as a command or a call if there is one.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = visible.message(_in_one_line(message))
        self.hint = hint and visible.message(hint)
        self.led_by: tuple[Led, ...] = ()
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    def __format__(self, spec: str) -> str:
        return format(self.message, spec)

    def __reduce__(self) -> tuple[object, ...]:
        state = {name: value for name, value in vars(self).items() if name not in ("message", "hint", "led_by")}
        return _rebuild, (type(self), self.message, self.hint, _led_by(self)), state

    def recall(self) -> RldsError:
        """Return the error itself, with its causes in another process restored as `Elsewhere`."""
        cause: Elsewhere | None = None
        for kind, text, at in reversed(self.led_by):
            found = Elsewhere(kind, text, at)
            found.__cause__, cause = cause, found
        if cause is not None:
            self.__cause__ = cause
        return self


def _in_one_line(message: str) -> str:
    """Return a message in which the text of the error that is being handled, as libraries write it, is one line."""
    handled = sys.exception()
    quoted = "" if handled is None or isinstance(message, visible.Lines) else str(handled).strip()
    return message.replace(quoted, " ".join(quoted.split())) if "\n" in quoted else message


def _rebuild(kind: type[RldsError], message: str, hint: str | None, led_by: tuple[Led, ...] = ()) -> RldsError:
    """Unpickle an error of a worker process."""
    error = kind.__new__(kind)
    RldsError.__init__(error, message, hint=hint)  # what a kind takes more is in the state
    error.led_by = led_by
    return error.recall()


class Elsewhere(Exception):
    """An exception in another process: its kind, its text, and the lines of its traceback."""

    def __init__(self, kind: str, text: str, at: str) -> None:
        super().__init__(kind, text, at)
        self.kind, self.text, self.at = kind, text, at

    def __str__(self) -> str:
        return f"\nTraceback (most recent call last):\n{self.at}{self.kind}: {visible.message(self.text)}"


def causes(exc: BaseException) -> Iterator[BaseException]:
    """Yield the causes of an error, the nearest first."""
    seen = {id(exc)}
    while found := exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__):
        if id(found) in seen:
            return
        seen.add(id(found))
        yield (exc := found)


def described(exc: BaseException) -> Led:
    """Return kind, text and traceback of an error, which may be a `Elsewhere`."""
    if isinstance(exc, Elsewhere):
        return exc.kind, exc.text, exc.at
    from traceback import format_tb

    return type(exc).__name__, str(exc), "".join(format_tb(exc.__traceback__))


def _led_by(exc: BaseException) -> tuple[Led, ...]:
    return tuple(described(found) for found in causes(exc))


class InvalidId(RldsError):
    """An id that is not ``family/name[@variant]``."""


class UnknownDataset(RldsError):
    """An id that neither the registry nor the disk knows."""


class DatasetNotFound(RldsError):
    """A dataset that is not on this disk and may not be fetched."""


class WrongFingerprint(RldsError):
    """A dataset whose content is not that of a lock file."""


class NameTaken(RldsError):
    """``ID@NAME`` exists and was made from something else."""


class UnknownField(RldsError, KeyError):
    """A field that the dataset does not have."""

    __str__ = RldsError.__str__


class NoReward(UnknownField):
    """A request for rewards from a dataset without rewards."""


class ArchiveError(RldsError):
    """An archive that cannot be read.

    Attributes
    ----------
    ended_at : str
        The file at which the process that read the archive ended; empty if it did not end.
    """

    ended_at: str = ""


class UnknownLayout(ArchiveError):
    """A file that no reader recognises.

    Attributes
    ----------
    folders : tuple of Path
        Those in a folder that was given, of which each is a dataset by itself.
    """

    folders: tuple[Path, ...] = ()


class CorruptArchive(ArchiveError):
    """A file that is truncated, not what it claims to be, or whose parts disagree."""


class UnsafeArchive(ArchiveError):
    """A file that reaches outside itself, would execute something, or claims impossible sizes."""


class ReaderError(ArchiveError):
    """A reader that is not part of rlds, and is missing, is not a reader, or fails."""


class InvalidEpisode(RldsError):
    """An episode whose fields, shapes or lengths do not fit."""


class TransferError(RldsError):
    """A file that could not be transferred."""


class DownloadFailed(TransferError):
    """A file that none of its sources delivered."""


class WrongHash(TransferError):
    """A file whose sha256 is not the expected one."""


class UploadFailed(TransferError):
    """A file that a store did not take."""


class Offline(TransferError):
    """A network access that ``RLDS_OFFLINE`` or ``--offline`` forbids."""


class NoSpace(RldsError):
    """A disk without enough free space."""


class NoPermission(RldsError):
    """A directory or file that may not be written."""


class DamagedDataset(RldsError):
    """A published dataset with files missing, short or altered."""


class NewerFormat(RldsError):
    """A dataset written by a later version of rlds."""


class FrameError(RldsError):
    """Image fields that cannot be decoded, or do not fit when decoded."""


class LoaderError(RldsError):
    """Samples that cannot be drawn as requested."""


class InvalidArgument(LoaderError, ValueError):
    """A value that a loader, sampler, window or transform does not take."""


class NotNewest(InvalidArgument):
    """The ``version`` of a dataset that would be changed is not the newest one."""

    def __init__(self, id: object, version: int, newest: int) -> None:
        super().__init__(
            f"{id}#v{version} is not the newest version: that is v{newest}. Nothing was changed.",
            hint=f"without #v{version}, or opened again, the newest is changed; rlds restore {id}#v{version} makes a "
            "version with its content; --name NAME (name=) makes another dataset",
        )
        self.version = version


class ClashingDecisions(InvalidArgument):
    """Decisions that cannot all hold; ``clashes`` says which, with what each side says."""

    def __init__(self, message: str, *, hint: str | None = None, clashes: Sequence[Any] = ()) -> None:
        super().__init__(message, hint=hint)
        self.clashes = tuple(clashes)


class EmptyWindow(LoaderError):
    """A window that fits none of the episodes."""


class BatchSize(LoaderError):
    """A global batch that the ranks cannot share."""


class WrongState(LoaderError):
    """A loader state that belongs to other data or another order."""


class NeedsMemory(LoaderError):
    """Data that must be decoded and does not fit the memory budget."""


class ExportError(RldsError):
    """An export that failed, or whose files do not hold the dataset."""


class LossyExport(ExportError):
    """A format that cannot represent all of a dataset; ``losses`` lists what would be lost (`exports.content.Loss`)."""

    losses: tuple[object, ...] = ()

    def of(self, losses: tuple[object, ...]) -> LossyExport:
        """Return the error itself, with its losses set."""
        self.losses = losses
        return self


class PreprocessError(RldsError):
    """A preprocess function that failed, or a result that cannot be stored.

    ``episode`` (its number in the source) and ``step`` say where, as far as that is known.
    """

    episode: int | None = None
    step: int | None = None

    def at(self, episode: int, step: int | None = None) -> PreprocessError:
        """Return the error itself, with its episode and step set."""
        self.episode, self.step = episode, step
        return self


class NoEnvironment(RldsError):
    """An environment that is not known, no longer exists, or does not fit the data."""


class InvalidExpression(RldsError):
    """A ``where`` expression that is not a comparison of episode columns."""


class MissingPackage(RldsError):
    """A package of an optional extra that is not installed."""


class EndlessLoop(UserWarning):
    """A ``for`` loop over an endless loader that nothing leaves, after ten times the dataset."""
