"""What a loader draws from: a dataset or a mixture, at one version or live, with its rows on the host or on a device.

`WAYS` says of each combination how it is opened, or why it cannot be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader import build, waiting
from rlds_cli.loader.arrays.frameworks import ArrayBackend
from rlds_cli.loader.live import Agreement, LiveDataset, VersionLog, Versions
from rlds_cli.loader.mixture.live import LiveMixture, growing
from rlds_cli.loader.mixture.mixture import Mixture
from rlds_cli.loader.mixture.sources import MixtureSource
from rlds_cli.loader.read import DatasetSource
from rlds_cli.loader.schedule import Ranks
from rlds_cli.loader.transforms import Transforms
from rlds_cli.loader.waiting import Live

LiveArgument = bool | Live | Mapping[str, Any] | Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The arguments of a `Loader` that decide how batches are read.

    Attributes
    ----------
    arrays, arrays_of_members : ArrayBackend
        Of batches, and of what each member of a mixture gives: on the host, where batches are mixed.
    """

    request: build.Request
    transforms: Transforms
    arrays: ArrayBackend
    arrays_of_members: ArrayBackend
    batch_size: int
    seed: int

    def of_mixture(self, mixture: Mixture) -> MixtureSource:
        """Return the source of a mixture."""
        return MixtureSource(
            mixture,
            request=self.request,
            transforms=self.transforms,
            arrays=self.arrays_of_members,
            batch_size=self.batch_size,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The source of batches, and of a live loader, what gives it new versions, and who decides about them."""

    source: DatasetSource | MixtureSource
    live: LiveDataset | LiveMixture | None = None
    log: VersionLog | None = None
    agreement: Agreement | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a combination cannot be, and what to write instead."""

    why: str
    hint: str


class Way(Protocol):
    """A function that opens what a loader draws from, at the ``first`` versions or the newest."""

    def __call__(self, data: Any, /, wanted: Wanted, first: Versions | None) -> Opened:
        """Return the source of batches."""


def _dataset(data: Dataset, wanted: Wanted, first: Versions | None) -> Opened:
    return Opened(source=build.dataset_source(data, wanted.request, wanted.transforms, wanted.arrays)[1])


def _live_dataset(data: Dataset, wanted: Wanted, first: Versions | None) -> Opened:
    live = LiveDataset(data, wanted.request, wanted.transforms, wanted.arrays, first)
    return Opened(source=live.source, live=live)


def _mixture(data: Mixture, wanted: Wanted, first: Versions | None) -> Opened:
    return Opened(source=wanted.of_mixture(data))


def _live_mixture(data: Mixture, wanted: Wanted, first: Versions | None) -> Opened:
    live = LiveMixture(data, wanted.request, wanted.of_mixture, first)
    return Opened(source=live.source, live=live)


_ONE = Refused('memory="device" is for one dataset, not for a Mixture.', "memory=None")
_GROWS = Refused('live=True with memory="device": rows on the device do not grow.', "memory=None")

WAYS: Mapping[tuple[bool, bool, bool], Way | Refused] = {
    # (a mixture, live, memory="device")
    (False, False, False): _dataset,
    (False, False, True): _dataset,
    (False, True, False): _live_dataset,
    (False, True, True): _GROWS,
    (True, False, False): _mixture,
    (True, False, True): _ONE,
    (True, True, False): _live_mixture,
    (True, True, True): _ONE,
}


def opened(data: Dataset | Mixture, wanted: Wanted, live: LiveArgument, ranks: Ranks) -> Opened:
    """Open what a loader draws from; of a live one, as soon as there is something to draw.

    Ranks begin with the same versions: those of a log, or those that rank 0 finds.

    Raises
    ------
    InvalidArgument
        The combination of arguments is not possible.
    EmptyWindow
        There is nothing to draw, after the time that a live loader waits.
    """
    request = wanted.request
    way = WAYS[isinstance(data, Mixture), request.live, request.resident]
    if isinstance(way, Refused):
        raise InvalidArgument(way.why, hint=way.hint)
    if live is False:
        return way(data, wanted, None)
    width = len(growing(data)) if isinstance(data, Mixture) else 1
    log = None if live is True or isinstance(live, Live) else VersionLog.read(live, width)
    agreement = Agreement.of(ranks, log)
    patience = live if isinstance(live, Live) else Live()
    first = None if log is None else log.at(0)
    if agreement is None:
        found = waiting.first(patience, data, partial(way, wanted=wanted, first=first))
    elif agreement.leads:
        found = _lead(agreement, lambda: waiting.first(patience, data, partial(way, wanted=wanted, first=None)))
    else:
        found = way(data, wanted, agreement.first(patience.wait))
    return Opened(source=found.source, live=found.live, log=log, agreement=agreement)


def _lead(agreement: Agreement, open_first: Callable[[], Opened]) -> Opened:
    """Open the first versions, and tell the other ranks which they are, or that there are none."""
    versions: Versions = ()
    try:
        found = open_first()
        versions = found.live.versions if found.live is not None else ()
    finally:
        agreement.lead(versions)
    return found
