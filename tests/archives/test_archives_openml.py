"""OpenML's tables: codes as scikit-learn's LabelEncoder gives them (sorted values), read with pyarrow or by hand."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archive_rows import Rows
from server import Server

import rlds_cli
from rlds_cli import archives, registry
from rlds_cli.archives import flat_rows, openml
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files
from rlds_cli.ted import TERMINATED

ADULT = {
    "age": pa.array([39, 50, 38, 53], pa.int64()),
    "workclass": pa.array(["State", None, "Private", "Private"]).dictionary_encode(),
    "fnlwgt": pa.array([1.5, 2.5, None, 4.5]),
    "occupation": pa.array(["Sales", "Craft", "Sales", "Adm"]).dictionary_encode(),
    "class": pa.array(["<=50K", ">50K", "<=50K", ">50K"]).dictionary_encode(),
}
ARFF = """% a comment
@RELATION adult
@ATTRIBUTE age NUMERIC
@ATTRIBUTE workclass {State, Private}
@ATTRIBUTE fnlwgt REAL
@ATTRIBUTE occupation {Craft, Sales, Adm, Never}
@ATTRIBUTE class {'<=50K', '>50K'}
@DATA
39,State,1.5,Sales,'<=50K'
50,?,2.5,Craft,'>50K'
38,Private,?,Sales,'<=50K'
53,Private,4.5,Adm,'>50K'
"""


def write(path: Path, columns: dict[str, pa.Array]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture(params=["parquet", "arff"])
def adult(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "parquet":
        return write(tmp_path / "dataset_179.pq", ADULT)
    (tmp_path / "adult.arff").write_text(ARFF)
    return tmp_path / "adult.arff"


def test_by_hand(adult: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = archives.recognise([adult])
    assert found == ("openml", "a table of 4 rows and 5 columns, as a contextual bandit")
    monkeypatch.setattr(flat_rows, "CHUNK_ROWS", 6)
    rows = Rows("openml", adult)
    assert len(rows.chunks) == 2
    assert rows.episodes.length.tolist() == [1] * 4 and rows.episodes.row.tolist() == [0, 1, 2, 3]
    assert (rows.episodes.end == TERMINATED).all() and not rows.episodes.observed.any()
    assert rows.episodes.num_transitions.tolist() == [1] * 4
    numbers = [[39, 1.5], [50, 2.5], [38, np.nan], [53, 4.5]]
    np.testing.assert_array_equal(rows["observation/number"], np.repeat(numbers, 2, axis=0))
    # workclass: Private 0, State 1; occupation: Adm 0, Craft 1, Sales 2
    assert rows["observation/category"][::2].tolist() == [[1, 2], [-1, 1], [0, 2], [0, 0]]
    assert rows["action"].tolist() == [0, 0, 1, 0, 0, 0, 1, 0]
    assert rows["next/terminated"].tolist() == [True, False] * 4
    assert "next/reward" not in rows.schema
    assert rows.metadata == {
        "columns/observation/number": "age\nfnlwgt",
        "columns/observation/category": "workclass\noccupation",
        "columns/action": "class",
        "categories/workclass": "Private\nState",
        "categories/occupation": "Adm\nCraft\nSales",
        "categories/class": "<=50K\n>50K",
    }
    assert rows.codes == {"missing": 2}


def test_another_action(adult: Path) -> None:
    rows = Rows("openml", adult, fields={"action": "occupation"})
    assert rows["action"][::2].tolist() == [2, 1, 2, 0]
    assert rows["class"][::2].tolist() == [0, 1, 0, 1]
    assert rows["observation/category"][::2].tolist() == [[1], [-1], [0], [0]]


def test_numbers_alone_and_classes_that_are_numbers(tmp_path: Path) -> None:
    x = {"ID": pa.array([1, 2, 3]), "a": pa.array([1, 2, 3], pa.int32()), "b": pa.array([4, 5, 6], pa.uint8())}
    rows = Rows("openml", write(tmp_path / "dataset_1.pq", x | {"class:": pa.array([7, 1, 10])}))
    assert rows["observation"].tolist() == [[1, 4], [1, 4], [2, 5], [2, 5], [3, 6], [3, 6]]
    assert rows["observation"].dtype == np.int32
    assert rows["action"][::2].tolist() == [1, 0, 2]
    assert rows["id"][::2].tolist() == [1, 2, 3]
    assert rows.metadata["categories/class:"] == "1\n7\n10"


@pytest.mark.thorough
def test_rows_are_traced_through_groups_of_any_size(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(20.0), "kind": [f"k{i % 3}" for i in range(20)], "class": ["a", "b"] * 10})
    pq.write_table(table, tmp_path / "dataset_7.pq", row_group_size=7)
    ds = import_files(tmp_path / "dataset_7.pq", "local/groups", home=tmp_path)
    assert ds.column("observation/number")[::2, 0].tolist() == list(range(20))
    found = trace(ds)
    assert found.ok and found.steps == 20 and {"action", "observation/category"} <= {*found.fields}


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownLayout, match='has no column "job"'):
        Rows("openml", write(tmp_path / "dataset_1.pq", ADULT), fields={"action": "job"})
    with pytest.raises(UnknownLayout, match="no observation is left"):
        Rows("openml", write(tmp_path / "dataset_2.pq", {"class": ADULT["class"]}))
    with pytest.raises(UnknownLayout, match=r"list<.*> values"):
        Rows("openml", write(tmp_path / "dataset_3.pq", {"x": pa.array([[1], [2]]), "class": pa.array([1, 2])}))
    content = (tmp_path / "dataset_1.pq").read_bytes()
    (tmp_path / "dataset_4.pq").write_bytes(content[:40] + bytes(40) + content[80:])
    with pytest.raises(CorruptArchive, match="cannot be read as Parquet"):
        Rows("openml", tmp_path / "dataset_4.pq")
    (tmp_path / "a.arff").write_text(ARFF.replace("53,", "many,"))
    with pytest.raises(CorruptArchive, match="cannot be read as ARFF"):
        Rows("openml", tmp_path / "a.arff")
    (tmp_path / "b.pq").write_bytes(b"<html>")
    with pytest.raises(UnknownLayout, match="neither Parquet nor ARFF"):
        Rows("openml", tmp_path / "b.pq")
    assert openml.READER.recognise([write(tmp_path / "mine.parquet", ADULT)]) is None


@pytest.mark.thorough
def test_from_its_host(tmp_path: Path) -> None:
    url = registry.get("openml/adult").files[0].urls[0]
    with Server() as server:
        server.add(urlsplit(url).path, write(tmp_path / "a.pq", ADULT).read_bytes())
        ds = rlds_cli.download("openml/adult", source=server.url)
    assert ds.num_episodes == ds.num_steps == len(ds) == 4
    assert registry.get("adult_onehot").id == "openml/adult"
    batch = ds[:]
    np.testing.assert_array_equal(batch["observation", "category"], [[1, 2], [-1, 1], [0, 2], [0, 0]])
    assert batch["action"].tolist() == [0, 1, 0, 1]
