"""Merging the columns of several datasets: one array a field, in the order of the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.text import is_below
from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.loader.fields.episode_columns import EPISODE
from rlds_cli.loader.fields.fields import MASK, STEP_MASK
from rlds_cli.loader.index import SOURCE, FloatArray, Located
from rlds_cli.loader.mixture.mixture import Mixture
from rlds_cli.loader.read import Gathered, Places
from rlds_cli.loader.windows.offsets import Offsets
from rlds_cli.loader.windows.windows import Window


@dataclass(frozen=True, slots=True)
class MixtureLocation:
    """The located samples of a gather.

    Attributes
    ----------
    count : int
        K, the number of samples.
    parts : list of (int, int array [n], Located)
        Member, slots in the gather, and samples.
    chance : callable
        Returns the share of each sample's member, float64 [K].
    absent : tuple of str
        Members that have no windows.
    """

    count: int
    parts: list[tuple[int, IntArray, Located]]
    chance: Callable[[], FloatArray]
    absent: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemberPart:
    """The samples of a gather that are of one member.

    Attributes
    ----------
    member : int
    slots : int array [n]
        Their numbers within the gather.
    gathered : Gathered
        Their columns [n, ...].
    """

    member: int
    slots: IntArray
    gathered: Gathered


@dataclass(frozen=True, slots=True)
class MergedField:
    """One field of the mixture.

    Attributes
    ----------
    name : str
    dtype : numpy.dtype
        Object for text.
    shape : tuple of int
        Shape of one step of a sample.
    has : tuple of bool
        True for members that have the field.
    widths : tuple of int or None
        Size of the last axis by member, if the field is padded.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    has: tuple[bool, ...]
    widths: tuple[int, ...] | None = None


def join(mixture: Mixture, window: Window, floats: str | None, probes: Sequence[Mapping[str, Array]]) -> ColumnMerger:
    """Find the fields of the merged batches, and check that the members' fields fit together.

    Parameters
    ----------
    mixture : Mixture
    window : Window
    floats : str or None
        Working dtype of floats.
    probes : sequence of mapping of str to array
        One sample of every member.

    Raises
    ------
    UnknownField
        A member lacks a field, and ``missing`` is "error".
    InvalidArgument
        Shapes or kinds of a field differ.
    """
    names = list(dict.fromkeys(name for probe in probes for name in probe))
    nested = [name for name in names for other in names if other.startswith(f"{name}/") and name != MASK]
    if nested:
        raise InvalidArgument(
            f'Mixture: "{nested[0]}" is one field in {_having(mixture, probes, nested[0])} and several in another'
            " member.",
            hint='Member(..., rename={"their name": "our name"})',
        )
    lead = 2 if window.masked else 1
    fields = [_joined(mixture, name, lead, floats, [probe.get(name) for probe in probes]) for name in names]
    return ColumnMerger(window, fields)


def _joined(mixture: Mixture, name: str, lead: int, floats: str | None, values: Sequence[Array | None]) -> MergedField:
    there = {member: x for member, x in zip(mixture.names, values, strict=True) if x is not None}
    lacking = [member for member in mixture.names if member not in there]
    if lacking and mixture.missing == "error":
        raise UnknownField(
            f'Mixture: "{name}" is in {" and ".join(there)} and not in {" and ".join(lacking)}.',
            hint=f'Member(..., rename={{"their name": "{name}"}}), fields= without it, or missing="zero"',
        )
    kinds = {member: "text" if x.dtype == object else str(x.dtype) for member, x in there.items()}
    if len({kind == "text" for kind in kinds.values()}) > 1:
        raise InvalidArgument(
            f'Mixture: "{name}" is {_by_value(kinds)}.', hint="Member(..., rename=...), or fields= without it"
        )
    shapes = {member: x.shape[lead:] for member, x in there.items()}
    size = size_of(mixture, name)
    shape = _common(name, shapes, size)
    has = tuple(x is not None for x in values)
    widths = None if size is None else tuple(shapes[m][-1] if m in shapes else 0 for m in mixture.names)
    return MergedField(name, _dtype(list(there.values()), floats), shape, has, widths)


