"""A dataset card: the README.md beside a pushed dataset, with the YAML metadata that the hub reads.

Names and texts of a dataset may come from strangers. In the text every character that has a meaning in Markdown or HTML
is written as an entity, which renderers never take for markup; in YAML they are double-quoted strings.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from functools import cache
from html import escape
from typing import TYPE_CHECKING

from rlds_cli import homes
from rlds_cli.base import ids, visible
from rlds_cli.base.citing import licence_identifier, link
from rlds_cli.look.report.rendering import environment

if TYPE_CHECKING:
    from jinja2 import Template

    from rlds_cli.look.report.summary import Summary

# The hub's identifiers of licences, by the names under which archives and the registry state them, in lower case.
_OF_ROBOTS = {"lerobot", "openx", "roboset", "robomimic"}  # readers
_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
_MEANT = re.compile(r"[&<>\\`*_\[\]|~$#!{}\"]")  # characters with a meaning inside a line
_BEGINS = re.compile(r"\d+[.)]|[-+=:]")  # and those that begin a list, a heading or a rule
_TAME = re.compile(r"[\w./:@+,= ()-]+", re.ASCII)
MARK = "<!-- rlds push writes this page again, unless this line is removed -->"
_LONGEST = 2000  # characters of a description


def card(s: Summary, *, address: str | None = None, size: int | None = None) -> str:
    """Return the card of a dataset.

    Parameters
    ----------
    s : Summary
        As of `summarise`.
    address : str, optional
        Where the dataset is pushed to; None for a directory, which others will see under an address of their own.
    size : int, optional
        Bytes at the address; those on this disk unless given.
    """
    description = s.about.description or ""
    if len(description) > _LONGEST:
        description = f"{description[:_LONGEST]} …"
    return _template().render(
        s=s,
        name=s.id.removeprefix(f"{ids.LOCAL}/"),
        licence=licence_identifier(s.about.licence),
        robotics=s.reader in _OF_ROBOTS,
        size_category=size_category(s.counts.steps),
        mark=MARK,
        size=s.bytes if size is None else size,
        description=[line for line in description.splitlines() if line.strip()],
        command=download_command(s.id, address),
        local_name=ids.local_name(s.id),
        citation=citation(s.id),
        link=link,
    )


@cache
def _template() -> Template:
    """Return the template, in which every value is escaped as a line of Markdown unless it is markup."""
    from markupsafe import Markup

    def markup(of: Callable[..., str]) -> Callable[..., Markup]:
        return lambda *values: Markup(of(*values))

    made = environment(finalize=lambda value: value if isinstance(value, Markup) else plain(str(value)))
    made.filters |= {name: markup(made.filters[name]) for name in ("tick", "count", "plural", "size", "shape")}
    made.filters |= {
        "code": markup(code),
        "web": markup(_linked),
        "quoted": markup(_quoted),
        "printable": markup(printable),
        "fenced": markup(_fenced),
        "tojson": markup(json.dumps),
        "shown": visible.shown,
        "within": visible.within,
    }
    return made.get_template("card.md")


def size_category(n: int) -> str:
    """Return the hub's category of a number of rows: ``n<1K``, ``1K<n<10K``, ..., ``n>1T``."""
    k = next((k for k in range(len(_SIZES)) if n < 10 ** (k + 3)), None)
    if k is None:
        return f"n>{_SIZES[-1]}"
    return f"{_SIZES[k - 1]}<n<{_SIZES[k]}" if k else f"n<{_SIZES[0]}"


def download_command(s_id: str, address: str | None) -> str:
    """Return the command that downloads a pushed dataset."""
    place = "ADDRESS" if address is None else shlex.quote(printable(visible.shown(address)))
    return f"rlds download {place} --name {shlex.quote(ids.local_name(s_id))}"


def citation(id: str) -> str | None:
    """Return how the authors of the source want it to be cited; None if the registry does not know."""
    entry = homes.entry_of(id)
    return entry.citation if entry else None


# -- markup


def _quoted(value: str) -> str:
    """Return a YAML string; JSON's double-quoted strings are YAML, too."""
    return json.dumps(printable(value), ensure_ascii=False)


def _fenced(citation: str) -> str:
    """Return a block of code, fenced by more backticks than it contains."""
    fence = "`" * (max(map(len, re.findall("`+", citation)), default=0) + 3)
    body = "\n".join(printable(line) for line in citation.splitlines())
    return f"{fence}{'bibtex' if citation.startswith('@') else ''}\n{body}\n{fence}"


def plain(value: str) -> str:
    """Escape one line of text, so that a renderer shows it as it is."""
    line = " ".join(printable(value).split())
    line = _MEANT.sub(lambda match: f"&#{ord(match[0])};", line)
    begins = _BEGINS.match(line)
    if begins:  # its last character makes the list
        at = begins.end() - 1
        line = f"{line[:at]}&#{ord(line[at])};{line[at + 1 :]}"
    return line


def code(value: str) -> str:
    """Return text as code."""
    value = " ".join(printable(value).split())
    return f"`{value}`" if _TAME.fullmatch(value) else f"<code>{plain(value)}</code>"


def _linked(url: str, words: str | None = None) -> str:
    """Return a link for a web address; other addresses are code."""
    url = printable(url)
    if not url.startswith(("https://", "http://")) or re.search(r"[\s<>]", url):
        return code(words or url)
    return f'<a href="{escape(url, quote=True)}">{plain(words or url)}</a>'


def printable(value: str) -> str:
    """Replace characters that are not seen, such as controls and lone surrogates."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in value)
