"""Find datasets on this disk by id, alias, glob or path, and search them together with the registry."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from rlds_cli import registry
from rlds_cli.base import ids, refs, settings
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.refs import Ref
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.errors import DamagedDataset, DatasetNotFound, InvalidId, RldsError, UnknownDataset
from rlds_cli.homes.homes import Home, is_dataset, path_of

if TYPE_CHECKING:
    from rlds_cli.registry import Entry


def locate(ref: str | os.PathLike[str], where: Settings) -> Path:
    """Return the directory of a dataset, by id, alias or path. No network, no lock, no write.

    Raises
    ------
    DatasetNotFound
        With the homes that were searched.
    InvalidId
        ``ref`` is neither an id nor an alias.
    RldsError
        It names a version.
    """
    ref = refs.whole(ref)
    address = ids.address_hint(str(ref))
    if address:
        raise DatasetNotFound(f'"{ref}" is not on this disk.', hint=address)
    path = settings.expanded(ref)
    if isinstance(ref, os.PathLike) or path.is_absolute() or str(ref).startswith("."):
        if is_dataset(path):
            return path
        pushed = f"rlds download {path} fetches the dataset that was pushed there"
        there = "is not a dataset (no zarr.json there)" if path.exists() else "does not exist"
        raise DatasetNotFound(
            f"{path} {there}.",
            hint=pushed if (path / "rlds.json").exists() else "rlds list --local shows the datasets on this disk",
        )
    id = meant(str(ref), where)
    found = path_of(id, where)
    if found is None:
        homes = " nor in ".join(str(h) for h in where.homes)
        raise DatasetNotFound(f"{id} is not in {homes}.", hint=_how_to_have(id))
    return found


def meant(ref: str, where: Settings) -> DatasetId:
    """Return the id for an id or an alias; a dataset on this disk is preferred to an alias of another dataset.

    Raises
    ------
    InvalidId
        ``ref`` is neither.
    """
    try:
        id = ids.written(ref)
    except InvalidId:
        id = None
    if id is not None and path_of(id, where) is not None:
        return id
    entry = registry.listed(ref)
    if entry is not None:
        _, at, variant = ref.strip().partition("@")
        return ids.parse(entry.id + at + variant)
    return id or ids.parse(ref)


def _how_to_have(id: DatasetId) -> str | None:
    if Path(str(id)).is_dir():  # as it was pushed to
        return f"./{id} is the directory of that name"
    if id.variant:
        from rlds_cli.base import subset

        return subset.command(id)
    if id.family == ids.LOCAL:
        return f"rlds import PATH --name {id}"
    try:
        return f"rlds download {registry.get(str(id)).id}"
    except UnknownDataset as e:
        return e.hint


def here(where: Settings) -> dict[str, list[tuple[DatasetId, Path]]]:
    """Map lower-case base ids to the (id, directory) of the dataset and its variants, those of the own home first."""
    present: dict[str, list[tuple[DatasetId, Path]]] = {}
    for root in where.homes:
        for id, path in Home(root).datasets():
            present.setdefault(str(id.base).lower(), []).append((id, path))
    return present


def find(
    query: str = "",
    *,
    family: str | None = None,
    local: bool = False,
    home: StrPath | None = None,
    present: Mapping[str, Sequence[tuple[DatasetId, Path]]] | None = None,
) -> list[Entry]:
    """Search the registry, and datasets that are on this disk without being in it.

    Parameters
    ----------
    query : str
        Words; an entry is found if its id or an alias holds all of them, in any case. A glob is matched against the
        whole id.
    family : str, optional
        Only this family; ``local`` for imported and created datasets.
    local : bool
        Only datasets that are on this disk.
    home : path, optional
        A home instead of ``RLDS_HOME``.
    present : mapping, optional
        What `here` returns, where it is known.

    Returns
    -------
    list of Entry
        Closed sources included; see ``Entry.status``.

    Raises
    ------
    UnknownDataset
        There is no such family.

    Examples
    --------
    >>> [e.id for e in find("hopper medium expert", family="d4rl")][-1]
    'd4rl/hopper-medium-expert-v2'
    """
    present = here(settings.read(home)) if present is None else present
    bases = [present[key][0][0].base for key in sorted(present)]
    return registry.search(query, family=family, present=bases, local=local)


def dataset(ref: StrPath, *, home: StrPath | None = None, why: str = refs.WHOLE) -> Path:
    """Return the directory of one dataset, by id, alias or path; ``why`` is as in `refs.whole`.

    Raises
    ------
    DatasetNotFound
        The dataset is not on this disk.
    UnknownDataset
        Neither the registry nor the disk knows the dataset; with a "did you mean".
    RldsError
        The reference names a version.
    """
    ref, where = refs.whole(ref, why), settings.read(home)
    found = _by_id(str(ref), where)
    if found is not None:
        return found
    path = settings.expanded(ref)
    if (path / "zarr.json").exists():
        return path.absolute()
    return locate(_known(str(ref), where), where)


def datasets(
    given: Iterable[str] = (), *, all_: bool = False, home: StrPath | None = None, why: str = refs.WHOLE
) -> tuple[Path, ...]:
    """Return the directories of several datasets, each once; a glob stands for the matching ones on this disk.

    ``why`` is as in `refs.whole`.

    Raises
    ------
    DatasetNotFound, UnknownDataset
        As `dataset`; or a glob matches nothing.
    RldsError
        A reference names a version.
    """
    found = versions([str(refs.whole(ref, why)) for ref in given], all_=all_, home=home)
    return tuple(Path(ref.place) for ref in found)


def versions(given: Iterable[str] = (), *, all_: bool = False, home: StrPath | None = None) -> tuple[Ref, ...]:
    """Return references to versions of datasets, as `version` does, each once; a glob stands for the matching datasets.

    Raises
    ------
    DatasetNotFound, UnknownDataset
        As `dataset`; or a glob matches nothing.
    """
    where = settings.read(home)
    found: dict[Ref, None] = {}
    if all_:
        found.update(dict.fromkeys(Ref(path) for _, path in _all(where)))
    for ref in given:
        matches = [Ref(path) for path in _matching(ref, where)] if refs.is_glob(ref) else None
        found.update(dict.fromkeys(matches or [version(ref, home=home)]))
    return tuple(found)


def version(ref: StrPath, *, home: StrPath | None = None) -> Ref:
    """Return a reference to a version with the directory of its dataset as the place; raises as `dataset`."""
    named = refs.parse(ref)
    return named.at(dataset(named.place, home=home))


def version_or_file(ref: StrPath, *, home: StrPath | None = None) -> tuple[Ref, bool]:
    """Return `version`, or a path, and whether it is a dataset's; an id is preferred to a file of the same name.

    Raises
    ------
    DatasetNotFound, UnknownDataset
        ``ref`` is neither a dataset nor a file.
    RldsError
        It names a version of a file.
    """
    named = refs.parse(ref)
    path = settings.expanded(named.place)
    here = _by_id(str(named.place), settings.read(home)) is not None
    if not here and (refs.is_glob(str(ref)) or (path.exists() and not holds_dataset(path))):
        return Ref(settings.expanded(refs.whole(ref))), False
    try:
        return version(ref, home=home), True
    except (InvalidId, UnknownDataset) as e:
        raise UnknownDataset(f'"{ref}" is neither a file nor a known dataset.', hint=e.hint) from None


def id_of(path: Path) -> DatasetId:
    """Return the id of a dataset from its manifest."""
    from rlds_cli.store import Manifest  # a twentieth of `rlds list`, which reads none

    return ids.parse(Manifest.read(path).id)


def holds_dataset(path: Path) -> bool:
    """Return whether a directory holds a dataset of this program, inside a home or elsewhere."""
    from rlds_cli.store import Manifest, read_regular

    try:
        return b'"rlds"' in read_regular(path / "zarr.json", Manifest.LONGEST)
    except (OSError, ValueError):
        return False
    except DamagedDataset:  # a link or a pipe is there: opening the dataset reports it
        return True


def _by_id(ref: str, where: Settings) -> Path | None:
    try:
        return path_of(ids.written(ref), where)
    except InvalidId:
        return None


def _known(ref: str, where: Settings) -> str:
    """Return the id that ``ref`` names."""
    if Path(ref).is_absolute() or ref.startswith((".", "~")):
        return ref
    base, at, variant = ref.partition("@")
    try:
        return registry.get(base).id + at + variant
    except UnknownDataset as e:
        id = ids.written(ref)
        near = registry.did_you_mean(ref, among=[str(found) for found, _ in _all(where)])
        kind = DatasetNotFound if id.family == ids.LOCAL else UnknownDataset
        nothing = f"{ref} is not here" + ("." if id.family == ids.LOCAL else ", and the registry does not know it.")
        raise kind(nothing, hint=near or e.hint) from None


def _all(where: Settings) -> list[tuple[DatasetId, Path]]:
    """Return the datasets of all homes; for an id in several homes, the one in the first home."""
    found: dict[str, tuple[DatasetId, Path]] = {}
    for root in where.homes:
        for id, path in Home(root).datasets():
            found.setdefault(str(id).lower(), (id, path))
    return [found[key] for key in sorted(found)]


def _matching(pattern: str, where: Settings) -> list[Path]:
    found = [path for id, path in _all(where) if any(fnmatchcase(n, pattern.lower()) for n in _names(id))]
    if not found:
        homes = " nor in ".join(str(h) for h in where.homes)
        raise DatasetNotFound(f'Nothing in {homes} matches "{pattern}".', hint="rlds list --local lists datasets")
    return found


def entry_of(id: str) -> Entry | None:
    """Return what the registry says of the dataset with an id, which may come from a stranger; None of no other."""
    try:
        return registry.known(str(ids.parse(id).base))
    except RldsError:
        return None


def is_published(id: DatasetId, *, derived: bool) -> bool:
    """Return whether a dataset is one that others have under this id, too: of the registry, and not derived from it."""
    return registry.listed(str(id.base)) is not None and not (id.variant and derived)


def _names(id: DatasetId) -> list[str]:
    """Return all names of a dataset, in lower case."""
    entry = registry.listed(str(id.base))
    variant = f"@{id.variant}".lower() if id.variant else ""
    return [str(id).lower(), *(f"{name}{variant}" for name in (entry.names if entry else ()))]
