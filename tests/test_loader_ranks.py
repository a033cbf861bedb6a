import subprocess
import sys

import pytest

from rlds_cli.errors import BatchSize, InvalidArgument
from rlds_cli.loader.ranks import Ranks


def test_arguments_come_first():
    assert Ranks.of(2, 4) == Ranks(2, 4, "the arguments")
    assert Ranks.of(None, 1) == Ranks(0, 1, "the arguments")


def test_alone_without_arguments():
    assert Ranks.of(None, None) == Ranks(0, 1, "a single process")


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


def test_torch_distributed_is_asked_when_it_is_initialised():
    code = """
import torch.distributed as dist, tempfile
from rlds_cli.loader.ranks import Ranks
assert Ranks.of(None, None).world == 1
dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
assert Ranks.of(None, None) == Ranks(0, 1, "torch.distributed"), Ranks.of(None, None)
assert Ranks.of(3, 4) == Ranks(3, 4, "the arguments")
dist.destroy_process_group()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
