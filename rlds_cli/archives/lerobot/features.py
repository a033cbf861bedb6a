"""Features of a LeRobot dataset: the TED fields that columns of its tables, and its cameras' videos, become.

::

    observation.images.top    observation/images/top     both     frames: PNG of the Parquet file, or a video
    observation.state         observation/state          both
    action                    action                     root
    next.reward               next/reward                next     scalar
    next.success              next/success               next
    next.done                 next/info/done             next     says that, not why, an episode ended; see `rows`
    timestamp and others      timestamp                  root
    task_index                task                       -        the text: a column of episodes, see `archives.tasks`
    language_events           language_events            root     lists of structs, as the text of their JSON
    episode_index, frame_index, index                    -        count; checked, not kept
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds_cli.archives.formats import parquet
from rlds_cli.archives.lerobot.names import COUNTED, LANGUAGE, TASK
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, VIDEO, Field, Placement

_NAMES = {"next.done": "next/info/done", TASK: "task"}
_ROWS = r"(observation|action)\b"  # whose rows of one element stay rows


@dataclass(frozen=True, slots=True)
class LerobotFeature:
    """A column of the archive, or a camera's videos, as the field that it becomes.

    ``nested`` says that its values are kept as JSON.
    """

    key: str
    field: Field
    nested: bool = False


@dataclass(frozen=True, slots=True)
class DataColumns:
    """The columns of the data files of a dataset.

    Attributes
    ----------
    schema : pyarrow.Schema
        Each column with the type that most files give it.
    odd : mapping of str to str
        How a file differs from the others, by its name: it lacks a column, or has numbers of another type.
    """

    schema: Any
    odd: Mapping[str, str] = field(default_factory=dict)


def columns_of(schemas: Mapping[str, Any], used: Iterable[str]) -> DataColumns:
    """Compare the ``schemas`` of data files, by their names, in the columns that are ``used``."""
    pa = parquet.pyarrow()
    types: dict[str, Counter[Any]] = {}
    for schema in schemas.values():
        for column in schema:
            types.setdefault(column.name, Counter())[column.type] += 1
    most = {name: max(of.items(), key=lambda t: (t[0] != pa.null(), t[1]))[0] for name, of in types.items()}
    whole = pa.schema(most.items())
    odd: dict[str, str] = {}
    for key in (key for key in used if key in most):
        usual = next(n for n, s in schemas.items() if key in s.names and s.field(key).type == most[key])
        for name, schema in schemas.items():
            if key not in schema.names:
                odd.setdefault(name, f"it has no column {key}, which {usual} has")
            elif not _alike(kind := schema.field(key).type, most[key]):
                odd.setdefault(name, f"{key} is {kind}; in {usual} it is {most[key]}")
    return DataColumns(whole, odd)


def _alike(kind: Any, usual: Any) -> bool:
    """Return whether two types hold the same values: lists may say their length, texts be stored in several ways."""
    types = parquet.pyarrow().types
    (inner, _, _), (other, _, _) = _inner(kind), _inner(usual)
    numbers = [types.is_primitive(t) for t in (inner, other)]
    return inner == other if any(numbers) else _is_text(kind) == _is_text(usual) or types.is_null(kind)


def lerobot_fields(features: Mapping[str, Mapping[str, Any]], columns: Any) -> dict[str, Field]:
    """Return the field that each feature is read as, by its key, where nothing else is said; see `read_features`."""
    return {read.key: read.field for read in read_features(features, columns, {}).found}


@dataclass(frozen=True, slots=True)
class ReadFeatures:
    """The features to store, those ``absent`` from the data files, and the columns that no feature describes."""

    found: list[LerobotFeature]
    absent: list[str]
    strange: list[str]


def read_features(features: Mapping[str, Mapping[str, Any]], columns: Any, renamed: Mapping[str, str]) -> ReadFeatures:
    """Find the features to store, frames without their shape.

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
        A name is given to no feature or to one without a column, or rewards and flags are neither numbers nor flags.
    """
    features = {**features, **{k: {"dtype": "language"} for k in LANGUAGE if k in columns.names and k not in features}}
    named = {key: name for name, key in renamed.items()}
    lost = sorted(named.keys() - features.keys())
    if lost:
        raise UnknownLayout(f"There is no feature {lost[0]}.", hint=f"--map with one of {', '.join(features)}")
    kept = [key for key in features if key not in COUNTED or key in named]
    absent = [key for key in kept if features[key]["dtype"] != "video" and key not in columns.names]
    if asked := [key for key in absent if key in named]:
        raise UnknownLayout(f"The data files have no column {asked[0]}, which info.json describes.")
    kept = [key for key in kept if key not in absent]
    names = _names(kept, named)
    found = [_feature(names[key], key, features[key], columns) for key in kept]
    return ReadFeatures(found, absent, [name for name in columns.names if name not in features])


def _names(keys: Iterable[str], named: Mapping[str, str]) -> dict[str, str]:
    """Make TED names; a name that would be both a field and a group of fields keeps its dot."""
    keys = list(keys)
    names: dict[str, str] = {}
    for key in sorted(keys):
        above = max((k for k in keys if key.startswith(f"{k}.")), key=len, default=None)
        plain = names[above] + key[len(above) :] if above else key.replace(".", "/")
        names[key] = named.get(key) or _NAMES.get(key) or plain
    return names


def _feature(name: str, key: str, feature: Mapping[str, Any], columns: Any) -> LerobotFeature:
    placement = _placement(name)
    if feature["dtype"] == "video":
        return LerobotFeature(key, Field(name, "uint8", (), placement, "frames", VIDEO))
    text = Field(name, "str", (), placement, "text")
    if key == TASK and name not in FLAGS:
        return LerobotFeature(key, text)
    kind = columns.field(key).type
    if feature["dtype"] == "image":
        return LerobotFeature(key, Field(name, "uint8", (), placement, "frames"))
    types = parquet.pyarrow().types
    if _is_text(kind):
        return LerobotFeature(key, text)
    inner, depth, sides = _inner(kind)
    if not (types.is_boolean(inner) or types.is_integer(inner) or types.is_floating(inner)):
        if name in (REWARD, *FLAGS):
            raise UnknownLayout(f"{key} holds values of type {kind}, which are not {name}.")
        return LerobotFeature(key, text, nested=True)
    return LerobotFeature(
        key, _numbers(name, inner, depth, sides, tuple(map(int, feature.get("shape") or ())), placement)
    )


def _is_text(kind: Any) -> bool:
    types = parquet.pyarrow().types
    if getattr(kind, "extension_name", "") == "arrow.json":
        return True
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _inner(kind: Any) -> tuple[Any, int, list[int]]:
    """Return the type inside nested lists, their depth, and the sizes of the fixed ones."""
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
