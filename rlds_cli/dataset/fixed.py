"""A version of a growing dataset as a dataset that does not grow, over the same files of rows.

Its writer continues in files of its own. Files that cannot get second names are copied if that is asked for: nobody
refers to them, since the writer frees them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rlds_cli.base import settings
from rlds_cli.base.array_types import IntArray
from rlds_cli.base.files import arrays, disk, publishing, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.settings import StrPath
from rlds_cli.base.text import size_of
from rlds_cli.dataset.selection import EpisodeColumns
from rlds_cli.errors import NoPermission
from rlds_cli.homes import Home, writing
from rlds_cli.store import Description, JoinedMember, Manifest, Store, join, open_store
from rlds_cli.ted import Field

if TYPE_CHECKING:
    from rlds_cli.store.lookups import EpisodeRecords


class OpenDataset(Protocol):
    """The part of a `Dataset` that is read here. It keeps this module below the one that defines datasets."""

    @property
    def id(self) -> str:
        """Id of the dataset."""
        ...

    @property
    def path(self) -> Path:
        """Its directory."""
        ...

    @property
    def store(self) -> Store:
        """Its files."""
        ...

    @property
    def manifest(self) -> Manifest:
        """What does not grow with its data."""
        ...

    @property
    def is_selection(self) -> bool:
        """True if it has some of the episodes alone."""
        ...

    @property
    def episodes(self) -> EpisodeColumns:
        """Columns of the selected episodes."""
        ...

    @property
    def schema(self) -> Mapping[str, Field]:
        """Its fields by name."""
        ...


class Selected:
    """Episodes of a dataset in another store: at another version, or in other files.

    ``records`` are logs that hold what the episode table of the store says.
    """

    def __init__(
        self,
        ds: OpenDataset,
        store: Store,
        index: IntArray,
        manifest: Manifest | None = None,
        records: EpisodeRecords | None = None,
    ) -> None:
        self.id, self.schema, self.is_selection = ds.id, ds.schema, ds.is_selection
        self.store, self.path, self.manifest = store, store.path, manifest or store.manifest
        self.episodes, self.records = EpisodeColumns(store, index), records


@contextmanager
def fixed(ds: OpenDataset, id: DatasetId, home: StrPath | None, *, copy: bool = False) -> Iterator[OpenDataset]:
    """Yield a dataset that does not grow, with the same selection: that of a growing one is removed afterwards.

    Parameters
    ----------
    ds : Dataset
        One whose files others may refer to is yielded itself.
    id : DatasetId
        Of what will be made of it, in the home of ``home``.
    copy : bool
        Copy files that cannot get second names in that home.

    Raises
    ------
    NoPermission
        They cannot, and ``copy`` is not set.
    NoSpace
        There is no room for a copy.
    """
    if ds.store.files.identity is not None:
        yield ds
        return
    place = Home(settings.read(home).home)
    work = place.partial(id, f"fixed-{secrets.token_hex(4)}")
    try:
        with writing(place):
            links = ds.store.files.can_link(ds.store.table.columns(), place.root)
            if copy and not links:
                disk.check_space(_bytes(ds.store), place.root)
            safe_files.work_directory(work, place.root)
            store = _written(ds, work, copy=copy)
        of_version = replace(store.manifest, version=ds.store.version)
        yield Selected(ds, store, ds.episodes.index, of_version, ds.store.table.records() if links else None)
    finally:
        trees.discard(work)


def _bytes(store: Store) -> int:
    """Return the bytes of the rows that have files."""
    table = store.table
    columns = (*table.columns(), *table.digest_columns())
    segments = (s for c in columns for run in table.runs(c.field, c.part) for s in run.segments)
    return sum(s.rows * arrays.row_bytes(s.shape, s.dtype) for s in segments)


def _written(ds: OpenDataset, work: Path, *, copy: bool) -> Store:
    store, m = ds.store, ds.manifest
    about = Description(
        id=ds.id,
        reader=m.reader,
        reader_version=m.reader_version,
        episodes_by=m.episodes_by,
        facts=m.facts,
        spaces=m.spaces,
        env=m.env,
        options=m.options,
        provenance=m.provenance,
        sources=store.sources,
    )
    fields = sorted(store.fields.values(), key=lambda f: f.name)
    try:
        member = JoinedMember(store, store.table.numbers, store.episode_table(), copies=copy)
        join([member], fields, work, about)
    except NoPermission as e:
        hint = f"--copy (copy=True) copies the rows: {size_of(_bytes(store))}"
        raise NoPermission(f"{e.message} Nothing was made.", hint=hint) from e
    publishing.seal(work)
    return open_store(work)
