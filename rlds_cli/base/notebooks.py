"""Tables for notebooks. They set no colour: a notebook may be light or dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a title; all texts are escaped."""
    cell = '<{0} style="text-align:left">{1}</{0}>'
    top = "".join(cell.format("th", escape(h)) for h in head)
    lines = ("".join(cell.format("td", escape(str(x))) for x in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<div><b>{escape(title)}</b><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
