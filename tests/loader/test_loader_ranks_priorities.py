"""Priorities on several ranks: their batches together are, bit for bit, those of a single process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_data import Known, create, episode

import rlds_cli
from rlds_cli.loader import Loader, Member, Mixture, Prioritized, Slice, Transition, Uniform

EPISODES = [episode(k, 5 + k, observed=k % 2 == 0, inner=(2,)) for k in range(6)]
GROWN = [episode(40 + k, 4 + k) for k in range(5)]
OTHERS = [episode(20 + k, 9 - k) for k in range(3)]

CODE = """
import sys, warnings
from pathlib import Path
sys.path[:0] = TESTS
warnings.filterwarnings("ignore")
import torch, torch.distributed as dist
import numpy as np
rank, meeting, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
import rlds_cli
from test_loader_ranks_priorities import GROWN, LOADERS, online, run
from rlds_cli.errors import InvalidArgument
for name, make in LOADERS.items():
    loader = make()
    batches = run(loader, 6)
    state = loader.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    batches += run(resumed, 6)
    later = run(loader, 6)
    assert all(np.array_equal(a[k], b[k]) for a, b in zip(later, batches[6:]) for k in a), "resumed differs"
    np.savez(f"{out}/{name}-{rank}.npz", **{f"{n} {k}": v for n, b in enumerate(batches) for k, v in b.items()})
    torch.save(resumed.state_dict(), f"{out}/{name}-{rank}.pt")
loader = LOADERS["transitions"]()
batch = next(iter(loader))
before = loader.state_dict()["priorities"]["masses"].clone()
wrong = np.ones(len(batch["window"]) - rank)  # rank 1 has one too few
for priority in (wrong, np.full(len(batch["window"]), np.nan if rank == 1 else 1.0)):
    try:
        loader.update_priorities(batch, priority)
    except InvalidArgument as e:
        (Path(out) / f"refused-{rank}.txt").open("a").write(e.message + "\\n")
assert torch.equal(before, loader.state_dict()["priorities"]["masses"])
live = online(live=True)
w = rlds_cli.writer("local/online") if rank == 0 else None
batches = []
for k in range(5):
    if w is not None:
        w.add_episodes([GROWN[k].plain()])
        w.commit()
    dist.barrier()
    wanted = rlds_cli.open_dataset("local/online").version
    dist.barrier()
    while live.version["b"] != wanted:  # the same batch on both ranks
        batches += run(live, 1)
    batches += run(live, 15)
if w is not None:
    w.close()
np.savez(f"{out}/live-{rank}.npz", **{f"{n} {k}": v for n, b in enumerate(batches) for k, v in b.items()})
torch.save(live.state_dict(), f"{out}/live-{rank}.pt")
"""


def made(dataset: Any, size: int = 12, **options: Any) -> Loader:
    extra = options.pop("extra", ("episode", "step"))
    return Loader(dataset, size, fields=[..., *extra], dtype=None, backend="numpy", seed=3, **options)


LOADERS = {
    "transitions": lambda: made("local/known", sampler=Prioritized(0.7, 0.5), window=Transition(3)),
    "slices": lambda: made("local/known", sampler=Prioritized(1.0), window=Slice(3, after=2)),
    "lag": lambda: made("local/known", sampler=Prioritized(0.7, lag=2), prefetch=1),
    "mixture": lambda: made(
        Mixture({"a": "local/others", "b": Member("local/known", sampler=Prioritized(0.8))}, {"a": 1, "b": 1})
    ),
    "three to one": lambda: made(
        Mixture({"a": Member("local/others", sampler=Uniform()), "b": "local/known"}, {"a": 3, "b": 1}),
        sampler=Prioritized(0.8),
        size=4,
    ),
}


def online(*, live: Any) -> Loader:
    members = {"a": "local/known", "b": Member("local/online", sampler=Prioritized(0.8))}
    return made(Mixture(members, {"a": 1, "b": 1}), live=live, window=Transition(3))


def priorities(batch: Any) -> np.ndarray:
    """What training would report: of a sample's window and reward, the same on any rank."""
    window = np.asarray(batch["window"]).reshape(len(batch["window"]), -1)[:, 0]
    return (window * 7 % 5 + 0.1).astype(np.float64)


