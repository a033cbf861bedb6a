"""Columns of texts that name images: what a table states about its cameras."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

import h5py

from rlds_cli.archives.formats import camera_files
from rlds_cli.archives.formats.camera_files import FILES, STEM
from rlds_cli.archives.formats.tables import Table
from rlds_cli.archives.names import ROLES
from rlds_cli.archives.plain.ownership import Ownership
from rlds_cli.base.text import natural
from rlds_cli.errors import ArchiveError, UnknownLayout
from rlds_cli.ted import Note

BLOCK_ROWS = 1 << 16
FEW_ROWS, MOST_COLUMNS = 1 << 8, 64  # that are looked at where no images were given
TEXT = "info/"  # fields below it are texts, even if they name images


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedImages:
    """The images that a column of texts names: ``rows`` by row, None where a row names none.

    ``missing`` are the rows and the names that have no file, ``above`` is what names begin with that is not beside the
    table, and ``unread`` says why the images cannot be read.
    """

    key: str
    column: str
    rows: Sequence[Path | None]
    missing: Sequence[tuple[int, str]]
    above: str = ""
    unread: str = ""

    @property
    def state(self) -> Literal["all", "some", "none", "unread"]:
        """How many of the names have a file; ``unread`` if these cannot be read."""
        found = any(path is not None for path in self.rows)
        return "none" if not found else "unread" if self.unread else "some" if self.missing else "all"


def taken(named: Sequence[NamedImages]) -> set[Path]:
    """Return the images that columns name."""
    return {path for images in named for path in images.rows if path is not None}


def texts_of(table: Table, chosen: Mapping[str, str], *, any_column: bool) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the columns of texts that may name files, with their values.

    Of a table that was named alone these are the ones that the user calls an observation.
    """
    fixed = {key for name, key in chosen.items() if name in ROLES or name.startswith(TEXT)}
    for column in filter(partial(_is_text, table), table.own):
        if column not in fixed and (any_column or column in chosen.values()):
            values: list[str] = []
            shared: dict[str, str] = {}
            for block in texts_in(table, column):
                values += (shared.setdefault(text, text) for text in block)
                if not _may_name_files(values):
                    break
            else:
                yield column, values


def _is_text(table: Table, column: str) -> bool:
    c = table[column]
    return (
        c.shape[1:] in ((), (1,))
        and c.shape[:1] != (0,)
        and c.shape != ()
        and h5py.check_string_dtype(c.dtype) is not None
    )


def not_given(table: Table, chosen: Mapping[str, str]) -> Iterator[Note]:
    """Yield notes about columns that name images or videos, none of which was named with the table."""
    for column in islice(filter(partial(_is_text, table), table.own), MOST_COLUMNS):
        if column in chosen.values():
            continue
        with table.rows([column]) as rows:
            values = [str(value).strip() for value in rows.read(0, FEW_ROWS)[column].reshape(-1) if value is not None]
        names = [*filter(None, values)]
        if names and 2 * sum(camera_files.is_media(Path(name)) for name in names) >= len(names):
            text = f"{column} names images or videos, which were not named with the table, and is kept as text"
            yield Note(f"image-names-{column}", text)


def _may_name_files(values: Sequence[str]) -> bool:
    """Tell by the first values of a column whether it may name files; others may be millions of texts."""
    some = [*filter(str.strip, values[:BLOCK_ROWS])]
    names = {*some}
    return len(names) == len(some) or any(camera_files.is_media(Path(name.strip())) for name in names)


def named_images(table: Path, beside: Ownership, texts: Mapping[str, Sequence[str]]) -> Iterator[NamedImages]:
    """Find the columns of texts that name images."""
    for column, values in texts.items():
        names = {*filter(str.strip, values)}
        images = sum(camera_files.is_image(name.strip()) for name in names)
        bare = 1 < len(names) == len(values) and not images and not any("\n" in name for name in names)
        if not bare and 2 * images < max(1, len(names)):
            continue
        found = _images(table, beside, column, values)
        if found is not None and (found.state == "all" or not bare):
            yield found


