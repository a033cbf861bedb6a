"""Columns of the episode table that follow from the rows of an episode.

They are computed wherever rows are written, merged with their episodes, computed anew where episodes are cut, and
compared with the rows by `rlds verify`. A line of `COMPUTED` is all that a further one needs. Growing datasets have
those for which their log has room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.ted.fields import FLAGS, REWARD, Field


@dataclass(frozen=True, slots=True)
class Computed:
    """A column of the episode table.

    Attributes
    ----------
    fields : tuple of str
        The fields that it follows from, each one number or flag a step. A dataset without one of them has no such
        column.
    dtype : str
        Of the column: ``f8`` or ``i8``.
    of_steps : callable
        Takes the values of the fields [steps], and returns one value a step.
    reduce : np.ufunc
        Makes one value of those of an episode: ``np.add``, ``np.maximum`` or ``np.minimum``.
    """

    fields: tuple[str, ...]
    dtype: str
    of_steps: Callable[..., Array]
    reduce: np.ufunc = np.add

    @property
    def nothing(self) -> float:
        """The value that changes no result of ``reduce``."""
        return 0.0 if self.reduce is np.add else -np.inf if self.reduce is np.maximum else np.inf

    def fits(self, schema: Mapping[str, Field]) -> bool:
        """Return whether a schema has the fields, each with one number or flag a step."""
        found = [schema[name] for name in self.fields if name in schema]
        return len(found) == len(self.fields) and all(_is_scalar(f) for f in found)

    @np.errstate(over="ignore", invalid="ignore")  # infinities of both signs are data
    def of_episodes(self, columns: Sequence[Array], start: IntArray) -> Array:
        """Return the values of episodes, each of which begins at a row of ``start`` and ends before the next."""
        values = np.asarray(self.of_steps(*columns))
        return np.asarray(self.reduce.reduceat(values.astype(self.dtype), start))


def _is_scalar(f: Field) -> bool:
    return f.kind == "array" and not f.shape and np.dtype(f.dtype).kind in "fiub"


COMPUTED: Mapping[str, Computed] = {
    "total_reward": Computed((REWARD,), "f8", lambda reward: reward),
    "num_done": Computed(FLAGS, "i8", lambda terminated, truncated: terminated | truncated),
    "num_terminated": Computed(FLAGS, "i8", lambda terminated, truncated: terminated),
}
# TED's own columns of the episode table, and reserved names beside them on disk or in expressions.
EPISODE_COLUMNS = COMPUTED.keys() | frozenset(
    """start length end num_observed num_transitions source row group seed has_seed options split splits missing episode
    id source_episode source_step""".split()  # noqa: SIM905
)
