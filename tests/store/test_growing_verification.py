"""`rlds verify` of growing datasets: sound ones pass, and each kind of damage is named."""

from __future__ import annotations

import numpy as np
import pytest
from test_growing_compacting import STEPS, episode, recorded

import rlds_cli
from rlds_cli.errors import RldsError
from rlds_cli.keep import compacting
from rlds_cli.keep.verification import verify
from rlds_cli.store import commits
from rlds_cli.store.growing import logs

KEEPS = [None, rlds_cli.Fifo(episodes=7), rlds_cli.Reservoir(episodes=7, seed=1)]


@pytest.mark.thorough
@pytest.mark.parametrize("keep", KEEPS, ids=["all", "fifo", "reservoir"])
def test_a_sound_dataset_is_verified_before_and_after_compacting(tmp_path, keep):
    ds = recorded(tmp_path, keep, 30)
    found = verify("local/run", expect=ds.fingerprint, home=tmp_path)
    assert found.ok and found.problems == () and found.fingerprint == ds.fingerprint and found.arrays == 5
    assert found.bytes == ds.num_episodes * (STEPS + 1) * (16 * 8 + 4 + 8 + 2)
    compacting.compact("local/run", home=tmp_path)
    assert verify("local/run", home=tmp_path).ok


def damaged(file, at: int, data: bytes = b"\xff") -> None:
    with file.open("r+b") as f:
        f.seek(at)
        f.write(data)


@pytest.fixture
def run(tmp_path):
    ds = recorded(tmp_path, rlds_cli.Reservoir(episodes=7, seed=1), 30)
    g = ds.store.table.commit
    return ds.path, g, tmp_path


def problems(home) -> list[tuple[str, str]]:
    found = verify("local/run", home=home)
    assert not found.ok and found.problems
    return [(p.where, p.what) for p in found.problems]


@pytest.mark.thorough
def test_a_changed_row_is_named_by_its_episode(run):
    path, _, home = run
    ds = rlds_cli.open_dataset(path)
    first = int(ds.episodes["start"][4]) + ds.store.table.commit.first_row
    damaged(path / "action/c/0/0", (first + 3) * 4)
    (problem,) = verify("local/run", home=home).problems
    assert (problem.where, problem.episodes) == ("action", (4, 5))
    assert str(problem) == "action: episode 4 is not as it was written"


@pytest.mark.thorough
def test_rows_of_episodes_that_left_do_not_matter(run):
    path, g, home = run
    ds = rlds_cli.open_dataset(path)
    kept = {r for a in ds.episodes["start"].tolist() for r in range(a, a + STEPS + 1)}
    gone = next(r for r in range(g.rows - g.first_row) if r not in kept)
    damaged(path / "action/c/0/0", (g.first_row + gone) * 4)
    assert verify("local/run", home=home).ok


def test_a_damaged_record_of_any_version_is_named(run):
    path, g, home = run
    damaged(path / commits.FILE, commits.BYTES * 1 + 20)
    assert problems(home) == [(commits.FILE, "the record of version 1 is damaged")]
    damaged(path / commits.FILE, commits.BYTES * g.number + 20)
    with pytest.raises(RldsError, match=r"damaged|no whole record"):
        rlds_cli.open_dataset(f"local/run#v{g.number}", home=home)


def test_a_segment_or_a_log_that_is_short_or_missing_is_named(run):
    path, _, home = run
    segment = path / "next/reward/c/0"
    size = segment.stat().st_size
    with segment.open("r+b") as f:
        f.truncate(size - 1)
    assert problems(home)[0][0] == "next/reward"
    segment.unlink()
    assert problems(home)[0][0] == "next/reward"
    segment.write_bytes(bytes(size))
    found = verify("local/run", home=home).problems
    assert [(p.where, p.episodes) for p in found] == [("next/reward", (k, k + 1)) for k in range(7)]
    (path / logs.ABOUT).write_bytes(b"")
    assert problems(home)[0][0] == logs.ABOUT


@pytest.mark.thorough
@pytest.mark.parametrize(("log", "at"), [(logs.EPISODES, -1), (logs.DIGESTS, -1), (logs.ABOUT, -4)])
def test_a_changed_log_is_named_by_the_version_that_wrote_it(run, log, at):
    path, g, home = run
    data = (path / log).read_bytes()
    damaged(path / log, len(data) + at, bytes([data[at] ^ 1]))
    assert problems(home) == [("logs", f"are not what version {g.number:,} wrote")]


@pytest.mark.thorough
def test_a_digest_that_is_not_that_of_the_rows_names_field_and_episode(run, monkeypatch):
    path, _, home = run
    monkeypatch.setattr(logs, "broken", lambda *_: None)  # of a stranger, who can hash the logs anew
    fields = sorted(rlds_cli.open_dataset(path).schema)
    number = int(rlds_cli.open_dataset(path).store.table.names_of(np.array([2]))[0]) - 1  # in the logs
    damaged(path / logs.DIGESTS, (number * len(fields) + fields.index("observation")) * logs.DIGEST)
    (problem,) = verify("local/run", home=home).problems
    assert (problem.where, problem.episodes) == ("observation", (2, 3))


@pytest.mark.thorough
def test_a_commit_that_was_not_finished_is_no_damage(run):
    path, g, home = run
    damaged(path / logs.EPISODES, g.episodes * logs.episode(0).itemsize, b"half an episode")
    damaged(path / commits.FILE, (g.number + 1) * commits.BYTES, b"half a record")
    assert verify("local/run", home=home).ok
    with rlds_cli.writer("local/run", home=home) as w:
        w.add_episodes([episode(99)])
    assert verify("local/run", home=home).ok


def test_another_fingerprint_than_expected_is_a_problem(run):
    _, _, home = run
    (problem,) = verify("local/run", expect=f"rlds1:{'0' * 64}", home=home).problems
    assert problem.where == "fingerprint" and f"rlds1:{'0' * 64} expected" in problem.what
