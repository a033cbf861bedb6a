"""NumPy batches need nothing but NumPy: torch and JAX are not imported, whatever is sampled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from frames_data import film
from loader_data import create, episode

import rlds_cli
from rlds_cli.loader import Loader, Sequential

CODE = """
import itertools, sys
import numpy as np
import rlds_cli
from rlds_cli.loader import *
from rlds_cli.loader import Sequential, Shuffled, Uniform, Weighted, Prioritized

ds, shots = rlds_cli.open_dataset("local/known"), rlds_cli.open_dataset("local/film")
samplers = [Uniform(), Uniform(by="episode"), Shuffled(), Shuffled(block=8), Sequential()]
samplers += [Weighted("length"), Prioritized()]
windows = [Transition(), Transition(3), Slice(4, after=3, fill="zero"), Offsets({"observation": (-1, 0)}), Episode()]
fields = [..., "step", "text", "next/action", ReturnToGo(), Goals("goal")]
transform = [Normalize(ds), Reward(2.0), Clip("observation", 3.0), lambda batch: batch.copy()]
seen = 0
for sampler, window in itertools.product(samplers, windows):
    how = {"sampler": sampler, "window": window, "fields": fields, "transform": transform}
    loader = Loader(ds, 4, **how, backend="numpy", steps=3)
    for batch in loader:
        assert all(isinstance(x, np.ndarray) for _, x in batch.leaves())
        batch.clone().numpy().sarsd()
        if isinstance(sampler, Prioritized):
            loader.update_priorities(batch, np.ones(4))
        seen += 1
    loader.load_state_dict(loader.state_dict())
    loader.describe()
for batch in Loader(Mixture({"a": ds, "b": ds}), 4, backend="numpy", steps=3):
    seen += 1
for batch in Loader(shots, 4, backend="numpy", prefetch=2, steps=3, sampler=Shuffled()):
    seen += 1
assert seen == 3 * (len(samplers) * len(windows) + 2), seen
imported = {"torch", "jax", "tensordict"} & set(sys.modules)
assert not imported, imported
"""


def test_neither_torch_nor_jax_is_imported(home: Path) -> None:
    create([episode(k, 8 + k, observed=k % 2 == 0) for k in range(4)])
    film([9, 7])
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, env=os.environ | {"RLDS_HOME": str(home)}
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_fields_of_no_width_are_batched_too() -> None:
    x = np.arange(9.0, dtype="f4")
    rlds_cli.create("local/narrow", [{"observation": {"x": x, "nothing": np.zeros((9, 0), "f4")}, "action": x[:8]}])
    for backend in ("numpy", "torch"):
        batches = [*Loader("local/narrow", 2, sampler=Sequential(), backend=backend)]
        assert [b["observation", "nothing"].shape for b in batches] == [(2, 0)] * 4
        assert [b["observation", "x"][:, 0].tolist() for b in batches] == [[0, 1], [2, 3], [4, 5], [6, 7]]
