"""Where a redirect leads, and who may see the user's credentials on the way."""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, unquote, urljoin, urlsplit, urlunsplit

import requests
from requests.auth import AuthBase, HTTPBasicAuth
from requests.utils import get_netrc_auth, requote_uri

from rlds_cli.settings import Settings
from rlds_cli.transfer.failures import Refused

MOST = 10  # redirects of one request
_SMALL = 16 << 10  # bytes of a body that are read so that its connection can be used again
_SECURE = ("https", "http")


def following(here: str, location: str) -> str:
    """The address that a ``Location`` header means; raises Refused where nobody should go there."""
    try:
        said = location.encode("latin-1").decode(errors="replace")  # headers come as latin-1, most are UTF-8
        parts = urlsplit(requote_uri(urljoin(here, said)))
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise Refused("leads to an address that cannot be read") from exc
    if parts.scheme not in _SECURE or not host or port == 0:
        raise Refused("leads to an address that is not HTTP")
    if parts.scheme == "http" and urlsplit(here).scheme == "https":
        raise Refused("leads from HTTPS to plain HTTP, where others could alter the file")
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))


def leave(response: requests.Response) -> None:
    """Be done with a redirect: a short body is read, so that the connection may be kept; any other is not."""
    length = response.raw.length_remaining
    try:
        if length is not None and length <= _SMALL:
            response.raw.read(length or 1, decode_content=False)
    finally:
        response.close()


class Credentials(AuthBase):
    """Who the user is to the server that was asked, and to no other that it sends us to.

    It also keeps requests from looking into .netrc by itself, which it does for every host and over plain HTTP.
    """

    def __init__(self, asked: str, here: str, where: Settings) -> None:
        self._header: AuthBase | None = None
        if origin(asked) == origin(here) and is_private(asked):
            self._header = _known(asked, where)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """The request with what proves who the user is, or as it was."""
        return request if self._header is None else self._header(request)


class _Bearer(AuthBase):
    """The hub's token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """The request with the token."""
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _known(url: str, where: Settings) -> AuthBase | None:
    """The token of the hub, else the user of the address, else that of .netrc."""
    if where.hub_token and origin(url) == origin(where.hub):
        if not (where.hub_token.isascii() and where.hub_token.isprintable()):
            raise Refused("HF_TOKEN holds characters that no token has")
        return _Bearer(where.hub_token)
    parts = urlsplit(url)
    if parts.username is not None:
        return HTTPBasicAuth(unquote(parts.username).encode(), unquote(parts.password or "").encode())
    found = get_netrc_auth(url)
    return HTTPBasicAuth(found[0].encode(), found[1].encode()) if found else None


def origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of an address."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").rstrip("."), _port(parts)


def is_private(url: str) -> bool:
    """Whether nobody on the way reads what is sent there: HTTPS, or a server on this machine."""
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
