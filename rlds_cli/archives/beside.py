"""Files that lie beside data and hold none: texts, programs, marks of other programs, settings and logs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

from rlds_cli.archives.account import Entry
from rlds_cli.base.files import json as documents
from rlds_cli.base.media.media_files import is_media
from rlds_cli.base.text import plural
from rlds_cli.ted import Note

# Which no reader reads, by name: texts, programs, checksums, and what file managers, editors and clusters write.
NAMES = ("thumbs.db", "desktop.ini", "_success", "_metadata", "_common_metadata", "makefile", "dockerfile")
STEMS = (
    "readme",
    "license",
    "licence",
    "citation",
    "notice",
    "changelog",
    "md5sums",
    "sha1sums",
    "sha256sums",
    "checksums",
)
SUFFIXES = (
    *(".md", ".rst", ".pdf", ".html", ".htm", ".docx", ".bib"),
    *(".py", ".pyc", ".ipynb", ".sh", ".bat"),
    *(".md5", ".sha1", ".sha256", ".sha512", ".crc", ".asc"),
    *(".lock", "~", ".bak", ".swp", ".tmp", ".gif", ".svg"),
)
# Which describe the data beside them: a reader of tables leaves them out.
DESCRIPTIONS = (
    *(".json", ".yaml", ".yml", ".toml", ".txt", ".log", ".cfg", ".ini", ".xml"),
    *(".svo", ".svo2"),  # recordings of ZED cameras, beside the videos made of them
)
NO_DATA = "by its name it holds no data"
_SHOWN = 10


def holds_no_data(name: str) -> bool:
    """Return whether a file is hidden, or has a name that no data has; ``name`` is relative to what the user named."""
    last = name.rpartition("/")[2].lower()
    hidden = name.startswith(".") or "/." in name
    described = last.startswith(STEMS) and PurePath(last).stem in STEMS
    return hidden or described or last in NAMES or last.endswith(SUFFIXES)


def is_description(path: Path) -> bool:
    """Return whether a file holds settings, a log or a description, and no rows."""
    if not os.fspath(path).lower().endswith(DESCRIPTIONS):  # as of thousands of images
        return False
    from rlds_cli.archives.formats.tables import is_flat  # opens files, which the asking side does not

    if path.suffix.lower() not in DESCRIPTIONS or is_flat(path):
        return False
    try:
        return path.suffix.lower() != ".json" or documents.load(path) is not None
    except (OSError, ValueError):
        return False  # damaged, or made to harm


def is_beside(path: Path) -> bool:
    """Return whether a file holds settings, a log, a description, an image or a video, and no rows."""
    return is_media(path) or is_description(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """Files of an archive: those of data, and those beside them, which are images, videos and descriptions."""

    data: tuple[Path, ...]
    beside: tuple[Path, ...]
    media: tuple[Path, ...]
    descriptions: tuple[Path, ...]


def divided(files: Iterable[Path]) -> Divided:
    """Tell data from what lies beside them, as `is_beside` does."""
    data: list[Path] = []
    beside: list[Path] = []
    media: list[Path] = []
    described: list[Path] = []
    for path in files:
        if is_media(path):
            media.append(path)
        elif is_description(path):
            described.append(path)
        else:
            data.append(path)
            continue
        beside.append(path)
    return Divided(data=tuple(data), beside=tuple(beside), media=tuple(media), descriptions=tuple(described))


@dataclass(frozen=True, slots=True)
class WithoutData:
    """Files that hold no data, with names relative to what the user named."""

    names: tuple[PurePath, ...]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries of an account of them; those of a hidden directory are one."""
        said = _counted(self.names)
        shown = {name: f"{name}*" if name.endswith("/") else name for name in said}
        return tuple(Entry.of_files(shown[name], n, left_out=NO_DATA) for name, n in said.items())

    @property
    def notes(self) -> tuple[Note, ...]:
        """The note about them, if there are any; those of a hidden directory count together."""
        said = _counted(self.names)
        if not said:
            return ()
        names = [
            name if not name.endswith("/") else f"{name} ({plural(count, 'file')})" for name, count in said.items()
        ]
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN:,} more" if names[_SHOWN:] else "")
        total = said.total()
        text = f"{plural(total, 'file')} without data {'was' if total == 1 else 'were'} left out: {shown}"
        return (Note("no-data", text),)


def _counted(left_out: Iterable[PurePath]) -> Counter[str]:
    """Count files by name; those of a hidden directory together, by its name with a slash."""
    said: Counter[str] = Counter()
    for path in left_out:
        at = next((k for k, part in enumerate(path.parts[:-1], 1) if part.startswith(".")), None)
        said[path.as_posix() if at is None else "/".join(path.parts[:at]) + "/"] += 1
    return said
