"""Check every value of a manifest before anything else reads it. Needs neither NumPy nor zarr.

A dataset's directory may come from a stranger. A manifest that passes has the types and the bounds that the rest of the
program relies on: paths stay below the dataset, numbers agree with each other, descriptions have their form. The files
are compared with the manifest when they are opened.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from rlds_cli.base import ids
from rlds_cli.base.limits import MOST_ENTRIES
from rlds_cli.errors import InvalidId, NewerFormat
from rlds_cli.store.paths import is_field_path

MAX_WIDTH = 4096  # elements of a row: wider rows have statistics over all their elements
MOST_ROWS, MOST_ROW_BYTES, MOST_BYTES = 1 << 48, 1 << 40, 1 << 60
MOST_DIMENSIONS = 31  # NumPy has had 32, and rows are one more
NUMERIC: Mapping[str, int] = {  # dtypes of arrays, and their bytes
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "float32": 4, "float64": 8, "float128": 16, "complex64": 8, "complex128": 16,
}  # fmt: skip
_MOST_EMPTY_ROWS = 1 << 24  # of a dataset without a byte of rows: no file bounds them
_MOST_FIELDS = 1 << 14
_PAGE, _MOST_SEGMENT = 1 << 12, 1 << 30  # rows of a segment
_MOST_PIXELS, _MOST_CHANNELS = 1 << 26, 4  # of a frame
_DEEPEST = 64
_MOST_OF_SPACE = 1 << 28  # elements of one value
_LARGEST = 1 << 1000  # still a float
_LONGEST_NAME, _LONGEST_COLUMN = 1 << 14, 100
_ELEMENTS = ("mean", "std", "min", "max", "q01", "q99")  # statistics of each element of a row
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_DIGEST = re.compile("[0-9a-f]{64}")
_FINGERPRINT = re.compile("rlds1:[0-9a-f]{64}|")  # empty where the dataset grows
_FLAGS, _REWARD = ("next/terminated", "next/truncated"), "next/reward"

Check = Callable[[Any, str], None]


def check(manifest: Any) -> None:
    """Refuse a manifest, as JSON values, that this program cannot have written.

    Raises
    ------
    ValueError
        With the wrong value and its name.
    NewerFormat
        A later version wrote it: a field has a clock of its own.
    """
    _check_depth(manifest)
    _MANIFEST(manifest, "the manifest")
    fields = manifest["fields"]
    for f in fields:
        _check_field(f)
    _check_names(fields)
    _check_counts(manifest["counts"], fields)
    _check_growing(manifest)
    _check_stats(manifest["stats"], fields)


def shape(value: Any, where: str, *, itemsize: int = 1, most: int = MOST_BYTES) -> tuple[int, ...]:
    """Check the shape of an array: whole numbers, none negative, whose product of bytes is bounded.

    Raises
    ------
    ValueError
    """
    _shape(value, where)
    if math.prod(filter(None, value)) * itemsize > most:
        raise _wrong(value, where, f"a shape of at most {most:,} bytes")
    return tuple(value)


# -- kinds of values


def _wrong(value: Any, where: str, wanted: str) -> ValueError:
    text = repr(value)
    return ValueError(f"{where} is {text if len(text) < 80 else text[:77] + '...'}; {wanted} expected")


def _whole(least: int = 0, most: int = MOST_ROWS) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise _wrong(value, where, f"a whole number from {least:,} to {most:,}")

    return check


def _number(value: Any, where: str) -> None:
    known = isinstance(value, float) or (isinstance(value, str) and value in _NOT_FINITE)
    if isinstance(value, bool) or not (known or (isinstance(value, int) and abs(value) <= 1 << 64)):
        raise _wrong(value, where, "a number")


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise _wrong(value, where, "a text")


def _flag(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        raise _wrong(value, where, "true or false")


def _any(value: Any, where: str) -> None:
    pass


def _like(pattern: re.Pattern[str], wanted: str) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise _wrong(value, where, wanted)

    return check


def _one_of(*values: str | None) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, str | None) or value not in values:
            raise _wrong(value, where, ", ".join(map(str, values)))

    return check


def _or_none(check_value: Check) -> Check:
    def check(value: Any, where: str) -> None:
        if value is not None:
            check_value(value, where)

    return check


def _list(check_item: Check, *, least: int = 0, most: int | None = None) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or not least <= len(value) <= (len(value) if most is None else most):
            raise _wrong(value, where, "a list" if most is None else f"a list of {least} to {most}")
        try:
            for item in value:
                check_item(item, where)
        except (ValueError, NewerFormat):
            for k, item in enumerate(value):  # again, to say which one: a name for each takes longer than the checks
                check_item(item, f"{where}[{k}]")
            raise

    return check


def _mapping(check_item: Check = _any, check_key: Check = _any) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        for key, item in value.items():
            check_key(key, f"{where}: a name")
            check_item(item, f"{where}[{key[:80]!r}]")

    return check


def _record(required: Mapping[str, Check], optional: Mapping[str, Check] = {}, *, closed: bool = False) -> Check:
    """Return a check of an object with these keys, and with any others unless it is ``closed``."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        for key, check_item in required.items():
            if key not in value:
                raise ValueError(f'{where} lacks "{key}"')
            check_item(value[key], f"{where}: {key}")
        for key, check_item in optional.items():
            if key in value:
                check_item(value[key], f"{where}: {key}")
        for key in value if closed else ():
            if key not in required and key not in optional:
                raise _wrong(key, f"{where}: a key", ", ".join(required))

    return check


