"""RLDS as TensorFlow Datasets stores it: an episode in a record, whose steps are lists; written without TensorFlow.

::

    dataset_info.json  features.json  rlds.json
    <name>-<split>.tfrecord-00000-of-00004

Where final observations are known, they are in a last step whose action and reward mean nothing, as RLDS defines it;
else the last step is a real one. float64 and long rows of integers are stored as bytes (``encoding: bytes`` of a TFDS
tensor), other numbers as lists of floats or integers. Images stay encoded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.exported import EXPORTED
from rlds_cli.archives.exports.content import Loss
from rlds_cli.archives.exports.format import Format, Unit, absent_images, check_columns, odd_texts, sync, units_of
from rlds_cli.archives.exports.instructions import Instructions
from rlds_cli.archives.tfds.names import FEATURES, INFO
from rlds_cli.archives.tfds.steps import LastStep, tfds_fields
from rlds_cli.archives.tfds.write import tfrecords as records
from rlds_cli.archives.tfds.write.tfrecords import ListOfValues
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import json as documents
from rlds_cli.base.repeated import Repeated
from rlds_cli.base.text import is_below
from rlds_cli.errors import ExportError
from rlds_cli.ted import CUT, FLAGS, REWARD, TASK, VIDEO, Field

_CLASSES = "tensorflow_datasets.core.features"
_KEYS = {REWARD: "reward", "next/discount": "discount"}
_TAKEN = {"is_first", "is_last", "is_terminal", "reward", "discount"}
_AS_BYTES = 64  # integers of a row from which they are stored as bytes
_UNSPLIT = "train"
_INSTRUCTION = "language_instruction"  # where Open X-Embodiment has it
_SPLIT = re.compile(r"\w+")
_VERSION = "1.0.0"
_INFO = "tfds/dataset_info.json"  # metadata of a dataset that was imported from such a directory
_FORMER = (_INFO, "tfds/features.json")
_PARTS = ("seed", "has_seed", "options")


class Tfds(Format):
    """A directory that ``tfds.builder_from_directory`` reads."""

    name = "tfds"
    reader = "openx"
    can = frozenset({"cut", "seeds", "options", "columns"})
    instructed = "steps"

    # -- losses

    def losses(self) -> list[Loss]:
        """Return what such a directory cannot represent."""
        kept = [x for x in super().losses() if x.kind not in ("final", "unknown-final", "splits", "metadata")]
        table = self.content.table
        known = int(table.observed.sum())
        if 0 < known < len(table):
            kept.append(Loss("final", f"final observations of {known:,} of {len(table):,} episodes: all or none"))
        if table.splits and self._blocks is None:
            text = f"named splits that are not a division of the episodes in their order: {', '.join(table.splits)}"
            kept.append(Loss("splits", text))
        names = [n for n in self.content.dataset.manifest.metadata if n not in _FORMER]
        if names:
            text = f"data that are not per row: {', '.join(names[:5])}{', ...' * (len(names) > 5)}"
            kept.append(Loss("metadata", text))
        return kept

    def losses_of_fields(self) -> Iterator[Loss]:
        """Yield fields that have no place, and missing texts."""
        odd = {loss.field: loss for loss in odd_texts(self.content)}
        for name, f in self.content.fields.items():
            if name in odd:
                yield odd[name]
            elif f.codec == VIDEO:
                yield Loss("encoding", f"{name} in videos: will be stored decoded", name)
            elif f.kind == "frames" and f.dtype != "uint8":
                yield Loss("encoding", f"{name} in images of 16 bits: will be stored decoded", name)
            elif f.kind == "frames" and (count := absent_images(self.content, name)):
                yield Loss("field", f"{name}: {count:,} steps have no image", name)
            elif f.kind == "array" and np.dtype(f.dtype).kind not in "biuf":
                yield Loss("field", f"{name}: its type {f.dtype} is not known", name)
            elif f.kind == "array" and not math.prod(f.shape):
                yield Loss("field", f"{name}: its rows hold no values", name)
            elif f.kind == "text" and not self._is_said(name) and (count := self.content.missing_texts(name)):
                yield Loss("missing", f"{name}: {count:,} steps have no text, and get an empty one", name)

    def check(self) -> None:
        """Refuse a dataset without observations: TFDS' steps have some."""
        left_out = {loss.field for loss in self.losses_of_fields() if loss.kind == "field"}
        if not any(is_below(name, "observation") for name in self.content.fields if name not in left_out):
            raise ExportError(f"{self.content.id} has no observation that TFDS could hold.")
        check_columns(self.content, self.name)

    # -- work

    @cached_property
    def _blocks(self) -> list[tuple[str, int, int]] | None:
        """Return the splits as (name, first episode, stop), end to end; None if they are not so."""
        table = self.content.table
        found = []
        for name, mask in table.splits.items():
            inside = np.flatnonzero(mask)
            if not len(inside) or int(inside[-1] - inside[0]) != len(inside) - 1 or not _SPLIT.fullmatch(name):
                return None
            found.append((name, int(inside[0]), int(inside[-1]) + 1))
        found.sort(key=lambda block: block[1])
        stops = [0, *(stop for _, _, stop in found)]
        return found if [a for _, a, _ in found] == stops[:-1] and stops[-1] == len(table) else None

    @cached_property
    def _shards(self) -> dict[Unit, Path]:
        """Return the file of each shard: about 64 MiB of episodes of one split."""
        found: dict[Unit, Path] = {}
        for split, first, stop in self._splits:
            units = self._units_of(first, stop)
            for k, unit in enumerate(units):
                name = f"{self._name}-{split}.tfrecord-{k:05d}-of-{len(units):05d}"
                found[unit] = Path(name)
        return found

    @cached_property
    def _splits(self) -> list[tuple[str, int, int]]:
        whole = [(_UNSPLIT, 0, len(self.content.table))]
        return (self._blocks or whole) if self.content.table.splits else whole

    @property
    def _name(self) -> str:
        """Name of the dataset as TFDS wants it: small letters, digits and underscores."""
        name = re.sub(r"\W", "_", self.target.name, flags=re.ASCII).lower()
        return name if name[:1].isalpha() else f"dataset_{name}"

    def units(self) -> Sequence[Unit]:
        """Return the shards."""
        return list(self._shards)

    def _units_of(self, first: int, stop: int) -> list[Unit]:
        row = sum(self.content.row_bytes(name) for name in self.content.fields)
        return units_of(self.content, max(1, row), first=first, stop=stop)

    def write(self, unit: Unit, directory: Path) -> Any:
        """Write one shard; return the bytes of its records."""
        with records.TFRecordWriter(directory / self._shards[unit]) as file:
            for episode in range(unit.first, unit.stop):
                lists = dict(self._lists(episode))
                records.write_example(file, lists, f"{self.content.id}: episode {episode}")
            return file.bytes

    @cached_property
    def _with_final(self) -> bool:
        """Return whether the last step of an episode holds the final observation."""
        return bool(self.content.table.observed.all())

    def _lists(self, episode: int) -> Iterator[tuple[str, ListOfValues]]:
        table = self.content.table
        start, steps = int(self.content.starts[episode]), int(table.length[episode])
        rows = steps + self._with_final
        for name, f in self.content.fields.items():
            if key := self._keys.get(name):
                yield f"steps/{key}", self._list(f, start, rows, steps)
        if self._instruction:
            texts = [text.encode() for text in self._told.of_steps(episode)]
            texts += texts[-1:] * (rows - steps)
            yield f"steps/{_INSTRUCTION}", records.byte_strings(np.array([len(t) for t in texts]), lambda: texts)
        at = np.arange(rows)
        terminal = np.zeros(rows, bool)
        terminal[self._with_final :] = self.content.rows(FLAGS[0], start, start + steps)
        yield "steps/is_first", records.integers(at == 0)
        yield "steps/is_last", records.integers((at == rows - 1) & (table.end[episode] != CUT))
        yield "steps/is_terminal", records.integers(terminal)
        for key, (dtype, values) in self._about.items():
            yield f"episode_metadata/{key}", _single(dtype, values[episode])

    def _list(self, f: Field, start: int, rows: int, steps: int) -> ListOfValues:
        """Return the list of a field for the rows of an episode."""
        stop = start + rows
        if f.kind == "frames":
            return self._images(f, start, rows, steps)
        if f.kind == "text":
            texts = [(text or "").encode() for text in self.content.rows(f.name, start, stop).tolist()]
            return records.byte_strings(np.array([len(t) for t in texts]), lambda: texts)
        width = max(1, f.row_bytes)
        if _is_in_bytes(f):
            return records.rows_of_bytes(rows, width, lambda: self._pieces(f, start, stop, as_bytes=True))
        if np.dtype(f.dtype).kind == "f":
            return records.floats(rows * math.prod(f.shape), lambda: self._pieces(f, start, stop))
        return records.integers(self.content.rows(f.name, start, stop))

    def _pieces(self, f: Field, start: int, stop: int, *, as_bytes: bool = False) -> Iterator[Array]:
        for a, b in self.content.pieces(f.name, start, stop):
            values = self.content.rows(f.name, a, b)
            if as_bytes:
                values = np.ascontiguousarray(values, np.dtype(f.dtype).newbyteorder("<"))
                values = values.reshape(b - a, -1).view(np.uint8)
            yield values

    def _images(self, f: Field, start: int, rows: int, steps: int) -> ListOfValues:
        """Return images; a step without one, which is the last one if any, repeats the image before."""
        last = start + steps
        sizes = self.content.frame_sizes(f.name, start, last)
        final = self.content.frames(f.name, last, last + 1)[0] if rows > steps else b""
        if rows > steps and not final:
            final = self.content.frames(f.name, last - 1, last)[0]
        sizes = np.append(sizes, len(final)) if rows > steps else sizes

        def pieces() -> Iterator[bytes | memoryview]:
            for a, b in self.content.pieces(f.name, start, last):
                yield np.ascontiguousarray(self.content.encoded(f.name, a, b)[0]).data
            yield final

        return records.byte_strings(sizes, pieces)

    # -- keys

    @property
    def _told(self) -> Instructions:
        assert self.instructions is not None
        return self.instructions

    def _is_said(self, name: str) -> bool:
        """Return whether a field has the instruction of each step, which has a key of its own."""
        return self._told.is_task and name == self._told.field

    @property
    def _instruction(self) -> bool:
        """Whether instructions are written beside the fields; one that is a field already is not."""
        return bool(self._told.name) and self._told.name != _INSTRUCTION

    @cached_property
    def _keys(self) -> dict[str, str]:
        """Return the keys of fields below ``steps``; the flags have none."""
        flags = set(FLAGS) if not self._ends_twice else {FLAGS[0]}
        found: dict[str, str] = {}
        names = [n for n in self.content.fields if n not in flags and not self._is_said(n)]
        for name in names:
            key = _KEYS.get(name) or name
            if name not in _KEYS and name in _TAKEN:
                key += "_"
            while (
                (key == _INSTRUCTION and self._instruction)
                or key in found.values()
                or any(other.startswith(f"{key}/") for other in names)
            ):
                key += "_"
            found[name] = key
        return found

    @cached_property
    def _ends_twice(self) -> bool:
        """Return whether some step is terminated and truncated, which the marks of RLDS do not say."""
        for a, b in self.content.pieces(FLAGS[0]):
            if (self.content.rows(FLAGS[0], a, b) & self.content.rows(FLAGS[1], a, b)).any():
                return True
        return False

    @cached_property
    def _about(self) -> dict[str, tuple[str, Sequence[Any]]]:
        """Return the columns of episodes: dtype, and values without any that is missing."""
        table = self.content.table
        found: dict[str, tuple[str, Sequence[Any]]] = {}
        if not isinstance(table.seed, Repeated):
            found["seed"] = "uint64", [seed or 0 for seed in table.seed]
            found["has_seed"] = "bool", [seed is not None for seed in table.seed]
        if not isinstance(table.options, Repeated):
            found["options"] = "str", [options or "" for options in table.options]
        for name, key in self._own_keys.items():
            values = table.extra[name]
            dtype = self.content.dataset.manifest.episode_columns[name]["dtype"]
            dtype = "str" if dtype not in ("bool", "int64", "uint64", "float64") else dtype
            nothing: Any = "" if dtype == "str" else 0
            found[key] = dtype, [nothing if v is None else v for v in values]
            if any(v is None for v in values):
                found[f"{key}_missing"] = "bool", [v is None for v in values]
        return found

    @cached_property
    def _own_keys(self) -> dict[str, str]:
        """Return the keys of the user's own episode columns by their names."""
        found: dict[str, str] = {}
        for name in self.content.table.extra:
            if name == TASK and self._told.is_task:
                continue
            key = name.replace("/", "_")
            while key in found.values() or key in _PARTS or key.endswith("_missing"):
                key += "_"
            found[name] = key
        return found

    # -- descriptions

    def finish(self, directory: Path, results: Mapping[str, Any]) -> None:
        """Write the descriptions."""
        _write_json(directory / FEATURES, self._features())
        _write_json(directory / INFO, self._info(results))
        _write_json(directory / EXPORTED, self._said(directory))

    def _features(self) -> dict[str, Any]:
        leaves: dict[str, Any] = {}
        for name, key in self._keys.items():
            _put(leaves, key, _described(self.content.fields[name]))
        if self._instruction:
            _put(leaves, _INSTRUCTION, _described(Field(_INSTRUCTION, "str", kind="text")))
        for mark in ("is_first", "is_last", "is_terminal"):
            leaves[mark] = _tensor("bool", (), "none")
        steps = {
            "pythonClassName": f"{_CLASSES}.dataset_feature.Dataset",
            "sequence": {"feature": _group(leaves), "length": "-1"},
        }
        about = {key: _described_value(dtype) for key, (dtype, _) in self._about.items()}
        return _group({"steps": steps} | ({"episode_metadata": _Leaf(_group(about))} if about else {}))

    def _info(self, results: Mapping[str, Any]) -> dict[str, Any]:
        text = self.content.metadata_text(_INFO)
        former = documents.loads(text) if text else {}
        facts = self.content.dataset.manifest.facts
        said = {key: former.get(key) or facts.get(key) for key in ("description", "citation")}
        splits = []
        for split, first, stop in self._splits:
            units = self._units_of(first, stop)
            splits.append(
                {
                    "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                    "name": split,
                    "numBytes": str(sum(int(results[u.name]) for u in units)),
                    "shardLengths": [str(u.stop - u.first) for u in units],
                }
            )
        return {
            "name": self._name,
            "version": _VERSION,
            **{key: str(value) for key, value in said.items() if value},
            "fileFormat": "tfrecord",
            "releaseNotes": {_VERSION: f"Exported by rlds from {self.content.id}."},
            "splits": splits,
        }

    def _said(self, directory: Path) -> dict[str, Any]:
        """Return what the reader of such directories would take otherwise."""
        rule: LastStep = "observation" if self._with_final else "action"
        usual = tfds_fields(directory / FEATURES, rule)
        names = {f"steps/{key}": name for name, key in self._keys.items()}
        columns: dict[str, Any] = {}
        for key, name in names.items():
            f, read = self.content.fields[name], usual[key]
            odd: dict[str, Any] = {"field": name} if read.name != name else {}
            odd |= {"placement": f.placement} if odd or read.placement != f.placement else {}
            odd |= {"shape": list(f.shape)} if odd or f.kind == "frames" or read.shape != f.shape else {}
            if odd:
                columns[key] = odd
        episodes = {part: part for part in ("seed", "options") if part in self._about}
        own = {"columns": self._own_keys} if self._own_keys else {}
        added = [_INSTRUCTION] if self._instruction and not self._told.is_task else []
        return {
            "columns": columns,
            **({"added": added} if added else {}),
            "episodes": episodes | own,
            "last_step": rule,
            "unsplit": not self.content.table.splits,
        }


