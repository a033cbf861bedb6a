"""Hashing and syncing beside the work of receiving."""

from __future__ import annotations

import hashlib
import os
import random
import time
from pathlib import Path

import google_crc32c
import pytest

from rlds_cli.base.files import hashing
from rlds_cli.base.http.connections import AHEAD
from rlds_cli.places.files.parts import StreamHasher


@pytest.mark.thorough
@pytest.mark.parametrize("sizes", [[], [1], [100, 0, 7], [1 << 20] * 9, [8 << 20, 1, 3 << 20], [1 << 16] * 300])
def test_the_hash_is_that_of_all_blocks_in_order(tmp_path: Path, sizes: list[int]) -> None:
    blocks = [random.Random(k).randbytes(size) for k, size in enumerate(sizes)]
    with (tmp_path / "x").open("wb") as file:
        behind = StreamHasher(file.fileno())
        for block in blocks:
            behind.feed(memoryview(block))
        assert behind.hexdigest() == hashlib.sha256(b"".join(blocks)).hexdigest()
        behind.feed(b"more")
        assert behind.hexdigest() == hashlib.sha256(b"".join(blocks) + b"more").hexdigest()


@pytest.mark.thorough
def test_a_buffer_may_be_used_again_after_as_many_further_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = StreamHasher._update

    def slowly(self: StreamHasher, block: memoryview) -> None:
        time.sleep(0.002)
        update(self, block)

    monkeypatch.setattr(StreamHasher, "_update", slowly)
    buffers, content = [bytearray(1 << 20) for _ in range(AHEAD + 1)], hashlib.sha256()
    with (tmp_path / "x").open("wb") as file:
        behind = StreamHasher(file.fileno())
        for k in range(40):
            block = random.Random(k).randbytes(1 << 20)
            content.update(block)
            buffers[k % len(buffers)][:] = block
            behind.feed(memoryview(buffers[k % len(buffers)]))
        assert behind.hexdigest() == content.hexdigest()


@pytest.mark.parametrize("kind", ["git_sha1", "md5", "crc32c"])
def test_a_second_hash_of_the_same_blocks(tmp_path: Path, kind: str) -> None:
    blocks = [random.Random(k).randbytes(1 << 20) for k in range(10)]
    content = b"".join(blocks)
    expected = {
        "git_sha1": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
        "md5": hashlib.md5(content).hexdigest(),
        "crc32c": google_crc32c.Checksum(content).digest().hex(),
    }
    with (tmp_path / "x").open("wb") as file:
        behind = StreamHasher(file.fileno(), hashing.digest(kind, len(content)))
        for block in blocks:
            behind.feed(memoryview(block))
        assert behind.hexdigest() == hashlib.sha256(content).hexdigest()
        assert behind.other() == expected[kind]
    (tmp_path / "x").write_bytes(content)
    assert hashing.hash_of(kind, tmp_path / "x") == expected[kind]


def test_an_error_of_a_sync_is_raised(tmp_path: Path) -> None:
    read, write = os.pipe()  # which cannot be synced
    behind = StreamHasher(write)
    try:
        with pytest.raises(OSError, match="Invalid argument"):
            for _ in range(200):
                behind.feed(bytes(1 << 20))
            behind.hexdigest()
    finally:
        behind.finish()
        os.close(read)
        os.close(write)
