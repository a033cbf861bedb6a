"""Built-in functions that select episodes and fields, and rename, join, cast and normalise fields.

Selected episodes are copied in their stored form, so frames stay encoded. Fields that are only kept, dropped or renamed
are not read, and share the files of the source.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.text import is_below, join_name, natural
from rlds_cli.dataset import Batch, Dataset, Normalize, matching
from rlds_cli.dataset.transforms import Mode
from rlds_cli.errors import InvalidArgument, NoReward
from rlds_cli.preprocess.builtin import Prepared, builtin
from rlds_cli.ted import FLAGS

Names = str | Sequence[str]


def _prepare_select_episodes(dataset: Dataset, *, where: str | None, split: str | None) -> Prepared:
    if where is None and split is None:
        raise InvalidArgument(
            "select_episodes needs where or split.", hint='where="total_reward > 3000 and length >= 500"'
        )
    chosen, warning = matching(dataset.episodes, split, where)
    if not len(chosen):
        raise InvalidArgument(
            f"select_episodes: none of the {dataset.num_episodes:,} episodes of {dataset.id} matches."
        )
    if warning:
        warnings.warn(warning, UserWarning, stacklevel=2)
    return Prepared(dataset.select(episodes=chosen), reads=())


@builtin(version=1, prepare=_prepare_select_episodes, loader="Loader(ds.select(where=...))")
def select_episodes(episode: Batch, *, where: str | None = None, split: str | None = None) -> Any:
    """Keep the episodes that match an expression of their columns, such as ``total_reward > 3000``.

    The expressions are those of ``Dataset.select``, which selects without a copy and whose result a loader accepts.

    Parameters
    ----------
    episode : Batch
    where : str
        Comparisons of episode columns: ``"total_reward > 3000 and length >= 500"``.
    split : str
        A named split of the archive.

    Raises
    ------
    InvalidExpression
        ``where`` is not a valid expression, or names an unknown column.
    InvalidArgument
        No episode matches.
    """
    return episode


def _prepare_top(dataset: Dataset, *, percent: float, by: str, of: str) -> Prepared:
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 < percent <= 100:
        raise InvalidArgument(f"top_episodes: percent={percent!r} is not in (0, 100].")
    if of not in ("episodes", "steps"):
        raise InvalidArgument(f'top_episodes: of={of!r} is neither "episodes" nor "steps".')
    if by == "total_reward" and by not in dataset.episodes:
        raise NoReward(f"{dataset.id} has no rewards: its episodes have no returns.", hint="by=COLUMN ranks by another")
    values = np.asarray(dataset.episodes[by])
    if values.dtype.kind not in "biuf":
        raise InvalidArgument(f'top_episodes: by="{by}" is text; episodes are ranked by numbers.')
    best = np.argsort(-values.astype(np.float64), kind="stable")
    count = math.floor(len(best) * percent / 100)
    if of == "steps":
        length = dataset.episodes["length"][best]
        count = int(np.searchsorted(np.cumsum(length), length.sum() * percent / 100, "right"))
    return Prepared(dataset.select(episodes=np.sort(best[: max(1, count)])), reads=())


@builtin(version=1, prepare=_prepare_top, loader="Loader(ds.select(episodes=...))")
def top_episodes(
    episode: Batch,
    *,
    percent: float = 10.0,
    by: str = "total_reward",
    of: Literal["episodes", "steps"] = "episodes",
) -> Any:
    """Keep the episodes with the highest returns, as for behaviour cloning on the top x %.

    Keeps at most ``percent`` of all, but at least one episode; the earlier of equal ones. Their order stays.
    `Dataset.select` selects without a copy.

    Parameters
    ----------
    episode : Batch
    percent : float
        In (0, 100].
    by : str
        The episode column to rank by, largest first.
    of : {"episodes", "steps"}
        The total that ``percent`` refers to. Decision Transformer (Chen et al. 2021) counts steps.

    Raises
    ------
    NoReward
        The dataset has no rewards.
    InvalidArgument
        ``percent`` is out of range, or the column is not numeric.
    """
    return episode


def _prepare_select_fields(dataset: Dataset, *, fields: Names | None, drop: Names | None) -> Prepared:
    if (fields is None) == (drop is None):
        raise InvalidArgument("select_fields takes either fields, to keep, or drop.")
    if fields is not None:
        kept = {*stored(dataset, fields), *FLAGS}
    else:
        assert drop is not None
        gone = stored(dataset, drop)
        if flags := [n for n in gone if n in FLAGS]:
            raise InvalidArgument(
                f"select_fields: {' and '.join(flags)} cannot be dropped: flags say how episodes end."
            )
        kept = set(dataset.schema) - set(gone)
    return Prepared(dataset, reads=(), carried={n: n for n in dataset.schema if n in kept})


@builtin(version=1, prepare=_prepare_select_fields, loader="Loader(ds, fields=...)")
def select_fields(episode: Batch, *, fields: Names | None = None, drop: Names | None = None) -> Any:
    """Keep some of the fields, or drop some.

    Kept fields share the files of the source, and nothing is read. A loader with ``fields=`` reads only these.

    Parameters
    ----------
    episode : Batch
    fields : str or sequence of str
        Fields to keep; ``observation`` includes all fields nested below it. Flags are always kept.
    drop : str or sequence of str
        Fields to drop instead.

    Raises
    ------
    UnknownField, InvalidArgument
        A field is missing, a flag would be dropped, or both arguments were given.
    """
    return episode


def _prepare_rename(dataset: Dataset, *, names: Mapping[str, str] | str) -> Prepared:
    renamed = {n: new + n[len(old) :] for old, new in _pairs(names).items() for n in _below(dataset, old)}
    for old, new in renamed.items():
        if old in FLAGS:
            raise InvalidArgument(f"rename_fields: {old} is a flag, whose name is fixed.")
        if old.startswith("next/") != new.startswith("next/"):
            raise InvalidArgument(
                f"rename_fields: {old} cannot become {new}.",
                hint="next/ is for results of a step, and only for those",
            )
    carried = {n: renamed.get(n, n) for n in dataset.schema}
    _check_distinct(list(carried.values()))
    return Prepared(dataset, reads=(), carried=carried)


def _check_distinct(names: Sequence[str]) -> None:
    """Raise InvalidArgument if names differ only in case, or if one is both a field and a group."""
    known: dict[str, str] = {}
    for name in names:
        if name.lower() in known:
            raise InvalidArgument(f"rename_fields: two fields would be called {known[name.lower()]} and {name}.")
        known[name.lower()] = name
    for name in names:
        if inner := next((n for n in names if n.startswith(f"{name}/")), None):
            raise InvalidArgument(f"rename_fields: {name} would be both a field and a group that contains {inner}.")


def _below(dataset: Dataset, name: str) -> list[str]:
    """Return the field ``name``, or the fields nested below it."""
    found = [n for n in dataset.schema if is_below(n, name)]
    return found or [dataset.field(name).name]


def _pairs(names: Mapping[str, str] | str) -> dict[str, str]:
    if isinstance(names, Mapping) and names and all(isinstance(n, str) and n for n in names.values()):
        return {str(old): new.strip("/") for old, new in names.items()}
    if isinstance(names, str):
        pairs = [part.partition("=") for part in listed(names)]
        if all(old and new for old, _, new in pairs):
            return {old.strip(): new.strip().strip("/") for old, _, new in pairs}
    raise InvalidArgument(f"rename_fields: names={names!r}.", hint='names="info/qpos=state/qpos,info/qvel=state/qvel"')


@builtin(version=1, prepare=_prepare_rename)
def rename_fields(episode: Batch, *, names: Mapping[str, str] | str) -> Any:
    """Rename fields.

    They share the files of the source, and nothing is read.

    Parameters
    ----------
    episode : Batch
    names : mapping of str to str, or str
        Old names to new names; or text, as in ``"info/qpos=state/qpos,info/qvel=state/qvel"``. ``info=state``
        renames all fields nested below ``info``.

    Raises
    ------
    UnknownField, InvalidArgument
        A field is missing, a name is taken, or a field would move into or out of ``next/``.
    """
    return episode


def _nested(fields: Names, known: Sequence[str]) -> list[str]:
    """Expand names to the fields nested below them; empty if one of the names is unknown."""
    groups = [[n for n in known if is_below(n, name)] for name in listed(fields)]
    return list(dict.fromkeys(n for group in groups for n in group)) if all(groups) else []


def _prepare_concatenate(dataset: Dataset, *, fields: Names, into: str, keep: bool) -> Prepared:
    names = _nested(fields, sorted(dataset.schema, key=natural)) or [dataset.field(n).name for n in listed(fields)]
    parts = [dataset.schema[n] for n in names]
    for f in parts:
        if f.kind != "array" or len(f.shape) > 1 or f.name in FLAGS:
            what = f"{f.dtype} {list(f.shape)}" if f.kind == "array" else f.codec or "text"
            raise InvalidArgument(f"concatenate: {f.name} is {what}, neither a vector nor a number.")
    placements = {f.placement for f in parts}
    if len(placements) > 1 or (placements == {"next"}) != into.startswith("next/"):
        raise InvalidArgument(
            f"concatenate: {', '.join(f'{f.name} (at {f.placement})' for f in parts)} cannot become {into}.",
            hint="join fields of one placement, as rlds inspect shows it; those at next into a name below next/",
        )
    if into in dataset.schema and into not in names:
        raise InvalidArgument(f"concatenate: a field {into} exists already.", hint="into=NAME")
    return Prepared(dataset, reads=tuple(names))


@builtin(version=1, prepare=_prepare_concatenate)
def concatenate(episode: Batch, *, fields: Names, into: str = "observation", keep: bool = False) -> Any:
    """Join vectors end to end, as TorchRL's ``CatTensors`` does.

    Parameters
    ----------
    episode : Batch
    fields : str or sequence of str
        Vectors and numbers per step, in the order to join them; all of one placement. ``info`` includes all fields
        nested below it, in natural order of names: ``joint2`` before ``joint10``.
    into : str
        The name of the new field.
    keep : bool
        Keep the joined fields too; otherwise they are removed.

    Returns
    -------
    Batch
        With the new field [..., n], in the dtype to which NumPy promotes.

    Raises
    ------
    UnknownField, InvalidArgument
        A field is missing or is not a vector, placements differ, or the name is taken.
    """
    names = _nested(fields, sorted(episode.names(), key=natural))
    parts: list[Array] = [episode[n] for n in names]
    joined = np.concatenate([p[:, None] if p.ndim == 1 else p for p in parts], axis=-1)
    for name in names if not keep else ():
        del episode[name]
    episode[into] = joined
    return episode


def listed(names: Names) -> tuple[str, ...]:
    """Return ``"a,b"`` or ``["a", "b"]`` as a tuple.

    Raises
    ------
    InvalidArgument
        The names are neither, or empty.
    """
    parts = names.split(",") if isinstance(names, str) else names
    try:
        found = tuple(join_name(p).strip() for p in parts)
    except (TypeError, AttributeError):
        found = ()
    if not found or not all(found):
        raise InvalidArgument(f"{names!r} names no fields.", hint='one, or several as in "observation,action"')
    return tuple(dict.fromkeys(found))


def stored(dataset: Dataset, names: Names) -> tuple[str, ...]:
    """Return the fields with these names or nested below them, including separate next values.

    Raises
    ------
    UnknownField, InvalidArgument
        A name matches no field.
    """
    found: dict[str, None] = {}
    for name in listed(names):
        matching = [n for n in dataset.schema if any(is_below(m, name) for m in (n, n.removeprefix("next/")))]
        found |= dict.fromkeys(matching or [dataset.field(name).name])
    return tuple(found)


def dtype_of(name: Any) -> np.dtype[Any]:
    """Return the numeric or bool dtype called ``name``.

    Raises
    ------
    InvalidArgument
        There is no such dtype, or it is not numeric.
    """
    try:
        dtype: np.dtype[Any] = np.dtype(name).newbyteorder("=")
    except (
        TypeError,
        ValueError,
        SyntaxError,
        OverflowError,
        RecursionError,
        MemoryError,
    ):  # NumPy parses the text as Python
        dtype = np.dtype(object)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise InvalidArgument(f"{name!r} is not a numeric dtype.", hint="float16, float32, float64, int32, uint8, bool")
    return dtype


def _prepare_cast(dataset: Dataset, *, fields: Names, dtype: str) -> Prepared:
    dtype_of(dtype)
    names = stored(dataset, fields)
    for name in names:
        f = dataset.schema[name]
        if f.kind != "array" or name in FLAGS:
            what = "a flag" if name in FLAGS else f"kept as {f.codec or 'text'}"
            raise InvalidArgument(f"{name} is {what}: its dtype cannot be changed.")
    return Prepared(dataset, reads=names)


@builtin(version=1, prepare=_prepare_cast, loader="Loader(ds, dtype=...) casts floats")
def cast(episode: Batch, *, fields: Names, dtype: str) -> Any:
    """Change the dtype of fields without losing a value: floats may be rounded, but not overflow.

    A loader casts floats itself (``dtype=``, by default float32).

    Parameters
    ----------
    episode : Batch
    fields : str or sequence of str
        ``observation`` includes all fields nested below it.
    dtype : str
        ``float16``, ``float32``, ``float64``, ``int32``, ``uint8``, ``bool``, ...

    Raises
    ------
    InvalidArgument
        A value does not fit: a fraction or too large a number for an integer, or too large a float.
    """
    wanted = dtype_of(dtype)
    for name, values in list(episode.leaves()):
        if name in FLAGS:
            continue
        episode[name] = converted(name, values, wanted)
    return episode


def converted(name: str, values: Array, dtype: np.dtype[Any]) -> Array:
    """Convert ``values`` to another dtype without losing a value.

    Raises
    ------
    InvalidArgument
        See `cast`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        made = values.astype(dtype)
        fits = np.isfinite(made) | ~np.isfinite(values) if dtype.kind == "f" else made == values
    if not fits.all():
        wrong = values[~fits].flat[0]
        raise InvalidArgument(f"{name} contains {wrong}, which {dtype} cannot represent.")
    return made


