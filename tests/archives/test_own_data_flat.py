"""Flat data of anybody's: which rows are an episode, whatever tells them apart, or a refusal that names the rows."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from archive_rows import Rows
from hypothesis import given, settings
from hypothesis import strategies as st
from own_files import FORMATS, write

from rlds_cli import archives
from rlds_cli.archives.plain import boundaries, flat
from rlds_cli.errors import ArchiveError, UnknownLayout
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import
from rlds_cli.ted import CUT, TERMINATED, TRUNCATED

# Six episodes of five steps; the even ones terminate, the others run out of time without a flag.
ROWS = [
    {
        "episode_id": e,
        "step": t,
        "obs": [float(np.sin(t) + 0.1 * e)],
        "action": [0.5 * t],
        "reward": 1.0,
        "done": e % 2 == 0 and t == 4,
    }
    for e in range(6)
    for t in range(5)
]


def columns(rows: list[dict[str, Any]], *without: str) -> dict[str, list[Any]]:
    return {k: [r[k] for r in rows] for k in rows[0] if k not in without}


def check_six(rows: Rows) -> None:
    """Compare with ``ROWS``, value by value."""
    assert rows.episodes.length.tolist() == [5] * 6
    assert rows.episodes.end.tolist() == [TERMINATED, CUT] * 3
    assert not rows.episodes.observed.any()
    for e in range(6):
        here = ROWS[5 * e : 5 * e + 5]
        assert rows.of(e, "observation")[:5].reshape(5).tolist() == [r["obs"][0] for r in here]
        assert rows.of(e, "action").reshape(5).tolist() == [r["action"][0] for r in here]
        assert rows.of(e, "next/terminated").tolist() == [r["done"] for r in here]
        assert rows.of(e, "next/truncated").tolist() == [False] * 4 + [e % 2 == 1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("order", ["as they are", "shuffled"])
@pytest.mark.parametrize("id", ["episode_id", "episode", "episode_index", "trajectory_id", "traj_id"])
def test_an_id_decides_and_flags_say_how_episodes_end(tmp_path: Path, suffix: str, order: str, id: str) -> None:
    rows = [ROWS[i] for i in np.random.default_rng(0).permutation(30)] if order == "shuffled" else ROWS
    found = columns(rows)
    path = write(tmp_path / f"a{suffix}", {id if k == "episode_id" else k: v for k, v in found.items()})
    read = Rows("plain", path)
    check_six(read)
    assert read.plan.episodes_by == f"field:{id}"
    assert read.plan.episode_summary is not None
    assert read.plan.episode_summary.numbers() == {
        "episodes": 6,
        "steps": 30,
        "shortest": 5,
        "median": 5,
        "longest": 5,
        "ends": {"terminated": 3, "truncated": 0, "cut": 3},
    }
    assert any("out of order" in n.text for n in read.notes) == (order == "shuffled")


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", FORMATS)
def test_steps_that_begin_again_tell_what_no_flag_says(tmp_path: Path, suffix: str) -> None:
    check_six(Rows("plain", write(tmp_path / f"a{suffix}", columns(ROWS, "episode_id"))))


def test_texts_are_ids_in_natural_order(tmp_path: Path) -> None:
    rows = [{**r, "episode_id": f"run{10 - r['episode_id']}"} for r in reversed(ROWS)]
    read = Rows("plain", write(tmp_path / "a.parquet", columns(rows)))
    assert read.episodes.end.tolist() == [CUT, TERMINATED] * 3  # run5 was the last
    assert read.of(0, "observation")[0].item() == ROWS[25]["obs"][0]


def test_a_step_that_counts_through_all_episodes_says_nothing(tmp_path: Path) -> None:
    found = columns(ROWS) | {"step": list(range(100, 130))}
    check_six(Rows("plain", write(tmp_path / "a.npz", found)))
    one = Rows("plain", write(tmp_path / "b.npz", columns(ROWS, "episode_id", "done") | {"step": list(range(30))}))
    assert one.episodes.length.tolist() == [30]
    assert any("each file is one episode" in n.text for n in one.notes)


CONTRADICTIONS = {
    "a flag inside": (lambda c: c["done"].__setitem__(7, True), r"row 7 of a\.\w+ is done, but its episode continues"),
    "an id that comes back": (
        lambda c: (c.pop("step"), c["episode_id"].__setitem__(slice(20, 25), [1] * 5)),
        r"episode 1 appears again in row 20 of a",
    ),
    "a step twice": (
        lambda c: c["step"].__setitem__(12, 1),
        r"episode 2 has step 1 in row 11 of .* and again in row 12",
    ),
    "a step left out": (
        lambda c: c["step"].__setitem__(14, 9),
        r"episode 2 has step 3 in row 13 of .* and step 9 in row 14 of .*, and none between",
    ),
    "steps from 2": (lambda c: c["step"].__setitem__(slice(5, 10), range(2, 7)), r"row 5 of .* begins .* with step 2"),
    "starts elsewhere": (
        lambda c: c.update(episode_starts=[i % 5 == 0 and i != 10 for i in range(30)]),
        r"row 10 of .* does not begin an episode by episode_starts, does by field:episode_id",
    ),
    "truncated inside": (
        lambda c: c.update(truncated=[i == 2 for i in range(30)], terminated=c.pop("done")),
        r"row 2 of .* is truncated, but its episode continues",
    ),
    "done is something else": (
        lambda c: c.update(truncated=[i % 5 == 4 for i in range(30)], terminated=[False] * 30),
        r"row 9 of .*: done is not terminated or truncated",
    ),
    "no action inside": (
        lambda c: c["action"].__setitem__(3, [np.nan]),
        r"row 3 of .* has no action, but it is not the last",
    ),
    "marked as the last inside": (
        lambda c: c.update(is_last=[i % 5 == 4 or i == 12 for i in range(30)]),
        r"row 12 of .* is the last of an episode by is_last, and not by field:episode_id",
    ),
    "an id that is missing": (
        lambda c: c.update(episode_id=[np.nan if i == 25 else e for i, e in enumerate(c["episode_id"])]),
        r"row 25 of a\.\w+ has no episode_id",
    ),
    "a step that is missing": (
        lambda c: (
            c.pop("episode_id"),
            c.update(step=[np.nan if i == 7 else t for i, t in enumerate(c["step"])]),
        ),
        r"row 7 of a\.\w+ has no step",
    ),
    "a flag that is missing": (
        lambda c: c.update(done=[np.nan if i == 7 else float(d) for i, d in enumerate(c["done"])]),
        r"row 7 of a\.\w+ has no done",
    ),
    "a reward in words": (
        lambda c: c.update(reward=["much" if i == 7 else "1" for i in range(30)]),
        r"reward is not a number: row 7 of a\.\w+ holds 'much'",
    ),
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", CONTRADICTIONS)
@pytest.mark.parametrize("suffix", FORMATS)
def test_contradictions_are_refused_with_their_rows(tmp_path: Path, name: str, suffix: str) -> None:
    change, message = CONTRADICTIONS[name]
    found = columns(ROWS)
    change(found)
    with pytest.raises(UnknownLayout, match=message) as e:
        Rows("plain", write(tmp_path / f"a{suffix}", found))
    assert e.value.hint


def test_a_step_in_seconds_counts_nothing(tmp_path: Path) -> None:
    seconds = [0.05 * t for t in columns(ROWS)["step"]]
    check_six(Rows("plain", write(tmp_path / "a.npz", columns(ROWS, "step") | {"timestep": seconds})))
    flagged = columns(ROWS, "step", "episode_id") | {"timestep": seconds, "done": [i % 5 == 4 for i in range(30)]}
    assert Rows("plain", write(tmp_path / "b.npz", flagged)).episodes.length.tolist() == [5] * 6


def test_steps_of_eight_bits_do_not_wrap_around(tmp_path: Path) -> None:
    steps = np.tile(np.arange(256), 2).astype("u1")
    found = {"obs": np.zeros((512, 1)), "action": np.zeros(512), "step": steps}
    assert Rows("plain", write(tmp_path / "a.npz", found)).episodes.length.tolist() == [256, 256]


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_ids_of_fixed_width_are_ids(tmp_path: Path, suffix: str) -> None:
    ids = np.array([b"e%d" % e for e in columns(ROWS)["episode_id"]])
    tasks = np.array([b"push", b"pull", b"push", b"pull", b"push", b"pull"])
    found = columns(ROWS) | {"episode_id": ids, "task": tasks}
    rows = Rows("plain", write(tmp_path / f"a{suffix}", found))
    check_six(rows)
    assert rows.episodes.extra == {"task": ["push", "pull"] * 3}


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"episode_ends": [4, 9, 14, 19, 24, 29]}, r"the episodes of episode_ends have 29 rows together; there are 30"),
        ({"episode_lengths": [5, 5]}, r"the episodes of episode_lengths have 10 rows together; there are 30 actions"),
        ({"episode_id": np.zeros((30, 2))}, r"episode_id is float64 \[30, 2\], which cannot tell episodes apart"),
    ],
)
def test_what_cannot_tell_episodes_apart_is_refused(tmp_path: Path, told: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "a.npz", columns(ROWS, "episode_id", "step") | told)
    with pytest.raises(UnknownLayout, match=message):
        Rows("plain", path)
    assert Rows("plain", path, episodes_by="flags").episodes.length.tolist() == [5, 10, 10, 5]


def test_an_option_decides_where_columns_contradict_each_other(tmp_path: Path) -> None:
    found = columns(ROWS)
    found["done"][7] = True
    path = write(tmp_path / "a.npz", found)
    by_id = Rows("plain", path, episodes_by="field:episode_id")
    assert by_id.episodes.length.tolist() == [5] * 6
    assert by_id.of(1, "next/terminated").tolist() == [False, False, True, False, False]
    assert by_id.codes["terminated-inside"] == 1
    assert Rows("plain", path, episodes_by="flags").episodes.length.tolist() == [5, 3, 7, 10, 5]
    assert Rows("plain", path, episodes_by="steps:step").episodes.length.tolist() == [5] * 6
    assert Rows("plain", path, episodes_by="file").episodes.length.tolist() == [30]
    for rule, message in (
        ("field:nothing", 'no column "nothing"'),
        ("flag", "is not a rule"),
        ("starts", 'no column ""'),
    ):
        with pytest.raises(UnknownLayout, match=message):
            Rows("plain", path, episodes_by=rule)


# -- flags


def test_done_beside_truncated_is_not_terminated(tmp_path: Path) -> None:
    ends = np.arange(6) % 3 == 2
    cols = {"obs": np.arange(6.0), "action": np.arange(6), "done": ends, "truncated": ends & (np.arange(6) > 3)}
    read = Rows("plain", write(tmp_path / "a.csv", cols))
    assert read.episodes.end.tolist() == [TERMINATED, TRUNCATED]
    assert "done" not in read.schema


def test_truncated_is_a_flag_under_the_rule_file_too(tmp_path: Path) -> None:
    cols = {"obs": np.arange(4.0), "action": np.arange(4), "truncated": np.arange(4) == 3}
    read = Rows("plain", write(tmp_path / "a.npz", cols), episodes_by="file")
    assert read.episodes.end.tolist() == [TRUNCATED]
    assert set(read.schema) == {"observation", "action", "next/terminated", "next/truncated"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("separator", ["/", ".", "_"])
@pytest.mark.parametrize("suffix", FORMATS)
def test_teds_own_names(tmp_path: Path, separator: str, suffix: str) -> None:
    n, ends = 9, np.array([2, 5, 8])
    obs = np.random.default_rng(1).normal(size=(12, 2)).round(3)  # three walks of four
    now, after = np.delete(obs, [3, 7, 11], axis=0), np.delete(obs, [0, 4, 8], axis=0)
    terminated, truncated = np.isin(np.arange(n), ends[:2]), np.arange(n) == 8
    made = {
        "observation": now,
        "action": np.arange(n),
        "done": np.zeros(n, bool),
        "terminated": np.zeros(n, bool),
        "truncated": np.zeros(n, bool),
        f"next{separator}observation": after,
        f"next{separator}reward": np.arange(n) / 2,
        f"next{separator}done": terminated | truncated,
        f"next{separator}terminated": terminated,
        f"next{separator}truncated": truncated,
    }
    read = Rows("plain", write(tmp_path / f"a{suffix}", made))
    assert set(read.schema) == {"observation", "action", "next/reward", "next/terminated", "next/truncated"}
    assert read.episodes.length.tolist() == [3, 3, 3]
    assert read.episodes.end.tolist() == [TERMINATED, TERMINATED, TRUNCATED]
    assert read.episodes.observed.all()
    np.testing.assert_array_equal(read["observation"], obs)
    assert read.of(1, "next/reward").tolist() == [1.5, 2.0, 2.5]
    assert any("flags at the root" in note.text for note in read.notes)


def test_expert_files_of_stable_baselines(tmp_path: Path) -> None:
    """``episode_starts`` begin episodes, and ``episode_returns`` has a value for each."""
    starts = np.isin(np.arange(10), [0, 4, 7])
    obs = np.random.default_rng(0).normal(size=(10, 3))
    path = tmp_path / "expert_x.npz"
    np.savez(
        path,
        actions=np.arange(10)[:, None],
        episode_returns=np.array([4.0, 3.0, 2.0]),
        rewards=np.ones(10),
        obs=obs,
        episode_starts=starts,
    )
    read = Rows("plain", path)
    assert read.episodes.length.tolist() == [4, 3, 3]
    assert read.episodes.end.tolist() == [CUT] * 3
    assert read.plan.episodes_by == "starts:episode_starts"
    assert read.episodes.extra == {"episode_returns": [4.0, 3.0, 2.0]}
    assert read.metadata == {}
    again = Rows("plain", path, episodes_by="starts:episode_starts")
    assert again.episodes.length.tolist() == [4, 3, 3]


# -- final observations


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize("told", ["id", "flags", "lengths"])
def test_an_observation_more_per_episode_than_actions(tmp_path: Path, suffix: str, told: str) -> None:
    lengths = [2, 3, 1]
    obs = np.random.default_rng(0).normal(size=(9, 2))
    cols: dict[str, Any] = {"observations": obs, "actions": np.arange(6.0), "rewards": np.arange(6.0)}
    more = {
        "id": {"episode": [0, 0, 1, 1, 1, 2]},
        "flags": {"terminals": [False, True, False, False, True, True]},
        "lengths": {"episode_lengths": lengths},
    }
    read = Rows("plain", write(tmp_path / f"a{suffix}", cols | more[told]))
    assert read.episodes.length.tolist() == lengths and read.episodes.observed.all()
    np.testing.assert_array_equal(read["observation"], obs)
    assert [read.of(k, "next/reward").tolist() for k in range(3)] == [[0, 1], [2, 3, 4], [5]]


def test_as_many_observations_as_nothing_explains_are_refused(tmp_path: Path) -> None:
    cols = {"obs": np.zeros((8, 2)), "action": np.zeros(6), "episode": [0, 0, 1, 1, 1, 2]}
    with pytest.raises(UnknownLayout, match=r"8 observations and 6 actions in 3 episodes \(field:episode\)"):
        Rows("plain", write(tmp_path / "a.npz", cols))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_whole_numbers_may_be_missing_in_the_row_of_a_final_observation_only(tmp_path: Path, suffix: str) -> None:
    found = {"episode": [0, 0, 0, 1, 1], "obs": [1.5, 2.5, 3.5, 4.5, 5.5], "action": [3, 4, None, 5, None]}
    found |= {"reward": [1, 2, None, 3, None], "done": [False, True, None, False, None]}
    rows = [{k: v[i] for k, v in found.items()} for i in range(5)]
    path = tmp_path / f"a{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    elif suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        lines = [",".join("" if v is None else str(v) for v in r.values()) for r in rows]
        path.write_text("\n".join([",".join(found), *lines]) + "\n")
    read = Rows("plain", path)
    assert read.episodes.length.tolist() == [2, 1] and read.episodes.observed.all()
    assert read["observation"].tolist() == found["obs"]
    assert read["action"].dtype == np.int64 and read.of(0, "action").tolist() == [3, 4]
    assert read.episodes.end.tolist() == [TERMINATED, CUT]


def test_a_reward_missing_at_a_step_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("episode,obs,action,reward\n0,1.5,3,1\n0,2.5,4,\n0,3.5,,\n")
    with pytest.raises(UnknownLayout, match=r"row 1 of a\.csv has no reward"):
        Rows("plain", tmp_path / "a.csv")


# -- several files


def shards(directory: Path, rows: list[dict[str, Any]], cuts: list[int], *without: str) -> list[Path]:
    bounds = [0, *cuts, len(rows)]
    return [
        write(directory / f"part{i}.parquet", columns(rows[a:b], *without)) for i, (a, b) in enumerate(pairwise(bounds))
    ]


@pytest.mark.parametrize("without", [(), ("step",), ("episode_id",), ("done",)])
def test_an_episode_goes_on_in_the_next_file(tmp_path: Path, without: tuple[str, ...]) -> None:
    read = Rows("plain", *shards(tmp_path, ROWS, [7, 12, 20], *without))
    assert read.episodes.length.tolist() == [5] * 6
    assert read.episodes.source.tolist() == [0, 0, 1, 2, 3, 3]
    assert read.episodes.row.tolist() == [0, 5, 3, 3, 0, 5]
    assert read["observation"][::6].reshape(-1).tolist() == [r["obs"][0] for r in ROWS[::5]]


@pytest.mark.thorough
def test_numbers_that_begin_anew_in_each_file_are_other_episodes(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"seed{i}.csv", columns(ROWS[:10])) for i in range(3)]
    read = Rows("plain", *paths)
    assert read.episodes.length.tolist() == [5] * 6 and read.episodes.source.tolist() == [0, 0, 1, 1, 2, 2]
    alone = [write(tmp_path / f"one{i}.csv", columns(ROWS[:5], "step")) for i in range(2)]
    assert Rows("plain", *alone).episodes.length.tolist() == [5, 5]


def test_one_number_that_may_go_on_or_begin_anew_is_refused(tmp_path: Path) -> None:
    for k, ids in enumerate([[0, 0], [0, 0, 1, 1]]):
        found = {"episode_id": ids, "obs": np.zeros((len(ids), 1)), "action": np.zeros(len(ids))}
        write(tmp_path / f"f{k}.npz", found)
    files = sorted(tmp_path.iterdir())
    with pytest.raises(UnknownLayout, match="Episode 0 is all of one file and begins the next one"):
        Rows("plain", *files)
    assert Rows("plain", *files, episodes_by="field:episode_id").episodes.length.tolist() == [2, 2, 2]


@pytest.mark.parametrize("text", ["[1. 2.]", "(1.0, 2.0)", "[1.0, nan]"])
def test_lists_that_are_no_json_are_not_kept_as_texts(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(f'obs,action\n"{text}",1\n"{text}",2\n')
    with pytest.raises(UnknownLayout, match=r"obs is a text, and no list of numbers as JSON has it.*: row 0 of a.csv"):
        Rows("plain", tmp_path / "a.csv")


def test_an_index_without_a_name_makes_no_field(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",obs,action\n0,1.5,1\n1,2.5,2\n")
    rows = Rows("plain", tmp_path / "a.csv")
    assert rows.schema.keys() == {"observation", "action", "next/terminated", "next/truncated"}


def test_a_file_without_rows_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", columns(ROWS))
    (tmp_path / "b.csv").write_text(",".join(ROWS[0]) + "\n")
    with pytest.raises(UnknownLayout, match=r"b\.csv has no rows"):
        Rows("plain", tmp_path / "a.csv", tmp_path / "b.csv")
    check_six(Rows("plain", tmp_path / "a.csv", tmp_path / "b.csv", skip_bad=True))


def test_files_of_other_names_are_refused(tmp_path: Path) -> None:
    a = write(tmp_path / "a.npz", columns(ROWS))
    b = write(tmp_path / "b.npz", {"rewards" if k == "reward" else k: v for k, v in columns(ROWS).items()})
    with pytest.raises(UnknownLayout, match=r"next/reward is called rewards in b\.npz, reward in a\.npz"):
        Rows("plain", a, b)


@pytest.mark.thorough
def test_rows_shuffled_over_all_files_are_put_in_order(tmp_path: Path) -> None:
    rows = [ROWS[i] for i in np.random.default_rng(3).permutation(30)]
    check_six(Rows("plain", *shards(tmp_path, rows, [11, 23])))


def test_what_does_not_fit_in_memory_is_ordered_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.archives.formats.table_views.MEMORY_BYTES", 0)
    monkeypatch.setattr("rlds_cli.archives.formats.table_views.COPY_BYTES", 64)
    rows = [ROWS[i] for i in np.random.default_rng(3).permutation(30)]
    check_six(Rows("plain", write(tmp_path / "a.npz", columns(rows))))


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_many_parts(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.archives.flat.PART_ROWS", 7)
    read = Rows("plain", write(tmp_path / f"a{suffix}", columns(ROWS)))
    assert len(read.plan.parts) == 5
    check_six(read)
    final = {k: [*v, *v[-1:]] for k, v in columns(ROWS).items()} | {
        "action": [[r["action"][0]] for r in ROWS] + [[np.nan]]
    }
    final["step"][-1], final["done"][-1] = 5, False
    seen = Rows("plain", write(tmp_path / f"b{suffix}", final))
    assert len(seen.plan.parts) == 5 and seen.episodes.observed.tolist() == [False] * 5 + [True]


# -- names and numbers


def test_scalar_columns_make_one_field(tmp_path: Path) -> None:
    cols = {"x": np.arange(3.0), "y": np.arange(3), "theta": np.ones(3), "u": np.arange(3.0), "done": [0, 0, 1]}
    path = write(tmp_path / "a.csv", cols)
    for key in ("[x, y, theta]", "[x,y,th*]"):
        read = Rows("plain", path, fields={"observation": key, "action": "u"})
        assert read.of(0, "observation")[:3].tolist() == [[0.0, 0.0, 1.0], [1.0, 1.0, 1.0], [2.0, 2.0, 1.0]]
        assert any("x, y, theta" in n.text for n in read.notes)
        assert set(read.schema) == {"observation", "action", "next/terminated", "next/truncated"}
    with pytest.raises(UnknownLayout, match='no "phi"'):
        Rows("plain", path, fields={"observation": "[x, phi]", "action": "u"})


def test_numbered_columns_are_components_in_natural_order(tmp_path: Path) -> None:
    cols = {f"obs_{i}": np.full(3, float(i)) for i in (10, 2, 1, 0, *range(3, 10))}
    read = Rows("plain", write(tmp_path / "a.csv", {**cols, "action": np.arange(3), "done": [0, 0, 1]}))
    assert read.of(0, "observation")[0].tolist() == [float(i) for i in range(11)]
    starred = Rows("plain", tmp_path / "a.csv", fields={"observation": "obs_*"})
    assert starred.of(0, "observation")[0].tolist() == [float(i) for i in range(11)]


def test_one_name_given_leaves_the_others_recognised(tmp_path: Path) -> None:
    cols = {"q": np.zeros((4, 2)), "act": np.zeros(4), "rew": np.ones(4), "episode_id": [0, 0, 1, 1], "done": [0] * 4}
    read = Rows("plain", write(tmp_path / "a.h5", cols), fields={"observation": "q"})
    assert read.episodes.length.tolist() == [2, 2] and "next/reward" in read.schema


@pytest.mark.thorough
def test_columns_of_the_episode_table(tmp_path: Path) -> None:
    cols = columns(ROWS) | {"task": ["push" if r["episode_id"] < 3 else "pull" for r in ROWS]}
    path = write(tmp_path / "a.parquet", cols)
    ds = import_files(path, "local/tasks", fields={"episode/task": "task"})
    assert ds.episodes["task"].tolist() == ["push"] * 3 + ["pull"] * 3
    assert ds.select(where="task == 'pull'").num_episodes == 3
    assert "task" not in ds.schema
    cols["task"][7] = "lift"
    with pytest.raises(UnknownLayout, match="task changes within an episode, at row 7"):
        Rows("plain", write(tmp_path / "b.parquet", cols), fields={"episode/task": "task"})


@pytest.mark.thorough
def test_types_are_those_of_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.archives.formats.text_tables.BLOCK_BYTES", 256)
    n = 200
    late = [i if i < 190 else i + 0.5 for i in range(n)]
    cols = {"obs": [[i, v] for i, v in enumerate(late)], "action": late, "note": ["5"] * 199 + ["x"], "n": range(n)}
    for suffix in (".csv", ".jsonl"):
        read = Rows("plain", write(tmp_path / f"a{suffix}", cols))
        assert {k: f.dtype for k, f in read.schema.items() if "next" not in k} == {
            "observation": "float64",
            "action": "float64",
            "note": "str",
            "n": "int64",
        }
        assert read.of(0, "observation")[:n].tolist() == [[float(i), float(v)] for i, v in enumerate(late)]
        assert read.of(0, "note") == cols["note"]
    (tmp_path / "mixed.jsonl").write_text('{"obs": 1, "action": 1}\n' * 30 + '{"obs": "x", "action": 1}\n' * 30)
    with pytest.raises(UnknownLayout, match="values of several kinds"):
        Rows("plain", tmp_path / "mixed.jsonl")


def test_semicolons_tabs_quotes_and_headers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('obs;action;text\n1.5;2;"a;b\nc"\n2.5;3;\n')
    (tmp_path / "a.tsv").write_text("obs\taction\n1.5\t2\n2.5\t3\n")
    assert Rows("plain", tmp_path / "a.csv").of(0, "text") == ["a;b\nc", ""]
    assert Rows("plain", tmp_path / "a.tsv").of(0, "action").tolist() == [2, 3]
    (tmp_path / "twice.csv").write_text("obs,obs,action\n1,2,3\n")
    with pytest.raises(UnknownLayout, match='two columns named "obs"'):
        Rows("plain", tmp_path / "twice.csv")


def test_damaged_files_of_ones_own_are_left_out_on_request(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"run{i}.npz", columns(ROWS[:10])) for i in range(3)]
    paths[1].write_bytes(paths[1].read_bytes()[:200])
    with pytest.raises(Exception, match=r"run1\.npz"):
        Rows("plain", *paths)
    read = Rows("plain", *paths, skip_bad=True)
    assert read.episodes.length.tolist() == [5] * 4
    assert [n.where.partition(":")[0] for n in read.notes if n.code == "skipped-file"] == ["run1.npz"]


@pytest.mark.thorough
@pytest.mark.parametrize("each", [10, 5])  # two episodes a file, and one
def test_a_dataset_names_the_files_that_were_left_out(tmp_path: Path, each: int) -> None:
    paths = [write(tmp_path / f"run{i}.npz", columns(ROWS[:each])) for i in range(3)]
    paths[1].write_bytes(b"garbage" * 30)
    with pytest.raises(ArchiveError, match=r"run1\.npz cannot be read like the other files") as error:
        import_files(paths, "local/x")
    assert "--skip-bad" in str(error.value.hint)
    ds = import_files(paths, "local/x", skip_bad=True)
    assert ds.num_steps == 2 * each
    named = [n["where"] for n in ds.manifest.notes if n["code"] == "skipped-file"]
    assert [where.partition(":")[0] for where in named] == ["run1.npz"]


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_traces_lead_back_to_the_rows(tmp_path: Path, suffix: str) -> None:
    rows = [ROWS[i] for i in np.random.default_rng(3).permutation(30)]
    ds = import_files(write(tmp_path / f"a{suffix}", columns(rows)), "local/shuffled")
    found = trace(ds, 30)
    assert found.ok and found.values > 100


def test_a_dry_run_says_what_will_be(tmp_path: Path) -> None:
    planned = plan_import(write(tmp_path / "a.csv", columns(ROWS)), "local/x")
    assert planned.episodes is not None and planned.episodes["ends"] == {"terminated": 3, "truncated": 0, "cut": 3}
    assert planned.facts["fields"]["observation"] == "obs"
    assert archives.recognise([tmp_path / "a.csv"]) == (
        "plain",
        "columns of rows: CSV, 30 rows; obs, action, reward, done",
    )


# -- any layout


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    """Episodes, and which columns tell of them."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    told = {k: draw(st.booleans()) for k in ("id", "step", "flags", "done", "final")}
    return {
        "lengths": lengths,
        "ends": [draw(st.sampled_from([TERMINATED, TRUNCATED, CUT])) for _ in lengths],
        "seed": draw(st.integers(0, 2**32 - 1)),
        "shuffled": draw(st.booleans()) and told["id"] and told["step"],
        **told,
    }


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize("suffix", FORMATS)
@settings(max_examples=40)
@given(layout=layouts())
def test_any_layout_gives_the_right_episodes(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, layout: Any
) -> None:
    rng = np.random.default_rng(layout["seed"])
    lengths, final = layout["lengths"], layout["final"]
    # A flag of done alone cannot tell truncated from terminated, and without flags no episode has one.
    known = [TERMINATED, TRUNCATED] if layout["flags"] else [TERMINATED] if layout["done"] else []
    ends = [e if e in known else CUT for e in layout["ends"]]
    obs = [rng.normal(size=(t + 1, 2)).round(3) for t in lengths]
    act = [rng.normal(size=(t, 1)).round(3) for t in lengths]
    rows: list[dict[str, Any]] = []
    for e, t in enumerate(lengths):
        for i in range(t + final):
            row: dict[str, Any] = {"obs": obs[e][i], "action": act[e][i] if i < t else np.full(1, np.nan)}
            row["reward"] = float(10 * e + i) if i < t else np.nan
            if layout["id"]:
                row["episode_id"] = 3 * e + 2
            if layout["step"]:
                row["step"] = i
            if layout["flags"]:
                row |= {
                    "terminated": i == t - 1 and ends[e] == TERMINATED,
                    "truncated": i == t - 1 and ends[e] == TRUNCATED,
                }
            if layout["done"]:
                row["done"] = i == t - 1 and ends[e] != CUT
            rows.append(row)
    if layout["shuffled"]:
        rows = [rows[i] for i in rng.permutation(len(rows))]
    told = layout["id"] or layout["step"] or final or all(e != CUT for e in ends[:-1]) or len(lengths) == 1
    path = write(tmp_path_factory.mktemp("any") / f"a{suffix}", {k: np.array([r[k] for r in rows]) for k in rows[0]})
    read = Rows("plain", path)
    if not told:  # what nothing tells apart is one
        return
    if layout["shuffled"]:  # episodes stand in the order of their ids, or in that of the rows where these are in order
        order = [(read["episode_id"][start].item() - 2) // 3 for start in read.episodes.start]
        assert sorted(order) == list(range(len(lengths)))
        lengths, ends, obs, act = ([values[k] for k in order] for values in (lengths, ends, obs, act))
        first = [10.0 * k for k in order]
    else:
        first = [10.0 * k for k in range(len(lengths))]
    assert read.episodes.length.tolist() == lengths
    assert read.episodes.end.tolist() == ends
    assert read.episodes.observed.tolist() == [final] * len(lengths)
    for e, t in enumerate(lengths):
        np.testing.assert_array_equal(read.of(e, "observation")[: t + final], obs[e][: t + final])
        np.testing.assert_array_equal(read.of(e, "action").reshape(t, 1), act[e])
        assert read.of(e, "next/reward").tolist() == [first[e] + i for i in range(t)]
        assert read.of(e, "next/terminated").tolist() == [False] * (t - 1) + [ends[e] == TERMINATED]
        assert read.of(e, "next/truncated").tolist() == [False] * (t - 1) + [ends[e] != TERMINATED]


LONG = "x" * 40  # longer than what is kept as bytes of one width


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


@pytest.mark.parametrize("ids", [["e2", "e10", "é"], ["e2", LONG, "e10"], ["a", "a\0b", "b"], [LONG, "b", LONG + "y"]])
def test_ids_that_are_texts_of_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: list[str]) -> None:
    monkeypatch.setattr(boundaries, "SCAN_ROWS", 3)  # blocks of short ids, of long ones, and of both
    rows = [{"episode_id": e, "obs": [1.0], "action": [0.5], "reward": 1.0} for e in ids for _ in range(2)]
    ds = import_files(written(tmp_path / "a.jsonl", rows), "local/ids", home=tmp_path / "home", progress=False)
    assert ds.episodes["length"].tolist() == [2, 2, 2]


