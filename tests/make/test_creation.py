from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlds_cli import create, open_dataset
from rlds_cli.errors import DatasetNotFound, InvalidArgument, InvalidEpisode, InvalidId, NameTaken, NoSpace
from rlds_cli.loader import Loader, Sequential


def episode(steps: int = 3, **more: Any) -> dict[str, Any]:
    return {"observation": np.arange(steps + 1.0), "action": np.ones((steps, 2), np.float32), **more}


@pytest.mark.thorough
def test_the_second_of_two_at_once_finds_the_name_taken() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[dict[str, Any]]:
        begun.set()
        assert go_on.wait(60)
        yield episode(3)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(create, "local/x", slow())
        assert begun.wait(60)
        second = threads.submit(create, "local/x", [episode(5)], progress=lambda event: go_on.set())  # told to wait
        assert first.result().num_steps == 3
        with pytest.raises(NameTaken):
            second.result()
    assert open_dataset("local/x").num_steps == 3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"info": np.zeros(3), "info/x": np.zeros(3)}, "info is a field, and a group that holds info/x"),
        ({"next": {"a": np.zeros(3), "a/b/c": np.zeros(3)}}, "next/a is a field, and a group that holds next/a/b/c"),
        ({"a\ud800": np.zeros(3)}, "the name of a field is not valid Unicode"),
        ({"word": ["a", "b\ud800", None]}, "a text of word is not valid Unicode"),
        ({"next": {"terminated": np.nan}}, "next/terminated holds nan; flags are 0 or 1"),
        ({"next": {"terminated": 2}}, "next/terminated holds 2; flags are 0 or 1"),
    ],
)
def test_what_cannot_be_stored_is_named(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidEpisode, match=f"episode 0: {message}"):
        create("local/x", [episode(**more)])
    with pytest.raises(DatasetNotFound):
        open_dataset("local/x")


def test_of_a_full_disk_nothing_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk, pytest.raises(NoSpace, match=r"full\. Nothing of local/x is kept"):
        disk.setattr(os, "pwrite", full)
        create("local/x", [episode()])
    assert not list((home / "partial").iterdir())
    assert create("local/x", [episode()]).num_steps == 3


