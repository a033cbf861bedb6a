"""Batches on a device: in one copy, or gathered there from columns that reside there. The CPU stands in for a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from frames_data import film
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import create, episode

import rlds_cli
from rlds_cli.errors import InvalidArgument, NeedsMemory
from rlds_cli.loader import (
    Clip,
    Episode,
    Goals,
    Loader,
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
from rlds_cli.loader.arrays import frameworks
from rlds_cli.loader.storage import device_memory, memory

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rlds_cli.Dataset]:
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield create([episode(k, 12 + k, observed=k % 2 == 0, inner=(2,)) for k in range(7)])


def load(ds: Any, size: int = 4, **options: Any) -> Loader:
    return Loader(ds, size, **{"device": "cpu", "memory": "device", **options})


def bits(x: torch.Tensor) -> bytes:
    return x.reshape(-1).clone().view(torch.uint8).numpy().tobytes()


def check_same(ds: Any, batches: int = 20, **options: Any) -> Loader:
    """Every batch, field by field and bit by bit, is that of the ordinary loader."""
    made, plain = load(ds, **options), load(ds, memory=None, device=None, **options)
    assert made.fields == plain.fields
    for a, b in itertools.islice(zip(made, plain, strict=True), batches):
        assert a.names() == b.names()
        for (name, x), (_, y) in zip(a.leaves(), b.leaves(), strict=True):
            if isinstance(y, np.ndarray):
                assert x.tolist() == y.tolist(), name
            else:
                assert x.dtype == y.dtype and x.shape == y.shape and x.is_contiguous(), name
                assert bits(x) == bits(y), name
    return made


# -- resident columns


@pytest.mark.thorough
@pytest.mark.parametrize("sampler", [Uniform(), Uniform(by="episode"), Shuffled(), Sequential(), Weighted("length")])
@pytest.mark.parametrize(
    "window",
    [
        Transition(),
        Transition(3, gamma=0.9),
        Slice(5),
        Slice(6, before=3, after=5, stride=2, fill="zero"),
        Offsets({"observation": (-2, 0, 1), "action": range(-1, 4)}),
        Offsets({"observation": (-1, 0), "action": (0, 5)}, fill="zero"),
        Episode(),
        Episode(bucket=3),
    ],
)
def test_the_batches_of_the_ordinary_loader(ds: rlds_cli.Dataset, window: Any, sampler: Any) -> None:
    check_same(ds, window=window, sampler=sampler, fields=[..., "episode", "step", "index", "text", "info"], seed=2)


@pytest.mark.thorough
def test_computed_columns_come_from_the_host(ds: rlds_cli.Dataset) -> None:
    extra = (
        "previous/action",
        "next/action",
        "previous/reward",
        ReturnToGo(0.9),
        Goals("goal", random=0.3, future=0.7),
    )
    loader = check_same(ds, window=Transition(), fields=[..., "step", "probability", "done", *extra])
    assert "observation" in loader.source.held and "goal" not in loader.source.held
    check_same(ds, window=Slice(4, after=3), fields=[..., *extra])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", None])
def test_dtypes(ds: rlds_cli.Dataset, dtype: str | None) -> None:
    check_same(ds, dtype=dtype, window=Slice(4, after=3, fill="zero"), transform=Normalize(ds))


@pytest.mark.thorough
def test_transforms(ds: rlds_cli.Dataset) -> None:
    halved = lambda batch: batch.map(lambda x: x / 2 if x.is_floating_point() else x)  # noqa: E731
    transform = [Normalize(ds), Reward(2.0, -1.0), Clip("observation", 1.5), halved]
    check_same(ds, transform=transform)
    check_same(ds, transform=transform, window=Transition(3))


@pytest.mark.thorough
def test_every_kind_of_number() -> None:
    kinds = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int64", "bool", "float16", "complex64")
    rng = np.random.default_rng(0)
    made = [
        {
            "observation": {k: rng.integers(0, 2 if k == "bool" else 100, (6, 2)).astype(k) for k in kinds},
            "action": np.zeros((5, 0)),
            "next": {"terminated": True},
        }
        for _ in range(3)
    ]
    check_same(rlds_cli.create("local/kinds", made), dtype=None, window=Slice(3))


@pytest.mark.thorough
def test_frames_and_text_are_read_as_ever() -> None:
    shots = film([9, 4, 12])
    loader = check_same(shots, window=Slice(4, after=3), sampler=Shuffled(), prefetch=2)
    assert loader.source.held >= {"action", "next/reward"} and "observation" not in loader.source.held


@pytest.mark.thorough
def test_compressed_datasets(ds: rlds_cli.Dataset) -> None:
    known = [episode(k, 12 + k) for k in range(3)]
    check_same(create(known, storage="zarr", ref="local/compressed"), sampler=Shuffled())


@pytest.mark.thorough
def test_ranks_resuming_and_priorities(ds: rlds_cli.Dataset) -> None:
    check_same(ds, sampler=Shuffled(), rank=1, world_size=2, steps=40, batches=40)
    loader, plain = load(ds, sampler=Shuffled()), load(ds, sampler=Shuffled(), memory=None)
    for each in (loader, plain):
        each.seek(13)
    assert loader.state_dict() == plain.state_dict()
    assert torch.equal(next(iter(loader))["observation"], next(iter(plain))["observation"])
    loaders = [load(ds, 8, sampler=Prioritized(), memory=memory) for memory in ("device", None)]
    for a, b in itertools.islice(zip(*loaders, strict=True), 20):
        assert torch.equal(a["observation"], b["observation"])
        for each, batch in zip(loaders, (a, b), strict=True):
            each.update_priorities(batch, batch["next", "reward"].abs())


def close(a: Any, b: Any) -> None:
    """The same fields of the same rows; chances and weights but for rounding."""
    assert a.names() == b.names()
    for (name, x), (_, y) in zip(a.leaves(), b.leaves(), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape and x.is_contiguous(), name
        assert torch.allclose(x, y, rtol=1e-6, atol=0) if name in ("probability", "weight") else torch.equal(x, y), name


@pytest.mark.parametrize(
    "window",
    [
        Transition(),
        Slice(5),
        Slice(4, after=3),
        Slice(6, before=3, after=5, stride=2, fill="zero"),
    ],
)
@pytest.mark.parametrize("lag", [0, 2])
def test_priorities_are_drawn_from_and_updated_on_the_device(
    ds: rlds_cli.Dataset, window: Any, lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By windows that never come to the host."""
    options: dict[str, Any] = {"window": window, "sampler": Prioritized(lag=lag), "seed": 5}
    options["fields"] = [..., "episode", "step", "index", "next/observed"]
    resident, plain = load(ds, 8, **options), load(ds, 8, memory=None, device=None, **options)
    monkeypatch.setattr("rlds_cli.loader.index.host", lambda x: pytest.fail("a copy to the host"))
    for a, b in itertools.islice(zip(resident, plain, strict=True), 20):
        close(a, b)
        priority = b["next", "reward"].reshape(8, -1)[:, 0].abs()
        resident.update_priorities(a, priority)
        plain.update_priorities(b, priority)


