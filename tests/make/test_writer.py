"""The writer: steps, vectors of environments, episodes, commits, errors."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_once import sample_dataset

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DatasetNotFound, InvalidArgument, InvalidEpisode, NameTaken, NoSpace, RldsError
from rlds_cli.make.convert import writer as writers
from rlds_cli.make.convert.writer import Writer
from rlds_cli.store.growing import logs
from rlds_cli.ted import Field

F32 = np.float32


def play(w: Writer, start: float, steps: int, *, end: str | None = "terminated", **more: Any) -> None:
    """Add an episode whose observations count up from ``start``."""
    for t in range(steps):
        flags = {end: True} if end and t == steps - 1 else {}
        after = np.full(2, start + t + 1, F32)
        w.add(np.full(2, start + t, F32), np.int64(t), reward=0.5 * t, next_observation=after, **flags, **more)


def observations(ds: Dataset) -> list[list[float]]:
    """Observations of each episode, with the final one where it is known."""
    e = ds.episodes
    places = zip(e["start"].tolist(), e["num_observed"].tolist(), strict=True)
    return [ds.column("observation", gaps=True)[a : a + n, 0].tolist() for a, n in places]


# -- steps


def test_steps_become_episodes_in_the_order_of_their_ends(home: Path) -> None:
    with rlds_cli.writer("local/run") as w:
        play(w, 10, 3)
        play(w, 20, 1, end="truncated")
        play(w, 30, 2, end=None)
        w.end()
    ds = w.dataset()
    assert observations(ds) == [[10, 11, 12, 13], [20, 21], [30, 31, 32]]
    assert ds.episodes["end"].tolist() == ["terminated", "truncated", "truncated"]
    assert ds.episodes["total_reward"].tolist() == [1.5, 0.0, 0.5]
    assert ds.episode(0)["next/reward"].ravel().tolist() == [0, 0.5, 1]
    assert {f.name: f.dtype for f in ds.schema.values()} == {
        "observation": "float32",
        "action": "int64",
        "next/reward": "float64",
        "next/terminated": "bool",
        "next/truncated": "bool",
    }


def test_what_is_open_at_the_end_is_cut_and_a_final_observation_may_be_unknown() -> None:
    with rlds_cli.writer("local/run") as w:
        play(w, 0, 2)
        w.add(np.full(2, 7, F32), 3, reward=1)
    ds = w.dataset()
    assert ds.episodes["end"].tolist() == ["terminated", "cut"]
    assert observations(ds) == [[0, 1, 2], [7]]
    assert ds.num_transitions == 2


def test_values_are_copied() -> None:
    observation, after = np.zeros(2, F32), np.ones(2, F32)
    with rlds_cli.writer("local/run") as w:
        for t in range(3):
            w.add(observation, t, reward=0, terminated=t == 2, next_observation=after)
            observation += 1
            after += 1
    assert observations(w.dataset()) == [[0, 1, 2, 3]]


@pytest.mark.thorough
def test_nested_observations_tuples_images_texts_and_empty_fields() -> None:
    def seen(t: int) -> dict[str, Any]:
        pair = (np.full(1, t, np.float16), np.array([t % 2 == 0]))
        return {"image": np.full((2, 2, 3), t, np.uint8), "pair": pair, "none": np.zeros(0, F32), "word": f"w{t}"}

    with rlds_cli.writer("local/run") as w:
        for t in range(70):
            w.add(seen(t), {"arm": np.float64(t), "grip": True}, reward=np.array([t]), truncated=t == 69,
                  next_observation=seen(t + 1), info={"note": None if t else "first"},
                  episode={"task": "press"})  # fmt: skip
    ds = w.dataset()
    e = ds.episode(0)
    assert [e["observation/image"][t, 1, 1, 2] for t in (0, 69)] == [0, 69]
    assert e["observation/pair/0"].dtype == np.float16 and e["observation/pair/1"].ravel()[:3].tolist() == [1, 0, 1]
    assert e["observation/none"].shape == (70, 0) and e["next/observation/word"][-1] == "w70"
    assert list(e["info/note"][:2]) == ["first", None] and e["action/grip"].dtype == bool
    assert ds.episodes["task"].tolist() == ["press"] and ds.episodes["total_reward"][0] == sum(range(70))


def test_the_first_episode_widens_numbers_and_later_ones_are_rounded_to_them() -> None:
    with rlds_cli.writer("local/run") as w:
        w.add([0, 1], 1, reward=1)
        w.add([0.5, 1], 2, reward=0.25, terminated=True)
        w.add(np.array([3, 4], F32), 1, reward=1, terminated=True)
        with pytest.raises(InvalidEpisode, match=r"action is 0\.5"):
            w.add(np.array([3, 4], F32), 0.5, reward=1)
    assert w.dataset().column("observation")[:2].tolist() == [[0, 1], [0.5, 1]]
    ds = rlds_cli.create("local/floats", [{"observation": np.zeros((2, 2), F32), "action": np.zeros((1, 1), F32),
                                           "next": {"reward": np.zeros(1, F32), "terminated": True}}])  # fmt: skip
    with rlds_cli.writer("local/like", like=ds) as w:
        w.add(np.ones(2, F32), np.ones(1, F32), reward=0.1, terminated=True)
        for reward in (1e300, "none"):
            with pytest.raises(InvalidEpisode, match="next/reward"):
                w.add(np.ones(2, F32), np.ones(1, F32), reward=reward)
        with pytest.raises(InvalidEpisode, match="observation is float64; the dataset has float32"):
            w.add(np.ones(2), np.ones(1, F32), reward=0.1)
    assert w.dataset().column("next/reward")[0] == F32(0.1)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"observation": np.zeros(3, F32)}, r"step 1: observation has shape \[3\]; \[2\] is that of the steps before"),
        ({"observation": {"a": 1}}, "step 1 lacks observation and has observation/a, unlike the steps before"),
        ({"reward": None}, "step 1 lacks next/reward"),
        ({"goal": 1}, "step 1 has goal, unlike the steps before"),
        ({"action": "left"}, "step 1: action is text here only"),
        ({"action": object()}, "step 1: action has dtype object"),
        ({"observation": [[1], [1, 2]]}, "step 1: observation is ragged"),
        ({"next_observation": np.zeros(3, F32)}, r"step 1: next_observation has shape \[3\]; \[2\]"),
        ({"next_observation": {"a": np.zeros(2, F32)}}, "step 1: next_observation has observation/a"),
        ({"observation": np.full(2, 9, F32)}, "step 1: observation is not what next_observation said after step 0"),
        ({"terminated": True, "episode": {"length": 3}}, '"length" is an episode column of TED itself'),
        ({"terminated": True, "episode": {"x": [1, 2]}}, '"x" is a list'),
    ],
)
def test_a_step_that_does_not_fit_changes_nothing(step: dict[str, Any], message: str) -> None:
    good = {"observation": np.full(2, 1, F32), "action": 0, "reward": 0.0, "next_observation": np.full(2, 2, F32)}
    with rlds_cli.writer("local/run") as w:
        w.add(np.zeros(2, F32), 0, reward=0.0, next_observation=np.full(2, 1, F32))
        with pytest.raises(InvalidEpisode, match=message):
            w.add(**{**good, **step})
        w.add(**good, terminated=True)
    assert observations(w.dataset()) == [[0, 1, 2]]


# -- environments side by side


def test_environments_side_by_side_have_episodes_of_their_own() -> None:
    with rlds_cli.writer("local/run", envs=3) as w:
        for t in range(4):
            now, after = (np.full((3, 2), t + d, F32) + 100 * np.arange(3, dtype=F32)[:, None] for d in (0, 1))
            w.add(
                {"a": now, "b": (now[:, :1], now[:, 0])}, np.arange(3), reward=np.ones((3, 1)),
                terminated=np.array([t == 1, False, t == 3]), truncated=[[False], [t == 3], [False]],
                next_observation={"a": after, "b": (after[:, :1], after[:, 0])},
                episode={"env": np.arange(3), "run": "x"}, mask=[t < 2, True, True],
            )  # fmt: skip
    ds = w.dataset()
    assert ds.episodes["length"].tolist() == [2, 4, 4]
    assert ds.episodes["end"].tolist() == ["terminated", "truncated", "terminated"]
    assert ds.episodes["env"].tolist() == [0, 1, 2] and ds.episodes["run"].tolist() == ["x"] * 3
    assert ds.episode(2)["next/observation/b/1"].ravel().tolist() == [201, 202, 203, 204]


def test_a_step_of_several_environments_is_taken_whole_or_not_at_all() -> None:
    with rlds_cli.writer("local/run", envs=2) as w:
        good = {"observation": np.zeros((2, 1)), "action": np.zeros(2), "reward": np.zeros(2)}
        w.add(**good)
        for wrong, message in (
            ({"reward": np.zeros(3)}, r"next/reward has 3 rows; \[2, ...\] is needed"),
            ({"action": 1}, "action has a single value"),
            ({"terminated": [True]}, r"flags of shape \[1\]; \[2\] is needed"),
            ({"action": ["a", "b"]}, "action is text here only"),
            ({"terminated": True, "episode": {"x": [1, object()]}}, "is a object"),
        ):
            with pytest.raises(InvalidEpisode, match=message):
                w.add(**{**good, **wrong})
        w.add(**good, terminated=True)
    assert w.dataset().episodes["length"].tolist() == [2, 2]
    with pytest.raises(InvalidArgument, match="envs=0"):
        rlds_cli.writer("local/none", envs=0)
    with rlds_cli.writer("local/one") as w, pytest.raises(InvalidArgument, match="mask= is for environments"):
        w.add(np.zeros(1), 0, mask=[True])


# -- commits


@pytest.mark.slow  # how soon depends on the machine
def test_ended_episodes_are_seen_by_another_process_within_100_ms() -> None:
    script = """
