"""Dopamine's replay logs: every step in the order of its writing, and nothing else."""

from __future__ import annotations

import gzip
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_archives import ReplayLog

import rlds_cli
from rlds_cli import archives
from rlds_cli.archives import Archive, atari_dqn
from rlds_cli.base.text import natural
from rlds_cli.errors import CorruptArchive, DownloadFailed, UnknownLayout, UnsafeArchive
from rlds_cli.look.report import catalogue
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files
from rlds_cli.registry import lookup
from rlds_cli.ted import END_NAMES, EpisodeTable, Note

SAMPLE = Path(__file__).parents[1] / "data/dopamine/Breakout/1"


class Read:
    """What the reader gives for a directory, without a store."""

    def __init__(self, *directories: Path, skip_bad: bool = False) -> None:
        files = tuple(p for d in directories for p in sorted(d.iterdir(), key=lambda p: natural(p.name)))
        self.plan = atari_dqn.plan(Archive(directories[0].parent, files, skip_bad=skip_bad))
        of_parts = [[*atari_dqn.read(self.plan, part)] for part in self.plan.parts]
        assert [p.rows for p in self.plan.parts] == [sum(map(len, chunks)) for chunks in of_parts]
        self._chunks = [c for chunks in of_parts for c in chunks]
        table = EpisodeTable.concat([c.episodes for c in self._chunks])
        self.num_steps = int(table.length.sum())
        self.episodes = {"length": table.length, "num_observed": table.num_observed, "start": table.start}
        self.episodes["end"] = np.array(END_NAMES)[table.end]
        self.notes = Note.merged((*self.plan.notes, *(n for c in self._chunks for n in c.notes)))

    def column(self, name: str) -> np.ndarray:
        return np.concatenate([c.columns[name] for c in self._chunks])


def check(ds: Any, log: ReplayLog, episodes: list[list[int]]) -> None:
    """A dataset against the steps that were played."""
    assert ds.episodes["length"].tolist() == [len(e) for e in episodes]
    assert ds.episodes["num_observed"].tolist() == [len(e) for e in episodes]
    columns = {n: ds.column(n) for n in ("observation", "action", "next/reward", "next/terminated", "next/truncated")}
    for start, steps in zip(ds.episodes["start"].tolist(), episodes, strict=True):
        for t, step in enumerate(steps):
            frame, action, reward, terminal = log.truth[step]
            assert np.array_equal(columns["observation"][start + t], frame)
            assert columns["action"][start + t] == action
            assert columns["next/reward"][start + t] == reward
            assert columns["next/terminated"][start + t] == bool(terminal)
            assert columns["next/truncated"][start + t] == (t == len(steps) - 1 and not terminal)
        last = start + len(steps)
        assert np.array_equal(columns["observation"][last], columns["observation"][last - 1])
        assert columns["action"][last] == columns["next/reward"][last] == 0
    ended = [bool(log.truth[e[-1]][3]) for e in episodes]
    assert ds.episodes["end"].tolist() == ["terminated" if x else "cut" for x in ended]


def codes(read: Read) -> dict[str, int]:
    return {n.code: n.count for n in read.notes}


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("capacity", [7, 20])
def test_steps_come_in_the_order_of_their_writing(tmp_path: Path, seed: int, capacity: int) -> None:
    rng = np.random.default_rng(seed)
    log = ReplayLog(tmp_path / "logs", capacity)
    log.episodes(rng.integers(1, 17, 9).tolist(), finish=bool(seed % 2))
    ds = Read(tmp_path / "logs")
    check(ds, log, log.expected())
    assert ds.num_steps == sum(map(len, log.expected()))
    assert "fragments" not in codes(ds)


@pytest.mark.parametrize("lengths", [[11, 6], [30, 25], [9, 9, 2], [40]])
def test_the_last_log_has_a_stale_end(tmp_path: Path, lengths: list[int]) -> None:
    log = ReplayLog(tmp_path / "logs", 20)
    log.episodes(lengths, finish=False)
    log.final()
    assert log.count % 20 != 19
    ds = Read(tmp_path / "logs")
    check(ds, log, [e for e in log.expected() if e])
    assert ds.num_steps == len(log.truth)
    assert codes(ds)["stale-rows"] == 19 - log.count % 20


