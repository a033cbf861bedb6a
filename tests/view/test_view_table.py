"""What the viewer answers about a home, a dataset and its episodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from viewer import Viewer, viewing

import rlds_cli


def episode(k: int) -> dict[str, Any]:
    steps = 1 + k % 4
    return {
        "observation": {
            "state": np.full((steps + 1, 2), k, np.float32),
            "top": np.zeros((steps + 1, 24, 32, 3), np.uint8),
        },
        "action": np.zeros((steps, 1), np.float32),
        "next": {"reward": np.full(steps, k / 10, np.float32), "terminated": k % 2 == 0},
        "episode": {"task": ("pick", "push")[k % 2], "score": float(k) if k % 5 else float("nan")},
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("home")
    rlds_cli.create("local/day1", map(episode, range(30)), home=place, license="MIT", description="in the lab")
    rlds_cli.open_dataset("local/day1", home=place).select(episodes=[3]).label(quality="bad")
    rlds_cli.open_dataset("local/day1", home=place).tag("icra")
    rlds_cli.open_dataset("local/day1", home=place).select(where="task == 'pick'").save("pick", home=place)
    return place


@pytest.fixture(scope="module")
def viewer(home: Path) -> Iterator[Viewer]:
    with viewing(home=home) as found:
        yield found


def test_the_home_has_its_datasets(viewer: Viewer, home: Path) -> None:
    found = {d["key"]: d for d in viewer.record("home")["datasets"]}
    details = viewer.record("home", details=1)["datasets"]

    assert list(found) == ["local/day1", "local/day1@pick"]
    ds = rlds_cli.open_dataset("local/day1", home=home)
    day1 = found["local/day1"]
    assert (day1["version"], day1["episodes"], day1["steps"]) == (2, 30, ds.num_steps)
    assert (day1["licence"], day1["description"], day1["tags"], day1["grows"]) == ("MIT", "in the lab", ["icra"], False)
    assert details["local/day1"]["tasks"] == ["pick", "push"]
    files = [f for f in ds.path.rglob("*") if f.is_file()]
    assert details["local/day1"]["bytes"] == sum(f.stat().st_blocks * 512 for f in files)


def test_the_home_is_sent_again_when_it_has_changed(tmp_path: Path) -> None:
    rlds_cli.create("local/one", map(episode, range(2)), home=tmp_path)
    with viewing(home=tmp_path) as viewer:
        first = viewer.ask("api/home")
        known = {"If-None-Match": first.headers["etag"]}
        assert viewer.ask("api/home", headers=known).status == 304
        rlds_cli.open_dataset("local/one", home=tmp_path).label(grade=1)
        other = viewer.ask("api/home")  # who has no list gets the newest one
        assert other.record["datasets"][0]["version"] == 2 and other.headers["etag"] != first.headers["etag"]
        assert viewer.ask("api/home", headers=known).record == other.record


def test_a_dataset_that_is_damaged_is_in_the_home(tmp_path: Path) -> None:
    ds = rlds_cli.create("local/one", map(episode, range(2)), home=tmp_path)
    with viewing(home=tmp_path) as viewer:
        assert viewer.record("home")["datasets"][0]["episodes"] == 2
        file = ds.path / "zarr.json"
        ds.path.chmod(0o755)
        file.unlink()
        file.write_text("{}")
        (found,) = viewer.record("home")["datasets"]
        assert "manifest" in found["damage"] and found["episodes"] is None
        assert viewer.record("home", details=1)["datasets"]["local/one"]["tasks"] == []


def test_a_dataset_says_what_it_is(viewer: Viewer) -> None:
    found = viewer.record("dataset", d="local/day1")

    assert (found["id"], found["version"], found["ref"]) == ("local/day1", 2, "local/day1")
    assert [(v["number"], v["tags"]) for v in found["versions"]] == [(1, []), (2, ["icra"])]
    assert {f["name"] for f in found["summary"]["fields"]} >= {"observation/state", "observation/top", "action"}
    assert found["summary"]["about"]["licence"] == "MIT"
    codes = {f["code"]: f for f in found["findings"]}
    assert "constant" in codes or "constant-element" in codes or codes
    assert viewer.record("dataset", d="local/day1", v=1)["ref"] == "local/day1#v1"
    assert "select" in viewer.record("dataset", d="local/day1@pick")["made"][-1]["text"]


def test_a_page_of_the_table(viewer: Viewer, home: Path) -> None:
    ds = rlds_cli.open_dataset("local/day1", home=home)
    where = "score > quantile(score, 0.5) and task == 'pick'"

    found = viewer.record("episodes", d="local/day1", where=where, sort="score", descending=1, first=1, count=3)

    limit = np.nanquantile(ds.episodes["score"], 0.5)
    expected = [k for k in range(29, -1, -1) if ds.episodes["score"][k] > limit and k % 2 == 0]
    assert [row["number"] for row in found["episodes"]] == expected[1:4]
    assert (found["of"], found["matching"], found["cameras"]) == (30, len(expected), ["observation/top"])
    assert found["shell"].endswith(f"--sort score --descending --home {home}")
    assert found["python"] == f"rlds_cli.open_dataset('local/day1', home='{home}').select(where={where!r})"
    assert viewer.record("episodes", d="local/day1", count=1)["episodes"][0]["values"]["score"] is None  # NaN
    assert "quality" not in viewer.record("episodes", d="local/day1", v=1, count=1)["episodes"][0]["values"]


def test_numbers_that_javascript_would_round_are_texts(tmp_path: Path) -> None:
    stamps = [2**60 + 1, -(2**53), 2**53 - 1]
    made = [episode(k) | {"episode": {"stamp": stamp}} for k, stamp in enumerate(stamps)]
    rlds_cli.create("local/stamps", made, home=tmp_path)
    with viewing(home=tmp_path) as viewer:
        rows = viewer.record("episodes", d="local/stamps", sort="stamp")["episodes"]
    assert [row["values"]["stamp"] for row in rows] == [str(-(2**53)), 2**53 - 1, str(2**60 + 1)]


def test_columns_of_the_table(viewer: Viewer) -> None:
    found = {c["name"]: c for c in viewer.record("columns", d="local/day1", where="length == 2")["columns"]}

    assert found["length"]["counts"] == [8, 8, 7, 7]
    assert found["length"]["matched"] == [0, 8, 0, 0]
    assert found["task"]["values"] == [
        {"value": "pick", "episodes": 15, "matching": 0},
        {"value": "push", "episodes": 15, "matching": 8},
    ]
    asked = viewer.record("columns", d="local/day1", field=["start", "task"])["columns"]
    assert [c["name"] for c in asked] == ["start", "task"]


@pytest.mark.parametrize(
    ("asked", "status", "what"),
    [
        ({"where": "length >"}, 422, "not an expression"),
        ({"where": "nothing == 1"}, 422, "no episode column"),
        ({"where": "__import__('os')"}, 422, "not allowed"),
        ({"sort": "nothing"}, 404, "no episode column"),
        ({"count": "2000"}, 422, "2,000"),
        ({"first": "-1"}, 422, "-1"),
        ({"v": "9"}, 404, "version"),
    ],
)
def test_what_cannot_be_shown_is_said(viewer: Viewer, asked: dict[str, str], status: int, what: str) -> None:
    found = viewer.ask("api/episodes", d="local/day1", **asked)
    assert found.status == status and what in found.record["error"]


def test_a_dataset_of_the_command_is_shown_beside_the_home(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.open_dataset("local/day1", home=home)
    with viewing(ds, ds.select(episodes=[4, 2]), home=tmp_path) as viewer:
        whole, some = (viewer.record("episodes", d=key, where="length > 0") for key in ("~0", "~1"))

    assert (whole["of"], some["of"]) == (30, 2)
    assert whole["shell"] == f"rlds episodes {ds.path} --where 'length > 0' --home {tmp_path}"
    assert (some["shell"], some["select"], some["python"]) == (None, None, "ds.select(where='length > 0')")
    assert [row["values"]["length"] for row in some["episodes"]] == [1, 3]


def test_findings_of_a_selection_name_its_episodes(tmp_path: Path) -> None:
    broken = [episode(k) for k in range(8)]
    for k in (2, 5):
        broken[k]["observation"]["state"][0, 0] = np.nan
    ds = rlds_cli.create("local/broken", broken, home=tmp_path)
    with viewing(ds, ds.select(episodes=[7, 5, 1]), ds.select(episodes=[0, 1]), home=tmp_path) as viewer:
        whole, some, none = (
            [f for f in viewer.record("dataset", d=key)["findings"] if f["code"] == "not-finite"]
            for key in ("~0", "~1", "~2")
        )

    assert ([p["episode"] for p in whole[0]["places"]], whole[0]["where"]) == ([2, 5], "episode in [2, 5]")
    assert ([p["episode"] for p in some[0]["places"]], some[0]["where"]) == ([1], "episode in [1]")
    assert none == []


def test_it_follows_a_dataset_that_grows(tmp_path: Path) -> None:
    with rlds_cli.writer("local/growing", home=tmp_path) as writer, viewing(home=tmp_path) as viewer:
        for k in range(3):
            writer.add_episodes([episode(k)])
        writer.commit()
        before = viewer.ask("api/changed", d="local/growing")
        known = {"If-None-Match": before.headers["etag"]}
        same = viewer.ask("api/changed", d="local/growing", headers=known)
        assert viewer.record("episodes", d="local/growing")["of"] == 3
        writer.add_episodes([episode(3)])
        writer.commit()
        after = viewer.ask("api/changed", d="local/growing", headers=known)
        page = viewer.record("episodes", d="local/growing", sort="score", descending=1)

    assert (before.status, same.status, after.status) == (200, 304, 200)
    assert (before.record["episodes"], after.record["episodes"]) == (3, 4)
    assert [row["number"] for row in page["episodes"]] == [3, 2, 1, 0]
