"""Iteration, order, ranks, resuming: the rules of the loader's docstring."""

import itertools
import json
import subprocess
import sys
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader_data import create, episode
from reference import ranks, shuffles

import rlds_cli
from rlds_cli.errors import BatchSize, EmptyWindow, InvalidArgument, NeedsMemory, WrongState
from rlds_cli.loader import Loader, Normalize, Sequential, Shuffled, Slice, Transition, Uniform

SAMPLERS = st.sampled_from([Uniform(), Uniform(by="episode"), Shuffled(), Shuffled(drop_last=True), Sequential()])
WINDOWS = st.sampled_from([Transition(), Transition(3), Slice(3), Slice(4, before=2, after=3, stride=2)])


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    known = [episode(k, 5 + k, observed=k % 2 == 0, inner=(2,)) for k in range(6)]
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        return create(known)


def load(ds, size=4, **options):
    return Loader(ds, size, **{"backend": "numpy", "fields": [..., "episode", "step"], **options})


def ids(batch):
    """Which samples a batch holds, whatever the window."""
    pairs = zip(batch["episode"], batch["step"], strict=True)
    return [(tuple(np.atleast_1d(e).tolist()), tuple(np.atleast_1d(t).tolist())) for e, t in pairs]


def first(loader, n):
    return [ids(b) for b in itertools.islice(loader, n)]


# -- iteration


@pytest.mark.thorough
def test_uniform_never_ends_and_goes_on_where_it_was_left(ds):
    whole = first(load(ds), 100)
    loader = load(ds)
    assert first(loader, 30) + first(loader, 70) == whole
    assert loader.step == 100


def test_epochs_follow_each_other(ds):
    loader = load(ds, sampler=Shuffled())
    one, two = [sorted(chain(*map(ids, loader))) for _ in range(2)]
    assert one == two and len(one) == len(ds) == len(set(one))
    loader = load(ds, sampler=Shuffled())
    assert list(map(ids, loader)) != list(map(ids, loader))
    loader = load(ds, sampler=Sequential())
    assert list(map(ids, loader)) == list(map(ids, loader))


def test_a_pass_that_was_broken_off_is_not_gone_on_with(ds):
    reference = load(ds, sampler=Shuffled())
    epochs = [list(map(ids, reference)) for _ in range(2)]
    loader = load(ds, sampler=Shuffled())
    assert first(loader, 2) == epochs[0][:2]
    assert list(map(ids, loader)) == epochs[1]
    loader = load(ds, sampler=Shuffled(), steps=3)
    assert first(loader, 2) == epochs[0][:2]
    assert list(map(ids, loader)) == epochs[0][3:6]


def test_asking_for_an_iterator_consumes_nothing(ds):
    loader = load(ds, sampler=Shuffled())
    iter(loader), iter(loader)
    assert loader.step == 0
    assert first(loader, 3) == first(load(ds, sampler=Shuffled()), 3)


@pytest.mark.thorough
@pytest.mark.parametrize("sampler", [Uniform(), Shuffled(), Shuffled(drop_last=True), Sequential()])
@pytest.mark.parametrize("steps", [1, 7, 40])
def test_steps_batches_whatever_the_epochs(ds, sampler, steps):
    loader = load(ds, sampler=sampler, steps=steps)
    assert len(loader) == steps
    batches = [list(map(ids, loader)) for _ in range(2)]
    assert [len(b) for b in batches] == [steps, steps] and loader.step == 2 * steps
    endless = load(ds, sampler=sampler, steps=10**9)
    assert list(chain(*batches)) == first(endless, 2 * steps)