def test_a_last_log_that_repeats_the_one_before(tmp_path: Path) -> None:
    log = ReplayLog(tmp_path / "logs", 20)
    log.episodes([10, 23])  # 39 rows: the second dump comes with the last of them
    log.final()
    ds = Read(tmp_path / "logs")
    check(ds, log, [[*range(10)], [*range(10, 33)]])
    assert codes(ds)["repeated-checkpoint"] == 1


@pytest.mark.parametrize("missing", [[0], [1], [1, 2], [0, 3]])
def test_missing_checkpoints_cut_and_join_nothing(tmp_path: Path, missing: list[int]) -> None:
    log = ReplayLog(tmp_path / "logs", 20)
    log.episodes([15, 8, 12, 30, 9, 14])
    for path in (tmp_path / "logs").iterdir():
        if int(path.name.split(".")[1]) in missing:
            path.unlink()
    ds = Read(tmp_path / "logs")
    check(ds, log, log.expected(missing))
    assert codes(ds)["missing-checkpoints"] == len(missing)


@pytest.mark.thorough
def test_padding_at_the_edge_of_a_gap_is_left_out(tmp_path: Path) -> None:
    for first in range(12, 18):  # the three rows of padding lie on either side of rows 39 and 40
        log = ReplayLog(tmp_path / str(first), 20)
        log.episodes([first, 38 - first - 3, 30])
        for path in (tmp_path / str(first)).glob("*.1.gz"):
            path.unlink()
        check(Read(tmp_path / str(first)), log, log.expected([1]))


def test_without_counts(tmp_path: Path) -> None:
    log = ReplayLog(tmp_path / "logs", 20)
    log.episodes([11, 12], finish=False)
    log.final()
    for path in (tmp_path / "logs").glob("add_count*"):
        path.write_bytes(gzip.compress(pickle.dumps(26)))  # as loggers write what is no array
    ds = Read(tmp_path / "logs")
    check(ds, log, log.expected())  # invalid_range says the same
    for path in (tmp_path / "logs").glob("invalid_range*"):
        path.unlink()
    unknown = Read(tmp_path / "logs")
    assert codes(unknown)["no-add-count"] == 2
    assert unknown.num_steps > ds.num_steps


def test_other_stacks_have_other_padding(tmp_path: Path) -> None:
    for stack in (1, 2, 4):
        log = ReplayLog(tmp_path / str(stack), 20, stack=stack)
        log.episodes([11, 12, 9])
        check(Read(tmp_path / str(stack)), log, log.expected())


def test_rows_that_are_no_padding(tmp_path: Path) -> None:
    log = ReplayLog(tmp_path / "logs", 20, stack=1)
    log.episodes([19])
    store = dict(log.store)
    store["action"][:], store["reward"][:] = 0, 0
    for name in ("action", "reward"):
        with gzip.open(tmp_path / "logs" / f"$store$_{name}_ckpt.0.gz", "wb") as f:
            np.save(f, store[name])
    (tmp_path / "logs" / "invalid_range_ckpt.0.gz").unlink()  # four frames are stacked unless that says otherwise
    with pytest.raises(CorruptArchive, match="not the padding"):
        Read(tmp_path / "logs")


@pytest.mark.thorough
def test_more_columns_and_several_runs(tmp_path: Path) -> None:
    logs = []
    for run in (10, 2):
        log = ReplayLog(tmp_path / str(run) / "replay_logs", 20)
        log.episodes([11, 15])
        for n in range(log.logs):
            with gzip.open(tmp_path / str(run) / "replay_logs" / f"$store$_probability_ckpt.{n}.gz", "wb") as f:
                np.save(f, np.arange(20, dtype="f4") + run)
        logs.append(log)
    (tmp_path / "2" / "notes.txt").write_text("by hand")
    ds = import_files([tmp_path / "10" / "replay_logs", tmp_path / "2" / "replay_logs"], "local/breakout")
    found = ds.column("info/probability")
    assert ds.schema["info/probability"].placement == "root"
    assert found[0] == 3 + 2  # behind the padding of the run that comes first by its number
    assert ds.num_steps == sum(len(e) for log in logs for e in log.expected())


