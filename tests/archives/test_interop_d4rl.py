"""The D4RL helpers against slow ones that read the archive itself, row by row."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from conftest import DATA, write_d4rl
from d4rl_files import flags, ramp, write
from hypothesis import given, settings
from hypothesis import strategies as st
from made_once import sample_dataset

import rlds_cli
from rlds_cli.errors import InvalidEpisode, NoReward, Offline, RldsError, UnknownDataset, UnknownField
from rlds_cli.interop import d4rl
from rlds_cli.make.importing import import_files
from rlds_cli.registry import lookup

ROOT = Path(__file__).parents[2]
PENDULUM = ROOT / "rlds_cli/samples/pendulum-d4rl.hdf5"
KITCHEN = DATA / "d4rl/kitchen_layout-v0.hdf5"
HOPPER = DATA / "d4rl/hopper_random_layout-v2.hdf5"
KEYS = ("observations", "actions", "next_observations", "rewards", "terminals")


class Env:
    """An environment with a time limit, and data of its own where it is given a file."""

    def __init__(self, limit: int | None = None, file: Path | None = None, name: str | None = None) -> None:
        self.spec = SimpleNamespace(id=name, max_episode_steps=None) if name else None
        if limit is not None:
            self._max_episode_steps = limit
        if file is not None:
            self.get_dataset = lambda h5path=None: columns_of(h5path or file)


def columns_of(path: Path) -> dict[str, np.ndarray]:
    """What D4RL reads of a file: every dataset under its full key, rewards and terminals [N]."""
    found: dict[str, np.ndarray] = {}
    with h5py.File(path) as f:
        f.visititems(lambda key, d: found.update({key: d[()]}) if isinstance(d, h5py.Dataset) else None)
    for key in ("rewards", "terminals"):
        if found[key].ndim == 2:
            found[key] = found[key][:, 0]
    return found


def is_last(columns: dict[str, np.ndarray], row: int, count: int, limit: int | None) -> bool:
    if "timeouts" in columns:
        return bool(columns["timeouts"][row])
    assert limit is not None
    return count == limit - 1


def slow_transitions(columns: dict[str, np.ndarray], limit: int | None, to_the_end: bool) -> dict[str, np.ndarray]:
    """The old helper, a row at a time: every row but the file's last is paired with the row below it."""
    made: dict[str, list] = {key: [] for key in KEYS}
    count = 0
    for row in range(len(columns["rewards"]) - 1):
        out_of_time = is_last(columns, row, count, limit)
        if out_of_time and not to_the_end:
            count = 0
            continue
        over = bool(columns["terminals"][row])
        for key, value in (
            ("observations", columns["observations"][row]),
            ("actions", columns["actions"][row]),
            ("next_observations", columns["observations"][row + 1]),
            ("rewards", columns["rewards"][row]),
        ):
            made[key].append(np.asarray(value).astype(np.float32))
        made["terminals"].append(over)
        count = 1 if over or out_of_time else count + 1
    return {key: np.array(values) for key, values in made.items()}


def slow_sequences(columns: dict[str, np.ndarray], limit: int | None) -> list[dict[str, np.ndarray]]:
    rows = len(columns["rewards"])
    episodes, start, count = [], 0, 0
    for row in range(rows):
        if bool(columns["terminals"][row]) or is_last(columns, row, count, limit):
            kept = {k: v for k, v in columns.items() if not k.startswith("metadata/")}
            episodes.append({k: np.array([v[i] for i in range(start, row + 1)]) for k, v in kept.items()})
            start, count = row + 1, 0
        count += 1
    return episodes


def check_same(ours: dict[str, np.ndarray], slow: dict[str, np.ndarray]) -> None:
    assert set(ours) == set(slow)
    for key, values in slow.items():
        np.testing.assert_array_equal(ours[key], values, err_msg=key)
        assert ours[key].dtype == values.dtype and ours[key].shape == values.shape, key


def check_against_slow(source: object, path: Path, limit: int | None = None) -> None:
    env, columns = Env(limit), columns_of(path)
    for to_the_end in (False, True):
        ours = d4rl.qlearning_dataset(env, source, to_the_end)
        assert ours["rewards"].dtype == np.float32 and ours["terminals"].dtype == bool
        check_same(ours, slow_transitions(columns, limit, to_the_end))
    episodes = list(d4rl.sequence_dataset(env, source))
    expected = slow_sequences(columns, limit)
    assert len(episodes) == len(expected)
    for ours, slow in zip(episodes, expected, strict=True):
        check_same(ours, slow)