@pytest.mark.thorough
def test_texts_out_of_order_are_sorted_as_people_count(tmp_path: Path) -> None:
    order = [("e10", 0), ("e2", 1), ("e10", 1), ("e2", 0)]
    rows = [{"episode_id": e, "step": t, "obs": [1.0], "action": [0.5], "reward": int(e[1:]) + t} for e, t in order]
    ds = import_files(written(tmp_path / "a.jsonl", rows), "local/ids", home=tmp_path / "home", progress=False)
    assert ds.episodes["total_reward"].tolist() == [2 + 3, 10 + 11]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("block", [1, 2, 3, 4, 100])
def test_a_column_of_the_episode_table_is_read_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(flat, "SCAN_ROWS", block)
    lengths, scores = [1, 4, 2, 1], [0.5, 0.5, -1.0, 3.0]
    made = {
        "obs": np.zeros((8, 1), np.float32),
        "action": np.zeros((8, 1), np.float32),
        "reward": np.ones(8, np.float32),
        "terminals": np.array([1, 0, 0, 0, 1, 0, 1, 1], bool),
        "score": np.repeat(scores, lengths),
    }
    np.savez(tmp_path / "a.npz", **made)
    what: dict[str, Any] = {"fields": {"episode/score": "score"}, "progress": False, "home": tmp_path / "home"}
    ds = import_files(tmp_path / "a.npz", "local/a", **what)
    assert ds.episodes["score"].tolist() == scores
    made["score"][3] = 9.0
    np.savez(tmp_path / "b.npz", **made)
    with pytest.raises(UnknownLayout, match="score changes within an episode, at row 3;"):
        import_files(tmp_path / "b.npz", "local/b", **what)


def test_a_named_part_leaves_the_other_parts_where_they_were(tmp_path: Path) -> None:
    parts = {"obs/q": np.arange(8.0).reshape(4, 2), "obs/image": np.ones((4, 3)), "act": np.ones(4)}
    np.savez(tmp_path / "a.npz", done=[False, True, False, True], **parts)
    read = Rows("plain", tmp_path / "a.npz", fields={"observation/arm": "obs/q"})
    assert set(read.schema) >= {"observation/arm", "observation/image", "action"}
    assert {"obs/image", "observation/q"}.isdisjoint(read.schema)
    renamed = Rows("plain", tmp_path / "a.npz", fields={"observation/image": "obs/q"})
    assert "obs/image" in renamed.schema, "its own name is taken"

    np.savez(tmp_path / "b.npz", done=[False, True], obs=np.zeros((2, 2)), act=np.ones(2), q=np.ones((2, 3)))
    whole = Rows("plain", tmp_path / "b.npz", fields={"observation/arm": "q"})
    assert {"observation/arm", "obs"} <= set(whole.schema), "no field is beside its own parts"
