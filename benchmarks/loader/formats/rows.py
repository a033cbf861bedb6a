"""Small rows from the disk: shuffled batches of 256 of a million transitions, 17/6 float32."""

from __future__ import annotations

from typing import Any

from loader import data, peers
from loader.cases import Builders, Case, Group, Row
from loader.formats import files, readers, sources
from loader.formats.readers import THREADS, near
from loader.formats.sources import NEAR, NEXT, ROWS

UNIT = "rows/s"
COUNT = NEAR * data.EPISODE


def _check(batch: Any) -> Any:
    return sources.compare(NEAR, batch)


def rlds() -> Builders:
    ds = data.halfcheetah()
    return {
        "shuffled": lambda: near(
            lambda: readers.rlds(ds, ROWS, fields=[..., "index"]), lambda b: _check(readers.of_rlds(b)), ROWS, UNIT
        )
    }


def litdata() -> Builders:
    def case(workers: int) -> Case:
        place = files.litdata_rows(NEAR)
        return near(lambda: readers.litdata(place, ROWS, workers), _check, ROWS, UNIT, workers)

    return {"no workers": lambda: case(0), f"{THREADS} workers": lambda: case(THREADS)}


def lance() -> Builders:
    def taken() -> Case:
        place = files.lance_rows(NEAR)
        return near(lambda: readers.lance_taken(place, readers.shuffled_rows(COUNT, ROWS)), _check, ROWS, UNIT)

    def loader() -> Case:
        place = files.lance_rows(NEAR)
        return near(lambda: readers.lance_loader(place, ROWS), _check, ROWS, UNIT)

    return {"take": taken, "LanceDataset, batches shuffled": loader}


def tensordict() -> Builders:
    def indexed() -> Case:
        place = files.tensordict_rows(NEAR)
        epoch = readers.shuffled_rows(COUNT, ROWS)
        return near(lambda: readers.tensordict(place, epoch), lambda b: _check(readers.of_tensordict(b)), ROWS, UNIT)

    return {"memmap, indexed": indexed}


def torchrl() -> Builders:
    def buffer() -> Case:
        from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement

        made = peers.torchrl_memmap(dict(sources.transitions(NEAR)), ROWS, SamplerWithoutReplacement())

        def epoch() -> Any:
            while True:
                yield made.sample()

        return near(epoch, lambda b: _check(readers.of_tensordict(b.exclude("index"))), ROWS, UNIT)

    return {"LazyMemmapStorage": buffer}


def lerobot() -> Builders:
    def case(workers: int) -> Case:
        place = files.lerobot_rows(NEAR)
        return near(
            lambda: readers.lerobot(place, {"observation": 2}, ROWS, range(COUNT), workers),
            _of_lerobot,
            ROWS,
            UNIT,
            workers,
        )

    return {"no workers": lambda: case(0), f"{THREADS} workers": lambda: case(THREADS)}


def _of_lerobot(batch: Any) -> Any:
    """Its last steps have no next observation: the last one is repeated, and marked."""
    names = {"number": "index", "action": "action", "next/reward": "next.reward", "next/truncated": "next.truncated"}
    found = {ours: batch[theirs] for ours, theirs in names.items()} | {"observation": batch["observation"][:, 0]}
    known = ~batch["observation_is_pad"][:, 1]
    sources.compare(NEAR, {"number": batch["index"][known], NEXT: batch["observation"][known, 1]})
    return sources.compare(NEAR, found)


OURS = "rlds: shuffled"
GROUP = Group(
    "small rows by formats and their loaders: shuffled batches of 256 transitions",
    {
        "rlds": rlds,
        "litdata": litdata,
        "lance": lance,
        "tensordict": tensordict,
        "torchrl": torchrl,
        "lerobot": lerobot,
    },
    (
        Row("shuffled transitions", OURS, "litdata: no workers", None),
        Row("", OURS, f"litdata: {THREADS} workers", None),
        Row("", OURS, "lance: take", None),
        Row("", OURS, "lance: LanceDataset, batches shuffled", None),
        Row("", OURS, "tensordict: memmap, indexed", None),
        Row("", OURS, "torchrl: LazyMemmapStorage", None),
        Row("", OURS, "lerobot: no workers", None),
        Row("", OURS, f"lerobot: {THREADS} workers", None),
    ),
    only_once=True,
)
