"""Windows of a camera from the disk: batches of 16 windows of 8 steps, as raw bytes, JPEG images and videos."""

from __future__ import annotations

from typing import Any

import numpy as np

from loader.cases import Builders, Case, Group, Row
from loader.formats import files, readers, sources
from loader.formats.readers import THREADS, near, windows_of_litdata, windows_of_rlds, with_pictures
from loader.formats.sources import ALL, FORMS, WINDOW, WINDOWS, compare_windows

UNIT = "windows/s"


def rlds() -> Builders:
    def case(form: str) -> Case:
        ds, how = sources.cameras(form), readers.rlds_windows()
        return near(
            lambda: readers.rlds(ds, WINDOWS, **how),
            lambda batch: compare_windows(form, windows_of_rlds(batch)),
            WINDOWS,
            UNIT,
        )

    return {form: lambda form=form: case(form) for form in FORMS}


def litdata() -> Builders:
    def case(form: str, workers: int) -> Case:
        place = files.litdata_windows(form)
        return near(
            lambda: readers.litdata(place, WINDOWS, workers),
            lambda batch: compare_windows(form, windows_of_litdata(batch)),
            WINDOWS,
            UNIT,
            workers,
        )

    return {
        f"{form}, {workers or 'no'} workers": lambda form=form, workers=workers: case(form, workers)
        for form in ("raw", "jpeg")
        for workers in (0, THREADS)
    }


def lance() -> Builders:
    def case(form: str) -> Case:
        place = files.lance_frames(form)
        return near(
            lambda: map(with_pictures, readers.lance_taken(place, readers.shuffled_windows(flat=True))),
            lambda batch: compare_windows(form, batch),
            WINDOWS,
            UNIT,
        )

    return {f"{form}, take": lambda form=form: case(form) for form in ("raw", "jpeg")}


def tensordict() -> Builders:
    def indexed() -> Case:
        place = files.tensordict_frames()
        return near(
            lambda: readers.tensordict(place, readers.shuffled_windows(flat=False)),
            lambda batch: compare_windows("raw", readers.of_tensordict(batch)),
            WINDOWS,
            UNIT,
        )

    return {"memmap, indexed": indexed}


def torchcodec() -> Builders:
    return {
        "get_frames_at": lambda: near(readers.torchcodec, lambda b: compare_windows("video", b), WINDOWS, UNIT),
    }


def lerobot() -> Builders:
    def case(workers: int) -> Case:
        place = files.lerobot_videos()
        steps = dict.fromkeys(("observation.camera", "observation.state", "action"), WINDOW)
        firsts = range(0, ALL * WINDOW, WINDOW)
        return near(
            lambda: readers.lerobot(place, steps, WINDOWS, firsts, workers), _of_lerobot, WINDOWS, UNIT, workers
        )

    return {"no workers": lambda: case(0), f"{THREADS} workers": lambda: case(THREADS)}


def _of_lerobot(batch: Any) -> Any:
    """Its pictures are floats of 0 to 1, channels first."""
    camera = np.rint(batch["observation.camera"].numpy() * 255).astype(np.uint8).transpose(0, 1, 3, 4, 2)
    number = batch["index"].reshape(-1, 1).numpy() + np.arange(WINDOW)
    found = {"camera": camera, "state": batch["observation.state"], "action": batch["action"], "number": number}
    return compare_windows("video", found)


GROUP = Group(
    "windows of a camera of 96x96 by formats and their loaders: 16 windows of 8 steps, with states and actions",
    {
        "rlds": rlds,
        "litdata": litdata,
        "lance": lance,
        "tensordict": tensordict,
        "torchcodec": torchcodec,
        "lerobot": lerobot,
    },
    (
        Row("raw", "rlds: raw", "litdata: raw, no workers", None),
        Row("", "rlds: raw", f"litdata: raw, {THREADS} workers", None),
        Row("", "rlds: raw", "lance: raw, take", None),
        Row("", "rlds: raw", "tensordict: memmap, indexed", None),
        Row("JPEG", "rlds: jpeg", "litdata: jpeg, no workers", None),
        Row("", "rlds: jpeg", f"litdata: jpeg, {THREADS} workers", None),
        Row("", "rlds: jpeg", "lance: jpeg, take", None),
        Row("video", "rlds: video", "torchcodec: get_frames_at", None),
        Row("", "rlds: video", "lerobot: no workers", None),
        Row("", "rlds: video", f"lerobot: {THREADS} workers", None),
    ),
    only_once=True,
)
