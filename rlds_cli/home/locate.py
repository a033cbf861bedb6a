"""Datasets that are here, by id, alias, glob or path: what a user or a command asks for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from rlds_cli import home, ids, registry, settings, subset
from rlds_cli.errors import DamagedDataset, DatasetNotFound, InvalidId, UnknownDataset
from rlds_cli.home import Home
from rlds_cli.ids import DatasetId
from rlds_cli.settings import Settings, StrPath
from rlds_cli.store import files, manifest


def locate(ref: str | os.PathLike[str], cache_dir: StrPath | None = None) -> Path:
    """The directory of a dataset given by id, alias or path. No network, no lock, no write.

    Raises
    ------
    DatasetNotFound
        Names the homes that were searched.
    InvalidId
        It is neither an id nor an alias.
    """
    where = settings.read(cache_dir)
    address = ids.address_hint(str(ref))
    if address:
        raise DatasetNotFound(f'"{ref}" is not on this disk.', hint=address)
    path = settings.expanded(ref)
    if isinstance(ref, os.PathLike) or path.is_absolute() or str(ref).startswith("."):
        if home.is_dataset(path):
            return path
        raise DatasetNotFound(
            f"{path} is not a dataset (no zarr.json there).", hint="rlds list --here shows the datasets that are here"
        )
    id = meant(str(ref), where)
    found = home.find(id, where)
    if found is None:
        homes = " nor in ".join(str(h) for h in where.homes)
        raise DatasetNotFound(f"{id} is not in {homes}.", hint=_how_to_have(id))
    return found


def parse(ref: str) -> DatasetId:
    """An id as users write it: its family in any case, too.

    Raises
    ------
    InvalidId
        It is none.
    """
    family, slash, rest = ref.strip().partition("/")
    return ids.parse(f"{family.lower()}{slash}{rest}")


def meant(ref: str, where: Settings) -> DatasetId:
    """The id that ``ref`` is, or that it is an alias of; a dataset that is here comes before an alias of another.

    Raises
    ------
    InvalidId
        It is neither.
    """
    try:
        id = parse(ref)
    except InvalidId:
        id = None
    if id is not None and home.find(id, where) is not None:
        return id
    entry = registry.listed(ref)
    if entry is not None:
        _, at, variant = ref.strip().partition("@")
        return ids.parse(entry.id + at + variant)
    return id or ids.parse(ref)


def _how_to_have(id: DatasetId) -> str | None:
    if id.variant:
        return subset.command(id)
    if id.family == registry.LOCAL:
        return f"rlds import PATH --as {id}"
    try:
        return f"rlds download {registry.get(str(id)).id}"
    except UnknownDataset as e:
        return e.hint


def dataset(ref: StrPath, *, cache_dir: StrPath | None = None) -> Path:
    """The directory of one dataset, by id, alias or path.

    Raises
    ------
    DatasetNotFound
        It is not here.
    UnknownDataset
        Nobody knows it; with a "did you mean".
    """
    where = settings.read(cache_dir)
    found = _by_id(str(ref), where)
    if found is not None:
        return found
    path = settings.expanded(ref)
    if (path / "zarr.json").exists():
        return path.absolute()
    return locate(_known(str(ref), where), cache_dir)


def datasets(
    refs: Iterable[str] = (), *, everything: bool = False, cache_dir: StrPath | None = None
) -> tuple[Path, ...]:
    """The directories of several datasets, each once; a glob stands for those that are here.

    Raises
    ------
    DatasetNotFound, UnknownDataset
        As of ``dataset``; or a glob that nothing here matches.
    """
    where = settings.read(cache_dir)
    found: dict[Path, None] = {}
    if everything:
        found.update(dict.fromkeys(path for _, path in _all(where)))
    for ref in refs:
        paths = _matching(ref, where) if registry.is_glob(ref) else [dataset(ref, cache_dir=cache_dir)]
        found.update(dict.fromkeys(paths))
    return tuple(found)


def dataset_or_file(ref: StrPath, *, cache_dir: StrPath | None = None) -> tuple[Path, bool]:
    """A path, and whether it is a dataset's; a dataset's id comes before a file of the same name.

    Raises
    ------
    DatasetNotFound, UnknownDataset
        It is neither a dataset nor a file.
    """
    path = settings.expanded(ref)
    here = _by_id(str(ref), settings.read(cache_dir)) is not None
    if not here and (registry.is_glob(str(ref)) or (path.exists() and not is_dataset(path))):
        return path, False
    try:
        return dataset(ref, cache_dir=cache_dir), True
    except (InvalidId, UnknownDataset) as e:
        raise UnknownDataset(f'"{ref}" is neither a file nor a dataset that is known.', hint=e.hint) from None


def id_of(path: Path) -> DatasetId:
    """The id of a dataset, as its manifest has it."""
    return ids.parse(manifest.read(path).id)


def is_dataset(path: Path) -> bool:
    """Whether a directory is a dataset of this program, in a home or not."""
    try:
        return b'"rlds"' in files.content(path / "zarr.json", manifest.LONGEST)
    except (OSError, ValueError):
        return False
    except DamagedDataset:  # a link or a pipe stands there, which opening says
        return True


def _by_id(ref: str, where: Settings) -> Path | None:
    try:
        return home.find(parse(ref), where)
    except InvalidId:
        return None


def _known(ref: str, where: Settings) -> str:
    """The id that ``ref`` is, or stands for."""
    if Path(ref).is_absolute() or ref.startswith((".", "~")):
        return ref
    base, at, variant = ref.partition("@")
    try:
        return registry.get(base).id + at + variant
    except UnknownDataset as e:
        id = parse(ref)
        near = registry.did_you_mean(ref, among=[str(found) for found, _ in _all(where)])
        kind = DatasetNotFound if id.family == registry.LOCAL else UnknownDataset
        nothing = f"{ref} is not here" + (
            "." if id.family == registry.LOCAL else ", and the registry does not know it."
        )
        raise kind(nothing, hint=near or e.hint) from None


def _all(where: Settings) -> list[tuple[DatasetId, Path]]:
    """Datasets of all homes; of two with one id, the one that opening finds."""
    found: dict[str, tuple[DatasetId, Path]] = {}
    for root in where.homes:
        for id, path in Home(root).datasets():
            found.setdefault(str(id).lower(), (id, path))
    return [found[key] for key in sorted(found)]


def _matching(pattern: str, where: Settings) -> list[Path]:
    found = [path for id, path in _all(where) if any(fnmatchcase(n, pattern.lower()) for n in _names(id))]
    if not found:
        homes = " nor in ".join(str(h) for h in where.homes)
        raise DatasetNotFound(f'Nothing in {homes} matches "{pattern}".', hint="rlds list --here shows what is here")
    return found


def _names(id: DatasetId) -> list[str]:
    """All that a dataset is called, in lower case."""
    entry = registry.listed(str(id.base))
    variant = f"@{id.variant}".lower() if id.variant else ""
    return [str(id).lower(), *(f"{name}{variant}" for name in (entry.names if entry else ()))]
