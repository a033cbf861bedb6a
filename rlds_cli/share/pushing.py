"""Push a version of a dataset to an address: objects first, then its index, and last the list of versions there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from os import PathLike
from pathlib import Path

from rlds_cli.base import settings, text
from rlds_cli.base.files.hashing import short
from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.base.progress import Event, Progress, Stage, shown
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.dataset import Dataset, version_of
from rlds_cli.errors import DamagedDataset, InvalidArgument, NameTaken, NewerFormat, RldsError, UploadFailed
from rlds_cli.look import pages_beside
from rlds_cli.places import (
    Address,
    Body,
    Index,
    Origins,
    Overtaken,
    PushedDataset,
    Versions,
    open_objects,
)
from rlds_cli.places.remote.index import Object
from rlds_cli.places.sources.objects import Objects
from rlds_cli.places.sources.place import Document
from rlds_cli.share import mending, packing, snapshot
from rlds_cli.share.packing import Known, NewObject, PushPlan
from rlds_cli.share.snapshot import Snapshot

_MOST_SIBLINGS = 100
_MOST_VERSIONS = 20  # at the address, whose objects are not sent again
_AT_ONCE = 16  # indexes that are read
_NOTICED = "of two pushes at the same moment, the later one stays"


@dataclass(frozen=True, slots=True)
class Pushed:
    """A dataset at an address, or the plan to push it (``dry_run``).

    Attributes
    ----------
    id, address, fingerprint : str
    version : int
    index : str
        The sha256 of its index there.
    sent : int
        Bytes of objects that are sent, without the index, the hashes of blocks, and what is for people.
    skipped : int
        Bytes of objects that already exist there, or that the store copies from a dataset beside this one.
    objects : int
        Objects of the dataset.
    dropped : int
        Dropped episodes of a growing dataset, which are sent, too.
    others : int
        Steps of other episodes that are sent, too: in the files of a selection or an older recording they lie between
        steps of this version.
    tags : tuple of str
        Tags of this version at the address.
    missing : mapping of str to int
        Tags of versions that are not at the address, with the numbers of these.
    mended : int
        Bytes of ``sent`` in objects that were missing or damaged at the address.
    damaged : tuple of int
        Numbers of versions at the address with a missing or damaged object that this version does not have.
    dry_run : bool
    """

    id: str
    address: str
    fingerprint: str
    version: int
    index: str
    sent: int
    skipped: int
    objects: int
    dropped: int = 0
    others: int = 0
    tags: tuple[str, ...] = ()
    missing: Mapping[str, int] = field(default_factory=dict)
    mended: int = 0
    damaged: tuple[int, ...] = ()
    dry_run: bool = False


def push(
    ref: StrPath | Dataset,
    to: StrPath,
    *,
    dry_run: bool = False,
    pages: bool | None = None,
    force: bool = False,
    verify: bool = False,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Pushed:
    """Push a version of a dataset on this disk to an address. What already exists is not sent again.

    Earlier versions stay at the address, until `gc.collect_address` removes them. Tags go along.

    Parameters
    ----------
    ref : str, path or Dataset
        A dataset on this disk, at its newest version, while a writer may be at work; or as it is open. ``ID#v3`` is
        another one, which becomes the newest at the address only if it is the newest here.
    to : str or path
        ``hf://datasets/OWNER/NAME``, ``s3://BUCKET/PATH``, ``gs://BUCKET/PATH`` or a directory.
    dry_run : bool
        Read everything and return the plan; nothing is written anywhere.
    pages : bool, optional
        Write the card, Croissant metadata and the HTML report, for which all rows are read. By default the report is
        left out if it is not small beside what is sent to an address that has a part; True always writes it.
    force : bool
        Replace a dataset with another id. Locks of that one find it until its objects are removed.
    verify : bool
        Read all objects of all versions at the address and compare them with their hashes. Objects that are missing,
        or that the store lists with another size or hash, are noticed without it. What this version has is sent again.
    home : path, optional
        A home instead of ``RLDS_HOME``.

    Raises
    ------
    InvalidArgument
        ``ref`` is a selection, which is not a version.
    UploadFailed
        The store does not take it, or another push replaced the index meanwhile. The index that is there is whole, and
        the same call continues.
    DownloadFailed
        The store does not give the existing index.
    NameTaken
        The address holds a dataset with another id. New content of the same id is another version of it.
    DamagedDataset
        The dataset is damaged, or what lies at the address is not a dataset.
    MissingPackage
        A package for this kind of store is not installed.

    Examples
    --------
    >>> import rlds_cli, tempfile
    >>> ds = rlds_cli.download("sample/pendulum-d4rl", home=tempfile.mkdtemp())
    >>> rlds_cli.push(ds, tempfile.mkdtemp()).objects
    1
    """
    if not isinstance(ref, str | PathLike):
        _check_whole(ref)
    named = version_of(ref, home=home)
    address, where, tell = Address.parse(to), settings.read(home), shown(progress)
    path, taken = Path(named.place), snapshot.take(named)
    done = send(
        taken,
        address,
        where,
        dry_run=dry_run,
        force=force,
        verify=verify,
        documents=partial(_pages, path=path, pages=pages, progress=tell),
        progress=tell,
    )
    if not dry_run:
        _record(path, taken, address, done.index)
    return done


def _check_whole(dataset: Dataset) -> None:
    """Refuse an open dataset that is not a version on this disk."""
    if dataset.is_selection:
        raise InvalidArgument(
            f"{dataset.id}: a selection is not a version, which push takes.",
            hint="rlds_cli.push(ds.save(NAME), ...), with the ds that was selected",
        )
    dataset.store.table.check_changeable()


def _pages(
    plan: PushPlan, objects: Objects, *, path: Path, pages: bool | None, progress: Progress
) -> Mapping[str, bytes]:
    """Return what is written beside the index for people: the pages of the dataset in ``path``; see `push`."""
    if pages is False:
        return {}

    def read(name: str) -> bytes | None:
        there = objects.read(name)
        return None if there is None else there.data

    index, at = plan.index, objects.address
    return pages_beside(
        path,
        index.stored_files,
        read,
        size=sum(o.size for o in index.objects),
        version=index.version,
        address=None if at.scheme == "file" else str(at),
        url=at.page(objects.where.hub),
        sent=plan.to_send,
        always=pages is True,
        progress=progress,
    )


def send(
    taken: Snapshot,
    address: Address,
    where: Settings,
    *,
    dry_run: bool = False,
    force: bool = False,
    verify: bool = False,
    in_place: Collection[str] = (),
    documents: Callable[[PushPlan, Objects], Mapping[str, bytes]] = lambda plan, objects: {},
    progress: Progress,
    policy: RetryPolicy | None = None,
) -> Pushed:
    """Push a snapshot; see `push`, and `packing.plan`. ``documents`` are written beside the index, for people."""
    check_writable(address)
    with open_objects(address, where, policy=policy, progress=progress) as objects:
        found = _versions_there(objects, taken.id, force=force)
        there = stored(objects)
        known = _known(objects, _indexes_there(found, taken, objects, every=verify), there, in_place)
        if verify:
            known = mending.without_damage(known)
            proved = [o for k in known for o in k.index.objects if o.sha256 in k.there]
            there = {name: size for o in proved for name, size in o.stored.items()}
        refused: set[str] = set()  # places beside this one whose objects cannot be copied
        while True:
            plan = _plan(taken, objects, known, refused, progress, in_place=in_place)
            versions = _added(found, taken, plan.index)
            if dry_run:
                return _pushed(plan, taken, address, there, versions, dry_run=True)
            beside = documents(plan, objects)
            try:
                _send_objects(plan, objects, there, taken.id, progress)
                break
            except _NotCopied as e:
                refused.add(e.place)
        _write_index(plan, versions, objects, found, beside if taken.newest else {})
        if not objects.compares:
            progress(Event(taken.id, "note", note=f"{address} cannot compare before it writes: {_NOTICED}"))
    done = _pushed(plan, taken, address, there, versions)
    sizes = f"{text.size_of(done.sent)} sent, {text.size_of(done.skipped)} already stored"
    progress(Event(taken.id, "ready", note=f"indexed in {address}" if in_place else f"pushed to {address}: {sizes}"))
    return done


def _added(found: tuple[Versions, Document] | None, taken: Snapshot, index: Index) -> Versions:
    """Return the versions at an address with that of a snapshot."""
    there = found[0] if found is not None and found[0].id.lower() == taken.id.lower() else Versions(taken.id)
    return there.added(
        index,
        created=taken.created,
        change=taken.change,
        episodes=taken.episodes,
        steps=taken.steps,
        newest=taken.newest,
        tags=taken.tags,
    )


def _pushed(
    plan: PushPlan,
    taken: Snapshot,
    address: Address,
    there: Mapping[str, int],
    versions: Versions,
    *,
    dry_run: bool = False,
) -> Pushed:
    sent = sum(o.object.size for o in plan.new if not (o.object.path or is_there(o.object, there)))
    mended = {o.object for o in plan.mended}
    return Pushed(
        id=taken.id,
        address=str(address),
        fingerprint=taken.fingerprint,
        version=taken.version,
        index=plan.index.sha256,
        sent=sent + sum(o.size for o in mended),
        skipped=sum(o.size for o in plan.index.objects if o not in mended) - sent,
        objects=len(plan.index.objects),
        dropped=taken.store.table.dropped,
        others=taken.others,
        tags=tuple(name for name, index in versions.tags.items() if index == plan.index.sha256),
        missing={name: number for name, number in taken.tags.items() if name not in versions.tags},
        mended=sum(o.size for o in mended),
        damaged=plan.damaged,
        dry_run=dry_run,
    )


def _versions_there(objects: Objects, id: str, *, force: bool) -> tuple[Versions, Document] | None:
    """Return the versions at an address; without ``force``, those of a dataset with another id are a NameTaken."""
    try:
        found = PushedDataset(objects).find_versions()
    except (DamagedDataset, NewerFormat) as e:
        raise type(e)(
            f"{e.message.removesuffix(' Nothing was written.')} Nothing was sent.",
            hint=f"push to another address, or remove {objects.address}/{Versions.NAME}",
        ) from e
    if found is not None and found[0].id.lower() != id.lower() and not force:
        raise NameTaken(
            f"{objects.address} holds {found[0].id} ({short(found[0].newest.fingerprint)}), not {id}: "
            "its versions and tags would no longer be found there. Nothing was sent.",
            hint=f"push {id} to an address of its own; or --force (force=True) replaces {found[0].id} there",
        )
    return found


def check_writable(address: Address) -> None:
    """Raise UploadFailed if nothing can be pushed to an address, and InvalidArgument if it names a version."""
    if address != address.unpinned:
        raise InvalidArgument(f"{address.pinned} names a version that already exists.", hint=f"push to {address}")
    if address.scheme in ("http", "https"):
        raise UploadFailed(
            f"{address} can only be read. Nothing was sent.",
            hint="push to the directory that its server serves, and copy that there; or to hf://, s3:// or gs://",
        )


def stored(objects: Objects) -> dict[str, int]:
    """Return names and sizes of the objects at an address, and of the lists of their blocks.

    An object is left out if the store says that it has another sha256 than its name.
    """
    found: dict[str, int] = {}
    for name, meta in (objects.files("objects/") | objects.files("blocks/")).items():
        if not (name.startswith("objects/") and meta.sha256 and meta.sha256 != name[8:]):
            found[name] = meta.size or 0
    return found


def is_there(o: Object, there: Mapping[str, int]) -> bool:
    """Return whether an object is ``there`` (names and sizes), with the list of its blocks."""
    return o.stored.items() <= there.items()


# -- the plan


def _known(
    objects: Objects, indexes: Sequence[Index], there: Mapping[str, int], in_place: Collection[str]
) -> list[Known]:
    """Return indexes at the address with those of their objects that exist."""
    found = []
    for index in indexes:
        usable = (o for o in index.objects if is_there(o, there) and (not o.path or o.path in in_place))
        known = Known(objects, index, True, frozenset(o.sha256 for o in usable))
        if _has_hashes(known):
            found.append(known)
    return found


def _plan(
    taken: Snapshot,
    objects: Objects,
    known: list[Known],
    refused: Set[str],
    tell: Progress,
    *,
    in_place: Collection[str],
) -> PushPlan:
    """Plan a push beside the indexes at the address, whose lost objects are mended as far as the snapshot has them."""
    told = _Told(taken.id, "verify", taken.size, tell)
    mended = mending.made_again(known, taken, told)
    again = {made.object.sha256 for made in mended}
    known = [replace(k, there=k.there | (again & {o.sha256 for o in k.index.objects})) for k in known]
    damaged = {k.index.version for k in known if mending.missing([k])} - {taken.version}
    if not in_place and (not known or known[0].index.manifest != taken.manifest):
        known += _beside(objects, refused)
    plan = packing.plan(taken, known, told, in_place=in_place)
    return replace(plan, mended=mended, damaged=tuple(sorted(damaged)))


def _indexes_there(
    found: tuple[Versions, Document] | None, taken: Snapshot, objects: Objects, *, every: bool
) -> list[Index]:
    """Return indexes of versions at the address: the snapshot's own, the newest, those with tags, and earlier ones."""
    if found is None:
        return []

    def read(sha256: str) -> Index | None:
        with suppress(DamagedDataset):  # its objects are sent again
            return PushedDataset(objects).index(sha256)
        return None

    earlier = found[0].versions[::-1]
    same = (v for v in earlier if (v.number, v.fingerprint) == (taken.version, taken.fingerprint))
    tagged = (v for v in earlier if found[0].tags_of(v))
    wanted = dict.fromkeys(v.index for v in (*same, found[0].newest, *tagged, *earlier))
    some = wanted if every else islice(wanted, _MOST_VERSIONS)
    with ThreadPoolExecutor(_AT_ONCE, "versions") as pool:
        return [index for index in pool.map(read, some) if index is not None]


