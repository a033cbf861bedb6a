"""Datasets in the form of Minari 0.5: ``load_dataset``, and episodes with T+1 observations and T of everything else.

>>> from rlds_cli.interop import minari  # in place of: import minari

Works without Minari, for datasets of any family. ``docs/coming-from/minari.md`` lists the equivalents, and says where
episodes of other families differ from Minari's.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from rlds_cli import registry
from rlds_cli.archives.following import require_rows_that_follow
from rlds_cli.base import counterparts, ids
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.integers import within
from rlds_cli.base.settings import StrPath
from rlds_cli.base.text import is_below
from rlds_cli.dataset import ArrayLike, Dataset, make_env, open_dataset
from rlds_cli.errors import MissingPackage, NoEnvironment, UnknownField
from rlds_cli.make import download as fetch
from rlds_cli.ted import FLAGS, REWARD, Field, Space

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

_FAMILY = "minari"
_ID = re.compile(r"(?:(?P<namespace>.+)/)?(?P<name>[^/]+?)(?:-v(?P<version>\d+))?")
_INSTEAD = {
    "update_dataset_from_buffer": 'with rlds_cli.writer("local/NAME") as w: w.add_episodes(episodes)',
    "storage": "dataset.dataset, the rlds_cli.Dataset; dataset.dataset[:][NAME] has the transitions",
}

# Functions of Minari for which rlds has one of its own.
_ELSEWHERE = {
    "list_local_datasets": "rlds_cli.find(local=True)",
    "list_remote_datasets": 'rlds_cli.find(family="minari")',
    "download_dataset": "rlds_cli.download(ID), or load_dataset(ID, download=True)",
    "delete_dataset": "rlds rm ID in a shell",
    "upload_dataset": 'rlds_cli.push(ID, "hf://datasets/OWNER/NAME")',
    "combine_datasets": 'rlds_cli.merge([A, B], "local/NAME")',
    "create_dataset_from_buffers": 'rlds_cli.create("local/NAME", episodes)',
    "DataCollector": 'rlds_cli.Record(env, "local/NAME"), which records while the environment runs',
    "StepDataCallback": 'rlds_cli.Record(env, "local/NAME"), which records while the environment runs',
    "EpisodeMetadataCallback": 'rlds_cli.Record(env, "local/NAME"); rlds label sets columns of episodes',
    "StepData": 'rlds_cli.Record(env, "local/NAME"), which records while the environment runs',
    "EpisodeBuffer": "an episode is a dict: rlds_cli.create takes them",
    "MinariStorage": "dataset.dataset, the rlds_cli.Dataset",
    "gen_dataset_id": "an id of rlds is local/NAME",
    "parse_dataset_id": "an id of rlds is FAMILY/NAME, or FAMILY/NAME@VARIANT",
}


def load_dataset(dataset_id: StrPath, download: bool = False) -> MinariDataset:
    """Open a dataset that is on this disk, or with ``download`` fetch it if it is not.

    Parameters
    ----------
    dataset_id : str or path
        An id of rlds (``d4rl/hopper-medium-v2``), an id of Minari (``mujoco/hopper/expert-v0``), or a directory.
    download : bool
        Fetch and convert a dataset that is not here.

    Raises
    ------
    DatasetNotFound
        The dataset is not here, and ``download`` is False.
    """
    return MinariDataset(fetch(_id(dataset_id)) if download and isinstance(dataset_id, str) else dataset_id)


def split_dataset(dataset: MinariDataset, sizes: Sequence[int], seed: int | None = None) -> list[MinariDataset]:
    """Divide the episodes at random into datasets of ``sizes`` episodes, the same ones as Minari for the same seed.

    Raises
    ------
    ValueError
        The dataset has fewer episodes.
    """
    if sum(sizes) > dataset.total_episodes:
        raise ValueError(f"{sum(sizes):,} episodes are asked for; {dataset.id} has {dataset.total_episodes:,}")
    shuffled = np.random.default_rng(seed).permutation(dataset.episode_indices)
    parts = np.split(shuffled, np.cumsum(sizes))[: len(sizes)]
    return [MinariDataset(dataset.dataset, part) for part in parts]


def get_normalized_score(dataset: MinariDataset, returns: ArrayLike) -> npt.NDArray[np.float64]:
    """Return ``(returns - min) / (max - min)`` with the reference scores of the archive or the registry.

    Raises
    ------
    RldsError
        No reference scores are known.
    """
    return dataset.dataset.normalized_score(returns)


@dataclass(frozen=True)
class EpisodeData:
    """One episode of T steps, with the fields of Minari's class of this name.

    Attributes
    ----------
    id : int
        Number of the episode in the dataset, from 0: ``k`` of ``dataset.dataset.episode(k)``.
    observations
        [T+1, ...], the final one last; [T, ...] if the final observation is not recorded. Nested in dicts and tuples as
        the observation space is; texts are lists of str.
    actions
        [T, ...], nested as the action space is.
    rewards, terminations, truncations : array [T]
    infos : dict
        Everything else, by name: [T+1, ...] where the archive has a row for the final observation, else [T, ...].
    """

    id: int
    observations: Any
    actions: Any
    rewards: Array
    terminations: Array
    truncations: Array
    infos: dict[str, Any]

    def __len__(self) -> int:
        return len(self.rewards)

    def __repr__(self) -> str:
        names = [f.name for f in dataclasses.fields(self) if f.name != "id"]
        shapes = ", ".join(f"{name}: {_shape_of(getattr(self, name))}" for name in names)
        return f"EpisodeData(id={self.id}, total_steps={len(self)}, {shapes})"


@dataclass
class MinariDatasetSpec:
    """A summary of a dataset, with the fields of Minari's class of this name."""

    env_spec: EnvSpec | None
    total_episodes: int
    total_steps: int
    dataset_id: str
    combined_datasets: list[str]
    observation_space: Any
    action_space: Any
    data_path: str
    minari_version: str | None
    namespace: str | None = dataclasses.field(init=False)
    dataset_name: str = dataclasses.field(init=False)
    version: int | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        found = _ID.fullmatch(self.dataset_id)
        self.namespace = found and found["namespace"]
        self.dataset_name = found["name"] if found else self.dataset_id
        self.version = int(found["version"]) if found and found["version"] else None


