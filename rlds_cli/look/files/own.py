"""What rlds itself has made among a user's files: homes, datasets, and places that datasets were pushed to.

No import reads it: it would be read as files of a stranger. A path in it is refused, and below a directory it is left
out, as an account says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlds_cli.base import ids, settings
from rlds_cli.errors import ArchiveError
from rlds_cli.homes import Home, holds_dataset
from rlds_cli.store import Manifest

_MANIFEST, _VERSIONS = "zarr.json", "rlds.json"  # of a dataset, and of a place that one was pushed to
_HOME = "the home of rlds"
_SHOWN = 3  # ids in a message
_PUSHED = (_VERSIONS, "blocks", "groups", "indexes", "objects")
_INSTEAD = (
    "rlds merge ID ID --name local/NAME joins datasets, rlds append ID FILES adds files of your own to one; "
    "rlds export ID DIR --to FORMAT and rlds push ID ADDRESS copy one"
)


def refuse(paths: Iterable[Path], homes: Sequence[Path]) -> None:
    """Raise ArchiveError for a path in what rlds has made, with what to do instead.

    An archive in a home holds the files of its authors, which are read.
    """
    for place in dict.fromkeys(place for path in paths for place in (path, *path.parents)):
        if holds_dataset(place):
            raise _is_dataset(place)
        if _is_pushed_to(place):
            raise ArchiveError(
                f"A dataset was pushed to {place}, and needs no import.",
                hint=f'open_dataset("{place}") reads it where it is; rlds download {place} --name local/NAME '
                "fetches it",
            )
        home = Home(place.parent)
        if home.has_as_part(place) and place.name != "archives" and (home.root in homes or _ids(home)):
            raise ArchiveError(f"{place} belongs to the home {home.root}{_named([home])}.", hint=_INSTEAD)


def below(directory: Path, files: Iterable[Path], homes: Sequence[Path]) -> dict[Path, str]:
    """Return directories and files below a directory, which holds ``files``, that rlds has made, with what they are."""
    found: dict[Path, str] = {}
    for home in map(Home, homes):
        found |= dict.fromkeys(home.directories(), _HOME)
    ends = (f"/{_MANIFEST}", f"/{_VERSIONS}")
    marked = {f.parent for f in files if os.fspath(f).endswith(ends)}
    for place in sorted(marked, key=lambda place: len(place.parts)):
        if any(d in found for d in (place, *place.parents)):
            continue
        family = place.parent
        if holds_dataset(place) and family.parent.name == "datasets":
            found |= dict.fromkeys(Home(family.parent.parent).directories(), _HOME)
        elif holds_dataset(place):
            found[place] = "a dataset of rlds"
        elif _is_pushed_to(place):
            found |= dict.fromkeys((place / name for name in _PUSHED), "a dataset was pushed there")
    return {d: why for d, why in found.items() if directory in d.parents}


def nothing_else(given: object, made: Iterable[Path]) -> ArchiveError:
    """Return the error for a directory in which there is nothing but what rlds has made."""
    homes = map(Home, dict.fromkeys(d.parent for d in made))
    return ArchiveError(f"{given} holds nothing but what rlds has made{_named(homes)}.", hint=_INSTEAD)


def _is_dataset(place: Path) -> ArchiveError:
    id = Manifest.read(place).id
    own = Home(settings.read().home).dataset(ids.parse(id))
    hint = f'open_dataset("{place}") and rlds inspect {place} read it where it is'
    copied = "" if own.exists() else f"; mkdir -p {own.parent} && cp -r {place} {own} makes it {id} here"
    return ArchiveError(f"{place} is the dataset {id} already, and needs no import.", hint=hint + copied)


def _is_pushed_to(place: Path) -> bool:
    return (place / _VERSIONS).is_file() and (place / "indexes").is_dir()


def _ids(home: Home) -> list[str]:
    return [str(id) for id, path in home.datasets() if holds_dataset(path)]


def _named(homes: Iterable[Home]) -> str:
    """Return the ids of datasets in homes, for a message."""
    here = [id for home in homes for id in _ids(home)]
    more = f" and {len(here) - _SHOWN:,} more" if here[_SHOWN:] else ""
    return f", with {', '.join(here[:_SHOWN])}{more}" if here else ""
