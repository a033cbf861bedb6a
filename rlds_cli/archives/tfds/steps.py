"""Episodes of RLDS as TED episodes: the field of each leaf, and the meaning of the last step.

RLDS pairs o_t with a_t, r_t and discount_t, and an episode of n steps ends with ``is_last``. By its definition the last
step holds the final observation, and its action and reward mean nothing; most robot sets are converted otherwise, and
their last step holds a real action whose outcome is not recorded. Both forms are read::

    last_step     steps kept   final observation   next/terminated[t]
    observation   T = n - 1    row n - 1           is_terminal[t + 1]
    action        T = n        not known           is_terminal[t]

``next/truncated`` is ``is_last`` without ``is_terminal``, on the last step.
"""

from __future__ import annotations

import io
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlds_cli.archives import tasks
from rlds_cli.archives.exported import NOTHING, ExportedFile
from rlds_cli.archives.formats import image_columns
from rlds_cli.archives.formats.compressed import FREE_BYTES, MAX_RATIO
from rlds_cli.archives.formats.tfrecord import ExampleFeature
from rlds_cli.archives.tfds.directory import STEPS, FeatureLeaf, Features, load
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.media import image_header
from rlds_cli.base.media.image_header import MAX_PIXELS
from rlds_cli.base.text import is_below
from rlds_cli.errors import CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.ted import (
    CUT,
    FLAGS,
    REWARD,
    TASK,
    TERMINATED,
    TRUNCATED,
    EpisodeData,
    Field,
    LazyColumn,
    Note,
    Placement,
    Scalar,
    Text,
)

LastStep = Literal["action", "observation"]
RULES: tuple[LastStep, ...] = ("action", "observation")
EPISODE = "episode_metadata/"
FIRST, LAST, TERMINAL = (f"{STEPS}/is_{k}" for k in ("first", "last", "terminal"))
MARKS = (FIRST, LAST, TERMINAL)
MAX_OPTION = 4096  # values of an episode's array that are kept
_SCALARS = {f"{STEPS}/reward": REWARD, f"{STEPS}/discount": "next/discount"}


@dataclass(frozen=True, slots=True)
class RecordOrigin:
    """The origin of an episode."""

    source: int
    file: str
    record: int
    split: str

    def __str__(self) -> str:
        return f"{self.file}: record {self.record:,}"


def columns(found: Features, chosen: Mapping[str, str]) -> dict[str, FeatureLeaf]:
    """Find the leaves that become fields; ``chosen`` maps fields to keys, before all others.

    Raises
    ------
    UnknownLayout
        There is no such key, or no observation.
    """
    usable = {k: x for k, x in found.steps.items() if not x.problem and k not in MARKS}
    named: dict[str, FeatureLeaf] = {}
    for name, key in chosen.items():
        key = key if key.startswith(f"{STEPS}/") else f"{STEPS}/{key}"
        below = {k: x for k, x in usable.items() if is_below(k, key)}
        if not below:
            raise UnknownLayout(f'The steps have no "{key}".', hint=f"they hold {', '.join(sorted(usable))}")
        named |= {name + k[len(key) :]: usable.pop(k) for k in below}
    if TASK not in named and (said := _said(usable)) is not None:
        named[TASK] = usable.pop(said)
    named |= {name: x for x in usable.values() if (name := field_name(x)) not in named}
    if not any(name.split("/")[0] == "observation" for name in named):
        raise UnknownLayout(
            f"The steps have no observation. They hold {', '.join(sorted(found.steps))}.",
            hint="name the key: --map observation=KEY",
        )
    return named


def _said(usable: Mapping[str, FeatureLeaf]) -> str | None:
    """Return the key of the text that says what an episode is about; None without one."""
    keys = (f"{above}/{name}" for above in (STEPS, f"{STEPS}/observation") for name in tasks.NAMES)
    return next((key for key in keys if key in usable and usable[key].kind == "text" and not usable[key].shape), None)