import sys, time, rlds_cli
ds = rlds_cli.open_dataset("local/run")
print(ds.num_episodes, flush=True)
for line in sys.stdin:
    wanted = int(line)
    while (ds := ds.refresh()).num_episodes < wanted:
        time.sleep(0.001)
    print(time.time(), flush=True)
"""
    with rlds_cli.writer("local/run") as w:
        play(w, 0, 3)
        w.commit()
        environment = {**os.environ, "PYTHONPATH": str(Path(rlds_cli.__file__).parents[1])}
        with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              env=environment) as other:  # fmt: skip
            assert other.stdin is not None and other.stdout is not None
            assert other.stdout.readline() == "1\n"
            delays = []
            for k in range(5):
                print(k + 2, file=other.stdin, flush=True)
                play(w, 10 * k, 200)
                ended = time.time()
                delays.append(float(other.stdout.readline()) - ended)
            other.stdin.close()
    assert min(delays) < 0.1, delays  # the machine may be busy at one time or another
    assert writers._INTERVAL <= 0.05


@pytest.mark.thorough
def test_several_episodes_are_committed_together() -> None:
    with rlds_cli.writer("local/run") as w:
        for k in range(50):
            play(w, k, 2)
        w.commit()
    ds = w.dataset()
    assert ds.num_episodes == 50 and ds.version < 25


@pytest.mark.thorough
def test_an_open_episode_is_cut_for_readers_until_it_goes_on() -> None:
    with rlds_cli.writer("local/run") as w:
        play(w, 0, 2, end=None)
        assert w.commit() == 1
        first = w.dataset()
        assert observations(first) == [[0, 1, 2]] and first.episodes["end"].tolist() == ["cut"]
        assert w.commit() == 1, "nothing has changed"
        play(w, 2, 2, end=None)
        assert w.commit() == 2
        second = w.dataset()
        assert observations(second) == [[0, 1, 2, 3, 4]]
        play(w, 4, 1)
        w.commit()
        assert observations(w.dataset()) == [[0, 1, 2, 3, 4, 5]]
        assert observations(first) == [[0, 1, 2]] and observations(second) == [[0, 1, 2, 3, 4]]
    assert w.dataset().episodes["end"].tolist() == ["terminated"]


def test_an_open_episode_does_not_push_others_out_before_it_ends() -> None:
    with rlds_cli.writer("local/run", keep=rlds_cli.Top(episodes=1)) as w:
        play(w, 0, 3)  # 1.5
        play(w, 10, 5, end=None)  # 5.0 so far
        w.commit()
        assert w.dataset().episodes["length"].tolist() == [3, 5]
        w.end()
        w.commit()
        assert w.dataset().episodes["length"].tolist() == [5]


@pytest.mark.thorough
def test_protected_episodes_never_leave() -> None:
    with rlds_cli.writer("local/run", keep=rlds_cli.Fifo(steps=4)) as w:
        play(w, 0, 3, protected=True)
        for k in range(5):
            play(w, 10 * k, 2)
        w.commit()
    assert [o[0] for o in observations(w.dataset())] == [0, 30, 40]


def test_an_error_in_the_block_goes_on_and_what_was_added_is_there() -> None:
    with pytest.raises(KeyboardInterrupt), rlds_cli.writer("local/run") as w:
        play(w, 0, 3)
        play(w, 10, 2, end=None)
        raise KeyboardInterrupt
    assert observations(w.dataset()) == [[0, 1, 2, 3], [10, 11, 12]]
    assert w.dataset().episodes["end"].tolist() == ["terminated", "cut"]


def test_a_closed_writer_takes_nothing() -> None:
    w = rlds_cli.writer("local/run")
    play(w, 0, 1)
    w.close()
    w.close()
    for call in (lambda: play(w, 0, 1), w.commit, w.end, lambda: w.add_episodes([])):
        with pytest.raises(RldsError, match="writer of local/run is closed"):
            call()


def test_nothing_added_is_no_dataset_unless_fields_are_known() -> None:
    with rlds_cli.writer("local/nothing") as w:
        assert w.commit() == 0
    with pytest.raises(DatasetNotFound):
        w.dataset()
    fields = [Field("observation", "float32", (2,), "both"), Field("action", "int64")]
    fields += [Field("next/reward", "float64", (), "next")]
    fields += [Field(name, "bool", (), "next") for name in ("next/terminated", "next/truncated")]
    with rlds_cli.writer("local/empty", fields=fields) as w:
        ds = w.dataset()
        assert (len(ds), ds.num_episodes, ds.version) == (0, 0, 0)
        with pytest.raises(InvalidEpisode, match="step 0 has acts, unlike the dataset"):
            w.add(np.zeros(2, F32), 1, acts=1, reward=0)
        play(w, 0, 2)
    assert observations(ds.refresh()) == [[0, 1, 2]]


def test_a_program_that_ends_without_close_loses_nothing(home: Path) -> None:
    code = """
