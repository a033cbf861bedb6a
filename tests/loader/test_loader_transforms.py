import json
import pickle

import numpy as np
import pytest
import torch
from loader_data import create, episode

import rlds_cli
from rlds_cli.errors import InvalidArgument, NoReward, UnknownField
from rlds_cli.loader import (
    Batch,
    Clip,
    Loader,
    Member,
    Mixture,
    Normalize,
    Reward,
    Sequential,
    Slice,
    Transition,
)

NUMPY = {"backend": "numpy", "dtype": None, "sampler": Sequential()}


@pytest.fixture
def known():
    return [episode(k, 6 + k) for k in range(4)]


@pytest.fixture
def ds(known):
    return create(known)


def steps(known, name="observation"):
    """All T steps of all episodes, without final observations."""
    return np.concatenate([getattr(e, name)[: e.length] for e in known])


@pytest.mark.thorough
def test_std_is_mean_0_and_std_1_on_root_and_next_alike(ds, known):
    x = steps(known)
    mean, std = x.mean(0), x.std(0)
    b = next(iter(Loader(ds, 40, transform=Normalize(ds, eps=1e-3), **NUMPY)))
    raw = next(iter(Loader(ds, 40, **NUMPY)))
    assert np.allclose(b["observation"], (raw["observation"] - mean) / (std + 1e-3))
    assert np.allclose(b["next", "observation"], (raw["next", "observation"] - mean) / (std + 1e-3))
    assert np.array_equal(b["action"], raw["action"])


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["range", "quantile"])
def test_ranges_go_to_minus_one_and_one(ds, known, mode):
    x = steps(known, "action").astype(np.float64)
    low, high = (x.min(0), x.max(0)) if mode == "range" else np.quantile(x, [0.01, 0.99], axis=0)
    norm = Normalize(ds, ["action"], mode=mode)
    ends = norm.apply("action", np.stack([low, high, (low + high) / 2]))
    assert np.allclose(ends, [[-1, -1], [1, 1], [0, 0]], atol=1e-6)
    y = norm.apply("action", x)
    assert y.min() >= -1 - 1e-9 if mode == "range" else (np.abs(y) <= 1 + 1e-6).mean() > 0.9


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["std", "range", "quantile"])
def test_what_never_varies_is_only_centred(mode):
    made = [{"observation": np.full((5, 2), 7.5), "action": np.ones((4, 1)), "next": {"reward": np.ones(4)}}]
    ds = rlds_cli.create("local/constant", made)
    norm = Normalize(ds, mode=mode, eps=0.0)
    assert norm.apply("observation", [7.5, 8.0]).tolist() == [0.0, 0.5]


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["std", "range", "quantile"])
def test_a_flag_of_final_observations_alone_is_not_blown_up(mode):
    """Statistics count no final observations: the first element is always 0 for them."""
    x = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [1.0, 4.0]])
    made = [{"observation": x, "action": np.ones((3, 1)), "next": {"reward": np.ones(3)}}]
    ds = rlds_cli.create("local/goal-flag", made)
    y = Normalize(ds, mode=mode, eps=1e-3).apply("observation", x)
    assert y[:, 0].tolist() == [0, 0, 0, 1] and y[1, 1] == 0 and y[2, 1] > 0.9


TIMES = {
    "seconds": 1.7e9 + np.arange(101.0),
    "metres": 5.4e6 + np.arange(101) / 16,
    "ticks": 10**15 + np.arange(101),
    "nanoseconds": 1_700_000_000_000_000_000 + np.arange(101) * 10**7,
    "bytes": np.arange(101, dtype=np.uint8),
    "small": 1000.0 + np.arange(101) % 2 * 1e-5,
    "halves": (1024 + np.arange(101)).astype(np.float16),
}


