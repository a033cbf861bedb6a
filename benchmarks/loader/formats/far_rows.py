"""Small rows from a bucket: a shuffled epoch of 100,000 transitions, from the opening on, with nothing in a cache."""

from __future__ import annotations

from typing import Any

from loader import data
from loader.cases import Builders, Case, Group, Row
from loader.formats import files, readers, sources
from loader.formats.readers import far
from loader.formats.sources import FAR, ROWS

UNIT = "rows/s"
COUNT = FAR * data.EPISODE


def _check(batch: Any) -> Any:
    return sources.compare(FAR, batch)


def rlds() -> Builders:
    def shuffled() -> Case:
        files.pushed(data.halfcheetah(FAR), "rows")
        fields = [..., "index"]
        return far(
            lambda: readers.rlds("s3://b/rows", ROWS, fields=fields), lambda b: _check(readers.of_rlds(b)), COUNT, UNIT
        )

    return {"shuffled": shuffled}


def litdata() -> Builders:
    def epoch() -> Case:
        place = files.litdata_rows(FAR)
        return far(lambda: readers.litdata(place, ROWS, 0, remote=True), _check, COUNT, UNIT)

    return {"no workers": epoch}  # with workers, small rows took longer from the disk already


def lance() -> Builders:
    def loader() -> Case:
        place = files.lance_rows(FAR)
        return far(lambda: readers.lance_loader(place, ROWS, remote=True), _check, COUNT, UNIT)

    return {"LanceDataset, batches shuffled": loader}


OURS = "rlds: shuffled"
GROUP = Group(
    "small rows from a bucket by formats and their loaders: an epoch of 100,000 transitions, nothing cached",
    {"rlds": rlds, "litdata": litdata, "lance": lance},
    (
        Row("shuffled transitions", OURS, "litdata: no workers", None),
        Row("", OURS, "lance: LanceDataset, batches shuffled", None),
    ),
    only_once=True,
)
