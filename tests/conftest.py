"""What several test modules need: a home of their own, no network, small archives."""

from __future__ import annotations

import functools
import gc
import io
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path

import chromium
import h5py
import made_once
import numpy as np
import pytest
import typer.main
from hypothesis import HealthCheck, settings

DATA = Path(__file__).parent / "data"

# As many processes as cores run tests; threads of their own would wait for each other. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Typer builds the commands anew for each call: a process makes one call, the tests make hundreds.
typer.main.get_command = functools.cache(typer.main.get_command)

# A shell has what it runs in the background ignore Ctrl-C, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test depends on how fast a machine is. The home of each test is fresh for a function, not for an example of it.
# The same examples are drawn every time; `--hypothesis-profile=thorough` looks further, at others each time.
_ANY_SPEED = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("rlds", _ANY_SPEED, max_examples=25)
settings.register_profile("all", _ANY_SPEED, max_examples=100)  # of make test-all
settings.register_profile("thorough", _ANY_SPEED, derandomize=False, max_examples=500)
settings.load_profile("rlds")

# Modules about syncing and second disks, or that drop files from the page cache, which keeps unwritten pages.
_NEED_THE_DISK = {"test_bench", "test_links", "test_loader_residency", "test_transfer_behind", "test_transfer_planning"}

# Modules about what a writer commits without being asked.
_COMMIT_BY_THE_CLOCK = {"test_pages", "test_writer"}

# Modules about chunks of a preprocessing job, which are shorter where a function takes longer.
_DIVIDE_BY_THE_CLOCK = {"test_preprocess_division"}

# Modules whose archives are read in other processes, as everywhere outside the tests; or in one for all of their tests,
# while it lives. Another process takes a third of a second to start, and knows no monkeypatch.
_APART = {"test_archives_child", "test_golden", "test_fuzz", "test_view_decoding"}
_IN_ONE_CHILD = {"test_hostile_hdf5", "test_hostile_parquet", "test_hostile_texts"}

