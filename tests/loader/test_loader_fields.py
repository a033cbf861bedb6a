import io
import json
import pickle

import h5py
import numpy as np
import pytest
from loader_data import create, episode
from PIL import Image

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import InvalidArgument, LoaderError, NoReward, UnknownField
from rlds_cli.loader import Loader, Mixture, Prioritized, Sequential, Shuffled, Slice, Transition
from rlds_cli.make.importing import import_files

USUAL = [
    "observation",
    "action",
    "next/observation",
    "next/reward",
    "next/done",
    "next/terminated",
    "next/truncated",
]


@pytest.fixture
def ds():
    return create([episode(k, 6) for k in range(3)])


def names(ds, **options):
    loader = Loader(ds, 4, backend="numpy", **options)
    batch = next(iter(loader))
    assert sorted(batch.names()) == sorted(loader.fields)
    return list(loader.fields)


@pytest.mark.thorough
def test_the_usual_fields(ds):
    assert names(ds) == USUAL
    assert names(ds, window=Slice(3)) == [*USUAL, "mask"]
    assert names(ds, window=Transition(3)) == [*USUAL, "next/discount", "steps_to_next_obs"]
    assert names(ds, window=Transition(anchors="steps")) == [n for n in USUAL if n != "next/observation"]


@pytest.mark.thorough
def test_next_observed_comes_where_a_next_observation_can_be_unknown():
    known = create([episode(0, 5), episode(1, 5)])
    terminated = create([episode(0, 5), episode(1, 5, observed=False)], ref="local/terminated")
    assert "next/observed" not in names(known, window=Slice(2))
    assert "next/observed" in names(terminated) and "next/observed" in names(terminated, window=Slice(2))
    truncated = create([episode(0, 5), episode(1, 5, observed=False, end="truncated")], ref="local/truncated")
    assert "next/observed" not in names(truncated)  # its last step is not a transition
    assert "next/observed" in names(truncated, window=Slice(2))
    assert "next/observed" not in names(truncated, window=Slice(2), fields=("observation", "action"))
    assert "next/observed" not in names(truncated, window=Slice(2, anchors="steps"))


@pytest.mark.thorough
def test_fields_replace_and_extra_adds(ds):
    assert names(ds, fields=("action",)) == ["action"]
    assert names(ds, fields=["action", "step"]) == ["action", "step"]
    assert names(ds, fields=[("next", "reward"), "action", "action"]) == ["next/reward", "action"]
    assert names(ds, fields=[..., "info/step", "text", "next/qpos", "done", "action"]) == [
        *USUAL,
        "info/step",
        "text",
        "next/qpos",
        "done",
    ]


@pytest.mark.thorough
def test_all_fields(ds):
    everything = [*USUAL, "info/step", "next/qpos", "text"]
    assert names(ds, fields="all") == everything
    assert names(ds, fields=["all", "step"], window=Slice(2)) == [*everything, "step", "mask"]
    late = [n for n in everything if n != "next/observation"]
    assert names(ds, fields="all", window=Transition(anchors="steps")) == late
    mixed = Loader(Mixture({"a": ds, "b": ds}), 4, fields="all", backend="numpy")
    assert sorted(mixed.fields) == sorted([*everything, "source"])


def cameras(ds):
    """The same dataset without ``observation``: three fields that an agent sees under other names."""

    def change(ep):
        n = len(ep["action"])
        del ep["observation"]
        ep["camera"], ep["weight"], ep["mask"] = np.ones((n, 2)), np.full(n, 7.0), np.zeros(n, bool)
        ep["next", "discount"] = np.full(n, 0.5)
        return ep

    made = preprocess.run(ds, change, "cameras", jobs=0)
    return rlds_cli.create("local/cameras", [made.episode(k) for k in range(made.num_episodes)])


def test_a_dataset_without_observations_says_what_is_left_out(ds):
    seen = cameras(ds)
    with pytest.warns(UserWarning, match='has no "observation".*not camera, info/step, mask, text, weight') as told:
        loader = Loader(seen, 4)
    assert len(told) == 1 and told[0].filename == __file__
    assert loader.fields == ("action", "next/reward", "next/done", "next/terminated", "next/truncated")
    assert 'left out  camera, info/step, mask, text, weight: the dataset has no "observation"' in loader.describe()
    again = pickle.loads(pickle.dumps(loader))  # which warns of nothing: a worker must not repeat it
    assert again.fields == loader.fields
    for options in ({"fields": "all"}, {"fields": ("action",)}, {"fields": [..., "camera"]}):
        assert "has no" not in Loader(seen, 4, **options).describe()
    with pytest.warns(UserWarning, match="Mixture, [ab]: local/cameras") as told:
        Loader(Mixture({"a": seen, "b": seen}), 4)
    assert len(told) == 2


