"""Where a loader reads a mixture from: every member by itself, then merged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np

from rlds_cli.errors import InvalidArgument, UnknownField, WrongState
from rlds_cli.loader.access.residency import Coming
from rlds_cli.loader.building import Request
from rlds_cli.loader.content.fields import Extra, listed
from rlds_cli.loader.mixtures import merging
from rlds_cli.loader.mixtures.apportioning import Apportioning, Changing, Constant, Random, normalised
from rlds_cli.loader.mixtures.members import Drawing, Reading, order_of
from rlds_cli.loader.mixtures.merging import SOURCE, Part
from rlds_cli.loader.mixtures.mixture import Mixture
from rlds_cli.loader.output.arrays import Arrays
from rlds_cli.loader.ranks import Ranks
from rlds_cli.loader.reading import Gathered, Run, Transforms
from rlds_cli.loader.sampling.pool import PROBABILITY, FloatArray
from rlds_cli.loader.sampling.prioritized import Prioritized
from rlds_cli.loader.sampling.weighted import Weighted
from rlds_cli.loader.schedule import Spot
from rlds_cli.loader.windowing.offsets import Offsets
from rlds_cli.loader.windowing.samples import Samples
from rlds_cli.loader.windowing.windows import Episode
from rlds_cli.ted import IntArray


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
        self._merging = merging.join(mixture, request.window, arrays.working, [p.values for p in probes])
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
