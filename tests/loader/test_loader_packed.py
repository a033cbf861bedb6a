from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rlds_cli
from rlds_cli.base.array_types import Array
from rlds_cli.dataset import Dataset
from rlds_cli.keep.reencoding import reencode
from rlds_cli.keep.repair import repair
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Loader, ReturnToGo, Transition
from rlds_cli.loader.storage import blocks, packed
from rlds_cli.loader.storage.packed import PackedContent, open_or_build

CONTENT = np.arange(100_000, dtype=np.uint32)

# Run in processes of their own: builds what `CONTENT` is, noting every start in a file, and says what it got.
BUILDER = """
import os, sys, time
import numpy as np
import rlds_cli
from rlds_cli.loader.storage.packed import open_or_build

log, seconds = sys.argv[1], float(sys.argv[2])
def parts():
    with open(log, "a") as f:
        f.write("built\\n")
    for part in np.split(np.arange(100_000, dtype=np.uint32), 10):
        yield part
        time.sleep(seconds / 10)

held = open_or_build(rlds_cli.open_dataset("local/x"), {"what": "numbers"}, 400_000, parts, kind="rows", budget=0)
print(held.where, int(held.array.view(np.uint32).sum()))
"""


@pytest.fixture
def dataset() -> Dataset:
    return rlds_cli.create("local/x", [{"observation": np.zeros((4, 2)), "action": np.zeros((3, 1))}])


def build(
    dataset: Dataset, content: Array = CONTENT, *, what: str = "numbers", budget: int = 0
) -> tuple[PackedContent, int]:
    """What is held, and how often it was built for that."""
    times = 0

    def parts() -> Iterator[Array]:
        nonlocal times
        times += 1
        yield from np.array_split(content, 7)

    return open_or_build(dataset, {"what": what}, content.nbytes, parts, kind="rows", budget=budget), times


def start(log: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(log), str(seconds)], stdout=subprocess.PIPE, text=True
    )  # fmt: skip


def wait_for(there: Path) -> None:
    end = time.monotonic() + 60
    while not there.exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert there.exists()


def files(home: Path) -> list[Path]:
    return sorted((home / "packed").iterdir())


@pytest.mark.thorough
def test_built_once_and_mapped_from_then_on(dataset: Dataset, home: Path) -> None:
    first, built = build(dataset)
    assert (first.where, first.reason, built) == ("packed file", "", 1)
    again, built = build(dataset)
    assert (again.where, again.path, built) == ("packed file", first.path, 0)
    for held in (first, again):
        assert held.array is not None
        assert not held.array.flags.writeable
        np.testing.assert_array_equal(held.array.view(np.uint32), CONTENT)
    (file,) = files(home)
    assert file == first.path
    assert len(file.name.partition("-")[0]) == 12
    assert file.suffix == ".rows"
    assert file.stat().st_mode & 0o777 == 0o444
    assert file.read_bytes()[: CONTENT.nbytes] == CONTENT.tobytes()


@pytest.mark.thorough
def test_other_keys_are_other_files(dataset: Dataset, home: Path) -> None:
    build(dataset)
    other, built = build(dataset, CONTENT[:10], what="ten")
    assert built == 1
    assert other.array is not None
    np.testing.assert_array_equal(other.array.view(np.uint32), np.arange(10))
    assert len(files(home)) == 2


@pytest.mark.thorough
def test_selections_and_copies_share_it(dataset: Dataset) -> None:
    build(dataset)
    assert build(dataset.select(episodes=[0]))[1] == 0


@pytest.mark.thorough
def test_content_of_another_dataset_is_another_file(dataset: Dataset, home: Path) -> None:
    build(dataset)
    other = rlds_cli.create("local/y", [{"observation": np.ones((4, 2)), "action": np.zeros((3, 1))}])
    assert build(other)[1] == 1
    assert len(files(home)) == 2