# -- exact to the old helper


def archive_in_all_variety(path: Path, seed: int, *, timeouts: bool, after: bool) -> Path:
    """Rows with flags at random, a few of both kinds at once; the last episode is open for even seeds."""
    rng = np.random.default_rng(seed)
    n = 60
    terminals, out_of_time = rng.random(n) < 0.1, rng.random(n) < 0.1
    terminals[-1] = seed % 2
    observation = rng.standard_normal((n, 3))
    ends = terminals | out_of_time if timeouts else terminals
    columns = {
        "observations": observation if seed % 3 else observation.astype(np.float32),
        "actions": rng.standard_normal((n, 2)).astype(np.float32),
        "rewards": rng.standard_normal((n, 1) if seed % 2 else n),
        "terminals": terminals.astype([bool, np.float32, np.uint8][seed % 3]),
        "infos__qpos": rng.standard_normal((n, 2)),
        "metadata__iteration": np.int64(3),
        "metadata__policy__bias": np.zeros(5),
    }
    if timeouts:
        columns["timeouts"] = out_of_time
    if after:
        following = np.roll(observation, -1, axis=0)
        following[ends] += 1
        following[-1] += 1
        columns["next_observations"] = following.astype(columns["observations"].dtype)
    return write(path, **columns)


@pytest.mark.thorough
@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("timeouts", "after"), [(True, True), (True, False), (False, True), (False, False)])
def test_archives_of_every_kind(tmp_path: Path, seed: int, timeouts: bool, after: bool) -> None:
    path = archive_in_all_variety(tmp_path / "a.hdf5", seed, timeouts=timeouts, after=after)
    ds = import_files(path, "local/a")
    check_against_slow(ds, path, limit=7)
    check_against_slow(columns_of(path), path, limit=7)


@pytest.mark.thorough
@pytest.mark.parametrize(("path", "limit"), [(PENDULUM, None), (HOPPER, None), (KITCHEN, 280)])
def test_samples(path: Path, limit: int | None) -> None:
    check_against_slow(import_files(path, "local/a"), path, limit)


@pytest.mark.thorough
def test_compressed_datasets(tmp_path: Path) -> None:
    write_d4rl(tmp_path / "a.hdf5", [4, 7, 1, 9])
    check_against_slow(import_files(tmp_path / "a.hdf5", "local/a", storage="zarr"), tmp_path / "a.hdf5")


def test_timeouts_that_end_nothing(tmp_path: Path) -> None:
    """Under another rule the archive's timeouts are a field, and an episode may end without one."""
    n = 12
    observation = ramp(n)
    after = observation + 1
    columns = {"observations": observation, "actions": ramp(n), "rewards": np.arange(n, dtype=np.float32)}
    after[[3, 8]] += 7  # episodes end here, as the next observations show, and the timeouts lie beside it
    columns |= {"next_observations": after, "terminals": flags(n, 6), "timeouts": flags(n, 4, 10)}
    path = write(tmp_path / "a.hdf5", **columns)
    ds = import_files(path, "local/a", episodes_by="jumps")
    assert ds.episodes["length"].tolist() == [4, 5, 3]
    check_against_slow(ds, path)
    fixed = d4rl.qlearning_dataset(ds, fixed=True)
    np.testing.assert_array_equal(fixed["next_observations"], after)
    assert [len(e["rewards"]) for e in d4rl.sequence_dataset(ds, fixed=True)] == [4, 5, 3]
    assert [e["timeouts"].tolist() for e in d4rl.sequence_dataset(ds, fixed=True)] == [
        [False] * 3 + [True], [False] * 4 + [True], [False] * 2 + [True],
    ]  # fmt: skip


