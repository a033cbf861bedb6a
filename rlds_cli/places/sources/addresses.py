"""Addresses of pushed datasets: parse them, and show them without credentials.

::

    hf://datasets/OWNER/NAME[/PATH][@REVISION]     a dataset repository of the hub, or a directory in it
    s3://BUCKET/PATH   gs://BUCKET/PATH            a bucket
    https://HOST/PATH/                             a directory of any web server, read-only
    DIR   file:///DIR                              a directory of this machine

``ADDRESS#rlds1:...`` pins the content, ``ADDRESS#v3`` and ``ADDRESS#TAG`` name a version; see `refs`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from rlds_cli.base import refs, settings, visible
from rlds_cli.base.files import names
from rlds_cli.base.refs import Ref
from rlds_cli.base.settings import StrPath
from rlds_cli.errors import InvalidId, RldsError

FORMS = "hf://datasets/OWNER/NAME, s3://BUCKET/PATH, gs://BUCKET/PATH, https://HOST/PATH/ or a directory"
_BUCKETS = "names of buckets have lower-case letters, digits, dots and dashes"
_HINTS = {
    "s3": f"s3://BUCKET/PATH; {_BUCKETS}",
    "gs": f"gs://BUCKET/PATH; {_BUCKETS}",
    "hf": "hf://datasets/OWNER/NAME, hf://datasets/OWNER/NAME/PATH or hf://datasets/OWNER/NAME@REVISION",
}
_HUB = re.compile(
    r"(?:datasets/)(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<pin>refs/(?:pr|convert)/[\w.-]+|[^/@]+))?"
    r"(?:/(?P<path>[^@]*?))?/?(?:@(?P<rev>[^@]+))?"
)
_BUCKET = re.compile(r"(?P<bucket>[a-z0-9][a-z0-9._-]{0,220})(?:/(?P<path>.*))?", re.DOTALL)
_INDEX = "rlds.json"  # whoever copies its address means the dataset
_SITES = ("huggingface.co", "hf.co")  # whose pages have the addresses of their repositories
_REVISION = re.compile(r"[\w.][\w./-]{0,200}")


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address. ``str()`` gives it back without credentials and version, and parses to the same place.

    Attributes
    ----------
    scheme : str
        ``hf``, ``s3``, ``gs``, ``https``, ``http`` or ``file``.
    root : str
        Repository ``OWNER/NAME``, bucket, host with port, or nothing for a directory.
    path : str
        Path below the root, without a slash at either end; of a directory, the absolute path.
    revision : str, optional
        Of a repository.
    pin : str, optional
        The fingerprint that the content must have, or the beginning of it, without dashes.
    version : int, optional
        The number of the version that it must be.
    tag : str, optional
        A tag of it.
    index : str, optional
        The sha256 of its index: lock files have it.
    url : str
        Of a web address, as it was given: user, password and query are sent to the server.
    """

    scheme: str
    root: str
    path: str
    revision: str | None = None
    pin: str | None = None
    version: int | None = None
    tag: str | None = None
    index: str | None = None
    url: str = field(default="", repr=False, compare=False)

    @classmethod
    def parse(cls, text: StrPath) -> Address:
        """Parse an address; a text without a scheme is a directory.

        Raises
        ------
        InvalidId
            It is not an address of a form above, or what stands after the ``#`` is not a version.
        """
        ref = refs.parse(text)
        place = _place(os.fspath(ref.place).removesuffix(f"/{_INDEX}"))
        return replace(place, pin=ref.fingerprint, version=ref.version, tag=ref.tag)

    def __str__(self) -> str:
        below = f"/{self.path}" if self.path else ""
        match self.scheme:
            case "file":
                return self.path
            case "hf":
                return f"hf://datasets/{self.root}{below}" + (f"@{self.revision}" if self.revision else "")
            case "http" | "https":
                return f"{self.scheme}://{self.root}{quote(below)}/"
        return f"{self.scheme}://{self.root}{below}"

    def page(self, hub: str) -> str | None:
        """Return the web page of a dataset on the ``hub``, whose URL is given; None elsewhere."""
        if self.scheme != "hf":
            return None
        below = f"/tree/{self.revision or 'main'}/{self.path}" if self.path or self.revision else ""
        return f"{hub}/datasets/{self.root}{below.rstrip('/')}"

    @property
    def pinned(self) -> str:
        """The address with the version that it names, if it names one."""
        return str(self._ref(str(self)))

    @property
    def given(self) -> str:
        """The address as `pinned` has it, with the credentials that were given in it."""
        return str(self._ref(self.url or str(self)))

    @property
    def unpinned(self) -> Address:
        """The address without a version."""
        return replace(self, pin=None, version=None, tag=None, index=None)

    def _ref(self, place: str) -> Ref:
        return Ref(place, version=self.version, tag=self.tag, fingerprint=self.pin)

    @property
    def name(self) -> str:
        """The last part of the path; of a repository or bucket, its name."""
        return (self.path or self.root).rstrip("/").rpartition("/")[2]

    @property
    def directory(self) -> Path:
        """The directory that an address of this machine names."""
        return Path(self.path)

    def matches(self, fingerprint: str) -> bool:
        """Return whether a fingerprint is the one that the address pins; True without a pin."""
        return self.pin is None or fingerprint.startswith(self.pin)

    def sibling(self, name: str) -> Address | None:
        """Return the address beside this one with another last part; None where there is nothing beside it."""
        above, slash, _ = self.path.rpartition("/")
        if not self.path or (self.scheme == "file" and not slash):
            return None
        return replace(self.unpinned, path=f"{above}/{name}" if slash else name)

    def url_of(self, name: str) -> str:
        """Return the URL of a file below a web address, with the credentials and the query that were given."""
        parts = urlsplit(self.url or str(self))
        path = f"{parts.path.rstrip('/')}/{quote(name)}"
        return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def _place(text: str) -> Address:
    found = refs.SCHEME.match(text)
    if found is None:
        return Address("file", "", _directory(text))
    scheme, rest = found[1].lower(), text[found.end() :]
    try:
        match scheme:
            case "hf":
                return _hub(rest)
            case "s3" | "gs":
                return _bucket(scheme, rest)
            case "http" | "https":
                return _web(text)
            case "file":
                return Address("file", "", _directory("/" + unquote(rest.partition("/")[2])))
    except (ValueError, RldsError):
        pass
    raise InvalidId(f'"{visible.shown(text)}" is not an address of a dataset.', hint=_HINTS.get(scheme, FORMS))


def _directory(text: str) -> str:
    if not text:
        raise InvalidId("An empty text is not an address of a dataset.", hint=FORMS)
    return os.path.normpath(settings.expanded(text).absolute())


def _hub(rest: str) -> Address:
    match = _HUB.fullmatch(rest)
    if match is None or {".", ".."} & set(match["repo"].split("/")):
        raise ValueError
    path, revision = (match["path"] or "").strip("/"), match["pin"] or match["rev"]
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise ValueError
    return Address("hf", match["repo"], names.safe(path) if path else "", revision)


def _bucket(scheme: str, rest: str) -> Address:
    match = _BUCKET.fullmatch(rest)
    if match is None:
        raise ValueError
    path = (match["path"] or "").strip("/")
    return Address(scheme, match["bucket"], names.safe(path) if path else "")


def _web(url: str) -> Address:
    parts = urlsplit(url)
    _ = parts.port  # ValueError
    path = unquote(parts.path).strip("/")
    if not parts.hostname:
        raise ValueError
    host = parts.netloc.rpartition("@")[2]
    if host in _SITES and path.count("/") == 2 and path.startswith("datasets/"):
        return _hub(path)
    return Address(parts.scheme.lower(), host, names.safe(path) if path else "", url=url)
