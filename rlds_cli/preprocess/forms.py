"""What a function is given, and what it gave back: arrays by field name in between.

=============  =======================================================================================
unit           what the function sees
=============  =======================================================================================
episode        ``observation`` [T+1, ...], ``action`` [T, ...], ``next/reward`` [T], as ``create`` takes them
batch          transitions: ``observation`` and ``next/observation`` [B, ...], ``next/reward`` [B, 1]
step           one transition: ``observation`` [...], ``next/reward`` [1]
=============  =======================================================================================

With ``arrays="tensordict"`` an episode comes as its T transitions too, batch size [T]; and ``episode`` [B], its number,
is among the fields, as in TorchRL's datasets.

Steps that are read and given to a function together, and where they lie among rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_cli.dataset.batch import ROOT_FLAGS, Batch
from rlds_cli.errors import InvalidEpisode
from rlds_cli.ted import FLAGS, REWARD, Array, EncodedFrames, Field
from rlds_cli.ted.episodes import Flat, flatten

DONE, OBSERVED = "next/done", "next/observed"
EPISODE = "episode"
_SMALL = 1 << 14  # bytes up to which a copy is compared faster than an array
_COLUMNS = (REWARD, *FLAGS)  # [B, 1] in batches


def transitions(
    original: Mapping[str, Array],
    fields: Mapping[str, Field],
    pick: Callable[[Array, int], Array],
    observed: Array | None,
) -> dict[str, Array]:
    """Copies of the transitions in ``original``, root and next, writable and apart.

    ``pick`` copies the rows of steps of some values, and with 1 those one step ahead. ``observed`` [B] says whose next
    observation is known; None where all are.
    """
    given: dict[str, Array] = {}
    for name, values in original.items():
        one = pick(values, 0)
        given[name] = one[:, None] if name in _COLUMNS and one.ndim == 1 else one
        if fields[name].placement == "both":
            given[f"next/{name}"] = pick(values, 1)
    given[DONE] = given[FLAGS[0]] | given[FLAGS[1]]
    if observed is not None:
        given[OBSERVED] = observed[:, None].copy()
    return given


def numbered(given: dict[str, Array], numbers: Array, fields: Mapping[str, Field]) -> dict[str, Array]:
    """Transitions with the ``numbers`` [B] of their episodes, unless the source has a field of that name."""
    if any(n.split("/")[0] == EPISODE for n in fields):
        return given
    return {**given, EPISODE: numbers.copy()}


def without_numbers(flat: Flat, numbers: Array | int, fields: Mapping[str, Field]) -> Flat:
    """``flat`` less the ``numbers`` that `numbered` gave; changed ones are a field like any other."""
    values = flat.get(EPISODE)
    if EPISODE in fields or not isinstance(values, np.ndarray) or values.ndim != 1:
        return flat
    same = np.shape(numbers) in ((), values.shape) and bool((values == numbers).all())
    return {n: v for n, v in flat.items() if n != EPISODE} if same else flat


def hand(given: Mapping[str, Array], arrays: str) -> Any:
    """As the function wants it: nested, in its kind of arrays."""
    batch = Batch.nest(given)
    if arrays == "numpy":
        return batch
    return batch.tensordict() if arrays == "tensordict" else batch.to("cpu")


def iterate_steps(batch: Any) -> Iterator[tuple[Any, Sequence[Any]]]:
    """The transitions of what ``hand`` gave, one by one, each with its leaves in the order of ``batch.names()``."""
    if not isinstance(batch, Batch):  # a TensorDict
        yield from ((batch[i], ()) for i in range(len(batch)))
        return
    groups: list[tuple[int, str, list[tuple[str, int]]]] = []
    columns: list[Any] = []
    _group(batch, -1, "", groups, columns)
    put = dict.__setitem__  # names of single components: Batch's own need not look for more
    for leaves in zip(*columns, strict=True):
        nodes = [Batch() for _ in groups]
        for node, (above, name, places) in zip(nodes, groups, strict=True):
            for key, j in places:
                put(node, key, leaves[j])
            if above >= 0:
                put(nodes[above], name, node)
        yield nodes[0], leaves


def _group(
    batch: Batch, above: int, name: str, groups: list[tuple[int, str, list[tuple[str, int]]]], columns: list[Any]
) -> None:
    """Add a batch and those in it to ``groups``: which one it is in, as what, and where its leaves are."""
    here, places = len(groups), list[tuple[str, int]]()
    groups.append((above, name, places))
    for key, value in batch.items():
        if isinstance(value, Batch):
            _group(value, here, key, groups, columns)
        else:
            places.append((key, len(columns)))
            columns.append(value)


def from_output(value: Any, where: Any, *, frames: bool = False) -> Flat:
    """Fields by name of what a function returned; encoded ``frames`` where they may be among them.

    Raises
    ------
    InvalidEpisode
        It is no mapping, or holds what cannot be stored.
    """
    if hasattr(value, "to_dict") and hasattr(value, "batch_size"):  # a TensorDict: its texts become lists
        value = value.to_dict()
    if not isinstance(value, Mapping):
        raise InvalidEpisode(f"{where}: a {type(value).__name__} was returned; a dict of fields is needed.")
    flat = flatten(value, where)
    for name in () if frames else (n for n, v in flat.items() if isinstance(v, EncodedFrames)):
        raise InvalidEpisode(
            f"{where}: {name} came back as encoded frames, of which only whole episodes are made.",
            hint="unit=episode (--unit episode)",
        )
    return flat


def without_lookups(flat: Flat, given: Mapping[str, Array], fields: Mapping[str, Field], where: str) -> Flat:
    """Transitions less what was only given to be looked at, with reward and flags [B].

    Raises
    ------
    InvalidEpisode
        ``next/done`` was changed without the flags that it follows from.
    """
    flat = dict(flat)
    flat.pop(OBSERVED, None)
    done = flat.pop(DONE, None)
    for name in _COLUMNS:
        values = flat.get(name)
        plain = name not in fields or fields[name].shape == ()
        if plain and isinstance(values, np.ndarray) and values.ndim == 2 and values.shape[1] == 1:
            flat[name] = values[:, 0]
    if isinstance(done, np.ndarray) and all(n in flat for n in FLAGS):
        _check_done(done.reshape(-1), flat, given, where)
    return flat


def _check_done(done: Array, flat: Flat, given: Mapping[str, Array], where: str) -> None:
    either = np.logical_or(*(np.asarray(flat[n]) for n in FLAGS))
    if not np.array_equal(done, either) and not np.array_equal(done, given[DONE].reshape(-1)):
        raise InvalidEpisode(
            f"{where}: next/done was changed; it follows from next/terminated and next/truncated.",
            hint="change next/terminated (the task is over) or next/truncated (time is up) instead",
        )


def without_root_flags(flat: Flat, fields: Mapping[str, Field]) -> Flat:
    """``flat`` less the root flags that a TensorDict of transitions has and no dataset keeps."""
    return {n: v for n, v in flat.items() if n not in ROOT_FLAGS or n in fields}


def check_pairs(flat: Flat, fields: Mapping[str, Field], where: str) -> None:
    """Raise InvalidEpisode where of a field that is kept once, observation and next observation, only one is there."""
    for name in (n for n, f in fields.items() if f.placement == "both"):
        pair = [n for n in (name, f"next/{name}") if n in flat]
        if len(pair) == 1:
            other = ({name, f"next/{name}"} - {pair[0]}).pop()
            raise InvalidEpisode(
                f'{where}: "{pair[0]}" came back without "{other}".', hint="return both, or neither to remove the field"
            )


def agree(a: Any, b: Any) -> bool:
    """Whether two columns hold the same; NaN equals itself."""
    if isinstance(a, list) or isinstance(b, list):
        return isinstance(a, list) and isinstance(b, list) and a == b
    return same(a, b) or (
        a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
    )


def same(a: Any, b: Array) -> bool:
    """Whether a returned field is, bit for bit, what the source has."""
    if isinstance(a, list):
        return b.dtype == object and a == b.tolist()
    if isinstance(a, EncodedFrames):
        return False
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.nbytes < _SMALL:
        return bool(a.tobytes() == b.tobytes())
    x, y = np.ascontiguousarray(a), np.ascontiguousarray(b)
    word = np.uint64 if x.nbytes % 8 == 0 else np.uint8
    return bool(np.array_equal(x.reshape(-1).view(word), y.reshape(-1).view(word)))
