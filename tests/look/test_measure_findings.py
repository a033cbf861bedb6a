"""Findings from measures: planted faults at two strengths, clean copies, baselines and suppressions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rlds_cli
from rlds_cli.look.checks.check_report import CheckReport
from tests.conftest import run_rlds
from tests.support import planted_faults as faults

CODES = (*faults.FAULTS, faults.DUPLICATE)
PLACES = {code: 4 + 4 * k for k, code in enumerate(CODES)}
OF_KIND = {code: {code} for code in CODES}


def imported(directory: Path, made: list[faults.Episode], id: str = "local/arm") -> rlds_cli.Dataset:
    home = directory / "home"
    return rlds_cli.import_files(faults.write(directory / id.replace("/", "-"), made), id, home=home)


def found_by(report: CheckReport) -> dict[str, set[int]]:
    """Episodes of errors and warnings by code, but those of the whole dataset."""
    found: dict[str, set[int]] = {}
    for f in report.findings:
        if f.severity != "note" and f.num_episodes < 40:
            found.setdefault(f.code, set()).update(f.episodes)
    return found


@pytest.mark.parametrize("strength", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_ten_faults_are_found_by_their_kind(tmp_path: Path, strength: int) -> None:
    ds = imported(tmp_path, faults.planted(PLACES, strength=strength, seed=100 * strength))
    found = found_by(rlds_cli.check(ds, measures=["all"], jobs=0))
    missed = [code for code in CODES if PLACES[code] not in found.get(code, set())]
    assert missed == []
    others = {code: episodes - set(PLACES.values()) for code, episodes in found.items()}
    assert {code: e for code, e in others.items() if e} == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1000, 2000, 3000])
def test_clean_copies_have_no_finding(tmp_path: Path, seed: int) -> None:
    ds = imported(tmp_path, faults.planted({}, seed=seed))
    assert found_by(rlds_cli.check(ds, measures=["all"], jobs=0)) == {}


@pytest.mark.parametrize("name", ["cartpole-minari", "mountaincar-robohive", "pendulum-d4rl"])
def test_sample_archives_have_no_finding_of_measures(tmp_path: Path, name: str) -> None:
    ds = rlds_cli.load(f"sample/{name}", home=tmp_path)
    report = rlds_cli.check(ds, measures=["all"], jobs=0)
    assert [f for f in report.findings if f.check == "measures"] == []
    assert "measures" in report.ok


def test_a_finding_says_episodes_steps_measure_and_siblings(tmp_path: Path) -> None:
    """One of 24 episodes rests for 12 of its steps: the state comes one step later, and the first comes from none."""
    ds = imported(tmp_path, faults.planted({"idle": 5}, strength=1, episodes=24, seed=7))
    (f,) = [f for f in rlds_cli.check(ds, measures=["motion"], jobs=0).findings if f.code == "idle"]
    assert (f.measure, f.episodes, f.severity) == ("quality_idle_share", (5,), "warning")
    (r,) = f.ranges
    assert (r.episode, r.first) == (5, 1)
    assert 12 <= r.stop <= 14
    assert f.siblings is not None
    assert (f.siblings.episodes, f.siblings.median, f.siblings.above) == (8, 0, 0.1)
    assert str(f.places[0]) == "episode 5 step 1"


def test_few_siblings_tell_nothing(tmp_path: Path) -> None:
    ds = imported(tmp_path, faults.planted({"idle": 3}, episodes=7, seed=7))
    assert [f for f in rlds_cli.check(ds, measures=["motion"], jobs=0).findings if f.check == "measures"] == []


def test_commands_measure_suppress_and_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = imported(tmp_path, faults.planted({"idle": 5}, episodes=24, seed=7))
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    done = run_rlds("check", "local/arm", "--measure", "motion,time")
    assert b"motion: 24 episodes to measure" in done.stderr
    assert b"idle" in done.stdout
    assert done.returncode == 0
    again = run_rlds("check", "local/arm", "--measure", "motion")
    assert b"motion: all of 24 episodes are measured" in again.stderr
    again = run_rlds("check", "local/arm", "--measure", "motion", "--json")
    assert again.stderr == b""
    (idle,) = [f for f in json.loads(again.stdout)["findings"] if f["code"] == "idle"]
    assert idle["ranges"][0]["episode"] == 5
    assert run_rlds("check", "local/arm", "--measure", "motion", "--episodes", "idle").stdout == b"episode in [5]\n"
    # a baseline: nothing is new until an episode is
    ds.label(seen=True)
    assert run_rlds("check", "local/arm", "--measure", "motion", "--since", "v1").returncode == 0
    assert run_rlds("check", "local/arm", "--suppress", "idle", "--measure", "motion").returncode != 0
    reason = ("--reason", "they wait for a person")
    assert run_rlds("check", "local/arm", "--measure", "motion", "--suppress", "idle", *reason).returncode == 0
    report = json.loads(run_rlds("check", "local/arm", "--measure", "motion", "--json").stdout)
    assert [f["code"] for f in report["findings"] if f["check"] == "measures"] == []
    assert [(s["finding"]["code"], s["reason"]) for s in report["suppressed"]] == [("idle", reason[1])]
    assert run_rlds("check", "local/arm", "--measure", "everything").returncode != 0


def test_new_findings_fail_a_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    episodes = faults.planted({"idle": 5, "time-jump": 26}, episodes=27, seed=7)
    imported(tmp_path, episodes[:24])
    more = faults.write(tmp_path / "more", episodes[24:])
    assert run_rlds("append", "local/arm", more).returncode == 0
    done = run_rlds("check", "local/arm", "--measure", "motion,time", "--since", "v1", "--json")
    assert done.returncode == 3
    report = json.loads(done.stdout)
    assert {f["code"] for f in report["findings"] if f["check"] == "measures"} == {"time-jump"}
    assert "idle" in {f["code"] for f in report["known"]}
    assert report["since"] == 1


def two_cameras(seed: int, **more: object) -> dict[str, object]:
    """An episode of a dark camera and a light one."""
    rng = np.random.default_rng(seed)
    q = np.cumsum(rng.normal(0, 0.1, (20, 3)), axis=0)
    dark, light = (rng.integers(a, a + 40, (20, 16, 16, 3), np.uint8) for a in (20, 180))
    return {"observation": {"a": dark, "b": light, "q": q}, "action": q, "next": {"reward": np.ones(20)}, **more}


def test_cameras_texts_and_rewards(tmp_path: Path) -> None:
    episodes = [two_cameras(k, episode={"task": f"task {k % 2}", "success": True}) for k in range(20)]
    swapped, black, empty, unpaid, near = (dict(episodes[k]) for k in (3, 5, 7, 9, 11))
    swapped["observation"] = {
        **swapped["observation"],
        "a": swapped["observation"]["b"],
        "b": swapped["observation"]["a"],
    }
    black["observation"] = {**black["observation"], "b": np.zeros((20, 16, 16, 3), np.uint8)}
    empty["episode"] = {"success": True}
    unpaid["next"] = {"reward": np.zeros(20)}
    near["observation"] = {**near["observation"], "q": episodes[13]["observation"]["q"] + 1e-3}
    near["action"] = near["observation"]["q"]
    for k, e in ((3, swapped), (5, black), (7, empty), (9, unpaid), (11, near)):
        episodes[k] = e
    ds = rlds_cli.create("local/two", episodes, home=tmp_path)
    found = {f.code: f.episodes for f in rlds_cli.check(ds, measures=["all"], jobs=0).findings if f.check == "measures"}
    expected = {
        "swapped-camera": (3,),
        "black-camera": (5,),
        "empty-task": (7,),
        "success-mismatch": (9,),
        "near-duplicate": (11, 13),
    }
    assert {code: found.get(code) for code in expected} == expected
