"""Check the packed files of a dataset against the columns that they were packed from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.files import arrays
from rlds_cli.dataset import Dataset
from rlds_cli.errors import RldsError
from rlds_cli.loader.fields import goals
from rlds_cli.loader.storage import packed
from rlds_cli.loader.storage.blocks import BlockField, RowLayout
from rlds_cli.loader.storage.parts import PackedPart, parts_of, sources_of

_ULPS = 16  # sums of another processor may differ by so much


def check_packed(dataset: Dataset, homes: Iterable[Path], *, intact: bool) -> dict[Path, str]:
    """Return what is wrong with a dataset's packed files in these homes, by file.

    The content is compared with the dataset's columns if the dataset is ``intact``; else only key and size are checked.
    """
    found = {}
    sources = sources_of(dataset)
    for file in (file for home in homes for file in packed.files(home, sources)):
        try:
            problem = _check(dataset, file, intact)
        except (RldsError, OSError, ValueError, KeyError, TypeError, IndexError) as e:
            problem = f"cannot be read: {getattr(e, 'message', e)}"
        if problem:
            found[file] = problem
    return found


def _check(dataset: Dataset, file: Path, intact: bool) -> str:
    """Return the problem of a file; empty without one."""
    with file.open("rb") as f:
        known = packed.read(file, f.fileno())
        if known is None:
            return "does not match its name"
        key, nbytes = known
        part = _part_of(key, dataset)
        if part is None:
            return ""  # of another dataset that shares a file of rows, or of an address
        expected = _parts(dataset, key, part) if intact else None
        differ = None if expected is None else _difference(f.fileno(), *expected, nbytes)
        if differ is not None:
            return f"bytes {differ[0]:,}-{differ[1] - 1:,} are not those of the columns that were packed"
    return ""


def _part_of(key: dict[str, Any], dataset: Dataset) -> PackedPart | None:
    """Return the rows of a dataset that a file with this key was made of."""
    fields = key.get("rows")
    if fields is None:
        version = packed.version_of(dataset)
        whole = PackedPart(0, dataset.num_rows, version, {"version": version})
        return whole if key.get("version") == version else None
    parts = parts_of(dataset, fields) if set(fields) <= set(dataset.schema) else []
    return next((p for p in parts if all(key.get(name) == value for name, value in p.made_of.items())), None)


def _difference(fd: int, kind: np.dtype[Any] | None, parts: Iterator[Array], nbytes: int) -> tuple[int, int] | None:
    """Return the first range of bytes that differs; sums of floats of a ``kind`` may differ by rounding."""
    at = 0
    for part in parts:
        expected = arrays.raw(part)
        found = os.pread(fd, len(expected), at)
        if found != expected and not (kind and _near(np.frombuffer(expected, kind), np.frombuffer(found, kind))):
            return at, at + len(expected)
        at += len(expected)
    return None if at == nbytes else (min(at, nbytes), max(at, nbytes))


def _near(a: Array, b: Array) -> bool:
    if a.dtype.kind != "f" or a.shape != b.shape:
        return False
    rounding = _ULPS * float(np.finfo(a.dtype).eps)
    scale = np.abs(a[np.isfinite(a)], dtype=np.float64).max(initial=0)
    return bool(np.isclose(a, b, rtol=rounding, atol=rounding * scale, equal_nan=True).all())


def _parts(
    dataset: Dataset, key: dict[str, Any], part: PackedPart
) -> tuple[np.dtype[Any] | None, Iterator[Array]] | None:
    """Build the expected content of a file, and the dtype of its sums; None for an unknown key."""
    match key:
        case {"row": list(fields)} if not any(made_of for *_, made_of in fields):
            layout = RowLayout([_field(dataset, name, dtype) for name, dtype, *_ in fields])
            return None, layout.tiles(part.first, part.stop)
        case {"column": goals.NAME, "gamma": gamma, "through_terminals": bool(through)}:
            return np.dtype(np.float64), goals.scan(dataset, float(gamma), through).parts()
    return None


def _field(dataset: Dataset, name: str, dtype: str) -> BlockField:
    f = dataset.schema[name]
    store = dataset.store
    rows = store.files.sliced(store.table.column(name))
    return BlockField(name, np.dtype(dtype), f.shape, lambda first, stop: rows[first:stop], after=f.placement == "both")
