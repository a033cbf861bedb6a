"""Tables of ReAgent: transitions of many episodes in any order, with the state after each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import rlds_cli
from rlds_cli.loader import Loader, Shuffled
from rlds_cli.look.report.tracing import trace


def test_rows_in_any_order_become_episodes(tmp_path: Path) -> None:
    """``step`` counts what a row sums, and ``sequence_number`` the steps; the reward says episode and step."""
    rows = [
        {
            "mdp_id": episode,
            "sequence_number": t,
            "step": 1,
            "state_features": [float(episode), float(t)],
            "next_state_features": [float(episode), float(t + 1)],
            "action": t % 2,
            "next_action": (t + 1) % 2,
            "reward": episode + t / 10,
            "not_terminal": t < length - 1,
        }
        for episode, length in ((7, 4), (2, 1), (11, 3))
        for t in range(length)
    ]
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    for name, of_file in (("part-0.parquet", order[:5]), ("part-1.parquet", order[5:])):
        pq.write_table(pa.Table.from_pylist([rows[k] for k in of_file]), tmp_path / name)

    ds = rlds_cli.import_files(tmp_path, "local/reagent")
    assert [ds.episode(k)["mdp_id"][0] for k in range(3)] == [2, 7, 11]
    seven = ds.episode(1)
    assert seven["observation"].tolist() == [[7, 0], [7, 1], [7, 2], [7, 3]]
    assert seven["next/observation"].tolist() == [[7, 1], [7, 2], [7, 3], [7, 4]]
    assert seven["next/terminated"].ravel().tolist() == [False, False, False, True]
    assert trace(ds, 8).ok
    batch = next(iter(Loader(ds, 8, sampler=Shuffled())))
    reward = batch["observation"][:, 0] + batch["observation"][:, 1] / 10
    np.testing.assert_allclose(batch["next/reward"][:, 0], reward, rtol=1e-6)
