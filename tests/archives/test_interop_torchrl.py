"""Datasets as TorchRL's own: what they give is compared with what was written, and with TorchRL's own buffers of it."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import random
import signal
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import frames_data
import numpy as np
import pytest

import rlds_cli
from rlds_cli.errors import (
    DatasetNotFound,
    InvalidArgument,
    PreprocessError,
    RldsError,
    UnknownDataset,
    WrongFingerprint,
)

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, at import
    data = pytest.importorskip("torchrl.data")
    from tensordict import TensorDict
    from torchrl.data import datasets
    from torchrl.data.replay_buffers import samplers

    from rlds_cli.interop import torchrl
    from rlds_cli.interop.torchrl import DatasetStorage, ReadOnly, RldsExperienceReplay, __main__

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Got conflicting batch_sizes")

# Episode k has observations 100 k + t, and the lengths, ends and final observations of docs/reference/ted.md.
LENGTHS, ENDS = (4, 3, 5, 1, 2), ("terminated", "truncated", "terminated", "", "terminated")
OBSERVED = (True, False, False, False, True)  # the final observation is recorded
# By hand: the last steps of episodes 1 and 3 have no next observation and did not terminate, so they are left out.
AT = [0, 1, 2, 3, 100, 101, 200, 201, 202, 203, 204, 400, 401]
AFTER = [1, 2, 3, 4, 101, 102, 201, 202, 203, 204, 204, 401, 402]  # 204 again: not recorded, and not needed
DONE = [0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1]
TERMINATED = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1]
KNOWN = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1]
EPISODE = [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 4, 4]
TED = ("observation", "action", "next", "done", "terminated", "truncated")


def episode(k: int) -> dict[str, Any]:
    steps, last = LENGTHS[k], np.arange(LENGTHS[k]) == LENGTHS[k] - 1
    return {
        "observation": 100 * k + np.arange(steps + OBSERVED[k], dtype=np.float32)[:, None],
        "action": 100 * k + np.arange(steps),
        "info": {"height": k + np.arange(steps) / 8},
        "mission": [f"{k}-{t}" for t in range(steps)],
        "next": {
            "reward": 1000.0 * k + np.arange(steps, dtype=np.float32),
            "terminated": last & (ENDS[k] == "terminated"),
            "truncated": last & (ENDS[k] == "truncated"),
        },
    }


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rlds_cli.Dataset]:
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield rlds_cli.create("local/known", [episode(k) for k in range(5)])


@pytest.fixture
def here(ds: rlds_cli.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset is in the home of the test."""
    monkeypatch.setenv("RLDS_HOME", str(ds.path.parents[2]))


def flat(td: Any, *key: str) -> list[Any]:
    return td[key].flatten().tolist()


def test_every_transition_is_what_was_written(ds: rlds_cli.Dataset) -> None:
    td = RldsExperienceReplay(ds)[:].to_tensordict()
    assert td.batch_size == (13,) and td.device == torch.device("cpu")
    assert flat(td, "observation") == AT and flat(td, "action") == AT
    assert flat(td, "next", "observation") == AFTER and flat(td, "next", "observed") == KNOWN
    assert flat(td, "next", "done") == DONE and flat(td, "next", "terminated") == TERMINATED
    assert not td["next", "truncated"].any()  # the truncated step is left out
    assert flat(td, "next", "reward") == [1000 * k + x % 100 for k, x in zip(EPISODE, AT, strict=True)]
    assert flat(td, "info", "height") == [k + x % 100 / 8 for k, x in zip(EPISODE, AT, strict=True)]
    assert flat(td, "episode") == EPISODE and list(td["mission"]) == [f"{x // 100}-{x % 100}" for x in AT]
    for flag in ("done", "terminated", "truncated"):
        assert td[flag].shape == td["next", flag].shape == (13, 1) and td[flag].dtype == torch.bool
        assert not td[flag].any()
    assert td["next", "reward"].shape == (13, 1) and td["observation"].dtype == torch.float32


def test_all_steps_without_next_observations(ds: rlds_cli.Dataset) -> None:
    td = RldsExperienceReplay(ds, anchors="steps")[:].to_tensordict()
    assert flat(td, "observation") == [100 * k + t for k in range(5) for t in range(LENGTHS[k])]
    assert "observation" not in td["next"].keys()  # noqa: SIM118
    # Cut episodes are truncated at their last step, as docs/reference/ted.md says.
    assert flat(td, "next", "done") == [t == LENGTHS[k] - 1 for k in range(5) for t in range(LENGTHS[k])]
    assert flat(td, "next", "truncated") == [
        k in (1, 3) and t == LENGTHS[k] - 1 for k in range(5) for t in range(LENGTHS[k])
    ]


