"""From offline to online: mixtures whose members grow, are empty at first, and have samplers of their own."""

from __future__ import annotations

import itertools
import pickle
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from loader_data import Known, create, episode

import rlds_cli
from rlds_cli.errors import EmptyWindow, InvalidArgument, WrongState
from rlds_cli.loader import (
    Anneal,
    Episode,
    Loader,
    Member,
    Mixture,
    Prioritized,
    Shuffled,
    Slice,
    Transition,
    Uniform,
    Weighted,
)
from rlds_cli.ted import Field

OFFLINE = [episode(k, 6 + k) for k in range(4)]
ONLINE = [episode(100 + k, 3 + k % 5, end="truncated" if k % 2 else "terminated") for k in range(30)]
KNOWN = {"offline": dict(enumerate(OFFLINE)), "online": {100 + k: e for k, e in enumerate(ONLINE)}}
NAMES = ("offline", "online")
HALF = {"offline": 1, "online": 1}


@pytest.fixture
def offline() -> rlds_cli.Dataset:
    return create(OFFLINE, ref="local/offline")


@pytest.fixture
def online(offline: rlds_cli.Dataset) -> Iterator[Any]:
    with rlds_cli.writer("local/online", like=offline) as w:
        yield w


def record(w: Any, *numbers: int) -> int:
    """Write some of `ONLINE` and commit them; return the version."""
    w.add_episodes(ONLINE[k].plain() for k in numbers)
    return int(w.commit())


def load(
    weights: Any = HALF, size: int = 8, *, sampler: Any = None, online: Any = "local/online", **options: Any
) -> Loader:
    members = {"offline": "local/offline", "online": Member(online, sampler=sampler)}
    how = {"backend": "numpy", "dtype": None, "live": True, "fields": [..., "step"], "seed": 5} | options
    return Loader(Mixture(members, weights), size, **how)


def check(batch: Any) -> None:
    """Every value is what was written."""
    number = np.asarray(batch["observation"]).reshape(len(batch["source"]), -1, 3)[:, 0, 0]
    for i, k in enumerate(number.astype(int).tolist()):
        source, t = (int(np.ravel(batch[name][i])[0]) for name in ("source", "step"))
        known: Known = KNOWN[NAMES[source]][k]
        if batch["observation"].ndim == 2:
            assert np.array_equal(batch["observation"][i], known.observation[t])
            assert np.array_equal(batch["action"][i], known.action[t])


def counts(batch: Any) -> list[int]:
    return np.bincount(np.asarray(batch["source"]).reshape(len(batch["source"]), -1)[:, 0], minlength=2).tolist()


def columns(batch: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(x) for name, x in batch.leaves()}


def same(one: list[dict[str, np.ndarray]], other: list[dict[str, np.ndarray]]) -> bool:
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and np.array_equal(a[k], b[k]) for k in a)
        for a, b in zip(one, other, strict=True)
    )


def soon(batches: Iterator[Any], done: Any, most: int = 100_000) -> Any:
    """The first batch of which ``done`` holds: a loader looks for new versions every few milliseconds."""
    for batch in itertools.islice(batches, most):
        check(batch)
        if done(batch):
            return batch
    raise AssertionError(f"not within {most} batches")


# -- a member that is empty at first


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sampler", [None, Prioritized(), Uniform(by="episode")])
def test_a_member_that_is_empty_at_first_is_taken_up(online: Any, sampler: Any) -> None:
    loader = load(sampler=sampler)
    batches = iter(loader)
    for batch in itertools.islice(batches, 5):
        check(batch)
        assert counts(batch) == [8, 0] and batch.absent == ("online",)
    record(online, 0, 1)
    batch = soon(batches, lambda b: not b.absent)
    assert counts(batch) == [4, 4]
    for batch in itertools.islice(batches, 20):
        check(batch)
        assert counts(batch) == [4, 4] and batch.absent == ()
    assert {100, 101} >= set(batch["observation"][batch["source"] == 1, 0].astype(int)) != set()
    record(online, 2)
    soon(batches, lambda b: 102 in b["observation"][:, 0])