class MinariDataset:
    """Episodes of a dataset, with the attributes and methods of Minari's class of this name.

    Values are those of the archive, in its dtypes, in arrays of the caller's own. The flags are the archive's, too: an
    episode that was cut, which TED marks as truncated, has no flag. A dataset is read-only.

    Parameters
    ----------
    data : str, path or Dataset
        An id, a directory, a dataset, or a selection of its episodes.
    episode_indices : int array [n], optional
        Numbers of some of the episodes; all by default.

    Attributes
    ----------
    dataset : Dataset
        The dataset of rlds.
    episode_indices : int array [n]
        Numbers of the episodes, as ``dataset.episode`` counts them.

    Raises
    ------
    NoReward, UnknownField
        The dataset has no rewards or no actions, which every episode of Minari has; or it stores next observations
        of its own, which T+1 observations cannot express.

    Examples
    --------
    >>> import tempfile, rlds_cli
    >>> ds = rlds_cli.download("sample/cartpole-minari", home=tempfile.mkdtemp())
    >>> data = MinariDataset(ds)
    >>> data.total_episodes, data.total_steps, data[3].observations.shape, data[3].actions.shape
    (12, 4341, (501, 4), (500,))
    """

    def __init__(self, data: StrPath | Dataset, episode_indices: npt.ArrayLike | None = None) -> None:
        self.dataset = data if isinstance(data, Dataset) else open_dataset(_id(data) if isinstance(data, str) else data)
        indices = np.arange(self.dataset.num_episodes) if episode_indices is None else np.asarray(episode_indices)
        self.episode_indices: IntArray = indices.astype(np.int64)
        self._generator = np.random.default_rng()
        self.dataset.field(REWARD)
        require_rows_that_follow(self.dataset, "Minari's")
        fields = tuple(self.dataset.schema.values())
        recorded = self.dataset.manifest.spaces
        self._observations, self._actions = (_nested(recorded.get(r), fields, r) for r in ("observation", "action"))
        named = {*self._observations.names, *self._actions.names, REWARD, *FLAGS}
        self._infos = _info_paths([n for n in self.dataset.schema if n not in named], self._archived())

    def _archived(self) -> Mapping[str, Sequence[str]]:
        """Return the path of each field in Minari's archive, if it is of one."""
        columns = self.dataset.manifest.facts.get("columns")
        return columns if self.dataset.manifest.reader == _FAMILY and isinstance(columns, Mapping) else {}

    # -- episodes

    @property
    def total_episodes(self) -> int:
        """Number of episodes."""
        return len(self.episode_indices)

    @property
    def total_steps(self) -> int:
        """Number of steps of all episodes."""
        return int(self.dataset.episodes["length"][self.episode_indices].sum())

    def __len__(self) -> int:
        return self.total_episodes

    def __iter__(self) -> Iterator[EpisodeData]:
        return self.iterate_episodes()

    def __getitem__(self, idx: int) -> EpisodeData:
        k = within(idx, self.total_episodes, f"episodes of {self.id}")
        return self._episode(int(self.episode_indices[k]))

    def iterate_episodes(self, episode_indices: Iterable[int] | None = None) -> Iterator[EpisodeData]:
        """Return an iterator over the episodes of these numbers, by default over all; each is read when it comes."""
        return map(self._episode, self.episode_indices if episode_indices is None else episode_indices)

    def sample_episodes(self, n_episodes: int) -> list[EpisodeData]:
        """Return different episodes drawn at random: the same ones as Minari after the same ``set_seed``.

        Raises
        ------
        ValueError
            There are fewer episodes.
        """
        chosen = self._generator.choice(self.episode_indices, size=n_episodes, replace=False)
        return [self._episode(int(k)) for k in chosen]

    def filter_episodes(self, condition: Callable[[EpisodeData], bool]) -> MinariDataset:
        """Return the episodes for which ``condition`` is true, as a dataset that shares the files.

        This reads every episode; ``MinariDataset(ds.select(where="total_reward > 400"))`` reads the episode table.
        """
        kept = [bool(condition(episode)) for episode in self]
        return MinariDataset(self.dataset, self.episode_indices[np.array(kept, bool)])

    def set_seed(self, seed: int) -> None:
        """Set the seed of `sample_episodes`."""
        self._generator = np.random.default_rng(seed)

    def _episode(self, number: int) -> EpisodeData:
        ds = self.dataset
        k = within(number, ds.num_episodes, f"episodes in {ds.id}")
        start, length, observed = (int(ds.episodes[c][k]) for c in ("start", "length", "num_observed"))

        def read(name: str) -> Any:
            field = ds.field(name)
            rows = np.arange(start, start + (observed if field.placement == "both" else length))
            values = ds.gather(name, rows)
            return values.tolist() if field.kind == "text" else values

        terminations, truncations = (read(name) for name in FLAGS)
        if ds.episodes["end"][k] == "cut":
            truncations[-1] = False
        infos: dict[str, Any] = {}
        for name, path in self._infos.items():
            node = infos
            for key in path[:-1]:
                node = node.setdefault(key, {})
            node[path[-1]] = read(name)
        observations, actions = self._observations.fill(read), self._actions.fill(read)
        return EpisodeData(k, observations, actions, read(REWARD), terminations, truncations, infos)

    # -- descriptions

    @property
    def id(self) -> str:
        """Id of the dataset; without the family for one of Minari, as Minari has it."""
        return self.dataset.id.removeprefix(f"{_FAMILY}/")

    @property
    def observation_space(self) -> Any:
        """Gymnasium space of observations."""
        return self.dataset.observation_space

    @property
    def action_space(self) -> Any:
        """Gymnasium space of actions."""
        return self.dataset.action_space

    @property
    def env_spec(self) -> EnvSpec | None:
        """Specification of the environment that the data were collected in; None if it is not known.

        A description from the archive: ``gymnasium.make(env_spec)`` would import whatever entry point it names, while
        `recover_environment` makes known environments only.

        Raises
        ------
        MissingPackage
            Gymnasium is not installed.
        NoEnvironment
            Gymnasium does not accept the description.
        """
        described = self._environment(eval_env=False)
        stated = described.get("spec") or {k: described[k] for k in ("id", "max_episode_steps") if k in described}
        if not stated.get("id"):
            return None
        try:
            from gymnasium.envs.registration import EnvSpec
        except ImportError as e:
            raise MissingPackage(
                "The specification is an object of Gymnasium, which is not installed.",
                hint="pip install 'rlds-cli[spaces]'",
            ) from e
        known = {f.name for f in dataclasses.fields(EnvSpec) if f.init}
        kept = {"additional_wrappers": [], **{key: v for key, v in stated.items() if key in known}}
        try:
            return EnvSpec.from_json(json.dumps(kept))
        except Exception as e:  # Gymnasium raises errors of all kinds over an archive's values
            raise NoEnvironment(f"Gymnasium does not accept the environment of {self.dataset.id}: {e}") from e

    @property
    def spec(self) -> MinariDatasetSpec:
        """Summary of the dataset."""
        return MinariDatasetSpec(
            env_spec=self.env_spec,
            total_episodes=self.total_episodes,
            total_steps=self.total_steps,
            dataset_id=self.id,
            combined_datasets=self.combined_datasets,
            observation_space=self.observation_space,
            action_space=self.action_space,
            data_path=str(self.dataset.path),
            minari_version=self.minari_version,
        )

    @property
    def combined_datasets(self) -> list[str]:
        """Ids of the datasets that Minari combined into this one."""
        return list(self.dataset.manifest.facts.get("combined_datasets") or ())

    @property
    def minari_version(self) -> str | None:
        """Version of Minari that wrote the archive; None for data of other families."""
        found: str | None = self.dataset.manifest.facts.get("minari_version")
        return found

    def recover_environment(self, eval_env: bool = False, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        """Make the environment of the data, or with ``eval_env`` the one for evaluation, if the archive has one.

        Parameters and errors as of `Dataset.make_env`.
        """
        manifest = dataclasses.replace(self.dataset.manifest, env=self._environment(eval_env))
        return make_env(manifest, tuple(self.dataset.schema.values()), **kwargs)

    def _environment(self, eval_env: bool) -> Mapping[str, Any]:
        described = self.dataset.manifest.env
        return described if eval_env else {k: v for k, v in described.items() if not k.startswith("eval_")}

    def __repr__(self) -> str:
        return f"<MinariDataset {self.id}: {self.total_steps:,} steps, {self.total_episodes:,} episodes>"

    if not TYPE_CHECKING:  # type checkers find wrong names by themselves

        def __getattr__(self, name: str) -> NoReturn:
            counterparts.missing(self, name, _INSTEAD)


# -- nesting


@dataclass(frozen=True)
class _Nested:
    """The fields below a root (``observation``), and the space in whose dicts and tuples they are nested."""

    root: str
    space: Mapping[str, Any]
    names: tuple[str, ...]

    def fill(self, read: Callable[[str], Any]) -> Any:
        return _filled(self.space, self.root, read)


def _nested(recorded: Mapping[str, Any] | None, fields: Sequence[Field], root: str) -> _Nested:
    """Choose the recorded space if its parts are the fields, else one that follows from their names."""
    names = tuple(f.name for f in fields if is_below(f.name, root))
    if not names:
        raise UnknownField(f"The dataset has no {root}, which every episode of Minari has.", hint="ds.episode(k)")
    if recorded is not None and sorted(_parts(recorded, root)) == sorted(names):
        return _Nested(root, recorded, names)
    inferred = Space.inferred(fields, root).form
    assert inferred is not None
    return _Nested(root, inferred, names)


def _inner(space: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]] | None:
    """Return the parts of a Dict space by key, of a Tuple space by number; None for other spaces."""
    inner = space.get("subspaces") if space.get("type") in ("Dict", "Tuple") else None
    return {str(i): part for i, part in enumerate(inner)} if isinstance(inner, Sequence) else inner


