"""Check the episodes that users and functions provide, nested dicts of arrays, and name their fields.

::

    {"observation": [T+1, ...] or [T, ...], "action": [T, ...],
     "next": {"reward": [T], "terminated": [T], "truncated": [T]}, "info": {...}}

Values may be arrays, tensors, nested dicts, lists, lists of strings, or lists of the bytes of images; a single flag
stands for the last step. The fields of agents may be in groups of any names: ``{"agents": {"observation": ...}}``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeGuard, cast

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.text import is_below
from rlds_cli.errors import InvalidEpisode
from rlds_cli.ted.columns import Column, EncodedFrames, LazyColumn, VideoFrames
from rlds_cli.ted.fields import CUT, FLAGS, REWARD, TERMINATED, TRUNCATED, VIDEO, Field, Placement

TERMINATED_NAME, TRUNCATED_NAME = FLAGS
_COUNTED = ("action", REWARD, *FLAGS)  # the first of these fields counts the steps
_NOT_GROUPS = frozenset(("observation", "action", "next", "info", "episode", "collector"))
Value = Array | list[str | None] | list[bytes] | EncodedFrames | VideoFrames
Flat = dict[str, Value]
_BYTES = bytes | bytearray | memoryview
_IMAGES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")  # how PNG and JPEG begin


def flatten(episode: Mapping[Any, Any], where: str = "the episode") -> Flat:
    """Return the fields of an episode by name, as arrays, or lists of strings or of the bytes of images.

    A `LazyColumn` stays as it is.
    """
    flat: Flat = {}
    for name, value in _leaves(episode, ()):
        if not name or not all(name):
            raise InvalidEpisode(f"{where}: a field without a name.")
        flat["/".join(name)] = _values(value, "/".join(name), where)
    groups = {name[:i]: name for name in flat for i, c in enumerate(name) if c == "/"}
    for field in flat:
        if field in groups:
            raise InvalidEpisode(f"{where}: {field} is a field, and a group that holds {groups[field]}.")
        _check_text(field, "the name of a field", where, "strict")
    return flat


def _check_text(value: str, what: str, where: str, errors: str = "surrogateescape") -> None:
    try:
        value.encode("utf-8", errors)
    except UnicodeEncodeError as e:
        raise InvalidEpisode(f"{where}: {what} is not valid Unicode: {value[:40]!r}.") from e


def _leaves(value: Any, name: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if type(value).__name__ == "NonTensorStack":  # a TensorDict's texts, which look like a mapping
        yield name, value.tolist()
    elif isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "items")):
        for key, item in value.items():
            parts = key if isinstance(key, tuple) else tuple(str(key).split("/"))
            yield from _leaves(item, (*name, *map(str, parts)))
    elif isinstance(value, tuple) and value and all(hasattr(v, "__len__") and not _is_scalar(v) for v in value):
        for i, item in enumerate(value):  # a Tuple space
            yield from _leaves(item, (*name, str(i)))
    else:
        yield name, value


def _is_scalar(value: Any) -> bool:
    """Return whether a value with a length is a single one: a text, or an image."""
    return isinstance(value, str | _BYTES)


def _values(value: Any, name: str, where: str) -> Value:
    if isinstance(value, EncodedFrames | VideoFrames | LazyColumn):
        return cast("Value", value)
    if (images := _images(value, name, where)) is not None:
        return images
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    try:
        array = np.asarray(value)
    except ValueError as e:
        raise InvalidEpisode(f"{where}: {name} is ragged: its rows have different shapes.") from e
    if array.dtype.kind in "OUST":
        return _strings(array, name, where)
    if array.dtype.kind not in "biufc":
        raise InvalidEpisode(f"{where}: {name} has dtype {array.dtype}, which is not a number, a flag or text.")
    if array.dtype == np.longdouble or array.dtype == np.clongdouble:
        raise InvalidEpisode(f"{where}: {name} has dtype {array.dtype}, which other machines cannot read.")
    return array


def _images(value: Any, name: str, where: str) -> list[bytes] | None:
    """Return a list of bytes, or of the bytes of images as encoders return them (uint8 [n] each); None for others."""
    if isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1:
        value = value.tolist()
    if not isinstance(value, list | tuple) or not value:
        return None
    others = [v for v in value if not isinstance(v, _BYTES)]
    if not others:
        return [bytes(v) for v in value]
    if len(others) < len(value):
        what = "None" if others[0] is None else type(others[0]).__name__
        raise InvalidEpisode(
            f"{where}: {name} holds bytes and {what}.",
            hint="bytes are images, one for each row; texts are str: value.decode()",
        )
    if not all(getattr(v, "ndim", 0) == 1 and str(getattr(v, "dtype", "")).endswith("uint8") for v in value):
        return None
    found = [np.asarray(v).tobytes() for v in value]
    return found if any(v.startswith(_IMAGES) for v in found) else None


def _strings(array: Array, name: str, where: str) -> Value:
    values = array.tolist() if array.ndim else [array.item()]
    if array.ndim == 2 and array.dtype.kind in "OU" and all(v is None or isinstance(v, str) for v in array.flat):
        return array.astype(object)  # of several trajectories, which are told apart before it is looked at again
    if array.ndim <= 1 and array.dtype.kind == "S":  # a whole image does not end with the zeros that these arrays lose
        return values
    if array.ndim <= 1 and all(v is None or isinstance(v, str) for v in values):
        for text in values:
            _check_text(text or "", f"a text of {name}", where)
        return values
    raise InvalidEpisode(f"{where}: {name} holds Python objects; arrays of numbers, flags or text are needed.")


def check_episode(flat: Flat, where: str = "the episode", *, apart: Collection[str] = ()) -> tuple[Flat, int, int]:
    """Check one episode and complete its flags: (fields, number of steps, end).

    ``x`` and ``next/x`` become one field if they agree, except for names in ``apart``.

    Raises
    ------
    InvalidEpisode
        Fields do not fit each other; the message names them with their lengths.
    """
    flat = dict(flat)
    counted, length = _counted(flat, where)
    _join_next(flat, length, apart)
    if REWARD in flat:
        flat[REWARD] = reward = _per_step(flat[REWARD], length, REWARD, where)
        if reward.dtype.kind == "c":
            raise InvalidEpisode(f"{where}: {REWARD} is {reward.dtype}; real numbers are needed.")
    end = _flags(flat, length, where)
    for name, values in flat.items():
        if isinstance(values, np.ndarray) and values.dtype == object:
            raise InvalidEpisode(f"{where}: {name} holds several texts a step; one is needed.")
        allowed = (length,) if name.startswith("next/") else (length, length + 1)
        if is_single(values) or len(values) not in allowed:
            rows = "a single value" if is_single(values) else f"{len(values)} rows"
            steps = f" ({counted} has {length})" if counted != name and len(flat.get(counted, ())) == length else ""
            raise InvalidEpisode(f"{where}: {name} has {rows}; expected {' or '.join(map(str, allowed))}{steps}.")
    return flat, length, end


def is_bytes(values: object) -> TypeGuard[list[bytes]]:
    """Return whether a field is a list of the bytes of images."""
    return isinstance(values, list) and bool(values) and isinstance(values[0], bytes)


def is_single(values: Value) -> bool:
    """Return whether a field has a single value, not one for each step."""
    return isinstance(values, np.ndarray) and values.ndim == 0


def parts_of(names: Iterable[str], what: str) -> list[str]:
    """Return the fields that are the ``what`` (observation, action): the agent's, else those of groups of agents."""
    own = [n for n in names if is_below(n, what)]
    return own or [n for n in names if what in n.split("/")[1:] and n.split("/")[0] not in _NOT_GROUPS]


