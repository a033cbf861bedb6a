"""Functions over a growing dataset: a second run works on new episodes alone, and gives what a run of all gives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from test_growing_compacting import episode

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import NameTaken, PreprocessError
from rlds_cli.keep import compacting, pinning
from rlds_cli.keep.verification import verify

CALLS: list[float] = []


def doubled(ep):
    """Double the reward; every call is counted by the first observation of its episode."""
    CALLS.append(float(np.ravel(ep["observation"])[0]))
    ep["next"]["reward"] = ep["next"]["reward"] * 2
    ep["feature"] = ep["observation"][:, :2].sum(axis=1)
    return ep


def noisy(ep):
    """Add noise from the global generator."""
    CALLS.append(float(ep["observation"][0, 0]))
    ep["noise"] = np.random.normal(size=len(ep["action"]))
    return ep


def shorter(ep):
    """Drop the last step."""
    CALLS.append(float(ep["observation"][0, 0]))
    return {
        "observation": ep["observation"][:-1],
        "action": ep["action"][:-1],
        "next": {
            "reward": ep["next"]["reward"][:-1],
            "terminated": ep["next"]["terminated"][:-1],
            "truncated": np.arange(len(ep["action"]) - 1) == len(ep["action"]) - 2,
        },
    }


def of_batch(batch):
    """Depend on the whole batch, as no function should."""
    CALLS.append(float(batch["observation"][0, 0]))
    return {"next/reward": batch["next/reward"] - batch["next/reward"].mean(), "kept": batch["observation"][:, 0]}


def of_step(step):
    """Add noise to one step."""
    CALLS.append(float(step["observation"][0]))
    return {"noise": np.float64(step["observation"][0] + np.random.normal())}


def of_dataset(ep, source):
    """Use the dataset that the episode is from."""
    CALLS.append(float(ep["observation"][0, 0]))
    ep["share"] = np.full(len(ep["action"]), 1 / source.num_episodes)
    return ep


def add(home, first: int, last: int, keep=None) -> None:
    with rlds_cli.writer("local/run", keep=keep, home=home) as w:
        w.add_episodes(map(episode, range(first, last)))


def run(home, fn, **how):
    CALLS.clear()
    notes: list[str] = []
    ds = preprocess.run(
        rlds_cli.open_dataset("local/run", home=home), fn, "made", jobs=0, home=home,
        progress=lambda e: notes.append(e.note) if e.note else None, **how,
    )  # fmt: skip
    return ds, [note for note in notes if note]


def files(path: Path) -> dict[str, bytes]:
    """Return the files of a dataset by name; of its manifest, what does not tell the time."""
    found = {f.relative_to(path).as_posix(): f.read_bytes() for f in path.rglob("*") if f.is_file()}
    about = json.loads(found["zarr.json"])["attributes"]["rlds"]
    found["zarr.json"] = json.dumps({k: v for k, v in about.items() if k != "created"}).encode()
    return found


def of_scratch(home, fn, tmp_path, **how) -> dict[str, bytes]:
    """Return the files of a run over all episodes, in a copy of the home without the earlier result."""
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(home, copy)
    for made in (copy / "datasets" / "local").glob("*made*"):
        shutil.rmtree(made)
    ds, _ = run(copy, fn, **how)
    return files(ds.path)


@pytest.mark.thorough
def test_an_ordinary_and_a_growing_dataset_give_the_same(tmp_path):
    add(tmp_path, 0, 12, rlds_cli.Reservoir(episodes=12, seed=1))
    add(tmp_path, 12, 40)
    grown = rlds_cli.open_dataset("local/run", home=tmp_path)
    assert grown.store.table.has_gaps
    rlds_cli.create("local/plain", (grown.episode(k) for k in range(12)), home=tmp_path)
    made, _ = run(tmp_path, doubled)
    other = preprocess.run("local/plain", doubled, "made", jobs=0, home=tmp_path)
    assert made.fingerprint == other.fingerprint
    assert made.episodes["number"].tolist() == grown.episodes["number"].tolist()
    for k, n in enumerate(made.episodes["number"].tolist()):
        assert (made.episode(k)["next/reward"] == 2 * n).all()
        assert made.episode(k)["feature"][0] == pytest.approx(2000 * n + 0.01, rel=1e-12)
    some = preprocess.run(grown.select(episodes=[3, 5]), doubled, "some", jobs=0, home=tmp_path)
    assert some.episodes["number"].tolist() == grown.episodes["number"][[3, 5]].tolist()
    assert made.manifest.provenance[-1]["version"] == grown.version


@pytest.mark.thorough
@pytest.mark.parametrize("fn", [doubled, noisy])
def test_a_second_run_calls_the_function_for_new_episodes_alone(tmp_path, fn):
    home = tmp_path / "home"
    add(home, 0, 30)
    first, _ = run(home, fn)
    add(home, 30, 40)
    second, notes = run(home, fn)
    new = {1000.0 * k for k in range(30, 40)}
    probed = {0.0, 1000.0 * 20, 1000.0 * 39}  # the first, middle and last episode are tried to plan the result
    assert new <= set(CALLS) <= new | probed
    assert any("10 new episodes; 30 of 40 are taken from the result of version" in n for n in notes)
    assert files(second.path) == of_scratch(home, fn, tmp_path)
    assert verify("local/run@made", home=home).ok
    again, notes = run(home, fn)
    assert not CALLS and again.fingerprint == second.fingerprint != first.fingerprint


@pytest.mark.thorough
@pytest.mark.parametrize(
    "keep", [rlds_cli.Fifo(episodes=12), rlds_cli.Reservoir(episodes=12, seed=1)], ids=["fifo", "reservoir"]
)
def test_episodes_that_left_are_gone_from_the_result_and_others_are_taken_over(tmp_path, keep):
    home = tmp_path / "home"
    add(home, 0, 30, keep)
    run(home, noisy)
    before = set(rlds_cli.open_dataset("local/run", home=home).episodes["number"].tolist())
    add(home, 30, 37)
    compacting.compact("local/run", home=home)
    now = rlds_cli.open_dataset("local/run", home=home).episodes["number"].tolist()
    made, _ = run(home, noisy)
    assert made.episodes["number"].tolist() == now
    taken = {1000.0 * k for k in before & set(now)}
    probed = {1000.0 * now[0], 1000.0 * now[6], 1000.0 * now[-1]}
    assert len(taken) >= 5 and not (taken - probed) & set(CALLS)
    assert files(made.path) == of_scratch(home, noisy, tmp_path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("fn", "how"), [(of_batch, {"unit": "batch"}), (of_step, {"unit": "step"})])
def test_calls_of_several_episodes_are_taken_over_as_far_as_they_are_the_same(tmp_path, monkeypatch, fn, how):
    from rlds_cli.preprocess import job

    monkeypatch.setattr(job, "BLOCK_ROWS", 100)  # calls of at most two episodes of 40 steps
    monkeypatch.setattr(job, "STEP_ROWS", 100)
    home = tmp_path / "home"
    add(home, 0, 31)
    run(home, fn, **how)
    add(home, 31, 40)
    made, notes = run(home, fn, **how)
    assert any("10 new episodes; 30 of 40 are taken from" in n for n in notes)  # the call of episode 30 was another
    assert 1000.0 * 30 in CALLS and 1000.0 * 8 not in CALLS
    assert files(made.path) == of_scratch(home, fn, tmp_path, **how)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("fn", "why"), [(shorter, "it changes the lengths of episodes"), (of_dataset, "it receives the whole dataset")]
)
def test_where_results_are_not_those_of_single_episodes_all_are_processed_and_it_says_so(tmp_path, fn, why):
    home = tmp_path / "home"
    add(home, 0, 10)
    run(home, fn)
    add(home, 10, 14)
    made, notes = run(home, fn)
    assert f"all 14 episodes are processed: {why}" in notes
    assert {1000.0 * k for k in range(14)} <= set(CALLS)
    assert files(made.path) == of_scratch(home, fn, tmp_path)


def test_a_damaged_result_is_not_taken_over(tmp_path):
    add(tmp_path, 0, 10)
    made, _ = run(tmp_path, doubled)
    file = made.path / "feature/c/0"
    file.chmod(0o644)
    with file.open("r+b") as f:
        f.write(b"\xff")
    add(tmp_path, 10, 12)
    made, notes = run(tmp_path, doubled)
    assert "all 12 episodes are processed: the earlier result is damaged" in notes
    assert verify("local/run@made", home=tmp_path).ok


@pytest.mark.thorough
def test_another_function_of_the_name_is_refused_and_force_processes_all(tmp_path):
    add(tmp_path, 0, 10)
    run(tmp_path, doubled)
    add(tmp_path, 10, 12)
    with pytest.raises(NameTaken, match="made differently"):
        run(tmp_path, noisy)
    with pytest.raises(NameTaken):
        run(tmp_path, doubled, keep_going=True)
    _, notes = run(tmp_path, doubled, force=True)
    assert len(set(CALLS)) == 12 and not any("taken from" in n for n in notes)


@pytest.mark.thorough
def test_worker_processes_take_over_the_same(tmp_path, monkeypatch):
    from rlds_cli.preprocess import job, reuse

    monkeypatch.setattr(job, "rows_of_chunk", lambda seconds, steps: 100)  # chunks of two episodes
    how = {"args": {"fields": ["action"], "dtype": "float64"}, "progress": False}
    home, copy = tmp_path / "home", tmp_path / "copy"
    add(home, 0, 12, rlds_cli.Reservoir(episodes=12, seed=2))
    preprocess.run("local/run", "cast", "made", jobs=2, home=home, **how)
    add(home, 12, 30)
    shutil.copytree(home, copy)
    made = preprocess.run("local/run", "cast", "made", jobs=2, home=home, **how)
    monkeypatch.setattr(reuse, "find", lambda *_: (None, ""))
    assert files(made.path) == files(preprocess.run("local/run", "cast", "made", jobs=0, home=copy, **how).path)


def test_shards_give_the_same(tmp_path):
    add(tmp_path, 0, 12, rlds_cli.Reservoir(episodes=6, seed=2))
    add(tmp_path, 12, 20)
    how = {"args": {"fields": ["action"], "dtype": "float64"}, "home": tmp_path, "progress": False}
    whole = preprocess.run("local/run", "cast", "whole", **how)
    for number in (1, 2):
        preprocess.run_shard("local/run", "cast", "shards", shard=(number, 2), **how)
    assert preprocess.finish("local/run", "cast", "shards", **how).fingerprint == whole.fingerprint


def test_a_lock_of_a_result_pins_the_version_that_it_was_made_of(tmp_path):
    add(tmp_path, 0, 10)
    run(tmp_path, doubled)
    text = pinning.lock(["local/run@made"], allow_unreproducible=True, home=tmp_path)
    source, made = json.loads(text)["datasets"]
    assert (
        source["version"] == made["made_by"][0]["version"] == rlds_cli.open_dataset("local/run", home=tmp_path).version
    )
    add(tmp_path, 10, 12)
    assert json.loads(pinning.lock(["local/run@made"], allow_unreproducible=True, home=tmp_path)) == json.loads(text)


@pytest.mark.thorough
def test_an_empty_dataset_is_an_error(tmp_path):
    rlds_cli.writer("local/run", like=rlds_cli.create("local/x", [episode(0)], home=tmp_path), home=tmp_path).close()
    with pytest.raises(PreprocessError, match="no episodes"):
        run(tmp_path, doubled)