@pytest.mark.thorough
def test_what_window_and_sampler_give_is_theirs_whatever_the_dataset_holds(ds):
    """An archive's ``next/discount`` was taken for that of the sum, and its ``weight`` for importance weights."""
    seen = cameras(ds)
    options = {"fields": "all", "sampler": Prioritized(), "backend": "numpy"}
    loader = Loader(seen, 4, window=Transition(3, 0.9), **options)
    batch = next(iter(loader))
    np.testing.assert_allclose(batch["next/discount"], 0.9 ** batch["steps_to_next_obs"], rtol=1e-6)
    assert batch["weight"].tolist() == [[1.0]] * 4 and not batch["mask"].any()
    assert "left out  next/discount, weight of the dataset: the window or the sampler" in loader.describe()
    loader = Loader(seen, 4, window=Slice(3, after=2), **options)
    batch = next(iter(loader))
    assert batch["mask"][:, 0].all() and (batch["next/discount"] == 0.5).all() and batch["weight"].shape == (4, 3, 1)
    assert "left out  weight, mask of the dataset" in loader.describe()
    plain = next(iter(Loader(seen, 4, fields="all", backend="numpy")))
    assert (plain["weight"] == 7).all() and (plain["next/discount"] == 0.5).all()


@pytest.mark.thorough
def test_a_name_stands_for_what_is_nested_below_it(ds):
    assert names(ds, fields=("info",)) == ["info/step"]
    after = ["next/done", "next/observation", "next/qpos", "next/reward", "next/terminated", "next/truncated"]
    assert sorted(names(ds, fields=("next",))) == after


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("rewards", "next/reward"),
        ("observations", "observation"),
        ("terminals", "next/terminated"),
        ("next/rewards", "next/reward"),
        ("info/steps", "info/step"),
        ("qpos", "next/qpos"),
        ("Action", "action"),
        ("steps", "step"),
        ("timestep", "step"),
        ("reward", "next/reward"),
        ("obs", "observation"),
        ("next/obs", "next/observation"),
        ("infos", "info"),
        ("terminal", "next/terminated"),
    ],
)
def test_an_unknown_field_gets_a_suggestion(ds, name, meant):
    for options in ({"fields": (name,)}, {"fields": [..., name]}):
        with pytest.raises(UnknownField) as e:
            Loader(ds, **options)
        assert f'no field "{name}" in local/known. Did you mean "{meant}"?' in str(e.value)
        assert "Fields: " in str(e.value) and "next/qpos" in str(e.value)


@pytest.mark.thorough
def test_what_resembles_nothing_gets_the_list(ds):
    with pytest.raises(UnknownField, match="Fields: action") as e:
        Loader(ds, fields=("zzz",))
    assert "Did you mean" not in str(e.value)
    with pytest.raises(UnknownField):
        Loader(ds, fields=[..., "mask"])
    with pytest.raises(UnknownField):
        Loader(ds, fields=[..., "next/discount"])


@pytest.mark.thorough
def test_a_dataset_without_reward():
    ds = create([episode(0, 6)], reward=False)
    assert names(ds) == [n for n in USUAL if n != "next/reward"]
    for options in ({"fields": ("next/reward",)}, {"fields": [..., "reward"]}, {"window": Transition(3)}):
        with pytest.raises(NoReward, match="local/known has no reward"):
            Loader(ds, **options)
    with pytest.raises(NoReward):
        next(iter(Loader(ds, 2, backend="numpy"))).sarsd()


def test_anchors_steps_has_no_next_observation(ds):
    with pytest.raises(LoaderError, match='anchors="transitions"'):
        Loader(ds, window=Transition(anchors="steps"), fields=("next/observation",))
    assert names(ds, window=Transition(anchors="steps"), fields=("next/qpos",)) == ["next/qpos"]


@pytest.mark.parametrize("wrong", [(3,), (None,), (["observation"],)])
def test_names_that_are_none(ds, wrong):
    with pytest.raises(InvalidArgument, match="name"):
        Loader(ds, fields=wrong)


def test_no_fields_at_all(ds):
    with pytest.raises(InvalidArgument, match="no fields"):
        Loader(ds, fields=())


def nested():
    for k in range(2):
        rng = np.random.default_rng(k)
        image = {"top": np.full((5, 2, 2, 3), k, np.uint8)}
        yield {
            "observation": {"achieved_goal": rng.standard_normal((5, 2)), "image": image},
            "action": np.arange(4) % 3,
            "info": {"energy": rng.standard_normal(5)},
            "next": {"reward": np.ones(4), "terminated": True},
        }


@pytest.mark.thorough
def test_nested_observations_stay_nested():
    ds = rlds_cli.create("local/nested", nested())
    loader = Loader(ds, 3, backend="numpy", sampler=Sequential(), fields=[..., "info", "next/info"])
    b = next(iter(loader))
    assert b["observation"]["achieved_goal"].shape == (3, 2)
    assert b["observation", "image", "top"].dtype == np.uint8 and b["observation/image/top"].shape == (3, 2, 2, 3)
    assert b["action"].shape == (3,) and b["action"].dtype == np.int64
    rng = np.random.default_rng(0)
    goals, energy = rng.standard_normal((5, 2)), rng.standard_normal(5)
    assert np.allclose(b["next", "observation", "achieved_goal"], goals[1:4])
    assert np.allclose(b["info", "energy"][:, 0], energy[:3])
    assert np.allclose(b["next", "info", "energy"][:, 0], energy[1:4])
    assert b.sarsd()[0] is b["observation"]
    assert loader.fields[:2] == ("observation/achieved_goal", "observation/image/top")
    assert names(ds, fields=("next/observation/image",)) == ["next/observation/image/top"]


