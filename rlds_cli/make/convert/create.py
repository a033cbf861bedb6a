"""Create datasets from episodes in memory.

Episodes may come from other datasets. ``ds.episode(k)`` gives arrays: frames decoded, next observations beside
observations. A field with unchanged values is copied as its dataset stores it, with its JPEG or video bytes and its
final row, and so are facts that arrays do not hold: a cut, the seed, the splits, the episode columns.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

import numpy as np

from rlds_cli import homes
from rlds_cli.base import ids, settings
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files import trees
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.media import image_header
from rlds_cli.base.media.mp4 import Extent
from rlds_cli.base.progress import Progress, Stage, shown
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.base.text import is_below
from rlds_cli.dataset import Dataset, known_spaces, open_dataset
from rlds_cli.dataset.provenance import EpisodeOrigin
from rlds_cli.errors import InvalidArgument, InvalidEpisode, NameTaken, NoSpace
from rlds_cli.homes import Home, exclusive
from rlds_cli.look import record_findings
from rlds_cli.make.convert.cameras import Video
from rlds_cli.make.convert.stated import rate, texts
from rlds_cli.make.convert.trajectories import Trajectory, trajectories
from rlds_cli.store import (
    Built,
    CheckedFrames,
    ColumnKinds,
    Description,
    Facts,
    History,
    Store,
    StoredDataset,
    Work,
    decoded_frames,
    finish,
)
from rlds_cli.store.images import Images
from rlds_cli.ted import (
    CUT,
    FLAGS,
    TASK,
    TASK_AT,
    VIDEO,
    Chunk,
    EncodedFrames,
    EpisodeData,
    Field,
    Flat,
    Note,
    Part,
    Scalar,
    Space,
    Subtasks,
    Value,
    VideoFrames,
    check_episode,
    chunks,
    fit_columns,
    infer_schema,
    is_bytes,
    is_single,
    lay_out,
    owned,
    parts_of,
)

# Names of other libraries. Stored as they are, they would be fields that no loader uses.
_MEANT = {
    "observations": "observation",
    "obs": "observation",
    "next_observations": "next/observation",
    "next_observation": "next/observation",
    "actions": "action",
    "rewards": "next/reward",
    "reward": "next/reward",
    "next/rewards": "next/reward",
    "terminals": "next/terminated",
    "terminations": "next/terminated",
    "terminated": "next/terminated",
    "timeouts": "next/truncated",
    "truncations": "next/truncated",
    "truncated": "next/truncated",
    "done": "next/terminated",
    "dones": "next/terminated",
}
_ROOT_FLAGS = ("done", "terminated", "truncated")
CODECS = (*image_header.CODECS, VIDEO)  # of frames that stay encoded


# -- the dataset


def create(
    ref: str,
    episodes: Iterable[Mapping[str, Any]],
    *,
    env_id: str | None = None,
    fps: float | None = None,
    observation_space: Any = None,
    action_space: Any = None,
    license: str | None = None,
    description: str | None = None,
    citation: str | None = None,
    depth_unit: Literal["mm", "m"] | None = None,
    frames: Literal["encoded", "raw"] = "encoded",
    storage: Literal["memmap", "zarr"] = "memmap",
    force: bool = False,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Dataset:
    """Write episodes as a dataset. They are read one at a time, and published together or not at all.

    Parameters
    ----------
    ref : str
        The id, as in ``local/press``.
    episodes : iterable of mappings
        Each ``{"observation": [T+1, ...], "action": [T, ...], "next": {"reward": [T], "terminated": [T],
        "truncated": [T]}}``, nested to any depth; arrays, tensors, lists, or lists of strings. With T rows of
        observations the final one is unknown. A single flag is that of the last step; an episode without
        flags counts as cut. Other fields have T+1 rows (known at both ends of a step) or T rows (belong to the step).
        A list of ``bytes`` or `rlds_cli.Frames` holds the frames of a camera, PNG or JPEG of one size, and
        `rlds_cli.Video` those of an MP4 file; they are stored as they are.
        Agents may be in groups: ``{"agents": {"observation": ..., "action": ...}, "next": {"agents": {"reward":
        ...}}}``.
        ``"episode": {"task": "press", "success": True}`` are columns of the episode table: a number, flag or text each.
        Texts ``"task": [T]``, one for each step, become the column ``task``, the first of each episode, and the field
        ``task_at`` where an episode has several.
    env_id : str, optional
        The environment of the episodes. If Gymnasium is installed and has it, its spaces are recorded too.
    fps : float, optional
        Steps per second, for ``Offsets(..., unit="s")``.
    observation_space, action_space : gymnasium.Space, mapping or str, optional
        Spaces, as Gymnasium's or in Minari's JSON form: ``ds.observation_space`` and ``ds.action_space``.
    license, description, citation : str, optional
        Texts for `rlds inspect` and `rlds info`; ``citation`` is a BibTeX entry.
    depth_unit : {"mm", "m"}, optional
        What a number in frames of depth, PNG of 16 bits, stands for; `rlds_cli.loader.Metres` converts them.
    frames : {"encoded", "raw"}
        Keep frames given as bytes, and unchanged ones of ``ds.episode(k)``, as they are; or store arrays.
    storage : {"memmap", "zarr"}
        Memory-mapped files, or compressed ones.
    force : bool
        Replace a dataset of this id.

    Raises
    ------
    NameTaken
        The id exists.
    InvalidArgument
        ``fps`` is not a positive number, a space is not valid or does not fit the fields, a text is not a string, or
        ``depth_unit`` not a unit,
        ``episodes`` is a single one.
    InvalidEpisode
        An episode does not fit, or a frame does not decode; the message names it, the field and the numbers. Nothing
        is published.

    Examples
    --------
    >>> import numpy as np, tempfile, rlds_cli
    >>> episode = {"observation": np.zeros((4, 2)), "action": np.ones((3, 1)),
    ...            "next": {"reward": [0.0, 0.0, 1.0], "terminated": True}}
    >>> ds = rlds_cli.create("local/press", [episode], home=tempfile.mkdtemp())
    >>> ds.num_transitions, ds.episodes["end"].tolist()
    (3, ['terminated'])
    """
    id = ids.parse(ref)
    env = ({"id": env_id} if env_id else {}) | rate(fps)
    given = {"observation": observation_space, "action": action_space}
    told = {n: Space.given(space, f"{n}_space") for n, space in given.items() if space is not None}
    if frames not in ("encoded", "raw"):
        raise InvalidArgument(f'frames={frames!r}: "encoded" or "raw".')
    _check_several(ref, episodes)
    Facts.check_unit(depth_unit)
    facts = texts(license=license, description=description, citation=citation, depth_unit=depth_unit)
    where = settings.read(home)
    place = Home(where.home)
    check_free(id, where, force)
    with exclusive(place, id, shown(progress)):
        check_free(id, where, force)  # another process may have held the lock
        work = place.partial(id, f"create-{secrets.token_hex(4)}")
        safe_files.work_directory(work, place.root)
        try:
            job = _EpisodesJob(str(id), episodes, codecs=CODECS if frames == "encoded" else ())
            found, notes = _spaces(told, env_id, job.schema)
            built = Work(job, work).run(progress=shown(progress))
            built = replace(job.needed(built), notes=(*built.notes, *notes))
            about = Description(str(id), storage, env=env, reader="create", spaces=found, facts=facts)
            finish(built, about, locate=job.videos.locate)
            record_findings(built.directory)
            History(place.dataset(id)).replace(built.directory)
        except NoSpace as e:  # an iterable cannot be resumed
            raise NoSpace(
                f"The disk of {place.root} is full. Nothing of {id} is kept.",
                hint="free some space, or another home: home=DIR",
            ) from e
        finally:
            trees.discard(work)
    return open_dataset(str(id), home=home)


def _check_several(ref: str, episodes: Any) -> None:
    """Refuse a single episode, and what holds no episodes, where a list of them is needed."""
    written = f'create("{ref}", '
    if isinstance(episodes, Dataset):
        raise InvalidArgument(
            f"episodes is a dataset, {episodes.id}; a list of episodes is needed.",
            hint=f"{written}(ds.episode(k) for k in range(ds.num_episodes)))",
        )
    if hasattr(episodes, "keys") and hasattr(episodes, "items"):
        raise InvalidArgument(
            f"episodes is a single {type(episodes).__name__}; a list of episodes is needed.",
            hint=f"{written}[episode])",
        )
    if isinstance(episodes, str | bytes) or not hasattr(episodes, "__iter__"):
        raise InvalidArgument(
            f"episodes={episodes!r:.60}; a list of episodes is needed, a dict of arrays each.",
            hint="rlds_cli.import_files(PATH, ID) reads files" if isinstance(episodes, str) else None,
        )


def _spaces(
    told: Mapping[str, Space], env_id: str | None, schema: Sequence[Field]
) -> tuple[dict[str, Any], tuple[Note, ...]]:
    """Return the given spaces, else those of the environment, with a note if these are not available."""
    for name, space in told.items():
        wrong = space.misfit(schema, name)
        if wrong:
            raise InvalidArgument(f"{name}_space: {wrong}. Nothing was written.")
    forms = {name: space.form for name, space in told.items()}
    if not env_id or len(told) == 2:
        return forms, ()
    known, why = known_spaces(env_id, schema)
    return known | forms, (Note("no-space", why),) if why else ()


def check_free(id: DatasetId, where: Settings, force: bool, how: str = "force=True") -> None:
    """Raise NameTaken if the id exists and is not replaced (``how`` does it), has tags, or is being written."""
    found = homes.path_of(id, where)
    if found and not force:
        raise NameTaken(f"{id} exists.", hint=f"another name, or {how} to replace it")
    if found:
        StoredDataset(found).check_not_written()
    History(Home(where.home).dataset(id)).check_replaceable()


class _EpisodesJob:
    """An iterable as a job with one part. It cannot be read twice, so the job cannot be resumed."""

    key = "episodes"
    stage: Stage = "convert"
    parts: Sequence[Part] = (Part(None, {}),)

    def __init__(self, id: str, items: Iterable[Mapping[str, Any]], *, codecs: Sequence[str] = CODECS) -> None:
        self.id = id
        self._reader = EpisodeReader(codecs=codecs)
        self.videos = self._reader.videos
        rest = self._reader.episodes(trajectories(items))
        first = next(rest, None)  # it defines the fields
        if first is None:
            raise InvalidEpisode(f"There are no episodes with steps to make {id} of. Nothing was written.")
        self.schema = self._reader.schema
        self._data = chain([first], rest)

    def read(self, part: Part) -> Iterator[Chunk]:
        yield from chunks(self.schema, self._data)
        nothing = lay_out(self.schema, [])
        nothing.episodes.splits = {name: np.zeros(0, bool) for name in self._reader.splits}
        if empty := self._reader.empty:
            text = "episodes without steps were left out"
            nothing.notes = (Note("empty-episodes", text, len(empty), empty[0]),)
        yield nothing

    def name(self, number: int) -> str:
        """Return the name of the part for messages."""
        return "the episodes"

    def needed(self, built: Built) -> Built:
        """Return what was written without the texts of steps, where each episode has one."""
        at = next((f for f in built.schema if f.name == TASK_AT), None)
        if at is None or self._reader.several_tasks:
            return built
        trees.discard(built.directory / built.paths[TASK_AT])
        return replace(built, schema=tuple(f for f in built.schema if f is not at))


class EpisodeReader:
    """Reads trajectories as episodes of one schema, which the first of them defines where none is given.

    Parameters
    ----------
    schema : sequence of Field
    codecs : sequence of str
        Of frames that are kept encoded; others are decoded.

    Attributes
    ----------
    schema : tuple of Field
    empty : list of str
        Names of episodes without steps, which are left out.
    splits : set of str
        Of the datasets that episodes come from, empty ones too.
    videos : VideoSources
    copies : bool
        Copy values, so that later writes into the given arrays do not change the episodes.
    several_tasks : bool
        An episode had several texts ``task``, one after the other.
    """

    copies = True

    def __init__(self, schema: Sequence[Field] = (), *, codecs: Sequence[str] = CODECS) -> None:
        self.schema = tuple(schema)
        self.videos = VideoSources()
        self.empty: list[str] = []
        self.splits: set[str] = set()
        self.several_tasks = False
        self._codecs = codecs
        self._kinds = ColumnKinds()

    def episodes(self, found: Iterator[Trajectory]) -> Iterator[EpisodeData]:
        """Yield the episodes, checked and in the dtypes of the schema; raises InvalidEpisode."""
        for number, t in enumerate(found):
            of = self._original(t)
            flat, length, end = self._read(of, t)
            if length == 0:
                self.empty.append(t.name)
                continue
            flat |= self._frames(flat, of, t.name)
            about = {**of.extra, **self._tasks(flat, t), **t.about}
            if not self.schema:
                self.schema = infer_schema(flat, length, both=of.both, known=of.fields)
            self.splits.update(splits_of(t.origin.store) if t.origin else ())
            if (told := about.get(Subtasks.COLUMN)) is not None:
                Subtasks.of(told, t.name, length)
            flat = self._filled(flat, about, length)
            self._kinds.add(about, t.name)
            fitting = fit_columns(flat, self.schema, t.name)
            yield EpisodeData(
                owned(fitting) if self.copies else fitting,
                length,
                CUT if of.cut else end,
                row=number,
                seed=of.seed,
                options=of.options,
                splits=of.splits,
                extra=about,
                observed=t.observed,
                id=of.id,
            )

    def _tasks(self, flat: Flat, t: Trajectory) -> dict[str, Scalar]:
        """Make ``task_at`` of the texts of steps that are called ``task``; return the column that follows from them."""
        texts = flat.pop(TASK) if isinstance(flat.get(TASK), list) else None
        at: Any = flat.get(TASK_AT, texts)
        if not isinstance(at, list):
            return {}
        there = TASK_AT in {f.name for f in self.schema}
        several = len(set(at)) > 1
        if several and self.schema and not there:
            raise InvalidEpisode(
                f"{t.name} has several texts {TASK}, one after the other, and the episodes before it one each.",
                hint=f"give the {TASK} of the first episode for each step, too; or rlds merge joins both kinds",
            )
        if several or there or not (self.schema or t.origin):
            flat[TASK_AT] = at
        elif self.schema:
            flat.pop(TASK_AT, None)  # all episodes have one
        self.several_tasks |= several
        return {TASK: next((text for text in at if text is not None), None)}

    def _filled(self, flat: Flat, about: Mapping[str, Scalar], length: int) -> Flat:
        """Return an episode with the text of each step, where only that of all is given and the schema has both."""
        text: Any = about.get(TASK)
        lacks = TASK_AT in {f.name for f in self.schema} and TASK_AT not in flat
        return flat | {TASK_AT: [text] * length} if lacks and isinstance(text, str | None) else flat

    def _original(self, t: Trajectory) -> OriginalEpisode:
        """Return the trajectory, with facts of its dataset if it comes from one."""
        schema = {f.name: f for f in self.schema}
        if t.origin is not None:
            return original(t.origin, t.flat, t.both, schema, self.videos, codecs=self._codecs)
        return OriginalEpisode(t.flat, both=t.both, apart=frozenset(n for n in schema if f"next/{n}" in schema))

    def _frames(self, flat: Flat, of: OriginalEpisode, where: str) -> Flat:
        """Return the fields that are frames as they will be stored: checked and encoded, or decoded."""
        given: dict[str, Any] = {
            n: v
            for n, v in flat.items()
            if n not in of.fields and (isinstance(v, EncodedFrames | Video) or is_bytes(v))
        }
        known = {f.name: f for f in self.schema}
        return {n: self._frames_of(images, known.get(n), n, where) for n, images in given.items()}

    def _frames_of(self, given: Images | Video, f: Field | None, name: str, where: str) -> Any:
        if isinstance(given, Video):
            stays = self._codecs if f is None else f.kind == "frames"
            return self.videos.of_file(given) if stays else given.decoded(name)
        if f is None and self._codecs:
            return CheckedFrames.of(given, None, name, where)
        if f is None or f.kind == "array":
            return decoded_frames(given, None if f is None else f.shape, name, where)
        return CheckedFrames.of(given, f if f.kind == "frames" and f.codec != VIDEO else None, name, where)

    def _read(self, of: OriginalEpisode, t: Trajectory) -> tuple[Flat, int, int]:
        flat = dict(of.flat)
        _check_flags_of_agents(flat, t.name)
        if any(flag in flat for flag in FLAGS):
            for flag in _ROOT_FLAGS:  # False on every step, by TED
                flat.pop(flag, None)
        rows = [
            len(flat[name])
            for name in (*parts_of(flat, "action"), *FLAGS)
            if name in flat and not is_single(flat[name])
        ]
        for given in flat:
            if meant := _meant(given, flat):
                raise InvalidEpisode(
                    f"{t.name}: {given} is not a TED name.", hint=f'use "{meant}"; a name with / is nested'
                )
            value = flat[given]
            text = isinstance(value, list) and len(value) == 1 < max(rows, default=0)
            if (text or is_single(value)) and not given.startswith("next/"):
                raise InvalidEpisode(
                    f"{t.name}: {given} is a single value; a field has one for each step.",
                    hint=f'"episode": {{"{given}": ...}} is a value of the whole episode',
                )
        if t.origin is None and not parts_of(flat, "observation"):
            raise InvalidEpisode(f"{t.name} has no observation: {', '.join(flat) or 'nothing'}.")
        return check_episode(flat, t.name, apart=of.apart)


_DONE = "next/done"


def _check_flags_of_agents(flat: Flat, where: str) -> None:
    """Refuse an episode in which flags of agents are set, and no flag says how all of it ends."""
    if any(name in flat for name in (*FLAGS, _DONE)):
        return
    last = {name.rpartition("/")[2] for name in (*FLAGS, _DONE)}
    for name, value in flat.items():
        group, _, flag = name.removeprefix("next/").rpartition("/")
        is_agent = any(is_below(n, f"{group}/action") or is_below(n, f"next/{group}/reward") for n in flat)
        if name.startswith("next/") and group and flag in last and is_agent and np.asarray(value).astype(bool).any():
            raise InvalidEpisode(
                f"{where}: {name} is set, which is a flag of agents, and no flag says how the episode ends.",
                hint='"next": {"terminated": ..., "truncated": ...} holds those of the episode, [T] or one of each',
            )


def _meant(name: str, flat: Flat) -> str | None:
    """Return the TED name that a name of another library stands for, of the agent or of a group of agents."""
    if name in _MEANT:
        return _MEANT[name]
    after = "next/" if name.startswith("next/") else ""
    group, _, leaf = name.removeprefix("next/").rpartition("/")
    if not group or leaf in _ROOT_FLAGS or f"{after}{leaf}" not in _MEANT or f"{group}/action" not in flat:
        return None
    to, _, meant = _MEANT[f"{after}{leaf}"].rpartition("/")
    whole = f"{to}/{group}/{meant}".lstrip("/")
    return None if whole in flat else whole


# -- episodes that batches of another dataset hold


@dataclass(slots=True)
class OriginalEpisode:
    """A trajectory with the facts of its dataset.

    ``fields`` are copied as they are stored, ``both`` are known at both ends of a step, ``apart`` have next values in a
    field of their own. ``cut`` means that the episode ends where the data end; flags cannot express it.
    """

    flat: Flat
    fields: dict[str, Field] = field(default_factory=dict)
    both: frozenset[str] = frozenset()
    apart: frozenset[str] = frozenset()
    cut: bool = False
    seed: int | None = None
    options: str | None = None
    splits: tuple[str, ...] = ()
    extra: Mapping[str, Scalar] = field(default_factory=dict)
    id: bytes | None = None


@dataclass(slots=True)
class VideoSources:
    """Extents of the videos that frames are copied from, by their names in the new dataset."""

    known: dict[str, tuple[Store, str, int] | Video] = field(default_factory=dict)

    def of_file(self, video: Video) -> VideoFrames:
        """Return the frames of a file, whose video gets a name."""
        self.known[video.files[0]] = video
        return VideoFrames(video.files, video.index, video.shape)

    def name(self, store: Store, name: str, number: int) -> str:
        """Return a name for video ``number`` of a field."""
        key = f"{store.version_id} {store.path} {name} {number}"
        self.known[key] = (store, name, number)
        return key

    def locate(self, _field: str, key: str) -> Extent:
        """Return the extent of a video."""
        known = self.known[key]
        if isinstance(known, Video):
            return known.extent()
        store, name, number = known
        return store.videos(name).extent(number)


def original(
    origin: EpisodeOrigin,
    flat: Flat,
    filled: frozenset[str],
    schema: Mapping[str, Field],
    videos: VideoSources,
    *,
    codecs: Sequence[str],
) -> OriginalEpisode:
    """Compare the fields of a trajectory with its origin, and take unchanged ones from there.

    Parameters
    ----------
    origin : EpisodeOrigin
    flat : dict
        Its fields. Those in ``filled`` have T rows and no next values: the final observation is unknown.
    schema : mapping
        The fields of the new dataset; empty before its first episode.
    codecs : sequence of str
        Of frames that are kept encoded; of others the given arrays are stored.
    """
    store, k = origin.store, origin.number
    flat = {name: _of_rows(store, name, values) for name, values in flat.items()}
    e = store.episodes
    start, length = int(e["start"][k]), int(e["length"][k])
    observed = bool(e["num_observed"][k] > length)
    of = OriginalEpisode(
        dict(flat), splits=tuple(s for s in splits_of(store) if e[f"split/{s}"][k]), extra=_extra(store, k)
    )
    of.apart = frozenset(n for n in store.fields if f"next/{n}" in store.fields)
    of.both = filled
    if any(not _has_rows(flat, name, length) for name in (*FLAGS, "action") if name in flat):
        return of  # a part of the episode
    of.id = e["id"][k].tobytes()
    of.both = filled | {n for n, f in store.fields.items() if f.placement == "both"}
    of.seed = int(e["seed"][k]) if "seed" in e and e["has_seed"][k] else None
    of.options = store.table.episode_strings("options")[k] or None
    for name, f in store.fields.items():
        wanted = schema.get(name)
        array = wanted is not None and wanted.kind == "array"
        decoded = f.kind == "frames" and (f.codec not in codecs or array)
        if decoded or not _unchanged(store, f, flat, start, length, filled):
            continue
        rows = length + (f.placement == "both" and observed)
        of.flat[name] = _stored_rows(store, f, start, start + rows, videos)
        of.fields[name] = f
        if f.placement == "both" and name not in of.apart:
            of.flat.pop(f"next/{name}", None)
    of.cut = int(e["end"][k]) == CUT and all(name in of.fields for name in FLAGS)
    return of


def _of_rows(store: Store, name: str, values: Value) -> Value:
    f = store.fields.get(name, store.fields.get(name.removeprefix("next/")))
    return values if f is None or not isinstance(values, np.ndarray) else f.of_rows(values)


def splits_of(store: Store) -> list[str]:
    """Return the named splits of a dataset."""
    return [name.removeprefix("split/") for name in store.episodes if name.startswith("split/")]


def _extra(store: Store, k: int) -> dict[str, Scalar]:
    return {name: store.own_column(name).scalar(k) for name in store.own_columns}


def _has_rows(flat: Flat, name: str, rows: int) -> bool:
    return not is_single(flat[name]) and len(flat[name]) == rows


def _unchanged(store: Store, f: Field, flat: Flat, start: int, length: int, filled: frozenset[str]) -> bool:
    """Return whether the given values are those of the dataset."""
    if f.name not in flat or len(flat[f.name]) != length:
        return False
    paired = f.placement == "both" and f"next/{f.name}" not in store.fields and f.name not in filled
    if paired and f"next/{f.name}" not in flat:
        return False
    there = store.gather(f.name, np.arange(start, start + length + paired))
    same = _same(flat[f.name], there[:length], f)
    return same and (not paired or _same(flat[f"next/{f.name}"], there[1:], f))


def _same(given: Value, there: Array, f: Field) -> bool:
    if f.kind == "text":
        return isinstance(given, list) and given == there.tolist()
    if not isinstance(given, np.ndarray) or given.dtype != there.dtype:
        return False
    return given.shape == there.shape and given.tobytes() == there.tobytes()


def _stored_rows(store: Store, f: Field, a: int, b: int, videos: VideoSources) -> Any:
    """Return rows ``a`` to ``b`` of a field as a chunk holds them: frames encoded, texts listed."""
    if f.codec == VIDEO:
        return of_videos(store, f, store.rows(f.name)[a:b], videos)
    if f.kind == "frames":
        return store.frames(f.name).encoded(np.arange(a, b))
    values = store.rows(f.name)[a:b]
    return store.texts(f.name, values).tolist() if f.kind == "text" else values


def of_videos(store: Store, f: Field, index: Array, videos: VideoSources) -> VideoFrames:
    """Return the frames (video, frame) of a dataset with the videos that they refer to by name."""
    numbers, place = np.unique(index[:, 0], return_inverse=True)
    names = [videos.name(store, f.name, int(n)) if n >= 0 else "" for n in numbers]
    where = np.where(index[:, 0] >= 0, place.reshape(-1), -1)
    return VideoFrames(tuple(names), np.stack([where, index[:, 1]], 1).astype(np.int32))
