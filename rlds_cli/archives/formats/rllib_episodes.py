"""RLlib's files: episodes of its new API stack, which are states in msgpack, and values that it packs by pickle.

::

    item    binary     msgpack of ``SingleAgentEpisode.get_state()``, one in each row of a Parquet file:
                       {"id_": ..., "t_started": 0, "t": 2, "is_terminated": True, "is_truncated": False,
                        "observations": {"data": [o0, o1, o2], "lookback": 0}, "actions": {"data": [a0, a1], ...},
                        "rewards": ..., "infos": ..., "extra_model_outputs": {"action_logp": {"data": ...}}}

A row becomes a batch of steps, whose columns are called as RLlib calls them: ``obs``, ``new_obs``, ``actions``,
``rewards``, ``terminateds``, ``truncateds``, ``eps_id`` and ``t``. The first ``lookback`` values of a list belong to
the chunk of the episode before. Arrays are those of msgpack-numpy; one of objects is pickled, and is not read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.formats.arrow_tables import ArrowFile, pyarrow
from rlds_cli.base.array_types import Array
from rlds_cli.errors import CorruptArchive, UnknownLayout, UnsafeArchive

ITEM = "item"
PACKED = "BCJNG"  # base64 of the first bytes of LZ4, by which values are packed that are pickled
_OWN = (
    *("_observation_space", "_action_space", "_start_time", "_last_step_time", "_temporary_timestep_data"),
    *("module_id", "multi_agent_episode_id"),
)
UNREAD: Mapping[str, str] = {
    "infos": "they are dictionaries of any kind",
    **dict.fromkeys(_OWN, "RLlib keeps it for itself"),
}
_KEYS = (b"observations", b"actions", b"t_started")  # which every state has
_MOST_DEPTH = 32
_MOST_VALUES = 1 << 24  # of one state


# -- values that are packed by pickle


def is_packed(value: Any) -> bool:
    """Tell whether a text or bytes is a value that RLlib has packed."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    return isinstance(text, str) and text.startswith(PACKED)


def packed(file: str, column: str) -> UnsafeArchive:
    """Return the error for a column of packed values."""
    return UnsafeArchive(
        f"{file}: {column} holds values that RLlib has packed by pickle, which are never read: unpickling can run any "
        "code.",
        hint="write them plain: output_compress_columns=[] of AlgorithmConfig.offline_data; or, if you trust them, "
        "unpack them by ray.rllib.utils.compression and pass the episodes to rlds_cli.create",
    )


# -- episodes


def may_be(schema: Any) -> bool:
    """Tell by its columns whether a table may hold states of episodes."""
    types = pyarrow().types
    return bool(schema.names == [ITEM] and (types.is_binary(schema.types[0]) or types.is_large_binary(schema.types[0])))


def decoded(f: ArrowFile) -> ArrowFile:
    """Return a table of batches of steps for one of states of episodes; any other table as it is.

    Raises
    ------
    CorruptArchive
        A state is not msgpack, or its lists contradict each other.
    UnsafeArchive
        Observations, actions or rewards are pickled.
    UnknownLayout
        States do not hold the same.
    """
    if not f.num_rows or not may_be(f.schema):
        return f
    first = next(f.batches([ITEM], 0)).column(0)[0].as_py() or b""
    if not all(key in first for key in _KEYS):
        return f
    schema = _batch(first, f.path, 0).schema
    unread = pyarrow().schema([*schema, *((name, pyarrow().null()) for name in UNREAD)])

    def batches(wanted: Sequence[str] | None, start: int) -> Iterator[Any]:
        chosen = [name for name in unread.names if wanted is None or name in wanted]
        for row, state in enumerate(_states(f, start), start):
            found = _batch(state, f.path, row)
            if found.schema != schema:
                raise UnknownLayout(
                    f"{f.path.name}: the episode in row {row:,} does not hold what that in row 0 does: "
                    f"{_difference(found.schema, schema)}.",
                    hint="import them apart",
                )
            columns = [pyarrow().nulls(1) if name in UNREAD else found.column(name) for name in chosen]
            yield pyarrow().record_batch(columns, names=chosen)

    made = ArrowFile(f.path, unread, f.num_rows, batches, fill=f.fill)
    made.unread = UNREAD
    return made


