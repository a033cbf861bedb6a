"""Many small files: hashed together, and sorted by paths that have much in common."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_cli.base.files import bundles
from rlds_cli.base.text import natural, natural_path


def test_files_hashed_together_have_the_sizes_and_hashes_of_each(tmp_path: Path) -> None:
    sizes = [0, 1, 5, 1000, 3 << 20, 27_000, *([700_000] * 4), 64]  # one is larger than what is hashed at once
    contents = [os.urandom(size) for size in sizes]
    files = [tmp_path / f"{k}.bin" for k in range(len(sizes))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    store = tmp_path / "store.zarr"
    store.mkdir()
    (store / ".zgroup").write_text("{}")
    files.insert(3, store)
    contents.insert(3, b"")
    found = [*bundles.contents_of(files)]
    assert found == [bundles.content_of(file) for file in files]
    del found[3], contents[3]
    assert found == [(len(content), hashlib.sha256(content).hexdigest()) for content in contents]


def test_a_file_that_is_not_there_is_an_error_among_many(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    with pytest.raises(FileNotFoundError):
        [*bundles.contents_of([tmp_path / "a", tmp_path / "b"])]


@given(st.text("ab/1209.²٣-", max_size=12))
def test_paths_sort_as_their_texts(path: str) -> None:
    assert natural_path(path) == natural(path)
