"""Shards: done anywhere, in any order, twice if need be; published when all are there, in the bytes of one job."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import preprocess_functions as functions
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import NameTaken, PreprocessError
from rlds_cli.homes import Home
from rlds_cli.keep import gc
from rlds_cli.preprocess import shards
from rlds_cli.preprocess.shards import is_running
from rlds_cli.store import Shard

LENGTHS = [60 + i % 41 for i in range(60)]
ROWS = 600  # of a chunk: eight of them


def episodes():
    rng = np.random.default_rng(0)
    for i, t in enumerate(LENGTHS):
        yield {
            "observation": rng.standard_normal((t + 1, 3)).astype(np.float32),
            "action": rng.standard_normal((t, 2)).astype(np.float32),
            "next": {"reward": rng.standard_normal(t), "terminated": i % 3 == 0, "truncated": i % 3 == 1},
            "info": {"number": np.full(t, i), "word": [f"w{i % 5}" if k % 4 else None for k in range(t)]},
        }


@pytest.fixture(scope="module")
def truth():
    return list(episodes())


@pytest.fixture
def ds(truth):
    return rlds_cli.create("local/ds", truth)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", ROWS)


def files(ds):
    """All bytes of a dataset but those of its manifest, which holds times."""
    paths = (p for p in sorted(ds.path.rglob("*")) if p.is_file() and p.parent != ds.path)
    return {str(p.relative_to(ds.path)): p.read_bytes() for p in paths}


def in_shards(ds, fn, name, order=(1, 2, 3, 4), count=4, **how):
    for number in order:
        report = preprocess.run_shard(ds, fn, name, shard=(number, count), **how)
    assert report.missing == ()
    return preprocess.finish(ds, fn, name, **how)


def changed_words(episode):
    episode["info"]["word"] = [None if w is None else f"{w}-{i}" for i, w in enumerate(episode["info"]["word"])]
    return episode


def test_which_parts_a_shard_has():
    for parts in (0, 1, 7, 8, 9, 100):
        for count in (1, 2, 4, 7, 12):
            ranges = [Shard(i, count).parts(parts) for i in range(1, count + 1)]
            assert [n for r in ranges for n in r] == list(range(parts))
            assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fn", "how"),
    [
        (functions.normalise, {}),
        (functions.normalise_batch, {}),
        (functions.normalise_step, {}),
        (functions.smooth, {}),
        (functions.obs_norm, {"arrays": "tensordict"}),
        (functions.halves, {}),
        (functions.good, {"args": {"at_least": 3.0}}),
        (functions.late_change, {"args": {"at": 33}}),
        (functions.noisy, {}),
        (functions.standardise, {}),
        (changed_words, {}),
        ("return_to_go", {"args": {"gamma": 0.9}}),
        ("select_episodes", {"args": {"where": "length > 80"}}),
        ("rename_fields", {"args": {"names": "info=state"}}),
        (functions.fails, {"keep_going": True}),
    ],
    ids=lambda v: getattr(v, "__name__", v) if not isinstance(v, dict) else "",
)
def test_four_shards_give_the_bytes_of_one_job(ds, fn, how):
    alone = preprocess.run(ds, fn, "alone", jobs=0, **how)
    made = in_shards(ds, fn, "shards", (3, 1, 4, 2), jobs=0, **how)
    assert made.fingerprint == alone.fingerprint and made.manifest.shared == alone.manifest.shared
    assert files(made) == files(alone)


@pytest.mark.slow
def test_shards_with_processes_of_their_own_and_any_number_of_shards(ds, home):
    alone = preprocess.run(ds, functions.normalise, "alone", jobs=0)
    made = in_shards(ds, functions.normalise, "shards", (2, 1), 2, jobs=2)
    assert files(made) == files(alone)
    many = in_shards(ds, functions.normalise, "many", range(1, 13), 12, jobs=0)  # more than there are chunks
    assert files(many) == files(alone)
    assert list((home / "partial").iterdir()) == []


CALLS = []  # of the functions below; what a function closes over is part of what it is


def counts(episode):
    CALLS.append(1)
    return {**episode, "action": episode["action"] + 1}


@pytest.mark.thorough
def test_again_and_in_other_numbers(ds):
    CALLS.clear()
    preprocess.run_shard(ds, counts, "again", shard=(1, 2))
    first = len(CALLS)
    report = preprocess.run_shard(ds, counts, "again", shard=(1, 2))
    assert len(CALLS) == first + 3  # looked at, to plan; all chunks were there
    assert (report.parts, report.missing) == (4, (2,))
    for number in (4, 3, 2):  # of four: shard 2 of them is done
        report = preprocess.run_shard(ds, counts, "again", shard=(number, 4))
    assert report.missing == () and len(CALLS) == 60 + 5 * 3
    made = preprocess.finish(ds, counts, "again")
    assert np.array_equal(made.episode(59)["action"], ds.episode(59)["action"] + 1)
    said = []
    report = preprocess.run_shard(ds, counts, "again", shard=(1, 2), progress=said.append)
    assert report.published and "already exists" in said[0].note
    assert preprocess.finish(ds, counts, "again").fingerprint == made.fingerprint


def test_missing_shards_are_named_and_nothing_is_published(ds, home):
    with pytest.raises(PreprocessError, match="There is no shard of local/ds@part") as e:
        preprocess.finish(ds, functions.normalise, "part")
    assert "--shard 1/4" in e.value.hint
    for number in (4, 2):
        report = preprocess.run_shard(ds, functions.normalise, "part", shard=(number, 4), jobs=0)
    assert (report.shard, report.shards, report.parts, report.missing) == (2, 4, 2, (1, 3))
    with pytest.raises(PreprocessError, match="shards 1/4, 3/4 are not finished: 4 of 8 chunks are missing") as e:
        preprocess.finish(ds, functions.normalise, "part")
    assert "Nothing was published" in e.value.message and "--shard 1/4" in e.value.hint
    with pytest.raises(
        PreprocessError, match=r"There is no shard .*; there are others, which differ: fn was normalise, is good"
    ):
        preprocess.finish(ds, functions.good, "part", args={"at_least": 1})
    assert [p.name for p in (home / "datasets" / "local").iterdir()] == ["ds"]


@pytest.mark.thorough
def test_rows_that_were_damaged_are_missing(ds, home):
    for number in (1, 2):
        preprocess.run_shard(ds, functions.normalise, "part", shard=(number, 2), jobs=0)
    rows = next(home.glob("partial/local+ds@part.*/*/segments/5.*/observation/c/0/0"))
    rows.write_bytes(rows.read_bytes()[:-1] + b"\x55")
    with pytest.raises(PreprocessError, match="shard 2/2 is not finished: 1 of 8 chunks"):
        preprocess.finish(ds, functions.normalise, "part")
    assert preprocess.run_shard(ds, functions.normalise, "part", shard=(2, 2), jobs=0).parts == 4
    assert preprocess.finish(ds, functions.normalise, "part").num_episodes == 60


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fn", "shared"),
    [(functions.late_drop, 0), (functions.late_change, 6)],
    ids=["dropped", "changed"],
)
def test_what_one_shard_learns_completes_what_others_did_before(ds, home, fn, shared):
    """Shard 1 assumes that all episodes stay, and fields are shared; shard 2 meets one that shows otherwise."""
    how = {"args": {"at": 40}, "jobs": 0}
    alone = preprocess.run(ds, fn, "alone", **how)
    assert preprocess.run_shard(ds, fn, "part", shard=(1, 2), **how).missing == (2,)
    assert not list(home.glob("partial/*/*/segments/*/action"))
    report = preprocess.run_shard(ds, fn, "part", shard=(2, 2), **how)
    assert report.missing == () and len(list(home.glob("partial/*/known-*.json"))) == 1
    made = preprocess.finish(ds, fn, "part", **how)
    assert files(made) == files(alone) and len(made.manifest.shared) == shared
    assert made.num_episodes == (59 if shared == 0 else 60)


def drops(episode, at, partial):
    """At episode 20 another shard finds that not all episodes stay."""
    number = int(episode["info"]["number"][0])
    CALLS.append(number)
    if number == 20 and CALLS.count(20) == 1:
        known = {"touched": [], "kept": False, "apart": []}
        (next(Path(partial).iterdir()) / "known-elsewhere.json").write_text(json.dumps(known))
    return None if number == at else episode


def test_shards_at_work_go_by_what_another_learns(ds, home):
    """What was done before is completed, not repeated."""
    CALLS.clear()
    how = {"args": {"at": 50, "partial": str(home / "partial")}, "jobs": 0}
    preprocess.run_shard(ds, drops, "part", shard=(1, 1), **how)
    assert CALLS.count(3) == 1  # of a chunk finished before; 0, 30 and 59 are looked at again
    made = preprocess.finish(ds, drops, "part", **how)
    assert made.fingerprint == preprocess.run(ds, functions.late_drop, "alone", args={"at": 50}).fingerprint


def test_what_cannot_be_completed_is_done_again(ds):
    """A new field and its next are one to shard 1; shard 2 meets a step at which they differ."""
    how = {"args": {"at": 40}, "jobs": 0}
    alone = preprocess.run(ds, functions.late_pair, "alone", **how)
    preprocess.run_shard(ds, functions.late_pair, "part", shard=(1, 2), **how)
    report = preprocess.run_shard(ds, functions.late_pair, "part", shard=(2, 2), **how)
    assert report.missing == (1,)
    with pytest.raises(PreprocessError, match="shard 1/2 is not finished: 4 of 8 chunks"):
        preprocess.finish(ds, functions.late_pair, "part", **how)
    preprocess.run_shard(ds, functions.late_pair, "part", shard=(1, 2), **how)
    assert files(preprocess.finish(ds, functions.late_pair, "part", **how)) == files(alone)


def test_a_failure_keeps_what_is_finished(ds):
    with pytest.raises(PreprocessError, match=r"on episode 4 .*Finished chunks are kept") as e:
        preprocess.run_shard(ds, functions.fails, "part", shard=(1, 2), jobs=0)
    assert e.value.hint.endswith("--episode 4 -j 0") and isinstance(e.value.__cause__, KeyError)
    assert preprocess.run_shard(ds, functions.fails, "part", shard=(2, 2), jobs=0).missing == (1,)


@pytest.mark.thorough
def test_names_that_are_taken(ds):
    preprocess.run(ds, functions.same, "taken")
    for call in (preprocess.finish, lambda *a: preprocess.run_shard(*a, shard=(1, 1))):
        with pytest.raises(NameTaken, match="fn was same, is normalise"):
            call(ds, functions.normalise, "taken")
    preprocess.run_shard(ds, functions.normalise, "taken", shard=(1, 1), force=True)
    made = preprocess.finish(ds, functions.normalise, "taken", force=True)
    assert "observation_raw" in made.schema


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shard", [(0, 4), (5, 4), (1, 0), (-1, 4), (1,), ("a", 2), None])
def test_shards_that_are_none(ds, shard):
    with pytest.raises(PreprocessError, match="There is no shard"):
        preprocess.run_shard(ds, functions.same, shard=shard)


@pytest.mark.thorough
def test_an_ordinary_job_leaves_shards_alone_that_are_at_work(ds, home):
    preprocess.run_shard(ds, functions.normalise, "part", shard=(1, 2), jobs=0)
    work = next((home / "partial").iterdir())
    assert not is_running(work)
    preprocess.run(ds, functions.normalise, "part")  # the same: its shards wait, and are in nobody's way
    assert work.exists()
    preprocess.run(ds, functions.same, "part", force=True)
    assert not work.exists()


# -- processes of their own

_RUN = """
import sys
from rlds_cli import preprocess
from rlds_cli.preprocess import job
import preprocess_functions as f