@pytest.mark.thorough
def test_windows_that_do_not_fit_yet_leave_a_member_out(online: Any) -> None:
    record(online, 0)  # three steps
    loader = load(window=Slice(6))
    batches = iter(loader)
    batch = next(batches)
    assert batch.absent == ("online",) and counts(batch) == [8, 0]
    record(online, 4)  # seven steps
    batch = soon(batches, lambda b: not b.absent)
    assert counts(batch) == [4, 4]
    assert set(batch["observation"][batch["source"][:, 0] == 1][:, 0, 0]) == {104}


@pytest.mark.thorough
def test_a_member_whose_episodes_all_leave_is_left_out_again(offline: rlds_cli.Dataset) -> None:
    with rlds_cli.writer("local/online", like=offline, keep=rlds_cli.Fifo(episodes=1)) as w:
        record(w, 4)
        loader = load(window=Slice(6), sampler=Prioritized())
        batches = iter(loader)
        assert counts(next(batches)) == [4, 4]
        record(w, 0)
        batch = soon(batches, lambda b: bool(b.absent))
        assert counts(batch) == [8, 0]
        loader.update_priorities(batch, np.ones(8))
        record(w, 9)
        batch = soon(batches, lambda b: not b.absent)
        assert set(batch["observation"][batch["source"][:, 0] == 1][:, 0, 0]) == {109}


def test_without_live_an_empty_member_is_an_error(online: Any) -> None:
    with pytest.raises(EmptyWindow, match="Mixture, online: There is nothing to draw from"):
        load(live=False)
    with pytest.raises(EmptyWindow, match="no member of Mixture"):
        Loader(Mixture({"a": "local/online", "b": "local/online"}), live=True)


def test_members_of_weight_zero_do_not_stand_in(online: Any) -> None:
    with pytest.raises(EmptyWindow, match="at step 0: online has no windows yet, and all others have weight zero"):
        next(iter(load({"offline": 0, "online": 1})))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: load(online="local/offline"), "no member of Mixture.offline, online. grows"),
        (lambda: load(sampler=Shuffled()), "live=True with Shuffled"),
        (lambda: load(sampler=Prioritized(priority=np.ones(3))), "live=True with an array in Prioritized"),
        (lambda: load(sampler=Prioritized(lag=1)), "draws no batches ahead"),
        (
            lambda: Loader(Mixture({"a": Member("local/online", rename={"action": "control"})}), live=True),
            "Mixture, a: rename= of a growing dataset",
        ),
    ],
)
def test_what_cannot_be_live(online: Any, make: Any, says: str) -> None:
    record(online, 0)
    with pytest.raises(InvalidArgument, match=says):
        make()


@pytest.mark.thorough
@pytest.mark.parametrize("window", [Episode(), Episode(max_length=8), Episode(bucket=2)])
def test_whole_episodes_are_as_long_as_those_that_came(online: Any, window: Episode) -> None:
    loader = load(window=window, fields=None)
    batches = iter(loader)
    batch = next(batches)
    assert batch.absent == ("online",) and batch["action"].shape[1] <= 9
    long = episode(200, 14)
    online.add_episodes([long.plain()])
    online.commit()
    limit = window.max_length or 14
    for batch in itertools.islice(batches, 100_000):
        mine = np.flatnonzero(batch["source"][:, 0] == 1)
        if len(mine):
            break
    assert batch["action"].shape[1] == limit and len(mine) == 4
    for i in mine:
        assert batch["mask"][i].sum() == limit and np.array_equal(batch["action"][i], long.action[:limit])


