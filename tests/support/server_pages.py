"""What the loopback server answers with: files that misbehave on request, and listings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Request:
    """What was asked of a page, and how many bytes of its body went out."""

    headers: dict[str, str]
    start: int = 0
    sent: int = 0
    status: int = 0


@dataclass
class Page:
    """One path of the server.

    Lists of misbehaviour are used up, one entry a request; None in them means to behave once.
    """

    content: bytes
    etag: str | None = '"v1"'
    last_modified: str | None = None
    content_type: str = "application/octet-stream"
    statuses: list[tuple[int, dict[str, str]] | None] = field(default_factory=list)
    drops: list[int | None] = field(default_factory=list)  # break the connection off after so many bytes
    short: list[int | None] = field(default_factory=list)  # tell this length only, and send so much
    ranges: bool = True  # False: answer 200 and everything
    content_range: str | None = None  # said instead of the truth
    if_range: bool = True  # False: a range is a range, whatever If-Range says
    length: int | None = None  # said instead of the truth
    chunked: bool = False  # no length at all
    new_etag: bool = False  # another one each time
    redirect: str | None = None
    token: str | None = None
    key: str | None = None  # only requests that are signed with this access key of S3
    pace: float = 0.0  # seconds between blocks of 16 KiB
    stall: int | None = None  # nothing comes from this position on
    then: dict[str, Any] = field(default_factory=dict)  # how it is after the first answer
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    @property
    def sent(self) -> int:
        """Bytes of bodies sent so far."""
        return sum(r.sent for r in self.requests)


class Listing(Page):
    """A page that answers with a listing, also for paths below its own."""

    def answer(self, below: str, query: Mapping[str, list[str]]) -> tuple[bytes, dict[str, str]] | None:
        """The body and more headers; None where there is no such thing."""
        raise NotImplementedError