@pytest.mark.parametrize("window", [Transition(3, gamma=0.9), Offsets({"observation": (-2, 0, 1)}), Episode()])
def test_columns_that_the_host_makes_are_of_the_windows_drawn_on_the_device(ds: rlds_cli.Dataset, window: Any) -> None:
    options = {"window": window, "sampler": Prioritized(), "fields": [..., "index", ReturnToGo(0.9)]}
    resident, plain = load(ds, 8, **options), load(ds, 8, memory=None, device=None, **options)
    for a, b in itertools.islice(zip(resident, plain, strict=True), 20):
        close(a, b)
        for loader, batch in ((resident, a), (plain, b)):
            loader.update_priorities(batch, 1.0 + batch["index"].reshape(8, -1)[:, 0] % 7)


def test_states_go_from_host_to_device_and_back(ds: rlds_cli.Dataset) -> None:
    options: dict[str, Any] = {"sampler": Prioritized(lag=2), "fields": [..., "index"]}
    loaders = [load(ds, 8, memory=memory, **options) for memory in ("device", None)]
    for loader in loaders:
        for batch in itertools.islice(loader, 5):
            loader.update_priorities(batch, 1.0 + batch["index"].reshape(8, -1)[:, 0] % 7)
    crossed = [load(ds, 8, memory=memory, **options) for memory in (None, "device")]
    for loader, other in zip(crossed, loaders, strict=True):
        loader.load_state_dict(other.state_dict())
    for batches in itertools.islice(zip(*loaders, *crossed, strict=True), 10):
        for loader, batch in zip((*loaders, *crossed), batches, strict=True):
            close(batch, batches[1])
            loader.update_priorities(batch, 2.0 + batch["index"] % 5)


def test_a_priority_that_is_refused_changes_nothing(ds: rlds_cli.Dataset) -> None:
    loader = load(ds, 8, sampler=Prioritized())
    batch = next(iter(loader))
    before = loader.state_dict()["priorities"]["masses"]
    with pytest.raises(InvalidArgument, match=r"priority nan at place 3 of 8 \(window \d+\)"):
        loader.update_priorities(batch, torch.tensor([1, 2, 3, float("nan"), 5, 6, 7, 8]))
    with pytest.raises(InvalidArgument, match=r"priorities \[7\] for a batch of 8 samples"):
        loader.update_priorities(batch, torch.ones(7))
    assert torch.equal(loader.state_dict()["priorities"]["masses"], before)
    loader.update_priorities(batch, torch.ones(8, 1, requires_grad=True))


def test_batches_are_writable_and_apart(ds: rlds_cli.Dataset) -> None:
    """Neither the resident columns nor other batches are changed with a batch."""
    expected = [b.clone() for b in load(ds, memory=None, sampler=Sequential())]
    for batch, right in zip(load(ds, sampler=Sequential()), expected, strict=True):
        for (name, x), (_, y) in zip(batch.leaves(), right.leaves(), strict=True):
            assert torch.equal(x, y), name
            x.zero_()


