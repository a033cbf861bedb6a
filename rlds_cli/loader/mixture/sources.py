"""Reading a mixture: every member by itself, then merged."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.text import did_you_mean
from rlds_cli.dataset import Batch, Dataset, Elementwise
from rlds_cli.errors import EmptyWindow, InvalidArgument, RldsError, UnknownField, WrongState
from rlds_cli.loader import build
from rlds_cli.loader.arrays.frameworks import ArrayBackend
from rlds_cli.loader.build import Request
from rlds_cli.loader.fields.fields import ALL, MASK, STEP_MASK, Extra, Fields, items, listed
from rlds_cli.loader.index import PROBABILITY, SOURCE, WEIGHT, Located, SampledWindows, WindowIndex
from rlds_cli.loader.kernel import SampleNumbers
from rlds_cli.loader.mixture.direct import DirectColumns
from rlds_cli.loader.mixture.merging import MemberPart, MixtureLocation, join, size_of
from rlds_cli.loader.mixture.mixture import EitherName, Member, Mixture, OfFields, renamed
from rlds_cli.loader.mixture.shares import (
    ConstantShares,
    DeficitRounds,
    LiveRounds,
    RandomShares,
    SourceShares,
    dealt,
    normalised,
)
from rlds_cli.loader.order import Order
from rlds_cli.loader.read import DatasetSource, Gathered, Places
from rlds_cli.loader.samplers import Draw, StatefulDraw
from rlds_cli.loader.samplers.reports import Report
from rlds_cli.loader.schedule import Position, Ranks, SampleRun
from rlds_cli.loader.storage.page_cache import PlannedRead
from rlds_cli.loader.storage.remote import RemoteReads
from rlds_cli.loader.transforms import Transforms
from rlds_cli.loader.windows.offsets import Offsets
from rlds_cli.loader.windows.windows import Episode
from rlds_cli.ted import REWARD


@lru_cache(maxsize=256)
def order_of(seed: int, name: str, epoch: int) -> Order:
    """Return the order of a member; with an empty name, that of the draws of members."""
    digest = hashlib.sha256(f"{seed} {epoch} {name}".encode()).digest()
    return Order(int.from_bytes(digest[:8], "little"))


class MemberPlan:
    """A member with its windows, its draw and its fields, before it is known which fields all members give.

    Attributes
    ----------
    grows : bool
        Later versions of the dataset are taken up; this one may have no windows.
    draw : Draw or None
        None without windows, unless it learns.
    """

    def __init__(
        self,
        name: str,
        member: Member,
        request: Request,
        floats: str | None,
        *,
        gives: Sequence[str],
        lenient: bool,
    ) -> None:
        self.name, self.member = name, member
        assert isinstance(member.dataset, Dataset)
        with _naming(name):
            self.dataset = renamed(member.dataset, member.rename)
            self.follows = request.live and not self.dataset.store.why_fixed
            self.request = replace(request.in_steps(self.dataset), sampler=member.sampler or request.sampler)
            window = self.request.window
            self.pool = build.pool(
                self.dataset,
                window,
                in_mixture=member.sampler is None,
                live=self.follows,
                needed=not self.follows,
            )
            self.draw: Draw | None = None
            self.fields = Fields(self.pool, window, gives, request.memory, floats)
            self.chosen = self.fields.choose(request.fields, member=True, lenient=lenient)

    def begin(self, before: Draw | None = None) -> None:
        """Make the draw: the one that continues from that of another version, where it learns."""
        sampler = self.request.sampler
        with _naming(self.name):
            if sampler.sides > 1:
                raise InvalidArgument(
                    f"{sampler}: samples of {sampler.sides} windows are of one dataset.",
                    hint="a Loader for each member",
                )
            if isinstance(before, StatefulDraw):
                self.draw = before.take_up(self.pool)
            elif self.pool.prefix.total or WEIGHT in sampler.gives:
                try:
                    self.draw = sampler.over(self.pool)
                except EmptyWindow:  # no window weighs anything
                    if not self.follows:
                        raise
                    self.pool = self.pool.without_any()
            if isinstance(self.draw, StatefulDraw) and self.draw.ahead:
                raise InvalidArgument(f"{sampler}: a mixture draws no batches ahead.", hint="lag=0")


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name the member in errors."""
    try:
        yield
    except RldsError as e:
        raise type(e)(f"Mixture, {name}: {e.message}", hint=e.hint) from None