if __name__ == "__main__":
    job.PART_ROWS = {rows}
    number, count, jobs = map(int, sys.argv[2:5])
    preprocess.run_shard("local/ds", getattr(f, sys.argv[1]), "part", shard=(number, count), jobs=jobs)
"""


@pytest.fixture
def start(tmp_path):
    script = tmp_path / "shard_of_the_test.py"
    script.write_text(_RUN.format(rows=ROWS))

    def start(fn, number, count, jobs=0):
        return subprocess.Popen(
            [sys.executable, str(script), fn, str(number), str(count), str(jobs)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
            stderr=subprocess.PIPE,
        )

    return start


def lines(home):
    found = [p.read_text().count("\n") for p in home.glob("partial/local+ds@part.*/*/journals/*")]
    return sum(found) - len(found)


def wait(done, process):
    deadline = time.monotonic() + 60
    while not done() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert process.poll() is None, process.communicate()


@pytest.mark.slow
def test_shards_that_are_killed_are_gone_on_with(ds, home, start):
    undisturbed = preprocess.run(ds, functions.slow, "undisturbed", jobs=0)
    for before, (number, jobs) in zip((1, 2, 4), ((1, 0), (2, 2), (1, 0)), strict=True):
        process = start("slow", number, 2, jobs)
        wait(lambda before=before: lines(home) >= before, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        with pytest.raises(PreprocessError, match="not finished"):
            preprocess.finish(ds, functions.slow, "part")
    said = []
    for number in (2, 1):
        preprocess.run_shard(ds, functions.slow, "part", shard=(number, 2), progress=said.append)
    assert any("resumed" in e.note for e in said)
    made = preprocess.finish(ds, functions.slow, "part")
    assert files(made) == files(undisturbed)
    assert list((home / "partial").iterdir()) == []


@pytest.mark.slow
def test_all_at_once_and_one_of_them_twice(ds, home, start):
    alone = preprocess.run(ds, functions.standardise, "alone", jobs=0)
    processes = [start("standardise", n, 3) for n in (1, 2, 3, 2)]
    work = None
    while any(p.poll() is None for p in processes):
        if work is None and (found := list(home.glob("partial/local+ds@part.*/running/*.lock"))):
            work = found[0].parents[1]
            assert is_running(work)
            assert [g.path for g in gc.find_garbage().removed] == []
        time.sleep(0.01)
    for p in processes:
        _, error = p.communicate()
        assert p.returncode == 0, error
    assert work is not None and not is_running(work)
    _, *records = (work / "state.jsonl").read_text().splitlines()
    fits = [json.loads(record)["chunk"] for record in records]
    assert sorted(fits) == list(range(-1, 8))  # the first pass was done once
    made = preprocess.finish(ds, functions.standardise, "part")
    assert files(made) == files(alone)


@pytest.mark.thorough
def test_a_finish_that_was_stopped_is_done_again(ds, home, monkeypatch):
    for number in (1, 2):
        preprocess.run_shard(ds, functions.halves, "part", shard=(number, 2), jobs=0)

    def stopped(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr("rlds_cli.preprocess.publish.publish", stopped)
        with pytest.raises(KeyboardInterrupt):
            preprocess.finish(ds, functions.halves, "part")
    place = next(home.glob("partial/local+ds@part.*/*/dataset"))
    shutil.copy(place / "action/c/0/0", place / "left over")
    made = preprocess.finish(ds, functions.halves, "part")
    assert files(made) == files(preprocess.run(ds, functions.halves, "alone"))


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_shard_at_work_is_seen_where_the_system_has_no_flock(home, monkeypatch):
    def refuse(descriptor, how):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    work = home / "partial/local+ds@x.0123456789abcdef-shards"
    with shards._running(work, Home(home)):
        assert is_running(work)
        assert [g.why for g in gc.find_garbage(home=home).kept] == ["locked by another process"]
    assert not is_running(work)