@pytest.mark.thorough
def test_observations_of_t_rows_mean_an_unknown_final_one() -> None:
    ds = create("local/x", [{"observation": np.arange(3.0), "action": np.zeros(3), "next": {"truncated": True}}])
    assert ds.episodes["num_observed"].tolist() == [3]
    assert len(ds) == 2
    assert ds.column("observation").tolist() == [0, 1, 2, 2]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("flags", "end", "terminated", "truncated"),
    [
        ({}, "cut", [0, 0, 0], [0, 0, 1]),
        ({"terminated": True}, "terminated", [0, 0, 1], [0, 0, 0]),
        ({"terminated": False, "truncated": True}, "truncated", [0, 0, 0], [0, 0, 1]),
        ({"terminated": True, "truncated": True}, "terminated", [0, 0, 1], [0, 0, 1]),
        ({"terminated": [1, 0, 0]}, "cut", [1, 0, 0], [0, 0, 1]),
        ({"terminated": np.array([[0.0], [0.0], [1.0]])}, "terminated", [0, 0, 1], [0, 0, 0]),
        ({"terminated": torch.tensor([False, True, True])}, "terminated", [0, 1, 1], [0, 0, 0]),
        ({"truncated": np.bool_(True)}, "truncated", [0, 0, 0], [0, 0, 1]),
    ],
)
def test_how_an_episode_ends(flags: dict[str, Any], end: str, terminated: list[int], truncated: list[int]) -> None:
    ds = create("local/x", [episode(next=flags)])
    assert ds.episodes["end"].tolist() == [end]
    assert ds.column("next/terminated")[:3].tolist() == [bool(x) for x in terminated]
    assert ds.column("next/truncated")[:3].tolist() == [bool(x) for x in truncated]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"action": np.zeros(3)}, None),
        ({"observation": np.zeros(9)}, r"observation has 9 rows; expected 3 or 4"),
        ({"next": {"reward": np.zeros(4)}}, r"next/reward has 4 rows; expected 3"),
        ({"next": {"reward": 1.0}}, r"next/reward has a single value"),
        ({"next": {"terminated": [0, 2, 0]}}, r"next/terminated holds 2; flags are 0 or 1"),
        ({"next": {"terminated": [0.5, 0, 0]}}, r"flags are 0 or 1"),
        ({"next": {"terminated": [0, 1]}}, r"next/terminated has shape \[2\]; expected \[3\]"),
        ({"next": {"truncated": [1, 0, 0]}}, r"truncated at step 0 of 3"),
        ({"next": {"done": [0, 0, 1]}}, r"next/done does not say why"),
        ({"info": {"x": [[1, 2], [3], [4]]}}, r"info/x is ragged"),
        ({"info": {"x": [object(), None, 3]}}, r"holds Python objects"),
        ({"info": {"": np.zeros(3)}}, r"a field without a name"),
        ({"info": {"x": np.zeros(3, "datetime64[s]")}}, r"dtype datetime64"),
        ({"info": {"x": np.zeros(3, np.longdouble)}}, r"other machines cannot read"),
        ({"info": np.zeros(5)}, r"info has 5 rows; expected 3 or 4"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_published(
    home: Path, bad: dict[str, Any], message: str | None
) -> None:
    if message is None:  # the ground that the others stand on
        assert create("local/x", [episode(), episode()]).num_episodes == 2
        return
    for episodes in ([episode(**bad)], [episode(), episode(), episode(**bad)]):
        with pytest.raises(InvalidEpisode, match=f"episode {len(episodes) - 1}.*") as caught:
            create("local/x", episodes)
        if len(episodes) == 1:
            caught.match(message)
    assert not (home / "datasets").exists()
    assert not list(home.glob("partial/*"))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"observation": np.zeros((4, 2)), "action": np.ones((3, 2), np.float32)}, r"observation has shape \[2\]"),
        ({"observation": np.arange(4.0)}, "lacks action|no action"),
        (episode(info={"x": np.zeros(3)}), "has info/x, which the first episode lacks"),
        (
            {"observation": np.arange(4.0), "action": np.ones((3, 2))},
            "action is float64; the first episode's is float32",
        ),
        ({"observation": np.arange(4.0), "action": ["a"] * 3}, "action is text here only"),
    ],
)
def test_later_episodes_must_be_like_the_first(second: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidEpisode, match=message):
        create("local/x", [episode(), second])


@pytest.mark.thorough
def test_narrower_numbers_fit_into_wider_ones() -> None:
    ds = create(
        "local/x", [episode(), {"observation": np.arange(4, dtype=np.float32), "action": np.ones((3, 2), np.float16)}]
    )
    assert ds.schema["observation"].dtype == "float64"
    assert ds.schema["action"].dtype == "float32"
    assert ds.episode(1)["observation"][:, 0].tolist() == [0, 1, 2]


@pytest.mark.thorough
def test_next_observations_that_say_the_same_are_joined() -> None:
    o = np.arange(4.0)
    joined = create("local/a", [{"observation": o[:-1], "action": np.zeros(3), "next": {"observation": o[1:]}}])
    whole = create("local/b", [{"observation": o, "action": np.zeros(3)}])
    assert joined.fingerprint == whole.fingerprint
    apart = create("local/c", [{"observation": o[:-1], "action": np.zeros(3), "next": {"observation": o[1:] + 0.5}}])
    assert apart[:]["next", "observation"][:, 0].tolist() == [1.5, 2.5, 3.5]
    assert apart[:]["observation"][:, 0].tolist() == [0, 1, 2]


@pytest.mark.thorough
def test_tuples_tensors_lists_and_tuple_keys() -> None:
    ds = create(
        "local/x",
        [
            {
                "observation": (np.zeros((3, 2)), torch.ones(3)),
                "action": [[1, 2], [3, 4]],
                ("next", "reward"): torch.tensor([[1.0], [2.0]]),
                "next/terminated": True,
            }
        ],
    )
    assert set(ds.schema) == {
        "observation/0",
        "observation/1",
        "action",
        "next/reward",
        "next/terminated",
        "next/truncated",
    }
    assert ds.schema["next/reward"].shape == ()
    assert ds.column("action")[:2].tolist() == [[1, 2], [3, 4]]
    assert ds.episodes["total_reward"].tolist() == [3.0]


