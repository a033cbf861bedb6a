"""RLlib's files: batches and steps in JSON, columns in Parquet, episodes in msgpack; what is pickled is refused."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archive_rows import Rows
from rllib_files import LENGTHS, batch, buffer, episode, packed, write_states

import rlds_cli
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import
from rlds_cli.ted import CUT, TERMINATED, TRUNCATED

PICKLED = base64.b64encode(bytes.fromhex("04224d184840ea78")).decode()  # as RLlib begins


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def check_batches(read: Rows, batches: list[dict[str, Any]]) -> None:
    """Compare with the lists that were written, an episode each."""
    assert read.episodes.length.tolist() == [len(b["t"]) for b in batches]
    assert read.episodes.observed.all() and (read.episodes.end == TERMINATED).all()
    for k, b in enumerate(batches):
        np.testing.assert_array_equal(read.of(k, "observation"), [*b["obs"], b["new_obs"][-1]])
        for name, key in (("action", "actions"), ("next/reward", "rewards"), ("action_prob", "action_prob")):
            np.testing.assert_array_equal(read.of(k, name), b[key])


BATCHES = [batch(k, n) for k, n in enumerate(LENGTHS)]


@pytest.mark.parametrize("form", ["batches", "fragments", "rows"])
def test_json_of_the_old_api_stack_is_read(tmp_path: Path, form: str) -> None:
    steps = [{k: v if k == "type" else v[t] for k, v in b.items()} for b in BATCHES for t in range(len(b["t"]))]
    joined = {k: "SampleBatch" if k == "type" else [v for b in BATCHES for v in b[k]] for k in BATCHES[0]}
    cut = [{k: v if k == "type" else v[part] for k, v in joined.items()} for part in (slice(0, 6), slice(6, 13))]
    given = {"batches": BATCHES, "fragments": cut, "rows": steps}[form]
    check_batches(Rows("plain", lines(tmp_path / "output-2024-01-01_worker-0_0.json", given)), BATCHES)


def test_a_file_of_one_batch_is_no_description(tmp_path: Path) -> None:
    ds = import_files(lines(tmp_path / "output.json", BATCHES[:1]), "local/x")
    assert ds.episodes["length"].tolist() == [4] and ds.num_transitions == 4
    assert trace(rlds_cli.open_dataset("local/x"), 8).ok
    left = {e["name"]: e["left_out"] for e in ds.manifest.account if "left_out" in e}
    assert left["type"] == "it says what a row is" and "infos" in left
    after = dict(zip(map(tuple, BATCHES[0]["obs"]), map(tuple, BATCHES[0]["new_obs"]), strict=True))
    drawn = next(iter(rlds_cli.Loader(ds, 32, dtype=None)))
    for now, then in zip(drawn["observation"].tolist(), drawn["next", "observation"].tolist(), strict=True):
        assert after[tuple(now)] == tuple(then)


@pytest.mark.parametrize("kind", ["batch", "row", "parquet"])
def test_values_that_are_packed_by_pickle_are_refused(tmp_path: Path, kind: str) -> None:
    b = BATCHES[0] | {"obs": PICKLED, "new_obs": PICKLED}
    if kind == "parquet":
        rows = {k: v for k, v in BATCHES[0].items() if isinstance(v, list) and k != "infos"}
        values = [PICKLED.encode()] * 4
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table(rows | {"obs": values, "new_obs": values}), path)
    elif kind == "row":
        path = lines(tmp_path / "a.json", [{k: v[0] if isinstance(v, list) else v for k, v in b.items()}] * 2)
    else:
        path = lines(tmp_path / "a.json", [b, b])
    with pytest.raises(UnsafeArchive, match="obs holds values that RLlib has packed by pickle") as e:
        plan_import(path, "local/x")
    assert "output_compress_columns" in (e.value.hint or "")


def test_batches_of_several_policies_name_the_columns_of_one(tmp_path: Path) -> None:
    given = [{"type": "MultiAgentBatch", "count": len(b["t"]), "policy_batches": {"p0": b, "p1": b}} for b in BATCHES]
    path = lines(tmp_path / "a.json", given)
    with pytest.raises(UnknownLayout, match="the policies p0, p1") as e:
        plan_import(path, "local/x")
    options = [option.split(" ")[0].split("=") for option in (e.value.hint or "").split("--map ")[1:]]
    read = Rows("plain", path, fields=dict(options))
    assert read.episodes.length.tolist() == [*LENGTHS]
    np.testing.assert_array_equal(read.of(1, "action"), BATCHES[1]["actions"])


# -- the new API stack


@pytest.mark.parametrize("form", ["arrays", "lists", "dictionaries"])
def test_episodes_of_the_new_api_stack_are_read(tmp_path: Path, form: str) -> None:
    ended = ("is_terminated", "is_truncated", "neither")
    states = [episode(k, n, ended=how) for k, (n, how) in enumerate(zip(LENGTHS, ended, strict=True))]
    given = [s["observations"]["data"] for s in states]
    for s, seen in zip(states, given, strict=True):
        if form == "lists":
            for name in ("observations", "actions", "rewards"):
                s[name] = buffer([*s[name]["data"]])
        elif form == "dictionaries":
            s["observations"] = buffer({"x": seen, "y": seen[:, 0]})
    read = Rows("plain", write_states(tmp_path / "a.parquet", states))
    assert read.episodes.length.tolist() == [*LENGTHS] and read.episodes.observed.all()
    assert read.episodes.end.tolist() == [TERMINATED, TRUNCATED, CUT]
    for k, (s, seen) in enumerate(zip(states, given, strict=True)):
        name = "observation/x" if form == "dictionaries" else "observation"
        np.testing.assert_array_equal(read.of(k, name), seen, strict=True)
        np.testing.assert_array_equal(read.of(k, "action"), s["actions"]["data"])
        np.testing.assert_array_equal(read.of(k, "next/reward"), s["rewards"]["data"])
        assert (read.of(k, "action_logp") == -0.75).all()


def test_parts_of_an_episode_are_joined_without_what_they_repeat(tmp_path: Path) -> None:
    parts = [episode(0, 4, ended="neither"), episode(0, 3, start=4, lookback=2), episode(1, 2)]
    ds = import_files(write_states(tmp_path / "a.parquet", parts), "local/x")
    assert ds.episodes["length"].tolist() == [7, 2] and ds.episodes["end"].tolist() == ["terminated"] * 2
    assert ds.episode(0)["t"].ravel().tolist() == [*range(7)]
    assert ds.episode(0)["next", "reward"].ravel().tolist() == [t / 4 for t in range(7)]
    left = {e["name"]: e["left_out"] for e in ds.manifest.account if "left_out" in e}
    assert left["infos"] == "they are dictionaries of any kind"


def changed(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**state, **more}


@pytest.mark.parametrize(
    ("state", "error", "said"),
    [
        (
            changed(episode(1, 3), rewards=buffer(np.zeros(2))),
            CorruptArchive,
            "row 1 has 3 steps, and 2 values of rewards",
        ),
        (changed(episode(1, 3), observations=buffer(np.zeros((3, 2)))), CorruptArchive, "2 values of obs"),
        (changed(episode(1, 3), actions=buffer(np.zeros((3, 5), int))), UnknownLayout, "actions is list"),
        (changed(episode(1, 3), actions=buffer(np.array([None] * 3))), UnsafeArchive, "Python objects is pickled"),
        (changed(episode(1, 3), t="x"), CorruptArchive, "is not the state of an episode"),
        ([1, 2], CorruptArchive, "is not the state of an episode"),
    ],
)
def test_states_that_contradict_each_other_are_refused(
    tmp_path: Path, state: Any, error: type[ArchiveError], said: str
) -> None:
    with pytest.raises(error, match=said):
        Rows("plain", write_states(tmp_path / "a.parquet", [episode(0, 4), state]))


def test_a_state_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    whole = packed(episode(0, 4))
    pq.write_table(pa.table({"item": [whole, whole[:-3]]}), tmp_path / "a.parquet")
    with pytest.raises(CorruptArchive, match="ends early"):
        Rows("plain", tmp_path / "a.parquet")


def test_columns_of_the_new_api_stack_are_read(tmp_path: Path) -> None:
    rows = [
        {"eps_id": f"{e:x}9f3c2", "agent_id": None, "obs": [float(10 * e + t), 1.0], "actions": t % 2, "rewards": 1.0,
         "new_obs": [float(10 * e + t + 1), 1.0], "terminateds": t == n - 1 and e != 1,
         "truncateds": t == n - 1 and e == 1, "action_logp": -0.7, "weights_seq_no": 0}
        for e, n in enumerate(LENGTHS) for t in range(n)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    read = Rows("plain", tmp_path / "a.parquet")
    assert read.episodes.length.tolist() == [*LENGTHS] and read.episodes.observed.all()
    assert read.episodes.end.tolist() == [TERMINATED, TRUNCATED, TERMINATED]
    assert read.of(2, "observation")[:, 0].tolist() == [20.0, 21.0, 22.0, 23.0]


def test_observations_that_are_a_tuple_are_read(tmp_path: Path) -> None:
    """A finalized buffer of a Tuple space is a list of arrays, and no list of steps."""
    state = episode(0, 3)
    seen = state["observations"]["data"]
    state["observations"] = buffer([seen, seen[:, 0]]) | {"finalized": True}
    read = Rows("plain", write_states(tmp_path / "a.parquet", [state]))
    np.testing.assert_array_equal(read.of(0, "observation/0"), seen)
    np.testing.assert_array_equal(read.of(0, "observation/1").ravel(), seen[:, 0])


@pytest.mark.parametrize("steps", [1 << 62, -5])
def test_counts_of_steps_that_lie_take_no_memory(tmp_path: Path, steps: int) -> None:
    path = write_states(tmp_path / "a.parquet", [changed(episode(0, 3), t=steps)])
    with pytest.raises(CorruptArchive, match=f"has {steps:,} steps, and 3 values of obs"):
        plan_import(path, "local/x")