def _beside(objects: Objects, refused: Set[str]) -> list[Known]:
    """Return the datasets beside the address; what cannot be read is passed over."""

    def read(place: Objects) -> Known | None:
        with suppress(RldsError):
            found = PushedDataset(place).find_index()
            if found is not None:
                known = Known(place, found, False, frozenset(o.sha256 for o in found.objects if not o.path))
                return known if _has_hashes(known) else None
        return None

    places = [p for p in islice(objects.siblings(), _MOST_SIBLINGS) if str(p.address) not in refused]
    with ThreadPoolExecutor(_AT_ONCE, "beside") as pool:
        return [k for k in pool.map(read, places) if k is not None]


def _has_hashes(known: Known) -> bool:
    """Return whether the hashes of groups of an index are stored; without them its objects are not taken over."""
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


def _send_objects(plan: PushPlan, objects: Objects, there: Mapping[str, int], id: str, tell: Progress) -> None:
    """Copy and send what is not there, few objects at a time: a push that is killed repeats no more than these."""
    for known, o in plan.copied:
        blocks = mending.blocks_of_proved(known, o, plan.index)
        if blocks is None or not objects.copy(known.objects, o.name):  # also over one that another push left
            raise _NotCopied(str(known.objects.address))
        if not (mending.is_list(known, o, blocks) and objects.copy(known.objects, o.list[0])):
            objects.put(o.list[0], Body.of(blocks))
    todo = [*plan.mended, *(made for made in plan.new if not is_there(made.object, there))]
    told = _Told(id, "send", sum(made.object.size for made in todo if not made.object.path), tell)

    def send(made: NewObject) -> None:
        objects.put(made.object.list[0], Body.of(made.blocks))
        if not made.object.path:
            objects.put(made.object.name, made.body(told))

    objects.client.each(send, todo, objects.place.at_once)