def timed(kind, **more):
    """An episode of 100 steps and the statistics of these, worked out after the offset is taken off exactly."""
    x = TIMES[kind]
    made = {"observation": {"time": x[:, None]}, "action": x[:-1, None], "next": {"reward": np.ones(100)}}
    ds = rlds_cli.create(f"local/{kind}", [made], **more)
    first = int(x[0]) if x.dtype.kind in "iu" else x[0]
    k = (x - x.dtype.type(first)).astype(np.float64)
    return ds, k, {"std": (k - k[:-1].mean()) / k[:-1].std(), "range": 2 * k / k[:-1].max() - 1}


@pytest.mark.thorough
@pytest.mark.sampled(7)
@pytest.mark.parametrize("kind", TIMES)
@pytest.mark.parametrize("mode", ["std", "range"])
def test_elements_that_vary_little_around_a_large_number(home, kind, mode):
    """They have the same scale as without the offset, and distinct values stay distinct."""
    ds, k, expected = timed(kind)
    norm = Normalize(ds, ["observation", "action"], mode=mode, eps=0.0)
    x = TIMES[kind][:, None]
    rounding = 1e-3 if kind == "halves" else 2e-6
    for given in (x, torch.from_numpy(x) if x.dtype != np.uint8 else torch.from_numpy(x).int()):
        y = np.asarray(norm.apply("observation/time", given))
        assert y.dtype == (x.dtype if x.dtype.kind == "f" else np.float32)
        assert y[:, 0] == pytest.approx(expected[mode], abs=rounding)
    for options in (
        {},
        {"dtype": "float64"},
        {"dtype": None},
        {"backend": "numpy"},
        {"memory": "device", "device": "cpu"},
        {"window": Slice(2, after=1, fill="zero")},
        {"window": Transition(anchors="steps"), "fields": [..., "previous/action", "step"]},
    ):
        loader = Loader(ds, 300, transform=norm, seed=1, **{"fields": [..., "step"], **options})
        batch = next(iter(loader))
        step, real = np.asarray(batch["step"]), np.asarray(batch["mask"]) if "mask" in batch else ...
        for name, later in (("observation/time", 0), ("next/observation/time", 1), ("action", 0)):
            if name in batch:
                y = np.asarray(batch[name])[..., 0][real]
                assert y == pytest.approx(expected[mode][step + later][real], abs=rounding), (options, name)
        assert len(np.unique(np.asarray(batch["action"])[..., 0][real])) == len(np.unique(k[step[real]]))


@pytest.mark.parametrize("kind", ["seconds", "ticks"])
def test_members_of_a_mixture_are_centred_before_they_are_narrowed(home, kind):
    ds, _, expected = timed(kind)
    norm = Normalize(ds, ["observation", "action"], eps=0.0)
    renamed = Member(ds, transform=norm, rename={"observation/time": "clock"})
    pieces = {
        "member": ({"a": Member(ds, transform=norm), "b": Member(ds, transform=norm)}, (), "observation/time"),
        "renamed": ({"a": renamed, "b": renamed}, (), "clock"),
        "loader": ({"a": ds, "b": ds}, norm, "observation/time"),
        "both": ({"a": Member(ds, transform=norm), "b": Member(ds, transform=norm)}, Clip("action", 1.0), "clock"),
    }
    for members, transform, name in pieces.values():
        fields = ("action", name) if name != "clock" or members["a"] is renamed else ("action",)
        loader = Loader(Mixture(members), 100, fields=[*fields, "step"], transform=transform, backend="numpy")
        batch = next(iter(loader))
        for found in fields:
            clipped = expected["std"].clip(-1, 1) if isinstance(transform, Clip) else expected["std"]
            assert batch[found][:, 0] == pytest.approx(clipped[batch["step"]], abs=2e-6), found


@pytest.mark.thorough
def test_elements_of_one_value_are_only_centred(home):
    x = np.stack([np.full(41, 1e15 + 0.125), np.full(41, 0.1), np.arange(41) % 2 * 1e-5 + 1000], 1)
    ds = rlds_cli.create("local/almost", [{"observation": x, "action": np.ones((40, 1)), "next": {"reward": [1] * 40}}])
    for mode in ("std", "range", "quantile"):
        y = Normalize(ds, mode=mode, eps=0.0).apply("observation", x)
        assert not y[:, :2].any() and np.abs(y[:, 2]) == pytest.approx(np.ones(41))


