from __future__ import annotations

import ctypes
import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from loader_data import create, episode

import rlds_cli
from rlds_cli.loader import Loader, Slice, Transition, Uniform

GATHERS = """
import resource, sys
import numpy as np
from rlds_cli.loader.read import keep_freed

if sys.argv[1] == "keep":
    keep_freed()
def gather():
    kept = [np.ones(size, np.uint8) for size in (1_720_320, 700_000, 245_000, 41_000, 10_000, 700_000)]
for _ in range(5):
    gather()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    gather()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow  # a machine that reclaims memory adds faults of its own
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's thresholds")
def test_memory_is_reused() -> None:
    def faults(how: str) -> int:
        run = subprocess.run([sys.executable, "-c", GATHERS, how], capture_output=True, text=True, check=True)
        return int(run.stdout)

    assert faults("keep") < 20
    if faults("not") < 1000:
        pytest.skip("this heap keeps by itself what is freed")


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rlds_cli.Dataset]:
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield create([episode(k, 5 + k) for k in range(6)])


KEEP: dict[str, Any] = {
    "tensor": lambda x: x,
    "view": lambda x: x[1:],
    "detached": lambda x: x.detach(),
    "array of the tensor": lambda x: x.numpy()[::2],
    "storage": lambda x: x.untyped_storage(),
    "dlpack": np.from_dlpack,
    "buffer": lambda x: memoryview(x.numpy()),
    "saved by autograd": lambda x: (x * torch.ones_like(x).requires_grad_()).sum().grad_fn,
}


@pytest.mark.parametrize("how", KEEP)
@pytest.mark.parametrize("window", [Transition(), Slice(5)])
def test_a_batch_keeps_its_values_while_anything_refers_to_its_memory(
    ds: rlds_cli.Dataset, how: str, window: Any
) -> None:
    """The memory of batches that are gone is used again, and that of others is not."""
    loader = Loader(ds, 8, window=window, sampler=Uniform(), dtype=None, fields=["observation", "index"])
    kept: list[Any] = []
    for number, batch in zip(range(50), loader, strict=False):
        kept.append((KEEP[how](batch["observation"]), batch["observation"].data_ptr(), batch["observation"].tolist()))
        if number % 3 == 0:
            kept.pop(0)
    for _, at, values in kept:
        now = np.ctypeslib.as_array((ctypes.c_double * np.size(values)).from_address(at))
        assert now.reshape(np.shape(values)).tolist() == values


def test_arrays_that_were_changed_in_form_are_not_given_again(ds: rlds_cli.Dataset) -> None:
    loader = Loader(ds, 8, backend="numpy", fields=["observation"])
    for batch in itertools.islice(loader, 100):
        x = batch["observation"]
        assert x.shape == (8, 3) and x.dtype == np.float32 and x.flags.writeable
        x.shape = (3, 8)
        x.flags.writeable = False
