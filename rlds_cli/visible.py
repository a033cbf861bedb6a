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


def lines(parts: Iterable[str]) -> Lines:
    """Lines one below the other, each made visible."""
    return Lines("\n".join(map(line, parts)))


def _seen(c: str) -> bool:
    return (c.isprintable() or unicodedata.category(c) == "Zs") and not _BLANK.match(c)


def _escape(c: str) -> str:
    """``\\n``, ``\\x1b``, ``\\u202e``: as Python writes it."""
    return c.encode("unicode_escape").decode()
