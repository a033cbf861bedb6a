"""The files of a TFDS directory: two descriptions, and shards of named splits.

::

    <name>/<version>/dataset_info.json                           splits, and the number of episodes of each shard
                     features.json                               see ``features``
                     <name>-<split>.tfrecord-00000-of-00004      one tf.Example per episode

``features.json`` describes each list of a tf.Example as the leaf of a tree.

::

    steps                Dataset: a sequence of dicts           steps/observation/image   T encoded images
      observation        dict                                   steps/observation/state   T * D floats
      action, reward, is_first, is_last, is_terminal, ...
    episode_metadata     dict, once per episode                 episode_metadata/file_path

The names of nested features are joined by ``/``; see ``feature.proto`` of TensorFlow Datasets for the JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlds_cli.archives.tfds.names import FEATURES as FEATURES
from rlds_cli.archives.tfds.names import INFO as INFO
from rlds_cli.base.files import json as documents
from rlds_cli.base.text import natural
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import Note

SHARD = re.compile(r"(?P<name>.+)-(?P<split>[^-]+)\.tfrecord(-(?P<index>\d{5,})-of-(?P<of>\d{5,}))?(\.gz)?")
STEPS = "steps"
MAX_DEPTH = 16
MAX_LEAVES = 4096
MAX_VALUES = 1 << 28  # of one row
Kind = Literal["array", "frames", "text"]
Encoding = Literal["none", "bytes", "zlib"]
_TEXT = {"string", "object", "str"}
_NUMBERS = {"bool", "float16", "float32", "float64"} | {f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)}
_ENCODINGS: dict[str, Encoding] = {"": "none", "none": "none", "bytes": "bytes", "zlib": "zlib"}


@dataclass(frozen=True, slots=True)
class TfdsShard:
    """One file of a split: its index among the archive's files, and its number of episodes or None."""

    file: int
    split: str
    index: int
    of: int
    episodes: int | None


@dataclass(frozen=True, slots=True)
class TfdsDirectory:
    """A TFDS directory. ``info`` is empty if there is no ``dataset_info.json``.

    Without a ``features.json`` at ``features``, the records alone say what they hold: see `undescribed`.
    """

    features: Path
    info: Mapping[str, Any]
    shards: tuple[TfdsShard, ...]

    @property
    def name(self) -> str:
        """Name and version, as far as they are said."""
        said = [str(self.info[k]) for k in ("name", "version") if self.info.get(k)]
        return " ".join(said) or self.features.parent.name


def locate(files: Sequence[Path]) -> TfdsDirectory | None:
    """Find the parts of a TFDS directory among files, or beside them; None if there is none.

    Raises
    ------
    UnknownLayout
        There is more than one dataset.
    CorruptArchive
        A description cannot be read.
    """
    found = {i: m for i, p in enumerate(files) if (m := SHARD.fullmatch(p.name))}
    directories = sorted({files[i].parent for i in found})
    if not found or not (directories[0] / FEATURES).is_file():
        return None
    if len(directories) > 1:
        raise UnknownLayout(
            f"There are {len(directories)} TFDS directories: {directories[0]}, {directories[1]} ...",
            hint="import them one by one, each with its own name",
        )
    info = read_json(path) if (path := directories[0] / INFO).is_file() else {}
    return TfdsDirectory(directories[0] / FEATURES, info, ordered(found, info))


def ordered(found: Mapping[int, re.Match[str]], info: Mapping[str, Any]) -> tuple[TfdsShard, ...]:
    """Sort the shards in the order of reading: by split, as the description has them, then by number."""
    lengths = _lengths(info)
    order = {split: n for n, split in enumerate(lengths)}
    shards = [_shard(i, m, lengths) for i, m in found.items()]
    return tuple(sorted(shards, key=lambda s: (order.get(s.split, len(order)), natural(s.split), s.index)))


