"""One file from one URL: ranges, validators, short bodies, and pages that are not the file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain

import requests

from rlds_cli import sizes, space
from rlds_cli.transfer import names
from rlds_cli.transfer.client import Again, Client, Refused, authorities
from rlds_cli.transfer.origin import Origin, changed, range_of
from rlds_cli.transfer.part import Part
from rlds_cli.transfer.ranges import Ranges
from rlds_cli.transfer.remote import RemoteFile

PLAIN = "comes over plain HTTP, and no hash of it is published: nobody can tell whether it was altered on its way"
AUTHORITIES = "the server's certificate was verified with the authorities"
ONCE = (PLAIN, AUTHORITIES)  # said of one file, true of many
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
    say: Callable[[str], None],
) -> None:
    """Complete ``part`` from ``url``, going on from what is there where that is safe.

    Parameters
    ----------
    told : callable
        Called after each block that was written.
    say : callable
        Told what a person should know: why there is a long wait, or that nobody can tell whether the bytes are right.

    Raises
    ------
    Refused
        Where this URL does not give the file; another may.
    NoSpace
        The part is kept.
    """
    with closing(Ranges(client, url, part, told)) as ranges:
        pulling = _Pulling(client, url, file, part, ranges, told, say)
        client.persist(pulling.pull, lambda: part.there, say)


class _Pulling:
    """The first connection."""

    def __init__(
        self,
        client: Client,
        url: str,
        file: RemoteFile,
        part: Part,
        ranges: Ranges,
        told: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._client, self._url, self._file, self._part = client, url, file, part
        self._ranges, self._told, self._say = ranges, told, say

    def pull(self) -> None:
        """Go on until the file is complete; raises Again where that may come with another request."""
        while True:
            self._ranges.join()
            if self._complete():
                return None
            with self._client.open(self._url, self._headers()) as response:
                if response.status_code == 416:
                    return self._nothing_left(response)
                if not self._stream(response):
                    return None

    def _complete(self) -> bool:
        """Whether all bytes are there, as far as that is known without asking."""
        known = self._part.origin
        size = known.size if known and known.size is not None else self._file.size
        return self._part.offset > 0 and self._part.offset == size

    def _headers(self) -> dict[str, str]:
        """What asks for the rest, up to the first piece that is there; nothing where going on would not be safe."""
        part, known, size = self._part, self._part.origin, self._file.size
        if not part.offset or known is None or (size is not None and part.offset > size):
            return {}
        stop = self._ranges.stop_at()
        headers = {"Range": f"bytes={part.offset}-{'' if stop is None else stop - 1}"}
        if known.url != names.shown(self._url):  # another mirror: the hash tells whether the two halves belong together
            return headers if self._file.sha256 else {}
        if known.validator:
            return headers | {"If-Range": known.validator}
        return headers if known.etag or self._file.sha256 else {}

    def _nothing_left(self, response: requests.Response) -> None:
        """416: everything is here already, or the file has become another one."""
        match = _UNSATISFIED.fullmatch(response.headers.get("Content-Range", "").strip())
        size = int(match[1]) if match else self._file.size
        if self._part.offset and self._part.offset == size and self._file.size in (None, size):
            return
        self._ranges.restart()
        raise Again("HTTP 416: the part kept here is not a part of it")

    def _stream(self, response: requests.Response) -> bool:
        """Append what comes; whether it ended at a piece of another connection, and not at the end of the file."""
        file, part = self._file, self._part
        origin = Origin.of(response, self._url)
        _check_plain(response, file)
        if file.size is not None and origin.size is not None and origin.size != file.size:
            raise Refused(f"offers {origin.size:,} B where {file.size:,} B were promised")
        if response.status_code == 206:
            self._check_range(response, origin)
            blocks = self._client.blocks(response)
        else:
            blocks = _checked(self._client.blocks(response), response, file)  # before what is kept here is forgotten
            if part.there:
                self._ranges.restart()
        if not file.hashed and response.url.startswith("http://"):
            self._say(PLAIN)
        if response.url.startswith("https://") and (bundle := authorities()):
            self._say(f"{AUTHORITIES} of {bundle} (REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE)")
        part.begin(origin)
        total = origin.size if origin.size is not None else file.size
        self._ranges.began(response, total, safe=bool(origin.validator or file.sha256))
        if self._write(blocks, total):
            return True
        if total is not None and part.offset != total:
            raise Again(f"the connection closed after {part.offset:,} of {total:,} B")
        return False

    def _check_range(self, response: requests.Response, origin: Origin) -> None:
        """206: the rest of what is here, or nothing that may be appended."""
        answered, known, part = range_of(response), self._part.origin, self._part
        wrong = (
            f"a range was answered that was not asked for ({response.headers.get('Content-Range')})"
            if answered is None or answered[0] != part.offset or known is None
            else "the file changed meanwhile"
            if known.url == origin.url and changed(known, origin)
            else "the sizes of the two parts disagree"
            if None not in (known.size, origin.size) and known.size != origin.size
            else None
        )
        if wrong:
            self._ranges.restart()
            raise Again(wrong)
        part.resumed = part.resumed or part.offset

    def _write(self, blocks: Iterator[bytes], total: int | None) -> bool:
        part, watched = self._part, None
        for block in blocks:
            if watched is None or part.offset - watched >= _WATCH:
                watched = part.offset
                kept = f"{sizes.text(part.there)} of {part.target.name} are kept; the next run goes on from there."
                needed = total - part.there if total is not None else len(block) + _WATCH
                space.check_space(needed, part.path.parent, kept=kept)
            part.append(block)
            self._told()
            self._ranges.consider()
            stop = self._ranges.stop_at()
            if stop is not None and stop <= part.offset:
                return True
        return self._ranges.stop_at() == part.offset


def _check_plain(response: requests.Response, file: RemoteFile) -> None:
    """Refuse what a server packs on its own account; files that are packed themselves are often labelled so too."""
    packed = response.headers.get("Content-Encoding", "identity").lower()
    if packed not in ("", "identity") and not file.path.lower().endswith((".gz", ".tgz", ".bz2", ".xz", ".zst", ".z")):
        raise Refused(f"answered {packed} where the bytes themselves were asked for")


def _checked(blocks: Iterator[bytes], response: requests.Response, file: RemoteFile) -> Iterator[bytes]:
    """The blocks of a whole file, unless they are a page for people where a file was asked for."""
    if file.path.lower().endswith((".html", ".htm")):
        return blocks
    head = b""
    while len(head) < _HEAD and (block := next(blocks, b"")):
        head += block
    typed = response.headers.get("Content-Type", "").lower().startswith(("text/html", "application/xhtml"))
    begins = head[:_HEAD].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if begins.startswith((b"<!doctype html", b"<html")) or (typed and b"\0" not in head[:_HEAD]):
        title = re.search(rb"<title[^>]*>([^<]{1,80})", head, re.IGNORECASE)
        words = f': "{title[1].decode(errors="replace").strip()}"' if title else ""
        raise Refused(f"answered a web page instead of the file{words}")
    return chain([head] if head else [], blocks)