def test_lengths(ds):
    n = len(ds)
    assert len(load(ds, sampler=Shuffled())) == len(load(ds, sampler=Sequential())) == -(-n // 4)
    assert len(load(ds, sampler=Shuffled(drop_last=True))) == n // 4
    assert len(list(load(ds, sampler=Shuffled(drop_last=True)))) == n // 4
    assert [len(b["action"]) for b in load(ds, 10**6, sampler=Shuffled())] == [n]
    with pytest.raises(TypeError, match="steps=100_000") as e:
        len(load(ds))
    assert "Uniform draws with replacement" in str(e.value)


def test_step_counts_what_was_handed_out(ds):
    loader = load(ds, sampler=Shuffled())
    for epoch in range(2):
        for i, _ in enumerate(loader):
            assert loader.step == epoch * len(loader) + i + 1
    loader = load(ds)
    for _ in zip(range(95), loader, strict=False):
        pass
    assert loader.step in (95, 96)


# -- order


@pytest.mark.thorough
@given(SAMPLERS, WINDOWS, st.integers(1, 9), st.integers(0, 50))
def test_any_batch_is_found_by_its_number(ds, sampler, window, size, step):
    options = {"sampler": sampler, "window": window, "steps": 10**6, "seed": 3}
    loader = load(ds, size, **options)
    loader.seek(step)
    assert loader.step == step
    assert first(loader, 3) == first(load(ds, size, **options), step + 3)[step:]


@pytest.mark.thorough
@given(SAMPLERS, WINDOWS, st.integers(1, 4), st.sampled_from([1, 2, 3, 4]))
def test_ranks_part_every_batch(ds, sampler, window, share, world):
    size = share * world
    options = {"sampler": sampler, "window": window, "steps": 12}
    whole = first(load(ds, size, **options), 12)
    parts = [first(load(ds, size, **options, rank=r, world_size=world), 12) for r in range(world)]
    for n, batch in enumerate(whole):
        for r in range(world):
            assert parts[r][n] == ranks.part(batch, r, world)


@pytest.mark.thorough
@given(SAMPLERS, WINDOWS, st.integers(0, 25), st.sampled_from([(4, 1), (4, 2), (2, 1), (8, 4), (6, 3)]))
def test_a_state_goes_on_with_other_batches_and_ranks(ds, sampler, window, done, target):
    """The samples after those consumed, whatever the batch size: the order is one of samples."""
    size, world = target
    options = {"sampler": sampler, "window": window, "steps": 10**6}
    loader = load(ds, 4, **options)
    consumed = sum(len(b) for b in first(loader, done))
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = []
    for rank in range(world):
        other = load(ds, size, **options, rank=rank, world_size=world)
        other.load_state_dict(state)
        resumed.append(first(other, 6))
    if isinstance(sampler, Shuffled) and sampler.drop_last:
        return  # how many samples an epoch has depends on the batch size
    samples = list(chain(*first(load(ds, 1, **options), consumed + 6 * size)))[consumed:]
    total = None if sampler.endless else len(load(ds, 1, sampler=sampler, window=window))
    for n in range(6):
        left = size if total is None else total - consumed % total
        batch, samples = samples[: min(size, left)], samples[min(size, left) :]
        consumed += len(batch)
        assert [r[n] for r in resumed] == [ranks.part(batch, rank, world) for rank in range(world)]


@pytest.mark.thorough
def test_what_does_not_enter_the_order(ds):
    reference = first(load(ds, sampler=Shuffled(), seed=9), 8)
    for options in (
        {"fields": ["action", "episode", "step"]},
        {"dtype": None},
        {"backend": "torch"},
        {"fields": [..., "episode", "step", "text", "info"]},
        {"transform": Normalize(ds)},
        {"memory": 0},
    ):
        batches = itertools.islice(load(ds, sampler=Shuffled(), seed=9, **options), 8)
        assert [ids(b.numpy()) for b in batches] == reference, options


@pytest.mark.thorough
def test_seeds_and_epochs_change_the_order(ds):
    for sampler in (Uniform(), Uniform(by="episode"), Shuffled()):
        orders = []
        for seed, epoch in itertools.product((0, 1, 2**64 - 1), (0, 1, 5)):
            loader = load(ds, sampler=sampler, seed=seed)
            loader.set_epoch(epoch)
            orders.append(str(first(loader, 5)))
        assert len(set(orders)) == 9


def test_the_order_stays_what_it_is(ds):
    def drawn(sampler):
        return [[(e[0], t[0]) for e, t in b] for b in first(load(ds, 3, seed=1, sampler=sampler), 2)]

    windows = [(e, t) for e, steps in enumerate(ds.episodes["num_transitions"]) for t in range(steps)]
    order = [windows[i] for i in shuffles.shuffled(1, 0, len(windows))]
    assert drawn(Shuffled()) == [order[:3], order[3:6]]
    assert drawn(Uniform()) == [[(2, 2), (5, 3), (1, 2)], [(0, 1), (5, 5), (0, 2)]]


# -- resuming


def test_seek_and_load_hold_for_one_pass(ds):
    reference = load(ds, sampler=Shuffled())
    epochs = [list(map(ids, reference)) for _ in range(3)]
    loader = load(ds, sampler=Shuffled())
    loader.seek(len(loader) + 3)
    assert list(map(ids, loader)) == epochs[1][3:]
    assert list(map(ids, loader)) == epochs[2]


def test_a_run_that_was_killed_ends_where_it_would_have(ds):
    whole = list(map(ids, load(ds, steps=100)))
    loader = load(ds, steps=100)
    done = first(loader, 37)
    again = load(ds, steps=100)
    again.load_state_dict(loader.state_dict())
    assert again.step == 37
    assert done + list(map(ids, again)) == whole


def test_batches_read_ahead_are_not_counted_as_consumed(ds):
    loader = load(ds, 1)
    it = iter(loader)
    for n in range(1, 90):
        next(it)
        assert loader.state_dict()["samples"] == n


def test_a_state_at_the_end_of_an_epoch_starts_the_next(ds):
    loader = load(ds, sampler=Shuffled())
    it = iter(loader)
    for _ in range(len(loader)):
        next(it)
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (1, 0)
    other = load(ds, sampler=Shuffled())
    other.load_state_dict(state)
    assert list(map(ids, other)) == list(map(ids, loader))


def test_set_epoch_as_with_a_distributed_sampler(ds):
    reference = load(ds, sampler=Shuffled())
    epochs = [list(map(ids, reference)) for _ in range(3)]
    loader = load(ds, sampler=Shuffled())
    for e in (2, 0, 1):
        loader.set_epoch(e)
        assert list(map(ids, loader)) == epochs[e]


@pytest.mark.thorough
@pytest.mark.parametrize("sampler", [Uniform(), Shuffled(), Sequential()])
@pytest.mark.parametrize("steps", [4, 12, 30])
def test_every_epoch_that_is_set_has_its_steps(ds, sampler, steps):
    """Twelve batches make an epoch of the data; a pass may be less or more."""
    plain = load(ds, sampler=sampler, steps=steps)
    passes = [list(map(ids, plain)) for _ in range(4)]
    loader = load(ds, sampler=sampler, steps=steps)
    for e in (0, 1, 3, 2):
        loader.set_epoch(e)
        again = list(map(ids, loader))
        assert len(again) == steps
        assert sampler.endless or again == passes[e]


@pytest.mark.thorough
def test_a_state_of_something_else_is_refused(ds):
    state = load(ds, sampler=Shuffled(), seed=1).state_dict()
    others = [
        (load(ds, seed=1), "sampler"),
        (load(ds, sampler=Shuffled(), seed=2), "seed=1"),
        (load(ds, sampler=Shuffled(), seed=1, window=Slice(3)), "Transition"),
        (load(ds, sampler=Shuffled(), seed=1, window=Transition(anchors="steps")), "anchors"),
        (load(ds.select(episodes=[0, 1]), sampler=Shuffled(), seed=1), "selection"),
    ]
    for other, says in others:
        before = other.state_dict()
        with pytest.raises(WrongState, match=says) as e:
            other.load_state_dict(state)
        assert ds.id in str(e.value) and "this loader is on" in str(e.value)
        assert other.state_dict() == before
    with pytest.raises(WrongState, match="order 0"):
        load(ds, sampler=Shuffled(), seed=1).load_state_dict(state | {"order": 0})
    with pytest.raises(WrongState, match="samples"):
        load(ds).load_state_dict({"epoch": 1})


# -- bad input


@pytest.mark.sampled(11)
@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"batch_size": 0}, BatchSize, "batch_size=0"),
        ({"batch_size": -4}, BatchSize, "batch_size"),
        ({"batch_size": 2.5}, BatchSize, "batch_size"),
        ({"batch_size": 256, "rank": 0, "world_size": 6}, BatchSize, "252 or 258"),
        ({"batch_size": 10**6, "sampler": Shuffled(drop_last=True)}, BatchSize, "drop_last=False"),
        ({"seed": -1}, InvalidArgument, "seed"),
        ({"seed": 2**64}, InvalidArgument, "seed"),
        ({"steps": 0}, InvalidArgument, "steps"),
        ({"rank": 4, "world_size": 4}, InvalidArgument, "rank 4 of 4"),
        ({"window": Slice}, InvalidArgument, "window"),
        ({"window": 20}, InvalidArgument, "window"),
        ({"sampler": Shuffled}, InvalidArgument, "sampler"),
        ({"sampler": "shuffled"}, InvalidArgument, "sampler"),
        ({"dtype": "int8"}, InvalidArgument, "float32"),
        ({"dtype": "bfloat16", "backend": "numpy"}, InvalidArgument, "bfloat16"),
        ({"backend": "tensorflow"}, InvalidArgument, "backend"),
        ({"backend": "numpy", "device": "cpu"}, InvalidArgument, "device"),
        ({"device": "gpu"}, InvalidArgument, "device='gpu'"),
        ({"memory": "lots"}, InvalidArgument, "memory"),
        ({"transform": 3}, InvalidArgument, "transform"),
        ({"window": Slice(64)}, EmptyWindow, r"Slice\(64\) fits none of 6 episodes: the longest has 10 steps"),
    ],
)
def test_what_cannot_be_is_refused_at_once(ds, options, error, says):
    with pytest.raises(error, match=says):
        Loader(ds, **options)


