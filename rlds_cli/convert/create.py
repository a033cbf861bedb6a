"""Datasets from a user's own episodes, whatever they come from.

What the episode of a dataset keeps of it when `create` writes it again: everything that was not changed.

``ds.episode(k)`` gives arrays: frames decoded, next observations beside observations. A field whose values are still
those of the dataset is taken as the dataset stores it, with its JPEG or video bytes and its final row; what arrays do
not say (a cut, the seed, the splits, the episode columns) is taken from there too.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

import numpy as np

from rlds_cli import home, ids, settings
from rlds_cli.checks.run import record
from rlds_cli.convert.trajectories import Trajectory, trajectories
from rlds_cli.dataset import Dataset, environments, open_dataset
from rlds_cli.dataset.provenance import EpisodeOrigin
from rlds_cli.errors import InvalidArgument, InvalidEpisode, NameTaken, NoSpace
from rlds_cli.files import safe as safe_files
from rlds_cli.files import trees
from rlds_cli.home import Home
from rlds_cli.home.locks import exclusive
from rlds_cli.ids import DatasetId
from rlds_cli.progress import Progress, Stage, shown
from rlds_cli.settings import Settings, StrPath
from rlds_cli.store import episode_table, publishing
from rlds_cli.store.build import write_rows
from rlds_cli.store.finish import Description, finish
from rlds_cli.store.opening import Store
from rlds_cli.store.videos import Extent
from rlds_cli.ted import (
    CUT,
    FLAGS,
    VIDEO,
    Array,
    Chunk,
    EncodedFrames,
    EpisodeData,
    Field,
    Note,
    Part,
    Scalar,
    VideoFrames,
    lay_out,
    spaces,
)
from rlds_cli.ted import episodes as episode_dicts
from rlds_cli.ted.episodes import Flat, Value, is_single


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
    frames: Literal["encoded", "raw"] = "encoded",
    store: Literal["memmap", "zarr"] = "memmap",
    force: bool = False,
    cache_dir: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Dataset:
    """Write episodes as a dataset: read one at a time, published as a whole or not at all.

    Parameters
    ----------
    ref : str
        The id, as in ``local/press``.
    episodes : iterable of mappings
        Each ``{"observation": [T+1, ...], "action": [T, ...], "next": {"reward": [T], "terminated": [T],
        "truncated": [T]}}``, nested as deep as you like; arrays, tensors, lists, or lists of strings. Observations of T
        rows mean that the final one is not known. A single flag stands for the last step; without flags an episode
        counts as cut. Other fields with T+1 rows are known at both ends of a step, those with T rows belong to it.
        ``"episode": {"task": "press", "success": True}`` are columns of the episode table: a number, flag or text each.
    env_id : str, optional
        The environment that they are of. Where Gymnasium is installed and has it, its spaces are recorded as well.
    fps : float, optional
        Steps per second, for ``Offsets(..., unit="s")``.
    observation_space, action_space : gymnasium.Space, mapping or str, optional
        Spaces, as Gymnasium's or in Minari's JSON form: ``ds.observation_space`` and ``ds.action_space``.
    license, description, citation : str, optional
        What `rlds inspect` and `rlds info` say of it; ``citation`` is a BibTeX entry.
    frames : {"encoded", "raw"}
        Frames that come unchanged from ``ds.episode(k)`` stay as that dataset keeps them, or become arrays.
    store : {"memmap", "zarr"}
        Mapped files, or compressed.
    force : bool
        Replace a dataset of this id.

    Raises
    ------
    NameTaken
        The id exists.
    InvalidArgument
        ``fps`` is not a positive number, a space is none or does not fit the fields, a text is none.
    InvalidEpisode
        An episode does not fit; it is named with the field and the numbers. Nothing is published.

    Examples
    --------
    >>> import numpy as np, tempfile, rlds_cli
    >>> episode = {"observation": np.zeros((4, 2)), "action": np.ones((3, 1)),
    ...            "next": {"reward": [0.0, 0.0, 1.0], "terminated": True}}
    >>> ds = rlds_cli.create("local/press", [episode], cache_dir=tempfile.mkdtemp())
    >>> ds.num_transitions, ds.episodes["end"].tolist()
    (3, ['terminated'])
    """
    id = ids.parse(ref)
    env = ({"id": env_id} if env_id else {}) | _rate(fps)
    given = {"observation": observation_space, "action": action_space}
    told = {n: spaces.described(space, f"{n}_space") for n, space in given.items() if space is not None}
    if frames not in ("encoded", "raw"):
        raise InvalidArgument(f'frames={frames!r}: "encoded" or "raw".')
    facts = _texts(license=license, description=description, citation=citation)
    where = settings.read(cache_dir)
    place = Home(where.home)
    _check_free(id, where, force)
    with exclusive(place, id, shown(progress)):
        _check_free(id, where, force)  # another process may have held the lock
        work = place.partial(id, f"create-{secrets.token_hex(4)}")
        safe_files.work_directory(work, place.root)
        try:
            job = _EpisodesJob(str(id), episodes, keep_frames=frames == "encoded")
            found, notes = _spaces(told, env_id, job.schema)
            built = write_rows(job, work, jobs=0, progress=shown(progress))
            built = replace(built, notes=(*built.notes, *notes))
            about = Description(str(id), store, env=env, reader="create", spaces=found, facts=facts)
            finish(built, about, locate=job.films.locate)
            record(built.directory)
            publishing.publish(built.directory, place.dataset(id))
        except NoSpace as e:  # an iterable cannot be taken up where it was
            raise NoSpace(
                f"The disk of {place.root} is full. Nothing of {id} is kept.",
                hint="free some space, or another home: cache_dir=DIR",
            ) from e
        finally:
            trees.discard(work)
    return open_dataset(str(id), cache_dir=cache_dir)


def _texts(**given: str | None) -> dict[str, str]:
    """What is said of a dataset, as the manifest holds it."""
    for name, text in given.items():
        if text is not None and not isinstance(text, str):
            raise InvalidArgument(f"{name}={text!r}: a text is needed.")
    return {"licence" if name == "license" else name: text for name, text in given.items() if text}


def _spaces(
    told: Mapping[str, Any], env_id: str | None, schema: Sequence[Field]
) -> tuple[dict[str, Any], tuple[Note, ...]]:
    """The spaces that were given, or else are those of the environment; a note where these cannot be had."""
    for name, space in told.items():
        wrong = spaces.misfit(space, schema, name)
        if wrong:
            raise InvalidArgument(f"{name}_space: {wrong}. Nothing was written.")
    if not env_id or len(told) == 2:
        return dict(told), ()
    known, why = environments.known_spaces(env_id, schema)
    return known | dict(told), (Note("no-space", why),) if why else ()


def _rate(fps: float | None) -> dict[str, float]:
    """How many steps a second has, as the manifest holds it."""
    if fps is None:
        return {}
    try:
        rate = float(fps)
    except (TypeError, ValueError):
        rate = math.nan
    if isinstance(fps, bool) or not 0 < rate < math.inf:
        raise InvalidArgument(f"fps={fps!r}: a positive number of steps per second is needed.")
    return {"fps": rate}


def _check_free(id: DatasetId, where: Settings, force: bool) -> None:
    if home.find(id, where) and not force:
        raise NameTaken(f"{id} exists.", hint="another name, or force=True to replace it")


# What other libraries call these; taken as they come, they would be fields that no loader gives.
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


class _EpisodesJob:
    """An iterable as one part; it cannot be read twice, so it is not resumed."""

    key = "episodes"
    stage: Stage = "convert"
    parts: Sequence[Part] = (Part(None, {}),)

    def __init__(self, id: str, items: Iterable[Mapping[str, Any]], *, keep_frames: bool = True) -> None:
        self.id = id
        self.schema: tuple[Field, ...] = ()
        self.films = Films()
        self._keep_frames = keep_frames
        self._kinds: dict[str, str] = {}  # of the episode columns, so far
        self._empty: list[str] = []  # episodes without steps
        self._splits: set[str] = set()  # those of datasets that episodes are of, empty ones too
        rest = self._episodes(trajectories(items))
        first = next(rest, None)  # it says what the fields are
        if first is None:
            raise InvalidEpisode(f"There are no episodes with steps to make {id} of. Nothing was written.")
        self._data = chain([first], rest)

    def read(self, part: Part) -> Iterator[Chunk]:
        yield from episode_dicts.chunks(self._data, self.schema)
        nothing = lay_out(self.schema, [])
        nothing.episodes.splits = {name: np.zeros(0, bool) for name in self._splits}
        if self._empty:
            text = "episodes without steps were left out"
            nothing.notes = (Note("empty-episodes", text, len(self._empty), self._empty[0]),)
        yield nothing

    def name(self, number: int) -> str:
        """How messages call the part."""
        return "the episodes"

    def _episodes(self, found: Iterator[Trajectory]) -> Iterator[EpisodeData]:
        for number, t in enumerate(found):
            of = self._original(t)
            flat, length, end = self._read(of, t)
            if length == 0:
                self._empty.append(t.name)
                continue
            if not self.schema:
                self.schema = episode_dicts.infer_schema(flat, length, both=of.both, known=of.fields)
            self._splits.update(splits_of(t.origin.store) if t.origin else ())
            about = {**of.extra, **t.about}
            self._check_types(about, t.name)
            yield EpisodeData(
                episode_dicts.owned(episode_dicts.fit(flat, self.schema, t.name)),
                length,
                CUT if of.cut else end,
                row=number,
                seed=of.seed,
                options=of.options,
                splits=of.splits,
                extra=about,
                observed=t.observed,
            )

    def _original(self, t: Trajectory) -> Original:
        """The trajectory with what is known of it where it is the episode of a dataset."""
        schema = {f.name: f for f in self.schema}
        if t.origin is not None:
            return original(t.origin, t.flat, t.both, schema, self.films, keep_frames=self._keep_frames)
        return Original(t.flat, both=t.both, apart=frozenset(n for n in schema if f"next/{n}" in schema))

    def _read(self, of: Original, t: Trajectory) -> tuple[Flat, int, int]:
        flat = dict(of.flat)
        if any(flag in flat for flag in FLAGS):
            for flag in _ROOT_FLAGS:  # False on every step, by TED
                flat.pop(flag, None)
        rows = [
            len(flat[name]) for name in ("action", *FLAGS) if name in flat and not episode_dicts.is_single(flat[name])
        ]
        for given in flat:
            if given in _MEANT:
                raise InvalidEpisode(
                    f"{t.name}: {given} is not TED's name.", hint=f'"{_MEANT[given]}" is; a name with / nests'
                )
            value = flat[given]
            text = isinstance(value, list) and len(value) == 1 < max(rows, default=0)
            if (text or episode_dicts.is_single(value)) and not given.startswith("next/"):
                raise InvalidEpisode(
                    f"{t.name}: {given} is a single value; a field has one for each step.",
                    hint=f'"episode": {{"{given}": ...}} is a value of the whole episode',
                )
        if t.origin is None and not any(given.partition("/")[0] == "observation" for given in flat):
            raise InvalidEpisode(f"{t.name} has no observation: {', '.join(flat) or 'nothing'}.")
        return episode_dicts.read(flat, t.name, apart=of.apart)

    def _check_types(self, about: Mapping[str, Scalar], name: str) -> None:
        """Refuse a value of another type than its column has had so far."""
        for column, value in about.items():
            if value is not None:
                self._kinds[column] = episode_table.joint_kind(self._kinds.get(column), value, column, name)


@dataclass(slots=True)
class Original:
    """A trajectory with what its dataset knows of it.

    ``fields`` are those taken as they are stored, ``both`` those known at both ends of a step, ``apart`` those whose
    next values are a field of their own. ``cut``: it ends where the data end, which its flags do not tell from a
    truncation.
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


