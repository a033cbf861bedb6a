"""Push a dataset to an address: objects first, the index last, so that readers see the old dataset or the new one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rlds_cli import ids, settings, text
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset, InvalidArgument, NameTaken, NewerFormat, RldsError, UploadFailed
from rlds_cli.files.hashing import short
from rlds_cli.home import Home, locate
from rlds_cli.http.client import RetryPolicy
from rlds_cli.progress import Event, Progress, Stage, shown
from rlds_cli.refs import Ref
from rlds_cli.remote import index as indexes
from rlds_cli.remote import origins
from rlds_cli.remote.index import Index, Object
from rlds_cli.remote.origins import Origin
from rlds_cli.remote.reading import read_index
from rlds_cli.settings import Settings, StrPath
from rlds_cli.sharing import copies, packing, snapshot
from rlds_cli.sharing.packing import Cuts, Known, NewObject, Plan
from rlds_cli.sharing.pages import pages as make_pages
from rlds_cli.sharing.snapshot import Snapshot
from rlds_cli.sources import addresses
from rlds_cli.sources.addresses import Address
from rlds_cli.sources.objects import Objects
from rlds_cli.sources.opening import open_objects
from rlds_cli.sources.source import Body, Document, Overtaken

_MOST_SIBLINGS = 100
_AT_ONCE = 16  # indexes that are read
_NOTICED = "of two pushes at the same moment, the later one stays"


@dataclass(frozen=True, slots=True)
class Pushed:
    """A dataset at an address, or the plan to push it (``dry_run``).

    Attributes
    ----------
    id, address, fingerprint : str
    version : int, optional
        Of a dataset that grows.
    sent : int
        Bytes of objects that are sent, without the index, the hashes of blocks, and what is for people.
    skipped : int
        Bytes of objects that are there already, or that the store copies from a dataset beside this one.
    objects : int
        Objects of the dataset.
    dropped : int
        Dropped episodes of a dataset that grows, which are sent, too.
    removed : int
        Bytes of objects that ``prune`` removed: no index there names them any more.
    dry_run : bool
    """

    id: str
    address: str
    fingerprint: str
    version: int | None
    sent: int
    skipped: int
    objects: int
    dropped: int = 0
    removed: int = 0
    dry_run: bool = False


def push(
    ref: StrPath,
    to: StrPath,
    *,
    dry_run: bool = False,
    prune: bool = False,
    pages: bool | None = None,
    force: bool = False,
    cache_dir: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Pushed:
    """Push a dataset that is here to an address. What is there already is not sent again.

    Parameters
    ----------
    ref : str or path
        A dataset that is here, at its newest version, while a writer may be at work; ``ID#v3`` is another one.
    to : str or path
        ``hf://datasets/OWNER/NAME``, ``s3://BUCKET/PATH``, ``gs://BUCKET/PATH`` or a directory.
    dry_run : bool
        Read everything and return the plan; nothing is written anywhere.
    prune : bool
        Remove objects that the new index does not name: those of older pushes, which readers of an older index need.
        What is used of objects that are less than half used is sent again.
    pages : bool, optional
        Write the card, Croissant metadata and the HTML report, for which all rows are read. By default the report is
        left out if it is not small beside what is sent of a dataset that is there in part; True always writes it.
    force : bool
        Replace the index of a dataset with another id. Pins and locks of that one no longer find it at the address.
    cache_dir : path, optional
        A home instead of ``RLDS_HOME``.

    Raises
    ------
    UploadFailed
        The store does not take it, or another push replaced the index meanwhile. The index that is there is whole, and
        the same call goes on.
    DownloadFailed
        The store does not give the index that is there.
    NameTaken
        The address holds a dataset with another id. New content of the same id replaces the old one.
    DamagedDataset
        The dataset is damaged, or what lies at the address is no dataset.
    MissingPackage
        A package for this kind of store is not installed.

    Examples
    --------
    >>> import rlds_cli, tempfile
    >>> ds = rlds_cli.download("sample/pendulum-d4rl", cache_dir=tempfile.mkdtemp())
    >>> rlds_cli.push(ds.path, tempfile.mkdtemp()).objects
    1
    """
    if isinstance(ref, Dataset):  # it may be a selection, or an older version
        raise InvalidArgument(
            "push takes the id or the directory of a dataset, not the dataset itself.",
            hint=f"rlds_cli.push({str(ref.id)!r}, ...) pushes all of its episodes; rlds_cli.create(ID, ...) keeps some",
        )
    named = locate.version(ref, cache_dir=cache_dir)
    address, where = addresses.parse(to), settings.read(cache_dir)
    how: dict[str, Any] = {"dry_run": dry_run, "prune": prune, "pages": pages, "force": force}
    return push_from(named, address, where, **how, progress=shown(progress))


def push_from(
    ref: Ref,
    address: Address,
    where: Settings,
    *,
    dry_run: bool = False,
    prune: bool = False,
    pages: bool | None = None,
    force: bool = False,
    cuts: Mapping[str, Cuts] = {},
    progress: Progress,
) -> Pushed:
    """Push a version of the dataset in a directory; see `push`, and `packing.plan` for ``cuts``."""
    path, taken = Path(ref.place), snapshot.take(ref)

    def beside(plan: Plan, objects: Objects) -> Mapping[str, bytes]:
        if pages is False:
            return {}
        return make_pages(path, plan.index, objects, sent=plan.to_send, always=pages is True, progress=progress)

    how: dict[str, Any] = {"dry_run": dry_run, "prune": prune, "force": force, "cuts": cuts, "documents": beside}
    done = send(taken, address, where, **how, progress=progress)
    if not dry_run:
        _record(path, taken, address)
    return done


def send(
    taken: Snapshot,
    address: Address,
    where: Settings,
    *,
    dry_run: bool = False,
    prune: bool = False,
    force: bool = False,
    cuts: Mapping[str, Cuts] = {},
    documents: Callable[[Plan, Objects], Mapping[str, bytes]] = lambda plan, objects: {},
    progress: Progress,
    policy: RetryPolicy | None = None,
) -> Pushed:
    """Push a snapshot; see `push`. ``documents`` are written beside the index, for people."""
    check_writable(address)
    with open_objects(address, where, policy=policy, progress=progress) as objects:
        found = _index_there(objects)
        if not force:
            check_same(found, taken.id, address)
        there = stored(objects)
        old = there | objects.names("groups/") if prune else {}
        refused: set[str] = set()  # places beside this one whose objects cannot be copied
        while True:
            plan = _plan(taken, objects, found, there, refused, progress, prune=prune, cuts=cuts)
            if dry_run:
                return _pushed(plan, taken, address, there, dry_run=True)
            beside = documents(plan, objects)
            try:
                _send_objects(plan, objects, there, taken.id, progress)
                break
            except _NotCopied as e:
                refused.add(e.place)
        _write_index(plan, objects, found, beside)
        if not objects.compares:
            progress(Event(taken.id, "note", note=f"{address} cannot compare before it writes: {_NOTICED}"))
        removed = _prune(objects, plan.index, old) if prune else 0
    done = _pushed(plan, taken, address, there, removed=removed)
    sizes = f"{text.size_of(done.sent)} sent, {text.size_of(done.skipped)} were there"
    progress(Event(taken.id, "ready", note=f"pushed to {address}: {sizes}"))
    return done


def _pushed(
    plan: Plan,
    taken: Snapshot,
    address: Address,
    there: Mapping[str, int],
    *,
    removed: int = 0,
    dry_run: bool = False,
) -> Pushed:
    sent = sum(o.object.size for o in plan.new if not is_there(o.object, there))
    return Pushed(
        id=taken.id,
        address=str(address),
        fingerprint=taken.fingerprint,
        version=taken.version,
        sent=sent,
        skipped=sum(o.size for o in plan.index.objects) - sent,
        objects=len(plan.index.objects),
        dropped=taken.dropped,
        removed=removed,
        dry_run=dry_run,
    )


def _index_there(objects: Objects) -> tuple[Index, Document] | None:
    try:
        return read_index(objects)
    except (DamagedDataset, NewerFormat) as e:
        raise type(e)(
            f"{e.message.removesuffix(' Nothing was written.')} Nothing was sent.",
            hint=f"push to another address, or remove {objects.address}/{indexes.NAME}",
        ) from e


def check_same(found: tuple[Index, Document] | None, id: str, address: Address) -> None:
    """Raise NameTaken if the index that was found at an address is that of a dataset with another id."""
    if found is not None and found[0].id.lower() != id.lower():
        raise NameTaken(
            f"{address} holds {found[0].id} ({short(found[0].fingerprint)}), not {id}: pins and locks of it would no "
            "longer find it there. Nothing was sent.",
            hint=f"push {id} to an address of its own; or --force (force=True) replaces {found[0].id} there",
        )


def check_address(address: Address, where: Settings, id: str) -> None:
    """Raise NameTaken if an address holds a dataset with another id; DownloadFailed if it cannot be read."""
    with open_objects(address, where) as objects:
        check_same(_index_there(objects), id, address)


def check_writable(address: Address) -> None:
    """Raise UploadFailed if nothing can be pushed to an address, and InvalidArgument if it names a version."""
    if address != address.unpinned:
        raise InvalidArgument(f"{address.pinned} names a version that is there already.", hint=f"push to {address}")
    if address.scheme in ("http", "https"):
        raise UploadFailed(
            f"{address} can only be read. Nothing was sent.",
            hint="push to the directory that its server serves, and copy that there; or to hf://, s3:// or gs://",
        )


def stored(objects: Objects) -> dict[str, int]:
    """Return names and sizes of the objects at an address, and of the lists of their blocks."""
    return objects.names("objects/") | objects.names("blocks/")


def is_there(o: Object, there: Mapping[str, int]) -> bool:
    """Return whether an object is ``there`` (names and sizes), with the list of its blocks."""
    return o.stored.items() <= there.items()


# -- the plan


def _plan(
    taken: Snapshot,
    objects: Objects,
    found: tuple[Index, Document] | None,
    there: Mapping[str, int],
    refused: Set[str],
    tell: Progress,
    *,
    prune: bool,
    cuts: Mapping[str, Cuts],
) -> Plan:
    known = []
    if found is not None:
        index = found[0]
        known = [Known(objects, index, True, frozenset(o.sha256 for o in index.objects if is_there(o, there)))]
        known = [k for k in known if _has_hashes(k)]
    if not known or known[0].index.manifest != taken.manifest:
        known += _beside(objects, refused)
    return packing.plan(taken, known, _Told(taken.id, "verify", taken.size, tell), prune=prune, cuts=cuts)


def _beside(objects: Objects, refused: Set[str]) -> list[Known]:
    """Return the datasets beside the address; what cannot be read is passed over."""

    def read(place: Objects) -> Known | None:
        with suppress(RldsError):
            found = read_index(place)
            if found is not None:
                known = Known(place, found[0], False, frozenset(o.sha256 for o in found[0].objects))
                return known if _has_hashes(known) else None
        return None

    places = [p for p in islice(objects.siblings(), _MOST_SIBLINGS) if str(p.address) not in refused]
    with ThreadPoolExecutor(_AT_ONCE, "beside") as pool:
        return [k for k in pool.map(read, places) if k is not None]


def _has_hashes(known: Known) -> bool:
    """Return whether the hashes of groups of an index are there; without them its objects are not taken over."""
    try:
        _ = known.hashes
    except DamagedDataset:
        return False
    return True


class _Told:
    """Reports bytes of a stage of the work, from several threads."""

    def __init__(self, id: str, stage: Stage, total: int, progress: Progress) -> None:
        self._id, self._stage, self._total, self._progress = id, stage, total, progress
        self._done = 0
        self._lock = threading.Lock()

    def __call__(self, size: int) -> None:
        with self._lock:
            before, self._done = self._done, min(self._total, self._done + size)
            if self._done == before:  # what is sent again after a failure
                return
            self._progress(Event(self._id, self._stage, "", self._done, self._total))


# -- writing


class _NotCopied(Exception):
    """The store does not copy the objects of a place beside the address, or they are not what its index says."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


