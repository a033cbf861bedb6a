"""A Ray cluster of two nodes on this machine: the bytes are those of one process, whatever is lost on the way."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import preprocess_functions as functions
import preprocess_units as units
import pytest
from object_store import ObjectStore

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import PreprocessError, RldsError
from rlds_cli.preprocess import workers

ray = pytest.importorskip("ray", reason="make test-ray installs it")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:ray.*", "ignore::DeprecationWarning:ray.*")

STORE = 80 << 20  # bytes of a node's object store: the least there is


@pytest.fixture(scope="module")
def nodes():
    from ray.cluster_utils import Cluster

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # what Ray warns of otherwise
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    started = Cluster(True, head_node_args={"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False})
    started.add_node(num_cpus=1, object_store_memory=STORE)
    yield started
    started.shutdown()


@pytest.fixture
def connected(nodes):
    """This process is in the cluster already, as a notebook may be: it is used, and kept."""
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    yield
    assert ray.is_initialized()
    ray.shutdown()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", units.ROWS)


@pytest.fixture
def ds():
    return rlds_cli.create("local/ds", units.episodes())


def run(ds, fn, name=None, **how):
    return preprocess.run(ds, fn, name, executor="ray", **how)


# -- the same as here


def test_each_unit_gives_the_bytes_that_numpy_computes(ds, connected):
    for name, case in units.CASES.items():
        here = preprocess.run(ds, case.fn, "here", jobs=0, force=True, **case.how)
        there = run(ds, case.fn, "there", force=True, **case.how)
        units.check(there, case)
        assert units.content(there) == units.content(here), name


def test_both_nodes_work_and_this_process_is_told(ds, connected, tmp_path):
    seen = tmp_path / "seen"
    seen.mkdir()

    here = os.getpid()

    def where(episode):
        import ray

        if os.getpid() != here:
            (seen / ray.get_runtime_context().get_node_id()).touch()
            deadline = time.monotonic() + 30
            while len(list(seen.iterdir())) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
        return {**episode, "action": episode["action"] + 1}

    said = []
    made = run(ds, where, "made", progress=said.append)  # a closure, which goes along by value
    assert np.array_equal(made.episode(59)["action"], ds.episode(59)["action"] + 1)
    assert {p.name for p in seen.iterdir()} == {n["NodeID"] for n in ray.nodes() if n["Alive"]}
    done = [(e.done, e.total) for e in said if e.stage == "preprocess"]
    assert done[-1] == (ds.num_rows, ds.num_rows) and len(done) >= 8
    assert not list((made.path.parents[2] / "locks").glob("*.seen"))


def test_by_address_with_a_script_and_a_tensordict(ds, nodes, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = run(
        ds,
        functions.obs_norm,
        address=nodes.address,
        arrays="tensordict",
        jobs=1,
    )
    assert not ray.is_initialized()
    norms = np.linalg.norm(ds.episode(7)["observation"], axis=-1, keepdims=True)
    np.testing.assert_allclose(made.episode(7)["obs_norm"], norms, rtol=1e-6)
    Path("script.py").write_text(
        "import sys\nfrom rlds_cli import preprocess\n"
        "def main_s_own(e):\n    return {**e, 'action': e['action'] + OFFSET}\n"
        "OFFSET = 3\n"
        "if __name__ == '__main__':\n"
        "    preprocess.run('local/ds', main_s_own, executor='ray', address=sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "script.py", nodes.address], check=True)
    made = rlds_cli.open_dataset("local/ds@main_s_own")
    assert np.array_equal(made.episode(59)["action"], ds.episode(59)["action"] + 3)
    command = [
        "preprocess",
        "local/ds",
        "--fn",
        "script.py:main_s_own",
        "--executor",
        "ray",
        "--address",
        nodes.address,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "rlds_cli", *command, "--name", "cli"], check=True, capture_output=True
    )
    assert b"local/ds@cli" in done.stdout
    assert rlds_cli.open_dataset("local/ds@cli").fingerprint == made.fingerprint
    assert list((home / "partial").iterdir()) == []


def test_nodes_read_the_store_each_with_blocks_of_its_own(ds, home, tmp_path, monkeypatch):
    """Nodes open the address by themselves: with environment and home of blocks as this process has them."""
    pytest.importorskip("obstore")
    from ray.cluster_utils import Cluster

    with ObjectStore() as store:
        store.buckets["lab"] = {}
        for name, value in store.environ(home).items():
            monkeypatch.setenv(name, value)
        started = Cluster(
            True, head_node_args={"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        )
        started.add_node(num_cpus=1, object_store_memory=STORE)
        try:
            rlds_cli.push(ds.id, "s3://lab/ds", pages=False)
            store.requests.clear()
            there = rlds_cli.open_dataset("s3://lab/ds", home=tmp_path / "blocks")
            for name in ("episode", "two passes"):
                case = units.CASES[name]
                made = run(there, case.fn, "far", address=started.address, force=True, **case.how)
                units.check(made, case)
            fetched = [r for r in store.requests if r.method == "GET" and "/ds/objects/" in r.path]
            size = sum(len(v) for k, v in store.buckets["lab"].items() if k.startswith("ds/objects/"))
            assert fetched and len(fetched) <= 3 * (1 + size // (1 << 16))  # this process and the two nodes
            assert (tmp_path / "blocks/remote").exists() and not (home / "remote").exists()
        finally:
            started.shutdown()


# -- what goes wrong


def test_a_failure_names_the_episode_and_what_is_finished_is_kept(ds, connected):
    with pytest.raises(PreprocessError, match=r"KeyError.* on episode 4 .*Nothing was published. \d of 8 chunks") as e:
        run(ds, functions.fails)
    assert e.value.episode == 4 and e.value.hint.endswith("--episode 4 -j 0")
    assert "preprocess_functions.py" in str(e.value.__cause__)
    assert run(ds, functions.fails, keep_going=True).num_episodes == 59


def test_a_worker_that_dies_is_replaced_and_one_that_always_does_is_named(ds, connected, tmp_path):
    said = []
    args = {"at": 40, "once": str(tmp_path / "once")}
    made = run(ds, functions.dies, "once", args=args, progress=said.append)
    assert np.array_equal(made.episode(40)["action"], ds.episode(40)["action"] + 1)
    assert [e.note for e in said if "trying again" in e.note] == [
        "the process that worked on chunk 6 of 8 (episodes 37 to 44) died; trying again"
    ]
    with pytest.raises(RldsError, match=r"chunk 6 of 8 \(episodes 37 to 44\) died, twice. Finished work is kept"):
        run(ds, functions.dies, "always", args={"at": 40})


def test_what_is_lost_with_its_node_is_done_by_another(ds, nodes, connected, tmp_path):
    extra = nodes.add_node(num_cpus=1, object_store_memory=STORE)
    begun, doomed = tmp_path / "begun", extra.node_id

    def waits_there(episode):
        import ray

        if ray.get_runtime_context().get_node_id() == doomed:
            begun.touch()
            time.sleep(60)
        return {**episode, "action": episode["action"] + 1}

    def remove():
        deadline = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        nodes.remove_node(extra, allow_graceful=False)

    remover = threading.Thread(target=remove)
    remover.start()
    said = []
    made = run(ds, waits_there, "lost", progress=lambda e: said.append(e.note))
    remover.join()
    assert begun.exists() and any("was lost with its node; trying again" in note for note in said), said
    assert units.content(made) == units.content(preprocess.run(ds, waits_there, "here", jobs=0))


def test_a_node_that_does_not_see_the_home_is_named(ds, connected, monkeypatch, tmp_path, home):
    """Below /proc/self every process sees its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLDS_HOME", "/proc/self/cwd/home")
    with pytest.raises(PreprocessError, match=r"node \S+ does not see the home /proc/self/cwd/home") as e:
        run("local/ds", functions.normalise)
    assert "storage that all nodes see" in e.value.hint
    assert not list((home / "locks").glob("*.seen")) and not (home / "datasets/local/ds@normalise").exists()


