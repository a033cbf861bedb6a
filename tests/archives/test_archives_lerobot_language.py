"""LeRobot's language columns, written by pyarrow, against the rules of its ``language_render`` and by hand."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_archives import Content, write_v2, write_v3

from rlds_cli.dataset import Dataset
from rlds_cli.errors import CorruptArchive
from rlds_cli.loader import Loader, Sequential, Transition
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import

ROW = [("role", pa.string()), ("content", pa.string()), ("style", pa.string())]
MORE = [("camera", pa.string()), ("tool_calls", pa.list_(pa.string()))]
COLUMNS = {
    "language_persistent": pa.list_(pa.struct([*ROW, ("timestamp", pa.float32()), *MORE])),
    "language_events": pa.list_(pa.struct([*ROW, *MORE])),
}
SAY = json.dumps({"type": "function", "function": {"name": "say", "arguments": {"text": "ok"}}})


def row(style: str | None, content: str | None, time: float | None = None, **more: Any) -> dict[str, Any]:
    """An annotation; without a time, that of an event."""
    timed = {} if time is None else {"timestamp": time}
    return {"role": "assistant", "content": content, "style": style, **timed, "camera": None, "tool_calls": None} | more


def add(root: Path, persistent: list[Any], events: list[Any], types: Any = COLUMNS) -> Path:
    """Add the columns: lists of annotations of all rows, in the order of the data files."""
    at = 0
    for path in sorted(root.glob("data/*/*.parquet")):
        rows = pq.read_table(path)
        for name, of_rows in (("language_persistent", persistent), ("language_events", events)):
            some = of_rows[at : at + rows.num_rows]
            rows = rows.append_column(name, pa.array(some, types[name]) if types else pa.array(some))
        pq.write_table(rows, path)
        at += rows.num_rows
    return root


def declare(root: Path) -> None:
    info = json.loads((root / "meta/info.json").read_text())
    info["features"] |= {k: {"dtype": "language", "shape": [1], "names": None} for k in COLUMNS}
    (root / "meta/info.json").write_text(json.dumps(info))


def steps(ds: Dataset, name: str) -> list[Any]:
    """The texts of the steps of all episodes; those of sub-tasks may be intervals."""
    e = ds.episodes
    name = "subtask" if name.startswith("language/subtask") and name not in ds.schema else name
    if name == "subtask" and not any(isinstance(v, str) for v in ds.episodes["subtasks"]):  # none is ever active
        return [None] * ds.num_steps
    rows = [np.arange(a, a + n) for a, n in zip(e["start"], e["length"], strict=True)]
    return [*ds.gather(name, np.concatenate(rows))]


def fate(ds: Dataset, name: str) -> list[str]:
    return next(e["used_as"] for e in ds.manifest.account if e["name"].startswith(name))


TOP, LEFT = "observation.images.top", "observation.images.left"
LISTED = [  # of the first episode; rows are a tenth of a second apart
    row("subtask", "reach", 0.1),
    row("subtask", "lift", 0.2),
    row("plan", "1. reach 2. lift", 0.0),
    row("task_aug", "Pick it up.", 0.0, role="user"),
    row("task_aug", "Grab it.", 0.0, role="user"),
]
ASKED = [
    row("vqa", "What is left?", role="user", camera=LEFT),
    row("vqa", "A cup.", camera=LEFT),
    row("vqa", "What is there?", role="user", camera=TOP),
]
SPOKEN = row(None, None, tool_calls=[SAY])


@pytest.mark.parametrize("declared", [True, False])
def test_annotations_are_texts_of_steps_to_batches(tmp_path: Path, declared: bool) -> None:
    root = write_v3(tmp_path / "a", Content(lengths=(4, 1)))
    stop = row("interjection", "halt!", role="user")
    add(root, [LISTED] * 4 + [[]], [[], ASKED, None, [stop, SPOKEN], [row("vqa", "Nothing.", camera=TOP)]])
    if declared:
        declare(root)
    ds = import_files(root, "local/a")
    assert {n: (f.kind, f.placement) for n, f in ds.schema.items() if n.startswith("language")} == {
        "language/plan": ("text", "root"),
        "language/interjection/user": ("text", "root"),
        "language/vqa/user/left": ("text", "root"),
        "language/vqa/user/top": ("text", "root"),
        "language/vqa/assistant/left": ("text", "root"),
        "language/vqa/assistant/top": ("text", "root"),
        "language_persistent": ("text", "root"),
        "language_events": ("text", "root"),
    }
    assert steps(ds, "language/subtask") == [None, "reach", "lift", "lift", None]
    assert ds.episodes["subtasks"].tolist() == ['[[1, 2, "reach"], [2, 4, "lift"]]', None]
    assert steps(ds, "language/plan") == ["1. reach 2. lift"] * 4 + [None]
    assert steps(ds, "language/interjection/user") == [None, None, None, "halt!", None]
    assert steps(ds, "language/vqa/user/left") == [None, "What is left?", None, None, None]
    assert steps(ds, "language/vqa/assistant/top") == [None] * 4 + ["Nothing."]
    augmented = [None if t is None else json.loads(t) for t in steps(ds, "language_persistent")]
    assert augmented == [LISTED[3:]] * 4 + [None]
    assert [None if t is None else json.loads(t) for t in steps(ds, "language_events")] == [None] * 3 + [[SPOKEN], None]
    assert fate(ds, "language_persistent") == ["language/plan", "language_persistent", "subtasks"]
    assert "language/vqa/user/top" in fate(ds, "language_events") and "language_events" in fate(ds, "language_events")
    note = next(n for n in ds.manifest.notes if n["code"] == "language-json")
    assert (note["count"], note["text"]) == (
        3,
        "annotations stay JSON: 1 with calls of tools; 2 with several of one kind at one time",
    )
    looked_up = trace(ds, 9)
    assert looked_up.ok and {"language/plan", "language/vqa/user/left", "language_events"} <= {*looked_up.fields}
    loader = Loader(ds, 4, sampler=Sequential(), window=Transition(anchors="steps"), fields=["action", "subtask"])
    assert list(next(iter(loader))["subtask"]) == [None, "reach", "lift", "lift"]


@pytest.mark.parametrize("odd", ["twice", "blank", "tool", "roles", "numbered"])
def test_sub_tasks_that_are_not_certain_stay_texts_of_steps(tmp_path: Path, odd: str) -> None:
    """Two at one time, one that says nothing or calls a tool, those of two roles, and beside numbered sub-tasks."""
    more = {
        "twice": [row("subtask", "a", 0.3), row("subtask", "b", 0.3)],
        "blank": [row("subtask", " ", 0.3)],
        "tool": [row("subtask", "wave", 0.3, tool_calls=[SAY])],
        "roles": [row("subtask", "watch", 0.0, role="user")],
        "numbered": [],
    }[odd]
    root = add(write_v3(tmp_path / "a", Content(lengths=(4, 1))), [LISTED + more] * 4 + [[]], [[]] * 5)
    if odd == "numbered":
        names = pa.table({"subtask_index": [0], "subtask": ["numbered"]})
        pq.write_table(names, root / "meta/subtasks.parquet")
        info = json.loads((root / "meta/info.json").read_text())
        info["features"]["subtask_index"] = {"dtype": "int64", "shape": [1], "names": None}
        (root / "meta/info.json").write_text(json.dumps(info))
        for path in root.glob("data/**/*.parquet"):
            table = pq.read_table(path)
            pq.write_table(table.append_column("subtask_index", pa.array([0] * len(table))), path)
    ds = import_files(root, "local/a")
    name = "language/subtask/assistant" if odd == "roles" else "language/subtask"
    assert name in ds.schema and list(ds.episode(0)[name])[:3] == [None, "reach", "lift"]
    numbered = ['[[0, 4, "numbered"]]', '[[0, 1, "numbered"]]'] if odd == "numbered" else None
    assert (ds.episodes["subtasks"].tolist() if "subtasks" in ds.episodes else None) == numbered


def active_at(rows: list[Any], t: float, style: str, role: str) -> str | None:
    """lerobot's rule: the latest that is not after t, and none if there are several."""
    found = [r for r in rows if r["style"] == style and r["role"] == role and r["timestamp"] <= t]
    latest = [r for r in found if r["timestamp"] == max(f["timestamp"] for f in found)]
    return latest[0]["content"] if len(latest) == 1 else None


