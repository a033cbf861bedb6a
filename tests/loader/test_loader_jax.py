"""Batches of JAX arrays are those of NumPy, and go into compiled functions as they are."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from frames_data import film
from loader_data import create, episode

import rlds_cli
from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader import Goals, Loader, Normalize, Offsets, Reward, Sequential, Shuffled, Slice, Transition, Uniform

jax: Any
jnp: Any


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import JAX for these tests, and not in each process that collects them."""
    global jax, jnp
    jax = pytest.importorskip("jax")
    jnp = jax.numpy


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rlds_cli.Dataset]:
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield create([episode(k, 20 + k, observed=k % 2 == 0, inner=(2,)) for k in range(6)])


@pytest.fixture
def wide() -> Iterator[None]:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def load(ds: rlds_cli.Dataset, size: int = 4, **options: Any) -> Loader:
    return Loader(ds, size, **{"backend": "jax", "fields": [..., "episode", "step"], **options})


NARROW = {"float64": "float32", "int64": "int32"}


def check_equal(got: Any, expected: Any) -> None:
    """As NumPy's batches, in JAX's dtypes."""
    assert type(got) is type(expected) is Batch and got.names() == expected.names()
    for (name, x), (_, y) in zip(got.leaves(), expected.leaves(), strict=True):
        if y.dtype == object:
            assert isinstance(x, np.ndarray) and x.tolist() == y.tolist()
        else:
            assert isinstance(x, jax.Array), name
            assert x.dtype.name == (y.dtype.name if jax.config.jax_enable_x64 else NARROW.get(y.dtype.name, y.dtype))
            assert np.array_equal(np.asarray(x), y.astype(x.dtype), equal_nan=y.dtype.kind == "f"), name


# -- the same batches


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": Transition(3), "sampler": Shuffled()},
        {"window": Slice(4, before=2, after=3, fill="zero"), "sampler": Shuffled(), "fields": [..., "episode", "text"]},
        {"window": Offsets({"observation": (-1, 0)}), "sampler": Sequential(), "dtype": None},
        {"transform": Reward(2.0, 1.0), "dtype": "float16", "prefetch": 2},
        {"rank": 1, "world_size": 2, "sampler": Shuffled(), "steps": 20},
        {"fields": ["text"]},
    ],
)
def test_the_batches_of_numpy(ds: rlds_cli.Dataset, options: Any) -> None:
    made, expected = load(ds, **options), load(ds, backend="numpy", **options)
    for a, b in itertools.islice(zip(made, expected, strict=True), 20):
        check_equal(a, b)
    assert made.state_dict() == expected.state_dict()


@pytest.mark.thorough
def test_64_bits_where_jax_has_them(ds: rlds_cli.Dataset, wide: None) -> None:
    for options in ({"dtype": "float64"}, {"dtype": None}, {}):
        for a, b in itertools.islice(zip(load(ds, **options), load(ds, backend="numpy", **options), strict=True), 5):
            check_equal(a, b)
    assert next(iter(load(ds)))["step"].dtype == np.int64


def test_the_rule_for_64_bits(ds: rlds_cli.Dataset) -> None:
    with pytest.raises(InvalidArgument, match="JAX is set to 32 bits") as e:
        load(ds, dtype="float64")
    assert "jax_enable_x64" in str(e.value)
    made = [{"observation": np.array([[1], [2**31 - 1], [5]]), "action": np.array([[2**31], [0]])}]
    large = rlds_cli.create("local/large", made)
    kept = next(iter(load(large, 2, sampler=Sequential(), fields=("observation",))))["observation"]
    assert kept.dtype == np.int32 and kept.tolist() == [[1], [2**31 - 1]]
    with pytest.raises(InvalidArgument, match=r"action: values up to 2,147,483,648 do not fit int32"):
        next(iter(load(large, 2, sampler=Sequential())))


def test_bfloat16(ds: rlds_cli.Dataset) -> None:
    b, exact = (next(iter(load(ds, dtype=dtype))) for dtype in ("bfloat16", "float32"))
    assert b["observation"].dtype == jnp.bfloat16 and b["next", "terminated"].dtype == bool
    np.testing.assert_allclose(np.asarray(b["observation"], np.float32), exact["observation"], rtol=2**-8)
    assert b.numpy()["observation"].dtype == np.float32 and b.sarsd()[4].dtype == jnp.bfloat16


@pytest.mark.thorough
def test_frames(home: Any) -> None:
    shots = film([7, 9])
    for a, b in zip(load(shots, sampler=Shuffled()), load(shots, sampler=Shuffled(), backend="numpy"), strict=True):
        check_equal(a, b)


@pytest.mark.thorough
def test_a_field_of_no_width() -> None:
    made = [{"observation": np.zeros((5, 0)), "action": np.ones((4, 1)), "next": {"reward": np.ones(4)}}]
    b = next(iter(load(rlds_cli.create("local/blind", made), 3)))
    assert b["observation"].shape == b["next", "observation"].shape == (3, 0) and b["action"].shape == (3, 1)


@pytest.mark.thorough
def test_batches_are_independent_of_each_other(ds: rlds_cli.Dataset) -> None:
    """What one gather gave is not written over by the next."""
    kept = [b for b, _ in zip(load(ds, 32, seed=4), range(40), strict=False)]
    for a, b in zip(kept, load(ds, 32, seed=4, backend="numpy"), strict=False):
        check_equal(a, b)


