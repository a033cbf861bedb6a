"""Recordings of a robot: topics at rates of their own, put on the steps of an episode; one file, or one bag
of several, is one episode.

::

    step             0        1        2        3          every 1/hz seconds, else at each message of the action
    /camera     c0        c1                c2
    /joints     q0   q1   q2   q3   q4   q5   q6
    /cmd        a0        a1       a2       a3
    camera           c0       c1       c1       c2         the latest that was known; with nearest, the nearest
    age              0.01 ...                              seconds since: ``info/age/camera``

Rows begin when every topic has a message, and end with the topic that ends first; topics of a single message hold for
the whole recording. The last row is the final observation. A topic of texts that is called as `tasks.NAMES` says what
the episode is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives import recorded_episode
from rlds_cli.archives.account import EPISODES, LAYOUT, Account, Ledger, left_out, used_as
from rlds_cli.archives.formats import inventory
from rlds_cli.archives.formats.recordings import files_of_bag, is_recording, open_recording
from rlds_cli.archives.formats.topics import Recording
from rlds_cli.archives.names import is_observation
from rlds_cli.archives.readers import (
    Archive,
    EpisodeSummary,
    Part,
    Plan,
    every_file,
    skipped_file,
)
from rlds_cli.archives.recorded_episode import RecordedEpisode
from rlds_cli.archives.recordings.columns import TopicColumn, listed, survey
from rlds_cli.archives.recordings.looking_up import look_up as look_up
from rlds_cli.archives.recordings.rows import read as read
from rlds_cli.archives.recordings.steps import AGE, fields_of, rows_of
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.text import plural
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout
from rlds_cli.ted import (
    CUT,
    END_NAMES,
    FLAGS,
    REWARD,
    Field,
    Note,
)

VERSION = 2
choose = every_file
METADATA = "metadata.yaml"  # which rosbag2 writes beside the files of a bag


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe the topics in one line; None for other files."""
    files = [p for p in paths if p.name != METADATA]
    if not files or not all(map(is_recording, files)):
        return None
    bags = _bags(paths)
    with open_recording(bags[0]) as recording:
        said = f"{plural(len(bags), 'recording')}, the first with " if len(bags) > 1 else "a recording of "
        return f"{said}{plural(len(recording.topics), 'topic')}: {listed(recording)}"


def _bags(paths: Sequence[Path]) -> list[list[Path]]:
    """Return the files of each recording: those that ``metadata.yaml`` lists are one, in its order."""
    found: dict[Path, list[Path]] = {}
    listed = set[Path]()
    for metadata in (p for p in paths if p.name == METADATA):
        files = [p for p in _listed_by(metadata) if p in paths]
        listed.update(files)
        found |= {files[0]: files} if files else {}
    return [found.get(p, [p]) for p in paths if p.name != METADATA and (p in found or p not in listed)]


def _ends(seen: Sequence[_Planned]) -> Mapping[str, int]:
    ends = [END_NAMES[s.episode.end if s.episode else CUT] for s in seen]
    return {name: ends.count(name) for name in END_NAMES}


def _listed_by(metadata: Path) -> list[Path]:
    return [metadata.with_name(Path(name).name) for name in files_of_bag(metadata)]


def _check_whole(paths: Sequence[Path]) -> None:
    """Refuse a bag of which files are missing."""
    for metadata in (p for p in paths if p.name == METADATA):
        if lacking := [p.name for p in _listed_by(metadata) if p not in paths]:
            raise CorruptArchive(
                f"{metadata} names {lacking[0]}, which is not there.",
                hint="fetch the whole bag; or name its files alone, which makes an episode of each",
            )


def plan(archive: Archive) -> Plan:
    """Find the fields and the rows of every recording, by a look at all messages.

    Raises
    ------
    UnknownLayout
        A topic or column is not there, nothing is an action, or recordings have different fields.
    CorruptArchive
        A file is damaged.
    """
    _check_whole(archive.files)
    bags, seen, notes = list[list[Path]](), list[_Planned](), []
    for bag in _bags(archive.files):
        try:
            seen.append(_planned(archive, bag))
            bags.append(bag)
        except ArchiveError as e:
            if not archive.skip_bad:
                raise
            notes.append(skipped_file(_place(archive, bag[0]), e))
    if not bags:
        raise CorruptArchive(f"None of {plural(len(archive.files), 'file')} can be read: {notes[0].where}")
    first = seen[0]
    for bag, one in zip(bags, seen, strict=True):
        if one.schema != first.schema or one.columns != first.columns:
            odd = [f.name for f in (*one.schema, *first.schema) if f not in one.schema or f not in first.schema]
            raise UnknownLayout(
                f"{bag[0].name} and {bags[0][0].name} differ in {odd[0] if odd else 'their topics'}.",
                hint="--map or --topics names what is read",
            )
    files = tuple(path for bag in bags for path in bag)
    lists = tuple(p for p in archive.files if p.name == METADATA and {*files} & {*_listed_by(p)})
    begins = np.cumsum([0, *map(len, bags)]).tolist()
    lengths = np.array([len(s.times) - 1 for s in seen])
    depth = {name: {"unit": unit} for name, unit in first.episode.depth.items()} if first.episode else {}
    return Plan(
        "recordings",
        replace(archive, files=(*files, *lists)),
        first.schema,
        tuple(
            Part(
                len(s.times),
                {"file": a, "files": b - a, "times": s.times, "sent": s.sent, "episode": _about(s.episode)},
            )
            for a, b, s in zip(begins[:-1], begins[1:], seen, strict=True)
        ),
        "file",
        facts={
            "fields": first.fields,
            "columns": first.columns,
            "hz": archive.hz,
            "nearest": archive.nearest,
            "exported": first.episode is not None,
            **({"depth": depth} if depth else {}),
            "bags": {_place(archive, b[0]): [_place(archive, p) for p in b] for b in bags if len(b) > 1},
        },
        env={"fps": rate} if (rate := archive.hz or (first.episode and first.episode.fps)) else {},
        notes=(*dict.fromkeys(n for s in seen for n in s.notes), *notes),
        computed=() if first.episode else tuple(f.name for f in first.schema if f.name.startswith(AGE)),
        account=_account(archive, files, lists, seen),
        episode_summary=EpisodeSummary(lengths, _ends(seen)),
    )


