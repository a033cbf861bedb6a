"""The steps of an episode that is being recorded, in buffers that grow."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.errors import InvalidEpisode
from rlds_cli.store import CheckedFrames, decoded_frames
from rlds_cli.ted import FLAGS, REWARD, TASK, TASK_AT, Field, Scalar, parts_of

_FIRST_ROWS = 64  # of the buffers of a new episode
_ROUNDED, _WHOLE = 1e38, 1 << 62  # numbers of Python below are in the range of float32; of int64
_PYTHON = (bool, int, float)  # numbers that take the dtype of their field

Leaves = dict[str, Any]


class Committed:
    """An episode that continues, and how readers see it: under the number of its last commit, as a cut one.

    Attributes
    ----------
    id : bytes
        Of the episode, 16 bytes, which it keeps when it continues.
    shown : bool
        It was, or is about to be, committed as it was then.
    number : int or None
    changed : bool
        It continued since then.
    ended : bool
    """

    def __init__(self) -> None:
        self.id = secrets.token_bytes(16)
        self.shown = False
        self.number: int | None = None
        self.changed = True
        self.ended = False


class OpenEpisode(Committed):
    """The steps so far. A step is first `prepared`, which changes nothing, and then taken."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.protected = False
        self.about: dict[str, Scalar] = {}
        self.seed: int | None = None
        self.options: str | None = None
        self._buffers: dict[str, Array | list[Any]] = {}
        self._after: Leaves = {}  # what was observed after the last step
        self._before: tuple[Any, ...] = ()  # what a step replaced

    def follow(self, step: Mapping[str, Any], after: Any) -> bool:
        """Take a step like those before, at once; return False, with nothing changed, if it may be of another kind.

        Almost every step is: its values are arrays and numbers of the dtypes and shapes of the buffers.
        """
        at, buffers = self.steps, self._buffers
        if not at or len(step) != len(buffers):
            return False
        for name, value in step.items():
            buffer = buffers.get(name)
            if not isinstance(buffer, np.ndarray) or at + 1 >= len(buffer) or not _is_row(value, buffer):
                return False
        if after is not None and (type(after) is not np.ndarray or not _is_row(after, buffers.get("observation"))):
            return False
        for name, was in self._after.items():
            if name not in step or not np.all(was == step[name]):
                return False
        for name, value in step.items():
            buffers[name][at] = value
        self.steps, self.changed = at + 1, True
        self._after = {} if after is None else {"observation": after.copy()}
        return True

    def prepared(self, step: Mapping[str, Any], after: Any, schema: Mapping[str, Field]) -> tuple[Leaves, Leaves]:
        """Return the values of a step and those after it, as arrays that fit.

        Raises
        ------
        InvalidEpisode
            They do not fit the steps before, or the fields ``schema`` of the dataset, if these are known.
        """
        leaves = dict(_leaves(step, ""))
        if TASK not in schema and isinstance(leaves.get(TASK, ...), str | None):
            leaves[TASK_AT] = leaves.pop(TASK)
        later = {} if after is None else dict(_leaves({"observation": after}, ""))
        for name in [n for n in leaves if n.startswith("next/") and n not in schema]:
            root = name.removeprefix("next/")
            new = not schema and root in parts_of(leaves, "observation")
            if new or ((f := schema.get(root)) is not None and f.placement == "both"):
                later[root] = leaves.pop(name)
        self._check_names(leaves, later, schema)
        values = {name: self._value(name, value, schema.get(name)) for name, value in leaves.items()}
        wanted = {name: f"next_{name}" if name.startswith("observation") else f"next/{name}" for name in later}
        rows = {
            name: self._value(name, value, schema.get(name), values[name], wanted[name])
            for name, value in later.items()
        }
        for name, value in self._after.items():
            if name in values and not _same(value, values[name]):
                raise InvalidEpisode(
                    f"step {self.steps}: {name} is not what next_observation said after step {self.steps - 1}.",
                    hint="end the episode where the environment was reset: terminated, truncated, or end()",
                )
        return values, rows

    def _check_names(self, leaves: Leaves, later: Leaves, schema: Mapping[str, Field]) -> None:
        there = self._buffers.keys() if self.steps else schema.keys() - {*FLAGS, *({TASK_AT} - leaves.keys())}
        if there and leaves.keys() != there:
            lacks, new = sorted(there - leaves.keys()), sorted(leaves.keys() - there)
            said = [f"{what} {', '.join(names)}" for what, names in (("lacks", lacks), ("has", new)) if names]
            others = "the steps before" if self.steps else "the dataset"
            way = f'the text of a whole episode: episode={{"{TASK}": ...}}' if TASK_AT in new else None
            raise InvalidEpisode(f"step {self.steps} {' and '.join(said)}, unlike {others}.", hint=way)
        unknown = sorted(later.keys() - leaves.keys())
        if unknown:
            raise InvalidEpisode(f"step {self.steps}: next_observation has {', '.join(unknown)}, unlike observation.")
        lacks = sorted(set(parts_of(leaves, "observation")) - later.keys()) if later else []
        if lacks:
            raise InvalidEpisode(f"step {self.steps}: next_observation lacks {', '.join(lacks)}.")
        for what in ("observation", "action"):
            if not parts_of(leaves, what):
                raise InvalidEpisode(
                    f"step {self.steps} has no {what}: {', '.join(leaves) or 'nothing'}.",
                    hint='agents in groups: add(agents={"observation": ..., "action": ...}, next={"agents": {...}})',
                )

    def _value(self, name: str, value: Any, f: Field | None, like: Any = None, said: str = "") -> Any:
        """Return a value as an array, or text, that fits the field, the steps before, and ``like``."""
        said, buffer = said or name, self._buffers.get(name)
        if like is None and buffer is not None:
            like = buffer[0] if self.steps else None
        text = value is None or isinstance(value, str)
        frames = isinstance(like, CheckedFrames) if f is None else f.kind == "frames"
        if text or (f is not None and f.kind == "text") or (isinstance(buffer, list) and not frames):
            if not text or (f is not None and f.kind != "text") or isinstance(like, np.ndarray | np.generic):
                raise InvalidEpisode(f"step {self.steps}: {said} is {'text' if text else 'no text'} here only.")
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            if frames or (f is None and like is None):
                return CheckedFrames.of([bytes(value)], f or _field_of(like), said, f"step {self.steps}", self.steps)
            wanted = f.shape if f is not None else np.shape(like)
            value = decoded_frames([bytes(value)], wanted, said, f"step {self.steps}")[0]
        elif frames:
            codec = like.codec if f is None else f.codec
            raise InvalidEpisode(
                f"step {self.steps}: {said} is {type(value).__name__}; the bytes of a {codec} image are needed.",
                hint="fields= or like= with an array of uint8 instead takes arrays",
            )
        if hasattr(value, "detach"):  # a torch tensor
            value = value.detach().cpu().numpy()
        if f is not None and isinstance(value, _PYTHON) and not f.shape:
            return self._number(said, value, f)
        try:
            array = value if isinstance(value, np.ndarray) else np.asarray(value)
        except ValueError as e:
            raise InvalidEpisode(f"step {self.steps}: {said} is ragged: its parts have different shapes.") from e
        if array.dtype.kind not in "biufc":
            raise InvalidEpisode(
                f"step {self.steps}: {said} has dtype {array.dtype}; numbers, flags or text are needed."
            )
        if name == REWARD and array.shape == (1,):
            array = array[0:1].reshape(())
        shape = f.shape if f is not None else np.shape(like) if like is not None else array.shape
        if array.shape != shape:
            raise InvalidEpisode(
                f"step {self.steps}: {said} has shape {list(array.shape)}; {list(shape)} is that of "
                f"{'the dataset' if f is not None else 'the steps before' if not said.startswith('next') else name}."
            )
        if f is not None and not np.can_cast(array.dtype, f.dtype, "safe"):
            raise InvalidEpisode(
                f"step {self.steps}: {said} is {array.dtype}; the dataset has {f.dtype}.",
                hint=f"np.asarray({said.rpartition('/')[2]}, np.{f.dtype}), where that loses nothing that you need",
            )
        return array

    def _number(self, said: str, value: Any, f: Field) -> Array:
        """Return a number of Python in the dtype of its field."""
        kind, target = type(value).__name__, np.dtype(f.dtype)
        exact = isinstance(value, bool) or target.kind in "fc" or (isinstance(value, int) and target.kind in "iu")
        if exact and (target.kind != "b" or isinstance(value, bool)):
            try:
                with np.errstate(over="ignore"):
                    number = np.asarray(value, target)
                if np.isfinite(number) or not np.isfinite(value):
                    return number
            except OverflowError:
                pass
        raise InvalidEpisode(f"step {self.steps}: {said} is {value} ({kind}), which {f.dtype} does not hold.")

    def take(
        self, values: Leaves, after: Leaves, about: Mapping[str, Scalar], protected: bool, schema: Mapping[str, Field]
    ) -> None:
        """Add a step that was prepared; the arrays are copied."""
        self._before = (self._after, dict(self.about), self.protected, self.changed)
        for name, value in values.items():
            self._write(name, value, schema.get(name))
        self.steps += 1
        self._after = {name: v.copy() if isinstance(v, np.ndarray) else v for name, v in after.items()}
        self.about |= dict(about)
        self.protected, self.changed = self.protected or protected, True

    def undo(self) -> None:
        """Forget the last step."""
        self._after, self.about, self.protected, self.changed = self._before
        self.steps -= 1
        for name, buffer in list(self._buffers.items()):
            if isinstance(buffer, list):
                buffer.pop()
            if not self.steps:
                del self._buffers[name]

    def _write(self, name: str, value: Any, f: Field | None) -> None:
        buffer = self._buffers.get(name)
        if buffer is None:
            listed = isinstance(value, str | CheckedFrames) or value is None
            dtype = None if listed else value.dtype if f is None else f.dtype
            buffer = [] if listed else np.empty((_FIRST_ROWS, *value.shape), dtype)
            self._buffers[name] = buffer
        if isinstance(buffer, list):
            buffer.append(value)
            return
        if self.steps + 1 >= len(buffer):  # there is always room for what is observed after the last step
            longer = np.empty((2 * len(buffer), *buffer.shape[1:]), buffer.dtype)
            longer[: self.steps] = buffer[: self.steps]
            buffer = self._buffers[name] = longer
        if value.dtype != buffer.dtype and not np.can_cast(value.dtype, buffer.dtype, "safe"):
            buffer = self._buffers[name] = buffer.astype(np.result_type(value.dtype, buffer.dtype))
        buffer[self.steps] = value

    def item(self, terminated: bool, truncated: bool) -> dict[str, Any]:
        """Return the episode so far, in the form that `rlds_cli.create` takes; its arrays are the buffers."""
        found: dict[str, Any] = {}
        for name, buffer in self._buffers.items():
            after = self._after.get(name)
            if isinstance(buffer, list):
                rows = [*buffer, after] if name in self._after else list(buffer)
                found[name] = CheckedFrames.joined(rows) if isinstance(rows[0], CheckedFrames) else rows
                continue
            if name in self._after:
                if not np.can_cast(after.dtype, buffer.dtype, "safe"):  # type: ignore[union-attr]
                    buffer = buffer.astype(np.result_type(after, buffer.dtype))
                buffer[self.steps] = after
            found[name] = buffer[: self.steps + (name in self._after)]
        for name, ends in zip(FLAGS, (terminated, truncated), strict=True):
            column = np.zeros(self.steps, bool)
            column[-1] = ends
            found[name] = column
        return found | ({"episode": dict(self.about)} if self.about else {})


