"""Call a function with each step of a batch, and stack what it returns to columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.dataset import Batch
from rlds_cli.errors import InvalidEpisode
from rlds_cli.preprocess.forms import from_output, returned
from rlds_cli.preprocess.lazy import EpisodeBatch, LazyArray, LazyBatch, in_episode
from rlds_cli.ted import EncodedFrames, Flat, VideoFrames

LOOP = "<loop over steps>"  # in tracebacks
Groups = list[tuple[tuple[str, ...], int, tuple[str, ...]]]  # of nested dicts: path, number of keys, keys of leaves


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
        self._columns: list[Any] = []
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
            assert not isinstance(first, EncodedFrames | VideoFrames)
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
        """Store a leaf that is not an array of the column's dtype: text, a Python number, a tensor, another dtype."""
        name, column = self._names[j], self._columns[j]
        value = from_output({name: leaf}, where)[name]
        assert not isinstance(value, EncodedFrames | VideoFrames)
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
