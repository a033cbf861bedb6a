"""Whether an observation and the next one are still one: what came back for a field and for its ``next/``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_cli.episodes import Flat
from rlds_cli.errors import InvalidEpisode
from rlds_cli.preprocess import forms
from rlds_cli.preprocess.blocks import Block
from rlds_cli.preprocess.reading import Reader
from rlds_cli.preprocess.task import Task
from rlds_cli.ted import Array, IntArray


class Pairs:
    """Compares what a function made of a block with the source, and the steps of it with each other."""

    def __init__(self, task: Task, reader: Reader) -> None:
        self._task = task
        self._reader = reader
        self._fields = task.dataset.schema

    def same(self, name: str, flat: Flat, original: Mapping[str, Array], block: Block) -> bool:
        """Whether a field of the source came back as it was, next included."""
        if name not in flat or not forms.same(flat[name], block.pick(original[name])):
            return False
        both = self._fields[name].placement == "both"
        return not both or forms.same(flat[f"next/{name}"], block.pick(original[name], 1))

    def disagreeing(
        self, flat: Flat, block: Block, untouched: frozenset[str], before: Mapping[str, Any]
    ) -> frozenset[str]:
        """Fields whose next value is not the value one step on. Those that the source keeps once must stay so.

        Parameters
        ----------
        untouched : frozenset of str
            What need not be looked at.
        before : mapping
            The next values of the step before the block, in the same episode.

        Raises
        ------
        InvalidEpisode
            One that the source keeps once does not, and the unit is not window.
        """
        inner = np.ones(block.size, bool)
        inner[np.cumsum([p.steps for p in block.pieces]) - 1] = False
        at = np.flatnonzero(inner)
        found = []
        for name in (n for n in flat if f"next/{n}" in flat and n not in untouched and n not in self._task.apart):
            root, after = flat[name], flat[f"next/{name}"]
            fits = _agree(root, after, at, block)
            if name in before and block.pieces[0].first:
                fits = fits and forms.agree(take(root, np.array([0])), before[name])
            if not fits:
                self._refuse(name, flat, block, at)
                found.append(name)
        return frozenset(found)

    def _refuse(self, name: str, flat: Flat, block: Block, at: IntArray) -> None:
        if name not in self._fields or self._fields[name].placement != "both" or self._task.unit == "window":
            return
        original = self._reader.rows(name, block.runs)
        changed = {
            n: not forms.same(flat[n], original[block.steps + step]) for n, step in ((name, 0), (f"next/{name}", 1))
        }
        what = (
            f'"{name}" and "next/{name}" were changed, but not alike'
            if all(changed.values())
            else f'"{name}" was changed and "next/{name}" was not'
            if changed[name]
            else f'"next/{name}" was changed and "{name}" was not'
        )
        step = next(
            (int(i) for i in at if not forms.agree(take(flat[name], [i + 1]), take(flat[f"next/{name}"], [i]))), 0
        )
        raise InvalidEpisode(
            f"{what}: after {block.name(step)} they are no longer the same observation.",
            hint="edit both, or use unit=episode (--unit episode), which gives every observation once",
        )


def _agree(root: Any, after: Any, at: IntArray, block: Block) -> bool:
    """Whether the next values at the steps ``at``, which go on in their piece, are the values one step on."""
    if block.is_long and not isinstance(root, list) and not isinstance(after, list):
        return all(forms.agree(root[a + 1 : b], after[a : b - 1]) for a, b in block.spans)
    return forms.agree(take(root, at + 1), take(after, at))


def take(values: Any, index: Any) -> Any:
    """Rows of a column, of text too."""
    return [values[i] for i in index] if isinstance(values, list) else values[index]