@pytest.mark.parametrize("types", [COLUMNS, None])
@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.thorough) for k in range(1, 12))])
def test_random_annotations_are_active_as_in_lerobot(tmp_path: Path, seed: int, types: Any) -> None:
    """With the types of lerobot, or those that Arrow finds in each file, as lerobot's own writer has them."""
    rng = random.Random(seed)
    c = Content(lengths=(5, 1, 12, 3), splits={})
    times = [float(np.float32(t)) for t in (-1, 0, 0.1, 0.25, 0.3, 0.7, 9)]
    styles = ["subtask", "memory", "motion"]
    lists = [
        [
            row(
                rng.choice(styles),
                rng.choice([None, "a", "b"]),
                rng.choice(times),
                role=rng.choice(["user", "assistant"]),
            )
            for _ in range(rng.choice([0, 3, 9]))
        ]
        for _ in c.lengths
    ]
    everywhere = [of for of, n in zip(lists, c.lengths, strict=True) for _ in range(n)]
    root = add((write_v2 if seed % 2 else write_v3)(tmp_path / "a", c), everywhere, [[]] * c.rows, types)
    ds = import_files(root, "local/a")
    told = {(r["style"], r["role"]) for of in lists for r in of if r["content"] is not None and _single(r, of)}
    of_style = [style for style, _ in told]
    at = [float(t) for t in c.column("timestamp")]
    for style, role in told:
        name = f"language/{style}" + (f"/{role}" if of_style.count(style) > 1 else "")
        assert steps(ds, name) == [active_at(of, t, style, role) for of, t in zip(everywhere, at, strict=True)]
    stays = [[r for r in of if r["content"] is None or not _single(r, of)] or None for of in everywhere]
    kept = steps(ds, "language_persistent") if "language_persistent" in ds.schema else [None] * c.rows
    assert [None if t is None else json.loads(t) for t in kept] == stays


