"""tf.Example from its bytes: against values encoded by hand, packed and one by one, and bytes that are none."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tfds_files import example, feature, message, varint

from rlds_cli.archives.formats.tfrecord import MAX_PIECES, parse
from rlds_cli.errors import CorruptArchive

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def only(data: bytes, name: str = "x") -> Any:
    return parse(message(1, message(1, message(1, name.encode()) + message(2, data))))[name]


@pytest.mark.parametrize("packed", [True, False])
def test_three_kinds_of_lists(packed: bool) -> None:
    found = parse(example({"f": [0.5, -2.0], "i": [3, -1, 1 << 40], "b": [b"ab", b"", "ü"]}, packed=packed))
    assert sorted(found) == ["b", "f", "i"]
    assert {k: v.kind for k, v in found.items()} == {"b": "bytes", "f": "float", "i": "int64"}
    assert found["f"].floats().dtype == np.float32
    assert found["f"].floats().tolist() == [0.5, -2.0]
    assert found["i"].integers().tolist() == [3, -1, 1 << 40]
    assert found["b"].strings() == [b"ab", b"", "ü".encode()]


def test_floats_are_a_view_of_the_record() -> None:
    record = example({"f": [1.0, 2.0, 3.0]})
    floats = parse(record)["f"].floats()
    assert np.shares_memory(floats, np.frombuffer(record, np.uint8))
    assert not floats.flags.writeable


@pytest.mark.thorough
@given(st.lists(INT64), st.booleans())
def test_integers_of_any_size(numbers: list[int], packed: bool) -> None:
    assert only(feature(np.array(numbers, np.int64), packed=packed)).integers().tolist() == numbers


@pytest.mark.thorough
@given(st.lists(st.floats(width=32)), st.booleans())
def test_any_floats(numbers: list[float], packed: bool) -> None:
    found = only(feature(np.array(numbers, np.float64) if numbers else [], packed=packed))
    wanted = np.array(numbers, np.float32)
    assert not numbers or found.floats().tobytes() == wanted.tobytes()


@pytest.mark.thorough
@given(st.lists(st.binary(max_size=300)))
def test_any_byte_strings(strings: list[bytes]) -> None:
    found = only(message(1, b"".join(message(1, s) for s in strings)))
    assert found.strings() == strings
    starts, stops = found.places()
    assert [found.data[a:b] for a, b in zip(starts, stops, strict=True)] == strings


@pytest.mark.thorough
@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_byte_strings_at_the_bounds_of_a_varint(size: int) -> None:
    strings = [bytes(size), b"x", bytes(size)]
    assert only(message(1, b"".join(message(1, s) for s in strings))).strings() == strings


@pytest.mark.thorough
def test_integers_over_several_blocks() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(-(1 << 62), 1 << 62, 300_000) >> rng.integers(0, 62, 300_000)
    assert np.array_equal(only(feature(numbers)).integers(), numbers)


def test_integers_take_little_memory_as_bytes() -> None:
    x = only(message(3, message(1, b"\xc8\x01\x07" * 2_000_000)))
    tracemalloc.start()
    try:
        assert np.array_equal(x.integers(np.uint8), np.tile(np.array([200, 7], np.uint8), 2_000_000))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [("uint8", [0, 255], [256]), ("int8", [-128, 127], [-129]), ("bool", [0, 1], [2]), ("uint16", [65535], [-1])],
)
def test_a_dtype_that_cannot_hold_the_values(dtype: str, good: list[int], bad: list[int]) -> None:
    assert only(feature(good)).integers(dtype).tolist() == np.array(good).astype(dtype).tolist()
    with pytest.raises(CorruptArchive, match=f"x holds .* which are not {dtype}"):
        only(feature(bad)).integers(dtype)


def test_uint64_beyond_int64() -> None:
    assert only(feature([(1 << 64) - 1, 5])).integers(np.uint64).tolist() == [(1 << 64) - 1, 5]


def test_lists_in_pieces_are_joined() -> None:
    pieces = message(1, b"\x01\x02") + b"\x08\x03" + message(1, varint(300))
    assert only(message(3, pieces)).integers().tolist() == [1, 2, 3, 300]
    floats = message(1, struct.pack("<2f", 1, 2)) + b"\x0d" + struct.pack("<f", 3) + message(1, struct.pack("<f", 4))
    assert only(message(2, floats)).floats().tolist() == [1, 2, 3, 4]
    assert only(message(3, message(1, b"\x01")) + message(3, message(1, b"\x02"))).integers().tolist() == [1, 2]


def test_of_what_comes_twice_the_last_counts() -> None:
    twice = message(1, message(1, message(1, b"x") + message(2, feature([1.0]))))
    again = message(1, message(1, message(1, b"x") + message(2, feature([7]))))
    assert parse(twice + again)["x"].integers().tolist() == [7]
    assert only(feature([1.0]) + feature([2])).integers().tolist() == [2]


def test_fields_that_are_not_known_are_skipped() -> None:
    unknown = varint(9 << 3) + varint(300) + varint(10 << 3 | 1) + bytes(8) + varint(11 << 3 | 5) + bytes(4)
    extra = unknown + message(12, b"more")
    record = extra + message(1, extra + message(1, message(1, b"x") + message(2, extra + feature([5])) + extra))
    assert parse(record)["x"].integers().tolist() == [5]
    assert only(message(1, extra + message(1, b"text") + extra)).strings() == [b"text"]


def test_a_feature_of_no_kind() -> None:
    empty = only(b"")
    assert empty.kind == "empty"
    assert len(empty.floats()) == len(empty.integers()) == len(empty.strings()) == 0


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"\x0a\x05ab", "claims 5 bytes, 2 are left"),
        (b"\x0a" + b"\xff" * 11, "a number that does not end"),
        (b"\x0f", "wire type 7"),
        (b"\x02\x00", "field number 0"),
        (b"\x0d\x00", "runs over its end"),
        (message(1, message(1, message(1, b"\xff\xfe"))), "codec can't decode"),
    ],
)
def test_what_is_no_example(record: bytes, why: str) -> None:
    with pytest.raises(CorruptArchive, match=f"shard 3 is not a tf.Example: .*{why}"):
        parse(record, where="shard 3")


@pytest.mark.parametrize(
    "data",
    [
        message(2, message(1, b"12345")),
        message(2, b"\x0d\x00\x00"),
        message(3, message(1, b"\x01\x80")),
        message(3, message(1, b"\x80" * 11 + b"\x01")),
        message(3, b"\x08\xff"),
        message(1, b"\x0a\x7fshort"),
        message(1, b"\x0a\xff\xff\xff\xff\x0f"),
    ],
)
def test_lists_that_are_damaged(data: bytes) -> None:
    x = only(data)
    with pytest.raises(CorruptArchive, match="x is no"):
        {"float": x.floats, "int64": x.integers, "bytes": x.strings}[x.kind]()


def test_lists_in_absurdly_many_pieces_are_refused() -> None:
    with pytest.raises(CorruptArchive, match="more than 65,536 pieces"):
        only(feature([1]) * (MAX_PIECES + 1))
    with pytest.raises(CorruptArchive, match="more than 65,536 pieces"):
        only(message(3, message(1, b"\x01") * (MAX_PIECES + 2))).integers()
