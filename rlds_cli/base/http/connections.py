"""Connections with deadlines that hold whatever the server does; redirects, credentials, failures and budgets.

The timeout of a socket restarts with every byte, so a server that sends one now and then never times out. Here a
thread shuts the socket down: a thread that waits in a handshake, for headers or for the size of a chunk, wakes up.
"""

from __future__ import annotations

import ipaddress
import math
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import SWITCHING_PROTOCOLS, HTTPResponse
from typing import Any, cast
from urllib.parse import SplitResult, unquote, urljoin, urlsplit, urlunsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase, HTTPBasicAuth
from requests.utils import get_netrc_auth, requote_uri
from urllib3.util.response import assert_header_parsing

from rlds_cli.base import text, visible
from rlds_cli.base.settings import Settings
from rlds_cli.errors import RldsError

_ROUND = 0.1  # seconds between two looks at the clock
_LONG_NAME = 253  # characters; no host has a longer name
MOST = 10  # redirects of one request
_SMALL = 16 << 10  # bytes of a body that are read so that its connection can be used again
_SECURE = ("https", "http")
BLOCK = 1 << 20  # bytes of a block of a body, at most
AHEAD = 4  # blocks that may be read before a block must be done with: few enough to be in the CPU cache
_LARGE = 1 << 16  # bytes of a block that a buffer is kept for
_LONGEST = 200  # characters of a server's words