def test_what_only_d4rls_class_has(ds: rlds_cli.Dataset) -> None:
    td = RldsExperienceReplay(ds, root_reward=True, next_info=True)[:].to_tensordict()
    assert flat(td, "reward") == [0.0 if x % 100 == 0 else 1000 * (x // 100) + x % 100 - 1 for x in AT]
    following = torch.tensor([k + (x % 100 + 1) / 8 for k, x in zip(EPISODE, AT, strict=True)], dtype=torch.float64)
    last = torch.tensor([x % 100 == LENGTHS[x // 100] - 1 for x in AT])
    assert torch.equal(td["next", "info", "height"].isnan(), last)
    assert torch.equal(td["next", "info", "height"][~last], following[~last])


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (slice(2, 6), AT[2:6]),
        (slice(None, None, -3), AT[::-3]),
        ([1, -1], [1, 401]),
        (range(4, 6), [100, 101]),
        (np.array([0, 5]), [0, 101]),
        (np.arange(13) % 2 == 0, AT[::2]),
        (5, [101]),
        (-1, [401]),
    ],
)
def test_indices(ds: rlds_cli.Dataset, index: Any, expected: list[int]) -> None:
    rb = RldsExperienceReplay(ds, fields=TED)
    assert flat(rb[index], "observation") == expected
    assert flat(rb.storage.get(index), "observation") == expected
    assert flat(rb[:][index], "observation") == expected and flat(rb[:]["next"][index], "reward")
    assert rb[:][index].batch_size == (() if isinstance(index, int) else (len(expected),))
    if not isinstance(index, slice):
        assert flat(rb[torch.as_tensor(index)], "observation") == expected


def test_indices_that_are_not_there(ds: rlds_cli.Dataset) -> None:
    rb = RldsExperienceReplay(ds, fields=TED)
    for index in (13, -14, [0, 13], np.ones(12, bool), np.array([0.5])):
        with pytest.raises(IndexError):
            rb.storage.get(index)


def test_contents_reads_a_field_when_it_is_asked_for(ds: rlds_cli.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    rb = RldsExperienceReplay(ds)
    read: list[str] = []
    column = type(rb._source).column
    monkeypatch.setattr(type(rb._source), "column", lambda self, name: read.append(name) or column(self, name))
    contents = rb[:]
    assert ("next", "observation") in contents.keys(True) and "observation: float32[13, 1]" in repr(contents)
    assert set(contents.keys(True, True)) == set(contents.to_tensordict().keys(True, True))
    read.clear()
    assert flat(contents, "next", "done") == DONE and rb["mission"][0] == "0-0" and rb["next", "done"].any()
    assert read == ["next/done", "mission", "next/done"]
    contents["twice"] = contents["observation"] * 2
    assert flat(contents[[1, 4]], "twice") == [2, 200] and "twice" not in rb[:].keys()  # noqa: SIM118
    again = pickle.loads(pickle.dumps(contents))
    assert flat(again, "next", "observation") == AFTER and flat(again, "twice") == [2 * x for x in AT]


def test_the_same_draws_as_torchrls_buffer(ds: rlds_cli.Dataset) -> None:
    stored = RldsExperienceReplay(ds, fields=TED)[:].to_tensordict()
    makes = {
        "random": samplers.RandomSampler,
        "each once": samplers.SamplerWithoutReplacement,
        "each once, full batches": lambda: samplers.SamplerWithoutReplacement(drop_last=True),
        "slices": lambda: samplers.SliceSampler(slice_len=2),
        "by flags": lambda: samplers.SliceSampler(slice_len=2, end_key=("next", "done")),
        "slices, each once": lambda: samplers.SliceSamplerWithoutReplacement(slice_len=2),
    }
    for name, make in makes.items():
        theirs = data.TensorDictReplayBuffer(
            storage=data.LazyTensorStorage(13), sampler=make(), batch_size=4, generator=torch.Generator().manual_seed(3)
        )
        theirs.extend(stored.clone())
        ours = RldsExperienceReplay(ds, 4, fields=TED, sampler=make(), generator=torch.Generator().manual_seed(3))
        for _ in range(4):
            mine, other = ours.sample(), theirs.sample()
            assert set(mine.keys(True, True)) == set(other.keys(True, True)), name
            assert all(torch.equal(mine[k], other[k]) for k in other.keys(True, True)), name


def test_slices_stay_within_an_episode(ds: rlds_cli.Dataset) -> None:
    for options in ({}, {"traj_key": "episode"}, {"end_key": ("next", "done")}):
        rb = RldsExperienceReplay(ds, 64, sampler=samplers.SliceSampler(slice_len=2, **options))
        x = rb.sample()["observation"].view(32, 2)
        assert torch.equal(x[:, 1], x[:, 0] + 1) and len(x[:, 0].unique()) > 4
    one = RldsExperienceReplay(ds.select(where="length == 5"), 4, sampler=samplers.SliceSampler(slice_len=4))
    assert all(one.sample()["observation"].flatten().diff().eq(1).all() for _ in range(20))  # none runs around the end


def test_sampling_options(ds: rlds_cli.Dataset) -> None:
    rb = RldsExperienceReplay(ds, 5, fields=TED, replacement=False)
    seen = sorted(x for batch in rb for x in flat(batch, "observation"))
    assert seen == AT and rb.sample(return_info=True)[1]["index"].shape == (5,)
    ahead = RldsExperienceReplay(ds, 5, fields=TED, sampler=samplers.SamplerWithoutReplacement(), prefetch=2)
    assert sorted(x for batch in ahead for x in flat(batch, "observation")) == AT
    slices = RldsExperienceReplay(ds, 6, num_slices=2, slice_len=None)
    assert slices.sample().batch_size == (6,)
    plain = RldsExperienceReplay(ds, 4, index=False, fields=TED)
    assert "index" not in plain.sample().keys() and "index" not in plain.sample(4).keys()  # noqa: SIM118
    changed = RldsExperienceReplay(ds, 4, fields=TED, transform=lambda td: td.set("more", td["observation"] + 0.5))
    batch = changed.sample()
    assert torch.equal(batch["more"], batch["observation"] + 0.5)
    assert flat(changed[:], "more") == [x + 0.5 for x in AT] and "more" not in changed.storage[:].keys()  # noqa: SIM118
    sequence = RldsExperienceReplay(ds, 3, fields=TED, sample_unit=data.replay_buffers.Sequence(length=2))
    assert sequence.sample().batch_size == (6,)


def test_batches_have_memory_of_their_own(ds: rlds_cli.Dataset) -> None:
    rb = RldsExperienceReplay(ds, 4, fields=TED)
    kept = [rb.sample() for _ in range(70)]
    copies = [td.clone() for td in kept]
    kept[0]["observation"].mul_(-1)
    assert all(bool((a == b).all()) for a, b in zip(kept[1:], copies[1:], strict=True))
    weight = torch.ones(1, requires_grad=True)
    loss = sum((td["observation"] * weight).sum() for td in kept)
    kept[1]["done"].fill_(True)  # another tensor of the same memory: autograd's copies of the others stay valid
    loss.backward()
    assert weight.grad is not None


def test_several_threads_read(ds: rlds_cli.Dataset) -> None:
    storage, expected = DatasetStorage(ds, fields=TED), torch.tensor(AT, dtype=torch.float32)

    def read(seed: int) -> bool:
        numbers = [torch.randint(13, (5,), generator=torch.Generator().manual_seed(seed + i)) for i in range(300)]
        made = [storage.get(n)["observation"] for n in numbers]
        return all(torch.equal(x[:, 0], expected[n]) for x, n in zip(made, numbers, strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(0, 4000, 1000)))


def test_trajectories(ds: rlds_cli.Dataset) -> None:
    rb = RldsExperienceReplay(ds, 3, split_trajs=True)
    td = rb[:].to_tensordict()
    assert td.batch_size == (4, 5) and len(rb) == 4  # episode 3 has no transition
    mask = torch.tensor([[t < n for t in range(5)] for n in (4, 2, 5, 2)])
    assert torch.equal(td["mask"], mask) and torch.equal(td["traj_ids"], torch.arange(4)[:, None] * mask)
    for key in (("observation",), ("next", "observation"), ("next", "done"), ("action",)):
        x = td[key].view(4, 5)
        flat_of = {"observation": AT, "action": AT, "done": DONE}[key[-1]] if key != ("next", "observation") else AFTER
        assert x[mask].tolist() == flat_of and not x[~mask].any()
    assert td["mission"][1] == ["1-0", "1-1", None, None, None]
    sample = rb.sample()
    assert sample.batch_size == (3, 5) and sample["index"].shape == (3, 5)
    assert torch.equal(sample["observation"], td["observation"][sample["index"][:, 0]])
    theirs = data.TensorDictReplayBuffer(storage=data.TensorStorage(td.exclude("mission")), batch_size=3)
    torch.manual_seed(1)
    expected = theirs.sample()
    torch.manual_seed(1)
    assert bool((rb.sample().exclude("mission") == expected).all())


def test_a_single_trajectory(ds: rlds_cli.Dataset) -> None:
    rb = RldsExperienceReplay(ds.select(where="length == 4"), split_trajs=True, fields=TED)
    assert rb[:].batch_size == (1, 4) and flat(rb[0], "observation") == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["memmap", "zarr", "growing"])
def test_every_kind_of_dataset(kind: str) -> None:
    def walk(k: int, steps: int) -> dict[str, Any]:
        pixels = np.random.default_rng(k).integers(0, 255, (steps + 1, 8, 8, 3)).astype(np.uint8)
        end = np.arange(steps) == steps - 1
        after = {"reward": np.ones(steps), "terminated": end, "truncated": end & False}
        return {
            "observation": {"pixels": pixels, "on": pixels[:, 0, 0, 0] > 99},
            "action": np.ones(steps),
            "next": after,
        }

    walks = [walk(k, 3 + k) for k in range(3)]
    if kind == "growing":
        for part in (walks[:2], walks[2:]):
            with rlds_cli.writer("local/kinds") as w:
                w.add_episodes(part)
        made = rlds_cli.open_dataset("local/kinds")
        before = RldsExperienceReplay(rlds_cli.open_dataset(f"local/kinds#v{made.version - 1}"))
        assert len(before) == 7
    else:
        made = rlds_cli.create("local/kinds", walks, storage=kind)
    rb = RldsExperienceReplay(made, 6)
    for name in ("pixels", "on"):
        seen = [w["observation"][name] for w in walks]
        assert np.array_equal(rb["observation", name].numpy(), np.concatenate([x[:-1] for x in seen]))
        assert np.array_equal(rb["next", "observation", name].numpy(), np.concatenate([x[1:] for x in seen]))
    td = rb.sample()
    assert torch.equal(td["next", "observation", "pixels"], rb[td["index"]]["next", "observation", "pixels"])
    assert rb.observation_spec["observation", "on"].dtype == torch.bool


def test_encoded_images_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    rb = RldsExperienceReplay(frames_data.film([3, 2]), 4, sampler=samplers.SliceSampler(slice_len=2))
    places, after = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1)), ((0, 1), (0, 2), (0, 3), (1, 1), (1, 2))
    for key, of in ((("observation",), places), (("next", "observation"), after)):
        np.testing.assert_array_equal(rb[:][key], [frames_data.decoded(*place) for place in of])
        assert rb.sample()[key].shape == (4, *frames_data.SHAPE)
    assert rb.observation_spec["observation"].dtype == torch.uint8
    decode, seen = type(rb.dataset).gather, list[int]()
    monkeypatch.setattr(type(rb.dataset), "gather", lambda ds, k, rows: seen.append(len(rows)) or decode(ds, k, rows))
    rb.sample()
    assert sum(seen) <= 8  # four observations and four next ones, and not for the sampler as well
    padded = RldsExperienceReplay(frames_data.film([3, 2]), split_trajs=True)[[1]]
    np.testing.assert_array_equal(padded["next", "observation"][0, 1], frames_data.decoded(1, 2))
    assert not padded["observation"][0, 2].any()


def test_buffers_of_torchrl_over_the_storage(ds: rlds_cli.Dataset, here: None) -> None:
    storage = DatasetStorage("local/known", fields=TED)
    assert len(storage) == 13 and set(
        flat(data.ReplayBuffer(storage=storage, batch_size=200).sample(), "action")
    ) == set(AT)
    both = data.OfflineToOnlineReplayBuffer(
        data.ReplayBuffer(storage=storage), online_capacity=10, offline_fraction=0.25, batch_size=8
    )
    both.extend(storage[:].to_tensordict()[:4].apply(lambda x: x + 5000 if x.dtype != torch.bool else x))
    x = both.sample()["observation"].flatten()
    assert (x < 5000).sum() == 2 and len(x) == 8
    by_id = data.OfflineToOnlineReplayBuffer(
        "rlds:local/known", online_capacity=10, batch_size=8, index=False, fields=TED
    )
    by_id.extend(storage[:].to_tensordict()[:4])
    assert by_id.sample().batch_size == (8,)
    ensemble = data.ReplayBufferEnsemble(
        RldsExperienceReplay(ds, fields=TED), data.ReplayBuffer(storage=storage), batch_size=6
    )
    assert ensemble.sample().batch_size == (2, 3)
    best = RldsExperienceReplay(ds, fields=(*TED, "episode")).query(data.traj.length == 5)
    assert [len(t) for t in best] == [5]


def test_checkpoints_name_the_dataset(ds: rlds_cli.Dataset, tmp_path: Path) -> None:
    def make(of: Any = ds) -> Any:
        return RldsExperienceReplay(
            of, 4, fields=TED, sampler=samplers.SamplerWithoutReplacement(), generator=torch.Generator().manual_seed(0)
        )

    rb = make()
    rb.sample()
    rb.dumps(tmp_path / "dump")
    state = rb.state_dict()
    expected = rb.sample()
    assert sum(f.stat().st_size for f in (tmp_path / "dump" / "storage").iterdir()) < 1000
    for restore in (lambda b: b.loads(tmp_path / "dump"), lambda b: b.load_state_dict(state)):
        other = make()
        restore(other)
        assert bool((other.sample() == expected).all())
        with pytest.raises(WrongFingerprint, match="local/known"):
            restore(make(ds.select(where="length > 2")))
    plain = data.ReplayBuffer(storage=data.LazyTensorStorage(13), sampler=samplers.SamplerWithoutReplacement())
    plain.extend(rb[:].to_tensordict())
    plain.dumps(tmp_path / "rows")
    with pytest.raises(WrongFingerprint, match="holds the rows of a buffer"):
        rb.loads(tmp_path / "rows")
    again = pickle.loads(pickle.dumps(make()))
    assert flat(again[:], "observation") == AT


@pytest.mark.parametrize(
    "checkpointer", ["FlatStorageCheckpointer", "NestedStorageCheckpointer", "H5StorageCheckpointer"]
)
def test_torchrls_compact_checkpoints_of_a_dataset(ds: rlds_cli.Dataset, checkpointer: str, tmp_path: Path) -> None:
    # Of episodes with final observations: TorchRL's forms have no place for next/observed.
    storage = DatasetStorage(ds.select(where="num_observed == length + 1"), fields=TED)
    data.ReplayBuffer(storage=storage, checkpointer=getattr(data, checkpointer)()).dumps(tmp_path / "dump")
    filled = data.ReplayBuffer(storage=data.LazyTensorStorage(6), checkpointer=getattr(data, checkpointer)())
    filled.loads(tmp_path / "dump")
    for key, value in storage[:].to_tensordict().items(True, True):
        assert torch.equal(filled[:][key], value), key


def test_nothing_is_written(ds: rlds_cli.Dataset) -> None:
    rb, before = RldsExperienceReplay(ds, 4, fields=TED), ds.fingerprint
    some = rb[:2].clone()
    for write in (
        lambda: rb.extend(some),
        lambda: rb.add(some[0]),
        lambda: rb.empty(),
        lambda: rb.__setitem__(0, some[0]),
        lambda: rb.set_("action", torch.zeros(13)),
        lambda: rb.set_at_("action", torch.zeros(1), 0),
        lambda: rb.update_(some),
        lambda: rb[:].set_("action", torch.zeros(13, dtype=torch.int64)),
        lambda: rb[:].set_at_(("next", "reward"), torch.zeros(1), 0),
        lambda: data.ReplayBuffer(storage=DatasetStorage(ds)).extend(some),
        lambda: data.ReplayBuffer(storage=DatasetStorage(ds)).empty(),
    ):
        with pytest.raises(ReadOnly, match="read-only"):
            write()
    rb.sample()["observation"].zero_(), rb[3]["observation"].zero_(), rb["observation"].zero_()
    assert flat(rb[:], "observation") == AT and ds.fingerprint == before


def test_preprocess(ds: rlds_cli.Dataset, tmp_path: Path) -> None:
    rb = RldsExperienceReplay(ds, fields=TED)

    def double(td: Any) -> Any:
        td["observation"].mul_(2)  # in place: TorchRL's own preprocess changes the source by this
        return td.select("observation", ("next", "reward"))

    for i, how in enumerate(
        ({}, {"chunksize": 0}, {"num_chunks": 4}, {"chunksize": 5, "num_frames": 7}, {"pbar": True})
    ):
        made = data.ReplayBuffer(storage=rb.preprocess(double, dest=tmp_path / str(i), **how))
        count = how.get("num_frames", 13)
        assert flat(made[:], "observation") == [2 * x for x in AT[:count]], how
        assert set(made[:].keys(True, True)) == {"observation", ("next", "reward")}
        loaded = TensorDict.load_memmap(tmp_path / str(i))
        assert flat(loaded, "next", "reward") == flat(rb[:], "next", "reward")[:count]
    assert flat(rb[:], "observation") == AT
    with pytest.raises(InvalidArgument, match="already exists"):
        rb.preprocess(double, dest=tmp_path / "0")
    calls = iter(range(100))
    for function, error in (
        (lambda td: td if next(calls) < 3 else td.select("action"), PreprocessError),
        (lambda td: td[:1] if td.ndim else td, PreprocessError),
        (lambda td: 1 / 0 if next(calls) > 2 else td, ZeroDivisionError),
    ):
        with pytest.raises(error):
            rb.preprocess(function, dest=tmp_path / "new", chunksize=3)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["0", "1", "2", "3", "4"]
    for how in ({"dim": 1}, {"chunksize": 1, "num_chunks": 2}, {"num_frames": 14}):
        with pytest.raises(InvalidArgument):
            rb.preprocess(double, dest=tmp_path / "new", **how)


class Pool:
    """Runs calls as a pool of processes does: of pickled functions and arguments."""

    def imap_unordered(self, call: Any, items: Any) -> Iterator[Any]:
        return map(pickle.loads(pickle.dumps(call)), pickle.loads(pickle.dumps(list(items))))


def test_processes_that_could_not_open_the_dataset_are_not_waited_for(home: Path, tmp_path: Path) -> None:
    """A process of a pool that dies at its start is started again, for ever."""
    rb = RldsExperienceReplay("sample/mountaincar-robohive")
    rlds_cli.download("sample/mountaincar-robohive", force=True)
    for how in ({"num_workers": 2}, {"pool": Pool()}):
        with pytest.raises(DatasetNotFound, match="was replaced"):
            rb.preprocess(lambda td: td.select("action"), dest=tmp_path / "made", num_chunks=4, **how)
    assert not list(tmp_path.glob("*made*"))
    again = RldsExperienceReplay("sample/mountaincar-robohive")
    made = again.preprocess(lambda td: td.select("action"), dest=tmp_path / "made", num_chunks=4, pool=Pool())
    assert torch.equal(made[:]["action"], again[:]["action"])


def kill(td: TensorDict) -> TensorDict:
    if td.ndim:
        os.kill(os.getpid(), signal.SIGKILL)
    return td.select("action")


@pytest.mark.slow
def test_processes_that_are_killed_are_not_waited_for(ds: rlds_cli.Dataset, tmp_path: Path) -> None:
    with pytest.raises(PreprocessError, match=r"transitions 0 to 12 was killed .* twice. Nothing was written"):
        RldsExperienceReplay(ds, fields=TED).preprocess(kill, num_workers=2, num_chunks=1, dest=tmp_path / "made")
    assert not list(tmp_path.iterdir())


def test_what_torchrl_refuses_by_a_runtime_error(ds: rlds_cli.Dataset, here: None, tmp_path: Path) -> None:
    rb = RldsExperienceReplay(ds, fields=TED)
    rb.dumps(tmp_path / "dump")
    other = RldsExperienceReplay(ds.select(episodes=[0]), fields=TED)
    refused = {
        "a dataset that is not here": (
            DatasetNotFound,
            lambda: datasets.load_dataset("rlds:sample/pendulum-d4rl", download=False),
        ),
        "no such dataset": (UnknownDataset, lambda: RldsExperienceReplay("d4rl/no-such-dataset")),
        "order": (InvalidArgument, lambda: RldsExperienceReplay(ds, 4, slice_len=2, shuffle=False, replacement=True)),
        "stream": (InvalidArgument, lambda: RldsExperienceReplay(ds, 4, replacement=True, streaming=True)),
        "pad": (InvalidArgument, lambda: RldsExperienceReplay(ds, 4, pad=0)),
        "dim": (InvalidArgument, lambda: rb.preprocess(lambda td: td, dim=1, dest=tmp_path / "x")),
        "result": (PreprocessError, lambda: rb.preprocess(lambda td: td[:1] if td.ndim else td, dest=tmp_path / "x")),
        "writing": (RldsError, lambda: rb.extend(rb[:2])),
        "dump": (WrongFingerprint, lambda: other.loads(tmp_path / "dump")),
        "state": (WrongFingerprint, lambda: other.storage.load_state_dict(rb.storage.state_dict())),
    }
    for what, (kind, call) in refused.items():
        with pytest.raises(kind) as e:
            call()
        assert isinstance(e.value, RuntimeError) and isinstance(e.value, RldsError), what
        assert type(pickle.loads(pickle.dumps(e.value))) is type(e.value)
    with pytest.raises(FileNotFoundError):
        rb.loads(tmp_path / "nothing")


@pytest.mark.slow
def test_preprocess_in_other_processes(ds: rlds_cli.Dataset, tmp_path: Path) -> None:
    rb = RldsExperienceReplay(ds, fields=TED)
    made = rb.preprocess(
        lambda td: td.set("more", td["observation"] + 1), num_workers=2, num_chunks=4, dest=tmp_path / "made"
    )
    assert flat(made[:], "more") == [x + 1 for x in AT]


def test_preprocess_with_a_generator(ds: rlds_cli.Dataset, tmp_path: Path) -> None:
    rb, names = RldsExperienceReplay(ds, fields=TED), iter(range(100))

    def draw(td: Any) -> Any:
        size = td.batch_size
        td["torch"], td["numpy"] = torch.rand(size), torch.from_numpy(np.asarray(np.random.random(size)))
        return td.set("random", torch.full(size, random.random())).select("torch", "numpy", "random")

    def drawn(seed: int | None, **how: Any) -> dict[str, list[float]]:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        made = rb.preprocess(draw, dest=tmp_path / str(next(names)), generator=generator, **how)
        found = data.ReplayBuffer(storage=made)[:]
        return {key: found[key].tolist() for key in ("torch", "numpy", "random")}

    torch.manual_seed(5)
    following = [torch.rand(()), torch.rand(())][1]
    first = drawn(0, chunksize=4)
    assert first == drawn(0, chunksize=4, index_with_generator=True)  # whatever was drawn in between
    assert first != drawn(1, chunksize=4) and len({*first["torch"]}) == 13
    assert len({*first["random"]}) == 4  # another number in every call
    torch.manual_seed(5)
    mine = drawn(None)
    torch.manual_seed(5)
    assert mine == drawn(None) != drawn(None)
    torch.manual_seed(5)
    torch.rand(())
    drawn(0)
    assert torch.rand(()) == following  # with a generator, this process draws what it would have drawn
    with ThreadPool(1) as pool:  # another way to run the same chunks
        assert drawn(0, chunksize=4, pool=pool) == first


@pytest.mark.slow
def test_preprocess_with_a_generator_in_other_processes(ds: rlds_cli.Dataset, tmp_path: Path) -> None:
    rb, found = RldsExperienceReplay(ds, fields=TED), []
    for workers in (0, 2, 3):
        made = rb.preprocess(
            lambda td: td.set("x", torch.rand(td.batch_size)),
            num_workers=workers,
            chunksize=3,
            generator=torch.Generator().manual_seed(1),
            dest=tmp_path / str(workers),
        )
        found.append(made[:]["x"].tolist())
    assert found[0] == found[1] == found[2] and len({*found[0]}) == 13


def test_load_dataset(ds: rlds_cli.Dataset, here: None) -> None:
    rb = datasets.load_dataset("rlds:local/known", batch_size=4)
    assert isinstance(rb, datasets.BaseDatasetExperienceReplay) and rb.sample().batch_size == (4,)
    assert rb.data_path == rb.data_path_root == ds.path and rb.dataset_id == "local/known"
    assert rb.dataset.fingerprint == ds.fingerprint and len(rb) == len(ds)
    rb = datasets.load_dataset("rlds:local/known", batch_size=4, direct_download=True, use_truncated_as_done=True)
    with pytest.raises(InvalidArgument, match="use_truncated_as_done=False"):
        datasets.load_dataset("rlds:local/known", batch_size=4, use_truncated_as_done=False)
    with pytest.raises(DatasetNotFound):
        datasets.load_dataset("rlds:sample/pendulum-d4rl", batch_size=4, download=False)
    with pytest.raises(TypeError, match="nonsense"):
        datasets.load_dataset("rlds:local/known", nonsense=1)


def test_a_dataset_that_is_not_here_is_downloaded(home: Path, tmp_path: Path) -> None:
    rb = datasets.load_dataset("rlds:sample/pendulum-d4rl", batch_size=8, root=tmp_path / "root")
    assert rb.data_path.is_relative_to(tmp_path / "root") and rb.sample()["observation"].shape == (8, 3)
    rlds_cli.download("sample/pendulum-d4rl")
    assert RldsExperienceReplay("sample/pendulum-d4rl", root=tmp_path / "other").data_path.is_relative_to(home)
    again = RldsExperienceReplay("sample/pendulum-d4rl", root=tmp_path / "other", download="force")
    assert again.data_path.is_relative_to(tmp_path / "other")
    rb.delete()
    assert not rb.data_path.exists() and again.data_path.exists()


def test_a_selection_is_not_deleted(ds: rlds_cli.Dataset) -> None:
    with pytest.raises(RldsError, match="a selection"):
        RldsExperienceReplay(ds.select(where="length > 2")).delete()
    assert ds.path.is_dir()


def test_specs() -> None:
    pytest.importorskip("gymnasium")
    from gymnasium import spaces

    seen = spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(5), "c": spaces.MultiBinary(3)})
    acts = spaces.Tuple([spaces.MultiDiscrete([3, 4]), spaces.Discrete(3, start=-1)])
    made = rlds_cli.create(
        "local/spaces",
        [
            {
                "observation": {
                    "a": np.zeros((4, 2), np.float32),
                    "b": np.full(4, 4),
                    "c": np.ones((4, 3), np.int8),
                },
                "action": {"0": np.array([[2, 3]] * 3), "1": np.array([-1, 0, 1])},
                "next": {"reward": np.zeros(3), "terminated": [False, False, True], "truncated": [False] * 3},
            }
        ],
        observation_space=seen,
        action_space=acts,
    )
    rb = RldsExperienceReplay(made, 3)
    td = rb.sample()
    observed = rb.observation_spec["observation"]
    assert isinstance(observed["a"], data.Bounded) and observed["a"].shape == (2,) and observed["a"].high.eq(1).all()
    assert isinstance(observed["b"], data.Categorical) and observed["b"].n == 5 and observed["b"].shape == ()
    assert isinstance(observed["c"], data.Binary)
    assert rb.metadata["observation_space"].is_in(td[0]["observation"])
    assert isinstance(rb.action_spec["0"], data.MultiCategorical)
    assert rb.action_spec["1"].low == -1 and rb.action_spec["1"].high == 1
    assert rb.action_spec.is_in(td[0]["action"])
    assert rb.reward_spec.shape == (1,) and rb.reward_spec.dtype == torch.float64
    assert set(rb.done_spec.keys()) == {"done", "terminated", "truncated"}
    full = rb.specs["output_spec", "full_observation_spec"]
    assert full["observation", "b"].n == 5 and rb.specs["input_spec", "full_action_spec", "action", "0"].shape == (2,)
    zeros = rb.observation_spec.zero()
    assert {k: (x.shape, x.dtype) for k, x in zeros.items(True, True)} == {
        k: (x.shape, x.dtype) for k, x in td[0].select("observation").items(True, True)
    }


