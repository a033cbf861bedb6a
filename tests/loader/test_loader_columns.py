"""Values: every batch against episodes that the test made itself, worked out one step at a time."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import create, episode, episode_lists

import rlds_cli
from rlds_cli.errors import EmptyWindow, InvalidArgument, LoaderError
from rlds_cli.loader import Episode, Loader, Offsets, Sequential, Shuffled, Slice, Transition, Uniform

WHERE = ("step", "episode", "index")
NUMPY = {"backend": "numpy", "dtype": None}
DATASETS = settings(max_examples=10)


def batches(ds, size=3, **options):
    return list(Loader(ds, size, **{"sampler": Sequential(), **NUMPY, **options}))


@pytest.mark.thorough
@DATASETS
@given(episode_lists(), st.sampled_from([Sequential(), Shuffled()]))
def test_transitions_are_those_of_the_episodes(known, sampler):
    ds = create(known)
    if not sum(e.num_transitions for e in known):
        with pytest.raises(EmptyWindow):
            Loader(ds)
        return
    seen = []
    for b in batches(ds, sampler=sampler, fields=[..., *WHERE, "info/step", "text", "next/qpos"]):
        for i in range(len(b["action"])):
            e, t = known[b["episode"][i]], int(b["step"][i])
            assert t < e.num_transitions
            assert np.array_equal(b["observation"][i], e.observation[t])
            assert np.array_equal(b["action"][i], e.action[t])
            assert np.array_equal(b["next", "observation"][i], e.next_observation(t))
            assert b["next", "reward"][i] == e.reward[t]
            assert b["next", "terminated"][i] == e.terminated[t] and b["next", "truncated"][i] == e.truncated[t]
            assert b["next", "done"][i] == (e.terminated[t] or e.truncated[t])
            assert np.array_equal(b["next", "qpos"][i], e.qpos[t])
            assert b["info", "step"][i] == t and b["text"][i] == f"episode {b['episode'][i]}"
            if ("next", "observed") in b:
                assert b["next", "observed"][i] == (t + 1 < e.num_observed)
            else:
                assert t + 1 < e.num_observed
            assert np.array_equal(ds[int(b["index"][i])]["observation"], b["observation"][i])
            seen.append((int(b["episode"][i]), t))
    everything = [(k, t) for k, e in enumerate(known) for t in range(e.num_transitions)]
    assert sorted(seen) == everything


@pytest.mark.thorough
@DATASETS
@given(episode_lists(), st.integers(2, 6), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_n_step_sums_stop_at_done_steps_and_at_the_last_transition(known, n, gamma):
    ds = create(known)
    if not sum(e.num_transitions for e in known):
        return
    for b in batches(ds, window=Transition(n, gamma), fields=[..., *WHERE, "next/qpos"]):
        for i in range(len(b["action"])):
            e, t = known[b["episode"][i]], int(b["step"][i])
            total, k = e.n_step(t, n, gamma)
            assert np.isclose(b["next", "reward"][i, 0], total, rtol=1e-12, atol=1e-12)
            assert np.isclose(b["next", "discount"][i, 0], gamma**k, rtol=1e-15, atol=0)
            assert np.array_equal(b["observation"][i], e.observation[t]) and np.array_equal(b["action"][i], e.action[t])
            assert np.array_equal(b["next", "observation"][i], e.next_observation(t + k - 1))
            last = t + k - 1
            assert b["next", "terminated"][i] == e.terminated[last]
            assert b["next", "done"][i] == (e.terminated[last] or e.truncated[last])
            assert np.array_equal(b["next", "qpos"][i], e.qpos[last])
            assert b.get("next/observed", np.ones((3, 1), bool))[i] == (t + k < e.num_observed)


@pytest.mark.thorough
@DATASETS
@given(episode_lists(), st.integers(1, 5), st.data())
def test_slices_hold_consecutive_steps_of_one_episode(known, length, data):
    reach = st.integers(0, length - 1)
    before, after, stride = data.draw(reach), data.draw(reach), data.draw(st.integers(1, 4))
    fill = data.draw(st.sampled_from(["edge", "zero"]))
    ds, window = create(known), Slice(length, before=before, after=after, stride=stride, fill=fill)
    starts = [
        (k, s) for k, e in enumerate(known) for s in range(-before, e.length, stride) if s + length <= e.length + after
    ]
    if not starts:
        with pytest.raises(EmptyWindow):
            Loader(ds, window=window)
        return
    extra = (*WHERE, "info/step", "text", "next/qpos")
    samples = [(b, i) for b in batches(ds, window=window, fields=[..., *extra]) for i in range(len(b["action"]))]
    assert len(samples) == len(starts)
    for (b, i), (k, start) in zip(samples, starts, strict=True):
        e = known[k]
        for j in range(length):
            real = 0 <= start + j < e.length
            t = min(max(start + j, 0), e.length - 1)
            assert b["mask"][i, j] == real
            assert b["step"][i, j] == t and b["episode"][i, j] == k
            is_transition = t < e.num_transitions
            before_it = sum(x.num_transitions for x in known[:k])
            assert b["index"][i, j] == (before_it + t if is_transition else -1)
            kept = real or fill == "edge"
            assert np.array_equal(b["observation"][i, j], e.observation[t] if kept else np.zeros(3))
            assert np.array_equal(b["next", "observation"][i, j], e.next_observation(t) if kept else np.zeros(3))
            assert np.array_equal(b["action"][i, j], e.action[t] if kept else np.zeros(2))
            assert np.array_equal(b["next", "qpos"][i, j], e.qpos[t] if kept else np.zeros(2))
            assert b["next", "reward"][i, j, 0] == (e.reward[t] if kept else 0)
            assert b["next", "terminated"][i, j, 0] == (kept and e.terminated[t])
            assert b["next", "done"][i, j, 0] == (kept and (e.terminated[t] or e.truncated[t]))
            assert b["info", "step"][i, j] == (t if kept else 0)
            assert b["text"][i, j] == (f"episode {k}" if kept else None)
            if ("next", "observed") in b:
                assert b["next", "observed"][i, j, 0] == (kept and t + 1 < e.num_observed)
            else:
                assert e.num_observed == e.length + 1


def test_anchors_that_cannot_be_are_refused():
    for window in (Transition, partial(Slice, 3), Episode, partial(Offsets, {"action": (0, 1)})):
        with pytest.raises(InvalidArgument, match="anchors"):
            window(anchors="all")
    with pytest.raises(InvalidArgument, match="anchors"):
        Transition(3, anchors="steps")


@pytest.mark.thorough
@DATASETS
@given(episode_lists())
def test_anchors_steps_draws_every_step_without_next_observations(known):
    ds = create(known)
    seen = []
    for b in batches(ds, window=Transition(anchors="steps"), fields=[..., *WHERE]):
        assert ("next", "observation") not in b and ("next", "observed") not in b
        for k, t, action in zip(b["episode"], b["step"], b["action"], strict=True):
            assert np.array_equal(action, known[k].action[t])
            seen.append((k, t))
    assert seen == [(k, t) for k, e in enumerate(known) for t in range(e.length)]


@pytest.mark.thorough
def test_torch_and_numpy_give_the_same():
    torch = pytest.importorskip("torch")
    ds = create([episode(k, 7, observed=k % 2 == 0, inner=(2,)) for k in range(4)])
    for options in ({}, {"window": Transition(3)}, {"window": Slice(5, before=2, after=3, fill="zero")}):
        options |= {"seed": 5, "steps": 30, "fields": [..., *WHERE, "text"]}
        for a, b in zip(
            Loader(ds, 4, backend="numpy", **options), Loader(ds, 4, backend="torch", **options), strict=True
        ):
            assert a.names() == b.names()
            for name in a.names():
                assert np.array_equal(a[name], np.asarray(b[name])), name
                assert name == "text" or isinstance(b[name], torch.Tensor)


@pytest.mark.thorough
@pytest.mark.parametrize("window", [Transition(), Transition(3), Slice(3), Slice(3, before=1, after=2, fill="zero")])
@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_fields_are_contiguous_writable_and_overlap_nothing(window, backend):
    ds = create([episode(k, 9, observed=k % 2 == 0) for k in range(3)])
    column = ds.column("observation").copy()
    loader = Loader(
        ds, 4, window=window, backend=backend, dtype=None, fields=[..., *WHERE, "done", "terminated"], steps=5
    )
    spans = []
    for b in loader:
        for _, x in b.leaves():
            x = np.asarray(x)
            assert x.flags.c_contiguous and x.flags.writeable
            spans.append((x.__array_interface__["data"][0], x.nbytes, x))
            x[...] = 1
    spans.sort(key=lambda s: s[:2])
    for (a, size, _), (b, _, _) in pairwise(spans):
        assert a + size <= b
    assert np.array_equal(ds.column("observation"), column)


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["torch", "numpy"])
@pytest.mark.parametrize("dtype", [None, "float16", "float32", "float64"])
def test_only_floats_are_cast(backend, dtype):
    ds = create([episode(0, 6)])
    b = next(iter(Loader(ds, 4, backend=backend, dtype=dtype, fields=[..., "info", "step"]))).numpy()
    assert b["observation"].dtype == np.dtype(dtype or "float64") == b["next", "reward"].dtype
    assert b["action"].dtype == np.dtype(dtype or "float32")
    assert b["info", "step"].dtype == np.int32 and b["step"].dtype == np.int64
    assert b["next", "terminated"].dtype == bool


@pytest.mark.thorough
def test_bfloat16_is_for_torch():
    torch = pytest.importorskip("torch")
    b = next(iter(Loader(create([episode(0, 6)]), 4, dtype=torch.bfloat16)))
    assert b["observation"].dtype == torch.bfloat16 and b["next", "terminated"].dtype == torch.bool


@pytest.mark.thorough
def test_shapes_of_transitions_and_slices():
    ds = create([episode(k, 9) for k in range(3)])
    b = next(iter(Loader(ds, 5, backend="numpy", fields=[..., *WHERE, "done"])))
    for flag in ("reward", "done", "terminated", "truncated"):
        assert b["next", flag].shape == (5, 1)
    assert b["done"].shape == (5, 1) and not b["done"].any()
    assert b["step"].shape == b["episode"].shape == b["index"].shape == (5,)
    b = next(iter(Loader(ds, 5, window=Slice(4), backend="numpy", fields=[..., *WHERE, "done"])))
    for flag in ("reward", "done", "terminated", "truncated"):
        assert b["next", flag].shape == (5, 4, 1)
    assert b["observation"].shape == (5, 4, 3) and b["done"].shape == (5, 4, 1)
    assert b["step"].shape == b["episode"].shape == b["index"].shape == b["mask"].shape == (5, 4)
    assert b["mask"].all() and b["mask"].dtype == bool


@pytest.mark.thorough
def test_a_selection_numbers_its_own_episodes():
    known = [episode(k, 5 + k) for k in range(5)]
    view = create(known).select(episodes=[4, 1, 2])
    for b in batches(view, fields=[..., *WHERE], window=Slice(3)):
        assert np.array_equal(b["observation"][..., 0], np.array([4, 1, 2])[b["episode"]])
        assert np.array_equal(view[b["index"].ravel()]["observation"], b["observation"].reshape(-1, 3))


@pytest.mark.thorough
def test_episodes_without_a_window_are_never_drawn():
    known = [episode(0, 2), episode(1, 8), episode(2, 1, observed=False, end="truncated"), episode(3, 8)]
    ds = create(known)
    for by in ("window", "episode"):
        drawn = {
            int(k)
            for b in Loader(ds, 64, window=Slice(8), sampler=Uniform(by=by), fields=[..., "episode"], steps=4, **NUMPY)
            for k in b["episode"].ravel()
        }
        assert drawn == {1, 3}
    drawn = {int(k) for b in Loader(ds, 64, fields=[..., "episode"], steps=4, **NUMPY) for k in b["episode"]}
    assert drawn == {0, 1, 3}  # the only step of episode 2 has no known next observation


@pytest.mark.thorough
def test_a_next_observation_of_its_own_is_read_where_the_dataset_has_one():
    rng = np.random.default_rng(0)
    after = rng.standard_normal((2, 6, 3))
    made = (
        {
            "observation": rng.standard_normal((6, 3)),
            "action": np.zeros((6, 1)),
            "next": {"observation": a, "reward": np.zeros(6), "terminated": True},
        }
        for a in after
    )
    ds = rlds_cli.create("local/apart", made)
    assert "next/observation" in ds.schema
    for b in batches(ds, fields=[..., *WHERE]):
        assert np.array_equal(b["next", "observation"], after[b["episode"], b["step"]])
    with pytest.raises(LoaderError, match="anchors"):
        Loader(ds, window=Transition(anchors="steps"), fields=("next/observation",))


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["torch", "numpy"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "float16", "bool"])
def test_any_dtype_of_the_store_is_read_and_blanked(backend, dtype):
    values = np.arange(1, 13).reshape(6, 2).astype(dtype)
    made = [{"observation": values, "action": values[:5], "next": {"reward": np.arange(5), "terminated": True}}]
    ds = rlds_cli.create("local/odd", made)
    options = {"backend": backend, "dtype": None, "sampler": Sequential()}
    b = next(iter(Loader(ds, 5, **options))).numpy()
    assert b["observation"].dtype == np.dtype(dtype) and np.array_equal(b["observation"], values[:5])
    assert b["next", "reward"].dtype == np.int64 and b.sarsd()[4].dtype == np.float32
    b = next(iter(Loader(ds, 5, window=Slice(3, after=2, fill="zero"), **options))).numpy()
    assert np.array_equal(b["observation"][4], np.stack([values[4], 0 * values[4], 0 * values[4]]))
    assert b["observation"][b["mask"]].all()
