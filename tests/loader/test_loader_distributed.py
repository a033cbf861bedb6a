"""Several processes: each rank gets its part of every batch once, whoever starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from loader_data import create, episode

from rlds_cli.loader import Loader, Shuffled

pytestmark = pytest.mark.slow

BEGIN = """
import json, sys, warnings
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader import Loader, Shuffled
warnings.filterwarnings("ignore")
rank, meeting = int(sys.argv[1]), sys.argv[2]

def load(**options):
    return Loader("local/known", 6, sampler=Shuffled(), fields=[..., "episode", "step"], **options)

def ids(batch):
    return list(zip(batch["episode"].tolist(), batch["step"].tolist()))

def report(*passes):
    print(json.dumps([[ids(b) for b in batches] for batches in passes]), flush=True)
"""


def whole() -> list[list[list[int]]]:
    """The batches of a single process."""
    loader = Loader("local/known", 6, sampler=Shuffled(), fields=[..., "episode", "step"])
    pairs = (zip(b["episode"].tolist(), b["step"].tolist(), strict=True) for b in loader)
    return [[list(pair) for pair in pairs_of_one] for pairs_of_one in pairs]


def both_ranks(tmp_path: Path, code: str, **environment: str) -> list[list[Any]]:
    """What the two print as their last line."""
    create([episode(k, 5 + k, observed=k % 2 == 0, inner=(2,)) for k in range(6)])
    scripts = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + code, str(rank), f"file://{tmp_path}/meeting"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"} | environment,
        )
        for rank in range(2)
    ]
    finished = [s.communicate(timeout=180) for s in scripts]
    for script, (_, errors) in zip(scripts, finished, strict=True):
        assert script.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in finished]


def check_parted(ranks: list[list[Any]]) -> None:
    """Sample i of a batch is that of rank i % 2."""
    for passes in zip(*ranks, strict=True):
        for n, batch in enumerate(whole()):
            assert [rank[n] for rank in passes] == [batch[0::2], batch[1::2]]
        assert [len(rank) for rank in passes] == [len(whole())] * 2


GLOO = 'dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)\n'


def test_ranks_of_torch_distributed(tmp_path: Path) -> None:
    check_parted(
        both_ranks(
            tmp_path,
            f"""
early = load()
{GLOO}
report(load(), DataLoader(load().as_torch(), batch_size=None, num_workers=2), load(rank=rank, world_size=2))
""",
        )
    )


@pytest.mark.slow
def test_a_loader_that_does_not_know_of_the_other_ranks_is_refused(tmp_path: Path) -> None:
    refused = both_ranks(
        tmp_path,
        f"""
early, alone = load(), load(world_size=1)
{GLOO}
messages = []
for batches in (early, DataLoader(early.as_torch(), batch_size=None, num_workers=1)):
    try:
        next(iter(batches))
    except InvalidArgument as e:
        messages.append(str(e))
report(alone)
print(json.dumps(messages))
""",
    )
    for messages in refused:
        assert len(messages) == 2
        for message in messages:
            assert "made before torch.distributed was initialised: each of 2 ranks would get every sample" in message


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerate_leaves_a_loader_as_it_is(tmp_path: Path) -> None:
    check_parted(
        both_ranks(
            tmp_path,
            """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == 2
model = torch.nn.Linear(3, 1)
loader = load(device=accelerator.device)
model, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
assert prepared is loader
seen = []
for batch in prepared:
    seen.append(batch)
    with accelerator.accumulate(model):
        loss = model(batch["observation"]).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
if rank == 0:  # the other one would wait for it for ever
    for workers in (0, 1):
        try:
            next(iter(accelerator.prepare(DataLoader(load().as_torch(), batch_size=None, num_workers=workers))))
        except InvalidArgument as e:
            assert "shared already" in str(e)
        else:
            raise AssertionError("samples were shared out twice")
report(seen, DataLoader(load().as_torch(), batch_size=None, num_workers=2))
""",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(30_000 + os.getpid() % 20_000),
        )
    )


@pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")
@pytest.mark.parametrize("workers", [0, 2])
def test_lightning(tmp_path: Path, workers: int) -> None:
    check_parted(
        both_ranks(
            tmp_path,
            f"""
import lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(3, 1), []
    def train_dataloader(self):
        return DataLoader(load().as_torch(), batch_size=None, num_workers={workers})
    def training_step(self, batch, number):
        self.seen.append(batch)
        return self.layer(batch["observation"]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

model = Model()
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", **quiet)
trainer.fit(model)
report(model.seen)
""",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(30_000 + os.getpid() % 20_000),
            NODE_RANK="0",
        )
    )
