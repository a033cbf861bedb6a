"""Read single values of TorchRL's directories, for `rlds verify --trace`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import h5py
import numpy as np

from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.archives.hdf5 import open_file
from rlds_cli.archives.torchrl.stores import HDF5, trees
from rlds_cli.archives.torchrl.tree import BFLOAT16, Leaf
from rlds_cli.ted import FLAGS, Array

_SLICE = re.compile(r"\[([^\]]*)\]")
_OBSERVED = re.compile(r" observed from (\d+)$")


def cells(spot: Spot) -> Iterator[Cell]:
    """Read the values of one step, and the next observation."""
    if spot.file.suffix in HDF5:
        with open_file(spot.file, check=False) as f:
            yield from _of_group(spot, f[spot.group.partition("[")[0]])
        return
    _, found = next(trees(spot.file, spot.root))
    leaves = {n.removeprefix("data/"): x for n, x in found.leaves.items()}
    index = _index(spot)
    observed = _OBSERVED.search(spot.group)
    if observed:
        row = int(observed[1]) + spot.step
        yield from _of_rows(spot, leaves, index, row)
        return
    for field, key in spot.facts["keys"].items():
        stored = _stored(spot, key)
        if stored not in leaves:
            continue
        yield Cell(field, f"{stored}{list(index)}", _value(leaves[stored], index))
        after = leaves.get(_stored(spot, f"next/{key}"))
        if field.split("/")[0] == "observation" and after is not None and not spot.is_last:
            yield Cell(f"next/{field}", f"{after.name}{list(index)}", _value(after, index))
    for flag in FLAGS[:1]:
        if flag in leaves:
            yield Cell(flag, f"{flag}{list(index)}", bool(np.any(_value(leaves[flag], index))))


def _of_rows(spot: Spot, leaves: dict[str, Leaf], index: tuple[int, ...], row: int) -> Iterator[Cell]:
    """Read a step of a flat buffer, where observations have rows of their own."""
    steps = leaves["done"].shape[0]
    for field, key in spot.facts["keys"].items():
        leaf = leaves[_stored(spot, key)]
        both = leaf.shape[0] != steps
        yield Cell(field, f"{leaf.name}[{row if both else index[0]}]", _value(leaf, (row,) if both else index))
        if both and field.split("/")[0] == "observation":
            yield Cell(f"next/{field}", f"{leaf.name}[{row + 1}]", _value(leaf, (row + 1,)))


def _of_group(spot: Spot, group: h5py.Group) -> Iterator[Cell]:
    for field, key in spot.facts["keys"].items():
        d = group[_stored(spot, key)]
        yield Cell(field, f"{d.name}[{spot.step}]", d[spot.step])
        if field.split("/")[0] == "observation" and len(d) > len(group["done"]):
            yield Cell(f"next/{field}", f"{d.name}[{spot.step + 1}]", d[spot.step + 1])


def _index(spot: Spot) -> tuple[int, ...]:
    """The index of a step in the TensorDict, from the slices in the episode table."""
    step = spot.step
    for text in _SLICE.findall(spot.group):
        parts = text.split(",")
        start, stop = next(map(int, p.split(":")) for p in parts if ":" in p)
        if step < stop - start:
            return tuple(start + step if ":" in p else int(p) for p in parts)
        step -= stop - start
    return (spot.first + spot.step,)


def _stored(spot: Spot, key: str) -> str:
    return str(spot.facts["stored"].get(key, key))


def _value(leaf: Leaf, index: tuple[int, ...]) -> Array:
    value = np.array(leaf.open()[index])
    if leaf.dtype == BFLOAT16:
        return (value.astype(np.uint32) << 16).view(np.float32)
    return value
