"""Convert between arrays by field name and the input and output of a function.

=============  =======================================================================================
unit           input of the function
=============  =======================================================================================
episode        ``observation`` [T+1, ...], ``action`` [T, ...], ``next/reward`` [T], as ``create`` takes them
batch          transitions: ``observation`` and ``next/observation`` [B, ...], ``next/reward`` [B, 1]
step           one transition: ``observation`` [...], ``next/reward`` [1]
window         ``observation`` and all others [B, L, ...], ``next/reward`` [B, L, 1], ``mask`` [B, L]
=============  =======================================================================================

With ``arrays="tensordict"`` an episode is passed as its T transitions, batch size [T], and the field ``episode`` [B]
holds its number, as in TorchRL's datasets.

A window holds the neighbours of each step in its episode. Outside of the episode the nearest row is repeated: the first
or final observation, and for fields of steps the value of the first or last step::

    history=2, future=1, an episode of T = 4 steps        step:   -2 -1  0  1  2  3  4
    window of step 0                                        [ o0 o0 o0 o1 ]            mask 0 0 1 1
    window of step 3                                                 [ o1 o2 o3 o4 ]   mask 1 1 1 0
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.dataset.batch import ROOT_FLAGS, Batch
from rlds_cli.errors import InvalidEpisode
from rlds_cli.ted import FLAGS, REWARD, Array, EncodedFrames, Field
from rlds_cli.ted.episodes import Flat, flatten

if TYPE_CHECKING:
    from rlds_cli.preprocess.reading import Neighbours

Groups = list[tuple[tuple[str, ...], int, Callable[[Any], tuple[Any, ...]]]]  # see `ColumnStack`

DONE, OBSERVED = "next/done", "next/observed"
EPISODE = "episode"
MASK, NEXT_MASK = "mask", "next/mask"
_SMALL = 1 << 14  # bytes up to which a copy is compared faster than an array
_COLUMNS = (REWARD, *FLAGS)  # [B, 1] in batches, [B, L, 1] in windows


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


def extended(root: Any, after: Any) -> Any:
    """Append the last next value to the T values of a field."""
    if isinstance(root, list):
        return [*root, after[-1]]
    return np.concatenate([root, after[-1:]])


def take(values: Any, index: Any) -> Any:
    """Index the rows of a column, which may be a list of text."""
    return [values[i] for i in index] if isinstance(values, list) else values[index]


# -- single steps


class ColumnStack:
    """Stacks rows into columns of ``size`` rows; the first row determines the fields.

    Rows are copied, since a function may return the same buffer each time. A leaf that is the very array in the input
    is not copied: a field that every row returns that way uses the column in ``given`` itself.
    """

    def __init__(self, size: int, given: Any) -> None:
        self._size = size
        arrays = dict(given.leaves()) if isinstance(given, Batch) else {}
        self._given = {n: v for n, v in arrays.items() if isinstance(v, np.ndarray) and v.dtype != object}
        self._order = {n: k for k, n in enumerate(arrays)}
        self._names: list[str] = []
        self._columns: list[Array | list[str | None]] = []
        self._kept: list[int] = []  # per column: index of the input leaf that it still equals, or -1
        self._groups: Groups | None = None
        self._first: Any = None

    def add(self, i: int, value: Any, where: Any, leaves: Sequence[Any] = ()) -> None:
        """Add the output for step ``i``; ``leaves`` are the arrays of its input, from `iterate_steps`.

        Raises
        ------
        InvalidEpisode
            Its fields, shapes or kinds differ from those of the first step.
        """
        if not self._columns:
            self._start(from_output(value, where), value, where)
        returned = self._pick(value) if self._groups else None
        if returned is None:
            returned = self._named(from_output(value, where), where)
        for j, leaf in enumerate(returned):
            kept = self._kept[j]
            if kept >= 0:
                if leaf is leaves[kept]:
                    continue
                self._part(j, i)
            column = self._columns[j]
            if (
                isinstance(leaf, np.ndarray | np.generic)
                and isinstance(column, np.ndarray)
                and leaf.dtype == column.dtype
                and leaf.shape == column.shape[1:]
            ):
                column[i] = leaf
            else:
                self._put(j, i, leaf, where)

    def _part(self, j: int, rows: int) -> None:
        """Replace a column of the input by a new one, and copy the first ``rows`` rows."""
        given = self._columns[j]
        assert isinstance(given, np.ndarray)
        self._columns[j] = column = np.zeros_like(given)
        column[:rows] = given[:rows]
        self._kept[j] = -1

    def columns(self) -> Flat:
        """Return the columns, after all rows were added."""
        return dict(zip(self._names, self._columns, strict=True))

    def _start(self, flat: Flat, value: Any, where: Any) -> None:
        self._first = where
        self._names = list(flat)
        for first in flat.values():
            assert not isinstance(first, EncodedFrames)
            self._columns.append(
                [] if isinstance(first, list) else np.zeros((self._size, *first.shape), first.dtype.newbyteorder("="))
            )
        groups = _groups(value, ())
        named = ["/".join((*path, k)) for path, _, keys in groups or () for k in keys]
        if groups and sorted(named) == sorted(self._names):
            self._groups = [(path, size, _picker(keys)) for path, size, keys in groups]
            order = {n: j for j, n in enumerate(self._names)}
            self._columns = [self._columns[order[n]] for n in named]
            self._names = named
        self._kept = [self._order[n] if n in self._given else -1 for n in self._names]
        self._columns = [self._given.get(n, c) for n, c in zip(self._names, self._columns, strict=True)]

    def _pick(self, value: Any) -> list[Any] | None:
        """Return the leaves of a dict nested like the first one; None if it is not."""
        leaves: list[Any] = []
        try:
            for path, size, pick in self._groups or ():
                node = value
                for part in path:
                    node = node[part]
                if len(node) != size:
                    return None
                leaves += pick(node)
        except (KeyError, TypeError, IndexError):
            return None
        return leaves

    def _named(self, flat: Flat, where: Any) -> list[Any]:
        if flat.keys() != set(self._names):
            differ = ", ".join(sorted(set(flat) ^ set(self._names)))
            raise InvalidEpisode(f"{where}: the fields differ from those of {self._first}: {differ}.")
        return [flat[n] for n in self._names]

    def _put(self, j: int, i: int, leaf: Any, where: Any) -> None:
        """Store a leaf that is no array of the column's dtype: text, a Python number, a tensor, another dtype."""
        name, column = self._names[j], self._columns[j]
        value = from_output({name: leaf}, where)[name]
        assert not isinstance(value, EncodedFrames)
        if isinstance(value, list) != isinstance(column, list):
            raise InvalidEpisode(f"{where}: {name} is text at some steps only.")
        if isinstance(column, list):
            column.extend(value)
            return
        assert not isinstance(value, list)
        if value.shape != column.shape[1:]:
            raise InvalidEpisode(
                f"{where}: {name} has shape {list(value.shape)}; {list(column.shape[1:])} at {self._first}."
            )
        if value.dtype != column.dtype:
            self._columns[j] = column = column.astype(np.promote_types(column.dtype, value.dtype))
        column[i] = value


