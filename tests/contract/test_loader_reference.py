"""Every window with every sampler against `reference`: which samples, in what order, how likely, and every value."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from loader_data import SELECTIONS, create, episode, varied
from reference import goals, mixtures, returns, samplers, windows

import rlds_cli
from rlds_cli.errors import EmptyWindow
from rlds_cli.loader import (
    Episode,
    Goals,
    Loader,
    Mixture,
    Offsets,
    Prioritized,
    ReturnToGo,
    Sequential,
    Shuffled,
    Slice,
    Transition,
    Uniform,
    Weighted,
)
from rlds_cli.loader.storage import blocks

VARIED = varied()
PLAIN = [e.plain() for e in VARIED]
STORED = ("info/step", "next/qpos", "text")
EXACT = {"backend": "numpy", "dtype": None}

REACH = st.one_of(st.none(), st.integers(0, 5))
FILLS = st.sampled_from(["edge", "zero"])
ROWS = st.one_of(
    st.lists(st.integers(-9, 9), min_size=1, max_size=4),
    st.builds(lambda first, size: list(range(first, first + size)), st.integers(-5, 3), st.integers(1, 9)),
)
NAMES = ("observation", "action", "next/observation", "next/reward", "next/terminated", "next/done", *STORED)
KINDS = {
    "transition": st.builds(Transition),
    "n-step": st.builds(Transition, st.integers(2, 6), st.sampled_from([0.0, 0.9, 1.0])),
    "slice": st.integers(1, 6).flatmap(
        lambda n: st.builds(
            Slice,
            st.just(n),
            before=st.integers(0, n - 1),
            after=st.integers(0, n - 1),
            stride=st.sampled_from([1, 2, n, 7]),
            fill=FILLS,
        )
    ),
    "slice, padded": st.builds(
        lambda n, side, reach, **options: Slice(n, **{side: reach % (n - 1) + 1}, **options),
        st.integers(2, 6),
        st.sampled_from(["before", "after"]),
        st.integers(0, 4),
        stride=st.sampled_from([1, 2, 7]),
        fill=FILLS,
        pad=st.sampled_from(["left", "right"]),
    ),
    "offsets": st.builds(
        Offsets,
        st.dictionaries(st.sampled_from(NAMES), ROWS, min_size=1, max_size=4),
        before=REACH,
        after=REACH,
        fill=FILLS,
    ),
    "seconds": st.builds(
        lambda given, before, after: Offsets(
            {name: [x / 20 for x in rows] for name, rows in given.items()}, before=before, after=after, unit="s"
        ),
        st.dictionaries(st.sampled_from(NAMES), ROWS, min_size=1, max_size=2),
        REACH,
        REACH,
    ),
    "episode": st.builds(
        Episode, st.one_of(st.none(), st.integers(1, 9)), bucket=st.sampled_from([None, None, 1, 3]), fill=FILLS
    ),
}
KINDS["n-step, kept"] = KINDS["n-step"]
ALPHA, BETA, EPS = 0.7, 0.5, 0.01
SAMPLERS = {
    "sequential": Sequential(),
    "shuffled": Shuffled(),
    "uniform": Uniform(),
    "uniform by episode": Uniform(by="episode"),
    "weighted by episode": Weighted("length"),
    "weighted by step": None,
    "prioritized": Prioritized(alpha=ALPHA, beta=BETA, eps=EPS),
}


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rlds_cli.Dataset]:
    """All kinds of episodes."""
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield rlds_cli.create("local/varied", PLAIN, fps=20)


@pytest.fixture(autouse=True)
def some_rows_are_packed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of these tests are packed, as those of large datasets are."""
    if "kept" in request.node.name:
        monkeypatch.setattr(blocks, "LEAST_BYTES", 0)


def reference(plain: list[dict[str, Any]], window: Any, every_step: bool) -> list[list[windows.Window]]:
    """The windows of every episode; those of whole episodes are as long as the longest."""
    if isinstance(window, Transition):
        return [windows.steps_of(e, window.n_step, window.gamma, every_step=every_step) for e in plain]
    if isinstance(window, Slice):
        options = {"before": window.before, "after": window.after, "stride": window.stride, "fill": window.fill}
        return [windows.slices(e, window.length, pad=window.pad, **options) for e in plain]
    if isinstance(window, Episode):
        longest = max(map(windows.length, plain))
        size = longest if window.max_length is None else min(longest, window.max_length)
        return [windows.whole(e, size, window.fill) for e in plain]
    options = {"before": window.before, "after": window.after, "fill": window.fill, "every_step": every_step}
    fps = 20 if window.unit == "s" else None
    return [windows.around(e, window.offsets, fps=fps, **options) for e in plain]