class MemberSource:
    """Reads the samples of one member.

    Parameters
    ----------
    drawing : MemberPlan
        With its draw.
    names : sequence of str
        Fields of the mixture; the member reads those that it has.
    request : Request
    transforms : Transforms
        Transforms of the loader, for rewards before they are summed.
    centred : sequence of Elementwise
        Those of them that the member applies to its own values.
    arrays : ArrayBackend
    """

    def __init__(
        self,
        drawing: MemberPlan,
        names: Sequence[str],
        request: Request,
        transforms: Transforms,
        centred: Sequence[Elementwise],
        arrays: ArrayBackend,
    ) -> None:
        self.name, self.dataset, self.pool, self.follows = drawing.name, drawing.dataset, drawing.pool, drawing.follows
        self._endless, self._arrays = drawing.request.sampler.endless, arrays
        fields, member = drawing.fields, drawing.member
        self.transforms = _own(member)
        chosen = [name for name in names if name in drawing.chosen or fields.has(name)]
        self.transforms.like = fields.like(chosen)
        with _naming(self.name):
            self.transforms.check(chosen, self.dataset, summed=fields.n_step > 1)
            self.transforms.elementwise += centred
            self.source: DatasetSource = build.read(
                fields,
                chosen,
                drawing.draw or _nothing,
                drawing.request,
                self.transforms,
                arrays.working,
                later=transforms.elementwise,
            )

    # -- which samples

    def stretches(self, order: Order, places: IntArray) -> Iterator[tuple[Order, SampleNumbers, slice]]:
        """Split the samples ``places`` [n], ascending, by the member's own epochs: order, sample numbers, part of n.

        ``order`` is the mixture's.
        """
        own = order_of(order.seed, self.name, order.epoch)
        if not len(places):
            return
        if self._endless:
            yield own, _dense(places), slice(None)
            return
        total, at = self.pool.prefix.total, 0
        while at < len(places):
            passed = int(places[at]) // total
            stop = int(np.searchsorted(places, (passed + 1) * total))
            yield replace(own, epoch=passed), _dense(places[at:stop] - passed * total), slice(at, stop)
            at = stop

    def locate(self, order: Order, positions: SampleNumbers, longest: int) -> Located:
        """Find the windows of these samples; ``longest`` is the length of whole episodes in the batch."""
        return self.source.locator.locate(order, positions, longest=longest)

    def longest(self, order: Order, places: IntArray) -> int:
        """Return the steps of the longest episode among the member's samples ``places`` [n]; 0 without any."""
        drawn = [self.source.locator.draw(own, at) for own, at, _ in self.stretches(order, places)]
        return max((int(self.pool.table.steps.take(d.episode).max()) for d in drawn), default=0)

    # -- their columns

    def probe(self, longest: int) -> Gathered:
        """Read the first window, or none if there is none, to learn the member's columns; nothing is drawn."""
        count, window = min(1, self.pool.prefix.total), self.source.locator.window
        first, ones = np.zeros(count, np.int64), np.ones(count)
        drawn = SampledWindows(Order(0), range(count), first, first, lambda: ones, ones)
        return self.gather(Located(self.pool.table, drawn, window.extent(longest)))

    def gather(self, samples: Located) -> Gathered:
        """Read the columns of the samples and apply the member's transforms."""
        gathered = self.source.gather(samples)
        if not self.transforms.elementwise and not self.transforms.functions:
            return gathered
        values = gathered.values | {
            name: np.asarray(self.transforms.column(name, x))
            for name, x in self._arrays.convert(gathered.values).items()
            if name not in self.source.summed
        }
        if self.transforms.functions:
            values = self._called(values, gathered.blank)
        return Gathered(values, gathered.blank)

    def is_final(self, floats: str | None) -> bool:
        """Return whether the member changes nothing that it has read."""
        left = self.transforms.change(self.source.names, self.source.summed)
        return not left and not self.transforms.functions and self.source.final(floats) is not None

    def _called(self, values: Mapping[str, Array], blank: Mapping[str, Places]) -> dict[str, Array]:
        """Apply the member's functions to a batch of these samples."""
        own = {name: np.array(x, order="C", copy=True if name in blank else None) for name, x in values.items()}
        for name, places in blank.items():
            own[name][places] = None if own[name].dtype == object else 0
        batch = self.transforms.batch(Batch.nest(self._arrays.convert(own)))
        return {name: np.asarray(x) for name, x in batch.numpy().leaves()}


