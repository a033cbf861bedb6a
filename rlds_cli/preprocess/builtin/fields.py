"""Some of the fields, under other names, or several as one.

Fields that are left out, kept or renamed are not read: what they take on disk is shared with the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_cli.batch import Batch
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.ordering import natural
from rlds_cli.preprocess.builtin.naming import Names, listed, stored
from rlds_cli.preprocess.traits import Prepared, builtin
from rlds_cli.ted import FLAGS, Array


def _prepare_select(dataset: Dataset, *, fields: Names | None, drop: Names | None) -> Prepared:
    if (fields is None) == (drop is None):
        raise InvalidArgument("select_fields takes either fields, which stay, or drop, those which go.")
    if fields is not None:
        kept = {*stored(dataset, fields), *FLAGS}
    else:
        assert drop is not None
        gone = stored(dataset, drop)
        if flags := [n for n in gone if n in FLAGS]:
            raise InvalidArgument(f"select_fields: {' and '.join(flags)} cannot go: they say how episodes end.")
        kept = set(dataset.schema) - set(gone)
    return Prepared(dataset, reads=(), carried={n: n for n in dataset.schema if n in kept})


@builtin(version=1, prepare=_prepare_select, loader="Loader(ds, fields=...)")
def select_fields(episode: Batch, *, fields: Names | None = None, drop: Names | None = None) -> Any:
    """Keep some of the fields, or drop some.

    What stays is shared with the source, and nothing is read. A loader that is told ``fields=`` reads these alone.

    Parameters
    ----------
    episode : Batch
    fields : str or sequence of str
        Those that stay; ``observation`` stands for everything nested below it. The flags stay in any case.
    drop : str or sequence of str
        Or those that go.

    Raises
    ------
    UnknownField, InvalidArgument
        A field is not there, a flag is to go, or both arguments were given.
    """
    return episode


def _prepare_rename(dataset: Dataset, *, names: Mapping[str, str] | str) -> Prepared:
    renamed = {n: new + n[len(old) :] for old, new in _pairs(names).items() for n in _below(dataset, old)}
    for old, new in renamed.items():
        if old in FLAGS:
            raise InvalidArgument(f"rename_fields: {old} is the flag's own name.")
        if old.startswith("next/") != new.startswith("next/"):
            raise InvalidArgument(
                f"rename_fields: {old} cannot become {new}.",
                hint="next/ is for what came of a step, and only that",
            )
    carried = {n: renamed.get(n, n) for n in dataset.schema}
    _check_distinct(list(carried.values()))
    return Prepared(dataset, reads=(), carried=carried)


def _check_distinct(names: Sequence[str]) -> None:
    """Refuse names that are the same to some file systems, and one that is a field and a group of fields."""
    known: dict[str, str] = {}
    for name in names:
        if name.lower() in known:
            raise InvalidArgument(f"rename_fields: two fields would be called {known[name.lower()]} and {name}.")
        known[name.lower()] = name
    for name in names:
        if inner := next((n for n in names if n.startswith(f"{name}/")), None):
            raise InvalidArgument(f"rename_fields: {name} would be a field, and a group that holds {inner}.")


def _below(dataset: Dataset, name: str) -> list[str]:
    """The field ``name``, or those nested below it."""
    found = [n for n in dataset.schema if n == name or n.startswith(f"{name}/")]
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
    """Give fields other names.

    What is in them is shared with the source, and not read.

    Parameters
    ----------
    episode : Batch
    names : mapping of str to str, or str
        The new name by the old one; as text ``"info/qpos=state/qpos,info/qvel=state/qvel"``. ``info=state`` renames
        everything nested below ``info``.

    Raises
    ------
    UnknownField, InvalidArgument
        A field is not there, a name is taken, or a field would change sides: what came of a step is below ``next/``.
    """
    return episode


def _nested(fields: Names, known: Sequence[str]) -> list[str]:
    """The fields asked for, with those nested below each name in its place; empty where a name is none of them."""
    groups = [[n for n in known if n == name or n.startswith(f"{name}/")] for name in listed(fields)]
    return list(dict.fromkeys(n for group in groups for n in group)) if all(groups) else []


def _prepare_concatenate(dataset: Dataset, *, fields: Names, into: str, keep: bool) -> Prepared:
    names = _nested(fields, sorted(dataset.schema, key=natural)) or [dataset.field(n).name for n in listed(fields)]
    parts = [dataset.schema[n] for n in names]
    for f in parts:
        if f.kind != "array" or len(f.shape) > 1 or f.name in FLAGS:
            what = f"{f.dtype} {list(f.shape)}" if f.kind == "array" else f.codec or "text"
            raise InvalidArgument(f"concatenate: {f.name} is {what}; vectors and numbers are needed.")
    placements = {f.placement for f in parts}
    if len(placements) > 1 or (placements == {"next"}) != into.startswith("next/"):
        raise InvalidArgument(
            f"concatenate: {', '.join(f'{f.name} (at {f.placement})' for f in parts)} cannot become {into}.",
            hint="fields of one placement, as rlds inspect shows it; those at next below next/",
        )
    if into in dataset.schema and into not in names:
        raise InvalidArgument(f"concatenate: there is a field {into} already.", hint="into=NAME")
    return Prepared(dataset, reads=tuple(names))


@builtin(version=1, prepare=_prepare_concatenate)
def concatenate(episode: Batch, *, fields: Names, into: str = "observation", keep: bool = False) -> Any:
    """Join vectors end to end to one: what TorchRL's ``CatTensors`` does.

    Parameters
    ----------
    episode : Batch
    fields : str or sequence of str
        Vectors and numbers per step, in the order in which they are joined; all of one placement. ``info`` stands
        for everything nested below it, sorted by name, ``joint2`` before ``joint10``.
    into : str
        The name of the new field.
    keep : bool
        Keep the fields beside it; else they go.

    Returns
    -------
    Batch
        The new field [..., n] has the dtype to which NumPy promotes theirs.

    Raises
    ------
    UnknownField, InvalidArgument
        A field is not there or no vector, placements differ, or the name is taken.
    """
    names = _nested(fields, sorted(episode.names(), key=natural))
    parts: list[Array] = [episode[n] for n in names]
    joined = np.concatenate([p[:, None] if p.ndim == 1 else p for p in parts], axis=-1)
    for name in names if not keep else ():
        del episode[name]
    episode[into] = joined
    return episode