def test_a_script_of_torchrl_takes_our_ids(
    ds: rlds_cli.Dataset,
    here: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # As sota-implementations/iql does, and decision_transformer with trajectories.
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from torchrl.data.datasets.d4rl import D4RLExperienceReplay\n"
        "from torchrl.data import TensorStorage\n"
        "from torchrl.data.replay_buffers import SamplerWithoutReplacement, RandomSampler, RoundRobinWriter\n"
        "from torchrl.envs import DoubleToFloat, Reward2GoTransform\n"
        "data = D4RLExperienceReplay(dataset_id=sys.argv[1], split_trajs=False, batch_size=4,\n"
        "    sampler=SamplerWithoutReplacement(drop_last=True), prefetch=4, direct_download=True)\n"
        "data.append_transform(DoubleToFloat())\n"
        "print(len(list(data)), data.sample()['next', 'info', 'height'].dtype)\n"
        "data = D4RLExperienceReplay(dataset_id=sys.argv[1], split_trajs=True, batch_size=2, sampler=RandomSampler(),\n"
        "    transform=None, use_truncated_as_done=True, direct_download=True, prefetch=4, writer=RoundRobinWriter())\n"
        "r2g = Reward2GoTransform(gamma=1.0, in_keys=[('next', 'reward'), 'reward'],\n"
        "    out_keys=[('next', 'return_to_go'), 'return_to_go'])\n"
        "whole = data[:]\n"
        "with whole.unlock_():\n"
        "    data._storage = TensorStorage(r2g.inv(whole))\n"
        "print(data[:]['next', 'return_to_go'][0].flatten().tolist(), data.sample()['return_to_go'].shape)\n"
    )
    for module, name in __main__.MODULES.items():  # put back after the test
        home = importlib.import_module(f"torchrl.data.datasets.{module}")
        monkeypatch.setattr(home, name, getattr(home, name))
        monkeypatch.setattr(datasets, name, getattr(datasets, name))
    monkeypatch.setattr(sys, "argv", ["rlds_cli.interop.torchrl", str(script), "rlds:local/known"])
    monkeypatch.setattr(sys, "path", sys.path.copy())
    __main__.main()
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first == "3 torch.float32"
    # Rewards 0, 1, 2 and 3 of episode 0, which the transform sums up to the end; the fifth place is padding.
    assert second == "[6.0, 6.0, 5.0, 3.0, 0.0] torch.Size([2, 5, 1])"


