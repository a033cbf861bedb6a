"""Batches made in one call of C, see slabs.c: memory in one piece, arrays or tensors in it, and nested dicts of them.

Where that was not compiled, or does not fit this Python, NumPy or torch, Python makes batches of the same values.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import Structure, c_int64, c_void_p, py_object
from functools import cache
from importlib import import_module
from itertools import count
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array

if TYPE_CHECKING:
    from rlds_cli.dataset import Batch

LIBRARY = Path(__file__).with_name("_slabs.so")
Kinds = Sequence[tuple[np.dtype[Any], tuple[int, ...]]]  # dtype and shape of a step of each column
Nest = Callable[[Sequence[Any]], Any]

_DIMS, _COLUMNS, _MOST_AXES = 16, 256, 3  # as in slabs.c; axes before those of a step
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # of DLPack, by NumPy's kinds
_ARRAY_VERSIONS = (1, 2)  # of NumPy's C interface whose functions have the numbers below
_NEW_ARRAY, _SET_BASE, _HIGHEST = 93, 282, 282
_TENSOR_VERSION = 1  # of DLPack
_TO_TENSOR = 2  # `managed_tensor_to_py_object_no_sync`, of the functions behind DLPack's header

_PYTHON = (
    "PyList_New",
    "PyList_SetItem",
    "PyDict_SetItem",
    "PyObject_CallNoArgs",
    "PyCapsule_New",
    "PyCapsule_GetPointer",
    "Py_IncRef",
    "Py_DecRef",
    "PyErr_NoMemory",
)


class _Functions(Structure):
    _fields_ = [(n, c_void_p) for n in (*_PYTHON, "new_array", "set_base", "array")]


class _Kind(Structure):
    _fields_ = [*((n, c_int64) for n in ("size", "number", "code", "bits", "ndim")), ("shape", c_int64 * _DIMS)]


class _Entry(Structure):
    _fields_ = [("dict", c_int64), ("column", c_int64), ("key", c_void_p)]


class _Form(Structure):
    _fields_ = [
        *((n, c_void_p) for n in ("python", "new_tensor")),
        *((n, c_int64) for n in ("columns", "entries")),
        *((n, c_void_p) for n in ("kind", "entry", "batch")),
    ]


class _ExchangeHeader(Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", c_void_p)]


class Slabs:
    """The memory and the form of batches.

    Parameters
    ----------
    kinds : sequence of (dtype, shape of a step)
        Of the columns.
    tree : Batch, optional
        Names, nested, with the number of a column in the place of each value. Without it a batch is a list.
    wrap : callable, optional
        ``torch.from_numpy`` for tensors.
    """

    def __init__(self, kinds: Kinds, tree: Batch | None = None, wrap: Callable[[Array], Any] | None = None) -> None:
        self._kinds, self._wrap = kinds, wrap
        self._nest = list if tree is None else nesting(tree, len(kinds))
        self._form = _form(kinds, tree, tensors=wrap is not None)
        self._pool: _Pool | None = None
        if self._form is not None and not self._fits():
            self._form = None

    @property
    def compiled(self) -> bool:
        """Whether batches are made by slabs.c."""
        return self._form is not None

    def take(self, lead: tuple[int, ...], batches: int) -> tuple[list[Any], ctypes.Array[c_int64]]:
        """Return batches of arrays [*lead, ...] that are still to be written, and their addresses [batches * columns].

        The addresses hold while the batches are kept.
        """
        if self._form is None:
            return self._in_python(lead, batches)
        pool = self._pool  # read once: another thread may set it to other sizes
        if pool is None or pool.lead != lead:
            pool = self._pool = _Pool(self._form, lead)
        places = (c_int64 * (batches * len(self._kinds)))()
        return pool.batches(batches, places), places

    def _in_python(self, lead: tuple[int, ...], batches: int) -> tuple[list[Any], ctypes.Array[c_int64]]:
        made, places, at = [], (c_int64 * (batches * len(self._kinds)))(), count()
        for _ in range(batches):
            arrays = [np.empty(lead + shape, dtype) for dtype, shape in self._kinds]
            for x in arrays:
                places[next(at)] = x.ctypes.data
            made.append(self._nest(arrays if self._wrap is None else [*map(self._wrap, arrays)]))
        return made, places

    def _fits(self) -> bool:
        """Return whether a batch comes out as one that is made in Python: torch may not know a dtype."""
        try:
            made, expected = self.take((1,), 1)[0], self._in_python((1,), 1)[0]
        except Exception:  # whatever a library raises that the functions are not made for
            return False
        pairs = zip(_values(made), _values(expected), strict=True)
        return all((type(a), a.dtype, a.shape) == (type(b), b.dtype, b.shape) for a, b in pairs)


def _values(made: Any) -> Iterator[Any]:
    for value in made.values() if isinstance(made, Mapping) else made:
        if isinstance(value, Mapping | list):
            yield from _values(value)
        else:
            yield value


def array_at(address: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return the array at an address, which does not keep its memory."""
    memory: Any = (ctypes.c_char * (prod(shape) * np.dtype(dtype).itemsize)).from_address(address)
    found: Array = np.ndarray(shape, dtype, memory)
    return found


