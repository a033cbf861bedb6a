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
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rlds_cli.dataset.batch import ROOT_FLAGS, Batch, register
from rlds_cli.errors import InvalidEpisode
from rlds_cli.preprocess.lazy import EPISODE, EpisodeBatch, LazyArray, LazyBatch, in_episode, tensor
from rlds_cli.store import images
from rlds_cli.ted import FLAGS, Array, EncodedFrames, Field
from rlds_cli.ted.episodes import Flat, flatten, is_bytes

if TYPE_CHECKING:
    from rlds_cli.preprocess.reading import Neighbours

Groups = list[tuple[tuple[str, ...], int, tuple[str, ...]]]  # of nested dicts: path, number of keys, keys of leaves

LOOP = "<loop over steps>"  # in tracebacks
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


def _nested(names: Iterable[str]) -> str:
    """Return the expression of a batch with the values ``x0``, ``x1``, ... under these names, which become literals."""
    top: dict[str, Any] = {}
    for k, name in enumerate(names):
        *path, leaf = name.split("/")
        node = top
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = f"x{k}"

    def written(node: Mapping[str, Any], kind: str = "Group") -> str:
        items = (f"{key!r}: {value if isinstance(value, str) else written(value)}" for key, value in node.items())
        return f"{kind}({{{', '.join(items)}}})"

    return written(top, "Root")


def from_output(value: Any, where: Any, *, frames: bool = False) -> Flat:
    """Flatten the output of a function to fields by name; ``frames`` allows encoded frames, also as lists of bytes.

    LazyArrays stay, see `settled`.

    Raises
    ------
    InvalidEpisode
        It is not a mapping, or holds something that cannot be stored, or bytes that are no images.
    """
    if hasattr(value, "to_dict") and hasattr(value, "batch_size"):  # a TensorDict: its text becomes lists
        value = value.to_dict()
    if not isinstance(value, Mapping):
        raise InvalidEpisode(
            f"{where}: a {type(value).__name__} was returned; a dict of fields is needed.",
            hint="a filter keeps or drops whole episodes: unit=episode (--unit episode)" if is_bool(value) else None,
        )
    flat = flatten(value, where)
    encoded = {n: v for n, v in flat.items() if isinstance(v, EncodedFrames) or is_bytes(v)}
    for name in () if frames else encoded:
        raise InvalidEpisode(
            f"{where}: {name} came back as encoded frames, which only unit episode may return.",
            hint="unit=episode (--unit episode)",
        )
    checked = {n: images.encoded_frames(v, None, n, str(where)) for n, v in encoded.items() if is_bytes(v)}
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


def call_steps(
    batch: Any,
    size: int,
    call: Callable[[Any], Any],
    failure: Callable[[BaseException, int], Exception],
    name: Callable[[int], object],
    like: ColumnStack | None = None,
    *,
    columns: Sequence[Mapping[str, Any]],
) -> ColumnStack:
    """Call a function with each step of a batch from `to_input`, and stack its results.

    Parameters
    ----------
    failure : callable
        Returns the error to raise for what the function raised at a step.
    name : callable
        Returns the name of a step, which ``str`` formats.
    like : ColumnStack, optional
        The stack of an earlier batch: its fields are expected again.
    columns : sequence of mapping [B]
        The columns of each step's episode.

    Raises
    ------
    InvalidEpisode
        A result is None or no mapping; or its fields, shapes or kinds differ from those of the first step.
    """
    stack = ColumnStack(size, batch, name(0), like)

    def add(i: int, value: Any, leaves: Sequence[Any] = ()) -> bool:
        where, layout = name(i), stack.layout
        stack.add(i, returned(value, where), where, leaves)
        return stack.layout == layout

    steps = [map(v.at, range(size)) if isinstance(v, LazyArray) else v for v in stack.given.values()] or [
        (batch[k] for k in range(size))
    ]  # of a TensorDict
    rows, i = zip(range(size), *steps, strict=True), 0
    while i < size:
        loop = _compiled(stack.source())
        i = loop(rows, call, add, failure, *stack.kinds, in_episode, columns, dict.__getitem__, stack.changing)
    return stack


def returned(value: Any, where: object) -> Any:
    """Return what a function of transitions returned; raise InvalidEpisode for None."""
    if value is None:
        raise InvalidEpisode(
            f"{where}: None was returned; units batch and step return every transition.",
            hint="return it; to drop episodes, use unit=episode (--unit episode)",
        )
    return value


