"""Errors of the drop-in: those of rlds, and RuntimeErrors, which TorchRL raises in their place."""

from __future__ import annotations

from rlds_cli.errors import (
    DatasetNotFound,
    InvalidArgument,
    PreprocessError,
    RldsError,
    UnknownDataset,
    WrongFingerprint,
)


class BadArgument(InvalidArgument, RuntimeError):
    """An argument that is not possible, or that contradicts another one."""


class ReadOnly(RldsError, RuntimeError):
    """Writing to a dataset through TorchRL."""


class NotHere(DatasetNotFound, RuntimeError):
    """A dataset that is not on this disk and may not be fetched."""


class NoSuchDataset(UnknownDataset, RuntimeError):
    """An id that neither the registry nor the disk knows."""


class OtherDataset(WrongFingerprint, RuntimeError):
    """A dump or a state of another dataset, or of other rows."""


class BadResult(PreprocessError, RuntimeError):
    """A result of a preprocess function that cannot be stored."""


class Unfinished(PreprocessError, RuntimeError):
    """A preprocess whose processes died."""