@pytest.mark.thorough
def test_ends_that_the_archive_forgot_stay_forgotten(tmp_path: Path) -> None:
    n = 20
    after = ramp(n) + 1
    after[6] += 5
    columns = {"observations": ramp(n), "actions": ramp(n), "rewards": np.ones(n), "next_observations": after}
    path = write(tmp_path / "a.hdf5", **columns, terminals=flags(n, 12), timeouts=flags(n))
    ds = import_files(path, "local/a")
    assert ds.episodes["length"].tolist() == [7, 6, 7] and ds.episodes["end"].tolist() == ["cut", "terminated", "cut"]
    check_against_slow(ds, path)
    assert [len(e["rewards"]) for e in d4rl.sequence_dataset(ds, fixed=True)] == [7, 6, 7]


def test_next_observations_that_are_no_rows_after(tmp_path: Path) -> None:
    n = 40
    columns = {"observations": ramp(n), "actions": ramp(n), "rewards": np.ones(n), "next_observations": ramp(n) + 0.25}
    path = write(tmp_path / "a.hdf5", **columns, terminals=flags(n, 12), timeouts=flags(n, 30))
    ds = import_files(path, "local/a")
    assert "next/observation" in ds.schema
    check_against_slow(ds, path)
    np.testing.assert_array_equal(d4rl.qlearning_dataset(ds, fixed=True)["next_observations"], ramp(n) + 0.25)


@pytest.mark.thorough
@settings(max_examples=100)
@given(terminals=st.lists(st.booleans(), min_size=1, max_size=40), limit=st.integers(1, 9))
def test_time_limits_are_counted_as_by_the_old_helper(terminals: list[bool], limit: int) -> None:
    n = len(terminals)
    columns = {
        "observations": np.arange(n, dtype=np.float32)[:, None],
        "actions": np.zeros((n, 1), np.float32),
        "rewards": np.zeros(n, np.float32),
        "terminals": np.array(terminals),
    }
    ours = d4rl.qlearning_dataset(Env(limit), columns)
    slow = slow_transitions(columns, limit, False)
    assert ours["observations"].ravel().tolist() == slow["observations"].ravel().tolist()
    assert ours["next_observations"].ravel().tolist() == slow["next_observations"].ravel().tolist()
    lengths = [len(e["rewards"]) for e in slow_sequences(columns, limit)]
    assert [len(e["rewards"]) for e in d4rl.sequence_dataset(Env(limit), columns)] == lengths


def test_by_hand() -> None:
    """o0 o1 o2 | p0 p1 | q0 q1: a timeout at 2, a terminal at 4, an open end."""
    columns = {
        "observations": np.array([[0.0], [1], [2], [10], [11], [20], [21]]),
        "actions": np.zeros((7, 1)),
        "rewards": np.arange(7.0),
        "terminals": flags(7, 4),
        "timeouts": flags(7, 2),
    }

    def pairs(**options: bool) -> list[tuple[float, float, bool]]:
        made = d4rl.qlearning_dataset(None, columns, **options)
        return list(zip(made["observations"][:, 0], made["next_observations"][:, 0], made["terminals"], strict=True))

    inside = [(0, 1, False), (1, 2, False)]
    assert pairs() == [*inside, (10, 11, False), (11, 20, True), (20, 21, False)]
    assert pairs(terminate_on_end=True) == [
        *inside, (2, 10, False), (10, 11, False), (11, 20, True), (20, 21, False),
    ]  # fmt: skip
    assert pairs(fixed=True) == [*inside, (10, 11, False), (11, 11, True), (20, 21, False)]
    assert pairs(fixed=True, terminate_on_end=True) == [
        *inside, (2, 2, True), (10, 11, False), (11, 11, True), (20, 21, False), (21, 21, True),
    ]  # fmt: skip
    assert [e["rewards"].tolist() for e in d4rl.sequence_dataset(None, columns)] == [[0, 1, 2], [3, 4]]
    fixed = list(d4rl.sequence_dataset(None, columns, fixed=True))
    assert [e["rewards"].tolist() for e in fixed] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [e["timeouts"].tolist() for e in fixed] == [[False, False, True], [False, False], [False, True]]


# -- what the archive means


