"""Text as it may be printed: what a terminal would obey or hide is written as an escape, secrets in addresses are not.

Names, texts and reasons come from files and servers: ``\\x1b[2J`` would clear the screen, U+202E would turn a name
round, and a line break would begin a line that looks like one of ours.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from rlds_cli import addresses

# Printable by their category, and yet nothing is seen of them.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0\U000e0100-\U000e01ef]")

_LONGEST_WORD, _LONGEST = 1_000, 4_000  # characters of a message; a path may have 4,096
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")


class Lines(str):
    """A text that is visible already; the breaks between its lines are ours."""

    __slots__ = ()


def line(text: str) -> str:
    """One line: line breaks and tabs are escaped, too. `Lines` are returned as they are."""
    if isinstance(text, Lines):
        return text
    if not text.isprintable() or _BLANK.search(text):
        text = "".join(c if _seen(c) else _escape(c) for c in text)
    return addresses.within(text)


def message(text: str) -> str:
    """One line in which no value goes on for pages: what is left out is counted. `Lines` are returned as they are."""
    if isinstance(text, Lines):
        return text
    text = _LONG_WORD.sub(lambda m: _shortened(m[0], _LONGEST_WORD), line(text))
    return _shortened(text, _LONGEST) if len(text) > _LONGEST else text


def lines(parts: Iterable[str]) -> Lines:
    """Lines one below the other, each made visible."""
    return Lines("\n".join(map(line, parts)))


def _shortened(text: str, longest: int) -> str:
    head, tail = text[: longest * 3 // 4], text[-longest // 5 :]  # and there is room to say so
    return f"{head}... [{len(text) - len(head) - len(tail):,} characters] ...{tail}"


def _seen(c: str) -> bool:
    return (c.isprintable() or unicodedata.category(c) == "Zs") and not _BLANK.match(c)


def _escape(c: str) -> str:
    """``\\n``, ``\\x1b``, ``\\u202e``: as Python writes it."""
    return c.encode("unicode_escape").decode()