def test_names_and_arguments_stay() -> None:
    assert torchrl.__all__ == ["Contents", "DatasetStorage", "ReadOnly", "RldsExperienceReplay"]
    shared = ["fields", "anchors", "root_reward", "next_info", "seed"]
    assert list(inspect.signature(DatasetStorage).parameters) == ["dataset", *shared, "split_trajs", "root"]
    replay = list(inspect.signature(RldsExperienceReplay.__init__).parameters)[1:]
    before = ["dataset_id", "batch_size", "sampler", "writer", "collate_fn", "pin_memory", "prefetch", "transform"]
    slices = ["num_slices", "slice_len", "strict_length", "pad", "replacement", "shuffle", "streaming"]
    after = [*slices, "totensor", "image_size", "index", "more"]
    assert replay == [*before, "split_trajs", "root", "download", *shared, *after]


def test_the_prefix_is_registered() -> None:
    assert torchrl.PREFIX == "rlds"
    with pytest.raises(KeyError, match="already registered"):
        datasets.register_dataset("rlds", RldsExperienceReplay)


# -- ensembles, and indices of all shapes: as TorchRL's own storage


def theirs(ds: rlds_cli.Dataset, **how: Any) -> Any:
    """TorchRL's own buffer of the same transitions."""
    storage = data.TensorStorage(RldsExperienceReplay(ds, **how)[:].to_tensordict())
    storage._set_last_cursor(len(storage) - 1)
    return storage


