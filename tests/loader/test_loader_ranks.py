import subprocess
import sys

import numpy as np
import pytest
from loader_data import create, episode
from reference import ranks

from rlds_cli.errors import BatchSize, InvalidArgument
from rlds_cli.loader import Episode, Loader, Offsets, Sequential, Shuffled, Slice, Transition
from rlds_cli.loader.schedule import Ranks


def test_arguments_come_first():
    assert Ranks.of(2, 4) == Ranks(2, 4, "the arguments")
    assert Ranks.of(None, 1) == Ranks(0, 1, "the arguments")


def test_alone_without_arguments():
    assert Ranks.of(None, None) == Ranks(0, 1, "a single process")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rank", "world"), [(4, 4), (-1, 4), (0, 0), (0, -2), (1, None), (None, 4), (0.5, 4), (0, "4")]
)
def test_ranks_that_cannot_be(rank, world):
    with pytest.raises(InvalidArgument):
        Ranks.of(rank, world)


def test_a_batch_that_cannot_be_shared_names_the_nearest_that_can():
    with pytest.raises(BatchSize) as e:
        Ranks(0, 6, "torch.distributed").share(256)
    assert "256 cannot be shared by 6 ranks (rank and world size from torch.distributed)" in str(e.value)
    assert "252 or 258" in str(e.value)
    with pytest.raises(BatchSize, match="hint: 8, or"):
        Ranks(0, 8, "").share(3)
    assert Ranks(0, 4, "").share(256) == 64


@pytest.mark.thorough
@pytest.mark.parametrize(("samples", "world"), [(1, 2), (1, 4), (2, 4), (3, 4), (3, 8), (4, 4), (7, 4), (8, 4)])
def test_no_rank_goes_away_empty(samples, world):
    parts = [list(Ranks(r, world, "").part(range(100, 100 + samples))) for r in range(world)]
    assert parts == [ranks.part(range(100, 100 + samples), r, world) for r in range(world)]
    assert all(parts) and set().union(*parts) == set(range(100, 100 + samples))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "window", [Transition(), Transition(2), Slice(2, after=1), Episode(), Offsets({"action": (0, 1)})]
)
@pytest.mark.parametrize("sampler", [Sequential(), Shuffled()])
def test_the_last_batch_has_samples_for_every_rank(window, sampler):
    """13 windows, or 5 episodes, in batches of 4 for four ranks: one is left, and all four read it."""
    ds = create([episode(k, n) for k, n in enumerate((1, 3, 2, 3, 4))])
    options = {"window": window, "sampler": sampler, "backend": "numpy", "fields": [..., "episode", "step"]}
    whole = list(Loader(ds, 4, **options))
    assert len(whole[-1]["step"]) == 1
    for rank in range(4):
        loader = Loader(ds, 4, **options, rank=rank, world_size=4)
        mine = list(loader)
        assert len(mine) == len(loader) == len(whole)
        assert all(np.array_equal(x, whole[-1][name]) for name, x in mine[-1].leaves())
        assert loader.state_dict() == Loader(ds, 4, **options, rank=0, world_size=4).state_dict() | {"epoch": 1}


@pytest.mark.thorough
def test_a_last_batch_that_is_dropped_is_dropped_on_every_rank():
    ds = create([episode(0, 9)])
    for rank in range(4):
        loader = Loader(ds, 4, sampler=Shuffled(drop_last=True), rank=rank, world_size=4)
        assert [len(b["action"]) for b in loader] == [1, 1]


@pytest.mark.slow
def test_torch_distributed_is_asked_when_it_is_initialised():
    code = """
import torch.distributed as dist, tempfile
from rlds_cli.loader.schedule import Ranks
assert Ranks.of(None, None).world == 1
dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
assert Ranks.of(None, None) == Ranks(0, 1, "torch.distributed"), Ranks.of(None, None)
assert Ranks.of(3, 4) == Ranks(3, 4, "the arguments")
dist.destroy_process_group()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
