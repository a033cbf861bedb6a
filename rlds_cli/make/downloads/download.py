"""Plan and run downloads of datasets; copy published datasets from another home or directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlds_cli import home, registry
from rlds_cli.base import ids, refs, settings, subset, text
from rlds_cli.base.files import disk, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.progress import Event, Progress, shown, silent
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.base.subset import Subset
from rlds_cli.errors import (
    DamagedDataset,
    DatasetNotFound,
    DownloadFailed,
    InvalidArgument,
    InvalidId,
    NameTaken,
    NoSpace,
    Offline,
    RldsError,
    TransferError,
)
from rlds_cli.home import Home
from rlds_cli.make.downloads.request import DownloadRequest, Encoding, bytes_left, credentials_asked, recorded
from rlds_cli.places import Address
from rlds_cli.registry import Entry
from rlds_cli.store import History, Manifest, StoredDataset, share_tree

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset
    from rlds_cli.make.downloads.archive import Transfer


# Opening a dataset on this disk imports neither NumPy nor requests nor a reader: other work imports them itself.


@dataclass(frozen=True, slots=True)
class Delivery:
    """The plan for one dataset.

    ``here`` is its directory if it already exists. ``to_fetch`` are bytes over the network, as far as sizes are
    known; ``unknown`` counts the files whose size only their server knows; ``cache`` estimates the dataset's bytes.
    """

    id: str
    here: Path | None
    files: int = 0
    to_fetch: int = 0
    unknown: int = 0
    cache: int | None = None
    actions: Mapping[str, int] | None = None  # how many files are reused, adopted, linked, fetched
    note: str = ""
    # For `deliver`, so that the source is asked once.
    transfer: Transfer | None = field(default=None, repr=False, compare=False, metadata={"json": False})
    request: DownloadRequest | None = field(default=None, repr=False, compare=False, metadata={"json": False})


@dataclass(frozen=True, slots=True)
class Deliveries:
    """The plans for several datasets, and the free space for them."""

    datasets: tuple[Delivery, ...]
    home: Path
    free: int

    @property
    def to_fetch(self) -> int:
        """Bytes to download, as far as sizes are known."""
        return sum(d.to_fetch for d in self.datasets)

    @property
    def needed(self) -> int:
        """Additional bytes on disk for archives and datasets, as far as sizes are known."""
        return self.to_fetch + sum(d.cache or 0 for d in self.datasets)

    def kept(self) -> tuple[list[str], dict[str, int]]:
        """Return what an interruption has left: ids of datasets that are made, and bytes of work on others by id."""
        place = Home(self.home)
        wanted = [ids.parse(d.id) for d in self.datasets if d.here is None]
        made = [id for id in wanted if home.is_dataset(place.dataset(id))]
        left = {str(id): bytes_left(id, place) for id in wanted if id not in made}
        return [str(id) for id in made], {id: size for id, size in left.items() if size}


def download(
    ref: str | Sequence[str],
    *,
    source: str | None = None,
    store: Encoding = "memmap",
    frames: str = "encoded",
    jobs: int | None = None,
    force: bool = False,
    keep_archive: bool = True,
    offline: bool = False,
    skip_bad: bool = False,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    split: str | None = None,
    episodes: str | None = None,
    as_: str | None = None,
    blocks: bool = False,
    sha256: str | None = None,
    reader: str | None = None,
    fields: Mapping[str, str | Sequence[str]] | None = None,
    episodes_by: str | None = None,
    last_step: str | None = None,
    rewards: str | None = None,
    cache_dir: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Dataset:
    """Download, verify and convert a dataset, unless it already exists. Safe to call from any number of ranks.

    Parameters
    ----------
    ref : str or sequence of str
        An id of the registry, or an alias; or the id of a variant on this disk; or the address of a dataset that was
        pushed: ``hf://datasets/OWNER/NAME``, ``s3://BUCKET/PATH``, ``gs://BUCKET/PATH``, ``https://HOST/PATH/`` or a
        directory. ``ADDRESS#rlds1:...`` pins its content. Or the URL of an archive, ``https://HOST/run.hdf5``, which
        is recognised as `importing.import_files` does; several URLs, or a pattern such as
        ``https://HOST/runs/*.hdf5``, are the files of one archive.
    source : str, optional
        The only file, directory or mirror to take the archive from; or a dataset to copy.
    store : {"memmap", "zarr"}
        Memory-mapped files, or compressed ones.
    frames : str
        ``encoded``: images stay as published. ``raw`` or ``HxW`` (``84x84``): decoded at conversion, as ``ID@raw``.
    jobs : int, optional
        Worker processes for the conversion; None converts in this one. More need the guard
        ``if __name__ == "__main__":`` in a script.
    force : bool
        Verify the archive, fetch files with a wrong hash again, convert, and replace the dataset.
    keep_archive : bool
        False removes the downloaded files after the conversion.
    offline : bool
        Never touch the network, as ``RLDS_OFFLINE=1``.
    skip_bad : bool
        Leave out files of the archive that cannot be read; the manifest names them. By default they are an error.
    include, exclude : str or sequence of str, optional
        Patterns such as ``"seed1*"`` for paths or names of files to use, or to leave out. The dataset is then a part
        of the archive, with the id ``ID@include-...``.
    split : str, optional
        Only the episodes of this split, as ``ID@split-train``.
    episodes : str, optional
        Only a range of episodes, or of those of the split: ``"0:100"``, as ``ID@episodes-0-100``. Only the files that
        hold them are fetched where the layout tells which those are.
    as_ : str, optional
        Id for a dataset at an address, such as ``local/NAME``; by default its own, if that is ``local/...``. An
        archive at URLs needs one.
    blocks : bool
        Reuse the blocks of a dataset at an address that were cached when it was read there.
    sha256 : str, optional
        The hash that the archive at a URL must have. Without it, the hash of what arrives is recorded.
    reader, fields, episodes_by, last_step, rewards : optional
        How the archive at a URL is read, as in `importing.plan_import`.
    cache_dir : path, optional
        A home instead of ``RLDS_HOME``.

    Raises
    ------
    UnknownDataset
        The registry has no such id; the hint says which are near.
    NameTaken
        The id exists, and was made of another URL, of another file, or with other options.
    DownloadFailed, WrongHash, Offline
        The archive could not be downloaded, or its hash is wrong.
    ArchiveError
        The archive cannot be read.
    NoSpace, NoPermission
        The disk is full or not writable. Finished work is kept; the same call resumes it.

    Examples
    --------
    >>> import tempfile, rlds_cli
    >>> ds = rlds_cli.download("sample/pendulum-d4rl", cache_dir=tempfile.mkdtemp())
    >>> ds.schema["observation"].shape
    (3,)
    """
    portion = Subset.of(include=include, exclude=exclude, split=split, episodes=episodes)
    first, *also = [os.fspath(ref)] if isinstance(ref, str | os.PathLike) else map(os.fspath, ref)
    request = DownloadRequest(
        first,
        source,
        store,
        frames,
        force,
        keep_archive,
        offline,
        cache_dir,
        skip_bad,
        portion,
        as_=as_,
        blocks=blocks,
        sha256=sha256,
        reading=reading_options(reader, fields, episodes_by, last_step, rewards),
        also=tuple(also),
    )
    return deliver(request, jobs=jobs or 0, progress=shown(progress))


def deliver(
    request: DownloadRequest,
    *,
    planned: Delivery | None = None,
    jobs: int = 0,
    progress: Progress = silent,
    check: Callable[[Path], None] | None = None,
) -> Dataset:
    """Run one request; see ``download``. If ``check`` raises for the new dataset, nothing is published.

    ``planned`` is the result of `plan_download` for the request: the source is not asked again for its files.
    """
    where = request.where
    from rlds_cli.dataset import open_dataset

    request = planned.request if planned and planned.request else located(request)
    if refs.is_address(request.ref):
        return open_dataset(_pull(request, where, progress))
    if request.as_ is not None:
        raise InvalidArgument(
            f"{request.ref} has its own id: only a dataset at an address takes another one ({request.as_}).",
            hint=f"rlds download {request.ref}",
        )
    here = None if request.force else _present(request, where)
    if here is not None:
        return open_dataset(here)
    from rlds_cli.home import exclusive
    from rlds_cli.make.downloads import archive

    id, entry = _resolve(request, where)
    place = Home(where.home)
    with exclusive(place, id, progress):
        here = None if request.force else _found(id, request, where)
        if here is None:
            if request.source is not None and is_dataset(request.source, id):
                adopt(request.source, id, place, progress)
            else:
                with recorded(request, id, place), credentials_asked(request):
                    archive.make(
                        request, id, entry, where, jobs, progress, check, transfer=planned.transfer if planned else None
                    )
    return open_dataset(str(id), cache_dir=request.cache_dir)


def reading_options(
    reader: str | None,
    fields: Mapping[str, str | Sequence[str]] | None,
    episodes_by: str | None,
    last_step: str | None,
    rewards: str | None,
) -> dict[str, Any]:
    """Return the options for reading an archive at a URL that are given, with the names of a registry's line.

    Raises
    ------
    InvalidArgument
        The reader is in a file of code, which a line never names.
    """
    if reader is not None and not registry.is_reader(reader):
        raise InvalidArgument(
            f"{reader} is a file on this machine, which a dataset of a URL cannot name.",
            hint=f"rlds import FILES --as local/NAME --reader {reader} reads files that were downloaded",
        )
    keys: dict[str, str] = {}
    if fields:
        from rlds_cli.make.importing import keys_of  # takes as long to import as all of this module

        keys = keys_of(fields)
    given = {"format": reader, "fields": keys, "episodes_by": episodes_by}
    given |= {"last_step": last_step, "rewards": rewards}
    return {name: value for name, value in given.items() if value}


def located(request: DownloadRequest) -> DownloadRequest:
    """Return the request for what is at the address of a request: an archive gets its id and line, others stay."""
    if request.line is not None:
        return request
    if not refs.is_address(request.ref) and not request.also:
        _check_known(request)
        return request
    path = settings.expanded(str(request.ref).removeprefix("file://"))
    if path.is_file() and path.name != "rlds.json":
        raise DatasetNotFound(
            f"{path} is a file on this machine: no dataset was pushed there.",
            hint=f"rlds import {path} --as {request.as_ or 'local/NAME'}",
        )
    _check_id(request)
    from rlds_cli.make.downloads import urls

    here = None if request.as_ is None else home.path_of(ids.parse(request.as_), request.where)
    return urls.as_archive(request, request.where, here=here) or request


def _check_known(request: DownloadRequest) -> None:
    """Refuse options of archives at a URL for a dataset of the registry, which says how it is read."""
    given = ["--sha256"] if request.sha256 else []
    given += [{"fields": "--map", "format": "--reader"}.get(k, f"--{k.replace('_', '-')}") for k in request.reading]
    if given:
        raise InvalidArgument(
            f"The registry says how {request.ref} is read: {given[0]} is for an archive at a URL.",
            hint=f"rlds download {request.ref}; rlds import FILES --as local/NAME reads files in another way",
        )


def _pull(request: DownloadRequest, where: Settings, progress: Progress) -> Path:
    """Bring a pushed dataset here. The request stays on record while bytes of it have arrived."""
    from rlds_cli.places import Pull

    _check_options(request)
    _check_id(request)
    address = Address.parse(request.ref)
    id = Pull(address, where, as_=request.as_).id()
    with recorded(request, id, Home(where.home)):
        return Pull(address, where, as_=str(id)).run(force=request.force, blocks=request.blocks, progress=progress)


def _check_id(request: DownloadRequest) -> None:
    """Refuse an id for an address that the registry may use."""
    if request.as_ is not None and ids.parse(request.as_).family != ids.LOCAL:
        raise InvalidId(
            f"A dataset at an address cannot become {request.as_}: such ids are the registry's. Nothing was written.",
            hint=f"--as {ids.LOCAL}/NAME",
        )


def _check_options(request: DownloadRequest) -> None:
    """Refuse options of archives for a dataset that was pushed: it comes as it is."""
    plain = DownloadRequest(request.ref)
    for name, option in (
        ("source", "--from"),
        ("store", "--storage"),
        ("frames", "--frames"),
        ("keep_archive", "--no-keep-archive"),
        ("skip_bad", "--skip-bad"),
        ("portion", "--include, --exclude, --split or --episodes"),
        ("sha256", "--sha256"),
        ("reading", "--reader, --map, --episodes-by, --last-step or --rewards"),
    ):
        if getattr(request, name) != getattr(plain, name):
            raise InvalidArgument(
                f"{Address.parse(request.ref)} holds a dataset and no archive: {option} does not apply.",
                hint="rlds convert changes the storage of a dataset on this disk",
            )


def expand_refs(refs: Sequence[str]) -> list[str]:
    """Return the ids that ids, aliases and globs stand for, each once, in order.

    Raises
    ------
    UnknownDataset
        A glob matches nothing.
    """
    return list(dict.fromkeys(x for ref in refs for x in _named(ref)))


def _named(ref: str) -> list[str]:
    is_pattern = refs.is_glob(ref) and not refs.is_address(ref)
    return [e.id for e in registry.match(ref)] if is_pattern else [ref]


def plan_download(
    requests: Sequence[DownloadRequest], *, guess: bool = False, progress: Progress = silent
) -> Deliveries:
    """Plan downloads: asks sources for their listings, writes nothing, and reports long waits to ``progress``.

    With ``guess``, neither a listing that is not available offline nor a lack of space is an error.

    Raises
    ------
    NoSpace
        The known sizes do not fit on the disk.
    """
    where = requests[0].where
    planned = Deliveries(tuple(_plan(o, guess, progress) for o in requests), where.home, disk.free(where.home))
    if planned.needed > planned.free and not guess:
        raise NoSpace(
            f"{text.size_of(planned.to_fetch)} to download and about "
            f"{text.size_of(planned.needed - planned.to_fetch)} of cache "
            f"do not fit: {text.size_of(planned.free)} are free below {where.home}. Nothing was written.",
            hint="another disk: --home DIR, or RLDS_HOME; rlds du shows what takes the space",
        )
    return planned


def _plan(request: DownloadRequest, guess: bool, progress: Progress) -> Delivery:
    request = located(request)
    return replace(_planned(request, guess, progress), request=request)


def _planned(request: DownloadRequest, guess: bool, progress: Progress) -> Delivery:
    where = request.where
    if refs.is_address(request.ref):
        from rlds_cli.places import Pull

        _check_options(request)
        _check_id(request)
        remote = Pull(Address.parse(request.ref), where, as_=request.as_).look_up()
        if remote.here is not None:
            return Delivery(str(remote.id), remote.here)
        return Delivery(str(remote.id), None, remote.files, remote.size, 0, 0, {"fetch": remote.files})
    here = None if request.force else _present(request, where)
    if here is not None:
        found, encoding = str(_id_of(request, where)), Manifest.read(here).encoding
        other = f"{encoding}-encoded; rlds convert {found} --to {request.store}" if encoding != request.store else ""
        return Delivery(found, here, note=other)
    id, entry = _resolve(request, where)
    if request.source is not None and is_dataset(request.source, id):
        return Delivery(str(id), None, actions={"copy": 1})
    from rlds_cli.make.downloads import archive

    try:
        with credentials_asked(request):
            transfer = archive.plan_transfer(request, id, entry, where, progress)
    except TransferError as exc:
        if guess and request.withheld:
            return Delivery(str(id), None, len(entry.files), 0, len(entry.files), entry.store_size, note=exc.message)
        if not isinstance(exc, Offline):
            raise
        if not guess:
            raise
        return _unlisted(id, entry)
    steps = transfer.plan
    sizes = [s.file.size for s in steps.steps]
    known = sum(s or 0 for s in sizes)
    actions = [s.action for s in steps.steps]
    return Delivery(
        str(id),
        None,
        len(steps.steps),
        steps.to_fetch,
        steps.unknown_sizes,
        int(known * entry.expansion) if None not in sizes else entry.store_size,
        {a: actions.count(a) for a in dict.fromkeys(actions)},
        transfer=transfer,
    )


def _unlisted(id: DatasetId, entry: Entry) -> Delivery:
    """The plan for a dataset whose source cannot be asked for its files, since network access is off."""
    place = entry.files[0].urls[0] if entry.files else entry.tree[0]
    count = len(entry.files)
    return Delivery(str(id), None, count, 0, count, entry.store_size, note=f"{place} must be asked for its files")


def _id_of(request: DownloadRequest, where: Settings) -> DatasetId:
    id = home.meant(request.ref, where)
    variant = request.variant
    if variant and id.variant not in (None, variant):
        asked = f"--frames {request.frames}" if not request.portion else str(request.portion)
        raise InvalidId(f"{id} is a variant; {asked} is of {id.base}.", hint=f"rlds download {id.base}")
    return id.with_variant(variant) if variant else id


def _present(request: DownloadRequest, where: Settings) -> Path | None:
    """Return the directory of the dataset if it exists. Reads the registry only for ids that are not complete."""
    try:
        id = _id_of(request, where)
    except InvalidId:
        return None  # `_resolve` says which ids are near
    return _found(id, request, where)


def _found(id: DatasetId, request: DownloadRequest, where: Settings) -> Path | None:
    found = home.path_of(id, where)
    if found and request.portion:
        there = Manifest.read(found).options.get("portion") or {}
        if Subset.from_facts(there) != request.portion:
            raise NameTaken(f"{id} exists, and is another part of the archive.", hint="--force replaces it")
    if found and request.url is not None:
        from rlds_cli.make.downloads import urls

        urls.check_same(request, found)
    return found


def _resolve(request: DownloadRequest, where: Settings) -> tuple[DatasetId, Entry]:
    """Return the id and its registry entry; refuses datasets that cannot be downloaded."""
    if request.line is not None:
        return _id_of(request, where), _described(request.line)
    entry = registry.get(request.ref)
    id = _id_of(replace(request, ref=entry.id + request.ref[len(request.ref.partition("@")[0]) :]), where)
    if id.variant and id.variant != request.variant:
        raise DatasetNotFound(
            f"{id} is not in {where.home}, and variants are created locally, not downloaded.",
            hint=subset.command(id),
        )
    if not entry.files and not entry.tree:
        raise DownloadFailed(f"No source is known for {id}.", hint=f"rlds import PATH --as {id}")
    if entry.status == "closed" and request.source is None and not where.mirrors and not request.files:
        raise DownloadFailed(
            f"The source of {id} is closed: {entry.notes or entry.host}.",
            hint=f"--from a local copy{f', or {entry.replaced_by}' if entry.replaced_by else ''}",
        )
    return id, entry


def _described(line: Mapping[str, Any]) -> Entry:
    """Return the entry of a line that came with the request; refuses ids of the package's registry."""
    entry = registry.described(str(line["id"]), line)
    if entry is None:
        raise InvalidId(f"Only the registry says what {line['id']} is.")
    return entry


