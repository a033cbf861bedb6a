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

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives.exports.content import AT_ENDS, EVERY_END, Loss
from rlds_cli.archives.exports.hdf5 import Column, Hdf5Format, HDF5Layout, Names, OwnNext, fitting, losses_of_finals
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.text import is_below, plural
from rlds_cli.errors import ExportError
from rlds_cli.ted import CUT, FLAGS, REWARD

_NEXT = "next/observation"
_NAMES = Names(
    exact={FLAGS[0]: "terminals", FLAGS[1]: "timeouts"},
    roots={_NEXT: "next_observations", "observation": "observations", "action": "actions", "info": "infos"}
    | {REWARD: "rewards"},
    reserved=frozenset({"metadata"}),
)


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
        """Return what the layout cannot represent of episodes and fields."""
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
        yield from _NAMES.losses(self.content, self._own_next_fits())

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
            found.append(Column.of(f, _NAMES.path(name)))
            if known and is_below(name, "observation"):
                found.append(Column.of(f, f"next_{_NAMES.path(name)}", "next"))
        return found

    @cached_property
    def _first_steps(self) -> IntArray:
        """Number of the first step of each episode."""
        length = self.content.table.length
        return np.cumsum(length) - length

    def place(self, column: Column, episode: int) -> tuple[str, int]:
        """Return the dataset that holds all episodes."""
        return column.key, int(self._first_steps[episode])

    def lay_out(self, f: h5py.File, make: HDF5Layout) -> IntArray:
        """Make a dataset of all steps for each column."""
        steps, columns, groups = int(self.content.table.length.sum()), self.columns(), {"": f.id}
        begins = [make.dataset(groups, c.key, c.dtype, (steps, *c.shape), c.kind) for c in columns]
        for name, value in self.content.metadata():
            f[fitting(name if is_below(name, "metadata") else f"metadata/{name}", ())] = value
        places: IntArray = np.array(begins) + np.outer(self._first_steps, [c.row_bytes for c in columns])
        return places

    def values(self, column: Column, values: Array, start: int) -> Array:
        """Return flags as they are stored: not set at the end of the last episode if it was cut."""
        last = self.content.num_rows - 2
        if column.field == FLAGS[1] and self.content.table.end[-1] == CUT and start <= last < start + len(values):
            values = values.copy()
            values[last - start] = False
        return values
