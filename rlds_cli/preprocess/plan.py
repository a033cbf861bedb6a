"""What a task will write: fields, which of them come back as they were, and whether episodes keep their lengths.

It is assumed after a look at a few episodes, and checked on every one; where it turns out otherwise, the work starts
again with a better assumption.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlds_cli.ted import Field, Placement
from rlds_cli.ted.episodes import Flat, field_of


@dataclass(frozen=True)
class Assumptions:
    """What was seen so far that no later episode takes back."""

    touched: frozenset[str] = frozenset()
    kept: bool = True
    apart: frozenset[str] = frozenset()

    def __or__(self, other: Assumptions) -> Assumptions:
        return Assumptions(self.touched | other.touched, self.kept and other.kept, self.apart | other.apart)

    def told(self) -> str:
        """In words, what turned out otherwise."""
        what = [] if self.kept else ["not every episode keeps its length"]
        what += [f"{', '.join(sorted(self.touched))} changed after all"] if self.touched else []
        what += [f"{n} and next/{n} differ" for n in sorted(self.apart)]
        return "; ".join(what)

    def to_json(self) -> str:
        """As text, for a run that comes later."""
        return json.dumps({"touched": sorted(self.touched), "kept": self.kept, "apart": sorted(self.apart)})

    @classmethod
    def from_json(cls, text: str) -> Assumptions:
        """From what `to_json` gave; nothing where it is no such text."""
        try:
            d = json.loads(text)
            return cls(frozenset(d["touched"]), d["kept"], frozenset(d["apart"]))
        except (ValueError, KeyError, TypeError):
            return cls()


class AssumptionBroken(Exception):
    """An episode is not as planned; start again, knowing it."""

    def __init__(self, known: Assumptions) -> None:
        super().__init__(known)
        self.known = known


@dataclass(frozen=True)
class WritePlan:
    """The fields of the result, and what is assumed of all episodes.

    Parameters
    ----------
    schema : tuple of Field
        All fields of the result.
    untouched : frozenset of str
        Those that the function was given and gives back as they were.
    carried : frozenset of str
        Those of the source that it is not given, under their names in the result.
    kept : bool
        Every episode comes back, with its length.
    linked : bool
        ``untouched`` and ``carried`` are the source's files, and not written.
    apart : frozenset of str
        Fields whose next value is a field of its own.
    renamed : mapping of str to str
        Of ``carried``, those that the source has under another name: that name.
    """

    schema: tuple[Field, ...]
    untouched: frozenset[str]
    carried: frozenset[str]
    kept: bool
    linked: bool
    apart: frozenset[str]
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def same(self) -> frozenset[str]:
        """Fields that are as they are in the source, under the same names."""
        return (self.untouched | self.carried) - frozenset(self.renamed)

    @property
    def shared(self) -> frozenset[str]:
        """Fields that are the source's files."""
        return self.untouched | self.carried if self.linked else frozenset()

    @property
    def written(self) -> tuple[Field, ...]:
        """Fields that are written."""
        return tuple(f for f in self.schema if f.name not in self.shared)

    @property
    def copied(self) -> frozenset[str]:
        """Written fields whose rows are taken from the source as it stores them."""
        return frozenset() if self.linked else self.carried | self.encoded

    @property
    def encoded(self) -> frozenset[str]:
        """Frames that come back as they were, and stay encoded as they are."""
        return self.untouched & {f.name for f in self.schema if f.kind == "frames"}


@dataclass(frozen=True)
class Probe:
    """What one episode showed. ``schema`` is None when nothing of it was kept; ``seconds`` are those of a step."""

    schema: tuple[Field, ...] | None
    untouched: frozenset[str]
    kept: bool
    seconds: float = 0.0
    apart: frozenset[str] = field(default_factory=frozenset)


def infer(
    flat: Flat, placements: dict[str, Placement], source: Sequence[Field], untouched: frozenset[str]
) -> tuple[Field, ...]:
    """The fields of a result, from its first episode; those that are untouched are the source's."""
    before = {f.name: f for f in source}
    return tuple(
        before[name]
        if name in untouched and before[name].placement == placements[name]
        else field_of(name, values, placements[name])
        for name, values in sorted(flat.items())
    )