def is_dataset(source: str, id: DatasetId) -> bool:
    """Return whether ``source`` is the directory of the dataset ``id``, or a home that holds it."""
    return _find(source, id) is not None


def _find(source: str, id: DatasetId) -> Path | None:
    root = settings.expanded(source.removeprefix("file://"))
    for path in (root, Home(root).dataset(id)):
        try:
            if Manifest.read(path).id.lower() == str(id).lower():
                return path
        except RldsError:
            continue
    return None


def adopt(source: str, id: DatasetId, place: Home, progress: Progress) -> None:
    """Copy the dataset into ``place``. The caller holds the lock of its id.

    Raises
    ------
    DamagedDataset
        Its content does not match its fingerprint, or it was not made of the files in the registry; nothing is
        published.
    """
    found = _find(source, id)
    assert found is not None
    work = place.partial(id, "staging")
    safe_files.work_directory(work, place.root)
    copy = work / "dataset"
    try:
        share_tree(found, copy, within=work)
        report = StoredDataset(copy).verify()
        problem = next(chain(map(str, report.problems), _unpublished(copy)), None)
        if problem:
            raise DamagedDataset(f"{found}: {problem}. Nothing was copied.", hint=f"rlds verify {id}")
        History(place.dataset(id)).replace(copy)
    finally:
        trees.discard(work)
    progress(Event(str(id), "ready", note=f"copied from {found}"))


def _unpublished(dataset: Path) -> Iterator[str]:
    """Yield evidence that a dataset was not made of the files in the registry; none of a derived one."""
    from rlds_cli.store import open_store

    m = Manifest.read(dataset)
    if not (m.provenance and ids.parse(m.id).variant):
        entry = registry.listed(m.id)
        yield from (f"sources: {what}" for what in (entry.unpublished(open_store(dataset).sources) if entry else ()))
