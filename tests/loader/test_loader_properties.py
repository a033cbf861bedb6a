"""What holds for every sampler, window and table of episodes: where samples lie, each once, ranks, going on."""

import itertools
import json
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from loader_data import SELECTIONS, create, varied
from reference import ranks, windows

from rlds_cli.errors import BatchSize, EmptyWindow
from rlds_cli.loader import (
    Episode,
    Loader,
    Offsets,
    Prioritized,
    Sequential,
    Shuffled,
    Slice,
    Transition,
    Uniform,
    Weighted,
)
from rlds_cli.loader.storage import blocks

VARIED = varied()
MANY = settings(max_examples=30)
FIRST, STEP = 0, 1  # of an observation: its episode, its step

REACH = st.one_of(st.none(), st.integers(0, 5))
LENGTHS = st.integers(1, 5)
WINDOWS = st.one_of(
    st.builds(Transition, st.integers(1, 5), st.just(0.9)),
    LENGTHS.flatmap(
        lambda n: st.builds(
            Slice,
            st.just(n),
            before=st.integers(0, n - 1),
            after=st.integers(0, n - 1),
            stride=st.sampled_from([1, 1, 2, n, 7]),
            fill=st.sampled_from(["edge", "zero"]),
        )
    ),
    st.builds(
        lambda observation, action, before, after: Offsets(
            {"observation": observation, "action": action}, before=before, after=after
        ),
        st.lists(st.integers(-4, 4), min_size=1, max_size=4, unique=True),
        st.lists(st.integers(-4, 4), min_size=1, max_size=4),
        REACH,
        REACH,
    ),
    st.builds(Episode, st.one_of(st.none(), st.integers(1, 9)), bucket=st.one_of(st.none(), st.integers(1, 4))),
)
EPOCHS = st.sampled_from([Shuffled(), Shuffled(drop_last=True), Shuffled(block=3, live=2), Sequential()])
WHERE = "episode", "step"
ENDLESS = st.sampled_from([Uniform(), Uniform(by="episode"), Weighted("length")])
SAMPLERS = st.one_of(EPOCHS, ENDLESS)
ANCHORS = st.sampled_from(["transitions", "steps"])
READING = st.fixed_dictionaries(
    {},
    optional={
        "prefetch": st.integers(0, 3),
        "fields": st.sampled_from([["action", *WHERE], ["observation", "next", *WHERE], [..., *WHERE]]),
        "dtype": st.sampled_from([None, "float16", "float64"]),
        "backend": st.sampled_from(["numpy", "torch"]),
        "memory": st.sampled_from([0, "1GiB"]),
    },
)