def _place(archive: Archive, path: Path) -> str:
    return path.relative_to(archive.root).as_posix()


def _account(archive: Archive, files: Sequence[Path], lists: Sequence[Path], seen: Sequence[_Planned]) -> Account:
    """State the fate of the files, of their topics, and of the columns of these."""
    told = Ledger()
    fates = dict.fromkeys(lists, used_as(LAYOUT)) | dict.fromkeys(files, used_as(EPISODES))
    told.all_files(archive.files, archive.root, fates)
    for one in seen:
        names = {key: name for name, key in one.fields.items()}
        for name, why in one.unread.items():
            told.add(inventory.TOPIC if name in one.topics else inventory.COLUMN, name, left_out(why))
        for key in one.known:
            told.add(
                inventory.COLUMN, key, used_as(names[key]) if key in names else left_out("no field is mapped to it")
            )
        for kind, name in one.beside:
            told.add(kind, name, left_out("records beside the messages are not read"))
    return told.account()


@dataclass(frozen=True, slots=True)
class _Planned:
    """One recording: its fields, their columns, topic and leaf of each, the times of rows and of messages by topic."""

    schema: tuple[Field, ...]
    fields: dict[str, str]
    columns: dict[str, list[str]]
    times: IntArray
    sent: dict[str, IntArray]
    notes: list[Note]
    topics: list[str]
    known: list[str]  # columns, also those that become no fields
    unread: dict[str, str]  # topics and columns that are left out, with the reasons
    beside: tuple[tuple[str, str], ...]
    episode: RecordedEpisode | None = None  # of an export


def _planned(archive: Archive, bag: Sequence[Path]) -> _Planned:
    with open_recording(bag) as recording:
        chosen = archive.topics or archive.fields or archive.hz is not None or archive.nearest
        if not chosen and (episode := recorded_episode.of(recording)) is not None:
            return _planned_as_exported(recording, episode)
        seen = survey(recording, archive.topics)
        fields = fields_of(recording, seen, archive.fields)
        times = rows_of(recording, seen, fields, archive.hz)
    columns = {key: seen.columns[key] for key in fields.values()}
    topics = dict.fromkeys(c.topic for c in columns.values())
    schema = [_field(name, columns[key], bag[0].name) for name, key in fields.items() if name not in FLAGS]
    schema += [Field(name, "bool", (), "next") for name in FLAGS]
    schema += [Field(f"{AGE}{topic.strip('/')}", "float32") for topic in topics]
    return _Planned(
        tuple(sorted(schema, key=lambda f: f.name)),
        fields,
        {key: [c.topic, c.leaf] for key, c in columns.items()},
        times,
        {topic: seen.times[topic] for topic in topics},
        seen.notes,
        [*recording.topics],
        [*seen.columns],
        seen.unread | {t: "--topics does not name it" for t in recording.topics if t not in seen.wanted},
        recording.beside,
    )


def _planned_as_exported(recording: Recording, episode: RecordedEpisode) -> _Planned:
    """Plan a recording that an export wrote: its record says which field and step each message is of."""
    keys = {name: f"/{name}" for name in episode.fields}
    unread = {t: "the record of the export does not name it" for t in recording.topics if t not in keys.values()}
    return _Planned(
        tuple(episode.fields.values()),
        keys,
        {key: [key, ""] for key in keys.values()},
        episode.times(),
        {keys[name]: episode.sent(f) for name, f in episode.fields.items()},
        [],
        [*recording.topics],
        [*keys.values()],
        unread,
        tuple(b for b in recording.beside if b[1] != recorded_episode.RECORD),
        episode,
    )


def _about(episode: RecordedEpisode | None) -> dict[str, Any]:
    """Return what an export says of an episode, as the episode table has it; nothing of a recording of a robot."""
    if episode is None:
        return {}
    about = {"seed": episode.seed, "options": episode.options, "extra": dict(episode.columns)}
    return {**about, "end": episode.end, "observed": episode.final}


def _field(name: str, c: TopicColumn, file: str) -> Field:
    if name == REWARD and (c.dtype == "str" or int(np.prod(c.shape)) != 1):
        raise UnknownLayout(f"{file}: {c.key} is {c.dtype} {list(c.shape)}; a reward is one number.")
    placement: Any = "next" if name.startswith("next/") else "both" if is_observation(name) else "root"
    shape = () if name == REWARD else c.shape
    return Field(name, c.dtype, shape, placement, c.kind, c.codec)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Yield nothing: all values are those of steps."""
    return iter(())