def _id(value: Any, where: str) -> None:
    _text(value, where)
    try:
        ids.parse(value)
    except InvalidId:
        raise _wrong(value, where, "the id of a dataset") from None


def _clock(value: Any, where: str) -> None:
    """Refuse fields with a clock of their own, which are reserved in the format and not written yet."""
    raise NewerFormat(
        f"{where}: only a later version of rlds reads fields with a clock of their own.",
        hint="pip install --upgrade rlds-cli",
    )


def _column_name(value: str, where: str) -> None:
    if not value or len(value.encode("utf-8", "surrogatepass")) > _LONGEST_COLUMN:
        raise _wrong(value, where, f"1 to {_LONGEST_COLUMN} bytes")


def _space(value: Any, where: str) -> None:
    """Check a space in Minari's JSON form; the contents of unknown types are accepted."""
    _record({}, {"type": _or_none(_text)})(value, where)
    _SPACES.get(value.get("type"), _any)(value, where)


def _bound(value: Any, where: str) -> None:
    if isinstance(value, list):
        for item in value:
            _bound(item, where)
    elif not isinstance(value, str | None):  # archives hold "Infinity", and worse: users of bounds check them again
        _number(value, where)


def _space_shape(value: Any, where: str) -> None:
    shape(value, where, most=_MOST_OF_SPACE)


def _sides(value: Any, where: str) -> None:
    """Check one side, or several."""
    (_space_shape if isinstance(value, list) else _whole(0, _MOST_OF_SPACE))(value, where)


def _rate(value: Any, where: str) -> None:
    _number(value, where)
    if isinstance(value, str) or not 0 < value < _MOST_OF_SPACE:
        raise _wrong(value, where, "a rate")


def _range(value: Any, where: str) -> None:
    """Check a range of episodes: the first, and the one behind the last, which may be None."""
    _list(_or_none(_whole()), least=2, most=2)(value, where)
    _whole()(value[0], f"{where}[0]")
    _or_none(_whole(value[0] + 1))(value[1], f"{where}[1]")


def _part_of_space(value: Any, where: str) -> None:
    (_mapping(_space) if isinstance(value, dict) else _list(_space))(value, where)


_shape: Check = _list(_whole(), most=MOST_DIMENSIONS + 1)
_numbers: Check = _bound
_dtype = _one_of(*NUMERIC)
_sha256 = _like(_DIGEST, "a sha256")
_SPACES: Mapping[Any, Check] = {
    "Box": _record({"dtype": _dtype, "shape": _space_shape, "low": _bound, "high": _bound}),
    "Discrete": _record({"n": _whole(0, 1 << 63)}, {"start": _or_none(_whole(-(1 << 63), 1 << 63)), "dtype": _dtype}),
    "MultiDiscrete": _record({"nvec": _numbers}, {"start": _numbers, "dtype": _dtype}),
    "MultiBinary": _record({"n": _sides}),
    "Dict": _record({"subspaces": _part_of_space}),
    "Tuple": _record({"subspaces": _part_of_space}),
    "Text": _record({"max_length": _whole()}, {"min_length": _whole(), "charset": _text}),
}

