"""How likely a step is in a sample, for every sampler and window: docs/reference/sampling.md, against loaders."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import episode
from loader_samples import DRAWS, known, load, make, probability, read, table
from reference import windows

from rlds_cli.errors import EmptyWindow
from rlds_cli.loader import Episode, Offsets, Prioritized, Sequential, Shuffled, Slice, Transition, Uniform, Weighted

ALPHA, EPS = 0.7, 0.01


FORMULAS = {row[0].strip("`"): row[1:] for row in table("## Windows")}


def formula(text, **values):
    """What a formula of the page gives; 0 where its condition does not hold, and for what comes out negative."""
    said, _, condition = text.partition(" for ")
    names = values | {"min": min, "max": max, "floor": math.floor, "ceil": math.ceil}
    return max(0, eval(said, names)) if not condition or eval(condition, names) else 0


def described(window):
    """The row of the page for a window, and the letters that it uses."""
    if isinstance(window, Transition):
        return ("Transition()", {}) if window.n_step == 1 else ("Transition(n_step=n)", {"n": window.n_step})
    if isinstance(window, Episode):
        return ("Episode()", {}) if window.max_length is None else ("Episode(M)", {"M": window.max_length})
    letters = {"L": window.length, "b": window.before, "a": window.after, "s": window.stride}
    if window.stride > 1:
        return "Slice(L, before=b, after=a, stride=s)", letters
    return "Slice(L, before=b, after=a)" if window.before or window.after else "Slice(L)", letters


def anchors_of(window, e):
    """Steps f to l of `Offsets`, by the page."""
    every = [o for offsets in window.offsets.values() for o in offsets]
    first = 0 if window.before is None else max(0, -min(every) - window.before)
    last = e.num_transitions - 1
    return first, last if window.after is None else min(last, e.length - 1 + window.after - max(every))


def number_of_windows(window, e):
    if isinstance(window, Offsets):
        first, last = anchors_of(window, e)
        return max(0, last - first + 1)
    name, letters = described(window)
    return formula(FORMULAS[name][0], T=e.length, m=e.num_transitions, **letters)


def coverage(window, e):
    """c(t) of every step or row."""
    if isinstance(window, Offsets):
        (offsets,) = window.offsets.values()
        first, last = anchors_of(window, e)
        return [sum(first <= row - o <= last for o in offsets) for row in range(e.num_observed)]
    name, letters = described(window)
    K, c = number_of_windows(window, e), []
    for t in range(e.length if K else 0):
        done = [i for i in range(t) if e.terminated[i] or e.truncated[i]]
        d = done[-1] if done else -1
        c.append(formula(FORMULAS[name][1], T=e.length, m=e.num_transitions, K=K, t=t, d=d, **letters))
    return c


def anchor(window, e, k):
    if isinstance(window, Offsets):
        return anchors_of(window, e)[0] + k
    name, letters = described(window)
    return formula(FORMULAS[name][2], k=k, **letters)


def held(window, e, k):
    """The steps that window k of an episode holds, by what a window is: one by one."""
    plain = e.plain()
    if isinstance(window, Transition):
        return list(windows.steps_of(plain, window.n_step)[k].steps)
    if isinstance(window, Offsets):
        ((name, offsets),) = window.offsets.items()
        found = windows.around(plain, window.offsets, before=window.before, after=window.after)[k]
        rows = zip(offsets, found.fields[f"mask/{name}"], strict=True)
        return [found.anchor + o for o, real in rows if real]
    if isinstance(window, Episode):
        (found,) = windows.whole(plain, min(e.length, window.max_length or e.length))
    else:
        options = {"before": window.before, "after": window.after, "stride": window.stride}
        found = windows.slices(plain, window.length, **options)[k]
    return [t for t, real in zip(found.steps, found.real, strict=True) if real]


# -- windows: c(t), exactly

SLICES = st.integers(1, 12).flatmap(
    lambda length: st.builds(
        Slice,
        st.just(length),
        before=st.integers(0, length - 1),
        after=st.integers(0, length - 1),
        stride=st.sampled_from([1, 1, 2, 3, 15]),
    )
)
REACH = st.one_of(st.none(), st.integers(0, 6))
OFFSETS = st.builds(
    lambda offsets, before, after: Offsets({"observation": offsets}, before=before, after=after),
    st.lists(st.integers(-5, 5), min_size=1, max_size=5, unique=True),
    REACH,
    REACH,
)
WINDOWS = st.one_of(
    st.builds(Transition, st.integers(1, 5), st.just(1.0)),
    SLICES,
    OFFSETS,
    st.builds(Episode, st.one_of(st.none(), st.integers(1, 12)), bucket=st.one_of(st.none(), st.integers(1, 3))),
)


KINDS = product(range(1, 13), (True, False), ("terminated", "truncated"), ((), (2,), (0, 4)))
ALL = known([episode(i, T, observed=o, end=end, inner=inner) for i, (T, o, end, inner) in enumerate(KINDS)])


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    yield from make(tmp_path_factory, ALL)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.integers(0, len(ALL) - 1), min_size=1, max_size=6, unique=True), WINDOWS, st.booleans())
def test_an_epoch_holds_every_step_as_often_as_the_page_says(everything, chosen, window, shuffled):
    episodes, ds = [ALL[i] for i in chosen], everything.select(episodes=np.array(chosen))
    total = sum(number_of_windows(window, e) for e in episodes)
    if not total:
        with pytest.raises(EmptyWindow):
            load(ds, window, Sequential())
        return
    batch = next(iter(load(ds, window, Shuffled() if shuffled else Sequential(), 10_000)))
    samples = read(window, batch)
    assert len(samples) == total and (probability(batch) == 1 / total).all()
    seen = Counter((e, t) for e, steps in samples for t in steps)
    expected = {(i, t): c for i, e in enumerate(episodes) for t, c in enumerate(coverage(window, e)) if c}
    assert seen == expected
    every = [(i, held(window, e, k)) for i, e in enumerate(episodes) for k in range(number_of_windows(window, e))]
    assert sorted(samples) == sorted(every)


# -- samplers: the chance of every step

EPISODES = known(
    [
        episode(0, 1),
        episode(1, 9, inner=(2, 5)),
        episode(2, 4, end="truncated"),
        episode(3, 12, observed=False, end="truncated"),
        episode(4, 7, observed=False, inner=(3,)),
    ]
)
BY_EPISODE = np.array([3.0, 1.0, 0.0, 2.0, 0.5])
BY_STEP = (np.arange(33) * 7 % 5).astype(float)  # some are zero
FIRST_STEP = [0, 1, 10, 14, 26]
SAMPLERS = {
    "uniform": Uniform(),
    "uniform by episode": Uniform(by="episode"),
    "shuffled": Shuffled(),
    "sequential": Sequential(),
    "weighted by episode": Weighted(BY_EPISODE),
    "weighted by step": Weighted(BY_STEP),
    "prioritized": Prioritized(alpha=ALPHA, eps=EPS),
}
EVERY_WINDOW = [
    Transition(),
    Transition(3, 1.0),
    Slice(4),
    Slice(4, before=3),
    Slice(4, after=3),
    Slice(5, before=2, after=4, stride=3),
    Offsets({"observation": (-2, 0, 1)}),
    Offsets({"observation": range(-1, 5)}, before=0, after=2),
    Episode(),
    Episode(6, bucket=2),
]


def priority(window):
    return (window * 37 % 11) / 3  # some are zero


def chances(name, window):
    """Of every window, [episode][k], by the page's table of samplers."""
    K = [number_of_windows(window, e) for e in EPISODES]
    some = [i for i, k in enumerate(K) if k]
    if name == "uniform by episode":
        return [[1 / len(some) / max(k, 1)] * k for k in K]
    if name == "weighted by episode":
        return [[w / sum(BY_EPISODE[some]) / max(k, 1)] * k for w, k in zip(BY_EPISODE, K, strict=True)]
    if name == "weighted by step":
        mass = [[BY_STEP[FIRST_STEP[i] + anchor(window, e, k)] for k in range(K[i])] for i, e in enumerate(EPISODES)]
    elif name == "prioritized":
        order = sorted(some, key=lambda i: EPISODES[i].length) if getattr(window, "bucket", None) else some
        number = iter(range(sum(K)))
        numbers = {i: [next(number) for _ in range(K[i])] for i in order}
        mass = [[(priority(n) + EPS) ** ALPHA for n in numbers.get(i, [])] for i in range(len(EPISODES))]
    else:
        mass = [[1.0] * k for k in K]
    return [[w / sum(map(sum, mass)) for w in of_episode] for of_episode in mass]


