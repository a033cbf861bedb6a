"""D4RL's flat HDF5: one file with a row for each step.

::

    <directory>/<name>.hdf5
        observations actions rewards terminals timeouts     [steps, ...]; observations/<key> for several
        next_observations                                   where the final observation of every episode is recorded
        infos/<key>                                         of info/<key>
        <name>                                              of any other field
        metadata/<name>                                     data that are not per row

Episodes end at terminals and timeouts. Where a step terminates inside an episode, they end at timeouts only, as
AntMaze's do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.errors import ExportError
from rlds_cli.exports.content import AT_ENDS, EVERY_END, Loss
from rlds_cli.exports.format import Unit
from rlds_cli.exports.hdf5 import (
    VERSIONS,
    Column,
    Hdf5Format,
    HDF5Layout,
    OwnNext,
    decoded,
    fitting,
    losses_of_finals,
    losses_of_values,
    placed,
    renamed,
    write_ragged,
)
from rlds_cli.store import arrays
from rlds_cli.ted import CUT, FLAGS, REWARD, Array, BoolArray
from rlds_cli.text import is_below, plural

_NEXT = "next/observation"
_ROOTS = {_NEXT: "next_observations", "observation": "observations", "action": "actions", "info": "infos"} | {
    REWARD: "rewards"
}
_FLAGS = {FLAGS[0]: "terminals", FLAGS[1]: "timeouts"}
_RESERVED = {*_ROOTS.values(), *_FLAGS.values(), "metadata"}


class D4RL(Hdf5Format):
    """D4RL's layout."""

    name = "d4rl"
    reader = "d4rl"
    can = frozenset(("final", "unknown-final", "cut", "metadata"))

    def import_options(self) -> Mapping[str, Any]:
        """Return the rule for the ends where a step terminates inside an episode."""
        return {"episodes_by": "timeouts"} if self.content.flags_inside[0] else {}

    # -- what is lost

    def losses(self) -> list[Loss]:
        """Return what the layout cannot say of episodes and fields."""
        content = self.content
        found = [*super().losses(), *losses_of_finals(content)]
        if cut := int((content.table.end[:-1] == CUT).sum()):
            found.append(Loss("cut", f"{plural(cut, 'episode')} cut by the end of the recording: will be truncated"))
        terminated, truncated = content.flags_inside
        silent = int((~content.flag_at_ends(FLAGS[1])[:-1]).sum())
        if terminated and silent:
            text = f"that {plural(silent, 'episode')} terminated without being truncated: will be truncated, too, as"
            found.append(Loss("flags", f"{text} other steps terminate inside episodes", FLAGS[1], EVERY_END))
        elif truncated:
            text = f"truncated flags of {plural(truncated, 'step')} inside episodes"
            found.append(Loss("flags", text, FLAGS[1], AT_ENDS))
        return found

    def losses_of_fields(self) -> Iterator[Loss]:
        """Yield the losses of fields: names, placements, texts, images."""
        taken: set[str] = set()
        own_fits = self._own_next_fits()
        for f in sorted(self.content.fields.values(), key=lambda f: (not _is_known(f.name), f.name)):
            found = list(losses_of_values(self.content, f, widest=16, kinds="biufc"))
            yield from found
            if any(loss.kind == "field" for loss in found):
                continue
            wanted = f.name
            if is_below(wanted, _NEXT) and not own_fits:
                wanted = f"next/own_{wanted.removeprefix('next/')}"
            key = fitting(_key(wanted), taken if _is_known(wanted) else taken | _RESERVED)
            name = wanted if key == _key(wanted) else _name(key)
            taken.add(key)
            yield from renamed(f.name, name)
            yield from placed(f, "both" if is_below(name, "observation") else "root")
            if name == REWARD and f.shape == (1,):
                yield Loss("shape", "rewards of one element: will be numbers", f.name)
            if f.kind == "frames":
                yield decoded(f)

    def _own_next_fits(self) -> bool:
        """Return whether next observations that are fields of their own are read as such again."""
        own, observed = OwnNext.of(self.content), self.content.table.observed
        if own is None or not own.whole:  # those of a part of the observations leave the final ones unknown
            return own is not None and not observed.any()
        differ = own.differ > max(1, own.pairs / 2)  # the reader takes up to a third of them for ends of episodes
        return own.finals and bool(observed.all()) and (differ or not own.alike)

    def check(self) -> None:
        """Refuse datasets without observations or actions."""
        for root in ("observation", "action"):
            if not any(is_below(n, root) for n in self.content.fields):
                raise ExportError(f"{self.content.id} has no {root} that D4RL's layout could hold.")

    # -- what is written

    def columns(self) -> list[Column]:
        """Return the datasets of the file."""
        known = bool(self.content.table.observed.all()) and len(self.content.table) > 0
        known = known and not any(is_below(n, _NEXT) for n in self.content.fields)
        found = []
        for name, f in self.content.fields.items():
            found.append(Column.of(f, _key(name)))
            if known and is_below(name, "observation"):
                found.append(Column.of(f, f"next_{_key(name)}", "next"))
        return found

    def prepare(self, directory: Path) -> None:
        """Lay the file out."""
        steps = int(self.content.table.length.sum())
        with h5py.File(self.file(directory), "w", libver=VERSIONS) as f:
            make, groups = HDF5Layout(), {"": f.id}
            for c in self.columns():
                above, _, name = c.key.rpartition("/")
                make.dataset(make.below(groups, above), name, c, steps)
                if c.kind != "array":
                    at = 0
                    for a, b, values in self.pieces(c, 0, self.content.num_rows):
                        values = self._steps(values, a, b)
                        write_ragged(f[c.key], at, values)
                        at += len(values)
            for name, value in self.content.metadata():
                path = fitting(name if is_below(name, "metadata") else f"metadata/{name}", ())
                f[path] = value

    def write(self, unit: Unit, directory: Path) -> Any:
        """Write the steps of some episodes at their places in the file."""
        table = self.content.table
        first = int(table.length[: unit.first].sum())
        start, end = int(self.content.starts[unit.first]), unit.stop - 1
        stop = int(self.content.starts[end] + table.length[end]) + 1
        columns = [c for c in self.columns() if c.kind == "array" and c.row_bytes]
        with h5py.File(self.file(directory), "r") as f:
            places = [f[c.key].id.get_offset() for c in columns]
        descriptor = os.open(self.file(directory), os.O_WRONLY)
        try:
            for c, place in zip(columns, places, strict=True):
                at = place + first * c.row_bytes
                for a, b, values in self.pieces(c, start, stop):
                    values = self._steps(values, a, b).astype(c.dtype, copy=False)
                    arrays.write_at(descriptor, at, values)
                    at += len(values) * c.row_bytes
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return None

    def _steps(self, values: Array, start: int, stop: int) -> Array:
        """Return the values of steps from row ``start`` to ``stop``, without the rows of final observations."""
        steps: BoolArray = np.ones(stop - start, bool)
        steps[self.content.last_rows(start, stop) - start] = False
        return values[steps[: len(values)]]

    def values(self, column: Column, values: Array, start: int) -> Array:
        """Return flags as they are stored: not set at the end of the last episode if it was cut."""
        last = self.content.num_rows - 2
        if column.field == FLAGS[1] and self.content.table.end[-1] == CUT and start <= last < start + len(values):
            values = values.copy()
            values[last - start] = False
        return values


def _is_known(name: str) -> bool:
    """Return whether the layout has a place of its own for a field."""
    return name in _FLAGS or any(is_below(name, root) for root in _ROOTS)


def _key(name: str) -> str:
    """Return the path of a field in the file."""
    if name in _FLAGS:
        return _FLAGS[name]
    root = next((root for root in _ROOTS if is_below(name, root)), None)
    return name if root is None else _ROOTS[root] + name.removeprefix(root)


def _name(key: str) -> str:
    """Return the field of a path in the file."""
    root = next((root for root, path in _ROOTS.items() if is_below(key, path)), None)
    return key if root is None else root + key.removeprefix(_ROOTS[root])
