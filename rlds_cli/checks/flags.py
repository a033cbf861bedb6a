"""Flags that contradict each other or the episode table, or stand inside episodes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds_cli.checks.findings import MOST_PLACES, Finding, Place
from rlds_cli.checks.subject import Seen, Skipped, Subject, first_places, plural
from rlds_cli.ted import FLAGS, TERMINATED, IntArray

NAME = "flags"

_TERMINATED, _TRUNCATED = FLAGS


def find(s: Subject) -> Iterator[Finding]:
    """Inside episodes ``terminated`` is a warning, ``truncated`` an error; ends that are not flagged so are errors."""
    if not all(name in s.ds.schema for name in FLAGS):
        raise Skipped("it has no flags")
    yield from _inside(s)
    yield from _kinds(s)
    if s.thorough:
        seen = s.steps_where(_TRUNCATED, np.asarray, last=False)
        if seen.count:
            text = _inside_of(seen.count, "truncated")
            yield Finding(NAME, "truncated-inside", "error", text, seen.count, _TRUNCATED, seen.places)
        yield from _ends(s)


def _inside_of(count: int, flagged: str) -> str:
    whose = "its" if count == 1 else "their"
    return f"{plural(count, 'step', 'is', 'are')} {flagged} and {whose} episode goes on"


def _inside(s: Subject) -> Iterator[Finding]:
    count = s.ds.manifest.counts.terminated_inside
    seen = s.steps_where(_TERMINATED, np.asarray, last=False) if s.thorough and count else Seen(count, _episodes(s))
    if seen.count:
        text = _inside_of(seen.count, "terminated")
        known = s.known("terminated-inside")
        yield Finding(NAME, "terminated-inside", "warning", text, seen.count, _TERMINATED, seen.places, known)


def _episodes(s: Subject) -> tuple[Place, ...]:
    """Episodes with more terminated steps than an end has, from the table alone."""
    count = s.ds.episodes.get("num_terminated")
    if count is None:
        return ()
    return first_places(np.flatnonzero(count > (s.end == TERMINATED)))


def _kinds(s: Subject) -> Iterator[Finding]:
    c = s.ds.manifest.counts
    if c.cut == c.episodes:
        text = f"no episode ends with a flag: all {c.episodes:,} count as cut"
        yield Finding(NAME, "never-flagged", "warning", text, c.cut)
    elif not c.terminated and not c.terminated_inside:
        known = s.known("never-terminated")
        yield Finding(NAME, "never-terminated", "note", "no step is terminated", 1, _TERMINATED, (), known)


def _ends(s: Subject) -> Iterator[Finding]:
    """The flags of the last steps against the episode table."""
    terminated, truncated = (np.asarray(s.at(name, s.last), bool) for name in FLAGS)
    ended = s.end == TERMINATED
    unflagged = np.flatnonzero(~terminated & ~truncated)
    differs = np.flatnonzero((terminated != ended) & (terminated | truncated))
    both = np.flatnonzero(terminated & truncated)
    if len(unflagged):
        text = f"{plural(len(unflagged), 'episode', 'ends', 'end')} with no flag"
        yield Finding(NAME, "unflagged-end", "error", text, len(unflagged), None, _last_steps(s, unflagged))
    if len(differs):
        text = f"{plural(len(differs), 'episode', 'ends', 'end')} otherwise than the flags say"
        yield Finding(NAME, "end-differs", "error", text, len(differs), None, _last_steps(s, differs))
    if len(both):
        text = f"{plural(len(both), 'last step', 'is', 'are')} both terminated and truncated"
        yield Finding(NAME, "both-flags", "note", text, len(both), None, _last_steps(s, both))


def _last_steps(s: Subject, episodes: IntArray) -> tuple[Place, ...]:
    return tuple(Place(int(e), int(s.length[e]) - 1) for e in episodes[:MOST_PLACES])
