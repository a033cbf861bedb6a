"""Remarks of readers for the user."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

MOST_TEXTS = 32  # of notes with one code


@dataclass(frozen=True, slots=True)
class Note:
    """A remark of a reader for the user; notes with equal codes and texts are added up."""

    FAILED: ClassVar[str] = "failed-episodes"  # the code of an episode that is left out, since a function failed on it
    code: str
    text: str
    count: int = 1
    where: str = ""

    @classmethod
    def merged(cls, notes: Iterable[Note]) -> tuple[Note, ...]:
        """Add up notes with equal codes and texts, in order of first appearance; the first ``where`` is the example.

        Notes beyond ``MOST_TEXTS`` texts of one code are added up with the last of these.
        """
        merged: dict[tuple[str, str], Note] = {}
        last: dict[str, list[str]] = {}
        for note in notes:
            texts = last.setdefault(note.code, [])
            if note.text not in texts and len(texts) < MOST_TEXTS:
                texts.append(note.text)
            key = note.code, note.text if note.text in texts else texts[-1]
            seen = merged.get(key)
            merged[key] = replace(seen, count=seen.count + note.count) if seen else note
        return tuple(merged.values())
