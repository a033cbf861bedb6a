"""The files of a version of a dataset as they are pushed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlds_cli.base.refs import Ref
from rlds_cli.dataset import versions_of
from rlds_cli.errors import DamagedDataset
from rlds_cli.places import Index
from rlds_cli.store import GrowingDataset, History, LocalFile, Manifest, Sent, Store, open_store, read_regular


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a dataset at one moment, and what they are."""

    id: str
    fingerprint: str
    version: int
    manifest: str  # sha256
    files: tuple[LocalFile, ...]
    others: int  # rows of no episode that the files hold
    store: Store = field(repr=False)  # holds a version
    created: str
    change: str
    episodes: int
    steps: int
    newest: bool  # no later version is here
    tags: Mapping[str, int]  # of the dataset, with numbers of versions

    @property
    def grows(self) -> bool:
        """Whether it is a version of a growing dataset, with a log of versions."""
        return any(f.path == GrowingDataset.LOG for f in self.files)

    @property
    def size(self) -> int:
        """Bytes of all extents."""
        return sum(b - a for f in self.files for a, b in f.extents)


def take(ref: Ref) -> Snapshot:
    """Return the snapshot of a version of the dataset in a directory.

    Raises
    ------
    DamagedDataset
        It is damaged, or holds files that no dataset has.
    DatasetNotFound
        It was replaced while it was read.
    """
    store = open_store(Path(ref.place), ref)

    def read() -> tuple[Sent, bytes]:
        return Sent.of(store), read_regular(store.path / Index.MANIFEST, Manifest.LONGEST)

    sent, head = store.files.guarded(read)
    strange = next((f.path for f in sent.files if not Index.is_path(f.path)), None)
    if strange is not None:
        raise DamagedDataset(
            f"{store.path / strange} is not a file of a dataset. Nothing was sent.", hint="move it elsewhere"
        )
    sha256 = hashlib.sha256(head).hexdigest()
    history = History.of(store.path)
    made = {v.number: v for v in versions_of(history.path)}
    of = made[store.version]
    return Snapshot(
        id=store.manifest.id,
        fingerprint=store.fingerprint(),
        version=store.version,
        manifest=sha256,
        files=sent.files,
        others=sent.others,
        store=store,
        created=of.created,
        change=of.change,
        episodes=of.episodes,
        steps=of.steps,
        newest=ref.selector is None or store.version == max(made),
        tags=history.tags,
    )
