"""The shapes of scalars in batches: floats, rewards and flags are [B, 1], so that the product of two of them is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.dataset import Dataset
from rlds_cli.loader import (
    Episode,
    Goals,
    Loader,
    Member,
    Mixture,
    Normalize,
    Offsets,
    ReturnToGo,
    Slice,
    Transition,
)

FLOATS = ("observation/height", "action/torque", "info/speed", "next/bonus", "next/info/cost")
OTHERS = ("action/gear", "info/lap", "info/wet", "text")
AFTER = ("next/observation/height",)


def made(number: int, steps: int = 6) -> dict[str, Any]:
    """An episode; every float says (episode, step) and which field it is of."""
    t = np.arange(steps + 1.0) + 100 * number
    return {
        "observation": {"height": t, "joints": np.stack([t, t], 1)},
        "action": {"torque": t[:-1].astype(np.float32) + 0.25, "gear": np.arange(steps) % 3},
        "info": {"speed": (t[:-1] + 0.5).astype(np.float16), "lap": np.arange(steps), "wet": np.arange(steps) > 2},
        "text": ["turn"] * steps,
        "next": {
            "reward": t[:-1].astype(np.float32),
            "bonus": t[:-1] + 0.75,
            "info": {"cost": (t[:-1] * 2).astype(np.float32)},
            "terminated": np.arange(steps) == steps - 1,
        },
    }


@pytest.fixture
def ds(home: object) -> Dataset:
    return rlds_cli.create("local/scalars", [made(0), made(1), made(2)])


def check(batch: Any, lead: tuple[int, ...], *, after: bool = True) -> None:
    for name in (*FLOATS, *(AFTER if after else ()), "next/reward", "next/done", "next/terminated"):
        assert batch[name].shape == (*lead, 1), name
    for name in OTHERS:
        assert batch[name].shape == lead, name
    assert (batch["next/reward"] + batch["next/bonus"] - batch["info/speed"]).shape == (*lead, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", None])
def test_windows_and_dtypes(ds: Dataset, dtype: str | None, backend: Any) -> None:
    for window, lead in (
        (Transition(), (4,)),
        (Transition(n_step=3), (4,)),
        (Slice(3, before=1, after=1, fill="zero"), (4, 3)),
        (Episode(), (2, 6)),
    ):
        loader = Loader(ds, lead[0], window=window, fields="all", dtype=dtype, backend=backend)
        check(next(iter(loader)), lead)
        assert "info/speed" in loader.describe()


@pytest.mark.thorough
def test_bfloat16_and_memory_on_a_device(ds: Dataset) -> None:
    check(next(iter(Loader(ds, 4, fields="all", dtype="bfloat16"))), (4,))
    check(next(iter(Loader(ds, 4, fields="all", memory="device", device="cpu"))), (4,))
    check(next(iter(Loader(ds, 4, fields="all", window=Slice(3), memory="device", device="cpu"))), (4, 3))


@pytest.mark.thorough
def test_values_are_those_of_the_step(ds: Dataset) -> None:
    extra = ("step", "episode")
    batch = next(iter(Loader(ds, 64, fields=["all", *extra], dtype=None, backend="numpy")))
    t = batch["step"] + 100.0 * batch["episode"]
    assert batch["step"].shape == batch["episode"].shape == (64,)
    for name, expected in (
        ("observation/height", t),
        ("next/observation/height", t + 1),
        ("action/torque", t + 0.25),
        ("info/speed", t + 0.5),
        ("next/bonus", t + 0.75),
        ("next/info/cost", 2 * t),
    ):
        assert batch[name][:, 0].tolist() == expected.tolist(), name


@pytest.mark.thorough
def test_stacks(ds: Dataset) -> None:
    window = Offsets({"info/speed": (-1, 0), "info/lap": (-1, 0), "observation": (-1, 0)})
    batch = next(iter(Loader(ds, 4, fields="all", window=window)))
    assert batch["info/speed"].shape == (4, 2, 1) and batch["info/lap"].shape == (4, 2)
    assert batch["observation/height"].shape == batch["next/observation/height"].shape == (4, 2, 1)
    assert batch["next/bonus"].shape == (4, 1) and batch["mask/info/speed"].shape == (4, 2)


@pytest.mark.thorough
def test_computed_columns(ds: Dataset) -> None:
    extra = (
        ReturnToGo(),
        Goals("goal", horizon="final", of="observation/height"),
        "previous/action",
        "next/action",
        "index",
        "probability",
    )
    for window, lead in ((Transition(), (4,)), (Slice(3), (4, 3))):
        batch = next(iter(Loader(ds, 4, window=window, fields=[..., *extra])))
        for name in ("return_to_go", "goal", "goal_distance", "previous/action/torque", "next/action/torque"):
            assert batch[name].shape == (*lead, 1), name
        for name in ("previous/action/gear", "next/action/gear", "index", "probability"):
            assert batch[name].shape == lead, name
        assert ((batch["goal_distance"] == 0) * batch["next/reward"]).shape == (*lead, 1)
        assert batch["goal_distance"].dtype == torch.int64


@pytest.mark.thorough
def test_mixtures(ds: Dataset) -> None:
    other = rlds_cli.create("local/others", [{**made(5), "weight": np.ones(6)}])
    loader = Loader(Mixture({"a": ds, "b": other}, missing="zero"), 6, fields="all")
    batch = next(iter(loader))
    check(batch, (6,))
    assert batch["weight"].shape == (6, 1) and batch["mask", "weight"].shape == (6,)
    renamed = Mixture(
        {"a": Member(ds, rename={"info/speed": "velocity"}), "b": Member(ds, rename={"info/speed": "velocity"})}
    )
    assert next(iter(Loader(renamed, 4, fields=("velocity",))))["velocity"].shape == (4, 1)


@pytest.mark.thorough
def test_growing_datasets_and_selections(ds: Dataset) -> None:
    with rlds_cli.writer("local/grows", like=ds) as w:
        w.add_episodes([made(0), made(1)])
        w.commit()
    check(next(iter(Loader("local/grows", 4, fields="all", live=True))), (4,))
    check(next(iter(Loader(ds.select(episodes=[1]), 4, fields="all"))), (4,))


@pytest.mark.thorough
def test_tensordicts_and_normalised_batches(ds: Dataset) -> None:
    loader = Loader(ds, 4, fields="all", transform=Normalize(ds, ["observation", "info/speed", "next/bonus"]))
    batch = next(iter(loader))
    check(batch, (4,))
    td = batch.tensordict()
    assert td.batch_size == (4,) and td["info", "speed"].shape == (4, 1) and td["info", "lap"].shape == (4,)


@pytest.mark.thorough
def test_batches_of_a_dataset(ds: Dataset) -> None:
    check(ds.episode(1), (6,))
    some = ds[2:7]
    assert some["observation/height"].shape == some["next/observation/height"].shape == (5, 1)
    assert some["action/torque"].shape == (5, 1) and some["action/gear"].shape == (5,)
    assert ds[3]["action/torque"].shape == (1,)
    arrays = ds.to_numpy(fields=["info/speed", "info/lap", "next/observation/height", "next/done"])
    shapes = {name: x.shape for name, x in arrays.items()}
    of_floats = dict.fromkeys(("info/speed", "next/observation/height", "next/done"), (18, 1))
    assert shapes == {**of_floats, "info/lap": (18,)}
    assert ds.column("info/speed").shape == (21,)


@pytest.mark.thorough
def test_episodes_of_a_dataset_make_it_again(ds: Dataset) -> None:
    """Their scalars are [T, 1], and they are stored as scalars again, changed or not."""
    assert rlds_cli.create("local/again", (ds.episode(k) for k in range(3))).fingerprint == ds.fingerprint
    changed = [ds.episode(k) for k in range(3)]
    for episode in changed:
        episode["info/speed"] = episode["info/speed"] * 2
    made_of = rlds_cli.create("local/changed", changed)
    assert made_of.schema == ds.schema
    assert made_of.column("info/speed")[:6].tolist() == (ds.column("info/speed")[:6] * 2).tolist()
    with rlds_cli.writer("local/appended", like=ds) as w:
        w.add_episodes([{**ds.episode(1)}])
        w.commit()
    assert rlds_cli.open_dataset("local/appended").column("info/speed")[:6].tolist() == [100.5 + t for t in range(6)]


def doubled(batch: Any) -> Any:
    assert batch["next/reward"].shape == batch["next/bonus"].shape == batch["info/speed"].shape
    batch["next/bonus"] = batch["next/reward"] * batch["next/bonus"]
    return batch


def flat(batch: Any) -> Any:
    batch["next/bonus"] = (batch["next/reward"] * batch["next/bonus"])[:, 0]
    batch["info/new"], batch["info/row"] = batch["next/bonus"], batch["next/reward"] * 1.0
    return batch


def of_window(batch: Any) -> Any:
    assert batch["info/speed"].shape == (*batch["mask"].shape, 1)
    return {"next": {"bonus": batch["next/reward"][:, 0] * batch["next/bonus"][:, 0]}}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("function", "unit"), [(doubled, "batch"), (doubled, "step"), (flat, "batch"), (of_window, "window")]
)
def test_functions_see_the_shapes_of_a_batch_and_may_return_either(ds: Dataset, function: Any, unit: Any) -> None:
    result = preprocess.run(ds, function, "doubled", unit=unit, **({"history": 0} if unit == "window" else {}))
    assert {n: f.shape for n, f in result.schema.items() if n in ds.schema} == {
        n: f.shape for n, f in ds.schema.items()
    }
    t = np.arange(6.0) + 100
    assert result.column("next/bonus")[7:13].tolist() == (t * (t + 0.75)).tolist()
    if function is flat:
        assert result.schema["info/new"].shape == () and result.schema["info/row"].shape == (1,)
