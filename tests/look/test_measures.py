"""Measures of episodes: their numbers against ones that are worked out by hand, and where they are kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rlds_cli
from rlds_cli.dataset import Rows
from rlds_cli.errors import RldsError
from rlds_cli.look.measures import blocks
from rlds_cli.look.measures.roles import Roles
from rlds_cli.look.measures.rules import RULES
from rlds_cli.look.measures.vectors import Vectors
from rlds_cli.measures import MEASURES, Measures
from tests.conftest import run_rlds


def made(episodes: list[dict[str, np.ndarray]], home: Path, id: str = "local/arm") -> rlds_cli.Dataset:
    """Make a dataset of episodes with observation, action and further fields."""
    return rlds_cli.create(id, episodes, home=home)


def arm(steps: int = 40, *, rest: int = 0, seed: int = 0) -> dict[str, np.ndarray]:
    """Return an arm that rests, and then follows sines; states come one step after their commands."""
    rng = np.random.default_rng(seed)
    t = np.maximum(0, np.arange(steps) - rest)[:, None]
    action = np.sin(t * rng.uniform(0.2, 0.4, 3))
    return {"observation": np.concatenate([action[:1], action[:-1]]), "action": action}


def column(ds: rlds_cli.Dataset, name: str) -> np.ndarray:
    m = Measures(ds)
    m.compute([next(x.group for x in MEASURES if x.name == name)], jobs=0)
    return Measures(ds).column(name)


def test_idle_steps_come_in_runs_of_seven(tmp_path: Path) -> None:
    """The state rests one step longer than the command, and the first step comes from none."""
    ds = made([arm(rest=0), arm(rest=5), arm(rest=10), arm(rest=20)], tmp_path)
    assert column(ds, "quality_idle_run").tolist() == [0, 0, 10, 20]
    assert column(ds, "quality_idle_start").tolist() == [0, 0, 10, 20]
    assert column(ds, "quality_idle_share").tolist() == [0, 0, 10 / 40, 20 / 40]


def test_states_follow_their_actions_by_one_step(tmp_path: Path) -> None:
    episodes = [arm(seed=k) for k in range(10)]
    episodes[3]["action"] = np.concatenate([episodes[3]["action"][:1], episodes[3]["action"][:-1]])
    episodes[4]["action"] = episodes[4]["action"] * [1, -1, 1]
    ds = made(episodes, tmp_path)
    lag, sign = column(ds, "quality_action_lag"), column(ds, "quality_action_sign")
    assert np.allclose(np.delete(lag, [3, 4]), 1, atol=0.2)
    assert lag[3] == pytest.approx(0, abs=0.2)
    assert sign[4] < -0.9 < 0.9 < np.delete(sign, 4).min()


def test_stamps_tell_rate_gaps_and_steps_back(tmp_path: Path) -> None:
    stamps = [np.arange(40) / 20.0 for _ in range(3)]
    stamps[1] = stamps[1] + np.where(np.arange(40) >= 9, 0.25, 0)  # 0.05 s and 0.25 more: five periods too many
    stamps[2] = np.where(np.arange(40) == 9, 0.0, stamps[2])
    ds = made([{**arm(), "info": {"timestamp": s}} for s in stamps], tmp_path)
    assert column(ds, "quality_rate") == pytest.approx([20, 20, 20])
    assert column(ds, "quality_time_gap") == pytest.approx([0, 5, 9])
    assert column(ds, "quality_time_back").tolist() == [0, 0, 1]


def test_openpi_keeps_ranges_of_sixteen_without_their_last_ten(tmp_path: Path) -> None:
    """Frames 5 to 14 repeat one velocity: 10 idle ones. 5 before are too few to keep; of the 25 behind, 15 stay."""
    velocity = np.arange(40.0)
    velocity[4:15] = 4
    episode = {"observation": arm()["observation"], "action": {"joint_velocity": velocity[:, None]}}
    ds = made([episode], tmp_path)
    assert column(ds, "quality_openpi_idle_share") == pytest.approx([1 - 15 / 40])


def test_openpis_rule_needs_velocities(tmp_path: Path) -> None:
    ds = made([arm()], tmp_path)
    with pytest.raises(RldsError, match="joint velocities"):
        column(ds, "quality_openpi_idle_share")


def test_jumps_wraps_and_frozen_fields(tmp_path: Path) -> None:
    jump, wrap, frozen = arm(seed=1), arm(seed=1), arm(seed=1)
    jump["observation"] = np.delete(jump["observation"], range(10, 15), axis=0)
    jump["action"] = np.delete(jump["action"], range(10, 15), axis=0)
    wrap["observation"][20:, 0] += 2 * np.pi
    two = {"a": frozen["observation"].copy(), "b": frozen["observation"] + 1}
    two["a"][12:21] = two["a"][12]
    ds = made([arm(seed=1), jump, wrap], tmp_path)
    assert column(ds, "quality_motion_jump").argmax() != 0
    assert column(ds, "quality_wraps").tolist() == [0, 0, 1]
    other = made([{"observation": two, "action": frozen["action"]}], tmp_path, "local/two")
    assert column(other, "quality_frozen_signal").tolist() == [8]


def test_saturated_actions_keep_their_extremes(tmp_path: Path) -> None:
    """A sine is beyond 0.5 in two thirds of its steps; steps at rest do not count."""
    sine, ramp = np.sin(np.arange(120) * 2 * np.pi / 60)[:, None], np.arange(120)[:, None] / 120
    rest = np.where(np.arange(120) < 60, 0, 1)[:, None] * ramp
    episodes = [
        {"observation": ramp, "action": sine},
        {"observation": ramp, "action": np.clip(sine, -0.5, 0.5)},
        {"observation": rest, "action": rest},
    ]
    values = column(made(episodes, tmp_path), "quality_saturation")
    assert values[0] < 0.1
    assert values[1] == pytest.approx(2 / 3, abs=0.03)
    assert values[2] < 0.1


def test_values_that_are_not_finite_are_counted_and_do_not_spread(tmp_path: Path) -> None:
    broken = arm(seed=2)
    broken["observation"][7, 1] = np.nan
    ds = made([arm(seed=2), broken], tmp_path)
    assert column(ds, "quality_not_finite").tolist() == [0, 1]
    assert np.isfinite(column(ds, "quality_motion_jump")).all()


def test_measures_are_kept_by_what_was_read(tmp_path: Path) -> None:
    """A selection has its own already; episodes that are appended are the only ones that a next version measures."""
    ds = made([arm(seed=k) for k in range(6)], tmp_path)
    Measures(ds).compute(["motion"], jobs=0)
    some = ds.select(episodes=[4, 1]).save("some", home=tmp_path)
    assert Measures(some).costs(["motion"])[0].episodes == 0
    assert Measures(some).column("quality_jerk").tolist() == column(ds, "quality_jerk")[[4, 1]].tolist()
    labelled = ds.label(good=True)
    assert Measures(labelled).costs(["motion"])[0].episodes == 0
    other = made([arm(seed=k) for k in range(7)], tmp_path / "other")
    assert Measures(other).costs(["motion"])[0].episodes == 7


def test_columns_of_measures_select_and_become_labels(tmp_path: Path) -> None:
    ds = made([arm(rest=r) for r in (0, 10, 20)], tmp_path)
    with pytest.raises(RldsError, match="not computed") as e:
        ds.select(where="quality_idle_share < 0.3")
    assert e.value.hint == "rlds check local/arm --measure motion"
    Measures(ds).compute(["motion"], jobs=0)
    assert ds.select(where="quality_idle_share < 0.3").episodes.index.tolist() == [0, 1]
    assert ds.episodes["quality_idle_run"].tolist() == [0, 10, 20]
    assert ds.select(episodes=[2]).episodes["quality_idle_run"].tolist() == [20]
    fingerprint = ds.fingerprint
    assert rlds_cli.open_dataset("local/arm", home=tmp_path).fingerprint == fingerprint


def test_a_directory_of_a_stranger_has_measures_of_its_own(tmp_path: Path) -> None:
    """Its digests are claims: measures of the dataset that it says to be are not taken for its own."""
    import shutil

    ds = made([arm(seed=k) for k in range(3)], tmp_path / "home")
    Measures(ds).compute(["motion"], jobs=0)
    shutil.copytree(ds.path, tmp_path / "elsewhere" / "arm")
    copy = rlds_cli.open_dataset(tmp_path / "elsewhere" / "arm")
    m = Measures(copy, home=tmp_path / "home")
    assert m.costs(["motion"])[0].episodes == 3
    m.compute(["motion"], jobs=0)
    assert len(list((tmp_path / "home" / "measures").iterdir())) == 2


def test_a_torn_file_is_continued(tmp_path: Path) -> None:
    ds = made([arm(seed=k) for k in range(3)], tmp_path)
    Measures(ds).compute(["motion"], jobs=0)
    wanted = Measures(ds).column("quality_jerk")
    (file,) = (tmp_path / "measures" / "local+arm").glob("motion-*.jsonl")
    file.write_bytes(file.read_bytes()[:-9])
    assert Measures(ds).costs(["motion"])[0].episodes == 3
    Measures(ds).compute(["motion"], jobs=0)
    assert Measures(ds).column("quality_jerk").tolist() == wanted.tolist()
    file.write_text('{"key": "' + file.stem.partition("-")[2] + '"}\n{"episodes": 3, "values": {"x": [1, [2]]}}\n')
    assert Measures(ds).costs(["motion"])[0].episodes == 3


def test_own_functions_are_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    made([arm(seed=k) for k in range(3)], tmp_path)
    (tmp_path / "my.py").write_text(
        "def grip(episode):\n    return {'most': episode['action'].max(), 'n': len(episode['action'])}\n"
    )
    done = run_rlds("check", "local/arm", "--fn", f"{tmp_path}/my.py:grip", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    ds = rlds_cli.open_dataset("local/arm")
    assert ds.episodes["quality_grip_n"].tolist() == [40, 40, 40]
    assert ds.episodes["quality_grip_most"].tolist() == [float(ds.episode(k)["action"].max()) for k in range(3)]
    (tmp_path / "wrong.py").write_text("def wrong(episode):\n    return 'many'\n")
    done = run_rlds("check", "local/arm", "--fn", f"{tmp_path}/wrong.py:wrong", "--quick")
    assert done.returncode != 0
    assert b"returns str for local/arm, episode 0" in done.stderr


def test_the_list_explains_all_measures() -> None:
    done = run_rlds("check", "--list", "--json")
    told = {m["name"]: m for m in json.loads(done.stdout)}
    assert set(told) == {m.name for m in MEASURES}
    assert all(
        m["unit"] and m["text"].endswith(".") and m["source"] and m["name"].isidentifier() for m in told.values()
    )
    assert {limit["code"] for m in told.values() for limit in m["findings"] if limit["why"]} == {r.code for r in RULES}
    listed = run_rlds("check", "--list").stdout
    assert listed.count(b"group camera") == 8
    assert b"finding idle: a tenth of the episode" in listed


def test_the_home_knows_its_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`du` counts them, `rm` takes them along, and `gc` removes those of a dataset that is gone."""
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    Measures(made([arm()], tmp_path)).compute(["motion"], jobs=0)
    Measures(made([arm()], tmp_path, "local/other")).compute(["motion"], jobs=0)
    assert json.loads(run_rlds("du", "--json").stdout)["measures"] > 0
    assert run_rlds("rm", "local/arm", "--yes").returncode == 0
    assert [d.name for d in (tmp_path / "measures").iterdir()] == ["local+other"]
    (tmp_path / "measures" / "local+gone").mkdir()
    assert run_rlds("gc", "--yes").returncode == 0
    assert [d.name for d in (tmp_path / "measures").iterdir()] == ["local+other"]