@pytest.mark.thorough
def test_values_that_are_mostly_one_have_no_quantiles_to_scale_by(home):
    x = np.zeros((1001, 1))
    x[500] = 7.0
    made = [{"observation": x, "action": np.ones((1000, 1)), "next": {"reward": np.ones(1000)}}]
    y = Normalize(rlds_cli.create("local/spike", made), mode="quantile").apply("observation", x)
    assert y[500] == 7.0 and not np.delete(y, 500).any()


@pytest.mark.thorough
def test_a_normalised_observation_comes_back(home):
    ds, _, _ = timed("seconds")
    norm = Normalize(ds)
    x = TIMES["seconds"][:, None]
    assert np.abs(norm.invert("observation/time", norm.apply("observation/time", x)) - x).max() < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["std", "range", "quantile"])
def test_what_is_never_finite_stays(mode):
    x = np.stack([np.full(5, np.nan), np.arange(5.0)], 1)
    ds = rlds_cli.create("local/nan", [{"observation": x, "action": np.ones((4, 1)), "next": {"reward": np.ones(4)}}])
    norm = Normalize(ds, mode=mode)
    assert np.allclose(norm.apply("observation", [7.0, 1.5]), [7, 0])
    assert "NaN" not in json.dumps(norm.state_dict())


@pytest.mark.thorough
def test_constants_by_hand():
    """0 1 ... 100 over the steps, and 1000 as the final observation: mean 50, std sqrt((101**2 - 1) / 12)."""
    x = np.append(np.arange(101.0), 1000.0)[:, None]
    made = [{"observation": x, "action": np.ones((101, 1)), "next": {"reward": np.ones(101)}}]
    ds = rlds_cli.create("local/ramp", made)
    std = (10200 / 12) ** 0.5
    for mode, shift, scale in (("std", 50, std + 0.5), ("range", 50, 50), ("quantile", 50, 49)):
        state = Normalize(ds, mode=mode, eps=0.5).state_dict()["observation"]
        assert np.allclose(state["shift"], shift) and np.allclose(state["scale"], scale), mode


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["numpy", "list", "torch"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 7)])
def test_invert_takes_what_apply_takes(ds, kind, shape):
    torch = pytest.importorskip("torch")
    norm = Normalize(ds, ("observation", "action"), mode="range")
    x = np.random.default_rng(0).standard_normal((*shape, 2))
    given = {"numpy": x, "list": x.tolist(), "torch": torch.from_numpy(x)}[kind]
    there = norm.apply("action", given)
    assert isinstance(there, torch.Tensor) == (kind == "torch") and tuple(there.shape) == x.shape
    assert np.allclose(norm.invert("action", there), x)


@pytest.mark.thorough
def test_pickled_without_what_is_on_a_device(ds):
    torch = pytest.importorskip("torch")
    norm = Normalize(ds)
    x = torch.ones(3)
    before = norm.apply("observation", x)
    again = pickle.loads(pickle.dumps(norm))
    assert not again._cast and torch.equal(again.apply("observation", x), before)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["std", "range", "quantile"])
def test_invert_undoes_apply(ds, mode):
    norm = Normalize(ds, ("observation", "action"), mode=mode)
    for name, width in (("observation", 3), ("action", 2)):
        x = np.random.default_rng(0).standard_normal((5, width))
        assert np.allclose(norm.invert(name, norm.apply(name, x)), x)