def field_name(leaf: FeatureLeaf) -> str:
    """Return the TED name of a leaf of the steps; flags keep their own keys."""
    path = leaf.key.removeprefix(f"{STEPS}/")
    if leaf.key in _SCALARS:
        return _SCALARS[leaf.key] if int(np.prod(leaf.shape, dtype=np.int64)) == 1 else f"next/info/{path}"
    if path.split("/")[0] in ("reward", "discount"):
        return f"next/info/{path}"
    return f"extra/{path}" if path.split("/")[0] == "next" else path


def field(leaf: FeatureLeaf, name: str, rule: LastStep) -> Field:
    """Return the field of a leaf."""
    if name in _SCALARS.values() and math.prod(leaf.shape) == 1:
        return Field(name, leaf.dtype, (), "next")
    kind = "array" if leaf.packed_image else leaf.kind
    codec = "jpeg" if kind == "frames" else None
    return Field(name, leaf.dtype, leaf.shape, _placement(name, rule), kind, codec)


def tfds_fields(path: Path, rule: LastStep) -> dict[str, Field]:
    """Return the field that each leaf of a ``features.json`` is read as, by its key, where nothing else is said."""
    found = load(path)
    return {leaf.key: field(found.steps[leaf.key], name, rule) for name, leaf in columns(found, {}).items()}


def _placement(name: str, rule: LastStep) -> Placement:
    first = name.split("/")[0]
    if first == "next":
        return "next"
    if first == "observation":
        return "both"
    return "root" if rule == "action" or first.startswith("action") else "both"


