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

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives import recorded_episode, tasks
from rlds_cli.archives.account import EPISODES, LAYOUT, Account, Ledger, left_out, used_as
from rlds_cli.archives.formats import image_columns, inventory
from rlds_cli.archives.formats.message_leaves import NotKept, codec_of
from rlds_cli.archives.formats.recordings import files_of_bag, is_recording, open_recording
from rlds_cli.archives.formats.text_tables import MAX_COLUMNS
from rlds_cli.archives.formats.topics import SECOND, Message, Recording
from rlds_cli.archives.names import is_observation, meaning
from rlds_cli.archives.readers import (
    Archive,
    ArchivedStep,
    ArchivedValue,
    EpisodeSummary,
    Part,
    Plan,
    every_file,
    skipped_file,
)
from rlds_cli.archives.recorded_episode import RecordedEpisode
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.text import did_you_mean, plural
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.ted import (
    CUT,
    END_NAMES,
    FLAGS,
    REWARD,
    TASK,
    TERMINATED,
    TRUNCATED,
    Chunk,
    EpisodeData,
    Field,
    Kind,
    LazyColumn,
    Note,
    chunks,
)

VERSION = 2
choose = every_file
AGE = "info/age/"
_ACTION = re.compile(r"(^|[/_])(cmd|command|commands|action|actions|target|targets|setpoint|setpoints)($|[/_])", re.I)
HEAVY = 1 << 14  # bytes of a value that is an image
_FEW_ROWS, _MOST_ROWS = 1 << 20, 100  # rows; rows for a message
METADATA = "metadata.yaml"  # which rosbag2 writes beside the files of a bag
_SHOWN = 12  # topics that a message lists
_VARIES, _LACKING = "its values have different shapes or kinds", "not every message of the topic has it"
_NO_IMAGE = "its images are not of 8 bits, or have no readable header"
_ODD = (_VARIES, _LACKING, _NO_IMAGE)  # what a note says, too


# -- what is in a recording


@dataclass(frozen=True, slots=True)
class TopicColumn:
    """A leaf of the messages of a topic: its values are arrays of one shape and dtype, texts, or encoded images."""

    topic: str
    leaf: str
    dtype: str
    shape: tuple[int, ...]
    kind: Kind = "array"
    codec: str | None = None

    @property
    def key(self) -> str:
        """The name of the column: ``/joints/position``."""
        return f"{self.topic}/{self.leaf}" if self.leaf else self.topic

    @property
    def heavy(self) -> bool:
        """True for images, of which only those that steps refer to are read."""
        values = int(np.prod(self.shape, dtype=np.int64))
        return self.kind == "frames" or (self.kind == "array" and values * np.dtype(self.dtype).itemsize > HEAVY)


@dataclass(slots=True)
class Survey:
    """The columns of a recording by key, the times of each topic, and why some values are left out.

    ``wanted`` are the topics that were looked at, ``unread`` those and columns that are left out, with the reasons.
    """

    columns: dict[str, TopicColumn]
    times: dict[str, IntArray]
    notes: list[Note]
    wanted: Sequence[str]
    unread: dict[str, str]


def survey(recording: Recording, topics: Sequence[str] = ()) -> Survey:
    """Look at every message of the topics that some patterns name, all without any; images are not decoded."""
    name = recording.path.name
    wanted = [t for t in recording.topics if not topics or any(fnmatchcase(t, p) for p in topics)]
    for pattern in topics:
        if not any(fnmatchcase(t, pattern) for t in recording.topics):
            near = did_you_mean(pattern, list(recording.topics))
            raise UnknownLayout(f"{name} has no topic {pattern}.{near}", hint=f"it has {_listed(recording)}")
    odd = [recording.topics[t] for t in wanted if recording.topics[t].why_not]
    notes = [Note("not-understood", f"{t.name} ({t.type}) is left out: {t.why_not}") for t in odd]
    unread = {t.name: t.why_not for t in odd}
    times: dict[str, list[int]] = {t: [] for t in wanted}
    columns: dict[str, dict[str, TopicColumn | NotKept]] = {}
    for m in recording.messages([t for t in wanted if not recording.topics[t].why_not]):
        times[m.topic].append(m.time)
        known = columns.get(m.topic)
        if known is None:
            columns[m.topic] = {leaf: _column(m.topic, leaf, value) for leaf, value in m.leaves().items()}
        elif not known or any(isinstance(c, TopicColumn) and not c.heavy for c in known.values()):
            _widen(known, m)  # images are looked at when they are read
    found: dict[str, TopicColumn] = {}
    for topic, leaves in columns.items():
        for leaf, c in leaves.items():
            key = f"{topic}/{leaf}" if leaf else topic
            if isinstance(c, NotKept):
                unread[key] = c.why
                if c.why in _ODD:
                    notes.append(Note("varies", f"{key} is left out: {c.why}"))
            elif 0 not in c.shape:
                found[key] = c
                if len(found) > MAX_COLUMNS:
                    raise UnsafeArchive(
                        f"{name} has more than {MAX_COLUMNS:,} columns; no more are read.",
                        hint="--topics names those that are wanted",
                    )
            else:
                unread[key] = "it holds no values"
    unread |= {t: "it has no messages" for t in wanted if not times[t] and t not in unread}
    return Survey(found, {t: np.array(n, np.int64) for t, n in times.items() if n}, notes, wanted, unread)


