"""The same columns in every format that own data come in."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import feather

FORMATS = (".npz", ".h5", ".parquet", ".arrow", ".csv", ".jsonl")


def write(path: Path, columns: Mapping[str, Any]) -> Path:
    """Columns of as many rows, in the format of the suffix; NaN is a missing value where the format has one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **{k: np.asarray(v) for k, v in columns.items()})
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as f:
            for key, value in columns.items():
                f[key] = [*map(str, value)] if np.asarray(value).dtype.kind == "U" else np.asarray(value)
    else:
        rows = _rows(columns)
        if path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        elif path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        elif path.suffix == ".arrow":
            feather.write_feather(pa.Table.from_pylist(rows), path, chunksize=4)
        else:
            with path.open("w", newline="") as f:
                writer = csv.writer(f)
                writer.writerow(columns)
                writer.writerows([["" if v is None else v for v in r.values()] for r in rows])
    return path


def _rows(columns: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    lists = {k: np.asarray(v).tolist() for k, v in columns.items()}
    return [{k: _value(v[i]) for k, v in lists.items()} for i in range(len(next(iter(lists.values()))))]


def _value(value: Any) -> Any:
    """The value as JSON has it: None for what is missing."""
    first = value[0] if isinstance(value, list) and value else value
    return None if isinstance(first, float) and first != first else value
