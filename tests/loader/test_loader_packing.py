import numpy as np
import pytest
from loader_data import create, episode

from rlds_cli.loader import Loader, Shuffled, Slice, Transition
from rlds_cli.loader.storage import blocks

EPISODES = [
    episode(0, 9),
    episode(1, 1, observed=False),
    episode(2, 30, end="truncated", inner=(3, 4)),
    episode(3, 5, observed=False, end="truncated"),
]


@pytest.fixture(params=["memmap", "zarr"])
def ds(home, request):
    return create(EPISODES, storage=request.param)


@pytest.fixture
def packed(monkeypatch):
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)


def everything(ds, **options):
    options = {"sampler": Shuffled(), "backend": "numpy", "fields": [..., "episode", "step"], **options}
    loader = Loader(ds, 8, **options)
    return loader, list(loader)


@pytest.mark.thorough
@pytest.mark.sampled(7)
@pytest.mark.parametrize("dtype", [None, "float32", "float16"])
@pytest.mark.parametrize("anchors", ["transitions", "steps"])
def test_packed_rows_hold_what_the_episodes_do(ds, packed, dtype, anchors):
    loader, batches = everything(ds, dtype=dtype, window=Transition(anchors=anchors))
    assert ("packed rows" in loader.describe()) == (ds.encoding == "memmap")
    seen = 0
    for batch in batches:
        for i, (e, t) in enumerate(zip(batch["episode"], batch["step"], strict=True)):
            known, cast = EPISODES[e], lambda x: np.asarray(x).astype(dtype or np.asarray(x).dtype)
            assert np.array_equal(batch["observation"][i], cast(known.observation[t]))
            assert np.array_equal(batch["action"][i], cast(known.action[t]))
            assert batch["next/reward"][i] == cast(known.reward[t])
            assert batch["next/terminated"][i] == known.terminated[t]
            assert batch["next/truncated"][i] == known.truncated[t]
            assert batch["next/done"][i] == (known.terminated[t] or known.truncated[t])
            if anchors == "transitions":
                assert np.array_equal(batch["next/observation"][i], cast(known.next_observation(t)))
            seen += 1
    assert seen == sum(e.length if anchors == "steps" else e.num_transitions for e in EPISODES)


@pytest.mark.thorough
@pytest.mark.parametrize("window", [Transition(), Transition(3), Slice(4, after=3, fill="zero")])
def test_batches_of_a_run_are_contiguous_and_share_no_memory(home, packed, window):
    """Neither the fields of a batch nor the batches whose samples are drawn together."""
    loader, batches = everything(create(EPISODES), window=window)
    assert loader.reader.batches_at_once(8) > 3 and len(batches) > 3
    arrays = [x for batch in batches for _, x in batch.leaves()]
    assert all(x.flags.c_contiguous and x.flags.writeable for x in arrays)
    assert not any(np.shares_memory(x, y) for i, x in enumerate(arrays) for y in arrays[:i])
    owners = [{id(x if x.base is None else x.base) for _, x in batch.leaves()} for batch in batches]
    assert sum(map(len, owners)) == len(set().union(*owners)), "a batch that is kept keeps the memory of another"


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", None])
def test_a_tensor_of_a_batch_has_its_memory_to_itself(home, packed, dtype):
    """A batch that is kept keeps no other's memory."""
    loader = Loader(create(EPISODES), 8, sampler=Shuffled(), dtype=dtype)
    assert loader.reader.batches_at_once(8) > 3
    tensors = [x for batch in loader for _, x in batch.leaves()]
    assert all(x.is_contiguous() and x.untyped_storage().nbytes() == x.nbytes for x in tensors)
    assert len({x.untyped_storage().data_ptr() for x in tensors}) == len(tensors)


@pytest.mark.thorough
def test_tensors_may_be_changed_in_place(home, packed):
    ds = create(EPISODES)
    loader = Loader(ds, 8, sampler=Shuffled())
    first = [b["observation"].clone() for b in loader]
    loader.set_epoch(0)
    for batch, before in zip(loader, first, strict=True):
        batch["observation"].mul_(2)
        assert (batch["observation"] == 2 * before).all()
        batch["next", "reward"].zero_()
    loader.set_epoch(0)
    for batch, before in zip(loader, first, strict=True):  # the dataset is as it was
        assert (batch["observation"] == before).all()


@pytest.mark.thorough
def test_only_some_fields_and_none_after(home, packed):
    ds = create(EPISODES)
    batch = next(iter(Loader(ds, 64, fields=["action", "next/done", "index"], backend="numpy", dtype=None)))
    rows = np.concatenate([e.action[: e.num_transitions] for e in EPISODES])
    done = np.concatenate([(e.terminated | e.truncated)[: e.num_transitions] for e in EPISODES])
    assert np.array_equal(batch["action"], rows[batch["index"]])
    assert np.array_equal(batch["next/done"][:, 0], done[batch["index"]])


@pytest.mark.thorough
def test_small_data_and_longer_windows_are_read_from_their_columns(home):
    ds = create(EPISODES)
    assert "packed" not in Loader(ds, 8).describe()


def test_where_nothing_can_be_written_memory_is_taken_or_columns_read(home, packed, monkeypatch):
    ds = create(EPISODES)
    (home / "packed").write_text("in the way")
    loader, batches = everything(ds)
    assert "private memory" in loader.describe()
    none, plain = everything(ds, memory=0)
    assert "no packed rows" in none.describe() and "memory map" in none.describe()
    for a, b in zip(batches, plain, strict=True):
        assert all(np.array_equal(x, b[name]) for name, x in a.leaves())


@pytest.mark.thorough
def test_n_step_transitions_are_as_ever(home, packed):
    ds = create(EPISODES)
    for batch in everything(ds, window=Transition(3, 0.9), dtype=None)[1]:
        for i, (e, t) in enumerate(zip(batch["episode"], batch["step"], strict=True)):
            total, k = EPISODES[e].n_step(t, 3, 0.9)
            assert batch["next/reward"][i, 0] == pytest.approx(total)
            assert np.array_equal(batch["next/observation"][i], EPISODES[e].next_observation(t + k - 1))
