"""The first samples of every sampler with every kind of window; of mixtures, ranks and resumed loaders.

A case holds the numbers of the first samples in clear, and digests of all: ``rows`` of what says which rows are read
(episode, step, index, window, mask, source), ``weights`` of probabilities and discounts, ``values`` of everything else.
Powers are of numbers for which they are exact, so that the digests are the same on every processor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from loader_data import create, varied

import rlds_cli
from golden import digest
from rlds_cli.loader import (
    Anneal,
    Clip,
    Episode,
    Goals,
    Loader,
    Member,
    Mixture,
    Normalize,
    Offsets,
    Pairs,
    Prioritized,
    ReturnToGo,
    Reward,
    Sampler,
    Sequential,
    Shuffled,
    Slice,
    Transition,
    Uniform,
    Weighted,
    Window,
)

SAMPLES, BATCH = 1000, 90
SEEDS = (0, 2**63 + 5)
ROWS = ("episode", "step", "index", "window", "mask", "source")
WEIGHTS = ("probability", "weight", "next/discount")
SOME = ("Uniform", "Shuffled", "Weighted by transition", "Prioritized")
EXTRA = ("episode", "step", "index", "probability")

WINDOWS: dict[str, Window] = {
    "Transition": Transition(),
    "Transition 3": Transition(n_step=3, gamma=0.5),
    "Slice 3": Slice(3),
    "Slice 4 padded": Slice(4, before=2, after=3),
    "Slice 2 stride 2 zero": Slice(2, after=1, stride=2, fill="zero"),
    "Offsets": Offsets({"observation": (-1, 0), "action": range(-1, 3)}),
    "Offsets inside zero": Offsets({"observation": (0, 2)}, before=0, after=1, fill="zero"),
    "Episode": Episode(),
    "Episode 5 in buckets": Episode(5, bucket=10),
}


def samplers(ds: rlds_cli.Dataset) -> dict[str, Sampler]:
    """Every sampler, with weights by episode, transition and step."""
    episodes = np.arange(ds.num_episodes) % 5 / 4
    return {
        "Uniform": Uniform(),
        "Uniform by episode": Uniform(by="episode"),
        "Shuffled": Shuffled(),
        "Shuffled whole batches": Shuffled(drop_last=True),
        "Shuffled in blocks": Shuffled(block=16, live=3),
        "Sequential": Sequential(),
        "Weighted by column": Weighted("length"),
        "Weighted by episode": Weighted(episodes),
        "Weighted by transition": Weighted(np.arange(len(ds)) % 7 / 8),
        "Weighted by step": Weighted(np.arange(ds.num_steps) % 3 / 2),
        "Prioritized": Prioritized(0.5, 1.0, eps=0.25),
        "Prioritized behind": Prioritized(1.0, 1.0, eps=0.25, lag=2, priority=episodes + 1),
    }


def collect(directory: Path, *, quick: bool = False) -> dict[str, Any]:
    """All cases by name; to be quick, with the second seed for one kind of window, and some samplers for most."""
    ds = create(varied())
    found: dict[str, Any] = {}
    every = samplers(ds)
    for (window, w), (sampler, s), seed in itertools.product(WINDOWS.items(), every.items(), SEEDS):
        if quick and window != "Slice 4 padded" and (seed or (window != "Transition" and sampler not in SOME)):
            continue
        found[f"{window}, {sampler}, seed {seed}"] = told(_loader(ds, w, s, seed), SAMPLES)
    for name, loader in itertools.chain(_options(ds), _mixtures(ds)):
        found[name] = told(loader, 450)
    for window, w in WINDOWS.items():
        batch = _flat(next(iter(_loader(ds, w, Uniform()))))
        found[f"fields of {window}"] = {name: f"{v.dtype}{list(v.shape)}" for name, v in batch.items()}
    found.update(_ranks(ds, every))
    found.update(_online(ds))
    found.update(_resumed(ds, every))
    return found


def _loader(ds: Any, window: Window, sampler: Sampler, seed: int = 0, **options: Any) -> Loader:
    extra = tuple(name for name in EXTRA if name not in sampler.gives)
    how = {"fields": [..., *extra], "backend": "numpy", "dtype": None, "seed": seed} | options
    return Loader(ds, how.pop("size", BATCH), window=window, sampler=sampler, **how)


def told(loader: Loader, samples: int) -> dict[str, Any]:
    """What the first ``samples`` hold, of as many passes as it takes."""
    batches: list[dict[str, np.ndarray]] = []
    missing = samples
    while missing > 0:
        for batch in itertools.islice(loader, -(-missing // BATCH)):
            batches.append(_flat(batch))
            missing -= len(batches[-1]["episode"])
            if "weight" in batches[-1]:
                window = batches[-1]["window"]
                loader.update_priorities(batch, (window.reshape(len(window), -1)[:, 0] % 11 + 1) / 4.0)
    return summary(batches)


def summary(batches: list[dict[str, np.ndarray]]) -> dict[str, Any]:
    """Digests of batches, and the first numbers of each kind."""
    first = batches[0]
    kinds: dict[str, list[str]] = {"rows": [], "weights": [], "values": []}
    for name in sorted(first):
        top = "mask" if name.startswith("mask") else name
        kinds["rows" if top in ROWS else "weights" if top in WEIGHTS else "values"].append(name)
    clear = [name for name in ("episode", "step", "source", "probability") if name in first]
    runs = itertools.groupby(len(b["episode"]) for b in batches)
    return {
        "batches": " ".join(f"{sum(1 for _ in run)}*{size}" for size, run in itertools.islice(runs, 4)),
        " ".join(clear): ", ".join(" ".join(str(_plain(first[n][k])) for n in clear) for k in range(6)),
        **{kind: digest(*(b[n] for b in batches for n in names)) for kind, names in kinds.items()},
    }


def _plain(value: np.ndarray) -> Any:
    one = np.ravel(value)[0] if value.size else None
    return round(float(one), 6) if value.dtype.kind == "f" else int(one) if one is not None else None


def _flat(batch: Mapping[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    out: dict[str, np.ndarray] = {}
    for name, value in batch.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{prefix}{name}/")
        else:
            out[prefix + name] = np.asarray(value)
    return out


def _options(ds: rlds_cli.Dataset) -> Iterator[tuple[str, Loader]]:
    """Columns that are computed, transforms, other anchors and selections."""
    some = ds.select(where="length >= 4")
    every = ("previous/action", "previous/reward", "text", "info/step", "next/qpos")
    yield (
        "anchors steps",
        _loader(ds, Transition(anchors="steps"), Shuffled(), fields=["observation", "action", *EXTRA]),
    )
    yield "other columns", _loader(ds, Transition(), Shuffled(), fields=[..., *EXTRA, *every, "next/action"])
    yield "a slice's other columns", _loader(ds, Slice(3, after=2), Uniform(), fields=[..., *EXTRA, *every])
    yield "pairs", _loader(ds, Slice(3), Pairs())
    yield "pairs of one end", _loader(ds, Slice(3, after=2), Pairs(by="end"), seed=SEEDS[1])
    yield "a selection", _loader(some, Slice(3), Uniform())
    yield "a split", _loader(ds.split(0.5, 0.5, seed=3)[1], Transition(), Shuffled())
    yield "to go", _loader(ds, Slice(3, after=2), Uniform(), fields=[..., *EXTRA, ReturnToGo(gamma=0.5, scale=0.5)])
    for horizon in ("uniform", "final", "episode", 2):
        goals = Goals("goal", current=0.25, future=0.5, random=0.25, horizon=horizon)
        yield f"goals {horizon}", _loader(ds, Transition(), Uniform(), fields=[..., *EXTRA, goals])
    goals = Goals("goal", gamma=0.5)
    yield "goals geometric", _loader(ds, Slice(3, after=2), Shuffled(), fields=[..., *EXTRA, goals])
    yield "reward", _loader(ds, Transition(), Uniform(), transform=(Reward(2.0, 0.5), Clip("action", 0.5)))
    span = Normalize(ds, ["action"], mode="range")
    yield "normalised", _loader(ds, Transition(), Uniform(), transform=span)
    yield "float32", _loader(ds, Transition(), Shuffled(), dtype="float32")
    yield "float16", _loader(ds, Slice(4, before=2, after=3), Shuffled(), dtype="float16")
    yield "torch", _loader(ds, Slice(4, before=2, after=3), Shuffled(), backend="torch")
    yield "read ahead", _loader(ds, Transition(), Shuffled(), prefetch=2)
    yield "some steps", _loader(ds, Transition(), Shuffled(), steps=3)


def _mixtures(ds: rlds_cli.Dataset) -> Iterator[tuple[str, Loader]]:
    """Constant weights, exact and drawn; weights by size and by step; fields that differ."""
    long, short = ds.select(where="length >= 5"), ds.select(where="length < 4")
    two = {"long": long, "short": short}
    shares = {"long": 3, "short": 1}

    def by_step(step: int) -> dict[str, float]:
        return {"long": 1.0, "short": float(step % 3)}

    def mixed(mixture: Mixture, window: Window, sampler: Sampler, **how: Any) -> Loader:
        return _loader(mixture, window, sampler, fields=[..., *EXTRA[:3], "source"], **how)

    yield "mixture 3:1", mixed(Mixture(two, shares), Transition(), Uniform())
    yield "mixture 3:1 shuffled", mixed(Mixture(two, shares), Slice(3), Shuffled(), seed=SEEDS[1])
    yield "mixture by size", mixed(Mixture(two), Transition(), Shuffled())
    yield "mixture drawn", mixed(Mixture(two, shares, exact=False), Transition(), Uniform())
    yield "mixture by step", mixed(Mixture(two, by_step), Transition(), Shuffled())
    three = {"a": long, "b": Member(short, transform=Reward(2.0)), "c": ds}
    yield "mixture of three", mixed(Mixture(three, {"a": 1, "b": 2, "c": 4}), Slice(2, after=1), Sequential())
    wide = [{"observation": np.arange(10.0).reshape(5, 2), "action": np.ones((4, 3)), "next": {"truncated": True}}]
    other = rlds_cli.create("local/wide", wide, force=True)
    renamed = {"a": Member(long, rename={"info/step": "info/number"}), "b": other}
    apart = Mixture(renamed, {"a": 1, "b": 1}, pad={"action": 4, "observation": 3}, missing="zero")
    yield "mixture that differs", mixed(apart, Transition(), Uniform())


def _online(ds: rlds_cli.Dataset) -> Iterator[tuple[str, Any]]:
    """Mixtures of which one member grows, is empty at first and has priorities; their logs are given."""
    numbers = []
    with rlds_cli.writer("local/online", like=ds) as w:
        for k in range(4):
            w.add_episodes(e.plain() for e in varied()[20 * k : 20 * k + 15 * (k > 0)])
            numbers.append(w.commit())
    log = np.array([[180 * k, number] for k, number in enumerate(numbers)])
    long, extra = ds.select(where="length >= 5"), (*EXTRA[:2], "source")
    members = {"long": long, "online": Member("local/online", sampler=Prioritized(0.5))}
    for name, weights in {"2:1": {"long": 2, "online": 1}, "by size": "size"}.items():
        loader = _loader(Mixture(members, weights), Slice(3), Uniform(), live=log, fields=[..., *extra])
        yield f"live mixture {name}", told(loader, 450)
    weights = Anneal({"long": 1, "online": 0}, {"long": 1, "online": 2}, steps=6)
    annealed = Mixture({"long": long, "online": "local/online"}, weights)
    for rank in range(2):
        loader = _loader(annealed, Transition(), Uniform(), live=log, fields=[..., *extra], rank=rank, world_size=2)
        yield f"rank {rank} of 2, live mixture annealed", told(loader, 225)


def _ranks(ds: rlds_cli.Dataset, every: dict[str, Sampler]) -> Iterator[tuple[str, Any]]:
    for name in ("Uniform", "Shuffled", "Shuffled whole batches", "Weighted by episode"):
        for rank in range(3):
            loader = _loader(ds, Slice(3), every[name], size=120, rank=rank, world_size=3)
            yield f"rank {rank} of 3, {name}", told(loader, 240)
    mixture = Mixture({"a": ds.select(where="length >= 5"), "b": ds}, {"a": 2, "b": 1})
    for rank in range(2):
        loader = _loader(mixture, Transition(), Uniform(), size=100, rank=rank, world_size=2, fields=[..., *EXTRA[:3]])
        yield f"rank {rank} of 2, mixture", told(loader, 200)
    for weights in ({"a": 1, "b": 1}, {"a": 1, "b": 2, "c": 3}):
        dealt = Mixture(
            {name: ds.select(episodes=ds.episodes["length"] > k) for k, name in enumerate(weights)}, weights
        )
        for rank in range(2):
            loader = _loader(dealt, Transition(), Uniform(), size=50, rank=rank, world_size=2, fields=[..., *EXTRA[:3]])
            yield f"rank {rank} of 2, mixture of {len(weights)} dealt", told(loader, 200)


def _resumed(ds: rlds_cli.Dataset, every: dict[str, Sampler]) -> Iterator[tuple[str, Any]]:
    """After three batches: what a loader that loads the state gives, and what it gives after `seek`."""
    mixture = Mixture({"a": ds.select(where="length >= 5"), "b": ds}, lambda step: {"a": 1, "b": step + 1})
    cases: list[tuple[str, Any, Sampler, tuple[str, ...]]] = [
        (name, ds, every[name], EXTRA)
        for name in ("Uniform", "Shuffled", "Shuffled in blocks", "Weighted by step", "Prioritized behind")
    ]
    cases.append(("mixture", mixture, Shuffled(), EXTRA[:3]))
    for name, of, sampler, extra in cases:
        names = tuple(e for e in extra if e not in sampler.gives)
        before, after, sought = (_loader(of, Slice(3), sampler, fields=[..., *names]) for _ in range(3))
        for batch in itertools.islice(before, 3):
            if isinstance(sampler, Prioritized):
                before.update_priorities(batch, np.arange(BATCH) % 5 + 1.0)
        state = before.state_dict()
        after.load_state_dict(state)
        yield f"resumed, {name}", told(after, 300)
        yield f"state of {name}", {key: _shown(value) for key, value in state.items()}
        if not isinstance(sampler, Prioritized):
            sought.seek(9)
            yield f"sought, {name}", told(sought, 300)


def _shown(value: Any) -> Any:
    """A value of a state: in clear where it is short."""
    if isinstance(value, Mapping):
        return {str(k): _shown(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(v) for v in value] if len(value) < 20 else f"{type(value).__name__} of {len(value)}"
    if hasattr(value, "shape"):
        array = np.asarray(value)
        return f"{type(value).__name__} {array.dtype}{list(array.shape)} {digest(array)}"
    return value
