"""`Offsets`: frame stacks, action chunks, edges, seconds; test_loader_reference compares every value with a loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import SELECTIONS, create, episode, varied
from reference import windows
from test_loader_fields import pixels

import rlds_cli
from rlds_cli.errors import EmptyWindow, InvalidArgument, NoReward, UnknownField
from rlds_cli.loader import Loader, Normalize, Offsets, Reward, Sequential, Shuffled
from rlds_cli.make.importing import import_files

VARIED = varied()
MANY = settings(max_examples=40)
STORED = ("observation", "action", "next/reward", "next/terminated", "next/truncated", "next/qpos", "info/step", "text")
EXTRA = ("episode", "step", "text", "info/step", "next/qpos")


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        return create(VARIED, ref="local/varied")


def load(ds, window, size=5, **options):
    plain = {"backend": "numpy", "dtype": None, "sampler": Sequential(), "fields": [..., *EXTRA]}
    return Loader(ds, size, window=window, **plain | options)


def samples(ds, window, **options):
    """(batch, place in it) of every sample, in the order of the dataset."""
    return [(b, i) for b in load(ds, window, **options) for i in range(len(b["step"]))]


def anchors(window, e):
    """The steps t of an episode whose offsets reach no further than they may."""
    return [w.anchor for w in windows.around(e.plain(), window.offsets, before=window.before, after=window.after)]


def same(values, expected):
    return len(values) == len(expected) and all(np.array_equal(v, x) for v, x in zip(values, expected, strict=True))


OFFSETS = st.one_of(
    st.lists(st.integers(-9, 9), min_size=1, max_size=4),
    st.builds(lambda first, length: range(first, first + length), st.integers(-5, 3), st.integers(1, 9)),
)
REACH = st.one_of(st.none(), st.none(), st.integers(0, 9))
WINDOWS = st.builds(
    Offsets,
    st.dictionaries(st.sampled_from([*STORED, "next/done", "next/observation"]), OFFSETS, min_size=1, max_size=4),
    before=REACH,
    after=REACH,
    fill=st.sampled_from(["edge", "zero"]),
)


@pytest.mark.thorough
@MANY
@given(SELECTIONS, WINDOWS)
def test_torch_gives_what_numpy_gives_and_an_epoch_is_shuffled_whole(ds, chosen, window):
    options = {"sampler": Shuffled(), "dtype": "float32", "transform": Reward(2.0, 5.0)}
    view = ds.select(episodes=chosen)
    try:
        plain = list(load(view, window, **options))
    except EmptyWindow:
        return
    tensors = list(load(view, window, **options, backend="torch"))
    for a, b in zip(plain, tensors, strict=True):
        assert a.names() == b.names()
        assert all(np.array_equal(x, b[name]) for name, x in a.leaves())
    seen = [(k, t) for b in plain for k, t in zip(b["episode"].tolist(), b["step"].tolist(), strict=True)]
    counted = [(k, t) for k, n in enumerate(chosen) for t in anchors(window, VARIED[n])]
    assert sorted(seen) == counted


@pytest.mark.thorough
def test_zeros_stay_zeros_after_transforms(ds):
    window = Offsets({"observation": (-2, 0), "next/reward": (0, 3)}, fill="zero")
    norm = Normalize(ds, ("observation",))
    mean, std = np.asarray(ds.stats["observation"].mean), np.asarray(ds.stats["observation"].std)
    for (b, i), (raw, j) in zip(
        samples(ds, window, transform=[norm, Reward(2.0, 5.0)]), samples(ds, window), strict=True
    ):
        real = b["mask/observation"][i]
        assert not b["observation"][i][~real].any()
        np.testing.assert_allclose(b["observation"][i][real], (raw["observation"][j][real] - mean) / (std + 1e-3))
        real = b["mask/next/reward"][i]
        assert not b["next/reward"][i][~real].any()
        np.testing.assert_allclose(b["next/reward"][i][real], raw["next/reward"][j][real] * 2 + 5)


@pytest.mark.thorough
def test_frame_stacks_and_their_next_twin():
    """The stack of the step after is one row later: at the start both repeat the first row, at the end they may not."""
    known = [episode(0, 5), episode(1, 3, observed=False, end="truncated"), episode(2, 4, observed=False)]
    ds = create(known)
    window = Offsets({"observation": (-3, -2, -1, 0)})
    for b, i in samples(ds, window):
        e, t = known[b["episode"][i]], b["step"][i]
        assert b["observation"][i][:, 1].tolist() == [max(t - 3, 0), max(t - 2, 0), max(t - 1, 0), t]
        after = [max(t - 2, 0), max(t - 1, 0), t, min(t + 1, e.num_observed - 1)]
        assert b["next/observation"][i][:, 1].tolist() == after
        assert b["mask/observation"][i].tolist() == [t >= 3, t >= 2, t >= 1, True]
        assert b["mask/next/observation"][i].tolist() == [t >= 2, t >= 1, True, t + 1 < e.num_observed]
        assert b["next/observed"][i, 0] == (t + 1 < e.num_observed)
    stacked = Loader(ds, 4, window=window, fields=("observation",), backend="numpy")
    assert sorted(next(iter(stacked)).names()) == ["mask/observation", "observation"]


@pytest.mark.thorough
def test_the_final_observation_is_a_row_where_it_is_recorded():
    ds = create([episode(0, 3), episode(1, 3, observed=False)])
    window = Offsets({"observation": (1, 2, 3), "action": (1, 2, 3)})
    found = {(b["episode"][i], b["step"][i]): (b, i) for b, i in samples(ds, window)}
    b, i = found[0, 0]
    assert b["observation"][i][:, 1].tolist() == [1, 2, 3] and b["mask/observation"][i].all()
    assert b["mask/action"][i].tolist() == [True, True, False]
    b, i = found[1, 0]
    assert b["observation"][i][:, 1].tolist() == [1, 2, 2] and b["mask/observation"][i].tolist() == [True, True, False]


@pytest.mark.thorough
@pytest.mark.parametrize("length", [3, 15, 16, 17, 40])
def test_the_edges_of_diffusion_policy(length):
    """Its sequences of 16 start from step -1 to 7 beyond the last whole one; what lies outside repeats the edge."""
    ds = create([episode(0, length)])
    window = Offsets({"observation": (-1, 0), "action": range(-1, 15)}, after=7)
    sequences = [[min(max(start + j, 0), length - 1) for j in range(16)] for start in range(-1, length - 16 + 7 + 1)]
    if not sequences:
        with pytest.raises(
            EmptyWindow, match=f"Offsets from -1 to 14 fit none of 1 episodes: the longest has {length}"
        ):
            load(ds, window)
        return
    found = samples(ds, window)
    assert [b["observation"][i][:, 1].tolist() for b, i in found] == [s[:2] for s in sequences]
    action = ds.column("action")
    assert all(np.array_equal(b["action"][i], action[s]) for (b, i), s in zip(found, sequences, strict=True))
    assert len(samples(ds, Offsets({"action": range(-1, 15)}, before=0, after=7))) == max(0, len(sequences) - 1)


@pytest.mark.thorough
def test_flags_and_rewards_have_an_axis_of_one():
    ds = create([episode(0, 9)])
    names = ("next/reward", "next/done", "next/terminated", "next/truncated")
    b = next(iter(load(ds, Offsets(dict.fromkeys(names, (0, 1, 2))))))
    assert all(b[name].shape == (5, 3, 1) and b["mask"][name].shape == (5, 3) for name in names)
    assert np.array_equal(b["next/done"], b["next/terminated"] | b["next/truncated"])
    assert b.tensordict().batch_size == (5,)


def nested():
    for k in range(2):
        rng = np.random.default_rng(k)
        yield {
            "observation": {"goal": rng.standard_normal((5, 2)), "camera": {"top": rng.integers(0, 9, (5, 2, 2, 3))}},
            "action": rng.standard_normal((4, 1)),
            "info": {"energy": rng.standard_normal(5), "power": rng.standard_normal(4)},
            "next": {"reward": np.ones(4), "terminated": True},
        }


@pytest.mark.thorough
def test_a_name_stands_for_what_is_nested_below_it():
    ds = rlds_cli.create("local/nested", nested())
    known = list(nested())
    extra = ("episode", "step")
    for b, i in samples(ds, Offsets({"observation": (0, 2), "observation/camera": (-1, 0)}), fields=[..., *extra]):
        k, t = b["episode"][i], b["step"][i]
        goal, top = known[k]["observation"]["goal"], known[k]["observation"]["camera"]["top"]
        assert np.array_equal(b["observation/goal"][i], goal[[t, min(t + 2, 4)]])
        assert np.array_equal(b["observation/camera/top"][i], top[[max(t - 1, 0), t]])
        assert np.array_equal(b["next/observation/camera/top"][i], top[[t, t + 1]])
        assert b["mask/observation/goal"][i].tolist() == [True, t + 2 < 5]
        assert b["mask/observation/camera"][i].tolist() == [t >= 1, True]
        assert b["mask/next/observation/goal"][i].tolist() == [True, t + 3 < 5]
    for b, i in samples(ds, Offsets({"info": (0, 1)}), fields=[..., "episode", "step", "info"]):
        k, t = b["episode"][i], b["step"][i]
        assert np.array_equal(b["info/energy"][i, :, 0], known[k]["info"]["energy"][[t, t + 1]])
        assert np.array_equal(b["info/power"][i, :, 0], known[k]["info"]["power"][[t, min(t + 1, 3)]])
        assert b["mask/info/energy"][i].all() and b["mask/info/power"][i].tolist() == [True, t < 3]
    b = next(iter(load(ds, Offsets({"observation": (-1, 0)}), fields=None)))
    assert b["mask"].names() == ["observation", "next/observation"]


@pytest.mark.thorough
def test_a_next_observation_of_its_own_is_read_at_its_own_rows():
    rng = np.random.default_rng(0)
    before, after = rng.standard_normal((2, 6, 3))
    made = {"observation": before, "action": np.zeros((6, 1)), "next": {"observation": after, "terminated": True}}
    ds = rlds_cli.create("local/apart", [made])
    for b, i in samples(ds, Offsets({"observation": (-1, 0, 1)}), fields=[..., "step"]):
        rows = np.array([-1, 0, 1]) + b["step"][i]
        inside = rows.clip(0, 5)
        assert np.array_equal(b["observation"][i], before[inside])
        assert np.array_equal(b["next/observation"][i], after[inside])
        assert b["mask/next/observation"][i].tolist() == (rows == inside).tolist()


@pytest.mark.thorough
@pytest.mark.parametrize("fill", ["edge", "zero"])
def test_encoded_frames_are_decoded_at_offsets(tmp_path, fill):
    decoded = pixels(tmp_path, 2)
    ds = import_files(tmp_path / "pixels-v0", "local/pixels")
    assert ds.schema["observation"].kind == "frames"
    for b, i in samples(ds, Offsets({"observation": (-1, 0, 2)}, fill=fill), fields=[..., "episode", "step"]):
        frames, t = decoded[b["episode"][i]], b["step"][i]
        values, real = windows.rows_at(frames, [t - 1, t, t + 2], fill)
        assert same(b["observation"][i], values) and b["mask/observation"][i].tolist() == real.tolist()
        values, real = windows.rows_at(frames, [t, t + 1, t + 3], fill)
        assert same(b["next/observation"][i], values) and b["mask/next/observation"][i].tolist() == real.tolist()


@pytest.mark.thorough
def test_what_stands_beside_a_step_is_that_of_the_step_alone():
    known = episode(0, 5)
    ds = create([known])
    extra = ("step", "next/action", "previous/action", "previous/reward", "index")
    for b, i in samples(ds, Offsets({"action": (0, 1), "next/reward": (0, 1)}), fields=[..., *extra]):
        t = b["step"][i]
        nothing = np.zeros(2, np.float32)
        assert np.array_equal(b["next/action"][i], known.action[t + 1] if t < 4 else nothing)
        assert np.array_equal(b["previous/action"][i], known.action[t - 1] if t else nothing)
        assert b["previous/reward"][i] == (known.reward[t - 1] if t else 0) and b["index"][i] == t


# -- seconds


@pytest.mark.parametrize(("fps", "unit"), [(20, 0.05), (30, 1 / 30), (29.97, 1 / 29.97), (0.5, 2.0)])
def test_seconds_are_steps_by_the_frames_per_second(fps, unit):
    ds = rlds_cli.create("local/timed", [{"observation": np.arange(9.0), "action": np.arange(8.0)}], fps=fps)
    seconds = Offsets({"observation": (-2 * unit, 0.0), "action": [k * unit for k in range(4)]}, unit="s", after=1)
    steps = Offsets({"observation": (-2, 0), "action": range(4)}, after=1)
    for a, b in zip(load(ds, seconds, fields=None), load(ds, steps, fields=None), strict=True):
        assert a.names() == b.names() and all(np.array_equal(x, b[name]) for name, x in a.leaves())
    assert repr(seconds) in load(ds, seconds, fields=None).describe()


def test_seconds_between_two_rows_are_refused():
    ds = rlds_cli.create("local/timed", [{"observation": np.arange(9.0), "action": np.arange(8.0)}], fps=20)
    with pytest.raises(InvalidArgument, match=r'0.06 s of "action" is 1.200 steps at 20 frames') as e:
        load(ds, Offsets({"action": (0, 0.06)}, unit="s"), fields=None)
    assert "0.05 s is a row" in str(e.value)
    untimed = create([episode(0, 5)])
    with pytest.raises(InvalidArgument, match=r"local/known does not state its frames per second") as e:
        load(untimed, Offsets({"action": (0, 0.05)}, unit="s"))
    assert 'unit="step"' in str(e.value) and "fps=" in str(e.value)


# -- what it says, and what it refuses


def test_describe_says_how_many_rows_are_read(ds):
    text = load(ds, Offsets({"observation": (-1, 0), "action": range(16)}, after=8)).describe()
    assert "Offsets(offsets={'observation': (-1, 0), 'action': (0, 1, 2" in text and "without a window" in text
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert "2 rows" in lines["observation"] and "16 rows" in lines["action"] and "2 rows" in lines["next/observation"]
    assert "left out" not in load(ds.select(episodes=[0, 3]), Offsets({"action": (0, 50)})).describe()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Offsets({}), "mapping"),
        (lambda: Offsets(["action"]), "mapping"),
        (lambda: Offsets({"action": ()}), "'action' has no offset"),
        (lambda: Offsets({"action": (0, 0.5)}), r"offset 0\.5; whole numbers of steps"),
        (lambda: Offsets({"action": (float("nan"),)}), "offset nan"),
        (lambda: Offsets({"action": (float("inf"),)}, unit="s"), "offset inf; numbers of seconds"),
        (lambda: Offsets({"action": (1 << 62,)}), "whole numbers of steps"),
        (lambda: Offsets({"action": (True,)}), "offset True"),
        (lambda: Offsets({"action": "01"}), "offset '0'"),
        (lambda: Offsets({"action": None}), "offset None"),
        (lambda: Offsets({"action": (0,)}, before=-1), "before=-1"),
        (lambda: Offsets({"action": (0,)}, after=0.5), r"after=0\.5"),
        (lambda: Offsets({"action": (0,)}, fill="nan"), '"edge" or "zero"'),
        (lambda: Offsets({"action": (0,)}, unit="ms"), '"step" or "s"'),
    ],
)
def test_offsets_that_are_none(make, says):
    with pytest.raises(InvalidArgument, match=says):
        make()


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("actions", UnknownField, 'Did you mean "action"'),
        ("observation/camera", UnknownField, 'no field "observation/camera"'),
        ("step", InvalidArgument, '"step" is given at step t alone'),
        ("next/action", InvalidArgument, 'offsets of "action"'),
        ("previous/reward", InvalidArgument, 'offsets of "next/reward"'),
        ("terminated", InvalidArgument, 'offsets of "next/terminated"'),
        ("done", InvalidArgument, 'offsets of "next/done"'),
    ],
)
def test_names_that_have_no_offsets(ds, name, error, says):
    with pytest.raises(error, match=says):
        load(ds, Offsets({"observation": (0,), name: (0, 1)}))


@pytest.mark.thorough
def test_rewards_that_there_are_not():
    ds = create([episode(0, 5)], reward=False)
    for name in ("next/reward", "reward"):
        with pytest.raises(NoReward, match="no reward"):
            load(ds, Offsets({name: (0, 1)}))


def test_numbers_of_numpy_and_lone_ones_count_as_plain_ones():
    plain = repr(Offsets({"observation": (-1, 0), "next/reward": (2,)}))
    assert repr(Offsets({"observation": np.array([-1, 0]), ("next", "reward"): np.int64(2)})) == plain
    assert repr(Offsets({"observation": [-1.0, 0.0], "next/reward": 2})) == plain
