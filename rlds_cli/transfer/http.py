"""One file from one URL: ranges, validators, short bodies, and pages that are not the file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain

import requests

from rlds_cli import sizes, space
from rlds_cli.transfer import names
from rlds_cli.transfer.client import Again, Client, Refused
from rlds_cli.transfer.part import Origin, Part
from rlds_cli.transfer.remote import RemoteFile

_RANGE = re.compile(r"bytes\s+(\d+)-(\d+)/(\d+|\*)")
_UNSATISFIED = re.compile(r"bytes\s+\*/(\d+)")
_HEAD = 512  # bytes that tell a web page
_WATCH = 64 << 20  # bytes between two looks at the disk


def pull(
    client: Client,
    url: str,
    file: RemoteFile,
    part: Part,
    *,
    told: Callable[[], None],
    waiting: Callable[[str], None],
) -> None:
    """Complete ``part`` from ``url``, going on from what is there where that is safe.

    Parameters
    ----------
    told : callable
        Called after each block that was written.
    waiting : callable
        Told why, before a long wait.

    Raises
    ------
    Refused
        Where this URL does not give the file; another may.
    NoSpace
        The part is kept.
    """
    client.persist(lambda: _request(client, url, file, part, told), lambda: part.offset, waiting)


def complete(file: RemoteFile, part: Part) -> bool:
    """Whether all bytes are there already, as far as that is known without asking."""
    size = part.origin.size if part.origin and part.origin.size is not None else file.size
    return part.offset > 0 and part.offset == size


def _request(client: Client, url: str, file: RemoteFile, part: Part, told: Callable[[], None]) -> None:
    if complete(file, part):
        return None
    with client.open(url, _resume(url, file, part)) as response:
        if response.status_code == 416:
            return _nothing_left(response, file, part)
        origin = _origin(response, url)
        _check_plain(response, file)
        if file.size is not None and origin.size is not None and origin.size != file.size:
            raise Refused(f"offers {origin.size:,} B where {file.size:,} B were promised")
        if response.status_code == 206:
            _check_range(response, origin, part)
        else:
            part.restart()
        part.begin(origin)
        total = origin.size if origin.size is not None else file.size
        _write(_checked(client.blocks(response), response, file, part), total, part, told)
        if total is not None and part.offset != total:
            raise Again(f"the connection closed after {part.offset:,} of {total:,} B")
    return None


def _resume(url: str, file: RemoteFile, part: Part) -> dict[str, str]:
    """The headers that ask for the rest; none where going on would not be safe."""
    known, size = part.origin, file.size
    if not part.offset or known is None or (size is not None and part.offset > size):
        return {}
    headers = {"Range": f"bytes={part.offset}-"}
    if known.url != names.shown(url):  # another mirror: the hash tells whether the two halves belong together
        return headers if file.sha256 else {}
    if known.validator:
        return headers | {"If-Range": known.validator}
    return headers if known.etag or file.sha256 else {}


def _nothing_left(response: requests.Response, file: RemoteFile, part: Part) -> None:
    """416: everything is here already, or the file has become another one."""
    match = _UNSATISFIED.fullmatch(response.headers.get("Content-Range", "").strip())
    size = int(match[1]) if match else file.size
    if part.offset and part.offset == size and file.size in (None, size):
        return
    part.restart()
    raise Again("HTTP 416: the part kept here is not a part of it")


def _origin(response: requests.Response, url: str) -> Origin:
    headers = response.headers
    size: int | None = None
    if response.status_code == 206:
        match = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
        size = int(match[3]) if match and match[3] != "*" else None
    elif headers.get("Content-Length", "").isdecimal():
        size = int(headers["Content-Length"])
    return Origin(names.shown(url), headers.get("ETag"), headers.get("Last-Modified"), size)


def _check_plain(response: requests.Response, file: RemoteFile) -> None:
    """Refuse what a server packs on its own account; files that are packed themselves are often labelled so too."""
    packed = response.headers.get("Content-Encoding", "identity").lower()
    if packed not in ("", "identity") and not file.path.lower().endswith((".gz", ".tgz", ".bz2", ".xz", ".zst", ".z")):
        raise Refused(f"answered {packed} where the bytes themselves were asked for")


def _check_range(response: requests.Response, origin: Origin, part: Part) -> None:
    """206: the rest of what is here, or nothing that may be appended."""
    match = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
    known = part.origin
    wrong = (
        f"a range was answered that was not asked for ({response.headers.get('Content-Range')})"
        if match is None or int(match[1]) != part.offset or known is None
        else "the file changed meanwhile"
        if known.url == origin.url and _changed(known, origin)
        else "the sizes of the two parts disagree"
        if None not in (known.size, origin.size) and known.size != origin.size
        else None
    )
    if wrong:
        part.restart()
        raise Again(wrong)
    part.resumed = part.resumed or part.offset


def _changed(known: Origin, now: Origin) -> bool:
    if known.etag and now.etag:
        return known.etag.removeprefix("W/") != now.etag.removeprefix("W/")
    return bool(known.last_modified and now.last_modified and known.last_modified != now.last_modified)


def _checked(blocks: Iterator[bytes], response: requests.Response, file: RemoteFile, part: Part) -> Iterator[bytes]:
    """The blocks, unless they are a page for people where a file was asked for."""
    if part.offset or file.path.lower().endswith((".html", ".htm")):
        return blocks
    head = b""
    while len(head) < _HEAD and (block := next(blocks, b"")):
        head += block
    typed = response.headers.get("Content-Type", "").lower().startswith(("text/html", "application/xhtml"))
    begins = head[:_HEAD].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if begins.startswith((b"<!doctype html", b"<html")) or (typed and b"\0" not in head[:_HEAD]):
        title = re.search(rb"<title[^>]*>([^<]{1,80})", head, re.IGNORECASE)
        words = f': "{title[1].decode(errors="replace").strip()}"' if title else ""
        part.restart()
        raise Refused(f"answered a web page instead of the file{words}")
    return chain([head] if head else [], blocks)


def _write(blocks: Iterator[bytes], total: int | None, part: Part, told: Callable[[], None]) -> None:
    watched = None
    for block in blocks:
        if watched is None or part.offset - watched >= _WATCH:
            watched = part.offset
            kept = f"{sizes.text(part.offset)} of {part.target.name} are kept; the next run goes on from there."
            space.check_space(total - part.offset if total is not None else len(block), part.path.parent, kept=kept)
        part.append(block)
        told()
