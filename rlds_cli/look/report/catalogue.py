"""The records behind ``rlds list`` and ``rlds info``: registered datasets, and datasets on this disk.

It imports neither NumPy nor any reader.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlds_cli import homes, registry
from rlds_cli.base import ids, refs, settings
from rlds_cli.base.files.sizes import size_on_disk
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.refs import Ref
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.errors import DamagedDataset, NewerFormat, RldsError, UnknownDataset
from rlds_cli.registry import Defect, Entry

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset
    from rlds_cli.store import Manifest


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """One family: the number of its datasets, of those on this disk, and their size."""

    family: str
    title: str
    datasets: int
    closed: int
    open: bool
    here: int
    bytes_on_disk: int


@dataclass(frozen=True, slots=True)
class HomeRow:
    """One home: the number of its datasets without variants, and their size."""

    path: Path
    datasets: int
    bytes_on_disk: int
    writable: bool


@dataclass(frozen=True, slots=True)
class Overview:
    """All families and homes."""

    families: tuple[FamilyRow, ...]
    homes: tuple[HomeRow, ...]


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A dataset or variant on this disk; the counts are None if its manifest cannot be read.

    ``bytes_on_disk`` includes files that it shares with other datasets. ``tags`` are text: ``icra (v2)``.
    """

    id: str
    steps: int | None
    episodes: int | None
    bytes_on_disk: int
    tags: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One dataset of a listing, with its variants on this disk.

    In listings of local datasets, ``contents`` has a row for the dataset and for each variant that is on this disk.
    """

    id: str
    size: int | None
    sha256_known: bool
    status: str
    replaced_by: str | None
    here: bool
    variants: tuple[str, ...]
    contents: tuple[StoredRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """A dataset on this disk; if its manifest cannot be read, ``manifest`` is None and ``damage`` is the reason.

    Of a dataset at an ``address``, ``bytes_on_disk`` are its bytes there.
    """

    id: str
    path: Path
    bytes_on_disk: int
    manifest: Manifest | None
    damage: str | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """The facts about one dataset: its entry, its copy on this disk (``here``), and ids of variants on this disk."""

    id: str
    entry: Entry | None
    here: Copy | None
    variants: tuple[str, ...] = ()

    @property
    def defects(self) -> tuple[Defect, ...]:
        """Known defects of the source."""
        return self.entry.defects if self.entry else ()


def overview(home: StrPath | None = None) -> Overview:
    """List families and homes, with the number and size of the datasets on this disk."""
    where = settings.read(home)
    present = homes.here(where)
    seen: set[tuple[int, int]] = set()
    taken = {path: size_on_disk(path, seen) for copies in present.values() for _, path in copies}
    known = {f.name: f for f in registry.families()}
    names = [*known, *sorted({key.partition("/")[0] for key in present} - known.keys())]
    rows = []
    for name in names:
        copies = {k: c for k, c in present.items() if k.startswith(f"{name}/")}
        size = sum(taken[path] for group in copies.values() for _, path in group)
        f = known.get(name)
        facts = (f.title, f.num_entries, f.num_closed, f.open is not None) if f else (_title(name), 0, 0, False)
        rows.append(FamilyRow(name, *facts, len(copies), size))
    return Overview(tuple(rows), tuple(_home_row(root, taken) for root in where.homes if _is_dir(root)))


def listing(
    query: str = "",
    *,
    family: str | None = None,
    local: bool = False,
    all_: bool = False,
    home: StrPath | None = None,
) -> tuple[Row, ...]:
    """List the datasets that match a query (see ``homes.find``).

    Datasets of closed sources are listed with ``all_``, or if they are on this disk. With ``local``, only datasets on
    this disk are listed, with their steps, episodes and bytes.

    Raises
    ------
    UnknownDataset
        There is no such family.
    """
    present = homes.here(settings.read(home))
    found = homes.find(query, family=family, local=local, present=present)
    rows = [_row(e, present) for e in found if all_ or e.status != "closed" or e.id.lower() in present]
    return tuple(replace(row, contents=_stored_rows(present[row.id.lower()])) if local else row for row in rows)


def card(ref: str | Dataset, home: StrPath | None = None) -> Card:
    """Look up a dataset by its id (in any case, with or without a variant), an alias, or its directory; or an open one.

    A reference to a version is looked up on this disk.

    Raises
    ------
    UnknownDataset
        The id is neither in the registry nor on this disk; the hint names similar ids.
    DatasetNotFound
        The variant, the version or the directory does not exist.
    """
    if not isinstance(ref, str):
        return _card_of(ref)
    named, where = refs.parse(ref), settings.read(home)
    ref = os.fspath(named.place)
    if ref.startswith(("/", ".", "~")):
        copy = _copy(None, homes.locate(ref, where), named)
        return Card(copy.id, None, copy)
    entry = _entry(ref, where)
    base, _, variant = ref.strip().partition("@")
    id = ids.written(f"{entry.id if entry else base}{'@' + variant if variant else ''}")
    must = variant or entry is None or named.selector
    path = homes.locate(str(id), where) if must else homes.path_of(id, where)
    return Card(str(id), entry, _copy(str(id), path, named) if path else None, () if variant else _variants(id, where))


def _card_of(ds: Dataset) -> Card:
    """Return the facts about an open dataset."""
    m = replace(ds.manifest, fingerprint=ds.store.fingerprint())
    address = ds.store.address or None
    return Card(ds.id, None, Copy(ds.id, ds.path, ds.store.files.size_of(), m, None, address))


def fingerprint(ref: str, home: StrPath | None = None) -> str:
    """The fingerprint of a version of a dataset on this disk.

    Raises
    ------
    DatasetNotFound
        The dataset is not on this disk, or has no such version.
    DamagedDataset
        Its manifest cannot be read.
    """
    found = card(ref, home)
    if found.here is None or found.here.manifest is None:
        return _manifest(homes.locate(found.id, settings.read(home)), None)[1].fingerprint  # raises what is wrong
    return found.here.manifest.fingerprint


def citation(ref: str, home: StrPath | None = None) -> str:
    """The BibTeX entry of a dataset's source; for a dataset on this disk, with its id and fingerprint as a note.

    Raises
    ------
    RldsError
        Neither the dataset nor the registry has an entry.
    """
    found = card(ref, home)
    copy = found.here
    own = copy.manifest.facts.get("citation") if copy and copy.manifest else None
    text = str(own) if own else found.entry.citation if found.entry else None
    if text is None:
        raise RldsError(f"No citation is known for {found.id}.", hint=f"rlds info {found.id} shows what is known")
    if copy is None or copy.manifest is None:
        return text
    note = f"  note = {{dataset {copy.manifest.id}, content {copy.manifest.fingerprint}}}"
    return f"{text.rstrip().removesuffix('}').rstrip().removesuffix(',')},\n{note}\n}}"


def nearest(query: str, home: StrPath | None = None) -> list[str]:
    """The ids, registered or on this disk, whose spelling is nearest to a query."""
    return registry.suggest(query, among=_originals(homes.here(settings.read(home)).values()))


def _is_dir(path: Path) -> bool:
    """Return whether a path is a directory; False if this user may not know."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _title(family: str) -> str:
    return "imported or made here" if family == ids.LOCAL else "here, but not in the registry"


