"""D4RL's ``qlearning_dataset``, ``sequence_dataset`` and ``get_normalized_score``, for scripts written for them.

>>> from rlds_cli.interop import d4rl  # in place of: import d4rl

By default they give what D4RL's own give, to the last bit, from a file's rows in a line::

    row           0    1    2    3    4    5         a timeout at 2; the file ends at 5
    observation   o0   o1   o2 | p0   p1   p2
    next          o1   o2   -  | p1   p2   -         rows 2 and 5 are left out, though steps like any other
    with terminate_on_end   o1   o2   p0 | p1   p2   -         row 2 is paired with another episode's observation

``fixed=True`` gives what the archive means instead: the steps' own next observations, and episodes that end where
they end. ``docs/coming-from/d4rl.md`` counts the differences.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from rlds_cli import registry
from rlds_cli.base import counterparts
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.dataset import Dataset, d4rl_fields, d4rl_steps, open_dataset
from rlds_cli.errors import InvalidEpisode, RldsError, UnknownDataset, UnknownField
from rlds_cli.make import download
from rlds_cli.registry import Entry
from rlds_cli.ted import FLAGS, REWARD

Columns = Mapping[str, npt.NDArray[Any]]

_TRANSITION = ["observation", "action", REWARD, FLAGS[0]]
_NEEDED = ("observations", "actions", "rewards", "terminals")

# Names of D4RL for which rlds has one of its own.
_ELSEWHERE = {
    "get_dataset": "qlearning_dataset(NAME), or rlds_cli.load(NAME).to_numpy('d4rl')",
    "reverse_normalized_score": "get_normalized_score(NAME, s) is linear: score = (s - s0) / (s1 - s0) of two scores",
    "set_dataset_path": "RLDS_HOME, or --home of each command, is where datasets lie",
    "offline_env": "rlds_cli.load(NAME), whose make_env() makes the environment with Gymnasium",
    "OfflineEnv": "rlds_cli.load(NAME), whose make_env() makes the environment with Gymnasium",
    "OfflineEnvWrapper": "rlds_cli.load(NAME), whose make_env() makes the environment with Gymnasium",
    "infos": "rlds info ID in a shell has the address and the reference scores",
    "download_dataset_from_url": 'rlds_cli.download(URL, name="local/NAME")',
    "gym_mujoco": "rlds_cli.load(NAME).make_env() makes the environment with Gymnasium",
}


def qlearning_dataset(
    env: Any, dataset: Any = None, terminate_on_end: bool = False, *, fixed: bool = False, **kwargs: Any
) -> dict[str, Array]:
    """Transitions, as D4RL's function of this name gives them.

    Parameters
    ----------
    env : str, path, Dataset or environment
        The source of the data: an id or a name of D4RL (``d4rl/hopper-medium-v2``, ``hopper-medium-v2``), downloaded
        where it is not here; a dataset or a selection; an environment of D4RL, whose ``get_dataset(**kwargs)`` is
        called; any other whose ``spec.id`` is a name of D4RL.
    dataset : str, path, Dataset or mapping of str to array, optional
        Other data for ``env``: any of these, or columns as of ``env.get_dataset()`` or ``ds.to_numpy("d4rl")``.
    terminate_on_end : bool
        Keep the last step of an episode that times out. With ``fixed`` every step is kept, and the last one of every
        episode is terminal, as D4RL's own docstring says it would be.
    fixed : bool
        False: what D4RL gives. True: every step whose next observation is recorded or not needed, with that one, also
        the last of an episode and of the file; an environment of D4RL then stands for its name.
    **kwargs
        For ``env.get_dataset``.

    Returns
    -------
    dict of str to array
        ``observations actions next_observations`` [N, ...] and ``rewards`` [N], float32; ``terminals`` [N], bool.

    Raises
    ------
    NoReward, UnknownField
        The data lack a field that is needed.
    UnknownDataset
        There are no data of that name.
    RldsError
        The data have no timeouts, and ``env`` says nothing of a time limit, by which D4RL then ends episodes.

    Examples
    --------
    >>> import tempfile, rlds_cli
    >>> ds = rlds_cli.download("sample/pendulum-d4rl", home=tempfile.mkdtemp())
    >>> len(qlearning_dataset(ds)["rewards"]), len(qlearning_dataset(ds, fixed=True)["rewards"])
    (5074, 5100)
    """
    if fixed:
        steps = _steps(env, dataset, kwargs)
        columns, terminals = steps.columns, _flag(steps.columns, "terminals")
        kept = np.arange(len(terminals)) if terminate_on_end else np.flatnonzero(steps.known)
        following = columns["next_observations"][kept]
        terminals = terminals | steps.ends if terminate_on_end else terminals
    else:
        columns = _columns(env, dataset, kwargs)
        terminals = _flag(columns, "terminals")
        kept = np.arange(max(len(terminals) - 1, 0))
        if not terminate_on_end:
            kept = kept[~_timed_out(columns, env, dataset, restart=0)[:-1]]
        following = columns["observations"][kept + 1]
    return {
        "observations": columns["observations"][kept].astype(np.float32),
        "actions": columns["actions"][kept].astype(np.float32),
        "next_observations": following.astype(np.float32),
        "rewards": columns["rewards"][kept].astype(np.float32),
        "terminals": terminals[kept],
    }


def sequence_dataset(
    env: Any, dataset: Any = None, *, fixed: bool = False, **kwargs: Any
) -> Iterator[dict[str, Array]]:
    """Episodes one after the other, as D4RL's function of this name gives them.

    Parameters as of `qlearning_dataset`. ``fixed`` ends episodes where they end, gives the last one even where the file
    cuts it short, and sets ``timeouts`` at the last step of each that does not terminate.

    Yields
    ------
    dict of str to array
        All columns of N rows, T of them each, in the archive's dtypes; ``metadata``, on which D4RL's own stops with an
        error (D4RL#222), is left out.

    Raises
    ------
    NoReward, UnknownField, UnknownDataset, RldsError
        As `qlearning_dataset`, at the call.
    """
    if fixed:
        steps = _steps(env, dataset, kwargs, everything=True)
        terminals = _flag(steps.columns, "terminals")
        timeouts = steps.ends & (~terminals | _flag(steps.columns, "timeouts"))
        return _episodes({**steps.columns, "timeouts": timeouts}, np.flatnonzero(steps.ends))
    columns = _columns(env, dataset, kwargs, everything=True)
    ends = _flag(columns, "terminals") | _timed_out(columns, env, dataset, restart=1)
    return _episodes(columns, np.flatnonzero(ends))


def get_normalized_score(env_name: str, score: Any) -> Any:
    """``(score - min) / (max - min)`` with the reference scores of the registry; papers report 100 times this.

    Parameters
    ----------
    env_name : str
        A name of D4RL (``hopper-medium-v2``), or any id of the registry.
    score : number, array or tensor
        Total reward of an episode.

    Raises
    ------
    UnknownDataset
        The registry does not know the name.
    RldsError
        No reference scores are known for it.

    Examples
    --------
    >>> round(100 * get_normalized_score("hopper-medium-v2", 1500.0), 1)
    46.7
    """
    entry = registry.get(_id(env_name))
    low, high = entry.ref_min_score, entry.ref_max_score
    if low is None or high is None:
        raise RldsError(f"No reference scores are known for {entry.id}.", hint="rlds info shows what the registry has")
    return (score - low) / (high - low)


# -- what D4RL does


def _timed_out(columns: Columns, env: Any, dataset: Any, *, restart: int) -> BoolArray:
    """Return which rows D4RL takes for the last before a time limit [N].

    They are those of ``timeouts``, where the data have it. Otherwise D4RL counts steps since the last end up to the
    limit: from ``restart`` after a time limit, from 1 after a terminal, so that most episodes are one step too short.
    """
    if "timeouts" in columns:
        return _flag(columns, "timeouts")
    limit = _time_limit(env, dataset)
    terminals = np.flatnonzero(_flag(columns, "terminals"))
    rows = len(columns["rewards"])
    found = np.zeros(rows, bool)
    row, count = 0, 0
    while row < rows:
        at = int(np.searchsorted(terminals, row))
        terminal = int(terminals[at]) if at < len(terminals) else rows
        last = row + limit - 1 - count
        if count < limit and last <= terminal and last < rows:
            found[last] = True
            row, count = last + 1, restart
        else:
            row, count = terminal + 1, 1
    return found


def _time_limit(*given: Any) -> int:
    """Return the environment's limit of steps per episode."""
    for one in given:
        for steps in (getattr(one, "_max_episode_steps", None), getattr(_spec(one), "max_episode_steps", None)):
            if steps is not None:
                return int(steps)
        entry = _entry(one)
        if entry is not None and entry.max_episode_steps is not None:
            return entry.max_episode_steps
    raise RldsError(
        "The data have no timeouts, and no time limit is known, which D4RL would use to end episodes.",
        hint="use fixed=True, or pass the environment, and the data as dataset=",
    )


# -- what the archive means


@dataclass(frozen=True, slots=True)
class _Steps:
    """Columns in D4RL's layout, with two masks [N]: rows that end an episode, and rows with a known next observation.

    Where the next observation is unknown, ``next_observations`` repeats the observation.
    """

    columns: Columns
    ends: BoolArray
    known: BoolArray


def _steps(env: Any, dataset: Any, kwargs: Mapping[str, Any], *, everything: bool = False) -> _Steps:
    given = env if dataset is None else dataset
    if isinstance(given, Mapping):
        return _told_by_flags(given, _entry(env))
    if kwargs or (not _is_data(given) and _entry(given) is None):
        return _told_by_flags(_columns(env, dataset, kwargs), _entry(env))
    return _told_by_table(_open(given), everything)


def _told_by_table(ds: Dataset, everything: bool) -> _Steps:
    length, transitions = ds.episodes["length"], ds.episodes["num_transitions"]
    last = np.cumsum(length) - 1
    ends = np.zeros(ds.num_steps, bool)
    ends[last] = True
    known = np.ones(ds.num_steps, bool)
    known[last[transitions < length]] = False
    names = _all_fields(ds) if everything else [*_TRANSITION, "next/observation"]
    return _Steps(d4rl_steps(ds, names), ends, known)


def _told_by_flags(columns: Columns, entry: Entry | None) -> _Steps:
    """Derive the ends of episodes from the columns' flags, by the registry's rule for the environment."""
    _check(columns)
    rule = entry.episodes_by if entry else None
    if rule == "jumps":
        raise RldsError(
            f"The flags of {entry.id if entry else 'these data'} do not say where its episodes end.",
            hint="fixed=True with the dataset itself, without dataset=",
        )
    terminals, timeouts = _flag(columns, "terminals"), _flag(columns, "timeouts")
    ends = timeouts.copy() if rule == "timeouts" else terminals | timeouts
    ends[-1:] = True
    if "next_observations" in columns:
        return _Steps(columns, ends, np.ones(len(ends), bool))
    after = np.minimum(np.arange(len(ends)) + 1, len(ends) - 1)
    after = np.where(ends, np.arange(len(ends)), after)
    return _Steps({**columns, "next_observations": columns["observations"][after]}, ends, ~ends | terminals)


# -- where the data come from


def _columns(env: Any, dataset: Any, kwargs: Mapping[str, Any], *, everything: bool = False) -> Columns:
    """Return the archive's rows in their order; of a dataset only the fields of a transition, unless ``everything``."""
    given = env if dataset is None else dataset
    if isinstance(given, Mapping):
        return _check(given)
    own = None if _is_data(given) else _get_dataset(given)
    if own is not None:
        return _check(own(**kwargs))
    if kwargs:
        raise TypeError(f"{', '.join(kwargs)}: only an environment with a get_dataset() takes more arguments")
    ds = _open(given)
    timeouts = [n for n in d4rl_fields(ds) if n in (FLAGS[1], "timeouts")]
    return d4rl_steps(ds, _all_fields(ds) if everything else [*_TRANSITION, *timeouts])


def _all_fields(ds: Dataset) -> list[str]:
    """Return the fields of D4RL's layout; always with rewards, so that a dataset without any raises `NoReward`."""
    return list(dict.fromkeys([*d4rl_fields(ds), REWARD]))


def _open(given: Any) -> Dataset:
    if isinstance(given, Dataset):
        return given
    if isinstance(given, os.PathLike) or (isinstance(given, str) and given.startswith((".", "/", "~"))):
        return open_dataset(given)
    if isinstance(given, str):
        return download(_id(given))
    entry = _entry(given)
    if entry is None:
        what = f"an environment {name}" if (name := _name(given)) else repr(given)
        raise UnknownDataset(f"No data are known for {what}.", hint='dataset="hopper-medium-v2", or an id, says which')
    return download(entry.id)


def _is_data(given: Any) -> bool:
    return isinstance(given, str | os.PathLike | Dataset)


def _get_dataset(env: Any) -> Any:
    """Return the method of a D4RL environment, also below wrappers; None for other environments."""
    return getattr(env, "get_dataset", None) or getattr(getattr(env, "unwrapped", None), "get_dataset", None)


def _spec(env: Any) -> Any:
    return getattr(env, "spec", None)


def _name(given: Any) -> str | None:
    """Return the name of an id, a dataset or an environment."""
    if isinstance(given, Dataset):
        return given.id
    return given if isinstance(given, str) else getattr(_spec(given), "id", None)


def _id(name: str) -> str:
    return name if "/" in name else f"d4rl/{name}"


def _entry(given: Any) -> Entry | None:
    name = _name(given)
    try:
        return registry.get(_id(name)) if name else None
    except UnknownDataset:
        return None


# -- columns


def _check(columns: Columns) -> Columns:
    """Refuse columns with missing keys or different lengths."""
    missing = [key for key in _NEEDED if key not in columns]
    if missing:
        raise UnknownField(
            f"the data have no {', '.join(missing)}.  They have: {', '.join(columns)}",
            hint='D4RL\'s layout: ds.to_numpy("d4rl")',
        )
    rows = {key: len(columns[key]) for key in (*_NEEDED, "timeouts") if key in columns}
    if len(set(rows.values())) > 1:
        raise InvalidEpisode(
            "Columns of different lengths: " + ", ".join(f"{key} has {n:,} rows" for key, n in rows.items()) + "."
        )
    return columns


def _flag(columns: Columns, key: str) -> BoolArray:
    """Return a flag of any number type, [N] or [N, 1], as bool [N]; all False where the data have no such flag."""
    rows = len(columns["rewards"])
    return np.asarray(columns[key]).astype(bool).reshape(rows) if key in columns else np.zeros(rows, bool)


def _episodes(columns: Columns, ends: IntArray) -> Iterator[dict[str, Array]]:
    rows = len(columns["rewards"])
    per_row = {
        key: values
        for key, values in columns.items()
        if not key.startswith("metadata/") and np.shape(values)[:1] == (rows,)
    }
    start = 0
    for end in ends:
        yield {key: values[start : end + 1].copy() for key, values in per_row.items()}
        start = end + 1


if not TYPE_CHECKING:  # type checkers find wrong names by themselves

    def __getattr__(name: str) -> NoReturn:
        raise counterparts.no_attribute("rlds_cli.interop.d4rl", name, _ELSEWHERE)
