"""What decisions come to in a version: which values, episodes and steps, and where they clash. Nothing is changed.

Decisions are compared by the ids of episodes. A later decision of an annotator takes the place of an earlier one about
the same: a label, whether and which of the steps stay, sub-tasks of the same steps. These are clashes:

``annotators``  two say different things about the same
``changed``     a label is another one now than in the version that was looked at, and than what was decided
``left``        the episode was dropped meanwhile
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.dataset.decisions.decision import Decision
from rlds_cli.dataset.decisions.earlier import EarlierVersions
from rlds_cli.dataset.fixed import OpenDataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.ted import Scalar, Subtasks

MINE, THEIRS = "mine", "theirs"
CUT = "do"  # what a clash about dropping and keeping is about
_Range = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a clash: a value, and who says so when, as far as it is known.

    ``value`` of a clash about ``do`` is a text: ``drop``, or ``keep 3-40`` with the first and the last step that stay.
    """

    value: Scalar
    by: str = ""
    time: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """Decisions that cannot both hold, or one that would write over what somebody else has done meanwhile.

    Attributes
    ----------
    id : str
        Of the episode.
    about : str
        The label, ``subtasks``, or ``do``: whether and which of its steps stay.
    kind : {"annotators", "changed", "left"}
        See the module.
    sides : tuple of Side
        What annotators say; or what was decided, and what the dataset has now.
    before : optional
        The label in the version that was looked at, if that is on this disk; of a label that was changed.
    """

    id: str
    about: str
    kind: Literal["annotators", "changed", "left"]
    sides: tuple[Side, ...]
    before: Scalar = None

    def __str__(self) -> str:
        said = " against ".join(f"{_text(s.value)} ({self._who(k)})" for k, s in enumerate(self.sides))
        before = f"; it was {_text(self.before)}" if self.kind == "changed" else ""
        return f"{self.id} {self.about}: {said}{before}"

    def _who(self, place: int) -> str:
        """Return who says what a side says, and when."""
        now = {"annotators": "decided", "changed": "there now", "left": "dropped meanwhile"}[self.kind]
        side, what = self.sides[place], now if place else "decided"
        return ", ".join(part for part in (f"{what} by {side.by}" if side.by else what, side.time) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionPlan:
    """What decisions change in a version of a dataset.

    Attributes
    ----------
    id, version
        Of the dataset that they are compared with.
    decisions : int
        How many there are.
    by : mapping of str to int
        How many each annotator has made.
    labels : mapping of str to int
        Of how many episodes each label changes.
    dropped, trimmed, parts : int
        Episodes that are left out; those of which steps are, and the episodes that these become.
    subtasks : int
        Episodes whose sub-tasks change.
    clashes : tuple of Clash
        What must be settled before anything is changed.
    """

    id: str
    version: int
    decisions: int
    by: Mapping[str, int]
    labels: Mapping[str, int]
    dropped: int
    trimmed: int
    parts: int
    subtasks: int
    clashes: tuple[Clash, ...]


@dataclass(kw_only=True)
class Settled:
    """What is to be changed: values by column and number of the episode, episodes that go, ranges of those trimmed."""

    values: dict[str, dict[int, Scalar]] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)
    ranges: dict[int, list[_Range]] = field(default_factory=dict)
    clashes: list[Clash] = field(default_factory=list)

    def set(self, column: str, number: int, value: Scalar) -> None:
        """Give an episode a value."""
        self.values.setdefault(column, {})[number] = value

    def touched(self) -> IntArray:
        """Return the numbers of the episodes that change, ascending."""
        numbers = {*self.dropped, *self.ranges, *(k for of in self.values.values() for k in of)}
        return np.array(sorted(numbers), np.int64)

    def moved(self, numbers: IntArray, there: IntArray) -> Settled:
        """Return the same of episodes that have other numbers: those of `touched`, and of each the one ``there``."""
        at = dict(zip(numbers.tolist(), there.tolist(), strict=True))
        return Settled(
            values={name: {at[k]: v for k, v in of.items()} for name, of in self.values.items()},
            dropped=sorted(at[k] for k in self.dropped),
            ranges={at[k]: of for k, of in sorted(self.ranges.items())},
        )

    def plan(self, ds: OpenDataset, decisions: Sequence[Decision]) -> DecisionPlan:
        """Return this for people."""
        labels = {name: len(of) for name, of in self.values.items() if name != Subtasks.COLUMN}
        return DecisionPlan(
            id=ds.id,
            version=ds.store.version,
            decisions=len(decisions),
            by=dict(Counter(d.by for d in decisions)),
            labels=labels,
            dropped=len(self.dropped),
            trimmed=len(self.ranges),
            parts=sum(map(len, self.ranges.values())),
            subtasks=len(self.values.get(Subtasks.COLUMN, ())),
            clashes=tuple(self.clashes),
        )