@dataclass(slots=True)
class Films:
    """Where the videos lie that frames are taken from, by the name that a dataset under construction calls them."""

    known: dict[str, tuple[Store, str, int]] = field(default_factory=dict)

    def name(self, store: Store, name: str, number: int) -> str:
        """A name for video ``number`` of a field."""
        key = f"{store.manifest.fingerprint} {store.path} {name} {number}"
        self.known[key] = (store, name, number)
        return key

    def locate(self, _field: str, key: str) -> Extent:
        """Where its bytes are."""
        store, name, number = self.known[key]
        return store.videos(name).extent(number)


def original(
    origin: EpisodeOrigin,
    flat: Flat,
    filled: frozenset[str],
    schema: Mapping[str, Field],
    films: Films,
    *,
    keep_frames: bool,
) -> Original:
    """Compare the fields of a trajectory with its origin, and take what is the same from there.

    Parameters
    ----------
    origin : EpisodeOrigin
    flat : dict
        Its fields; those ``filled`` have T rows and no next values, as the final observation is not known.
    schema : mapping
        The fields of the dataset under construction; empty before its first episode.
    keep_frames : bool
        Keep frames encoded; else they stay the arrays that they are.
    """
    store, k = origin.store, origin.number
    e = store.episodes
    start, length = int(e["start"][k]), int(e["length"][k])
    observed = bool(e["num_observed"][k] > length)
    of = Original(dict(flat), splits=tuple(s for s in splits_of(store) if e[f"split/{s}"][k]), extra=_extra(store, k))
    of.apart = frozenset(n for n in store.fields if f"next/{n}" in store.fields)
    of.both = filled
    if any(not _has_rows(flat, name, length) for name in (*FLAGS, "action") if name in flat):
        return of  # a part of it
    of.both = filled | {n for n, f in store.fields.items() if f.placement == "both"}
    of.seed = int(e["seed"][k]) if "seed" in e and e["has_seed"][k] else None
    of.options = store.episode_strings("options")[k] or None
    for name, f in store.fields.items():
        wanted = schema.get(name)
        frames = f.kind == "frames" and (not keep_frames or (wanted is not None and wanted.kind == "array"))
        if frames or not _unchanged(store, f, flat, start, length, filled):
            continue
        rows = length + (f.placement == "both" and observed)
        of.flat[name] = _stored(store, f, start, start + rows, films)
        of.fields[name] = f
        if f.placement == "both" and name not in of.apart:
            of.flat.pop(f"next/{name}", None)
    of.cut = int(e["end"][k]) == CUT and all(name in of.fields for name in FLAGS)
    return of


