"""Names of files that others wrote, and URLs of files: checked, joined, and selected by patterns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from unicodedata import normalize
from urllib.parse import SplitResult, quote, unquote, urlsplit

from rlds_cli.base.text import natural
from rlds_cli.base.visible import shown
from rlds_cli.errors import DownloadFailed, UnsafeArchive

_LONGEST = 240  # bytes of a component, so that .part.json fits behind it
_LONG, _DEEP = 1024, 64  # characters and components of a whole name
_BAD = re.compile(r"[\\\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]) *(?:\..*)?", re.IGNORECASE | re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_STARS = re.compile(r"(?P<directories>(?:^|(?<=/))\*\*/)|(?P<rest>\*\*+)|\*")
OF_ZARR = (".zgroup", ".zarray", ".zattrs", ".zmetadata")  # documents of format 2
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


def all_safe(names: Iterable[str]) -> None:
    """Check that names are safe, and that no file would overwrite another file or its record.

    Names that differ only in case, or in the encoding of accents, are the same on some file systems. They are refused
    on every system, so that an archive is the same on all of them.

    Raises
    ------
    UnsafeArchive
        Naming the file, or both.
    """
    seen: dict[str, str] = {}
    for name in map(safe, names):
        key = folded(name)
        if is_unfinished(key):
            raise UnsafeArchive(f'The source lists "{name}", a name that unfinished downloads use.')
        if key in seen:
            raise _same(seen[key], name)
        seen[key] = name
    for key, name in seen.items():
        parts = key.split("/")
        taken = [key + s for s in (".json", ".part", ".part.json", ".part.lock", SPANS)]
        clash = next((t for t in [*taken, *("/".join(parts[:k]) for k in range(1, len(parts)))] if t in seen), None)
        if clash:
            raise UnsafeArchive(f'The source lists both "{name}" and "{seen[clash]}"; one would overwrite the other.')


def folded(name: str) -> str:
    """Return the form of a name that file systems without case and accent encodings compare."""
    return name.casefold() if name.isascii() else normalize("NFC", normalize("NFD", name).casefold())


def _same(name: str, other: str) -> UnsafeArchive:
    if name == other:
        return UnsafeArchive(f'The source lists "{name}" twice. Nothing was written.')
    return UnsafeArchive(
        f'The source lists both "{name}" and "{other}", which are one name on some file systems. Nothing was written.'
    )


def too_long(name: str) -> str | None:
    """Return why a name is too long or too deep, else None. Call it before splitting a name of unknown length."""
    if len(name) > _LONG:
        return f"has {len(name):,} characters, more than {_LONG:,}"
    if (deep := name.count("/")) >= _DEEP:
        return f"is {deep:,} directories deep, more than {_DEEP}"
    return None


def below(path: Path, directory: Path) -> str:
    """Return the name of a path below a directory, with ``/``: that of `Path.relative_to`, in a tenth of its time.

    Raises
    ------
    ValueError
        It is not below the directory.
    """
    text, start = os.fspath(path), f"{directory}/"
    return text[len(start) :] if text.startswith(start) else path.relative_to(directory).as_posix()


def is_unfinished(name: str) -> bool:
    """Return whether a file of this name belongs to an unfinished download: a part, or a file beside it."""
    return ".part" in name and re.search(r"\.part(\.(json|lock|spans))?$", name) is not None


def of_url(url: str) -> str:
    """Return the name of the file that a URL names; empty for a directory."""
    if url.startswith("hf://"):
        url = re.sub(r"@[^/@]+$", "", url)  # a revision
    return unquote(urlsplit(url).path).rpartition("/")[2]


def basename(url: str) -> str:
    """Return the file name at the end of a URL's path.

    Raises
    ------
    DownloadFailed
        The URL names a directory.
    UnsafeArchive
        The name is not valid, such as ``..``.
    """
    name = unquote(split(url).path).rpartition("/")[2]
    if not name:
        raise DownloadFailed(f"{shown(url)} names a directory, not a file.", hint="only hf:// and file: can be listed")
    return safe(name)


def split(url: str) -> SplitResult:
    """Split a URL; raises DownloadFailed if it is not valid."""
    try:
        return urlsplit(url)
    except ValueError as exc:
        raise DownloadFailed(f"{shown(url)} cannot be read as an address: {exc}.") from exc


def join(base: str, path: str, *, safe: str = "/") -> str:
    """Append a path to a URL, before its query. ``path`` is quoted, except for the characters in ``safe``."""
    place, mark, query = base.partition("#")[0].partition("?")
    return f"{place.rstrip('/')}/{quote(path, safe=safe)}{mark}{query}"


def tails(key: str) -> list[str]:
    """``a/b/c`` -> ``a/b/c``, ``b/c``, ``c``: the paths that a copy may have below another root."""
    parts = [p for p in key.split("/") if p]
    return ["/".join(parts[k:]) for k in range(len(parts))]


def selected(names: Iterable[str], wanted: str) -> dict[str, str]:
    """Select names by a path, a pattern or a prefix, in natural order.

    ``wanted`` is a file; else a directory, for all files below it; else a pattern; else, if it has no file suffix, a
    prefix. In a pattern, ``*`` stands for anything without a slash, ``**/`` for any directories, and ``**`` elsewhere
    for anything that does not continue a number, as after a prefix: ``door-v1**`` does not match ``door-v10``. An empty
    ``wanted`` is everything. Hidden files are left out, but for the documents of Zarr stores.

    Returns
    -------
    dict of str to str
        Name -> name relative to the directory ``wanted``, or to the one that holds the file.
    """
    names = sorted((n for n in names if not any(map(_is_hidden, n.split("/")))), key=natural)
    below = wanted + "/" if wanted else ""
    if wanted in names:
        return {wanted: wanted.rpartition("/")[2]}
    if inside := [n for n in names if n.startswith(below)]:
        return {n: n[len(below) :] for n in inside}
    pattern = _pattern(wanted)
    base = len(fixed_directory(wanted)) + 1 if fixed_directory(wanted) else 0
    return {n: n[base:] for n in names if pattern and pattern.fullmatch(n)}


def _is_hidden(part: str) -> bool:
    return part.startswith(".") and not part.startswith("..") and part not in (".", *OF_ZARR)


def fixed_directory(wanted: str) -> str:
    """Return the directory above the last part of ``wanted``, or above the first part with a ``*``."""
    parts = wanted.split("/")
    fixed = next((k for k, p in enumerate(parts) if "*" in p), len(parts) - 1)
    return "/".join(parts[:fixed])


def has_suffix(name: str) -> bool:
    """Return whether a name ends in a file suffix: ``.hdf5``, but not ``-v1.2``."""
    return re.search(r"\.[A-Za-z][A-Za-z0-9]{0,7}$", name) is not None


def _pattern(wanted: str) -> re.Pattern[str] | None:
    if "*" not in wanted:
        if has_suffix(wanted):
            return None
        wanted += "**"
    parts, at = [], 0
    for star in _STARS.finditer(wanted):
        parts.append(re.escape(wanted[at : star.start()]))
        rest = r"(?!\d).*" if wanted[star.start() - 1 : star.start()].isdigit() else ".*"
        parts.append("(?:.*/)?" if star["directories"] else rest if star["rest"] else "[^/]*")
        at = star.end()
    return re.compile("".join(parts) + re.escape(wanted[at:]), re.DOTALL)
