"""The datasets that pages may ask for: those of the home, by their ids, and what the command named, by number.

No path and no address comes from a page.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from rlds_cli.base.refs import Ref
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import DatasetNotFound
from rlds_cli.look import HomeContents
from rlds_cli.store import History, StoredDataset
from rlds_cli.view.kept import Kept

if TYPE_CHECKING:
    from rlds_cli.look.report.contents import HomeEntry
    from rlds_cli.view.batches import ShownBatches

_MOST_OPEN = 8
_SHARE = 0.05  # of a processor that is spent on looking whether the home has changed
T = TypeVar("T")

_NUMBERED = "~"  # begins the name of what the command named, and no id


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The datasets of the home.

    Attributes
    ----------
    entries : tuple of HomeEntry
    etag : str
        Of these.
    until : float
        The moment, by the monotonic clock, before which nobody needs to look again.
    """

    entries: tuple[HomeEntry, ...]
    etag: str
    until: float


class Subjects:
    """Datasets by the names that pages have for them.

    Parameters
    ----------
    named : sequence of Dataset
        What the command named, opened: ``~0``, ``~1``, ... stand for them.
    ids : sequence of str
        Datasets of the home that it named.
    home : path, optional
        A home instead of ``RLDS_HOME``.
    batches : ShownBatches, optional
        Those of a loader that is shown.
    """

    def __init__(
        self,
        named: Sequence[Dataset] = (),
        *,
        ids: Sequence[str] = (),
        home: StrPath | None = None,
        batches: ShownBatches | None = None,
    ) -> None:
        self.ids = tuple(ids)
        self.batches = batches
        self._named = list(named)
        self._home = home
        self._open: OrderedDict[tuple[str, int | None], tuple[str, Dataset]] = OrderedDict()
        self._made: OrderedDict[Dataset, dict[Callable[..., Any], Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._listing: Listing | None = None

    @cached_property
    def contents(self) -> HomeContents:
        """What the home holds."""
        return HomeContents(self._home)

    def listing(self, etag: str = "") -> Listing:
        """Return the datasets of the home; to who has those of an ``etag`` others a little later, if a look is dear."""
        before = self._listing
        if before is not None and before.etag == etag and time.monotonic() < before.until:
            return before
        begin = time.thread_time()
        entries = self.contents.entries()
        if before is not None and before.entries is entries:
            etag = before.etag
        else:
            etag = hashlib.sha256(repr(entries).encode()).hexdigest()[:20]
        until = time.monotonic() + (time.thread_time() - begin) / _SHARE
        self._listing = found = Listing(entries=entries, etag=etag, until=until)
        return found

    @property
    def home(self) -> str | None:
        """The home, as it was given; None for the usual one."""
        return None if self._home is None else str(self._home)

    def ref(self, name: str, version: int | None = None) -> str | None:
        """Return what a user types for a dataset; None if there is nothing to type, as for a selection."""
        if not name.startswith(_NUMBERED):
            return str(Ref(name, version))
        ds = self._of_command(name, version)
        if ds.is_selection:
            return None
        place: StrPath = ds.store.address or History.of(ds.path).path
        with suppress(DatasetNotFound):
            place = ds.id if self.contents.path_of(ds.id) == place else place
        return str(Ref(place, version))

    @property
    def named(self) -> list[tuple[str, Dataset]]:
        """What the command named: (name, dataset)."""
        return [(f"{_NUMBERED}{k}", ds) for k, ds in enumerate(self._named)]

    def dataset(self, name: str, version: int | None = None) -> Dataset:
        """Return a dataset that may be asked for, open at a version, by default the newest one.

        Raises
        ------
        DatasetNotFound
            There is no such dataset, or no such version of it.
        DamagedDataset, NewerFormat
            It cannot be opened.
        """
        if name.startswith(_NUMBERED):
            return self._of_command(name, version)
        path = self.contents.path_of(name)
        with self._lock:
            state = StoredDataset(path).version_id
            found = self._open.get((name, version))
            if found is None or found[0] != state:
                found = state, open_dataset(str(Ref(path, version)), home=self._home)
                self._open[name, version] = found
            self._open.move_to_end((name, version))
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
            return found[1]

    def once(self, ds: Dataset, make: Callable[[Dataset], T]) -> T:
        """Return ``make(ds)``, which is kept for the datasets that were asked for last."""
        with self._lock:
            made = self._made.setdefault(ds, {})
            self._made.move_to_end(ds)
            while len(self._made) > _MOST_OPEN:
                self._made.popitem(last=False)
        if make not in made:
            made[make] = make(ds)
        found: T = made[make]
        return found

    def kept(self, ds: Dataset) -> Kept:
        """Return what is decided on a dataset."""
        return Kept(ds.decisions(home=self._home))

    def _of_command(self, name: str, version: int | None) -> Dataset:
        number = name.removeprefix(_NUMBERED)
        if not number.isdecimal() or int(number) >= len(self._named):
            raise DatasetNotFound(f"{name} is not among the datasets that are shown.")
        with self._lock:
            ds = self._named[int(number)]
            if not ds.is_selection:
                ds = self._named[int(number)] = ds.refresh()
            if version is None or version == ds.version:
                return ds
        place = ds.store.address or History.of(ds.path).path
        return open_dataset(str(Ref(place, version)), home=self._home)
