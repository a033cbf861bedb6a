"""Memory limits, and mapped columns."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.text import bytes_of
from rlds_cli.errors import DamagedDataset, InvalidArgument, NeedsMemory
from rlds_cli.loader.storage.page_cache import MappedRows, RandomMap, RandomRows
from rlds_cli.loader.storage.remote import blocks_of, mapped

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

_SHARE = 4  # a quarter of the limit: the training script needs the rest


def check_decoded(dataset: Dataset, fields: Iterable[str], memory: str | int | None) -> None:
    """Refuse a compressed dataset whose ``fields``, decoded, take more than the budget.

    Raises
    ------
    NeedsMemory
        They do not fit; the message names both sizes and the command that makes a mapped dataset.
    """
    allowed, origin = budget(memory)
    if dataset.encoding != "zarr" or blocks_of(dataset) is not None:
        return
    columns, names = dataset.store.table.columns(), set(fields)
    wanted = (c for c in columns if c.field in names and c.part != "films")
    needed = dataset.store.files.guarded(lambda: sum(c.nbytes for c in wanted))
    if needed > allowed:
        raise NeedsMemory(
            f"{dataset.id} is compressed (zarr) and takes {needed / 2**20:,.1f} MiB decoded;"
            f" {allowed / 2**20:,.1f} MiB are allowed: {origin}.",
            hint=f"rlds convert {dataset.id} --to memmap, or memory=, or fewer fields=",
        )


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


@lru_cache(maxsize=16)  # a live loader asks with every version
def limit(root: Path = Path("/")) -> tuple[int, str]:
    """Return the memory limit of the cgroup, else of the machine, and its name: as it was when first asked for."""
    cgroup = cgroup_limit(root)
    if cgroup is not None:
        return cgroup, "the cgroup's limit"
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "the machine's memory"


def _bytes(memory: str | int) -> int:
    if isinstance(memory, str):
        size = bytes_of(memory)
        if size is not None:
            return size
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


class ColumnRows:
    """All rows of a column.

    Parameters
    ----------
    values : array [rows, ...]
        Each row is contiguous; packed rows lie apart.
    file : RandomRows, optional
        The file that they are mapped from.
    dtype : numpy.dtype, optional
        The dtype in the store, if ``values`` are packed rows.
    """

    def __init__(self, values: Array, file: RandomRows | None = None, dtype: np.dtype[Any] | None = None) -> None:
        self.values, self.file = np.asarray(values), file
        self.packed, self.dtype = dtype is not None, self.values.dtype if dtype is None else dtype
        self.row_bytes = self.values.itemsize * prod(self.values.shape[1:])

    def __len__(self) -> int:
        return len(self.values)


def open_rows(dataset: Dataset, name: str, *, sparing: bool) -> ColumnRows:
    """Return all rows of an array field: mapped, or decoded if the dataset is compressed.

    ``sparing`` says that the dataset `exceeds_memory`. Rows of a remote dataset are mapped, too, and true where their
    blocks are held, see `storage.remote`.
    """
    if blocks_of(dataset) is not None:
        rows = mapped(dataset, name)
        return ColumnRows(rows, MappedRows(rows, sparing=sparing, mine=True) if rows.nbytes else None)
    stored = dataset.store.rows(name)
    if dataset.encoding != "memmap" or not stored.nbytes:
        return ColumnRows(stored)
    files, of = dataset.store.files, dataset.store.table.column(name)
    if files.guarded(lambda: files.file_of(of)) is None:
        mine = os.geteuid() == 0 or (safe_files.is_own(dataset.path) and not files.refers_to)
        return ColumnRows(stored, MappedRows(stored, sparing=sparing, mine=mine))
    row_bytes = stored.itemsize * prod(stored.shape[1:])

    def opened() -> RandomMap:
        path = files.file_of(of)
        assert path is not None
        try:
            return RandomMap(path, row_bytes, len(stored), sparing=sparing)
        except (OSError, ValueError) as e:  # it was opened a moment ago
            raise DamagedDataset(f"{path} cannot be mapped any more: {e}", hint=f"rlds verify {dataset.id}") from e

    file = files.guarded(opened)
    return ColumnRows(np.ndarray(stored.shape, stored.dtype, file.content), file)


def exceeds_memory(dataset: Dataset) -> bool:
    """Return whether a dataset's arrays are larger than the page cache beside a training script."""
    row_bytes = sum(f.row_bytes for f in dataset.schema.values() if f.kind == "array")
    return dataset.store.manifest.counts.rows * row_bytes > limit()[0] // 2
