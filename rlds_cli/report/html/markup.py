"""HTML elements; every string that is not markup already is escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from typing import Any

_VOID = {"img", "input", "meta", "link", "br", "hr"}
# HTML allows no control characters, and UTF-8 no lone surrogates (from file names that are not UTF-8).
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


class Markup(str):
    """A string that is HTML already."""

    __slots__ = ()


Content = str | Markup | Iterable["Content"] | None


def text(value: str) -> Markup:
    """Escape a string for text and attributes; characters that HTML does not allow become U+FFFD."""
    return Markup(escape(_UNPRINTABLE.sub("\ufffd", value), quote=True))


def tag(name: str, /, *content: Content, **attributes: str | int | float | bool | None) -> Markup:
    """Make an element.

    Parameters
    ----------
    name : str
    *content : str, Markup or iterables of them
        Strings are escaped; None is left out.
    **attributes
        ``class_`` is ``class`` and ``data_step`` is ``data-step``; None and False are left out, True has no value.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(key if value is True else f'{key}="{text(str(value))}"')
    start = f"<{' '.join(parts)}>"
    return Markup(start if name in _VOID else f"{start}{join(*content)}</{name}>")


def join(*content: Content) -> Markup:
    """Concatenate content."""
    return Markup("".join(_flat(content)))


def _flat(content: Iterable[Content]) -> Iterable[str]:
    for item in content:
        if item is None:
            continue
        if isinstance(item, Markup):
            yield str(item)
        elif isinstance(item, str):
            yield text(item)
        else:
            yield from _flat(item)


def data(value: Any) -> Markup:
    """Encode JSON for a ``<script>`` element, as ASCII in which nothing can end the element or start a comment."""
    encoded = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(re.sub("[<>&]", lambda found: _IN_SCRIPT[found[0]], encoded))
