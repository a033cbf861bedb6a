"""A directory of a web server as a store that can only be read, by plain requests for ranges."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

import requests

from rlds_cli.http.connections import Budget, Permanent, Retryable
from rlds_cli.remote.objects import Chunk, Document, Objects

_REQUESTS = 32  # for one range, with redirects
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")


class WebObjects(Objects):
    """The files below ``https://HOST/PATH/``. A server without ranges sends whole files, of which a part is taken."""

    _ranges: bool | None = None

    def url(self, name: str) -> str:
        """Return the URL that a file is requested at."""
        return self.address.url_of(name)

    def _open(self, name: str, asked: str) -> AbstractContextManager[requests.Response]:
        """Request a range. Retries are limited, but not the requests for a dataset of any size."""
        return self.client.open(self.url(name), {"Range": asked}, budget=Budget(_REQUESTS))

    def has_ranges(self, name: str) -> bool:
        """Ask the server for two bytes of a file, once."""
        if self._ranges is None:
            self._ranges = self._reading(name, lambda: self._honours_range(name))
        return self._ranges

    def _honours_range(self, name: str) -> bool:
        with self._open(name, "bytes=1-2") as response:
            return response.status_code != 200

    def _read(self, name: str, longest: int) -> Document | None:
        try:
            data, response = self.client.document(self.url(name))
            if len(data) > longest:
                raise Permanent(f"it has more than {longest:,} bytes")
            return Document(data, response.headers.get("ETag", ""))
        except Permanent as exc:
            if exc.status in (404, 410):
                return None
            raise

    def _hint(self, exc: Permanent) -> str | None:
        refused = exc.status in (401, 403)
        return "a user in the address or in .netrc may be needed; a signed address expires" if refused else None

    def _size(self, name: str) -> int | None:
        try:
            with self._open(name, "bytes=0-0") as response:
                if response.status_code == 206 and (
                    told := _RANGE.fullmatch(response.headers.get("Content-Range", ""))
                ):
                    return None if told[3] == "*" else int(told[3])
                if response.status_code == 416:
                    return 0
                return _length(response)
        except Permanent as exc:
            if exc.status in (404, 410):
                return None
            raise

    def _stream(self, name: str, start: int, length: int) -> Iterator[Chunk]:
        with self._open(name, f"bytes={start}-{start + length - 1}") as response:
            skip = 0
            if response.status_code == 206:
                _check_range(response.headers, start, length)
            elif response.status_code == 200:
                skip = start
            else:
                raise Permanent("HTTP 416: it is too short", response.status_code)
            for block in self.client.blocks(response):
                if skip >= len(block):
                    skip -= len(block)
                    continue
                chunk = memoryview(block)[skip : skip + length]
                skip = 0
                length -= len(chunk)
                yield chunk
                if not length:
                    return


def _length(response: requests.Response) -> int | None:
    said = response.headers.get("Content-Length", "")
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 20 else None


def _check_range(headers: Mapping[str, str], start: int, length: int) -> None:
    """Refuse another range than the one that was asked for."""
    told = _RANGE.fullmatch(headers.get("Content-Range", ""))
    if told is None or (int(told[1]), int(told[2])) != (start, start + length - 1):
        raise Retryable("it sent another range than it was asked for")