def size_of(mixture: Mixture, name: str) -> int | None:
    """Return the size that a field's last axis is padded to; None for none."""
    return mixture.pad.get(name, mixture.pad.get(name.removeprefix("next/")))


def _common(name: str, shapes: Mapping[str, tuple[int, ...]], size: int | None) -> tuple[int, ...]:
    different = set(shapes.values())
    first = next(iter(shapes.values()))
    if size is None and len(different) == 1:
        return first
    says = f'Mixture: "{name}" is {_by_value({member: list(shape) for member, shape in shapes.items()})}.'
    if len({len(shape) for shape in different}) > 1 or len({shape[:-1] for shape in different}) > 1 or not first:
        raise InvalidArgument(says, hint="Member(..., transform=...) that makes them equal, or fields= without it")
    widest = max(shape[-1] for shape in different)
    if size is None:
        name = name.removeprefix("next/")
        raise InvalidArgument(says, hint=f'pad={{"{name}": {widest}}} adds batch["mask", "{name}"]')
    if size < widest:
        raise InvalidArgument(f"{says} pad={size} is less.", hint=f'pad={{"{name}": {widest}}}')
    return (*first[:-1], size)


def _by_value(values: Mapping[str, Any]) -> str:
    """Group members by value: ``[7] in bridge and kitchen and [14] in aloha``."""
    groups: dict[str, list[str]] = {}
    for member, value in values.items():
        groups.setdefault(str(value), []).append(member)
    told = [f"{value} in {' and '.join(members)}" for value, members in groups.items()]
    return " and ".join(told)


def _dtype(values: Sequence[Array], floats: str | None) -> np.dtype[Any]:
    common: np.dtype[Any] = np.result_type(*(x.dtype for x in values))
    return np.dtype(floats) if floats is not None and common.kind == "f" else common


def _having(mixture: Mixture, probes: Sequence[Mapping[str, Array]], name: str) -> str:
    return " and ".join(m for m, probe in zip(mixture.names, probes, strict=True) if name in probe)


class ColumnMerger:
    """Merges the columns of several members into one array each.

    Parameters
    ----------
    window : Window
    fields : sequence of MergedField
    """

    def __init__(self, window: Window, fields: Sequence[MergedField]) -> None:
        self.fields = fields
        self._masked = window.masked
        given = {f.name for f in fields if f.name.startswith(f"{MASK}/{EPISODE}/")}  # members know what is missing
        self._masks = {
            f"{MASK}/{f.name}": f
            for f in fields
            if (f.widths is not None or not all(f.has)) and not given & {f.name, f"{MASK}/{f.name}"}
        }
        steps = STEP_MASK if any(f.name == STEP_MASK for f in fields) else MASK
        self._bases = {mask: _base(f.name, window, steps) for mask, f in self._masks.items()}
        masks = [f.name for f in fields if f.name == MASK or f.name.startswith(f"{MASK}/")]
        inner = {m: f"{m}/step" for m in masks if any(other.startswith(f"{m}/") for other in self._masks)}
        self._shown = {f.name: inner.get(f.name, f.name) for f in fields}
        self.names = tuple(dict.fromkeys([*self._shown.values(), *self._masks, SOURCE]))

    @property
    def of_one(self) -> frozenset[str]:
        """Fields with an axis of one element, of scalars or of vectors."""
        return frozenset(f.name for f in self.fields if f.shape == (1,))

    @property
    def plain(self) -> bool:
        """True if every member has every field, and none is padded or masked."""
        return not self._masks and all(f.widths is None and all(f.has) for f in self.fields)

    def merge(self, count: int, steps: tuple[int, ...], parts: Sequence[MemberPart]) -> Gathered:
        """Merge the parts of a gather.

        Parameters
        ----------
        count : int
            K, samples in all parts together.
        steps : tuple of int
            (L,) where samples have several steps, else empty.
        parts : sequence of MemberPart
        """
        member = np.empty(count, np.int64)
        for part in parts:
            member[part.slots] = part.member
        values = {self._shown[f.name]: _merged(f, count, steps, parts) for f in self.fields}
        for name, f in self._masks.items():
            base = self._bases[name]
            values[name] = _mask(f, member, None if base is None else values[self._shown[base]])
        values[SOURCE] = np.broadcast_to(member[:, None], (count, *steps)).copy() if steps else member
        blank = {self._shown[f.name]: places for f in self.fields if (places := _blank(f, member, steps, parts))}
        return Gathered({name: values[name] for name in self.names}, blank)