@pytest.mark.thorough
def test_nan_is_kept_and_counted() -> None:
    ds = create("local/x", [episode(next={"reward": np.array([1.0, np.nan, 3.0])})])
    assert np.isnan(ds.column("next/reward")[1])
    assert ds.stats["next/reward"].nonfinite == 1
    assert ds.stats["next/reward"].mean == 2.0


def test_episodes_without_steps_are_left_out_and_reported() -> None:
    empty = {"observation": np.arange(1.0), "action": np.zeros((0, 2), np.float32)}
    ds = create("local/x", [empty, episode(), empty, episode()])
    assert ds.num_episodes == 2
    notes = {n["code"]: n for n in ds.manifest.notes}
    assert (notes["empty-episodes"]["count"], notes["empty-episodes"]["where"]) == (2, "episode 0")
    with pytest.raises(InvalidEpisode, match="no episodes with steps"):
        create("local/y", [empty])
    with pytest.raises(InvalidEpisode, match="no episodes with steps"):
        create("local/y", [])


@pytest.mark.thorough
def test_an_iterable_is_read_once_and_one_at_a_time() -> None:
    alive = [0]

    class Counted(dict[str, Any]):
        def __init__(self) -> None:
            super().__init__(episode(1000))
            alive[0] += 1

        def __del__(self) -> None:
            alive[0] -= 1

    most = [0]

    def source() -> Iterator[Counted]:
        for _ in range(500):
            yield Counted()
            most[0] = max(most[0], alive[0])

    assert create("local/x", source()).num_episodes == 500
    assert most[0] < 10


def test_an_iterable_that_raises_leaves_nothing(home: Path) -> None:
    def source() -> Iterator[dict[str, Any]]:
        yield episode()
        raise RuntimeError("the disk of the robot")

    with pytest.raises(RuntimeError, match="robot"):
        create("local/x", source())
    assert not (home / "datasets").exists()
    assert not list(home.glob("partial/*"))


@pytest.mark.thorough
@pytest.mark.parametrize("bad", [3, "episode", [1, 2], None])
def test_an_episode_that_is_no_mapping(bad: Any) -> None:
    with pytest.raises(InvalidEpisode, match=r"episode 0 is a .*; a mapping of fields is needed"):
        create("local/x", [bad])
    with pytest.raises(InvalidEpisode, match="episode 1"):
        create("local/x", [episode(), bad])


@pytest.mark.thorough
def test_a_name_is_taken_once() -> None:
    first = create("local/x", [episode()])
    with pytest.raises(NameTaken, match="local/x exists"):
        create("local/x", [episode(5)])
    assert open_dataset("local/x").fingerprint == first.fingerprint
    second = create("local/x", [episode(5)], force=True, env_id="Press-v1")
    assert open_dataset("local/x").fingerprint == second.fingerprint != first.fingerprint
    assert second.manifest.env == {"id": "Press-v1"}


@pytest.mark.thorough
def test_steps_per_second_are_recorded() -> None:
    assert create("local/a", [episode()], fps=np.float32(12.5)).manifest.env == {"fps": 12.5}
    ds = create("local/b", [episode()], fps=50, env_id="Press-v1")
    assert ds.manifest.env == open_dataset("local/b").manifest.env == {"id": "Press-v1", "fps": 50.0}


@pytest.mark.parametrize("fps", [0, -30, float("nan"), float("inf"), "fast", True, [30]])
def test_steps_per_second_that_are_none(home: Path, fps: Any) -> None:
    with pytest.raises(InvalidArgument, match="steps per second"):
        create("local/x", [episode()], fps=fps)
    assert not home.exists()


@pytest.mark.thorough
@pytest.mark.parametrize("ref", ["x", "../x", "/tmp/x", "local/../x", "local/.x", ""])
def test_ids_that_are_none(home: Path, ref: str) -> None:
    with pytest.raises(InvalidId):
        create(ref, [episode()])
    assert not home.exists()