def _column(topic: str, leaf: str, value: Any) -> TopicColumn | NotKept:
    if isinstance(value, NotKept):
        return value
    if isinstance(value, str):
        return TopicColumn(topic, leaf, "str", (), "text")
    if isinstance(value, bytes):
        found = codec_of(value)
        return NotKept(_NO_IMAGE) if found is None else TopicColumn(topic, leaf, "uint8", found[1], "frames", found[0])
    return TopicColumn(topic, leaf, value.dtype.name, value.shape)


def _widen(known: dict[str, TopicColumn | NotKept], m: Message) -> None:
    """Compare the leaves of a message with the columns so far: whole numbers among others become floats."""
    leaves = m.leaves()
    for leaf, c in known.items():
        if isinstance(c, NotKept) or c.heavy:
            continue
        now = _column(m.topic, leaf, leaves.get(leaf, NotKept(_LACKING)))
        if isinstance(now, NotKept):
            known[leaf] = NotKept(_LACKING)
        elif (now.shape, now.kind) != (c.shape, c.kind):
            known[leaf] = NotKept(_VARIES)
        elif now.dtype != c.dtype:
            known[leaf] = TopicColumn(c.topic, leaf, np.result_type(now.dtype, c.dtype).name, c.shape)
    for leaf in leaves.keys() - known.keys():
        known[leaf] = leaves[leaf] if isinstance(leaves[leaf], NotKept) else NotKept(_LACKING)


def _listed(recording: Recording) -> str:
    names = [f"{t.name} ({t.type})" for t in recording.topics.values()]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


# -- fields and times


