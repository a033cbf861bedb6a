"""Files of measures: what was computed of which episodes, keyed by what was read.

::

    <home>/measures/<family>+<name>/roles.json          what fields are to measures, and which state an action moves
    <home>/measures/<family>+<name>/motion-<key>.jsonl  a journal: a record for each group of episodes
    <home>/measures/<family>+<name>~<hash>/             of an address, or of a directory outside of a home

An episode is named by a hash of the digests of the fields that were read. So it keeps its measures in all versions of
the dataset, and in those that are selected from it. Digests at an address, and in a directory outside of a home, are
claims: the hash of what was seen belongs to the names there, see `Files.unproved`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base import ids, settings
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files import sha256
from rlds_cli.base.files.journal import Journal
from rlds_cli.base.settings import StrPath
from rlds_cli.homes import Home
from rlds_cli.look.measures.vectors import Values
from rlds_cli.store import Store

_NAME = 16  # bytes of the name of an episode
_HOMES_PARTS = ("datasets", "versions", "remote")


def directories(store: Store, home: StrPath | None = None) -> list[Path]:
    """Return where measures of a dataset may lie: first the directory that new ones are written to."""
    id, seen = ids.parse(store.manifest.id), store.files.unproved
    name = f"{id.family}+{id.base.component}"
    if seen:
        name += f"~{hashlib.sha256(seen.encode()).hexdigest()[:16]}"
    own = Home(settings.read(home).home)
    around = [Home(p.parent) for p in store.path.absolute().parents if p.name.split(".")[0] in _HOMES_PARTS][:1]
    writable = [h for h in around if os.access(h.root, os.W_OK) and safe_files.is_own(h.root)]
    return list(dict.fromkeys(h.measures / name for h in (*writable, own, *around)))


def names_of(store: Store, index: IntArray, fields: Sequence[str]) -> Array:
    """Return what names the content of some fields in episodes, bytes [n]."""
    parts = [np.ascontiguousarray(store.digests(name)[index]) for name in fields]
    seen = np.frombuffer(hashlib.sha256(store.files.unproved.encode()).digest(), np.uint8)
    length = np.asarray(store.episodes["length"], "<i8")[index, None]
    parts += [np.broadcast_to(seen, (len(index), 32)), np.ascontiguousarray(length).view(np.uint8)]
    whole = np.ascontiguousarray(np.concatenate(parts, axis=1))
    start = np.arange(len(index)) * whole.shape[1]
    found = sha256.of_pieces(whole.reshape(-1).data, start, np.full(len(index), whole.shape[1]))
    return np.ascontiguousarray(found[:, :_NAME]).reshape(-1).view(f"S{_NAME}")


class Results:
    """The results of one group of measures.

    Parameters
    ----------
    directory : Path
    group : str
    about : mapping
        All that the values depend on beside the content of episodes, as JSON.
    """

    def __init__(self, directory: Path, group: str, about: Mapping[str, Any]) -> None:
        key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
        self._journal = Journal(directory / f"{group}-{key}.jsonl", key)
        self._names: Array = np.zeros(0, f"S{_NAME}")
        self._values: Values = {}
        with suppress(KeyError, TypeError, ValueError):  # another program has written there
            self._read(self._journal.records() or [])

    def _read(self, records: Sequence[Any]) -> None:
        if not records:
            return
        names = [np.frombuffer(base64.b64decode(r["episodes"]), f"S{_NAME}") for r in records]
        order = np.argsort(whole := np.concatenate(names), kind="stable")
        self._names = whole[order]
        for name, (_, shape, *_) in records[0]["values"].items():
            parts = [_decoded(*r["values"][name]) for r in records if r["values"][name][1][1:] == shape[1:]]
            self._values[name] = np.concatenate(parts)[order]

    def __len__(self) -> int:
        return len(self._names)

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of what was computed."""
        return tuple(self._values)

    def find(self, names: Array) -> tuple[IntArray, BoolArray]:
        """Return where the values of episodes lie by their names [n], and which of them there are."""
        if not len(self._names):
            return np.zeros(len(names), np.int64), np.zeros(len(names), bool)
        at = np.minimum(np.searchsorted(self._names, names), len(self._names) - 1)
        return at, np.asarray(self._names[at] == names)

    def values(self, measure: str, names: Array) -> Array:
        """Return the values of a measure [n, ...], NaN for episodes without one; all NaN if it was not computed."""
        at, there = self.find(names)
        if measure not in self._values:
            return np.full(len(names), np.nan)
        found = self._values[measure][at].copy()
        found[~there] = np.nan
        return found

    def resume(self) -> None:
        """Make the file if there is none, and cut off what a killed process has left unfinished."""
        self._journal.resume()

    def add(self, names: Array, values: Values) -> None:
        """Add the values of episodes by their names [n]; `resume` comes first."""
        encoded = {name: _encoded(np.asarray(x)) for name, x in values.items()}
        self._journal.add({"episodes": base64.b64encode(names.tobytes()).decode(), "values": encoded})


def _encoded(values: Array) -> list[Any]:
    """Return values as text, their shape, and their type if that is not float64."""
    dtype = "<f4" if values.dtype == np.float32 else "<f8"
    text = base64.b64encode(values.astype(dtype).tobytes()).decode()
    return [text, list(values.shape)] if dtype == "<f8" else [text, list(values.shape), dtype]


def _decoded(text: str, shape: Sequence[int], dtype: str = "<f8") -> Array:
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape).astype(np.float64)
