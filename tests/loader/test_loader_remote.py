"""A loader over a dataset whose blocks arrive late: the same batches, and garbage wherever no block is held."""

import copy
import gc
import pickle
import time

import frames_data
import numpy as np
import pytest
from late_blocks import LateStore, late
from loader_data import create, varied

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DownloadFailed, InvalidArgument
from rlds_cli.loader import (
    Episode,
    Goals,
    Loader,
    Member,
    Mixture,
    Normalize,
    Offsets,
    Prioritized,
    ReturnToGo,
    Sequential,
    Shuffled,
    Slice,
    Transition,
    Uniform,
    Weighted,
    read,
)
from rlds_cli.loader.storage import remote


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield create(varied())


@pytest.fixture(scope="module")
def film(here):
    return frames_data.film([5, 1, 9, 7, 3, 8])


def same(one, other):
    """Equality of all fields of two batches, bit by bit."""
    for (name, x), (other_name, y) in zip(one.leaves(), other.leaves(), strict=True):
        assert name == other_name and x.dtype == y.dtype and x.shape == y.shape
        assert x.tolist() == y.tolist() if x.dtype == object else x.tobytes() == y.tobytes(), name


def check(here, far, batches=30, **arguments):
    arguments = {"backend": "numpy", "seed": 3, "steps": batches, **arguments}
    for one, other in zip(Loader(here, 16, **arguments), Loader(far, 16, **arguments), strict=True):
        same(one, other)


ARGUMENTS = {
    "transitions": {},
    "n-step": {"window": Transition(n_step=3)},
    "n-step, rewards changed": {"window": Transition(n_step=3), "transform": rlds_cli.loader.Reward(scale=2.0)},
    "slices": {"window": Slice(5)},
    "slices beyond the ends": {"window": Slice(4, before=2, after=2)},
    "zeros beyond the ends": {"window": Slice(4, before=2, after=2, fill="zero"), "fields": [..., "next/action"]},
    "episodes": {"window": Episode()},
    "episodes of one length": {"window": Episode(bucket=8)},
    "offsets": {"window": Offsets({"observation": (-2, 0, 1), "next/reward": (0, 3)})},
    "goals": {
        "fields": [..., Goals("goal", current=0.2, future=0.5, random=0.3), "previous/action", "previous/reward"]
    },
    "goals of windows": {"fields": [..., Goals("goal")], "window": Slice(5)},
    "returns": {"fields": [..., ReturnToGo(gamma=0.9, scale=0.1), "probability"]},
    "all fields": {"fields": ["all", "step", "episode", "index"]},
    "every step": {"window": Transition(anchors="steps")},
    "its own dtypes": {"dtype": None},
    "episodes alike": {"sampler": Uniform(by="episode")},
    "a warm-up": {"warm_up": "first_part"},
    "shuffled": {"sampler": Shuffled()},
    "blocks shuffled": {"sampler": Shuffled(block=10, live=3)},
    "in order": {"sampler": Sequential()},
    "weighted": {"sampler": Weighted(np.arange(1.0, 97.0))},
    "read ahead": {"prefetch": 3},
    "a rank": {"rank": 1, "world_size": 4},
}


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("block", "stays"), [(16, False), (1024, True)])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_batches_are_those_of_the_local_dataset(here, name, stays, block):
    far = late(here, block, stays=stays)
    check(here, far, **ARGUMENTS[name])
    gc.collect()
    assert far.store.files.blocks.holds == 0
    assert stays or not any(state.any() for state in far.store.files.blocks._state)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pieces", [3, 4096])
@pytest.mark.parametrize("name", ["transitions", "n-step", "slices", "goals", "all fields"])
def test_columns_in_several_files(here, name, pieces):
    far = late(here, 16, pieces=pieces)
    check(here, far, **ARGUMENTS[name])
    gc.collect()
    assert far.store.files.blocks.holds == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"window": Transition(n_step=3)},
        {"window": Slice(4)},
        {"window": Offsets({"observation": (-2, 0, 1)}), "fields": [..., "mask/observation"]},
        {"fields": [..., Goals("goal", future=0.5, random=0.5)]},
        {"fields": ["action", Goals("goal")]},
        {"prefetch": 0},
    ],
)
def test_encoded_frames(film, arguments, stays):
    far = late(film, 128, stays=stays)
    check(film, far, batches=12, **arguments)
    gc.collect()
    assert far.store.files.blocks.holds == 0


def test_frames_are_announced_as_soon_as_their_table_is_here(film):
    far = late(film, 128, stays=True, delay=0.05)
    loader = Loader(far, 4, backend="numpy", prefetch=0, sampler=Sequential())
    batches = iter(loader)
    next(batches)
    table = far.store.files.place(far.store.table.column("observation")).files[0]
    far.store.files.blocks.hold([(table, np.arange(len(far.store.files.blocks.state(table))))]).release()
    offsets = far.store.files.mapped(far.store.table.column("observation"))
    place = far.store.files.place(far.store.table.column("observation", "frames"))
    frames, state = place.wanted(*offsets[4:8].T), far.store.files.blocks.state  # of the next batch
    until = time.monotonic() + 60
    while not (arrived := all(state(f)[b].all() for f, b in frames)) and time.monotonic() < until:
        time.sleep(0.01)
    assert arrived  # before anybody waits for the batch
    next(batches)