def settle(ds: OpenDataset, decisions: Sequence[Decision], take: Collection[str] = ()) -> Settled:
    """Compare decisions with the open version of a dataset.

    Parameters
    ----------
    decisions : sequence of Decision
        In the order in which they were made; each says which version was looked at.
    take : collection of str
        What wins where they clash: ``mine``, what was decided, or ``theirs``, what the dataset has now; and names of
        annotators, the first of whom that says something.

    Raises
    ------
    InvalidArgument
        A decision names an episode that the dataset never had, steps that it does not have, or a version that does not
        exist yet; or an episode that was dropped is to be changed all the same.
    """
    if MINE in take and THEIRS in take:
        raise InvalidArgument("Either mine or theirs is taken, not both.")
    found = Settled()
    by_episode: dict[str, list[Decision]] = {}
    for d in decisions:
        by_episode.setdefault(d.id, []).append(d)
    earlier = EarlierVersions(ds, by_episode)
    earlier.check({d.version for d in decisions})
    numbers, lengths, version = earlier.numbers, ds.store.episodes["length"], ds.store.version
    for id, of in by_episode.items():
        if (number := numbers.get(id)) is None:
            _left(found, ds, earlier, of, take)
            continue
        if len(of) == 1 and of[0].version == version and of[0].stop is None:
            _alone(found, earlier, number, of[0])
            continue
        length = int(lengths[number])
        for d in of:
            if d.stop is not None and d.stop > length:
                raise InvalidArgument(f"stop {d.stop:,} of do {d.do}: episode {id} of {ds.id} has {length:,} steps.")
        one = _Episode(id=id, number=number, length=length, decisions=of, take=take)
        if not one.is_dropped(found):
            one.labels(found, earlier, version)
            one.subtasks(found, earlier, version)
    return found


def _alone(found: Settled, earlier: EarlierVersions, number: int, d: Decision) -> None:
    """Settle the only decision on an episode, made on the open version: it clashes with nothing."""
    if d.do == "drop":
        found.dropped.append(number)
        return
    for name, value in d.labels.items():
        if not is_same(value, earlier.now(name, number)):
            found.set(name, number, value)


