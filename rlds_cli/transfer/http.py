"""One file from one URL: ranges, validators, short bodies, and pages that are not the file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import NoReturn

import requests

from rlds_cli import sizes, space
from rlds_cli.errors import NoSpace
from rlds_cli.transfer import names
from rlds_cli.transfer.client import Client, authorities
from rlds_cli.transfer.failures import Again, Refused, quoted
from rlds_cli.transfer.origin import Origin, changed, check_plain, disagree, is_chunked, range_of, size_of
from rlds_cli.transfer.pace import Budget
from rlds_cli.transfer.part import Part
from rlds_cli.transfer.ranges import Ranges
from rlds_cli.transfer.remote import RemoteFile

PLAIN = "comes over plain HTTP, and no hash of it is published: nobody can tell whether it was altered on its way"
UNFRAMED = "comes without a length, a size or a hash: nobody can tell whether all of it came"
UNSIZED = "nobody says how large it is"
AUTHORITIES = "the server's certificate was verified with the authorities"
ONCE = (PLAIN, UNFRAMED, AUTHORITIES)  # said of one file, true of many
_HEAD = 512  # bytes that tell a web page
_WATCH = 64 << 20  # bytes between two looks at the disk


def pull(
    client: Client,
    url: str,
    file: RemoteFile,
    part: Part,
    *,
    budget: Budget,
    told: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    """Complete ``part`` from ``url``, going on from what is there where that is safe.

    Parameters
    ----------
    budget : Budget
        What all requests are counted in.
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
    with closing(Ranges(client, url, part, budget, told)) as ranges:
        pulling = _Pulling(client, url, file, part, ranges, budget, told, say)
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
        budget: Budget,
        told: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._client, self._url, self._file, self._part = client, url, file, part
        self._ranges, self._budget, self._told, self._say = ranges, budget, told, say
        self._seen: Origin | None = None  # what this source has said of the file so far
        self._whole = False  # whether it has given ranges that did not fit: none is asked for again

    def pull(self, left: float) -> None:
        """Go on until the file is complete; raises Again where that may come with another request.

        The first answer may take so many seconds to begin.
        """
        seconds: float | None = left
        while True:
            self._ranges.join()
            if self._complete():
                return None
            headers = self._headers()
            with self._client.open(self._url, headers, budget=self._budget, seconds=seconds) as response:
                seconds = None
                if response.status_code == 416:
                    return self._nothing_left(response, asked="Range" in headers)
                if not self._stream(response, headers):
                    return None

    def _complete(self) -> bool:
        """Whether all bytes are there, as far as that is known without asking."""
        known = self._part.origin
        size = known.size if known and known.size is not None else self._file.size
        return self._part.offset > 0 and self._part.offset == size

    def _headers(self) -> dict[str, str]:
        """What asks for the rest, up to the first piece that is there; nothing where going on would not be safe."""
        part, known, size = self._part, self._part.origin, self._file.size
        if self._whole or not part.offset or known is None or (size is not None and part.offset > size):
            return {}
        stop = self._ranges.stop_at()
        headers = {"Range": f"bytes={part.offset}-{'' if stop is None else stop - 1}"}
        if known.url != names.shown(self._url):  # another mirror: the hash tells whether the two halves belong together
            return headers if self._file.sha256 else {}
        if known.validator:
            return headers | {"If-Range": known.validator}
        return headers if known.etag or self._file.sha256 else {}

    def _nothing_left(self, response: requests.Response, *, asked: bool) -> None:
        """416: everything is here already, or the file has become another one."""
        part, said = self._part, size_of(response)
        size = self._file.size if said is None else said
        known = part.origin.size if part.origin else None
        told = self._seen.size if self._seen else None
        if asked and part.offset == size and not disagree(size, self._file.size, known, told):
            return
        self._start_over("HTTP 416: the part kept here is not a part of it")

    def _start_over(self, why: str) -> NoReturn:
        """Forget what came, and ask for the whole file; a source that needs that twice is given up."""
        self._ranges.restart()
        if self._whole:
            raise Refused(why)
        self._whole = True
        raise Again(why)

    def _stream(self, response: requests.Response, headers: Mapping[str, str]) -> bool:
        """Append what comes; whether there is more to ask for, since it ended before the end of the file."""
        file, part = self._file, self._part
        check_plain(response, file.path)
        origin = self._origin(response)
        total = file.size if origin.size is None else origin.size
        if response.status_code == 206:
            limit: int | None = self._check_range(response, origin, headers)
            blocks = self._client.blocks(response)
        else:
            limit = total
            self._check_room(total)
            blocks = _checked(self._client.blocks(response), response, file)  # before what is kept here is forgotten
            if part.there:
                self._ranges.restart()
        self._seen = origin
        self._say_what_nobody_can_tell(response)
        part.begin(origin)
        safe = bool(origin.validator or file.sha256) and not self._whole
        self._ranges.began(response, total, safe=safe)
        if self._write(blocks, total, limit):
            return True
        if total is not None and part.offset != total:
            raise Again(f"the connection closed after {part.offset:,} of {total:,} B")
        if total is None and limit is not None:
            return True  # a range of a file of unknown size: the next answer says whether that was all of it
        if total is None and not is_chunked(response):
            self._check_unframed()
        return False

    def _origin(self, response: requests.Response) -> Origin:
        """What an answer says of the file, with the size that earlier answers have said of the same content."""
        file, seen, now = self._file, self._seen, Origin.of(response, self._url)
        if disagree(file.size, now.size):
            raise Refused(f"offers {now.size:,} B where {file.size:,} B were promised")
        if response.status_code == 206:
            known = self._part.origin
            return replace(now, size=known.size) if known and now.size is None else now
        if seen is None:
            return now
        if changed(seen, now):  # one new version is a file that was replaced
            if self._whole:
                raise Refused("the file changes while it is fetched")
            self._whole = True
            return now
        if disagree(seen.size, now.size):
            raise Refused(f"says {now.size:,} B, and has said {seen.size:,} B before")
        return replace(now, size=seen.size)

    def _check_range(self, response: requests.Response, origin: Origin, headers: Mapping[str, str]) -> int:
        """Where a 206 ends, which brings the rest of what is here; anything else may not be appended."""
        answered, known, part = range_of(response), self._part.origin, self._part
        if answered is None or known is None or not _is_asked(answered, headers.get("Range", ""), part.offset):
            said = quoted(response.headers.get("Content-Range", "none"))
            self._start_over(f"a range was answered that was not asked for ({said})")
        if known.url == origin.url and changed(known, origin):
            self._seen = None
            self._start_over("the file changed meanwhile")
        if disagree(known.size, origin.size, self._file.size):
            self._start_over("the sizes of the two parts disagree")
        part.resumed = part.resumed or part.offset
        return answered[1] + 1

    def _check_room(self, total: int | None) -> None:
        """Refuse a source that says a size for which there is no room; another may say another."""
        if total is not None and self._file.size is None:
            try:
                space.check_space(total - self._part.there, self._part.path.parent)
            except NoSpace as exc:
                raise Refused(f"says {total:,} B, for which there is no room", error=exc) from exc

    def _check_unframed(self) -> None:
        """A body that ended with its connection may have been cut short."""
        if not self._part.offset:
            raise Again("the connection closed before the first byte")
        if not self._file.hashed:
            self._say(UNFRAMED)

    def _say_what_nobody_can_tell(self, response: requests.Response) -> None:
        if not self._file.hashed and response.url.startswith("http://"):
            self._say(PLAIN)
        if response.url.startswith("https://") and (bundle := authorities()):
            self._say(f"{AUTHORITIES} of {bundle} (REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE)")

    def _write(self, blocks: Iterator[bytes], total: int | None, limit: int | None) -> bool:
        """Append the blocks, of no more than ``limit`` bytes; whether they ended at a piece of another connection."""
        part, watched = self._part, None
        most = limit if total is not None and limit is not None else self._most(limit)
        for block in blocks:
            if watched is None or part.offset - watched >= _WATCH:
                if total is None and watched is not None:
                    self._say(f"{UNSIZED}: at most {sizes.text(most)} of it are taken")
                watched = part.offset
                kept = f"{sizes.text(part.there)} of {part.target.name} are kept; the next run goes on from there."
                needed = total - part.there if total is not None else len(block) + _WATCH
                space.check_space(needed, part.path.parent, kept=kept)
            if len(block) > most - part.offset:
                self._ranges.restart()
                raise Refused(
                    f"sends more than the {most:,} B that it should"
                    if most == limit
                    else f"says no size, and sends more than {sizes.text(most)}"
                )
            part.append(block)
            self._told()
            self._ranges.consider()
            stop = self._ranges.stop_at()
            if stop is not None and stop <= part.offset:
                return True
        return self._ranges.stop_at() == part.offset

    def _most(self, limit: int | None) -> int:
        """Bytes that a file may have whose size nobody says: half of what is free, and no more than anybody means."""
        free = space.free(self._part.path.parent) + self._part.offset
        most = min(free // 2, self._client.patience.unsized)
        return most if limit is None else min(most, limit)


def _is_asked(answered: tuple[int, int, int | None], asked: str, offset: int) -> bool:
    """Whether a range begins where the one that was asked for does, and ends there or before."""
    end = asked.rpartition("-")[2]
    return asked != "" and answered[0] == offset and (not end or answered[1] <= int(end))


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
        words = f': "{quoted(title[1].decode(errors="replace"))}"' if title else ""
        raise Refused(f"answered a web page instead of the file{words}")
    return chain([head] if head else [], blocks)