def last_action_is_filler(
    example: Mapping[str, ExampleFeature], leaves: Mapping[str, FeatureLeaf], where: str
) -> bool | None:
    """Tell whether only the last action is all zero or NaN; None if the actions do not decide."""
    said = []
    for leaf in leaves.values():
        path = leaf.key.removeprefix(f"{STEPS}/")
        if path.split("/")[0] != "action" or leaf.kind != "array" or leaf.problem or leaf.key not in example:
            continue
        actions = array(leaf, example[leaf.key], where)
        empty = ((actions == 0) | (actions != actions)).all(axis=tuple(range(1, actions.ndim)))
        if len(empty) > 1 and not empty[:-1].all():
            said.append(bool(empty[-1]))
    return all(said) if said else None


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """The layout of the records of an archive: ``columns`` maps fields to leaves of the steps.

    ``before`` is what an export says of them.
    """

    schema: Mapping[str, Field]
    columns: Mapping[str, FeatureLeaf]
    steps: Mapping[str, FeatureLeaf]
    episode: Mapping[str, FeatureLeaf]
    rule: LastStep
    before: ExportedFile = NOTHING

    def read(self, example: Mapping[str, ExampleFeature], origin: RecordOrigin) -> EpisodeData | None:
        """Read one episode; None if it has no steps.

        Raises
        ------
        OtherImages
            Images are of another size than planned.
        CorruptArchive
            Lists are missing, or have different numbers of rows.
        """
        notes: list[Note] = []
        found = {name: self._column(name, leaf, example, origin, notes) for name, leaf in self.columns.items()}
        marks = {key: self._mark(key, example, origin) for key in MARKS if self._marked(key)}
        n = _rows(found | marks, origin)
        length = n if self.rule == "action" else n - 1
        if length < 1:
            return None
        notes += self._oddities(found, marks, origin)
        terminal = marks.get(TERMINAL, np.zeros(n, bool))
        terminated = terminal if self.rule == "action" else terminal[1:]
        ended = LAST in marks and bool(marks[LAST][-1])
        end = TERMINATED if terminated[-1] else TRUNCATED if ended else CUT
        columns = {name: self._shortened(name, column, length) for name, column in found.items()}
        columns |= {n: present(c, f"{origin}: {n}") for n, c in columns.items() if isinstance(c, EncodedImages)}
        columns[FLAGS[0]] = terminated
        if FLAGS[1] not in columns:
            columns[FLAGS[1]] = (np.arange(length) == length - 1) & (end != TERMINATED)
        if inside := int(terminated[:-1].sum()):
            notes.append(Note("terminated-inside", "steps are terminated inside an episode", inside, str(origin)))
        return EpisodeData(
            columns,
            length,
            end,
            observed=self.rule == "observation",
            source=origin.source,
            group=f"record_{origin.record}",
            splits=() if self.before.unsplit or not origin.split else (origin.split,),
            notes=tuple(notes),
            **self._about(example, origin),
        )

    def _about(self, example: Mapping[str, ExampleFeature], origin: RecordOrigin) -> dict[str, Any]:
        """Return seed, options and the user's own columns.

        If no export says which are which, single values of the episode are columns, and others options.
        """
        if not self.before.found:
            single = {key: leaf for key, leaf in self.episode.items() if is_single(leaf)}
            said = {leaf: self._value(example, key.removeprefix(EPISODE), origin) for key, leaf in single.items()}
            extra = {column_of(leaf, self.columns): value for leaf, value in said.items()}
            return {"extra": extra, "options": self._options(example, origin)}
        seed, options = (self._value(example, key, origin) for key in (self.before.seed, self.before.options))
        has = self._value(example, f"has_{self.before.seed}", origin)
        own = {name: self._value(example, key, origin) for name, key in self.before.own.items()}
        missing = {n for n, key in self.before.own.items() if self._value(example, f"{key}_missing", origin)}
        return {
            "seed": int(seed) if has is not False and isinstance(seed, int) else None,
            "options": options if isinstance(options, str) and options else None,
            "extra": {name: None if name in missing else value for name, value in own.items()},
        }

    def _value(self, example: Mapping[str, ExampleFeature], key: str | None, origin: RecordOrigin) -> Scalar:
        """Return the one value of the whole episode; None if there is none."""
        leaf = self.episode.get(f"{EPISODE}{key}") or self.episode.get(str(key))
        if leaf is None or leaf.problem or leaf.kind == "frames" or leaf.shape or leaf.key not in example:
            return None
        if leaf.kind == "text":
            texts = text(leaf, example[leaf.key], str(origin))[0]
            return texts[0] if texts else None
        rows = array(leaf, example[leaf.key], str(origin))
        return rows[0].item() if len(rows) else None

    def _column(
        self,
        name: str,
        leaf: FeatureLeaf,
        example: Mapping[str, ExampleFeature],
        origin: RecordOrigin,
        notes: list[Note],
    ) -> ColumnOf:
        feature = _feature(example, leaf.key, origin)
        if leaf.kind == "text":
            texts, wrong = text(leaf, feature, str(origin))
            if wrong:
                notes.append(Note("not-utf8", "texts hold bytes that are not UTF-8, replaced by �", wrong, str(origin)))
            return texts
        if leaf.kind == "frames":
            return images(leaf, feature, str(origin), shape=self.schema[name].shape)
        return array(leaf, feature, str(origin)).reshape(-1, *self.schema[name].shape)

    def _shortened(self, name: str, column: ColumnOf, length: int) -> ColumnOf:
        """Cut a column to the rows of steps; fields placed ``both`` keep the last row."""
        if self.schema[name].placement == "both" or len(column) == length:
            return column
        return column.head(length) if isinstance(column, EncodedImages | PackedImages) else column[:length]

    def _marked(self, key: str) -> bool:
        leaf = self.steps.get(key)
        return leaf is not None and leaf.kind == "array" and leaf.problem is None and math.prod(leaf.shape) == 1

    def _mark(self, key: str, example: Mapping[str, ExampleFeature], origin: RecordOrigin) -> BoolArray:
        mark: BoolArray = array(self.steps[key], _feature(example, key, origin), str(origin)).reshape(-1) != 0
        return mark

    def _oddities(
        self, found: Mapping[str, ColumnOf], marks: Mapping[str, BoolArray], origin: RecordOrigin
    ) -> Iterator[Note]:
        inside = [marks[key][rows] for key, rows in ((FIRST, slice(1, None)), (LAST, slice(-1))) if key in marks]
        if any(m.any() for m in inside):
            yield Note("marks-inside", "episodes have is_first or is_last inside", 1, str(origin))
        reward = found.get(REWARD)
        if self.rule == "observation" and isinstance(reward, np.ndarray) and reward[-1].any():
            yield Note(
                "last-reward", "rewards in the row of the final observation are not 0, and are left out", 1, str(origin)
            )

    def _options(self, example: Mapping[str, ExampleFeature], origin: RecordOrigin) -> str | None:
        """Return what the whole episode has several values of as JSON; images and long values are left out."""
        said = {}
        for leaf in self.episode.values():
            if leaf.problem or leaf.kind == "frames" or leaf.key not in example or is_single(leaf):
                continue
            name = leaf.key.removeprefix(EPISODE)
            if leaf.kind == "text":
                texts = text(leaf, example[leaf.key], str(origin))[0]
                said[name] = texts[0] if len(texts) == 1 else texts
                continue
            rows = array(leaf, example[leaf.key], str(origin))
            if rows.size <= MAX_OPTION:
                said[name] = _plain(rows[0] if len(rows) == 1 else rows)
        return json.dumps(said, ensure_ascii=False, sort_keys=True) if said else None


