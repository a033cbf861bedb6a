"""The account of a LeRobot dataset: its files, the columns of its tables, and the features of ``info.json``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rlds_cli.archives.account import (
    EMPTY,
    EPISODES,
    EXPORT_NAMES,
    LAYOUT,
    METADATA,
    NO_PLACE,
    UNREAD,
    Account,
    Fate,
    Ledger,
    left_out,
    used_as,
)
from rlds_cli.archives.exported import EXPORTED
from rlds_cli.archives.formats import inventory
from rlds_cli.archives.formats.inventory import Item
from rlds_cli.archives.lerobot import description, subtasks
from rlds_cli.archives.lerobot.description import Info, ListedEpisode
from rlds_cli.archives.lerobot.features import LerobotFeature
from rlds_cli.archives.lerobot.names import LANGUAGE
from rlds_cli.archives.readers import Archive
from rlds_cli.ted import VIDEO, Subtasks

STATS = "stats/"
STATISTICS = "statistics are computed from the rows"
NO_EPISODE = "no episode that is read needs it"
UNNAMED = "meta/ names it for no episode"
NO_FEATURE = "no feature describes it"
NO_VIDEOS = "its videos are not here"
NO_COLUMN = "no data file has such a column"
_TEXTS = ("task_index", "task", "subtask_index", "subtask", "__index_level_0__")
_LISTED = ("episode_index", "length", "data/chunk_index", "data/file_index")
_PER_CAMERA = ("chunk_index", "file_index", "from_timestamp")


def account_of(
    archive: Archive,
    info: Info,
    kept: Sequence[ListedEpisode],
    found: Sequence[LerobotFeature],
    *,
    unnamed: Collection[Path],
    without: Collection[str],
    absent: Collection[str],
    told: Collection[str] = (),
    spoken: Collection[str] = (),
) -> Account:
    """State the fate of a dataset.

    Parameters
    ----------
    kept : sequence of ListedEpisode
        The episodes that are read.
    found : sequence of LerobotFeature
    unnamed : collection of Path
        The files that `unnamed` returns.
    without : collection of str
        The cameras whose videos are not here.
    absent : collection of str
        The features for which no data file has a column.
    told : collection of str
        The columns of rows that become a column of episodes.
    spoken : collection of str
        Those of which a part does.
    """
    said, names = Ledger(), dict[str, list[str]]()
    for f in found:
        names.setdefault(f.key, []).append(f.field.name)
    for key in spoken:
        names.setdefault(key, []).append(Subtasks.COLUMN)
    fields = {key: used_as(*of_key) for key, of_key in names.items()} | dict.fromkeys(told, used_as(Subtasks.COLUMN))
    videos = {f.key for f in found if f.field.codec == VIDEO}
    fates: dict[Path, Fate] = {info.root / e.data: used_as(EPISODES) for e in kept}
    fates |= {info.root / e.videos[key][0]: fields[key] for e in kept for key in videos}
    fates |= {path: left_out(UNNAMED) for path in unnamed}
    fates |= {path: _beside(path, info) for path in archive.files if path not in fates}
    said.all_files(archive.files, archive.root, fates)
    for key in sorted(info.features):
        if key in videos or key in without:
            said.add(inventory.FEATURE, key, fields.get(key) or left_out(NO_VIDEOS))
        elif key in absent:
            said.add(inventory.FEATURE, key, left_out(NO_COLUMN))
    fields |= {key: used_as(LAYOUT) for key in description.COUNTED if key not in fields}
    fields |= {key: used_as(EXPORT_NAMES) for key in description.before(info).added if key not in fields}
    for name in dict.fromkeys(e.data for e in kept):
        said.inside(inventory.items(info.root / name), {}, name, others=lambda item: _of_column(item, fields))
    of_list = partial(_of_list, info)
    for path in archive.files:
        if fates[path] == used_as(LAYOUT) and path.suffix in (".parquet", ".jsonl"):
            items = _items(path)
            said.inside([i for i in items if not i.name.startswith(STATS)], {}, path.name, others=of_list)
            said.add(inventory.COLUMN, f"{STATS}*", left_out(STATISTICS), sum(i.name.startswith(STATS) for i in items))
        elif (fate := fates[path]) in (used_as("task"), used_as(Subtasks.COLUMN)):
            said.inside(_items(path), {}, path.name, others=partial(_of_texts, fate))
    return said.account()


def unnamed(archive: Archive, info: Info, listed: Iterable[ListedEpisode]) -> list[Path]:
    """Return the tables of rows and the videos that ``meta/`` names for no episode, read or not."""
    named = {info.root / name for e in listed for name in (e.data, *(video for video, _ in e.videos.values()))}
    folders = tuple(info.root / name for name in ("data", "videos"))
    data = (p for p in archive.files if p.suffix in (".parquet", ".mp4") and p not in named)
    return [p for p in data if any(p.is_relative_to(folder) for folder in folders)]


def _beside(path: Path, info: Info) -> Fate:
    """Return the fate of a file that holds no rows and no frames of the episodes that are read."""
    parts = path.relative_to(info.root).parts if path.is_relative_to(info.root) else ()
    if parts[:1] != ("meta",):
        return left_out(NO_EPISODE if parts[:1] in (("data",), ("videos",)) else NO_PLACE)
    if parts[1] == "info.json":
        return used_as(METADATA, LAYOUT)
    if parts[1] == EXPORTED:
        return used_as(EXPORT_NAMES)
    if parts[1].startswith("tasks."):
        return used_as("task")
    if "/".join(parts) == subtasks.LIST:
        return used_as(Subtasks.COLUMN)
    if "stats" in parts[1]:
        return left_out(STATISTICS)
    return used_as(LAYOUT) if parts[1] == "episodes" or parts[1] == "episodes.jsonl" else left_out("it is not read")


def _of_column(item: Item, fields: Mapping[str, Fate]) -> Fate | None:
    """Return the fate of a column of rows; a member of a struct has that of the column."""
    if item.kind != inventory.COLUMN or item.name.endswith("/path"):
        return None
    top = item.name.partition("/")[0]
    return fields.get(item.name) or fields.get(top) or left_out(EMPTY if top in LANGUAGE else NO_FEATURE)


def _items(path: Path) -> Sequence[Item]:
    """List the columns of a table of episodes."""
    if path.suffix == ".parquet":
        return inventory.items(path)
    keys = dict.fromkeys(key for line in description.json_lines(path) for key in line)
    return [Item(inventory.COLUMN, key) for key in keys]


def _of_texts(fate: Fate, item: Item) -> Fate | None:
    """Return the fate of a column of a list of texts by number."""
    if item.kind != inventory.COLUMN:
        return None
    return fate if item.name in _TEXTS else left_out(UNREAD)


def _of_list(info: Info, item: Item) -> Fate | None:
    """Return the fate of a column of a table of episodes."""
    if item.kind != inventory.COLUMN:
        return None
    said = description.before(info)
    if item.name in (said.seed, said.options, *said.own.values()):
        return used_as("columns of episodes")
    if item.name in subtasks.NAMES:
        return used_as("columns of episodes")
    if item.name in subtasks.TIMES:
        return left_out("the frames say the same")
    above, _, last = item.name.rpartition("/")
    if item.name in _LISTED or (above.startswith("videos/") and last in _PER_CAMERA):
        return used_as(LAYOUT)
    return left_out("the rows say the same" if item.name == "tasks" else "the rows tell it")