# -- the parts of a manifest

_FIELD = _record(
    {
        "name": _text,
        "path": _text,
        "dtype": _one_of(*NUMERIC, "str"),
        "shape": _list(_whole(), most=MOST_DIMENSIONS),
        "placement": _one_of("root", "next", "both"),
        "kind": _one_of("array", "frames", "text"),
        "codec": _one_of(None, "jpeg", "png", "mp4"),
        "digest": _like(_DIGEST, "64 hexadecimal digits"),
    },
    {"clock": _clock},
    closed=True,
)
_COUNTS = _record(
    dict.fromkeys(
        "rows episodes steps transitions terminated truncated cut final_observations terminated_inside".split(),  # noqa: SIM905
        _whole(),
    ),
    closed=True,
)
_STATS = _record(
    {
        "count": _whole(),
        **dict.fromkeys(_ELEMENTS, _any),  # `_check_stats` compares their shapes with the fields'
        "nonfinite": _whole(0, MOST_BYTES),
        "histogram": _list(_whole(0, MOST_BYTES), most=MAX_WIDTH),
        "low": _number,
        "high": _number,
    },
    closed=True,
)
_SPEC = _record(
    {},
    {
        "id": _or_none(_text),
        "kwargs": _or_none(_mapping()),
        "entry_point": _or_none(_text),
        "max_episode_steps": _or_none(_whole(-1)),
        "additional_wrappers": _or_none(
            _list(_record({}, {"entry_point": _or_none(_text), "kwargs": _or_none(_mapping())}))
        ),
    },
)
_ENV = _record(
    {},
    {
        "id": _or_none(_text),
        "eval_id": _or_none(_text),
        "spec": _or_none(_SPEC),
        "eval_spec": _or_none(_SPEC),
        "fps": _or_none(_rate),
        "max_episode_steps": _or_none(_whole(-1)),
    },
)
_FACTS = _record(
    {},
    {
        "flags": _mapping(_text),
        "depth": _mapping(_mapping()),
        "depth_unit": _one_of("mm", "m"),
        "ref_min_score": _or_none(_number),
        "ref_max_score": _or_none(_number),
    },
)
_PORTION = _record(
    {},
    {
        "include": _list(_text),
        "exclude": _list(_text),
        "split": _or_none(_text),
        "episodes": _or_none(_range),
        "files": _or_none(_list(_whole(), least=2, most=2)),
    },
)
_OPTIONS = _record({}, {"portion": _or_none(_PORTION), "fields": _or_none(_mapping())})
_STEP = _record(
    {
        **dict.fromkeys(("id", "from", "reference", "function", "source", "key", "code", "unit", "arrays"), _text),
        "changed": _list(_text),
        "keeps_steps": _flag,
        "files": _list(_list(_text)),
        "args": _mapping(),
        "fields": _or_none(_list(_text)),
    },
    {
        "of": _text,
        "state": _record({"metadata": _text}, {"sha256": _text}),
    },
)
_NOTE = _record(
    {"code": _text, "text": _text},
    {
        "count": _whole(0, MOST_BYTES),
        "where": _or_none(_text),
        "severity": _one_of("error", "warning", "note"),
        "check": _text,
        "field": _or_none(_text),
        "places": _or_none(_list(_list(_or_none(_whole()), least=2, most=2))),
        "known": _or_none(_list(_text)),
        "num_episodes": _whole(0, MOST_BYTES),
        "episodes": _list(_whole()),
    },
)
_ARCHIVE = _record(
    {},
    {
        "files": _whole(1),
        "bytes": _whole(0, MOST_BYTES),
        "sha256": _or_none(_text),
        "first": _record({}, {"file": _or_none(_text), "url": _or_none(_text)}),
    },
)
_ENTRY = _record({"kind": _text, "name": _text, "count": _whole(1)}, {"used_as": _list(_text), "left_out": _text})
_COLUMN = _record(
    {
        "dtype": _one_of("bool", "int64", "uint64", "float64", "str"),
        "digest": _like(_DIGEST, "64 hexadecimal digits"),
    }
)
_KEEP = _record(
    {"policy": _one_of("fifo", "reservoir", "top")},
    {"steps": _or_none(_whole(1)), "episodes": _or_none(_whole(1)), "seed": _or_none(_whole()), "by": _or_none(_text)},
)


