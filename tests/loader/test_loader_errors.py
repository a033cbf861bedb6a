"""Bad input, and data that goes away: the kind of error, what it names, and what it says to do."""

import itertools
import json
import multiprocessing
import pickle
import shutil

import numpy as np
import pytest
from loader_data import create, episode
from test_loader_fields import pixels

import rlds_cli
from rlds_cli.errors import (
    BatchSize,
    DatasetNotFound,
    EmptyWindow,
    InvalidArgument,
    LoaderError,
    NoReward,
    RldsError,
    UnknownField,
    WrongState,
)
from rlds_cli.loader import (
    Clip,
    Episode,
    Loader,
    Member,
    Mixture,
    Normalize,
    Offsets,
    Prioritized,
    ReturnToGo,
    Reward,
    Sequential,
    Shuffled,
    Slice,
    Transition,
    Uniform,
    Weighted,
)
from rlds_cli.loader.storage import blocks
from rlds_cli.make.importing import import_files

ENDS = ("terminated", "truncated")
KNOWN = [episode(k, 5 + k, observed=k % 2 == 0, end=ENDS[k > 2], inner=(2,)) for k in range(6)]  # 5 to 10 steps
NUMPY = {"backend": "numpy", "dtype": None}


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        return create(KNOWN)


def load(ds, size=4, **options):
    return Loader(ds, size, **NUMPY | options)


def refused(error, *says):
    """The error, of which the text holds all of ``says``."""
    return pytest.raises(error, check=lambda e: all(part in str(e) for part in says))


# -- windows and batches


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("window", "says"),
    [
        (Slice(64), ["the longest has 10 steps", "Slice(64, after=63) pads", "a length <= 10"]),
        (Slice(64, before=5, after=5), ["the longest has 10 steps", "Slice(64, after=63) pads"]),
        (Slice(11, stride=11), ["6 episodes", "the longest has 10 steps"]),
        (Offsets({"action": range(40)}, after=3), ["Offsets from 0 to 39", "the longest has 10 steps", "after="]),
        (Offsets({"action": (-12, 0)}, before=1), ["Offsets from -12 to 0", "before="]),
    ],
)
def test_windows_longer_than_every_episode(ds, window, says):
    with refused(EmptyWindow, *says):
        load(ds, window=window)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [0, -1, 2.5, "4", True, None])
def test_batch_sizes_that_are_none(ds, size):
    with refused(BatchSize, f"batch_size={size!r} must be an integer of at least 1"):
        load(ds, size)


@pytest.mark.thorough
@pytest.mark.parametrize("steps", [None, 3])
def test_a_batch_larger_than_an_epoch_of_which_the_last_is_dropped(ds, steps):
    n = len(ds)
    with refused(BatchSize, f"{n + 1} is more than the {n} samples of an epoch", f"at most {n}", "drop_last=False"):
        load(ds, n + 1, sampler=Shuffled(drop_last=True), steps=steps)
    with refused(BatchSize, "the 6 samples of an epoch"):
        load(ds, 7, sampler=Shuffled(drop_last=True), window=Episode())
    assert len(load(ds, n, sampler=Shuffled(drop_last=True))) == 1
    assert len(load(ds, n + 1, sampler=Shuffled())) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("size", "world", "hint"),
    [(256, 3, "255 or 258"), (256, 6, "252 or 258"), (2, 3, "3, or"), (7, 4, "4 or 8")],
)
def test_batches_that_ranks_cannot_share(ds, size, world, hint):
    with refused(BatchSize, f"{size} cannot be shared by {world} ranks", "the arguments", hint):
        load(ds, size, rank=0, world_size=world)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rank": 4, "world_size": 4}, "rank 4 of 4: ranks go from 0 to world_size - 1"),
        ({"rank": 9, "world_size": 4}, "rank 9 of 4"),
        ({"rank": -1, "world_size": 4}, "rank -1 of 4"),
        ({"rank": 0, "world_size": 0}, "rank 0 of 0"),
        ({"rank": 1}, "rank=1 of how many?"),
        ({"world_size": 2}, "which of these ranks is this process?"),
        ({"rank": 0.5, "world_size": 2}, "rank=0.5 must be an integer"),
    ],
)
def test_ranks_that_are_none(ds, options, says):
    with refused(InvalidArgument, says):
        load(ds, 8, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("sampler", [Uniform(), Uniform(by="episode"), Weighted("length"), Prioritized()])
def test_the_length_of_an_endless_loader(ds, sampler):
    with refused(TypeError, "endless", type(sampler).__name__, "Loader(..., steps=100_000)"):
        len(load(ds, sampler=sampler))
    assert len(load(ds, sampler=sampler, steps=7)) == 7


# -- fields


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"fields": ("observations",)}, "observation"),
        ({"fields": ("obs", "action")}, "observation"),
        ({"fields": [..., "rewards"]}, "next/reward"),
        ({"fields": [..., "reward"]}, "next/reward"),
        ({"window": Offsets({"actions": (0, 1)})}, "action"),
        ({"window": Offsets({"next/rewards": (0, 1)})}, "next/reward"),
    ],
)
def test_unknown_fields_get_a_suggestion(ds, options, meant):
    with refused(UnknownField, f'Did you mean "{meant}"?', "in local/known", "Fields: action, "):
        load(ds, **options)