def fields_of(recording: Recording, seen: Survey, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each field: those that the user mapped, else all by their names.

    Raises
    ------
    UnknownLayout
        A mapped column is not there, or nothing is an action.
    """
    name = recording.path.name
    if chosen:
        for field, key in chosen.items():
            if key not in seen.columns:
                near = did_you_mean(key, list(seen.columns))
                raise UnknownLayout(
                    f"{name} has no column {key}, which --map {field}={key} names.{near}",
                    hint=f"it has {', '.join([*seen.columns][:_SHOWN])}",
                )
        fields = {"next/" + f if f in ("reward", *(n[5:] for n in FLAGS)) else f: key for f, key in chosen.items()}
    else:
        keys: dict[str, str] = {}
        for key in seen.columns:
            keys.setdefault(key.strip("/"), key)
        plain = {k: seen.columns[key] for k, key in keys.items()}
        known = meaning({k: c for k, c in plain.items() if c.kind != "frames"}, {}, name).fields
        fields = {f: keys[k] for f, k in known.items() if k in keys and f.partition("/")[0] != "info"}
        if (said := _said(plain)) is not None:
            fields[TASK] = keys[said]
        used = {*fields.values()}
        rest = {k: key for k, key in keys.items() if key not in used}
        actions = {k for k in rest if _ACTION.search(k)} if not any(is_action(f) for f in fields) else set()
        for k, key in rest.items():
            if k not in actions:
                fields[f"observation/{k}"] = key
            else:
                fields["action" if len(actions) == 1 else f"action/{k}"] = key
        if "observation" in fields and any(f.startswith("observation/") for f in fields):
            key = fields.pop("observation")
            fields[f"observation/{key.strip('/')}"] = key
    if not any(map(is_action, fields)) or not any(map(is_observation, fields)):
        lacking = "action" if not any(map(is_action, fields)) else "observation"
        odd = f"; {'; '.join(n.text for n in seen.notes)}" if seen.notes else ""
        raise UnknownLayout(
            f"{name}: no topic is known to be the {lacking}. It has {_listed(recording)}{odd}.",
            hint=f"--map {lacking}=COLUMN, and --map for the other fields: {', '.join([*seen.columns][:_SHOWN])}",
        )
    return dict(sorted(fields.items()))


def _said(columns: Mapping[str, TopicColumn]) -> str | None:
    """Return the column of texts whose topic is called as one that says what an episode is about; None without one."""
    of = {c.topic.rpartition("/")[2]: k for k, c in columns.items() if c.kind == "text" and c.leaf in ("", "data")}
    return next((of[name] for name in tasks.NAMES if name in of), None)


def is_action(field: str) -> bool:
    """Return whether a field is an action, or a part of one."""
    return field.partition("/")[0] == "action"


def rows_of(recording: Recording, seen: Survey, fields: Mapping[str, str], hz: float | None) -> IntArray:
    """Return the time of each row in nanoseconds [rows].

    Raises
    ------
    UnknownLayout
        The topics have fewer than two rows in common.
    """
    used = {seen.columns[key].topic for key in fields.values()}
    first = max(int(seen.times[t][0]) for t in used)
    last = min((int(seen.times[t][-1]) for t in used if len(seen.times[t]) > 1), default=first)
    if hz is not None:
        count = int((last - first) * hz / SECOND + 1e-6) + 1 if last >= first else 0
        _check_gap(recording.path.name, {t: seen.times[t] for t in used}, count, hz)
        times = first + np.rint(np.arange(count) * SECOND / hz).astype(np.int64)
    else:
        clock = seen.times[seen.columns[next(key for f, key in fields.items() if is_action(f))].topic]
        times = np.unique(clock[(clock >= first) & (clock <= last)])
    if len(times) < 2:
        raise UnknownLayout(
            f"{recording.path.name}: its topics have {plural(len(times), 'row')} in common: they begin together at "
            f"{first / SECOND:.3f} s, and the first to end does so at {last / SECOND:.3f} s.",
            hint="--topics or --map without the topic that lacks messages; --hz makes more rows",
        )
    return times


def _check_gap(name: str, times: Mapping[str, IntArray], count: int, hz: float) -> None:
    """Refuse far more rows than messages: a clock that was set, or a file of two days, makes billions of them."""
    messages = sum(map(len, times.values()))
    if count <= max(_FEW_ROWS, _MOST_ROWS * messages):
        return
    every = np.unique(np.concatenate([*times.values()]))
    k = int(np.argmax(np.diff(every)))
    raise UnknownLayout(
        f"{name}: {plural(messages, 'message')} would make {count:,} rows at {hz:g} Hz, for its times have a gap of "
        f"{(every[k + 1] - every[k]) / SECOND:,.1f} s, from {every[k] / SECOND:.3f} to {every[k + 1] / SECOND:.3f} s.",
        hint="cut the recording there; or --topics without the topic whose times are wrong, or a lower --hz",
    )


def at(times: IntArray, rows: IntArray, *, nearest: bool) -> IntArray:
    """Return the number of the latest message at each of ``rows``, or of the nearest one."""
    latest = np.searchsorted(times, rows, "right") - 1
    if not nearest:
        return latest
    after = np.minimum(latest + 1, len(times) - 1)
    return np.where(times[after] - rows < rows - times[latest], after, latest)


# -- the reader


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe the topics in one line; None for other files."""
    files = [p for p in paths if p.name != METADATA]
    if not files or not all(map(is_recording, files)):
        return None
    bags = _bags(paths)
    with open_recording(bags[0]) as recording:
        said = f"{plural(len(bags), 'recording')}, the first with " if len(bags) > 1 else "a recording of "
        return f"{said}{plural(len(recording.topics), 'topic')}: {_listed(recording)}"


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


def _field(name: str, c: TopicColumn, file: str) -> Field:
    if name == REWARD and (c.dtype == "str" or int(np.prod(c.shape)) != 1):
        raise UnknownLayout(f"{file}: {c.key} is {c.dtype} {list(c.shape)}; a reward is one number.")
    placement: Any = "next" if name.startswith("next/") else "both" if is_observation(name) else "root"
    shape = () if name == REWARD else c.shape
    return Field(name, c.dtype, shape, placement, c.kind, c.codec)


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read one recording."""
    first, times = part.args["file"], np.asarray(part.args["times"])
    about: Mapping[str, Any] = part.args["episode"]
    exported, final = bool(about), about.get("observed", True)
    bag = plan.archive.files[first : first + part.args["files"]]
    sent: Mapping[str, IntArray] = {topic: np.asarray(t) for topic, t in part.args["sent"].items()}
    numbers = {topic: at(t, times, nearest=plan.archive.nearest) for topic, t in sent.items()}
    places: Mapping[str, Sequence[str]] = plan.facts["columns"]
    fields, steps = {f.name: f for f in plan.schema}, len(times) - 1
    columns: dict[str, Any] = {}
    with open_recording(bag) as recording:
        light = {k: tuple(places[k]) for n, k in plan.facts["fields"].items() if n in FLAGS or not _is_heavy(fields[n])}
        values = _values(recording, light)
        for name, key in plan.facts["fields"].items():
            topic, leaf = places[key]
            f, of = fields[name], numbers[topic]
            rows = of[: steps + final] if f.placement == "both" else of[1:] if f.placement == "next" else of[:steps]
            if key in light and exported:
                taken = [values[key][i] for i in rows.tolist()]
                columns[name] = recorded_episode.values_of(taken, f, f"{bag[0].name}: {topic}")
            elif key in light:
                columns[name] = _taken(values[key], rows, f)
            else:
                columns[name] = _Images(recording, topic, leaf, f, sent[topic], rows, exported)
        for topic, t in sent.items() if not exported else ():
            age = (times[:steps] - t[numbers[topic][:steps]]) / SECOND
            columns[f"{AGE}{topic.strip('/')}"] = age.astype(np.float32)
        end = about["end"] if exported else _flags(columns, plan.facts["fields"], steps, bag[0].name)
        if exported and end == CUT and FLAGS[1] in columns:
            columns[FLAGS[1]][-1] = True
        of_episode = {"end": end, "source": first, **about}
        yield from chunks(plan.schema, [EpisodeData(columns, steps, **of_episode)])


def _about(episode: RecordedEpisode | None) -> dict[str, Any]:
    """Return what an export says of an episode, as the episode table has it; nothing of a recording of a robot."""
    if episode is None:
        return {}
    about = {"seed": episode.seed, "options": episode.options, "extra": dict(episode.columns)}
    return {**about, "end": episode.end, "observed": episode.final}


def _is_heavy(f: Field) -> bool:
    return f.kind == "frames" or f.row_bytes > HEAVY


def _values(recording: Recording, places: Mapping[str, Sequence[str]]) -> dict[str, list[Any]]:
    """Read all values of some columns, each a topic and a leaf, by key."""
    found: dict[str, list[Any]] = {key: [] for key in places}
    of: dict[str, list[tuple[str, str]]] = {}
    for key, (topic, leaf) in places.items():
        of.setdefault(topic, []).append((key, leaf))
    for m in recording.messages([*of]):
        leaves = m.leaves()
        for key, leaf in of[m.topic]:
            found[key].append(leaves.get(leaf))
    return found


def _taken(values: Sequence[Any], rows: IntArray, f: Field) -> Any:
    taken = [values[i] for i in rows.tolist()]
    if f.kind == "text":
        return taken
    if f.name in FLAGS:
        return np.array([bool(np.any(v)) for v in taken], bool)
    return np.array(taken).astype(f.dtype).reshape(len(rows), *f.shape)


def _flags(columns: dict[str, Any], fields: Mapping[str, str], steps: int, file: str) -> int:
    """Complete the flags, which only the last step may have, and return how the episode ends."""
    for name in FLAGS:
        flags = columns.setdefault(name, np.zeros(steps, bool))
        if flags[:-1].any():
            raise UnknownLayout(
                f"{file}: {fields[name]} is set at step {int(np.argmax(flags)):,} of {steps:,}: a recording is one "
                "episode, which ends with its last step.",
                hint="leave out --map of the flag, or cut the recording there",
            )
    end = TERMINATED if columns[FLAGS[0]][-1] else TRUNCATED if columns[FLAGS[1]][-1] else CUT
    columns[FLAGS[1]][-1] |= end == CUT
    return end


class _Images(LazyColumn):
    """Images of the messages that rows refer to, read when they are laid out."""

    def __init__(
        self,
        recording: Recording,
        topic: str,
        leaf: str,
        field: Field,
        times: IntArray,
        rows: IntArray,
        exported: bool,
    ) -> None:
        self._recording, self._topic, self._leaf, self._field = recording, topic, leaf, field
        self._times, self._rows, self._exported = times, rows, exported

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, decoded."""
        return len(self._rows) * self._field.row_bytes

    def cut(self, start: int, stop: int) -> Any:
        """Read the images of rows [start, stop)."""
        f, rows = self._field, self._rows[start:stop]
        if not len(rows):
            return [] if f.kind == "frames" else np.zeros((0, *f.shape), f.dtype)
        wanted, found = {*rows.tolist()}, dict[int, Any]()
        first, last = int(self._times[rows.min()]), int(self._times[rows.max()])
        number = int(np.searchsorted(self._times, first))
        for m in self._recording.messages([self._topic], first, last):
            if number in wanted:
                found[number] = m.leaves().get(self._leaf)
            number += 1
        return self._checked([found[n] for n in rows.tolist()], start)

    def _checked(self, images: list[Any], start: int) -> Any:
        f, where = self._field, f"{self._recording.path.name}: {self._topic}"
        if f.kind == "frames":
            image_columns.check(
                [i if isinstance(i, bytes) else None for i in images],
                image_columns.EncodedColumn(f.codec, f.shape, f.dtype),
                where,
                start,
            )
            return images
        if self._exported:
            return recorded_episode.values_of(images, f, where)
        for image in images:
            if np.shape(image) != f.shape or image.dtype != f.dtype:
                shape = list(np.shape(image))
                raise UnknownLayout(f"{where} has an image of {shape}; {list(f.shape)} is that of the first.")
        return np.stack(images)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Yield nothing: all values are those of steps."""
    return iter(())


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the messages of a step, and those of the next observation."""
    names = place.facts["bags"].get(place.file.relative_to(place.root).as_posix())
    with open_recording([place.root / n for n in names] if names else place.file) as recording:
        wanted: Mapping[str, str] = place.facts["fields"]
        topics = {key: _topic_of(recording, key) for key in wanted.values()}
        every: dict[str, list[Message]] = {}
        for m in recording.messages({*topics.values()}):
            every.setdefault(m.topic, []).append(m)
        if place.facts["exported"]:
            yield from _looked_up_as_exported(place, wanted, every)
            return
        hz = place.facts["hz"]
        first = max(of[0].time for of in every.values())
        last = min((of[-1].time for of in every.values() if len(of) > 1), default=first)
        clock = every[topics[next(k for f, k in sorted(wanted.items()) if is_action(f))]]
        ticks = sorted({m.time for m in clock if first <= m.time <= last})
        for name, key in wanted.items():
            if name in FLAGS:
                continue
            for shift, field in ((0, name), (1, f"next/{name}")):
                if name.startswith("next/") or (shift and not is_observation(name)):
                    field, shift = name, int(name.startswith("next/"))
                now = first + int(np.rint((place.step + shift) * SECOND / hz)) if hz else ticks[place.step + shift]
                of = every[topics[key]]
                if place.facts["nearest"]:
                    m = min(of, key=lambda m: (abs(m.time - now), m.time > now))
                else:
                    m = [m for m in of if m.time <= now][-1]
                leaf = key.removeprefix(topics[key]).strip("/")
                yield ArchivedValue(field, f"{key} at {m.time / SECOND:.6f} s", m.leaves()[leaf])
                if field == name and not is_observation(name):
                    break


def _looked_up_as_exported(
    place: ArchivedStep, wanted: Mapping[str, str], every: Mapping[str, Sequence[Message]]
) -> Iterator[ArchivedValue]:
    for name, topic in wanted.items():
        if name not in FLAGS:
            for shift, field in ((0, name), (1, f"next/{name}")) if is_observation(name) else ((0, name),):
                if place.step + shift < len(every[topic]):
                    m = every[topic][place.step + shift]
                    yield ArchivedValue(field, f"{topic} at {m.time / SECOND:.6f} s", m.leaves()[""])


def _topic_of(recording: Recording, key: str) -> str:
    return max((t for t in recording.topics if key == t or key.startswith(f"{t}/")), key=len)