@pytest.mark.thorough
def test_fields_that_differ_do_so_from_the_start(offline: rlds_cli.Dataset) -> None:
    """Columns are those of all members, also while one is empty; its functions see the shapes that will come."""
    seen = []

    def twice(batch: Any) -> None:
        seen.append(batch["action"].shape)
        batch["action"] = batch["action"] * 2

    fields = [Field("observation", "float64", (3,), "both"), Field("action", "float32", (4,), "root")]
    fields += [Field(f"next/{name}", "bool", (), "next") for name in ("terminated", "truncated")]
    with rlds_cli.writer("local/wide", fields=fields) as w:
        members = {"offline": "local/offline", "online": Member("local/wide", transform=twice)}
        mixture = Mixture(members, HALF, pad={"action": 4}, missing="zero")
        loader = Loader(mixture, 8, backend="numpy", dtype=None, live=True)
        batches = iter(loader)
        batch = next(batches)
        assert seen == [(0, 4)] and batch["mask", "action"].sum(1).tolist() == [2] * 8
        assert batch["mask/next/reward"].all()
        names = set(columns(batch))
        steps = {"observation": np.ones((6, 3)), "action": np.full((5, 4), 3.0, np.float32)}
        w.add_episodes([{**steps, "next": {"truncated": True}}])
        w.commit()
        batch = next(b for b in batches if not b.absent)
        mine = batch["source"] == 1
        assert set(columns(batch)) == names and mine.sum() == 4
        assert (batch["action"][mine] == 6).all() and batch["mask", "action"][mine].all()
        assert not batch["mask/next/reward"][mine].any() and (batch["next/reward"][mine] == 0).all()


@pytest.mark.thorough
def test_several_members_grow(offline: rlds_cli.Dataset, online: Any) -> None:
    with rlds_cli.writer("local/more", like=offline) as more:
        members = {"offline": "local/offline", "online": "local/online", "more": "local/more"}
        weights = {"offline": 1, "online": 1, "more": 2}
        how = {"backend": "numpy", "dtype": None, "sampler": Prioritized(), "fields": [..., "step"], "steps": 1}
        loader, seen = Loader(Mixture(members, weights), 8, live=True, **how), []

        def until(done: Any) -> Any:
            for _ in range(100_000):
                batch = next(iter(loader))
                seen.append(columns(batch))
                if done(batch):
                    return batch
            raise AssertionError("never")

        until(lambda b: b.absent == ("online", "more"))
        more.add_episodes([ONLINE[1].plain()])
        more.commit()
        batch = until(lambda b: b.absent == ("online",))
        assert np.bincount(batch["source"], minlength=3).tolist() in ([3, 0, 5], [2, 0, 6])  # 1 : 2, of 8
        record(online, 0)
        batch = until(lambda b: not b.absent)
        assert np.abs(np.bincount(batch["source"]) - [2, 2, 4]).max() <= 1  # remainders are made up
        numbers = {"online": online.dataset().version, "more": more.dataset().version}
        assert loader.version == numbers
        again = Loader(Mixture(members, weights), 8, live=loader.state_dict(), **how)
        assert same([columns(next(iter(again))) for _ in seen], seen)


@pytest.mark.slow
def test_priorities_of_a_tensordict(online: Any) -> None:
    pytest.importorskip("tensordict")
    record(online, 0)
    loader = load(sampler=Prioritized(), backend="torch")
    batch = next(iter(loader))
    data = batch.tensordict()
    loader.update_priorities(data, torch.full((8,), 4.0))
    held = loader.state_dict()["draws"]["online"]["priorities"]["masses"]
    mine = {int(x) & 0xFFFFFFFF for x, m in zip(batch["window"], batch["source"], strict=True) if m == 1}
    assert [k for k in range(len(held)) if held[k] > 2] == sorted(mine)  # (4 + eps) ** 0.6 is 2.3


# -- shares