@pytest.mark.parametrize("after", [True, False])
def test_fixed_gives_every_transition_with_its_own_next_observation(tmp_path: Path, after: bool) -> None:
    lengths = [40, 7, 1, 12, 33, 5]  # terminal, timeout, terminal, ...
    columns = write_d4rl(tmp_path / "a.hdf5", lengths, next_observations=after)
    ds = import_files(tmp_path / "a.hdf5", "local/a")
    last = np.cumsum(lengths) - 1
    known = np.ones(98, bool)
    following = columns["next_observations"] if after else np.roll(columns["observations"], -1, axis=0)
    if not after:
        known[last[1::2]] = False
        following[last] = columns["observations"][last]
    for source in (ds, columns):
        made = d4rl.qlearning_dataset(source, fixed=True)
        np.testing.assert_array_equal(made["observations"], columns["observations"][known])
        np.testing.assert_array_equal(made["next_observations"], following[known])
        np.testing.assert_array_equal(made["rewards"], columns["rewards"][known])
        np.testing.assert_array_equal(made["terminals"], columns["terminals"][known])
        whole = d4rl.qlearning_dataset(source, terminate_on_end=True, fixed=True)
        np.testing.assert_array_equal(whole["next_observations"], following)
        assert np.flatnonzero(whole["terminals"]).tolist() == last.tolist()
        episodes = list(d4rl.sequence_dataset(source, fixed=True))
        assert [len(e["actions"]) for e in episodes] == lengths
        np.testing.assert_array_equal(np.concatenate([e["observations"] for e in episodes]), columns["observations"])
        assert [bool(e["timeouts"][-1]) for e in episodes] == [False, True] * 3
        assert all(("next_observations" in e) == (after or source is columns) for e in episodes)


def antmaze_columns(n: int = 12) -> dict[str, np.ndarray]:
    return {
        "observations": ramp(n),
        "actions": ramp(n),
        "rewards": np.zeros(n, np.float32),
        "terminals": flags(n, 2, 3, 8),
        "timeouts": flags(n, 5),
    }


def test_columns_end_by_the_rule_of_their_environment() -> None:
    columns = antmaze_columns()

    def lengths(env: object) -> list[int]:
        return [len(e["rewards"]) for e in d4rl.sequence_dataset(env, columns, fixed=True)]

    assert lengths(None) == [3, 1, 2, 3, 3]
    assert lengths("antmaze-umaze-v2") == lengths(Env(700, name="antmaze-umaze-v2")) == [6, 6]
    made = d4rl.qlearning_dataset("antmaze-umaze-v2", columns, fixed=True)
    assert made["rewards"].shape == (10,) and made["terminals"].sum() == 3
    assert made["next_observations"][2].tolist() == columns["observations"][3].tolist()
    with pytest.raises(RldsError, match="antmaze-medium-play-v0 do not say"):
        d4rl.qlearning_dataset("antmaze-medium-play-v0", columns, fixed=True)