def inclusion(name, window, p):
    """Of every (episode, step), by the page's table of steps."""
    K = [number_of_windows(window, e) for e in EPISODES]
    if name in ("weighted by step", "prioritized"):
        chance: Counter[tuple[int, int]] = Counter()
        for i, e in enumerate(EPISODES):
            for k in range(K[i]):
                chance.update(dict.fromkeys([(i, t) for t in held(window, e, k)], p[i][k]))
        return chance
    some = [i for i, k in enumerate(K) if k]
    share = {
        "uniform by episode": lambda i: 1 / (len(some) * K[i]),
        "weighted by episode": lambda i: BY_EPISODE[i] / (K[i] * sum(BY_EPISODE[some])),
    }.get(name, lambda i: 1 / sum(K))
    return {(i, t): c * share(i) for i in some for t, c in enumerate(coverage(window, EPISODES[i]))}


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    yield from make(tmp_path_factory, EPISODES)


@pytest.mark.slow
@pytest.mark.parametrize("window", EVERY_WINDOW, ids=repr)
@pytest.mark.parametrize("name", SAMPLERS)
def test_steps_come_as_often_as_the_page_says(five, name, window):
    loader = load(five, window, SAMPLERS[name])
    batches = iter(loader)
    batch = next(batches)
    if name == "prioritized":
        number = batch["window"].reshape(len(batch["window"]), -1)[:, 0]
        assert set(number) == set(range(sum(number_of_windows(window, e) for e in EPISODES)))
        loader.update_priorities(batch, priority(number))
        batch = next(batches)
    samples, reported = read(window, batch), probability(batch)

    p = chances(name, window)
    assert sum(map(sum, p)) == pytest.approx(1)
    for i, of_episode in enumerate(p):
        given = {x for (e, _), x in zip(samples, reported, strict=True) if e == i}
        assert sorted(given) == pytest.approx(sorted({x for x in of_episode if x}))

    seen, n = Counter((e, t) for e, steps in samples for t in steps), len(samples)
    expected = inclusion(name, window, p)
    assert set(seen) <= {key for key, chance in expected.items() if chance}
    for key, chance in expected.items():
        off = 1e-6 if name in ("shuffled", "sequential") else 5.5 * math.sqrt(n * chance * (1 - min(chance, 1)))
        assert abs(seen[key] - n * chance) <= off + 1e-6, key
    assert np.mean([len(steps) for _, steps in samples]) == pytest.approx(sum(expected.values()), rel=0.05)


@pytest.mark.thorough
def test_correcting_by_the_probability_gives_the_even_average(five):
    window = Slice(4, before=3)
    even = next(iter(load(five, window, Sequential())))
    drawn = next(iter(load(five, window, Weighted(BY_STEP + 1))))
    correction = 1 / (len(even["step"]) * probability(drawn))
    for column in ("step", "episode"):
        values = drawn[column][:, -1].astype(float) * correction
        assert values.mean() == pytest.approx(even[column][:, -1].mean(), abs=6 * values.std() / math.sqrt(DRAWS))