def test_a_transform_of_nothing(ds):
    for transform in (Reward(2), Normalize(ds), Clip("observation", 1)):
        with refused(UnknownField, "touches none of the fields of this loader: action"):
            load(ds, fields=("action",), transform=transform)


def test_a_dataset_without_reward():
    ds = create(KNOWN, reward=False)
    for options in (
        {"fields": ("next/reward",)},
        {"fields": ("observation", "reward")},
        {"fields": [..., "next/reward"]},
        {"fields": [..., "previous/reward"]},
        {"fields": [..., ReturnToGo()]},
        {"transform": Reward(2.0)},
        {"transform": [lambda batch: None, Reward(2.0)]},
        {"window": Transition(3)},
        {"window": Offsets({"next/reward": (0, 1)})},
    ):
        with refused(NoReward, "local/known has no reward", "leave it out of fields=", "rlds preprocess"):
            load(ds, **options)
    with refused(NoReward, "rlds preprocess"):
        Normalize(ds, ["next/reward"])
    with refused(UnknownField, 'no episode column of numbers "total_reward"', "length"):
        load(ds, sampler=Weighted("total_reward"))
    batch = next(iter(load(ds)))
    assert "next/reward" not in batch
    with refused(NoReward, "no field 'next/reward' in this batch", "behaviour cloning"):
        batch.sarsd()


# -- states


@pytest.mark.thorough
def test_a_state_of_something_else_is_refused(ds):
    options = {"sampler": Shuffled(), "seed": 1}
    loader = load(ds, **options)
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    other = create([episode(7, 9)], ref="local/other")
    for target, differs, hint in (
        (load(other, **options), "fingerprint", "the same dataset, and the same selection of it"),
        (load(ds.select(episodes=[0, 1]), **options), "fingerprint", "the same selection"),
        (load(ds, seed=1), "sampler", "sampler=Shuffled(drop_last=False, block=None, live=16)"),
        (load(ds, sampler=Shuffled(block=4), seed=1), "sampler", "Shuffled("),
        (load(ds, sampler=Weighted("length"), seed=1), "sampler", "Shuffled("),
        (load(ds, sampler=Prioritized(), seed=1), "sampler", "Shuffled("),
        (load(ds, sampler=Shuffled()), "seed", "Loader(..., seed=1)"),
        (load(ds, window=Slice(3), **options), "window", "window=Transition(n_step=1, gamma=0.99)"),
        (load(ds, window=Transition(3), **options), "window", "Transition(n_step=1"),
        (load(ds, window=Transition(anchors="steps"), **options), "anchors", "anchors='transitions'"),
    ):
        before = json.dumps(target.state_dict(), default=lambda x: x.tolist())
        with refused(WrongState, f"They differ in {differs}.", "this state is of local/known", hint):
            target.load_state_dict(state)
        assert json.dumps(target.state_dict(), default=lambda x: x.tolist()) == before
    load(ds, **options, window=Transition(gamma=0.99)).load_state_dict(state)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["return_to_go", "returns_to_go", "rtg"])