def identity(window: Any, episode: int, steps: Any, real: Any) -> tuple[Any, ...]:
    """What tells the windows of a dataset apart."""
    if isinstance(window, Transition | Offsets):
        return episode, int(np.ravel(steps)[0])
    if isinstance(window, Episode):
        return (episode,)
    return episode, tuple(map(int, steps)), tuple(map(bool, real))


@dataclass
class Expected:
    """All windows of a dataset, by what tells them apart."""

    window: Any
    by_episode: list[list[windows.Window]]

    def __post_init__(self) -> None:
        self.counts = [len(w) for w in self.by_episode]
        self.places = {
            identity(self.window, k, w.steps, w.real): (k, number)
            for k, of_one in enumerate(self.by_episode)
            for number, w in enumerate(of_one)
        }
        assert len(self.places) == sum(self.counts)

    def drawn(self, batch: Any) -> list[tuple[int, int]]:
        """Episode and number of every sample, after a look at all its values."""
        found = []
        for i in range(len(batch["step"])):
            k = int(np.ravel(batch["episode"][i])[0])
            real = batch["mask"][i] if isinstance(self.window, Slice | Episode) else [True]
            place = self.places[identity(self.window, k, np.atleast_1d(batch["step"][i]), real)]
            self.compare(batch, i, self.by_episode[k][place[1]])
            found.append(place)
        return found

    def compare(self, batch: Any, i: int, window: windows.Window) -> None:
        size = len(batch["mask"][i]) if isinstance(self.window, Episode) else None  # of a bucket, less is padded
        for name, values in window.fields.items():
            if name not in batch:  # not asked for, or of no use: every next observation is known
                assert name in ("next/observed", "next/observation") or name.startswith("mask/"), name
                continue
            given, wanted = batch[name][i], values if size is None else values[:size]
            assert np.shape(given) == wanted.shape, name
            if name in ("next/reward", "next/discount"):
                np.testing.assert_allclose(given, wanted, rtol=1e-12, atol=1e-12, err_msg=name)
            else:
                assert np.array_equal(given, wanted), name
        if not isinstance(self.window, Transition | Offsets):
            assert batch["mask"][i].tolist() == list(window.real[:size])
            assert batch["step"][i].tolist() == list(window.steps[:size])


def chances(name: str, expected: Expected, plain: list[dict[str, Any]], weights: np.ndarray) -> samplers.Chances:
    lengths = [windows.length(e) for e in plain]
    if name == "weighted by step":
        of_steps = [part.tolist() for part in np.split(weights, np.cumsum(lengths)[:-1])]
        return samplers.by_anchor([[w.anchor for w in of_one] for of_one in expected.by_episode], of_steps)
    if name == "weighted by episode":
        return samplers.evenly_by_episode(expected.counts, lengths)
    return (
        samplers.evenly_by_episode(expected.counts)
        if name == "uniform by episode"
        else samplers.evenly(expected.counts)
    )


def order(name: str, counts: list[int], seed: int, samples: int) -> list[tuple[int, int]] | None:
    """Which windows come, for samplers of which that follows from the documentation of the order."""
    made = {
        "sequential": lambda: samplers.sequential(counts),
        "shuffled": lambda: samplers.shuffled(counts, seed, 0),
        "uniform": lambda: samplers.uniform(counts, seed, 0, samples),
        "uniform by episode": lambda: samplers.uniform_by_episode(counts, seed, 0, samples),
    }
    return made[name]() if name in made else None