import numpy as np, rlds_cli
w = rlds_cli.writer("local/run")
w.add(np.zeros(2), 0, reward=1, terminated=True)
w.add(np.ones(2), 0, reward=1)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(rlds_cli.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert rlds_cli.open_dataset("local/run").episodes["end"].tolist() == ["terminated", "cut"]


# -- episodes and collectors


@pytest.mark.thorough
def test_episodes_of_another_dataset_keep_what_is_known_of_them() -> None:
    demos = sample_dataset("cartpole-minari")
    with rlds_cli.writer("local/run", like=demos) as w:
        assert w.add_episodes((demos.episode(k) for k in range(3)), protected=True) == 3
    ds = w.dataset()
    for name in ("length", "end", "total_reward", "num_observed"):
        assert ds.episodes[name].tolist() == demos.episodes[name][:3].tolist()
    if "seed" in demos.episodes:
        assert ds.episodes["seed"].tolist() == demos.episodes["seed"][:3].tolist()
    assert ds.observation_space == demos.observation_space
    for k in range(3):
        assert np.array_equal(ds.episode(k)["observation"], demos.episode(k)["observation"])


def collected(ids: list[int], starts: list[int], steps: int, done: list[bool]) -> Any:
    """What a collector gives: [E, T] steps of environments, whose observations count up."""
    torch, tensordict = pytest.importorskip("torch"), pytest.importorskip("tensordict")
    n = len(ids)
    now = torch.tensor(starts)[:, None] + torch.arange(steps)[None]
    flags = torch.zeros(n, steps, 1, dtype=torch.bool)
    ends = flags.clone()
    ends[torch.tensor(done), -1] = True
    after = {"observation": (now + 1).float()[..., None], "reward": torch.ones(n, steps, 1), "done": ends,
             "terminated": ends.clone(), "truncated": flags.clone()}  # fmt: skip
    given = {"observation": now.float()[..., None], "action": torch.zeros(n, steps, 1), "next": after,
             "collector": {"traj_ids": torch.tensor(ids)[:, None].expand(n, steps)}}  # fmt: skip
    return tensordict.TensorDict(given, batch_size=[n, steps])


def test_trajectories_of_a_collector_go_on_in_the_next_call() -> None:
    with rlds_cli.writer("local/run") as w:
        assert w.add_episodes(collected([0, 1], [0, 100], 3, [False, True])) == 1
        w.commit()
        assert observations(w.dataset()) == [[100, 101, 102, 103], [0, 1, 2, 3]]
        assert w.dataset().episodes["end"].tolist() == ["terminated", "cut"]
        w.add_episodes([{"observation": np.zeros((2, 1), F32), "action": np.zeros((1, 1), F32),
                         "next": {"reward": np.ones(1, F32), "terminated": True}}])  # fmt: skip
        assert w.add_episodes(collected([0, 2], [3, 200], 2, [False, False])) == 0
        w.commit()
        assert w.add_episodes([collected([0, 2], [5, 202], 2, [True, False])]) == 1
    ds = w.dataset()
    assert sorted(observations(ds)) == [[0, 0], [*range(8)], [100, 101, 102, 103], [200, 201, 202, 203, 204]]
    assert sorted(ds.episodes["end"].tolist()) == ["cut", "terminated", "terminated", "terminated"]


# -- several writers


def test_two_writers_of_one_name_are_refused_unless_both_share() -> None:
    with rlds_cli.writer("local/run") as w:
        play(w, 0, 1)
        w.commit()
        with pytest.raises(NameTaken, match="is being written by another process"):
            rlds_cli.writer("local/run")
        with pytest.raises(NameTaken, match="by another process that does not share it"):
            rlds_cli.writer("local/run", shared=True)
    with rlds_cli.writer("local/run", shared=True) as a, rlds_cli.writer("local/run", shared=True) as b:
        with pytest.raises(NameTaken, match="let all writers share"):
            rlds_cli.writer("local/run")
        play(a, 10, 2)
        play(b, 20, 2)
        a.commit()
        b.commit()
        play(a, 30, 1)
        assert a.commit() == 4
    assert observations(b.dataset()) == [[0, 1], [10, 11, 12], [20, 21, 22], [30, 31]]


@pytest.mark.thorough
def test_writers_in_threads_of_one_process_lose_nothing() -> None:
    with rlds_cli.writer("local/run", shared=True) as w:
        play(w, 0, 1)

    def work(number: int) -> None:
        with rlds_cli.writer("local/run", shared=True) as w:
            for k in range(20):
                play(w, 1000 * number + 10 * k, 3)
                if k % 5 == 0:
                    w.commit()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    wanted = [[0.0, 1.0]] + [[1000.0 * n + 10 * k + t for t in range(4)] for n in range(1, 4) for k in range(20)]
    assert sorted(observations(w.dataset())) == sorted(wanted)


def test_other_fields_or_another_policy_than_those_that_are_there() -> None:
    with rlds_cli.writer("local/run", keep=rlds_cli.Fifo(steps=9)) as w:
        play(w, 0, 1)
    with pytest.raises(InvalidArgument, match=r"keeps Fifo\(steps=9.*not Fifo\(steps=8"):
        rlds_cli.writer("local/run", keep=rlds_cli.Fifo(steps=8))
    with pytest.raises(InvalidArgument, match="local/run exists with other fields: action is int64"):
        rlds_cli.writer("local/run", fields=[Field("action", "float32")])
    rlds_cli.create("local/made", [{"observation": np.zeros((2, 1)), "action": np.zeros(1)}])
    with pytest.raises(NameTaken, match="local/made exists, and does not grow"):
        rlds_cli.writer("local/made")
    rlds_cli.writer("local/run").close()


# -- faults


@pytest.mark.thorough
def test_a_full_disk_loses_nothing_and_the_next_commit_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes a part of a write, and then no more; each file fails once."""
    write = os.pwrite
    monkeypatch.setattr(writers, "_INTERVAL", 1e6)  # a commit in the background would meet the full disk, too
    for room in (0, 1, 50, 200, 450, 550):
        name = f"local/run{room}"
        w = rlds_cli.writer(name)
        play(w, 0, 3, note="a word")
        w.commit()
        before = w.dataset()
        play(w, 10, 3, note="another word")
        left = [room]

        def full(fd: int, data: Any, at: int, left: list[int] = left) -> int:
            if not left[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            done = write(fd, memoryview(data)[: left[0]], at)
            left[0] -= done
            return done

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(NoSpace, match="1 episodes are not committed") as caught:
                w.commit()
            assert "everything before is readable" in str(caught.value)
            assert observations(w.dataset()) == [[0, 1, 2, 3]]
        play(w, 20, 2, note="another word")
        w.close()
        ds = w.dataset()
        assert observations(ds) == [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22]]
        assert list(ds.episode(1)["note"]) == ["another word"] * 3 and list(ds.episode(0)["note"]) == ["a word"] * 3
        assert observations(before) == [[0, 1, 2, 3]]


def test_an_error_of_the_background_is_raised_once_and_the_episodes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    w = rlds_cli.writer("local/run")
    play(w, 0, 1)
    w.commit()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        play(w, 10, 1)
        until = time.monotonic() + 60
        while w._failed is None and time.monotonic() < until:
            time.sleep(0.005)
        with pytest.raises(NoSpace):
            play(w, 20, 1)
    play(w, 30, 1)
    w.close()
    assert observations(w.dataset()) == [[0, 1], [10, 11], [30, 31]]


def test_a_disk_that_does_not_confirm_a_commit_is_told_and_nothing_is_written_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = rlds_cli.writer("local/run")
    play(w, 0, 1)
    w.commit()
    sync = logs.sync

    def unsure(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").resolve().name == "commits.log":
            raise OSError(errno.EIO, "Input/output error")
        sync(fd)

    play(w, 10, 1)
    with monkeypatch.context() as patch:
        patch.setattr(logs, "sync", unsure)
        with pytest.raises(RldsError, match="is committed, but the disk does not confirm it"):
            w.commit()
    w.close()
    assert observations(w.dataset()) == [[0, 1], [10, 11]]


@pytest.mark.thorough
def test_what_a_commit_left_behind_that_was_not_finished_is_written_over() -> None:
    with rlds_cli.writer("local/run") as w:
        play(w, 0, 2)
        w.commit()
        play(w, 10, 3)
    path, before = w.dataset().path, w.dataset().fingerprint
    for name in ("commits.log", *logs.ALL):
        with (path / name).open("ab") as file:
            file.write(b"\xffhalf a record")
    assert w.dataset().fingerprint == before
    with rlds_cli.writer("local/run") as w:
        play(w, 20, 1)
    assert observations(w.dataset()) == [[0, 1, 2], [10, 11, 12, 13], [20, 21]]
    with rlds_cli.writer("local/again") as w:
        for start, steps in ((0, 2), (10, 3), (20, 1)):
            play(w, start, steps)
    assert rlds_cli.open_dataset("local/run").fingerprint == w.dataset().fingerprint


def test_values_of_episodes_that_json_does_not_have() -> None:
    with rlds_cli.writer("local/run") as w:
        for value in (float("nan"), float("inf"), -0.0, 1e308):
            play(w, 0, 1, episode={"x": value, "text": "a\udc80\n\x00b"})
    found = w.dataset().episodes
    assert json.dumps(found["x"].tolist()) == "[NaN, Infinity, -0.0, 1e+308]"
    assert found["text"].tolist() == ["a\udc80\n\x00b"] * 4


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_home_that_may_not_be_written(home: Path) -> None:
    with rlds_cli.writer("local/run") as w:
        play(w, 0, 1)
    path = w.dataset().path
    for file in path.rglob("*"):
        file.chmod(0o555 if file.is_dir() else 0o444)
    with pytest.raises(RldsError, match="may not be written"):
        rlds_cli.writer("local/run")
    assert observations(w.dataset()) == [[0, 1]]


@pytest.mark.slow
def test_the_memory_of_a_writer_does_not_grow_with_what_it_has_written(tmp_path: Path) -> None:
    """200 MB of episodes, and a dataset of 100,000 episodes that goes on: 50 MiB beside the open episodes at most."""
    code = """
import sys
import numpy as np, rlds_cli

def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) / 1024

