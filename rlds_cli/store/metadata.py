"""Data of a dataset that are not per row, such as the weights of a policy: all of them in one array of bytes.

::

    metadata/zarr.json    uint8 [bytes]; its attribute rlds_index: the first byte of the index, and the one behind it
    metadata/c/0          the values end to end, each from a multiple of 8 bytes on; then the index, a JSON text:
                          {"algorithm": [0, 3], "policy/weights": [8, 56, "float64", [6]]}

An entry of the index is the first byte of a value and the one behind it; that of an array has its dtype and shape, too.
A text is UTF-8, an array lies in C order, little-endian. Equal values are stored once. So there are two files whatever
the number of values, which all versions of a dataset share.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.files import arrays
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.errors import DamagedDataset
from rlds_cli.store import layouts, sharing, validation

DIRECTORY = "metadata"
_INDEX = "rlds_index"  # the attribute
_ALIGNED = 8
_HINT = "rlds verify ID shows all damage; rlds download ID --force makes the dataset again"
_Entry = list[Any]  # JSON: [first, stop], of an array [first, stop, dtype, shape]


# -- writing


def write(dataset: Path, values: Iterable[tuple[str, Array | str]]) -> list[str]:
    """Write values below the directory of a dataset as they come, and return their names, sorted; nothing of none.

    Of two values with the same name the later one counts. Arrays of other things than numbers are stored as texts, one
    element a line.

    Raises
    ------
    RldsError
        There are more names than an index may have.
    """
    given = iter(values)
    first = next(given, None)
    if first is None:
        return []
    directory, index = dataset / DIRECTORY, dict[str, _Entry]()
    file = arrays.data_file(directory, 1)
    safe_files.make(file.parent)
    with os.fdopen(safe_files.open_own(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as f:
        known: dict[bytes, int] = {}  # the first bytes of values, by their hashes
        for name, value in chain([first], given):
            content, about = _encoded(value)
            begin = known.setdefault(hashlib.sha256(content).digest(), f.tell() + -f.tell() % _ALIGNED)
            if begin >= f.tell():
                f.write(bytes(begin - f.tell()))
                f.write(content)
            index[name] = [begin, begin + len(content), *about]
        begin = f.tell()
        f.write(documents.dumps(index, "the index of data that are not per row", lines=False).encode())
        size = f.tell()
    arrays.finish(directory, (size,), np.uint8, {_INDEX: [begin, size]})
    return sorted(index)


def _encoded(value: Array | str) -> tuple[bytes | memoryview, tuple[Any, ...]]:
    """Return the bytes of a value, and what the index says of it beside their place."""
    if not isinstance(value, str) and value.dtype.name not in validation.NUMERIC:
        value = "\n".join(map(str, np.ravel(value)))
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape"), ()
    return arrays.raw(arrays.little_endian(value)), (value.dtype.name, list(value.shape))


# -- reading


@dataclass(frozen=True, slots=True)
class Metadata:
    """The values of a dataset by name; they are read when they are asked for.

    Attributes
    ----------
    where : Path
        The directory of the array.
    data : uint8 array [bytes]
        Mapped.
    index : dict
        The entry of each name.
    """

    where: Path
    data: Array
    index: dict[str, _Entry]

    def __getitem__(self, name: str) -> Array | str:
        """Return a value: a text, or an array, which is mapped and read-only.

        Raises
        ------
        DamagedDataset
            There is none of this name, or its entry is not possible.
        """
        try:
            begin, stop, *about = self.index[name]
            if not all(isinstance(x, int) and not isinstance(x, bool) for x in (begin, stop)):
                raise ValueError(f"bytes {begin!r} to {stop!r}")
            if not 0 <= begin <= stop <= len(self.data) or begin % _ALIGNED:
                raise ValueError(f"bytes {begin:,} to {stop:,} of {len(self.data):,}")
            if not about:
                return self.data[begin:stop].tobytes().decode("utf-8", "surrogateescape")
            dtype, shape = about
            width = validation.NUMERIC[dtype]
            lengths = validation.shape(shape, "shape", itemsize=width)
            return self.data[begin:stop].view(np.dtype(dtype).newbyteorder("<")).reshape(lengths)
        except (KeyError, ValueError, TypeError) as e:
            raise DamagedDataset(f"{self.where} has no {name[:200]!r} that can be read: {e}.", hint=_HINT) from e

    def text(self, name: str) -> str:
        """Return a text; raises DamagedDataset as ``[name]``, or for an array."""
        found = self[name]
        if not isinstance(found, str):
            raise DamagedDataset(f"{self.where}: {name[:200]!r} is an array; a text expected.", hint=_HINT)
        return found

    def share(self, dataset: Path) -> None:
        """Share the files with a dataset that is made in a directory."""
        sharing.share_tree(self.where, dataset / DIRECTORY, within=dataset)


def read(dataset: Path) -> Metadata:
    """Open the values below the directory of a dataset; none where there is no such array.

    Raises
    ------
    DamagedDataset
        The array or its index cannot be read.
    """
    directory = dataset / DIRECTORY
    if not directory.is_dir():
        return Metadata(directory, np.zeros(0, np.uint8), {})
    data = layouts.read(directory)
    try:
        begin, stop = layouts.attributes(directory)[_INDEX]
        if data.dtype != np.uint8 or data.ndim != 1 or not 0 <= begin <= stop <= len(data):
            raise ValueError(f"an index at bytes {begin!r} to {stop!r} of {data.dtype} {list(data.shape)}")
        index = documents.loads(data[begin:stop].tobytes(), longest=documents.OWN)
        if not isinstance(index, dict) or not all(isinstance(entry, list) for entry in index.values()):
            raise ValueError(f"an index of another kind: {json.dumps(index)[:80]}")
    except (KeyError, ValueError, TypeError) as e:
        raise DamagedDataset(f"{directory} cannot be read: {e}.", hint=_HINT) from e
    return Metadata(directory, data, index)
