"""One page of all datasets below an address, for a web server or a bucket that serves pages."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from rlds_cli.base import settings, visible
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.errors import DamagedDataset, NameTaken, RldsError, UploadFailed
from rlds_cli.look import CollectionEntry, CollectionPage, rank
from rlds_cli.places import Address, Index, Overtaken, PushedDataset, Versions, open_objects
from rlds_cli.places.sources.objects import Objects
from rlds_cli.store import GrowingDataset, Manifest

PAGE = "index.html"
_AT_ONCE = 8  # datasets that are read
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Catalogued:
    """The page of a store: where it is, its bytes, and the datasets on it."""

    address: str
    bytes: int
    datasets: tuple[CollectionEntry, ...]


def catalogue(store: StrPath, *, dry_run: bool = False, home: StrPath | None = None) -> Catalogued:
    """Write ``index.html``: every dataset that was pushed below an address, with its fields, size and report.

    Parameters
    ----------
    store : str or path
        The address above the datasets: a directory, ``s3://BUCKET/PATH``, ``gs://...`` or ``hf://datasets/...``.
    dry_run : bool
        Only read.

    Raises
    ------
    NameTaken
        ``index.html`` exists, and rlds did not write it.
    DownloadFailed, UploadFailed
        The store does not list its files, or does not take the page. A dataset that cannot be read is on the page, with
        the reason.
    """
    where = settings.read(home)
    with open_objects(Address.parse(store), where) as objects:
        address = objects.address
        names = objects.names()
        ends = f"/{Versions.NAME}"
        found = sorted(name.removesuffix(ends) for name in names if name.endswith(ends))
        with ThreadPoolExecutor(_AT_ONCE, "catalogue") as pool:
            listed = tuple(pool.map(lambda name: _listed(objects, where, name, names), found))
        page = CollectionPage(listed, None if address.scheme == "file" else str(address)).render()
        content = page.encode("utf-8", "replace")
        if not dry_run:
            _write(objects, content)
    return Catalogued(f"{str(address).rstrip('/')}/{PAGE}", len(content), listed)


def _listed(store: Objects, where: Settings, name: str, names: Mapping[str, int]) -> CollectionEntry:
    """Read what the page says of one dataset; each value comes from a stranger's file, and is checked."""
    above = store.address.path
    address = replace(store.address.unpinned, path=f"{above.rstrip('/')}/{name}" if above else name)
    try:
        with open_objects(address, where, policy=store.client.policy) as objects:
            there = PushedDataset(objects)
            index = there.named_index()
            m = _manifest(there, index)
    except RldsError as e:
        said = e.message.replace(str(address), name) if address.scheme == "file" else e.message
        return CollectionEntry(name, problem=visible.message(said))
    return CollectionEntry(
        name=name,
        id=index.id,
        fingerprint=index.fingerprint,
        version=index.version if index.grows or index.version > 1 else None,
        episodes=m.counts.episodes,
        steps=m.counts.steps,
        bytes=sum(o.size for o in index.objects),
        fields=tuple(f.name for f in sorted(m.fields, key=rank)),
        report=f"{name}/report.html" in names,
    )


def _manifest(there: PushedDataset, index: Index) -> Manifest:
    hashes = there.groups(index)
    wanted = [Index.MANIFEST, *([GrowingDataset.LOG] if index.grows else [])]
    with tempfile.TemporaryDirectory() as directory:
        for path in wanted:
            content = there.file(index, hashes, path)
            if path == Index.MANIFEST and hashlib.sha256(content).hexdigest() != index.manifest:
                raise DamagedDataset(f"{there.objects.address} has another manifest than its index says.")
            Path(directory, path).write_bytes(content)
        return Manifest.read(Path(directory))


def _write(objects: Objects, page: bytes) -> None:
    for _ in range(_ATTEMPTS):
        there = objects.read(PAGE)
        if there is not None and not CollectionPage.recognises(there.data):
            raise NameTaken(
                f"{objects.address}/{PAGE} exists, and rlds did not write it.",
                hint="remove it, or push the datasets below a directory of their own",
            )
        try:
            return objects.replace(PAGE, page, None if there is None else there.tag)
        except Overtaken:
            continue
    raise UploadFailed(f"{objects.address}/{PAGE} is written by others all the time.")
