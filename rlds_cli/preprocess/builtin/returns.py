"""What an episode still pays from each step on."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds_cli.batch import Batch
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.content.returns import ReturnToGo, sum_from_ends
from rlds_cli.preprocess.builtin.dtypes import dtype_of
from rlds_cli.preprocess.traits import Prepared, builtin
from rlds_cli.ted import FLAGS, REWARD


def _prepare(
    dataset: Dataset, *, gamma: float, scale: float, through_terminals: bool, dtype: str, into: str
) -> Prepared:
    ReturnToGo(gamma, scale, through_terminals=through_terminals)
    if dtype_of(dtype).kind != "f":
        raise InvalidArgument(f"return_to_go: {dtype!r} is no dtype of returns.", hint="float32 or float64")
    if into in dataset.schema or into.startswith("next/"):
        raise InvalidArgument(f"return_to_go: {into!r} is taken, or the name of a next value.", hint="into=NAME")
    return Prepared(dataset, reads=(dataset.field(REWARD).name,))


@builtin(version=1, prepare=_prepare, loader="Loader(ds, extra=ReturnToGo())")
def return_to_go(
    episode: Batch,
    *,
    gamma: float = 1.0,
    scale: float = 1.0,
    through_terminals: bool = False,
    dtype: str = "float32",
    into: str = "return_to_go",
) -> Any:
    """Add the sum of the rewards from each step to the end of its episode.

    ``scale * (r[t] + gamma * r[t+1] + ...)``, summed in float64 from the end; the last term is that of the first
    terminated step, or of the episode's last. It is the column of `rlds_cli.loader.ReturnToGo`, which a loader makes
    by itself.

    Parameters
    ----------
    episode : Batch
    gamma : float
        Discount per step, in [0, 1].
    scale : float
        Decision Transformer (Chen et al. 2021) uses 1e-3 on MuJoCo.
    through_terminals : bool
        Sum on where terminated steps lie inside an episode.
    dtype : str
        Of the new field: ``float32`` or ``float64``.
    into : str
        Its name.

    Returns
    -------
    Batch
        With one field more, [T], placed at the root.

    Raises
    ------
    NoReward
        The dataset has no rewards.
    InvalidArgument
        A discount outside [0, 1], a name that is taken.
    """
    reward = episode[REWARD]
    sums = np.zeros((len(reward) + 1, *reward.shape[1:]))
    sums[:-1] = reward
    stop = np.zeros(len(reward), bool) if through_terminals else episode[FLAGS[0]].copy()
    stop[-1:] = True
    sum_from_ends(sums, stop, float(gamma))
    episode[into] = (sums[:-1] * scale).astype(dtype)
    return episode
