"""The files that a user names: paths, directories and patterns."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from rlds_cli import ids, settings
from rlds_cli.errors import ArchiveError
from rlds_cli.files import trees
from rlds_cli.files.names import is_unfinished
from rlds_cli.home import Home, locate
from rlds_cli.ids import DatasetId
from rlds_cli.settings import StrPath
from rlds_cli.store import manifest

# Suffixes of lock and backup files, which are not data.
_NOT_DATA = (".lock", "~")
# Texts about the data in a directory; imported only if they are named explicitly.
_ABOUT = (".md", ".rst")
_ABOUT_NAMES = ("readme", "license", "licence", "citation", "notice")


def files_to_import(paths: Sequence[StrPath], id: DatasetId, *, most: int | None = None) -> tuple[Path, ...]:
    """Return the files of paths, as `expand`; refuse addresses and datasets, with what to do instead."""
    for path in paths:
        if ids.address_hint(str(path)):
            _refuse_address(str(path), str(id))
        _refuse_dataset(settings.expanded(path).absolute())
    return expand(paths, most=most)


def expand(paths: Sequence[StrPath], *, most: int | None = None) -> tuple[Path, ...]:
    """Return the files that paths, directories and patterns stand for: absolute, in natural order, each once.

    Directories that cannot be read are skipped.

    Raises
    ------
    ArchiveError
        One of them stands for no file, or for more than ``most``.
    """
    from rlds_cli.text import natural

    found: dict[Path, None] = {}
    for given in paths:
        address = ids.address_hint(str(given))
        if address:
            raise ArchiveError(f'"{given}" is an address; only files on this machine can be imported.', hint=address)
        path = settings.expanded(given)
        matches = [path] if path.exists() else _matches(path)
        files = [f for m in matches for f in (_below(m, most) if m.is_dir() else [m] if m.is_file() else [])]
        data = [f.absolute() for f in files if not f.name.endswith(_NOT_DATA) and not is_unfinished(f.name)]
        if not data:
            raise ArchiveError(
                f"{given}: there is no such file, and no file matches.", hint=f"paths are relative to {Path.cwd()}"
            )
        found.update(dict.fromkeys(sorted(data, key=lambda f: natural(f.as_posix()))))
    return tuple(found)


def _matches(pattern: Path) -> list[Path]:
    try:
        return [Path(p) for p in glob.glob(str(pattern), recursive=True)]  # noqa: PTH207  (absolute patterns)
    except RecursionError:  # it calls itself for each directory
        raise ArchiveError(
            f"{pattern} matches directories that are nested too deeply.", hint="a pattern without **"
        ) from None


def _below(directory: Path, most: int | None) -> list[Path]:
    """Return all regular files below a directory, sorted, except those that vanish or cannot be read.

    Hidden files, and texts about the data, are left out.
    """
    found = trees.files(directory, most)
    if most is not None and len(found) > most:
        raise ArchiveError(
            f"{directory} holds more than {most:,} files: too many for one archive.",
            hint="name a directory that holds one archive and nothing else",
        )
    shown = [f for f in found if not _is_about(f.relative_to(directory))]
    return sorted(shown or found)


def _is_about(path: Path) -> bool:
    """Return whether a file is hidden, or a text about the data."""
    hidden = any(part.startswith(".") for part in path.parts)
    return hidden or path.suffix.lower() in _ABOUT or path.stem.lower() in _ABOUT_NAMES


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
