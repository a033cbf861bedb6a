"""The functions at the top of the library, and methods of datasets, episodes and batches that stand for others."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest

import rlds_cli
from rlds_cli.errors import DatasetNotFound, InvalidArgument
from rlds_cli.loader import Slice
from rlds_cli.look.report import FileReport

EPISODES = [
    {"observation": np.arange(5.0)[:, None], "action": np.full((4, 2), k), "next": {"reward": np.full(4, float(k))}}
    for k in range(3)
]


@pytest.fixture
def ds() -> rlds_cli.Dataset:
    return rlds_cli.create("local/three", EPISODES)


def test_load_downloads_what_the_registry_knows(capfd: pytest.CaptureFixture[str]) -> None:
    ds = rlds_cli.load("sample/pendulum-d4rl")
    assert "downloading" in capfd.readouterr().err
    assert rlds_cli.load("sample/pendulum-d4rl", offline=True).fingerprint == ds.fingerprint
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("ref", ["local/absent", "d4rl/absent-v0", "sample/pendulum-d4rl#v7"])
def test_load_of_what_nobody_knows(ref: str) -> None:
    with pytest.raises(DatasetNotFound):
        rlds_cli.load(ref)


def test_filter_shares_the_rows(ds: rlds_cli.Dataset) -> None:
    by_column, by_function = ds.filter("total_reward >= 4"), ds.filter(lambda e: e["action"].max() >= 1)
    assert by_column.is_selection
    assert by_column.episodes["total_reward"].tolist() == by_function.episodes["total_reward"].tolist() == [4, 8]


def test_map_makes_a_dataset(ds: rlds_cli.Dataset) -> None:
    made = ds.map(lambda e: {**e, "twice": 2 * e["action"]}, "twice")
    assert made.id == "local/three@twice"
    assert made.column("twice")[ds.rows_of(np.arange(12))].tolist() == [
        [2 * k, 2 * k] for k in range(3) for _ in range(4)
    ]
    batch = next(iter(made.loader(4, seed=0)))  # fields of a function are in the batch by default
    assert (batch["twice"] == 2 * batch["action"]).all()


@pytest.mark.thorough
def test_loader_is_a_loader_of_the_dataset(ds: rlds_cli.Dataset) -> None:
    batch = next(iter(ds.loader(6, window=Slice(2), backend="numpy")))
    assert batch["observation"].shape == (6, 2, 1)


def test_inspect_describes_datasets_episodes_and_files(ds: rlds_cli.Dataset, tmp_path: Path) -> None:
    assert rlds_cli.inspect(ds).counts.episodes == rlds_cli.inspect("local/three").counts.episodes == 3
    assert rlds_cli.inspect("local/three", episode=-1).total_reward == 8
    table = tmp_path / "two.csv"
    table.write_text("episode,observation,action\n0,1,2\n0,3,4\n")
    assert isinstance(rlds_cli.inspect(table), FileReport)
    with pytest.raises(DatasetNotFound):
        rlds_cli.inspect("local/nothing/here")


def _cells(html: str) -> list[str]:
    return [unescape(c) for c in re.findall(r"<t[hd] [^>]*>(.*?)</t[hd]>", html)]


def test_notebooks_show_tables(ds: rlds_cli.Dataset) -> None:
    assert {"observation", "[1]", "both", "next/reward"} <= set(_cells(ds._repr_html_()))
    assert {"length", "total_reward", "8.00", "4"} <= set(_cells(ds.episodes._repr_html_()))
    assert {"next/reward", "float64[4, 1]"} <= set(_cells(ds.episode(1)._repr_html_()))
    hostile = rlds_cli.create("local/hostile", [{**EPISODES[0], "<b>": np.zeros(5)}])
    assert "<b>x" not in hostile._repr_html_() and "&lt;b&gt;" in hostile._repr_html_()


def _rows(html: str) -> list[dict[str, str]]:
    head, *rows = (_cells(line) for line in re.findall(r"<tr>(.*?)</tr>", html))
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_notebooks_show_the_statistics_and_histograms_of_fields() -> None:
    observation = np.array([[0.0], [0.0], [0.0], [15.0], [0.0]])
    ds = rlds_cli.create("local/spread", [{"observation": observation, "action": np.arange(4), "text": ["a"] * 4}] * 2)
    shown = {row["field"]: row for row in _rows(ds._repr_html_())}
    state = shown["observation"]
    assert [state[n] for n in ("placement", "dtype", "shape")] == ["both", "float64", "[1]"]
    assert [state[n] for n in ("mean", "min", "max")] == ["3.75", "0.00", "15.00"]  # of steps: 0, 0, 0 and 15
    assert state["std"] == "6.50"
    assert state["histogram"] == "█" + " " * 14 + "▃"  # two of eight are 15
    assert shown["text"]["dtype"] == "text" and shown["text"]["mean"] == shown["text"]["histogram"] == ""
    assert _rows(rlds_cli.inspect(ds)._repr_html_()) == list(shown.values())
    one = ds.select(episodes=[0])
    assert "statistics of all 2 episodes" in one._repr_html_() and "of all" not in ds._repr_html_()


def test_notebooks_show_episodes_without_ids_and_long_floats() -> None:
    rewards = np.array([1 / 3, 1 / 7])
    one = {"observation": np.zeros((3, 1)), "action": np.zeros((2, 1)), "next": {"reward": rewards}}
    note = {"episode": {"note": "<script>", "weight": 2 / 3}}
    html = rlds_cli.create("local/long", [one | note]).episodes._repr_html_()
    (row,) = _rows(html)
    assert not {"id", "start", "row", "has_seed"} & row.keys()
    assert row["length"] == "2" and row["total_reward"] == "0.48" and row["weight"] == "0.67"
    assert row["note"] == "<script>" and "<script>" not in html
    assert not re.search(r"\d{12}|color|background", html)  # a notebook may be light or dark


@pytest.mark.thorough
def test_episodes_as_a_table_of_pandas(ds: rlds_cli.Dataset) -> None:
    pd = pytest.importorskip("pandas")
    frame = ds.filter("total_reward >= 4").episodes.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame["total_reward"].tolist() == [4, 8]


def test_an_episode_is_drawn(ds: rlds_cli.Dataset) -> None:
    chart = ds.episode(1).plot("action")
    assert chart._repr_svg_() == chart
    assert chart.startswith("<svg")
    with pytest.raises(InvalidArgument, match="not one"):
        ds[0:3].plot()