def test_what_an_object_works_out_is_named(ds, name):
    with refused(UnknownField, f'no field "{name}"', "fields=[..., ReturnToGo()]"):
        load(ds, fields=[..., name])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["mask/info2", "mask/next/infos", "next/infos", "nextinfo", "steps", "previous/action2"]
)
def test_offsets_suggest_only_what_has_offsets(ds, name):
    """Masks follow from offsets, and other columns are worked out for one step."""
    with pytest.raises(UnknownField) as e:
        load(ds, window=Offsets({"observation": (-1, 0), "info": (0, 1), name: (0,)}))
    known = str(e.value).partition("Fields: ")[2].split(", ")
    assert "next/done" in known and "info/step" in known
    assert not any(n.startswith("mask") or n in ("step", "previous/action", "next/action", "done") for n in known)
    meant = str(e.value).partition('Did you mean "')[2].partition('"')[0]
    assert not meant or any(n == meant or n.startswith(f"{meant}/") for n in known)


def test_masks_are_no_fields_to_choose_from(ds):
    with pytest.raises(UnknownField) as e:
        load(ds, window=Offsets({"observation": (-1, 0), "info": (0, 1)}), fields=[..., "inffo"])
    assert "mask" not in str(e.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"order": 2}, "order 2; this one has 1"),
        ({"order": "1"}, "order 1"),
        ({"samples": -3}, "samples=-3"),
        ({"samples": 1.5}, "samples=1.5"),
        ({"samples": "4"}, "samples='4'"),
        ({"epoch": None}, "epoch=None"),
        ({"epoch": -1}, "epoch=-1"),
    ],
)
def test_a_state_that_no_loader_gave(ds, changes, says):
    loader = load(ds, sampler=Shuffled())
    with refused(WrongState, says):
        loader.load_state_dict(loader.state_dict() | changes)
    assert loader.step == 0


@pytest.mark.parametrize("state", [{}, {"model": 1}, [], None, 3, "state"])
def test_what_is_no_state(ds, state):
    with refused(WrongState, "this is not the state of a loader"):
        load(ds).load_state_dict(state)


def test_priorities_of_a_state_that_are_none_change_nothing(ds):
    loader = load(ds, sampler=Prioritized())
    for _ in range(3):
        next(iter(loader))
    state = loader.state_dict()
    without = {key: value for key, value in state.items() if key != "priorities"}
    short = state | {"priorities": state["priorities"] | {"masses": np.ones(3)}}
    negative = state | {"priorities": state["priorities"] | {"masses": -state["priorities"]["masses"]}}
    for wrong, says in ((without, "no priorities"), (short, "[3]; 43 are needed"), (negative, "not those that were")):
        fresh = load(ds, sampler=Prioritized())
        with refused(WrongState, says):
            fresh.load_state_dict(wrong)
        assert fresh.step == 0 and fresh.state_dict()["samples"] == 0
    with refused(WrongState, "They differ in sampler", "Prioritized(alpha=0.6"):
        load(ds, sampler=Prioritized(0.5)).load_state_dict(state)


# -- priorities and weights