@pytest.mark.thorough
def test_normalised_with_the_statistics_of_the_manifest(here):
    check(here, late(here), transform=Normalize(here))


def test_functions_of_batches_and_workers(here):
    def double(batch):
        batch["action"] = batch["action"] * 2

    check(here, late(here), transform=double)
    torch = pytest.importorskip("torch")
    far = Loader(late(here), 16, seed=5, steps=12)
    near = Loader(here, 16, seed=5, steps=12)
    workers = torch.utils.data.DataLoader(
        far.as_torch(), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    for one, other in zip(near, workers, strict=True):
        same(one.numpy(), other.numpy())


@pytest.mark.parametrize(
    "arguments", [{}, {"window": Transition(n_step=3)}, {"window": Slice(3), "fields": [..., "step"]}]
)
def test_columns_on_a_device(here, arguments):
    pytest.importorskip("torch")
    far, arguments = late(here), {"device": "cpu", "memory": "device", "steps": 8, "seed": 1, **arguments}
    for one, other in zip(Loader(here, 16, **arguments), Loader(far, 16, **arguments), strict=True):
        same(one.numpy(), other.numpy())


@pytest.mark.thorough
def test_priorities(here):
    far, arguments = late(here), {"sampler": Prioritized(), "backend": "numpy", "seed": 2, "steps": 20}
    loaders = [Loader(dataset, 16, **arguments) for dataset in (here, far)]
    for one, other in zip(*loaders, strict=True):
        same(one, other)
        for loader, batch in zip(loaders, (one, other), strict=True):
            loader.update_priorities(batch, np.abs(batch["next/reward"]))


@pytest.mark.thorough
@pytest.mark.parametrize("window", [Transition(), Transition(n_step=3), Slice(3), Episode()])
def test_mixtures_of_remote_and_local_members(here, window):
    other = create(varied()[40:60], ref="local/other")

    def mixed(first, second):
        return Mixture({"a": first, "b": Member(second, transform=lambda batch: batch), "c": here}, weights="size")

    arguments = {"window": window, "backend": "numpy", "seed": 1, "steps": 20}
    near, far = mixed(here, other), mixed(late(here), late(other, 16))
    for one, two in zip(Loader(near, 16, **arguments), Loader(far, 16, **arguments), strict=True):
        same(one, two)


@pytest.mark.thorough
def test_a_state_moves_between_local_and_remote(here):
    whole = [b.copy() for b in Loader(here, 16, sampler=Shuffled(), backend="numpy", steps=25)]
    for first, then in ((here, late(here)), (late(here), here), (late(here), late(here, 16))):
        begun = Loader(first, 16, sampler=Shuffled(), backend="numpy", steps=25)
        for _ in begun:
            if begun.step == 11:
                break
        goes_on = Loader(then, 16, sampler=Shuffled(), backend="numpy", steps=25)
        goes_on.load_state_dict(begun.state_dict())
        for one, other in zip(whole[11:], goes_on, strict=True):
            same(one, other)


@pytest.mark.thorough
def test_what_is_announced(here, monkeypatch):
    monkeypatch.setattr(read, "MISSING_AHEAD", 40)
    far = late(here, 64)
    blocks, most, announced = far.store.files.blocks, 0, []
    announce = blocks.announce
    monkeypatch.setattr(blocks, "announce", lambda wanted, *rest: announced.append(wanted) or announce(wanted, *rest))
    for _ in Loader(far, 8, backend="numpy", steps=50, sampler=Sequential()):
        most = max(most, blocks.holds)
    assert 2 < most <= 2 + 40  # some runs ahead, until enough is on its way
    assert sum(len(b) for b in announced[0][:1]) >= 1


@pytest.mark.parametrize(("most_bytes", "least"), [(0, 0), (1 << 20, 8)])
def test_more_runs_of_few_bytes_are_announced(here, monkeypatch, most_bytes, least):
    monkeypatch.setattr(read, "MOST_RUNS_AHEAD", 3)
    monkeypatch.setattr(read, "BYTES_AHEAD", most_bytes)
    far = late(here, 64)
    most = 0
    for _ in Loader(far, 8, backend="numpy", steps=50, window=Episode(bucket=8)):  # each batch is a run
        most = max(most, far.store.files.blocks.holds)
    assert most > least if least else most <= 3 + 2


@pytest.mark.slow
def test_a_loop_that_is_left_lets_go(here):
    far = late(here)
    for prefetch in (0, 2):
        for _ in Loader(far, 8, backend="numpy", prefetch=prefetch):
            break
        gc.collect()
        assert far.store.files.blocks.holds == 0


@pytest.mark.thorough
def test_what_is_all_here_is_held_and_not_asked_for(here, monkeypatch):
    far = late(here)
    loader, near = (Loader(dataset, 16, backend="numpy", steps=9) for dataset in (far, here))
    far.store.files.blocks.come()
    asked, announce = [], far.store.files.blocks.announce
    monkeypatch.setattr(
        far.store.files.blocks, "announce", lambda wanted, *rest: asked.append(wanted) or announce(wanted, *rest)
    )
    for one, other in zip(loader, near, strict=True):
        same(one, other)
    (whole,) = asked
    assert {file for file, _ in whole} < set(range(len(far.store.files.blocks.came)))  # only files that are read
    assert all(len(blocks) == len(far.store.files.blocks.state(file)) for file, blocks in whole)


@pytest.mark.thorough
def test_what_becomes_whole_meanwhile_is_held(here, monkeypatch):
    monkeypatch.setattr(remote, "TRIES", 3)
    far = late(here)
    loader, near = (Loader(dataset, 16, backend="numpy", steps=6000) for dataset in (far, here))
    for i, (one, other) in enumerate(zip(loader, near, strict=True)):
        same(one, other)
        if i == 5:
            far.store.files.blocks.come()
    assert not loader.source.remote and far.store.files.blocks.holds == 1


def test_a_block_that_cannot_be_had(here):
    far = late(here)
    loader = Loader(far, 8, backend="numpy")
    far.store.files.blocks.broken.add(0)
    with pytest.raises(DownloadFailed, match="block 0 of file 0"):
        next(iter(loader))


def test_packed_rows_are_not_made(here, monkeypatch):
    from rlds_cli.loader.storage import blocks

    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
    assert "packed rows" in Loader(here, 8).describe()
    text = Loader(late(here), 8).describe()
    assert "packed" not in text and "blocks of the remote dataset" in text


# -- statistics


def test_stats(here):
    far = late(here, stays=True, delay=0.05)
    loader = Loader(far, 8, backend="numpy", steps=12)
    assert loader.stats().batches == 0 and loader.stats().seconds == 0
    for _ in loader:
        pass
    stats = loader.stats()
    row = 3 * 8 * 2 + 2 * 4 + 8 + 4  # two observations, action, reward, four flags
    assert (stats.batches, stats.samples, stats.used) == (12, 96, 96 * row)
    assert stats.requests == sum(c.sum() for c in far.store.files.blocks.came) > 0
    assert 0 < stats.fetched <= 64 * stats.requests and 0 < stats.waited < stats.seconds
    assert str(stats).startswith("12 batches in 0.") and f"{stats.requests:,} requests" in str(stats)
    half = Loader(here, 8, backend="numpy", steps=12, rank=1, world_size=2)
    assert len(list(half)) == 12 and half.stats().samples == 48 and half.stats().requests == 0


# -- a warm-up


def test_a_warm_up_draws_from_more_and_more(here, monkeypatch):
    from rlds_cli.loader.samplers import uniform

    row = sum(f.row_bytes for f in here.schema.values())
    monkeypatch.setattr(uniform, "FIRST_BYTES", 5 * row)
    arguments = {"backend": "numpy", "seed": 4, "steps": 40, "fields": [..., "probability", "index"]}
    warm = Loader(here, 10, warm_up="first_part", **arguments)
    total = int(here.episodes["num_transitions"].sum())
    exact = np.concatenate([b["index"] for b in Loader(here, 10, **arguments)])
    batches = [b.copy() for b in warm]
    index = np.concatenate([b["index"] for b in batches])
    reach = np.minimum(5 + 4 * np.arange(400), total)
    assert (index < reach).all() and len(set(index[:3].tolist())) >= 1 and index[:60].max() < 5 + 4 * 60
    assert (index[reach == total] == exact[reach == total]).all() and (reach == total).sum() > 100
    chance = np.concatenate([b["probability"] for b in batches]).reshape(-1)
    np.testing.assert_allclose(chance, 1 / reach, rtol=1e-6)
    text = warm.describe()
    assert f"the first {-(-(total - 5) // 4)} samples of an epoch are not drawn from all windows" in text
    assert "warm-up" not in Loader(here, 10).describe()
    with pytest.raises(rlds_cli.errors.WrongState, match="sampler"):
        Loader(here, 10).load_state_dict(warm.state_dict())
    again = Loader(here, 10, warm_up="first_part", **arguments)
    again.seek(20)
    same(next(iter(again)), batches[20])
    assert repr(Uniform()) == "Uniform(by='window')"  # states saved before there was a warm-up
    assert pickle.loads(pickle.dumps(warm)).sampler == Uniform(warm_up="first_part")


def test_warm_ups_that_cannot_be(here):
    for arguments in ({"sampler": Shuffled()}, {"sampler": Uniform(by="episode")}, {"window": Episode(bucket=4)}):
        with pytest.raises(InvalidArgument, match="warm_up"):
            Loader(here, 8, warm_up="first_part", **arguments)
    with pytest.raises(InvalidArgument, match='"first_part" or None'):
        Loader(here, 8, warm_up="all")


@pytest.mark.thorough
def test_copies_share_nothing(here):
    store = LateStore(here.path)
    first, second = Dataset(store), copy.copy(Dataset(store))
    for one, other in zip(
        Loader(first, 8, backend="numpy", steps=5), Loader(second, 8, backend="numpy", steps=5), strict=True
    ):
        same(one, other)
