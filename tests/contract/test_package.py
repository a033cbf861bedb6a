"""The public face: what is exported, and what importing it costs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np
import pytest
import worker_functions
from conftest import run_rlds

import rlds_cli
from rlds_cli.archives.libraries import LIBRARIES, READERS

HEAVY = {"torch", "jinja2", "zarr", "h5py", "requests", "numpy", "pyarrow", "gymnasium", "PIL", "minari", "tensordict"}


def test_what_is_exported() -> None:
    growing = ["Fifo", "Record", "Reservoir", "Top", "Writer", "append", "merge", "writer"]
    sharing = ["export", "index", "mirror", "plan_export", "push"]
    making = ["Dataset", "Loader", "create", "download", "find", "import_files", "load", "open_dataset"]
    cameras = ["Frames", "Video"]
    looking = ["check", "inspect", "lock", "sync", "verify"]
    assert rlds_cli.__all__ == sorted([*making, *cameras, *looking, *growing, *sharing])
    for name in rlds_cli.__all__:
        assert callable(getattr(rlds_cli, name))
    assert set(rlds_cli.__all__) <= set(dir(rlds_cli))
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = rlds_cli.nothing_like_it


AT_HAND = [
    "preprocess.run",
    "preprocess.reward_from_goal",
    "loader.Loader",
    "measures.Measures",
    "report.write_page",
    "errors.RldsError",
    "batch.Batch",
    "interop.d4rl.qlearning_dataset",
    "ted.lay_out",
    "archives.Archive",
    "formats",
    "archives.hdf5",
    "mp4.read",
    "published.prepare",
]


@pytest.mark.slow
def test_modules_are_at_hand() -> None:
    """Each without an import of its own, in a process of its own: an import of another must not be what helps."""
    code = f"""
import os, rlds_cli
for name in {AT_HAND}:
    child = os.fork()
    if not child:
        try:
            value = rlds_cli
            for part in name.split("."):
                value = getattr(value, part)
        except BaseException as e:
            print(name, e, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("", "")


def test_every_documented_module_is_at_hand() -> None:
    docs = Path(__file__).parents[2]
    said = {
        name
        for page in (docs / "README.md", *(docs / "docs").rglob("*.md"))
        for name in re.findall(r"\brlds_cli\.([a-z][a-z0-9_]*)", page.read_text())
    } - {"readers"}  # a group of entry points
    assert said - {name.partition(".")[0] for name in AT_HAND} <= set(rlds_cli.__all__)
    assert said <= set(dir(rlds_cli))


def test_no_function_shares_its_name_with_a_module() -> None:
    import pkgutil

    modules = {m.name for m in pkgutil.iter_modules(rlds_cli.__path__)}
    assert not modules & set(rlds_cli.__all__)


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import rlds_cli",
        "from rlds_cli.cli import app",
        "import rlds_cli; rlds_cli.find('hopper')",
        "sys.argv = ['rlds', '--help']\nfrom rlds_cli.cli import main\ntry: main()\nexcept SystemExit: pass",
        "sys.argv = ['rlds', 'download', '-h']\nfrom rlds_cli.cli import main\ntry: main()\nexcept SystemExit: pass",
        "sys.argv = ['rlds', 'list']\nfrom rlds_cli.cli import main\ntry: main()\nexcept SystemExit: pass",
    ],
)
def test_starting_imports_nothing_heavy(code: str) -> None:
    assert not modules_after(code) & HEAVY


def of_kinds(modules: Iterable[str], kinds: str) -> list[str]:
    """The modules that are one of ``kinds``, or below it."""
    return sorted(m for m in modules if any(f"{m}.".startswith(f"{kind}.") for kind in kinds.split()))


# What neither a look at a dataset nor the process that reads files has to do with: networks, interfaces, training.
ELSEWHERE = """torch zarr requests PIL av pyarrow jinja2 pandas gymnasium filelock asyncio ssl http email
    importlib.metadata rlds_cli.loader rlds_cli.preprocess rlds_cli.share rlds_cli.view
    rlds_cli.base.http rlds_cli.places.sources.objects rlds_cli.places.remote.store rlds_cli.places.remote.index"""


def test_a_look_at_a_dataset_imports_what_it_shows_alone() -> None:
    """Neither what reads other datasets (videos, growing ones, those at an address), nor what writes or starts one.

    Nor what other pages show.
    """
    steps = {"observation": np.zeros((3, 2)), "action": np.zeros((2, 1))}
    rlds_cli.create("local/press", [steps] * 3)
    command = "sys.argv = ['rlds', 'inspect', 'local/press']"
    loaded = modules_after(f"{command}\nfrom rlds_cli.cli import main\ntry: main()\nexcept SystemExit: pass")
    assert {"numpy", "rlds_cli.look.report.summary"} <= loaded
    others = """multiprocessing concurrent socket tempfile html h5py numpy.ma
        rlds_cli.archives rlds_cli.make rlds_cli.keep rlds_cli.base.files.child rlds_cli.base.media.mp4
        rlds_cli.store.videos rlds_cli.store.growing.table rlds_cli.store.finishing rlds_cli.look.measures
        rlds_cli.store.commits rlds_cli.store.lookups rlds_cli.store.digests rlds_cli.store.statistics
        rlds_cli.store.own_columns rlds_cli.store.metadata rlds_cli.store.sharing rlds_cli.store.encoded
        rlds_cli.dataset.provenance rlds_cli.dataset.environments rlds_cli.dataset.tasks rich.table
        rlds_cli.look.checks.check_report rlds_cli.look.report.episode rlds_cli.look.report.derived"""
    assert of_kinds(loaded, f"{ELSEWHERE} {others}") == []