@pytest.mark.parametrize(
    ("priority", "says"),
    [
        (np.full(4, -1.0), "priority -1.0 at place 0 of 4"),
        ([1, float("nan"), 1, 1], "priority nan at place 1 of 4"),
        ([1, 1, float("inf"), 1], "priority inf at place 2 of 4"),
        (np.ones(3), "priorities [3] for a batch of 4 samples"),
        (np.ones((4, 2)), "priorities [4, 2]"),
        (1.0, "priorities [] for a batch of 4"),
        (None, "not numbers"),
        (["a"] * 4, "not numbers"),
        (np.full(4, 1 + 2j), "complex128 are not numbers"),
    ],
)
def test_priorities_that_are_none_change_nothing(ds, priority, says):
    loader = load(ds, sampler=Prioritized())
    batch = next(iter(loader))
    before = loader.state_dict()["priorities"]
    with refused(InvalidArgument, says):
        loader.update_priorities(batch, priority)
    with refused(InvalidArgument, says):
        loader.update_priorities(batch, priority, beta=0.9)
    after = loader.state_dict()["priorities"]
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_where_priorities_do_not_go(ds):
    loader = load(ds, sampler=Prioritized())
    batch = next(iter(loader))
    with refused(InvalidArgument, "no 'window'", "as the loader gave it"):
        loader.update_priorities({"action": batch["action"]}, np.ones(4))
    with refused(InvalidArgument, "Uniform", "no priorities", "sampler=Prioritized()"):
        load(ds).update_priorities(batch, np.ones(4))
    with refused(InvalidArgument, "rank 0 of 2", "world_size=1"):
        load(ds, sampler=Prioritized(), rank=0, world_size=2)
    with refused(InvalidArgument, "prefetch=2", "Prioritized(lag=2)"):
        load(ds, sampler=Prioritized(), prefetch=2)
    for name in ("alpha", "beta", "eps"):
        for value in (-1, float("nan"), "x"):
            with refused(InvalidArgument, f"Prioritized({name}={value!r})"):
                Prioritized(**{name: value})


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        (np.zeros(6), "weights by episode: All 6 weights are zero"),
        ([1, 1, -2, 1, 1, 1], "weights by episode: weight -2.0 at place 2 of 6"),
        ([1, 1, 1, 1, 1, float("nan")], "weight nan at place 5 of 6"),
        ([1, 1, 1, float("inf"), 1, 1], "weight inf at place 3 of 6"),
        (np.zeros(43), "weights by transition: All 43 weights are zero"),
        (-np.ones(45), "weights by step: weight -1.0 at place 0 of 45"),
        (np.ones(5), "5 weights; local/known has 6 episodes, 43 transitions and 45 steps"),
        ([], "0 weights"),
    ],
)
def test_weights_that_are_none(ds, weight, says):
    with refused(InvalidArgument, says):
        load(ds, sampler=Weighted(weight))


@pytest.mark.parametrize("weight", [None, 3.0, np.ones((6, 1)), ["a"] * 6])
def test_weights_of_the_wrong_kind(weight):
    with refused(InvalidArgument, "numbers [n] are needed", "the name of an episode column"):
        Weighted(weight)


def test_weights_of_nothing_that_can_be_drawn(ds):
    """Places are those of the user's weights, also of episodes that have no window."""
    short = np.array([1.0, 1, 0, 0, 0, 0])  # episodes of 5 and 6 steps
    with refused(InvalidArgument, "the 4 episodes that have a window all weigh zero"):
        load(ds, sampler=Weighted(short), window=Slice(7))
    with refused(InvalidArgument, "weight -1.0 at place 0 of 6"):
        load(ds, sampler=Weighted(short - 2), window=Slice(7))
    last_step = np.zeros(45)
    last_step[4] = 1  # where no whole slice begins
    with refused(InvalidArgument, "weights by step: no window has its anchor at a step that weighs anything"):
        load(ds, sampler=Weighted(last_step), window=Slice(5))


def test_weights_by_a_column_that_is_none(ds):
    with refused(UnknownField, 'no episode column of numbers "lenght". Did you mean "length"?', "total_reward"):
        load(ds, sampler=Weighted("lenght"))
    negative = min(e.reward.sum() for e in KNOWN)
    assert negative < 0
    with refused(InvalidArgument, 'episode column "total_reward"', "not negative", "np.exp(ds.episodes"):
        load(ds, sampler=Weighted("total_reward"))


def test_weights_that_are_changed_afterwards_change_nothing(ds):
    weight = np.arange(6.0)
    sampler = Weighted(weight)
    loader, said = load(ds, sampler=sampler), repr(sampler)
    state = loader.state_dict()
    weight[:] = 1
    assert repr(sampler) == said
    loader.load_state_dict(state)


# -- datasets that go away while they are open

EXTRA = ("episode", "step", "text", "next/action", "next/qpos")
WINDOWS = [Transition(), Transition(3), Slice(4, after=3), Offsets({"text": (0, 1), "observation": (-1, 0)}), Episode()]


def remove(ds):
    shutil.rmtree(ds.path)


def replace(ds):
    """As `create(force=True)` does while others have it open."""
    create([episode(k, 4) for k in range(20, 24)])


