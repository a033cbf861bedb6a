from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from d4rl_files import Rows, flags, ramp, write
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_cli.archives import flat, flat_rows
from rlds_cli.archives.d4rl import read as d4rl
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import CUT, TERMINATED, TRUNCATED


def test_timeouts_rule_keeps_terminated_inside(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.hdf5",
        observations=ramp(6),
        actions=ramp(6),
        terminals=flags(6, 0, 1, 5),
        timeouts=flags(6, 3),
    )
    rows = Rows(path, episodes_by="timeouts")
    assert rows.plan.episodes_by == "timeouts"
    assert rows.episodes.length.tolist() == [4, 2]
    assert rows.episodes.end.tolist() == [TRUNCATED, TERMINATED]
    assert rows["next/terminated"].tolist() == [1, 1, 0, 0, 0, 0, 1, 0]
    assert rows["next/truncated"].tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert rows.codes() == {"terminated-inside": 2}
    assert "timeouts" not in rows.schema


@pytest.mark.thorough
def test_file_rule_keeps_timeouts_as_a_field(tmp_path: Path) -> None:
    one = write(tmp_path / "1.hdf5", observations=ramp(3), actions=ramp(3), timeouts=flags(3, 1, dtype="uint8"))
    two = write(tmp_path / "2.hdf5", observations=ramp(2) + 5, actions=ramp(2), timeouts=flags(2, 1, dtype="uint8"))
    rows = Rows(one, two, episodes_by="file")
    assert rows.episodes.length.tolist() == [3, 2]
    assert rows.episodes.end.tolist() == [CUT, TRUNCATED]
    assert rows.episodes.source.tolist() == [0, 1]
    assert rows.episodes.row.tolist() == [0, 0]
    assert rows["timeouts"].tolist() == [0, 1, 0, 0, 0, 1, 0]
    assert rows["timeouts"].dtype == np.uint8
    assert rows["observation"][:, 0].tolist() == [0, 1, 2, 2, 5, 6, 6]


@pytest.mark.parametrize("key", ["infos", "info"])
def test_field_rule(tmp_path: Path, key: str) -> None:
    path = write(
        tmp_path / "a.hdf5",
        observations=ramp(6),
        actions=ramp(6),
        terminals=flags(6, 1, 2),
        infos=np.array([[7], [7], [8], [3], [3], [3]]),
    )
    rows = Rows(path, episodes_by=f"field:{key}")
    assert rows.episodes.length.tolist() == [2, 1, 3]
    assert rows.episodes.end.tolist() == [TERMINATED, TERMINATED, CUT]
    assert rows["info"].reshape(-1).tolist() == [7, 7, 0, 8, 0, 3, 3, 3, 0]


def test_jumps_rule_by_next_observations(tmp_path: Path) -> None:
    o = ramp(8)
    n = o + 1
    n[[1, 2, 5]] += 50
    n[7] = 99
    path = write(
        tmp_path / "a.hdf5",
        observations=o,
        actions=ramp(8),
        next_observations=n,
        terminals=flags(8, 4, 5),
        timeouts=flags(8, 2, 3),
    )
    rows = Rows(path, episodes_by="jumps")
    assert rows.episodes.length.tolist() == [2, 1, 3, 2]
    assert rows.episodes.end.tolist() == [CUT, TRUNCATED, TERMINATED, CUT]
    finals = rows["observation"][rows.last]
    assert finals[:, 0].tolist() == [52, 53, 56, 99]
    assert rows["timeouts"][~rows.last].tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    assert rows["next/truncated"][~rows.last].tolist() == [0, 1, 1, 0, 0, 0, 0, 1]
    assert "unflagged-end" not in rows.codes()


def test_jumps_rule_by_observations_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n, ends = 6000, [699, 1400, 2987, 5000]
    o = np.cumsum(rng.uniform(-0.1, 0.1, (n, 3)), axis=0)
    for end in ends:
        o[end + 1 :, :2] += 20
    o[:, 2] = 4.0
    o[3000:, 2] = 5.0  # a component that hardly ever moves has no scale
    path = write(tmp_path / "a.hdf5", observations=o.astype("f4"), actions=ramp(n), timeouts=flags(n, 10, 20))
    rows = Rows(path, episodes_by="jumps")
    assert np.cumsum(rows.episodes.length).tolist() == [e + 1 for e in ends] + [n]
    (limits,) = rows.plan.facts["jumps"]
    assert limits["observations"][2] is None
    assert 0.7 < limits["observations"][0] < 0.9
    assert rows["timeouts"].sum() == 2
    still = write(tmp_path / "b.hdf5", observations=np.ones((10, 2)), actions=ramp(10))
    with pytest.raises(UnknownLayout, match="jumps cannot be detected"):
        Rows(still, episodes_by="jumps")