def test_measures_are_shown_and_become_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    made([arm(rest=r) for r in (0, 10, 20)], tmp_path)
    assert (
        b"rlds check local/arm --measure motion" in run_rlds("label", "local/arm", "--measures", "quality_jerk").stderr
    )
    assert run_rlds("check", "local/arm", "--measure", "motion").returncode == 0
    shown = json.loads(run_rlds("inspect", "local/arm", "--episode", "1", "--json").stdout)
    assert shown["columns"]["quality_idle_run"] == 10
    done = run_rlds("label", "local/arm", "--measures", "quality_idle_run")
    assert done.returncode == 0, done.stderr
    ds = rlds_cli.open_dataset("local/arm")
    assert ds.store.own_columns == ("quality_idle_run",)
    assert ds.select(where="quality_idle_run == 20").episodes.index.tolist() == [2]
    assert "quality_idle_run" not in ds.episodes.measures
    assert b"is a label already" in run_rlds("label", "local/arm", "--measures", "quality_idle_run").stderr


def test_measures_of_a_dataset_at_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie in the reader's own home; what an index says is part of their key."""
    ds = made([arm(seed=k) for k in range(4)], tmp_path / "home")
    wanted = column(ds, "quality_jerk")
    ds_at = f"{tmp_path}/shared/arm"
    rlds_cli.push(ds, ds_at)
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "reader"))
    there = rlds_cli.open_dataset(ds_at)
    assert there.store.address
    with pytest.raises(RldsError, match="not computed"):
        there.select(where="quality_jerk < 1")
    done = run_rlds("check", ds_at, "--measure", "motion")
    assert done.returncode == 0, done.stderr
    assert rlds_cli.open_dataset(ds_at).episodes["quality_jerk"].tolist() == wanted.tolist()
    (directory,) = (tmp_path / "reader" / "measures").iterdir()
    assert directory.name.startswith("local+arm~")
    assert not any((tmp_path / "shared").rglob("*measures*"))
    assert run_rlds("gc", "--yes").returncode == 0
    assert directory.exists()
    assert run_rlds("gc", "--remote", "--yes").returncode == 0
    assert not directory.exists()