def same(a, b):
    assert a.names() == b.names()
    assert all(np.array_equal(x, b[name]) for name, x in a.leaves())


@pytest.fixture
def fresh(home):
    return create(KNOWN)


@pytest.mark.thorough
@pytest.mark.sampled(7)
@pytest.mark.parametrize("gone", [remove, replace])
@pytest.mark.parametrize("window", WINDOWS, ids=repr)
@pytest.mark.parametrize("packed", [False, True])
def test_a_loader_keeps_what_it_has_mapped(fresh, gone, window, packed, monkeypatch):
    if packed:
        monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
    options = {"window": window, "fields": [..., *EXTRA], "sampler": Shuffled()}
    expected = list(load(fresh, **options))
    loader = load(fresh, **options)
    gone(fresh)
    for a, b in zip(expected, loader, strict=True):
        same(a, b)
    assert "local/known" in loader.describe()
    assert loader.state_dict()["epoch"] == 1


@pytest.mark.thorough
def test_frames_stay_as_well(tmp_path):
    decoded = pixels(tmp_path, 2)
    ds = import_files(tmp_path / "pixels-v0", "local/pixels")
    loader = load(ds, fields=[..., "episode", "step"], sampler=Sequential())
    remove(ds)
    for b in loader:
        for i, (k, t) in enumerate(zip(b["episode"], b["step"], strict=True)):
            assert np.array_equal(b["observation"][i], decoded[k][t])


MADE = ({}, {"window": Slice(3)}, {"fields": "text"}, {"sampler": Weighted("length")})


@pytest.mark.thorough
@pytest.mark.parametrize("gone", [remove, replace])
@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_a_loader_made_afterwards_of_what_was_open_is_refused(home, gone, storage):
    """Never the values of the dataset that is there now, and never a bare error of the file system."""
    ds = create(KNOWN, storage=storage)
    gone(ds)
    for options in MADE:
        with refused(DatasetNotFound, "local/known was ", " since it was opened", "open it again"):
            load(ds, **options)
    with refused(DatasetNotFound, " since it was opened"):
        ds.column("action")
    if gone is remove:
        with refused(DatasetNotFound, "local/known"):
            load("local/known")
    else:
        assert load("local/known").dataset.num_episodes == 4


