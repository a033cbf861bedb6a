"""Flat npz, Parquet and HDF5 under anybody's names: every value, each rule for ends, and the mapping file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archive_rows import Rows
from pyarrow import feather

import rlds_cli
from rlds_cli import archives
from rlds_cli.archives import describing
from rlds_cli.archives.formats import text_tables
from rlds_cli.archives.formats.arrow_tables import ArrowRows
from rlds_cli.archives.formats.parquet import open_parquet
from rlds_cli.cli import app
from rlds_cli.errors import InvalidArgument, RldsError, UnknownLayout
from rlds_cli.look.report.files import describe_file
from rlds_cli.make import importing
from rlds_cli.make.importing import import_files, plan_import
from rlds_cli.ted import CUT, TERMINATED, TRUNCATED

RNG = np.random.default_rng(0)
N = 20
FLAGS = np.arange(N) % 5 == 4
X = {
    "obs": RNG.normal(size=(N, 3)).astype("f4"),
    "action": RNG.integers(0, 4, N),
    "reward": RNG.random(N).astype("f4"),
    "dones": FLAGS,
    "image": RNG.integers(0, 255, (N, 2, 4), dtype="u1"),
    "task": np.array(["push", "pull"] * (N // 2)),
}


def save(path: Path, columns: dict[str, Any]) -> Path:
    """The same columns in the format of the suffix."""
    if path.suffix == ".npz":
        np.savez_compressed(path, **columns)
    elif path.suffix == ".parquet":
        made = {k: pa.array(np.asarray(v).tolist(), _type(np.asarray(v))) for k, v in columns.items()}
        pq.write_table(pa.table(made), path, row_group_size=6)
    elif path.suffix == ".arrow":
        made = {k: pa.array(np.asarray(v).tolist(), _type(np.asarray(v))) for k, v in columns.items()}
        feather.write_feather(pa.table(made), path, chunksize=6, compression="zstd")
    else:
        with h5py.File(path, "w") as f:
            for key, value in columns.items():
                f[key] = [*map(str, value)] if np.asarray(value).dtype.kind == "U" else value
    return path


def _type(values: np.ndarray) -> Any:
    kind = pa.string() if values.dtype.kind == "U" else pa.from_numpy_dtype(values.dtype)
    for n in values.shape[:0:-1]:
        kind = pa.list_(kind) if n % 2 else pa.list_(kind, n)
    return kind


@pytest.mark.sampled(2)
@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".arrow", ".h5"])
@pytest.mark.parametrize("rows_at_a_time", [None, 3])
def test_every_value(tmp_path: Path, suffix: str, rows_at_a_time: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if rows_at_a_time:
        monkeypatch.setattr("rlds_cli.archives.flat_rows.CHUNK_ROWS", 2 * rows_at_a_time)
        monkeypatch.setattr("rlds_cli.archives.formats.parquet.BATCH_ROWS", 7)
        monkeypatch.setattr("rlds_cli.archives.formats.arrow_files.BATCH_BYTES", 100)
    rows = Rows("plain", save(tmp_path / f"a{suffix}", X))
    assert rows.episodes.length.tolist() == [5] * 4 and rows.episodes.row.tolist() == [0, 5, 10, 15]
    assert (rows.episodes.end == TERMINATED).all() and not rows.episodes.observed.any()
    for k in range(4):
        steps = slice(5 * k, 5 * k + 5)
        for field, key in (("observation", "obs"), ("action", "action"), ("next/reward", "reward"), ("image", "image")):
            found = rows.of(k, field)[:5]
            np.testing.assert_array_equal(found, X[key][steps], strict=True)
        assert rows.of(k, "task_at") == X["task"][steps].tolist()
        assert rows.episodes.extra["task"][k] == X["task"][5 * k]
        assert rows.of(k, "next/terminated").tolist() == [0, 0, 0, 0, 1]


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".arrow"])
def test_recognised(tmp_path: Path, suffix: str) -> None:
    kind = {".npz": "npz", ".parquet": "Parquet", ".arrow": "Arrow"}[suffix]
    found = archives.recognise([save(tmp_path / f"a{suffix}", X)])
    assert found == ("plain", f"columns of rows: {kind}, 20 rows; obs, action, reward, dones")
    assert archives.recognise([save(tmp_path / f"b{suffix}", {"cmd": X["action"], "q": X["obs"]})]) is None


def test_an_episode_with_its_final_observation_is_a_file_of_its_own(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", {"observations": np.zeros((4, 2)), "actions": np.zeros((3, 1))})
    assert archives.recognise([path]) == ("plain", "one episode per file: 1 npz; observations, actions")


def test_next_observations(tmp_path: Path) -> None:
    after = np.concatenate([X["obs"][1:], X["obs"][:1]])
    after[FLAGS] += 1
    rows = Rows("plain", save(tmp_path / "a.npz", X | {"next_obs": after}))
    assert rows.episodes.observed.all()
    for k in range(4):
        np.testing.assert_array_equal(rows.of(k, "observation")[5], after[5 * k + 4])


def test_masks_say_where_to_bootstrap_and_terminals_where_trajectories_end(tmp_path: Path) -> None:
    masks = np.ones(N, "f4")
    masks[[4, 7]] = 0
    rows = Rows("plain", save(tmp_path / "a.npz", {**X, "masks": masks}))
    assert rows.plan.episodes_by == "timeouts"
    assert rows.episodes.length.tolist() == [5] * 4
    assert rows.episodes.end.tolist() == [TERMINATED, TRUNCATED, TRUNCATED, TRUNCATED]
    assert np.flatnonzero(rows["next/terminated"]).tolist() == [4, 8]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("key", "values"), [("episode_ends", [3, 10, 20]), ("episode_lengths", [3, 7, 10]), ("traj_lengths", [3, 7, 10])]
)
@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_lists_of_ends_or_lengths(tmp_path: Path, key: str, values: list[int], suffix: str) -> None:
    columns = {"obs": X["obs"], "action": X["action"], key: np.array(values)}
    rows = Rows("plain", save(tmp_path / f"a{suffix}", columns))
    assert rows.episodes.length.tolist() == [3, 7, 10]
    assert (rows.episodes.end == CUT).all()


def test_episode_numbers_where_there_are_no_flags(tmp_path: Path) -> None:
    columns = {"obs": X["obs"], "action": X["action"], "episode_index": np.arange(N) // 7}
    rows = Rows("plain", save(tmp_path / "a.parquet", columns))
    assert rows.plan.episodes_by == "field:episode_index"
    assert rows.episodes.length.tolist() == [7, 7, 6]
    flagged = save(tmp_path / "b.parquet", columns | {"done": FLAGS})
    with pytest.raises(UnknownLayout, match=r"row 4 of b\.parquet is done, but its episode continues") as e:
        Rows("plain", flagged)
    assert "--episodes-by field:episode_index or --episodes-by flags" in str(e.value.hint)
    assert Rows("plain", flagged, episodes_by="flags").episodes.length.tolist() == [5] * 4
    assert Rows("plain", flagged, episodes_by="field:episode_index").episodes.length.tolist() == [7, 7, 6]


def test_jumps_are_found_in_npz_as_in_hdf5(tmp_path: Path) -> None:
    walk = np.cumsum(RNG.normal(size=(600, 2)), axis=0)
    walk[200:] += 500
    walk[450:] -= 900
    found = []
    for suffix in (".npz", ".parquet", ".h5"):
        columns = {"obs": walk, "action": np.zeros(600)}
        rows = Rows("plain", save(tmp_path / f"a{suffix}", columns), episodes_by="jumps")
        found.append(rows.episodes.length.tolist())
    assert found == [[200, 250, 150]] * 3


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownLayout, match="different numbers of rows"):
        Rows("plain", save(tmp_path / "a.npz", X | {"reward": np.zeros(3)}))
    with pytest.raises(UnknownLayout, match='has no "nothing"'):
        Rows("plain", save(tmp_path / "b.npz", X), fields={"action": "nothing"})
    (tmp_path / "c.txt").write_text("a,b\n1,2\n")
    with pytest.raises(UnknownLayout, match="neither Zarr nor npz nor HDF5 nor Parquet nor Arrow"):
        Rows("plain", tmp_path / "c.txt")
    ragged = pa.table({"obs": pa.array([[1.0], [1.0, 2.0]]), "action": pa.array([1, 2])})
    pq.write_table(ragged, tmp_path / "d.parquet")
    with pytest.raises(UnknownLayout, match="rows of different lengths"):
        Rows("plain", tmp_path / "d.parquet")
    missing = pa.table({"episode": [0, 0, 0], "obs": pa.array([1.0, 3.0, 2.0]), "action": pa.array([1, None, 3])})
    pq.write_table(missing, tmp_path / "e.parquet")
    with pytest.raises(UnknownLayout, match="has no action, but it is not the last row"):
        Rows("plain", tmp_path / "e.parquet")
    with pytest.raises(UnknownLayout, match="list of row numbers"):
        Rows("plain", save(tmp_path / "f.npz", X | {"episode_ends": np.zeros(3)}))


def test_columns_of_parquet_as_pandas_writes_them(tmp_path: Path) -> None:
    """Categories in dictionaries, NaN as missing values, and times, which a field cannot hold."""
    columns = {
        "obs": pa.array([1.5, None, 2.5], pa.float32()),
        "action": pa.array([1, 2, 3], pa.int8()),
        "task": pa.array(["push", "pull", "push"]).dictionary_encode(),
        "said": pa.array(["a", None, "b"]),
        "time": pa.array([1, 2, 3], pa.timestamp("s")),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    rows = Rows("plain", tmp_path / "a.parquet")
    np.testing.assert_array_equal(rows.of(0, "observation"), np.array([1.5, np.nan, 2.5, 2.5], "f4"), strict=True)
    np.testing.assert_array_equal(rows.of(0, "action"), np.array([1, 2, 3], "i1"), strict=True)
    assert rows.of(0, "task_at") == ["push", "pull", "push"] and rows.of(0, "said") == ["a", None, "b"]
    assert "time" not in rows.schema
    assert rows.codes == {"left-out": 1, "nan": 1, "open-end": 1, "rows": 1, "several-tasks": 1}
    pq.write_table(pa.table({"time": columns["time"]}), tmp_path / "b.parquet")
    assert archives.recognise([tmp_path / "b.parquet"]) is None
    assert [n.name for n in describing.tree(tmp_path / "b.parquet").nodes] == ["time"]


def test_parquet_is_read_forward(tmp_path: Path) -> None:
    path = save(tmp_path / "a.parquet", X)
    with open_parquet(path) as f:
        rows = f.rows(["obs"])
        assert isinstance(rows, ArrowRows)
        np.testing.assert_array_equal(rows.read(3, 9)["obs"], X["obs"][3:9])
        np.testing.assert_array_equal(rows.read(8, 30)["obs"], X["obs"][8:])
        with pytest.raises(ValueError, match="was read already"):
            rows.read(0, 2)


# -- from the command line


@pytest.mark.thorough
def test_a_mapping_file(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "run.npz", {"q": X["obs"], "cmd": X["action"], "r": X["reward"], "trial": np.arange(N) // 4})
    fields = {"observation": "q", "action": "cmd", "reward": "r"}
    (tmp_path / "press.json").write_text(json.dumps({"fields": fields, "episodes_by": "field:trial"}))
    (tmp_path / "press.toml").write_text('episodes_by = "field:trial"\n[fields]\nobservation = "q"\naction = "cmd"\n')
    (tmp_path / "short.json").write_text(json.dumps(fields))
    for name, file in (("a", "press.json"), ("b", "press.toml")):
        app(
            ["import", str(path), "--name", f"local/{name}", "--map", str(tmp_path / file), "-q"],
            standalone_mode=False,
        )
    ds = import_files(path, "local/c", fields=fields, episodes_by="field:trial")
    assert ds.episodes["length"].tolist() == [4] * 5 and ds.manifest.reader == "plain"
    assert importing.read_mapping(tmp_path / "press.json") == importing.FieldMapping(fields, "field:trial")
    assert importing.read_mapping(tmp_path / "short.json") == importing.FieldMapping(fields, None)
    assert rlds_cli.open_dataset("local/a").fingerprint == ds.fingerprint
    assert "next/reward" not in rlds_cli.open_dataset("local/b").schema


def test_a_list_of_keys_is_a_field_of_their_columns(tmp_path):
    np.savez(tmp_path / "a.npz", q0=np.arange(4.0), q1=np.arange(4.0) + 10, cmd=np.ones((4, 1)))
    fields = {"observation": ["q0", "q1"], "action": "cmd"}
    listed = importing.import_files(tmp_path / "a.npz", "local/listed", fields=fields)
    assert listed.column("observation")[:4].tolist() == [[t, t + 10] for t in range(4)]
    (tmp_path / "map.json").write_text(json.dumps(fields))
    assert importing.read_mapping(tmp_path / "map.json").fields == {"observation": "[q0, q1]", "action": "cmd"}
    with pytest.raises(InvalidArgument, match="observation is 3"):
        importing.import_files(tmp_path / "a.npz", "local/wrong", fields={"observation": 3})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "holds no mapping"),
        ("{", "cannot be read as a mapping"),
        ('{"fields": {"a": 1}}', "a is 1; the name of a key is expected"),
        ('{"fields": {}, "ends": "x"}', "ends is not a valid entry"),
        ('{"episodes_by": 3}', "is not a valid entry"),
    ],
)
def test_mapping_files_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(RldsError, match=message):
        importing.read_mapping(tmp_path / "m.json")


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".h5"])
def test_the_line_that_inspect_suggests_runs(tmp_path: Path, suffix: str) -> None:
    columns = {"q": X["obs"], "cmd": X["action"], "r": X["reward"], "success": FLAGS}
    report = describe_file(save(tmp_path / f"run42{suffix}", columns))
    assert report.suggestion is not None and report.suggestion.startswith("rlds import ")
    words = report.suggestion.split()
    maps = dict(w.split("=") for w, before in zip(words[1:], words, strict=False) if before == "--map")
    planned = plan_import(report.path, "local/run42", fields=maps)
    assert {f.name for f in planned.fields} == {
        "observation",
        "action",
        "next/reward",
        "next/terminated",
        "next/truncated",
    }
    assert planned.rows == N + 4


def test_what_a_repository_has_beside_its_data_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    save(tmp_path / "set" / "a.npz", X)
    for name in ("README.md", "LICENSE", ".gitattributes", ".git/config", ".cache/huggingface/a.npz.metadata"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_text("about the data")
    planned = plan_import(tmp_path / "set", "local/a")
    assert planned.reader == "plain" and [f.name for f in planned.files] == ["a.npz"]
    with pytest.raises(UnknownLayout, match=r"README\.md has no layout"):
        plan_import(tmp_path / "set" / "README.md", "local/a")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (["1", "-2", ""], "int64"),
        (["1", "18446744073709551615"], "uint64"),
        (["-1", "18446744073709551615", "x"], "object"),
        (["1", "2.5", "NA", "inf"], "float64"),
        (["True", "FALSE", ""], "bool"),
        (["True", "1"], "object"),
        (["0x1F", "0x20"], "int64"),
        (["0x1F", "2.5"], "object"),
        (["", "NaN"], "int64"),
        (['"[1, 2]"', '"[0.5, 2]"'], "float64"),
        (["1", '"[0.5, 2]"'], "object"),
    ],
)
def test_types_of_csv_over_blocks(
    values: list[str], dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block holds a few rows here, so that types are joined over blocks; a file that is written again has others."""
    monkeypatch.setattr(text_tables, "BLOCK_BYTES", 64)
    for lines in ([f"{t},{values[t % len(values)]}" for t in range(40)], ["1,2"]):
        (tmp_path / "a.csv").write_text("\n".join(["t,x", *lines]) + "\n")
        with text_tables.open_text(tmp_path / "a.csv", fill=True) as table:
            assert table.num_rows == len(lines)
            assert str(table.columns["x"][1]) == (dtype if len(lines) > 1 else "int64")


def test_a_number_that_would_be_rounded_in_any_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_tables, "BLOCK_BYTES", 64)
    for cell in ("9007199254740993", "9007199254740993.0", "-9007199254740993"):
        for lines in ([cell, *["0.5"] * 40], [*["0.5"] * 40, cell]):
            (tmp_path / "a.csv").write_text("\n".join(["t,x", *(f"1,{x}" for x in lines)]) + "\n")
            row = lines.index(cell)
            with pytest.raises(UnknownLayout, match=f"x holds {cell} in row {row}, which would be rounded"):
                text_tables.open_text(tmp_path / "a.csv").__enter__()
