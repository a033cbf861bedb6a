"""Fields brought to a common scale."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rlds_cli.batch import Batch
from rlds_cli.dataset import Dataset
from rlds_cli.loader.output.transforms import Mode, Normalize
from rlds_cli.preprocess.builtin.naming import Names, listed, stored
from rlds_cli.preprocess.traits import Prepared, builtin


def _prepare(dataset: Dataset, *, fields: Names, mode: Mode, eps: float) -> Prepared:
    _normalizer(dataset, listed(fields), mode, eps)
    return Prepared(dataset, reads=stored(dataset, fields))


@lru_cache(maxsize=1)
def _normalizer(source: Dataset, fields: tuple[str, ...], mode: Mode, eps: float) -> Normalize:
    return Normalize(source, fields, mode=mode, eps=eps)


@builtin(version=1, prepare=_prepare, loader="Loader(ds, transform=Normalize(ds))")
def normalise(
    episode: Batch, *, source: Dataset, fields: Names = "observation", mode: Mode = "std", eps: float = 1e-3
) -> Any:
    """Bring fields to a common scale by the dataset's own statistics, which are over its steps.

    The values are those of `rlds_cli.loader.Normalize`, which does the same while it loads: to train, use that, and
    keep the data as they are.

    Parameters
    ----------
    episode : Batch
    source : Dataset
        Whose statistics; `preprocess.run` gives the dataset that it works on.
    fields : str or sequence of str
        ``observation`` stands for everything nested below it. Their next values are scaled alike.
    mode : {"std", "range", "quantile"}
        ``(x - mean) / (std + eps)``; or from [min, max], or from [1 %, 99 %] of the values, to [-1, 1].
    eps : float

    Returns
    -------
    Batch
        Floats keep their dtype, integers become float32.

    Raises
    ------
    UnknownField
        There are no statistics of a field.
    InvalidArgument
        Another mode, or a negative ``eps``.

    Examples
    --------
    >>> ds = preprocess.run("d4rl/hopper-medium-v2", normalise, args={"mode": "range"})  # doctest: +SKIP
    """
    norm = _normalizer(source, listed(fields), mode, eps)
    return norm(episode)