def test_devices(ds: rlds_cli.Dataset) -> None:
    cpu = jax.devices("cpu")[0]
    for device in ("cpu", "cpu:0", cpu):
        assert next(iter(load(ds, device=device)))["observation"].devices() == {cpu}
    for wrong in ("tpu", "cpu:99", "gpu:x"):
        with pytest.raises(InvalidArgument, match="JAX sees no such device"):
            load(ds, device=wrong)
    with pytest.raises(InvalidArgument, match=r"neither a jax.Device nor text"):
        load(ds, device=7)


def test_no_dataloader(ds: rlds_cli.Dataset) -> None:
    with pytest.raises(InvalidArgument, match="as_torch"):
        load(ds).as_torch()


# -- pytrees


@pytest.mark.thorough
def test_a_batch_is_a_pytree_of_jax(ds: rlds_cli.Dataset) -> None:
    b = next(iter(load(ds)))
    doubled = jax.tree.map(lambda x: x.shape, b, is_leaf=lambda x: isinstance(x, jax.Array))
    assert type(doubled) is Batch and type(doubled["next"]) is Batch and doubled.names() == b.names()
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(b)] == [
        "".join(f"['{part}']" for part in name.split("/")) for name in b.names()
    ]
    summed = jax.jit(lambda batch: jax.tree.map(lambda x: x.astype(float).sum(), batch))(b)
    assert type(summed) is Batch and summed.names() == b.names()
    np.testing.assert_allclose(summed["next", "reward"], np.asarray(b["next", "reward"]).sum(), rtol=1e-5)
    s, a, r, s2, d = jax.jit(lambda batch: batch.sarsd())(b)
    assert s.shape == s2.shape == (4, 3) and a.shape == (4, 2) and r.shape == d.shape == (4, 1)
    assert d.dtype == r.dtype == np.float32 and np.array_equal(d, np.asarray(b["next", "terminated"]))


@pytest.mark.thorough
def test_compiled_functions_compile_once(ds: rlds_cli.Dataset) -> None:
    traced = []

    @jax.jit
    def update(batch: Batch) -> Any:
        traced.append(batch.names())
        return batch["observation"].mean() + batch["next", "reward"].mean()

    for batch in itertools.islice(load(ds), 50):
        update(batch)
    assert len(traced) == 1


@pytest.mark.thorough
def test_goals_in_a_compiled_update(ds: rlds_cli.Dataset) -> None:
    """OGBench's value and actor goals, as a script has them."""
    extra = (Goals("value_goal", current=0.2, future=0.5, random=0.3), Goals("actor_goal", horizon="uniform"))
    loader = load(ds, 16, fields=[..., *extra])

    @jax.jit
    def update(state: Any, batch: Batch, reward: Any) -> Any:
        value = (batch["observation"] * batch["value_goal"]).sum(-1, keepdims=True) * state
        return state - 0.01 * jnp.mean((value - reward) * batch["actor_goal"].sum(-1, keepdims=True))

    state = jnp.float32(0.1)
    for batch in itertools.islice(loader, 20):
        state = update(state, batch, reward=(batch["value_goal_distance"] == 0) - 1.0)
    assert np.isfinite(state)
    expected = next(iter(load(ds, 16, fields=[..., *extra], backend="numpy")))
    check_equal(next(iter(load(ds, 16, fields=[..., *extra]))), expected)


def test_a_batch_is_a_pytree_of_torch(ds: rlds_cli.Dataset) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils import _pytree

    b = next(iter(Loader(ds, 4)))
    doubled = _pytree.tree_map(lambda x: x * 2, b)
    assert type(doubled) is Batch and doubled.names() == b.names()
    assert torch.equal(doubled["next", "reward"], b["next", "reward"] * 2)
    norms = torch.vmap(lambda row: row["observation"].norm() + row["next"]["reward"].sum())(b)
    assert torch.allclose(norms, b["observation"].norm(dim=-1) + b["next", "reward"][:, 0])


def test_batches_of_numpy_are_pytrees_too(ds: rlds_cli.Dataset) -> None:
    b = next(iter(load(ds, backend="numpy")))
    assert type(jax.tree.map(lambda x: x + 1, b)) is Batch
    assert jax.jit(lambda batch: batch["observation"].sum())(b).shape == ()


# -- batches by themselves


def test_the_methods_of_a_batch(ds: rlds_cli.Dataset) -> None:
    b = next(iter(load(ds, transform=[Normalize(ds), lambda batch: batch.map(lambda x: x)])))
    arrays = b.numpy()
    assert all(isinstance(x, np.ndarray) and x.flags.writeable for _, x in arrays.leaves())
    assert arrays["next", "observation"].tolist() == b["next", "observation"].tolist()
    assert b.clone().names() == b.copy().names() == b.names()
    with pytest.raises(InvalidArgument, match="gives torch tensors"):
        b.to("cpu")
    assert "float32[4, 3]" in repr(b)


def test_jax_is_imported_by_nobody_else() -> None:
    code = (
        "import sys, rlds_cli; from rlds_cli.loader import Loader; from rlds_cli.dataset.batch import Batch;"
        "assert not {'jax', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_samplers_without_a_seed_of_their_own(ds: rlds_cli.Dataset) -> None:
    """JAX's own keys play no part: the order is the loader's."""
    a, b = (next(iter(load(ds, sampler=Uniform(by="episode"), seed=s))) for s in (1, 2))
    assert not np.array_equal(a["step"], b["step"])
