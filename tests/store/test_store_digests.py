"""Digests and fingerprint against their definition, worked out by hand with hashlib."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

import rlds_cli
from rlds_cli.store import digests
from rlds_cli.store.columns import has_row_digests
from rlds_cli.ted import EpisodeTable, Field


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def table(lengths: list[int], **more: object) -> EpisodeTable:
    n = len(lengths)
    zeros = np.zeros(n, np.int64)
    return EpisodeTable(np.array(lengths), zeros.astype("u1"), np.ones(n, bool), zeros.astype("i4"), zeros, **more)  # type: ignore[arg-type]


def test_an_episode_is_the_hash_of_its_rows_that_count() -> None:
    rows = np.array([[1, 2], [3, 4], [9, 9], [5, 6]], "<i2")
    found = digests.of_episodes(rows, np.array([0, 3]), np.array([2, 1]))
    assert [d.tobytes() for d in found] == [sha(bytes([1, 0, 2, 0, 3, 0, 4, 0])), sha(bytes([5, 0, 6, 0]))]
    turned = rows[:, ::-1]
    assert np.array_equal(digests.of_episodes(turned, np.array([0]), np.array([4]))[0].tobytes(), sha(turned.tobytes()))


@pytest.mark.thorough
@pytest.mark.parametrize(("field", "count"), [("root", [2, 1]), ("next", [2, 1]), ("both", [3, 2])])
def test_final_rows_count_where_they_are_observations(field: str, count: list[int]) -> None:
    name = "next/x" if field == "next" else "x"
    t = table([2, 1])
    assert digests.counted(Field(name, "int64", (), field), t.length, t.num_observed).tolist() == count  # type: ignore[arg-type]


def test_large_rows_have_digests_of_their_own() -> None:
    assert not has_row_digests(Field("x", "uint8", (4095,)))
    assert has_row_digests(Field("x", "uint8", (4096,)))
    assert has_row_digests(Field("x", "uint8", (2, 2, 3), kind="frames", codec="png"))
    assert not has_row_digests(Field("x", "uint8", (2, 2, 3), kind="frames", codec="mp4"))
    rows = np.arange(3 * 4096, dtype=np.uint8).reshape(3, 4096)
    assert [d.tobytes() for d in digests.of_rows(rows)] == [sha(r.tobytes()) for r in rows]
    data = np.frombuffer(b"abcdef", np.uint8)
    frames = digests.of_frames(data, np.array([[0, 2], [2, 2], [2, 6]]))
    assert [d.tobytes() for d in frames] == [sha(b"ab"), sha(b""), sha(b"cdef")]


def test_texts_are_lengths_then_bytes() -> None:
    expected = sha(struct.pack("<4q", 2, -1, 0, 3) + b"ab" + "é!".encode())
    assert digests.of_texts(["ab", None, "", "é!"]) == expected
    assert digests.of_texts([""]) != digests.of_texts([None])
    assert digests.of_texts(["a", "b"]) != digests.of_texts(["ab", ""])
    codes = np.array([1, -1, 0, 0], np.int32)
    found = digests.of_text_episodes(codes, ["x", "y", None], np.array([0, 2]), np.array([2, 1]))
    assert [d.tobytes() for d in found] == [digests.of_texts(["y", None]), digests.of_texts(["x"])]


def test_a_frame_in_a_video_is_the_hash_of_the_file_and_its_number() -> None:
    files = digests.as_array([b"\1" * 32, b"\2" * 32])
    rows = digests.video_rows(np.array([[1, 7], [-1, -1]], np.int32), files)
    assert rows[0].tobytes() == b"\2" * 32 + struct.pack("<i", 7)
    assert rows[1].tobytes() == bytes(32) + struct.pack("<i", -1)


def test_the_digest_of_a_field_names_it() -> None:
    of_episodes = digests.as_array([b"\1" * 32, b"\2" * 32])
    line = b'["next/reward","float32",[2,3],"next","array",null]\n'
    f = Field("next/reward", "float32", (2, 3), "next")
    assert digests.of_field(f, of_episodes) == sha(line + b"\1" * 32 + b"\2" * 32).hex()
    others = [
        Field("next/rewarD", "float32", (2, 3), "next"),
        Field("next/reward", "float64", (2, 3), "next"),
        Field("next/reward", "float32", (3, 2), "next"),
        Field("next/reward", "float32", (2, 3), "root"),
        Field("next/reward", "float32", (2, 3), "next", "text"),
        Field("next/reward", "float32", (2, 3), "next", codec="png"),
    ]
    assert len({digests.of_field(x, of_episodes) for x in (f, *others)}) == 7
    assert digests.of_field(f, of_episodes, "next/rewarD") == digests.of_field(others[0], of_episodes)


def test_names_beyond_ascii_are_escaped() -> None:
    line = b'["caf\\u00e9","uint8",[],"root","array",null]\n'
    assert digests.of_field(Field("café", "uint8"), digests.as_array([])) == sha(line).hex()


def test_columns_are_hashed_whole() -> None:
    values = np.arange(70_000, dtype=np.int64)
    line = b'["length","int64",[],"episode","array",null]\n'
    assert digests.of_column("length", values) == sha(line + values.tobytes()).hex()
    line = b'["options","str",[],"episode","text",null]\n'
    assert digests.of_column("options", [None, "{}"]) == sha(line + sha(struct.pack("<2q", -1, 2) + b"{}")).hex()


def test_missing_values_differ_from_their_fillers() -> None:
    values = np.array([1, 0, 3])
    plain, line = digests.of_column("n", values), b'["n","int64",[],"episode","array",null]\n'
    assert digests.of_column("n", values, np.zeros(3, bool)) == plain
    missing = np.array([False, True, False])
    assert digests.of_column("n", values, missing) == sha(line + values.tobytes() + missing.tobytes()).hex() != plain


def test_the_fingerprint_goes_over_fields_then_columns_by_name() -> None:
    a, b, c = ("aa" * 32, "bb" * 32, "cc" * 32)
    expected = sha(bytes.fromhex(a) + bytes.fromhex(b) + bytes.fromhex(c)).hex()
    assert digests.ContentDigests({"y": b, "x": a}, {"length": c}).fingerprint == f"rlds1:{expected}"
    assert (
        digests.ContentDigests({"x": a}, {"y": b}).fingerprint
        != digests.ContentDigests({"x": a, "y": b, "z": c}, {}).fingerprint
    )


# -- of datasets


def episodes(lengths: list[int]) -> list[dict[str, object]]:
    rng = np.random.default_rng(3)
    return [
        {
            "observation": rng.normal(size=(t + 1, 3)),
            "action": rng.integers(0, 4, t),
            "pixels": rng.integers(0, 255, (t, 40, 40, 3), np.uint8),
            "word": ["a", None, "b"][:t] + ["a"] * (t - 3),
            "next": {"reward": rng.normal(size=t), "terminated": t % 2 == 0},
            "episode": {"task": f"task {t}", "quality": t if t > 2 else None},
        }
        for t in lengths
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_the_fingerprint_of_a_selection_is_that_of_a_copy(tmp_path: Path, storage: str) -> None:
    whole = episodes([5, 2, 9, 1, 4])
    ds = rlds_cli.create("local/whole", whole, storage=storage, home=tmp_path)  # type: ignore[arg-type]
    part = rlds_cli.create("local/part", [whole[k] for k in (4, 0, 2)], home=tmp_path)
    assert ds.select(episodes=[4, 0, 2]).fingerprint == part.fingerprint != ds.fingerprint
    assert ds.select(episodes=np.arange(5)).fingerprint == ds.fingerprint


@pytest.mark.thorough
def test_the_fingerprint_covers_the_columns_of_the_user(tmp_path: Path) -> None:
    a = rlds_cli.create("local/a", episodes([5, 2]), home=tmp_path)
    other = episodes([5, 2])
    other[1]["episode"] = {"task": "task 3", "quality": None}
    assert rlds_cli.create("local/b", other, home=tmp_path).fingerprint != a.fingerprint


@pytest.mark.thorough
def test_ids_follow_from_content_and_are_unique(tmp_path: Path) -> None:
    whole = episodes([5, 2, 9])
    a = rlds_cli.create("local/a", [*whole, whole[0], whole[0]], home=tmp_path).store.episodes["id"]
    b = rlds_cli.create("local/b", [whole[2], whole[0]], home=tmp_path).store.episodes["id"]
    assert a.shape == (5, 16)
    assert len({i.tobytes() for i in a}) == 5
    assert np.array_equal(b, a[[2, 0]])
