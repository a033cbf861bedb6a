"""Each combination of dataset or mixture, fixed or live, on the host or a device gives batches or says why not."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds_cli
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader import Loader, Mixture

REFUSED = {
    (False, True, True): "rows on the device do not grow",
    (True, False, True): "not for a Mixture",
    (True, True, True): "not for a Mixture",
}


def recorded(name: str, value: float) -> rlds_cli.Dataset:
    """Record a growing dataset whose observations are all ``value``."""
    with rlds_cli.writer(f"local/{name}") as w:
        episode = {
            "observation": np.full((6, 1), value, np.float32),
            "action": np.zeros((5, 1), np.float32),
            "next": {"reward": np.zeros(5), "terminated": True},
        }
        w.add_episodes([episode])
        w.commit()
    return rlds_cli.open_dataset(f"local/{name}")


@pytest.mark.parametrize(("mixed", "live", "resident"), [*product((False, True), repeat=3)])
def test_each_combination_gives_batches_or_is_refused(tmp_path: Path, mixed: bool, live: bool, resident: bool) -> None:
    ds = recorded("a", 2.0)
    data: Any = Mixture({"a": ds, "b": recorded("b", 2.0)}) if mixed else ds
    how: dict[str, Any] = {"live": live, "steps": 2, "backend": "torch", "device": "cpu"}
    if resident:
        how["memory"] = "device"
    if (mixed, live, resident) in REFUSED:
        with pytest.raises(InvalidArgument, match=REFUSED[mixed, live, resident]):
            Loader(data, 4, **how)
        return
    batches = list(Loader(data, 4, **how))
    assert [b["observation"].tolist() for b in batches] == [[[2.0]] * 4] * 2