def _send_objects(plan: Plan, objects: Objects, there: Mapping[str, int], id: str, tell: Progress) -> None:
    """Copy and send what is not there, one object after the other: a push that is killed repeats one at most."""
    for known, o in plan.copied:
        blocks = copies.check(known, o, plan.index)
        if blocks is None or not objects.copy(known.objects, o.name):  # also over one that another push left
            raise _NotCopied(str(known.objects.address))
        if not (copies.is_list(known, o, blocks) and objects.copy(known.objects, o.list[0])):
            objects.put(o.list[0], Body.of(blocks))
    todo = [made for made in plan.new if not is_there(made.object, there)]
    told = _Told(id, "send", sum(made.object.size for made in todo), tell)
    for made in todo:
        put_object(objects, made, told)


def put_object(objects: Objects, made: NewObject, told: Callable[[int], None] = lambda done: None) -> None:
    """Send an object, after the list of the hashes of its blocks; raises UploadFailed."""
    objects.put(made.object.list[0], Body.of(made.blocks))
    objects.put(made.object.name, made.body(told))


def _write_index(
    plan: Plan, objects: Objects, found: tuple[Index, Document] | None, beside: Mapping[str, bytes]
) -> None:
    """Write the hashes of groups, and then the index, if it is still the one that was seen."""
    if not objects.commits:
        now = stored(objects)
        gone = next((o for o in plan.index.objects if not is_there(o, now)), None)
        if gone is not None:
            raise UploadFailed(
                f"{objects.address}/{gone.name} is gone: somebody removed it meanwhile. The index was not written.",
                hint="the same command again sends it",
            )
    content = plan.index.to_bytes()
    indexes.parse(content, f"The index for {objects.address}")  # what is written can be read
    objects.put(plan.index.groups_name, Body.of(plan.hashes))
    try:
        objects.replace(indexes.NAME, content, None if found is None else found[1].tag, beside)
    except Overtaken:
        raise UploadFailed(
            f"Somebody else pushed to {objects.address} meanwhile; what they pushed is there, and whole.",
            hint="the same command again replaces it, and sends only what is missing",
        ) from None


def _prune(objects: Objects, index: Index, old: Mapping[str, int]) -> int:
    """Remove what the index does not name and was there before this push began; return the bytes."""
    named = {name for o in index.objects for name in o.stored} | {index.groups_name}
    unnamed = {name: size for name, size in old.items() if name not in named}
    objects.delete_all(unnamed)
    objects.tidy()
    return sum(unnamed.values())


def _record(path: Path, taken: Snapshot, address: Address) -> None:
    """Note in the home that a dataset is at an address, unless it came from another one."""
    with suppress(RldsError, IndexError):
        place, id = Home(path.parents[2]), ids.from_component(path.parent.name, path.name)
        known = origins.of(place, id)
        if place.dataset(id) == path and not (known and known.pulled and known.fingerprint == taken.fingerprint):
            version_id = None if taken.version is None else taken.store.version_id
            origins.record(place, id, Origin(str(address), taken.fingerprint, taken.version, version_id, pulled=False))
