"""Datasets from a user's own episodes, whatever they come from."""

from __future__ import annotations

import math
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

from rlds_cli import episodes as episode_dicts
from rlds_cli import home, ids, settings
from rlds_cli.bars import shown
from rlds_cli.checks.recording import record
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.episodes import Flat
from rlds_cli.errors import InvalidArgument, InvalidEpisode, NameTaken, NoSpace
from rlds_cli.home import Home
from rlds_cli.ids import DatasetId
from rlds_cli.locking import exclusive
from rlds_cli.progress import Progress, Stage
from rlds_cli.settings import Settings, StrPath
from rlds_cli.store import episode_columns, publishing
from rlds_cli.store.build import write_rows
from rlds_cli.store.finish import Description, finish
from rlds_cli.ted import FLAGS, Chunk, EpisodeData, Field, Note, Part, Scalar, lay_out


def create(
    ref: str,
    episodes: Iterable[Mapping[str, Any]],
    *,
    env_id: str | None = None,
    fps: float | None = None,
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
        The environment that they are of.
    fps : float, optional
        Steps per second, for ``Offsets(..., unit="s")``.
    store : {"memmap", "zarr"}
        Mapped files, or compressed.
    force : bool
        Replace a dataset of this id.

    Raises
    ------
    NameTaken
        The id exists.
    InvalidArgument
        ``fps`` is not a positive number.
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
    where = settings.read(cache_dir)
    place = Home(where.home)
    _check_free(id, where, force)
    with exclusive(place, id, shown(progress)):
        _check_free(id, where, force)  # another process may have held the lock
        work = place.partial(id, f"create-{secrets.token_hex(4)}")
        try:
            job = _job(str(id), iter(episodes))
            built = write_rows(job, work, jobs=0, progress=shown(progress))
            finish(built, Description(str(id), store, env=env, reader="create"))
            record(built.directory)
            publishing.publish(built.directory, place.dataset(id))
        except NoSpace as e:  # an iterable cannot be taken up where it was
            raise NoSpace(
                f"The disk of {place.root} is full. Nothing of {id} is kept.",
                hint="free some space, or another home: cache_dir=DIR",
            ) from e
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return open_dataset(str(id), cache_dir=cache_dir)


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


@dataclass(slots=True)
class _EpisodesJob:
    """An iterable as one part; it cannot be read twice, so it is not resumed."""

    id: str
    schema: tuple[Field, ...]
    episodes: Iterator[tuple[int, Mapping[str, Any]]]
    kinds: dict[str, str] = field(default_factory=dict)  # of the episode columns, so far
    key: str = "episodes"
    stage: Stage = "convert"
    parts: Sequence[Part] = (Part(None, {}),)

    def read(self, part: Part) -> Iterator[Chunk]:
        empty: list[int] = []
        yield from episode_dicts.chunks(self._episodes(empty), self.schema)
        if empty:
            note = Note("empty-episodes", "episodes without steps were left out", len(empty), f"episode {empty[0]}")
            nothing = lay_out(self.schema, [])
            nothing.notes = (note,)
            yield nothing

    def name(self, number: int) -> str:
        """How messages call the part."""
        return "the episodes"

    def _episodes(self, empty: list[int]) -> Iterator[EpisodeData]:
        for number, episode in self.episodes:
            name = f"episode {number}"
            fields, about = _parted(episode, name)
            flat, length, end = _read(fields, name)
            if length == 0:
                empty.append(number)
                continue
            self._check_types(about, name)
            yield EpisodeData(
                episode_dicts.owned(episode_dicts.fit(flat, self.schema, name)), length, end, row=number, extra=about
            )

    def _check_types(self, about: Mapping[str, Scalar], name: str) -> None:
        """Refuse a value of another type than the column has had so far."""
        for column, value in about.items():
            if value is not None:
                self.kinds[column] = episode_columns.joint_kind(self.kinds.get(column), value, column, name)


def _parted(episode: Mapping[Any, Any], name: str) -> tuple[dict[Any, Any], dict[str, Scalar]]:
    """The fields of an episode, and what its key ``"episode"`` says of it as a whole: one value a column."""
    if not hasattr(episode, "items"):
        raise InvalidEpisode(f"{name} is a {type(episode).__name__}; a mapping of fields is needed.")
    fields, about = {}, {}
    for key, value in episode.items():
        first, *rest = key if isinstance(key, tuple) else str(key).split("/")
        if first == "episode" and rest:
            about["/".join(rest)] = value
        elif first == "episode" and hasattr(value, "items"):
            about |= dict(value.items())
        else:
            fields[key] = value
    episode_columns.check_names(about, name)
    return fields, {column: episode_columns.scalar(value, column, name) for column, value in about.items()}


def _read(episode: Mapping[str, Any], name: str) -> tuple[Flat, int, int]:
    flat = episode_dicts.flatten(episode, name)
    if any(flag in flat for flag in FLAGS):
        for flag in _ROOT_FLAGS:  # False on every step, by TED
            flat.pop(flag, None)
    for given in flat:
        if given in _MEANT:
            raise InvalidEpisode(
                f"{name}: {given} is not TED's name.", hint=f'"{_MEANT[given]}" is; a name with / nests'
            )
    if not any(given.partition("/")[0] == "observation" for given in flat):
        raise InvalidEpisode(f"{name} has no observation: {', '.join(flat) or 'nothing'}.")
    return episode_dicts.read(flat, name)


def _job(id: str, episodes: Iterator[Mapping[str, Any]]) -> _EpisodesJob:
    numbered = enumerate(episodes)
    empty: list[tuple[int, Mapping[str, Any]]] = []
    for number, first in numbered:
        name = f"episode {number}"
        flat, length, _ = _read(_parted(first, name)[0], name)
        if length:
            schema = episode_dicts.infer_schema(flat, length)
            return _EpisodesJob(id, schema, chain(empty, [(number, first)], numbered))
        empty.append((number, first))
    raise InvalidEpisode(f"There are no episodes with steps to make {id} of. Nothing was written.")