@pytest.fixture(scope="module", params=["columns", "packed rows"])
def ds(request, tmp_path_factory):
    """Episodes of every kind; small datasets are packed and summed up ahead as large ones are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        if request.param == "packed rows":
            patch.setattr(blocks, "LEAST_BYTES", 0)
        yield create(VARIED, ref="local/varied")


def load(ds, window, sampler, size=4, **options):
    plain = {"backend": "numpy", "dtype": None, "fields": [..., *WHERE]}
    return Loader(ds, size, window=window, sampler=sampler, **plain | options)


def could_load(window, anchors):
    """Sums over several steps bootstrap, which draws from all steps do without."""
    return not (anchors == "steps" and isinstance(window, Transition) and window.n_step > 1)


# -- windows, one by one


def steps_of(e, window, every_step):
    """The windows of an episode: steps or rows of observations, and which of them are real."""
    plain = e.plain()
    if isinstance(window, Transition):
        made = windows.steps_of(plain, every_step=every_step)
    elif isinstance(window, Episode):
        made = windows.whole(plain, min(e.length, window.max_length or e.length))
    elif isinstance(window, Slice):
        options = {"before": window.before, "after": window.after, "stride": window.stride}
        made = windows.slices(plain, window.length, **options)
    else:
        options = {"before": window.before, "after": window.after, "every_step": every_step}
        found = [w.fields for w in windows.around(plain, window.offsets, **options)]
        return [
            (tuple(f["observation"][:, STEP].astype(int).tolist()), tuple(f["mask/observation"].tolist()))
            for f in found
        ]
    return [(w.steps, w.real) for w in made]


def held(batch, window):
    """(episode, steps, which are real) of each sample, as its observations say themselves."""
    observation = batch["observation"]
    if isinstance(window, Transition):
        observation = observation[:, None]
        mask = np.ones(observation.shape[:2], bool)
    else:
        mask = batch["mask", "observation"] if isinstance(window, Offsets) else batch["mask"]
    samples = []
    for rows, real, step in zip(observation, mask, batch["step"], strict=True):
        assert len(set(rows[real, FIRST])) <= 1
        zeroed = isinstance(window, Slice) and window.fill == "zero"
        numbers = step if zeroed else rows[:, STEP].astype(int)  # what was blanked says nothing
        kept = slice(None, int(real.sum())) if isinstance(window, Episode) else slice(None)  # padding varies
        samples.append((tuple(numbers[kept].tolist()), tuple(real[kept].tolist())))
    return list(zip(batch["episode"].reshape(len(observation), -1)[:, 0].tolist(), samples, strict=True))


def every_window(known, window, every_step):
    return Counter((k, held) for k, e in enumerate(known) for held in steps_of(e, window, every_step))


@pytest.mark.thorough
@MANY
@given(SELECTIONS, WINDOWS, st.one_of(SAMPLERS, st.just(Prioritized())), ANCHORS, st.integers(0, 9))
def test_samples_are_windows_of_one_episode(ds, chosen, window, sampler, anchors, seed):
    assume(could_load(window, anchors))
    known, view = [VARIED[k] for k in chosen], ds.select(episodes=chosen)
    expected = every_window(known, window, anchors == "steps")
    if not expected:
        with pytest.raises(EmptyWindow):
            load(view, replace(window, anchors=anchors), sampler)
        return
    assume(sampler != Shuffled(drop_last=True) or expected.total() >= 4)
    loader = load(view, replace(window, anchors=anchors), sampler, seed=seed)
    batches = list(itertools.islice(loader, 12 if sampler.endless else None))
    seen = Counter(sample for b in batches for sample in held(b, window))
    assert set(seen) <= set(expected)
    if not sampler.endless:
        kept = expected.total() // 4 * 4 if sampler == Shuffled(drop_last=True) else expected.total()
        assert seen.total() == kept and not seen - expected
    for b in batches:
        rows = [b["observation"], b["next/observation"]] if "next/observation" in b else [b["observation"]]
        masks = ["mask/observation", "mask/next/observation"] if isinstance(window, Offsets) else ["mask", "mask"]
        for values, mask in zip(rows, masks, strict=False):
            real = b.get(mask, np.ones(values.shape[:-1], bool))
            for i, k in enumerate(b["episode"].reshape(len(values), -1)[:, 0]):
                assert (values[i][real[i]][..., FIRST] == chosen[k]).all()


@MANY
@given(SELECTIONS, st.integers(2, 9), SAMPLERS)
def test_no_sum_goes_beyond_a_done_step(ds, chosen, n, sampler):
    known, view = [VARIED[k] for k in chosen], ds.select(episodes=chosen)
    assume(sum(e.num_transitions for e in known) >= 4)
    loader = load(view, Transition(n, 1.0), sampler, fields=[..., "episode", "step", "next/action"])
    for b in itertools.islice(loader, 12):
        for i, (k, t) in enumerate(zip(b["episode"], b["step"], strict=True)):
            e, (total, span) = known[k], known[k].n_step(t, n, 1.0)
            done = e.terminated | e.truncated
            assert not done[t : t + span - 1].any() and t + span <= e.num_transitions
            assert span == n or done[t + span - 1] or t + span == e.num_transitions
            assert b["next/reward"][i, 0] == pytest.approx(total, abs=1e-12)
            assert np.array_equal(b["next/observation"][i], e.next_observation(t + span - 1))
            assert b["next/done"][i, 0] == done[t + span - 1]
            after = e.action[t + span] if t + span < e.length else np.zeros(2)
            assert np.array_equal(b["next/action"][i], after)


@MANY
@given(SELECTIONS, st.integers(1, 6), st.booleans(), st.sampled_from([Shuffled(), Shuffled(block=2, live=3)]))
def test_disjoint_slices_hold_every_step_once(ds, chosen, length, padded, sampler):
    known, view = [VARIED[k] for k in chosen], ds.select(episodes=chosen)
    expected = [
        (k, t)
        for k, e in enumerate(known)
        for t in range(e.length if padded else e.length // length * length)  # without padding the tail is left out
    ]
    assume(expected)
    seen = Counter()
    for b in load(view, Slice(length, stride=length, after=(length - 1) * padded), sampler):
        seen.update(zip(b["episode"][b["mask"]].tolist(), b["step"][b["mask"]].tolist(), strict=True))
        assert np.array_equal(b["observation"][b["mask"]][:, STEP], b["step"][b["mask"]])
    assert seen == Counter(expected)


# -- order


def ids(batch):
    """Which samples a batch holds."""
    pairs = zip(batch["episode"], batch["step"], strict=True)
    return [(int(np.atleast_1d(e)[0]), int(np.atleast_1d(t)[0]), int(np.atleast_1d(t)[-1])) for e, t in pairs]


def order_of(window):
    """What to go by: how far a batch of whole episodes is padded depends on its size."""
    return (lambda b: [x[:2] for x in ids(b)]) if isinstance(window, Episode) else ids


@pytest.mark.thorough
@MANY
@given(SELECTIONS, WINDOWS, SAMPLERS, ANCHORS, st.integers(1, 3), st.sampled_from([1, 2, 3, 4]), st.integers(0, 9))
def test_ranks_part_every_batch_field_by_field(ds, chosen, window, sampler, anchors, share, world, seed):
    """Also the last one of an epoch, which may have fewer samples than there are ranks."""
    assume(could_load(window, anchors))
    view, size, options = ds.select(episodes=chosen), share * world, {"seed": seed}
    window = replace(window, anchors=anchors)
    try:
        whole = list(itertools.islice(load(view, window, sampler, size, **options), 20))
    except (EmptyWindow, BatchSize):
        return
    for r in range(world):
        part = list(itertools.islice(load(view, window, sampler, size, **options, rank=r, world_size=world), 20))
        assert len(part) == len(whole)
        for mine, everyone in zip(part, whole, strict=True):
            assert mine.names() == everyone.names()
            places = ranks.places(len(everyone["step"]), r, world)
            assert all(np.array_equal(mine[name], values[places]) for name, values in everyone.leaves())


@pytest.mark.thorough
@MANY
@given(SELECTIONS, WINDOWS, SAMPLERS, READING, st.integers(1, 5))
def test_how_it_is_read_changes_nothing(ds, chosen, window, sampler, reading, size):
    view = ds.select(episodes=chosen)
    try:
        plain = load(view, window, sampler, size, steps=9, fields=[..., "episode", "step", "next/qpos"])
    except (EmptyWindow, BatchSize):
        return
    for a, b in zip(plain, load(view, window, sampler, size, steps=9, **reading), strict=True):
        b = b.numpy()
        assert ids(a) == ids(b)
        for name, values in b.leaves():
            expected = a[name].astype(np.float32) if values.dtype == np.float16 else a[name]  # halves come from singles
            assert np.array_equal(values, expected.astype(values.dtype)), name


@pytest.mark.thorough
@MANY
@given(
    SELECTIONS,
    WINDOWS,
    SAMPLERS,
    st.integers(1, 5),
    st.integers(0, 20),
    st.integers(1, 3),
    st.sampled_from([1, 2, 3, 4]),
    READING,
)
def test_a_state_goes_on_with_other_batches_ranks_and_fields(
    ds, chosen, window, sampler, size, done, share, world, reading
):
    """Each rank goes on to the end of the epoch and then through the next; together they have the rest of both."""
    view, read = ds.select(episodes=chosen), order_of(window)
    assume(sampler != Shuffled(drop_last=True))  # how many samples an epoch has depends on the batch size
    try:
        first = load(view, window, sampler, size)
    except EmptyWindow:
        return
    for _ in itertools.islice(itertools.chain(first, first), done):
        pass
    state = json.loads(json.dumps(first.state_dict()))
    epoch, consumed = state["epoch"], state["samples"]
    parts = []
    for rank in range(world):
        other = load(view, window, sampler, share * world, rank=rank, world_size=world, **reading)
        other.load_state_dict(state)
        assert other.state_dict() == state
        parts.append([[read(b.numpy()) for b in itertools.islice(other, 6)] for _ in range(2)])
    whole, global_size = load(view, window, sampler, 1), share * world
    if sampler.endless:
        samples = [s for b in itertools.islice(whole, consumed + 12 * global_size) for s in read(b)]
        rest = [samples[consumed : consumed + 6 * global_size], samples[consumed + 6 * global_size :]]
    else:
        epochs = []
        for e in (epoch, epoch + 1):
            whole.set_epoch(e)
            epochs.append([s for b in whole for s in read(b)])
        rest = [epochs[0][consumed:], epochs[1]]
    for passed, samples in enumerate(rest):
        batches = [samples[i : i + global_size] for i in range(0, len(samples), global_size)][:6]
        for rank in range(world):
            assert parts[rank][passed] == [ranks.part(batch, rank, world) for batch in batches]


@dataclass
class Model:
    """The rules of `Loader`, in the plainest way: where it is, and what the next pass gives."""

    total: int | None
    size: int
    drop_last: bool
    steps: int | None
    epoch: int = 0
    sample: int = 0
    sought: bool = False
    handed: list[tuple[int, int, int]] = field(default_factory=list)  # epoch, first sample, samples

    def left_in_epoch(self, sample):
        left = max(0, self.total - sample)
        return left // self.size if self.drop_last else -(-left // self.size)

    @property
    def per_epoch(self):
        return None if self.total is None else self.left_in_epoch(0)

    @property
    def per_pass(self):
        return self.steps or self.per_epoch

    def step(self, epoch, sample):
        if self.total is None:
            return -(-sample // self.size)
        return (epoch + 1) * self.per_epoch - self.left_in_epoch(sample)

    def settled(self):
        if self.total is not None and not self.left_in_epoch(self.sample):
            return self.epoch + 1, 0
        return self.epoch, self.sample

    def seek(self, step):
        if self.total is None:
            self.sample = step * self.size
        else:
            self.epoch, self.sample = step // self.per_epoch, step % self.per_epoch * self.size
        self.sought = True

    def take(self, most):
        """Up to ``most`` batches of a new pass."""
        begun = self.step(self.epoch, self.sample)
        if most and not self.sought and self.per_pass and begun % self.per_pass:
            self.seek(-(-begun // self.per_pass) * self.per_pass)  # the pass before was broken off
        begun = self.step(self.epoch, self.sample)
        left = self.per_pass - begun % self.per_pass if self.per_pass else most
        handed = []
        for _ in range(min(most, left)):
            self.epoch, self.sample = self.settled()
            size = self.size if self.total is None else min(self.size, self.total - self.sample)
            handed.append((self.epoch, self.sample, size))
            self.sample, self.sought = self.sample + size, False
        return handed


SIZES, SOME = st.integers(1, 6), st.integers(0, 12)
DOINGS = st.one_of(
    st.tuples(st.just("take"), SOME),
    st.tuples(st.just("take"), st.just(60)),
    st.tuples(st.just("seek"), st.integers(0, 40)),
    st.tuples(st.just("set_epoch"), st.integers(0, 4)),
    st.tuples(st.just("resume"), SIZES),
)


@pytest.mark.thorough
@MANY
@given(
    SELECTIONS,
    WINDOWS,
    st.one_of(SAMPLERS, st.just(Prioritized()), st.just(Prioritized(lag=2))),
    SIZES,
    st.one_of(st.none(), st.integers(1, 9)),
    st.lists(DOINGS, min_size=1, max_size=7),
    READING,
    st.integers(0, 3),
)
def test_whatever_is_done_with_a_loader(ds, chosen, window, sampler, size, steps, doings, reading, seed):
    """Iterating, breaking off, seeking, epochs, resuming with other sizes: samples are where the rules say."""
    view, read = ds.select(episodes=chosen), order_of(window)
    if isinstance(sampler, Prioritized):
        reading = reading | {"prefetch": min(reading.get("prefetch", 0), sampler.lag)}
    options = {"seed": seed, "steps": steps}
    try:
        loader = load(view, window, sampler, size, **options)
    except (EmptyWindow, BatchSize):
        return
    known = [VARIED[k] for k in chosen]
    total = None if sampler.endless else every_window(known, window, False).total()
    model = Model(total, size, sampler == Shuffled(drop_last=True), steps)
    epochs: dict[int, list[tuple[int, ...]]] = {}

    def reference(epoch, first, count):
        if epoch not in epochs:
            whole = load(view, window, sampler, total or 4000, seed=seed)
            whole.set_epoch(epoch)
            epochs[epoch] = read(next(iter(whole)))
        return epochs[epoch][first : first + count]

    for what, number in doings:
        if what == "take":
            got = [read(b.numpy()) for b in itertools.islice(loader, number)]
            assert got == [reference(*handed) for handed in model.take(number)]
        elif what == "seek":
            loader.seek(number)
            model.seek(number)
        elif what == "set_epoch":
            loader.set_epoch(number)
            if steps and total:
                model.seek(number * steps)
            else:
                model.epoch, model.sample, model.sought = number, 0, True
        else:
            state = json.loads(json.dumps(loader.state_dict(), default=lambda x: x.tolist()))
            try:
                loader = load(view, window, sampler, number, **options, **reading)
            except BatchSize:
                return
            loader.load_state_dict(state)
            model.epoch, model.sample = model.settled()
            model.size, model.sought = number, True
            model.epoch, model.sample = model.settled()
        assert loader.step == model.step(*model.settled())
        state = loader.state_dict()
        assert (state["epoch"], state["samples"]) == model.settled()
