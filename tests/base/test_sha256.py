"""The sha256 of many pieces of a buffer equals hashlib's: by instructions for it, in plain C, without a compiler."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_cli.base.files import sha256

DATA = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8).tobytes()
WAYS = {"AVX-512": 2, "instructions": 1, "plain C": 0}
FAST = [
    pytest.param(way, marks=pytest.mark.skipif(sha256._load()[1] < level, reason="the processor has none"))
    for way, level in WAYS.items()
]


@pytest.fixture(params=[*FAST, "hashlib"], scope="module")
def way(request: pytest.FixtureRequest) -> str:
    with pytest.MonkeyPatch.context() as patch:
        library, _ = sha256._load()
        if request.param == "hashlib":
            patch.setattr(sha256, "_load", lambda: (None, 0))
        else:
            assert library is not None
            patch.setattr(sha256, "_load", lambda: (library, WAYS[request.param]))
        yield request.param


def expected(pieces: list[tuple[int, int]]) -> list[bytes]:
    return [hashlib.sha256(DATA[a : a + n]).digest() for a, n in pieces]


def check(pieces: list[tuple[int, int]]) -> None:
    start, size = np.array(pieces, np.int64).reshape(-1, 2).T
    found = sha256.of_pieces(DATA, start, size)
    assert found.shape == (len(pieces), 32) and [d.tobytes() for d in found] == expected(pieces)


@pytest.mark.thorough
@pytest.mark.usefixtures("way")
def test_every_length_of_up_to_five_blocks() -> None:
    check([(7 * n, n) for n in range(321)])


@pytest.mark.thorough
@pytest.mark.usefixtures("way")
def test_long_pieces_and_no_pieces() -> None:
    check([])
    check([(0, 1 << 20), (1, 99_999), (1 << 20, 0)])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", [0, 63, 64, 200, 4096, 20_000])
def test_many_pieces_of_about_equal_size(size: int) -> None:
    check([(11 * k, size + k % 3 * (size // 4)) for k in range(50)])


@pytest.mark.thorough
@pytest.mark.usefixtures("way")
@given(st.lists(st.tuples(st.integers(0, 1 << 19), st.integers(0, 3000)), max_size=30))
def test_pieces_anywhere(pieces: list[tuple[int, int]]) -> None:
    check(pieces)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("piece", [(-1, 2), (0, -1), ((1 << 20) - 1, 2), (2**62, 2**62), (1, 2**63 - 1)])
def test_a_piece_outside_of_the_buffer_is_refused(piece: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="outside of 1,048,576 bytes"):
        sha256.of_pieces(DATA, [0, piece[0]], [5, piece[1]])


@pytest.mark.usefixtures("way")
def test_an_empty_buffer_has_empty_pieces() -> None:
    assert sha256.of_pieces(b"", [0], [0]).tobytes() == hashlib.sha256().digest()
    assert sha256.of_pieces(memoryview(b""), np.zeros(2, int), np.zeros(2, int)).shape == (2, 32)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("parts", [[0], [1, 3], [2, 0, 1]])
@pytest.mark.parametrize("rest", [0, 1, 55, 56, 63, 64, 65, 1000, 1024])
def test_all_that_comes_is_hashed_together_with_its_blocks(parts: list[int], rest: int) -> None:
    made, at = sha256.Blocks(1024), 0
    for count in parts:
        data = memoryview(DATA)[at : at + 1024 * count]
        assert made.add(data) == b"".join(expected([(1024 * k, 1024) for k in range(at // 1024, at // 1024 + count)]))
        at += len(data)
    assert made.end(DATA[at : at + rest]) == hashlib.sha256(DATA[: at + rest]).digest()


@pytest.mark.usefixtures("way")
def test_half_a_block_is_not_added() -> None:
    with pytest.raises(ValueError, match="blocks have 1,024 bytes; 1,025 are not"):
        sha256.Blocks(1024).add(bytes(1025))
