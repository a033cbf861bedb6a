"""Tables for notebooks. They set no colour: a notebook may be light or dark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], *, drawn: Collection[str] = ()) -> str:
    """Return a table with a title; all texts are escaped. Columns ``drawn`` hold characters of one width."""
    styles = ["text-align:left" + (";font-family:monospace;white-space:pre" if h in drawn else "") for h in head]
    top = "".join(_cell("th", "text-align:left", h) for h in head)
    lines = ("".join(_cell("td", style, x) for style, x in zip(styles, row, strict=True)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<div><b>{_escaped(title)}</b><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(kind: str, style: str, value: object) -> str:
    return f'<{kind} style="{style}">{_escaped(str(value))}</{kind}>'


def _escaped(text: str) -> str:
    from html import escape  # with all entities, and most commands draw no table for a notebook

    return escape(text)
