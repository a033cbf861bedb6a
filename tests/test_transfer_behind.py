"""Hashing and syncing beside the work of receiving."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import google_crc32c
import pytest

from rlds_cli.downloads.fetch.parts import StreamHasher
from rlds_cli.files import hashing


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
