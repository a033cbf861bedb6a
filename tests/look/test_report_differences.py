"""``rlds diff``: what was changed by hand is what is reported."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from made_once import sample_dataset

from rlds_cli import create, preprocess
from rlds_cli.cli import out
from rlds_cli.errors import RldsError
from rlds_cli.look.checks.findings import FindingPlace
from rlds_cli.look.pages.diff import DifferencePage
from rlds_cli.look.report.diff import Difference, FieldDifference, compare


def walks(n: int = 6) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "observation": rng.normal(size=(5 + k, 3)).astype(np.float32),
            "action": rng.normal(size=(4 + k, 2)),
            "next": {"reward": rng.normal(size=4 + k), "terminated": True},
        }
        for k in range(n)
    ]


def changed(d: Difference) -> dict[str, FieldDifference]:
    return {f.name: f for f in d.fields if f.change != "same"}


@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_the_same_content_in_any_encoding(storage: Any) -> None:
    create("local/a", walks())
    d = compare(create("local/b", walks(), storage=storage), "local/a")
    assert d.same and not changed(d) and d.episodes is None
    assert all(c.a == c.b for c in d.counts)
    assert (d.a.encoding, d.b.encoding) == (storage, "memmap")


def test_one_changed_value() -> None:
    a, other = create("local/a", walks()), walks()
    other[2]["action"][1, 0] += 10
    d = compare(a, create("local/b", other))
    assert not d.same and set(changed(d)) == {"action"}
    f = changed(d)["action"]
    assert (f.change, f.differing, f.first) == ("content", 1, 2)
    assert f.digest_a != f.digest_b and f.drift is not None
    values = np.concatenate([e["action"] for e in walks()])
    assert f.drift.element == "[0]"
    assert f.drift.shift == pytest.approx(10 / len(values) / values[:, 0].std())
    assert (f.drift.min_a, f.drift.max_a) == (values.min(), values.max())
    assert d.episodes is not None
    assert (d.episodes.told_by, d.episodes.in_both, d.episodes.reordered) == ("content", 6, False)


def test_the_greatest_difference_of_a_field() -> None:
    a, other = create("local/a", walks()), walks()
    other[2]["action"][1, 0] += 0.5
    other[3]["action"][6, 1] -= 2  # the fourth episode has 7 steps
    other[4]["next"]["reward"][0] = np.nan
    found = changed(compare(a, create("local/b", other)))
    d = found["action"].deviation
    assert d is not None and d.greatest == pytest.approx(2)
    assert (d.at, d.beyond, d.values) == (FindingPlace(3, 6), 2, 2 * (7 + 8))  # of the two episodes
    d = found["next/reward"].deviation
    assert d is not None and (d.greatest, d.at, d.beyond) == (np.inf, FindingPlace(4, 0), 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_a_tolerance(storage: Any) -> None:
    """``|a - b| <= atol + rtol * |b|``: at a value of 100, 0.1 + 0.001 * 100 is 0.2."""
    episodes, other = walks(), walks()
    for e, by in ((episodes, 0.0), (other, 0.1875)):
        e[1]["action"][2, 0] = 100 - by
        e[1]["action"][3, 0] = np.nan
    a, b = create("local/a", episodes), create("local/b", other, storage=storage)
    assert compare(b, a, rtol=0.001, atol=0.1).close and not compare(b, a, rtol=0.001, atol=0.1).same
    assert not compare(b, a, rtol=0.001, atol=0.08).close
    assert not compare(b, a).close and compare(a, a).close
    d = changed(compare(b, a, atol=0.1))["action"].deviation
    assert d is not None and (d.greatest, d.beyond) == (0.1875, 1)


def test_what_no_tolerance_allows() -> None:
    a = create("local/a", walks())
    flagged, shorter = walks(), walks()
    flagged[2]["next"]["terminated"] = np.arange(6) % 5 == 0
    shorter[0]["observation"] = shorter[0]["observation"][:-1]
    named = [{**e, "extra": np.zeros(len(e["action"]))} for e in walks()]
    for k, other in enumerate((flagged, shorter, named, walks(5))):
        assert not compare(a, create(f"local/b{k}", other), rtol=10, atol=10).close
    with pytest.raises(RldsError, match="negative"):
        compare(a, a, atol=-1)


def test_other_types_of_equal_numbers() -> None:
    wide = [{**e, "observation": e["observation"].astype(np.float64)} for e in walks()]
    a, b = create("local/a", walks()), create("local/b", wide)
    d = changed(compare(a, b))["observation"].deviation
    assert d is not None and (d.greatest, d.at, d.beyond) == (0, None, 0)
    assert not compare(a, b).close and compare(a, b, atol=1e-9).close


def test_which_episodes_differ() -> None:
    o = np.zeros((5, 31, 1), np.float32)
    a = create("local/a", [{"observation": rows, "action": np.zeros((30, 1))} for rows in o])
    o[1, 7] = o[4, 30] = 1
    f = changed(compare(a, create("local/b", [{"observation": x, "action": np.zeros((30, 1))} for x in o])))[
        "observation"
    ]
    assert (f.differing, f.first) == (2, 1)
    assert f.drift is not None and f.drift.shift == np.inf  # it did not move at all before


def test_fields_that_come_go_and_change_their_type() -> None:
    episodes = walks()
    a = create("local/a", [{**e, "info": {"x": np.zeros(len(e["action"]))}} for e in episodes])
    b = create("local/b", [{**e, "action": e["action"].astype(np.float32), "extra": e["action"]} for e in episodes])
    found = {name: (f.change, f.a, f.b) for name, f in changed(compare(a, b)).items()}
    assert found == {
        "action": ("type", "float64 [2] root", "float32 [2] root"),
        "extra": ("added", None, "float64 [2] root"),
        "info/x": ("removed", "float64 [] root", None),
    }


def test_episodes_that_come_and_go() -> None:
    episodes = walks(8)
    a = create("local/a", episodes[:6])
    d = compare(a, create("local/b", [episodes[k] for k in (7, 0, 5, 3, 3)]))
    e = d.episodes
    assert e is not None
    assert (e.told_by, e.in_both, e.removed, e.added) == ("content", 3, (1, 2, 4), (0, 4))
    assert (e.num_removed, e.num_added, e.reordered) == (3, 2, True)
    steps = next(c for c in d.counts if c.name == "steps")
    assert (steps.a, steps.b) == (sum(range(4, 10)), 11 + 4 + 9 + 7 + 7)
    assert d.fields[0].differing is None  # episodes are not as many


def keep_long(batch: Any) -> Any:
    return batch if len(batch["action"]) >= 300 else None


def test_episodes_of_one_archive_are_told_by_their_origin() -> None:
    ds = sample_dataset("cartpole-minari")
    lengths = ds.episodes["length"]
    d = compare(ds, preprocess.run(ds, keep_long, "long", jobs=0))
    e = d.episodes
    assert e is not None and e.told_by == "origin"
    assert (e.in_both, e.num_added) == ((lengths >= 300).sum(), 0)
    assert list(e.removed) == np.flatnonzero(lengths < 300)[:8].tolist()


def test_nothing_in_common() -> None:
    d = compare(create("local/a", [{"observation": np.zeros(3)}]), create("local/b", [{"observation": ["a", "b"]}]))
    assert not d.same and d.episodes is None
    assert json.loads(json.dumps(out.plain(d), allow_nan=False))["same"] is False


def test_episode_columns_and_facts_of_versions(capsys: pytest.CaptureFixture[str]) -> None:
    first = create("local/a", [{**e, "episode": {"take": k}} for k, e in enumerate(walks())])
    second = first.select(episodes=[1, 4]).label(quality="bad", take=9)
    third = second.select(episodes=[0]).drop().label(quality=["x", None, None, "bad", None], facts={"fps": 50})
    d = compare("local/a#v1", "local/a#v2")
    assert not d.same and not changed(d) and not d.facts
    found = {c.name: (c.a, c.b, c.episodes, c.differing) for c in d.columns}
    assert found == {"quality": (None, "str", 6, 2), "take": ("int64", "int64", 6, 2)}
    assert [(e.episode, e.a, e.b) for c in d.columns for e in c.examples] == [
        (1, 1, 9), (4, 4, 9), (1, None, "bad"), (4, None, "bad"),
    ]  # fmt: skip
    later = compare(second, third)  # episodes by their ids
    assert [(c.name, c.episodes, [(e.episode, e.a, e.b) for e in c.examples]) for c in later.columns] == [
        ("quality", 5, [(1, "bad", "x")])
    ]
    assert [(f.name, f.a, f.b) for f in later.facts] == [("fps", None, 50.0)]
    assert not compare(first, first).columns
    out.page(DifferencePage(d), d)
    assert "take  differs in 2 of 6 episodes: episode 1: 1 -> 9; episode 4: 4 -> 9" in capsys.readouterr().out


def test_facts_alone_are_the_same_content() -> None:
    first = create("local/a", walks())
    d = compare(first, first.label(facts={"license": "MIT"}))
    assert d.same and d.close and [(f.name, f.a, f.b) for f in d.facts] == [("license", None, "MIT")]


def test_exit_codes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from rlds_cli import cli

    def rlds(*args: str) -> int:
        monkeypatch.setattr("sys.argv", ["rlds", "diff", *args])
        try:
            cli.main()
        except SystemExit as e:
            return int(e.code or 0)
        return 0

    create("local/a", walks())
    create("local/b", walks(4))
    assert rlds("local/a", "local/a") == 0
    assert "the same content" in capsys.readouterr().out
    assert rlds("local/a", "local/b") == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["episodes", "6", "4", "-2"] in lines
    assert ["2", "only", "in", "a:", "4,", "5"] in lines
    other = walks()
    other[0]["action"][1, 0] += 1e-4
    create("local/c", other)
    assert rlds("local/a", "local/c") == 1
    assert "by at most 0.0001 at episode 0 step 1, 1 of 10 values" in capsys.readouterr().out
    assert rlds("local/a", "local/c", "--rtol", "1e-3", "--atol", "1e-3") == 0
    assert "equal within the tolerance: rtol 0.001, atol 0.001" in capsys.readouterr().out
    assert rlds("local/a", "local/none") == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("DatasetNotFound: local/none")
