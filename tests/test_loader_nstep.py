import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import create, episode, episode_lists

from rlds_cli.loader import Loader, Reward, Sequential, Shuffled, Transition
from rlds_cli.loader.windowing import nstep


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


@pytest.mark.parametrize("kept", [False, True])
@settings(max_examples=15)
@given(episodes=episode_lists(), n=st.integers(2, 12), gamma=st.sampled_from([0.0, 0.9, 1.0]))
def test_sums_stop_where_they_must(home, monkeypatch, kept, episodes, n, gamma):
    if not any(e.num_transitions for e in episodes):
        return
    monkeypatch.setattr(nstep, "LEAST_ROWS", 0 if kept else 1 << 60)
    monkeypatch.setattr(nstep, "_CHUNK", 3)
    options = {"backend": "numpy", "dtype": None, "extra": ("episode", "step")}
    check(Loader(create(episodes), 4, window=Transition(n, gamma), sampler=Shuffled(), **options), episodes, n, gamma)


EPISODES = [episode(0, 9, inner=(3,)), episode(1, 6, observed=False, end="truncated"), episode(2, 4)]


@pytest.fixture
def ds(home, monkeypatch):
    monkeypatch.setattr(nstep, "LEAST_ROWS", 0)
    return create(EPISODES)


def test_what_is_kept_serves_other_selections(ds, home):
    options = {"backend": "numpy", "dtype": None, "extra": ("episode", "step"), "window": Transition(3, 0.5)}
    some = ds.select(episodes=[2, 0])
    check(Loader(some, 4, sampler=Sequential(), **options), [EPISODES[2], EPISODES[0]], 3, 0.5)
    files = sorted(f.name for f in (home / "packed").iterdir())
    check(Loader(ds, 4, sampler=Sequential(), **options), EPISODES, 3, 0.5)
    assert len(files) == 2 and files == sorted(f.name for f in (home / "packed").iterdir())
    Loader(ds, 4, **options | {"window": Transition(3, 0.6)})
    assert len(list((home / "packed").iterdir())) == 3  # other sums, over the same steps


def test_rewards_that_are_transformed_are_summed_anew(ds):
    options = {"backend": "numpy", "dtype": None, "extra": ("episode", "step"), "window": Transition(3, 0.5)}
    check(Loader(ds, 4, sampler=Shuffled(), transform=Reward(scale=7.0), **options), EPISODES, 3, 0.5, scale=7.0)


def test_without_a_place_to_keep_them_they_are_summed_anew(ds, home):
    (home / "packed").write_text("in the way")
    options = {"backend": "numpy", "dtype": None, "extra": ("episode", "step"), "window": Transition(3, 0.5)}
    check(Loader(ds, 4, sampler=Shuffled(), memory=0, **options), EPISODES, 3, 0.5)