@pytest.mark.thorough
@settings(max_examples=15)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=7), st.sampled_from([Transition(), Slice(3, after=2)]))
def test_selections_hold_their_own_rows(ds: rlds_cli.Dataset, chosen: list[int], window: Any) -> None:
    """In any order, some twice."""
    some = ds.select(episodes=chosen)
    loader = check_same(some, window=window, sampler=Shuffled(), fields=[..., "episode", "step"], batches=10)
    rows = sum(int(ds.episodes["length"][k]) + 1 for k in chosen)
    # observation 3 x 4 bytes (float32), action 2 x 4, reward 4, two flags
    assert loader.source.nbytes == rows * (12 + 8 + 4 + 2)


@pytest.mark.thorough
def test_columns_are_uploaded_in_tiles(ds: rlds_cli.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    for rows in (1, 20, 50):
        monkeypatch.setattr(device_memory, "TILE_ROWS", rows)
        check_same(ds, sampler=Shuffled(), window=Slice(4))


def test_what_describe_says(ds: rlds_cli.Dataset) -> None:
    text = load(ds, fields=[..., "step", "text"]).describe()
    lines = dict(line.split(maxsplit=1) for line in text.splitlines()[1:])
    assert lines["reading"].endswith("KiB on cpu") or lines["reading"].endswith(" B on cpu")
    assert lines["observation"] == "on the device, float64[3] to float32"
    assert lines["next/observation"] == "on the device, row after, float64[3] to float32"
    assert lines["text"] == "decoded at each gather" and lines["step"] == "computed"


# -- what cannot be


def test_what_does_not_fit_is_said_before(ds: rlds_cli.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "limit", lambda root=None: (2000, "a test"))
    with pytest.raises(
        NeedsMemory, match=r"observation, action, .* of local/known take 2\.\d KiB on cpu, of which"
    ) as e:
        load(ds)
    assert "memory=None" in str(e.value)
    assert next(iter(load(ds, fields=("action",)))) is not None


def test_where_it_cannot_be(ds: rlds_cli.Dataset) -> None:
    for options in ({"backend": "numpy", "device": None}, {"device": None}):
        with pytest.raises(InvalidArgument, match='memory="device" is for tensors on a device') as e:
            load(ds, **options)
        assert 'device="cuda"' in str(e.value)
    with pytest.raises(InvalidArgument, match="not for a Mixture"):
        load(Mixture({"a": ds, "b": ds}))


# -- one copy


def test_ship_is_the_same_in_one_block() -> None:
    rng = np.random.default_rng(0)
    values: dict[str, np.ndarray] = {
        "a": rng.standard_normal((5, 3)),
        "b": rng.integers(0, 2, 7).astype(bool),
        "c": rng.standard_normal((4, 2, 3)).astype(np.float32)[:, ::2],
        "d": rng.integers(0, 9, (3, 1)).astype(np.uint16),
        "empty": np.zeros((4, 0), np.float32),
        "number": np.array(3, np.int8),
        "e": np.arange(5) - 7,
    }
    moved = frameworks.ship(values, CPU)
    assert list(moved) == list(values)
    for name, x in values.items():
        assert moved[name].shape == x.shape and moved[name].is_contiguous()
        assert moved[name].dtype == torch.from_numpy(x.copy()).dtype
        assert moved[name].numpy().tolist() == x.tolist(), name
    blocks = {x.untyped_storage().data_ptr() for name, x in moved.items()}
    assert len(blocks) == 1
    ends = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for x in moved.values() if x.nbytes)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    assert all(x.data_ptr() % x.element_size() == 0 for x in moved.values())
    assert frameworks.ship({}, CPU) == {}


def test_another_device(ds: rlds_cli.Dataset) -> None:
    """``meta`` holds no values, and takes part in all but these."""
    batch = next(iter(load(ds, device="meta", memory=None, fields=[..., "step", "text"], transform=Normalize(ds))))
    assert batch["observation"].device.type == "meta" and batch["observation"].shape == (4, 3)
    assert batch["text"].dtype == object


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("where", [None, "device"])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_cuda(ds: rlds_cli.Dataset, where: Any, prefetch: int) -> None:
    options = {"window": Slice(4, after=3, fill="zero"), "sampler": Shuffled(), "fields": [..., "step", "text"]}
    made = load(ds, device="cuda", memory=where, prefetch=prefetch, transform=Normalize(ds), **options)
    plain = load(ds, device=None, memory=None, transform=Normalize(ds), **options)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for a, b in zip(made, plain, strict=True):
            for (name, x), (_, y) in zip(a.leaves(), b.leaves(), strict=True):
                if isinstance(y, torch.Tensor):
                    assert x.device.type == "cuda" and torch.allclose(x.cpu(), y), name
