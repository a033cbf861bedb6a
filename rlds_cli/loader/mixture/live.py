"""Live mixtures: new versions of the members that grow are taken up together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader import live
from rlds_cli.loader.build import Request
from rlds_cli.loader.index import WEIGHT
from rlds_cli.loader.live import Versions
from rlds_cli.loader.mixture.mixture import Member, Mixture, fingerprint_of
from rlds_cli.loader.mixture.sources import MixtureSource
from rlds_cli.loader.schedule import Position
from rlds_cli.store import Store


def growing(mixture: Mixture) -> dict[str, int]:
    """Return the versions of the members that grow, of an opened mixture."""
    found = {name: _dataset(member) for name, member in mixture.parts.items()}
    return {name: dataset.version for name, dataset in found.items() if not dataset.store.why_fixed}


class LiveMixture:
    """The members of a mixture of which some grow, see `LiveData`.

    Parameters
    ----------
    mixture : Mixture
        An opened mixture.
    request : Request
        Of a live loader.
    make : callable
        Makes the source of a mixture.
    first : tuple of int, optional
        The versions to begin with; else those of the mixture.

    Attributes
    ----------
    source : MixtureSource
        Over the versions that were taken up last.

    Raises
    ------
    InvalidArgument
        No member grows, or one that grows cannot be live.
    """

    def __init__(
        self,
        mixture: Mixture,
        request: Request,
        make: Callable[[Mixture], MixtureSource],
        first: Versions | None = None,
    ) -> None:
        self._names = tuple(growing(mixture))
        if not self._names:
            raise InvalidArgument(
                f"live=True: no member of {mixture.id} grows.",
                hint="live=False; rlds_cli.writer(...) makes growing datasets",
            )
        for name in self._names:
            member = mixture.parts[name]
            if member.rename:
                raise InvalidArgument(
                    f"Mixture, {name}: rename= of a growing dataset.", hint="rename= of the other members"
                )
            live.check(_dataset(member), replace(request, sampler=member.sampler or request.sampler))
        samplers = [member.sampler or request.sampler for member in mixture.parts.values()]
        self.learns = any(WEIGHT in sampler.gives for sampler in samplers)
        self.source = make(mixture if first is None else self._at(mixture, first))

    @property
    def versions(self) -> Versions:
        """Numbers of the versions that are taken up, in the order of the members, see `LiveData`."""
        return tuple(self._store(name).version for name in self._names)

    def _store(self, name: str) -> Store:
        return _dataset(self.source.mixture.parts[name]).store

    def newest(self) -> Versions:
        """Look for the newest versions, see `LiveData`."""
        return tuple(self._store(name).newest_version for name in self._names)

    def take_up(self, wanted: Versions) -> MixtureSource:
        """Return the source over these versions, see `LiveData`."""
        self.source = self.source.over(self._at(self.source.mixture, wanted))
        return self.source

    def at(self, wanted: Versions) -> MixtureSource:
        """Return the source: a mixture draws nothing ahead, see `LiveData`."""
        return self.source

    def _at(self, mixture: Mixture, wanted: Versions) -> Mixture:
        """Return the mixture with its members at these versions."""
        members = dict(mixture.parts)
        for name, number in zip(self._names, wanted, strict=True):
            store = _dataset(members[name]).store
            if store.version != number:
                dataset = Dataset(store.at(number))
                members[name] = replace(members[name], dataset=dataset)
        return replace(mixture, members=members)

    def frontier(self, position: Position) -> int:
        """Return the sample at ``position``: a mixture draws nothing ahead, see `LiveData`."""
        return position.sample

    def version_id(self, wanted: Versions) -> str:
        """Return the fingerprint of the mixture, with the versions of its live members; see `LiveData`."""
        numbers = dict(zip(self._names, wanted, strict=True))
        contents = {name: self._store(name).table.version_id_of(n) for name, n in numbers.items()}
        return fingerprint_of(self.source.mixture, contents, self.source.sampler)


def _dataset(member: Member) -> Dataset:
    assert isinstance(member.dataset, Dataset)
    return member.dataset