def count_steps(flat: Flat, where: str) -> int:
    """Return T: the rows of actions, else of rewards or flags, else of observations less one."""
    return _counted(flat, where)[1]


def _counted(flat: Flat, where: str) -> tuple[str, int]:
    """Return the field that counts the steps, and T."""
    sized = {n: len(v) for n, v in flat.items() if not is_single(v)}
    known = [n for what in (*_COUNTED, "next") for n in sized if is_below(n, what)] or parts_of(sized, "action")
    if known:
        return known[0], sized[known[0]]
    for name in parts_of(sized, "observation"):
        return name, max(0, sized[name] - 1)
    raise InvalidEpisode(f"{where} has no action, reward, flag or observation: {', '.join(flat) or 'nothing'}.")


def _join_next(flat: Flat, length: int, apart: Collection[str]) -> None:
    """Join ``x`` and ``next/x`` if the second is the first, one row on."""
    for name in [n for n in flat if n.startswith("next/") and n.removeprefix("next/") in flat]:
        root: Any = flat[name.removeprefix("next/")]
        after: Any = flat[name]
        if name.removeprefix("next/") in apart or length == 0:
            continue
        if type(root) is not type(after) or not isinstance(root, np.ndarray | list):
            continue
        if len(root) == len(after) == length and _same(root[1:], after[:-1]):
            flat[name.removeprefix("next/")] = _appended(root, after)
            del flat[name]
        elif len(root) == length + 1 and _same(root[1:], after):
            del flat[name]


