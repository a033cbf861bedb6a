"""From findings to data: what is left out, what a manifest and a lock say of it, and the same on another machine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rlds_cli
from rlds_cli.errors import RldsError
from rlds_cli.measures import Measures
from tests.conftest import run_rlds
from tests.support import planted_faults as faults

PLACES = {"idle": 5, "frozen-camera": 9, "time-jump": 13}


@pytest.fixture
def arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> rlds_cli.Dataset:
    """A dataset of 24 episodes, three of which have a fault."""
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    return rlds_cli.import_files(
        faults.write(tmp_path / "files", faults.planted(PLACES, episodes=24, seed=7)), "local/arm"
    )


def account_of(ds: rlds_cli.Dataset) -> list[dict]:
    return json.loads(json.dumps(ds.manifest.provenance[-1]["args"]["measured"]))


def test_findings_are_dropped_with_an_account(arm: rlds_cli.Dataset) -> None:
    refused = run_rlds("select", "local/arm", "--drop-findings", "idle", "--name", "clean")
    assert refused.returncode != 0
    assert b"rlds check local/arm --measure motion" in refused.stderr
    assert run_rlds("check", "local/arm", "--measure", "motion,time").returncode == 0
    done = run_rlds("select", "local/arm", "--drop-findings", "idle,time-jump", "--name", "clean")
    assert done.returncode == 0, done.stderr
    clean = rlds_cli.open_dataset("local/arm@clean")
    assert sorted(set(range(24)) - {5, 13}) == clean.episodes["source_episode"].tolist()
    (account,) = account_of(clean)
    assert account["drop"] == ["idle", "time-jump"]
    assert account["measures"] == {"quality_idle_share": 1, "quality_time_gap": 1}
    idle = next(f for f in account["findings"] if f["code"] == "idle")
    assert (idle["episodes"], idle["siblings"]["above"]) == ([5], 0.1)
    assert [r[0] for r in idle["ranges"]] == [5]
    assert b"--drop-findings idle,time-jump" in run_rlds("log", "local/arm@clean").stdout
    compared = run_rlds("diff", "local/arm", "local/arm@clean").stdout.decode()
    assert "2 only in a: 5, 13" in compared
    assert "b: idle by quality_idle_share: left out of local/arm: 5" in compared
    assert "b: time-jump by quality_time_gap: left out of local/arm: 13" in compared
    assert clean.fingerprint == arm.select(episodes=np.delete(np.arange(24), [5, 13])).fingerprint
    assert run_rlds("select", "local/arm", "--drop-findings", "idel", "--name", "x").returncode != 0


def test_idle_steps_are_cut_out(arm: rlds_cli.Dataset) -> None:
    """The one idle episode keeps its first step, which comes from none, and those behind the rest."""
    Measures(arm).compute(["motion"], jobs=0)
    (r,) = next(f for f in Measures(arm).findings(["motion"]) if f.code == "idle").ranges
    done = run_rlds("select", "local/arm", "--trim", "idle", "--name", "awake")
    assert done.returncode == 0, done.stderr
    awake = rlds_cli.open_dataset("local/arm@awake")
    length = int(arm.episodes["length"][5])
    assert awake.num_episodes == 25
    assert awake.episodes["length"][5:7].tolist() == [r.first, length - r.stop]
    assert account_of(awake)[0]["trim"] == "idle"
    assert run_rlds("select", "local/arm", "--trim", "idling", "--name", "x").returncode != 0


def test_openpis_rule_trims_all_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 frames, of which 5 to 14 repeat one velocity: the range of 25 behind them is kept without its last 10."""
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    velocity = np.arange(40.0)
    velocity[4:15] = 4
    episode = {"observation": velocity[:, None] * 2, "action": {"joint_velocity": velocity[:, None]}}
    ds = rlds_cli.create("local/droid", [episode, {**episode, "action": {"joint_velocity": np.zeros((40, 1))}}])
    Measures(ds).compute(["motion"], jobs=0)
    done = run_rlds("select", "local/droid", "--trim", "openpi-idle", "--name", "kept")
    assert done.returncode == 0, done.stderr
    kept = rlds_cli.open_dataset("local/droid@kept")
    assert kept.episodes["source_step"].tolist() == [15]
    assert kept.episodes["length"].tolist() == [15]
    assert account_of(kept)[0]["rule"]["idle_change"] == 1e-3