def nesting(tree: dict[Any, Any], columns: int) -> Nest:
    """Return the function that makes a batch of the values of its columns.

    ``tree`` has the form of the batch, with numbers of columns.
    """
    places: list[int] = []
    below: list[Nest] = []
    for value in tree.values():
        if isinstance(value, dict):
            places.append(columns + len(below))
            below.append(nesting(value, columns))
        else:
            places.append(value)
    names, kind = tuple(tree), type(tree)
    pick = itemgetter(*places) if places[1:] else lambda values: tuple(values[i] for i in places)
    if not below:
        return lambda values: kind(zip(names, pick(values), strict=True))
    return lambda values: kind(zip(names, pick([*values, *[nest(values) for nest in below]]), strict=True))


# -- what slabs.c is given


class _Described:
    """A form, and what it points to."""

    def __init__(self, native: _Native, new_tensor: int | None, kinds: list[_Kind], tree: Batch | None) -> None:
        entries = [] if tree is None else list(_entries(tree, 0, count(1)))
        self.native = native
        self._kinds, self._entries = (_Kind * len(kinds))(*kinds), (_Entry * max(1, len(entries)))(*entries)
        self._kept = tree  # whose keys and type are referred to
        self.form = _Form(
            ctypes.addressof(native.functions),
            new_tensor,
            len(kinds),
            len(entries),
            ctypes.addressof(self._kinds),
            ctypes.addressof(self._entries),
            None if tree is None else id(type(tree)),
        )


class _Pool:
    """A pool of slabs for arrays [*lead, ...]."""

    __slots__ = ("_at", "_kept", "_leave", "_make", "lead")

    def __init__(self, described: _Described, lead: tuple[int, ...]) -> None:
        self._kept, self.lead, library = described, lead, described.native.library
        self._make, self._leave = library.rlds_batches, library.rlds_leave
        self._at = library.rlds_pool(ctypes.byref(described.form), (c_int64 * len(lead))(*lead), len(lead))
        if not self._at:
            raise MemoryError

    def batches(self, batches: int, places: ctypes.Array[c_int64]) -> list[Any]:
        made: list[Any] = self._make(self._at, batches, places)
        return made

    def __del__(self) -> None:
        if getattr(self, "_at", None):
            self._leave(self._at)


class _Native:
    """The library, and functions of Python and NumPy that it calls."""

    def __init__(self) -> None:
        numpy_core = import_module("numpy._core._multiarray_umath")  # whence extensions take the functions, too

        self.library = ctypes.PyDLL(str(LIBRARY))
        for name, arguments, result in (
            ("rlds_pool", (c_void_p, c_void_p, c_int64), c_void_p),
            ("rlds_leave", (c_void_p,), None),
            ("rlds_batches", (c_void_p, c_int64, c_void_p), py_object),
        ):
            function = getattr(self.library, name)
            function.argtypes, function.restype = arguments, result
        table = (c_void_p * (_HIGHEST + 1)).from_address(_content(numpy_core._ARRAY_API, None))
        version = ctypes.CFUNCTYPE(ctypes.c_uint)(table[0] or 0)
        if version() >> 24 not in _ARRAY_VERSIONS:
            raise ImportError("another interface of NumPy")
        of_python = [ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p) for name in _PYTHON]
        self.functions = _Functions(*of_python, table[_NEW_ARRAY], table[_SET_BASE], id(np.ndarray))


@cache
def _native() -> _Native | None:
    """Return the library with its functions; None where something is missing."""
    try:
        return _Native()
    except (OSError, AttributeError, ImportError):
        return None


@cache
def _new_tensor() -> int | None:
    """Return the address of torch's function of DLPack's exchange interface; None if this torch has none."""
    capsule = getattr(sys.modules["torch"].Tensor, "__dlpack_c_exchange_api__", None)
    at = None if capsule is None else _content(capsule, b"dlpack_exchange_api")
    while at:
        header = _ExchangeHeader.from_address(at)
        if header.major == _TENSOR_VERSION:
            return c_void_p.from_address(at + ctypes.sizeof(header) + _TO_TENSOR * ctypes.sizeof(c_void_p)).value
        at = header.previous
    return None


def _content(capsule: Any, name: bytes | None) -> int:
    pointer = ctypes.PYFUNCTYPE(c_void_p, py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
    return int(pointer(capsule, name))


def _form(kinds: Kinds, tree: Batch | None, *, tensors: bool) -> _Described | None:
    """Return the form of batches; None where they are made in Python."""
    native, described = _native(), [_kind(dtype, shape) for dtype, shape in kinds]
    new_tensor = _new_tensor() if tensors else None
    if native is None or (tensors and new_tensor is None) or not 0 < len(kinds) <= _COLUMNS or None in described:
        return None
    return _Described(native, new_tensor, [kind for kind in described if kind], tree)


def _kind(dtype: np.dtype[Any], shape: tuple[int, ...]) -> _Kind | None:
    if dtype.kind not in _CODES or not dtype.isnative or len(shape) > _DIMS - _MOST_AXES:
        return None
    size = dtype.itemsize
    return _Kind(size * prod(shape), dtype.num, _CODES[dtype.kind], 8 * size, len(shape), (c_int64 * _DIMS)(*shape))


def _entries(tree: Mapping[str, Any], dict: int, numbers: count[int]) -> Iterator[_Entry]:
    """Yield the entries of nested dicts; each dict has a number, in the order in which they come."""
    for key, value in tree.items():
        nested = isinstance(value, Mapping)
        yield _Entry(dict, -1 if nested else value, id(key))
        if nested:
            yield from _entries(value, next(numbers), numbers)
