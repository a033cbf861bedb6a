"""Decisions that are applied: what they change, where they clash, who made them, and that all ways give one result."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import run_rlds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loader_data import episode

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.dataset.decisions import account, planning, tables
from rlds_cli.dataset.decisions.decision import Decision
from rlds_cli.errors import ClashingDecisions, InvalidArgument, NameTaken, RldsError
from rlds_cli.store import History, StoredColumn


@pytest.fixture
def ds(home: Path) -> Dataset:
    """Five episodes of 5 to 9 steps, the third with labels."""
    made = rlds_cli.create("local/a", [episode(k, 5 + k).plain(reward=True) for k in range(5)])
    return made.select(episodes=[2]).label(quality=3, note="seen")


def ids_of(ds: Dataset) -> list[str]:
    return [row.tobytes().hex() for row in ds.episodes["id"]]


def test_labels_drops_and_subtasks_are_one_next_version(ds: Dataset) -> None:
    a, b, c, d, e = ids_of(ds)
    made = ds.apply(
        [
            {"id": c, "quality": None, "success": True},
            {"id": e, "success": False, "note": "late"},
            {"id": b, "do": "drop"},
            {"id": d, "do": "subtask", "first": 0, "stop": 3, "text": "reach"},
            {"id": d, "do": "subtask", "first": 5, "stop": 8, "text": "grasp"},
        ]
    )
    assert (made.version, ids_of(made)) == (3, [a, c, d, e])
    assert made.episodes["success"].tolist() == [None, True, None, False]
    assert made.episodes["note"].tolist() == [None, "seen", None, "late"]
    assert "quality" not in made.episodes
    assert made.episodes["subtasks"].tolist() == [None, None, '[[0, 3, "reach"], [5, 8, "grasp"]]', None]
    by_hand = ds.select(episodes=[1]).drop(name="hand")
    by_hand = by_hand.label(
        success=[None, True, None, False],
        note=[None, "seen", None, "late"],
        quality=None,
        subtasks=[None, None, [[0, 3, "reach"], [5, 8, "grasp"]], None],
    )
    assert made.fingerprint == by_hand.fingerprint
    assert rlds_cli.open_dataset("local/a#v3").restore().fingerprint == made.fingerprint
    assert rlds_cli.open_dataset("local/a#v2").restore().fingerprint == ds.fingerprint


def test_a_trim_and_a_split_are_those_of_select_trim(ds: Dataset) -> None:
    a, b, c, d, e = ids_of(ds)
    ds = ds.label(subtasks=[None, None, None, [[0, 4, "reach"], [4, 8, "grasp"]], None])
    decisions = [
        {"id": d, "do": "keep", "first": 5, "stop": 8},
        {"id": d, "do": "keep", "first": 1, "stop": 5},
        {"id": e, "do": "keep", "first": 2, "stop": 9},
        {"id": a, "do": "drop"},
        {"id": b, "do": "keep", "first": 0, "stop": 6},  # whole
    ]
    made = ds.apply(decisions, name="clean")
    wanted = ds.trim({0: None, 3: [(1, 5), (5, 8)], 4: (2, 9)}, "wanted")
    assert made.id == "local/a@clean" and made.fingerprint == wanted.fingerprint
    assert ids_of(made) == ids_of(wanted) and ids_of(made)[:2] == [b, c]
    assert made.episodes["length"].tolist() == [6, 7, 4, 3, 7]
    assert made.episodes["end"].tolist() == wanted.episodes["end"].tolist()
    assert made.episodes["subtasks"].tolist()[2:4] == ['[[0, 3, "reach"], [3, 4, "grasp"]]', '[[0, 3, "grasp"]]']
    for k, (number, first, stop) in enumerate([(1, 0, 6), (2, 0, 7), (3, 1, 5), (3, 5, 8), (4, 2, 9)]):
        part, whole = made.episode(k), ds.episode(number)
        for name in ("observation", "action", "next/reward", "next/terminated"):
            np.testing.assert_array_equal(part[name], whole[name][first:stop])
        assert made.episodes["total_reward"][k] == pytest.approx(whole["next/reward"][first:stop].sum())
    with pytest.raises(InvalidArgument, match="2 episodes"):
        ds.apply(decisions)
    assert rlds_cli.open_dataset("local/a").version == ds.version


def test_labels_go_with_the_parts_of_an_episode(ds: Dataset) -> None:
    *_, d, _ = ids_of(ds)
    made = ds.apply(
        [
            {"id": d, "do": "keep", "first": 0, "stop": 2, "success": True, "task": "press"},
            {"id": d, "do": "keep", "first": 4, "stop": 6},
            {"id": d, "do": "subtask", "first": 1, "stop": 5, "text": "reach"},
        ],
        name="parts",
    )
    assert made.episodes["length"].tolist() == [5, 6, 7, 2, 2, 9]
    assert made.episodes["success"].tolist() == [None, None, None, True, True, None]
    assert made.episodes["task"].tolist() == [None, None, None, "press", "press", None]
    assert made.episodes["subtasks"].tolist()[3:5] == ['[[1, 2, "reach"]]', '[[0, 1, "reach"]]']


def test_a_subtask_takes_the_place_of_what_was_said_of_its_steps(ds: Dataset) -> None:
    *_, e = ids_of(ds)
    ds = ds.label(subtasks=[None, None, None, None, [[0, 4, "reach"], [4, 9, "grasp"]]])
    made = ds.apply([{"id": e, "do": "subtask", "first": 2, "stop": 6, "text": "wait"}])
    assert made.episodes["subtasks"][4] == '[[0, 2, "reach"], [2, 6, "wait"], [6, 9, "grasp"]]'
    made = made.apply([{"id": e, "do": "subtask", "first": 1, "stop": 7, "text": None}])
    assert made.episodes["subtasks"][4] == '[[0, 1, "reach"], [7, 9, "grasp"]]'


# -- ways to give them


def table(ds: Dataset) -> tuple[str, list[dict[str, Any]]]:
    """Decisions as a file and as records."""
    a, b, c, d, e = ids_of(ds)
    text = (
        "id,do,first,stop,text,quality,note,by,time,version,comment\n"
        f"{a},,,,,4,7,ann,2026-03-01T09:30:00Z,2,\n"
        f'{b.upper()},drop,,,,,,ann,2026-03-01T09:30:04Z,2,"blurred, twice"\n'
        f"{c},,,,,null,,bob,2026-03-01 10:00,2,\n"
        f"{d},subtask,0,3,reach,,,bob,,2,\n"
        f'{e},,,,,,"""true""",bob,,,\n'
    )
    records = [
        {"id": a, "quality": 4, "note": "7", "by": "ann", "time": "2026-03-01T09:30:00Z", "version": 2},
        {"id": b, "do": "drop", "by": "ann", "time": "2026-03-01T09:30:04Z", "version": 2, "comment": "blurred, twice"},
        {"id": c, "labels": {"quality": None}, "by": "bob", "time": "2026-03-01T10:00:00+00:00", "version": 2},
        {"id": d, "do": "subtask", "first": 0, "stop": 3, "text": "reach", "by": "bob", "version": 2},
        {"id": e, "note": "true", "by": "bob"},
    ]
    return text, records


def test_file_records_journal_command_and_frame_give_one_dataset(ds: Dataset, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    text, records = table(ds)
    file = tmp_path / "decisions.csv"
    file.write_text(text)
    made = [ds.apply(file, name="file"), ds.apply(records, name="records")]
    made.append(ds.apply(pandas.read_csv(file, keep_default_na=False, dtype={"note": str}), name="frame"))
    assert run_rlds("apply", "local/a", file, "--name", "command").returncode == 0
    made.append(rlds_cli.open_dataset("local/a@command"))
    labels = ("quality", "note")
    members = [{n: v for n, v in r.items() if n not in labels} for r in records]
    of = [{"labels": {**r.get("labels", {}), **{n: r[n] for n in labels if n in r}}} for r in records]
    ds.decisions().add([m | x for m, x in zip(members, of, strict=True)])
    assert run_rlds("apply", "local/a", "--name", "journal").returncode == 0
    made.append(rlds_cli.open_dataset("local/a@journal"))
    assert run_rlds("apply", "local/a", "--export", tmp_path / "again.csv").returncode == 0
    made.append(ds.apply(tmp_path / "again.csv", name="again"))
    made.append(ds.apply(ds.decisions()))
    assert len({m.fingerprint for m in made}) == 1
    assert made[0].episodes["note"].tolist() == ["7", "seen", None, "true"]
    np.testing.assert_array_equal(made[0].episodes["quality"], [4, np.nan, np.nan, np.nan])
    assert ds.decisions().pending() != [] and made[-1].decisions().pending() == []


WRONG = [
    ("{a},dorp,,,", "line 2.*dorp"),
    ("{a},keep,3,,", "line 2.*stop"),
    ("{a},keep,x,5,", "line 2.*'x'"),
    ("{a},keep,3,6,", "6"),
    ("{a},drop,0,3,", "line 2.*first"),
    ("{a},subtask,0,3,", "line 2.*text"),
    ("3,drop,,,", "line 2.*'3'"),
    ("0123456789abcdef0123456789abcdef,drop,,,", "0123456789abcdef0123456789abcdef"),
    ("{a},drop,,", "line 2.*fewer"),
]


@pytest.mark.parametrize(("line", "named"), WRONG, ids=[line for line, _ in WRONG])
def test_a_row_that_cannot_be_understood_refuses_the_file(ds: Dataset, tmp_path: Path, line: str, named: str) -> None:
    a, b, *_ = ids_of(ds)
    file = tmp_path / "decisions.csv"
    file.write_text(f"id,do,first,stop,text\n{line.format(a=a)}\n{b},drop,,,\n")
    with pytest.raises(RldsError, match=named):
        ds.apply(file)
    assert rlds_cli.open_dataset("local/a").version == 2


def test_the_first_row_with_a_wrong_value_is_named(ds: Dataset, tmp_path: Path) -> None:
    """Whatever its column: columns are read at once."""
    a, b, c, d, _ = ids_of(ds)
    (tmp_path / "d.csv").write_text(f"id,do,version,grade\n{a},drop,2,\n{b},,2,nan\n{c},drop,two,\n{d},dorp,2,\nx,,,\n")
    with pytest.raises(InvalidArgument, match=r"line 3: label grade: nan"):
        ds.apply(tmp_path / "d.csv", name="wrong")


def test_a_dataset_of_the_registry_becomes_another_one(home: Path) -> None:
    ds = rlds_cli.download("sample/pendulum-d4rl")
    with pytest.raises(InvalidArgument, match="no decisions"):
        ds.apply(ds.decisions(), name="clean")
    assert not rlds_cli.find("sample/pendulum-d4rl@clean")
    ds.decisions().add([{"id": ids_of(ds)[0], "do": "drop"}])
    with pytest.raises(InvalidArgument, match="registry"):
        ds.apply(ds.decisions())
    made = ds.apply(ds.decisions(), name="clean")
    assert ids_of(made) == ids_of(ds)[1:]
    with pytest.raises(NameTaken):
        ds.apply(ds.decisions(), name="clean")
    assert len(ds.decisions().pending()) == 1


# -- two annotators


def test_decisions_on_an_earlier_version_find_their_episodes_in_the_newest(ds: Dataset) -> None:
    _, b, c, d, e = ids_of(ds)
    ds.select(episodes=[0]).drop().label(fps_seen=1)
    made = ds.apply([{"id": c, "success": True}, {"id": d, "do": "drop"}])
    assert made.version == 5 and ids_of(made) == [b, c, e]
    assert made.episodes["success"].tolist() == [None, True, None]


def test_a_version_that_is_made_meanwhile_is_the_one_that_is_changed(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c, d, e = ids_of(ds)
    settle = planning.settle

    def meanwhile(opened: Dataset, *more: Any) -> Any:
        found = settle(opened, *more)
        if opened.version == 2:
            rlds_cli.open_dataset("local/a").select(episodes=[0]).drop()  # by another process
        return found

    monkeypatch.setattr(planning, "settle", meanwhile)
    made = ds.apply([{"id": c, "success": True}, {"id": b, "do": "drop"}, {"id": a, "do": "drop"}])
    assert made.version == 4 and ids_of(made) == [c, d, e]
    assert made.episodes["success"].tolist() == [True, None, None]


def test_without_the_version_that_was_looked_at_a_label_is_not_written_over(ds: Dataset) -> None:
    _, _, c, d, _ = ids_of(ds)
    mine = [{"id": c, "quality": 5, "by": "ann", "version": 1}, {"id": d, "quality": 5, "by": "ann", "version": 1}]
    shutil.rmtree(History(ds.path).at(1))
    with pytest.raises(ClashingDecisions) as caught:
        ds.apply(mine)
    (clash,) = caught.value.clashes  # d has no value that could be written over
    assert (clash.id, [s.value for s in clash.sides]) == (c, [5, 3])
    with pytest.raises(InvalidArgument, match="version 3"):
        ds.apply([{"id": c, "quality": 5, "version": 3}])


@pytest.mark.parametrize(("take", "quality"), [("mine", 5), ("theirs", 4)])
def test_a_label_that_was_changed_meanwhile_is_not_written_over(ds: Dataset, take: str, quality: int) -> None:
    _, _, c, d, _ = ids_of(ds)
    ds.apply([{"id": c, "quality": 4, "by": "bob"}])
    mine = [{"id": c, "quality": 5, "by": "ann"}, {"id": d, "quality": 1, "by": "ann"}]
    with pytest.raises(ClashingDecisions) as caught:
        ds.apply(mine)
    (clash,) = caught.value.clashes
    assert (clash.id, clash.about, clash.kind, clash.before) == (c, "quality", "changed", 3)
    assert [(s.value, s.by) for s in clash.sides] == [(5, "ann"), (4, "bob")]
    newest = rlds_cli.open_dataset("local/a")
    assert newest.version == 3 and newest.episodes["quality"][2] == 4
    made = ds.apply(mine, take=take)
    assert made.episodes["quality"][2:4].tolist() == [quality, 1]


def test_what_an_annotator_changes_of_the_own_decisions_is_no_clash(ds: Dataset) -> None:
    _, _, c, *_ = ids_of(ds)
    ds.apply([{"id": c, "quality": 4, "by": "ann"}])
    made = ds.apply([{"id": c, "quality": 5, "by": "ann"}])  # the page still shows version 2
    assert made.episodes["quality"][2] == 5


def test_an_episode_that_was_dropped_meanwhile_is_not_forgotten(ds: Dataset) -> None:
    a, b, *_ = ids_of(ds)
    ds.apply([{"id": a, "do": "drop", "by": "bob"}])
    mine = [{"id": a, "success": True, "by": "ann"}, {"id": b, "success": True, "by": "ann"}]
    with pytest.raises(ClashingDecisions) as caught:
        ds.apply(mine)
    (clash,) = caught.value.clashes
    assert (clash.id, clash.kind, clash.sides[1].value, clash.sides[1].by) == (a, "left", "drop", "bob")
    with pytest.raises(InvalidArgument, match="restore"):
        ds.apply(mine, take="mine")
    made = ds.apply(mine, take="theirs")
    assert ids_of(made)[0] == b and made.episodes["success"][0]
    again = ds.apply([{"id": a, "do": "drop", "by": "ann"}])  # both have dropped it
    assert again.version == made.version


def test_two_annotators_who_say_different_things_are_asked(ds: Dataset) -> None:
    a, b, c, *_ = ids_of(ds)
    given = [
        {"id": a, "success": True, "by": "ann"},
        {"id": a, "success": False, "by": "bob"},
        {"id": b, "do": "drop", "by": "ann"},
        {"id": b, "do": "keep", "first": 0, "stop": 6, "by": "bob"},
        {"id": c, "do": "subtask", "first": 0, "stop": 3, "text": "reach", "by": "ann"},
        {"id": c, "do": "subtask", "first": 2, "stop": 4, "text": "grasp", "by": "bob"},
    ]
    plan = ds.plan(given)
    assert [(x.id, x.about, x.kind) for x in plan.clashes] == [
        (a, "success", "annotators"),
        (b, "do", "annotators"),
        (c, "subtasks", "annotators"),
    ]
    made = ds.apply(given, take="bob")
    assert ids_of(made) == ids_of(ds)
    assert made.episodes["success"][0] is False and made.episodes["subtasks"][2] == '[[2, 4, "grasp"]]'
    assert ids_of(ds.apply([{"id": b, "do": "drop", "by": n} for n in ("ann", "bob")])) == [a, *ids_of(ds)[2:]]


def test_a_review_takes_the_place_of_what_it_was_a_review_of(ds: Dataset) -> None:
    a, b, *_ = ids_of(ds)
    journal = ds.decisions()
    journal.add(
        [{"id": a, "labels": {"success": True, "quality": 2}, "by": "ann"}, {"id": b, "do": "drop", "by": "ann"}]
    )
    first, second = journal.made()
    journal.add(
        [
            {"id": a, "labels": {"success": False, "quality": 2}, "by": "bob", "reviews": first.key},
            {"id": b, "do": "drop", "by": "bob", "reviews": second.key},
        ]
    )
    (review,) = journal.agreement().reviews
    assert (review.by, review.of, review.confirmed, review.contradicted) == ("bob", "ann", 2, 1)
    made = ds.apply(journal)
    assert (made.episodes["success"][0], made.episodes["quality"][0]) == (False, 2)


def test_of_one_annotator_the_last_decision_counts(ds: Dataset) -> None:
    a, b, *_ = ids_of(ds)
    by: dict[str, Any] = {"by": "ann"}
    made = ds.apply(
        [
            {"id": a, "success": True, **by},
            {"id": a, "success": False, **by},
            {"id": b, "do": "drop", **by},
            {"id": b, "do": "keep", "first": 1, "stop": 4, **by},
            {"id": b, "do": "keep", "first": 2, "stop": 5, **by},
        ],
        name="last",
    )
    assert made.episodes["success"][0] is False
    assert made.episodes["length"].tolist() == [5, 3, 7, 8, 9]


def test_decisions_that_a_restore_has_undone_are_pending_again(ds: Dataset) -> None:
    a, b, *_ = ids_of(ds)
    ds.decisions().add([{"id": a, "do": "drop", "by": "ann"}])
    third = ds.apply(ds.decisions())
    third.decisions().add([{"id": b, "do": "drop", "by": "ann"}])
    fourth = third.apply(third.decisions())
    assert fourth.decisions().pending() == []
    assert [d.id for d in rlds_cli.open_dataset("local/a#v3").restore().decisions().pending()] == [b]
    assert [d.id for d in rlds_cli.open_dataset("local/a#v2").restore().decisions().pending()] == [a, b]
    assert rlds_cli.open_dataset("local/a#v4").restore().decisions().pending() == []


def test_a_file_that_was_applied_is_not_applied_over_what_others_changed_since(ds: Dataset, tmp_path: Path) -> None:
    _, _, c, *_ = ids_of(ds)
    ds.decisions().add([{"id": c, "labels": {"quality": 5}, "by": "ann"}])
    ds.decisions().export(tmp_path / "d.csv")
    ds.apply(tmp_path / "d.csv").select(episodes=[2]).label(quality=1)
    again = rlds_cli.open_dataset("local/a").apply(tmp_path / "d.csv")
    assert again.version == 4 and again.episodes["quality"][2] == 1
    note = run_rlds("apply", "local/a")
    assert note.returncode == 0 and b"no new version" in note.stderr


# -- who decided what, here and in another home


def test_the_version_says_who_decided_what_and_when(ds: Dataset, tmp_path: Path) -> None:
    a, b, *_ = ids_of(ds)
    file = tmp_path / "decisions.csv"
    times = "2026-03-01T09:30:00+00:00", "2026-03-01T09:30:04.250000+00:00"
    file.write_text(f"id,do,success,by,time,comment\n{a},,true,ann,{times[0]},\n{b},drop,,ann,{times[1]},blurred\n")
    assert run_rlds("apply", "local/a", file).returncode == 0
    log = json.loads(run_rlds("log", "local/a", "--json").stdout)
    assert log[-1]["change"] == "apply decisions.csv (2 decisions: 2 of ann)"
    labels, drop = log[-1]["decisions"]
    assert (labels["by"], labels["episodes"], labels["labels"], labels["from"]) == (
        "ann",
        [a],
        {"success": True},
        times[0],
    )
    assert (drop["do"], drop["episodes"], drop["comments"]) == ("drop", [b], ["blurred"])
    told = run_rlds("log", "local/a", "--verbose").stdout.decode()
    assert f"ann decided, from {times[0]} on: success=true: 1 episode: {a}" in told
    diff = run_rlds("diff", "local/a#v2", "local/a")
    assert diff.returncode == 1 and f"drop: 1 episode: {b}" in " ".join(diff.stdout.decode().split())


def test_another_home_makes_it_by_the_lock_and_says_who_decided(ds: Dataset, tmp_path: Path) -> None:
    first = rlds_cli.download("sample/pendulum-d4rl")
    a, b, *_ = ids_of(first)
    keep = {"id": a, "do": "keep", "first": 3, "stop": 9, "by": "ann"}
    one = first.apply([keep, {"id": b, "do": "drop"}], name="cut")
    one = one.apply([{"id": ids_of(one)[0], "success": True, "by": "bob"}])
    lock = run_rlds("lock", one.id)
    (tmp_path / "lock.json").write_bytes(lock.stdout)
    run = run_rlds("sync", tmp_path / "lock.json", "--home", tmp_path / "other")
    assert run.returncode == 0, run.stderr
    other = rlds_cli.open_dataset(one.id, home=tmp_path / "other")
    assert other.fingerprint == one.fingerprint
    told = "".join(line for v in other.versions for line in v.decided)
    assert "ann decided: keep steps" in told and "bob decided: success=true" in told


def test_a_dry_run_says_what_would_change(ds: Dataset, tmp_path: Path) -> None:
    a, b, c, *_ = ids_of(ds)
    file = tmp_path / "decisions.csv"
    file.write_text(f"id,do,first,stop,success\n{a},drop,,,\n{b},keep,0,2,true\n{b},keep,3,5,\n{c},,,,false\n")
    plan = json.loads(run_rlds("apply", "local/a", file, "--dry-run", "--by", "ann", "--json").stdout)
    assert {n: plan[n] for n in ("version", "decisions", "by", "labels", "dropped", "trimmed", "parts", "clashes")} == {
        "version": 2,
        "decisions": 4,
        "by": {"ann": 4},
        "labels": {"success": 2},
        "dropped": 1,
        "trimmed": 1,
        "parts": 2,
        "clashes": [],
    }
    assert rlds_cli.open_dataset("local/a").version == 2


# -- growing datasets


def grown(of: Sequence[int]) -> Dataset:
    with rlds_cli.writer("local/g") as w:
        w.add_episodes([episode(k, 5 + k).plain(reward=True) for k in of])
    return rlds_cli.open_dataset("local/g")


def test_a_growing_dataset_is_changed_in_one_commit(home: Path) -> None:
    ds = grown(range(4))
    a, b, c, d = ids_of(ds)
    newest = grown([4])  # recorded since it was looked at
    ds.decisions().add(
        [
            {"id": a, "do": "drop", "by": "ann"},
            {"id": c, "labels": {"success": True}, "by": "ann"},
            {"id": d, "do": "subtask", "first": 0, "stop": 2, "text": "reach", "by": "ann"},
        ]
    )
    made = ds.apply(ds.decisions())
    assert made.version == newest.version + 1
    assert ids_of(made) == [b, c, d, ids_of(newest)[4]]
    assert made.episodes["success"].tolist() == [None, True, None, None]
    assert made.episodes["subtasks"].tolist() == [None, None, '[[0, 2, "reach"]]', None]
    assert made.versions[-1].change == "apply (3 decisions: 3 of ann)"
    assert made.decisions().pending() == []
    back = rlds_cli.open_dataset(f"local/g#v{newest.version}").restore()
    assert back.fingerprint == newest.fingerprint and len(back.decisions().pending()) == 3
    cut = back.apply([{"id": b, "do": "keep", "first": 1, "stop": 3}], name="cut")
    assert cut.episodes["length"].tolist() == [5, 2, 7, 8, 9]
    assert rlds_cli.verify("local/g").problems == ()


# -- agreement


def test_kappa_of_two_annotators_by_hand(home: Path) -> None:
    ds = rlds_cli.create("local/k", [episode(k, 2).plain(reward=True) for k in range(12)])
    every = ids_of(ds)
    ann = [True] * 6 + [False] * 4
    bob = [True] * 4 + [False] * 2 + [True] + [False] * 3
    journal = ds.decisions()
    for name, values in (("ann", ann), ("bob", bob)):
        journal.add([{"id": i, "labels": {"success": v}, "by": name} for i, v in zip(every, values, strict=False)])
    journal.add([{"id": every[10], "labels": {"success": True}, "by": "ann"}])  # bob says nothing of it
    (found,) = journal.agreement().labels
    # 7 of 10 agree; by chance 0.6 * 0.5 + 0.4 * 0.5 = 0.5; (0.7 - 0.5) / (1 - 0.5) = 0.4
    assert (found.about, found.a, found.b, found.episodes, found.agreed) == ("success", "ann", "bob", 10, 7)
    assert found.kappa == pytest.approx(0.4)
    assert [d.id for d in found.disagreements] == [every[4], every[5], every[6]]
    assert [(d.a, d.b) for d in found.disagreements] == [(True, False), (True, False), (False, True)]
    told = run_rlds("apply", "local/k", "--agreement").stdout.decode()
    assert "success  ann, bob  kappa 0.400  7 of 10 episodes agree" in told and every[4] in told


def test_kappa_is_not_defined_where_both_always_say_the_same(home: Path) -> None:
    ds = rlds_cli.create("local/k", [episode(k, 2).plain(reward=True) for k in range(3)])
    journal = ds.decisions()
    for name in ("ann", "bob"):
        journal.add([{"id": i, "labels": {"success": 1}, "by": name} for i in ids_of(ds)])
    (found,) = journal.agreement().labels
    assert (found.kappa, found.agreed) == (None, 3)


# -- files of decisions

TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.sampled_from(["3", "true", "null", " 1.5 ", "nan", '"', '"quoted"', "a,b", "two\nlines", "", "[]", "-0", "1e5"]),
)


@st.composite
def made_decisions(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Decisions whose labels have values of one kind each."""
    kind = draw(st.sampled_from([st.booleans(), st.integers(-(2**40), 2**40), st.floats(-1e9, 1e9), TEXTS]))
    found = []
    for k in range(draw(st.integers(1, 6))):
        first = draw(st.integers(0, 50))
        does = draw(st.sampled_from([{}, {"do": "drop"}, {"do": "keep", "first": first, "stop": first + 3},
                                     {"do": "subtask", "first": first, "stop": first + 1, "text": None}]))  # fmt: skip
        labels = {"mark": draw(st.one_of(st.none(), kind)), "note": draw(st.one_of(st.none(), TEXTS))}
        labels = {name: v for name, v in labels.items() if draw(st.booleans())}
        about = {"by": draw(st.text("ab, \"'", max_size=5)), "comment": draw(TEXTS), "version": draw(st.integers(0, 9))}
        found.append({"id": f"{k:032x}", **does, "labels": labels, **about})
    return found


@given(made_decisions())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_decisions_come_back_from_their_file(home: Path, tmp_path: Path, records: list[dict[str, Any]]) -> None:
    with_texts = SimpleNamespace(own_columns=("note",), own_column=lambda name: StoredColumn.of(["seen"], name))
    decisions = [Decision(**r) for r in records]
    file = tmp_path / "decisions.csv"
    file.write_bytes(tables.as_csv(decisions).encode())
    again = tables.read_file(file, with_texts)  # type: ignore[arg-type]
    assert [d.record() for d in again] == [d.record() for d in decisions]
    assert [d.key for d in again] == [d.key for d in decisions]
    told = list(account.read(json.loads(json.dumps(account.told(decisions)))))
    assert sorted(d.key for d in told) == sorted(d.key for d in decisions)