@pytest.mark.sampled(3)
@pytest.mark.parametrize("gone", [remove, replace])
@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_what_another_loader_has_read_already_is_refused_or_as_it_was(home, gone, storage):
    ds = create(KNOWN, storage=storage)
    before = [next(iter(load(ds, **options))) for options in MADE]
    gone(ds)
    for expected, options in zip(before, MADE, strict=True):
        if storage == "memmap" and "fields" in options:  # text is in memory
            same(expected, next(iter(load(ds, **options))))
        else:
            with refused(DatasetNotFound, " since it was opened"):
                load(ds, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_what_was_replaced_by_the_same_version_stays_valid(home, storage):
    """As after it was fetched again from an address: what is open stays usable, also what had not been read yet."""
    reference = create(KNOWN, storage=storage, ref="local/reference")
    ds = create(KNOWN, storage=storage)
    view, untouched = ds.select(episodes=[0, 2]), rlds_cli.open_dataset(ds.path)
    going, expected = iter(load(ds, seed=3)), iter(load(reference, seed=3))
    same(next(expected), next(going))
    before, pickled = ds.path.stat().st_ino, pickle.dumps(ds)
    shutil.copytree(ds.path, home / "copy")
    remove(ds)
    (home / "copy").rename(ds.path)
    assert ds.path.stat().st_ino != before
    for _ in range(3):
        same(next(expected), next(going))
    for options in MADE:
        for opened in (ds, untouched, pickle.loads(pickled)):
            same(next(iter(load(reference, **options))), next(iter(load(opened, **options))))
    same(next(iter(load(reference.select(episodes=[0, 2])))), next(iter(load(view))))
    assert np.array_equal(ds.column("info/step"), reference.column("info/step"))


@pytest.mark.thorough
def test_the_same_content_in_another_encoding_is_another_dataset(home):
    ds = create(KNOWN)
    create(KNOWN, storage="zarr")
    with refused(DatasetNotFound, "was replaced since it was opened", "open it again"):
        load(ds)


@pytest.mark.thorough
def test_a_renamed_member_is_of_what_was_opened(home):
    """Its fields are opened anew, which took the episodes of one dataset for rows of another."""
    ds = create(KNOWN)
    member = Member(ds, rename={"observation": "seen"})
    replace(ds)
    with refused(DatasetNotFound, "Mixture, a: local/known was replaced since it was opened"):
        load(Mixture({"a": member}), fields=("seen", "action"))


@pytest.mark.thorough
def test_a_selection_of_what_was_replaced_is_refused(fresh):
    view = fresh.select(episodes=[1, 3])
    replace(fresh)
    with refused(DatasetNotFound, " since it was opened"):
        load(view)


@pytest.mark.thorough
def test_a_pickled_loader_of_what_was_replaced_is_refused(fresh):
    loader = load(fresh, sampler=Shuffled(), fields=[..., *EXTRA])
    expected = next(iter(load(fresh, sampler=Shuffled(), fields=[..., *EXTRA])))
    pickled = pickle.dumps(loader)
    same(expected, next(iter(pickle.loads(pickled))))
    replace(fresh)
    with refused(DatasetNotFound, "local/known was replaced since it was pickled", "open it again"):
        pickle.loads(pickled)
    with refused(DatasetNotFound, "replaced since"):
        pickle.loads(pickle.dumps(loader))
    remove(fresh)
    with refused(RldsError, "known"):
        pickle.loads(pickled)


@pytest.mark.thorough
def test_a_pickled_loader_goes_with_the_same_version(fresh, tmp_path):
    pickled = pickle.dumps(load(fresh, sampler=Shuffled()))
    expected = next(iter(load(fresh, sampler=Shuffled())))
    shutil.copytree(fresh.path, tmp_path / "kept")
    remove(fresh)
    shutil.copytree(tmp_path / "kept", fresh.path)
    same(expected, next(iter(pickle.loads(pickled))))


def _first(loader, queue):
    queue.put(next(iter(loader))["action"].tolist())


def test_another_process_has_the_maps_of_its_parent(fresh):
    loader = load(fresh, sampler=Shuffled())
    expected = next(iter(load(fresh, sampler=Shuffled())))["action"].tolist()
    remove(fresh)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_first, args=(loader, queue))
    process.start()
    assert queue.get() == expected
    process.join()


@pytest.mark.thorough
def test_a_state_of_what_was_replaced_is_refused(fresh):
    loader = load(fresh, sampler=Shuffled())
    state = loader.state_dict()
    replace(fresh)
    with refused(WrongState, "They differ in fingerprint", "the same dataset"):
        load(rlds_cli.open_dataset("local/known"), sampler=Shuffled()).load_state_dict(state)


# -- no place for packed files


@pytest.mark.thorough
@pytest.mark.parametrize("window", [Transition(), Transition(3)])
def test_without_a_place_for_packed_files_memory_is_taken_or_columns_read(fresh, home, window, monkeypatch):
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
    (home / "packed").write_text("in the way")
    in_memory, by_columns = (load(fresh, window=window, sampler=Shuffled(), memory=m) for m in (None, 0))
    assert "private memory" in in_memory.describe() and str(home / "packed") in in_memory.describe()
    lines = [line for line in by_columns.describe().splitlines() if line.startswith("reading")]
    assert len(lines) == 1 and str(home / "packed") in lines[0]
    assert "no packed rows" in lines[0] or "computed at each gather" in lines[0]
    (home / "packed").unlink()
    in_file = load(fresh, window=window, sampler=Shuffled())
    assert ".rows" in in_file.describe() or ".steps" in in_file.describe()
    for a, b, c in itertools.zip_longest(in_file, in_memory, by_columns):
        same(a, b)
        same(a, c)


def test_all_of_these_are_errors_of_the_loader():
    for error in (BatchSize, EmptyWindow, InvalidArgument, WrongState):
        assert issubclass(error, LoaderError) and issubclass(error, RldsError)
    assert issubclass(InvalidArgument, ValueError) and issubclass(UnknownField, KeyError)
