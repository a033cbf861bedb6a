"""A request to download a dataset. It is written down before the work begins, so that it can be resumed.

::

    <home>/partial/<family>+<name>.order     the request, without credentials; removed with the last step
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from rlds_cli import homes
from rlds_cli.base import ids, refs, settings, visible
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files import trees
from rlds_cli.base.files.locks import file_lock
from rlds_cli.base.files.names import SPANS
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.base.subset import EVERYTHING, Subset
from rlds_cli.errors import ArchiveError, DownloadFailed, InvalidId, NoPermission, RldsError, TransferError
from rlds_cli.homes import Home
from rlds_cli.places import Address, FileDownload, RemoteFile
from rlds_cli.registry import File, problems

Encoding = Literal["memmap", "zarr"]
Withheld = Literal["", "user", "query"]
_TAG = "order"
_HERE = ("home", "offline", "listed")  # of a process, not of the request


@dataclass(frozen=True, slots=True)
class DownloadRequest:
    """A dataset to download, with all options."""

    ref: str
    source: str | None = None
    storage: Encoding = "memmap"
    frames: str = "encoded"
    force: bool = False
    keep_archive: bool = True
    offline: bool = False
    home: StrPath | None = None
    skip_bad: bool = False
    portion: Subset = EVERYTHING
    files: tuple[File, ...] = ()  # exactly these files, from a lock, instead of those of the registry or a listing
    pinned: tuple[File, ...] = ()  # files of a lock, to be found in a listing
    revision: str | None = None  # of the repository to list
    withheld: Withheld = ""  # where ``source`` had credentials that were not written down
    name: str | None = None  # id for a dataset that was pushed to the address ``ref``
    blocks: bool = False  # go on with the blocks of a remote dataset
    sha256: str | None = None  # of the archive at the URL ``ref``
    # How the archive at a URL is read: format, fields, episodes_by, last_step, rewards.
    reading: Mapping[str, Any] = field(default_factory=dict)
    line: Mapping[str, Any] | None = None  # the line of a registry that describes ``ref``, instead of the registry
    url: str | None = None  # what was given instead of an id
    also: tuple[str, ...] = ()  # more URLs and patterns of the same archive
    listed: tuple[RemoteFile, ...] = ()  # the files that these URLs and patterns name, once they were asked for

    @property
    def variant(self) -> str | None:
        """The variant in the id of the dataset; None for the whole archive as published."""
        return "_".join(filter(None, (self.portion.name, ids.frames_variant(self.frames)))) or None

    @property
    def where(self) -> Settings:
        """The settings, with those of the request."""
        read = settings.read(self.home)
        return replace(read, offline=read.offline or self.offline)

    @classmethod
    def unfinished(cls, *, home: StrPath | None = None, offline: bool = False) -> tuple[DownloadRequest, ...]:
        """Return the unfinished downloads of the user's own home, without those that another process is working on."""
        where = settings.read(home)
        place = Home(where.home)
        wanted = {ids.parse(id): _order(values) for id, values in _noted(place)}
        return tuple(
            replace(request, home=home, offline=offline)
            for id, request in wanted.items()
            if request and (request.force or homes.path_of(id, where) is None) and not _busy(place, id)
        )


# -- requests on record


@contextmanager
def recorded(request: DownloadRequest, id: DatasetId, place: Home) -> Iterator[None]:
    """Keep a request on record while it runs, and afterwards if it failed in a way that can be resumed."""
    path = place.partial(id, _TAG)
    safe_files.directory(path.parent, place.root)
    documents.save_own(path, {k: v for k, v in asdict(_without_credentials(request)).items() if k not in _HERE})
    try:
        yield
    except RldsError as exc:
        if isinstance(exc, ArchiveError) or not bytes_left(id, place):  # an archive that cannot be read fails again
            path.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)


@contextmanager
def credentials_asked(request: DownloadRequest) -> Iterator[None]:
    """Add a hint to the errors of a resumed download whose credentials were not written down."""
    source = request.source or request.url or ""
    how = "--from ADDRESS" if request.source or request.line is None else f"ADDRESS --name {request.ref}"
    hint = f"rlds download {request.ref} {how}, with the whole address, resumes it; so does ~/.netrc"
    hint = hint.replace(f"{request.ref} ADDRESS", "ADDRESS")
    if request.withheld == "query":
        raise DownloadFailed(
            f"{request.ref} was requested from {visible.shown(source)}; the rest of its address is not on the disk.",
            hint=hint,
        )
    try:
        yield
    except TransferError as exc:
        if not request.withheld:
            raise
        told = f"{exc.message} Its address had credentials, which were not kept on the disk."
        raise type(exc)(told, hint=hint) from exc


