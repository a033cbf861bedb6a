"""An episode has one number: k of ``ds.episode(k)``, also where episodes before it left or were dropped."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.cli import selecting
from rlds_cli.errors import InvalidArgument, InvalidEpisode, PreprocessError
from rlds_cli.store.growing.places import LogPlaces

PACKAGE = Path(rlds_cli.__file__).parent
STAMP = 1_700_000_000_123_456_789  # nanoseconds: no float64 has all of its digits


def episode(k: int, **more: Any) -> dict[str, Any]:
    """Episode ``k`` has k + 1 steps with observation k and reward k."""
    return {
        "observation": np.full((k + 2, 1), k, np.float32),
        "action": np.full((k + 1, 1), float(k)),
        "next": {"reward": np.full(k + 1, float(k))},
        "episode": {"name": f"e{k}", "k": k, **more},
    }


def grown(name: str = "local/g", count: int = 6, dropped: tuple[int, ...] = (1, 2)) -> rlds_cli.Dataset:
    """Return a growing dataset from which episodes were dropped."""
    add(name, range(count))
    return rlds_cli.open_dataset(name).select(episodes=list(dropped)).drop() if dropped else rlds_cli.open_dataset(name)


def add(name: str, which: range) -> None:
    with rlds_cli.writer(name) as w:
        w.add_episodes(episode(k, stamp=STAMP + k, flag=k % 2 == 0) for k in which)


def run(ds: rlds_cli.Dataset, fn: Any, name: str, **how: Any) -> rlds_cli.Dataset:
    return preprocess.run(ds, fn, name, jobs=0, progress=False, **how)


# -- who gets which columns


def test_functions_of_episodes_get_the_columns_of_their_episode() -> None:
    ds, seen = grown(), {}

    def look(ep: Any) -> Any:
        names = ("number", "name", "length", "total_reward", "id")
        seen[int(ep["observation"][0, 0])] = tuple(ep[f"episode/{n}"] for n in names)
        return ep["episode/total_reward"] >= 20  # a filter: e4 pays 20, e5 pays 30

    made = run(ds, look, "look")
    ids = [id.tobytes().hex() for id in ds.episodes["id"]]
    assert seen == {
        0: (0, "e0", 1, 0.0, ids[0]),
        3: (1, "e3", 4, 12.0, ids[1]),
        4: (2, "e4", 5, 20.0, ids[2]),
        5: (3, "e5", 6, 30.0, ids[3]),
    }
    assert made.episodes["k"].tolist() == [4, 5]


@pytest.mark.parametrize("unit", ["step", "batch", "window"])
def test_functions_of_steps_get_the_columns_of_their_episodes(unit: str) -> None:
    def look(data: Any) -> Any:
        about = data["episode"]
        found = {n: np.asarray(about[n]) for n in ("number", "k", "length")}
        size = () if unit == "step" else np.shape(found["k"])
        return {"x": np.broadcast_to(100 * found["number"] + 10 * found["k"] + found["length"], size).copy()}

    made = run(grown(), look, "look", unit=unit, **({"history": 0, "future": 0} if unit == "window" else {}))
    got = [made.episode(k)["x"].ravel().tolist() for k in range(4)]
    assert got == [[1] * 1, [134] * 4, [245] * 5, [356] * 6]


def test_a_function_of_trim_gets_the_number_and_columns_of_its_episode() -> None:
    ds, seen = grown(), {}

    def look(ep: Any) -> Any:
        seen[int(ep["observation"][0, 0])] = (ep["episode/number"], ep["episode/name"])
        return None if ep["episode/number"] == 1 else (0, 1)

    made = ds.trim(look, "first")
    assert seen == {0: (0, "e0"), 3: (1, "e3"), 4: (2, "e4"), 5: (3, "e5")}
    assert made.episodes["k"].tolist() == [0, 4, 5]
    assert ds.trim({1: (1, 3), 0: []}, "part").episodes["k"].tolist() == [3, 4, 5]


def test_labels_of_a_file_are_those_of_the_episodes_that_it_names(tmp_path: Any) -> None:
    ds = grown()
    by_number, by_id = tmp_path / "n.csv", tmp_path / "i.csv"
    by_number.write_text("episode,quality\n1,one\n3,three\n")
    ids = [id.tobytes().hex() for id in ds.episodes["id"]]
    by_id.write_text(f"id,grade\n{ids[1]},one\n{ids[3]},three\n")
    for file, column in ((by_number, "quality"), (by_id, "grade")):
        named, labels = selecting.from_file(file, rlds_cli.open_dataset("local/g"), named=True)
        after = named.label(labels)
        assert dict(zip(after.episodes["k"], after.episodes[column], strict=True)) == {
            0: None, 3: "one", 4: None, 5: "three",
        }  # fmt: skip
    assert rlds_cli.open_dataset("local/g").label(level=list("abcd")).episodes["level"].tolist() == list("abcd")


def test_a_message_names_the_number_of_the_version() -> None:
    def fails(ep: Any) -> Any:
        if ep["observation"][0, 0] == 4:
            raise ValueError("four")
        return ep

    with pytest.raises(PreprocessError) as e:
        run(grown(), fails, "fails")
    assert e.value.episode == 2


# -- columns keep their types


@pytest.mark.parametrize("grows", [True, False])
def test_columns_keep_their_types_where_episodes_are_gone(grows: bool) -> None:
    if grows:
        ds = grown()
    else:
        ds = rlds_cli.create("local/o", (episode(k, stamp=STAMP + k, flag=k % 2 == 0) for k in range(6)))
        ds = ds.select(episodes=[1, 2]).drop()
    assert ds.episodes["stamp"].dtype == np.int64 and ds.episodes["stamp"].tolist() == [STAMP + k for k in (0, 3, 4, 5)]
    assert ds.episodes["flag"].dtype == bool and ds.episodes["flag"].tolist() == [True, False, True, False]


def test_what_only_dropped_episodes_have_is_gone() -> None:
    with rlds_cli.writer("local/g") as w:
        w.add_episodes([episode(0), episode(1, note="x"), episode(2)])
    ds = rlds_cli.open_dataset("local/g")
    assert "note" in ds.episodes and "note" not in ds.select(episodes=[1]).drop().episodes


# -- results that are taken over


def clean(ep: Any) -> Any:
    """Leave out episode 3, and double the actions of the others."""
    if ep["observation"][0, 0] == 3:
        return None
    ep["action"] = ep["action"] * 2
    return ep


def content(ds: rlds_cli.Dataset) -> list[tuple[int, float, float]]:
    return [(int(ds.episodes["k"][k]), *(float(ds.episode(k)[n][0, 0]) for n in ("observation", "action")))
            for k in range(ds.num_episodes)]  # fmt: skip


def test_a_second_run_takes_over_results_of_the_same_episodes_alone() -> None:
    """Through a label, an append, a drop and a restore; episode 3 has no result."""
    add("local/g", range(8))

    def expect(which: list[int]) -> None:
        made = run(rlds_cli.open_dataset("local/g"), clean, "clean")
        assert content(made) == [(k, k, 2 * k) for k in which]

    expect([0, 1, 2, 4, 5, 6, 7])
    rlds_cli.open_dataset("local/g").select(where="k == 7").label(note="x")
    expect([0, 1, 2, 4, 5, 6, 7])
    add("local/g", range(8, 10))
    expect([0, 1, 2, 4, 5, 6, 7, 8, 9])
    before = rlds_cli.open_dataset("local/g")
    before.select(where="k in (1, 6)").drop()
    expect([0, 2, 4, 5, 7, 8, 9])
    before.restore()
    expect([0, 1, 2, 4, 5, 6, 7, 8, 9])
    made = rlds_cli.open_dataset("local/g@clean")
    assert made.fingerprint == run(rlds_cli.open_dataset("local/g"), clean, "clean", force=True).fingerprint


def test_a_function_of_numbers_is_called_again_where_they_changed() -> None:
    """Also one that reads the number of a late episode alone, which the episodes that are tried do not show."""
    add("local/g", range(6))
    calls: list[int] = []

    def numbered(ep: Any) -> Any:
        k = int(ep["episode/k"])
        calls.append(k)
        ep["x"] = np.full(len(ep["action"]), float(ep["episode/number"] if k == 4 else k))
        return ep

    def expect(which: list[int], number: int) -> None:
        calls.clear()
        made = run(rlds_cli.open_dataset("local/g"), numbered, "numbered")
        assert [float(made.episode(k)["x"][0, 0]) for k in range(made.num_episodes)] == [
            float(number if k == 4 else k) for k in which
        ]

    expect([0, 1, 2, 3, 4, 5], 4)
    add("local/g", range(6, 9))
    expect([0, 1, 2, 3, 4, 5, 6, 7, 8], 4)
    assert 1 not in calls
    rlds_cli.open_dataset("local/g").select(where="k == 2").drop()
    expect([0, 1, 3, 4, 5, 6, 7, 8], 3)
    assert 1 not in calls


# -- rows of a selection


def test_the_rows_of_a_selection_are_not_those_of_the_whole_dataset() -> None:
    ds = rlds_cli.create("local/o", map(episode, range(4)))
    some = ds.select(episodes=[3, 1])
    part = ds.split(0.5, seed=1)[0]
    for chosen in (some, part):
        with pytest.raises(InvalidArgument, match="some are selected"):
            chosen.column("observation")
    rows = some.column("observation", gaps=True)
    start, length = (some.episodes[c].tolist() for c in ("start", "length"))
    assert [rows[a : a + n, 0].tolist() for a, n in zip(start, length, strict=True)] == [[3] * 4, [1] * 2]
    assert some[:]["observation"][:, 0].tolist() == [3, 3, 3, 3, 1, 1]
    assert len(ds.select(episodes=slice(None)).column("observation")) == 2 + 3 + 4 + 5  # all are selected


def test_rows_of_dropped_episodes_are_not_in_a_column_unasked() -> None:
    ds = grown()
    with pytest.raises(InvalidArgument, match="rows of no episode"):
        ds.column("observation")
    assert len(ds.column("observation", gaps=True)) == 2 + 3 + 4 + 5 + 6 + 7


# -- ranges that a trim is given


@pytest.mark.parametrize(
    "ranges", [np.arange(4), np.zeros((4, 2), int), [(0, 1)], "moving", None, {1.0: (0, 1)}, {9: []}]
)
def test_a_trim_is_given_a_function_or_ranges_by_number(ranges: Any) -> None:
    ds = rlds_cli.create("local/o", map(episode, range(4)))
    with pytest.raises(InvalidArgument):
        ds.trim(ranges, "some")
    with pytest.raises(InvalidArgument, match="is not a range"):
        ds.trim({0: [(0, 1), (1,)]}, "some")


def test_a_filter_that_keeps_nothing_is_not_said_to_return_none() -> None:
    with pytest.raises(PreprocessError, match="returned no episode for all 4"):
        run(rlds_cli.create("local/o", map(episode, range(4))), lambda ep: False, "none")


# -- places in the logs stay where they are


def test_a_place_in_the_logs_is_no_number() -> None:
    place: Any = LogPlaces(np.array([2, 5]))
    for use in (
        lambda: np.arange(10)[place],
        lambda: list(range(10))[place],
        lambda: np.arange(10) + place,
        lambda: np.asarray(place, np.int64),
        lambda: int(place),
        lambda: place[0],
        lambda: list(place),
        lambda: hash(place),
    ):
        with pytest.raises((TypeError, IndexError, ValueError)):
            use()


def functions(node: ast.AST, private: bool = False) -> Iterator[ast.FunctionDef]:
    """Yield the functions and methods in a module or class, by default the public ones."""
    for x in ast.iter_child_nodes(node):
        if isinstance(x, ast.ClassDef) and (private or not x.name.startswith("_")):
            yield from functions(x, private)
        elif isinstance(x, ast.FunctionDef) and (private or not x.name.startswith("_")):
            yield x


def has_places(f: ast.FunctionDef) -> bool:
    """Return whether the annotations of a function name places in the logs."""
    given = [a.annotation for a in ast.walk(f.args) if isinstance(a, ast.arg)]
    return any(x is not None and LogPlaces.__name__ in ast.unparse(x) for x in (*given, f.returns))


def test_no_function_of_another_room_and_none_that_they_use_has_places_of_the_logs() -> None:
    texts = {file.relative_to(PACKAGE): file.read_text() for file in sorted(PACKAGE.rglob("*.py"))}
    named = (
        LogPlaces.__name__,
        "rlds_cli.store.growing.",
    )  # files that name neither are not parsed: that takes seconds
    parsed = {file: ast.parse(text) for file, text in texts.items() if any(name in text for name in named)}
    inside = {file: tree for file, tree in parsed.items() if file.parts[:2] == ("store", "growing")}
    outside = {file: tree for file, tree in parsed.items() if file not in inside}
    assert not [f.name for tree in outside.values() for f in functions(tree, private=True) if has_places(f)]
    used = {
        (f"{x.module.removeprefix('rlds_cli.').replace('.', '/')}.py", name.name)
        for tree in outside.values()
        for x in ast.walk(tree)
        if isinstance(x, ast.ImportFrom) and x.module and x.module.startswith("rlds_cli.store.growing.")
        for name in x.names
    }
    assert ("store/growing/table.py", "LoggedTable") in used and "store/growing/places.py" not in {
        file for file, _ in used
    }
    used |= {("store/growing/changing.py", "ChangedByLog")}  # which it extends
    crossing = [
        f
        for file, tree in inside.items()
        for x in tree.body
        if isinstance(x, ast.ClassDef | ast.FunctionDef) and (str(file), x.name) in used
        for f in (functions(x) if isinstance(x, ast.ClassDef) else [x])
    ]
    assert len(crossing) > 50 and not [f.name for f in crossing if has_places(f)]
    assert any(has_places(f) for tree in inside.values() for f in functions(tree))  # of other files of the room


# -- whole numbers beside missing ones


def test_long_whole_numbers_are_exact_where_an_episode_has_none() -> None:
    more: list[dict[str, Any]] = [{"stamp": STAMP}, {}, {"stamp": STAMP + 2}, {"few": 3}]
    ds = rlds_cli.create("local/o", (episode(k, **m) for k, m in enumerate(more)))
    assert ds.episodes["stamp"].tolist() == [STAMP, None, STAMP + 2, None]
    assert ds.episodes["few"].dtype == np.float64 and ds.episodes["few"][3] == 3  # as documented: NaN for the others
    some = ds.select(episodes=[2, 0])
    assert some.episodes["stamp"].dtype == np.int64 and some.episodes["stamp"].tolist() == [STAMP + 2, STAMP]
    for where, wanted in (
        (f"stamp == {STAMP + 2}", [2]),
        (f"stamp > {STAMP}", [2]),
        (f"stamp - 1 < {STAMP}", [0]),
        (f"stamp in ({STAMP + 2}, 7)", [2]),
        ("stamp is None", [1, 3]),
        (f"stamp != {STAMP}", [1, 2, 3]),
    ):
        assert ds.select(where=where).episodes["k"].tolist() == wanted, where


@pytest.mark.parametrize(
    ("before", "later", "joint"),
    [
        (STAMP, 0.5, None),
        (0.5, STAMP, None),
        (1, "text", None),
        (True, 1, None),
        (1, 0.5, "float64"),
        (0.5, 1, "float64"),
        (1, STAMP, "int64"),
    ],
)
def test_a_column_stays_of_one_type_whoever_writes(before: Any, later: Any, joint: str | None) -> None:
    """A writer that did not write the episodes before, an ordinary dataset, and a label: the same types fit."""
    with rlds_cli.writer("local/g") as w:
        w.add_episodes([episode(0, mixed=before), episode(1)])
        w.commit()

    def write() -> None:
        with rlds_cli.writer("local/g") as w:
            w.add_episodes([episode(2, mixed=later)])

    for change in (
        lambda: rlds_cli.open_dataset("local/g").select(episodes=[1]).label(mixed=later),
        lambda: rlds_cli.create("local/o", [episode(0, mixed=before), episode(2, mixed=later)]),
        write,
    ):
        if joint is None:
            with pytest.raises((InvalidEpisode, InvalidArgument)):
                change()
        else:
            change()
    found = rlds_cli.open_dataset("local/g").episodes["mixed"]
    if joint is None:
        assert found.tolist()[0] == before  # it can be read, and nothing was changed
    else:
        assert found.dtype == joint and found.tolist() == [before, later, later]
