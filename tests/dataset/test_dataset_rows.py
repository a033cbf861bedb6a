"""Rows of episodes are the same wherever they are stored."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scattered
from PIL import Image

from rlds_cli.dataset import Dataset
from rlds_cli.dataset.rows import Rows


def expected(name: str, chosen: list[int]) -> list[Any]:
    """The values of all rows of some episodes, end to end: last rows without a value repeat, or are empty."""
    values, episodes = list[Any](), scattered.episodes()
    for k in chosen:
        node: Any = episodes[k]
        for key in name.split("/"):
            node = node[key]
        steps, own = scattered.LENGTHS[k], list(node)
        both = name.startswith("observation")
        if len(own) == steps:
            own.append(own[-1] if both else None)
        values += own
    return values


@pytest.fixture(scope="module", params=["memmap", "zarr"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Dataset]:
    """A dataset that is only read, and the same with scattered rows, in a home of the module."""
    directory = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(directory / "home"))
        return scattered.pair(lambda: scattered.dataset(storage=request.param), directory)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chosen", [list(range(9)), [7, 3, 0], [8], [5, 6, 4, 2, 1]])
def test_rows_are_those_of_the_episodes_in_their_order(both: tuple[Dataset, Dataset], chosen: list[int]) -> None:
    for ds in both:
        rows = Rows(ds if len(chosen) == 9 else ds.select(episodes=chosen))
        want = {n: expected(n, chosen) for n in ("observation/state", "action", "instruction", "info/wrist")}
        assert len(rows) == len(want["action"]) == sum(scattered.LENGTHS[k] + 1 for k in chosen)
        shuffled = np.random.default_rng(0).permutation(np.r_[: len(rows), : len(rows)])
        cuts = [(0, len(rows)), (1, 2), (3, 3), (len(rows) - 3, len(rows)), (2, len(rows) - 1)]
        for name in ("observation/state", "action"):
            values = np.array([np.zeros_like(want[name][0]) if v is None else v for v in want[name]])
            for a, b in cuts:
                assert np.array_equal(rows.between(name, a, b), values[a:b])
            assert np.array_equal(rows.at(name, shuffled), values[shuffled])
            assert np.array_equal(np.concatenate([v[:-1] for _, v in rows.blocks(name, more=1)] or [[]]), values[:-1])
        assert rows.values("instruction", shuffled).tolist() == [want["instruction"][i] for i in shuffled]


def test_frames_are_those_of_the_episodes(both: tuple[Dataset, Dataset]) -> None:
    for ds in both:
        rows = Rows(ds)
        shuffled = np.random.default_rng(1).permutation(len(rows))[:50]
        for name in ("observation/camera", "info/wrist"):
            want = [b"" if v is None else v for v in expected(name, list(range(9)))]
            assert rows.frames(name, np.arange(len(rows))) == want
            assert rows.sizes(name, shuffled).tolist() == [len(want[i]) for i in shuffled]
            assert rows.frames(name, shuffled) == [want[i] for i in shuffled]
            assert rows.encoded(name, np.arange(2, 60)).data.tobytes() == b"".join(want[2:60])
            pixels = [np.asarray(Image.open(io.BytesIO(v))) if v else np.zeros((8, 10, 3), np.uint8) for v in want]
            assert np.array_equal(rows.values(name, shuffled), np.array(pixels)[shuffled])


@pytest.mark.thorough
def test_places_tell_episode_step_and_last_row(both: tuple[Dataset, Dataset]) -> None:
    lengths = np.array(scattered.LENGTHS)
    for ds in both:
        rows = pickle.loads(pickle.dumps(Rows(ds)))
        episode = np.repeat(np.arange(9), lengths + 1)
        everything = np.arange(len(rows))
        assert np.array_equal(rows.episodes_at(everything), episode)
        is_last = np.isin(everything, rows.last_rows(0, len(rows)))
        assert np.array_equal(is_last, everything - rows.start[episode] == lengths[episode])
        assert np.array_equal(rows.of_steps(np.arange(lengths.sum())), everything[~is_last])
        assert np.array_equal(rows.count(ds.schema["observation/state"]), ds.episodes["num_observed"])


@pytest.mark.thorough
def test_rows_that_follow_each_other_are_views_of_the_file(tmp_path: Path) -> None:
    ds = scattered.dataset()
    values = Rows(ds).between("action", 0, ds.num_rows)
    assert np.shares_memory(values, ds.column("action")) and not values.flags.writeable