def splits_of(store: Store) -> list[str]:
    """The named splits of a dataset."""
    return [name.removeprefix("split/") for name in store.episodes if name.startswith("split/")]


def _extra(store: Store, k: int) -> dict[str, Scalar]:
    return {name: store.own_column(name).scalar(k) for name in store.own_columns}


def _has_rows(flat: Flat, name: str, rows: int) -> bool:
    return not is_single(flat[name]) and len(flat[name]) == rows


def _unchanged(store: Store, f: Field, flat: Flat, start: int, length: int, filled: frozenset[str]) -> bool:
    """Whether the values given are those of the dataset."""
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
    given = given[:, 0] if given.ndim == there.ndim + 1 and given.shape[1:] == (1,) else given
    return given.shape == there.shape and given.tobytes() == there.tobytes()


def _stored(store: Store, f: Field, a: int, b: int, films: Films) -> Any:
    """Rows ``a`` to ``b`` as the dataset stores them."""
    if f.codec == VIDEO:
        return _of_videos(store, f, store.rows(f.name)[a:b], films)
    if f.kind == "frames":
        offsets = store.frame_offsets(f.name)[a : b + 1]
        data = np.array(store.frame_bytes(f.name)[int(offsets[0]) : int(offsets[-1])])
        return EncodedFrames(data, np.diff(offsets), f.shape, f.codec)
    values = store.gather(f.name, np.arange(a, b))
    return values.tolist() if f.kind == "text" else values


def _of_videos(store: Store, f: Field, index: Array, films: Films) -> VideoFrames:
    numbers, place = np.unique(index[:, 0], return_inverse=True)
    names = [films.name(store, f.name, int(n)) if n >= 0 else "" for n in numbers]
    where = np.where(index[:, 0] >= 0, place.reshape(-1), -1)
    return VideoFrames(tuple(names), np.stack([where, index[:, 1]], 1).astype(np.int32))