def _own(member: Member) -> Transforms:
    """Return the transforms of a member, by either of its names."""
    given = member.transform if isinstance(member.transform, Sequence) else [member.transform]
    named = [EitherName(t, member.rename) if isinstance(t, Elementwise) and member.rename else t for t in given]
    return Transforms.of(named)


def _centred(
    mixture: Mixture, transforms: Transforms, names: Iterable[str], *, summed: bool
) -> dict[Elementwise, frozenset[str]]:
    """Return the loader's transforms that members apply, each with its fields: those that centre the archive's values.

    Members without functions of their own do, to fields that are not padded: the merged values are the same.
    """
    if any(_own(member).functions for member in mixture.parts.values()):
        return {}
    found: dict[Elementwise, frozenset[str]] = {}
    for name in names:
        first = None if summed and name == REWARD else transforms.first(name)
        if first is not None and size_of(mixture, name) is None:
            found[first] = found.get(first, frozenset()) | {name, transforms.like.get(name, name)}
            transforms.fused[name] = 1
    return found


def _nothing(order: Order, positions: SampleNumbers) -> SampledWindows:
    """Draw from a member that has no windows: nobody asks for any."""
    raise AssertionError("a member without windows has no share")


def _dense(places: IntArray) -> SampleNumbers:
    """Return ascending numbers as a range, if none is missing."""
    first, last = int(places[0]), int(places[-1])
    return range(first, last + 1) if last - first + 1 == len(places) else places


