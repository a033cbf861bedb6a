"""Own data in text files whose values no column can hold as they are, and files without rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_files import FORMATS, write

from rlds_cli.archives.formats import text_tables
from rlds_cli.archives.formats.tables import open_flat
from rlds_cli.errors import ArchiveError, UnknownLayout
from rlds_cli.make.importing import import_files, plan_import

TEXTS = [".csv", ".jsonl"]
STEPS = {"obs": [1, 2, 3, 4], "action": [1, 2, 3, 4]}


def table(path: Path, columns: dict[str, list[Any]]) -> Path:
    """Write values exactly as Python prints them."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    else:
        path.write_text("\n".join([",".join(columns), *(",".join(map(str, r.values())) for r in rows)]) + "\n")
    return path


@pytest.mark.sampled(3)
@pytest.mark.parametrize("suffix", TEXTS)
@pytest.mark.parametrize(
    "values",
    [
        [2**64 + 1, 1, 2, 3],
        [1, 2, 2**70, 3],
        [-1, 2, 3, 2**63 + 1],  # no type has both
        [1.5, 2, 3, 2**53 + 1],
    ],
)
@pytest.mark.parametrize("key", ["obs", "episode", "info", "parts"])
def test_an_integer_that_would_be_rounded_is_refused(
    tmp_path: Path, suffix: str, values: list[Any], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_tables, "BLOCK_BYTES", 24)
    wrong = next(v for v in values if isinstance(v, int) and abs(v) > 2**53)
    if key == "parts":
        if suffix == ".csv":
            return
        values = [[v, v] for v in values]
    path = table(tmp_path / f"a{suffix}", {**STEPS, key: values})
    with pytest.raises(UnknownLayout, match=rf"a\{suffix}: {key} holds {wrong} in row \d, which would be rounded"):
        plan_import(path, "local/x")


@pytest.mark.parametrize("suffix", TEXTS)
def test_one_float_among_long_ids_merges_no_episodes(tmp_path: Path, suffix: str) -> None:
    ids = [2**53, 2**53, 2**53 + 1, 2**53 + 1]
    path = table(tmp_path / f"a{suffix}", {"episode": [*ids[:3], float(ids[0])], **STEPS})
    with pytest.raises(UnknownLayout, match=r"episode holds 9007199254740993 in row 2"):
        plan_import(path, "local/x")
    whole = plan_import(table(tmp_path / f"b{suffix}", {"episode": ids, **STEPS}), "local/x")
    assert whole.episodes is not None and whole.episodes["episodes"] == 2


@pytest.mark.parametrize("suffix", TEXTS)
def test_unsigned_integers_keep_their_values(tmp_path: Path, suffix: str) -> None:
    values = [2**64 - 1, 2**63, 0, 2**53 + 1]
    columns = {**STEPS, "obs": values, "episode": [2**63, 2**63, 2**63 + 1, 2**63 + 1], "big": [1e20, 2.5, 3.0, 4.0]}
    ds = import_files(table(tmp_path / f"a{suffix}", columns), "local/x")
    assert ds.schema["observation"].dtype == "uint64"
    assert [int(x) for k in (0, 1) for x in np.ravel(ds.episode(k)["observation"])] == values
    assert np.ravel(ds.episode(0)["big"]).tolist() == [1e20, 2.5]


@pytest.mark.parametrize("suffix", TEXTS)
@pytest.mark.parametrize(("key", "row"), [("obs", 2), ("action", 1)])
def test_one_text_among_numbers_is_refused(tmp_path: Path, suffix: str, key: str, row: int) -> None:
    columns = {**STEPS, key: [*STEPS[key]]}
    columns[key][row] = "x"
    with pytest.raises(UnknownLayout, match=rf"{key}.*row {row}"):
        plan_import(table(tmp_path / f"a{suffix}", columns), "local/x")


def test_texts_of_other_columns_are_noted_among_numbers(tmp_path: Path) -> None:
    planned = plan_import(table(tmp_path / "a.csv", {**STEPS, "info": [1, "x", 3, 4]}), "local/x")
    assert any("info holds 'x' in row 1" in n for n in planned.notes)
    said = plan_import(table(tmp_path / "b.csv", {**STEPS, "obs": ["go", "7", "stop", "go"]}), "local/x")
    assert {f.name: f.kind for f in said.fields}["observation"] == "text" and len(said.notes) == 1


# -- files without rows


def without_rows(path: Path, kind: str) -> Path:
    if kind == "no bytes":
        path.write_bytes(b"")
    elif path.suffix == ".csv":
        path.write_text("obs,action\n")
    elif path.suffix == ".jsonl":
        path.write_text("\n\n")
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"obs": pa.array([], pa.float64()), "action": pa.array([], pa.float64())}), path)
    else:
        write(path, {"obs": np.zeros((0, 2)), "action": np.zeros((0, 1))})
    return path


@pytest.mark.sampled(3)
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("kind", ["no bytes", "no rows"])
def test_a_file_without_rows_is_named_in_every_format(tmp_path: Path, suffix: str, kind: str) -> None:
    path = without_rows(tmp_path / f"none{suffix}", kind)
    with pytest.raises(UnknownLayout, match=rf"^none\{suffix} has no rows"):
        plan_import(path, "local/x")
    for k, name in enumerate(("a", "z")):
        write(tmp_path / "runs" / f"{name}{suffix}", {"obs": [1.0, 2.0 + k], "action": [1.0, 2.0]})
    for place in ("0", "m"):  # before the others and between them
        shutil.copy(path, tmp_path / "runs" / f"{place}{suffix}")
        with pytest.raises(UnknownLayout, match=rf"^{place}\{suffix} has no rows"):
            plan_import(tmp_path / "runs", "local/x")
        ds = import_files(tmp_path / "runs", f"local/x{place}", skip_bad=True)
        assert ds.num_episodes == 2 and any(f"{place}{suffix}" in str(n["where"]) for n in ds.manifest.notes)
        (tmp_path / "runs" / f"{place}{suffix}").unlink()


