"""What a viewer knows of the decisions on a dataset: those of the journal in the home, by episode."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SAID = ("do", "first", "stop", "text", "labels", "comment", "reviews")  # what a decision says, without who and when
NOTHING: Mapping[str, object] = {
    "do": "",
    "first": None,
    "stop": None,
    "text": None,
    "labels": {},
    "comment": "",
    "reviews": "",
}

_MOST_CHANGES = 1000  # that can be taken back

Json = dict[str, Any]


class Kept:
    """What the journal of a dataset has, by episode and key: read on where others have added to it.

    Parameters
    ----------
    journal : DecisionJournal
    """

    def __init__(self, journal: Any) -> None:
        self.journal = journal
        self.revision = 0
        self._lock = threading.RLock()
        self._by_id: dict[str, dict[str, Any]] = {}
        self._ids: dict[str, str] = {}
        self._changes: list[tuple[str, str, Sequence[Json]]] = []  # of this viewer: who, which episode, what was before

    def __enter__(self) -> Kept:
        """Hold it for one request at a time, with all that the file has."""
        self._lock.acquire()
        try:
            self._read()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def _read(self) -> None:
        part = self.journal.read(self.revision)
        self.revision = part.revision
        for entry in part.entries:
            if entry.decision is not None:
                key, id = entry.decision.key, entry.decision.id
                self._ids[key] = id
                self._by_id.setdefault(id, {})[key] = entry.decision
            for key in entry.undone:
                self._by_id.get(self._ids.pop(key, ""), {}).pop(key, None)

    def of(self, id: str, by: str | None = None) -> list[Any]:
        """Return the decisions on an episode, in order, of one person or of all."""
        return [d for d in self._by_id.get(id, {}).values() if by is None or d.by == by]

    def decided(self, by: str | None = None) -> set[str]:
        """Return the ids of the episodes that a person has decided on, or anybody."""
        return {id for id, of in self._by_id.items() if any(by is None or d.by == by for d in of.values())}

    @property
    def everything(self) -> list[Any]:
        """All decisions, episode by episode."""
        return [d for of in self._by_id.values() for d in of.values()]

    @property
    def people(self) -> list[Json]:
        """Who has decided, on how many episodes."""
        return people(self.everything)

    def decide(self, wanted: Sequence[tuple[str, Sequence[Json]]], by: str, *, remember: bool = True) -> None:
        """Make the decisions of a person on episodes those that are given; what stays the same keeps its time."""
        added, undone = list[Json](), list[str]()
        for id, decisions in wanted:
            before = self.of(id, by)
            left = {d.key: said(d) for d in before}
            for one in decisions:
                same = next((key for key, was in left.items() if was == one), None)
                if same is None:
                    added.append(
                        {name: value for name, value in one.items() if value != NOTHING[name]} | {"id": id, "by": by}
                    )
                else:
                    del left[same]
            undone += left
            if remember and (left or len(decisions) > len(before) - len(left)):
                self._changes.append((by, id, [said(d) for d in before]))
        del self._changes[:-_MOST_CHANGES]
        self._write(added, undone, by)

    def _write(self, added: Sequence[Json], undone: Sequence[str], by: str) -> None:
        self.journal.add(added, instead=undone, by=by)
        self._read()

    def undo(self, by: str) -> str | None:
        """Take back the last change that a person has made in this viewer; return the id of the episode."""
        for k in reversed(range(len(self._changes))):
            if self._changes[k][0] == by:
                _, id, before = self._changes.pop(k)
                self.decide([(id, before)], by, remember=False)
                return id
        return None


def said(decision: Any) -> Json:
    """Return what a decision says, without who and when."""
    return {name: dict(value) if isinstance(value := getattr(decision, name), Mapping) else value for name in SAID}


def people(decisions: Iterable[Any]) -> list[Json]:
    """Return who has made some decisions, on how many episodes."""
    found: dict[str, set[str]] = {}
    for d in decisions:
        found.setdefault(d.by, set()).add(d.id)
    return [{"by": by, "episodes": len(ids)} for by, ids in sorted(found.items())]
