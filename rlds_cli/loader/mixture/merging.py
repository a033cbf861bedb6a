"""Samples of several datasets put together: one array a field, in the order of the samples.

Where a loader reads a mixture from: every member by itself, then merged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from math import prod
from typing import Any

import numpy as np

from rlds_cli.errors import InvalidArgument, UnknownField, WrongState
from rlds_cli.loader.arrays.frameworks import Arrays
from rlds_cli.loader.build import Request
from rlds_cli.loader.fields.fields import MASK, Extra, listed
from rlds_cli.loader.index import PROBABILITY, FloatArray
from rlds_cli.loader.mixture.members import Drawing, Reading, order_of
from rlds_cli.loader.mixture.mixture import Mixture
from rlds_cli.loader.mixture.shares import Apportioning, Changing, Constant, Random, normalised
from rlds_cli.loader.read import Gathered, Places, Run, Transforms
from rlds_cli.loader.samplers.prioritized import Prioritized
from rlds_cli.loader.samplers.weighted import Weighted
from rlds_cli.loader.schedule import Ranks, Spot
from rlds_cli.loader.storage.page_cache import Coming
from rlds_cli.loader.windows.offsets import Offsets
from rlds_cli.loader.windows.positions import Samples
from rlds_cli.loader.windows.windows import Episode, Window
from rlds_cli.ted import Array, BoolArray, IntArray

SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Part:
    """Some samples of a gather, all of one member.

    Attributes
    ----------
    member : int
    slots : int array [n]
        Which samples they are.
    gathered : Gathered
        Their columns [n, ...].
    """

    member: int
    slots: IntArray
    gathered: Gathered


@dataclass(frozen=True, slots=True)
class Joined:
    """One field of the mixture.

    Attributes
    ----------
    name : str
    dtype : numpy.dtype
        Object for text.
    shape : tuple of int
        Of one step of a sample.
    has : tuple of bool
        Which members have it.
    widths : tuple of int or None
        Of the last axis, by member, where it is padded.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    has: tuple[bool, ...]
    widths: tuple[int, ...] | None = None


def join(mixture: Mixture, window: Window, floats: str | None, probes: Sequence[Mapping[str, Array]]) -> Merging:
    """Find what fields the members have in common.

    Parameters
    ----------
    mixture : Mixture
    window : Window
    floats : str or None
        Dtype in which floats are worked with.
    probes : sequence of mapping of str to array
        One sample of every member, as it is to be merged.

    Raises
    ------
    UnknownField
        A field that a member lacks, unless those are to be zero.
    InvalidArgument
        Shapes or kinds that differ.
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
    return Merging(window, fields)


def _joined(mixture: Mixture, name: str, lead: int, floats: str | None, values: Sequence[Array | None]) -> Joined:
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
    size = _size(mixture, name)
    shape = _common(name, shapes, size)
    has = tuple(x is not None for x in values)
    widths = None if size is None else tuple(shapes[m][-1] if m in shapes else 0 for m in mixture.names)
    return Joined(name, _dtype(list(there.values()), floats), shape, has, widths)


def _size(mixture: Mixture, name: str) -> int | None:
    """What the last axis is padded to."""
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
    """``[7] in bridge and kitchen, and [14] in aloha``."""
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


class Merging:
    """Puts the columns of several members into one array each.

    Parameters
    ----------
    window : Window
    fields : sequence of Joined
    """

    def __init__(self, window: Window, fields: Sequence[Joined]) -> None:
        self.fields = fields
        self._masked = window.masked
        self._masks = {f"{MASK}/{f.name}": f for f in fields if f.widths is not None or not all(f.has)}
        self._bases = {mask: _base(f.name, window) for mask, f in self._masks.items()}
        masks = [f.name for f in fields if f.name == MASK or f.name.startswith(f"{MASK}/")]
        inner = {m: f"{m}/step" for m in masks if any(other.startswith(f"{m}/") for other in self._masks)}
        self._shown = {f.name: inner.get(f.name, f.name) for f in fields}
        self.names = tuple(dict.fromkeys([*self._shown.values(), *self._masks, SOURCE]))

    def merge(self, count: int, steps: tuple[int, ...], parts: Sequence[Part]) -> Gathered:
        """Put parts together.

        Parameters
        ----------
        count : int
            K, samples in all parts together.
        steps : tuple of int
            (L,) where samples have several steps, else empty.
        parts : sequence of Part
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


def _blank(field: Joined, member: IntArray, steps: tuple[int, ...], parts: Sequence[Part]) -> Places:
    """Places that stay zero whatever the loader's transforms do: of samples, or of their steps."""
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