def _home_row(root: Path, taken: dict[Path, int]) -> HomeRow:
    inside = {id.base: path for id, path in homes.Home(root).datasets()}
    size = sum(n for path, n in taken.items() if path.is_relative_to(root))
    return HomeRow(root, len(inside), size, os.access(root, os.W_OK))


def _row(entry: Entry, present: dict[str, list[tuple[DatasetId, Path]]]) -> Row:
    copies = [id for id, _ in present.get(entry.id.lower(), ())]
    variants = tuple(dict.fromkeys(id.variant for id in copies if id.variant))
    here = any(id.variant is None for id in copies)
    return Row(entry.id, entry.size, entry.verifiable, entry.status, entry.replaced_by, here, variants)


def _stored_rows(copies: Iterable[tuple[DatasetId, Path]]) -> tuple[StoredRow, ...]:
    """One row per id; of several copies, the one that `open_dataset` would open."""
    first = {str(id): path for id, path in reversed(list(copies))}
    return tuple(_stored_row(_copy(id, first[id])) for id in sorted(first))


def _stored_row(copy: Copy) -> StoredRow:
    if copy.manifest is None:
        return StoredRow(copy.id, None, None, copy.bytes_on_disk)
    from rlds_cli.store import History

    counts = copy.manifest.counts
    with suppress(DamagedDataset):
        return StoredRow(copy.id, counts.steps, counts.episodes, copy.bytes_on_disk, History(copy.path).tags_shown)
    return StoredRow(copy.id, counts.steps, counts.episodes, copy.bytes_on_disk)


def _entry(ref: str, where: Settings) -> Entry | None:
    """The entry of an id in the registry; None for a dataset that exists only on this disk."""
    found, present = registry.known(ref), homes.here(where)
    if found is not None or ref.strip().partition("@")[0].lower() in present:
        return found
    try:
        return registry.get(ref)
    except UnknownDataset as e:
        hint = registry.did_you_mean(ref, among=_originals(present.values())) or e.hint
        raise UnknownDataset(f'"{ref}" is neither in the registry nor here.', hint=hint) from None


def _originals(groups: Iterable[list[tuple[DatasetId, Path]]]) -> list[str]:
    return [str(group[0][0].base) for group in groups]


def _copy(id: str | None, path: Path, ref: Ref | None = None) -> Copy:
    """Return the copy in a directory, at the version that ``ref`` names."""
    try:
        path, m = _manifest(path, ref)
    except (DamagedDataset, NewerFormat) as e:
        return Copy(id or str(path), path, size_on_disk(path), None, e.message)
    return Copy(id or m.id, path, size_on_disk(path), m)


def _manifest(path: Path, ref: Ref | None) -> tuple[Path, Manifest]:
    """Return the directory of a version and its manifest; of a growing dataset with its fingerprint, with NumPy."""
    from rlds_cli.store import Manifest

    if (ref is None or ref.selector is None) and (m := Manifest.read(path)).fingerprint:
        return path, m
    from rlds_cli.store import open_store

    store = open_store(path, ref, check=False)
    return store.path, replace(store.manifest, fingerprint=store.fingerprint(), version=store.version)


def _variants(id: DatasetId, where: Settings) -> tuple[str, ...]:
    copies = homes.here(where).get(str(id.base).lower(), ())
    return tuple(dict.fromkeys(str(c) for c, _ in copies if c.variant))