@pytest.mark.parametrize(
    "sampler",
    [
        samplers.RandomSampler,
        samplers.SamplerWithoutReplacement,
        lambda: samplers.SliceSampler(slice_len=2),
        lambda: samplers.SliceSampler(num_slices=2, traj_key="episode", cache_values=True),
        lambda: samplers.SliceSamplerWithoutReplacement(slice_len=2),
    ],
)
@pytest.mark.parametrize("how", [{"sample_from_all": True}, {}, {"p": [0.2, 0.8], "num_buffer_sampled": 4}], ids=str)
def test_an_ensemble_gives_what_one_of_torchrls_buffers_gives(ds: rlds_cli.Dataset, sampler: Any, how: Any) -> None:
    drawn = []
    for storage in (DatasetStorage, theirs):
        members = [data.TensorDictReplayBuffer(storage=storage(ds, fields=TED), sampler=sampler()) for _ in range(2)]
        torch.manual_seed(2)
        drawn.append(data.ReplayBufferEnsemble(*members, batch_size=8, **how).sample())
    mine, other = drawn
    assert mine.batch_size == other.batch_size and mine.numel() == 8
    for key in ("observation", "action", ("next", "observation"), ("next", "done"), ("next", "truncated")):
        assert torch.equal(mine[key], other[key]), key


