"""Orders that were begun and are not finished: written down before the work, so that anybody can go on with them.

::

    <home>/partial/<family>+<name>.order     what was asked for, without credentials; it goes with the last step
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args

from rlds_cli import home, ids, settings
from rlds_cli.downloads import names
from rlds_cli.downloads.fetch.sidecars import read_json, write_json
from rlds_cli.downloads.request import Order, Store, Withheld
from rlds_cli.errors import ArchiveError, DownloadFailed, InvalidId, NoPermission, RldsError, TransferError
from rlds_cli.files import safe as safe_files
from rlds_cli.files import trees
from rlds_cli.files.locks import FileLock, LockHeld
from rlds_cli.files.parts import is_unfinished
from rlds_cli.home import Home
from rlds_cli.ids import DatasetId
from rlds_cli.registry.records import File
from rlds_cli.settings import StrPath
from rlds_cli.subset import Portion

_TAG = "order"
_HERE = ("cache_dir", "offline", "limit_rate")  # of a process, not of the work


@contextmanager
def noted(order: Order, id: DatasetId, place: Home) -> Iterator[None]:
    """Keep ``order`` on record while it is worked at, and afterwards where it ended early and may be gone on with."""
    path = place.partial(id, _TAG)
    safe_files.directory(path.parent, place.root)
    write_json(path, {k: v for k, v in asdict(_without_credentials(order)).items() if k not in _HERE})
    try:
        yield
    except RldsError as exc:
        if isinstance(exc, ArchiveError) or not left(id, place):  # what cannot be read cannot be read the next time
            path.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)


@contextmanager
def credentials_asked(order: Order) -> Iterator[None]:
    """Say of a failed download whose credentials were not written down that they are to be given again."""
    source = order.source or ""
    hint = f"rlds download {order.ref} --from ADDRESS, with the whole address, goes on; so does ~/.netrc with its user"
    if order.withheld == "query":
        raise DownloadFailed(
            f"{order.ref} was ordered from {names.shown(source)}, and what is left out there is not kept on the disk.",
            hint=hint,
        )
    try:
        yield
    except TransferError as exc:
        if not order.withheld:
            raise
        told = f"{exc.message} Its address had credentials, which are not kept on the disk."
        raise type(exc)(told, hint=hint) from exc


def _without_credentials(order: Order) -> Order:
    """An order as it may be written down; addresses in it that lead nowhere without their credentials go."""
    source = order.source and names.shown(order.source)
    files, pinned = (
        tuple(replace(f, urls=tuple(names.shown(u) for u in f.urls if not _has_secret_query(u))) for f in found)
        for found in (order.files, order.pinned)
    )
    withheld = order.withheld or _withheld(order.source or "")
    return replace(order, source=source, files=files, pinned=pinned, withheld=withheld)


def _withheld(url: str) -> Withheld:
    """Where an address has credentials."""
    if _has_secret_query(url):
        return "query"
    return "user" if url.partition("#")[0] != names.shown(url).partition("#")[0] else ""


def _has_secret_query(url: str) -> bool:
    return _query(names.shown(url)) != _query(url)


def _query(url: str) -> str:
    return url.partition("#")[0].partition("?")[2]


def left(id: DatasetId, place: Home) -> int:
    """Bytes that unfinished work on ``id`` has left: the files of its archive, and rows."""
    work = [p for p in place.partial(id, "x").parent.glob(f"{place.partial(id, '').name}*") if p.suffix != f".{_TAG}"]
    found = [f for top in (place.archive(id), *work) for f in trees.files(top) if f.name[0] != "."]
    return sum(f.stat().st_size for f in found if f.suffix != ".lock" and not f.name.endswith(".part.json"))


def orders(
    *, cache_dir: StrPath | None = None, offline: bool = False, limit_rate: int | None = None
) -> tuple[Order, ...]:
    """What can be gone on with in the user's own home, but not what another process is at.

    Downloads that were broken off by an earlier version, which wrote no orders down, are ordered as usual.
    """
    where = settings.read(cache_dir)
    place = Home(where.home)
    known = dict(_noted(place))
    of = {ids.parse(id).base for id in known}  # a part of an archive is not taken for an order of all of it
    for id, directory in place.archives():
        if id not in of and any(is_unfinished(f.name) for f in trees.files(directory)):
            known[str(id)] = {"ref": str(id)}
    wanted = {ids.parse(id): _order(values) for id, values in known.items()}
    return tuple(
        replace(order, cache_dir=cache_dir, offline=offline, limit_rate=limit_rate)
        for id, order in wanted.items()
        if order and (order.force or home.find(id, where) is None) and not _busy(place, id)
    )


def _noted(place: Home) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((place.root / "partial").glob(f"*.{_TAG}")):
        family, _, component = path.name.removesuffix(f".{_TAG}").partition("+")
        values = read_json(path) if safe_files.is_own_file(path) else None  # nobody orders for others
        try:
            id = ids.from_component(family, component)
        except InvalidId:
            continue
        if values is not None and isinstance(values.get("ref"), str):
            yield str(id), values


def _order(values: dict[str, Any]) -> Order | None:
    """The order that a file holds; None where it holds none."""
    try:
        order = _read(values)
    except (TypeError, ValueError, OverflowError, KeyError, AttributeError):
        return None
    texts = (order.ref, order.store, order.frames, order.source or "", order.revision or "")
    flags = (order.force, order.keep_archive, order.skip_bad)
    urls = [u for f in (*order.files, *order.pinned) for u in (f.path, *f.urls)]
    sound = all(isinstance(t, str) for t in (*texts, *urls)) and all(isinstance(f, bool) for f in flags)
    return order if sound and order.store in get_args(Store) and order.withheld in get_args(Withheld) else None


def _read(values: dict[str, Any]) -> Order:
    known = {f.name: values[f.name] for f in fields(Order) if f.name in values and f.name not in _HERE}
    portion: dict[str, Any] = known.pop("portion", None) or {}
    portion = {k: tuple(v) if isinstance(v, list) else v for k, v in portion.items()}
    for name in ("files", "pinned"):
        known[name] = tuple(File(**{**f, "urls": tuple(f["urls"])}) for f in known.get(name) or ())
    return Order(**known, portion=Portion(**portion))


def _busy(place: Home, id: DatasetId) -> bool:
    lock: Path = place.lock(id)
    if not lock.exists():
        return False
    try:
        with FileLock(lock).acquire(timeout=0):
            return False
    except (LockHeld, NoPermission, OSError):
        return True