def _base(name: str, window: Window) -> str | None:
    """The mask that a field has because of the window."""
    if window.masked:
        return MASK
    if isinstance(window, Offsets):
        keys = [key for o in window.offsets for key in (o, f"next/{o}") if name == key or name.startswith(f"{key}/")]
        return f"{MASK}/{max(keys, key=len)}" if keys else None
    return None


def _merged(field: Joined, count: int, steps: tuple[int, ...], parts: Sequence[Part]) -> Array:
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
    """Write ``values`` [n, ...] to the places ``slots`` [n] of ``merged`` [K, ...]: a void scalar for each."""
    width = prod(merged.shape[1:])
    if merged.ndim == 1 or merged.dtype == object or not width:
        merged[slots] = values
        return
    kind = np.dtype((np.void, width * merged.itemsize))
    flat = values.reshape(len(values), width)
    flat = flat if width == 1 or flat.strides[1] == flat.itemsize else np.ascontiguousarray(flat)
    merged.reshape(len(merged), width).view(kind)[slots, 0] = flat.view(kind)[:, 0]


def _mask(field: Joined, member: IntArray, base: BoolArray | None) -> BoolArray:
    """Which elements, or samples, of a field are real."""
    if field.widths is None:
        has: BoolArray = np.array(field.has).take(member)
        return has if base is None else base & has.reshape(-1, *(1,) * (base.ndim - 1))
    real = np.arange(field.shape[-1]) < np.array(field.widths)[:, None]
    mask: BoolArray = real.take(member, axis=0)
    return mask if base is None else base[..., None] & mask[:, None]


@dataclass(frozen=True, slots=True)
class Located:
    """Where the samples of a gather lie.

    Attributes
    ----------
    count : int
        K.
    parts : list of (int, int array [n], Samples)
        Member, which of the samples, and where they lie.
    chance : callable
        Gives the share of the member of each, float64 [K].
    """

    count: int
    parts: list[tuple[int, IntArray, Samples]]
    chance: Callable[[], FloatArray]


class MixtureSource:
    """The columns of a mixture.

    Parameters
    ----------
    mixture : Mixture
        Opened.
    request : Request
    transforms : Transforms
        Of the loader, for the merged batch.
    arrays : Arrays
        Of the CPU, for members' functions.
    batch_size, seed : int

    Raises
    ------
    InvalidArgument, UnknownField, EmptyWindow, NeedsMemory
        What a member, or the members together, cannot give; messages name the member.
    """

    resident = False

    def __init__(
        self,
        mixture: Mixture,
        request: Request,
        transforms: Transforms,
        arrays: Arrays,
        *,
        batch_size: int,
        seed: int,
    ) -> None:
        _check_sampler(request)
        self.mixture, self._seed = mixture, seed
        lenient = mixture.missing == "zero"
        drawings = [Drawing(name, m, request, arrays.working, lenient=lenient) for name, m in mixture.parts.items()]
        _check_names(request, drawings)
        names = dict.fromkeys(name for d in drawings for name in d.chosen if name != SOURCE)
        self.members = [Reading(d, list(names), request, transforms, arrays) for d in drawings]
        longest = max(int(m.pool.table.steps.max()) for m in self.members)
        self._longest = longest if isinstance(request.window, Episode) else 0
        probes = [m.probe(self._longest) for m in self.members]
        _check_pads(mixture, drawings, {name for p in probes for name in p.values})
        self._merging = join(mixture, request.window, arrays.working, [p.values for p in probes])
        self.names = self._merging.names
        transforms.like = {name: like for m in self.members for name, like in m.transforms.like.items()}
        transforms.check(self.names, drawings[0].dataset, summed=request.window.n_step > 1)
        self.summed = frozenset(name for m in self.members for name in m.source.summed)
        self.sample_bytes = max(sum(x.nbytes for x in p.values.values()) for p in probes)
        self.apportioning = self._apportion(batch_size)

    def _apportion(self, batch_size: int) -> Apportioning:
        weights, names = self.mixture.weights, self.mixture.names
        order = partial(order_of, self._seed, "")
        if callable(weights):
            shares = partial(_shares, weights, names)
            return Changing(shares, len(names), batch_size, None if self.mixture.exact else order)
        totals: Sequence[float] = [m.pool.guide.total for m in self.members]
        given = totals if isinstance(weights, str) else [weights[name] for name in names]
        return Constant(given) if self.mixture.exact else Random(given, order)

    @property
    def most(self) -> int | None:
        """The least that a member allows, see `Source`."""
        return min((m.source.most for m in self.members if m.source.most is not None), default=None)

    @property
    def warnings(self) -> list[str]:
        """Those of the members, see `Source`."""
        return [f"Mixture, {m.name}: {text}" for m in self.members for text in m.source.warnings]

    @property
    def decodes(self) -> bool:
        """Whether those of a member are, see `Source`."""
        return any(m.source.decodes for m in self.members)

    def locate(self, run: Run, ranks: Ranks) -> Located:
        """Where this rank's samples lie, see `Source`."""
        mine = ranks.part(run.everyone)
        turns = self.apportioning.turns(run, mine)
        longest = self._longest
        if self.members[0].pool.bucket is not None:
            everyone = turns if ranks.world == 1 else self.apportioning.turns(run, run.everyone)
            longest = max(m.longest(run.order, everyone.place[everyone.member == i]) for i, m in self._numbered)
        parts = []
        for i, member in self._numbered:
            slots = np.flatnonzero(turns.member == i)
            for order, positions, part in member.stretches(run.order, turns.place.take(slots)):
                parts.append((i, slots[part], member.place(order, positions, longest)))
        return Located(len(mine), parts, turns.chance)

    @property
    def _numbered(self) -> list[tuple[int, Reading]]:
        return list(enumerate(self.members))

    def coming(self, located: Located) -> list[Coming]:
        """What is going to be read of every member's files, see `Source`."""
        return [c for i, _, samples in located.parts for c in self.members[i].source.coming(samples)]

    def gather(self, located: Located) -> Gathered:
        """Read and merge, see `Source`."""
        parts = [Part(i, slots, self.members[i].gather(samples)) for i, slots, samples in located.parts]
        steps = located.parts[0][2].here.shape[1:]
        merged = self._merging.merge(located.count, steps, parts)
        if PROBABILITY in merged.values:
            chance = located.chance()
            merged.values[PROBABILITY] *= chance[:, None] if steps else chance
        return merged

    # -- where it is

    def consumed(self, spot: Spot) -> dict[str, int]:
        """Samples of every member before ``spot``, all ranks together."""
        return dict(zip(self.mixture.names, self.apportioning.counts(*spot), strict=True))

    def state(self, spot: Spot) -> dict[str, Any]:
        """What a loader's state holds beside the number of samples."""
        return {"consumed": self.consumed(spot), **self.apportioning.state(*spot)}

    def load(self, state: Mapping[str, Any], spot: Spot) -> None:
        """Take over what a state says.

        Raises
        ------
        WrongState
            It lacks something, or counts do not add up.
        """
        consumed = state.get("consumed")
        if not isinstance(consumed, Mapping) or set(consumed) != set(self.mixture.names):
            raise WrongState("this state does not say how much of each member was consumed.")
        counts = [int(consumed[name]) for name in self.mixture.names]
        if sum(counts) != spot.sample:
            raise WrongState(f"this state counts {sum(counts):,} samples of the members, and {spot.sample:,} in all.")
        self.apportioning.load(*spot, counts, state)


