"""Columns of the store as a loader maps them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.errors import DamagedDataset
from rlds_cli.loader.access import memory
from rlds_cli.loader.access.residency import RandomMap
from rlds_cli.loader.windowing.places import Rows
from rlds_cli.store import arrays

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


def open_rows(dataset: Dataset, name: str) -> Rows:
    """All rows of an array field: from a map of their own, or decoded where the dataset is compressed."""
    stored = dataset.column(name)
    if dataset.encoding != "memmap" or not stored.nbytes:
        return Rows(stored)
    row_bytes = stored.itemsize * prod(stored.shape[1:])
    path = arrays.data_file(dataset.store.directory(name), stored.ndim)
    with dataset.store.unchanged():
        try:
            file = RandomMap(path, row_bytes, len(stored), sparing=exceeds_memory(dataset))
        except (OSError, ValueError) as e:  # it was whole a moment ago
            raise DamagedDataset(f"{path} cannot be mapped any more: {e}", hint=f"rlds verify {dataset.id}") from e
    return Rows(np.ndarray(stored.shape, stored.dtype, file.content), file)


def exceeds_memory(dataset: Dataset) -> bool:
    """Whether the arrays of a dataset are more than the page cache will hold beside a training script."""
    row_bytes = sum(f.row_bytes for f in dataset.schema.values() if f.kind == "array")
    return dataset.store.manifest.counts.rows * row_bytes > memory.limit()[0] // 2