def _prepare_normalise(dataset: Dataset, *, fields: Names, mode: Mode, eps: float) -> Prepared:
    _normalizer(dataset, listed(fields), mode, eps)
    return Prepared(dataset, reads=stored(dataset, fields))


@lru_cache(maxsize=1)
def _normalizer(source: Dataset, fields: tuple[str, ...], mode: Mode, eps: float) -> Normalize:
    return Normalize(source, fields, mode=mode, eps=eps)


@builtin(version=1, prepare=_prepare_normalise, loader="Loader(ds, transform=Normalize(ds))")
def normalise(
    episode: Batch, *, source: Dataset, fields: Names = "observation", mode: Mode = "std", eps: float = 1e-3
) -> Any:
    """Scale fields by the dataset's statistics over its steps.

    `rlds_cli.loader.Normalize` computes the same values while loading; prefer it for training, and keep the data
    unscaled.

    Parameters
    ----------
    episode : Batch
    source : Dataset
        The dataset with the statistics; `preprocess.run` passes its source.
    fields : str or sequence of str
        ``observation`` includes all fields nested below it. Next values are scaled in the same way.
    mode : {"std", "range", "quantile"}
        ``(x - mean) / (std + eps)``; or from [min, max], or from [1 %, 99 %] of the values, to [-1, 1].
    eps : float

    Returns
    -------
    Batch
        Floats keep their dtype; integers become float32.

    Raises
    ------
    UnknownField
        A field has no statistics.
    InvalidArgument
        The mode is unknown, or ``eps`` is negative.

    Examples
    --------
    >>> ds = preprocess.run("d4rl/hopper-medium-v2", normalise, args={"mode": "range"})  # doctest: +SKIP
    """
    norm = _normalizer(source, listed(fields), mode, eps)
    return norm(episode)