def _parts(space: Mapping[str, Any], name: str) -> list[str]:
    """Return the names of the fields that a space consists of."""
    inner = _inner(space)
    return [name] if inner is None else [n for key, part in inner.items() for n in _parts(part, f"{name}/{key}")]


def _filled(space: Mapping[str, Any], name: str, read: Callable[[str], Any]) -> Any:
    inner = _inner(space)
    if inner is None:
        return read(name)
    values = {key: _filled(part, f"{name}/{key}", read) for key, part in inner.items()}
    return tuple(values.values()) if space["type"] == "Tuple" else values


def _info_paths(names: Sequence[str], archived: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the keys of each field in ``infos``: the archive's own, else the parts of its name.

    ``info/x`` and ``next/info/x`` are ``x``. A field whose keys are those of another, or lie within them, has its whole
    name as its only key.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        keys = tuple(archived.get(name, ()))
        path = keys[1:] if keys[:1] == ("infos",) else tuple(re.sub(r"^(next/)?info/", "", name).split("/"))
        taken = any(path[: len(other)] == other[: len(path)] for other in found.values())
        found[name] = (name,) if taken else path
    return found


def _shape_of(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shape_of(v)}" for key, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_shape_of, value)) + ")"
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else f"{len(value)} texts"


def _id(name: str) -> str:
    """Return an id of rlds for a name as users of Minari write it; paths and addresses are unchanged."""
    family = name.partition("/")[0]
    if name.startswith((".", "~", os.sep)) or "://" in name or registry.listed(name) is not None:
        return name
    ours = {ids.LOCAL, *(f.name for f in registry.families())}
    return name if family in ours else f"{_FAMILY}/{name}"


if not TYPE_CHECKING:  # type checkers find wrong names by themselves

    def __getattr__(name: str) -> NoReturn:
        raise counterparts.no_attribute("rlds_cli.interop.minari", name, _ELSEWHERE)