@pytest.mark.slow
def test_many_processes_at_once_build_once(dataset: Dataset, home: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    running = [start(log, 0.3) for _ in range(4)]
    said = {p.communicate(timeout=120)[0] for p in running}
    assert said == {f"packed file {CONTENT.sum(dtype=np.int64)}\n"}
    assert log.read_text() == "built\n"
    assert len(files(home)) == 1


def test_a_builder_that_is_killed_leaves_nothing_that_lasts(dataset: Dataset, home: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    killed = start(log, 600)
    wait_for(log)
    waiting = start(log, 0)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert waiting.communicate(timeout=120)[0] == f"packed file {CONTENT.sum(dtype=np.int64)}\n"
    assert log.read_text() == "built\nbuilt\n"
    (file,) = files(home)
    assert file.suffix == ".rows"


def _truncate(file: Path) -> None:
    os.truncate(file, 300_000)


def _grow(file: Path) -> None:
    with file.open("ab") as f:
        f.write(b"more")


def _foreign(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _of_another_key(file: Path) -> None:
    held, _ = build(rlds_cli.open_dataset("local/x"), CONTENT[::-1].copy(), what="srebmun")
    assert held.path is not None
    held.path.rename(file)


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [_truncate, _grow, _foreign, _empty, _of_another_key])
def test_what_is_not_the_file_is_built_again(dataset: Dataset, damage: object) -> None:
    held, _ = build(dataset)
    assert held.path is not None
    held.path.chmod(0o644)
    assert callable(damage)
    damage(held.path)
    again, built = build(dataset)
    assert (again.where, built) == ("packed file", 1)
    assert again.array is not None
    np.testing.assert_array_equal(again.array.view(np.uint32), CONTENT)
    assert build(dataset)[1] == 0


@pytest.mark.thorough
def test_deleted_while_mapped(dataset: Dataset, home: Path) -> None:
    held, _ = build(dataset)
    assert held.path is not None
    held.path.unlink()
    assert held.array is not None
    np.testing.assert_array_equal(held.array.view(np.uint32), CONTENT)
    assert build(dataset)[1] == 1
    assert len(files(home)) == 1


def _blocked(home: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "packed").write_text("no directory")


@pytest.mark.thorough
def test_private_memory_within_the_budget_where_no_file_can_be(dataset: Dataset, home: Path) -> None:
    _blocked(home)
    held, built = build(dataset, budget=CONTENT.nbytes)
    assert (held.where, held.path, built) == ("private memory", None, 1)
    assert held.array is not None
    assert not held.array.flags.writeable
    np.testing.assert_array_equal(held.array.view(np.uint32), CONTENT)
    assert str(home / "packed") in held.reason


@pytest.mark.thorough
def test_none_where_there_is_neither_file_nor_memory(dataset: Dataset, home: Path) -> None:
    _blocked(home)
    held, built = build(dataset, budget=CONTENT.nbytes - 1)
    assert (held.array, held.where, built) == (None, None, 0)
    assert "390.6 KiB of memory" in held.reason


@pytest.mark.thorough
def test_the_users_own_home_where_that_of_the_dataset_takes_nothing(tmp_path: Path, home: Path) -> None:
    shared = tmp_path / "shared"
    episodes = [{"observation": np.zeros((4, 2)), "action": np.zeros((3, 1))}]
    ds = rlds_cli.create("local/s", episodes, home=shared)
    _blocked(shared)
    held, _ = build(ds)
    assert held.path is not None
    assert held.path.parent == home / "packed"
    assert build(ds)[1] == 0


@pytest.mark.thorough
def test_the_home_of_the_dataset_before_the_users_own(tmp_path: Path, home: Path) -> None:
    shared = tmp_path / "shared"
    episodes = [{"observation": np.zeros((4, 2)), "action": np.zeros((3, 1))}]
    ds = rlds_cli.create("local/s", episodes, home=shared)
    held, _ = build(ds)
    assert held.path is not None
    assert held.path.parent == shared / "packed"
    assert not home.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_home(dataset: Dataset, home: Path) -> None:
    home.chmod(0o555)
    try:
        held, _ = build(dataset, budget=1 << 20)
    finally:
        home.chmod(0o755)
    assert held.where == "private memory"
    assert "may not be written" in held.reason


@pytest.mark.thorough
def test_a_dataset_outside_any_home(tmp_path: Path, home: Path, dataset: Dataset) -> None:
    dataset.path.rename(tmp_path / "moved")
    held, _ = build(rlds_cli.open_dataset(tmp_path / "moved"))
    assert held.path is not None
    assert held.path.parent == home / "packed"


@pytest.mark.thorough
def test_too_large_for_the_disk(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "MOST_BYTES", 399_999)
    held, built = build(dataset)
    assert (held.where, built) == (None, 0)
    assert "390.6 KiB are too large to be packed" in held.reason


def test_a_disk_that_fills_up(dataset: Dataset, home: Path) -> None:
    """A limit on the size of files stands in for the disk: the write fails in the midst of the content."""
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "sys.argv = ['-', sys.argv[1], '0']\n" + BUILDER.replace("budget=0", "budget=400_000") + "print(held.reason)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, str(home / "log")], capture_output=True, text=True, check=True)
    assert run.stdout.startswith(f"private memory {CONTENT.sum(dtype=np.int64)}\n")
    assert "File too large" in run.stdout
    assert files(home) == []


def test_what_the_parts_raise_is_passed_on(dataset: Dataset, home: Path) -> None:
    def parts() -> Iterator[Array]:
        yield CONTENT[:10]
        raise OSError("the source cannot be read")

    with pytest.raises(OSError, match="the source cannot be read"):
        open_or_build(dataset, {}, 400_000, parts, kind="rows", budget=1 << 30)
    assert files(home) == []


def test_nothing_to_hold(dataset: Dataset, home: Path) -> None:
    held = open_or_build(dataset, {}, 0, lambda: iter(()), kind="rows", budget=0)
    assert held.array is not None
    assert held.array.shape == (0,)
    assert not (home / "packed").exists()


# -- comparison with the columns


def alter(file: Path, at: int, size: int = 1) -> None:
    file.chmod(0o644)
    with file.open("r+b") as f:
        f.seek(at)
        old = f.read(size)
        f.seek(at)
        f.write(bytes(b ^ 1 for b in old))


@pytest.fixture
def ds(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A dataset that is packed although it is small."""
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
    rng = np.random.default_rng(0)
    steps = 3000
    observation, action, reward = (rng.normal(size=(steps, n)).astype(np.float32) for n in (11, 3, 1))
    episode = {"observation": observation, "action": action, "next": {"reward": reward[:, 0]}}
    return rlds_cli.create("local/small", [episode] * 2)


def test_verify_compares_packed_files_with_the_columns(ds: Dataset, home: Path) -> None:
    batch = next(iter(Loader(ds, 8, seed=1, backend="numpy")))
    Loader(ds, 8, window=Transition(n_step=3), fields=[..., ReturnToGo()], backend="numpy")
    assert sorted(file.suffix for file in files(home)) == [".column", ".rows"]
    assert verify(ds.path).ok
    for file in files(home):
        alter(file, 1000, 4000)
        found = verify(ds.path)
        assert [p.where for p in found.problems] == [f"packed {file.name}"]
        assert "are not those of the columns that were packed" in found.problems[0].what
        assert found.hint == "rlds verify local/small --fix deletes packed files; loaders pack them again"
        done = repair(ds.path)
        assert done.now.ok
        assert (done.deleted, done.converted) == ((file,), False)
    assert files(home) == []
    again = Loader(ds, 8, seed=1, backend="numpy")
    np.testing.assert_array_equal(next(iter(again))["observation"], batch["observation"])
    (file,) = files(home)
    alter(file, 0, file.stat().st_size)
    assert [p.what for p in verify(ds.path).problems] == ["does not match its name"]
    mended = Loader(ds, 8, seed=1, backend="numpy")
    np.testing.assert_array_equal(next(iter(mended))["observation"], batch["observation"])


@pytest.mark.slow
def test_every_byte_of_a_packed_file_counts(ds: Dataset, home: Path) -> None:
    Loader(ds, 8, backend="numpy")
    (file,) = files(home)
    good, rng = file.read_bytes(), np.random.default_rng(0)
    tail = len(good) - ds.num_rows * 64  # 11 + 3 + 1 floats, two flags, and what fills up to 4 bytes
    places = [*rng.integers(len(good) - tail, size=3).tolist(), *(len(good) - 1 - rng.integers(tail, size=25)).tolist()]
    for at in (*places, len(good) - 1, len(good) - 8, len(good) - 9, len(good) - tail):
        alter(file, at)
        assert not verify(ds.path).ok, at
        file.write_bytes(good)
    assert verify(ds.path).ok


@pytest.mark.thorough
def test_packed_rows_of_a_moved_dataset_and_of_another_version(ds: Dataset, home: Path, tmp_path: Path) -> None:
    Loader(ds, 8, backend="numpy")
    (file,) = files(home)
    assert verify("local/small").ok
    alter(file, 70_000)
    assert [p.where for p in verify("local/small").problems] == [f"packed {file.name}"]
    ds.path.rename(tmp_path / "moved")
    assert [p.where for p in verify(tmp_path / "moved").problems] == [f"packed {file.name}"]
    (tmp_path / "moved").rename(ds.path)
    reencode("local/small", to="zarr")  # rows of the same content may lie elsewhere
    assert verify("local/small").ok