class Permanent(Exception):
    """A failure that another attempt would not change.

    ``error`` is raised if no other source has the file either. ``late`` is True if the retries ended with waiting for
    a server, ``silent`` if the server did not begin an answer, ``wrong`` if it gave another file.
    """

    def __init__(
        self,
        reason: str,
        status: int = 0,
        headers: Mapping[str, str] | None = None,
        *,
        error: RldsError | None = None,
        late: bool = False,
        silent: bool = False,
        wrong: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.headers = headers or {}
        self.error = error
        self.late = late
        self.silent = silent
        self.wrong = wrong


class Retryable(Exception):
    """A failure after which another attempt may succeed.

    ``wait`` is the delay in seconds that the server asked for. ``late`` is True if time was spent waiting for the
    server, ``silent`` if it did not begin an answer. ``attempts`` replaces the number of attempts of the policy, and
    ``error`` is the one to raise after them.
    """

    def __init__(
        self,
        reason: str,
        wait: float = 0.0,
        *,
        late: bool = False,
        attempts: int | None = None,
        error: RldsError | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait = wait
        self.late = late
        self.silent = False
        self.attempts = attempts
        self.error = error


class Stopped(Exception):
    """Another file failed, or the user interrupted."""


def quoted(text: str) -> str:
    """Return text from a server as one printable line."""
    return visible.quoted(visible.line(text[:_LONGEST].strip()))


def reason(exc: BaseException) -> str:
    """Return why a request failed, in a few words without URLs and headers; a proxy that failed is named."""
    if isinstance(exc, requests.exceptions.ProxyError):
        tunnel = re.search(r"Tunnel connection failed: (\d+ [\w ]+)", str(exc))
        return f"the proxy {_proxy(exc)} failed: {quoted(tunnel[1]) if tunnel else _of_root(_root(exc))}"
    if isinstance(exc, requests.Timeout | urllib3.exceptions.TimeoutError):
        return "timed out"
    if isinstance(exc, requests.exceptions.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(exc):
        why = re.search(r"certificate verify failed: ([^(\"']*)", str(exc))
        return f"its certificate is not trusted ({quoted(why[1]) if why else 'unknown reason'})"
    return _of_root(_root(exc))


def _proxy(exc: requests.exceptions.ProxyError) -> str:
    """Return host and port of the proxy that the environment names for the address that was asked."""
    url = (exc.request.url if exc.request is not None else None) or ""
    proxy = requests.utils.select_proxy(url, requests.utils.get_environ_proxies(url)) or ""
    return quoted(urllib3.util.parse_url(proxy).netloc or "of the environment")


def _of_root(root: BaseException) -> str:
    if isinstance(root, TimeoutError):
        return "timed out"
    if isinstance(root, OSError) and root.strerror:
        return quoted(str(root.strerror))
    known = {
        "IncompleteRead": "the connection closed early",
        "RemoteDisconnected": "the server closed the connection",
        "InvalidSchema": "leads to an address that is not HTTP",
        "InvalidURL": "the address cannot be read",
        "LocationParseError": "the address cannot be read",
        "UnicodeError": "the host has no valid name",
        "BadStatusLine": "the answer is not HTTP",
        "HeaderParsingError": "the answer has headers that cannot be read",
        "LineTooLong": "the answer has headers that are too long",
    }
    return known.get(type(root).__name__, f"the answer cannot be read ({type(root).__name__})")


def _root(exc: BaseException) -> BaseException:
    """Return the innermost cause of an exception of the HTTP libraries."""
    root = exc
    for _ in range(10):
        causes = (getattr(root, "reason", None), *root.args, root.__cause__, root.__context__)
        inner = next((c for c in causes if isinstance(c, BaseException)), None)
        if inner is None:
            break
        root = inner
    return root


class StallDetector:
    """Detects that a connection brings fewer than ``least`` bytes in ``window`` seconds of waiting for it."""

    def __init__(self, least: int, window: float) -> None:
        self._least, self._window = least, window
        self._waited, self._came = 0.0, 0

    @property
    def left(self) -> float:
        """Seconds that the next wait may take."""
        return self._window - self._waited + (self._window if self._came >= self._least else 0.0)

    def add(self, size: int, waited: float) -> str | None:
        """Count ``size`` bytes that came after ``waited`` seconds; returns a reason if the connection has stalled."""
        self._waited, self._came = self._waited + waited, self._came + size
        if self._waited < self._window:
            return None
        came, self._waited, self._came = self._came, 0.0, 0
        return None if came >= self._least else self._said(came)

    def over(self) -> str:
        """Return the reason for a connection that was cut after too long a wait."""
        return self._said(self._came)

    def _said(self, came: int) -> str:
        return f"stalled: {text.size_of(came)} in {self._window:.3g} s" if came else "timed out"


class Budget:
    """Number of requests that a task may make: a constant, and one more for every MiB that was kept.

    Bytes that were kept, dropped and fetched again count once.
    """

    def __init__(self, requests: int, kept: Callable[[], int] = lambda: 0) -> None:
        self._requests, self._kept = requests, kept
        self._most = self._spent = 0
        self._lock = threading.Lock()

    def spend(self) -> bool:
        """Count a request and return whether it may be made."""
        with self._lock:
            self._most = max(self._most, self._kept())
            self._spent += 1
            return self._spent <= self.requests

    @property
    def requests(self) -> int:
        """Number of requests allowed so far."""
        return self._requests + (self._most >> 20)


class _Handle:
    """A duplicate descriptor of a socket, which TLS does not take over; closed with its last reference."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected.dup()

    def shut(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()


class Exchange:
    """One request and its answer: its deadline, and the socket that it uses."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds  # on the monotonic clock
        self.late = False  # True if it was cut at its deadline
        self._cut = False
        self._lock = threading.Lock()
        self._handle: _Handle | None = None

    def allow(self, seconds: float) -> None:
        """Set the deadline to ``seconds`` from now."""
        self.until = time.monotonic() + seconds

    def rest(self) -> None:
        """Remove the deadline while no thread waits for the server."""
        self.until = math.inf

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.until - time.monotonic()

    @property
    def ended(self) -> bool:
        """True if it was cut: its data are incomplete."""
        return self._cut

    def cut(self, *, late: bool = False) -> None:
        """End it, from any thread. ``late`` if its deadline has passed."""
        with self._lock:
            self.late, self._cut = self.late or late, True
            if self._handle is not None:
                self._handle.shut()

    def use(self, handle: _Handle | None) -> None:
        """Set the socket that is shut down when the exchange is cut."""
        with self._lock:
            self._handle = handle
            if self._cut and handle is not None:
                handle.shut()


class _Current(threading.local):
    exchange: Exchange | None = None


_current = _Current()


class DeadlineWatch:
    """Cuts the exchanges of one client at their deadlines."""

    def __init__(self) -> None:
        self._exchanges: set[Exchange] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def exchange(self, seconds: float) -> Iterator[Exchange]:
        """Start an exchange with a deadline."""
        found = Exchange(seconds)
        with self._lock:
            self._exchanges.add(found)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rlds-watch", daemon=True)
                self._thread.start()
        try:
            yield found
        finally:
            with self._lock:
                self._exchanges.discard(found)
            found.use(None)

    def cut(self) -> None:
        """Cut all exchanges."""
        for exchange in self._now():
            exchange.cut()

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()

    def _now(self) -> list[Exchange]:
        with self._lock:
            return list(self._exchanges)

    def _run(self) -> None:
        while not self._closed.wait(_ROUND):
            for exchange in self._now():
                if exchange.left <= 0 and not exchange.ended:
                    exchange.cut(late=True)


@contextmanager
def during(exchange: Exchange) -> Iterator[None]:
    """Assign the connections that this thread uses in the block to an exchange."""
    _current.exchange = exchange
    try:
        yield
    finally:
        _current.exchange = None


class Adapter(HTTPAdapter):
    """An adapter for requests whose connections belong to exchanges."""

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        """Create the manager, with connections that belong to exchanges."""
        super().init_poolmanager(*args, **more)
        _watch(self.poolmanager)

    def proxy_manager_for(self, *args: Any, **more: Any) -> Any:
        """Create the manager, with connections that belong to exchanges."""
        return _watch(super().proxy_manager_for(*args, **more))


def _watch(manager: Any) -> Any:
    """Make the pools of a manager create connections that belong to exchanges."""
    pools = dict(manager.pool_classes_by_scheme)  # urllib3 has one for all managers
    for scheme, pool in pools.items():
        if not issubclass(pool.ConnectionCls, _Watched):
            connection = type(f"Watched{pool.ConnectionCls.__name__}", (_Watched, pool.ConnectionCls), {})
            pools[scheme] = type(f"Watched{pool.__name__}", (pool,), {"ConnectionCls": connection})
    manager.pool_classes_by_scheme = pools
    return manager


class _FinalResponse(HTTPResponse):
    """The response after informational ones such as 103 Early Hints; http.client itself skips only 100.

    Headers that cannot be parsed to their end are an error: the length of the body may be in the rest.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._begun = False  # True once the body was read from: what came with the headers is taken first
        self._buffers: list[memoryview] = []
        self._number = 0
        self._failure: OSError | None = None

    def begin(self) -> None:
        super().begin()
        while 100 < self.status < 200 and self.status != SWITCHING_PROTOCOLS:
            self.headers = self.msg = None  # type: ignore[assignment]
            super().begin()
        assert_header_parsing(self.headers)

    def read1(self, n: int = -1) -> bytes:
        """Read what has arrived, up to ``n`` bytes, into one of a few buffers that take turns.

        A block stays as it is until `AHEAD` further ones were read. Large blocks in buffers that are used again take a
        tenth of the CPU time from a fast download; over TLS a read gives 16 KiB at most.
        """
        size = n if self.length is None else min(n, self.length)
        if not self._begun or self.fp is None or self.chunked or size < _LARGE:
            self._begun = True
            return super().read1(n)
        if len(self._buffers) <= AHEAD:
            self._buffers.append(memoryview(bytearray(BLOCK)))
        buffer = self._buffers[self._number % (AHEAD + 1)][:size]
        self._number += 1
        got = self._fill(buffer)
        if not got:
            return super().read1(n)  # which closes the connection
        if self.length is not None:
            self.length -= got
        return cast(bytes, buffer[:got])  # urllib3 passes it on

    def _fill(self, buffer: memoryview) -> int:
        """Read into a buffer as long as there are bytes without waiting; returns their number."""
        got = 0
        raw = self.fp.raw  # the reader above it is empty
        try:
            while got < len(buffer) and (not got or _is_readable(raw)):
                if self._failure is not None:
                    raise self._failure
                if not (some := raw.readinto(buffer[got:])):
                    break
                got += some
        except OSError as exc:
            if not got:
                raise
            self._failure = exc  # for the next read: these bytes have arrived
        return got


def _is_readable(file: Any) -> bool:
    """Return whether a read from a socket need not wait."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(0))


class _Watched:
    """A mix-in for connections of urllib3 that lets an exchange shut them down."""

    response_class = _FinalResponse
    _handle: _Handle | None = None

    def _new_conn(self) -> socket.socket:
        this: Any = self
        connected: socket.socket
        if hasattr(self, "_socks_options"):
            connected = super()._new_conn()  # type: ignore[misc]
        else:
            connected = _dial(this._dns_host, this.port, this.timeout, this.socket_options or ())
        self._handle = _Handle(connected)
        self._belong()
        return connected

    def request(self, *args: Any, **more: Any) -> None:
        self._belong()  # a connection that was kept open
        super().request(*args, **more)  # type: ignore[misc]

    def close(self) -> None:
        super().close()  # type: ignore[misc]
        self._handle = None

    def _belong(self) -> None:
        if self._handle is not None and _current.exchange is not None:
            _current.exchange.use(self._handle)


def _dial(host: str, port: int, seconds: float | None, options: Any) -> socket.socket:
    """Connect to the first address of a host that answers, within the deadline of the exchange."""
    name = host.strip("[]")
    if len(name) > _LONG_NAME or any(not 0 < len(label.encode("idna")) < 64 for label in name.rstrip(".").split(".")):
        raise UnicodeError("not a host name")
    problem: OSError = OSError("the host has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM):
        left = _current.exchange.left if _current.exchange is not None else math.inf
        if left <= 0:
            raise TimeoutError("timed out")
        dialled = socket.socket(family, kind, protocol)
        try:
            for option in options:
                dialled.setsockopt(*option)
            wait = min(left, math.inf if seconds is None else seconds)
            dialled.settimeout(None if wait == math.inf else wait)
            if _current.exchange is not None:
                _current.exchange.use(_Handle(dialled))  # so that a cut ends the connect at once
            dialled.connect(address)
        except OSError as exc:
            dialled.close()
            problem = exc
        else:
            return dialled
    raise problem


def following(here: str, location: str) -> str:
    """Return the address of a ``Location`` header; raises Permanent if it must not be followed."""
    try:
        said = location.encode("latin-1").decode(errors="replace")  # headers come as latin-1, most are UTF-8
        parts = urlsplit(requote_uri(urljoin(here, said)))
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise Permanent("leads to an address that cannot be read") from exc
    if parts.scheme not in _SECURE or not host or port == 0:
        raise Permanent("leads to an address that is not HTTP")
    if parts.scheme == "http" and urlsplit(here).scheme == "https":
        raise Permanent("leads from HTTPS to plain HTTP, where others could alter the file")
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))


def leave(response: requests.Response) -> None:
    """Finish a redirect: a short body is read, so that the connection can be kept."""
    length = response.raw.length_remaining
    try:
        if length is not None and length <= _SMALL:
            response.raw.read(length or 1, decode_content=False)
    finally:
        response.close()


class ServerCredentials(AuthBase):
    """The user's credentials, sent to the requested server and along no redirect to another one.

    Setting them also keeps requests from reading .netrc, which it does for every host and over plain HTTP.
    """

    def __init__(self, asked: str, here: str, where: Settings) -> None:
        self._header: AuthBase | None = None
        if origin(asked) == origin(here) and is_private(asked):
            self._header = _known(asked, where)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the credentials to a request, if there are any."""
        return request if self._header is None else self._header(request)


class HubToken(AuthBase):
    """The hub's token, sent to the hub only, and no credentials of another kind."""

    def __init__(self, url: str, where: Settings) -> None:
        to_hub = origin(url) == origin(where.hub) and is_private(url)
        self._header = _known(url, where) if to_hub and where.hub_token else None

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the token to a request to the hub."""
        return request if self._header is None else self._header(request)


class _Bearer(AuthBase):
    """The hub's token as an Authorization header."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the token to a request."""
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _known(url: str, where: Settings) -> AuthBase | None:
    """Return the hub's token, else the credentials in the address, else those in .netrc."""
    if where.hub_token and origin(url) == origin(where.hub):
        if not (where.hub_token.isascii() and where.hub_token.isprintable()):
            raise Permanent("HF_TOKEN holds characters that are not valid in a token")
        return _Bearer(where.hub_token)
    parts = urlsplit(url)
    if parts.username is not None:
        return HTTPBasicAuth(unquote(parts.username).encode(), unquote(parts.password or "").encode())
    found = get_netrc_auth(url)
    return HTTPBasicAuth(found[0].encode(), found[1].encode()) if found else None


def origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of an address."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").rstrip("."), _port(parts)


def is_private(url: str) -> bool:
    """Return whether requests to an address cannot be read on the way: HTTPS, or a server on this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return True
    host = parts.hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _port(parts: SplitResult) -> int | None:
    return parts.port if parts.port is not None else {"http": 80, "https": 443}.get(parts.scheme)