def test_single_mismatches_cut_and_are_reported(tmp_path: Path) -> None:
    n = 4000
    o = ramp(n)
    after = o + 1
    after[[100, 2500]] = -5
    after[n - 1] = -9
    o[200] = np.nan
    after[199] = np.nan
    path = write(
        tmp_path / "a.hdf5", observations=o, actions=ramp(n), next_observations=after, timeouts=flags(n, 999, n - 1)
    )
    rows = Rows(path)
    assert rows.episodes.length.tolist() == [101, 899, 1501, n - 2501]
    assert rows.episodes.end.tolist() == [CUT, TRUNCATED, CUT, TRUNCATED]
    assert rows["observation"][rows.last][:, 0].tolist() == [-5, 1000, -5, -9]
    assert rows.codes()["unflagged-end"] == 2
    (note,) = [x for x in rows.notes if x.code == "unflagged-end"]
    assert note.where == "row 100 of a.hdf5"
    assert rows.plan.facts["next_observations"] == "final"
    assert set(rows.schema) == {"observation", "action", "next/terminated", "next/truncated"}


@pytest.mark.thorough
@pytest.mark.parametrize("n", [20, 4000])
def test_mismatches_throughout_make_a_field_of_their_own(tmp_path: Path, n: int) -> None:
    rng = np.random.default_rng(1)
    o, after = rng.normal(size=(n, 2)), rng.normal(size=(n, 2))
    ends = flags(n, n // 2, n - 1)
    path = write(tmp_path / "a.hdf5", observations=o, actions=ramp(n), next_observations=after, terminals=ends)
    rows = Rows(path)
    assert rows.plan.facts["next_observations"] == "own"
    assert rows.episodes.length.tolist() == [n // 2 + 1, n - n // 2 - 1]
    assert np.array_equal(rows["next/observation"][~rows.last], after)
    assert not rows["next/observation"][rows.last].any()
    assert np.array_equal(rows["observation"][~rows.last], o)
    assert np.array_equal(rows["observation"][rows.last], after[ends])
    assert rows.schema["next/observation"].placement == "next"
    assert rows.episodes.num_transitions.tolist() == rows.episodes.length.tolist()
    assert rows.codes() == {"next-observation": 1}
    assert all(p.rows is not None for p in rows.plan.parts)


def test_next_observations_unlike_the_observations_are_kept(tmp_path: Path) -> None:
    o = ramp(4)
    path = write(
        tmp_path / "a.hdf5", observations=o, actions=ramp(4), next_observations=ramp(4, 3), terminals=flags(4, 3)
    )
    rows = Rows(path)
    assert rows["next/observation"].shape == (5, 3)
    assert not rows.episodes.observed.any()
    wider = write(
        tmp_path / "b.hdf5",
        observations=o,
        actions=ramp(4),
        next_observations=o.astype("f8") + 1,
        terminals=flags(4, 3),
    )
    rows = Rows(wider)
    assert rows["next/observation"].dtype == np.float64
    assert rows["observation"][-1, 0] == 4
    assert rows.episodes.observed.all()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("timeouts", 'no "timeouts"'),
        ("field:nothing", 'no column "nothing"'),
        ("field", "is not a rule"),
        ("file:x", "is not a rule"),
        ("sometimes", "is not a rule"),
        ("field:observations", "one value per row"),
    ],
)
def test_rules_that_cannot_be_followed(tmp_path: Path, rule: str, message: str) -> None:
    path = write(tmp_path / "a.h5", observations=ramp(3), actions=ramp(3))
    with pytest.raises(UnknownLayout, match=message):
        Rows(path, episodes_by=rule)


@pytest.mark.thorough
def test_several_files_one_after_the_other(tmp_path: Path) -> None:
    one = write(tmp_path / "1.hdf5", observations=ramp(3), actions=ramp(3), terminals=flags(3, 0), metadata__a=1)
    none = write(
        tmp_path / "2.hdf5",
        observations=np.zeros((0, 2), "f4"),
        actions=np.zeros((0, 2), "f4"),
        terminals=np.zeros(0, bool),
    )
    two = write(tmp_path / "3.hdf5", observations=ramp(2) + 9, actions=ramp(2), terminals=flags(2, 1), metadata__a=2)
    rows = Rows(one, none, two)
    assert rows.episodes.length.tolist() == [1, 2, 2]
    assert rows.episodes.source.tolist() == [0, 0, 2]
    assert rows.episodes.row.tolist() == [0, 1, 0]
    assert {k: int(v) for k, v in d4rl.READER.metadata(rows.plan)} == {"1.hdf5/a": 1, "3.hdf5/a": 2}
    other = write(tmp_path / "4.hdf5", observations=ramp(2, dtype="f8"), actions=ramp(2), extra=np.arange(2))
    with pytest.raises(CorruptArchive, match=r"extra is int64 \[\] and absent; observation is float64 \[2\]") as e:
        Rows(one, other)
    assert "4.hdf5" in str(e.value)


