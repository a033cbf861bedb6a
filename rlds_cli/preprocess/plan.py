"""Plan the output of a task: its fields, which of them stay untouched, and whether episodes keep their lengths.

A plan follows from a few probed episodes and is checked on every episode. If one contradicts it, the work restarts with
weaker assumptions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlds_cli.ted import Field, Placement
from rlds_cli.ted.episodes import Flat, field_of


@dataclass(frozen=True)
class Assumptions:
    """Observations so far that restrict every later plan: touched fields, lengths kept, separate next values."""

    touched: frozenset[str] = frozenset()
    kept: bool = True
    apart: frozenset[str] = frozenset()

    def __or__(self, other: Assumptions) -> Assumptions:
        return Assumptions(self.touched | other.touched, self.kept and other.kept, self.apart | other.apart)

    def describe(self) -> str:
        """Say in words what the plan did not assume."""
        what = [] if self.kept else ["episode lengths change"]
        what += [f"{', '.join(sorted(self.touched))} changed in a later episode"] if self.touched else []
        what += [f"{n} and next/{n} differ" for n in sorted(self.apart)]
        return "; ".join(what)

    def to_json(self) -> str:
        """Encode as text, for a later run."""
        return json.dumps({"touched": sorted(self.touched), "kept": self.kept, "apart": sorted(self.apart)})

    @classmethod
    def from_json(cls, text: str) -> Assumptions:
        """Decode text from `to_json`; other text gives no assumptions."""
        try:
            d = json.loads(text)
            return cls(frozenset(d["touched"]), d["kept"], frozenset(d["apart"]))
        except (ValueError, KeyError, TypeError):
            return cls()


class AssumptionBroken(Exception):
    """An episode contradicts the plan; restart with these assumptions."""

    def __init__(self, assumptions: Assumptions) -> None:
        super().__init__(assumptions)
        self.assumptions = assumptions


@dataclass(frozen=True)
class WritePlan:
    """The fields of the result, and assumptions about all episodes.

    Parameters
    ----------
    schema : tuple of Field
        All fields of the result.
    untouched : frozenset of str
        Fields that the function returns unchanged.
    carried : frozenset of str
        Fields of the source that the function does not receive, under their names in the result.
    kept : bool
        All episodes are returned with their lengths.
    linked : bool
        ``untouched`` and ``carried`` share the files of the source and are not written.
    apart : frozenset of str
        Fields whose next value is a separate field.
    renamed : mapping of str to str
        Carried fields with a new name, and their names in the source.
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
        """Fields that equal those of the source, under the same names."""
        return (self.untouched | self.carried) - frozenset(self.renamed)

    @property
    def shared(self) -> frozenset[str]:
        """Fields that share the files of the source."""
        return self.untouched | self.carried if self.linked else frozenset()

    @property
    def written(self) -> tuple[Field, ...]:
        """Fields to write."""
        return tuple(f for f in self.schema if f.name not in self.shared)

    @property
    def copied(self) -> frozenset[str]:
        """Fields to write whose stored rows are copied from the source."""
        return frozenset() if self.linked else self.carried | self.encoded

    @property
    def encoded(self) -> frozenset[str]:
        """Untouched frames, which are copied without decoding them."""
        return self.untouched & {f.name for f in self.schema if f.kind == "frames"}


@dataclass(frozen=True)
class Probe:
    """The outcome of probing one episode. ``schema`` is None if it was dropped; ``seconds`` is the time per step."""

    schema: tuple[Field, ...] | None
    untouched: frozenset[str]
    kept: bool
    seconds: float = 0.0
    apart: frozenset[str] = field(default_factory=frozenset)


def infer(
    flat: Flat, placements: dict[str, Placement], source: Sequence[Field], untouched: frozenset[str]
) -> tuple[Field, ...]:
    """Infer the fields of a result from its first episode; untouched fields keep their definition."""
    before = {f.name: f for f in source}
    return tuple(
        before[name]
        if name in untouched and before[name].placement == placements[name]
        else field_of(name, values, placements[name])
        for name, values in sorted(flat.items())
    )
