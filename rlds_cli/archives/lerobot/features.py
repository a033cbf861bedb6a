"""What becomes of the features of ``info.json``: names, shapes and kinds of TED fields.

::

    observation.images.top    observation/images/top     both     frames: PNG of the Parquet file, or a video
    observation.state         observation/state          both
    action                    action                     root
    next.reward               next/reward                next     scalar
    next.success              next/success               next
    next.done                 next/info/done             next     says that, not why, an episode ended; see `rows`
    timestamp and others      timestamp                  root
    task_index                task                       root     the text
    language_events           language_events            root     lists of structs, as the text of their JSON
    episode_index, frame_index, index                    -        count; checked, not kept
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds_cli.archives import parquet
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, VIDEO, Field, Placement

LANGUAGE = ("language_persistent", "language_events")  # annotations; read also where info.json forgets them
COUNTED = ("episode_index", "frame_index", "index")
TASK = "task_index"
_NAMES = {"next.done": "next/info/done", TASK: "task"}
_ROWS = r"(observation|action)\b"  # whose rows of one element stay rows


@dataclass(frozen=True, slots=True)
class Feature:
    """A column of the archive, or a camera's videos, as the field that it becomes.

    ``nested`` says that its values are kept as JSON.
    """

    key: str
    field: Field
    nested: bool = False


def read(
    features: Mapping[str, Mapping[str, Any]], columns: Any, renamed: Mapping[str, str]
) -> tuple[list[Feature], list[str]]:
    """The features to be stored, frames without their shape, and the columns that no feature describes.

    Parameters
    ----------
    features : mapping
        Of ``info.json``.
    columns : pyarrow.Schema
        Of a data file.
    renamed : mapping
        Keys by the TED names that the user gave them.

    Raises
    ------
    UnknownLayout
        A name is given to no feature, a feature has no column, or rewards and flags are neither numbers nor flags.
    """
    features = {**features, **{k: {"dtype": "language"} for k in LANGUAGE if k in columns.names and k not in features}}
    named = {key: name for name, key in renamed.items()}
    lost = sorted(named.keys() - features.keys())
    if lost:
        raise UnknownLayout(f"There is no feature {lost[0]}.", hint=f"--map with one of {', '.join(features)}")
    kept = [key for key in features if key not in COUNTED or key in named]
    names = _names(kept, named)
    found = [_feature(names[key], key, features[key], columns) for key in kept]
    return found, [name for name in columns.names if name not in features]


def _names(keys: Iterable[str], named: Mapping[str, str]) -> dict[str, str]:
    """TED names; what would be a field and a group of fields at once keeps its dot."""
    keys = list(keys)
    names: dict[str, str] = {}
    for key in sorted(keys):
        above = max((k for k in keys if key.startswith(f"{k}.")), key=len, default=None)
        plain = names[above] + key[len(above) :] if above else key.replace(".", "/")
        names[key] = named.get(key) or _NAMES.get(key) or plain
    return names


def _feature(name: str, key: str, feature: Mapping[str, Any], columns: Any) -> Feature:
    placement = _placement(name)
    if feature["dtype"] == "video":
        return Feature(key, Field(name, "uint8", (), placement, "frames", VIDEO))
    if key not in columns.names:
        raise UnknownLayout(f"The data files have no column {key}, which info.json describes.")
    text = Field(name, "str", (), placement, "text")
    if key == TASK and name not in FLAGS:
        return Feature(key, text)
    kind = columns.field(key).type
    if feature["dtype"] == "image":
        return Feature(key, Field(name, "uint8", (), placement, "frames"))
    types = parquet.pyarrow().types
    if _is_text(kind):
        return Feature(key, text)
    inner, depth, sides = _inner(kind)
    if not (types.is_boolean(inner) or types.is_integer(inner) or types.is_floating(inner)):
        if name in (REWARD, *FLAGS):
            raise UnknownLayout(f"{key} holds values of type {kind}, which are no {name}.")
        return Feature(key, text, nested=True)
    return Feature(key, _numbers(name, inner, depth, sides, tuple(map(int, feature.get("shape") or ())), placement))


def _is_text(kind: Any) -> bool:
    types = parquet.pyarrow().types
    if getattr(kind, "extension_name", "") == "arrow.json":
        return True
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _inner(kind: Any) -> tuple[Any, int, list[int]]:
    """What the lists of a type hold, how deep they are nested, and the sides of those of fixed size."""
    types = parquet.pyarrow().types
    depth, sides = 0, list[int]()
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        sides += [kind.list_size] if types.is_fixed_size_list(kind) else []
        kind, depth = kind.value_type, depth + 1
    return kind, depth, sides


def _numbers(
    name: str, kind: Any, depth: int, sides: Sequence[int], shape: tuple[int, ...], placement: Placement
) -> Field:
    if len(sides) == depth and math.prod(sides) != math.prod(shape):
        shape = tuple(sides)  # what the file has, where info.json says otherwise
    if shape == (1,) and depth == 0 and not re.match(_ROWS, name):
        shape = ()
    dtype = "bool" if parquet.pyarrow().types.is_boolean(kind) else np.dtype(kind.to_pandas_dtype()).name
    return Field(name, dtype, () if name in (REWARD, *FLAGS) and shape == (1,) else shape, placement)


def _placement(name: str) -> Placement:
    top = name.split("/")[0]
    return "next" if top == "next" else "both" if top == "observation" else "root"