def _appended(root: Any, after: Any) -> Value:
    return [*root, after[-1]] if isinstance(root, list) else np.concatenate([root, after[-1:]])


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return bool(a == b)
    return a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))


def _per_step(values: Value, length: int, name: str, where: str) -> Array:
    """Return [T] from [T] or [T, 1]."""
    if not isinstance(values, np.ndarray):
        raise InvalidEpisode(f"{where}: {name} is {'text' if isinstance(values, list) else 'frames'}.")
    if values.ndim == 2 and values.shape == (length, 1):
        return values[:, 0]
    return values


def _flags(flat: Flat, length: int, where: str) -> int:
    """Complete ``next/terminated`` and ``next/truncated``, and return the end of the episode."""
    done = flat.pop("next/done", None)
    if done is not None and flat.keys().isdisjoint(FLAGS):
        raise InvalidEpisode(
            f"{where}: next/done does not say why the episode ended.",
            hint="give next/terminated (the task is over: no bootstrapping) and next/truncated (time is up) instead",
        )
    terminated = flag_per_step(flat.get(TERMINATED_NAME), length, TERMINATED_NAME, where)
    truncated = flag_per_step(flat.get(TRUNCATED_NAME), length, TRUNCATED_NAME, where)
    if length and truncated[:-1].any():
        step = int(np.argmax(truncated))
        raise InvalidEpisode(f"{where}: truncated at step {step} of {length}: that ends an episode; split it there.")
    if length == 0:
        end = CUT
    elif terminated[-1]:
        end = TERMINATED
    elif truncated[-1]:
        end = TRUNCATED
    else:
        truncated[-1], end = True, CUT
    flat[TERMINATED_NAME], flat[TRUNCATED_NAME] = terminated, truncated
    return end


def flag_per_step(values: Value | None, length: int, name: str, where: str) -> Array:
    """Return a flag per step [T] as bool; a single value stands for the last step, None for no flags.

    Raises
    ------
    InvalidEpisode
        The flags have another shape, or values that are not 0 or 1.
    """
    flags = np.zeros(length, bool)
    if values is None:
        return flags
    given = _per_step(values, length, name, where)
    if given.ndim and given.shape != (length,):
        raise InvalidEpisode(f"{where}: {name} has shape {list(given.shape)}; expected [{length}].")
    if given.dtype != bool and not np.isin(given, (0, 1)).all():
        wrong = given[~np.isin(given, (0, 1))].flat[0]
        raise InvalidEpisode(f"{where}: {name} holds {wrong}; flags are 0 or 1.")
    if given.ndim == 0:
        flags[-1:] = bool(given)
        return flags
    return given.astype(bool)