@pytest.mark.thorough
def test_terminals_inside_an_episode(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", **antmaze_columns())
    ds = import_files(path, "local/a", episodes_by="timeouts")
    check_against_slow(ds, path)
    assert [len(e["rewards"]) for e in d4rl.sequence_dataset(ds, fixed=True)] == [6, 6]
    assert d4rl.qlearning_dataset(ds, fixed=True)["terminals"].sum() == 3


# -- where the data come from


def test_ids_paths_and_datasets_are_one() -> None:
    expected = slow_transitions(columns_of(PENDULUM), None, False)
    ds = sample_dataset("pendulum-d4rl")
    for source in ("sample/pendulum-d4rl", ds, ds.path, str(ds.path)):
        check_same(d4rl.qlearning_dataset(source), expected)
        check_same(d4rl.qlearning_dataset(Env(5), source), expected)


def test_environments_of_d4rl_are_asked_for_their_data(tmp_path: Path) -> None:
    write_d4rl(tmp_path / "a.hdf5", [4, 6, 3])
    write_d4rl(tmp_path / "b.hdf5", [5, 5], seed=1)
    env = Env(100, tmp_path / "a.hdf5", name="my-own-v0")
    wrapped = SimpleNamespace(unwrapped=env, spec=env.spec)
    for asked in (env, wrapped):
        check_same(d4rl.qlearning_dataset(asked), slow_transitions(columns_of(tmp_path / "a.hdf5"), None, False))
        check_same(
            d4rl.qlearning_dataset(asked, h5path=tmp_path / "b.hdf5"),
            slow_transitions(columns_of(tmp_path / "b.hdf5"), None, False),
        )
        assert len(d4rl.qlearning_dataset(asked, fixed=True)["rewards"]) == 13
        assert len(d4rl.qlearning_dataset(asked, fixed=True, h5path=tmp_path / "b.hdf5")["rewards"]) == 10
        assert [len(e["rewards"]) for e in d4rl.sequence_dataset(asked)] == [4, 6, 3]


@pytest.mark.thorough
def test_names_of_d4rl_stand_for_their_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    episode = {"observation": [[0.0], [1.0], [2.0]], "action": [[0.0], [0.0]], "next": {"reward": [1.0, 1.0]}}
    rlds_cli.create("d4rl/hopper-medium-v2", [episode])
    for asked in ("hopper-medium-v2", "d4rl/hopper-medium-v2", Env(1000, name="hopper-medium-v2")):
        made = d4rl.qlearning_dataset(asked, fixed=True)
        assert made["next_observations"].ravel().tolist() == [1, 2] and not made["terminals"].any()
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    with pytest.raises(Offline):
        d4rl.qlearning_dataset("hopper-expert-v2")


def test_fixed_takes_an_environment_of_d4rl_by_its_name(tmp_path: Path) -> None:
    """Flags alone do not say where episodes end; the registry does."""
    write_d4rl(tmp_path / "a.hdf5", [4, 6, 3])
    episode = {"observation": [[0.0], [1.0], [2.0]], "action": [[0.0], [0.0]], "next": {"reward": [1.0, 1.0]}}
    rlds_cli.create("d4rl/hopper-medium-v2", [episode])
    env = Env(1000, tmp_path / "a.hdf5", name="hopper-medium-v2")
    assert len(d4rl.qlearning_dataset(env)["rewards"]) == 13 - 1 - 1
    assert len(d4rl.qlearning_dataset(env, fixed=True)["rewards"]) == 2


def test_the_time_limit_comes_from_the_environment_or_the_registry() -> None:
    columns = {k: v for k, v in antmaze_columns(800).items() if k != "timeouts"}
    columns["terminals"] = flags(800)
    spec = SimpleNamespace(id="Hopper-v5", max_episode_steps=30)
    for env, limit in ((Env(20), 20), (SimpleNamespace(spec=spec), 30), ("kitchen-complete-v0", 280)):
        check_same(d4rl.qlearning_dataset(env, columns), slow_transitions(columns, limit, False))
    with pytest.raises(RldsError, match="no time limit"):
        d4rl.qlearning_dataset(None, columns)
    assert len(d4rl.qlearning_dataset(None, columns, fixed=True)["rewards"]) == 799


@pytest.mark.thorough
def test_a_selection_is_a_file_of_its_episodes(tmp_path: Path) -> None:
    lengths = [4, 6, 3, 5, 2]  # terminal, timeout, terminal, timeout, and the last is made open
    columns = write_d4rl(tmp_path / "whole.hdf5", lengths)
    with h5py.File(tmp_path / "whole.hdf5", "a") as f:
        f["terminals"][-1] = False
    ds = import_files(tmp_path / "whole.hdf5", "local/whole")
    start = np.cumsum([0, *lengths])

    def some(*episodes: int) -> Path:
        rows = np.concatenate([np.arange(start[k], start[k + 1]) for k in episodes])
        path = tmp_path / f"{episodes}.hdf5"
        with h5py.File(tmp_path / "whole.hdf5") as f:
            return write(path, **{k.replace("/", "__"): f[k][()][rows] for k in columns})

    check_against_slow(ds.select(episodes=[1, 3]), some(1, 3))
    check_against_slow(ds.select(episodes=[2, 0, 4]), some(2, 0, 4))
    open_first = some(4, 0)  # what follows the open end is not what followed in the archive: it counts as a timeout
    with h5py.File(open_first, "a") as f:
        f["timeouts"][1] = True
    check_against_slow(ds.select(episodes=[4, 0]), open_first)


def test_what_cannot_be() -> None:
    columns = antmaze_columns()
    with pytest.raises(UnknownField, match=r"no rewards.*They have: observations"):
        d4rl.qlearning_dataset(None, {k: v for k, v in columns.items() if k != "rewards"})
    with pytest.raises(InvalidEpisode, match="actions has 5 rows"):
        d4rl.qlearning_dataset(None, columns | {"actions": ramp(5)})
    with pytest.raises(UnknownDataset, match="an environment Hopper-v5"):
        d4rl.qlearning_dataset(Env(1000, name="Hopper-v5"))
    with pytest.raises(UnknownDataset, match="None"):
        d4rl.sequence_dataset(None)
    with pytest.raises(UnknownDataset, match="hopper-medum-v2"):
        d4rl.qlearning_dataset("hopper-medum-v2")
    with pytest.raises(TypeError, match="h5path"):
        d4rl.qlearning_dataset("sample/pendulum-d4rl", h5path="x.hdf5")
    episode = {"observation": {"a": np.zeros((3, 2))}, "action": np.zeros((2, 1)), "next": {"terminated": True}}
    ds = rlds_cli.create("local/nested", [episode])
    for fixed in (False, True):
        with pytest.raises(UnknownField, match="observation"):
            d4rl.qlearning_dataset(ds, fixed=fixed)
        with pytest.raises(NoReward):
            d4rl.sequence_dataset(ds, fixed=fixed)


def test_what_is_given_back_is_the_users_own() -> None:
    columns = antmaze_columns()
    before = {k: v.copy() for k, v in columns.items()}
    for fixed in (False, True):
        for made in (d4rl.qlearning_dataset(None, columns, fixed=fixed), *d4rl.sequence_dataset(None, columns)):
            for values in made.values():
                values[...] = 1
    for key, values in before.items():
        np.testing.assert_array_equal(columns[key], values)


# -- scores


def test_scores_are_fractions_of_the_references() -> None:
    # D4RL's reference scores of Hopper: -20.272305 is 0, 3234.3 is 1
    assert d4rl.get_normalized_score("hopper-medium-v2", -20.272305) == 0
    assert d4rl.get_normalized_score("hopper-medium-v2", 3234.3) == 1
    half = (3234.3 - 20.272305) / 2
    assert d4rl.get_normalized_score("d4rl/hopper-medium-v2", half) == pytest.approx(0.5)
    assert d4rl.get_normalized_score("hopper-medium-v2", np.array([3234.3, half])).tolist() == pytest.approx([1, 0.5])
    assert d4rl.get_normalized_score("maze2d-umaze-v1", 161.86) == 1
    assert d4rl.get_normalized_score("sample/pendulum-d4rl", -167.1) == 1


def test_every_environment_of_d4rl_has_a_score_but_one() -> None:
    without = []
    for entry in lookup.entries("d4rl"):
        try:
            assert d4rl.get_normalized_score(entry.env_id, entry.ref_max_score) == 1
        except RldsError:
            without.append(entry.env_id)
    assert without == ["carla-town-render-v0"]
    with pytest.raises(UnknownDataset, match="hoper-v2"):
        d4rl.get_normalized_score("hoper-v2", 1.0)


# -- what the documentation counts


@pytest.mark.thorough
def test_the_table_of_the_documentation(tmp_path: Path) -> None:
    found = spec_from_file_location("compare_d4rl", ROOT / "scripts/compare_d4rl.py")
    script = module_from_spec(found)
    found.loader.exec_module(script)
    asked = [("sample/pendulum-d4rl", None), (HOPPER, None), (KITCHEN, "kitchen-complete-v0")]
    counts = {
        Path(ref).stem: script.counts(script.open_or_import(str(ref), tmp_path), env)
        for ref, env in asked
        if isinstance(ref, str) or ref.exists()
    }
    made = [line.split("|")[: len(counts) + 2] for line in script.table(counts)]
    documented = (ROOT / "docs/coming-from/d4rl.md").read_text().split("\n\n")
    shown = next(block for block in documented if block.startswith("| | pendulum-d4rl"))
    assert [line.split("|")[: len(counts) + 2] for line in shown.splitlines()] == made


@pytest.mark.thorough
def test_the_code_of_the_documentation_runs() -> None:
    code = (ROOT / "docs/coming-from/d4rl.md").read_text().split("```python\n")[1].split("```")[0]
    namespace: dict[str, object] = {}
    exec(code.replace('dataset("hopper-medium-v2")', 'dataset("sample/pendulum-d4rl")'), namespace)
    check_same(namespace["dataset"], slow_transitions(columns_of(PENDULUM), None, False))
    assert namespace["score"] == pytest.approx(100 * (1500 + 20.272305) / (3234.3 + 20.272305))
