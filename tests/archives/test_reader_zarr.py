"""The reader of a Zarr layout of one's own in docs/zarr.md."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import zarr

import rlds_cli
from rlds_cli.keep.verification import trace

PAGE = Path(__file__).parents[2] / "docs" / "zarr.md"


def test_the_documented_reader_of_trials(tmp_path: Path) -> None:
    (code,) = re.findall(r"<!-- reader -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
    (reader := tmp_path / "rig.py").write_text(code)
    rng = np.random.default_rng(0)
    root, held = zarr.open_group(tmp_path / "lab.zarr", mode="w"), {}
    for name, trials in (("a", [(0, 2, 1), (3, 3, 0)]), ("b", [(0, 4, 0)])):
        group = root.create_group(f"sessions/{name}", attributes={"operator": name * 2, "tasks": ["push", "pull"]})
        rows = trials[-1][1] + 1
        data = {"q": rng.normal(size=(rows, 2, 7)), "cam": rng.integers(0, 255, (rows, 4, 4, 3)).astype("u1")}
        data |= {"cmd": rng.normal(size=(rows, 7)), "trials": np.array(trials)}
        for key, values in data.items():
            group.create_array(key, data=values)
        held[name] = data

    ds = rlds_cli.importing.import_files(tmp_path / "lab.zarr", "local/lab", reader=str(reader))
    assert ds.episodes["length"].tolist() == [3, 1, 5]
    assert ds.episodes["end"].tolist() == ["terminated", "cut", "cut"]
    assert ds.episodes["task"].tolist() == ["push", "pull", "push"] and ds.episodes["operator"][2] == "bb"
    for k, (name, rows) in enumerate((("a", slice(0, 3)), ("a", slice(3, 4)), ("b", slice(0, 5)))):
        np.testing.assert_array_equal(ds.episode(k)["observation/q"], held[name]["q"][rows], strict=True)
        np.testing.assert_array_equal(ds.episode(k)["observation/cam"], held[name]["cam"][rows], strict=True)
        np.testing.assert_array_equal(ds.episode(k)["action"], held[name]["cmd"][rows], strict=True)
    found = trace(ds, 9, reader=str(reader))
    assert found.ok and found.steps == 9