class MixtureSource:
    """The columns of a mixture.

    Parameters
    ----------
    mixture : Mixture
        An opened mixture.
    request : Request
    transforms : Transforms
        Transforms of the loader, for the merged batch.
    arrays : ArrayBackend
        Arrays on the CPU, for members' functions.
    batch_size, seed : int

    Raises
    ------
    InvalidArgument, UnknownField, EmptyWindow, NeedsMemory
        A member, or the members together, cannot give what is asked for; messages name the member.
    """

    resident = False
    apart = merges = False
    sides = 1

    def __init__(
        self,
        mixture: Mixture,
        request: Request,
        transforms: Transforms,
        arrays: ArrayBackend,
        *,
        batch_size: int,
        seed: int,
    ) -> None:
        self.mixture, self._seed = mixture, seed
        self.sampler = request.sampler
        samplers = [m.sampler or request.sampler for m in mixture.parts.values()]
        gives = tuple(dict.fromkeys(name for sampler in samplers for name in sampler.gives))
        lenient = mixture.missing == "zero"
        self._plan = partial(MemberPlan, request=request, floats=arrays.working, gives=gives, lenient=lenient)
        drawings = [self._plan(name, m) for name, m in mixture.parts.items()]
        _check_windows(mixture, [d.pool for d in drawings])
        for d in drawings:
            d.begin()
        _check_windows(mixture, [d.pool for d in drawings])
        _check_names(request, drawings)
        names = list(dict.fromkeys(name for d in drawings for name in d.chosen if name != SOURCE))
        names = [name for name in names if name != MASK or STEP_MASK not in names]
        transforms.like = {name: like for d in drawings for name, like in d.fields.like(d.chosen).items()}
        centred = _centred(mixture, transforms, names, summed=request.window.n_step > 1)
        self._member = partial(
            MemberSource,
            names=names,
            request=request,
            transforms=transforms,
            centred=[OfFields(t, of) for t, of in centred.items()],
            arrays=arrays,
        )
        self.members = [self._member(d) for d in drawings]
        self._whole = isinstance(request.window, Episode)
        probes = [m.probe(self._longest) for m in self.members]
        _check_pads(mixture, drawings, {name for p in probes for name in p.values})
        self._merging = join(mixture, request.window, arrays.working, [p.values for p in probes])
        self.names = self._merging.names
        transforms.check(self.names, drawings[0].dataset, summed=request.window.n_step > 1)
        self.summed = frozenset(name for m in self.members for name in m.source.summed)
        vectors = {name for m in self.members for name in {*m.source.names} - m.source.scalars}
        self.scalars = self._merging.of_one - vectors
        self.sample_bytes = max(sum(x.nbytes for x in p.values.values()) for p in probes)
        self.apportioning = self._apportion(batch_size, live=request.live)

    @property
    def _longest(self) -> int:
        """The length of samples that are whole episodes; else 0."""
        return max(m.pool.longest for m in self.members) if self._whole else 0

    def over(self, mixture: Mixture) -> MixtureSource:
        """Return the source over other versions of the members that grow; this one stays as it is.

        Raises
        ------
        EmptyWindow
            No member has a window; nothing is changed.
        """
        made = copy(self)
        made.mixture = mixture
        changed: dict[int, MemberPlan] = {}
        for i, (name, member) in enumerate(mixture.parts.items()):
            same = member.dataset is self.mixture.parts[name].dataset and i not in self.learners
            if self.members[i].follows and not same:
                changed[i] = self._plan(name, member)
        learners = self.learners
        for plan in (plan for i, plan in changed.items() if i not in learners):
            plan.begin()
        _check_windows(mixture, [changed[i].pool if i in changed else m.pool for i, m in self._numbered])
        for i in changed.keys() & learners.keys():  # each goes on from what it learned, and cannot go back
            changed[i].begin(learners[i])
        made.members = list(self.members)
        for i, plan in changed.items():
            made.members[i] = self._member(plan)
        return made

    @property
    def _factors(self) -> tuple[float, ...]:
        """The factors of the members' weights [members]: zero without windows."""
        totals = [m.pool.prefix.total for m in self.members]
        by_size = self.mixture.weights == "size"
        return tuple(float(total if by_size else total > 0) for total in totals)

    def _apportion(self, batch_size: int, *, live: bool) -> SourceShares:
        weights, names = self.mixture.weights, self.mixture.names
        order = partial(order_of, self._seed, "")
        shares = partial(_shares, weights, names)
        if live:
            rounds = LiveRounds(shares, names, batch_size, None if self.mixture.exact else order)
            rounds.use(0, 0, self._factors)
            return rounds
        if callable(weights):
            return DeficitRounds(shares, len(names), batch_size, None if self.mixture.exact else order)
        totals: Sequence[float] = [m.pool.prefix.total for m in self.members]
        given = totals if isinstance(weights, str) else [weights[name] for name in names]
        return ConstantShares(given) if self.mixture.exact else RandomShares(given, order)

    @property
    def most(self) -> int | None:
        """The smallest limit of a member, see `BatchSource`."""
        return min((m.source.most for m in self.members if m.source.most is not None), default=None)

    @property
    def warnings(self) -> list[str]:
        """Warnings of the members, see `BatchSource`."""
        return [f"Mixture, {m.name}: {text}" for m in self.members for text in m.source.warnings]

    @property
    def decodes(self) -> bool:
        """True if a member decodes frames, see `BatchSource`."""
        return any(m.source.decodes for m in self.members)

    def locate(self, run: SampleRun, ranks: Ranks) -> MixtureLocation:
        """Find the rows of this rank's samples, see `BatchSource`."""
        if isinstance(self.apportioning, LiveRounds):
            self.apportioning.use(run.order.epoch, run.first // run.size, self._factors)
        in_turn, buckets = self.apportioning.in_turn(ranks.world), self.members[0].pool.bucket is not None
        if in_turn and not buckets:
            turns = everyone = self.apportioning.turns(run, ranks.part(run.everyone))
        else:
            everyone = self.apportioning.turns(run, run.everyone)
            if in_turn:
                turns = everyone.of(np.arange(ranks.rank, len(everyone.member), ranks.world))
            else:
                turns = everyone.of(dealt(everyone, len(self.members), run, ranks))
        longest = self._longest
        if buckets:
            longest = max(m.longest(run.order, everyone.place[everyone.member == i]) for i, m in self._numbered)
        parts = []
        for i, member in self._numbered:
            slots = np.flatnonzero(turns.member == i)
            for order, positions, part in member.stretches(run.order, turns.place.take(slots)):
                parts.append((i, slots[part], member.locate(order, positions, longest)))
        absent = tuple(m.name for m in self.members if not m.pool.prefix.total)
        return MixtureLocation(len(turns.member), parts, turns.chance, absent)

    @property
    def _numbered(self) -> list[tuple[int, MemberSource]]:
        return list(enumerate(self.members))

    @property
    def remote(self) -> Sequence[RemoteReads]:
        """The reads of members that are remote, see `BatchSource`."""
        return [reads for m in self.members for reads in m.source.remote]

    def fill(self) -> None:
        """Have what is missing of members arrive in the background, see `BatchSource`."""
        for member in self.members:
            member.source.fill()

    def announce(self, located: MixtureLocation) -> int:
        """Announce the blocks that are read of all members, see `BatchSource`."""
        return sum(self.members[i].source.announce(samples) for i, _, samples in located.parts)

    def planned_reads(self, located: MixtureLocation) -> list[PlannedRead]:
        """Return the reads of all members' files, see `BatchSource`."""
        return [c for i, _, samples in located.parts for c in self.members[i].source.planned_reads(samples)]

    def final(self, floats: str | None) -> DirectColumns | None:
        """Return the columns, if every member writes all of them as they are in a batch, see `BatchSource`."""
        if not self._merging.plain or not all(m.is_final(floats) for m in self.members):
            return None
        return DirectColumns.of(self.names, [m.source.compiled for m in self.members])

    def gather(self, located: MixtureLocation, first: int = 0, count: int | None = None) -> Gathered:
        """Read and merge all samples, see `BatchSource`."""
        parts = [MemberPart(i, slots, self.members[i].gather(samples)) for i, slots, samples in located.parts]
        length = located.parts[0][2].length
        steps = (length,) if length else ()
        merged = self._merging.merge(located.count, steps, parts)
        if PROBABILITY in merged.values:
            chance = located.chance()
            merged.values[PROBABILITY] *= chance[:, None] if steps else chance
        return merged

    # -- priorities

    @property
    def learners(self) -> dict[int, StatefulDraw]:
        """The draws that learn from training, by the number of their member."""
        draws = {i: m.source.locator.draw for i, m in self._numbered}
        return {i: draw for i, draw in draws.items() if isinstance(draw, StatefulDraw)}

    def observe(self, report: Report, beta: float | None = None) -> None:
        """Take what training reports of a batch: each member with priorities its part, see `StatefulDraw`."""
        parts = [(i, draw, report.of_member(i)) for i, draw in self.learners.items()]
        for i, draw, part in parts if len(parts) > 1 else ():  # so that an error changes none of them
            with _naming(self.members[i].name):
                draw.check(part)
        for i, draw, part in parts:
            with _naming(self.members[i].name):
                draw.observe(part, beta)

    def reserve(self, prefetch: int | None, usual: int) -> int:
        """Return 0: batches are drawn when they are asked for, see `StatefulDraw`."""
        if prefetch:
            raise InvalidArgument(
                f"prefetch={prefetch} with Prioritized in a mixture: batches would be drawn before updates that count.",
                hint="prefetch=0",
            )
        return 0

    def forget(self) -> None:
        """Do nothing: no batches are drawn ahead."""

    # -- state

    def consumed(self, position: Position) -> dict[str, int]:
        """Return the samples of every member before ``position``, all ranks together."""
        return dict(zip(self.mixture.names, self.apportioning.counts(*position), strict=True))

    def state(self, position: Position) -> dict[str, Any]:
        """Return the part of a loader's state that the mixture adds."""
        consumed = self.consumed(position)
        names = self.mixture.names
        draws = {names[i]: draw.state(position.epoch, consumed[names[i]]) for i, draw in self.learners.items()}
        held = {"draws": draws} if draws else {}
        return {"consumed": consumed, **self.apportioning.state(*position), **held}

    def load(self, state: Mapping[str, Any], position: Position) -> None:
        """Restore a `state`.

        Raises
        ------
        WrongState
            A part is missing, or the counts do not add up.
        """
        consumed = state.get("consumed")
        if not isinstance(consumed, Mapping) or set(consumed) != set(self.mixture.names):
            raise WrongState("this state does not say how much of each member was consumed.")
        counts = [int(consumed[name]) for name in self.mixture.names]
        if sum(counts) != position.sample:
            raise WrongState(
                f"this state counts {sum(counts):,} samples of the members, and {position.sample:,} in all."
            )
        self.apportioning.load(*position, counts, state)
        for i, draw in self.learners.items():
            member, draws = self.members[i], state.get("draws", {})
            with _naming(member.name):
                draw.load(draws.get(member.name, {}), order_of(self._seed, member.name, position.epoch))


def _check_names(request: Request, drawings: Sequence[MemberPlan]) -> None:
    """Check, where fields may be missing, that every name is a field of some member."""
    offsets = request.window.offsets if isinstance(request.window, Offsets) else ()
    named = [x for x in items(request.fields) if x is not ... and x != ALL and not isinstance(x, Extra)]
    for name in listed("fields", [*named, *offsets]):
        if not any(d.fields.below(name) for d in drawings):
            drawings[0].fields.expand(name)  # raises, naming the fields


def _check_pads(mixture: Mixture, drawings: Sequence[MemberPlan], names: Collection[str]) -> None:
    for pad in mixture.pad:
        below = sorted(n for n in names if n.startswith(f"{pad}/"))
        if below:
            raise InvalidArgument(f'Mixture: pad["{pad}"]: that is {", ".join(below)}.', hint=f'pad["{below[0]}"]')
        if pad not in names and not any(d.fields.has(pad) for d in drawings):
            near = did_you_mean(pad, names)
            raise UnknownField(f'Mixture, pad: no field "{pad}" in {", ".join(mixture.names)}.{near}')


def _check_windows(mixture: Mixture, pools: Sequence[WindowIndex]) -> None:
    """Refuse members of which none has a window."""
    if not any(pool.prefix.total for pool in pools):
        raise EmptyWindow(f"There is nothing to draw from: no member of {mixture.id} has a window yet.")


def _shares(weights: Any, names: Sequence[str], step: int) -> list[float]:
    """Return the shares in a batch, before it is asked which members have windows; by size they are equal."""
    if isinstance(weights, str):
        return [1.0] * len(names)
    return normalised(weights(step) if callable(weights) else weights, names, f" at step {step:,}")
