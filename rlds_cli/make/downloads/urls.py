"""Archives at URLs: ``rlds download https://HOST/run.hdf5 --name local/run``.

A URL may also be the address of a dataset that was pushed. Its content decides: an address has an index, an archive
is a file. The request for an archive gets the line that a registry would have for it, and is then served as all others.

Several URLs, and patterns such as ``https://HOST/runs/*.hdf5``, name the files of one archive. Patterns are resolved by
the listing of their server; the line then has every file by its own URL.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from rlds_cli.base import ids, visible
from rlds_cli.base.files import names
from rlds_cli.base.files.names import of_url
from rlds_cli.base.settings import Settings
from rlds_cli.base.text import natural
from rlds_cli.errors import DatasetNotFound, InvalidArgument, InvalidId, NameTaken, RldsError
from rlds_cli.make.downloads import stores
from rlds_cli.make.downloads.request import DownloadRequest
from rlds_cli.places import Address, RemoteFile
from rlds_cli.store import Manifest, open_store

_SHA256 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"#(v\d+$|rlds)")  # see `refs`; a mistyped fingerprint is an error, not an archive
_SITES = ("huggingface.co", "hf.co")
_PAGE = re.compile(
    r"/datasets/(?P<repo>[^/]+/[^/]+)/(?P<kind>blob|tree|viewer|raw)"
    r"(?:/(?P<revision>[^/]+)(?:/(?P<path>.+))?)?"
)
_GITHUB = re.compile(r"/(?P<repo>[^/]+/[^/]+)/blob/(?P<path>.+)")
_MOST_URLS = 10_000  # of one pattern
_TEXT = re.compile(r"[^A-Za-z0-9_.-]+")


def as_archive(request: DownloadRequest, where: Settings, *, here: Path | None = None) -> DownloadRequest | None:
    """Return the request for the archive at URLs; None if the only URL is the address of a dataset.

    Parameters
    ----------
    here : Path, optional
        The dataset that has the id of the request. If it was made of this URL, nothing is asked.

    Raises
    ------
    InvalidId
        The request has no id, or one that belongs to the registry.
    InvalidArgument
        A URL is one of a web page, or the hash is not a sha256; or one of several URLs cannot be that of a file.
    DownloadFailed
        A pattern matches no file, or the files of its directory are not listed.
    """
    if any(map(stores.is_store, (request.ref, *request.also))):
        whole = _whole(request)
        known = _is_made_of(_described(request, here) or {}, [visible.shown(u) for u in (whole.ref, *whole.also)])
        if not (request.also or _is_asked_for(request) or known) and _has_index(request.ref, request, where):
            return None
        request = whole
    url = request.ref
    several = bool(request.also) or _is_pattern(url)
    odd = next((u for u in (url, *request.also) if not _may_be_archive(u)), None)
    if odd is not None and request.also:
        raise InvalidArgument(
            f"{visible.shown(odd)} is not the URL of a file: several URLs with one id are the files of one archive.",
            hint="a pattern names the files of a directory: 'https://HOST/DIR/*.hdf5'",
        )
    if odd is not None:
        return None
    for given in (url, *request.also):
        _check_page(given)
    made = _described(request, here)
    if several:
        return _of_several(request, where, made)
    if made is not None and made.get("urls", [None])[0] == visible.shown(url):
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
    line, m = request.line or {}, Manifest.read(here)
    given = [visible.shown(u) for u in (str(request.url), *request.also)]
    id, asked_for = str(line.get("id")), " and ".join(given)
    before = m.options.get("entry")
    again = f"--force replaces {id}; --name local/NAME gives the new one another name"
    if not isinstance(before, Mapping):
        raise NameTaken(f"{id} exists, and was not made of {asked_for}.", hint=again)
    if not _is_made_of(before, given):
        was, *others = _urls(before) or ["its files"]
        more = f" and {len(others):,} more" if others else ""
        raise NameTaken(f"{id} exists, and was made of {was}{more}, not of {asked_for}.", hint=again)
    sha256 = next((s.get("sha256") for s in open_store(here, check=False).sources), None)
    if request.sha256 not in (None, sha256):
        raise NameTaken(
            f"{id} exists, and was made of a file with sha256 {sha256}, not {request.sha256}.",
            hint=f"--force fetches {asked_for} again, and replaces {id}",
        )
    for key, asked in request.reading.items():
        if asked != before.get(key):
            raise NameTaken(f"{id} exists, and was made with {key} {before.get(key)!r}, not {asked!r}.", hint=again)


def _may_be_archive(url: str) -> bool:
    """Return whether a URL may name a file: it is remote, and neither a version nor a directory nor an index."""
    if "://" not in url or url.startswith("file:") or _VERSION.search(url):
        return False
    path = url.partition("#")[0].partition("?")[0]
    return not path.endswith(("/", "/rlds.json")) and bool(of_url(url))


def _is_asked_for(request: DownloadRequest) -> bool:
    """Return whether options say that an archive is meant."""
    return request.sha256 is not None or bool(request.reading)


def _has_index(url: str, request: DownloadRequest, where: Settings) -> bool:
    from rlds_cli.base.http.client import RetryPolicy
    from rlds_cli.places import Pull

    is_file = names.has_suffix(of_url(url))
    try:
        address = Address.parse(url).unpinned
    except InvalidId:
        return False
    policy = RetryPolicy(attempts=1, connect=5.0, read=10.0, idle=15.0) if is_file else None
    try:
        Pull(address, where, name=request.name, policy=policy).id()
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
        found = Manifest.read(here).options.get("entry")
    except RldsError:
        return None
    return found if isinstance(found, Mapping) else None


def _check_has_id(request: DownloadRequest) -> None:
    if request.name is None:
        url = request.ref
        raise InvalidId(
            f"{visible.shown(url)} is an archive, and needs an id.",
            hint=f"--name {_proposed(url)} (name={_proposed(url)!r})",
        )


# -- several URLs


def _is_pattern(url: str) -> bool:
    return "://" in url and any(c in _path(url) for c in "*{[")


def _path(url: str) -> str:
    return url.partition("#")[0].partition("?")[0].partition("://")[2].partition("/")[2]


def _alternatives(url: str) -> list[str]:
    """Return the URLs that ``{a,b}`` and ``[0-9]`` in a path stand for; ``*`` stays, and is looked up in a listing.

    Raises
    ------
    InvalidArgument
        A brace or bracket has no end, or a range is not one of letters or digits.
    """
    done, todo = [], [url]
    while todo:
        one = todo.pop()
        found = re.search(r"\{([^{}]*)\}|\[([^\[\]]*)\]", _path(one))
        if found is None:
            if any(c in _path(one) for c in "{}[]"):
                raise InvalidArgument(
                    f"{visible.shown(url)} has a brace or bracket without an end.", hint="{a,b}, [0-9]"
                )
            done.append(one)
            continue
        at = one.index(_path(one)) + found.start()
        choices = _characters(found[2], url) if found[1] is None else found[1].split(",")
        todo += [one[:at] + choice + one[at + len(found[0]) :] for choice in reversed(choices)]
        if len(todo) + len(done) > _MOST_URLS:
            raise InvalidArgument(f"{visible.shown(url)} stands for more than {_MOST_URLS:,} URLs.")
    return done


def _characters(inside: str, url: str) -> list[str]:
    """Return the characters of ``01`` or ``0-9``."""
    found: list[str] = []
    for first, last in re.findall(r"(.)(?:-(.))?", inside):
        if last and not (first <= last and (first + last).isalnum()):
            raise InvalidArgument(f"[{inside}] in {visible.shown(url)} is not a range of letters or digits.")
        found += [chr(c) for c in range(ord(first), ord(last or first) + 1)]
    return found


def _of_several(request: DownloadRequest, where: Settings, made: Mapping[str, Any] | None) -> DownloadRequest:
    """Return the request for the files that URLs and patterns name; those of an existing dataset are known."""
    _check_has_id(request)
    if request.sha256 is not None:
        raise InvalidArgument("--sha256 is the hash of one file, and several are requested.", hint="rlds lock pins all")
    line = {"id": str(ids.parse(str(request.name)))} | dict(request.reading)
    given = [visible.shown(u) for u in (request.ref, *request.also)]
    listed: tuple[RemoteFile, ...] = ()
    if made is not None and _is_made_of(made, given) and given == [request.ref, *request.also]:
        line |= {"files": made["files"]}
    else:
        by_url = _listed(request, where)
        line |= {"files": [_described_file(url, f) for url, f in by_url.items()]}
        listed = tuple(by_url.values())
    return replace(request, ref=str(line["id"]), url=request.ref, name=None, line=line, listed=listed)


def _described_file(url: str, file: RemoteFile) -> dict[str, Any]:
    known = {"size": file.size, "sha256": file.sha256}
    return {"path": file.path, "urls": [url]} | {k: v for k, v in known.items() if v}


def _listed(request: DownloadRequest, where: Settings) -> dict[str, RemoteFile]:
    """Return the files that URLs and patterns name, by URL, sorted by the names that they get."""
    from rlds_cli.make.downloads import listing
    from rlds_cli.places import as_url

    found: dict[str, RemoteFile] = {}
    for given in (request.ref, *request.also):
        for url in _alternatives(given.partition("#")[0]):
            if _is_pattern(url):
                found |= stores.files(url, where, request.source)
            elif len(files := listing.list_files([url], where, source=request.source)) == 1:
                found[url] = files[0]
            else:
                raise InvalidArgument(
                    f"{visible.shown(url)} names {len(files):,} files.", hint=f"'{visible.shown(url)}/*' names them all"
                )
    paths = _distinct({url: (as_url(url).key, f.path) for url, f in found.items()})
    names.all_safe(paths.values())
    return {url: replace(found[url], path=paths[url]) for url in sorted(paths, key=lambda u: natural(paths[u]))}


def _distinct(files: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return a name for each file, of its key and its path: the path, after as many directories as tell it apart."""
    parts = {url: [p for p in key.split("/") if p] for url, (key, _) in files.items()}
    depth = {url: path.count("/") + 1 for url, (_, path) in files.items()}
    while True:
        paths = {url: "/".join(parts[url][-depth[url] :]) for url in files}
        counts = Counter(map(names.folded, paths.values()))
        alike = [u for u, path in paths.items() if counts[names.folded(path)] > 1 and depth[u] < len(parts[u])]
        if not alike:
            return paths
        depth |= {u: depth[u] + 1 for u in alike}