@pytest.mark.slow
def test_bounded_pieces_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ReplayLog(tmp_path / "logs", 20)
    log.episodes([15, 8, 12, 30, 9, 14])
    whole = import_files(tmp_path / "logs", "local/a")
    monkeypatch.setattr(atari_dqn, "CHUNK_ROWS", 3)
    pieces = import_files(tmp_path / "logs", "local/b")
    assert pieces.fingerprint == whole.fingerprint
    several = import_files(tmp_path / "logs", "local/c", jobs=2)
    assert several.fingerprint == whole.fingerprint


def test_steps_are_traced_back_to_the_files(tmp_path: Path) -> None:
    log = ReplayLog(tmp_path / "logs", 20)
    log.episodes([15, 8, 12, 30, 9, 14])
    ds = import_files(tmp_path / "logs", "local/a")
    found = trace("local/a", 100)
    assert found.ok and found.steps == ds.num_steps
    assert found.fields == ("action", "next/reward", "next/terminated", "observation")
    assert found.values > 4 * found.steps  # with the frames after steps that are no last ones


def test_damage_is_named(tmp_path: Path) -> None:
    here = tmp_path / "logs"
    log = ReplayLog(here, 20)
    log.episodes([15, 8, 12, 30])
    frames = here / "$store$_observation_ckpt.1.gz"
    frames.write_bytes(frames.read_bytes()[:-300])
    with pytest.raises(CorruptArchive, match=r"observation_ckpt\.1\.gz is truncated"):
        Read(here)
    (here / "$store$_reward_ckpt.1.gz").unlink()
    with pytest.raises(CorruptArchive, match="checkpoint 1: it has no reward") as e:
        Read(here)
    assert e.value.hint == "--skip-bad leaves them out"
    ds = Read(here, skip_bad=True)
    check(ds, log, log.expected([1]))
    assert codes(ds)["bad-files"] == 1


def test_what_is_refused(tmp_path: Path) -> None:
    here = tmp_path / "logs"
    ReplayLog(here, 20).episodes([15, 8, 12, 30])
    files = tuple(sorted(here.iterdir()))
    short = here / "$store$_action_ckpt.1.gz"
    content = short.read_bytes()
    with gzip.open(short, "wb") as f:
        np.save(f, np.zeros(19, "i4"))
    with pytest.raises(CorruptArchive, match=r"checkpoint 1: its columns have different numbers of rows.*'action': 19"):
        atari_dqn.plan(Archive(here, files))
    with gzip.open(short, "wb") as f:
        np.save(f, np.array([{}] * 20), allow_pickle=True)
    with pytest.raises(UnsafeArchive, match="Python objects"):
        atari_dqn.plan(Archive(here, files))
    short.write_bytes(content)
    with pytest.raises(UnknownLayout, match="do not apply"):
        atari_dqn.plan(Archive(here, files, "timeouts"))
    with pytest.raises(UnknownLayout, match="no replay logs"):
        atari_dqn.plan(Archive(tmp_path, (tmp_path / "a.gz",)))


def test_recognised_by_names(tmp_path: Path) -> None:
    ReplayLog(tmp_path / "logs", 20).episodes([15, 8, 12, 30])
    files = sorted((tmp_path / "logs").iterdir(), key=lambda p: natural(p.name))
    assert archives.recognise(files) == ("atari_dqn", "Dopamine replay logs: 3 checkpoints")
    assert atari_dqn.recognise([*files, tmp_path / "notes.txt"]) == "Dopamine replay logs: 3 checkpoints"
    assert atari_dqn.recognise([p for p in files if "observation" not in p.name]) is None


# The registry


@pytest.mark.thorough
def test_the_closed_bucket_is_said_and_a_copy_works(tmp_path: Path) -> None:
    id = "atari_dqn/Breakout/1"
    with pytest.raises(DownloadFailed, match=r"The source of atari_dqn/Breakout/1 is closed.*403 since") as e:
        rlds_cli.download(id)
    assert "--from" in str(e.value.hint)
    log = ReplayLog(tmp_path / "dqn" / "Breakout" / "1" / "replay_logs", 20)
    log.episodes([15, 8, 12, 30])
    for n, source in enumerate((tmp_path, tmp_path / "dqn", tmp_path / "dqn/Breakout/1/replay_logs")):
        check(rlds_cli.download(id, source=str(source), home=tmp_path / f"home{n}"), log, log.expected())