def test_a_function_that_a_node_does_not_find_is_named(ds, connected, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend("/proc/self/cwd")
    monkeypatch.chdir(tmp_path)
    Path("only_here.py").write_text("def same(e):\n    return e\n")
    import only_here

    monkeypatch.setattr("os.getcwd", lambda: "/nowhere")
    with pytest.raises(PreprocessError, match=r"node \S+ has no module only_here, which only_here:same"):
        run(ds, only_here.same)


_RUN = """
import sys
from rlds_cli import preprocess
from rlds_cli.preprocess import job
import preprocess_functions as f

if __name__ == "__main__":
    job.PART_ROWS = {rows}
    preprocess.run("local/ds", getattr(f, sys.argv[1]), "killed", executor="ray", address=sys.argv[2])
"""


def lines(home, name):
    return max((p.read_text().count("\n") for p in home.glob(f"partial/local+ds@killed.*/{name}")), default=0)


@pytest.mark.parametrize(("fn", "journal"), [("slow", "journal.jsonl"), ("slow_fit", "state.jsonl")])
def test_a_job_that_is_killed_is_gone_on_with(ds, nodes, home, tmp_path, fn, journal):
    script = tmp_path / "killed.py"
    script.write_text(_RUN.format(rows=units.ROWS))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for finished in (2, 4):  # lines: the key, and a record of each chunk
        command = [sys.executable, str(script), fn, nodes.address]
        process = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while lines(home, journal) < finished and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        assert process.poll() is None, process.communicate()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert not (home / "datasets/local/ds@killed").exists()
    kept = lines(home, journal)
    assert kept >= 4
    said = []
    function = getattr(functions, fn)
    made = run(ds, function, "killed", address=nodes.address, progress=said.append)
    if fn == "slow":
        assert any("resumed" in e.note for e in said)
    assert units.content(made) == units.content(preprocess.run(ds, function, "here", jobs=0))
    assert list((home / "partial").iterdir()) == []


# -- no cluster


def test_a_cluster_that_cannot_be_reached(ds, home, monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 3.0)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        there = f"127.0.0.1:{deaf.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(
            PreprocessError, match=f"The Ray cluster at {there} cannot be reached: nothing answers"
        ) as e:
            run(ds, functions.same, address=there)
        assert "ray start --head" in e.value.hint
        deaf.listen()
        with pytest.raises(PreprocessError, match=r"it did not answer like one for 3 s. Nothing was done"):
            run(ds, functions.same, address=there)
        assert time.monotonic() - began < 15
    for wrong in ("somewhere", "127.0.0.1:port"):
        with pytest.raises(PreprocessError, match=f'"{wrong}" is not the address'):
            run(ds, functions.same, address=wrong)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(PreprocessError, match=r"The Ray cluster at 127.0.0.1:1 \(RAY_ADDRESS\) cannot be reached"):
        run(ds, functions.same)
