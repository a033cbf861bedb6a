from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_cli.base.array_types import Array
from rlds_cli.loader.storage.page_cache import BLIND, CALM, WATCHED, PlannedRead, RandomMap, ReadAhead

PAGE = mmap.PAGESIZE
ROWS, ROW_BYTES = 4000, 1000
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux evicts a file on request")


def cached(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test of what the page cache holds, which a busy machine drops and other processes fill."""
    return pytest.mark.slow(linux(test))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows"
    path.write_bytes(np.random.default_rng(0).bytes(ROWS * ROW_BYTES))
    return path


def evict(file: Path) -> None:
    """Out of the page cache, of which the test's own maps must not hold pages."""
    fd = os.open(file, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def cold(file: Path) -> RandomMap:
    evict(file)
    mapped = RandomMap(file, ROW_BYTES, ROWS)
    if mapped.resident(0):
        pytest.skip("this file system keeps its files in memory")
    evict(file)
    return mapped


def rows_of(file: Path) -> Array:
    return np.fromfile(file, np.uint8).reshape(ROWS, ROW_BYTES)


# -- stretches of pages


@given(st.lists(st.integers(0, 40 * PAGE), max_size=30), st.integers(0, 4 * PAGE))
def test_stretches_are_the_pages_of_all_rows(start: list[int], size: int) -> None:
    expected = {p for s in start for p in range(s // PAGE, -(-(s + size) // PAGE))} if size else set()
    of_bytes = cast("RandomMap", SimpleNamespace(row_bytes=1))
    first, length = PlannedRead(of_bytes, np.array(start, np.int64), size).stretches()
    found = [p for a, n in zip(first, length, strict=True) for p in range(a // PAGE, (a + n) // PAGE)]
    assert not np.any(first % PAGE)
    assert not np.any(length % PAGE)
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert found == sorted(found)
    assert np.all(first[1:] > (first + length)[:-1])


def test_stretches_of_rows(file: Path) -> None:
    coming = PlannedRead(RandomMap(file, ROW_BYTES, ROWS), np.array([3000, 0, 1, 1]), 2)
    start, length = coming.stretches()
    page = 3_000_000 // PAGE * PAGE
    assert start.tolist() == [0, page]
    assert length.tolist() == [PAGE * -(-3000 // PAGE), -(-3_002_000 // PAGE) * PAGE - page]


# -- maps


@pytest.mark.thorough
def test_the_content_is_that_of_the_file(file: Path) -> None:
    mapped = RandomMap(file, ROW_BYTES, ROWS - 1)
    np.testing.assert_array_equal(mapped.content.reshape(-1, ROW_BYTES), rows_of(file)[:-1])
    with pytest.raises(ValueError, match="read-only"):
        mapped.content[0] = 1


def test_files_that_are_not_there_or_too_short(file: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RandomMap(tmp_path / "none", ROW_BYTES, ROWS)
    with pytest.raises(ValueError, match="mmap length"):
        RandomMap(file, ROW_BYTES, ROWS + 1)


@linux
def test_files_are_closed(file: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    content = [RandomMap(file, ROW_BYTES, ROWS).content for _ in range(5)]
    assert all(c[0] == content[0][0] for c in content)
    content.clear()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@cached
@pytest.mark.parametrize("way", ["preadv", "mincore"])
def test_what_is_in_memory(file: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "mincore":
        monkeypatch.delattr(os, "RWF_NOWAIT")
    mapped = cold(file)
    at = 3000 * ROW_BYTES
    assert mapped.resident(at) is False
    assert mapped.content[at] == rows_of(file)[3000, 0]
    assert mapped.resident(at) is True


@linux
def test_nobody_can_tell(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network file system, of a file that belongs to somebody else."""
    monkeypatch.delattr(os, "RWF_NOWAIT")
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    assert RandomMap(file, ROW_BYTES, ROWS).resident(0) is None


@cached
def test_advice_brings_pages_in(file: Path) -> None:
    mapped = cold(file)
    mapped.will_need(2_000_000 // PAGE * PAGE, PAGE)
    assert _comes(mapped, 2_000_000)


def _comes(mapped: RandomMap, at: int) -> bool:
    end = time.monotonic() + 60
    while not mapped.resident(at) and time.monotonic() < end:
        time.sleep(0.01)
    return bool(mapped.resident(at))


# -- when advice is given


def gather(mapped: RandomMap, first: Array) -> Array:
    return mapped.content.reshape(ROWS, ROW_BYTES)[first]


@cached
def test_until_all_is_in_memory_and_again_from_a_gather_that_waits(file: Path) -> None:
    expected, watch = rows_of(file), ReadAhead()
    mapped = cold(file)
    first = np.arange(0, ROWS, 40)
    assert watch.advise([PlannedRead(mapped, first)])  # of what is read first, too
    watch.advising = False
    mapped = cold(file)
    assert watch.advise([PlannedRead(mapped, first)]) == ()
    with watch.gather():
        np.testing.assert_array_equal(gather(mapped, first), expected[first])
    assert watch.advising

    after, mapped = first + 20, cold(file)
    told = watch.advise([PlannedRead(mapped, after)])
    assert told
    with watch.gather(told):
        np.testing.assert_array_equal(gather(mapped, after), expected[after])
    assert _comes(mapped, int(after[-1]) * ROW_BYTES)

    assert watch.advising
    for _ in range(CALM - 1):
        assert watch.advise([PlannedRead(mapped, after)]) == ()
        assert watch.advising
    watch.advise([PlannedRead(mapped, after)])
    assert not watch.advising


@cached
def test_small_gathers_that_wait_are_noticed_after_a_few(file: Path) -> None:
    rows_of(file)
    watch, rows = ReadAhead(), np.arange(0, ROWS, 40)
    watch.advising = False
    with watch.gather(batches=1):
        gather(RandomMap(file, ROW_BYTES, ROWS), rows)
    assert not watch.advising
    for _ in range(WATCHED):
        mapped = cold(file)
        with watch.gather(batches=1):
            gather(mapped, rows)
    assert watch.advising


@cached
def test_gathers_in_memory_need_no_advice(file: Path) -> None:
    rows_of(file)
    watch, mapped = ReadAhead(), RandomMap(file, ROW_BYTES, ROWS)
    for _ in range(CALM):
        told = watch.advise([PlannedRead(mapped, np.arange(ROWS))])
        assert told == ()
        with watch.gather(told):
            gather(mapped, np.arange(ROWS))
    assert not watch.advising


@cached
def test_advice_that_nobody_can_judge_ends_and_begins_anew(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = cold(file)
    monkeypatch.delattr(os, "RWF_NOWAIT")
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    watch, first = ReadAhead(), np.array([0, 1000, 2000])
    with watch.gather():
        gather(mapped, first)
    for _ in range(BLIND - 1):
        assert watch.advise([PlannedRead(mapped, first)])
    assert watch.advising
    assert watch.advise([PlannedRead(mapped, first)])
    assert not watch.advising
    evict(file)
    other = RandomMap(file, ROW_BYTES, ROWS)
    with watch.gather():
        gather(other, np.array([500]))
    assert watch.advising


FORK = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast
import numpy as np
from rlds_cli.loader.storage.page_cache import PlannedRead, RandomMap, ReadAhead

mapped, watch = RandomMap(Path(sys.argv[1]), 1000, 4000), ReadAhead()
def turn():
    fd = os.open(sys.argv[1], os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    watch.advising = True
    return watch.advise([PlannedRead(mapped, np.arange(0, 4000, 100))])
told = turn()
with watch.gather(told):
    pass
if not (child := os.fork()):
    signal.alarm(60)
    for ours in (told, turn()):
        with watch.gather(ours):
            pass
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@linux
def test_advice_goes_on_in_a_process_that_was_forked(file: Path) -> None:
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK, str(file)], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
