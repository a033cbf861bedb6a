"""RLDS records without ``features.json``: the lists of the first episode say what each list is.

A record whose keys begin with ``steps/`` is an episode. The flags of its steps, its rewards or discounts count these,
and the number of values of each other list, divided by that, is the width of a row::

    steps/is_first        1 0 0 0           4 steps
    steps/action          8 floats          vectors of 2: the shape of matrices is not told
    steps/observation     4 byte strings    images if they begin as PNG or JPEG do, else texts
    episode_metadata/...  any               of the episode
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlds_cli.archives.formats import tfrecord
from rlds_cli.archives.formats.tfrecord import ExampleFeature
from rlds_cli.archives.tfds.directory import STEPS, FeatureLeaf, Features
from rlds_cli.base.media import image_header
from rlds_cli.errors import ArchiveError, UnknownLayout

# Lists with one value for each step, the surest first.
COUNTED = tuple(f"{STEPS}/{name}" for name in ("is_first", "is_last", "is_terminal", "discount", "reward"))
NOTE = "no features.json describes the records: the widths of rows are those of the first episode, and all are vectors"


def are_episodes(files: Sequence[Path]) -> bool:
    """Tell whether files are TFRecords whose first record is an episode of RLDS."""
    try:
        return bool(files) and all(map(tfrecord.is_tfrecord, files)) and _count(_first(files[0])) is not None
    except ArchiveError:
        return False


def inferred(files: Sequence[Path]) -> Features:
    """Describe the lists of records by the first episode with steps.

    Raises
    ------
    UnknownLayout
        A list has no whole number of values for each step, or there is no such episode.
    """
    example = _first(files[0])
    count = _count(example)
    if count is None:
        raise UnknownLayout(
            f"{files[0].name} is a TFRecord without features.json, and its records are not episodes of RLDS: they hold "
            f"{', '.join(sorted(example)[:12])}.",
            hint="put features.json and dataset_info.json beside it, which TFDS writes, and import the directory",
        )
    of_steps = {key: feature for key, feature in sorted(example.items()) if key.startswith(f"{STEPS}/")}
    others = {key: feature for key, feature in sorted(example.items()) if key not in of_steps}
    return Features(
        {key: _leaf(key, feature, count) for key, feature in of_steps.items()},
        {key: _leaf(key, feature, None) for key, feature in others.items()},
    )


def _first(file: Path) -> Mapping[str, ExampleFeature]:
    for record in tfrecord.records(file):
        example = tfrecord.parse(record.data, where=f"{file.name}: record {record.number:,}")
        if _count(example) != 0:
            return example
    return {}


def _count(example: Mapping[str, ExampleFeature]) -> int | None:
    """Return the steps of a record; None of another record."""
    key = next((key for key in COUNTED if key in example), None)
    return None if key is None else _values(example[key])


def _values(feature: ExampleFeature) -> int:
    if feature.kind == "bytes":
        return len(feature.places()[0])
    return len(feature.floats()) if feature.kind == "float" else len(feature.integers())


def _leaf(key: str, feature: ExampleFeature, count: int | None) -> FeatureLeaf:
    """Describe one list; those of an episode, without a ``count``, are single values."""
    values = _values(feature)
    if count is None and values != 1:
        return FeatureLeaf(key, "array", "", problem=f"{values:,} values of an episode, of no known shape")
    if count is not None and (not values or values % count):
        return FeatureLeaf(key, "array", "", problem=f"{values:,} values in {count:,} steps")
    width = 1 if count is None else values // count
    if feature.kind != "bytes":
        dtype = "float32" if feature.kind == "float" else "int64"
        return FeatureLeaf(key, "array", dtype, () if width == 1 else (width,))
    if width > 1:
        return FeatureLeaf(key, "text", "str", problem=f"{width} byte strings in each row")
    starts, stops = feature.places()
    image = len(starts) and image_header.read(feature.data, int(starts[0]), int(stops[0]))
    return FeatureLeaf(key, "frames", "uint8", (0, 0, 0)) if image else FeatureLeaf(key, "text", "str")