def _segment(value: Any, where: str) -> None:
    """Check the rows, or the bytes of frames, of a segment: segments of every field begin at a page then."""
    _whole(_PAGE, _MOST_SEGMENT)(value, where)
    if value % _PAGE:
        raise _wrong(value, where, f"a multiple of {_PAGE:,}")


_MANIFEST = _record(
    {
        "format": _whole(1),
        "id": _id,
        "encoding": _one_of("memmap", "zarr"),
        "fields": _list(_FIELD, most=_MOST_FIELDS),
        "counts": _COUNTS,
        "fingerprint": _like(_FINGERPRINT, "a fingerprint"),
        "created": _text,
        "rlds_version": _text,
        "reader": _text,
        "reader_version": _whole(),
        "episodes_by": _text,
        "facts": _FACTS,
        "spaces": _mapping(_or_none(_space)),
        "env": _ENV,
        "stats": _mapping(_STATS),
        "archive": _ARCHIVE,
        "files": _text,
        "options": _OPTIONS,
        "provenance": _list(_STEP),
        "metadata": _list(_text),
        "notes": _list(_NOTE),
        "shared": _mapping(_one_of("link", "reflink", "copy")),
    },
    {
        "account": _list(_ENTRY, most=MOST_ENTRIES),
        "episode_columns": _mapping(_COLUMN, _column_name),
        "growing": _record({}, {"segment_rows": _segment, "segment_bytes": _segment, "keep": _KEEP}),
        "version": _whole(1, 1 << 53),
    },
)


# -- relations between values


def _check_depth(value: Any) -> None:
    """Refuse values that are nested too deeply, and numbers too large for a float."""
    level = [value]  # the values inside of as many others
    for _ in range(_DEEPEST + 2):
        nested, below = False, list[Any]()
        for item in level:
            kind = type(item)
            if kind is dict or kind is list:
                nested = True
                below.extend(item.values() if kind is dict else item)
            elif kind is int and abs(item) > _LARGEST:
                raise ValueError("the manifest holds a number of more than 300 digits")
        if not nested:
            return
        level = below
    raise ValueError(f"the manifest is nested more than {_DEEPEST} levels deep")


def _check_field(f: Mapping[str, Any]) -> None:
    name, kind, where = f["name"], f["kind"], f"the field {f['name'][:80]!r}"
    try:
        name.encode()
    except UnicodeEncodeError:
        raise _wrong(name, "the name of a field", "a text of Unicode") from None
    if not name or len(name) > _LONGEST_NAME:
        raise _wrong(name, "the name of a field", f"1 to {_LONGEST_NAME:,} characters")
    if not is_field_path(f["path"]):
        raise _wrong(f["path"], f"{where}: path", "a path below the dataset")
    if (f["placement"] == "next") != name.startswith("next/"):
        raise _wrong(f["placement"], f"{where}: placement", "next, for names that start with next/ alone,")
    if (f["codec"] is None) != (kind != "frames"):
        raise _wrong(f["codec"], f"{where}: codec", "one for frames alone")
    if (f["dtype"] == "str") != (kind == "text") or (kind == "frames" and f["dtype"] not in ("uint8", "uint16")):
        raise _wrong(f["dtype"], f"{where}: dtype", f"one of {kind}")
    shape(f["shape"], f"{where}: shape", itemsize=NUMERIC.get(f["dtype"], 4), most=MOST_ROW_BYTES)
    if kind == "text" and f["shape"]:
        raise _wrong(f["shape"], f"{where}: shape", "none, for text,")
    if kind == "frames":
        _check_frames(f["shape"], where)
    if name in _FLAGS and (kind, f["dtype"], f["shape"]) != ("array", "bool", []):
        raise _wrong((kind, f["dtype"], f["shape"]), where, "one bool a row")
    if name == _REWARD and kind != "array":
        raise _wrong(kind, where, "an array")