@pytest.mark.thorough
def test_one_observation_at_evaluation(ds):
    torch = pytest.importorskip("torch")
    norm = Normalize(ds)
    one = np.array([1.0, 2.0, 3.0], np.float32)
    expected = norm.apply("observation", one)
    assert expected.shape == (3,) and expected.dtype == np.float32
    assert np.allclose(norm.apply("observation", torch.from_numpy(one)).numpy(), expected)
    assert np.allclose(norm.apply("observation", [1.0, 2.0, 3.0]), expected)
    assert np.allclose(norm.apply(("next", "observation"), one), expected)
    assert norm.apply("observation", np.array([1, 2, 3])).dtype == np.float32
    assert norm.apply("observation", torch.tensor([1, 2, 3])).dtype == torch.float32
    assert one.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.thorough
def test_state_goes_through_json_and_needs_no_dataset(ds):
    norm = Normalize(ds, ("observation", "action"))
    again = Normalize.from_state_dict(json.loads(json.dumps(norm.state_dict())))
    x = np.random.default_rng(0).standard_normal((4, 3))
    assert np.array_equal(again.apply("observation", x), norm.apply("observation", x))


@pytest.mark.thorough
def test_statistics_of_a_selection_are_its_own(ds, known):
    view = ds.select(episodes=[0, 1])
    x = steps(known[:2])
    assert np.allclose(Normalize(view, eps=0.0).apply("observation", x).std(0)[1:], 1)


def test_normalize_of_what_is_not_there(ds):
    with pytest.raises(UnknownField, match="observations"):
        Normalize(ds, ["observations"])
    with pytest.raises(UnknownField, match="statistics"):
        Normalize(ds, ["text"])
    with pytest.raises(UnknownField, match="not normalised"):
        Normalize(ds).apply("action", np.zeros(2))
    with pytest.raises(InvalidArgument, match="mode"):
        Normalize(ds, mode="minmax")
    with pytest.raises(InvalidArgument, match="eps"):
        Normalize(ds, eps=-1.0)


@pytest.mark.thorough
def test_rewards_are_scaled_then_shifted(ds, known):
    b = next(iter(Loader(ds, 6, transform=Reward(scale=2.0, shift=-1.0), **NUMPY)))
    assert np.allclose(b["next", "reward"][:, 0], known[0].reward * 2 - 1)


def test_rewards_are_changed_before_they_are_summed_up(ds, known):
    window = Transition(3, 0.9)
    transform = [Reward(scale=2.0, shift=-1.0), Clip("next/reward", 1.0)]
    b = next(iter(Loader(ds, 6, window=window, transform=transform, fields=[..., "step"], **NUMPY)))
    changed = np.clip(known[0].reward * 2 - 1, -1, 1)
    for i, t in enumerate(b["step"]):
        k = known[0].n_step(t, 3, 0.9)[1]
        assert np.isclose(b["next", "reward"][i, 0], sum(0.9**j * changed[t + j] for j in range(k)))
    with pytest.raises(InvalidArgument, match="before the functions"):
        Loader(ds, window=window, transform=[lambda b: b, Reward(2.0)])


def test_clip_keeps_root_and_next_within_the_limit(ds):
    raw = next(iter(Loader(ds, 30, **NUMPY)))
    b = next(iter(Loader(ds, 30, transform=Clip("observation", 0.5), **NUMPY)))
    for key in ("observation", ("next", "observation")):
        assert np.array_equal(b[key], np.clip(raw[key], -0.5, 0.5))
    with pytest.raises(InvalidArgument, match="limit"):
        Clip("observation", -1.0)


@pytest.mark.thorough
def test_transforms_apply_in_order(ds):
    raw = next(iter(Loader(ds, 8, **NUMPY)))["observation"]
    norm, seen = Normalize(ds), []

    def note(batch):
        seen.append(batch["observation"].copy())

    def double(batch):
        return Batch.nest({"observation": batch["observation"] * 2})

    b = next(iter(Loader(ds, 8, transform=[norm, note, double, Clip("observation", 1.0)], **NUMPY)))
    assert np.allclose(seen[0], norm.apply("observation", raw))
    assert np.allclose(b["observation"], np.clip(seen[0] * 2, -1, 1)) and b.names() == ["observation"]


