"""``kernels.c``, compiled where there is a compiler, over NumPy arrays."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from results import DATA

from loader.cases import Call

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")


@cache
def library() -> ctypes.CDLL:
    """The kernels.

    Raises
    ------
    RuntimeError
        There is no compiler.
    """
    compiler = next((c for c in ("gcc", "cc", "clang") if shutil.which(c)), None)
    if compiler is None:
        raise RuntimeError("no C compiler (gcc, cc or clang) on this machine")
    version = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    built = DATA / f"kernels-{version}.so"
    if not built.exists():
        DATA.mkdir(parents=True, exist_ok=True)
        unfinished = built.with_suffix(".part")
        subprocess.run([compiler, *FLAGS, "-o", unfinished, SOURCE], check=True)
        unfinished.rename(built)
    return ctypes.CDLL(str(built.absolute()))


Column = tuple[np.ndarray, int]  # values [rows, ...], and by how many rows to go further


def rows(columns: Sequence[Column], size: int, batches: int) -> Call:
    """``batches`` batches of ``size`` random rows in one call, in outputs that are used again; gives one each time."""
    return _gather(columns, size, batches, 1, "gather_rows")


def windows(columns: Sequence[Column], size: int, length: int, *, fresh: bool = False) -> Call:
    """``size`` random windows of ``length`` rows; ``fresh`` outputs are allocated for each call."""
    return _gather(columns, size, 1, length, "gather_windows", fresh)


def _gather(columns: Sequence[Column], size: int, batches: int, length: int, name: str, fresh: bool = False) -> Call:
    kernel, k, n = getattr(library(), name), len(columns), size * batches
    most = min(len(values) - shift for values, shift in columns) - length
    sources = _pointers([values for values, _ in columns])
    widths = _numbers([values.dtype.itemsize * int(np.prod(values.shape[1:])) for values, _ in columns])
    shifts = _numbers([shift for _, shift in columns])
    tail = () if length == 1 and name == "gather_rows" else (ctypes.c_int64(length),)
    rng = np.random.default_rng(0)

    def outputs() -> list[np.ndarray]:
        return [np.empty((n, length, *values.shape[1:]), values.dtype) for values, _ in columns]

    kept = outputs()
    handed = batches

    def call() -> object:
        nonlocal handed
        if handed < batches:
            handed += 1
            return kept
        handed = 1
        made = outputs() if fresh else kept
        index = rng.integers(most, size=n)
        kernel(sources, _pointers(made), widths, shifts, ctypes.c_int64(k), _pointer(index), ctypes.c_int64(n), *tail)
        return made

    return call


def records(content: np.ndarray, widths: Sequence[int], size: int, batches: int) -> Call:
    """``batches`` batches of ``size`` random packed records [rows, bytes], split into fields of ``widths`` bytes."""
    kernel, n = library().gather_records, size * batches
    kept = [np.empty((n, width), np.uint8) for width in widths]
    offsets = _numbers([int(x) for x in np.cumsum([0, *widths])[:-1]])
    sizes, targets = _numbers(list(widths)), _pointers(kept)
    rng = np.random.default_rng(0)
    handed = batches

    def call() -> object:
        nonlocal handed
        if handed == batches:
            handed = 0
            index = rng.integers(len(content), size=n)
            kernel(
                _pointer(content), ctypes.c_int64(content.shape[1]), targets, sizes, offsets,
                ctypes.c_int64(len(widths)), _pointer(index), ctypes.c_int64(n),
            )  # fmt: skip
        handed += 1
        return kept

    return call


def _pointer(values: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)


def _pointers(arrays: Sequence[np.ndarray]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(values.ctypes.data for values in arrays))


def _numbers(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(numbers))(*numbers)