@pytest.mark.thorough
@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6)
@given(chosen=SELECTIONS, data=st.data(), every_step=st.booleans(), seed=st.integers(0, 2**64 - 1))
def test_samples_are_those_of_the_reference(
    ds: rlds_cli.Dataset, name: str, kind: str, chosen: list[int], data: Any, every_step: bool, seed: int
) -> None:
    window, plain, view = data.draw(KINDS[kind]), [PLAIN[k] for k in chosen], ds.select(episodes=chosen)
    assume(not every_step or not kind.startswith("n-step"))
    assume(not every_step or not isinstance(window, Offsets) or "next/observation" not in window.offsets)
    expected = Expected(window, reference(plain, window, every_step))
    weights = 1.0 + np.arange(view.num_steps) * 7 % 5
    sampler = SAMPLERS[name] or Weighted(weights)
    options = {
        "window": replace(window, anchors="steps" if every_step else "transitions"),
        "sampler": sampler,
        "seed": seed,
    }
    extra = ("episode", "step", *STORED, *(() if "probability" in sampler.gives else ("probability",)))
    if not sum(expected.counts):
        with pytest.raises(EmptyWindow):
            Loader(view, 4, **options)
        return
    loader = Loader(view, 4, **options, fields=[..., *extra], **EXACT)
    p, found = chances(name, expected, plain, weights), []
    for batch in itertools.islice(loader, 8 if sampler.endless else None):
        drawn = expected.drawn(batch)
        reported = batch["probability"].reshape(len(drawn), -1)[:, 0]
        assert reported == pytest.approx([p[k][number] for k, number in drawn])
        if name == "prioritized":
            assert np.ravel(batch["weight"]) == pytest.approx(1.0)
        found += drawn
    known = order(name, expected.counts, seed, len(found))
    if getattr(window, "bucket", None):
        assert sampler.endless or sorted(found) == samplers.sequential(expected.counts)
    elif known is not None:
        assert found == known


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6)
@given(chosen=SELECTIONS, data=st.data(), seed=st.integers(0, 2**64 - 1))
def test_priorities_are_those_of_the_reference(
    ds: rlds_cli.Dataset, kind: str, chosen: list[int], data: Any, seed: int
) -> None:
    """After every batch its windows get other priorities: probabilities and weights follow from all of them."""
    window, plain = data.draw(KINDS[kind]), [PLAIN[k] for k in chosen]
    assume(getattr(window, "bucket", None) is None)
    expected = Expected(window, reference(plain, window, False))
    assume(sum(expected.counts))
    options = {
        "window": window,
        "sampler": SAMPLERS["prioritized"],
        "fields": [..., "episode", "step", *STORED],
        **EXACT,
    }
    loader = Loader(ds.select(episodes=chosen), 5, **options, seed=seed)
    priorities = [[1.0] * count for count in expected.counts]
    numbers = {place: n for n, place in enumerate(samplers.numbered(expected.counts))}
    for n, batch in enumerate(itertools.islice(loader, 6)):
        drawn = expected.drawn(batch)
        p = samplers.by_priority(priorities, ALPHA, EPS)
        weight = samplers.importance(p, BETA)
        first = {name: batch[name].reshape(len(drawn), -1)[:, 0] for name in ("probability", "weight", "window")}
        assert first["window"].tolist() == [numbers[place] for place in drawn]
        assert first["probability"] == pytest.approx([p[k][i] for k, i in drawn])
        assert first["weight"] == pytest.approx([weight[k][i] for k, i in drawn], rel=1e-5)
        given = [((numbers[place] + n) * 37 % 11) / 3 for place in drawn]
        loader.update_priorities(batch, np.array(given))
        for (k, i), priority in zip(drawn, given, strict=True):
            priorities[k][i] = priority


# -- goals and returns


