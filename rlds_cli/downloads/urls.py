"""Archives at a URL: ``rlds download https://HOST/run.hdf5 --as local/run``.

A URL may also be the address of a dataset that was pushed. What is there decides: an address has an index, an archive
is a file. The request for an archive gets the line that a registry would have for it, and is then served as all others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlds_cli import ids
from rlds_cli.downloads.request import DownloadRequest
from rlds_cli.errors import DatasetNotFound, InvalidArgument, InvalidId, NameTaken, RldsError
from rlds_cli.registry.facts import file_name
from rlds_cli.settings import Settings
from rlds_cli.sources import addresses, names
from rlds_cli.store import manifest
from rlds_cli.store.opening import Store

_SHA256 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"#(v\d+$|rlds)")  # see `refs`; a mistyped fingerprint is an error, not an archive
_SITES = ("huggingface.co", "hf.co")
_PAGE = re.compile(
    r"/datasets/(?P<repo>[^/]+/[^/]+)/(?P<kind>blob|tree|viewer|raw)"
    r"(?:/(?P<revision>[^/]+)(?:/(?P<path>.+))?)?"
)
_GITHUB = re.compile(r"/(?P<repo>[^/]+/[^/]+)/blob/(?P<path>.+)")
_TEXT = re.compile(r"[^A-Za-z0-9_.-]+")


def as_archive(request: DownloadRequest, where: Settings, *, here: Path | None = None) -> DownloadRequest | None:
    """Return the request for the archive at a URL; None if the URL is the address of a dataset.

    Parameters
    ----------
    here : Path, optional
        The dataset that has the id of the request. If it was made of this URL, nothing is asked.

    Raises
    ------
    InvalidId
        The request has no id, or one that belongs to the registry.
    InvalidArgument
        The URL is one of a web page, or the hash is no sha256.
    """
    url = request.ref
    if not _may_be_archive(url):
        return None
    _check_page(url)
    made = _described(request, here)
    if made is not None and made.get("urls", [None])[0] == names.shown(url):
        return _with_line(request)
    if not _is_asked_for(request) and _has_index(url, request, where):
        return None
    return _with_line(request)


def check_same(request: DownloadRequest, here: Path) -> None:
    """Check that the dataset of a request was made of its URL, as the request says.

    Raises
    ------
    NameTaken
        It was made of something else, or is read in another way.
    """
    line, m = request.line or {}, manifest.read(here)
    id, urls = str(line.get("id")), line.get("urls", ())
    before = m.options.get("entry")
    again = f"--force replaces {id}; --as local/NAME gives the new one another name"
    if not isinstance(before, Mapping):
        raise NameTaken(f"{id} exists, and was not made of {names.shown(urls[0])}.", hint=again)
    was = (before.get("urls") or ["its files"])[0]
    if was != names.shown(urls[0]):
        raise NameTaken(f"{id} exists, and was made of {was}, not of {names.shown(urls[0])}.", hint=again)
    sha256 = next((s.get("sha256") for s in Store(here, check=False).sources), None)
    if request.sha256 not in (None, sha256):
        raise NameTaken(
            f"{id} exists, and was made of a file with sha256 {sha256}, not {request.sha256}.",
            hint=f"--force fetches {names.shown(urls[0])} again, and replaces {id}",
        )
    for key, asked in request.reading.items():
        if asked != before.get(key):
            raise NameTaken(f"{id} exists, and was made with {key} {before.get(key)!r}, not {asked!r}.", hint=again)


def _may_be_archive(url: str) -> bool:
    """Return whether a URL may name a file: it is remote, and neither a version nor a directory nor an index."""
    if "://" not in url or url.startswith("file:") or _VERSION.search(url):
        return False
    path = url.partition("#")[0].partition("?")[0]
    return not path.endswith(("/", "/rlds.json")) and bool(file_name(url))


def _is_asked_for(request: DownloadRequest) -> bool:
    """Return whether options say that an archive is meant."""
    return request.sha256 is not None or bool(request.reading)


def _has_index(url: str, request: DownloadRequest, where: Settings) -> bool:
    from rlds_cli.http.client import RetryPolicy
    from rlds_cli.remote import pulling

    is_file = names.has_suffix(file_name(url))
    try:
        address = addresses.parse(url).unpinned
    except InvalidId:
        return False
    policy = RetryPolicy(attempts=1, connect=5.0, read=10.0, idle=15.0) if is_file else None
    try:
        pulling.id_of(address, where, as_=request.as_, policy=policy)
    except DatasetNotFound:
        return False
    except InvalidId:  # of the dataset: it has an index
        return True
    except RldsError:
        if is_file:  # its server may refuse to look, or be gone: the request for the file says so
            return False
        raise
    return True


def _described(request: DownloadRequest, here: Path | None) -> Mapping[str, Any] | None:
    if here is None or request.force:
        return None
    try:
        found = manifest.read(here).options.get("entry")
    except RldsError:
        return None
    return found if isinstance(found, Mapping) else None


def _with_line(request: DownloadRequest) -> DownloadRequest:
    url, sha256 = request.ref.partition("#")[0], request.sha256
    if request.as_ is None:
        raise InvalidId(
            f"{names.shown(url)} is an archive, and needs an id.",
            hint=f"--as {_proposed(url)} (as_={_proposed(url)!r})",
        )
    if sha256 is not None and not _SHA256.fullmatch(sha256.lower()):
        raise InvalidArgument(f"{sha256!r} is no sha256.", hint="64 hexadecimal digits, as sha256sum prints them")
    names.safe(file_name(url))
    id = str(ids.parse(request.as_))
    line = {"id": id, "urls": [url]} | ({"sha256": sha256.lower()} if sha256 else {}) | dict(request.reading)
    return replace(request, ref=id, url=url, as_=None, sha256=sha256 and sha256.lower(), line=line)


def _proposed(url: str) -> str:
    """Return an id for what a URL names."""
    stem = _TEXT.sub("-", file_name(url).partition(".")[0]).strip("-.") or "run"
    return f"local/{stem}"


def _check_page(url: str) -> None:
    """Refuse addresses of pages about files, and say where the file is."""
    parts = names.split(url)
    host = parts.netloc.rpartition("@")[2].lower()
    if host in _SITES and (page := _PAGE.fullmatch(parts.path.rstrip("/"))) and page["kind"] != "raw":
        repo, path, at = page["repo"], page["path"], page["revision"]
        if page["kind"] == "blob" and path:
            file = f"https://{host}/datasets/{repo}/resolve/{at}/{path}"
            raise InvalidArgument(f"{names.shown(url)} is a page about a file.", hint=f"the file itself: {file}")
        raise _repository(url, repo)
    if host == "github.com" and (page := _GITHUB.fullmatch(parts.path)):
        file = f"https://github.com/{page['repo']}/raw/{page['path']}"
        raise InvalidArgument(f"{names.shown(url)} is a page about a file.", hint=f"the file itself: {file}")


def _repository(url: str, repo: str) -> InvalidArgument:
    return InvalidArgument(
        f"{names.shown(url)} is a page about a repository.",
        hint=f"a file of it: https://huggingface.co/datasets/{repo}/resolve/main/FILE --as local/NAME; a dataset that "
        f"rlds pushed: hf://datasets/{repo}; a LeRobot dataset: lerobot/{repo.removeprefix('lerobot/')}",
    )
