"""``rlds bench`` and `measure`: figures of processes that really load, and what they refuse."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds_cli
from rlds_cli import cli
from rlds_cli.errors import BatchSize, DatasetNotFound, EmptyWindow, InvalidArgument
from rlds_cli.loader import Prioritized, Slice
from rlds_cli.loader.bench import Measurement, Memory, measure
from rlds_cli.loader.bench.worker import evict, mapped_files, memory

LINUX = sys.platform == "linux"
WIDE = 256  # float64 a row


@pytest.fixture
def ds() -> rlds_cli.Dataset:
    return wide(8)


def wide(episodes: int) -> rlds_cli.Dataset:
    episode = {
        "observation": np.zeros((1001, WIDE)),
        "action": np.zeros((1000, 2), np.float32),
        "next": {"reward": np.zeros(1000, np.float32), "terminated": True},
    }
    return rlds_cli.create("local/wide", [episode] * episodes)


def check(m: Measurement) -> None:
    assert 0 < m.batches_per_second <= m.best_batches_per_second
    assert m.samples_per_second == pytest.approx(m.batches_per_second * m.batch_size)
    assert m.bytes_per_second == pytest.approx(m.batches_per_second * m.batch_bytes)
    assert m.share_of_limit == pytest.approx(m.bytes_per_second / m.limit_bytes_per_second)
    assert m.minor_faults >= 0 and m.major_faults >= 0


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="proportional memory is Linux's")
def test_processes_share_the_files(ds: rlds_cli.Dataset) -> None:
    m = measure(ds, window=Slice(8), sampler="Shuffled", batch_size=32, processes=2, seconds=0.3)
    check(m)
    content = 8 * 1001 * WIDE * 8
    assert m.batch_bytes == 32 * 8 * (2 * WIDE * 4 + 2 * 4 + 4 + 3 + 1)
    assert m.mapped is not None and m.mapped > content / 2, "each process maps most of the file"
    assert m.proportional is not None and m.anonymous is not None
    assert m.proportional - 2 * m.anonymous < 1.5 * content, "together they hold it once"


@pytest.mark.slow
def test_a_selection_with_priorities(ds: rlds_cli.Dataset) -> None:
    m = measure(ds.select(episodes=[1]), sampler=Prioritized(), batch_size=16, seconds=0.2)
    check(m)
    assert m.sampler.startswith("Prioritized(")


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="needs posix_fadvise")
def test_the_command(ds: rlds_cli.Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*more: str) -> str:
        monkeypatch.setattr(sys, "argv", [*arguments, *more])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        return capsys.readouterr().out

    arguments = ["rlds", "bench", "local/wide", "--seconds", "0.2"]
    m = Measurement(**json.loads(run("--batch-size", "32", "--json")))
    check(m)
    # observations, of this step and the next, and actions in float32; reward, done, terminated, truncated
    assert m.batch_bytes == 32 * (2 * WIDE * 4 + 2 * 4 + 4 + 3)
    assert (m.id, m.batch_size, m.processes, m.cold) == ("local/wide", 32, 1, False)
    assert (m.window, m.sampler) == ("Transition(n_step=1, gamma=0.99)", "Uniform(by='window')")
    lines = run("--window", "Slice(4)", "--batch-size", "8", "--cold").splitlines()
    assert lines[0].startswith("local/wide   batches of 8, Slice(length=4") and lines[1] == "1 process, cold, 0.2 s"
    assert [line[:14].strip() for line in lines[2:]] == [
        "batches", "samples", "bytes", "of the limit", "memory", "PSS", "major faults"
    ]  # fmt: skip


def test_values_that_cannot_be() -> None:
    ds = wide(1)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"processes": 0}, "processes=0 must be an integer of at least 1"),
        ({"processes": 1000}, "at most 256"),
        ({"processes": 2, "cold": True}, "one process"),
        ({"seconds": 0}, "must be a positive number"),
        ({"seconds": float("nan")}, "must be a positive number"),
        ({"window": "Slice"}, "length"),
    ]
    for options, message in cases:
        with pytest.raises(InvalidArgument, match=message):
            measure(ds, **options)


@pytest.mark.thorough
def test_errors_of_the_loader_come_back(ds: rlds_cli.Dataset) -> None:
    with pytest.raises(BatchSize, match="batch_size=0"):
        measure(ds, batch_size=0)
    with pytest.raises(EmptyWindow, match=r"Slice\(2000\) fits none of 8 episodes"):
        measure(ds, window="Slice(2000)")


@pytest.mark.slow
def test_nothing_of_the_current_directory_is_imported(
    ds: rlds_cli.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("random", "mmap", "tempfile"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported of the current directory')\n")
    monkeypatch.chdir(tmp_path)
    assert measure(ds, seconds=0.05).batches_per_second > 0


def test_what_is_not_here() -> None:
    with pytest.raises(DatasetNotFound):
        measure("local/nothing")


# -- what the kernel says


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_files_that_this_process_maps(tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_bytes(bytes(1 << 20))
    before = mapped_files()
    mapped = np.memmap(file, np.uint8, "r")
    assert file in mapped_files() and file not in before and not mapped.any()


@pytest.mark.slow  # of a process of its own, whose pages nothing takes away
@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_memory_of_this_process(tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_bytes(bytes(32 << 20))
    before, libraries = memory(), mapped_files()
    mapped = np.memmap(file, np.uint8, "r")
    own = np.ones(64 << 20, np.uint8)
    assert int(mapped.sum()) == 0
    grown = memory(libraries).beyond(before)
    assert grown.anonymous is not None and (60 << 20) < grown.anonymous < (80 << 20)
    assert grown.mapped is not None and (30 << 20) < grown.mapped < (40 << 20)
    with_file, without = memory(), memory({file})
    assert with_file.proportional is not None and without.proportional is not None
    assert (30 << 20) < with_file.proportional - without.proportional < (40 << 20)
    evict(file)
    del own


def test_memory_beyond() -> None:
    assert Memory(5, 9, None).beyond(Memory(2, 10, None)) == Memory(3, 0, None)
