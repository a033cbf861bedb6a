"""The files that a user names: paths, directories and patterns."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from rlds_cli.archives import Entry, WithoutData, holds_no_data
from rlds_cli.base import ids, settings
from rlds_cli.base.files import bundles, trees
from rlds_cli.base.files.names import is_unfinished
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.settings import StrPath
from rlds_cli.base.text import natural_path
from rlds_cli.errors import ArchiveError
from rlds_cli.look.files import own
from rlds_cli.ted import Note


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """The files that a user names, and those in the same directories that are left out, with names relative to them.

    Attributes
    ----------
    files : tuple of Path
    without_data : tuple of PurePath
        Of these no reader could read any.
    of_rlds : mapping of str to tuple of int and str
        For what rlds has made, by name, a directory with a slash: the number of files, and what they are.
    """

    files: tuple[Path, ...]
    without_data: tuple[PurePath, ...] = ()
    of_rlds: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries of an account of what is left out."""
        names = {name: f"{name}*" if name.endswith("/") else name for name in self.of_rlds}
        made = (Entry.of_files(names[name], n, left_out=why) for name, (n, why) in self.of_rlds.items())
        return (*WithoutData(self.without_data).entries, *made)

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes about what is left out."""
        reasons = dict.fromkeys(why for _, why in self.of_rlds.values())
        made = {why: ", ".join(name for name, said in self.of_rlds.items() if said[1] == why) for why in reasons}
        return (
            *WithoutData(self.without_data).notes,
            *(Note("of-rlds", f"{why} was left out: {made[why]}") for why in made),
        )


def files_to_import(
    paths: Sequence[StrPath], id: DatasetId, *, most: int | None = None, home: StrPath | None = None
) -> GivenFiles:
    """Return the files of paths, as `choose_files`; refuse addresses and datasets, with what to do instead."""
    homes = settings.read(home).homes
    for path in paths:
        if ids.address_hint(str(path)):
            _refuse_address(str(path), str(id))
    own.refuse([settings.expanded(path).absolute() for path in paths], homes)
    return choose_files(paths, most=most, home=home)


def choose_files(paths: Sequence[StrPath], *, most: int | None = None, home: StrPath | None = None) -> GivenFiles:
    """Return the files that paths, directories and patterns stand for: absolute, in natural order, each once.

    Files that hold no data are left out, unless they are named or are all that there is; so is what rlds has made.
    Directories that cannot be read are skipped.

    Parameters
    ----------
    paths : sequence of path
    most : int, optional
    home : path, optional
        The home.

    Raises
    ------
    ArchiveError
        One of them stands for no file, or for more than ``most``.
    """
    homes = settings.read(home).homes
    found: dict[Path, None] = {}
    left_out: dict[Path, PurePath] = {}
    made: dict[str, tuple[int, str]] = {}
    for given in paths:
        address = ids.address_hint(str(given))
        if address:
            raise ArchiveError(f'"{given}" is an address; only files on this machine can be imported.', hint=address)
        path = settings.expanded(given)
        files = dict(_files(path, most))
        of_rlds = _take_own(path.absolute(), files, homes)
        made |= {_name(d, _fixed(path.absolute())): said for d, said in of_rlds.items()}
        files = bundles.gathered(files, _fixed(path.absolute()))
        finished = {f: name for f, name in files.items() if not _is_unfinished(f)}
        data = [f for f, name in finished.items() if not (name and holds_no_data(name))] or [*finished]
        if not data and of_rlds:
            raise own.nothing_else(given, of_rlds)
        if not data:
            raise ArchiveError(
                f"{given}: there is no such file, and no file matches.", hint=f"paths are relative to {Path.cwd()}"
            )
        found.update(dict.fromkeys(sorted(data, key=lambda f: natural_path(os.fspath(f)))))
        if len(data) < len(files):
            left_out |= {f: PurePath(files[f] or f.name) for f in {*files}.difference(data)}
    rest = sorted(name for f, name in left_out.items() if f not in found)
    return GivenFiles(tuple(found), tuple(rest), made)


def _take_own(path: Path, files: dict[Path, str | None], homes: Sequence[Path]) -> dict[Path, tuple[int, str]]:
    """Take what rlds has made out of the files of a directory or a pattern; return how many files of which places."""
    taken: dict[Path, tuple[int, str]] = {}
    made = own.below(_fixed(path), files, homes) if not path.is_file() else {}
    for f in [*files] if made else ():
        place = next((d for d in (f, *f.parents) if d in made), None)
        if place is not None:
            del files[f]
            taken[place] = taken.get(place, (0, ""))[0] + 1, made[place]
    return taken


def _name(made: Path, directory: Path) -> str:
    return f"{made.relative_to(directory).as_posix()}{'/' if made.is_dir() else ''}"


def _fixed(path: Path) -> Path:
    """Return a directory, or the directory in which a pattern looks."""
    return path if path.is_dir() else next(p for p in path.parents if not glob.has_magic(str(p)))


def _files(path: Path, most: int | None) -> Iterator[tuple[Path, str | None]]:
    """Yield the regular files of a path: absolute, with the name relative to a directory; None if it was named itself.

    Paths of thousands of images are handled as texts, since pathlib takes ten times as long.
    """
    if path.is_dir():
        yield from _below(path, most)
    elif path.exists():
        yield path.absolute(), None
    else:
        for match in _matches(path):
            if match.is_dir():
                yield from _below(match, most)
            elif match.is_file():
                yield match.absolute(), match.name


def _is_unfinished(path: Path) -> bool:
    name = os.fspath(path).rpartition("/")[2]
    return name.endswith((".lock", "~")) or is_unfinished(name)


def _matches(pattern: Path) -> list[Path]:
    try:
        return [Path(p) for p in glob.glob(str(pattern), recursive=True)]  # noqa: PTH207  (absolute patterns)
    except RecursionError:  # it calls itself for each directory
        raise ArchiveError(
            f"{pattern} matches directories that are nested too deeply.", hint="a pattern without **"
        ) from None


def _below(directory: Path, most: int | None) -> list[tuple[Path, str]]:
    """Return all regular files below a directory with their names, sorted, except those that cannot be read."""
    top = directory.absolute()
    found = trees.files(top, most)
    if most is not None and len(found) > most:
        raise ArchiveError(
            f"{directory} holds more than {most:,} files: too many for one archive.",
            hint="name a directory that holds one archive and nothing else",
        )
    start = len(os.path.join(top, ""))  # noqa: PTH118
    return [(file, os.fspath(file)[start:]) for file in sorted(found, key=os.fspath)]


def _refuse_address(url: str, id: str) -> None:
    """Raise ArchiveError for an address, with the command that downloads from it."""
    url = re.sub(r"^([a-z0-9+.-]+):/(?=[^/])", r"\1://", url)  # a Path has lost a slash
    if url.startswith("file:"):
        raise ArchiveError(f'"{url}" is an address; a path is expected.', hint=url.removeprefix("file://"))
    message = f'"{url}" is an address; only files on this machine can be imported.'
    known = ids.lerobot_id(url)
    if known or not url.startswith("http"):
        raise ArchiveError(message, hint=ids.address_hint(url))
    raise ArchiveError(
        message, hint=f"rlds download {url} --name {id} downloads the archive, and reads it as rlds import does"
    )
