"""`Episode` against loops: whole episodes, padded, cut, in buckets of similar length."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import SELECTIONS, create, episode, varied
from reference import ranks

from rlds_cli.errors import BatchSize, EmptyWindow, InvalidArgument
from rlds_cli.loader import Episode, Loader, Reward, Sequential, Shuffled, Uniform, Weighted

VARIED = varied()
MANY = settings(max_examples=30)
SAMPLERS = st.sampled_from([Sequential(), Shuffled(), Shuffled(drop_last=True), Uniform(), Uniform(by="episode")])
EXTRA = ("episode", "step", "index", "text", "info/step", "next/qpos", "previous/reward", "next/action")
WINDOWS = st.builds(
    Episode,
    st.one_of(st.none(), st.integers(1, 9)),
    bucket=st.one_of(st.none(), st.integers(1, 5)),
    fill=st.sampled_from(["edge", "zero"]),
)


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        return create(VARIED, ref="local/varied")


def load(ds, window, size=3, **options):
    return Loader(ds, size, window=window, **{"backend": "numpy", "dtype": None, "fields": [..., *EXTRA], **options})


def check(b, i, e, first_index, length, fill):
    """Sample ``i`` of a batch is episode ``e``, ``length`` steps of it or of padding."""
    for j in range(length):
        real = j < e.length
        t = min(j, e.length - 1)
        kept = real or fill == "edge"
        assert b["mask"][i, j] == real and b["step"][i, j] == t
        assert b["index"][i, j] == (first_index + t if t < e.num_transitions else -1)
        assert np.array_equal(b["observation"][i, j], e.observation[t] if kept else np.zeros(3))
        assert np.array_equal(b["next/observation"][i, j], e.next_observation(t) if kept else np.zeros(3))
        assert np.array_equal(b["action"][i, j], e.action[t] if kept else np.zeros(2))
        assert np.array_equal(b["next/qpos"][i, j], e.qpos[t] if kept else np.zeros(2))
        assert b["info/step"][i, j] == (t if kept else 0)
        assert b["text"][i, j] == (f"episode {int(e.observation[0, 0])}" if kept else None)
        assert b["next/reward"][i, j, 0] == (e.reward[t] if kept else 0)
        assert b["previous/reward"][i, j, 0] == (e.reward[t - 1] if kept and t else 0)
        after = e.action[t + 1] if kept and t + 1 < e.length else np.zeros(2)
        assert np.array_equal(b["next/action"][i, j], after)
        for flag, is_set in (("terminated", e.terminated[t]), ("truncated", e.truncated[t])):
            assert b["next", flag][i, j, 0] == (kept and is_set)
        if ("next", "observed") in b:
            assert b["next/observed"][i, j, 0] == (kept and t + 1 < e.num_observed)
        else:
            assert e.num_observed > e.length


@pytest.mark.thorough
@MANY
@given(SELECTIONS, WINDOWS, SAMPLERS, st.integers(1, 4))
def test_episodes_are_whole_padded_and_cut(ds, chosen, window, sampler, size):
    known, view = [VARIED[k] for k in chosen], ds.select(episodes=chosen)
    first_index = np.cumsum([0, *(e.num_transitions for e in known)])
    if sampler == Shuffled(drop_last=True) and size > len(known):
        with pytest.raises(BatchSize):
            load(view, window, size, sampler=sampler)
        return
    longest = max(e.length for e in known)
    for b in itertools.islice(load(view, window, size, sampler=sampler), 6):
        drawn = b["episode"][:, 0]
        length = longest if window.bucket is None else max(known[k].length for k in drawn)
        length = min(length, window.max_length or length)
        for name in (*EXTRA, "observation", "next/observation", "next/reward", "mask"):
            assert b[name].shape[:2] == (len(drawn), length), name
        for i, k in enumerate(drawn):
            assert (b["episode"][i] == k).all()
            check(b, i, known[k], first_index[k], length, window.fill)


@pytest.mark.thorough
@MANY
@given(SELECTIONS, WINDOWS, st.integers(1, 4), st.integers(0, 3))
def test_an_epoch_holds_every_episode_once(ds, chosen, window, size, epoch):
    loader = load(ds.select(episodes=chosen), window, size, sampler=Shuffled(), fields=["action", "episode"])
    loader.set_epoch(epoch)
    drawn = [k for b in loader for k in b["episode"][:, 0].tolist()]
    assert sorted(drawn) == list(range(len(chosen)))


@pytest.mark.thorough
@MANY
@given(SELECTIONS, st.integers(1, 5), st.integers(0, 9))
def test_a_bucket_holds_neighbours_by_length(ds, chosen, bucket, seed):
    """Sorted by length and cut into runs of ``bucket``: each run comes whole, one after the other."""
    known = [VARIED[k] for k in chosen]
    order = sorted(range(len(known)), key=lambda k: known[k].length)
    runs = [order[i : i + bucket] for i in range(0, len(order), bucket)]
    loader = load(ds.select(episodes=chosen), Episode(bucket=bucket), 1, sampler=Shuffled(), seed=seed)
    drawn = [int(b["episode"][0, 0]) for b in loader]
    while drawn:
        run = next(r for r in runs if drawn[0] in r)
        assert sorted(drawn[: len(run)]) == sorted(run)
        drawn = drawn[len(run) :]


@pytest.mark.thorough
@MANY
@given(SELECTIONS, WINDOWS, SAMPLERS, st.integers(1, 2), st.sampled_from([2, 3, 4]))
def test_ranks_pad_alike_and_part_the_batch(ds, chosen, window, sampler, share, world):
    options = {"sampler": sampler, "steps": 5}
    view, size = ds.select(episodes=chosen), share * world
    if sampler == Shuffled(drop_last=True) and size > len(chosen):
        return
    whole = list(load(view, window, size, **options))
    parts = [list(load(view, window, size, **options, rank=r, world_size=world)) for r in range(world)]
    for n, batch in enumerate(whole):
        for r in range(world):
            for name, values in batch.leaves():
                assert np.array_equal(parts[r][n][name], values[ranks.places(len(values), r, world)]), name


@pytest.mark.slow
@MANY
@given(SELECTIONS, WINDOWS, st.sampled_from([Shuffled(), Uniform()]), st.integers(0, 8), st.integers(1, 5))
def test_an_order_does_not_depend_on_the_batch_size(ds, chosen, window, sampler, consumed, size):
    view, options = ds.select(episodes=chosen), {"sampler": sampler, "steps": 50}
    one = [int(b["episode"][0, 0]) for b in load(view, window, 1, **options)]
    loader = load(view, window, 1, **options)
    for _ in zip(range(consumed), loader, strict=False):
        pass
    other = load(view, window, size, **options)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    drawn = [k for b in itertools.islice(other, 6) for k in b["episode"][:, 0].tolist()]
    skipped = loader.state_dict()["samples"] + loader.state_dict()["epoch"] * len(chosen)
    assert drawn == one[skipped : skipped + len(drawn)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bucket", [None, 1, 3, 4, 7, 50])
@pytest.mark.parametrize("by", ["window", "episode"])
def test_uniform_gives_every_episode_the_same_chance(ds, bucket, by):
    view, draws = ds.select(episodes=np.arange(0, 96, 9)), 20_000
    loader = load(view, Episode(1, bucket=bucket), draws, sampler=Uniform(by), fields=[..., "episode", "probability"])
    seen = np.zeros(view.num_episodes)
    for b in itertools.islice(loader, 3):
        seen += np.bincount(b["episode"][:, 0], minlength=view.num_episodes)
        assert (b["probability"] == 1 / view.num_episodes).all()
    expected = 3 * draws / view.num_episodes
    together = bucket or 1  # draws of a bucket are not independent
    assert ((seen - expected) ** 2 / expected).sum() < 35 * min(together, view.num_episodes)  # 10 degrees of freedom


@pytest.mark.thorough
def test_draws_with_replacement_stay_in_a_neighbourhood_for_a_bucket(ds):
    order = sorted(range(96), key=lambda k: VARIED[k].length)
    place = {k: i for i, k in enumerate(order)}
    drawn = [int(k) for b in itertools.islice(load(ds, Episode(bucket=8), 4), 100) for k in b["episode"][:, 0]]
    starts = set()
    for i in range(0, len(drawn), 8):
        places = [place[k] for k in drawn[i : i + 8]]
        fits = [s for s in range(96) if all((p - s) % 96 < 8 for p in places)]
        assert fits
        starts.add(fits[0])
    assert len(starts) > 20


@pytest.mark.thorough
def test_buckets_pad_less(ds):
    def padded(window):
        return sum(int((~b["mask"]).sum()) for b in load(ds, window, 6, sampler=Shuffled()))

    assert padded(Episode(bucket=12)) < padded(Episode()) / 4


@pytest.mark.thorough
def test_in_sequence_buckets_go_from_the_shortest_to_the_longest(ds):
    drawn = [int(k) for b in load(ds, Episode(bucket=4), 5, sampler=Sequential()) for k in b["episode"][:, 0]]
    assert drawn == sorted(range(96), key=lambda k: VARIED[k].length)
    plain = [int(k) for b in load(ds, Episode(), 5, sampler=Sequential()) for k in b["episode"][:, 0]]
    assert plain == list(range(96))


@pytest.mark.thorough
def test_weights_go_with_buckets_too(ds):
    view = ds.select(episodes=[0, 40, 95])
    for b in itertools.islice(load(view, Episode(bucket=2), 2, sampler=Weighted(np.array([1.0, 0.0, 1.0]))), 20):
        drawn = b["episode"][:, 0]
        assert 1 not in drawn
        assert b["mask"].shape[1] == max(VARIED[[0, 40, 95][k]].length for k in drawn)


@pytest.mark.thorough
def test_padding_stays_zero_after_transforms(ds):
    for b in load(ds, Episode(fill="zero"), 8, sampler=Sequential(), transform=Reward(2.0, 5.0)):
        assert not b["next/reward"][~b["mask"]].any()
        assert (b["next/reward"][b["mask"]] != 0).all()


def test_describe_says_what_is_cut_off():
    ds = create([episode(0, 4), episode(1, 9), episode(2, 6)])
    text = load(ds, Episode(5)).describe()
    assert "left out  5 steps of 2 episodes longer than 5" in text and "3 windows in 3 episodes" in text
    assert "left out" not in load(ds, Episode(9)).describe() and "left out" not in load(ds, Episode()).describe()
    assert "bucket=2" in load(ds, Episode(bucket=2)).describe()


@pytest.mark.thorough
def test_lengths_of_epochs_and_batches(ds):
    assert len(load(ds, Episode(), 10, sampler=Shuffled())) == 10
    assert len(load(ds, Episode(), 10, sampler=Shuffled(drop_last=True))) == 9
    b = next(iter(load(ds, Episode(), 96, sampler=Sequential(), backend="torch")))
    assert b["observation"].shape == (96, 8, 3) and b.tensordict().batch_size == (96, 8)
    lengths = b["mask"].sum(1)
    assert lengths.tolist() == [e.length for e in VARIED]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Episode(0), "max_length=0"),
        (lambda: Episode(2.5), "max_length"),
        (lambda: Episode(bucket=0), "bucket=0"),
        (lambda: Episode(bucket=True), "bucket"),
        (lambda: Episode(fill="last"), '"edge" or "zero"'),
    ],
)
def test_windows_that_cannot_be_are_refused_at_once(make, says):
    with pytest.raises(InvalidArgument, match=says):
        make()


def test_no_episodes_at_all(ds):
    with pytest.raises(EmptyWindow, match="0 episodes"):
        load(ds.select(episodes=[]), Episode())