def _check_growing(manifest: Mapping[str, Any]) -> None:
    """Check what growing datasets have, and what they never have."""
    growing = manifest.get("growing")
    if not growing:
        _sha256(manifest["files"], "the manifest: files")
        return
    if "segment_rows" not in growing:
        raise ValueError('growing lacks "segment_rows"')
    if manifest["encoding"] != "memmap":
        raise _wrong(manifest["encoding"], "the encoding of a growing dataset", "memmap")
    for f in manifest["fields"]:
        if f["kind"] == "frames" and "segment_bytes" not in growing:
            raise ValueError('growing lacks "segment_bytes"')


def _check_frames(sides: Sequence[int], where: str) -> None:
    if len(sides) not in (2, 3) or sides[0] * sides[1] > _MOST_PIXELS or max(sides[2:], default=1) > _MOST_CHANNELS:
        raise _wrong(sides, f"{where}: shape", f"[H, W, C] of at most {_MOST_PIXELS:,} pixels")


def _check_names(fields: Sequence[Mapping[str, Any]]) -> None:
    """Refuse two fields of one name or in one directory, also if case is ignored, and one inside another."""
    names, paths = set[str](), set[str]()
    for f in fields:
        name, path = f["name"], f"{f['path'].lower()}/"
        if name in names:
            raise ValueError(f"two fields are called {name[:80]!r}")
        if path in paths:
            raise ValueError(f"two fields have the path {path[:-1][:80]!r}")
        names.add(name)
        paths.add(path)
    for one, other in pairwise(sorted(paths)):
        if other.startswith(one):
            raise ValueError(f"the field at {other[:-1][:80]!r} lies inside the one at {one[:-1][:80]!r}")


def _check_counts(c: Mapping[str, int], fields: Sequence[Mapping[str, Any]]) -> None:
    ends = c["terminated"] + c["truncated"] + c["cut"]
    if c["rows"] < c["steps"]:
        raise _wrong(c["rows"], "the manifest: counts: rows", f"at least the {c['steps']:,} steps")
    if ends != c["episodes"]:
        raise _wrong(c["episodes"], "the manifest: counts: episodes", f"{ends:,}, of all ends,")
    for name, most in (("transitions", "steps"), ("final_observations", "episodes"), ("terminated_inside", "steps")):
        if c[name] > c[most]:
            raise _wrong(c[name], f"the manifest: counts: {name}", f"at most the {c[most]:,} {most}")
    widest = 0  # bytes of a row of a field
    for f in fields:
        width = {"frames": 8, "text": 4}.get(f["kind"]) or math.prod(f["shape"]) * NUMERIC[f["dtype"]]
        widest = max(widest, width)
    if c["rows"] > _MOST_EMPTY_ROWS and not widest:
        raise _wrong(c["rows"], "the manifest: counts: rows", "fields that hold something")
    if c["rows"] * widest > MOST_BYTES:
        raise _wrong(c["rows"], "the manifest: counts: rows", f"at most {MOST_BYTES:,} bytes")


def _check_stats(stats: Mapping[str, Mapping[str, Any]], fields: Sequence[Mapping[str, Any]]) -> None:
    known = {f["name"]: f for f in fields} if stats else {}
    for name, found in stats.items():
        f = known.get(name)
        where = f"the statistics of {name[:80]!r}"
        if f is None or f["kind"] != "array":
            raise ValueError(f"{where} belong to a field without statistics")
        pooled = math.prod(f["shape"]) > MAX_WIDTH
        for key in _ELEMENTS:
            _nested(found[key], [] if pooled else f["shape"], f"{where}: {key}")


def _nested(value: Any, sides: Sequence[int], where: str) -> None:
    """Check numbers in lists of these lengths."""
    if not sides:
        _number(value, where)
        return
    if not isinstance(value, list) or len(value) != sides[0]:
        raise _wrong(value, where, f"a list of {sides[0]:,}")
    for item in value:
        _nested(item, sides[1:], where)