def _single(r: dict[str, Any], of: list[Any]) -> bool:
    return sum((o["style"], o["role"], o["timestamp"]) == (r["style"], r["role"], r["timestamp"]) for o in of) == 1


def test_annotations_that_name_no_field_stay_json(tmp_path: Path) -> None:
    """Odd names, styles of the other column, no time, and a name that would be above another one."""
    odd = [
        row("a/b", "x", 0.0),
        row("vqa", "x", 0.0),
        row("subtask", "x", float("nan")),
        row("..", "x", 0.0),
        row("plan", "x", 0.0, camera="top"),
    ]
    events = [row("subtask", "y"), row("note", "y"), row("note", "z", camera=TOP), row("vqa", "w", camera="top")]
    root = add(write_v2(tmp_path / "a", Content(lengths=(2,))), [odd] * 2, [events, [row(None, "said")]])
    ds = import_files(root, "local/a")
    assert [n for n in ds.schema if n.startswith("language/")] == ["language/note/assistant/top"]
    assert steps(ds, "language/note/assistant/top") == ["z", None]
    assert json.loads(steps(ds, "language_persistent")[1]) == [*odd[:2], {**odd[2], "timestamp": None}, *odd[3:]]
    kept = [json.loads(t) for t in steps(ds, "language_events")]
    assert kept == [[events[0], events[1], events[3]], [row(None, "said")]]


def test_columns_without_annotations_are_said_to_be_empty(tmp_path: Path) -> None:
    ds = import_files(add(write_v2(tmp_path / "a", Content(lengths=(2, 1))), [[]] * 3, [None] * 3, None), "local/a")
    assert not [n for n in ds.schema if n.startswith("language")]
    left_out = {e["name"]: e["left_out"] for e in ds.manifest.account if e.get("left_out")}
    assert left_out["language_persistent"] == left_out["language_events"] == "it is empty"


def test_a_column_of_another_name_keeps_the_json_of_all_its_rows(tmp_path: Path) -> None:
    root = add(write_v2(tmp_path / "a", Content(lengths=(2,))), [LISTED] * 2, [[], []])
    ds = import_files(root, "local/a", fields={"notes": "language_persistent"})
    found = [json.loads(t) for t in steps(ds, "notes")]
    wanted = [r | {"timestamp": float(np.float32(r["timestamp"]))} for r in LISTED]
    assert found == [wanted] * 2 and not [n for n in ds.schema if n.startswith("language/")]


def test_rows_that_are_no_lists_of_annotations_are_refused(tmp_path: Path) -> None:
    types = {"language_persistent": pa.list_(pa.string()), "language_events": pa.list_(pa.string())}
    root = add(write_v2(tmp_path / "a", Content(lengths=(2,))), [["a"], []], [[], []], types)
    with pytest.raises(CorruptArchive, match=r"episode_000000\.parquet: language_persistent holds \"\['a'\]\""):
        plan_import(root, "local/a")
