"""What samples of known episodes hold, and the tables of the page that says how likely that is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from loader_data import create

from rlds_cli.loader import Loader, Offsets, Transition

_DOCS = Path(__file__).parents[2] / "docs" / "reference"
PAGE = "\n".join((_DOCS / name).read_text() for name in ("sampling.md", "settings-elsewhere.md"))
DRAWS = 30_000


def table(heading):
    """The rows of the page's first table below a heading."""
    lines = PAGE[PAGE.index(f"\n{heading}\n") :].split("\n|", 1)[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def known(episodes):
    """The same with rewards 2**t: their sum says which steps it is of."""
    return [replace(e, reward=2.0 ** np.arange(e.length)) for e in episodes]


def bits(x):
    return [t for t in range(int(x).bit_length()) if int(x) >> t & 1]


def read(window, batch):
    """(episode, steps held) of every sample."""
    if isinstance(window, Transition):
        steps = [bits(x) for x in batch["next", "reward"][:, 0]]
        return list(zip(batch["episode"].tolist(), steps, strict=True))
    if isinstance(window, Offsets):
        rows, mask, number = batch["observation"][..., 1].astype(int), batch["mask", "observation"], batch["episode"]
    else:
        rows, mask, number = batch["step"], batch["mask"], batch["episode"][:, 0]
    return [(e, r[m].tolist()) for e, r, m in zip(number.tolist(), rows, mask, strict=True)]


def load(ds, window, sampler, size=DRAWS, **options):
    extra = ("episode", "step", *(() if "probability" in sampler.gives else ("probability",)))
    return Loader(
        ds, size, window=window, sampler=sampler, fields=[..., *extra], backend="numpy", dtype=None, **options
    )


def make(tmp_path_factory, episodes):
    """A dataset for all tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield create(episodes)


def probability(batch):
    p = batch["probability"]
    return p[:, 0] if p.ndim > 1 else p
