"""Convert between arrays by field name and the input and output of a function.

=============  =======================================================================================
unit           input of the function
=============  =======================================================================================
episode        ``observation`` [T+1, ...], ``action`` [T, ...], ``next/reward`` [T], as ``create`` takes them
batch          transitions: ``observation`` and ``next/observation`` [B, ...], ``next/reward`` [B, 1]
step           one transition: ``observation`` [...], ``next/reward`` [1]
=============  =======================================================================================

With ``arrays="tensordict"`` an episode is passed as its T transitions, batch size [T], and the field ``episode`` [B]
holds its number, as in TorchRL's datasets.
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
    """Copy the transitions in ``original``, with root and next values in separate, writable arrays.

    ``pick(values, ahead)`` copies the rows of the steps, or with ``ahead=1`` the rows after them. ``observed`` [B] is
    False where the next observation is not recorded; None if all are.
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
    """Add the field ``episode`` with ``numbers`` [B], unless the source has a field of that name."""
    if any(n.split("/")[0] == EPISODE for n in fields):
        return given
    return {**given, EPISODE: numbers.copy()}


def without_numbers(flat: Flat, numbers: Array | int, fields: Mapping[str, Field]) -> Flat:
    """Remove the field that `numbered` added; if the function changed it, it is a field like any other."""
    values = flat.get(EPISODE)
    if EPISODE in fields or not isinstance(values, np.ndarray) or values.ndim != 1:
        return flat
    same = np.shape(numbers) in ((), values.shape) and bool((values == numbers).all())
    return {n: v for n, v in flat.items() if n != EPISODE} if same else flat


def to_input(given: Mapping[str, Array], arrays: str) -> Any:
    """Nest the fields and convert them to the kind of arrays that the task asks for."""
    batch = Batch.nest(given)
    if arrays == "numpy":
        return batch
    return batch.tensordict() if arrays == "tensordict" else batch.to("cpu")


def iterate_steps(batch: Any) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Yield the transitions of a batch from `to_input`, each with its leaves in the order of ``batch.names()``."""
    if not isinstance(batch, Batch):  # a TensorDict
        yield from ((batch[i], ()) for i in range(len(batch)))
        return
    groups: list[tuple[int, str, list[tuple[str, int]]]] = []
    columns: list[Any] = []
    _group(batch, -1, "", groups, columns)
    put = dict.__setitem__  # dict's own: these names have one component, which Batch's would have to find out
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
    """Append a batch and those nested in it to ``groups``: the parent, the key in it, and the columns of leaves."""
    here, places = len(groups), list[tuple[str, int]]()
    groups.append((above, name, places))
    for key, value in batch.items():
        if isinstance(value, Batch):
            _group(value, here, key, groups, columns)
        else:
            places.append((key, len(columns)))
            columns.append(value)


def from_output(value: Any, where: Any, *, frames: bool = False) -> Flat:
    """Flatten the output of a function to fields by name; ``frames`` allows encoded frames.

    Raises
    ------
    InvalidEpisode
        It is not a mapping, or holds something that cannot be stored.
    """
    if hasattr(value, "to_dict") and hasattr(value, "batch_size"):  # a TensorDict: its text becomes lists
        value = value.to_dict()
    if not isinstance(value, Mapping):
        raise InvalidEpisode(f"{where}: a {type(value).__name__} was returned; a dict of fields is needed.")
    flat = flatten(value, where)
    for name in () if frames else (n for n, v in flat.items() if isinstance(v, EncodedFrames)):
        raise InvalidEpisode(
            f"{where}: {name} came back as encoded frames, which only unit episode may return.",
            hint="unit=episode (--unit episode)",
        )
    return flat


def without_lookups(flat: Flat, given: Mapping[str, Array], fields: Mapping[str, Field], where: str) -> Flat:
    """Remove the fields that only inform the function, and turn reward and flags into [B].

    Raises
    ------
    InvalidEpisode
        ``next/done`` was changed, but not the flags that it is computed from.
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
            f"{where}: next/done was changed, but it is computed from next/terminated and next/truncated.",
            hint="change next/terminated (the task is over) or next/truncated (time is up) instead",
        )


def without_root_flags(flat: Flat, fields: Mapping[str, Field]) -> Flat:
    """Remove the root flags that a TensorDict of transitions has but no dataset stores."""
    return {n: v for n, v in flat.items() if n not in ROOT_FLAGS or n in fields}


def check_pairs(flat: Flat, fields: Mapping[str, Field], where: str) -> None:
    """Raise InvalidEpisode if a field that has root and next values came back with only one of them."""
    for name in (n for n, f in fields.items() if f.placement == "both"):
        pair = [n for n in (name, f"next/{name}") if n in flat]
        if len(pair) == 1:
            other = ({name, f"next/{name}"} - {pair[0]}).pop()
            raise InvalidEpisode(
                f'{where}: "{pair[0]}" came back without "{other}".', hint="return both, or neither to remove the field"
            )


def agree(a: Any, b: Any) -> bool:
    """Return whether two columns are equal; NaN equals NaN."""
    if isinstance(a, list) or isinstance(b, list):
        return isinstance(a, list) and isinstance(b, list) and a == b
    return same(a, b) or (
        a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
    )


def same(a: Any, b: Array) -> bool:
    """Return whether a returned field equals the source bit for bit."""
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
