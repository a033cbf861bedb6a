"""The record ``rlds`` of an exported recording: what it says of an episode beside its messages.

Messages have every value. Which step one belongs to, how the episode ended and what is said of it is in the record::

    {"steps": 3, "hz": 20.0, "fps": 20, "end": "terminated", "final": true, "seed": null, "options": null,
     "columns": {"task": "pick"}, "depth": {"observation/depth": "mm"},
     "fields": {"action": {"dtype": "float32", "shape": [2], "placement": "root", "kind": "array", "codec": null}}}

Row k of a field is at k / hz seconds, the result of step k at (k + 1) / hz. The file may come from a stranger.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from rlds_cli.archives.formats.topics import SECOND, Recording
from rlds_cli.base.array_types import IntArray
from rlds_cli.base.media import image_header
from rlds_cli.base.text import is_below
from rlds_cli.errors import CorruptArchive
from rlds_cli.ted import END_NAMES, Field, Placement, Scalar

RECORD, KEY = "rlds", "episode"
_MOST_STEPS, _MOST_VALUES = 1 << 40, 1 << 28
_UNITS = ("mm", "m")
_TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32"),
    "float64",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEpisode:
    """What the record says: ``end`` is a code of `END_NAMES`, ``final`` whether the final observation is recorded."""

    steps: int
    hz: float
    fps: float | None
    end: int
    final: bool
    seed: int | None
    options: str | None
    columns: Mapping[str, Scalar]
    fields: Mapping[str, Field]
    depth: Mapping[str, str]  # units of fields of depth

    def times(self) -> IntArray:
        """Return the time of each row in nanoseconds [steps + 1]."""
        return np.array([round(k * SECOND / self.hz) for k in range(self.steps + 1)], np.int64)

    def sent(self, f: Field) -> IntArray:
        """Return the times of the messages of a field."""
        times = self.times()
        if f.placement == "next":
            return times[1:]
        return times if f.placement == "both" and self.final else times[:-1]


def of(recording: Recording) -> RecordedEpisode | None:
    """Return what the record of a recording says; None without one.

    Raises
    ------
    CorruptArchive
        It says something else than an export does, or the messages do not follow it.
    """
    said = recording.metadata.get(RECORD, {}).get(KEY)
    if said is None:
        return None
    try:
        found = _read(json.loads(said))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as e:
        raise CorruptArchive(
            f"{recording.path.name}: its record {RECORD} is not that of an export ({type(e).__name__}: {e}).",
            hint="--map or --topics reads the messages without it",
        ) from e
    _check(recording, found)
    return found


def _read(said: Mapping[str, Any]) -> RecordedEpisode:
    hz, steps = float(said["hz"]), said["steps"]
    if not (math.isfinite(hz) and hz > 0 and type(steps) is int and 0 < steps < _MOST_STEPS):
        raise ValueError(f"{steps!r} steps, {hz} of a second")
    fields = {name: _field(name, f) for name, f in said["fields"].items()}
    seed, options, fps = said.get("seed"), said.get("options"), said.get("fps")
    if not (seed is None or (type(seed) is int and 0 <= seed < 1 << 64)) or not isinstance(options, str | None):
        raise ValueError(f"seed {seed!r:.40}, options {options!r:.40}")
    if not (fps is None or (isinstance(fps, int | float) and math.isfinite(fps) and fps > 0)):
        raise ValueError(f"fps {fps!r:.40}")
    depth = said.get("depth", {})
    if not all(name in fields and fields[name].dtype == "uint16" and unit in _UNITS for name, unit in depth.items()):
        raise ValueError(f"depth {depth!r:.80}")
    columns = {str(n): v for n, v in said["columns"].items() if v is None or isinstance(v, str | int | float)}
    return RecordedEpisode(
        steps=steps,
        hz=hz,
        fps=fps,
        end=END_NAMES.index(said["end"]),
        final=said["final"] is True,
        seed=seed,
        options=options,
        columns=columns,
        fields=dict(sorted(fields.items())),
        depth=depth,
    )


def _field(name: str, f: Mapping[str, Any]) -> Field:
    kind, dtype, shape, placement, codec = (f[key] for key in ("kind", "dtype", "shape", "placement", "codec"))
    sound = (
        all(name.split("/")) and placement in get_args(Placement) and (placement == "next") == is_below(name, "next")
    )
    sound = sound and all(type(n) is int and 0 < n < 1 << 31 for n in shape) and math.prod(shape) < _MOST_VALUES
    if kind == "frames":
        of_depth = (dtype, codec, len(shape) == 3 and shape[2]) == ("uint16", "png", 1)
        sound = sound and len(shape) == 3 and (of_depth or (dtype == "uint8" and codec in image_header.CODECS))
    elif kind == "text":
        sound = sound and dtype == "str" and not shape
    else:
        sound = sound and kind == "array" and dtype in _TYPES
    if not sound:
        raise ValueError(
            f"{name[:80]!r} is not a field of {dtype!r:.40} {str(shape)[:40]}, {kind!r:.40} placed {placement!r:.40}"
        )
    return Field(name, dtype, tuple(shape), placement, kind, codec)


def values_of(leaves: Sequence[Any], f: Field, where: str) -> Any:
    """Return the values of messages [n, ...] as the field has them: texts, or an array of its dtype and shape.

    Raises
    ------
    CorruptArchive
        A message holds something else.
    """
    try:
        if f.kind == "text":
            if not all(isinstance(value, str) for value in leaves):
                raise TypeError("not a text")
            return list(leaves)
        return np.array([np.asarray(value).astype(f.dtype).reshape(f.shape) for value in leaves], f.dtype).reshape(
            len(leaves), *f.shape
        )
    except (TypeError, ValueError, OverflowError) as e:
        raise CorruptArchive(f"{where}: a message does not hold {f.dtype} {list(f.shape)}: {e}.") from e


def _check(recording: Recording, found: RecordedEpisode) -> None:
    times: dict[str, list[int]] = {}
    for m in recording.messages([f"/{name}" for name in found.fields]):
        times.setdefault(m.topic, []).append(m.time)
    for name, f in found.fields.items():
        sent = times.get(f"/{name}", [])
        wanted = found.steps + (f.placement == "both" and found.final)
        if len(sent) != wanted or not np.array_equal(sent, found.sent(f)):
            raise CorruptArchive(
                f"{recording.path.name}: its record {RECORD} states {wanted:,} messages of /{name}; there are "
                f"{len(sent):,}, or they have other times.",
                hint="--map or --topics reads the messages without it",
            )
