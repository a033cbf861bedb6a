"""A viewer that answers in this process, requests to it, and answers that its pages get late."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import chromium

from rlds_cli.view.server import Server


@dataclass(frozen=True)
class Answered:
    """An answer: its status, its headers by lower-case name, and its bytes."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def record(self) -> Any:
        """The bytes as JSON."""
        return json.loads(self.body)


class Viewer:
    """Requests to a server."""

    def __init__(self, server: Server) -> None:
        self.address, self.port = server.address, server.port
        self.token = urlsplit(server.address).path

    def ask(
        self, path: str = "", *, headers: Mapping[str, str] | None = None, method: str = "GET", **values: Any
    ) -> Answered:
        """Ask for a path below the token, with the parameters ``values``."""
        query = f"?{urlencode(values, doseq=True)}" if values else ""
        return self.ask_whole(f"{self.token}{path}{query}", headers=headers, method=method)

    def ask_whole(
        self, path: str, *, headers: Mapping[str, str] | None = None, method: str = "GET", body: bytes | None = None
    ) -> Answered:
        """Ask for a path from the root on."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body=body, headers=dict(headers or {}))
            response = connection.getresponse()
            return Answered(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def change(
        self, path: str, body: Any, *, headers: Mapping[str, str | None] | None = None, **values: Any
    ) -> Answered:
        """Ask for a change, as the page does: ``body`` is a record, or bytes; a header that is None is left out."""
        own = {"Origin": f"http://127.0.0.1:{self.port}", "Sec-Fetch-Site": "same-origin"}
        own |= {"Content-Type": "application/json"} | dict(headers or {})
        query = f"?{urlencode(values, doseq=True)}" if values else ""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {name: value for name, value in own.items() if value is not None}
        return self.ask_whole(f"{self.token}api/{path}{query}", headers=given, method="POST", body=data)

    def record(self, path: str, **values: Any) -> Any:
        """Ask for a record, which must come."""
        found = self.ask(f"api/{path}", **values)
        assert found.status == 200, found.body[:500]
        return found.record


@contextmanager
def viewing(*named: Any, **options: Any) -> Iterator[Viewer]:
    """Start a viewer, and end it."""
    with Server(named, **options) as server:
        yield Viewer(server)


def hold(page: chromium.Page, path: str) -> None:
    """From now on, keep answers to a path from the page; ``answers.shift()()`` lets the first one through."""
    page.run(f"""(real => {{ globalThis.answers = []; fetch = async (url, ...rest) => {{
        const answer = await real(url, ...rest);
        if (String(url).startsWith('api/{path}')) await new Promise((done) => answers.push(done));
        return answer;
    }} }})(fetch)""")