@pytest.mark.thorough
@pytest.mark.parametrize("weights", [HALF, {"offline": 3, "online": 1}, {"offline": 0.3, "online": 0.7}])
@pytest.mark.parametrize("size", [2, 7, 16])
def test_shares_are_exact_and_remainders_are_made_up(online: Any, weights: dict[str, float], size: int) -> None:
    record(online, 0, 1, 2)
    share = weights["online"] / sum(weights.values())
    total = 0
    for n, batch in enumerate(itertools.islice(load(weights, size), 60), 1):
        total += counts(batch)[1]
        assert abs(counts(batch)[1] - size * share) < 1 and abs(total - n * size * share) < 1


def test_shares_by_size_follow_the_windows(online: Any) -> None:
    windows = sum(e.num_transitions for e in OFFLINE)
    record(online, 4)  # seven transitions
    loader = load("size", windows + 7)
    batches = iter(loader)
    assert counts(next(batches)) == [windows, 7]
    record(online, 9)
    batch = soon(batches, lambda b: counts(b)[1] > 8)
    expected = (windows + 7) * 14 / (windows + 14)
    assert abs(counts(batch)[1] - expected) < 2


@pytest.mark.thorough
@pytest.mark.sampled(5)
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("weights", [HALF, {"offline": 5, "online": 3}])
@pytest.mark.parametrize("live", [True, False])
def test_every_rank_has_the_shares(online: Any, world: int, weights: dict[str, float], live: bool) -> None:
    record(online, 0, 1, 2)
    log = np.array([[0, online.dataset().version]]) if live else False
    size = 8
    whole = list(itertools.islice(load(weights, size, live=log), 64))
    parts = [list(itertools.islice(load(weights, size, live=log, rank=r, world_size=world), 64)) for r in range(world)]
    totals = np.zeros(world)
    for n, batch in enumerate(whole, 1):
        ranks = [p[n - 1] for p in parts]
        each = np.array([counts(r)[1] for r in ranks])
        assert each.sum() == counts(batch)[1] and np.ptp(each) <= 1
        told = [row(r, i) for r in ranks for i in range(size // world)]
        assert sorted(told) == sorted(row(batch, i) for i in range(size))
        totals += each
        assert np.ptp(totals) <= 1
    assert counts(whole[0]) == [4, 4] or weights != HALF


def row(batch: Any, i: int) -> tuple[bytes, ...]:
    found = columns(batch)
    return tuple(np.ascontiguousarray(found[name][i]).tobytes() for name in sorted(found))


def test_weights_are_annealed(online: Any) -> None:
    record(online, 0, 1)
    weights = Anneal({"offline": 1, "online": 0}, {"offline": 1, "online": 1}, steps=20, begin=4)
    expected = [0.0] * 4 + [min((n - 4) / 20 * 0.5, 0.5) for n in range(4, 40)]
    loader = load(weights, 16)
    given = [counts(b)[1] for b in itertools.islice(loader, 40)]
    assert given[:5] == [0] * 5 and given[-10:] == [8] * 10
    assert np.abs(np.cumsum(given) - 16 * np.cumsum(expected)).max() < 1
    frozen = [counts(b)[1] for b in itertools.islice(load(weights, 16, live=False), 40)]
    assert frozen == given
    assert pickle.loads(pickle.dumps(loader)).dataset.weights == weights
    assert "Anneal(start={'offline': 1.0, 'online': 0.0}" in loader.state_dict()["weights"]
    other = load(Anneal({"offline": 1, "online": 0}, HALF, steps=21, begin=4), 16)
    with pytest.raises(WrongState, match="weights"):
        other.load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Anneal({"a": 1}, {"b": 1}, steps=5), "weight"),
        (lambda: Anneal({"a": 0}, {"a": 1}, steps=5), "at the start of Anneal of a sum to 0"),
        (lambda: Anneal({"a": 1}, {"a": 1}, steps=0), "steps"),
        (lambda: Anneal("size", {"a": 1}, steps=3), "two mappings"),
        (lambda: Mixture({"b": "local/x"}, Anneal({"a": 1}, {"a": 1}, steps=3)), "no weight of b"),
    ],
)
def test_schedules_that_are_none(make: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        make()


# -- a sampler for each member


@pytest.mark.thorough
def test_each_member_has_its_own_sampler(offline: rlds_cli.Dataset, online: Any) -> None:
    record(online, *range(5))
    weight = np.array([0.0, 0.0, 1.0, 0.0])
    members = {
        "offline": Member("local/offline", sampler=Weighted(weight)),
        "online": Member("local/online", sampler=Prioritized(1.0, 1.0, eps=1e-6)),
    }
    loader = Loader(Mixture(members, HALF), 64, backend="numpy", dtype=None, fields=[..., "step", "episode"], live=True)
    batches = iter(loader)
    batch = next(batches)
    check(batch)
    mine = batch["source"] == 1
    assert set(batch["episode"][~mine]) == {2} and len(set(batch["episode"][mine])) > 2
    assert batch["weight"].shape == (64, 1) and (batch["weight"][~mine] == 1).all()
    n = sum(e.num_transitions for e in ONLINE[:5])
    assert np.allclose(batch["probability"][mine], 0.5 / n)
    assert np.allclose(batch["probability"][~mine], 0.5 / OFFLINE[2].num_transitions)
    episodes = batch["observation"][:, 0].astype(int)
    loader.update_priorities(batch, np.where(episodes == 103, 10.0, 0.0))  # those of the other member say nothing
    known = {(int(episodes[i]), int(batch["step"][i])): 10.0 * (episodes[i] == 103) for i in np.flatnonzero(mine)}
    drawn: Counter[tuple[int, int]] = Counter()
    weights: dict[tuple[int, int], float] = {}
    rounds = 400
    for batch in itertools.islice(batches, rounds):
        assert counts(batch) == [32, 32]
        for i in np.flatnonzero(batch["source"] == 1):
            key = int(batch["observation"][i, 0]), int(batch["step"][i])
            drawn[key] += 1
            weights[key] = float(batch["weight"][i, 0])
    every = [(100 + k, t) for k in range(5) for t in range(ONLINE[k].num_transitions)]
    mass = np.array([known.get(key, 1.0) + 1e-6 for key in every])
    expected = 32 * rounds * mass / mass.sum()
    seen = np.array([drawn[key] for key in every])
    enough = expected > 5
    chi = ((seen - expected)[enough] ** 2 / expected[enough]).sum()
    assert chi < enough.sum() + 5 * np.sqrt(2 * enough.sum()) and seen[~enough].sum() <= 3
    for key, w in weights.items():
        assert np.isclose(w, mass.min() / mass[every.index(key)])


def test_an_invalid_priority_changes_no_member(offline: rlds_cli.Dataset, online: Any) -> None:
    record(online, 0, 1)
    loader = load(sampler=Prioritized(), online="local/online")
    both = Loader(
        Mixture({"offline": "local/offline", "online": "local/online"}, HALF), 8, sampler=Prioritized(), live=True
    )
    for one, wrong in ((loader, 1), (both, 0), (both, 1)):
        batch = next(iter(one))
        before = one.state_dict()["draws"]
        priority = np.where(np.asarray(batch["source"]) == wrong, np.nan, 3.0)
        with pytest.raises(InvalidArgument, match=f"Mixture, {NAMES[wrong]}: priority nan"):
            one.update_priorities(batch, priority)
        after = one.state_dict()["draws"]
        for name in before:
            assert np.array_equal(before[name]["priorities"]["masses"], after[name]["priorities"]["masses"])
    batch = next(iter(loader))
    loader.update_priorities(batch, np.where(np.asarray(batch["source"]) == 0, np.nan, 3.0))  # offline has none


# -- going on


def run(loader: Loader, n: int, update: bool = True) -> list[dict[str, np.ndarray]]:
    found = []
    for batch in itertools.islice(loader, n):
        check(batch)
        found.append(columns(batch))
        if update and "window" in batch:
            loader.update_priorities(batch, batch["window"].reshape(len(batch["window"]), -1)[:, 0] % 7 + 0.5)
    return found


def look_before_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a loader look for new data before every batch: by the clock, a fast one draws thousands until it looks."""
    for name in ("LOOK", "REST", "FRESH"):
        monkeypatch.setattr(f"rlds_cli.loader.live.{name}", 0.0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sampler", [Prioritized(0.9, 0.7), None])
@pytest.mark.parametrize("weights", [HALF, "size", Anneal({"offline": 1, "online": 0.1}, HALF, steps=30)])
@pytest.mark.parametrize(("window", "by_torch"), [(Transition(3), True), (Slice(3, after=2), False)])
def test_a_resumed_run_is_the_uninterrupted_one(
    tmp_path: Any,
    online: Any,
    sampler: Any,
    weights: Any,
    window: Any,
    by_torch: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the data grow: the log of the uninterrupted run says what the resumed one takes up, and when."""
    look_before_every_batch(monkeypatch)
    loader = load(weights, 6, sampler=sampler, window=window)
    whole, states = run(loader, 3), [loader.state_dict()]
    for k in (0, 2, 4, 6):
        record(online, k, k + 1)
        wanted = online.dataset().version
        while loader.version["online"] != wanted:
            whole += run(loader, 1)
        whole += run(loader, 2)
        states.append(loader.state_dict())
    final = loader.state_dict()
    assert len(final["versions"]) == 5  # none was left out
    replayed = load(weights, 6, sampler=sampler, window=window, live=final)
    assert same(run(replayed, len(whole)), whole)
    for state in states[:: 2 if sampler is None else 1]:
        if by_torch:
            torch.save(state, tmp_path / "state.pt")
            state = torch.load(tmp_path / "state.pt", weights_only=True)
        done = int(state["samples"]) // 6
        resumed = load(weights, 6, sampler=sampler, window=window, live=final)
        resumed.load_state_dict(state)
        assert resumed.consumed() == dict(
            zip(NAMES, np.sum([counts(b) for b in whole[:done]], axis=0, dtype=int).tolist(), strict=True)
        )
        assert same(run(resumed, len(whole) - done), whole[done:])
        again = pickle.loads(pickle.dumps(resumed))
        assert flat(again.state_dict()) == flat(resumed.state_dict()) == flat(final)
    resumed.load_state_dict(states[1])  # a loader that has been elsewhere
    done = int(states[1]["samples"]) // 6
    assert same(run(resumed, len(whole) - done), whole[done:])
    with pytest.raises(InvalidArgument, match=r"continues from sample .* batch by batch"):
        resumed.seek(resumed.step + 1)
    assert flat(resumed.state_dict()) == flat(final)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_commits_retention_and_samplers(
    offline: rlds_cli.Dataset, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two members grow and let episodes go; every state on the way goes on as the run did."""
    look_before_every_batch(monkeypatch)
    rng = random.Random(seed)
    policies = [None, rlds_cli.Fifo(episodes=3), rlds_cli.Reservoir(episodes=4, seed=1)]
    writers = {name: rlds_cli.writer(f"local/{name}", like=offline, keep=rng.choice(policies)) for name in ("a", "b")}
    samplers = [None, Prioritized(0.7), Uniform(by="episode"), Weighted("length")]
    members = {name: Member(f"local/{name}", sampler=rng.choice(samplers)) for name in writers}
    start, end = {"offline": 1, "a": 0, "b": 0.3}, {"offline": 0.1, "a": 1, "b": 1}
    weights = rng.choice(["size", {"offline": 1, "a": 2, "b": 1}, end, Anneal(start, end, steps=20)])
    mixture = Mixture({"offline": offline, **members}, weights, exact=rng.random() < 0.8)
    window = rng.choice([Transition(), Transition(3), Slice(5), Slice(3, after=2), Episode(max_length=6)])

    def made(live: Any) -> Loader:
        return Loader(mixture, 10, window=window, backend="numpy", dtype=None, live=live)

    def draw(loader: Loader, n: int) -> list[dict[str, np.ndarray]]:
        found = []
        for batch in itertools.islice(loader, n):
            found.append(columns(batch))
            if "weight" in batch and loader.step % 3:
                window = batch["window"].reshape(len(batch["window"]), -1)[:, 0]
                loader.update_priorities(batch, window % 7 + 0.5)
        return found

    loader, whole, states, held = made(True), [], [], []
    for k in range(8):
        for name, w in writers.items():
            if rng.random() < 0.5:
                w.add_episodes(episode(100 * k + j, rng.randint(2, 9)).plain() for j in range(rng.randint(1, 3)))
                w.commit()
                held.append(rlds_cli.open_dataset(f"local/{name}"))  # so that its episodes stay
        whole += draw(loader, rng.randint(1, 6))
        states.append((loader.state_dict(), len(whole)))
    final = loader.state_dict()
    assert len(final["versions"]) > 1 and same(draw(made(final), len(whole)), whole)
    for state, done in states:
        resumed = made(final)
        resumed.load_state_dict(state)
        assert same(draw(resumed, len(whole) - done), whole[done:])
    for w in writers.values():
        w.close()


def flat(state: Any, prefix: str = "") -> dict[str, Any]:
    if hasattr(state, "numpy"):
        state = state.numpy()
    if isinstance(state, np.ndarray):
        return {prefix: (str(state.dtype), state.shape, state.tobytes())}
    if isinstance(state, dict):
        return {k: v for key, value in state.items() for k, v in flat(value, f"{prefix}/{key}").items()}
    return {prefix: state}


@pytest.mark.thorough
def test_states_of_frozen_and_of_live_mixtures_differ(online: Any) -> None:
    record(online, 0, 1)
    live, frozen = load(), load(live=False)
    run(live, 2), run(frozen, 2)
    with pytest.raises(WrongState, match="not of a live loader"):
        live.load_state_dict(frozen.state_dict())
    with pytest.raises(WrongState, match="weights"):
        frozen.load_state_dict(live.state_dict())
    with pytest.raises(WrongState, match="batches of 8, this loader's have 4"):
        load(size=4).load_state_dict(live.state_dict())


@pytest.mark.thorough
def test_seeking_back_and_forth(online: Any) -> None:
    record(online, 0, 1, 2)
    loader = load({"offline": 0.37, "online": 0.63}, 7)
    whole = run(loader, 40)
    for step in (17, 3, 39, 0):
        loader.seek(step)
        assert same(run(loader, 1), whole[step : step + 1])


@pytest.mark.thorough
@pytest.mark.parametrize("exact", [True, False])
def test_options_do_not_enter_the_order(online: Any, exact: bool) -> None:
    record(online, 0, 1, 2)
    log = np.array([[0, online.dataset().version]])
    members = {"offline": Member("local/offline", sampler=Shuffled()), "online": "local/online"}
    runs = [
        run(Loader(Mixture(members, HALF, exact=exact), 8, dtype=None, live=log, fields=[..., "step"], **options), 20)
        for options in ({"backend": "numpy"}, {"backend": "numpy", "prefetch": 3}, {"backend": "torch"})
    ]
    assert same(runs[0], runs[1]) and same(runs[0], runs[2])


@pytest.mark.thorough
def test_what_is_said_of_it(online: Any) -> None:
    loader = load(sampler=Prioritized())
    text = loader.describe()
    assert "0 windows in 0 episodes" in text and "Prioritized(alpha=0.6" in text
    assert repr(loader).startswith("Loader(Mixture(")
    next(iter(loader))
    assert loader.version == {"online": online.dataset().version}