def notes(located: TfdsDirectory) -> list[Note]:
    """Note the splits and shards that the description names and the archive lacks."""
    found = []
    there = {s.split for s in located.shards}
    absent = [split for split in _lengths(located.info) if split not in there]
    if absent:
        text = f"splits that {INFO} names have no files here: {', '.join(absent)}"
        found.append(Note("missing-splits", text, len(absent), absent[0]))
    for split in sorted(there):
        of = max(s.of for s in located.shards if s.split == split)
        missing = of - len({s.index for s in located.shards if s.split == split})
        if missing > 0:
            found.append(Note("missing-shards", f"files of {split} are not here, of {of:,}", missing, split))
    return found


def _lengths(info: Mapping[str, Any]) -> dict[str, list[int]]:
    """Count the episodes of each shard, by split."""
    try:
        splits = info.get("splits", [])
        if isinstance(splits, Mapping):  # written so by early versions
            splits = [{"name": name, **split} for name, split in splits.items()]
        return {str(s["name"]): [int(n) for n in s.get("shardLengths", ())] for s in splits}
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as e:
        raise CorruptArchive(f"{INFO} does not describe splits as TFDS does: {e!r}") from e


def _shard(file: int, match: re.Match[str], lengths: Mapping[str, Sequence[int]]) -> TfdsShard:
    split, index, of = match["split"], int(match["index"] or 0), int(match["of"] or 1)
    said = lengths.get(split, ())
    return TfdsShard(file, split, index, of, said[index] if len(said) == of and index < of else None)


@dataclass(frozen=True, slots=True)
class FeatureLeaf:
    """One list of the tf.Examples.

    ``key`` is its name there, and ``shape`` the shape of one row; for ``frames``, 0 stands for an unknown dimension.
    ``problem`` is the reason why it cannot be stored, or None.
    """

    key: str
    kind: Kind
    dtype: str
    shape: tuple[int, ...] = ()
    encoding: Encoding = "none"
    problem: str | None = None

    @property
    def packed_image(self) -> bool:
        """True if the rows are PNG images of other values than uint8 (depth), which are decoded at conversion."""
        return self.kind == "frames" and self.dtype != "uint8"