@pytest.mark.thorough
def test_a_transform_works_on_a_batch_of_its_own(ds):
    norm = Normalize(ds)
    raw = next(iter(Loader(ds, 8, **NUMPY)))
    same = next(iter(Loader(ds, 8, transform=norm, **NUMPY)))
    changed = norm(raw.copy())
    assert np.array_equal(changed["next", "observation"], same["next", "observation"])


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", None])
def test_dtypes_and_backends_agree(ds, dtype):
    pytest.importorskip("torch")
    options = {"transform": [Normalize(ds), Clip("observation", 1.5), Reward(0.1)], "dtype": dtype, "steps": 4}
    for a, b in zip(Loader(ds, 5, backend="numpy", **options), Loader(ds, 5, **options), strict=True):
        for name, x in a.leaves():
            assert x.dtype == b.numpy()[name].dtype
            assert np.allclose(x, b.numpy()[name], rtol=1e-6), name


@pytest.mark.thorough
def test_zeros_outside_an_episode_stay_zeros(ds):
    window = Slice(8, after=7, fill="zero")
    for transform in (Normalize(ds), [Normalize(ds), Reward(shift=5.0)]):
        for b in Loader(ds, 5, window=window, transform=transform, **NUMPY):
            for key in ("observation", ("next", "observation"), ("next", "reward")):
                assert not b[key][~b["mask"]].any()
        assert (~b["mask"]).any() and b["observation"][b["mask"]].any()


@pytest.mark.thorough
def test_a_transform_with_nothing_to_do_is_a_mistake(ds):
    with pytest.raises(UnknownField, match="acton"):
        Loader(ds, transform=Clip("acton", 1.0))
    with pytest.raises(UnknownField, match="none of the fields"):
        Loader(ds, fields=("action",), transform=Normalize(ds))
    with pytest.raises(UnknownField):
        Loader(ds, fields=("action",), transform=Reward(2.0))
    with pytest.raises(NoReward):
        Loader(create([episode(0, 5)], reward=False, ref="local/other"), transform=Reward(2.0))


def test_a_scale_of_numpy_leaves_the_dtype_alone():
    x = np.ones((2, 1), np.float32)
    assert Reward(np.float64(2.0)).apply("next/reward", x).dtype == np.float32
    assert Clip("next/reward", np.float64(0.5)).apply("next/reward", x).dtype == np.float32


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["uint8", "uint16", "int8", "int32", "int64", "bool", "float32"])
@pytest.mark.parametrize(("limit", "expected"), [(1.5, 1), (0, 0), (200, 100), (1e30, 100), (np.inf, 100)])
def test_clip_keeps_every_dtype(kind, limit, expected):
    torch = pytest.importorskip("torch")
    values = np.array([0, 1, 100]).astype(kind)
    if kind in ("int8", "int32", "int64", "float32"):
        values = np.append(values, -values[-1])
    most = limit if kind == "float32" else expected
    kept = values.tolist() if kind == "bool" else np.clip(values.tolist(), -most, most).tolist()
    for given in (values, torch.from_numpy(values)):
        clipped = Clip("observation", limit).apply("observation", given)
        assert clipped.dtype == given.dtype and clipped.tolist() == kept


@pytest.mark.thorough
def test_integers_of_a_batch_stay_integers():
    made = {"observation": np.arange(-3, 4), "action": np.arange(6, dtype=np.uint8), "next": {"reward": np.arange(6)}}
    ds = rlds_cli.create("local/whole", [made])
    for backend in ("numpy", "torch"):
        plain = next(iter(Loader(ds, 6, sampler=Sequential(), backend=backend)))
        b = next(iter(Loader(ds, 6, sampler=Sequential(), backend=backend, transform=Clip("observation", 1.5))))
        assert [x.dtype for _, x in b.leaves()] == [x.dtype for _, x in plain.leaves()]
        assert b["observation"].tolist() == [-1, -1, -1, 0, 1, 1] and b["action"].tolist() == plain["action"].tolist()
