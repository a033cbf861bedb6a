"""Returns to go against a loop from the end of every episode."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import create, episode, episode_lists
from reference import returns as reference

import rlds_cli
from rlds_cli.base import returns
from rlds_cli.errors import InvalidArgument, NeedsMemory, NoReward
from rlds_cli.loader import Loader, Offsets, ReturnToGo, Sequential, Slice, Transition
from rlds_cli.loader.fields import goals
from rlds_cli.loader.fields.goals import ReturnScan

EXACT = {"backend": "numpy", "dtype": None, "sampler": Sequential()}
GAMMAS = st.sampled_from([0.0, 0.5, 0.99, 1.0])


def slow_of(e, gamma, through=False):
    return reference.to_go(e.reward.tolist(), e.terminated.tolist(), gamma, through_terminals=through)


@pytest.mark.thorough
@settings(max_examples=8)
@given(episode_lists(), st.lists(st.tuples(GAMMAS, st.booleans()), min_size=3, max_size=4))
def test_every_step_has_the_sum_to_the_first_terminal_or_the_end(known, settings):
    ds = create(known)
    for gamma, through in settings:
        rtg, seen = ReturnToGo(gamma, 0.5, through_terminals=through), 0
        for b in Loader(ds, 4, window=Transition(anchors="steps"), fields=[..., "step", "episode", rtg], **EXACT):
            assert b["return_to_go"].shape == (len(b["step"]), 1) and b["return_to_go"].dtype == np.float64
            for k, t, value in zip(b["episode"], b["step"], b["return_to_go"][:, 0], strict=True):
                assert value == 0.5 * slow_of(known[k], gamma, through)[t]
                seen += 1
        assert seen == sum(e.length for e in known)


@pytest.mark.thorough
@settings(max_examples=5)
@given(episode_lists())
def test_slices_hold_the_return_of_each_step(known):
    ds = create(known)
    for fill in ("edge", "zero"):
        window = Slice(4, before=2, after=3, fill=fill)
        for b in Loader(ds, 3, window=window, fields=[..., "step", "episode", ReturnToGo(0.9)], **EXACT):
            assert b["return_to_go"].shape == (*b["mask"].shape, 1)
            for place in np.ndindex(b["mask"].shape):
                value = slow_of(known[b["episode"][place]], 0.9)[b["step"][place]]
                assert b["return_to_go"][place][0] == (value if b["mask"][place] or fill == "edge" else 0.0)


@pytest.mark.thorough
@pytest.mark.parametrize("window", [Transition(3, 0.5), Offsets({"observation": (-1, 0), "next/reward": (0, 1)})])
def test_it_is_that_of_step_t_whatever_the_window(window):
    known = [episode(0, 6), episode(1, 9, inner=(3,), end="truncated")]
    for b in Loader(create(known), 5, window=window, fields=[..., "step", "episode", ReturnToGo(0.9)], **EXACT):
        expected = [slow_of(known[k], 0.9)[t] for k, t in zip(b["episode"], b["step"], strict=True)]
        assert b["return_to_go"][:, 0].tolist() == expected


@pytest.mark.thorough
def test_it_is_cast_like_other_floats():
    ds = create([episode(0, 5)])
    for dtype in ("float16", "float32", "float64"):
        b = next(iter(Loader(ds, 5, fields=[..., ReturnToGo()], dtype=dtype, backend="numpy", sampler=Sequential())))
        assert b["return_to_go"].dtype == dtype
        expected = np.array(slow_of(episode(0, 5), 1.0), dtype)
        assert b["return_to_go"][:, 0].tolist() == expected.tolist()
    torch = pytest.importorskip("torch")
    assert next(iter(Loader(ds, 5, fields=[..., ReturnToGo()])))["return_to_go"].dtype == torch.float32


@pytest.mark.thorough
def test_a_selection_shares_the_column_of_its_dataset(home):
    known = [episode(k, 3 + k) for k in range(5)]
    ds = create(known)
    view = ds.select(episodes=[4, 1])
    for loader in (
        Loader(view, 3, fields=[..., "step", ReturnToGo()], **EXACT),
        Loader(ds, 3, fields=[..., ReturnToGo()]),
    ):
        assert "scanned once, packed file" in loader.describe()
    for b in Loader(view, 3, fields=[..., "step", ReturnToGo()], **EXACT):
        numbers = b["observation"][:, 0].astype(int)
        expected = [slow_of(known[k], 1.0)[t] for k, t in zip(numbers, b["step"], strict=True)]
        assert b["return_to_go"][:, 0].tolist() == expected
    assert len(list((home / "packed").glob("*.column"))) == 1
    Loader(ds, 3, fields=[..., ReturnToGo(0.5)]), Loader(ds, 3, fields=[..., ReturnToGo(scale=2.0)])
    Loader(ds, 3, fields=[..., ReturnToGo(through_terminals=True)])
    assert len(list((home / "packed").glob("*.column"))) == 3


@pytest.mark.thorough
def test_rewards_of_several_elements_are_summed_element_by_element():
    rng = np.random.default_rng(0)
    rewards = [rng.standard_normal((n, 2)) for n in (4, 7)]
    made = [
        {"observation": np.zeros((len(r) + 1, 1)), "action": np.zeros((len(r), 1)), "next": {"reward": r}}
        for r in rewards
    ]
    ds = rlds_cli.create("local/two", made)
    b = next(iter(Loader(ds, 11, fields=[..., "step", "episode", ReturnToGo(0.9)], **EXACT)))
    for k, t, value in zip(b["episode"], b["step"], b["return_to_go"], strict=True):
        never = np.zeros(len(rewards[k]), bool)
        assert value.tolist() == [reference.to_go(rewards[k][:, i].tolist(), never.tolist(), 0.9)[t] for i in range(2)]


@st.composite
def stretches(draw):
    """Episodes of any lengths, in rows, with terminals anywhere."""
    lengths = np.array(draw(st.lists(st.one_of(st.integers(1, 4), st.integers(1, 60)), min_size=1, max_size=80)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    last = np.cumsum(lengths + 1) - 1
    reward = rng.standard_normal(int(last[-1]) + 1).astype(draw(st.sampled_from(["float32", "float64"])))
    terminated = rng.random(len(reward)) < draw(st.sampled_from([0.0, 0.05, 0.7]))
    reward[last], terminated[last] = 0, False
    return reward, terminated, last


@settings(max_examples=30)
@given(stretches(), GAMMAS, st.sampled_from([1, 7, 40, 1 << 20]), st.sampled_from([1, 3, 32]))
def test_the_scan_equals_a_loop_in_parts_of_any_size(rows, gamma, at_once, few):
    reward, terminated, last = rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(goals, "_ROWS", at_once)
        patch.setattr(returns, "_PIECE", 5)
        patch.setattr(returns, "_FEW", few)
        parts = list(ReturnScan(reward, terminated, last, gamma).parts())
    assert all(len(part) <= at_once for part in parts)
    expected, first = [], 0
    for end in last:
        expected += [*reference.to_go(reward[first:end].tolist(), terminated[first:end].tolist(), gamma), 0.0]
        first = end + 1
    assert np.concatenate(parts).tolist() == expected


@pytest.mark.thorough
def test_many_and_long_episodes_are_exact_too():
    rng = np.random.default_rng(0)
    lengths = np.concatenate([rng.integers(1, 400, 300), [70_000], np.ones(500, int)])
    last = np.cumsum(lengths + 1) - 1
    reward = rng.standard_normal(int(last[-1]) + 1)
    reward[last] = 0
    never = np.zeros(len(reward), bool)
    for gamma in (1.0, 0.997):
        scanned = np.concatenate(list(ReturnScan(reward, None, last, gamma).parts()))
        for end, length in zip(last, lengths, strict=True):
            part = slice(end - length, end)
            assert np.array_equal(scanned[part], reference.to_go(reward[part].tolist(), never[part].tolist(), gamma))


def test_it_agrees_with_torchrl_on_whole_episodes():
    functional = pytest.importorskip("torchrl.objectives.value.functional")
    torch = pytest.importorskip("torch")
    known = [episode(0, 6), episode(1, 9, inner=(3,)), episode(2, 4, end="truncated")]
    b = next(iter(Loader(create(known), 19, fields=[..., ReturnToGo(0.9)], dtype=None, sampler=Sequential())))
    theirs = functional.reward2go(b["next", "reward"], b["next", "done"], 0.9)
    torch.testing.assert_close(b["return_to_go"], theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.thorough
def test_without_rewards_there_is_none():
    with pytest.raises(NoReward, match="no reward"):
        Loader(create([episode(0, 4)], reward=False), 2, fields=[..., ReturnToGo()])


def test_where_there_is_no_room_the_error_says_so(home):
    ds = create([episode(0, 40)])
    (home / "packed").write_text("in the way")
    b = next(iter(Loader(ds, 40, fields=[..., ReturnToGo()], **EXACT)))
    assert b["return_to_go"][0, 0] == slow_of(episode(0, 40), 1.0)[0]
    with pytest.raises(NeedsMemory, match="return_to_go of local/known takes 328 B"):
        Loader(ds, 40, fields=[..., ReturnToGo()], memory=0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ReturnToGo(1.5), r"\[0, 1\]"),
        (lambda: ReturnToGo(-0.1), r"\[0, 1\]"),
        (lambda: ReturnToGo(math.nan), r"\[0, 1\]"),
        (lambda: ReturnToGo(scale=math.inf), "finite"),
    ],
)
def test_what_cannot_be_is_refused_at_once(make, says):
    with pytest.raises(InvalidArgument, match=says):
        make()


@pytest.mark.thorough
def test_offsets_of_a_return_are_refused():
    with pytest.raises(InvalidArgument, match="step t alone"):
        Loader(create([episode(0, 4)]), 2, window=Offsets({"return_to_go": (0, 1)}), fields=[..., ReturnToGo()])