@lru_cache(maxsize=64)
def _compiled(source: str) -> Callable[..., int]:
    made: dict[str, Any] = {}
    exec(compile(source, LOOP, "exec"), made)
    loop: Callable[..., int] = made["loop"]
    return loop


class ColumnStack:
    """Stacks rows into columns of ``size`` rows; the first row determines the fields.

    Rows are copied, since a function may return the same buffer each time. A leaf that is the very array in the input
    is not copied: a field that every row returns that way uses the column of the input itself.

    Looking at nested dicts by name costs several times as much as handing them over. `source` therefore writes down
    the loop over the steps for the fields that there are, with each access as an expression of Python::

        for i, x0, x1 in rows:
            try:
                v = call(in_episode(Root({'action': x0, 'next': Group({'reward': x1})}), columns[i]))
            except (Exception, SystemExit) as e:
                raise failure(e, i) from e
            try:
                n1 = v['next']
                if len(v) == 2 and len(n1) == 1 and v['action'] is x0:
                    r0 = n1['reward']
                    if type(r0) is t0 and r0.dtype == d0 and r0.shape == s0:
                        c0[i] = r0
                        continue
            except (KeyError, TypeError, IndexError):
                pass
            if not add(i, v, (x0, x1)):
                return i + 1

    A step that does not fit goes to `add`, which checks it and says so if the loop must be written anew. Names of
    fields enter the source as literals. Rows of a LazyArray are taken out by ``raw``, which does not read them.
    """

    def __init__(self, size: int, batch: Any, first: object, like: ColumnStack | None = None) -> None:
        self._size = size
        self._first = first  # the name of the first row in messages
        self.given = dict(batch.leaves()) if isinstance(batch, Batch) else {}  # the columns of the input
        self._input = f"in_episode({_nested(self.given)}, columns[i])" if self.given else "x0"
        self._order = {n: k for k, n in enumerate(self.given)}
        self._names: list[str] = []
        self._columns: list[Array | list[str | None]] = []
        self._types: list[type] = []
        self._kept: list[int] = []  # per column: index of the input leaf that it still equals, or -1
        self._groups: Groups | None = None
        self.layout = 0  # raised when a column is replaced
        if like is not None and like._groups and like.given.keys() == self.given.keys():
            self._expect(like)

    def _expect(self, like: ColumnStack) -> None:
        """Begin with the fields of another stack; a first row of other ones begins again."""
        self._names, self._groups, self._types, self._kept = like._names, like._groups, like._types, [*like._kept]
        self._columns = [
            self.given[n] if kept >= 0 else c if isinstance(c, list) else np.zeros((self._size, *c.shape[1:]), c.dtype)
            for n, c, kept in zip(like._names, like._columns, like._kept, strict=True)
        ]

    def source(self) -> str:
        """Return the source of a loop over steps, for the columns as they are now."""
        leaves = "".join(f"x{k}, " for k in range(max(1, len(self.given))))
        lines = [
            "def loop(rows, call, add, failure, Root, Group, in_episode, columns, raw, changing):",
            *(f"    c{k}, t{k}, d{k}, s{k} = changing[{k}]" for k in range(len(self.changing))),
            f"    for i, {leaves}in rows:",
            "        try:",
            f"            v = call({self._input})",
            "        except (Exception, SystemExit) as e:",
            "            raise failure(e, i) from e",
            *self._fast_lines(),
            f"        if not add(i, v, ({leaves})):",
            "            return i + 1",
            "    return i + 1",
        ]
        return "\n".join(lines)

    @property
    def kinds(self) -> tuple[type[Batch], type[Batch]]:
        """The classes of a step, and of the groups of fields in it."""
        lazy = any(isinstance(v, LazyArray) for v in self.given.values())
        return (LazyBatch, LazyBatch) if lazy else (EpisodeBatch, Batch)

    @property
    def changing(self) -> list[tuple[Array, type, np.dtype[Any], tuple[int, ...]]]:
        """The columns that rows are copied to, with the type, dtype and shape of a row."""
        return [
            (c, t, c.dtype, c.shape[1:])
            for c, t, kept in zip(self._columns, self._types, self._kept, strict=True)
            if kept < 0 and isinstance(c, np.ndarray)
        ]

    def _fast_lines(self) -> list[str]:
        """Return the lines for a step that fits; none if there is text, or before the first step."""
        if self._groups is None or any(isinstance(c, list) for c in self._columns):
            return []
        nodes = {path: f"n{k}" if path else "v" for k, (path, _, _) in enumerate(self._groups)}
        leaves = [(nodes[path], key) for path, _, keys in self._groups for key in keys]
        places = [
            f"raw({node}, {key!r})" if self._is_lazy(k) else f"{node}[{key!r}]"
            for (node, key), k in zip(leaves, self._kept, strict=True)
        ]
        fits = [f"len({nodes[path]}) == {size}" for path, size, _ in self._groups]
        fits += [f"{place} is x{k}" for place, k in zip(places, self._kept, strict=True) if k >= 0]
        changed = [place for place, k in zip(places, self._kept, strict=True) if k < 0]
        rows = [f"type(r{k}) is t{k} and r{k}.dtype == d{k} and r{k}.shape == s{k}" for k in range(len(changed))]
        return [
            "        try:",
            *(f"            {nodes[p]} = {nodes[p[:-1]]}[{p[-1]!r}]" for p in nodes if p),
            f"            if {' and '.join(fits)}:",
            *(f"                r{k} = {place}" for k, place in enumerate(changed)),
            f"                if {' and '.join(rows) or 'True'}:",
            *(f"                    c{k}[i] = r{k}" for k in range(len(changed))),
            "                    continue",
            "        except (KeyError, TypeError, IndexError):",
            "            pass",
        ]

    def _is_lazy(self, kept: int) -> bool:
        """Return whether a leaf of the input is a row of a LazyArray."""
        return kept >= 0 and isinstance(list(self.given.values())[kept], LazyArray)

    def add(self, i: int, value: Any, where: Any, leaves: Sequence[Any] = ()) -> None:
        """Add the output for step ``i``, checked; ``leaves`` are the arrays of its input.

        Raises
        ------
        InvalidEpisode
            Its fields, shapes or kinds differ from those of the first step.
        """
        if i == 0:
            self._start(from_output(value, where), value)
        returned = self._pick(value) if self._groups else None
        if returned is None:
            returned = self._named(from_output(value, where), where)
        for j, leaf in enumerate(returned):
            kept = self._kept[j]
            if kept >= 0:
                given = leaves[kept]
                if leaf is given or (isinstance(leaf, LazyArray) and leaf.is_of(given) and leaf.rows == given.rows):
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
        given = np.asarray(self._columns[j])
        self._columns[j] = column = np.zeros_like(given)
        column[:rows] = given[:rows]
        self._kept[j] = -1
        self.layout += 1

    def columns(self) -> Flat:
        """Return the columns, after all rows were added."""
        return dict(zip(self._names, self._columns, strict=True))

    def _start(self, flat: Flat, value: Any) -> None:
        self.layout += 1
        self._names, self._columns, self._groups = list(flat), [], None
        for first in flat.values():
            assert not isinstance(first, EncodedFrames)
            self._columns.append(
                [] if isinstance(first, list) else np.zeros((self._size, *first.shape), first.dtype.newbyteorder("="))
            )
        groups = _groups(value, ())
        named = ["/".join((*path, k)) for path, _, keys in groups or () for k in keys]
        if groups and sorted(named) == sorted(self._names):
            self._groups = groups
            order = {n: j for j, n in enumerate(self._names)}
            self._columns = [self._columns[order[n]] for n in named]
            self._names = named
        leaves = self._pick(value) if self._groups else None
        self._types = [type(v) if isinstance(v, np.ndarray | np.generic) else np.ndarray for v in leaves or self._names]
        same = {n: v for n, v in self.given.items() if isinstance(v, np.ndarray | LazyArray) and v.dtype != object}
        self._kept = [self._order[n] if n in same else -1 for n in self._names]
        self._columns = [same.get(n, c) for n, c in zip(self._names, self._columns, strict=True)]

    def _pick(self, value: Any) -> list[Any] | None:
        """Return the leaves of a dict nested like the first one; None if it is not."""
        leaves: list[Any] = []
        try:
            for path, size, keys in self._groups or ():
                node = value
                for part in path:
                    node = node[part]
                if len(node) != size:
                    return None
                leaves += [dict.__getitem__(node, key) if isinstance(node, dict) else node[key] for key in keys]
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
            column.extend(cast("list[str | None]", value))
            return
        assert not isinstance(value, list)
        if value.shape != column.shape[1:]:
            raise InvalidEpisode(
                f"{where}: {name} has shape {list(value.shape)}; {list(column.shape[1:])} at {self._first}."
            )
        if value.dtype != column.dtype:
            self._columns[j] = column = column.astype(np.promote_types(column.dtype, value.dtype))
            self.layout += 1
        column[i] = value


def _groups(value: Any, path: tuple[str, ...]) -> Groups | None:
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
