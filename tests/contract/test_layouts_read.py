"""The table of layouts: the readers say it, and each of them gives batches that train."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import rlds_cli
from rlds_cli.loader import Loader, Transition

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import layouts


@pytest.mark.docs
def test_the_page_is_what_the_readers_say() -> None:
    assert layouts.main([]) == 0


@pytest.mark.slow
def test_each_layout_trains(tmp_path: Path) -> None:
    """A step of gradient descent from observations to actions, of a batch of each."""
    for layout in layouts.layouts(tmp_path):
        ds = rlds_cli.import_files(layout.place, "local/sample", force=True)
        fields = [f.name for f in ds.schema.values() if f.kind == "array" and f.placement != "next"]
        window = Transition(anchors="steps")
        batch = next(iter(Loader(ds, 8, window=window, fields=fields, backend="torch")))
        flat = {n: batch[n].reshape(8, -1).float() for n in fields}
        seen = torch.cat([v for n, v in flat.items() if not n.startswith("action")] or [torch.ones(8, 1)], 1)
        acted = torch.cat([v for n, v in flat.items() if n.startswith("action")], 1)
        model = torch.nn.Linear(seen.shape[1], acted.shape[1])
        loss = (model(seen.nan_to_num()) - acted.nan_to_num()).square().mean()
        loss.backward()
        assert model.weight.grad is not None and torch.isfinite(model.weight.grad).all(), layout.title
