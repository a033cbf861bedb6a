"""`Offsets`: rows at chosen offsets from a step, field by field, for frame stacks and action chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.integers import set_integer
from rlds_cli.base.text import is_below, join_name
from rlds_cli.errors import EmptyWindow, InvalidArgument
from rlds_cli.loader.windows.windows import Anchors, Fill, Unmasked, check_anchors, check_fill

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

_FAR = 1 << 40  # steps or seconds: row numbers are 64-bit
_TOLERANCE = 1e-3  # of a step: how far an offset in seconds may lie from a recorded row


@dataclass(frozen=True, slots=True)
class Offsets(Unmasked):
    """The rows of some fields at chosen offsets from a step t, [B, k, ...]; the other fields at t.

    ``Offsets({"observation": (-1, 0), "action": range(-1, 15)})`` gives two observations and sixteen actions; no other
    row of these fields is read. ``batch["mask", "observation"]`` [B, k] is False where an offset lies outside the
    episode. ``next/observation``, when it is in the batch and not named itself, has the offsets of ``observation``,
    each one row later. Where the fields below a name do not have the same rows, as ``info`` may hold some that have a
    final one, each has a mask of its own.

    Parameters
    ----------
    offsets : mapping of str to numbers
        Offsets per field, in the order in which the batch has them. A name stands for everything below it.
    before, after : int, optional
        Steps by which the offsets may reach before the episode's first step and beyond its last; None for any number:
        every step can be t. Diffusion Policy's ``pad_before`` and ``pad_after``.
    fill : {"edge", "zero"}
        The values outside: those of the nearest row, or zeros (after any transform).
    unit : {"step", "s"}
        Offsets in seconds are converted by the dataset's frames per second, and must fall on rows.
    anchors : {"transitions", "steps"}
        ``"steps"``: every step can be t, also steps whose next observation is not known, which is then not given.
    """

    offsets: Mapping[str, Iterable[int | float]]
    before: int | None = field(default=None, kw_only=True)
    after: int | None = field(default=None, kw_only=True)
    fill: Fill = field(default="edge", kw_only=True)
    unit: Literal["step", "s"] = field(default="step", kw_only=True)
    anchors: Anchors = field(default="transitions", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.unit not in ("step", "s"):
            raise InvalidArgument(f'Offsets(unit={self.unit!r}): unit is "step" or "s".')
        if not isinstance(self.offsets, Mapping) or not self.offsets:
            raise InvalidArgument("Offsets: a mapping of field names to offsets is needed.", hint=_EXAMPLE)
        kind = int if self.unit == "step" else float
        plain = {join_name(name): _numbers(name, given, kind) for name, given in self.offsets.items()}
        object.__setattr__(self, "offsets", plain)
        for name in ("before", "after"):
            if getattr(self, name) is not None:
                set_integer(self, name, 0)
        check_fill(self)
        check_anchors(self)

    n_step = 1

    @property
    def zeroed(self) -> bool:
        """True if ``fill`` is zero."""
        return self.fill == "zero"

    def in_steps(self, dataset: Dataset) -> Offsets:
        """Return the window with offsets in steps.

        Raises
        ------
        InvalidArgument
            The dataset's frames per second are unknown, or an offset falls between two rows.
        """
        if self.unit == "step":
            return self
        fps = dataset.manifest.env.get("fps")
        if not fps:
            raise InvalidArgument(
                f'Offsets(unit="s"): {dataset.id} does not state its frames per second.',
                hint='unit="step", or create(..., fps=...)',
            )
        steps = {name: tuple(_to_step(name, x, float(fps)) for x in given) for name, given in self.offsets.items()}
        return replace(self, offsets=steps, unit="step")

    def named(self, name: str) -> str | None:
        """Return the key of the offsets that covers the field ``name``, with ``next/`` for a next field; else None."""
        for prefix in ("", "next/"):
            wanted = name.removeprefix(prefix)
            keys = [key for key in self.offsets if is_below(wanted, key)]
            if keys and name.startswith(prefix):
                return prefix + max(keys, key=len)
        return None

    def of(self, name: str) -> tuple[int, ...] | None:
        """Return the offsets in steps of the field ``name``; None for step t alone."""
        key = self.named(name)
        given = None if key is None else self.offsets[key if key in self.offsets else key.removeprefix("next/")]
        return given if given is None else tuple(given)  # type: ignore[arg-type]

    @property
    def _ends(self) -> tuple[int, int]:
        every = [x for given in self.offsets.values() for x in given]
        return int(min(every)), int(max(every))

    @property
    def _first(self) -> int:
        """The first step that can be t."""
        return 0 if self.before is None else max(0, -self._ends[0] - self.before)

    def counts(self, offered: IntArray, steps: IntArray | None = None) -> IntArray:
        """Return the number of steps that can be t."""
        last = offered if self.after is None else (offered if steps is None else steps) + self.after - self._ends[1]
        counts: IntArray = np.maximum(np.minimum(offered, last) - self._first, 0)
        return counts

    @property
    def starts(self) -> tuple[int, int]:
        """Stride and offset, see `Window`."""
        return 1, self._first

    def nowhere(self, episodes: int, longest: int) -> EmptyWindow:
        """Return the error, see `Window`."""
        low, high = self._ends
        return EmptyWindow(
            f"Offsets from {low} to {high} fit none of {episodes:,} episodes: the longest has {longest:,} steps.",
            hint="a larger before= or after=; None takes every step",
        )


_EXAMPLE = 'Offsets({"observation": (-1, 0), "action": range(16)})'


def _numbers(name: object, given: Iterable[int | float], kind: type[int] | type[float]) -> tuple[int | float, ...]:
    listed = list(given) if isinstance(given, Iterable) else [given]
    plain = []
    for x in listed:
        fine = isinstance(x, int | float | np.integer | np.floating) and abs(x) < _FAR
        number = kind(x) if fine else None
        if number is None or isinstance(x, bool) or number != x:
            raise InvalidArgument(f"Offsets: {name!r} has the offset {x!r}; {_KINDS[kind]} are needed.", hint=_EXAMPLE)
        plain.append(number)
    if not plain:
        raise InvalidArgument(f"Offsets: {name!r} has no offset.", hint=_EXAMPLE)
    return tuple(plain)


_KINDS = {int: "whole numbers of steps", float: "numbers of seconds"}


def _to_step(name: str, seconds: float, fps: float) -> int:
    step = round(seconds * fps)
    if abs(seconds * fps - step) > _TOLERANCE:
        raise InvalidArgument(
            f'Offsets: {seconds} s of "{name}" is {seconds * fps:.3f} steps at {fps:g} frames per second.',
            hint=f"{step / fps:.6g} s is a row",
        )
    return step
