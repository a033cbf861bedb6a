from __future__ import annotations

import hashlib
import struct

import numpy as np

from rlds_cli.store import statistics

EMPTY = hashlib.sha256(b"").digest()


def test_an_array_block_is_the_hash_of_its_bytes() -> None:
    assert (
        statistics.array_block(np.array([[1, 2], [3, 4]], "<i2"))
        == hashlib.sha256(bytes([1, 0, 2, 0, 3, 0, 4, 0])).digest()
    )
    assert statistics.array_block(np.zeros((0, 3))) == EMPTY
    assert statistics.array_block(np.arange(6).reshape(2, 3)[:, ::-1]) == statistics.array_block(
        np.array([[2, 1, 0], [5, 4, 3]])
    )


def test_a_text_block_is_lengths_then_bytes() -> None:
    expected = hashlib.sha256(struct.pack("<4q", 2, -1, 0, 3) + b"ab" + "é!".encode()).digest()
    assert statistics.text_block(["ab", None, "", "é!"]) == expected
    assert statistics.text_block([""]) != statistics.text_block([None])
    assert statistics.text_block(["a", "b"]) != statistics.text_block(["ab", ""])


def test_a_ragged_block() -> None:
    expected = hashlib.sha256(struct.pack("<2q", 1, 2) + b"xyz").digest()
    assert statistics.ragged_block(np.array([1, 2], np.int32), np.frombuffer(b"xyz", np.uint8)) == expected


def test_the_digest_of_a_field_names_it() -> None:
    hashes = statistics.as_array([b"\1" * 32, b"\2" * 32])
    line = b'["next/reward","float32",[2,3],"next","array"]\n'
    expected = hashlib.sha256(line + b"\1" * 32 + b"\2" * 32).hexdigest()
    assert statistics.field_digest("next/reward", "float32", (2, 3), "next", "array", hashes) == expected
    others = [
        ("next/rewarD", "float32", (2, 3), "next", "array"),
        ("next/reward", "float64", (2, 3), "next", "array"),
        ("next/reward", "float32", (3, 2), "next", "array"),
        ("next/reward", "float32", (2, 3), "root", "array"),
        ("next/reward", "float32", (2, 3), "next", "text"),
    ]
    assert len({expected, *(statistics.field_digest(*other, hashes) for other in others)}) == 6


def test_names_beyond_ascii_are_escaped() -> None:
    line = b'["caf\\u00e9","uint8",[],"root","array"]\n'
    assert (
        statistics.field_digest("café", "uint8", (), "root", "array", statistics.as_array([]))
        == hashlib.sha256(line).hexdigest()
    )


def test_columns_are_hashed_in_blocks_of_65536() -> None:
    values = np.arange(65_537, dtype=np.int64)
    blocks = hashlib.sha256(values[:65_536].tobytes()).digest() + hashlib.sha256(values[65_536:].tobytes()).digest()
    line = b'["start","int64",[],"episode","array"]\n'
    assert statistics.column_digest("start", values) == hashlib.sha256(line + blocks).hexdigest()
    assert list(statistics.blocks(65_536)) == [0]
    assert list(statistics.blocks(65_537)) == [0, 65_536]
    assert list(statistics.blocks(0)) == []


def test_text_columns() -> None:
    line = b'["options","str",[],"episode","text"]\n'
    block = hashlib.sha256(struct.pack("<2q", -1, 2) + b"{}").digest()
    assert statistics.column_digest("options", [None, "{}"]) == hashlib.sha256(line + block).hexdigest()


def test_the_fingerprint_goes_over_fields_then_columns_by_name() -> None:
    a, b, c = ("aa" * 32, "bb" * 32, "cc" * 32)
    expected = hashlib.sha256(bytes.fromhex(a) + bytes.fromhex(b) + bytes.fromhex(c)).hexdigest()
    assert statistics.fingerprint({"y": b, "x": a}, {"start": c}) == f"rlds1:{expected}"
    assert statistics.fingerprint({"x": a}, {"y": b}) != statistics.fingerprint({"x": a, "y": b, "z": c}, {})