def _is_row(value: Any, buffer: Any) -> bool:
    """Return whether a value is a row of a buffer as it is."""
    if isinstance(value, np.ndarray | np.generic):
        return buffer is not None and value.dtype == buffer.dtype and value.shape == buffer.shape[1:]
    if type(value) is float and buffer.ndim == 1:
        return buffer.dtype == np.float64 or (buffer.dtype == np.float32 and -_ROUNDED < value < _ROUNDED)
    return type(value) is int and buffer.ndim == 1 and buffer.dtype == np.int64 and -_WHOLE < value < _WHOLE


def _field_of(frame: CheckedFrames | None) -> Field | None:
    return None if frame is None else Field("", frame.dtype, frame.shape, kind="frames", codec=frame.codec)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, CheckedFrames):
        return isinstance(b, CheckedFrames) and a.data.tobytes() == b.data.tobytes()
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    return bool(a == b)


def _leaves(values: Mapping[Any, Any], above: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}/")
        elif isinstance(value, tuple) and any(hasattr(v, "__len__") for v in value):  # of a Tuple space
            yield from _leaves(dict(enumerate(value)), f"{name}/")
        else:
            yield name, value


def of_each(values: Any, count: int, what: str) -> Iterable[Any]:
    """Divide values of ``count`` environments, [count, ...] each, also in dicts and tuples of arrays.

    Raises
    ------
    InvalidEpisode
        A value has another number of rows.
    """
    if values is None:
        return [None] * count
    if isinstance(values, Mapping):
        parts = {key: list(of_each(v, count, f"{what}/{key}".lstrip("/"))) for key, v in values.items()}
        return ({key: rows[k] for key, rows in parts.items()} for k in range(count))
    if isinstance(values, tuple) and values and all(np.ndim(v) or isinstance(v, Mapping | tuple) for v in values):
        columns = [list(of_each(value, count, f"{what}/{n}")) for n, value in enumerate(values)]
        return (tuple(rows[k] for rows in columns) for k in range(count))
    if not hasattr(values, "__len__") or len(values) != count:
        rows = f"{len(values)} rows" if hasattr(values, "__len__") else "a single value"
        raise InvalidEpisode(f"{what} has {rows}; [{count}, ...] is needed, one row of each environment.")
    return list(values)
