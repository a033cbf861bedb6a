"""Findings, for the terminal, ``--json``, the notes of a manifest and the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlds_cli.base.text import plural

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

MOST_PLACES = 8
_MOST_NOTED = 1000  # episodes that a note of a manifest lists: they take up to 10 KB
CODES = (  # of the checks; readers and the registry have codes of their own
    *("no-frame", "missing-frames", "broken-frame", "not-finite", "final-not-finite"),
    *("truncated-inside", "unflagged-end", "end-differs"),
    *("constant", "no-reward", "saturated", "out-of-bounds", "jump", "step-restarts", "step-offset", "id-changes"),
    "step-gap",
    *("length-multiple", "length-outlier", "duplicate", "terminated-inside", "never-flagged", "too-long"),
    *("limit-terminated", "counts-differ", "reward-isolated", "age-gap"),
    *("constant-element", "constant-reward", "constant-info", "spike", "never-terminated", "both-flags"),
    *("next-unknown", "not-decoded", "uneven-rate", "continues", "stale-observation", "zero-rows", "early-reward"),
    "flags-in-runs",
    *("time-jump", "time-jitter", "rate-differs", "stale-topic", "not-followed", "underexposed-camera"),
    *("unusual-return", "unusual-length", "drift", "in-both", "near-in-both"),
    *("dropped-rows", "joined-takes", "idle", "frozen-signal", "dead-joint", "encoder-wrap", "saturated-action"),
    *("inverted-action", "action-lag", "frozen-camera", "black-camera", "overexposed-camera", "blurred-camera"),
    *("lone-task", "swapped-camera", "empty-task", "success-mismatch", "near-duplicate"),
)


@dataclass(frozen=True, slots=True)
class FindingPlace:
    """An episode, and a step in it: 0 to T-1, T for the final observation, None for the episode as a whole."""

    episode: int
    step: int | None = None

    def __str__(self) -> str:
        return f"episode {self.episode:,}" + (f" step {self.step:,}" if self.step is not None else "")


@dataclass(frozen=True, slots=True)
class StepRange:
    """Steps of an episode from ``first`` up to, but without, ``stop``."""

    episode: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """What is usual among the siblings of the episode that stands out most, in the unit of the measure.

    ``spread`` is a robust standard deviation, of the logarithm where the rule compares that. An episode stands out at
    ``below`` or less, or at ``above`` or more, whichever side the rule looks at; ``why`` says where the least
    difference that counts comes from.
    """

    episodes: int
    median: float
    spread: float
    below: float
    above: float
    why: str


@dataclass(frozen=True, slots=True)
class Seen:
    """All episodes in which something was found, ascending, and the first places of it."""

    episodes: tuple[int, ...] = ()
    places: tuple[FindingPlace, ...] = ()


_NOWHERE = Seen()


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact that a user of the dataset should know.

    Attributes
    ----------
    check : str
        The check that found it, as ``CHECKS`` names it.
    code : str
        A name of the problem that stays the same, for scripts.
    severity : {"error", "warning", "note"}
        ``error``: the data contradict themselves; ``warning``: training on them as they are may go wrong; ``note``:
        for information.
    text : str
        A sentence without a full stop, with its numbers.
    count : int
        Number of episodes, steps or values concerned.
    field : str or None
    places : tuple of FindingPlace
        The first of them, at most eight; empty when the whole dataset is concerned, or when rows were not read.
    known : tuple of str
        References to reports of the same problem by users of the source: ``D4RL#199``.
    num_episodes : int
        Number of episodes concerned; 0 where none are named: the dataset is concerned as a whole, a sample of the
        steps was read, or no rows.
    episodes : tuple of int
        Numbers of these episodes, ascending, for ``ds.select(episodes=...)``. Notes of a manifest list the first 1,000.
    measure : str or None
        The measure by which these episodes differ from their siblings, see docs/reference/measures.md.
    siblings : Siblings or None
        What is usual among these.
    ranges : tuple of StepRange
        The steps at which they differ; none where whole episodes do.
    """

    check: str
    code: str
    severity: Severity
    text: str
    count: int = 1
    field: str | None = None
    places: tuple[FindingPlace, ...] = ()
    known: tuple[str, ...] = ()
    num_episodes: int = 0
    episodes: tuple[int, ...] = ()
    measure: str | None = None
    siblings: Siblings | None = None
    ranges: tuple[StepRange, ...] = ()

    @property
    def named(self) -> tuple[int, ...]:
        """Numbers of the episodes that stand out; none where all are concerned alike."""
        return (self.episodes or tuple(dict.fromkeys(p.episode for p in self.places))) if self.places else ()

    @property
    def in_episodes(self) -> str:
        """The number of episodes, and the first of them: ``3 episodes: 2, 5, 8``."""
        named = ", ".join(f"{k:,}" for k in self.episodes[:MOST_PLACES])
        return f"{plural(self.num_episodes, 'episode')}: {named}{', …' if self.num_episodes > MOST_PLACES else ''}"


def finding(
    code: str,
    severity: Severity,
    text: str,
    count: int = 1,
    field: str | None = None,
    seen: Seen = _NOWHERE,
    known: tuple[str, ...] = (),
) -> Finding:
    """Make a finding of the check that is running; its name comes from the table ``CHECKS``."""
    return Finding("", code, severity, text, count, field, seen.places, known, len(seen.episodes), seen.episodes)


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings: errors, warnings, notes; findings of one severity keep their order."""
    return tuple(sorted(findings, key=lambda f: SEVERITIES.index(f.severity)))


def number(findings: Iterable[Finding], severity: Severity) -> int:
    """Count the findings of one severity."""
    return sum(f.severity == severity for f in findings)


# -- findings as notes of a manifest: a note of a check has a severity, a note of a reader has none


def as_note(f: Finding) -> dict[str, Any]:
    """Convert a finding to the form in which a manifest holds it."""
    where = str(f.places[0]) if f.places else ""
    places = [[p.episode, p.step] for p in f.places]
    note = {"code": f.code, "text": f.text, "count": f.count, "where": where, "severity": f.severity}
    more = {"num_episodes": f.num_episodes, "episodes": list(f.episodes[:_MOST_NOTED])} if f.num_episodes else {}
    return note | {"check": f.check, "field": f.field, "places": places, "known": list(f.known)} | more


def of_note(note: Mapping[str, Any]) -> Finding:
    """Convert a note of a manifest to a finding; a note of a reader becomes a finding of the check ``reader``."""
    places = tuple(FindingPlace(episode, step) for episode, step in note.get("places") or ())
    text, where = str(note["text"]), str(note.get("where") or "")
    if "severity" not in note and where and not text.endswith(where):
        text += f", e.g. {where}" if int(note.get("count", 1)) > 1 else f": {where}"
    return Finding(
        check=note.get("check", "reader"),
        code=str(note["code"]),
        severity=note.get("severity", "note"),
        text=text,
        count=int(note.get("count", 1)),
        field=note.get("field"),
        places=places,
        known=tuple(note.get("known") or ()),
        num_episodes=int(note.get("num_episodes", 0)),
        episodes=tuple(note.get("episodes") or ()),
    )
