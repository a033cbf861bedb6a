"""Keys of TorchRL's dataset classes for fields of their families: ``pixels`` of V-D4RL, ``X`` and ``y`` of OpenML.

A dataset is of a family if the family's reader has read its archive; what preprocess functions make has its own names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from rlds_cli.base.array_types import Array
from rlds_cli.base.text import is_below
from rlds_cli.loader.fields.columns import BatchColumn
from rlds_cli.loader.numbered import TransitionReader

_RENAMED: Mapping[str, Mapping[str, str]] = {"vd4rl": {"observation": "pixels"}}
_CHECKPOINT = re.compile(r"([^$]*)\$store\$.*_ckpt\.(\d+)\.gz")


@dataclass(frozen=True, slots=True)
class Placed:
    """Columns by their keys, and the name of the field behind each key that is not computed."""

    columns: Mapping[str, BatchColumn]
    fields: Mapping[str, str]


def placed(offered: TransitionReader, given: Mapping[str, BatchColumn], *, whole: bool) -> Placed:
    """Place columns, by names of fields, under the keys of TorchRL's class; ``whole`` if no fields were asked for."""
    dataset = offered.dataset
    reader = dataset.manifest.reader
    if whole and reader == "openml":
        return _bandit(offered, given)
    keys = {name: _key(name, _RENAMED.get(reader, {})) for name in given}
    made = Placed({keys[name]: c for name, c in given.items()}, {key: name for name, key in keys.items()})
    if whole and reader == "vd4rl":
        return Placed({**made.columns, "is_init": offered.derived(_is_first, offered.step())}, made.fields)
    if whole and reader == "atari_dqn" and "add_count" in dataset.manifest.facts and "source" in dataset.episodes:
        return Placed({**made.columns, "metadata": _metadata(offered)}, made.fields)
    return made


def _key(name: str, renamed: Mapping[str, str]) -> str:
    after = "next/" if name.startswith("next/") else ""
    plain = name.removeprefix(after)
    return after + next((key + plain[len(old) :] for old, key in renamed.items() if is_below(plain, old)), plain)


# -- V-D4RL


def _is_first(step: Array) -> Array:
    return np.asarray(step == 0)


# -- OpenML: X [N, F] float64, the numbers before the categories; y [N] int64


def _bandit(offered: TransitionReader, given: Mapping[str, BatchColumn]) -> Placed:
    parts = [given[n] for n in sorted(given, reverse=True) if is_below(n, "observation")]
    return Placed({"X": offered.derived(_joined, *parts), "y": given["action"]}, {"y": "action"})


def _joined(*values: Array) -> Array:
    return np.concatenate([v.astype(np.float64) for v in values], axis=-1)


# -- Atari: what the files of a checkpoint say of the log


def _metadata(offered: TransitionReader) -> BatchColumn:
    """Return the column of the metadata of the checkpoint that holds a step: a dict for each."""
    dataset, facts = offered.dataset, offered.dataset.manifest.facts
    numbers = offered.episode
    labels = [_CHECKPOINT.fullmatch(str(source["file"])) for source in dataset.sources]
    of_source = np.array([-1 if m is None else int(m[2]) for m in labels])
    where = ["" if m is None else m[1] for m in labels]
    id = dataset.id.removeprefix("atari_dqn/")
    source = dataset.episodes["source"][numbers]
    row = dataset.episodes["row"][numbers]
    said = {
        label: {"add_count": _tensor(count), "invalid_range": _tensor(invalid), "dataset_id": id}
        for label, count, invalid in zip(facts["checkpoints"], facts["add_count"], facts["invalid_range"], strict=True)
    }
    look_up = partial(_of_checkpoints, said, where, of_source, int(facts["capacity"]))
    return offered.derived(look_up, offered.step(), offered.of_episode(source), offered.of_episode(row))


def _tensor(value: Any) -> Any:
    return None if value is None else torch.tensor(value)


def _of_checkpoints(
    said: Mapping[str, Any],
    where: list[str],
    of_source: Array,
    capacity: int,
    step: Array,
    source: Array,
    row: Array,
) -> Array:
    """Look up the checkpoint of each step; in each of them the last row comes first."""
    number = of_source[source] + ((row + 1) % capacity + step) // capacity
    found = np.empty(len(number), object)
    found[:] = [said.get(f"{where[s]}{n}") for s, n in zip(source.tolist(), number.tolist(), strict=True)]
    return found