def _without_credentials(request: DownloadRequest) -> DownloadRequest:
    """Return a request without credentials, and without addresses that need them in their query."""
    source = request.source and visible.shown(request.source)
    files, pinned = tuple(map(_shown, request.files)), tuple(map(_shown, request.pinned))
    given = filter(None, (request.source, request.url, *request.also))
    withheld = request.withheld or next(filter(None, map(_withheld, given)), "")
    also = tuple(map(visible.shown, request.also))
    ref = Address.parse(request.ref).pinned if refs.is_address(request.ref) else request.ref
    line, url = request.line and without_secrets(request.line), request.url and visible.shown(request.url)
    kept = replace(request, ref=ref, source=source, files=files, pinned=pinned, line=line, url=url, also=also)
    return replace(kept, withheld=withheld)


def _shown(file: File) -> File:
    """Return a file of a lock without its addresses that need credentials in their query, the others as shown."""
    return replace(file, urls=tuple(visible.shown(u) for u in file.urls if not _has_secret_query(u)))


def without_secrets(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line of a registry with its addresses as they may be written down."""
    shown = {k: [visible.shown(u) for u in line[k]] for k in ("urls", "tree") if k in line}
    files = [{**f, "urls": [visible.shown(u) for u in f["urls"]]} for f in line.get("files", ())]
    return {**line, **shown, **({"files": files} if files else {})}


def _withheld(url: str) -> Withheld:
    """Return the part of an address that holds credentials."""
    if _has_secret_query(url):
        return "query"
    return "user" if url.partition("#")[0] != visible.shown(url).partition("#")[0] else ""


def _has_secret_query(url: str) -> bool:
    return _query(visible.shown(url)) != _query(url)


def _query(url: str) -> str:
    return url.partition("#")[0].partition("?")[2]


def bytes_left(id: DatasetId, place: Home) -> int:
    """Count the bytes that unfinished work on ``id`` has left: files of its archive, and rows."""
    work = [p for p in place.partial(id, "x").parent.glob(f"{place.partial(id, '').name}*") if p.suffix != f".{_TAG}"]
    found = [f for top in (place.archive(id), *work) for f in trees.files(top) if f.name[0] != "."]
    return sum(_bytes_of(f) for f in found if f.suffix != ".lock" and not f.name.endswith((".part.json", SPANS)))


def _bytes_of(file: Path) -> int:
    """Return the bytes of a file; of a part to which several connections add, those that have arrived."""
    divided = file.suffix == ".part" and file.with_suffix(SPANS).exists()
    return FileDownload.kept(file.with_suffix("")) if divided else file.stat().st_size


def _noted(place: Home) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((place.root / "partial").glob(f"*.{_TAG}")):
        family, _, component = path.name.removesuffix(f".{_TAG}").partition("+")
        values = documents.load_own(path) if safe_files.is_own(path) else None  # nobody orders for others
        try:
            id = ids.from_component(family, component)
        except InvalidId:
            continue
        if values is not None and isinstance(values.get("ref"), str):
            yield str(id), values


def _order(values: dict[str, Any]) -> DownloadRequest | None:
    """Return the request that a file holds; None if it is not valid."""
    try:
        request = _read(values)
    except (TypeError, ValueError, OverflowError, KeyError, AttributeError):
        return None
    optional = (request.source, request.revision, request.name, request.sha256, request.url)
    texts = (request.ref, request.storage, request.frames, *(text or "" for text in optional))
    flags = (request.force, request.keep_archive, request.skip_bad, request.blocks)
    urls = [*request.also, *(u for f in (*request.files, *request.pinned) for u in (f.path, *f.urls))]
    sound = all(isinstance(t, str) for t in (*texts, *urls)) and all(isinstance(f, bool) for f in flags)
    sound &= isinstance(request.reading, dict) and _is_line(request.line, request.ref)
    sound &= request.storage in get_args(Encoding) and request.withheld in get_args(Withheld)
    return request if sound else None


def _is_line(line: object, id: str) -> bool:
    """Return whether a value of a file is the line of a registry for an id."""
    return line is None or (isinstance(line, dict) and line.get("id") == id and not any(problems(line)))


def _read(values: dict[str, Any]) -> DownloadRequest:
    known = {f.name: values[f.name] for f in fields(DownloadRequest) if f.name in values and f.name not in _HERE}
    portion: dict[str, Any] = known.pop("portion", None) or {}
    portion = {k: tuple(v) if isinstance(v, list) else v for k, v in portion.items()}
    known["also"] = tuple(known.get("also") or ())
    for name in ("files", "pinned"):
        known[name] = tuple(File(**{**f, "urls": tuple(f["urls"])}) for f in known.get(name) or ())
    return DownloadRequest(**known, portion=Subset(**portion))


def _busy(place: Home, id: DatasetId) -> bool:
    lock: Path = place.lock(id)
    if not lock.exists():
        return False
    try:
        with file_lock(lock).acquire(timeout=0):
            return False
    except (NoPermission, OSError):
        return True
