"""Who may ask the server: whoever was told its address, from a page of its own.

The first part of every path is a token. No cookie is used: a browser sends one to every port of a host. A request for
another host is one that a name in the DNS of a stranger led here, and is refused; so is one that a page of another
origin makes. A change is asked for by POST: by a page that says that it is of this server, in a bounded piece of JSON,
which no form of a page can send.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from typing import Any

_HOSTS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
_OWN = ("same-origin", "none", "")  # values of Sec-Fetch-Site; none is what a user typed
MOST_BYTES = 1 << 20  # of the body of a change
_FRAMES = "http://localhost:* http://127.0.0.1:* https://localhost:* https://127.0.0.1:* vscode-webview:"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors "
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Hands requests with the token to an application, which sees the rest of the path.

    Parameters
    ----------
    app : callable
        An ASGI application.
    token : str
        The first part of every path.
    changes : collection of str
        The paths below the token that are answered to POST alone.
    in_frames : bool
        Whether pages of notebooks on this machine may show the viewer in a frame.
    """

    def __init__(self, app: App, token: str, *, changes: Collection[str] = (), in_frames: bool = False) -> None:
        self._app, self._token, self._changes = app, token.encode(), frozenset(changes)
        ancestors = _FRAMES if in_frames else "'none'"
        self._headers = {
            b"content-security-policy": (_POLICY + ancestors).encode(),
            b"referrer-policy": b"no-referrer",
            b"x-content-type-options": b"nosniff",
            b"cross-origin-resource-policy": b"same-origin",
            b"cross-origin-opener-policy": b"same-origin",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":  # neither a websocket nor a lifespan is offered
            return None

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = with_headers(message.get("headers", ()), self._headers)
            await send(message)

        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        token, _, path = scope["path"].removeprefix("/").partition("/")
        refusal = self._refusal(headers, scope["method"], token, path)
        if refusal:
            return await _refuse(guarded, refusal)
        return await self._app(dict(scope) | {"root_path": f"/{token}"}, receive, guarded)

    def _refusal(self, headers: Mapping[bytes, str], method: str, token: str, path: str) -> int:
        """Return the status with which a request is refused, 0 if it is not."""
        host = headers.get(b"host", "")
        if not _HOSTS.fullmatch(host):
            return 421
        if not hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self._token):
            return 404
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", "")
        # a link, or a frame of a notebook, leads to the page itself, which holds no data
        if (origin is not None and origin != f"http://{host}") or (site not in _OWN and path):
            return 403
        if path in self._changes:
            return _refusal_of_change(headers, method)
        return 0 if method in ("GET", "HEAD") else 405


def _refusal_of_change(headers: Mapping[bytes, str], method: str) -> int:
    """Return the status with which a change is refused, 0 if it is not; an origin that is there is the server's."""
    if method != "POST":
        return 405
    if b"origin" not in headers or headers.get(b"sec-fetch-site") != "same-origin":
        return 403
    if headers.get(b"content-type", "").partition(";")[0].strip().lower() != "application/json":
        return 415
    length = headers.get(b"content-length", "")
    if not length.isascii() or not length.isdecimal() or b"transfer-encoding" in headers:
        return 411
    return 413 if len(length) > 9 or int(length) > MOST_BYTES else 0


def with_headers(headers: Iterable[tuple[bytes, bytes]], more: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer with those of every answer; a browser keeps nothing unless it says so itself."""
    kept = [(name.lower(), value) for name, value in headers]
    if not any(name == b"cache-control" for name, _ in kept):
        kept.append((b"cache-control", b"no-store"))
    return [*kept, *more.items()]


_REASONS = {
    403: "This request comes from a page of another site.",
    404: "There is nothing here. The address that rlds view printed is whole only with the part behind the port.",
    405: "This address is not answered so: changes take POST, all others GET and HEAD.",
    411: "The length of the body is missing.",
    413: f"The body is longer than {MOST_BYTES:,} bytes.",
    415: "A change is application/json.",
    421: "This server is on this machine alone: 127.0.0.1, localhost or [::1].",
}


async def _refuse(send: Send, status: int) -> None:
    body = f"{_REASONS[status]}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