def _check_sampler(request: Request) -> None:
    sampler = request.sampler
    if isinstance(sampler, Prioritized):
        raise InvalidArgument(
            "Prioritized over a Mixture: priorities are of the windows of one dataset.",
            hint="Weighted(column), or one Loader a dataset",
        )
    if isinstance(sampler, Weighted) and not isinstance(sampler.weight, str):
        raise InvalidArgument(
            f"{sampler} over a Mixture: an array is of the episodes of one dataset.", hint="an episode column by name"
        )


def _check_names(request: Request, drawings: Sequence[Drawing]) -> None:
    """Where fields may be missing, a name must still be one of some member."""
    offsets = request.window.offsets if isinstance(request.window, Offsets) else ()
    extra = [request.extra] if isinstance(request.extra, str | Extra) else request.extra
    fields = () if request.fields is None or drawings[0].fields.everything(request.fields) else request.fields
    asked = [*listed("fields", fields), *(x for x in extra if not isinstance(x, Extra)), *offsets]
    for name in listed("extra", asked):
        if not any(d.fields.below(name) for d in drawings):
            drawings[0].fields.expand(name)  # says what there is


def _check_pads(mixture: Mixture, drawings: Sequence[Drawing], names: Collection[str]) -> None:
    for pad in mixture.pad:
        below = sorted(n for n in names if n.startswith(f"{pad}/"))
        if below:
            raise InvalidArgument(f'Mixture: pad["{pad}"]: that is {", ".join(below)}.', hint=f'pad["{below[0]}"]')
        if pad not in names and not any(d.fields.has(pad) for d in drawings):
            close = get_close_matches(pad, names, 1)
            did_you_mean = f' Did you mean "{close[0]}"?' if close else ""
            raise UnknownField(f'Mixture, pad: no field "{pad}" in {", ".join(mixture.names)}.{did_you_mean}')


def _shares(weights: Callable[[int], Any], names: Sequence[str], step: int) -> list[float]:
    return normalised(weights(step), names, f" at step {step:,}")
