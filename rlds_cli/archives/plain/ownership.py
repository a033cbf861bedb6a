"""Which table owns the images and videos beside several."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from rlds_cli.archives.formats import camera_files
from rlds_cli.archives.formats.camera_files import STEM


class Ownership:
    """Images and videos by the tables that own them, and by their names."""

    def __init__(self, tables: Sequence[Path], media: Sequence[Path]) -> None:
        self._stems: dict[Path, set[str]] = defaultdict(set)
        for table in tables:
            self._stems[table.parent].add(table.stem)
        self.any = bool(media)
        self._owned: dict[tuple[Path, str | None], list[tuple[str, Path]]] = defaultdict(list)
        texts = map(os.fspath, media)
        places = (text if camera_files.is_video(text) else text.rpartition("/")[0] or "/" for text in texts)
        for path in map(Path, dict.fromkeys(places)):  # folders of thousands of images
            for directory in path.parents:
                if directory in self._stems:
                    stem, name = self._owner(directory, path.relative_to(directory).parts)
                    self._owned[directory, stem].append((name, path))
        self._media = media

    @cached_property
    def _named(self) -> Mapping[str, Sequence[Path]]:
        """The images by their names, and by these without a suffix."""
        found: dict[str, list[Path]] = defaultdict(list)
        for path in filter(camera_files.is_image, self._media):
            found[path.name].append(path)
            found[path.stem].append(path)
        return found

    def owned(self, table: Path) -> Sequence[tuple[str, Path]]:
        """Return the folders and videos that a table owns, each with its name, in which `STEM` stands for the table."""
        return self._owned[table.parent, self._owner_of(table)]

    def folders(self, table: Path, name: str) -> set[str]:
        """Return the folders below a table's directory in which there is an image of that relative name."""
        parts, found = PurePosixPath(name).parts, set()
        for path in self._named.get(parts[-1], ()) if parts else ():
            own = path.parts if path.name == parts[-1] else (*path.parts[:-1], path.stem)
            above = len(own) - len(parts)
            if table.parent in path.parents and own[above:] == parts and above > len(table.parent.parts):
                stem, folder = self._owner(table.parent, own[len(table.parent.parts) : above])
                if stem in (None, self._owner_of(table)):
                    found.add(folder)
        return found

    def _owner_of(self, table: Path) -> str | None:
        return table.stem if len(self._stems[table.parent]) > 1 else None

    def _owner(self, directory: Path, parts: Sequence[str]) -> tuple[str | None, str]:
        """Find the table in a directory that a path is called after: its stem, and the path with `STEM` in its place.

        Without one the path is of the only table, or of none.
        """
        stems = self._stems[directory]
        for k, part in enumerate(parts if len(stems) > 1 else ()):
            ends = (i for i in range(len(part), 0, -1) if part[i : i + 1] in ("", "_", "-", "."))
            if (stem := next((part[:i] for i in ends if part[:i] in stems), None)) is not None:
                return stem, "/".join([*parts[:k], STEM + part[len(stem) :], *parts[k + 1 :]])
        return None, "/".join(parts)