def test_measures_of_a_shared_home_are_in_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    ds = made([arm(seed=k) for k in range(4)], tmp_path / "lab")
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("RLDS_PATH", str(tmp_path / "lab"))
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **how: path != tmp_path / "lab" and allowed(path, mode, **how))
    opened = rlds_cli.open_dataset("local/arm")
    assert opened.path == ds.path
    Measures(opened).compute(["motion"], jobs=0)
    assert (tmp_path / "own" / "measures" / "local+arm").is_dir()
    assert not (tmp_path / "lab" / "measures").exists()
    assert np.isfinite(opened.episodes["quality_jerk"]).all()
    assert run_rlds("gc", "--yes").returncode == 0
    assert (tmp_path / "own" / "measures" / "local+arm").is_dir()


def test_a_growing_dataset_measures_what_is_new(tmp_path: Path) -> None:
    with rlds_cli.writer("local/live", home=tmp_path) as w:
        for k in range(3):
            w.add_episodes([arm(seed=k)])
    ds = rlds_cli.open_dataset("local/live", home=tmp_path)
    Measures(ds).compute(["motion"], jobs=0)
    with rlds_cli.writer("local/live", home=tmp_path) as w:
        w.add_episodes([arm(seed=9)])
    newer = rlds_cli.open_dataset("local/live", home=tmp_path)
    assert Measures(newer).costs(["motion"])[0].episodes == 1
    Measures(newer).compute(["motion"], jobs=0)
    assert len(newer.episodes["quality_jerk"]) == 4
    dropped = newer.select(episodes=[0]).drop()
    assert dropped.episodes["quality_jerk"].tolist() == newer.episodes["quality_jerk"].tolist()[1:]


