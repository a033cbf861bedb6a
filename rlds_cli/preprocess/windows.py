"""Windows of steps with their neighbours in the episode, and the fields that a function returns for them.

::

    history=2, future=1, an episode of T = 4 steps        step:   -2 -1  0  1  2  3  4
    window of step 0                                        [ o0 o0 o0 o1 ]            mask 0 0 1 1
    window of step 3                                                 [ o1 o2 o3 o4 ]   mask 1 1 1 0

Outside of the episode the nearest row is repeated: the first or final observation, and for fields of steps the value of
the first or last step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds_cli.errors import InvalidEpisode
from rlds_cli.preprocess import forms
from rlds_cli.preprocess.blocks import StepBlock
from rlds_cli.ted import FLAGS, REWARD, Array, BoolArray, Field, IntArray
from rlds_cli.ted.episodes import Flat

MASK, NEXT_MASK = "mask", "next/mask"
_COLUMNS = (REWARD, *FLAGS)  # [B, L, 1] in windows


@dataclass(frozen=True)
class Neighbours:
    """The positions of the L rows of each of B windows among the rows to read.

    ``runs`` are the rows to read. ``steps``, ``observed`` and ``after`` [B, L] index them for fields of steps, for
    observations and for next observations; ``mask`` and ``next_mask`` [B, L] are True inside the episode.
    """

    runs: tuple[tuple[int, int], ...]
    steps: IntArray
    observed: IntArray
    after: IntArray
    mask: BoolArray
    next_mask: BoolArray


def neighbours(
    block: StepBlock, starts: IntArray, lengths: IntArray, final: BoolArray, span: tuple[int, int]
) -> Neighbours:
    """Find the windows of all steps of a block.

    Parameters
    ----------
    starts, lengths, final : array [pieces]
        First row in the store and number of steps of each piece's episode, and whether its final observation is
        recorded.
    span : tuple of int
        Steps of a window before and after its own step.
    """
    history, future = span
    first = np.array([p.first for p in block.pieces])
    last = np.array([p.last for p in block.pieces])
    low, high = np.maximum(first - history, 0), np.minimum(last + future, lengths)  # rows that are needed
    sizes = high - low + 1
    offset = np.cumsum(sizes) - sizes - low
    piece = np.repeat(np.arange(len(first)), last - first)
    t = np.arange(block.size) - np.repeat(np.cumsum(last - first) - last, last - first)
    at = t[:, None] + np.arange(-history, future + 1)
    steps, top, base = (x[piece][:, None] for x in (lengths - 1, lengths - ~final, offset))
    return Neighbours(
        tuple(zip((starts + low).tolist(), (starts + high + 1).tolist(), strict=True)),
        base + np.clip(at, 0, steps),
        base + np.clip(at, 0, top),
        base + np.clip(at + 1, 0, top),
        (at >= 0) & (at <= steps),
        (at >= -1) & (at < top),
    )


def window_fields(
    rows: Callable[[str], Array], names: Iterable[str], fields: Mapping[str, Field], n: Neighbours
) -> dict[str, Array]:
    """Gather the windows of the fields: [B, L, ...], rewards and flags [B, L, 1]; ``mask`` and ``next/mask`` [B, L].

    Raises
    ------
    InvalidEpisode
        A field has the name of a mask.
    """
    windows: dict[str, Array] = {}
    for name in names:
        if name in (MASK, NEXT_MASK):
            raise InvalidEpisode(
                f'the source has a field "{name}", the name of the mask of windows.', hint="exclude it with fields="
            )
        values = rows(name)
        if fields[name].placement == "both":
            windows[name] = values[n.observed]
            windows[f"next/{name}"] = values[n.after]
        else:
            one = values[n.steps]
            windows[name] = one[..., None] if name in _COLUMNS and one.ndim == 2 else one
    windows[forms.DONE] = windows[FLAGS[0]] | windows[FLAGS[1]]
    return {**windows, MASK: n.mask, NEXT_MASK: n.next_mask}


def to_input(windows: Mapping[str, Array], arrays: str) -> Any:
    """Convert windows for the function. NumPy arrays are read-only, since changes to a window would be lost."""
    if arrays == "numpy":
        for values in windows.values():
            values.flags.writeable = False
    return forms.to_input(windows, arrays)


def merge_output(value: Any, handed: Any, before: Flat, fields: Mapping[str, Field], where: str) -> Flat:
    """Apply the output of a function of windows to the fields of the source.

    Parameters
    ----------
    value : mapping
        The added or changed fields, one row per step [B, ...], and None for removed ones; the others stay.
    handed : mapping
        The input of the function.
    before : dict
        The transitions of the source.

    Raises
    ------
    InvalidEpisode
        It is not a mapping, or is the whole input; a window was changed in place; or an observation was returned
        without the next one.
    """
    if not _is_nested(value):
        raise InvalidEpisode(f"{where}: a {type(value).__name__} was returned; a dict of fields is needed.")
    known = dict(_leaves(handed, ()))
    new, removed = {}, set[str]()
    for name, leaf in _leaves(value, ()):
        if name in (MASK, NEXT_MASK) and leaf is known[name]:
            raise InvalidEpisode(
                f"{where}: the function returned the windows with their mask.",
                hint="return only added or changed fields, one row per step; the others stay",
            )
        if leaf is None:
            removed |= {name, f"next/{name}"} if name in fields and fields[name].placement == "both" else {name}
        else:
            new[name] = leaf
    _check_edits(known, where)
    _check_observations(new, fields, where)
    kept = {n: v for n, v in before.items() if not any(n == r or n.startswith(f"{r}/") for r in removed)}
    if forms.DONE not in new:
        kept.pop(forms.DONE, None)
    return forms.from_output({**kept, **new}, where)


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "items"))


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if not _is_nested(value):
        yield "/".join(path), value
        return
    for key, below in value.items():
        yield from _leaves(below, (*path, *(key if isinstance(key, tuple) else (str(key),))))


def _check_edits(handed: Mapping[str, Any], where: str) -> None:
    for name, value in handed.items():
        if getattr(value, "_version", 0):
            raise InvalidEpisode(
                f"{where}: the windows of {name} were changed in place.",
                hint="return the new values, one row per step, under the field's name",
            )


def _check_observations(new: Mapping[str, Any], fields: Mapping[str, Field], where: str) -> None:
    for name, f in fields.items():
        if f.placement == "both" and name in new and f"next/{name}" not in new:
            raise InvalidEpisode(
                f'{where}: "{name}" came back changed and "next/{name}" did not.',
                hint='compute both alike, from the window and from its "next/..."',
            )