@dataclass(frozen=True, slots=True)
class Features:
    """Leaves of the steps, and of the episode, by key."""

    steps: Mapping[str, FeatureLeaf]
    episode: Mapping[str, FeatureLeaf]


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of bounded size.

    Raises
    ------
    CorruptArchive
        It is not a JSON object, or larger than any that TFDS writes.
    """
    return documents.load_object(path)


def is_rlds(content: Mapping[str, Any]) -> bool:
    """Tell whether the features are those of episodes: a sequence of ``steps``."""
    inner = _get(content, "featuresDict", "features", STEPS)
    return isinstance(inner, Mapping) and "sequence" in inner


def load(path: Path) -> Features:
    """Read the leaves that a ``features.json`` describes.

    Raises
    ------
    UnknownLayout
        It describes no episodes, or not in the way of TFDS.
    CorruptArchive
        It is damaged, or claims impossible sizes.
    """
    content = read_json(path)
    if not is_rlds(content):
        raise UnknownLayout(
            f"{path.name} describes no episodes: it has no sequence of {STEPS}.",
            hint="RLDS datasets are TFDS directories whose features are steps/observation, steps/action, ...",
        )
    top = content["featuresDict"]["features"]
    try:
        steps = {x.key: x for x in _leaves(top[STEPS]["sequence"]["feature"], STEPS, 0)}
        others = ((name, node) for name, node in top.items() if name != STEPS)
        episode = {x.key: x for name, node in others for x in _leaves(node, name, 0)}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        raise CorruptArchive(f"{path.name} does not describe features as TFDS does: {e!r}") from e
    if len(steps) + len(episode) > MAX_LEAVES:
        raise CorruptArchive(f"{path.name} describes {len(steps) + len(episode):,} features; {MAX_LEAVES:,} are read.")
    return Features(steps, episode)


def _get(content: Any, *keys: str) -> Any:
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _leaves(node: Mapping[str, Any], key: str, depth: int) -> Iterator[FeatureLeaf]:
    if depth > MAX_DEPTH:
        raise ValueError(f"{key} is nested more than {MAX_DEPTH} deep")
    if "featuresDict" in node:
        for name, inner in node["featuresDict"]["features"].items():
            yield from _leaves(inner, f"{key}/{name}", depth + 1)
    elif "sequence" in node:
        length = int(node["sequence"].get("length") or -1)
        for leaf in _leaves(node["sequence"]["feature"], key, depth + 1):
            yield _repeated(leaf, length)
    else:
        yield _leaf(node, key)


def _repeated(leaf: FeatureLeaf, length: int) -> FeatureLeaf:
    """Describe a leaf inside a sequence within each row."""
    if length < 0:
        return replace(leaf, problem="a sequence of different lengths in each row")
    if leaf.kind != "array":
        return replace(leaf, problem=f"{length} of {leaf.kind} in each row")
    return _checked(replace(leaf, shape=(length, *leaf.shape)))


def _leaf(node: Mapping[str, Any], key: str) -> FeatureLeaf:
    if "tensor" in node:
        tensor = node["tensor"]
        dtype, shape = str(tensor.get("dtype", "")), _shape(tensor)
        if dtype in _TEXT:
            return FeatureLeaf(key, "text", "str", (), problem=f"texts of shape {list(shape)}" if shape else None)
        encoding = _ENCODINGS.get(str(tensor.get("encoding", "")))
        if dtype not in _NUMBERS or encoding is None:
            return FeatureLeaf(key, "array", dtype, shape, problem=f"{dtype} encoded as {tensor.get('encoding')}")
        return _checked(FeatureLeaf(key, "array", dtype, shape, encoding))
    if "text" in node:
        return FeatureLeaf(key, "text", "str")
    if "classLabel" in node:
        return FeatureLeaf(key, "array", "int64")
    if "boundingBox" in node:
        return FeatureLeaf(key, "array", "float32", (4,))
    if "image" in node:
        return _image(node["image"], key)
    return FeatureLeaf(key, "array", "", problem=f"a feature of {node.get('pythonClassName', 'an unknown class')}")


def _image(image: Mapping[str, Any], key: str) -> FeatureLeaf:
    shape, dtype = _shape(image), str(image.get("dtype") or "uint8")
    shape = tuple(0 if n < 0 else n for n in shape) or (0, 0, 0)
    leaf = FeatureLeaf(key, "frames", dtype, shape)
    if len(shape) != 3:
        return replace(leaf, problem=f"images of shape {list(shape)}")
    if leaf.packed_image and (dtype not in ("uint16", "float32") or shape[2] != 1 or not all(shape)):
        return replace(leaf, problem=f"{dtype} images of shape {list(shape)}")
    return _checked(leaf)


def _shape(node: Mapping[str, Any]) -> tuple[int, ...]:
    """Read dimensions, -1 for one that is not given."""
    return tuple(int(n) for n in (node.get("shape") or {}).get("dimensions", ()))


def _checked(leaf: FeatureLeaf) -> FeatureLeaf:
    if leaf.problem or any(n < 0 for n in leaf.shape):
        return leaf if leaf.problem else replace(leaf, problem=f"rows of different shapes, {list(leaf.shape)}")
    if math.prod(leaf.shape) > MAX_VALUES or len(leaf.shape) > MAX_DEPTH:
        raise ValueError(f"{leaf.key} claims rows of shape {list(leaf.shape)}")
    if leaf.kind == "array" and 0 in leaf.shape:
        return replace(leaf, problem=f"rows of shape {list(leaf.shape)}, which hold nothing")
    if leaf.kind == "array":
        np.dtype(leaf.dtype)
    return leaf