def run(loader: Loader, steps: int) -> list[dict[str, np.ndarray]]:
    batches = []
    for batch in loader:
        batches.append({name: np.asarray(x) for name, x in batch.leaves()})
        loader.update_priorities(batch, priorities(batch), beta=0.4 + 0.01 * loader.step)
        if len(batches) == steps:
            return batches
    raise AssertionError("the loader ended")


def row(batch: dict[str, np.ndarray], i: int) -> tuple[bytes, ...]:
    return tuple(np.ascontiguousarray(batch[name][i]).tobytes() for name in sorted(batch))


@pytest.fixture
def datasets() -> tuple[list[Known], list[Known]]:
    create(EPISODES)
    create(OTHERS, ref="local/others")
    with rlds_cli.writer("local/online", like=rlds_cli.open_dataset("local/known")):
        pass
    return EPISODES, OTHERS


@pytest.mark.slow
def test_batches_of_two_ranks_are_those_of_one_process(tmp_path: Path, datasets: Any) -> None:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    code = CODE.replace("TESTS", repr([p for p in sys.path if p]))
    scripts = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), f"file://{tmp_path}/meeting", tmp_path],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        for rank in range(2)
    ]
    errors = [script.communicate(timeout=180)[1] for script in scripts]
    assert [script.returncode for script in scripts] == [0, 0], "".join(errors)
    import torch

    for name, make in LOADERS.items():
        loader = make()
        whole = run(loader, 12)
        parts = [np.load(tmp_path / f"{name}-{rank}.npz") for rank in range(2)]
        for n, batch in enumerate(whole):
            ranks = [{key: part[f"{n} {key}"] for key in batch} for part in parts]
            size = len(batch["window"])
            assert [len(r["window"]) for r in ranks] == [size // 2] * 2
            rows = [row(r, i) for r in ranks for i in range(size // 2)]
            assert sorted(rows) == sorted(row(batch, i) for i in range(size)), (name, n)
            if "source" in batch:
                here = [int((r["source"] == 1).sum()) for r in ranks]
                assert sum(here) == size // (2 if name == "mixture" else 4) and max(here) - min(here) <= 1
            else:
                assert rows == [row(batch, i) for r in range(2) for i in range(r, size, 2)]
        states = [torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True) for rank in range(2)]
        ours = loader.state_dict()
        for state in states:
            assert flat(state) == flat(ours)
    states = [torch.load(tmp_path / f"live-{rank}.pt", weights_only=True) for rank in range(2)]
    assert flat(states[0]) == flat(states[1])
    assert len(states[0]["versions"]) in (5, 6)  # without or with the empty one
    loader = online(live=states[0])
    whole = run(loader, int(states[0]["samples"]) // 12)
    parts = [np.load(tmp_path / f"live-{rank}.npz") for rank in range(2)]
    for n, batch in enumerate(whole):
        ranks = [{key: part[f"{n} {key}"] for key in batch} for part in parts]
        assert sorted(row(r, i) for r in ranks for i in range(6)) == sorted(row(batch, i) for i in range(12)), n
        assert [int((r["source"] == 1).sum()) for r in ranks] in ([3, 3], [0, 0])
    assert flat(loader.state_dict()) == flat(states[0])
    assert 44 in {k for b in whole[-15:] for k in b["observation"][b["source"] == 1, 0]}
    refused = [(tmp_path / f"refused-{rank}.txt").read_text().splitlines() for rank in range(2)]
    assert "priorities [5] for a batch of 6 samples" in refused[1][0]
    assert refused[0][0] == "update_priorities: rank 1 could not report its priorities. None was changed."
    assert refused[0][1] == refused[1][1] and "priority nan at place 6 of 12" in refused[0][1]


def flat(state: Any, prefix: str = "") -> dict[str, Any]:
    """A state with its arrays as bytes."""
    if hasattr(state, "numpy"):
        state = state.numpy()
    if isinstance(state, np.ndarray):
        return {prefix: (str(state.dtype), state.shape, state.tobytes())}
    if isinstance(state, dict):
        return {k: v for key, value in state.items() for k, v in flat(value, f"{prefix}/{key}").items()}
    if isinstance(state, list):
        return {k: v for i, value in enumerate(state) for k, v in flat(value, f"{prefix}/{i}").items()}
    return {prefix: state}