class _Leaf(dict[str, Any]):
    """A feature, to tell it from a group of them."""


def _put(tree: dict[str, Any], key: str, leaf: _Leaf) -> None:
    *above, last = key.split("/")
    for part in above:
        tree = tree.setdefault(part, {})
    tree[last] = leaf


def _group(features: Mapping[str, Any]) -> dict[str, Any]:
    inner = {name: f if isinstance(f, _Leaf) or "pythonClassName" in f else _group(f) for name, f in features.items()}
    return {"pythonClassName": f"{_CLASSES}.features_dict.FeaturesDict", "featuresDict": {"features": inner}}


def _is_in_bytes(f: Field) -> bool:
    dtype = np.dtype(f.dtype)
    return dtype == np.float64 or (dtype.kind in "biu" and math.prod(f.shape) >= _AS_BYTES)


def _described(f: Field) -> _Leaf:
    if f.kind == "text":
        return _described_value("str")
    if f.kind == "frames":
        shape = {"dimensions": [str(n or -1) for n in f.shape]}
        image = {"shape": shape, "dtype": "uint8", "encodingFormat": f.codec}
        return _Leaf(pythonClassName=f"{_CLASSES}.image_feature.Image", image=image)
    return _tensor(f.dtype, f.shape, "bytes" if _is_in_bytes(f) else "none")


def _described_value(dtype: str) -> _Leaf:
    if dtype == "str":
        return _Leaf(pythonClassName=f"{_CLASSES}.text_feature.Text", text={})
    return _tensor(dtype, (), "bytes" if dtype == "float64" else "none")


def _tensor(dtype: str, shape: tuple[int, ...], encoding: str) -> _Leaf:
    sides = {"dimensions": [str(n) for n in shape]} if shape else {}
    return _Leaf(
        pythonClassName=f"{_CLASSES}.tensor_feature.Tensor",
        tensor={"shape": sides, "dtype": dtype, "encoding": encoding},
    )


def _single(dtype: str, value: Any) -> ListOfValues:
    """Return the list of one value of an episode."""
    if dtype == "float64":
        return records.rows_of_bytes(1, 8, lambda: [np.array([value], "<f8").view(np.uint8)[None]])
    if dtype == "str":
        data = str(value).encode()
        return records.byte_strings(np.array([len(data)]), lambda: [data])
    return records.integers(np.array([value], dtype))


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
    sync(path)
