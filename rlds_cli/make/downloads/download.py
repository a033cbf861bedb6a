"""Plan and run downloads of datasets; copy published datasets from another home or directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlds_cli import homes, registry
from rlds_cli.base import ids, refs, text
from rlds_cli.base.files import disk, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.progress import Event, Progress, shown, silent
from rlds_cli.base.settings import StrPath
from rlds_cli.base.subset import Subset
from rlds_cli.errors import (
    DamagedDataset,
    InvalidArgument,
    NoSpace,
    Offline,
    TransferError,
)
from rlds_cli.homes import Home
from rlds_cli.make.downloads.meant import Here, Pushed, ToMake, existing, meant
from rlds_cli.make.downloads.request import DownloadRequest, Encoding, bytes_left, credentials_asked, recorded
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
        made = [id for id in wanted if homes.is_dataset(place.dataset(id))]
        left = {str(id): bytes_left(id, place) for id in wanted if id not in made}
        return [str(id) for id in made], {id: size for id, size in left.items() if size}


def download(
    ref: str | Sequence[str],
    *,
    source: str | None = None,
    storage: Encoding = "memmap",
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
    name: str | None = None,
    blocks: bool = False,
    sha256: str | None = None,
    reader: str | None = None,
    fields: Mapping[str, str | Sequence[str]] | None = None,
    episodes_by: str | None = None,
    last_step: str | None = None,
    rewards: str | None = None,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Dataset:
    """Download, verify and convert a dataset, unless it already exists. Safe to call from any number of ranks.

    Parameters
    ----------
    ref : str or sequence of str
        An id of the registry, or an alias; or the id of a variant on this disk; or the address of a dataset that was
        pushed: ``hf://datasets/OWNER/NAME``, ``s3://BUCKET/PATH``, ``gs://BUCKET/PATH``, ``https://HOST/PATH/`` or a
        directory. ``ADDRESS#rlds1:...`` pins its content. Or the URL of an archive, ``https://HOST/run.hdf5``, which
        is recognised as `import_files` does; several URLs, or a pattern such as
        ``https://HOST/runs/*.hdf5``, are the files of one archive.
    source : str, optional
        The only file, directory or mirror to take the archive from; or a dataset to copy.
    storage : {"memmap", "zarr"}
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
    name : str, optional
        Id for a dataset at an address, such as ``local/NAME``; by default its own, if that is ``local/...``. An
        archive at URLs needs one.
    blocks : bool
        Reuse the blocks of a dataset at an address that were cached when it was read there.
    sha256 : str, optional
        The hash that the archive at a URL must have. Without it, the hash of what arrives is recorded.
    reader, fields, episodes_by, last_step, rewards : optional
        How the archive at a URL is read, as in `importing.plan_import`.
    home : path, optional
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
    >>> ds = rlds_cli.download("sample/pendulum-d4rl", home=tempfile.mkdtemp())
    >>> ds.schema["observation"].shape
    (3,)
    """
    portion = Subset.of(include=include, exclude=exclude, split=split, episodes=episodes)
    first, *also = [os.fspath(ref)] if isinstance(ref, str | os.PathLike) else map(os.fspath, ref)
    request = DownloadRequest(
        first,
        source,
        storage,
        frames,
        force,
        keep_archive,
        offline,
        home,
        skip_bad,
        portion,
        name=name,
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
    from rlds_cli.dataset import open_dataset

    what = meant(planned.request if planned and planned.request else request)
    request, where = what.request, what.request.where
    match what:
        case Pushed():
            return open_dataset(_pull(what, progress))
        case Here():
            return open_dataset(what.path)
    from rlds_cli.homes import exclusive
    from rlds_cli.make.downloads import archive

    id, place, transfer = what.id, Home(where.home), planned.transfer if planned else None
    with exclusive(place, id, progress):
        if not request.force and existing(id, request, where) is not None:
            pass  # another process has made it meanwhile
        elif what.copied is not None:
            adopt(what.copied, id, place, progress)
        else:
            with recorded(request, id, place), credentials_asked(request):
                archive.make(request, id, what.entry, where, jobs, progress, check, transfer=transfer)
    return open_dataset(str(id), home=request.home)


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
            hint=f"rlds import FILES --name local/NAME --reader {reader} reads files that were downloaded",
        )
    keys: dict[str, str] = {}
    if fields:
        from rlds_cli.make.importing import keys_of  # takes as long to import as all of this module

        keys = keys_of(fields)
    given = {"format": reader, "fields": keys, "episodes_by": episodes_by}
    given |= {"last_step": last_step, "rewards": rewards}
    return {name: value for name, value in given.items() if value}


def _pull(pushed: Pushed, progress: Progress) -> Path:
    """Bring a pushed dataset here. The request stays on record while bytes of it have arrived."""
    from rlds_cli.places import Pull

    request, where = pushed.request, pushed.request.where
    id = Pull(pushed.address, where, name=request.name).id()
    with recorded(request, id, Home(where.home)):
        pull = Pull(pushed.address, where, name=str(id))
        return pull.run(force=request.force, blocks=request.blocks, progress=progress)


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
    what = meant(request)
    return replace(_planned(what, guess, progress), request=what.request)


def _planned(what: Pushed | Here | ToMake, guess: bool, progress: Progress) -> Delivery:
    request, where = what.request, what.request.where
    match what:
        case Pushed():
            from rlds_cli.places import Pull

            remote = Pull(what.address, where, name=request.name).look_up()
            if remote.here is not None:
                return Delivery(str(remote.id), remote.here)
            return Delivery(str(remote.id), None, remote.files, remote.size, 0, 0, {"fetch": remote.files})
        case Here():
            found, encoding = str(what.id), Manifest.read(what.path).encoding
            is_other = encoding != request.storage
            note = f"{encoding}-encoded; rlds convert {found} --to {request.storage}" if is_other else ""
            return Delivery(found, what.path, note=note)
    id, entry = what.id, what.entry
    if what.copied is not None:
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


def adopt(found: Path, id: DatasetId, place: Home, progress: Progress) -> None:
    """Copy the dataset in ``found`` into ``place``. The caller holds the lock of its id.

    Raises
    ------
    DamagedDataset
        Its content does not match its fingerprint, or it was not made of the files in the registry; nothing is
        published.
    """
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
