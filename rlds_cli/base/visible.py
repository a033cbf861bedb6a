"""Make text safe to print: escape characters that a terminal would obey or hide, and redact secrets in addresses.

Names, texts and reasons come from files and servers: ``\\x1b[2J`` would clear the screen, U+202E would turn a name
round, and a line break would begin a line that looks like one of ours.

Addresses are shown and stored without user, password, fragment, and the values of their parameters.

::

    https://me:secret@host/a.h5?download=1&token=abc#x   ->   https://host/a.h5?download=1&token=***

The name of a parameter does not tell whether it holds a secret. All values are therefore hidden, except those of
parameters that are known to be harmless. Redacting a redacted text changes nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from urllib.parse import unquote

# Characters that Unicode calls printable and that nobody sees.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0\U000e0100-\U000e01ef]")
_LONGEST_WORD, _LONGEST = 1_000, 4_000  # characters of a message; a path may have 4,096
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")
HIDDEN = "***"
_HEAD = re.compile(r"(?:(?:https?|ftps?|sftp|wss?):[/\\]*|[a-z][a-z0-9+.-]*:(?:\\?/){2}|//)", re.IGNORECASE)
_AUTHORITY = re.compile(r"[^/?#\\]*")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]*\]?|[^:\[\]]*)(?::\d*)?")
_REGION = re.compile(r"signed-s3://[a-z0-9-]+@[^@/]+(?:/|$)")  # our own: what precedes the bucket is no user
_AT = "@|%40"
_INNER_USER = re.compile(rf"((?::|%3A)(?:/|%2F){{2}})(?:(?!%2F)[^/])*(?:{_AT})", re.IGNORECASE)
_SIGNED = re.compile(r"(?:^|&)X-(?:Amz|Goog)-Signature=", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][\w.\[\]-]{0,31}", re.ASCII)
_HARMLESS = {  # and how long a value may be
    **dict.fromkeys(("download", "dl", "raw", "inline", "alt", "export", "format", "recursive", "expand"), 16),
    **dict.fromkeys(("id", "list-type", "lang", "page"), 16),
    **dict.fromkeys(("revision", "rev", "ref", "version", "versionid", "generation"), 64),
    **dict.fromkeys(("path", "prefix", "file", "filename", "persistentid"), 240),
}
_SIMPLE = re.compile(r"(?:(?:doi|hdl):)?[\w./,*~+ -]*")
_SECRET = r"[\w.-]{0,40}(?:token|secret|passw|pwd|jwt|sig|credential|auth|api_?key|session|sid)[\w.-]{0,40}"
_VALUE = r"((?:(?!%26|%3B|%2F)[^/&;])*)"
_INNER_QUERY = re.compile(rf"(%3F|%26|%3B)([\w.-]+)(=|%3D){_VALUE}", re.IGNORECASE)
_INNER_SECRET = re.compile(rf"([;&])({_SECRET})(=){_VALUE}", re.IGNORECASE)
_NAMED_SECRET = re.compile(rf"(?<![\w.-])({_SECRET}=)[^\s&;,]+", re.IGNORECASE)
_END = ")]}'\".,;:!?\u2026"  # what follows an address in a sentence
_IN_TEXT = re.compile(  # of bounded repetitions: a stranger's text is not searched again from each of its letters
    r"""(?P<address>(?:\b[a-z][a-z0-9+.-]{0,30}:(?:\\?/){2}|(?:(?<![\w:/])/|\b(?:https?|ftps?):)/(?=[^\s/]{1,400}@))(?:[^\s/?#]*@)?[^\s"<>`]*)
      | (?P<query>\?[^\s"<>]+ | %3F[^\s"<>?]+)
      | (?P<user>(?<![\w@/.%+~-])[\w.%+~-]{1,200}:[^\s@/"<>]{1,200}@(?=[\w\[]))
      | (?P<header>(?<=bearer\ )\S{8,})
    """,
    re.IGNORECASE | re.VERBOSE,
)
_BARE = 16  # characters of a query without a name that may be a secret


# -- characters


class Lines(str):
    """Text that is safe to print already, with line breaks of our own."""

    __slots__ = ()


def line(text: str) -> str:
    """Make one line of a text, with line breaks and tabs escaped. `Lines` are returned as they are."""
    if isinstance(text, Lines):
        return text
    if not text.isprintable() or _BLANK.search(text):
        text = "".join(c if _seen(c) else _escape(c) for c in text)
    return within(text)


def message(text: str) -> str:
    """Make one line of a text and shorten long values, with a count of the characters left out.

    `Lines` are returned as they are.
    """
    if isinstance(text, Lines):
        return text
    text = _LONG_WORD.sub(lambda m: _shortened(m[0], _LONGEST_WORD), line(text))
    return _shortened(text, _LONGEST) if len(text) > _LONGEST else text


def lines(parts: Iterable[str]) -> Lines:
    """Join lines, each made safe to print."""
    return Lines("\n".join(map(line, parts)))


def _shortened(text: str, longest: int) -> str:
    head, tail = text[: longest * 3 // 4], text[-longest // 5 :]  # and there is room to say so
    return f"{head}... [{len(text) - len(head) - len(tail):,} characters] ...{tail}"


def _seen(c: str) -> bool:
    return (c.isprintable() or unicodedata.category(c) == "Zs") and not _BLANK.match(c)


def _escape(c: str) -> str:
    """``\\n``, ``\\x1b``, ``\\u202e``: as Python writes it."""
    return c.encode("unicode_escape").decode()


# -- addresses


def shown(url: str) -> str:
    """Redact an address; a path is returned as it is.

    The query of an address that X-Amz-Signature or X-Goog-Signature signs is left out: it changes each time.
    """
    head = _HEAD.match(url)
    if head is None:
        return url
    if _REGION.match(url):
        return url.partition("?")[0]
    authority, rest = _split(url[head.end() :])
    before, _, query = rest.partition("#")[0].partition("?")
    return head[0] + authority + _path(before) + _query(query)


def within(text: str) -> str:
    """Redact all addresses in a text, also those without a host, such as ``/path?token=***``."""
    if "/" not in text and "?" not in text and "@" not in text and "earer " not in text:
        return text
    return _IN_TEXT.sub(_replaced, text)


def quoted(text: str) -> str:
    """Redact a server's message, which may repeat a secret that it was sent: also the text behind ``token=``.

    `within` leaves such text alone, since our own messages hold no secrets: ``--arg sigma=0.1`` is none.
    """
    return _NAMED_SECRET.sub(rf"\1{HIDDEN}", within(text))


def _split(text: str) -> tuple[str, str]:
    """Split an address into host and port, without the user, and the rest."""
    authority = _AUTHORITY.match(text)
    assert authority is not None
    host, rest = re.split(_AT, authority[0])[-1], text[authority.end() :]
    if "@" in rest and not _HOST.fullmatch(host):  # a password that holds a slash
        return _split(rest.rpartition("@")[2])
    if _HOST.fullmatch(host) or ":" not in host:
        return host, rest
    return f"{host.partition(':')[0]}:{HIDDEN}", rest


def _path(text: str) -> str:
    """Redact a path: users of addresses in it, and the values of a query with escaped signs."""
    text = _INNER_USER.sub(r"\1", text)
    text = _INNER_QUERY.sub(lambda m: m[0] if _harmless(m[2], m[4]) else f"{m[1]}{m[2]}{m[3]}{HIDDEN}", text)
    return _INNER_SECRET.sub(rf"\1\2\3{HIDDEN}", text)


def _query(query: str) -> str:
    if not query or _SIGNED.search(query):
        return ""
    return "?" + "".join(p if p in "&;" else _parameter(p) for p in re.split("([&;])", query))


def _parameter(text: str) -> str:
    name, _, value = text.partition("=")
    if _harmless(name, value):
        return text
    return f"{name}={HIDDEN}" if value.strip("=") and _NAME.fullmatch(name) else HIDDEN


def _harmless(name: str, value: str) -> bool:
    value = unquote(value)
    return len(value) <= _HARMLESS.get(name.lower(), -1) and _SIMPLE.fullmatch(value) is not None


def _replaced(match: re.Match[str]) -> str:
    if match["user"]:
        return ""
    if match["header"]:
        return HIDDEN
    address = match[0].rstrip(_END)
    after = match[0][len(address) :]
    if match["address"]:
        return shown(address) + after
    if not address.startswith("?"):
        return _path(address) + after
    query = address[1:].partition("#")[0]
    return (_query(query) if "=" in query or len(query) >= _BARE else address) + after
