"""Blocks of remote datasets: fetched once, checked, shared by threads and processes, evicted, after kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from block_store import FILES, Store, blocks, check, content, opened, read, single
from conftest import wait_for

from rlds_cli.errors import DamagedDataset, DownloadFailed, NoSpace
from rlds_cli.places.remote.cache import BlockFiles
from rlds_cli.places.remote.presence import BLOCK, GROUP, Room

REPOSITORY = Path(__file__).parents[2]


def here(files: BlockFiles, file: int) -> list[int]:
    """The groups of a file of which blocks are here."""
    return np.unique(files.state(file).nonzero()[0] * BLOCK // GROUP).tolist()


@pytest.mark.thorough
@pytest.mark.parametrize("memory", [False, True])
def test_what_is_held_is_here_and_is_fetched_once(tmp_path: Path, memory: bool) -> None:
    store = Store()
    files = opened(None if memory else tmp_path / "remote", store)
    assert not files.state(0).any()
    with files.hold([(0, blocks(2, 3, 10)), (1, blocks(0, file=1))]):
        assert here(files, 0) == [2, 3, 10]
        for file, block in ((0, 2), (0, 3), (0, 10), (1, 0)):
            at = block * GROUP
            assert files.mapped(file)[at : at + GROUP].tobytes() == content(file, at, min(GROUP, FILES[file].size - at))
    assert read(files, 0, 10) and read(files, 1, 0)
    assert sorted(store.asked) == [(0, 2 * GROUP, GROUP), (0, 3 * GROUP, GROUP), (0, 10 * GROUP, 77), (1, 0, GROUP)]
    assert files.stats.requests == 4 and files.stats.fetched == 3 * GROUP + 77
    assert files.number(Path("b/c/0")) == 1
    if not memory:
        again = Store()
        assert read(opened(tmp_path / "remote", again), 0, 3) and again.asked == []


def test_an_announced_block_arrives_without_waiting(tmp_path: Path) -> None:
    store, go = Store(), threading.Event()
    store.before = lambda file, start: go.wait(60) and None
    files = opened(tmp_path / "remote", store)
    hold = files.announce([(0, blocks(0, 1))])
    assert not hold.is_here
    go.set()
    hold.wait()
    assert hold.is_here and files.stats.waited > 0
    hold.release()


@pytest.mark.thorough
def test_many_adjacent_blocks_are_asked_for_together(tmp_path: Path) -> None:
    store = Store()
    files = opened(tmp_path / "remote", store, at_once=2)
    with files.hold([(0, blocks(*range(11)))]):
        assert check(0, 0, memoryview(files.mapped(0).tobytes()))
    assert len(store.asked) <= 4


@pytest.mark.thorough
def test_threads_share_a_fetch(tmp_path: Path) -> None:
    store = Store()
    store.before = lambda file, start: time.sleep(0.02)
    files = opened(tmp_path / "remote", store)
    right: list[bool] = []
    threads = [threading.Thread(target=lambda: right.append(read(files, 0, 4))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 16 and len(store.asked) == 1


def test_a_failure_names_the_block_and_is_tried_again(tmp_path: Path) -> None:
    store = Store()

    def refuse(file: int, start: int) -> None:
        raise DownloadFailed("s3://x/objects/1 could not be read: HTTP 503.", hint="later")

    store.before = refuse
    files = opened(tmp_path / "remote", store)
    with pytest.raises(DownloadFailed, match=r"Block 16 of b/c/0 \(bytes 1,048,576-1,114,111\) of mem://x .*HTTP 503"):
        files.hold([(1, blocks(1, file=1))])
    store.before = lambda file, start: None
    assert read(files, 1, 1)


def test_a_short_body_is_no_block(tmp_path: Path) -> None:
    files = BlockFiles(Room(tmp_path / "remote", None), "x", FILES, lambda f, s, n, take: take(bytes(n - 1)))
    with pytest.raises(DownloadFailed, match="Block 15 of a/c/0/0"):
        files.hold([(0, blocks(0))])
    assert files.state(0).nonzero()[0].tolist() == list(range(15))


def test_the_time_out_ends_all_waiting(tmp_path: Path) -> None:
    store, go = Store(), threading.Event()
    store.before = lambda file, start: go.wait(60) and None  # without a time-out the blocks would come then
    files = opened(tmp_path / "remote", store, timeout=0.2)
    with pytest.raises(DownloadFailed, match=r"Block 48 .* within 0.2 s"):
        files.hold([(0, blocks(3))])
    go.set()


@pytest.mark.thorough
@pytest.mark.parametrize("memory", [False, True])
def test_the_least_recently_used_blocks_leave(tmp_path: Path, memory: bool) -> None:
    store = Store()
    files = opened(None if memory else tmp_path / "remote", store, limit=4 * GROUP)
    for block in (0, 1, 2, 3):
        assert read(files, 0, block)
    assert read(files, 0, 0)  # used again
    assert read(files, 0, 4) and read(files, 0, 5)
    assert here(files, 0) == [0, 3, 4, 5]
    assert files.stats.evicted * BLOCK // GROUP == 2
    if not memory:
        taken = (tmp_path / "remote/one/rows/0").stat().st_blocks * 512
        assert taken <= 4 * GROUP + 65536
    assert read(files, 0, 1) and len(store.asked) == 7


def test_what_is_held_never_leaves(tmp_path: Path) -> None:
    files = opened(tmp_path / "remote", Store(), limit=2 * GROUP)
    held = files.hold([(0, blocks(0, 1, 2))])
    assert read(files, 0, 5) and read(files, 1, 0)
    for block in (0, 1, 2):
        assert check(0, block * GROUP, memoryview(files.mapped(0)[block * GROUP : (block + 1) * GROUP].tobytes()))
    held.release()
    assert files.here * BLOCK <= 2 * GROUP  # the limit holds again


def test_a_hold_that_is_dropped_pins_nothing(tmp_path: Path) -> None:
    files = opened(tmp_path / "remote", Store(), limit=GROUP)
    files.hold([(0, blocks(0))])
    assert read(files, 0, 1) and read(files, 0, 2)
    assert here(files, 0) == [2]


def test_an_idle_process_gives_back_what_it_dropped(tmp_path: Path) -> None:
    files = opened(tmp_path / "remote", Store(), limit=GROUP)
    held = [files.hold([(0, blocks(0, 1, 2))])]
    assert files.here * BLOCK == 3 * GROUP
    held.clear()  # nothing is read afterwards
    for _ in range(600):
        if files.here * BLOCK <= GROUP:
            return
        time.sleep(0.1)
    pytest.fail("blocks over the limit stay")


def test_blocks_of_other_datasets_leave_and_held_ones_stay(tmp_path: Path) -> None:
    one, two = (opened(tmp_path / "remote", Store(), limit=3 * GROUP, name=name) for name in ("one", "two"))
    with one.hold([(0, blocks(0))]):
        assert read(one, 0, 1) and read(one, 0, 2)
        assert read(two, 0, 0) and read(two, 0, 1)
        assert here(one, 0) == [0]
    assert two.here * BLOCK > GROUP


def test_a_full_disk_lets_blocks_leave_and_then_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = opened(tmp_path / "remote", Store())
    held = files.hold([(0, blocks(0))])
    assert read(files, 0, 1)
    write, free = os.pwrite, [0]

    def full(descriptor: int, data: bytes, at: int) -> int:
        if files.state(0)[GROUP // BLOCK] or free[0] < 0:  # block 1 is still here
            raise OSError(28, "No space left on device")
        return write(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    assert read(files, 0, 2)  # block 1 left for it
    assert here(files, 0) == [0, 2]
    free[0] = -1
    with files.hold([(0, blocks(2))]), pytest.raises(NoSpace, match="Block 48 of a/c/0/0"):
        files.hold([(0, blocks(3))])
    monkeypatch.undo()
    held.release()
    assert read(files, 0, 3)


def test_after_a_restart_of_the_machine_blocks_are_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(tmp_path / "remote", Store())
    files.hold([(0, blocks(0, 1))]).release()
    rows = files.map.ground.root / "rows/0"  # type: ignore[attr-defined]
    ended = weakref.ref(files)
    del files
    while ended() is not None:  # a thread that fetched may have it for a moment
        time.sleep(0.01)
    with rows.open("r+b") as file:  # the disk kept the map, and lost some bytes
        file.seek(GROUP + 5)
        file.write(b"\0\1\2")
    monkeypatch.setattr("rlds_cli.base.files.disk.boot_id", lambda: b"another")
    store = Store()
    again = opened(tmp_path / "remote", store)
    assert not again.state(0).any()
    assert read(again, 0, 0) and read(again, 0, 1)
    assert store.asked == [(0, GROUP, BLOCK)]  # the one that is wrong


# -- single blocks


def test_of_scattered_reads_single_blocks_come_until_half_of_a_group_is_wanted(tmp_path: Path) -> None:
    store = Store()
    files = opened(tmp_path / "remote", store, whole=[1])
    assert single(files, 20) and single(files, 22)
    assert store.asked == [(0, 20 * BLOCK, BLOCK), (0, 22 * BLOCK, BLOCK)]
    files.hold([(0, np.array([40, 41, 42, 70]))], scattered=[0]).release()  # adjacent ones together
    assert sorted(store.asked[2:]) == [(0, 40 * BLOCK, 3 * BLOCK), (0, 70 * BLOCK, BLOCK)]
    files.hold([(0, np.array([17, 18, 19, 24, 25, 26]))], scattered=[0]).release()  # with those here, half
    assert wait_for(lambda: bool(files.state(0)[16:32].all()))  # nobody waits for what comes along
    assert not files.state(0)[:16].any() and not files.state(0)[32:40].any()
    files.hold([(1, np.array([1]))], scattered=[1]).release()  # a source of whole groups
    assert wait_for(lambda: bool(files.state(1)[:16].all()))
    assert here(files, 1) == [0]


def test_single_blocks_leave_and_a_held_one_stays(tmp_path: Path) -> None:
    files = opened(tmp_path / "remote", Store(), limit=3 * BLOCK)
    with files.hold([(0, np.array([5]))], scattered=[0]):
        assert all(single(files, block) for block in (20, 40, 60, 80))
        assert files.state(0)[5] and files.here == 3 and not files.state(0)[[20, 40]].any()
    assert (tmp_path / "remote/one/rows/0").stat().st_blocks * 512 <= 3 * BLOCK


def test_a_map_of_another_version_is_refused(tmp_path: Path) -> None:
    files = opened(tmp_path / "remote", Store())
    assert single(files, 3)
    del files
    with (tmp_path / "remote/one/map").open("r+b") as file:
        file.write(b"rldsmap2")
    with pytest.raises(DamagedDataset, match="not a map of blocks that this version"):
        opened(tmp_path / "remote", Store())
    assert single(opened(tmp_path / "remote", Store(), limit=BLOCK, name="two"), 3)  # leaves the other alone


# -- processes

COMMON = textwrap.dedent(
    """
    import os, sys, time
    sys.path[:0] = {tests!r}
    from pathlib import Path
    import numpy as np
    from block_store import *

    root = Path({root!r})
    class Logged(Store):
        def __call__(self, file, start, length, take):
            with open(root.parent / "asked", "ab", 0) as log:
                log.write(f"{{file}} {{start // BLOCK}}\\n".encode())
            time.sleep({pause})
            super().__call__(file, start, length, take)
    """
)


def start(tmp_path: Path, script: str, *, pause: float = 0.0, at: int = 0) -> subprocess.Popen[str]:
    common = COMMON.format(tests=[p for p in sys.path if p], root=str(tmp_path / "remote"), pause=pause)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "AT": str(at)}
    return subprocess.Popen(
        [sys.executable, "-c", common + textwrap.dedent(script)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def test_a_process_that_ends_lets_requests_end(tmp_path: Path) -> None:
    """Threads of obstore that come back to an interpreter that is gone abort the process."""
    script = """
    files = opened(root, Logged())
    announced = files.announce([(0, blocks(0, 1, 2, 3))])
    while not (root.parent / "asked").exists():
        time.sleep(0.01)
    """
    assert ended(start(tmp_path, script, pause=0.3)) == ""
    files = opened(tmp_path / "remote", Store())
    asked = {int(line.split()[1]) for line in (tmp_path / "asked").read_text().splitlines()}
    assert asked and asked <= set(files.state(0).nonzero()[0].tolist())


def test_forked_processes_fetch_a_block_once(tmp_path: Path) -> None:
    """16 processes, some forked after the first holds, read the same blocks."""
    script = """
    files = opened(root, Logged())
    held = files.hold([(0, blocks(0))])
    children = []
    for k in range(16):
        child = os.fork()
        if not child:
            good = all(single(files, b) for b in (33, 35, 150)) and all(read(files, 0, b) for b in (1, 3, 4, 5))
            good = good and all(read(files, 1, b) for b in range(3))
            os._exit(0 if good else 1)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    assert check(0, 0, memoryview(files.mapped(0)[:GROUP].tobytes()))
    """
    ended(start(tmp_path, script, pause=0.005))
    asked = (tmp_path / "asked").read_text().split("\n")[:-1]
    assert sorted(asked) == sorted(set(asked)) and len(asked) == 11


def test_the_forked_children_of_a_dataset_in_memory_share_it(tmp_path: Path) -> None:
    script = """
    files = opened(None, Logged(), limit=3 * GROUP)
    with files.hold([(0, blocks(0))]):
        child = os.fork()
        if not child:
            os._exit(0 if all(read(files, 0, b) for b in range(11)) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert files.state(0)[0] and check(0, 0, memoryview(files.mapped(0)[:GROUP].tobytes()))
    assert all(read(files, 0, b) for b in range(11))
    """
    ended(start(tmp_path, script))


def test_a_process_that_is_killed_while_it_writes_leaves_no_wrong_block(tmp_path: Path) -> None:
    script = """
    class Slow(Store):
        def __call__(self, file, start, length, take):
            take(content(file, start, BLOCK + 1000))  # the first block is whole
            print("begun", flush=True)
            time.sleep(60)
    files = opened(root, Slow())
    files.hold([(0, blocks(6))])
    """
    process = start(tmp_path, script)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    store = Store()
    files = opened(tmp_path / "remote", store, timeout=60.0)
    right: list[bool] = []
    waiting = threading.Thread(target=lambda: right.append(read(files, 0, 6)))
    waiting.start()  # for the process that is killed
    time.sleep(0.05)
    assert store.asked == []
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    waiting.join()
    assert right == [True] and store.asked == [(0, 6 * GROUP + BLOCK, GROUP - BLOCK)]


def test_the_pins_of_a_killed_process_end_with_it(tmp_path: Path) -> None:
    script = """
    files = opened(root, Store())
    held = files.hold([(0, blocks(0, 1))])
    print("held", flush=True)
    time.sleep(60)
    """
    process = start(tmp_path, script)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    files = opened(tmp_path / "remote", Store(), limit=GROUP)
    assert read(files, 0, 5) and files.state(0)[:2].all()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert read(files, 0, 6) and not files.state(0)[:2].any()


@pytest.mark.slow
def test_processes_that_evict_each_other_read_right_bytes(tmp_path: Path) -> None:
    """Four processes in the room of three blocks; each checks all that it reads."""
    script = """
    files = opened(root, Logged(), limit=3 * GROUP)
    draw = np.random.default_rng(int(os.environ["AT"]))
    for _ in range(40):
        chosen = np.unique(draw.integers(0, 11, 2))
        with files.hold([(0, blocks(*chosen))]):
            data = files.mapped(0)
            for b in chosen.tolist():
                part = data[b * GROUP : (b + 1) * GROUP]
                assert part.tobytes() == content(0, b * GROUP, len(part)), b
    print("done")
    """
    processes = [start(tmp_path, script, at=k) for k in range(4)]
    assert [ended(process) for process in processes] == ["done\n"] * 4
    files = opened(tmp_path / "remote", Store(), limit=3 * GROUP)
    files.room.shrink()
    assert files.here * BLOCK <= 3 * GROUP
