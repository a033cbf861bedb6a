from collections import Counter

import numpy as np
import pytest
from loader_data import create, episode

from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.loader import Loader, Slice, Transition, Weighted

EPISODES = [episode(0, 4), episode(1, 10, end="truncated"), episode(2, 6, observed=False, end="truncated")]
DRAWS = 60_000


@pytest.fixture
def ds(home):
    return create(EPISODES)


def drawn(ds, weight, **options):
    """How often each (episode, step) is the first of a sample, and the probability it came with."""
    options = {"window": Transition(), "fields": [..., "episode", "step"], "backend": "numpy", **options}
    batch = next(iter(Loader(ds, DRAWS, sampler=Weighted(weight), **options)))
    first = [batch[name].reshape(DRAWS, -1)[:, 0].tolist() for name in ("episode", "step", "probability")]
    seen, probability = Counter(zip(*first[:2], strict=True)), {}
    for e, t, p in zip(*first, strict=True):
        assert probability.setdefault((e, t), p) == p
    return seen, probability


def close(seen, expected):
    assert set(seen) == {key for key, p in expected.items() if p > 0}
    for key, p in expected.items():
        assert abs(seen[key] - DRAWS * p) < 6 * np.sqrt(DRAWS * p) + 1e-9, key


@pytest.mark.thorough
def test_an_episode_is_drawn_by_its_weight_and_its_steps_alike(ds):
    expected = {(e, t): w / 6 / m for e, w, m in ((0, 1, 4), (1, 2, 10), (2, 3, 5)) for t in range(m)}
    seen, probability = drawn(ds, np.array([1, 2, 3]))
    close(seen, expected)
    assert probability == pytest.approx({k: expected[k] for k in seen})


@pytest.mark.thorough
def test_a_column_of_the_episode_table_is_named(ds):
    seen, _ = drawn(ds, "length")
    close(seen, {(e, t): T / 20 / m for e, T, m in ((0, 4, 4), (1, 10, 10), (2, 6, 5)) for t in range(m)})


@pytest.mark.thorough
def test_weights_by_transition_and_by_step(ds):
    by_transition = np.arange(19.0)
    places = [(e, t) for e, m in ((0, 4), (1, 10), (2, 5)) for t in range(m)]
    expected = dict(zip(places, by_transition / by_transition.sum(), strict=True))
    seen, probability = drawn(ds, by_transition)
    close(seen, expected)
    assert probability == pytest.approx({k: expected[k] for k in seen})
    by_step = np.insert(by_transition, 19, 100.0)  # step 5 of episode 2 is no transition
    close(drawn(ds, by_step)[0], expected)


@pytest.mark.thorough
def test_a_slice_weighs_what_its_first_step_inside_does(ds):
    weight = np.zeros(20)
    weight[[0, 5, 19]] = 1, 2, 1  # episode 0 step 0, episode 1 step 1, episode 2 step 5
    seen, probability = drawn(ds, weight, window=Slice(3, before=2, after=2))
    # slices from -2, -1 and 0 all begin at step 0 of episode 0
    close(seen, {(0, 0): 3 / 6, (1, 1): 2 / 6, (2, 5): 1 / 6})
    assert probability == pytest.approx({(0, 0): 1 / 6, (1, 1): 2 / 6, (2, 5): 1 / 6})


@pytest.mark.thorough
def test_a_selection_has_weights_of_its_own(ds):
    some = ds.select(episodes=[2, 0])
    seen, _ = drawn(some, np.array([3.0, 1.0]))
    lengths = some.episodes["num_transitions"]
    close(seen, {(e, t): w / 4 / lengths[e] for e, w in ((0, 3), (1, 1)) for t in range(lengths[e])})


@pytest.mark.thorough
def test_what_is_no_weight_is_refused(ds):
    for weight, words in (
        (np.array([1.0, -2.0, 1.0]), "-2.0 at place 1"),
        (np.array([1.0, np.nan, 1.0]), "nan at place 1"),
        (np.zeros(3), "zero"),
        (np.ones(7), "3 episodes, 19 transitions and 20 steps"),
        (np.ones((3, 1)), r"\[3, 1\]"),
        (np.array(["a", "b", "c"]), "numbers"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            Loader(ds, 4, sampler=Weighted(weight))
    with pytest.raises(UnknownField, match=r'"rewards".*total_reward'):
        Loader(ds, 4, sampler=Weighted("rewards"))
    with pytest.raises(UnknownField, match='"end"'):
        Loader(ds, 4, sampler=Weighted("end"))


@pytest.mark.thorough
def test_the_state_knows_the_weights(ds):
    def loader(weight):
        return Loader(ds, 4, sampler=Weighted(weight), backend="numpy")

    state = loader(np.array([1, 2, 3])).state_dict()
    loader(np.array([1, 2, 3])).load_state_dict(state)
    with pytest.raises(Exception, match="sampler"):
        loader(np.array([1, 2, 4])).load_state_dict(state)