def is_single(leaf: FeatureLeaf) -> bool:
    """Tell whether a leaf of the episode has a single value, and so is a column of the episode table."""
    return not leaf.problem and leaf.kind != "frames" and not leaf.shape


def column_of(leaf: FeatureLeaf, columns: Mapping[str, FeatureLeaf]) -> str:
    """Return the column of a leaf of the episode: the task, unless the steps say it, or one of its name."""
    name = leaf.key.removeprefix(EPISODE)
    if name in tasks.NAMES and TASK not in columns:
        return TASK
    return f"own_{TASK}" if name == TASK else tasks.episode_column(name)


def _plain(row: Array) -> Any:
    """Convert numbers to JSON; values that are not finite become null."""
    if row.dtype.kind != "f":
        return row.tolist()
    values = np.asarray(row).astype(object)
    values[~np.isfinite(np.asarray(row))] = None
    return values.tolist()


def _feature(example: Mapping[str, ExampleFeature], key: str, origin: RecordOrigin) -> ExampleFeature:
    if key not in example:
        raise CorruptArchive(f"{origin} has no {key}; features.json requires it in every episode.")
    return example[key]


def _rows(columns: Mapping[str, Any], origin: RecordOrigin) -> int:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {n:,}" for name, n in lengths.items())
        raise CorruptArchive(f"{origin}: lists have different numbers of rows: {listed}.")
    return next(iter(lengths.values()), 0)


def left_out(leaves: Sequence[FeatureLeaf]) -> list[Note]:
    """Note the leaves that cannot be stored."""
    return [Note("left-out", f"{x.key} is left out: {x.problem}", 1, x.key) for x in leaves if x.problem]


