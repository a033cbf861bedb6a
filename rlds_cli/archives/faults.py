"""Faults of earlier versions of readers: ``rlds check`` names the datasets that have them.

If the ``VERSION`` of a reader is raised because its values were wrong, add a `Fault` to ``FAULTS``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ConversionRecord:
    """The part of a dataset's manifest that tells which faults it may have.

    Attributes
    ----------
    reader, version : str, int
        The reader, and its ``VERSION`` at that time.
    dtypes : mapping of str to str
        The dtype of every field.
    facts, options : mapping
        The facts of the reader's plan, and the options of the command.
    text : callable
        Returns the text of a metadata entry by its name; the empty string if there is no such entry.
    """

    reader: str
    version: int
    dtypes: Mapping[str, str]
    facts: Mapping[str, Any]
    options: Mapping[str, Any]
    text: Callable[[str], str]


def _always(made: ConversionRecord) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of all versions of a reader before ``mended``.

    Attributes
    ----------
    mended : int
        The first version without it.
    text : str
        The fault, as the end of the sentence "converted by version 1 of the reader X, which ...".
    concerns : callable
        Tells whether a dataset converted by such a version is affected; by default every one is.
    """

    mended: int
    text: str
    concerns: Callable[[ConversionRecord], bool] = _always


def faults(made: ConversionRecord) -> list[Fault]:
    """Return the faults that a dataset has because an older version of its reader converted it."""
    return [f for f in FAULTS.get(made.reader, ()) if made.version < f.mended and f.concerns(made)]


def _has_depth_videos(made: ConversionRecord) -> bool:
    """Tell whether a depth map with more than 8 bits, by ``info.json``, was decoded to frames of 8 bits."""
    from rlds_cli.archives.lerobot import depth  # imported here to keep start-up fast

    try:
        features = json.loads(made.text("lerobot/info.json") or "{}").get("features", {})
        keys = {key for name, key in made.facts.get("columns", {}).items() if made.dtypes.get(name) == "uint8"}
        return any(f.get("dtype") == "video" and depth.is_deep(f) for k, f in features.items() if k in keys)
    except (ValueError, AttributeError, TypeError):
        return False


def _ignored_columns(made: ConversionRecord) -> bool:
    """Tell whether flags alone decided, in spite of columns of ids, steps or starts, or of names of TED."""
    from rlds_cli.archives.names import IDS, LASTS, STARTS, STEPS  # imported here to keep start-up fast

    if made.options.get("episodes_by"):
        return False
    names = {name.lower() for name in made.dtypes}
    by_flags = bool(made.facts.get("flags")) and bool(names & {*IDS, *STEPS})
    return by_flags or bool(names & {*STARTS, *LASTS}) or any(n.startswith("extra/next") for n in names)


FAULTS: Mapping[str, tuple[Fault, ...]] = {
    "plain": (
        Fault(2, "ignored columns of ids and steps: episodes may be merged or divided wrongly", _ignored_columns),
    ),
    "lerobot": (Fault(2, "decoded 12-bit depth videos to 8 bits", _has_depth_videos),),
}