def test_files_and_groups_without_anything(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "nothing.h5", "w"):
        pass
    np.savez(tmp_path / "nothing.npz")
    with h5py.File(tmp_path / "groups.h5", "w") as f:
        for k in range(2):
            f[f"demo_{k}/obs"], f[f"demo_{k}/action"] = np.zeros((0, 2)), np.zeros((0, 1))
    with h5py.File(tmp_path / "d4rl.h5", "w") as f:
        f["observations"], f["actions"], f["rewards"] = np.zeros((0, 2)), np.zeros((0, 1)), np.zeros(0)
        f["terminals"] = np.zeros(0, bool)
    for name in ("nothing.h5", "nothing.npz", "groups.h5", "d4rl.h5"):
        with pytest.raises(ArchiveError, match=f"{name} has no rows"):
            plan_import(tmp_path / name, "local/x")


BLANKS = """obs_0, obs_1 , action, done, task, note, stamps
1, 2.5 , 0, False, pick, " two  words ", "[1, 2]"
 3, 3.5, 1, True , put it down,"a, b", "[3, 4]"
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_blanks_around_cells_and_names_are_no_part_of_them(tmp_path: Path, end: str) -> None:
    (tmp_path / "log.csv").write_bytes(BLANKS.replace("\n", end).encode())
    seen = import_files(tmp_path / "log.csv", "local/x", progress=False).episode(0)
    assert seen["observation"].tolist() == [[1, 2.5], [3, 3.5]] and seen["action"].tolist() == [0, 1]
    assert seen["next", "terminated"].reshape(-1).tolist() == [False, True]
    assert [*seen["task"]] == ["pick", "put it down"] and [*seen["note"]] == [" two  words ", "a, b"]
    assert seen["stamps"].tolist() == [[1, 2], [3, 4]]


def test_numbers_among_blanks_in_columns_without_blanks_in_their_names(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text('obs;action;size\n 1.5;0 ;5" pipe \n2.5; 1; 7" pipe\n')
    seen = import_files(tmp_path / "log.csv", "local/x", progress=False).episode(0)
    assert seen["observation"].tolist() == [[1.5], [2.5]] and seen["action"].tolist() == [0, 1]
    assert [*seen["size"]] == ['5" pipe', '7" pipe']


WHOLE = st.from_regex(r"-?[0-9]{1,15}", fullmatch=True)
DECIMAL = st.from_regex(r"-?[0-9]{1,15}\.[0-9]{1,20}([eE][-+]?[0-9]{1,2})?", fullmatch=True)


@given(st.data(), st.sampled_from(text_tables.DELIMITERS), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_decimals_of_a_csv_file_are_what_python_makes_of_them(tmp_path_factory, data, delimiter, end, ended) -> None:
    rows = data.draw(st.integers(1, 6))
    kinds = data.draw(st.lists(st.sampled_from([int, float]), min_size=2, max_size=4))
    columns = {
        f"c{k}": data.draw(st.lists(WHOLE if kind is int else DECIMAL | WHOLE, min_size=rows, max_size=rows))
        for k, kind in enumerate(kinds)
    }
    lines = [delimiter.join(columns), *map(delimiter.join, zip(*columns.values(), strict=True))]
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes((end.join(lines) + end * ended).encode())
    with open_flat(path) as table, table.rows([*columns]) as read:
        for name, values in read.read(0, rows).items():
            kind = float if any("." in v for v in columns[name]) else int
            expected = np.array([*map(kind, columns[name])], kind)
            assert values.dtype == expected.dtype and values.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["1", "-0", "007", "999999999999999"], "int64", [1, 0, 7, 999999999999999]),
        (["1.5", "-0.0", "2", "0.1"], "float64", [1.5, -0.0, 2.0, 0.1]),
        (["1.25e-3", "4.0E5", "00012.50", "3"], "float64", [0.00125, 400000.0, 12.5, 3.0]),
        (["1.5", "", "2", "nan"], "float64", [1.5, np.nan, 2.0, np.nan]),
        (["1e5", ".5", "5.", "+1"], "float64", [1e5, 0.5, 5.0, 1.0]),
        (["True", "False", "True", "False"], "bool", [True, False, True, False]),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_small_file_of_decimals_is_read_as_a_large_one(
    tmp_path: Path, cells: list[str], kind: str, values: list[Any], end: str
) -> None:
    for times in (1, 1 << 10):  # the second one is not small
        path = tmp_path / f"{times}.csv"
        path.write_bytes(end.join(["x;obs;action", *(f"{c};1.5;2" for c in times * cells)]).encode())
        with text_tables.open_text(path) as table:
            dtypes = {name: str(dtype) for name, (_, dtype) in table.columns.items()}
            read = table.rows(["x", "obs", "action"]).read(0, table.num_rows)
        assert dtypes == {"x": kind, "obs": "float64", "action": "int64"}
        np.testing.assert_array_equal(read["x"], np.array(times * values, kind))
        assert read["obs"].tolist() == [1.5] * times * 4