@pytest.mark.thorough
def test_chunks_are_bounded_and_long_episodes_run_through_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.archives.flat_rows.CHUNK_BYTES", 4096)
    monkeypatch.setattr(flat, "PART_ROWS", 700)
    n = 3000
    path = write(
        tmp_path / "a.h5", observations=ramp(n, 6), actions=ramp(n), timeouts=flags(n, 1999, *range(2000, 2100), 2900)
    )
    rows = Rows(path)
    assert max(sum(v.nbytes for v in c.columns.values()) for c in rows.chunks) <= 4096
    assert len(rows.plan.parts) == 3
    assert rows.episodes.length.tolist() == [2000, *[1] * 100, 801, 99]
    assert rows.episodes.row.tolist() == [0, *range(2000, 2101), 2901]
    assert np.array_equal(rows["observation"][~rows.last], ramp(n, 6))
    assert sum(not len(c.episodes) for c in rows.chunks) > 10


@pytest.mark.thorough
def test_many_short_episodes(tmp_path: Path) -> None:
    n, length = 220_000, 22
    ends = np.zeros(n, bool)
    ends[length - 1 :: length] = True
    path = write(tmp_path / "a.h5", observations=ramp(n), actions=ramp(n), timeouts=ends)
    rows = Rows(path)
    assert len(rows.episodes) == n // length
    expected = np.insert(ramp(n), np.flatnonzero(ends) + 1, ramp(n)[ends], axis=0)
    assert np.array_equal(rows["observation"], expected)


def slow_reference(
    o: list[float], after: list[float] | None, term: list[bool], tout: list[bool], rule: str
) -> dict[str, list[Any]]:
    """One row at a time, straight from the rules; `after` has few enough mismatches to cut at them."""
    out: dict[str, list[Any]] = {
        k: [] for k in ("observation", "terminated", "truncated", "last", "length", "end", "observed", "row")
    }
    start = 0
    for t in range(len(o)):
        end = t == len(o) - 1
        if rule == "flags":
            end = end or term[t] or tout[t]
        elif rule == "timeouts":
            end = end or tout[t]
        if after is not None and not end:
            end = not (after[t] == o[t + 1] or (np.isnan(after[t]) and np.isnan(o[t + 1])))
        out["observation"].append(o[t])
        out["terminated"].append(term[t])
        out["truncated"].append(end and (tout[t] or not term[t]))
        out["last"].append(False)
        if end:
            out["observation"].append(o[t] if after is None else after[t])
            out["terminated"].append(False)
            out["truncated"].append(False)
            out["last"].append(True)
            out["length"].append(t + 1 - start)
            out["end"].append(TERMINATED if term[t] else TRUNCATED if tout[t] else CUT)
            out["observed"].append(after is not None)
            out["row"].append(start)
            start = t + 1
    return out


values = st.sampled_from([0.0, 1.0, 2.0, float("nan")])
steps = st.lists(st.tuples(values, values, st.booleans(), st.booleans()), min_size=1, max_size=40)


@pytest.mark.thorough
@settings(max_examples=30)
@given(steps, st.sampled_from(["flags", "timeouts", "file"]), st.booleans(), st.booleans(), st.integers(1, 9))
def test_layout_equals_the_slow_reference(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    drawn: list[tuple[float, float, bool, bool]],
    rule: str,
    recorded: bool,
    gzip: bool,
    block: int,
) -> None:
    o, after, term, tout = ([*x] for x in zip(*drawn, strict=True))
    if recorded:  # mostly the row after: few mismatches
        after = [a if t % 5 == 3 else b for t, (a, b) in enumerate(zip(after, [*o[1:], after[-1]], strict=True))]
    monkeypatch.setattr("rlds_cli.archives.flat_rows.CHUNK_ROWS", 2 * block)
    monkeypatch.setattr(flat, "PART_ROWS", 4 * block)
    monkeypatch.setattr(flat_rows, "max_cuts", lambda pairs: pairs)
    monkeypatch.setattr("rlds_cli.archives.formats.hdf5_rows.MIN_CHUNK_BYTES", 0)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as f:
        kinds = {"compression": "gzip", "shuffle": True, "chunks": (min(7, len(o)), 1)} if gzip else {}
        f.create_dataset("observations", data=np.array(o)[:, None], **kinds)
        f.create_dataset("actions", data=np.arange(len(o))[:, None])
        f.create_dataset("terminals", data=np.array(term))
        f.create_dataset("timeouts", data=np.array(tout))
        if recorded:
            f.create_dataset("next_observations", data=np.array(after)[:, None], **kinds)
    want = slow_reference(o, after if recorded else None, term, tout, rule)
    rows = Rows(path, episodes_by=rule)
    assert np.array_equal(rows["observation"][:, 0], np.array(want["observation"]), equal_nan=True)
    assert rows["next/terminated"].tolist() == want["terminated"]
    assert rows["next/truncated"].tolist() == want["truncated"]
    assert rows.last.tolist() == want["last"]
    assert rows["action"][~rows.last][:, 0].tolist() == [*range(len(o))]
    assert rows.episodes.length.tolist() == want["length"]
    assert rows.episodes.end.tolist() == want["end"]
    assert rows.episodes.observed.tolist() == want["observed"]
    assert rows.episodes.row.tolist() == want["row"]
