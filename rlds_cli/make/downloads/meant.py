"""Which dataset a request to download means: one on this disk, one that was pushed to an address, or one to be made."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds_cli import homes, registry
from rlds_cli.base import ids, refs, settings, subset
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.settings import Settings
from rlds_cli.base.subset import Subset
from rlds_cli.errors import DatasetNotFound, DownloadFailed, InvalidArgument, InvalidId, NameTaken, RldsError
from rlds_cli.homes import Home
from rlds_cli.make.downloads.request import DownloadRequest
from rlds_cli.places import Address
from rlds_cli.registry import Entry
from rlds_cli.store import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """A dataset that was pushed to an address, of which a copy is wanted."""

    request: DownloadRequest
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A dataset that is in a home, in ``path``."""

    request: DownloadRequest
    id: DatasetId
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ToMake:
    """A dataset that is made of the archive of an ``entry``; or copied, where the request names one with its id."""

    request: DownloadRequest
    id: DatasetId
    entry: Entry
    copied: Path | None


def meant(request: DownloadRequest) -> Pushed | Here | ToMake:
    """Decide which dataset a request means.

    The request of the result is that of the archive where it named the URLs of one: with its id and line. The registry
    is read only for what is not on this disk.

    Raises
    ------
    UnknownDataset, InvalidId
        There is no such id, or the request may not have it.
    NameTaken
        The id exists, and was made of something else.
    InvalidArgument
        The request has options that are for something else.
    DownloadFailed, DatasetNotFound
        It cannot be made: no source is known, it is closed, or it is a variant that is made here.
    """
    request, where = _with_line(request), request.where
    if refs.is_address(request.ref):
        _check_options(request)
        _check_id(request)
        return Pushed(request=request, address=Address.parse(request.ref))
    if request.name is not None:
        raise InvalidArgument(
            f"{request.ref} has its own id: only a dataset at an address takes another one ({request.name}).",
            hint=f"rlds download {request.ref}",
        )
    if not request.force:
        with suppress(InvalidId):  # the registry says below which ids are near
            id = _id_of(request.ref, request, where)
            if (path := existing(id, request, where)) is not None:
                return Here(request=request, id=id, path=path)
    id, entry = _described(request, where) if request.line is not None else _registered(request, where)
    copied = None if request.source is None else _dataset_at(request.source, id)
    return ToMake(request=request, id=id, entry=entry, copied=copied)


def existing(id: DatasetId, request: DownloadRequest, where: Settings) -> Path | None:
    """Return the directory of a dataset that is in a home; raises NameTaken if it is not what the request wants."""
    found = homes.path_of(id, where)
    if found and request.portion:
        there = Manifest.read(found).options.get("portion") or {}
        if Subset.from_facts(there) != request.portion:
            raise NameTaken(f"{id} exists, and is another part of the archive.", hint="--force replaces it")
    if found and request.url is not None:
        from rlds_cli.make.downloads import urls

        urls.check_same(request, found)
    return found


def _with_line(request: DownloadRequest) -> DownloadRequest:
    """Return the request for what is at the address of a request: an archive gets its id and line, others stay."""
    if request.line is not None:
        return request
    if not refs.is_address(request.ref) and not request.also:
        given = [*(["sha256"] if request.sha256 else []), *request.reading]
        if given:  # the registry says how a dataset is read
            option = {"fields": "map", "format": "reader"}.get(given[0], given[0].replace("_", "-"))
            raise InvalidArgument(
                f"The registry says how {request.ref} is read: --{option} is for an archive at a URL.",
                hint=f"rlds download {request.ref}; rlds import FILES --name local/NAME reads files in another way",
            )
        return request
    path = settings.expanded(str(request.ref).removeprefix("file://"))
    if path.is_file() and path.name != "rlds.json":
        raise DatasetNotFound(
            f"{path} is a file on this machine: no dataset was pushed there.",
            hint=f"rlds import {path} --name {request.name or 'local/NAME'}",
        )
    _check_id(request)
    from rlds_cli.make.downloads import urls

    here = None if request.name is None else homes.path_of(ids.parse(request.name), request.where)
    return urls.as_archive(request, request.where, here=here) or request


def _check_id(request: DownloadRequest) -> None:
    """Refuse an id for an address that the registry may use."""
    if request.name is not None and ids.parse(request.name).family != ids.LOCAL:
        raise InvalidId(
            f"A dataset at an address cannot become {request.name}: such ids are the registry's. Nothing was written.",
            hint=f"--name {ids.LOCAL}/NAME",
        )


def _check_options(request: DownloadRequest) -> None:
    """Refuse options of archives for a dataset that was pushed: it comes as it is."""
    plain = DownloadRequest(request.ref)
    for name, option in (
        ("source", "--from"),
        ("storage", "--storage"),
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


def _id_of(ref: str, request: DownloadRequest, where: Settings) -> DatasetId:
    """Return the id that a reference stands for, with the variant that the request asks for."""
    id, variant = homes.meant(ref, where), request.variant
    if variant and id.variant not in (None, variant):
        asked = f"--frames {request.frames}" if not request.portion else str(request.portion)
        raise InvalidId(f"{id} is a variant; {asked} is of {id.base}.", hint=f"rlds download {id.base}")
    return id.with_variant(variant) if variant else id


def _described(request: DownloadRequest, where: Settings) -> tuple[DatasetId, Entry]:
    """Return the id and entry of a request with a line of its own; refuses ids of the package's registry."""
    line: Mapping[str, Any] = request.line or {}
    id = _id_of(request.ref, request, where)
    entry = registry.described(str(line["id"]), line)
    if entry is None:
        raise InvalidId(f"Only the registry says what {line['id']} is.")
    return id, entry


def _registered(request: DownloadRequest, where: Settings) -> tuple[DatasetId, Entry]:
    """Return the id and its entry in the registry; refuses datasets that cannot be downloaded."""
    entry = registry.get(request.ref)
    id = _id_of(entry.id + request.ref[len(request.ref.partition("@")[0]) :], request, where)
    if id.variant and id.variant != request.variant:
        raise DatasetNotFound(
            f"{id} is not in {where.home}, and variants are created locally, not downloaded.",
            hint=subset.command(id),
        )
    if not entry.files and not entry.tree:
        raise DownloadFailed(f"No source is known for {id}.", hint=f"rlds import PATH --name {id}")
    if entry.status == "closed" and request.source is None and not where.mirrors and not request.files:
        raise DownloadFailed(
            f"The source of {id} is closed: {entry.notes or entry.host}.",
            hint=f"--from a local copy{f', or {entry.replaced_by}' if entry.replaced_by else ''}",
        )
    return id, entry


def _dataset_at(source: str, id: DatasetId) -> Path | None:
    """Return the directory of the dataset ``id``: ``source``, or one in the home ``source``; None for anything else."""
    root = settings.expanded(source.removeprefix("file://"))
    for path in (root, Home(root).dataset(id)):
        try:
            if Manifest.read(path).id.lower() == str(id).lower():
                return path
        except RldsError:
            continue
    return None