def test_a_gpu_that_is_not_there_is_named_before_the_first_batch(ds):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        assert next(iter(Loader(ds, 4, device="cuda")))["action"].device.type == "cuda"
    else:
        with pytest.raises(InvalidArgument, match="no CUDA device"):
            Loader(ds, 4, device="cuda")
    assert next(iter(Loader(ds, 4, device="cpu", transform=Normalize(ds))))["action"].device.type == "cpu"


def test_too_long_a_slice_names_the_ways_out(ds):
    with pytest.raises(EmptyWindow) as e:
        Loader(ds, window=Slice(64))
    assert "Slice(64, after=63) pads, or a length <= 10" in str(e.value)


def test_no_transitions_at_all():
    ds = create([episode(0, 1, observed=False, end="truncated")])
    with pytest.raises(EmptyWindow, match='anchors="steps"'):
        Loader(ds)
    assert next(iter(Loader(ds, 2, window=Transition(anchors="steps"), backend="numpy")))["action"].shape == (2, 2)


def test_an_empty_selection(ds):
    with pytest.raises(EmptyWindow, match="0 episodes"):
        Loader(ds.select(episodes=np.zeros(0, int)))


@pytest.mark.thorough
@pytest.mark.parametrize("step", [-1, 1.5, None])
def test_places_that_are_none(ds, step):
    with pytest.raises(InvalidArgument):
        load(ds).seek(step)


