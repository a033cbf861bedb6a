"""The account of a user's own files: tables, groups of episodes, and the files beside them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rlds_cli.archives.account import COLUMN, ENDS, EPISODES, METADATA, NOT_ALL, Fate, Ledger, left_out, used_as
from rlds_cli.archives.formats import camera_files, inventory, tianshou
from rlds_cli.archives.formats.inventory import ATTRIBUTE, GROUP, Item
from rlds_cli.archives.formats.tables import made_of
from rlds_cli.archives.plain.camera_search import OF_BAD
from rlds_cli.archives.plain.survey import FileSurvey
from rlds_cli.archives.readers import Archive
from rlds_cli.archives.tasks import episode_column

ROOT_FLAGS = "flags at the root are False in TED"
TOO_LARGE = "it is too large to be kept as metadata"


def of_table(
    told: Ledger,
    name: str,
    s: FileSurvey,
    per_episode: Mapping[str, str],
    used: Collection[str],
    *,
    late: bool,
    without: Collection[str] = (),
    filled: Collection[str] = (),
) -> None:
    """State the fate of a flat file, which the manifest calls ``name``, and of all that it holds.

    Parameters
    ----------
    per_episode : mapping of str to str
        The columns of the episode table that have a value for each episode, with their keys.
    used : collection of str
        What columns of the episode table are made of: keys, and attributes as ``GROUP/attributes/NAME``.
    late : bool
        Timeouts inside of episodes are a field.
    without : collection of str
        Columns that are left out, since not all files or rows have them.
    filled : collection of str
        Fields that the file may not have.
    """
    items = inventory.items(s.path)
    there = {i.name for i in items}
    once = {COLUMN + column: key for column, key in s.once.keys.items() if key in used}
    uses: dict[str, list[str]] = {}
    for field, key in {
        **s.layout.sources(inside=late),
        **once,
        **{COLUMN + column: key for column, key in per_episode.items()},
    }.items():
        lacks = field in filled and key not in there
        for part in made_of(key, there) if "attributes/" not in key and not lacks else ():
            uses.setdefault(part, []).append(field)
    for part in {part for key in s.by.keys for part in made_of(key, there)} - {*s.by.actions}:
        uses.setdefault(part, []).append(ENDS)
    is_buffer = any(item.use and item.kind == ATTRIBUTE for item in items)
    if tianshou.ENDS not in there:
        uses.pop(tianshou.ENDS, None)  # which no file holds
    fates = {key: left_out(NOT_ALL) for key in without if key in there}
    fates |= {key: used_as(METADATA) for key in s.layout.metadata if key in there}
    fates |= {key: left_out(ROOT_FLAGS) for key in s.meaning.ignored}
    fates |= {key: used_as(*of) for key, of in uses.items()}
    told.file(name, used_as(EPISODES))
    told.inside(items, fates, name, others=lambda item: None if is_buffer else _of_attribute(item, used))


def of_episodes(items: Sequence[Item], used: Collection[str], groups: Collection[str]) -> dict[str, Fate]:
    """Return the fates of what a file holds beside the columns of its episodes.

    Parameters
    ----------
    items : sequence of Item
        All that the file holds.
    used : collection of str
        The attributes that columns of the episode table are made of, as ``GROUP/attributes/NAME``.
    groups : collection of str
        The groups of the episodes; the empty name stands for the file.
    """
    beside = [] if "" in groups else [i for i in items if not i.name.startswith(tuple(f"{g}/" for g in groups))]
    fates = {i.name: used_as(METADATA) for i in beside if i.kind not in (GROUP, ATTRIBUTE)}
    return fates | {i.name: fate for i in items if (fate := _of_attribute(i, used)) is not None}


def _of_attribute(item: Item, used: Collection[str]) -> Fate | None:
    """Return the fate of an attribute: a column of the episode table, or metadata; None for other things."""
    if item.kind != ATTRIBUTE or item.why or item.use:
        return None
    owner, _, name = item.name.rpartition("@")
    path = f"{owner}/attributes/{name}" if owner else f"attributes/{name}"
    return used_as(COLUMN + episode_column(name) if path in used else METADATA)


def of_beside(
    archive: Archive,
    beside: Collection[Path],
    files: Mapping[Path, Mapping[str, Sequence[Path]]],
    reasons: Mapping[Path, str],
) -> dict[str, Fate]:
    """Return the fates of the files beside the tables of an archive, and of all that its rows have, by their paths.

    Parameters
    ----------
    beside : collection of Path
        The files beside tables that the user named.
    files : mapping
        The images and videos of each camera, by table and field; there may be more tables.
    reasons : mapping of Path to str
        Why some are left out.
    """
    uses, fates = camera_files.Uses(), dict[str, Fate]()
    cameras = [(t, field, paths) for t in archive.files for field, paths in files.get(t, {}).items()]
    for _, field, paths in cameras:
        uses.add(field, paths)
    for table, directory in {t: t.parent.resolve() for t, *_ in cameras}.items():
        above = {} if directory == table.parent else {f"{directory}/": f"{table.parent}/"}
        for text in (text for paths in files[table].values() for text in camera_files.texts_of(paths)):
            fate, path = used_as(*uses.at(text)), text
            for real, shown in above.items():  # below the root, whatever its links lead to
                path = shown + text.removeprefix(real)
            fates.setdefault(path, fate)
    for file in beside:
        if (path := os.fspath(file)) not in fates:
            of = uses.of(file)
            fates[path] = used_as(*of) if of else left_out(reasons.get(file, OF_BAD))
    return fates
