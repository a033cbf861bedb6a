"""Convert between arrays by field name and the input and output of a function.

=============  =======================================================================================
unit           input of the function
=============  =======================================================================================
episode        ``observation`` [T+1, ...], ``action`` [T, ...], ``next/reward`` [T], as ``create`` takes them
batch          transitions: ``observation`` and ``next/observation`` [B, ...], ``next/reward`` [B, 1]
step           one transition: ``observation`` [...], ``next/reward`` [1]
window         ``observation`` and all others [B, L, ...], ``next/reward`` [B, L, 1], ``mask`` [B, L]
=============  =======================================================================================

All scalar floats have the shape of ``next/reward``, see `Field.is_column`. They may be returned as [B, 1] or as [B].
New fields are stored in the shape that the function gives them.

With ``arrays="tensordict"`` an episode is passed as its T transitions, batch size [T], and the field ``episode`` [B]
holds its number, as in TorchRL's datasets.

A window holds the neighbours of each step in its episode. Outside of the episode the nearest row is repeated: the first
or final observation, and for fields of steps the value of the first or last step::

    history=2, future=1, an episode of T = 4 steps        step:   -2 -1  0  1  2  3  4
    window of step 0                                        [ o0 o0 o0 o1 ]            mask 0 0 1 1
    window of step 3                                                 [ o1 o2 o3 o4 ]   mask 1 1 1 0
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.dataset import ROOT_FLAGS, Batch, register
from rlds_cli.errors import InvalidEpisode
from rlds_cli.preprocess.lazy import EPISODE, LazyArray, LazyBatch, in_episode, tensor
from rlds_cli.store import CheckedFrames
from rlds_cli.ted import FLAGS, EncodedFrames, Field, Flat, VideoFrames, flatten, is_bytes

if TYPE_CHECKING:
    from rlds_cli.preprocess.reading import Neighbours

DONE, OBSERVED = "next/done", "next/observed"
MASK, NEXT_MASK = "mask", "next/mask"
_SMALL = 48 << 10  # bytes up to which a copy is compared faster than an array


def transitions(
    original: Mapping[str, Array],
    fields: Mapping[str, Field],
    pick: Callable[[Array, int], Array],
    observed: Array | None,
    lazy: Callable[[str, int], LazyArray | None] = lambda name, ahead: None,
) -> dict[str, Any]:
    """Copy the transitions in ``original``, with root and next values in separate, writable arrays.

    ``pick(values, ahead)`` copies the rows of the steps, or with ``ahead=1`` the rows after them; ``lazy`` returns them
    as a LazyArray instead, for some of the fields. ``observed`` [B] is False where the next observation is not
    recorded; None if all are.
    """
    given: dict[str, Any] = {}
    for name in original:
        f = fields[name]
        for ahead in (0, 1) if f.placement == "both" else (0,):
            values = lazy(name, ahead)
            given[f"next/{name}" if ahead else name] = (
                f.of_batch(pick(original[name], ahead)) if values is None else values
            )
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


def to_input(given: Mapping[str, Any], arrays: str, columns: Mapping[str, Any] | None = None) -> Any:
    """Nest the fields and convert them to the kind of arrays that the task asks for.

    ``columns`` are those of the episode; a TensorDict does not have them.
    """
    values = list(given.values())
    if arrays == "tensordict":
        return _nest(_tree(tuple(given)), values, Batch).tensordict()
    if arrays == "torch":
        import torch

        values = [v if isinstance(v, LazyArray) or v.dtype == object else torch.as_tensor(v) for v in values]
    batch = _nest(_tree(tuple(given)), values, LazyBatch)
    register(LazyBatch)
    return batch if columns is None else in_episode(batch, columns)


def lazily(shape: tuple[int, ...], f: Field, read: Callable[[], Array], arrays: str) -> LazyArray:
    """Return the values of a field, which ``read`` returns when they are used, in the kind of arrays of a task."""
    dtype = np.dtype(object if f.kind == "text" else f.dtype)
    return LazyArray(shape, dtype, read, tensor if arrays == "torch" and f.kind != "text" else np.array)


@lru_cache(maxsize=64)
def _tree(names: tuple[str, ...]) -> Batch:
    """Return the numbers of the names, nested by them."""
    return Batch.nest((name, i) for i, name in enumerate(names))


def _nest(tree: Batch, values: Sequence[Any], kind: type[Batch]) -> Any:
    """Return values nested as their numbers are, in a fraction of the time that `Batch.nest` takes."""
    return kind({k: _nest(v, values, kind) if isinstance(v, Batch) else values[v] for k, v in tree.items()})


def from_output(value: Any, where: Any, *, frames: bool = False) -> Flat:
    """Flatten the output of a function to fields by name; ``frames`` allows encoded frames, also as lists of bytes.

    LazyArrays stay, see `settled`.

    Raises
    ------
    InvalidEpisode
        It is not a mapping, or holds something that cannot be stored, or bytes that are not images.
    """
    if hasattr(value, "to_dict") and hasattr(value, "batch_size"):  # a TensorDict: its text becomes lists
        value = value.to_dict()
    if not isinstance(value, Mapping):
        raise InvalidEpisode(
            f"{where}: a {type(value).__name__} was returned; a dict of fields is needed.",
            hint="a filter keeps or drops whole episodes: unit=episode (--unit episode)" if is_bool(value) else None,
        )
    flat = flatten(value, where)
    encoded = {n: v for n, v in flat.items() if isinstance(v, EncodedFrames | VideoFrames) or is_bytes(v)}
    for name in () if frames else encoded:
        raise InvalidEpisode(
            f"{where}: {name} came back as encoded frames, which only unit episode may return.",
            hint="unit=episode (--unit episode)",
        )
    checked = {n: CheckedFrames.of(v, None, n, str(where)) for n, v in encoded.items() if is_bytes(v)}
    return flat | checked


def settled(flat: Flat, where: str, given: Mapping[str, Any]) -> Flat:
    """Replace LazyArrays by their values, but for those of the same field of the input that nobody has read."""
    lazy = {n: v for n, v in flat.items() if isinstance(v, LazyArray)}
    return flat | flatten({n: v.values for n, v in lazy.items() if not v.is_of(given.get(n))}, where)


def of_transitions(flat: Flat, where: str, given: Mapping[str, Any]) -> Flat:
    """Settle the output of a function of transitions: where one of root and next values is a LazyArray, both are."""
    flat = settled(flat, where, given)
    for name in [n for n in flat if f"next/{n}" in given]:
        pair = [n for n in (name, f"next/{name}") if isinstance(flat.get(n), LazyArray)]
        flat |= {n: resolved(flat[n]) for n in pair if len(pair) == 1}
    return flat


def resolved(values: Any) -> Any:
    """Return the values of a field of the source for a LazyArray, texts as a list; anything else as it is."""
    if not isinstance(values, LazyArray):
        return values
    return values.source.tolist() if values.dtype == object else values.source


def is_bool(value: Any) -> bool:
    """Return whether a value is one bool: of Python, NumPy or torch."""
    if isinstance(value, bool | np.bool_):
        return True
    return str(getattr(value, "dtype", "")) in ("bool", "torch.bool") and getattr(value, "ndim", None) == 0


def without_lookups(flat: Flat, given: Mapping[str, Array], fields: Mapping[str, Field], where: str) -> Flat:
    """Remove the fields that only inform the function, and turn columns [B, 1] into scalars [B].

    Fields that the source does not have keep their shape, except for rewards and flags.

    Raises
    ------
    InvalidEpisode
        ``next/done`` was changed, but not the flags that it is computed from.
    """
    flat = dict(flat)
    flat.pop(OBSERVED, None)
    done = flat.pop(DONE, None)
    for name, values in flat.items():
        if isinstance(values, np.ndarray):
            known = fields.get(name, fields.get(name.removeprefix("next/")))
            flat[name] = (known or Field(name, "bool")).of_rows(values)
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
    if isinstance(a, EncodedFrames | VideoFrames):
        return False
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.nbytes < _SMALL:
        return bool(a.tobytes() == b.tobytes())
    x, y = np.ascontiguousarray(a), np.ascontiguousarray(b)
    word = np.uint64 if x.nbytes % 8 == 0 else np.uint8
    return bool(np.array_equal(x.reshape(-1).view(word), y.reshape(-1).view(word)))


def extended(root: Any, after: Any) -> Any:
    """Append the last next value to the T values of a field."""
    if isinstance(root, list):
        return [*root, after[-1]]
    return np.concatenate([root, after[-1:]])


def take(values: Any, index: Any) -> Any:
    """Index the rows of a column, which may be a list of text."""
    return [values[i] for i in index] if isinstance(values, list) else values[index]


def returned(value: Any, where: object) -> Any:
    """Return what a function of transitions returned; raise InvalidEpisode for None."""
    if value is None:
        raise InvalidEpisode(
            f"{where}: None was returned; units batch and step return every transition.",
            hint="return it; to drop episodes, use unit=episode (--unit episode)",
        )
    return value


# -- windows


def window_fields(
    rows: Callable[[str], Array],
    names: Iterable[str],
    fields: Mapping[str, Field],
    n: Neighbours,
    later: Collection[str] = (),
    arrays: str = "numpy",
) -> dict[str, Any]:
    """Gather the windows of the fields: [B, L, ...], of `Field.is_column` [B, L, 1]; ``mask`` and ``next/mask`` [B, L].

    The fields in ``later`` are LazyArrays, in the kind of ``arrays``.

    Raises
    ------
    InvalidEpisode
        A field has the name of a mask.
    """
    windows: dict[str, Any] = {}
    for name in names:
        if name in (MASK, NEXT_MASK):
            raise InvalidEpisode(
                f'the source has a field "{name}", the name of the mask of windows.', hint="exclude it with fields="
            )
        f = fields[name]
        places = {name: n.observed, f"next/{name}": n.after} if f.placement == "both" else {name: n.steps}
        values = cache(partial(rows, name))
        for shown, at in places.items():
            if name in later:
                read = cache(lambda values=values, at=at: values()[at])
                windows[shown] = lazily((*at.shape, *f.shape), f, read, arrays)
            else:
                windows[shown] = f.of_batch(values()[at], 2)
    windows[DONE] = windows[FLAGS[0]] | windows[FLAGS[1]]
    return {**windows, MASK: n.mask, NEXT_MASK: n.next_mask}


def windows_to_input(windows: Mapping[str, Any], arrays: str, columns: Mapping[str, Any] | None = None) -> Any:
    """Convert windows for the function. NumPy arrays are read-only, since changes to a window would be lost."""
    if arrays == "numpy":
        windows = {n: v.frozen() if isinstance(v, LazyArray) else v for n, v in windows.items()}
        for values in windows.values():
            if isinstance(values, np.ndarray):
                values.flags.writeable = False
    return to_input(windows, arrays, columns)


def merge_output(value: Any, handed: Any, before: Flat, fields: Mapping[str, Field], where: str) -> Flat:
    """Apply the output of a function of windows to the fields of the source.

    Parameters
    ----------
    value : mapping
        The added or changed fields, one row per step [B, ...], and None for removed ones; the others stay.
    handed : mapping
        The input of the function.
    before : dict
        The transitions of the source.

    Raises
    ------
    InvalidEpisode
        It is not a mapping, or is the whole input; a window was changed in place; or an observation was returned
        without the next one.
    """
    if not _is_mapping(value):
        raise InvalidEpisode(f"{where}: a {type(value).__name__} was returned; a dict of fields is needed.")
    known = dict(_leaves_of(handed, ()))
    new, removed = {}, set[str]()
    for name, leaf in _leaves_of(value, ()):
        if name in (MASK, NEXT_MASK) and leaf is known[name]:
            raise InvalidEpisode(
                f"{where}: the function returned the windows with their mask.",
                hint="return only added or changed fields, one row per step; the others stay",
            )
        if leaf is None:
            removed |= {name, f"next/{name}"} if name in fields and fields[name].placement == "both" else {name}
        else:
            new[name] = leaf
    _check_edits(known, where)
    _check_observations(new, fields, where)
    kept = {n: v for n, v in before.items() if not any(n == r or n.startswith(f"{r}/") for r in removed)}
    if DONE not in new:
        kept.pop(DONE, None)
    return from_output({**kept, **new}, where)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "items"))


def _leaves_of(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if not _is_mapping(value):
        yield "/".join(path), value
        return
    for key, below in value.items():
        yield from _leaves_of(below, (*path, *(key if isinstance(key, tuple) else (str(key),))))


def _check_edits(handed: Mapping[str, Any], where: str) -> None:
    for name, value in handed.items():
        if getattr(value.values if isinstance(value, LazyArray) and value.is_read else value, "_version", 0):
            raise InvalidEpisode(
                f"{where}: the windows of {name} were changed in place.",
                hint="return the new values, one row per step, under the field's name",
            )


def _check_observations(new: Mapping[str, Any], fields: Mapping[str, Field], where: str) -> None:
    for name, f in fields.items():
        if f.placement == "both" and name in new and f"next/{name}" not in new:
            raise InvalidEpisode(
                f'{where}: "{name}" came back changed and "next/{name}" did not.',
                hint='compute both alike, from the window and from its "next/..."',
            )
