"""Earlier versions of a dataset on this disk: what was looked at when decisions were made."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlds_cli.dataset.decisions import account
from rlds_cli.dataset.decisions.decision import Decision
from rlds_cli.dataset.fixed import OpenDataset
from rlds_cli.errors import DatasetNotFound, InvalidArgument
from rlds_cli.store import History, Store, StoredColumn, open_store
from rlds_cli.ted import Scalar


def numbers_of(store: Store, ids: Collection[str]) -> dict[str, int]:
    """Return the numbers of the episodes of a version by their ids, 32 hexadecimal digits; without those it lacks."""
    if not ids:
        return {}
    there = np.ascontiguousarray(store.episodes["id"])
    heads = there.view("<u8")[:, 0]  # one of a million is found by 8 bytes, and told apart by all 16
    wanted = np.frombuffer(bytes.fromhex("".join(ids)), "<u8").reshape(-1, 2)[:, 0]
    found = np.flatnonzero(np.isin(heads, wanted))
    known = dict(zip((row.tobytes().hex() for row in there[found]), found.tolist(), strict=True))
    return {id: known[id] for id in ids if id in known}


@dataclass(frozen=True, slots=True)
class Before:
    """The value of a label in an earlier version; not known without that version, or the episode in it."""

    value: Scalar = None
    is_known: bool = True


class EarlierVersions:
    """The versions of a dataset up to the open one; ``ids`` are those of all episodes that are asked for."""

    def __init__(self, ds: OpenDataset, ids: Collection[str]) -> None:
        self._ds, self._ids = ds, ids
        self._stores: dict[int, Store | None] = {ds.store.version: ds.store}
        self._numbers: dict[int, Mapping[str, int]] = {}
        self._columns: dict[tuple[int, str], StoredColumn | None] = {}

    def check(self, versions: Collection[int]) -> None:
        """Refuse numbers of versions that do not exist yet."""
        newest = self._ds.store.version if self._ds.store.address else History.of(self._ds.path).newest
        for version in versions:
            if version > newest:
                raise InvalidArgument(f"version {version:,}: the newest version of {self._ds.id} is {newest:,}.")

    @property
    def numbers(self) -> Mapping[str, int]:
        """The numbers of the episodes in the open version by their ids."""
        return self._numbers_at(self._ds.store.version)

    def now(self, name: str, number: int) -> Scalar:
        """Return a label in the open version."""
        column = self._column(self._ds.store.version, name)
        return None if column is None else column.scalar(number)

    def value(self, version: int, name: str, id: str) -> Before:
        """Return a label in a version."""
        number = self._numbers_at(version).get(id)
        if number is None:
            return Before(is_known=False)
        column = self._column(version, name)
        return Before() if column is None else Before(column.scalar(number))

    def had(self, id: str, version: int) -> bool:
        """Return whether an episode was in the version that was looked at, or in another one on this disk."""
        if id in self._numbers_at(version) or self.dropped_by(id) is not None:
            return True
        earlier = () if self._ds.store.address else History.of(self._ds.path).earlier
        return any(id in self._numbers_at(v) for v in reversed(earlier))

    def set_by(self, id: str, name: str, value: Scalar) -> Decision | None:
        """Return the last decision of this dataset that has set a label to the value that it has now."""
        last = self._decided.get((id, name))
        return last if last is not None and repr(last.labels[name]) == repr(value) else None

    def dropped_by(self, id: str) -> Decision | None:
        """Return the decision by which an episode was dropped."""
        return self._decided.get((id, None))

    @cached_property
    def _decided(self) -> dict[tuple[str, str | None], Decision]:
        found: dict[tuple[str, str | None], Decision] = {}
        for d in account.applied(self._ds):
            found |= {(d.id, name): d for name in d.labels}
            if d.do == "drop":
                found[d.id, None] = d
        return found

    def _store(self, version: int) -> Store | None:
        if version not in self._stores:
            self._stores[version] = None
            with suppress(DatasetNotFound):  # it was removed, or the dataset is at an address
                grows, path = self._ds.manifest.growing or self._ds.store.address, self._ds.path
                at = self._ds.store.at(version) if grows else open_store(History.of(path).at(version))
                self._stores[version] = at
        return self._stores[version]

    def _numbers_at(self, version: int) -> Mapping[str, int]:
        if version not in self._numbers:
            store = self._store(version)
            self._numbers[version] = {} if store is None else numbers_of(store, self._ids)
        return self._numbers[version]

    def _column(self, version: int, name: str) -> StoredColumn | None:
        if (version, name) not in self._columns:
            store = self._store(version)
            there = store is not None and name in store.own_columns
            self._columns[version, name] = store.own_column(name) if store is not None and there else None
        return self._columns[version, name]