def texts_in(table: Table, column: str) -> Iterator[list[str]]:
    """Yield the texts of a column in blocks, empty where a row has none."""
    count = table[column].shape[0]
    with table.rows([column]) as rows:
        for start in range(0, count, BLOCK_ROWS):
            block = rows.read(start, min(start + BLOCK_ROWS, count))[column].reshape(-1)
            texts = (value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in block)
            yield ["" if text is None else str(text) for text in texts]


def _images(table: Path, beside: Ownership, column: str, values: Sequence[str]) -> NamedImages | None:
    """Find the images that a column names, relative to the table's directory, or to the one folder that has some.

    None if they are in several folders, in the order of their names: each of these is a camera by itself.
    """
    names = dict.fromkeys(filter(str.strip, values))
    folder, found = "", _in(table, "", names)
    if not found and not any(map(camera_files.is_absolute, names)):
        plain = [camera_files.plain(table, name) for name in names]
        folders = sorted({folder for name in plain for folder in beside.folders(table, name)}, key=natural)
        if len(folders) > 1:
            _check_alike(table, column, values, folders)
            return None
        if folders:
            folder, found = folders[0], _in(table, folders[0], names)
    unread = ""
    try:
        if found:
            camera_files.of_image(next(iter(found.values())))
    except ArchiveError as e:
        unread = e.message
    return NamedImages(
        key=f"{FILES}{folder}/{{{column}}}" if folder else FILES + column,
        column=column,
        rows=[found.get(v) for v in values],
        missing=[(row, v) for row, v in enumerate(values) if v.strip() and v not in found],
        above=max((_above(table, folder, *item) for item in found.items()), key=len, default=""),
        unread=unread,
    )


def _in(table: Path, folder: str, names: Iterable[str]) -> dict[str, Path]:
    """Return the images that exist, by name."""
    found = {name: camera_files.find(table, folder, name) for name in names}
    return {name: path for name, path in found.items() if path.is_file()}


def _above(table: Path, folder: str, name: str, path: Path) -> str:
    """Return what a name begins with that is not beside the table."""
    said, there = camera_files.plain(table, name), path.relative_to(table.parent.resolve()).as_posix()
    there = there.removeprefix(folder.replace(STEM, table.stem) + "/") if folder else there
    return said.removesuffix(there) if said != there else ""


def _check_alike(table: Path, column: str, values: Sequence[str], folders: Sequence[str]) -> None:
    """Refuse names that mean images of several folders, unless all of them are in that order in each of them."""
    for folder in folders:
        files = camera_files.in_folder(camera_files.beside(table, folder))
        if [*files] != [camera_files.find(table, folder, v) for v in values]:
            both = " or ".join(f"--map observation/{column}='{FILES}{f}/{{{column}}}'" for f in folders[:2])
            raise UnknownLayout(
                f"{table.name}: {column} names images, and there are images of these names in {', '.join(folders)}.",
                hint=f"{both}; with both, under two names, each folder is a camera",
            )


def check_apart(table: Path, named: list[NamedImages]) -> None:
    """Refuse columns that name the same images in different rows; of equal ones keep the first as a camera."""
    for k, one in reversed([*enumerate(named)]):
        for other in named[:k]:
            if one.rows == other.rows and one.state != "none":
                del named[k]
                break
            if not {*one.rows}.intersection({*other.rows} - {None}):
                continue
            row = next(r for r, (a, b) in enumerate(zip(other.rows, one.rows, strict=True)) if a != b)
            a, b = other.rows[row], one.rows[row]
            raise UnknownLayout(
                f"{table.name}: {other.column} and {one.column} name the same images for different rows: row {row:,} "
                f"has {a.name if a else 'none'} by {other.column} and {b.name if b else 'none'} by {one.column}.",
                hint=f"--map 'observation/{other.column}={other.key}' or --map 'observation/{one.column}={one.key}'; "
                "with both, each is a camera",
            )