def test_an_ensemble_of_slices(ds: rlds_cli.Dataset) -> None:
    """The snippet of pytorch/rl#1768. Consecutive steps of an episode, from each of the two buffers."""
    members = [RldsExperienceReplay(ds, sampler=samplers.SliceSampler(slice_len=4)) for _ in range(2)]
    td = data.ReplayBufferEnsemble(*members, sample_from_all=True, batch_size=16).sample()
    assert td.batch_size == (2, 8, 1)
    slices = td["observation"].reshape(4, 4)
    assert (slices.diff(dim=1) == 1).all() and set(slices[:, 0].tolist()) <= {0.0, 200.0, 201.0}
    numbers = torch.tensor([[4], [1]])
    both = data.ReplayBufferEnsemble(*members, sample_from_all=True, batch_size=16)[:, numbers]
    assert both["action"].tolist() == [[[AT[4]], [AT[1]]]] * 2


def test_an_index_of_any_shape(ds: rlds_cli.Dataset) -> None:
    rb, numbers = RldsExperienceReplay(ds), torch.tensor([[4, 1, 0], [12, 3, 3]])
    for read in (rb, rb.storage, rb.storage.get, rb[:]):
        get = read if callable(read) else read.__getitem__
        for index in (numbers, numbers.numpy(), numbers.tolist(), (numbers,)):
            td = get(index)
            assert td.batch_size == (2, 3) and td["action"].tolist() == [[AT[i] for i in row] for row in numbers]
            assert td["mission"][1][0] == "4-1" and td["next", "reward"].shape == (2, 3, 1)
        assert get(None).batch_size == (1, 13) and get(...)["action"].tolist() == AT
        with pytest.raises(IndexError):
            get(torch.ones(2, dtype=torch.uint8))  # a mask, to torch, and of the wrong length
        with pytest.raises(IndexError, match="TensorDict"):
            get(TensorDict({}, [2]))


def test_indices_of_several_axes_go_together(ds: rlds_cli.Dataset) -> None:
    """Trajectories [5, 5]; actions are 100 k + t."""
    rb = RldsExperienceReplay(ds, split_trajs=True)
    pairs = torch.tensor([2, 0, 2]), torch.tensor([4, 1, 0])
    mask = torch.zeros(len(rb), rb.storage.source.longest, dtype=torch.bool)
    mask[0, 2] = mask[2, 3] = True
    for read in (rb, rb.storage, rb[:]):
        assert read[pairs]["action"].tolist() == [204, 1, 200]
        assert read[torch.tensor([2, 0]), 1]["action"].tolist() == [201, 1]
        assert read[2, torch.tensor([1, 3])]["action"].tolist() == [201, 203]
        assert read[0:3:2, 1:3]["action"].tolist() == [[1, 2], [201, 202]]
        assert read[mask]["action"].tolist() == [2, 203]
        assert read[..., 0]["action"].tolist()[0] == 0