def _left(
    found: Settled, ds: OpenDataset, earlier: EarlierVersions, of: Sequence[Decision], take: Collection[str]
) -> None:
    """Compare decisions with the fact that their episode is no longer there."""
    id = of[0].id
    if not all(earlier.had(id, d.version) for d in of):
        raise InvalidArgument(f"{ds.id} has no episode of the id {id}, and no version of it here had one.")
    dropped = earlier.dropped_by(id)
    theirs = Side(value="drop") if dropped is None else _side(dropped, "drop")
    others = [d for d in of if d.do != "drop" and not (dropped is not None and d.by and d.by == dropped.by)]
    if others and MINE in take:
        raise InvalidArgument(
            f"Episode {id} was dropped from {ds.id}, so that nothing of it is changed.",
            hint=f"rlds restore {ds.id}#vN brings an earlier version back, which has it; --take theirs leaves it out",
        )
    if others and THEIRS not in take:
        last = others[-1]
        said = ", ".join(f"{name}={value}" for name, value in last.labels.items())
        mine = _side(last, f"{last.do} {last.first}-{last.stop - 1}" if last.stop is not None else said)
        found.clashes.append(Clash(id=id, about=CUT, kind="left", sides=(mine, theirs)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Episode:
    """The decisions on one episode of the open version."""

    id: str
    number: int
    length: int
    decisions: Sequence[Decision]
    take: Collection[str]

    # -- whether and which of its steps stay

    def is_dropped(self, found: Settled) -> bool:
        """Settle whether the episode is dropped, or steps of it are."""
        said: dict[str, tuple[Decision, list[_Range]]] = {}
        for d in self.decisions:
            if d.do == "drop":
                said[d.by] = d, []
            elif d.do == "keep" and d.first is not None and d.stop is not None:
                before = said.pop(d.by, (d, []))[1]
                apart = [(a, b) for a, b in before if b <= d.first or d.stop <= a]
                said[d.by] = d, sorted([*apart, (d.first, d.stop)])
        chosen = self._chosen(found, CUT, {by: _Said(d, _kept(ranges)) for by, (d, ranges) in said.items()})
        if chosen is None:
            return False
        ranges = said[chosen.decision.by][1]
        if not ranges:
            found.dropped.append(self.number)
        elif ranges != [(0, self.length)]:
            found.ranges[self.number] = ranges
        return not ranges

    # -- labels

    def labels(self, found: Settled, earlier: EarlierVersions, version: int) -> None:
        """Settle the labels; ``version`` is the open one."""
        claims: dict[str, dict[str, _Said]] = {}
        for d in self.decisions:
            for name, value in d.labels.items():
                of = claims.setdefault(name, {})
                of.pop(d.by, None)  # the last one made is the last one here
                of[d.by] = _Said(d, value)
        for name, of in claims.items():
            chosen = self._chosen(found, name, of) if len(of) > 1 else next(iter(of.values()))
            if chosen is not None:
                agreeing = [s.decision for s in of.values() if is_same(s.value, chosen.value)]
                self._set(found, earlier, name, chosen, agreeing, version)

    def _set(
        self,
        found: Settled,
        earlier: EarlierVersions,
        name: str,
        said: _Said,
        agreeing: Sequence[Decision],
        version: int,
    ) -> None:
        """Set a value of the episode, unless somebody else has changed it since the annotators looked at it."""
        now, seen = earlier.now(name, self.number), max(d.version for d in agreeing)
        if is_same(said.value, now):
            return
        if seen == version:
            found.set(name, self.number, said.value)
            return
        before = earlier.value(seen, name, self.id)
        theirs = earlier.set_by(self.id, name, now)
        is_own = theirs is not None and theirs.by != "" and theirs.by in {d.by for d in agreeing}
        is_as_seen = is_same(before.value, now) if before.is_known else now is None
        if is_as_seen or is_own or MINE in self.take:
            found.set(name, self.number, said.value)
        elif THEIRS not in self.take:
            there = Side(value=now) if theirs is None else _side(theirs, now)
            sides = (_side(said.decision, said.value), there)
            found.clashes.append(Clash(id=self.id, about=name, kind="changed", sides=sides, before=before.value))

    # -- sub-tasks

    def subtasks(self, found: Settled, earlier: EarlierVersions, version: int) -> None:
        """Settle what is said of steps; ``version`` is the open one."""
        painted: dict[str, list[Decision]] = {}
        for d in self.decisions:
            if d.do == "subtask":
                before = painted.setdefault(d.by, [])
                before[:] = [*(o for o in before if not _overlap(o, d)), d]
        if not painted:
            return
        every = {_interval(d): d for of in painted.values() for d in of}
        overlapping = len(painted) > 1 and any(
            _overlap(a, b) for a in every.values() for b in every.values() if a.by != b.by
        )
        if overlapping:
            said = {by: _Said(of[-1], str(_painted("", of))) for by, of in painted.items()}
            chosen = self._chosen(found, Subtasks.COLUMN, said)
            if chosen is None:
                return
            every = {_interval(d): d for d in painted[chosen.decision.by]}
        decisions = list(every.values())
        now = earlier.now(Subtasks.COLUMN, self.number)
        value = _painted(now if isinstance(now, str) else "", decisions)
        self._set(found, earlier, Subtasks.COLUMN, _Said(decisions[-1], value), decisions, version)

    def _chosen(self, found: Settled, about: str, said: Mapping[str, _Said]) -> _Said | None:
        """Return what annotators agree on, or the one that is taken of what they say; None, with a clash, for neither.

        What a review of somebody else says takes the place of what it was a review of.
        """
        reviewed = {s.decision.reviews for s in said.values()} - {""}
        left = list(said.values())
        if reviewed:
            left = [s for s in left if s.decision.key not in reviewed] or left
        if not left or all(is_same(s.value, left[0].value) for s in left):
            return left[-1] if left else None
        for name in self.take:
            if name in said and any(s is said[name] for s in left):
                return said[name]
        sides = tuple(_side(s.decision, s.value) for s in left)
        found.clashes.append(Clash(id=self.id, about=about, kind="annotators", sides=sides))
        return None


@dataclass(frozen=True, slots=True)
class _Said:
    """What an annotator says about one thing, by the last of several decisions."""

    decision: Decision
    value: Scalar


def is_same(a: Scalar, b: Scalar) -> bool:
    """Return whether two values of a label are one: 1 is 1.0, and not true."""
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def _text(value: Scalar) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _side(d: Decision, value: Scalar) -> Side:
    return Side(value=value, by=d.by, time=d.time)


def _kept(ranges: Iterable[_Range]) -> str:
    """Return what is said of steps that stay, with the first and the last of each range; ``drop`` if none does."""
    kept = ", ".join(f"{first}-{stop - 1}" for first, stop in ranges)
    return f"keep {kept}" if kept else "drop"


def _interval(d: Decision) -> tuple[int | None, int | None, str | None]:
    return d.first, d.stop, d.text


def _overlap(a: Decision, b: Decision) -> bool:
    """Return whether two decisions are about some of the same steps, and not about one and the same interval."""
    inside = (a.first or 0) < (b.stop or 0) and (b.first or 0) < (a.stop or 0)
    return inside and _interval(a) != _interval(b)


def _painted(now: str, decisions: Iterable[Decision]) -> str | None:
    """Return the sub-tasks of an episode with those of decisions in the place of what was said of their steps."""
    told: list[tuple[int, int, str]] = []
    if now:
        before = Subtasks.of(now, "the episode")
        told = list(zip(before.first.tolist(), before.stop.tolist(), before.texts, strict=True))
    for d in decisions:
        first, stop = d.first or 0, d.stop or 0
        left = [(a, min(b, first), text) for a, b, text in told] + [(max(a, stop), b, text) for a, b, text in told]
        told = [(a, b, text) for a, b, text in left if a < b]
        if d.text is not None:
            told.append((first, stop, d.text))
    return str(Subtasks.of(told, "the episode")) if told else None
