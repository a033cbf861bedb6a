"""D4RL's flat HDF5: one file with a row for each step.

::

    <directory>/<name>.hdf5
        observations actions rewards terminals timeouts     [steps, ...]; observations/<key> for several
        next_observations                                   where the final observation of every episode is recorded
        infos/<key>                                         of info/<key>

Datasets are contiguous, so that processes write their rows at known offsets of the one file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.exports.content import PIECE, Loss
from rlds_cli.exports.format import Format, Unit
from rlds_cli.ted import CUT, FLAGS, REWARD, Array, BoolArray
from rlds_cli.text import is_below

_KEYS = {"observation": "observations", "action": "actions", "info": "infos"}
_FLAGS = {REWARD: "rewards", FLAGS[0]: "terminals", FLAGS[1]: "timeouts"}


class D4RL(Format):
    """D4RL's layout."""

    name = "d4rl"
    reader = "d4rl"

    def losses(self) -> list[Loss]:
        """Return what the layout cannot say: final observations of some episodes only, cuts but of the last episode."""
        table = self.content.table
        known = int(table.observed.sum())
        found = [loss for loss in super().losses() if loss.kind not in ("final", "unknown-final", "cut")]
        if 0 < known < len(table):
            found.append(Loss("final", f"final observations of {known:,} of {len(table):,} episodes"))
        if cut := int((table.end[:-1] == CUT).sum()):
            found.append(Loss("cut", f"{cut:,} episodes cut by the end of the recording: will be truncated"))
        return found

    def losses_of_fields(self) -> Iterator[Loss]:
        """Yield the losses of texts and images."""
        for name, f in self.content.fields.items():
            if f.kind == "text":
                yield Loss("field", f"the texts {name}", name)
            if f.kind == "frames":
                yield Loss("encoding", f"{name} stored as {f.codec}: will be decoded", name)

    def file(self, directory: Path) -> Path:
        """Return the file."""
        return directory / f"{self.target.name}.hdf5"

    def prepare(self, directory: Path) -> None:
        """Make the file with all datasets at their full size."""
        steps = int(self.content.table.length.sum())
        with h5py.File(self.file(directory), "w", libver=("earliest", "v110")) as f:
            for key, _, dtype, shape in self._columns():
                space = h5py.h5s.create_simple((steps, *shape))
                how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                how.set_layout(h5py.h5d.CONTIGUOUS)
                how.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
                how.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
                parents = h5py.h5p.create(h5py.h5p.LINK_CREATE)
                parents.set_create_intermediate_group(True)
                h5py.h5d.create(f.id, key.encode(), h5py.h5t.py_create(dtype, logical=True), space, how, parents)

    def write(self, unit: Unit, directory: Path) -> Any:
        """Write the steps of some episodes at their places in the file."""
        table = self.content.table
        if unit.first == unit.stop:
            return None
        first = int(table.length[: unit.first].sum())
        start = int(table.start[unit.first])
        stop = int(table.start[unit.stop - 1] + table.length[unit.stop - 1]) + 1
        with h5py.File(self.file(directory), "r") as f:
            places = {key: f[key].id.get_offset() for key, *_ in self._columns() if f[key].size}
        descriptor = os.open(self.file(directory), os.O_WRONLY)
        try:
            for key, name, dtype, shape in self._columns():
                if key not in places:
                    continue
                width = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
                at = places[key] + first * width
                for values in self._values(name, key == "timeouts", start, stop, width):
                    data = np.ascontiguousarray(values, dtype).reshape(-1).view(np.uint8)
                    os.pwrite(descriptor, data.data, at)
                    at += len(data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return None

    def finish(self, directory: Path, results: Mapping[str, Any]) -> None:
        """Nothing is left to write."""

    def files(self, directory: Path) -> list[Path]:
        """Return the file."""
        return [self.file(directory)]

    def import_options(self) -> Mapping[str, Any]:
        """Return the rule for ends where a step terminates inside an episode."""
        return {}

    def _columns(self) -> Iterator[tuple[str, str, np.dtype[Any], tuple[int, ...]]]:
        """Yield the datasets of the file: key, field, dtype and shape of a row."""
        known = bool(self.content.table.observed.all()) and len(self.content.table) > 0
        for name, f in self.content.fields.items():
            key = _FLAGS.get(name) or next(
                (k + name.removeprefix(n) for n, k in _KEYS.items() if is_below(name, n)), name
            )
            yield key, name, np.dtype(f.dtype), f.shape
            if known and is_below(name, "observation") and f"next/{name}" not in self.content.fields:
                yield f"next_observations{name.removeprefix('observation')}", f"next/{name}", np.dtype(f.dtype), f.shape

    def _values(self, name: str, timeouts: bool, start: int, stop: int, width: int) -> Iterator[Array]:
        """Yield the values of steps from row ``start`` to ``stop``, without the rows of final observations."""
        at_once = max(1, PIECE // max(1, width))
        shifted = name.startswith("next/") and name not in self.content.fields
        for a in range(start, stop, at_once):
            b = min(a + at_once, stop)
            steps: BoolArray = np.ones(b - a, bool)
            steps[self.content.last_rows(a, b) - a] = False
            if shifted:
                rows = self.content.rows(name.removeprefix("next/"), a + 1, min(b + 1, stop))
                values = rows[steps[: len(rows)]]
            else:
                values = self.content.rows(name, a, b)[steps]
            if timeouts:
                values = self._timeouts(values, a, b, steps)
            yield values

    def _timeouts(self, values: Array, a: int, b: int, steps: BoolArray) -> Array:
        """Return the flags; not set at the end of the last episode if it was cut."""
        last = self.content.num_rows - 2
        if self.content.table.end[-1] == CUT and a <= last < b:
            values = values.copy()
            values[int(steps[: last - a].sum())] = False
        return values