def _picker(keys: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(keys) > 1:
        return itemgetter(*keys)
    return (lambda node: (node[keys[0]],)) if keys else (lambda _: ())


def _groups(value: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], int, tuple[str, ...]]] | None:
    """Return the nested dicts with the keys of their leaves; None for other mappings and for keys with a slash."""
    if not isinstance(value, dict) or not all(isinstance(k, str) and "/" not in k for k in value):
        return None
    inner = [k for k, v in value.items() if isinstance(v, Mapping)]
    groups = [(path, len(value), tuple(k for k in value if k not in inner))]
    for k in inner:
        below = _groups(value[k], (*path, k))
        if below is None:
            return None
        groups += below
    return groups


# -- windows


def window_fields(
    rows: Callable[[str], Array], names: Iterable[str], fields: Mapping[str, Field], n: Neighbours
) -> dict[str, Array]:
    """Gather the windows of the fields: [B, L, ...], rewards and flags [B, L, 1]; ``mask`` and ``next/mask`` [B, L].

    Raises
    ------
    InvalidEpisode
        A field has the name of a mask.
    """
    windows: dict[str, Array] = {}
    for name in names:
        if name in (MASK, NEXT_MASK):
            raise InvalidEpisode(
                f'the source has a field "{name}", the name of the mask of windows.', hint="exclude it with fields="
            )
        values = rows(name)
        if fields[name].placement == "both":
            windows[name] = values[n.observed]
            windows[f"next/{name}"] = values[n.after]
        else:
            one = values[n.steps]
            windows[name] = one[..., None] if name in _COLUMNS and one.ndim == 2 else one
    windows[DONE] = windows[FLAGS[0]] | windows[FLAGS[1]]
    return {**windows, MASK: n.mask, NEXT_MASK: n.next_mask}


def windows_to_input(windows: Mapping[str, Array], arrays: str) -> Any:
    """Convert windows for the function. NumPy arrays are read-only, since changes to a window would be lost."""
    if arrays == "numpy":
        for values in windows.values():
            values.flags.writeable = False
    return to_input(windows, arrays)


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
        if getattr(value, "_version", 0):
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
