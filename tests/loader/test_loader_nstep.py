import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import create, episode, episode_lists

import rlds_cli
from rlds_cli.dataset.transforms import Elementwise
from rlds_cli.loader import Loader, Member, Mixture, ReturnToGo, Reward, Sequential, Shuffled, Slice, Transition
from rlds_cli.loader.storage import blocks


def check(loader, episodes, n, gamma, scale=1.0):
    """Every n-step transition of a pass, against a loop over its steps."""
    seen = 0
    for batch in loader:
        for i, (e, t) in enumerate(zip(batch["episode"], batch["step"], strict=True)):
            known = episodes[e]
            total, k = known.n_step(t, n, gamma)
            assert batch["next/reward"][i, 0] == pytest.approx(scale * total)
            assert batch["next/discount"][i, 0] == pytest.approx(gamma**k)
            assert np.array_equal(batch["next/observation"][i], known.next_observation(t + k - 1))
            assert batch["next/terminated"][i] == known.terminated[t + k - 1]
            assert batch["next/truncated"][i] == known.truncated[t + k - 1]
            seen += 1
    assert seen == sum(e.num_transitions for e in episodes)


@pytest.mark.thorough
@pytest.mark.parametrize("kept", [False, True])
@settings(max_examples=15)
@given(episodes=episode_lists(), n=st.integers(2, 12), gamma=st.sampled_from([0.0, 0.9, 1.0]))
def test_sums_stop_where_they_must(home, monkeypatch, kept, episodes, n, gamma):
    if not any(e.num_transitions for e in episodes):
        return
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0 if kept else 1 << 60)
    options = {"backend": "numpy", "dtype": None, "fields": [..., "episode", "step"]}
    check(Loader(create(episodes), 4, window=Transition(n, gamma), sampler=Shuffled(), **options), episodes, n, gamma)


EPISODES = [episode(0, 9, inner=(3,)), episode(1, 6, observed=False, end="truncated"), episode(2, 4)]


@pytest.fixture
def ds(home, monkeypatch):
    return create(EPISODES)


@pytest.mark.thorough
def test_packed_rows_serve_other_selections_and_other_sums(ds, home, monkeypatch):
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
    options = {"backend": "numpy", "dtype": None, "fields": [..., "episode", "step"], "window": Transition(3, 0.5)}
    some = ds.select(episodes=[2, 0])
    check(Loader(some, 4, sampler=Sequential(), **options), [EPISODES[2], EPISODES[0]], 3, 0.5)
    files = sorted(f.name for f in (home / "packed").iterdir())
    check(Loader(ds, 4, sampler=Sequential(), **options), EPISODES, 3, 0.5)
    check(Loader(ds, 4, sampler=Sequential(), **options | {"window": Transition(3, 0.6)}), EPISODES, 3, 0.6)
    assert len(files) == 1 and files == sorted(f.name for f in (home / "packed").iterdir())


@pytest.mark.thorough
def test_rewards_that_are_transformed_are_summed_anew(ds):
    options = {"backend": "numpy", "dtype": None, "fields": [..., "episode", "step"], "window": Transition(3, 0.5)}
    check(Loader(ds, 4, sampler=Shuffled(), transform=Reward(scale=7.0), **options), EPISODES, 3, 0.5, scale=7.0)


@pytest.mark.thorough
def test_without_a_place_to_keep_them_they_are_summed_anew(ds, home):
    (home / "packed").write_text("in the way")
    options = {"backend": "numpy", "dtype": None, "fields": [..., "episode", "step"], "window": Transition(3, 0.5)}
    check(Loader(ds, 4, sampler=Shuffled(), memory=0, **options), EPISODES, 3, 0.5)


def rewarded(reward, ref="local/rewarded"):
    """Two episodes with these rewards, which go on until the last step."""
    steps = len(reward)
    made = [
        {"observation": np.zeros((steps + 1, 1)), "action": np.zeros((steps, 1)), "next": {"reward": reward}}
        for _ in range(2)
    ]
    return rlds_cli.create(ref, made)


@pytest.mark.thorough
@pytest.mark.sampled(12)
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("dtype", [None, "float32", "float64"])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8"])
def test_rewards_of_any_kind_are_summed_in_float64(home, monkeypatch, kept, dtype, kind):
    """100 + 0.99 * 100 + 0.99**2 * 100 is 297.01, of which half floats hold 297."""
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0 if kept else 1 << 60)
    ds = rewarded(np.full(5, 100, kind))
    options = {"backend": "numpy", "dtype": dtype, "sampler": Sequential()}
    for data in (ds, Mixture({"a": ds, "b": ds})):
        batch = next(iter(Loader(data, 10, window=Transition(3, 0.99), **options)))
        given = dtype or ("float64" if kind == "float64" else "float32")
        assert batch["next/reward"].dtype == batch["next/discount"].dtype == given
        eps = float(np.finfo(given).eps)
        assert sorted(set(batch["next/reward"][:, 0])) == pytest.approx([100, 199, 297.01], rel=eps)
        assert sorted(set(batch["next/discount"][:, 0])) == pytest.approx([0.970299, 0.9801, 0.99], rel=eps)


@pytest.mark.thorough
@pytest.mark.parametrize("window", [Transition(), Transition(3, 0.5), Transition(2, 1.0), Slice(2)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", None])
def test_transforms_see_the_same_dtype_whatever_the_window(home, window, dtype):
    class Seen(Elementwise):
        def touches(self, name):
            return name == "next/reward"

        def apply(self, key, x):
            seen.add(x.dtype)
            return x

    ds, seen = rewarded(np.ones(4, np.float16)), set()
    options = {"backend": "numpy", "dtype": dtype, "transform": Seen(), "steps": 2}
    list(Loader(ds, 4, window=window, **options))
    list(Loader(Mixture({"a": ds, "b": Member(ds, transform=Seen())}), 4, window=window, **options))
    assert seen == {np.dtype({"float16": "float32", None: "float16"}.get(dtype, dtype))}


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_what_a_transform_makes_of_half_floats_is_finite(home, backend):
    ds = rewarded(np.full(5, 100, np.float16))  # half floats end at 65,504
    for n, expected in ((1, 1e6), (3, 1e6 * (1 + 0.99 + 0.99**2))):
        loader = Loader(ds, 4, window=Transition(n, 0.99), transform=Reward(scale=1e4), backend=backend)
        batch = next(iter(loader)).numpy()
        assert batch["next/reward"].max() == pytest.approx(expected) and np.isfinite(batch["next/reward"]).all()


@pytest.mark.thorough
def test_returns_of_half_floats_are_exact(home):
    ds = rewarded(np.full(3, 100, np.float16))
    batch = next(iter(Loader(ds, 6, fields=[..., ReturnToGo(0.99)], backend="numpy", dtype=None, sampler=Sequential())))
    assert batch["return_to_go"][:3, 0].tolist() == [100 + 0.99 * (100 + 0.99 * 100), 100 + 0.99 * 100, 100]
