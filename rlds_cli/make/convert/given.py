"""The files that a user names: paths, directories and patterns."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from rlds_cli.archives.beside import holds_no_data
from rlds_cli.base import ids, settings
from rlds_cli.base.files import trees
from rlds_cli.base.files.names import is_unfinished
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.settings import StrPath
from rlds_cli.base.text import natural
from rlds_cli.errors import ArchiveError
from rlds_cli.home import Home, locate
from rlds_cli.store import manifest


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """The files that a user names, and those in the same directories that hold no data, with names relative to them."""

    files: tuple[Path, ...]
    without_data: tuple[PurePath, ...] = ()


def files_to_import(paths: Sequence[StrPath], id: DatasetId, *, most: int | None = None) -> GivenFiles:
    """Return the files of paths, as `choose`; refuse addresses and datasets, with what to do instead."""
    for path in paths:
        if ids.address_hint(str(path)):
            _refuse_address(str(path), str(id))
        _refuse_dataset(settings.expanded(path).absolute())
    return choose(paths, most=most)


def expand(paths: Sequence[StrPath], *, most: int | None = None) -> tuple[Path, ...]:
    """Return the files that paths, directories and patterns stand for, as `choose`."""
    return choose(paths, most=most).files


def choose(paths: Sequence[StrPath], *, most: int | None = None) -> GivenFiles:
    """Return the files that paths, directories and patterns stand for: absolute, in natural order, each once.

    Files that hold no data are left out, unless they are named or are all that there is. Directories that cannot be
    read are skipped.

    Raises
    ------
    ArchiveError
        One of them stands for no file, or for more than ``most``.
    """
    found: dict[Path, None] = {}
    left_out: dict[Path, PurePath] = {}
    for given in paths:
        address = ids.address_hint(str(given))
        if address:
            raise ArchiveError(f'"{given}" is an address; only files on this machine can be imported.', hint=address)
        path = settings.expanded(given)
        files = {f.absolute(): name for f, name in _files(path, most)}
        data = [f for f, name in files.items() if not (_is_unfinished(f) or (name and holds_no_data(name)))]
        data = data or [f for f in files if not _is_unfinished(f)]
        if not data:
            raise ArchiveError(
                f"{given}: there is no such file, and no file matches.", hint=f"paths are relative to {Path.cwd()}"
            )
        found.update(dict.fromkeys(sorted(data, key=lambda f: natural(f.as_posix()))))
        left_out |= {f: files[f] or PurePath(f.name) for f in {*files}.difference(data)}
    rest = sorted(name for f, name in left_out.items() if f not in found)
    return GivenFiles(tuple(found), tuple(rest))


def _files(path: Path, most: int | None) -> Iterator[tuple[Path, PurePath | None]]:
    """Yield the regular files of a path, each with its name relative to a directory; None if it was named itself."""
    if path.is_dir():
        yield from ((f, f.relative_to(path)) for f in _below(path, most))
    elif path.exists():
        yield path, None
    else:
        for match in _matches(path):
            if match.is_dir():
                yield from ((f, f.relative_to(match)) for f in _below(match, most))
            elif match.is_file():
                yield match, PurePath(match.name)


def _is_unfinished(path: Path) -> bool:
    return path.name.endswith((".lock", "~")) or is_unfinished(path.name)


def _matches(pattern: Path) -> list[Path]:
    try:
        return [Path(p) for p in glob.glob(str(pattern), recursive=True)]  # noqa: PTH207  (absolute patterns)
    except RecursionError:  # it calls itself for each directory
        raise ArchiveError(
            f"{pattern} matches directories that are nested too deeply.", hint="a pattern without **"
        ) from None


def _below(directory: Path, most: int | None) -> list[Path]:
    """Return all regular files below a directory, sorted, except those that vanish or cannot be read."""
    found = trees.files(directory, most)
    if most is not None and len(found) > most:
        raise ArchiveError(
            f"{directory} holds more than {most:,} files: too many for one archive.",
            hint="name a directory that holds one archive and nothing else",
        )
    return sorted(found)


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
        message, hint=f"rlds download {url} --as {id} downloads the archive, and reads it as rlds import does"
    )


def _refuse_dataset(path: Path) -> None:
    """Raise ArchiveError for a path in a dataset of rlds: it can be opened as it is."""
    found = next((p for p in (path, *path.parents) if locate.is_dataset(p)), None)
    if found is None:
        return
    id = manifest.read(found).id
    own = Home(settings.read().home).dataset(ids.parse(id))
    hint = f'open_dataset("{found}") and rlds inspect {found} read it where it is'
    copied = "" if own.exists() else f"; mkdir -p {own.parent} && cp -r {found} {own} makes it {id} here"
    raise ArchiveError(f"{found} is the dataset {id} already, and needs no import.", hint=hint + copied)