def test_the_process_that_reads_files_imports_readers_alone(tmp_path: Path) -> None:
    """It neither opens, checks nor draws datasets, and imports no reader behind the one that knows the file."""
    with h5py.File(tmp_path / "run.hdf5", "w") as f:
        f["observations"], f["actions"] = np.random.default_rng(0).random((20, 3)), np.zeros((20, 1))
        f["rewards"], f["terminals"] = np.zeros(20), np.arange(20) % 10 == 9
    script = f"""
import sys
sys.path.append({str(Path(worker_functions.__file__).parent)!r})
import rlds_cli, worker_functions
from rlds_cli.base.files import child
with child.reading("rlds_cli.make.convert.reading"):
    made = rlds_cli.import_files({str(tmp_path / "run.hdf5")!r}, "local/run")
    print(made.manifest.reader, *child.ask(worker_functions.modules, names=()))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    reader, *loaded = run.stdout.split()
    assert reader == "d4rl" and {"h5py", "rlds_cli.archives.d4rl"} <= {*loaded}
    others = """rich typer rlds_cli.cli rlds_cli.look rlds_cli.keep rlds_cli.dataset rlds_cli.homes rlds_cli.places
        rlds_cli.registry rlds_cli.store.opening rlds_cli.make.importing rlds_cli.make.downloads
        rlds_cli.archives.formats.tfrecord rlds_cli.store.lookups rlds_cli.base.media.video_files
        rlds_cli.archives.torchrl.read rlds_cli.archives.torchrl.stores"""
    after = READERS[READERS.index("d4rl") + 1 :]
    readers = " ".join(f"rlds_cli.archives.{LIBRARIES[name].reader}" for name in after)
    assert of_kinds(loaded, f"{ELSEWHERE} {others} {readers}") == []


def test_an_import_of_files_imports_nothing_of_values_and_videos() -> None:
    others = """rlds_cli.make.convert.create rlds_cli.make.convert.cameras rlds_cli.base.media.mp4 rlds_cli.store.videos
        rlds_cli.dataset.environments rlds_cli.dataset.provenance rlds_cli.registry.facts"""
    assert of_kinds(modules_after("import rlds_cli.make.importing"), f"{ELSEWHERE} {others}") == []


def test_a_first_batch_imports_no_masked_arrays() -> None:
    """They take 10 ms, and `numpy.unique` imports them."""
    rlds_cli.create("local/press", [{"observation": np.zeros((3, 2)), "action": np.zeros((2, 1))}] * 3)
    code = """from rlds_cli.loader import Loader, Shuffled
next(iter(Loader("local/press", 2, sampler=Shuffled(block=2, live=2), backend="numpy")))"""
    assert "numpy.ma" not in modules_after(code)


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["dataset", "preprocess", "loader", "make.convert.create", "look.report"])
def test_torch_is_imported_where_tensors_are(module: str) -> None:
    assert "torch" not in modules_after(f"import rlds_cli.{module}")


@pytest.mark.parametrize(
    ("code", "same"),
    [
        ("from rlds_cli.formats.tables import Table as a", "from rlds_cli.archives.formats.tables import Table as b"),
        ("import rlds_cli.report as a", "import rlds_cli.look.report as b"),
        ("import rlds_cli; a = rlds_cli.measures", "from rlds_cli.look import measures as b"),
    ],
)
def test_a_module_with_two_names_is_one_module(code: str, same: str) -> None:
    """A second copy would have other classes: those of one would not be instances of the other."""
    script = "import os, sys\nimport h5py, numpy\n"  # which take most of the time
    for order in (f"{code}; {same}", f"{same}; {code}"):
        script += f"if not (child := os.fork()):\n    {order}\n    os._exit(0 if a is b else 1)\n"
        script += "assert os.waitpid(child, 0)[1] == 0\n"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_module_that_has_neither_name_is_missing() -> None:
    gone = subprocess.run([sys.executable, "-c", "import rlds_cli.report.nothing"], capture_output=True, text=True)
    assert gone.stderr.splitlines()[-1].startswith("ModuleNotFoundError: ")


@pytest.mark.parametrize(
    ("end", "code", "error"), [("sys.exit(3)", 3, ""), ("", 0, ""), ("raise ValueError", 1, "ValueError")]
)
def test_a_command_ends_after_its_threads_and_handlers(end: str, code: int, error: str) -> None:
    """It frees nothing by itself, but what was to happen at its end does, and what was written arrives."""
    script = f"""
import atexit, sys, threading, time
import rlds_cli.cli
from rlds_cli.__main__ import run

def main():
    atexit.register(print, "handler")
    threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
    print("main")
    {end}

rlds_cli.cli.main = main
run()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "main\nthread\nhandler\n")
    assert done.stderr.endswith(f"{error}\n" if error else "")


def test_exit_codes() -> None:
    """Of a process, for what ends well and what does not; the others here."""

    def process(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "rlds_cli", *args], capture_output=True, text=True)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        done = run_rlds(*args)
        return subprocess.CompletedProcess(args, done.returncode, done.stdout.decode(), done.stderr.decode())

    assert process("--version").stdout == f"rlds {rlds_cli.__version__}\n"
    version, kernel = run("--version", "--verbose").stdout.splitlines()
    assert version == f"rlds {rlds_cli.__version__}" and kernel.startswith("kernel: ") and " -O3 " in kernel
    assert "\nGet:\n" in run("--help").stdout and "rlds import" in run().stdout
    unknown = process("info", "d4rl/hoper-medium-v2")
    assert unknown.returncode == 1
    assert "hopper-medium-v2" in unknown.stderr
    assert unknown.stdout == ""
    assert run("nonsense").returncode == 2
    assert run("download").returncode == 2
    assert run("info", "../x").returncode == 1
