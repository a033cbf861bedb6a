"""Deciding in the viewer, as the server answers: who may ask for a change, what is kept, and what comes next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run_rlds
from viewer import Answered, Viewer, viewing

import rlds_cli
from rlds_cli.view.guard import MOST_BYTES
from rlds_cli.view.labels import Labels, read_labels

ID = "local/press"


def episode(k: int) -> dict[str, Any]:
    rng = np.random.default_rng(k)
    return {"observation": rng.random((9 + k, 2)), "action": rng.random((8 + k, 1))}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    rlds_cli.create(ID, map(episode, range(6)), progress=False)
    return tmp_path


@pytest.fixture
def viewer(home: Path) -> Iterator[Viewer]:
    with viewing() as found:
        yield found


@pytest.fixture
def ids(home: Path) -> list[str]:
    return [row.tobytes().hex() for row in rlds_cli.open_dataset(ID).episodes["id"]]


def decide(viewer: Viewer, id: str, *decisions: dict[str, Any], by: str = "ann") -> Answered:
    return viewer.change("decide", {"by": by, "episodes": [{"id": id, "decisions": list(decisions)}]}, d=ID)


def made() -> list[tuple[Any, ...]]:
    """The decisions of the journal: (id, do, first, stop, labels, by)."""
    decisions = rlds_cli.open_dataset(ID).decisions().made()
    return [(d.id, d.do, d.first, d.stop, dict(d.labels), d.by) for d in decisions]


# -- who may ask for a change


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": None}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": None}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": None}, 415),
        ({"Content-Length": str(MOST_BYTES + 1)}, 413),
        ({"Host": "evil.example"}, 421),
    ],
)
def test_a_change_comes_from_a_page_of_the_server(
    viewer: Viewer, ids: list[str], headers: dict[str, str | None], status: int
) -> None:
    body = {"by": "eve", "episodes": [{"id": ids[0], "decisions": [{"do": "drop"}]}]}
    assert viewer.change("decide", body, headers=headers, d=ID).status == status
    assert made() == []


@pytest.mark.parametrize("path", ["api/decide", "api/undo", "api/apply"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_a_change_is_asked_for_by_post_alone(viewer: Viewer, path: str, method: str) -> None:
    assert viewer.ask(path, method=method, d=ID).status == 405


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff\xfe", b'{"by": NaN'])
def test_what_is_no_json_object_is_refused(viewer: Viewer, body: bytes) -> None:
    found = viewer.change("decide", body, d=ID)
    assert found.status == 422 and found.record["type"] == "InvalidArgument"


@pytest.mark.parametrize(
    "change",
    [
        {"by": ""},
        {"by": "x" * 61},
        {"by": 3},
        {"episodes": []},
        {"episodes": {}},
        {"episodes": [{}]},
        {"id": "../../x"},
        {"id": "0" * 31},
        {"id": "F" * 32},
        {"id": "0" * 32},  # which no episode has
        {"decisions": [{"do": "rm -rf"}]},
        {"decisions": [{"do": "keep", "first": 3, "stop": 2}]},
        {"decisions": [{"do": "keep", "first": 0, "stop": 99}]},
        {"decisions": [{"do": "keep", "first": True, "stop": 2}]},
        {"decisions": [{"do": "subtask", "first": 0, "stop": 2, "text": "x" * 401}]},
        {"decisions": [{"labels": {"success": "yes"}}]},
        {"decisions": [{"labels": {"quality": 1.0}}]},
        {"decisions": [{"labels": {"length": 1}}]},
        {"decisions": [{"labels": {"note": "x" * 9000}}]},
        {"decisions": [{"comment": "\ud800"}]},
        {"decisions": [{"by": "somebody else"}]},
        {"decisions": [{"time": "2020-01-01"}]},
        {"decisions": [{"do": "drop", "reviews": "../x"}]},
        {"decisions": "drop"},
    ],
    ids=lambda change: str(change)[:60],
)
def test_what_is_not_understood_is_refused_and_nothing_is_kept(
    viewer: Viewer, ids: list[str], change: dict[str, Any]
) -> None:
    one = {"id": ids[0], "decisions": [{"do": "drop"}]} | {n: change[n] for n in ("id", "decisions") if n in change}
    body = {"by": "eve", "episodes": [one]} | {n: change[n] for n in ("by", "episodes") if n in change}
    assert viewer.change("decide", body, d=ID).status == 422
    assert made() == []


# -- what is kept


def test_decisions_are_those_that_were_sent_last(viewer: Viewer, ids: list[str]) -> None:
    assert decide(viewer, ids[1], {"do": "keep", "first": 2, "stop": 7}, {"labels": {"success": True}}).status == 200
    assert decide(viewer, ids[1], {"do": "drop"}, by="ben").status == 200
    found = decide(viewer, ids[1], {"do": "keep", "first": 2, "stop": 8}, {"labels": {"success": True}})

    assert found.record["decided"] == 1
    assert sorted(made(), key=str) == sorted(
        [
            (ids[1], "", None, None, {"success": True}, "ann"),
            (ids[1], "keep", 2, 8, {}, "ann"),
            (ids[1], "drop", None, None, {}, "ben"),
        ],
        key=str,
    )
    times = {d.do: d.time for d in rlds_cli.open_dataset(ID).decisions().made() if d.by == "ann"}
    assert times[""] < times["keep"]  # what was decided again keeps its time


def test_what_was_decided_last_is_taken_back(viewer: Viewer, ids: list[str]) -> None:
    decide(viewer, ids[1], {"labels": {"quality": 2}})
    decide(viewer, ids[1], {"labels": {"quality": 5}})
    decide(viewer, ids[2], {"do": "drop"}, by="ben")

    first = viewer.change("undo", {"by": "ann"}, d=ID).record
    assert first["number"] == 1 and [d["labels"] for d in first["decisions"]] == [{"quality": 2}]
    assert viewer.change("undo", {"by": "ann"}, d=ID).record["decisions"] == []
    assert viewer.change("undo", {"by": "ann"}, d=ID).status == 404
    assert made() == [(ids[2], "drop", None, None, {}, "ben")]


def test_decisions_of_other_processes_are_seen(viewer: Viewer, ids: list[str]) -> None:
    decide(viewer, ids[0], {"do": "drop"})
    rlds_cli.open_dataset(ID).decisions().add([{"id": ids[3], "do": "drop", "by": "ben"}])
    found = viewer.record("decisions", d=ID, episode=3)
    assert found["people"] == [{"by": "ann", "episodes": 1}, {"by": "ben", "episodes": 1}]
    assert [(d["do"], d["by"]) for d in found["decisions"]] == [("drop", "ben")]


def test_nothing_is_decided_with_read_only(home: Path, ids: list[str]) -> None:
    with viewing(read_only=True) as viewer:
        may = viewer.record("decisions", d=ID)["may"]
        assert may["decide"] is False and "--read-only" in may["why"]
        assert decide(viewer, ids[0], {"do": "drop"}).status == 422
    assert made() == []


def test_nothing_is_decided_on_a_selection(home: Path, ids: list[str]) -> None:
    with viewing(rlds_cli.open_dataset(ID).select(episodes=[1, 2])) as viewer:
        assert viewer.record("decisions", d="~0")["may"]["decide"] is False
        body = {"by": "ann", "episodes": [{"id": ids[1], "decisions": [{"do": "drop"}]}]}
        assert viewer.change("decide", body, d="~0").status == 422
    assert made() == []


def test_the_name_that_the_command_gave_is_not_asked_for(home: Path) -> None:
    with viewing(by="grace") as viewer:
        found = viewer.record("decisions", d=ID)
    assert (found["by"], found["named"]) == ("grace", True)


# -- what comes next


def test_the_queue_has_those_that_a_person_has_not_decided_on(viewer: Viewer, ids: list[str]) -> None:
    decide(viewer, ids[1], {"do": "drop"})
    decide(viewer, ids[4], {"comment": "?"})
    decide(viewer, ids[2], {"do": "drop"}, by="ben")

    assert viewer.record("queue", d=ID, by="ann")["episodes"] == [0, 2, 3, 5]
    assert viewer.record("queue", d=ID, by="ben")["episodes"] == [0, 1, 3, 4, 5]
    assert viewer.record("queue", d=ID, by="cat", of="others")["episodes"] == [1, 2, 4]
    found = viewer.record("queue", d=ID, by="ann", where="length > 9", sort="length", descending=1)
    assert found["episodes"] == [5, 3, 2] and (found["decided"], found["of"]) == (1, 4)


def test_an_order_at_random_depends_on_its_seed_alone(viewer: Viewer, ids: list[str]) -> None:
    orders = {seed: viewer.record("queue", d=ID, by="ann", order="random", seed=seed)["episodes"] for seed in range(9)}
    assert all(sorted(order) == list(range(6)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) > 3
    for k in orders[3][:2]:
        decide(viewer, ids[k], {"do": "drop"})
    assert viewer.record("queue", d=ID, by="ann", order="random", seed=3)["episodes"] == orders[3][2:]


def test_unusual_episodes_come_first_where_measures_are(home: Path, ids: list[str]) -> None:
    def moving(k: int) -> dict[str, Any]:
        x = np.cumsum(np.random.default_rng(k).normal(0, 0.01, (40, 2)), 0)
        x[20:] += 9.0 if k == 4 else 0.0
        return {"observation": {"state": x.astype(np.float32)}, "action": np.zeros((39, 1), np.float32)}

    ds = rlds_cli.create("local/moving", map(moving, range(6)), progress=False)
    with viewing() as viewer:
        assert viewer.ask("api/queue", d="local/moving", by="ann", order="outliers").status == 422
    rlds_cli.check(ds, measures=["motion"])
    with viewing() as viewer:
        found = viewer.record("queue", d="local/moving", by="ann", order="outliers")
        twins = viewer.record("queue", d="local/moving", by="ann", order="twins")["episodes"]
    assert found["episodes"][0] == 4 and found["orders"] == ["table", "random", "outliers", "twins"]
    distance = ds.episodes["quality_twin_distance"]
    assert twins == sorted(range(6), key=lambda k: (distance[k], k))


# -- what comes of it


def test_a_version_is_made_of_what_was_decided(viewer: Viewer, ids: list[str]) -> None:
    decide(viewer, ids[1], {"do": "drop"})
    decide(viewer, ids[2], {"labels": {"success": True, "note": "-1, \u00e4"}}, {"do": "keep", "first": 0, "stop": 10})
    decide(viewer, ids[3], {"do": "subtask", "first": 2, "stop": 5, "text": "reach"}, by="ben")

    plan = viewer.record("plan", d=ID)
    counted = {c["what"]: [e["number"] for e in c["some"]] for c in plan["counts"]}
    assert counted["rejected"] == [1] and counted["accepted"] == [2] and counted["with other sub-tasks"] == [3]
    assert (plan["episodes"], plan["after"], plan["trims"], plan["num_clashes"]) == (6, 5, False, 0)
    assert plan["command"] == f"rlds apply {ID} decisions.csv"

    made = viewer.change("apply", {"as": "", "revision": plan["revision"]}, d=ID).record
    ds = rlds_cli.open_dataset(ID)
    assert (made["version"], made["fingerprint"]) == (2, ds.manifest.fingerprint)
    assert [row.tobytes().hex() for row in ds.episodes["id"]] == [ids[0], *ids[2:]]
    assert ds.episodes["success"].tolist() == [None, True, None, None, None]
    assert ds.episodes["note"][1] == "-1, \u00e4" and "reach" in ds.episodes["subtasks"][2]
    assert made["back"] == f"rlds restore '{ID}#v1'"
    assert viewer.record("plan", d=ID)["decisions"] == 0
    assert viewer.change("apply", {"as": "", "revision": plan["revision"]}, d=ID).status == 422  # nothing is left


def test_the_command_with_the_file_makes_the_same(viewer: Viewer, ids: list[str], tmp_path: Path) -> None:
    decide(viewer, ids[0], {"do": "keep", "first": 2, "stop": 6}, {"do": "keep", "first": 6, "stop": 8})
    decide(viewer, ids[4], {"labels": {"quality": 3, "note": "3"}, "comment": 'it says "no", twice\n'})
    plan = viewer.record("plan", d=ID)
    file = tmp_path / "decisions.csv"
    found = viewer.ask("media/decisions", d=ID)
    file.write_bytes(found.body)
    assert "attachment" in found.headers["content-disposition"]

    assert plan["trims"] and viewer.change("apply", {"as": "", "revision": plan["revision"]}, d=ID).status == 422
    made = viewer.change("apply", {"as": "page", "revision": plan["revision"]}, d=ID).record
    done = run_rlds("apply", ID, file, "--name", "shell")
    assert done.returncode == 0, done.stderr
    shell = rlds_cli.open_dataset(f"{ID}@shell")
    assert shell.manifest.fingerprint == made["fingerprint"] and made["id"] == f"{ID}@page"
    assert shell.episodes["length"].tolist()[:2] == [4, 2] and shell.episodes["note"][5] == "3"


def test_a_clash_is_shown_with_both_values_and_settled(viewer: Viewer, ids: list[str]) -> None:
    decide(viewer, ids[2], {"labels": {"quality": 2}})
    decide(viewer, ids[2], {"labels": {"quality": 5}}, by="ben")

    plan = viewer.record("plan", d=ID)
    (clash,) = plan["clashes"]
    assert (clash["number"], clash["about"], clash["kind"]) == (2, "quality", "annotators")
    assert {side["by"]: side["value"] for side in clash["sides"]} == {"ann": 2, "ben": 5}
    refused = viewer.change("apply", {"as": "", "revision": plan["revision"]}, d=ID)
    assert refused.status == 409 and refused.record["type"] == "ClashingDecisions"
    assert rlds_cli.open_dataset(ID).version == 1
    assert viewer.ask("api/plan", d=ID, field="eve").status == 422

    assert viewer.record("plan", d=ID, field="ben")["num_clashes"] == 0
    assert viewer.change("apply", {"as": "", "revision": plan["revision"], "take": ["ben"]}, d=ID).status == 200
    assert rlds_cli.open_dataset(ID).episodes["quality"][2] == 5


def test_a_review_takes_the_place_of_what_it_corrects(viewer: Viewer, ids: list[str]) -> None:
    key = decide(viewer, ids[2], {"labels": {"quality": 2}}).record["episodes"][0]["decisions"][0]["key"]
    decide(viewer, ids[2], {"labels": {"quality": 5}, "reviews": key}, by="ben")
    plan = viewer.record("plan", d=ID)
    assert plan["num_clashes"] == 0
    assert viewer.change("apply", {"as": "", "revision": plan["revision"]}, d=ID).status == 200
    assert rlds_cli.open_dataset(ID).episodes["quality"][2] == 5


def test_nothing_is_saved_of_what_somebody_decides_meanwhile(viewer: Viewer, ids: list[str]) -> None:
    decide(viewer, ids[2], {"do": "drop"})
    plan = viewer.record("plan", d=ID)
    rlds_cli.open_dataset(ID).decisions().add([{"id": ids[0], "do": "drop", "by": "ben"}])
    assert viewer.change("apply", {"as": "", "revision": plan["revision"]}, d=ID).status == 422
    assert rlds_cli.open_dataset(ID).version == 1


@pytest.mark.parametrize("name", ["../x", "a/b", "x" * 300, 5, None, "@", "A name"])
def test_a_dataset_has_a_name_and_no_path(viewer: Viewer, ids: list[str], name: Any) -> None:
    decide(viewer, ids[2], {"do": "drop"})
    revision = viewer.record("plan", d=ID)["revision"]
    assert viewer.change("apply", {"as": name, "revision": revision}, d=ID).status == 422


def test_a_dataset_of_the_registry_stays_as_it_is(home: Path) -> None:
    ds = rlds_cli.download("sample/pendulum-d4rl")
    id = ds.episodes["id"][0].tobytes().hex()
    with viewing() as viewer:
        body = {"by": "ann", "episodes": [{"id": id, "decisions": [{"do": "drop"}]}]}
        assert viewer.change("decide", body, d=ds.id).status == 200
        plan = viewer.record("plan", d=ds.id)
        assert plan["may"]["version"] is False and "registry" in plan["may"]["why"]
        assert viewer.change("apply", {"as": "", "revision": plan["revision"]}, d=ds.id).status == 422
        made = viewer.change("apply", {"as": "less", "revision": plan["revision"]}, d=ds.id).record
    assert (made["id"], made["episodes"]) == (f"{ds.id}@less", ds.num_episodes - 1)
    assert rlds_cli.open_dataset(ds.id).version == 1


# -- labels


def labels(tmp_path: Path, text: str) -> Labels:
    file = tmp_path / "labels.toml"
    file.write_text(text)
    return read_labels(file)


def test_labels_of_a_file(tmp_path: Path) -> None:
    found = labels(
        tmp_path,
        'guideline = "A success ends upright."\n'
        '[[label]]\nname = "success"\nchoices = [true, false]\n'
        '[[label]]\nname = "speed"\nchoices = ["fast", "slow"]\nkeys = "hm"\n'
        '[[label]]\nname = "grip"\nchoices = [1, 2, 12]\n'
        '[[label]]\nname = "note"\n',
    )
    assert found.guideline == "A success ends upright."
    assert {label.name: [(c.value, c.key) for c in label.choices] for label in found.labels} == {
        "success": [(True, "y"), (False, "f")],
        "speed": [("fast", "h"), ("slow", "m")],
        "grip": [(1, "1"), (2, "2"), (12, "3")],
        "note": [],
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "labels"),
        ("[[label]]\n", "label 1 has no name"),
        ('[[label]]\nname = "x"\nchoices = [1, "a"]\n', "one type"),
        ('[[label]]\nname = "x"\nchoices = [1, 1]\n', "twice"),
        ('[[label]]\nname = "x"\nchoices = [nan]\n', "flags, numbers or texts"),
        ('[[label]]\nname = "x"\nchoices = [[1]]\n', "flags, numbers or texts"),
        ('[[label]]\nname = "x"\nchoices = [1, 2]\nkeys = "ad"\n', "keys of x"),  # of accept and reject
        ('[[label]]\nname = "x"\nchoices = [1, 2]\nkeys = "11"\n', "two have the key 1"),
        ('[[label]]\nname = "x"\n[[label]]\nname = "x"\n', "two have the label x"),
        ('[[label]]\nname = "x"\ncolour = "red"\n', "colour"),
        ("guideline = 3\n", "guideline"),
        ("[label\n", "cannot be read"),
    ],
)
def test_what_a_file_of_labels_says_wrongly_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(rlds_cli.errors.InvalidArgument, match=said):
        labels(tmp_path, text)


def test_a_label_keeps_the_type_of_its_column(home: Path) -> None:
    rlds_cli.open_dataset(ID).label(quality="good", success=True)
    with viewing() as viewer:
        assert [label["name"] for label in viewer.record("decisions", d=ID)["labels"]] == ["success", "failure", "note"]
    file = home / "labels.toml"
    file.write_text('[[label]]\nname = "quality"\nchoices = [1, 2]\n')
    with viewing(labels=file) as viewer:
        found = viewer.ask("api/decisions", d=ID)
    assert found.status == 422 and "quality" in found.record["error"]