def _urls(line: Mapping[str, Any]) -> list[str]:
    """Return the first URL of each file that a line names."""
    return [str(holder["urls"][0]) for holder in (line, *line.get("files", ())) if holder.get("urls")]


def _whole(request: DownloadRequest) -> DownloadRequest:
    """Return a request in which Zarr stores are the patterns of their files."""
    ref, *also = (stores.parts(u) if stores.is_store(u) else u for u in (request.ref, *request.also))
    return replace(request, ref=ref, also=tuple(also))


def _is_made_of(line: Mapping[str, Any], given: Sequence[str]) -> bool:
    """Return whether the files of a line are those that URLs and patterns name: none is missing, and none is left."""
    urls = _urls(line)
    each = [one for g in given for one in _alternatives(g)]
    found = [{u for u in urls if u == g or (_is_pattern(g) and _matches(u, g))} for g in each]
    return all(found) and set().union(*found) == set(urls)


def _matches(url: str, pattern: str) -> bool:
    return bool(names.selected([unquote(url)], unquote(pattern)))


# -- one URL


def _with_line(request: DownloadRequest) -> DownloadRequest:
    url, sha256 = request.ref.partition("#")[0], request.sha256
    _check_has_id(request)
    if sha256 is not None and not _SHA256.fullmatch(sha256.lower()):
        raise InvalidArgument(f"{sha256!r} is not a sha256.", hint="64 hexadecimal digits, as sha256sum prints them")
    names.safe(of_url(url))
    id = str(ids.parse(str(request.name)))
    line = {"id": id, "urls": [url]} | ({"sha256": sha256.lower()} if sha256 else {}) | dict(request.reading)
    return replace(request, ref=id, url=url, name=None, sha256=sha256 and sha256.lower(), line=line)


