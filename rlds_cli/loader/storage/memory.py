"""Memory limits, mapped columns, and decoded fields, whose frames a gather decodes once for all its columns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.errors import DamagedDataset, InvalidArgument, NeedsMemory
from rlds_cli.loader.storage.page_cache import RandomMap
from rlds_cli.loader.windows.samples import ColumnRows, RowSet, Samples
from rlds_cli.store import arrays, compression
from rlds_cli.ted import Array, IntArray

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{p}{b}": 1000**i for i, p in enumerate("kmgt", 1) for b in ("", "b")}
_UNITS |= {f"{p}ib": 1024**i for i, p in enumerate("kmgt", 1)}
_SHARE = 4  # a quarter of the limit: the training script needs the rest


def check_decoded(dataset: Dataset, fields: Iterable[str], memory: str | int | None) -> None:
    """Refuse a compressed dataset whose ``fields``, decoded, take more than the budget.

    Raises
    ------
    NeedsMemory
        They do not fit; the message names both sizes and the command that makes a mapped dataset.
    """
    allowed, origin = budget(memory)
    if dataset.encoding != "zarr":
        return
    with dataset.store.unchanged():
        needed = sum(_decoded_bytes(dataset, name) for name in fields)
    if needed > allowed:
        raise NeedsMemory(
            f"{dataset.id} is compressed (zarr) and takes {needed / 2**20:,.1f} MiB decoded;"
            f" {allowed / 2**20:,.1f} MiB are allowed: {origin}.",
            hint=f"rlds convert {dataset.id} --to memmap, or memory=, or fewer fields=",
        )


def _decoded_bytes(dataset: Dataset, name: str) -> int:
    directories = compression.column_arrays(dataset.schema[name], dataset.store.directory(name))
    described = [arrays.open_document(d) for d in directories]
    return sum(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape, dtype in described)


def budget(memory: str | int | None, root: Path = Path("/")) -> tuple[int, str]:
    """Return the bytes that may be taken, and the origin of that number.

    Parameters
    ----------
    memory : str, int or None
        ``"8GiB"``, ``"500 MB"``, bytes, or None for a quarter of the memory of the cgroup, else of the machine.
    root : Path
        The directory of ``proc`` and ``sys``.

    Raises
    ------
    InvalidArgument
        Not a size.
    """
    if memory is None:
        most, whose = limit(root)
        return most // _SHARE, f"a quarter of {whose}"
    return _bytes(memory), "memory="


def limit(root: Path = Path("/")) -> tuple[int, str]:
    """Return the memory limit of the cgroup, else of the machine, and its name."""
    cgroup = cgroup_limit(root)
    if cgroup is not None:
        return cgroup, "the cgroup's limit"
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "the machine's memory"


def _bytes(memory: str | int) -> int:
    if isinstance(memory, str):
        parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", memory.lower())
        if parts and parts[2] in _UNITS:
            return int(float(parts[1]) * _UNITS[parts[2]])
    elif not isinstance(memory, bool) and memory >= 0:
        return int(memory)
    raise InvalidArgument(f'memory={memory!r} is not a size such as "8GiB", 500_000_000 or 0.')


def cgroup_limit(root: Path = Path("/")) -> int | None:
    """Return the lowest memory limit from this process's cgroup up to the root, v2 or v1; None without one."""
    limits = [n for f in _limit_files(root) if (n := _read(f)) is not None]
    return min(limits) if limits else None


def _limit_files(root: Path) -> list[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        own = base / path.lstrip("/")
        files += [d / name for d in (own, *own.parents) if d == base or base in d.parents]
    return files


def _read(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    limit = int(text) if text.isdigit() else None
    return limit if limit is not None and limit < 1 << 60 else None  # v1 says 2**63 less a page for none


def open_rows(dataset: Dataset, name: str) -> ColumnRows:
    """Return all rows of an array field: mapped, or decoded if the dataset is compressed."""
    stored = dataset.column(name)
    if dataset.encoding != "memmap" or not stored.nbytes:
        return ColumnRows(stored)
    row_bytes = stored.itemsize * prod(stored.shape[1:])
    path = arrays.data_file(dataset.store.directory(name), stored.ndim)
    with dataset.store.unchanged():
        try:
            file = RandomMap(path, row_bytes, len(stored), sparing=exceeds_memory(dataset))
        except (OSError, ValueError) as e:  # it was opened a moment ago
            raise DamagedDataset(f"{path} cannot be mapped any more: {e}", hint=f"rlds verify {dataset.id}") from e
    return ColumnRows(np.ndarray(stored.shape, stored.dtype, file.content), file)


def exceeds_memory(dataset: Dataset) -> bool:
    """Return whether a dataset's arrays are larger than the page cache beside a training script."""
    row_bytes = sum(f.row_bytes for f in dataset.schema.values() if f.kind == "array")
    return dataset.store.manifest.counts.rows * row_bytes > limit()[0] // 2


@dataclass(frozen=True, slots=True)
class Decoding:
    """A field stored as frames or text."""

    dataset: Dataset
    name: str

    def __call__(self, place: RowSet) -> Array:
        """Return the values of the rows of ``place`` [...] as [..., *shape], in new memory."""
        return self._gather(place.rows)

    def among(self, samples: Samples, rows: IntArray) -> Array:
        """Return the values of ``rows`` [...]; frames that another column of these samples has decoded are copied.

        They are in new memory, and must not be changed before all columns of the gather are read.
        """
        if self.dataset.schema[self.name].kind != "frames":
            return self._gather(rows)
        first = samples.once(("decoded", self.name), lambda: _First(rows, self._gather(rows)))
        return first.values if first.rows is rows else first.shared(self, rows)

    def _gather(self, rows: IntArray) -> Array:
        values = self.dataset.gather(self.name, rows.reshape(-1))
        return values.reshape(*rows.shape, *values.shape[1:])


class _First:
    """The ``rows`` [...] that a gather's first column has decoded, and their values [..., *shape]."""

    def __init__(self, rows: IntArray, values: Array) -> None:
        self.rows, self.values = rows, values
        self._distinct, self._place = np.unique(rows, return_index=True)

    def shared(self, decoding: Decoding, rows: IntArray) -> Array:
        """Return the values of other ``rows``, copied where they are decoded."""
        shape = self.values.shape[self.rows.ndim :]
        at = np.searchsorted(self._distinct, rows)
        found = self._distinct.take(at, mode="clip") == rows
        if not found.any():
            return decoding._gather(rows)
        values = np.empty((*rows.shape, *shape), self.values.dtype)
        values[found] = self.values.reshape(-1, *shape)[self._place[at[found]]]
        if not found.all():
            values[~found] = decoding._gather(rows[~found])
        return values