@pytest.mark.parametrize(
    "episodes",
    [
        [{"observation": np.zeros((t, 2)), "action": np.zeros((t, 1))} for t in (1, 2, 3, 1)],
        [{"observation": np.arange(t), "action": np.zeros(t, np.int64)} for t in (1, 4)],
        [
            {
                "observation": {"a": np.full((5, 3), np.nan), "b": np.full(5, np.inf)},
                "action": np.ones((5, 2), np.float16),
            }
        ],
        [{"observation": np.zeros((3, 8, 8, 3), np.uint8), "action": np.zeros((3, 2))}] * 3,
        [{"observation": np.full((4, 2), 1e300), "action": np.full((4, 2), -1e300), "info": {"t": np.full(4, np.nan)}}],
        [{"observation": np.zeros((4, 2)), "action": np.zeros((4, 2)), "info": {"time": np.arange(4) * 10**9}}],
        [{"observation": np.zeros((4, 2)), "action": np.zeros((4, 0))}],
    ],
    ids=["short", "whole numbers", "not finite", "black", "huge", "nanoseconds", "no elements"],
)
def test_odd_episodes_are_measured(tmp_path: Path, episodes: list[dict[str, np.ndarray]]) -> None:
    """Nothing fails, and shares are shares."""
    ds = made(episodes, tmp_path)
    assert rlds_cli.check(ds, measures=["all"], jobs=0).id == "local/arm"
    for name in ds.episodes.measures:
        values = ds.episodes[name]
        assert values.shape == (len(episodes),)
        if next(m.unit for m in MEASURES if m.name == name) == "share" and name != "quality_jitter":
            assert np.nanmax(values, initial=0) <= 1 + 1e-9
            assert np.nanmin(values, initial=0) >= -1e-9
    if "info" in episodes[0] and "time" in episodes[0]["info"]:
        assert ds.episodes["quality_rate"].tolist() == [1.0]


