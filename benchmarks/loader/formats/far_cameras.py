"""Windows of a camera from a bucket: an epoch of 1,200 windows of 8 steps, from the opening on, nothing in a cache."""

from __future__ import annotations

from loader.cases import Builders, Case, Group, Row
from loader.formats import files, readers, sources
from loader.formats.readers import THREADS, far, windows_of_litdata, windows_of_rlds, with_pictures
from loader.formats.sources import ALL, FORMS, WINDOWS, compare_windows

UNIT = "windows/s"


def rlds() -> Builders:
    def case(form: str) -> Case:
        files.pushed(sources.cameras(form), f"rlds-{form}")
        return far(
            lambda: readers.rlds(f"s3://b/rlds-{form}", WINDOWS, **readers.rlds_windows()),
            lambda batch: compare_windows(form, windows_of_rlds(batch)),
            ALL,
            UNIT,
        )

    return {form: lambda form=form: case(form) for form in FORMS}


def litdata() -> Builders:
    def case(form: str, workers: int) -> Case:
        place = files.litdata_windows(form)
        return far(
            lambda: readers.litdata(place, WINDOWS, workers, remote=True),
            lambda batch: compare_windows(form, windows_of_litdata(batch)),
            ALL,
            UNIT,
        )

    return {
        f"{form}, {workers or 'no'} workers": lambda form=form, workers=workers: case(form, workers)
        for form in ("raw", "jpeg")
        for workers in (0, THREADS)
    }


def lance() -> Builders:
    def case(form: str) -> Case:
        place, groups = files.lance_frames(form), readers.shuffled_windows(flat=True)
        return far(
            lambda: map(with_pictures, readers.lance_taken(place, groups, remote=True)),
            lambda batch: compare_windows(form, batch),
            ALL,
            UNIT,
        )

    return {f"{form}, take": lambda form=form: case(form) for form in ("raw", "jpeg")}


def torchcodec() -> Builders:
    def fetched() -> Case:
        files.videos()
        return far(lambda: readers.torchcodec(remote=True), lambda b: compare_windows("video", b), ALL, UNIT)

    return {"whole videos, get_frames_at": fetched}


GROUP = Group(
    "windows of a camera from a bucket by formats and their loaders: an epoch of 1,200 windows, nothing cached",
    {"rlds": rlds, "litdata": litdata, "lance": lance, "torchcodec": torchcodec},
    (
        Row("raw", "rlds: raw", "litdata: raw, no workers", None),
        Row("", "rlds: raw", f"litdata: raw, {THREADS} workers", None),
        Row("", "rlds: raw", "lance: raw, take", None),
        Row("JPEG", "rlds: jpeg", "litdata: jpeg, no workers", None),
        Row("", "rlds: jpeg", f"litdata: jpeg, {THREADS} workers", None),
        Row("", "rlds: jpeg", "lance: jpeg, take", None),
        Row("video", "rlds: video", "torchcodec: whole videos, get_frames_at", None),
    ),
    only_once=True,
)