@pytest.mark.thorough
def test_vector_rewards_keep_their_shape():
    reward = np.arange(8.0).reshape(4, 2)
    made = [{"observation": np.zeros((5, 1)), "action": np.zeros((4, 1)), "next": {"reward": reward}}]
    ds = rlds_cli.create("local/vector", made)
    b = next(iter(Loader(ds, 4, backend="numpy", sampler=Sequential())))
    assert b["next", "reward"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    b = next(iter(Loader(ds, 4, backend="numpy", sampler=Sequential(), window=Transition(2, 0.5))))
    assert b["next", "reward"].tolist() == [[1, 2.5], [4, 5.5], [7, 8.5], [6, 7]]


@pytest.mark.thorough
def test_a_scalar_field_of_no_width():
    made = [{"observation": np.zeros((5, 0)), "action": np.zeros((4, 1)), "next": {"reward": np.ones(4)}}]
    ds = rlds_cli.create("local/blind", made)
    for window in (Transition(), Slice(3, after=2)):
        b = next(iter(Loader(ds, 4, window=window, sampler=Sequential())))
        assert b["observation"].shape[-1] == 0 and len(b["observation"]) == 4


def pixels(folder, episodes, size=(8, 10)):
    """Write a Minari archive of JPEG observations; returns the frames as Pillow decodes them, per episode."""
    rng = np.random.default_rng(0)
    data = folder / "pixels-v0" / "data"
    data.mkdir(parents=True)
    decoded = []
    with h5py.File(data / "main_data.hdf5", "w") as f:
        for k in range(episodes):
            jpegs = [io.BytesIO() for _ in range(4)]
            for jpeg in jpegs:
                Image.fromarray(rng.integers(0, 255, (*size, 3), np.uint8)).save(jpeg, "JPEG")
            rows = [np.frombuffer(jpeg.getvalue(), np.uint8) for jpeg in jpegs]
            decoded.append(np.stack([np.asarray(Image.open(jpeg)) for jpeg in jpegs]))
            g = f.create_group(f"episode_{k}")
            g.attrs["total_steps"] = 3
            g.create_dataset("observations", data=np.array([*rows, None], object)[:-1], dtype=h5py.vlen_dtype(np.uint8))
            g["actions"], g["rewards"] = np.zeros((3, 1), np.float32), np.zeros(3)
            g["terminations"], g["truncations"] = np.zeros(3, bool), np.array([0, 0, 1], bool)
    box = {"type": "Box", "dtype": "uint8", "shape": [*size, 3], "low": 0, "high": 255}
    space = {"type": "Box", "dtype": "float32", "shape": [1], "low": [-1.0], "high": [1.0]}
    facts = {"total_episodes": episodes, "total_steps": 3 * episodes, "data_format": "hdf5", "minari_version": "0.5.3"}
    spaces = {"observation_space": json.dumps(box), "action_space": json.dumps(space)}
    (data / "metadata.json").write_text(json.dumps(facts | spaces | {"dataset_id": "pixels-v0"}))
    return decoded


@pytest.mark.thorough
def test_encoded_frames_are_decoded(tmp_path):
    decoded = pixels(tmp_path, 3)
    ds = import_files(tmp_path / "pixels-v0", "local/pixels")
    assert ds.schema["observation"].kind == "frames"
    extra = ("episode", "step")
    for b in Loader(ds, 4, sampler=Shuffled(), fields=[..., *extra]):
        for i, (k, t) in enumerate(zip(b["episode"].tolist(), b["step"].tolist(), strict=True)):
            assert np.array_equal(b["observation"][i], decoded[k][t])
            assert np.array_equal(b["next", "observation"][i], decoded[k][t + 1])
    b = next(iter(Loader(ds, 4, window=Slice(3, after=2, fill="zero"), sampler=Sequential(), fields=[..., *extra])))
    assert b["observation"].shape == (4, 3, 8, 10, 3) and str(b["observation"].dtype) == "torch.uint8"
    assert np.array_equal(b["observation"][1, :2], decoded[0][1:3]) and not b["observation"][1, 2].any()
    assert np.array_equal(b["next", "observation"][3], decoded[1][1:4])


@pytest.mark.thorough
def test_frames_of_several_batches_are_independent(tmp_path):
    pixels(tmp_path, 2)
    ds = import_files(tmp_path / "pixels-v0", "local/pixels")
    b = next(iter(Loader(ds, 8, backend="numpy", seed=1, fields=[..., "index"])))
    twice = [np.flatnonzero(b["index"] == i) for i in range(6)]
    i, j = next(t for t in twice if len(t) > 1)[:2]
    b["observation"][i] = 0
    assert b["observation"][j].any() and b["next", "observation"].any()
