"""Names of files that others wrote, checked before they are joined to a directory."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from rlds_cli.errors import UnsafeArchive

_LONGEST = 240  # bytes of a component, so that .part.json fits behind it
_LONG, _DEEP = 1024, 64  # characters and components of a whole name
_BAD = re.compile(r"[\\\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]) *(?:\..*)?", re.IGNORECASE | re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
SPANS = ".part.spans"  # ends the name of the file that says which bytes of a part have arrived


def safe(name: str) -> str:
    """Return a relative POSIX path unchanged if it stays below its directory.

    Raises
    ------
    UnsafeArchive
        For ``..``, absolute paths, drive letters, devices of Windows, backslashes, characters that control or that
        change the direction of text, empty components, and names that are too long or too deep.
    """
    if why := too_long(name):
        raise UnsafeArchive(f"The source lists a file whose name {why}. Nothing was written.")
    parts = name.split("/")
    reason = (
        "is empty"
        if not name
        else "holds a backslash, a NUL or a control character"
        if _BAD.search(name)
        else "is an absolute path"
        if name.startswith(("/", "~")) or re.match(r"[A-Za-z]:", name)
        else "leaves its directory"
        if ".." in parts
        else "has an empty part"
        if "" in parts or "." in parts
        else f"has a part of more than {_LONGEST} bytes"
        if any(len(p.encode(errors="surrogatepass")) > _LONGEST for p in parts)
        else "is a device on Windows"
        if any(_DEVICE.fullmatch(p) for p in parts)
        else "is not text"
        if _SURROGATE.search(name)
        else None
    )
    if reason:
        raise UnsafeArchive(f"The source lists a file named {name[:200]!r}, which {reason}. Nothing was written.")
    return name


def too_long(name: str) -> str | None:
    """Return why a name is too long or too deep, else None. Call it before splitting a name of unknown length."""
    if len(name) > _LONG:
        return f"has {len(name):,} characters, more than {_LONG:,}"
    if (deep := name.count("/")) >= _DEEP:
        return f"is {deep:,} directories deep, more than {_DEEP}"
    return None


def is_unfinished(name: str) -> bool:
    """Return whether a file of this name belongs to an unfinished download: a part, or a file beside it."""
    return re.search(r"\.part(\.(json|lock|spans))?$", name) is not None


def of_url(url: str) -> str:
    """Return the name of the file that a URL names; empty for a directory."""
    if url.startswith("hf://"):
        url = re.sub(r"@[^/@]+$", "", url)  # a revision
    return unquote(urlsplit(url).path).rpartition("/")[2]