def _proposed(url: str) -> str:
    """Return an id for what a URL names."""
    stem = _TEXT.sub("-", of_url(url).partition(".")[0]).strip("-.") or "run"
    return f"local/{stem}"


def _check_page(url: str) -> None:
    """Refuse addresses of pages about files, and say where the file is."""
    parts = names.split(url)
    host = parts.netloc.rpartition("@")[2].lower()
    if host in _SITES and (page := _PAGE.fullmatch(parts.path.rstrip("/"))) and page["kind"] != "raw":
        repo, path, at = page["repo"], page["path"], page["revision"]
        if page["kind"] == "blob" and path:
            file = f"https://{host}/datasets/{repo}/resolve/{at}/{path}"
            raise InvalidArgument(f"{visible.shown(url)} is a page about a file.", hint=f"the file itself: {file}")
        raise _repository(url, repo)
    if host == "github.com" and (page := _GITHUB.fullmatch(parts.path)):
        file = f"https://github.com/{page['repo']}/raw/{page['path']}"
        raise InvalidArgument(f"{visible.shown(url)} is a page about a file.", hint=f"the file itself: {file}")


def _repository(url: str, repo: str) -> InvalidArgument:
    return InvalidArgument(
        f"{visible.shown(url)} is a page about a repository.",
        hint=f"a file of it: https://huggingface.co/datasets/{repo}/resolve/main/FILE --name local/NAME; a dataset "
        f"that rlds pushed: hf://datasets/{repo}; a LeRobot dataset: lerobot/{repo.removeprefix('lerobot/')}",
    )