e = {"observation": np.ones((201, 17), "f"), "action": np.ones((200, 6), "f"),
     "next": {"reward": np.ones(200), "terminated": True}}
short = {"observation": np.ones((2, 17), "f"), "action": np.ones((1, 6), "f"), "next": {"reward": np.ones(1)}}
w = rlds_cli.writer("local/run", durable=False)
w.add_episodes(e)
w.commit()
before, most = anonymous(), 0
for k in range(10_000):
    w.add_episodes(e)
    most = max(most, anonymous() - before) if k % 100 == 0 else most
w.add_episodes(short for _ in range(100_000))
w.close()
most = max(most, anonymous() - before)
w = rlds_cli.writer("local/run", durable=False)
for k in range(1000):
    w.add_episodes(e)
print(max(most, anonymous() - before))
w.close()
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(rlds_cli.__file__).parents[1])}
    said = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True)
    assert float(said.stdout) < 50


def test_a_writer_belongs_to_its_process() -> None:
    w = rlds_cli.writer("local/run")
    play(w, 0, 1)
    w.commit()
    child = os.fork()
    if not child:
        try:
            play(w, 0, 1)
        except RldsError as e:
            os._exit(0 if "opened by another process" in str(e) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    w.close()
    assert w.dataset().num_episodes == 1
