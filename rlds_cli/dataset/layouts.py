"""Read a whole dataset into arrays in memory, in TED's layout or in those of other libraries.

::

    ted      [transitions, ...]  observation  action  next/observation  next/reward  next/terminated  ...
    d4rl     [steps, ...]        observations actions next_observations rewards      terminals  timeouts  infos/...
    ogbench  [transitions, ...]  observations actions next_observations rewards      terminals  masks
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.text import is_below, join_name
from rlds_cli.ted import FLAGS, REWARD, Field

if TYPE_CHECKING:
    from rlds_cli.dataset.batch import Batch
    from rlds_cli.dataset.selection import EpisodeColumns
    from rlds_cli.store import Manifest

Layout = Literal["ted", "d4rl", "ogbench"]

TERMINATED, TRUNCATED = FLAGS
DONE, NEXT_OBSERVATION, EPISODE = "next/done", "next/observation", "episode"

_D4RL_NAMES = {
    NEXT_OBSERVATION: "next_observations",
    "observation": "observations",
    "action": "actions",
    "info": "infos",
    REWARD: "rewards",
    TERMINATED: "terminals",
    TRUNCATED: "timeouts",
}


class _Dataset(Protocol):
    """The part of a `Dataset` that layouts read. It keeps this module below the one that defines datasets."""

    @property
    def schema(self) -> Mapping[str, Field]: ...
    @property
    def episodes(self) -> EpisodeColumns: ...
    @property
    def manifest(self) -> Manifest: ...
    @property
    def num_steps(self) -> int: ...
    def field(self, key: str) -> Field: ...
    def gather(self, key: str, rows: IntArray) -> Array: ...
    def __getitem__(self, index: slice) -> Batch: ...


def to_numpy(ds: _Dataset, layout: Layout = "ted", fields: Sequence[str] | None = None) -> dict[str, Array]:
    """See `Dataset.to_numpy`."""
    names = None if fields is None else [join_name(f) for f in ([fields] if isinstance(fields, str) else fields)]
    names = None if names is None else [n for name in names for n in _named(ds, name)]
    if layout == "ted":
        return ted(ds, names)
    if layout == "d4rl":
        return d4rl_steps(ds, names)
    if layout == "ogbench":
        return ogbench(ds, names)
    raise ValueError(f'layout must be "ted", "d4rl" or "ogbench", not {layout!r}')


def _named(ds: _Dataset, name: str) -> list[str]:
    """Return the field ``name``, or the fields below it, as of nested observations."""
    known = [*ds.schema, DONE, *(f"next/{n}" for n, f in ds.schema.items() if f.placement == "both")]
    return [name] if name in known else [n for n in dict.fromkeys(known) if is_below(n, name)] or [name]


def ted(ds: _Dataset, names: Sequence[str] | None = None) -> dict[str, Array]:
    """Read all transitions, by field name, in the shapes of a batch; the number of the episode [N]."""
    if names is None:
        return dict(ds[:].leaves())
    rows = _rows_of(ds, "num_transitions")
    values = {name: _values(ds, name, rows) for name in names}
    if DONE in values:
        values[DONE][_last(ds)] = True
    return {n: v[:, None] if n == DONE else _of_batch(ds, n, v) for n, v in values.items()}


def _of_batch(ds: _Dataset, name: str, values: Array) -> Array:
    f = ds.schema.get(name, ds.schema.get(name.removeprefix("next/")))
    return values if f is None else f.of_batch(values)


def d4rl_steps(ds: _Dataset, names: Sequence[str] | None = None) -> dict[str, Array]:
    """Read all steps, as D4RL's ``env.get_dataset()`` would from a file of these episodes.

    For a whole archive in D4RL's layout, these are the archive's own rows in its order, dtypes and keys, without
    ``metadata``; rewards and flags [N]. For other datasets, ``timeouts`` marks the last steps that are truncated. The
    result has ``next_observations`` if the final observation of every episode is recorded.

    Parameters
    ----------
    ds : Dataset
    names : sequence of str, optional
        Fields under their own names; by default all.
    """
    rows = _rows_of(ds, "length")
    timeouts = _timeouts(ds, rows)
    out = {}
    for name in d4rl_fields(ds) if names is None else names:
        key = _d4rl_key(name)
        values = timeouts if name == TRUNCATED else _values(ds, name, rows)
        out[key] = values.astype(_flag_dtypes(ds).get(key, "bool")) if name in FLAGS else values
    return out


def d4rl_fields(ds: _Dataset) -> list[str]:
    """Return the fields that make up D4RL's layout of a dataset."""
    names = [n for n in ds.schema if n != TRUNCATED or _has_timeouts(ds)]
    if bool((ds.episodes["num_observed"] > ds.episodes["length"]).all()):
        names += [f"next/{n}" for n in ds.schema if is_below(n, "observation") and f"next/{n}" not in ds.schema]
    return names


