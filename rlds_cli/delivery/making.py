"""How a registered archive becomes a dataset: listed, fetched, verified, converted, published."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlds_cli.archives import Archive
from rlds_cli.conversion import Conversion, convert
from rlds_cli.delivery.orders import Order
from rlds_cli.entries import Entry, File
from rlds_cli.errors import DownloadFailed, Offline
from rlds_cli.home import Home
from rlds_cli.ids import DatasetId
from rlds_cli.ordering import natural
from rlds_cli.progress import Event, Progress
from rlds_cli.settings import Settings
from rlds_cli.transfer import fetching, planning, sources
from rlds_cli.transfer.bringing import Fetched
from rlds_cli.transfer.remote import RemoteFile


def plan_transfer(order: Order, id: DatasetId, entry: Entry, where: Settings) -> planning.Plan:
    """What is to be done to have the archive here; asks its source unless all of it is."""
    destination = Home(where.home).archive(id)
    asked = not entry.tree or order.source or order.force  # entries that name their files need no listing
    files = None if asked else planning.recorded(destination)
    if files is None:
        files = _listed(order, entry, where)
    return planning.plan(files, destination, where, rehash=order.force)


def _listed(order: Order, entry: Entry, where: Settings) -> tuple[RemoteFile, ...]:
    if entry.files:
        return tuple(_listed_file(order, f, where) for f in entry.files)
    return sources.list_files(entry.tree, where, source=order.source, suffix=entry.suffix)


def _listed_file(order: Order, file: File, where: Settings) -> RemoteFile:
    listed = sources.list_files(file.urls, where, source=order.source, size=file.size, sha256=file.sha256)
    if len(listed) != 1:
        raise DownloadFailed(f"{file.path}: {len(listed)} files where one was expected.")
    return replace(listed[0], path=file.path)


def make(order: Order, id: DatasetId, entry: Entry, where: Settings, jobs: int, progress: Progress) -> None:
    """Fetch and convert one dataset and publish it. The caller holds the lock of its id."""
    progress(Event(str(id), "plan"))
    steps = plan_transfer(order, id, entry, where)
    if not steps.finished and where.offline and any(s.action == "fetch" for s in steps.steps):
        raise Offline(
            f"{id} is not in {where.home}, and the network is forbidden (RLDS_OFFLINE or --offline).",
            hint=f"where there is internet:  rlds download {id} --cache-dir {where.home}",
        )
    fetched = fetching.fetch(steps, where, id=str(id), progress=progress)
    place = Home(where.home)
    convert(_conversion(order, id, entry, steps.destination, fetched), place, jobs=jobs, progress=progress)
    if not order.keep_archive:
        shutil.rmtree(steps.destination, ignore_errors=True)


def _conversion(order: Order, id: DatasetId, entry: Entry, destination: Path, fetched: Sequence[Fetched]) -> Conversion:
    came = sorted(fetched, key=lambda f: natural(f.file.path))
    env = {"id": entry.env_id, "eval_id": entry.eval_env_id, "max_episode_steps": entry.max_episode_steps}
    scores = {"ref_min_score": entry.ref_min_score, "ref_max_score": entry.ref_max_score}
    return Conversion(
        id=id,
        reader=entry.format,
        archive=Archive(
            destination,
            tuple(f.path for f in came),
            entry.episodes_by,
            skip_bad=order.skip_bad,
            last_step=entry.last_step,
        ),
        encoding=order.store,
        frames=order.frames,
        sources=tuple(_source(f) for f in came),
        facts={k: v for k, v in scores.items() if v is not None},
        env={k: v for k, v in env.items() if v is not None},
        options={"episodes_by": entry.episodes_by, "frames": order.frames}
        | ({"skip_bad": True} if order.skip_bad else {})
        | ({"last_step": entry.last_step} if entry.last_step else {}),
    )


def _source(f: Fetched) -> dict[str, Any]:
    r = f.record
    return {"file": f.file.path, "size": r.size, "sha256": r.sha256, "url": r.url, "revision": r.revision}