@dataclass(slots=True)
class EncodedImages(LazyColumn):
    """Encoded images that lie in ``data``: row i is ``data[starts[i]:stops[i]]``."""

    data: bytes | memoryview
    starts: IntArray
    stops: IntArray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes of all images."""
        return int((self.stops - self.starts).sum())

    def head(self, count: int) -> EncodedImages:
        """Return the first rows."""
        return EncodedImages(self.data, self.starts[:count], self.stops[:count])

    def cut(self, start: int, stop: int) -> list[memoryview]:
        """Return the images of rows [start, stop), which are not copied."""
        view = memoryview(self.data)
        bounds = zip(self.starts[start:stop].tolist(), self.stops[start:stop].tolist(), strict=True)
        return [view[a:b] for a, b in bounds]


@dataclass(slots=True)
class PackedImages(LazyColumn):
    """Depth images: PNG of 16 bits, or of the four bytes of a float32 as RGBA, as TFDS writes them."""

    encoded: EncodedImages
    leaf: FeatureLeaf
    name: str

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, decoded."""
        return len(self) * math.prod(self.leaf.shape) * np.dtype(self.leaf.dtype).itemsize

    def head(self, count: int) -> PackedImages:
        """Return the first rows."""
        return PackedImages(self.encoded.head(count), self.leaf, self.name)

    def cut(self, start: int, stop: int) -> Array:
        """Read rows [start, stop), decoded with Pillow."""
        rows = [self._decoded(view) for view in self.encoded.cut(start, stop)]
        return np.stack(rows) if rows else np.zeros((0, *self.leaf.shape), self.leaf.dtype)

    def _decoded(self, data: memoryview) -> Array:
        from PIL import Image

        try:
            with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
                if (image.height, image.width) != self.leaf.shape[:2]:  # a second header may say so
                    raise ValueError(f"it is {image.height}x{image.width} after all")
                values = np.ascontiguousarray(np.asarray(image))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as e:
            raise CorruptArchive(f"{self.name}: {len(data):,} bytes do not decode as PNG: {e}") from e
        if self.leaf.dtype == "float32":
            values = values.view("<f4")
        return values.reshape(self.leaf.shape).astype(self.leaf.dtype, copy=False)


ColumnOf = Array | list[str | None] | EncodedImages | PackedImages