def _d4rl_key(name: str) -> str:
    """Return D4RL's key for a field: ``observation/a`` is ``observations/a``; names unknown to D4RL stay."""
    base = next((n for n in _D4RL_NAMES if is_below(name, n)), None)
    return name if base is None else _D4RL_NAMES[base] + name[len(base) :]


def ogbench(ds: _Dataset, names: Sequence[str] | None = None) -> dict[str, Array]:
    """Read all transitions, as OGBench's ``load_dataset`` does: floats as float32, integers unchanged.

    ``terminals`` [N] is 1 at the last transition of each episode, however it ends. ``masks`` [N] is 0 at terminated
    transitions, which must not be bootstrapped; it exists if there are rewards [N].

    Parameters
    ----------
    ds : Dataset
    names : sequence of str, optional
        Fields under their own names, beside ``terminals``; by default observations, actions and rewards.
    """
    rows = _rows_of(ds, "num_transitions")
    terminals = np.zeros(len(rows), np.float32)
    terminals[_last(ds)] = 1
    out = {"terminals": terminals}
    for name in _ogbench_fields(ds) if names is None else names:
        values = _values(ds, name, rows)
        if name == TERMINATED:
            out["masks"] = 1 - values.astype(np.float32)
        else:
            out[_d4rl_key(name)] = values.astype(np.float32) if values.dtype.kind in "fb" else values
    return out


def _ogbench_fields(ds: _Dataset) -> list[str]:
    observations = [n for n in ds.schema if is_below(n, "observation")]
    after = [f"next/{n}" for n in observations]
    rewarded = [REWARD, TERMINATED] if REWARD in ds.schema else []
    return [*observations, *(n for n in ds.schema if is_below(n, "action")), *after, *rewarded]


def _rows_of(ds: _Dataset, count: Literal["length", "num_transitions"]) -> IntArray:
    """Return the rows of the steps, or of the transitions, of all episodes, in order."""
    start, counts = ds.episodes["start"], ds.episodes[count]
    ends = np.cumsum(counts)
    rows: IntArray = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(start - (ends - counts), counts)
    return rows


def _last(ds: _Dataset) -> IntArray:
    """Return the last transition of each episode that has any."""
    counts = ds.episodes["num_transitions"]
    last: IntArray = np.cumsum(counts)[counts > 0] - 1
    return last


def _values(ds: _Dataset, name: str, rows: IntArray) -> Array:
    """Read a field at ``rows``; ``next/x`` of a field placed ``both`` from the row after; ``episode`` is a number.

    Where the final observation is not recorded, the last one is the next of itself.
    """
    if name == EPISODE and name not in ds.schema:
        counts = ds.episodes["length" if len(rows) == ds.num_steps else "num_transitions"]
        return np.repeat(np.arange(len(counts)), counts)
    if name == DONE:
        return np.asarray(_values(ds, TERMINATED, rows) | _values(ds, TRUNCATED, rows))
    base = name.removeprefix("next/")
    if name not in ds.schema and base != name and base in ds.schema and ds.schema[base].placement == "both":
        e = ds.episodes
        unknown = (e["start"] + e["length"] - 1)[e["num_observed"] == e["length"]]
        return ds.gather(base, rows + ~np.isin(rows, unknown))
    return ds.gather(ds.field(name).name, rows)


def _flag_dtypes(ds: _Dataset) -> dict[str, str]:
    """Return the flags of D4RL that the archive had, with their dtypes."""
    return dict(ds.manifest.facts.get("flags", {}))


def _has_timeouts(ds: _Dataset) -> bool:
    if "timeouts" in ds.schema:
        return False  # a field of its own here, because it does not mark the ends of episodes
    return not _is_of_d4rl(ds) or "timeouts" in _flag_dtypes(ds) or bool(_timeouts(ds, _rows_of(ds, "length")).any())


def _is_of_d4rl(ds: _Dataset) -> bool:
    return "next_observations" in ds.manifest.facts


def _timeouts(ds: _Dataset, rows: IntArray) -> BoolArray:
    """Read ``next/truncated`` [steps] without the ends that an archive of D4RL's layout does not flag.

    Such an end is recognised by the next row of the store: it is the archive's own next row, or there is none.
    """
    truncated: BoolArray = ds.gather(TRUNCATED, rows)
    if _is_of_d4rl(ds):
        e = ds.episodes
        follows = (e["source"][1:] == e["source"][:-1]) & (e["row"][1:] == (e["row"] + e["length"])[:-1])
        unflagged = (e["end"] == "cut") & np.append(follows, True)[: len(e)]
        truncated[np.cumsum(e["length"])[unflagged] - 1] = False
    return truncated
