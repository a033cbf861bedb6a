"""From steps back to the archive, for families that are looked up value by value: what was changed is found."""

from __future__ import annotations

from pathlib import Path

import family_files
import numpy as np
import pytest

import rlds_cli
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files

FILES = {
    "pointmaze-medium-navigate-v0.npz": "observation",
    "low_dim_v15.hdf5": "observation/robot0_eef_pos",
    "cartpole_v1.1.0.h5": "observation",
    "buffer.h5": "observation",
    "adult.arff": "observation/number",
    "rollouts.npz": "observation",
    "rollouts.parquet": "observation",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FILES)
def test_steps_are_found_in_the_archive(tmp_path: Path, home: Path, name: str) -> None:
    family_files.write_desk(tmp_path)
    ds = import_files(tmp_path / name, "local/x", jobs=1)
    found = trace(ds, ds.num_steps)
    assert found.ok and found.steps == ds.num_steps
    assert {"action", FILES[name]} <= set(found.fields)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("row", [0, 1])
def test_a_changed_value_is_found(tmp_path: Path, home: Path, name: str, row: int) -> None:
    """Row 1 is the next observation of row 0, and of tables their own copy, which no step has."""
    family_files.write_desk(tmp_path)
    ds = import_files(tmp_path / name, "local/x", jobs=1)
    field = FILES[name]
    file = ds.path.joinpath(*field.split("/"), *("c", "0", "0"))
    file.chmod(0o644)
    values = np.memmap(file, ds.schema[field].dtype, "r+", shape=(ds.num_rows, *ds.schema[field].shape))
    values[row] += 1
    values.flush()
    differing = {(d.episode, d.step) for d in trace(rlds_cli.open_dataset("local/x"), ds.num_steps).differences}
    steps = {(0, 0), (0, 1)} if row else {(0, 0)}
    assert differing == (set() if name == "adult.arff" and row else steps)