def test_info_says_that_the_source_is_closed() -> None:
    command = [sys.executable, "-m", "rlds_cli", "info", "atari_dqn/Breakout/1"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "the source is closed, see rlu_atari/Breakout_run_1" in out
    assert "closed: gs://atari-replay-datasets answers 403 since about April 2025" in out and "--from" in out


def test_closed_ids_are_hidden_unless_asked_for() -> None:
    assert not [r for r in catalogue.listing("breakout") if r.id.startswith("atari_dqn/")]
    shown = list(catalogue.listing("breakout", family="atari_dqn", all_=True))
    assert [r.id for r in shown] == [f"atari_dqn/Breakout/{k}" for k in range(1, 6)]
    assert {r.status for r in shown} == {"closed"}
    entries = lookup.entries("atari_dqn")
    assert len(entries) == 300 and len({e.id.split("/")[1] for e in entries}) == 60
    facts = Path(__file__).parents[1] / "data" / "registry-facts" / "atari_dqn.json"
    known = {f"atari_dqn/{f['id']}": f["urls"][0].rstrip("/") for f in json.loads(facts.read_text())}
    assert known == {e.id: e.tree[0] for e in entries}


@pytest.mark.thorough
def test_sample_is_the_truth_step_by_step() -> None:
    ds = import_files(SAMPLE / "replay_logs", "local/breakout")
    with np.load(SAMPLE / "truth.npz") as truth:
        steps = np.delete(np.arange(ds.num_rows), ds.episodes["start"] + ds.episodes["length"])
        assert ds.num_steps == len(steps) == len(truth["actions"]) == 1184
        np.testing.assert_array_equal(ds.column("action")[steps], truth["actions"])
        np.testing.assert_array_equal(ds.column("next/reward")[steps], truth["rewards"])
        np.testing.assert_array_equal(ds.column("next/terminated")[steps], truth["terminals"])
        np.testing.assert_array_equal(ds.column("observation")[0], truth["first_obs"])
        assert ds.episodes["end"].tolist() == ["terminated"] * 4 + ["cut"]
    found = []
    for k in range(3):  # all frames of the files, in their order, without the rows that are none
        with gzip.open(SAMPLE / "replay_logs" / f"$store$_observation_ckpt.{k}.gz") as f:
            frames = np.load(f)
        found += [frames[399:]] * (k > 0) + [frames[:399]]
    stream = np.concatenate(found)
    np.testing.assert_array_equal(ds.column("observation")[steps], stream[stream.any(axis=(1, 2))])


# checksums


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(bytes(data))


@pytest.mark.thorough
@pytest.mark.parametrize("store", ["observation", "action", "reward", "terminal"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_checksum_at_the_end_of_every_file_is_compared(tmp_path: Path, store: str, number: int) -> None:
    log = ReplayLog(tmp_path / "logs", 20)
    log.episodes([11, 12, 30])
    path = tmp_path / "logs" / f"$store$_{store}_ckpt.{number}.gz"
    flip(path, -8)  # the first byte of the CRC: all content comes out as it was
    with pytest.raises(CorruptArchive, match=rf"{store}_ckpt\.{number}\.gz cannot be unpacked: .*incorrect data check"):
        Read(tmp_path / "logs")


def test_the_checksum_of_a_checkpoint_in_which_no_episode_begins(tmp_path: Path) -> None:
    log = ReplayLog(tmp_path / "logs", 20)
    log.episodes([15, 50, 12])  # the second lies over all of checkpoint 1
    flip(tmp_path / "logs" / "$store$_observation_ckpt.1.gz", -8)
    with pytest.raises(CorruptArchive, match="incorrect data check"):
        Read(tmp_path / "logs")


def test_a_checkpoint_with_a_wrong_checksum_is_left_out_with_skip_bad(tmp_path: Path) -> None:
    log = ReplayLog(tmp_path / "logs", 20)
    log.episodes([15, 8, 12, 30])
    flip(tmp_path / "logs" / "$store$_observation_ckpt.1.gz", -8)
    ds = Read(tmp_path / "logs", skip_bad=True)
    check(ds, log, log.expected([1]))
    assert codes(ds)["bad-files"] == 1