GOALS = {
    "current": (1.0, 0.0, 0.0),
    "future": (0.0, 1.0, 0.0),
    "random": (0.0, 0.0, 1.0),
    "several": (0.2, 0.5, 0.3),
}
FIVE = [
    episode(0, 1),
    episode(1, 6, inner=(2,)),
    episode(2, 4, observed=False, end="truncated"),
    episode(3, 1, observed=False),
    episode(4, 9),
]


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rlds_cli.Dataset]:
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield create(FIVE)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("horizon", ["geometric", "uniform", "final", "episode", 1, 3])
@pytest.mark.parametrize("shares", GOALS)
def test_goals_come_as_often_as_the_reference_says(five: rlds_cli.Dataset, shares: str, horizon: Any) -> None:
    current, future, anywhere = GOALS[shares]
    extra = Goals("goal", current=current, future=future, random=anywhere, horizon=horizon, gamma=0.6)
    options = {"window": Transition(anchors="steps"), "sampler": Uniform(), **EXACT}
    batch = next(iter(Loader(five, 40_000, fields=[..., "episode", "step", extra], **options)))
    recorded = [e.num_observed for e in FIVE]
    steps = np.stack([batch["episode"], batch["step"]], 1)
    rows = batch["goal"][:, :2].astype(int)
    for k, e in enumerate(FIVE):
        for t in range(e.length):
            here = (steps == (k, t)).all(1)
            chance = goals.chances(recorded, k, t, GOALS[shares], horizon, 0.6)
            assert abs(sum(chance.values()) - 1) < 1e-9
            seen = dict.fromkeys(chance, 0)
            distances = batch["goal_distance"][here][:, 0].tolist()
            for row, ahead in zip(map(tuple, rows[here].tolist()), distances, strict=True):
                seen[row] += 1  # a row that cannot be a goal is no key
                assert ahead == goals.distance(k, t, row)
            n = int(here.sum())
            for row, number in seen.items():
                p = chance[row]
                assert abs(number - n * p) <= 5.5 * np.sqrt(n * p * (1 - p)) + 1e-6, (k, t, row)


@settings(max_examples=15)
@given(
    chosen=SELECTIONS,
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    through=st.booleans(),
    kind=st.sampled_from(["transition", "n-step", "slice", "slice, padded", "episode"]),
    data=st.data(),
)
def test_returns_are_those_of_the_reference(
    ds: rlds_cli.Dataset, chosen: list[int], gamma: float, through: bool, kind: str, data: Any
) -> None:
    window, plain = data.draw(KINDS[kind]), [PLAIN[k] for k in chosen]
    extra = ("episode", "step", ReturnToGo(gamma, 0.5, through_terminals=through))
    expected = [
        returns.to_go(e["next"]["reward"].tolist(), e["next"]["terminated"].tolist(), gamma, through_terminals=through)
        for e in plain
    ]
    try:
        loader = Loader(
            ds.select(episodes=chosen), 5, window=window, sampler=Sequential(), fields=[..., *extra], **EXACT
        )
    except EmptyWindow:
        return
    for batch in loader:
        real = batch.get("mask", np.ones(batch["step"].shape, bool))
        for place in zip(*np.nonzero(real), strict=True):
            k, t = int(batch["episode"][place]), int(batch["step"][place])
            assert batch["return_to_go"][place].tolist() == [0.5 * expected[k][t]]


# -- mixtures


@pytest.mark.thorough
@settings(max_examples=20)
@given(
    first=SELECTIONS,
    second=SELECTIONS,
    kind=st.sampled_from([kind for kind in KINDS if kind != "episode"]),
    weights=st.sampled_from([None, {"a": 0.25, "b": 0.75}]),
    seed=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_members_of_a_mixture_have_an_order_of_their_own(
    ds: rlds_cli.Dataset, first: list[int], second: list[int], kind: str, weights: Any, seed: int, data: Any
) -> None:
    window = data.draw(KINDS[kind])
    known = {"a": [PLAIN[k] for k in first], "b": [PLAIN[k] for k in second]}
    expected = {name: Expected(window, reference(plain, window, False)) for name, plain in known.items()}
    sizes = {name: sum(e.counts) for name, e in expected.items()}
    assume(all(sizes.values()))
    members = {"a": ds.select(episodes=first), "b": ds.select(episodes=second)}
    mixture = Mixture(members) if weights is None else Mixture(members, weights=weights)
    options = {"window": window, "sampler": Shuffled(), "seed": seed, "fields": [..., "episode", "step", *STORED]}
    drawn: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    share = mixtures.shares(sizes if weights is None else weights)
    for batch in itertools.islice(Loader(mixture, 4, **options, **EXACT), 10):
        source = batch["source"].reshape(len(batch["source"]), -1)[:, 0]
        for i, name in enumerate("ab"):
            own = np.flatnonzero(source == i)
            drawn[name] += expected[name].drawn({n: batch[n][own] for n in batch.names()})
        so_far = sum(map(len, drawn.values()))
        assert all(abs(len(drawn[name]) - share[name] * so_far) <= 1 for name in drawn)
    for name, found in drawn.items():
        assert found == mixtures.member_order(expected[name].counts, seed, name, len(found))