class OtherImages(Exception):
    """Images of ``key`` that are not of the planned size: they vary."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def array(leaf: FeatureLeaf, feature: ExampleFeature, where: str) -> Array:
    """Read all rows of a numeric leaf, [T, *shape].

    Raises
    ------
    CorruptArchive
        The values are of another kind, do not fit the dtype, or are not a whole number of rows.
    """
    name, width = f"{where}: {leaf.key}", math.prod(leaf.shape)
    dtype = np.dtype(leaf.dtype)
    if leaf.encoding != "none":
        return _encoded_array(leaf, feature, name)
    if feature.kind == "empty":
        values: Array = np.zeros(0, dtype)
    elif feature.kind == "float" and dtype.kind == "f":
        values = feature.floats().astype(dtype, copy=False)
    elif feature.kind == "int64" and dtype.kind in "biu":
        values = feature.integers(dtype)
    else:
        raise CorruptArchive(f"{name} is a list of {feature.kind}; {leaf.dtype} expected.")
    if len(values) % width:
        raise CorruptArchive(f"{name} has {len(values):,} values; rows of shape {list(leaf.shape)} expected.")
    return values.reshape(-1, *leaf.shape)


def _encoded_array(leaf: FeatureLeaf, feature: ExampleFeature, name: str) -> Array:
    """Read rows that are the bytes of a tensor, perhaps deflated."""
    dtype = np.dtype(leaf.dtype).newbyteorder("<")
    size = math.prod(leaf.shape) * dtype.itemsize
    rows = _byte_strings(feature, name)
    if len(rows) * size > FREE_BYTES + MAX_RATIO * sum(map(len, rows)):
        raise UnsafeArchive(f"{name}: claims {len(rows) * size:,} bytes, and holds {sum(map(len, rows)):,}.")
    try:
        if leaf.encoding == "zlib":
            rows = [_inflated(row, size) for row in rows]
    except zlib.error as e:
        raise CorruptArchive(f"{name} cannot be decompressed: {e}") from e
    wrong = next((len(row) for row in rows if len(row) != size), None)
    if wrong is not None:
        raise CorruptArchive(f"{name}: a row of {wrong:,} bytes; {leaf.dtype} {list(leaf.shape)} takes {size:,}.")
    values: Array = np.frombuffer(b"".join(rows), dtype).astype(leaf.dtype, copy=False)
    return values.reshape(len(rows), *leaf.shape)


def _inflated(row: bytes, size: int) -> bytes:
    """Inflate a zlib stream and check it to its end; a stream that is too long gives one byte more."""
    inner = zlib.decompressobj()
    found = inner.decompress(row, size + 1)
    if len(found) <= size and not inner.eof:
        raise zlib.error("it ends too early")
    return found


def text(leaf: FeatureLeaf, feature: ExampleFeature, where: str) -> tuple[Text, int]:
    """Read all rows of a text leaf, and count those that are not UTF-8 (kept with marks for the bytes)."""
    rows = _byte_strings(feature, f"{where}: {leaf.key}")
    known: dict[bytes, str] = {}
    wrong = 0
    for row in rows:
        if row not in known:
            known[row] = row.decode("utf-8", "replace")
        wrong += "�" in known[row] and "�".encode() not in row
    return [known[row] for row in rows], wrong


def images(
    leaf: FeatureLeaf, feature: ExampleFeature, where: str, *, shape: tuple[int, ...]
) -> EncodedImages | PackedImages:
    """Read all rows of an image leaf: encoded, or decoded later when their rows come.

    Parameters
    ----------
    shape : tuple of int
        ``(H, W, C)`` as planned; ``(0, 0, C)`` if sizes vary.

    Raises
    ------
    OtherImages
        An image is of another size than planned.
    CorruptArchive, UnsafeArchive
        An image has no header of JPEG or PNG, or an impossible size.
    """
    name = f"{where}: {leaf.key}"
    if feature.kind not in ("bytes", "empty"):
        raise CorruptArchive(f"{name} is a list of {feature.kind}; images expected.")
    found = EncodedImages(feature.data, *feature.places())
    for row, (a, b) in enumerate(zip(found.starts.tolist(), found.stops.tolist(), strict=True)):
        if a == b and not leaf.packed_image:
            continue  # a row without an image: see `present`
        header = image_header.read(feature.data, a, b)
        if header is None:
            raise CorruptArchive(f"{name}, row {row}: {b - a:,} bytes that are neither PNG nor JPEG.")
        if header.height * header.width > MAX_PIXELS or not header.height * header.width:
            raise UnsafeArchive(f"{name}, row {row}: an image of {header.height}x{header.width} is not decoded.")
        if leaf.packed_image:
            _check_packed(leaf, header, f"{name}, row {row}")
        elif wrong := image_columns.damage(feature.data[a:b]):
            raise CorruptArchive(f"{name}, row {row}: {wrong}.", hint="fetch it again")
        elif shape[0] and header.shape != shape:
            raise OtherImages(leaf.key)
    return PackedImages(found, leaf, name) if leaf.packed_image else found


def present(images: EncodedImages, where: str) -> EncodedImages:
    """Return the images of the rows that are stored.

    Raises
    ------
    CorruptArchive
        A row has none.
    """
    absent = np.flatnonzero(images.starts == images.stops)
    if len(absent):
        raise CorruptArchive(
            f"{where}, row {absent[0]:,}: an image of 0 bytes.", hint="--skip-bad leaves out the rest of its file"
        )
    return images


def _check_packed(leaf: FeatureLeaf, header: image_header.ImageHeader, name: str) -> None:
    wanted = (*leaf.shape[:2], *((1, 16) if leaf.dtype == "uint16" else (4, 8)))
    if header.codec != "png" or (header.height, header.width, header.channels, header.bits) != wanted:
        raise CorruptArchive(f"{name}: {header} does not hold {leaf.dtype} {list(leaf.shape)}.")


def _byte_strings(feature: ExampleFeature, name: str) -> list[bytes]:
    if feature.kind not in ("bytes", "empty"):
        raise CorruptArchive(f"{name} is a list of {feature.kind}; byte strings expected.")
    return feature.strings()