# -- the rest


@pytest.mark.thorough
def test_a_dataset_by_id_and_by_path(ds, home):
    made = create([episode(0, 5)])
    for ref in ("local/known", made.path, str(made.path)):
        assert Loader(ref, 2, backend="numpy").dataset.num_steps == 5
    with pytest.raises(rlds_cli.errors.RldsError):
        Loader("local/nothing")


def test_a_compressed_dataset_is_decoded_within_its_budget():
    known = [episode(k, 40) for k in range(3)]
    plain = [ids(b) for b in load(create(known), sampler=Shuffled())]
    ds = create(known, storage="zarr")
    assert [ids(b) for b in load(ds, sampler=Shuffled())] == plain
    with pytest.raises(NeedsMemory, match="rlds convert local/known --to memmap") as e:
        load(ds, memory=1000)
    assert "KiB" in str(e.value) or "MiB" in str(e.value)
    assert len(list(load(ds, memory="1MiB", sampler=Shuffled()))) == 30


@pytest.mark.thorough
def test_describe_says_what_is_left_out(ds):
    text = load(ds, window=Slice(8)).describe()
    assert "left out  3 episodes (18 steps) without a window" in text
    text = load(ds).describe()
    for part in ("local/known", "45 steps", "6 episodes", "seed 0", "endless", "row after", "memory map", "computed"):
        assert part in text, part
    assert "left out" not in text
    unknown = create([episode(0, 5, observed=False, end="truncated"), episode(1, 5)])
    assert "left out  1 step whose next observation is not known" in load(unknown).describe()
    assert "left out" not in load(unknown, window=Transition(anchors="steps")).describe()


def test_repr_says_where_the_ranks_come_from(ds):
    assert "rank 0 of 1 (a single process)" in repr(load(ds))
    assert "rank 1 of 2 (the arguments)" in repr(load(ds, rank=1, world_size=2))
    assert "local/known" in repr(load(ds)) and "Transition" in repr(load(ds))


@pytest.mark.thorough
def test_numpy_needs_no_torch(ds):
    code = f"""
import sys
from rlds_cli.loader import Loader, Normalize, Reward, Shuffled, Slice
loader = Loader({str(ds.path)!r}, 4, backend="numpy", transform=Reward(2.0), steps=3)
for batch in loader: batch.sarsd()
loader.describe(), loader.state_dict()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_pickled_loader_goes_on_elsewhere(ds):
    import pickle

    loader = load(ds, sampler=Shuffled(), transform=Normalize(ds))
    first(loader, 3)
    assert len(pickle.dumps(loader)) < 100_000
    other = pickle.loads(pickle.dumps(loader))
    assert other.step == 3 and first(other, 4) == first(loader, 4)
    assert np.array_equal(next(iter(other))["observation"], next(iter(loader))["observation"])


def test_two_iterators_at_once_each_go_their_way(ds):
    reference = load(ds, sampler=Shuffled())
    epochs = [list(map(ids, reference)) for _ in range(2)]
    loader = load(ds, sampler=Shuffled())
    one = iter(loader)
    taken = [ids(next(one))]
    two = iter(loader)
    pairs = [(ids(a), ids(b)) for a, b in zip(one, two, strict=False)]
    assert taken + [a for a, _ in pairs] == epochs[0]
    assert [b for _, b in pairs] == epochs[1][: len(pairs)]


def test_a_batch_changed_in_place_leaves_the_gradients_of_another_alone(ds):
    torch = pytest.importorskip("torch")
    a, b = itertools.islice(Loader(ds, 4), 2)
    weight = torch.ones(3, requires_grad=True)
    loss = (a["observation"] * weight).sum()
    b["observation"].mul_(2)
    b["observation"].requires_grad_()
    loss.backward()
    assert torch.equal(weight.grad, a["observation"].sum(0))