def _states(f: ArrowFile, start: int) -> Iterator[bytes]:
    for batch in f.batches([ITEM], start):
        for value in batch.column(0):
            yield value.as_py()


def _difference(a: Any, b: Any) -> str:
    for name in sorted({*a.names, *b.names}):
        kinds = [str(s.field(name).type) if name in s.names else "absent" for s in (a, b)]
        if kinds[0] != kinds[1]:
            return f"{name} is {kinds[0]} and {kinds[1]}"
    return "the order of its columns"


def _batch(state: bytes | None, path: Path, row: int) -> Any:
    """Return the steps of one state as a record batch of one row, whose columns are lists."""
    where = f"{path.name}: the episode in row {row:,}"
    said = _unpacked(state, path) if state is not None else None
    try:
        if not isinstance(said, dict):
            raise TypeError("it is not a dictionary")
        begin, end = int(said["t_started"]), int(said["t"])
        n = end - begin
        columns: dict[str, Array] = {}
        for name, values in _leaves("obs", _values(said["observations"])):
            columns[name], columns["new_" + name] = values[:-1], values[1:]
        for name, key in (("actions", "actions"), ("rewards", "rewards")):
            columns |= dict(_leaves(name, _values(said[key])))
        for name, of in (said.get("extra_model_outputs") or {}).items():
            columns |= dict(_leaves(str(name), _values(of)))
        ends = {"terminateds": bool(said["is_terminated"]), "truncateds": bool(said["is_truncated"])}
    except UnsafeArchive as e:
        raise UnsafeArchive(f"{where}: {e.message}", hint=e.hint) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as e:
        raise CorruptArchive(f"{where} is not the state of an episode of RLlib: {type(e).__name__}: {e}") from e
    if odd := next((name for name, values in columns.items() if len(values) != n), None):
        raise CorruptArchive(f"{where} has {n:,} steps, and {len(columns[odd]):,} values of {odd}.")
    for name, flag in ends.items():
        columns[name] = np.arange(n) == n - 1 if flag else np.zeros(n, bool)
    columns["t"] = np.arange(begin, end)
    if odd := next((name for name, values in columns.items() if values.dtype.kind not in "biuf"), None):
        raise UnknownLayout(f"{where}: {odd} holds {columns[odd].dtype} values, which are not read.")
    texts = {name: said.get(key) for name, key in (("eps_id", "id_"), ("agent_id", "agent_id"))}
    return _record(columns, {name: str(text) for name, text in texts.items() if text is not None}, n)


def _record(columns: Mapping[str, Array], texts: Mapping[str, str], n: int) -> Any:
    pa = pyarrow()
    arrays = {}
    for name, values in columns.items():
        found = pa.array(np.ascontiguousarray(values).reshape(-1))
        for width in reversed(values.shape[1:]):
            found = pa.FixedSizeListArray.from_arrays(found, width)
        arrays[name] = pa.ListArray.from_arrays([0, n], found)
    arrays |= {name: pa.array([[text] * n], pa.list_(pa.string())) for name, text in texts.items()}
    return pa.record_batch([*arrays.values()], names=[*arrays])


def _values(buffer: Any) -> Any:
    """Return the values of a buffer without those of the chunk before: an array, or a dictionary of arrays.

    A list is one of steps, or in a buffer that is finalized a tuple of arrays.
    """
    data, lookback = buffer["data"], int(buffer["lookback"])
    if lookback < 0:
        raise ValueError(f"a lookback of {lookback}")
    if isinstance(data, list) and buffer.get("finalized") is not True:
        return _stacked(data[lookback:])
    return _cut(data, lookback)


def _stacked(values: Sequence[Any]) -> Any:
    if values and isinstance(values[0], dict):
        return {key: _stacked([v[key] for v in values]) for key in values[0]}
    if values and isinstance(values[0], list):
        return {str(k): _stacked([v[k] for v in values]) for k in range(len(values[0]))}
    return np.array([*map(_read, values)])