def test_a_dataset_without_episodes(tmp_path: Path) -> None:
    with rlds_cli.writer("local/live", home=tmp_path) as w:
        w.add_episodes([arm()])
    with rlds_cli.writer("local/live", home=tmp_path) as w:
        w.clear()
    ds = rlds_cli.open_dataset("local/live", home=tmp_path)
    assert ds.num_episodes == 0
    assert [f for f in rlds_cli.check(ds, measures=["all"]).findings if f.check == "measures"] == []


def test_episodes_are_drawn_by_measures(tmp_path: Path) -> None:
    """Weights of a measure: an episode of weight 0 is never drawn."""
    from rlds_cli.loader import Loader, Weighted

    ds = made([arm(rest=r) for r in (0, 20)], tmp_path)
    Measures(ds).compute(["motion"], jobs=0)
    loader = Loader(ds, batch_size=64, sampler=Weighted("quality_idle_run"), fields=["observation", "episode/length"])
    batch = next(iter(loader))
    whole = ds.episode(1)["observation"]
    assert all(np.isclose(row, whole).all(axis=1).any() for row in np.asarray(batch["observation"]))


@pytest.mark.slow
def test_processes_measure_as_one_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (30, 40, 16, 16, 3), np.uint8)
    arms = [arm(seed=k) for k in range(30)]
    episodes = [
        {"observation": {"top": f, "q": e["observation"]}, "action": e["action"]}
        for f, e in zip(frames, arms, strict=True)
    ]
    one, two = (made(episodes, tmp_path / name) for name in ("one", "two"))
    Measures(one).compute(["all"], jobs=0)
    Measures(two).compute(["all"], jobs=2)
    assert one.episodes.measures == two.episodes.measures
    for name in one.episodes.measures:
        assert np.array_equal(one.episodes[name], two.episodes[name], equal_nan=True), name


@pytest.mark.parametrize("text", ["[]", '{"pairs": 3}', "{", None])
def test_roles_that_another_program_has_written_are_learned_anew(tmp_path: Path, text: str | None) -> None:
    ds = made([arm(seed=k) for k in range(6)], tmp_path)
    wanted = column(ds, "quality_action_lag")
    file = tmp_path / "measures" / "local+arm" / "roles.json"
    if text is None:  # an element that there is not
        roles = json.loads(file.read_text())
        roles["pairs"][0]["action"] = 99
        text = json.dumps(roles)
    file.write_text(text)
    assert column(ds, "quality_action_lag").tolist() == wanted.tolist()


def test_an_episode_is_measured_as_if_it_were_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes of all lengths, with gaps in their values, in one block, in small parts of it, and in blocks of one."""
    rng = np.random.default_rng(0)
    episodes = [arm(int(n), rest=int(n) // 9, seed=k) for k, n in enumerate(rng.integers(1, 200, 60))]
    for k, e in enumerate(episodes):
        e["observation"] += rng.normal(0, 0.01, e["observation"].shape)
        e["observation"][len(e["observation"]) // 2, 0] += 8 * (k % 7 == 0)
        e["action"][:, 1] = np.clip(e["action"][:, 1], -1 + 0.9 * (k % 3 == 1), 1)
        e["action"][-1, 0] = np.nan if k % 5 == 0 else 0
        e["info"] = {"timestamp": np.cumsum(rng.normal(1, 0.1, len(e["action"])))}
    rows, roles = Rows(made(episodes, tmp_path)), Measures(rlds_cli.load("local/arm", home=tmp_path)).roles
    roles = roles.learned(rows)
    assert roles.pairs
    monkeypatch.setattr(blocks, "_CACHED_BYTES", 20_000)
    whole, names = blocks.Block(rows, 0, len(episodes)), [*roles.states, *roles.actions, "info/timestamp"]
    parts = list(whole.parts(names))
    assert 10 < len(parts) < 60
    ones = [blocks.Block(rows, k, k + 1) for k in range(len(episodes))]
    together, by_part, alone = ([_measured(b, roles) for b in of] for of in ([whole], parts, ones))
    for name, values in together[0].items():
        for others in (by_part, alone):
            found = np.concatenate([of[name] for of in others])
            np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-5, err_msg=name)


def _measured(block: blocks.Block, roles: Roles) -> dict[str, np.ndarray]:
    v = Vectors(block, roles)
    with np.errstate(all="ignore"):
        return v.time() | v.motion() | v.action()