def test_another_home_makes_the_same_selection(
    arm: rlds_cli.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes by the episodes in the lock; measures are computed again, and a difference is named."""
    Measures(arm).compute(["motion"], jobs=0)
    Measures(arm).dropping(["idle"]).save("clean")
    arm.select(where="quality_jerk < 0.5").save("smooth")
    wanted = {id: rlds_cli.open_dataset(id).fingerprint for id in ("local/arm@clean", "local/arm@smooth")}
    lock = tmp_path / "rlds.lock"
    lock.write_text(rlds_cli.lock([*wanted]))
    edits = {d["id"]: d.get("edits") for d in json.loads(lock.read_text())["datasets"]}
    assert edits["local/arm@clean"]["measured"][0]["drop"] == ["idle"]
    # the other home has the dataset, and no measures of it
    other = tmp_path / "other"
    rlds_cli.import_files(tmp_path / "files", "local/arm", home=other)
    monkeypatch.setenv("RLDS_HOME", str(other))
    done = run_rlds("sync", lock)
    assert done.returncode == 0, done.stderr
    assert b"has the episodes of the lock" not in done.stderr
    made = {id: rlds_cli.open_dataset(id) for id in wanted}
    assert {id: ds.fingerprint for id, ds in made.items()} == wanted
    assert account_of(made["local/arm@clean"])[0]["findings"][0]["episodes"] == [5]
    # a lock whose account says something else: the episodes are those of the lock, and the difference is named
    content = json.loads(lock.read_text())
    for d in content["datasets"]:
        for account in (d.get("edits") or {}).get("measured", ()):
            for f in account.get("findings", ()):
                f["episodes"] = [6]
    lock.write_text(json.dumps(content))
    for id in wanted:
        assert run_rlds("rm", id, "--yes").returncode == 0
    again = run_rlds("sync", lock)
    assert again.returncode == 0, again.stderr
    assert b"local/arm@clean has the episodes of the lock; idle does not hold here for 1 episode: 6" in again.stderr
    assert rlds_cli.open_dataset("local/arm@clean").fingerprint == wanted["local/arm@clean"]


def test_another_home_decodes_the_frames_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection by a frozen camera is made by the lock, and the measures of cameras are compared as others are."""
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    files = faults.write(tmp_path / "files", faults.planted({"frozen-camera": 5}, episodes=12, steps=38, seed=7))
    ds = rlds_cli.import_files(files, "local/arm")
    Measures(ds).compute(["camera"], jobs=0)
    clean = Measures(ds).dropping(["frozen-camera"]).save("seen")
    assert 5 not in clean.episodes["source_episode"].tolist()
    lock = tmp_path / "rlds.lock"
    lock.write_text(rlds_cli.lock(["local/arm@seen"]))
    rlds_cli.import_files(files, "local/arm", home=tmp_path / "other")
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "other"))
    done = run_rlds("sync", lock)
    assert done.returncode == 0, done.stderr
    assert b"has the episodes of the lock" not in done.stderr
    there = rlds_cli.open_dataset("local/arm")
    assert Measures(there).costs(["camera"])[0].episodes == 0
    (account,) = account_of(rlds_cli.open_dataset("local/arm@seen"))
    account["findings"][0]["episodes"] = [5, 6]
    said = Measures(there).differing(account, jobs=0)
    assert said == ("frozen-camera does not hold here for 1 episode: 6",)


@pytest.mark.parametrize(
    "account",
    [3, {"measures": 3}, {"findings": [{}]}, {"where": "quality_jerk < 1", "among": [[5, 900]]}, {"where": 3}],
)
def test_accounts_of_strangers_are_read_with_care(arm: rlds_cli.Dataset, account: object) -> None:
    Measures(arm).compute(["motion"], jobs=0)
    assert isinstance(Measures(arm).differing(account), tuple)  # type: ignore[arg-type]


def test_an_unknown_code_is_refused(arm: rlds_cli.Dataset) -> None:
    with pytest.raises(RldsError, match="frozen-camra"):
        Measures(arm).dropping(["frozen-camra"])