def test_hostile_field_names_stay_inside() -> None:
    names = ["..", "a/../../b", "zarr.json", ".hidden", "__x", "a\0b", "episodes", "é" * 150]
    ds = create("local/x", [episode(**{f"{n}/v" if n == "episodes" else n: np.arange(3.0) for n in names})])
    for n in names:
        assert ds.column(f"{n}/v" if n == "episodes" else n)[:3].tolist() == [0, 1, 2]
    inside = [p.resolve() for p in ds.path.rglob("*")]
    assert all(p.is_relative_to(ds.path.resolve()) for p in inside)
    assert [p.name for p in ds.path.parent.iterdir()] == ["x"]
    assert open_dataset("local/x").num_steps == 3


def test_other_libraries_names_are_refused_with_teds() -> None:
    step = {"observation": np.zeros((3, 1)), "action": np.zeros((2, 1))}
    for wrong, right in (("reward", "next/reward"), ("terminals", "next/terminated"), ("truncated", "next/truncated")):
        with pytest.raises(InvalidEpisode, match=rf'(?s){wrong} is not .*"{right}"'):
            create("local/x", [{**step, wrong: np.zeros(2)}])
    with pytest.raises(InvalidEpisode, match='"observation"'):
        create("local/x", [{"observations": np.zeros((3, 1)), "action": np.zeros((2, 1))}])
    with pytest.raises(InvalidEpisode, match="no observation"):
        create("local/x", [{"action": np.zeros((2, 1))}])
    with pytest.raises(InvalidEpisode, match="episode 1 is a str"):
        create("local/x", [step, "nonsense"])  # type: ignore[list-item]
    with pytest.raises(InvalidEpisode, match=r"next/reward has 3 rows; expected 2 \(action has 2\)"):
        create("local/x", [{**step, "next": {"reward": np.zeros(3)}}])


@pytest.mark.thorough
@pytest.mark.parametrize("value", ["press", 3, np.float32(0.5)])
def test_a_value_of_the_whole_episode_is_named_as_such(value: Any) -> None:
    with pytest.raises(InvalidEpisode, match="episode 0: task is a single value; a field has one for each") as caught:
        create("local/x", [episode(task=value)])
    assert caught.value.hint == '"episode": {"task": ...} is a value of the whole episode'


def test_root_flags_of_a_ted_batch_are_left_out() -> None:
    flags = {name: np.zeros((2, 1), bool) for name in ("done", "terminated", "truncated")}
    ended = {"terminated": np.array([[False], [True]])}
    ds = create("local/x", [{"observation": np.zeros((3, 1)), "action": np.zeros((2, 1)), **flags, "next": ended}])
    assert sorted(ds.schema) == ["action", "next/terminated", "next/truncated", "observation"]


def _told_apart() -> Any:
    rng = np.random.default_rng(0)
    flags = [{"terminated": k % 2, "truncated": 1 - k % 2} for k in range(4)]
    made = [episode(10, next=at_end) | {"observation": rng.normal(size=11)} for at_end in flags]
    return create("local/source", made)


def test_batches_of_transitions_are_not_taken_for_episodes() -> None:
    """Steps of 7 at a time would cut episodes of 10 where a batch ends."""
    loader = Loader(_told_apart(), batch_size=7, sampler=Sequential(), dtype=None)
    with pytest.raises(InvalidEpisode, match="continues the previous batch") as error:
        create("local/x", loader)
    assert "window=Episode()" in str(error.value.hint)


@pytest.mark.parametrize("size", [7, 10, 13])
def test_slices_of_a_dataset_join_where_they_go_on(size: int) -> None:
    source = _told_apart()
    again = create("local/x", (source[a : a + size] for a in range(0, len(source), size)))
    assert again.episodes["length"].tolist() == [10, 10, 10, 10]
    assert again.episodes["end"].tolist() == ["truncated", "terminated"] * 2


def test_slices_that_do_not_go_on_stay_apart_and_in_order() -> None:
    source = _told_apart()
    again = create("local/x", [source[0:4], source[6:14], source[2:5]])
    assert again.episodes["length"].tolist() == [4, 4, 4, 3]
    assert again.column("observation")[again.episodes["start"]].tolist() == [
        source.column("observation")[source.episodes["start"][k] + step] for k, step in ((0, 0), (0, 6), (1, 0), (0, 2))
    ]
