"""The table of episodes: rows, order and distributions, compared with NumPy and with Python's own sorting."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run_rlds

import rlds_cli
from rlds_cli.errors import InvalidArgument, InvalidExpression, UnknownField
from rlds_cli.look import EpisodeTable

TEXTS = ("pick", "push the block", "", "Zug", "épée", "émile", "пик", "a\0b", "a", "b" * 70, "b" * 69 + "a", "b" * 69)


def made(home: Path, count: int = 60, *, texts: tuple[str, ...] = TEXTS) -> rlds_cli.Dataset:
    rng = np.random.default_rng(1)

    def episodes() -> Any:
        for k in range(count):
            steps = int(rng.integers(1, 5))
            own = {"task": texts[k % len(texts)] if k % 7 else None, "score": float(rng.integers(0, 9))}
            own |= {"won": bool(k % 3)} if k % 5 else {}
            own |= {"stamp": 2**60 + int(rng.integers(0, 4))} if k % 4 else {}
            own |= {"success rate": k / count, "name": f"recording {rng.integers(0, 10**6)}"}
            yield {
                "observation": np.zeros((steps + 1, 2), np.float32),
                "action": np.zeros((steps, 1), np.float32),
                "next": {"reward": rng.standard_normal(steps).astype(np.float32), "terminated": k % 2 == 0},
                "episode": own,
            }

    return rlds_cli.create("local/table", episodes(), home=home)


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> rlds_cli.Dataset:
    return made(tmp_path_factory.mktemp("home"))


@pytest.fixture
def table(ds: rlds_cli.Dataset) -> EpisodeTable:
    return EpisodeTable(ds)


def numbers(table: EpisodeTable, **asked: Any) -> list[int]:
    return [row.number for row in table.page(count=1000, **asked).episodes]


def same(value: object, other: object) -> bool:
    return value == other or (value != value and other != other)


def test_rows_hold_the_values_of_the_episodes(ds: rlds_cli.Dataset, table: EpisodeTable) -> None:
    page = table.page(first=3, count=5)

    assert [row.number for row in page.episodes] == [3, 4, 5, 6, 7]
    for row in page.episodes:
        assert row.values.keys() == set(ds.episodes)
        for name, value in row.values.items():
            whole = ds.episodes[name][row.number]
            assert same(value, bytes(whole).hex() if name == "id" else whole), name


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "name", ["length", "total_reward", "score", "success rate", "task", "won", "stamp", "name", "end"]
)
def test_the_order_is_stable_and_missing_values_are_last(
    ds: rlds_cli.Dataset, table: EpisodeTable, name: str, descending: bool
) -> None:
    values = ds.episodes[name].tolist()
    missing = [k for k, v in enumerate(values) if v is None or v != v]
    known = [k for k in range(len(values)) if k not in missing]
    # in turn by one value after the other, so that Python's own order of equal values has no part in it
    expected = [k for v in sorted({values[k] for k in known}, reverse=descending) for k in known if values[k] == v]

    assert numbers(table, sort=name, descending=descending) == expected + missing


def test_texts_of_which_most_differ_are_in_the_order_of_python(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    drawn = tuple("".join(rng.choice(list("ab\0éЖ\U0001f642"), rng.integers(0, 90))) for _ in range(200))
    ds = made(tmp_path, 200, texts=drawn)
    tasks = ds.episodes["task"].tolist()
    known = [k for k, v in enumerate(tasks) if v is not None]

    found = numbers(EpisodeTable(ds), sort="task")

    assert found[: len(known)] == sorted(known, key=lambda k: (tasks[k], k))
    assert sorted(found[len(known) :]) == [k for k, v in enumerate(tasks) if v is None]


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        ("length >= 3", lambda e, k: e["length"][k] >= 3),
        ("`success rate` < 0.5 and won", lambda e, k: e["success rate"][k] < 0.5 and bool(e["won"][k])),
        ("task is None", lambda e, k: e["task"][k] is None),
        ("episode in (3, 9)", lambda e, k: k in (3, 9)),
        ("score > quantile(score, 0.8)", lambda e, k: e["score"][k] > np.quantile(e["score"], 0.8)),
    ],
)
def test_what_matches_keeps_its_order(
    ds: rlds_cli.Dataset, table: EpisodeTable, where: str, fits: Callable[[Any, int], bool]
) -> None:
    chosen = [k for k in range(ds.num_episodes) if fits(ds.episodes, k)]
    by_score = sorted(chosen, key=lambda k: (-ds.episodes["score"][k], k))

    assert numbers(table, where=where) == chosen
    assert numbers(table, where=where, sort="score", descending=True) == by_score
    assert numbers(table, where=where, sort="episode", descending=True) == chosen[::-1]
    assert table.page(where=where, count=0).matching == len(chosen)


def test_a_selection_is_numbered_as_it_counts(ds: rlds_cli.Dataset) -> None:
    few = ds.select(episodes=[9, 4, 30])
    table = EpisodeTable(few)

    rows = table.page(sort="success rate").episodes

    assert [row.number for row in rows] == [1, 0, 2]
    assert [row.values["success rate"] for row in rows] == [4 / 60, 9 / 60, 30 / 60]


def test_distributions_are_those_of_numpy(ds: rlds_cli.Dataset, table: EpisodeTable) -> None:
    where = "total_reward > 0"
    mask = ds.episodes["total_reward"] > 0
    found = {c.name: c for c in table.spreads(where).columns}

    rewards = ds.episodes["total_reward"]
    spread = found["total_reward"]
    assert (spread.low, spread.high) == (rewards.min(), rewards.max())
    for counts, values in ((spread.counts, rewards), (spread.matched, rewards[mask])):
        assert list(counts) == np.histogram(values, 32, (rewards.min(), rewards.max()))[0].tolist()
    lengths = found["length"]
    assert lengths.whole
    assert list(lengths.counts) == np.bincount(ds.episodes["length"])[1:].tolist()
    assert list(lengths.matched) == np.bincount(ds.episodes["length"][mask], minlength=5)[1:].tolist()
    won = ds.episodes["won"].tolist()
    assert found["won"].missing == won.count(None)
    told = {v.value: (v.episodes, v.matching) for v in found["won"].values}
    assert told == {v: (won.count(v), sum(w is v for w, m in zip(won, mask, strict=True) if m)) for v in (True, False)}
    assert found["end"].distinct == len(set(ds.episodes["end"].tolist()))


def test_texts_of_few_episodes_are_counted_together(tmp_path: Path) -> None:
    ds = made(tmp_path, 3, texts=("push", "pull", "push"))
    (task,) = EpisodeTable(ds).spreads(names=["task"]).columns
    told = [t for t in ds.episodes["task"].tolist() if t is not None]
    assert {v.value: v.episodes for v in task.values} == {t: told.count(t) for t in told}


def test_distributions_of_what_is_asked_for(table: EpisodeTable) -> None:
    assert [c.name for c in table.spreads(names=["row", "length"]).columns] == ["row", "length"]
    with pytest.raises(UnknownField, match="no episode column"):
        table.spreads(names=["nothing"])


def test_what_cannot_be_asked_for(table: EpisodeTable) -> None:
    with pytest.raises(UnknownField, match='Did you mean "length"'):
        table.page(sort="lenght")
    with pytest.raises(InvalidExpression):
        table.page(where="length >")
    with pytest.raises(InvalidArgument):
        table.page(count=1001)


def test_no_episode_matches(table: EpisodeTable) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = table.page(where="length > 100", sort="task")
    assert (page.matching, page.episodes) == (0, ())
    assert all(sum(c.matched) == 0 for c in table.spreads("length > 100").columns)


def test_the_lines_that_do_the_same(ds: rlds_cli.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLDS_HOME", str(ds.path.parents[2]))
    where = '`success rate` < 0.5 and task != "it\'s $HOME"'

    page = EpisodeTable(ds).page(where=where, sort="score", descending=True, ref="local/table")

    assert page.shell is not None
    done = run_rlds(*shlex.split(page.shell)[1:], "--json")
    assert [row["number"] for row in json.loads(done.stdout)["episodes"]] == [r.number for r in page.episodes][:20]
    assert shlex.split(str(page.select))[1:5] == ["select", "local/table", "--where", where]
    selected = eval(page.python, {"rlds_cli": rlds_cli})
    assert selected.episodes["success rate"].tolist() == sorted(r.values["success rate"] for r in page.episodes)


def test_no_dataset_is_made_at_an_address(
    ds: rlds_cli.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLDS_HOME", str(ds.path.parents[2]))
    run_rlds("push", "local/table", str(tmp_path / "pushed"))
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))

    done = run_rlds("episodes", str(tmp_path / "pushed"), "--where", "length == 2", "--json")

    found = json.loads(done.stdout)
    assert found["select"] is None and "--where 'length == 2'" in found["shell"]
    assert [row["number"] for row in found["episodes"]] == np.flatnonzero(ds.episodes["length"] == 2)[:20].tolist()


def test_the_command_lists_episodes(ds: rlds_cli.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLDS_HOME", str(ds.path.parents[2]))

    done = run_rlds("episodes", "local/table", "--where", "length == 2", "--first", "2", "--count", "3")

    chosen = np.flatnonzero(ds.episodes["length"] == 2)
    lines = done.stdout.decode().splitlines()
    assert lines[0].split()[:3] == ["EPISODE", "length", "total_reward"]
    assert [int(line.split()[0]) for line in lines[1:]] == chosen[2:5].tolist()
    assert f"{len(chosen)} of {ds.num_episodes} episodes" in done.stderr.decode()