def _blank(field: MergedField, member: IntArray, steps: tuple[int, ...], parts: Sequence[MemberPart]) -> Places:
    """Return the places to zero after the loader's transforms: of samples, or of their steps."""
    found: list[Places] = []
    for part in parts:
        sample, *within = part.gathered.blank.get(field.name, (np.zeros(0, np.int64),))
        if len(sample):
            found.append((part.slots.take(sample), *within))
    if not all(field.has):
        without = np.flatnonzero(~np.array(field.has).take(member))
        by_step = (*steps, *field.shape)[: max((len(places) - 1 for places in found), default=0)]
        grid = np.indices((len(without), *by_step)).reshape(1 + len(by_step), -1)
        found.append((without.take(grid[0]), *grid[1:]))
    return tuple(np.concatenate(axis) for axis in zip(*found, strict=True))


def _base(name: str, window: Window, steps: str) -> str | None:
    """Return the name of the mask that the window gives a field, ``steps`` if it has several; None without one."""
    if window.masked:
        return steps
    if isinstance(window, Offsets):
        keys = [key for o in window.offsets for key in (o, f"next/{o}") if is_below(name, key)]
        return f"{MASK}/{max(keys, key=len)}" if keys else None
    return None


def _merged(field: MergedField, count: int, steps: tuple[int, ...], parts: Sequence[MemberPart]) -> Array:
    shape = (count, *steps, *field.shape)
    if len(parts) == 1 and field.name in parts[0].gathered.values:
        values = parts[0].gathered.values[field.name]
        if values.shape == shape and values.dtype == field.dtype:
            return np.ascontiguousarray(values)
    whole = all(field.name in part.gathered.values for part in parts)
    merged = np.empty(shape, field.dtype) if whole else np.zeros(shape, field.dtype)
    if not whole and field.dtype == object:
        merged[...] = None
    for part in parts:
        if field.name in part.gathered.values:
            values = part.gathered.values[field.name].astype(field.dtype, copy=False)
            put(merged, part.slots, _widened(values, shape[-1]) if field.widths is not None else values)
    return merged


def _widened(values: Array, size: int) -> Array:
    if values.shape[-1] == size:
        return values
    wide = np.zeros((*values.shape[:-1], size), values.dtype)
    wide[..., : values.shape[-1]] = values
    return wide


def put(merged: Array, slots: IntArray, values: Array) -> None:
    """Write ``values`` [n, ...] to the places ``slots`` [n] of ``merged`` [K, ...], each as one void scalar."""
    width = prod(merged.shape[1:])
    if merged.ndim == 1 or merged.dtype == object or not width:
        merged[slots] = values
        return
    kind = np.dtype((np.void, width * merged.itemsize))
    flat = values.reshape(len(values), width)
    flat = flat if width == 1 or flat.strides[1] == flat.itemsize else np.ascontiguousarray(flat)
    merged.reshape(len(merged), width).view(kind)[slots, 0] = flat.view(kind)[:, 0]


def _mask(field: MergedField, member: IntArray, base: BoolArray | None) -> BoolArray:
    """Return the mask of a field's real elements, or samples."""
    if field.widths is None:
        has: BoolArray = np.array(field.has).take(member)
        return has if base is None else base & has.reshape(-1, *(1,) * (base.ndim - 1))
    real = np.arange(field.shape[-1]) < np.array(field.widths)[:, None]
    mask: BoolArray = real.take(member, axis=0)
    return mask if base is None else base[..., None] & mask[:, None]