def _cut(data: Any, lookback: int) -> Any:
    if isinstance(data, dict):
        return {key: _cut(value, lookback) for key, value in data.items()}
    if isinstance(data, list):  # a tuple of arrays
        return {str(k): _cut(value, lookback) for k, value in enumerate(data)}
    return np.asarray(_read(data))[lookback:]


def _read(value: Any) -> Any:
    """Return a value, unless it is pickled."""
    if isinstance(value, _Pickled):
        raise UnsafeArchive(
            "an array of Python objects is pickled, which is never read: reading it can run any code.",
            hint="if you trust it, read it by ray and pass the episodes to rlds_cli.create",
        )
    return value


def _leaves(name: str, values: Any) -> Iterator[tuple[str, Array]]:
    if isinstance(values, dict):
        for key, of in values.items():
            yield from _leaves(f"{name}/{key}", of)
    else:
        yield name, np.asarray(values)


# -- msgpack


class _Pickled:
    """An array of objects, which is not read."""


def _unpacked(data: bytes, path: Path) -> Any:
    """Read a value of msgpack, with arrays of msgpack-numpy; raises CorruptArchive and UnsafeArchive."""
    reader = _Reader(data, path)
    try:
        value = reader.value(0)
    except (struct.error, UnicodeDecodeError, ValueError, TypeError, IndexError, KeyError) as e:
        raise CorruptArchive(f"{path.name}: {ITEM} is not msgpack: {e}") from e
    if reader.at != len(data):
        raise CorruptArchive(f"{path.name}: {ITEM} has {len(data) - reader.at:,} bytes behind its msgpack.")
    return value


_NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
_NUMBERS |= {0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_LENGTHS = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}  # of bytes, of texts
_LENGTHS |= {0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}  # of lists, of maps


class _Reader:
    """Reads values of msgpack, of which there is a bounded number, nested to a bounded depth."""

    def __init__(self, data: bytes, path: Path) -> None:
        self._data, self._path, self.at, self._count = data, path, 0, 0

    def value(self, depth: int) -> Any:
        """Read the next value."""
        self._count += 1
        if depth > _MOST_DEPTH or self._count > _MOST_VALUES:
            raise UnsafeArchive(f"{self._path.name}: a value is nested too deeply, or has too many parts.")
        tag = self._take(1)[0]
        if tag < 0x80 or tag >= 0xE0:
            return tag if tag < 0x80 else tag - 256
        if tag in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[tag]
        if tag in _NUMBERS:
            return self._number(_NUMBERS[tag])
        short = tag & (0x1F if 0xA0 <= tag < 0xC0 else 0x0F)
        length = int(self._number(_LENGTHS[tag])) if tag in _LENGTHS else short
        if 0xA0 <= tag < 0xC0 or tag in (0xD9, 0xDA, 0xDB):
            return self._take(length).decode()
        if tag in (0xC4, 0xC5, 0xC6):
            return self._take(length)
        if tag < 0x90 or tag in (0xDE, 0xDF):
            return self._map(length, depth)
        if tag < 0xA0 or tag in (0xDC, 0xDD):
            return [self.value(depth + 1) for _ in range(length)]
        raise ValueError(f"the byte {tag:#x} begins no value that is read")

    def _map(self, length: int, depth: int) -> Any:
        found = {}
        for _ in range(length):
            key = self.value(depth + 1)
            found[key] = self.value(depth + 1)
        if b"nd" in found:
            return self._array(found)
        return found

    def _array(self, said: Mapping[Any, Any]) -> Any:
        """Return an array or a number of msgpack-numpy, or that it is pickled."""
        if said.get(b"kind") == b"O" or said[b"type"] in ("|O", "O", "object"):
            return _Pickled()
        if not isinstance(said[b"type"], str):
            raise ValueError("an array of records")
        dtype = np.dtype(said[b"type"])
        if dtype.hasobject:
            return _Pickled()
        values = np.frombuffer(said[b"data"], dtype)
        return values.reshape(said[b"shape"]) if said[b"nd"] else values[0]

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, length: int) -> bytes:
        found = self._data[self.at : self.at + length]
        if len(found) < length:
            raise ValueError("it ends early")
        self.at += length
        return found