def infer_schema(
    flat: Flat, length: int, *, both: Collection[str] = (), known: Mapping[str, Field] = MappingProxyType({})
) -> tuple[Field, ...]:
    """Infer the fields of a checked episode. Fields with T+1 rows, and observations of all agents, are ``both``.

    So are the fields named in ``both``; fields in ``known`` are taken from there.
    """
    fields, observations = [], parts_of(flat, "observation")
    for name, values in sorted(flat.items()):
        if name in known:
            fields.append(known[name])
            continue
        observed, own_next = name in observations, f"next/{name}" in flat
        placement: Placement = (
            "next"
            if name.startswith("next/")
            else "both"
            if len(values) == length + 1 or name in both or (observed and not own_next)
            else "root"
        )
        fields.append(field_of(name, values, placement))
    return tuple(fields)


def field_of(name: str, values: Value, placement: Placement) -> Field:
    """Return the field for values."""
    if isinstance(values, VideoFrames):
        return Field(name, "uint8", values.shape, placement, "frames", VIDEO)
    if isinstance(values, EncodedFrames):
        return Field(name, values.dtype, values.shape, placement, "frames", values.codec)
    if isinstance(values, list):
        return Field(name, "str", (), placement, "text")
    return Field(name, values.dtype.newbyteorder("=").name, values.shape[1:], placement)


def fit_columns(flat: Flat, schema: Sequence[Field], where: str = "the episode") -> dict[str, Column]:
    """Return the columns of a checked episode in the dtypes of ``schema``, if no value is lost.

    Raises
    ------
    InvalidEpisode
        A field is missing, is new, or has another kind or shape than in the first episode.
    """
    columns: dict[str, Column] = {}
    for f in schema:
        if f.name not in flat:
            raise InvalidEpisode(f"{where} lacks {f.name}, which the first episode has.")
        columns[f.name] = _fit(flat[f.name], f, where)
    extra = sorted(set(flat) - set(columns))
    if extra:
        raise InvalidEpisode(f"{where} has {', '.join(extra)}, which the first episode lacks.")
    return columns


def _fit(values: Value, f: Field, where: str) -> Column:
    kind = "text" if isinstance(values, list) else "array" if isinstance(values, np.ndarray) else "frames"
    if f.kind != kind:
        what = {"text": "text", "frames": "encoded frames", "array": "numbers"}[kind]
        mixed = {f.kind, kind} == {"frames", "array"}
        hint = 'create(..., frames="raw") keeps the frames of all episodes as arrays' if mixed else None
        raise InvalidEpisode(f"{where}: {f.name} is {what} here only.", hint=hint)
    if isinstance(values, list):
        return cast("list[str | None]", values)
    if isinstance(values, VideoFrames) and f.codec == VIDEO and values.shape in ((), f.shape):
        return values
    if isinstance(values, EncodedFrames | VideoFrames):
        codec, shape = VIDEO if isinstance(values, VideoFrames) else values.codec, values.shape or f.shape
        if (codec, shape) != (f.codec, f.shape):
            raise InvalidEpisode(
                f"{where}: {f.name} is {codec} {list(shape)}; the first episode's is {f.codec} {list(f.shape)}."
            )
        return values
    values = f.of_rows(values)
    if values.shape[1:] != f.shape:
        raise InvalidEpisode(
            f"{where}: a row of {f.name} has shape {list(values.shape[1:])}; the first episode's have {list(f.shape)}."
        )
    if not np.can_cast(values.dtype, f.dtype, "safe"):
        raise InvalidEpisode(f"{where}: {f.name} is {values.dtype}; the first episode's is {f.dtype}.")
    return values


def owned(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Copy values into memory of their own, which the caller's later writes do not change; not a `LazyColumn`."""
    return {n: _copied(v) for n, v in columns.items()}


def _copied(values: Any) -> Any:
    if isinstance(values, LazyColumn):
        return values
    if isinstance(values, EncodedFrames):
        return replace(values, data=values.data.copy(), lengths=values.lengths.copy())
    if isinstance(values, VideoFrames):
        return replace(values, index=values.index.copy())
    return values.copy()