def _write_index(
    plan: PushPlan,
    versions: Versions,
    objects: Objects,
    found: tuple[Versions, Document] | None,
    beside: Mapping[str, bytes],
) -> None:
    """Write the hashes of groups, the index, and then the versions, if they are still those that were seen."""
    if not objects.commits:
        now = stored(objects)
        gone = next((o for o in plan.index.objects if not is_there(o, now)), None)
        if gone is not None:
            raise UploadFailed(
                f"{objects.address}/{gone.name} is gone: somebody removed it meanwhile. The index was not written.",
                hint="the same command again sends it",
            )
    content, index = versions.to_bytes(), plan.index.to_bytes()
    Index.parse(index, f"The index for {objects.address}")  # what is written can be read
    Versions.parse(content, f"The versions at {objects.address}")
    objects.put(plan.index.groups_name, Body.of(plan.hashes))
    objects.put(plan.index.name, Body.of(index))
    replace_versions(objects, content, None if found is None else found[1], beside)


def replace_versions(objects: Objects, content: bytes, seen: Document | None, beside: Mapping[str, bytes] = {}) -> None:
    """Write the versions at an address; raises UploadFailed if they are not those that were seen any more."""
    try:
        objects.replace(Versions.NAME, content, None if seen is None else seen.tag, beside)
    except Overtaken:
        raise UploadFailed(
            f"Somebody else pushed to {objects.address} meanwhile; what they pushed is stored, and whole.",
            hint="the same command again continues from there, and sends only what is missing",
        ) from None


def _record(path: Path, taken: Snapshot, address: Address, index: str) -> None:
    """Note in the home that a dataset is at an address, unless it came from another one."""
    with suppress(RldsError):
        origins, version = Origins(path), taken.store.table.pinned_version
        known = origins.of_content(taken.fingerprint)
        if not (known and known.pulled):
            origins.record(
                address=str(address),
                fingerprint=taken.fingerprint,
                version=version,
                version_id=None if version is None else taken.store.version_id,
                index=index,
                pulled=False,
            )
