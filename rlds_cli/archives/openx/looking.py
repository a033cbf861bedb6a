"""Single values of RLDS episodes, for `rlds verify --trace`: cut out of their lists by position."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from rlds_cli.archives import tfrecord
from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.archives.example import Feature, parse
from rlds_cli.archives.openx import directory, features, steps
from rlds_cli.archives.openx.features import Leaf
from rlds_cli.errors import CorruptArchive
from rlds_cli.ted import FLAGS


def cells(spot: Spot) -> Iterator[Cell]:
    """What stands at a step, and what is known of the one after; depth images and deflated tensors are left out."""
    found = features.load(spot.file.with_name(directory.FEATURES))
    lists = example_of(spot.file, spot.group)
    final = spot.facts["last_step"] == "observation"
    for name, leaf in steps.columns(found, spot.fields).items():
        if leaf.key not in lists or leaf.packed_image or leaf.encoding != "none":
            continue
        scalar = name in ("next/reward", "next/discount")
        yield Cell(name, f"{leaf.key}[{spot.step}]", row(leaf, lists[leaf.key], spot.step, scalar=scalar))
        both = name.split("/")[0] == "observation" or (
            final and steps.field(leaf, name, "observation").placement == "both"
        )
        if both and (final or not spot.is_last):
            yield Cell(f"next/{name}", f"{leaf.key}[{spot.step + 1}]", row(leaf, lists[leaf.key], spot.step + 1))
    if steps.TERMINAL in lists:
        at = spot.step + final
        yield Cell(FLAGS[0], f"{steps.TERMINAL}[{at}]", bool(lists[steps.TERMINAL].integers()[at]))


@lru_cache(maxsize=1)  # steps are asked for in their order, several of one episode
def example_of(file: Path, group: str) -> Mapping[str, Feature]:
    """The lists of one record, by the name that the reader gives its episode."""
    number = int(group.rpartition("_")[2])
    for record in tfrecord.records(file):
        if record.number == number:
            return parse(record.data, where=f"{file.name}: record {number:,}")
    raise CorruptArchive(f"{file.name} has no record {number:,}.", hint=f"delete {file} and fetch it again")


def row(leaf: Leaf, feature: Feature, at: int, *, scalar: bool = False) -> object:
    """Row ``at`` of a list: bytes of an image, text, or an array of the leaf's dtype and shape."""
    if feature.kind == "bytes":
        data = feature.strings()[at]
        return data.decode("utf-8", "replace") if leaf.kind == "text" else data
    width = math.prod(leaf.shape)
    values = feature.floats() if feature.kind == "float" else feature.integers()
    return values[at * width : (at + 1) * width].astype(np.dtype(leaf.dtype)).reshape(() if scalar else leaf.shape)