# The tests write some hundred thousand small files: in memory that takes seconds, on a disk minutes.
_MEMORY = Path("/dev/shm")
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 4 << 30 and "TMPDIR" not in os.environ:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of a test slow, but for as many as ``sampled(n)`` says, spread over all of them."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of in cases.values():
        count = of[0].get_closest_marker("sampled").args[0]  # type: ignore[union-attr]
        quick = {k * len(of) // count for k in range(count)}
        for k, item in enumerate(of):
            if k not in quick:
                item.add_marker("slow")


def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Make no items of tests with a marker that ``-m 'not A and not B'`` leaves out: each process would make all."""
    asked = collector.config.option.markexpr.split(" and ")
    if not all(re.fullmatch(r"(not )?\w+", word) for word in asked):
        return None
    left_out = {word.removeprefix("not ") for word in asked if word.startswith("not ")}
    marks = [*collector.iter_markers(), *(getattr(obj, "pytestmark", None) or ())]
    return [] if any(mark.name in left_out for mark in marks) else None


def pytest_collection_finish() -> None:
    """Have the garbage collector look less often."""
    gc.set_threshold(10_000)


def keep_what_is_loaded() -> None:
    """Have the garbage collector pass over modules and tests, which stay, here and in forked processes."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def room_of_datasets(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Datasets that many tests begin with lie here."""
    made_once.room = tmp_path_factory.mktemp("made")


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory of the test's own; on a disk where the test is about disks."""
    if request.module.__name__ not in _NEED_THE_DISK:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture(scope="module", autouse=True)
def quick_and_the_same_on_every_machine(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is slow in tests, or depends on the clock, is left out of the modules that are not about it."""
    from rlds_cli.base.files import child

    keep_what_is_loaded()
    module = request.module.__name__
    where = nullcontext if module in _APART else child.reading if module in _IN_ONE_CHILD else child.here
    with pytest.MonkeyPatch.context() as patch, where():
        if module not in _NEED_THE_DISK:  # no test cuts the power, and disks take long to say that they are done
            patch.setattr(os, "fsync", lambda fd: None)
            patch.setattr("rlds_cli.base.files.publishing._SYNCED_AT_ONCE", 1)  # there is nothing to wait for
        if module not in _COMMIT_BY_THE_CLOCK:  # a slow machine makes more versions than a fast one
            patch.setattr("rlds_cli.make.convert.writer._INTERVAL", 1e6)
        if module not in _DIVIDE_BY_THE_CLOCK:
            patch.setattr("rlds_cli.preprocess.job.rows_of_chunk", lambda seconds, steps: 1 << 16)
        yield


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process grows beyond 128 MiB, whatever a server sends: the hole fails, and not the disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (128 << 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh RLDS_HOME; nothing of the user's own directories is looked at."""
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for name in ("RLDS_PATH", "RLDS_OFFLINE", "XDG_CACHE_HOME", "HF_TOKEN", "HF_ENDPOINT", "HF_HOME", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("RLDS_MIRROR", "RLDS_REGISTRY", "RLDS_GCS_ENDPOINT", "STORAGE_EMULATOR_HOST", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path / "home"


@pytest.fixture(autouse=True)
def as_in_a_new_process(tmp_path: Path) -> Iterator[None]:
    """No test finds the ``--json`` or ``--quiet`` of a command of an earlier one, nor modules that it wrote itself."""
    if "rlds_cli.cli.out" in sys.modules:
        sys.modules["rlds_cli.cli.out"].configure()
    before, scheduled = set(sys.modules), os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else None
    yield
    if scheduled is not None:  # libsvtav1 changes it: browsers with priority of real time stop a machine
        assert os.sched_getscheduler(0) == scheduled, "this thread has another priority than before the test"
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__dict__", {}).get("__file__")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture(scope="module")
def browser_of_module() -> Iterator[chromium.Browser]:
    """One browser for all tests of a module, which skip where there is none; each has tabs of its own in `browser`."""
    path = chromium.find()
    assert path is not None
    with chromium.Browser(path) as started:
        yield started


@pytest.fixture
def browser(browser_of_module: chromium.Browser) -> Iterator[chromium.Browser]:
    """A browser whose tabs are closed after the test."""
    with browser_of_module.tabs() as found:
        yield found


def wait_for(done: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait for what happens in the background; return whether it did."""
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(0.002)
    return done()


def run_rlds(*args: object) -> subprocess.CompletedProcess[bytes]:
    """Run ``rlds ARGS`` in this process, its output going into pipes: a process of its own takes a second to start."""
    from rlds_cli import cli

    code: object = 0
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    before, sys.argv = sys.argv, ["rlds", *map(str, args)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            cli.main()
    except SystemExit as e:
        code = e.code or 0
    finally:
        sys.argv = before
    assert isinstance(code, int)
    written = [stream.buffer.getvalue() for stream in (out, err)]  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(args, code, *written)


def write_d4rl(
    path: Path, lengths: list[int], *, observation: int = 3, seed: int = 0, next_observations: bool = True
) -> dict[str, np.ndarray]:
    """Write a small D4RL v2 file, and return its columns; episodes end by turns in a terminal and a timeout."""
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    walks = [rng.standard_normal((t + 1, observation)).astype(np.float32) for t in lengths]
    ends = np.cumsum(lengths) - 1
    columns = {
        "observations": np.concatenate([w[:-1] for w in walks]),
        "actions": rng.uniform(-1, 1, (n, 2)).astype(np.float32),
        "rewards": rng.standard_normal(n).astype(np.float32),
        "terminals": np.isin(np.arange(n), ends[::2]),
        "timeouts": np.isin(np.arange(n), ends[1::2]),
        "infos/qpos": rng.standard_normal((n, 2)),
    }
    if next_observations:
        columns["next_observations"] = np.concatenate([w[1:] for w in walks])
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as f:
        for name, values in columns.items():
            f.create_dataset(name, data=values, compression="gzip", compression_opts=1)
    return columns
