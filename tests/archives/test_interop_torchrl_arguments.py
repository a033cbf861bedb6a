"""Arguments of TorchRL's classes for OpenX, LeRobot, V-D4RL and RoboSet, compared with TorchRL where it runs."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import frames_data
import h5py
import numpy as np
import pytest

import rlds_cli
from rlds_cli.errors import DatasetNotFound, InvalidArgument, RldsError
from rlds_cli.keep import removing
from rlds_cli.make.importing import import_files

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, at import
    pytest.importorskip("torchrl.data")
    from torchrl.data import datasets
    from torchrl.data.replay_buffers import samplers
    from torchrl.envs.transforms import Compose, ToTensorImage

    from rlds_cli.interop.torchrl import RldsExperienceReplay, __main__

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Got conflicting batch_sizes")

LENGTHS = (4, 2, 5, 1)  # of episodes; observations are 100 k + t
EPISODES = [[100 * k + t for t in range(n)] for k, n in enumerate(LENGTHS)]
TED = ("observation", "action", "next", "done", "terminated", "truncated", "episode")


def episode(k: int) -> dict[str, Any]:
    steps = LENGTHS[k]
    seen = 100 * k + np.arange(steps + 1, dtype=np.float32)
    after = {"reward": np.ones(steps, np.float32), "terminated": np.arange(steps) == steps - 1}
    return {"observation": seen[:, None], "action": np.arange(steps), "mission": [f"go {k}"] * steps, "next": after}


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rlds_cli.Dataset]:
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield rlds_cli.create("local/known", [episode(k) for k in range(len(LENGTHS))])


@pytest.fixture
def theirs(ds: rlds_cli.Dataset, tmp_path: Path) -> Any:
    """TorchRL's own class of Open X-Embodiment over the same transitions."""
    RldsExperienceReplay(ds, fields=TED)[:].to_tensordict().memmap(tmp_path / "known")

    def make(batch_size: int | None = None, **how: Any) -> Any:
        return datasets.OpenXExperienceReplay(
            "known", batch_size, root=tmp_path, download=False, streaming=False, **how
        )

    return make


def seen(td: Any) -> list[float]:
    return td["observation"].flatten().tolist()


# -- iterations without a batch size


def test_trajectories_come_one_by_one(ds: rlds_cli.Dataset, theirs: Any) -> None:
    assert [seen(td) for td in RldsExperienceReplay(ds, shuffle=False)] == EPISODES
    assert [seen(td) for td in theirs(shuffle=False)] == EPISODES
    two = [EPISODES[0] + EPISODES[1], EPISODES[2] + EPISODES[3]]
    assert [seen(td) for td in RldsExperienceReplay(ds, num_slices=2, shuffle=False)] == two
    rb = RldsExperienceReplay(ds)
    for _ in range(2):  # all of them, in every iteration
        assert sorted(seen(td) for td in rb) == EPISODES
    first = next(iter(rb))
    assert set(first["episode"].tolist()) == {int(first["observation"][0, 0]) // 100} and first["next", "done"][-1]
    assert sorted(seen(td) for td in pickle.loads(pickle.dumps(rb))) == EPISODES
    some = RldsExperienceReplay(ds.select(episodes=[0, 2]), index=False, transform=lambda td: td.set("x", td["action"]))
    assert sorted(seen(td) for td in some) == [EPISODES[0], EPISODES[2]]
    assert all("x" in td.keys() and "index" not in td.keys() for td in some)  # noqa: SIM118


def test_slices_come_one_by_one(ds: rlds_cli.Dataset, theirs: Any) -> None:
    for make in (lambda **how: RldsExperienceReplay(ds, **how), theirs):
        slices = [seen(td) for td in islice(make(slice_len=2), 30)]  # with replacement there is no end
        assert len(slices) == 30 and all(b == a + 1 for a, b in slices)
        assert {a // 100 for a, _ in slices} == {0, 1, 2}  # episode 3 is too short
    once = RldsExperienceReplay(ds, slice_len=4, replacement=False)
    assert sorted(seen(td)[0] // 100 for td in once) == [0, 2]  # and the short ones are passed over
    assert once.sample(8).batch_size == (8,)
    with pytest.raises(RuntimeError, match="atch_size"):
        once.sample()
    longer = RldsExperienceReplay(ds, slice_len=4, strict_length=False, replacement=False, shuffle=False)
    assert [len(td) for td in longer] == [4, 2, 4, 1]


def test_where_no_batch_size_is_guessed(ds: rlds_cli.Dataset) -> None:
    for how in ({"sampler": samplers.RandomSampler()}, {"split_trajs": True}):
        with pytest.raises(RuntimeError, match="Batch_size was not specified"):
            next(iter(RldsExperienceReplay(ds, **how)))


# -- slices


@pytest.mark.parametrize(
    "how",
    [
        {"slice_len": 2},
        {"num_slices": 4},
        {"slice_len": 4, "strict_length": False},
        {"num_slices": 2, "strict_length": False},
        {"slice_len": 4, "strict_length": False, "replacement": False},
        {"slice_len": 1, "replacement": False},
        {"num_slices": 4, "replacement": False, "shuffle": False, "strict_length": False},
    ],
    ids=str,
)
def test_the_same_slices_as_torchrls_class(ds: rlds_cli.Dataset, theirs: Any, how: dict[str, Any]) -> None:
    batches = []
    for rb in (RldsExperienceReplay(ds, 8, fields=TED, **how), theirs(8, **how)):
        torch.manual_seed(3)
        batches.append([td for _ in range(3) for td in [rb.sample()]])
    for mine, other in zip(*batches, strict=True):
        assert all(torch.equal(mine[key], other[key]) for key in (*TED[:2], ("next", "done"), ("next", "truncated")))


def test_short_trajectories_leave_no_gap(ds: rlds_cli.Dataset) -> None:
    rb = RldsExperienceReplay(ds, 8, slice_len=4, replacement=False)  # TorchRL's gives 0, 4 or 8 of the 8 steps
    for _ in range(20):
        assert sorted({x // 100 for x in seen(rb.sample())}) == [0, 2]
    with pytest.raises(RuntimeError, match="length"):
        RldsExperienceReplay(ds, 8, slice_len=8, replacement=False).sample()


@pytest.mark.parametrize("how", [{}, {"replacement": False}, {"streaming": True}], ids=str)
@pytest.mark.parametrize(("pad", "value"), [(True, 0), (-7, -7), (0.0, 0)])
def test_short_slices_are_filled_up(ds: rlds_cli.Dataset, pad: Any, value: float, how: dict[str, Any]) -> None:
    rb = RldsExperienceReplay(ds.select(episodes=[1, 3]), 8, slice_len=4, pad=pad, **how)  # of two steps, and of one
    td = rb.sample()
    assert td.batch_size == (8,)
    for one in td.view(2, 4).unbind(0):
        k = int(one["observation"][0, 0]) // 100
        real = LENGTHS[k]
        assert one["collector", "mask"].tolist() == [True] * real + [False] * (4 - real)
        assert seen(one) == EPISODES[k] + [value] * (4 - real)
        assert one["next", "reward"].flatten().tolist() == [1] * real + [value] * (4 - real)
        assert one["next", "done"].flatten().tolist() == [t == real - 1 for t in range(4)]  # flags are never made up
        assert list(one["mission"]) == [f"go {k}"] * real + [None] * (4 - real)
    full = RldsExperienceReplay(ds.select(episodes=[2]), 8, slice_len=4, pad=pad).sample()
    assert full["collector", "mask"].all() and set(full.keys(True, True)) == set(td.keys(True, True))


def test_a_stream_takes_each_trajectory_once(ds: rlds_cli.Dataset) -> None:
    assert [seen(td) for td in RldsExperienceReplay(ds, streaming=True, shuffle=False)] == EPISODES
    rb = RldsExperienceReplay(ds, 2, streaming=True)  # a batch is a slice of one trajectory
    assert sorted(seen(td)[0] // 100 for td in rb) == [0, 1, 2]
    batch = RldsExperienceReplay(ds, 6, streaming=True, slice_len=2).sample()
    assert sorted(x // 100 for x in seen(batch)[::2]) == [0, 1, 2]
    with pytest.raises(DatasetNotFound):  # nothing is downloaded
        RldsExperienceReplay("sample/pendulum-d4rl", streaming=True)


def test_the_order_of_the_dataset(ds: rlds_cli.Dataset) -> None:
    flat = [x for e in EPISODES for x in e]
    assert [x for td in RldsExperienceReplay(ds, 5, shuffle=False) for x in seen(td)] == flat
    slices = RldsExperienceReplay(ds, 4, slice_len=2, shuffle=False)
    assert [[x // 100 for x in seen(td)[::2]] for td in slices] == [[0, 1], [2]]


@pytest.mark.parametrize(
    "how",
    [
        {"num_slices": 2, "slice_len": 2},
        {"slice_len": 2, "shuffle": False, "replacement": True},
        {"replacement": True, "streaming": True},
        {"download": True, "streaming": True},
        {"pad": True},
        {"slice_len": 2, "split_trajs": True},
        {"slice_len": 2, "sampler": samplers.RandomSampler()},
        {"shuffle": False, "sampler": samplers.RandomSampler()},
        {"image_size": 8},
        {"totensor": True},
        {"decode_video": False},
        {"key_map": {"a": "b"}},
    ],
    ids=str,
)
def test_arguments_that_contradict_each_other(ds: rlds_cli.Dataset, how: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        RldsExperienceReplay(ds, 4, **how)


def test_arguments_that_change_nothing(ds: rlds_cli.Dataset) -> None:
    how = {"num_workers": 4, "num_procs": 8, "mp_start_method": "fork", "decode_video": True, "rehydrate": True}
    rb = RldsExperienceReplay(ds, 8, slice_len=4, strict_len=False, key_map=None, **how)
    assert rb.sampler.strict_length is False


# -- images


def test_images_as_tensors() -> None:
    rng = np.random.default_rng(0)
    made = rlds_cli.create(
        "local/film",
        [
            {
                "observation": {
                    "camera": rng.integers(0, 255, (4, 32, 24, 3)).astype(np.uint8),
                    "depth": rng.integers(0, 255, (4, 3, 32, 32)).astype(np.uint8),
                    "state": np.zeros((4, 2)),
                },
                "action": np.zeros(3),
            }
        ],
    )
    plain, rb = RldsExperienceReplay(made)[:].to_tensordict(), RldsExperienceReplay(made, 3, totensor=True)
    keys = [("observation", "camera"), ("next", "observation", "camera")]
    expected = ToTensorImage(in_keys=[*keys], shape_tolerant=True)(plain.clone())
    for key in keys:
        assert rb[:][key].shape == (3, 3, 32, 24) and torch.equal(rb[:][key], expected[key])
        td = rb.sample()
        assert torch.equal(td[key], expected[key][td["index"]])
    other = "observation", "depth"  # channels first already
    assert torch.equal(rb[:][other], plain[other] / 255) and rb[:]["observation", "state"].dtype == torch.float64
    own = RldsExperienceReplay(made, totensor=True, transform=Compose(ToTensorImage(in_keys=keys)))
    assert torch.equal(own[:][keys[0]], expected[keys[0]])  # theirs, once
    assert torch.equal(pickle.loads(pickle.dumps(rb))[:][keys[0]], expected[keys[0]])


@pytest.mark.parametrize(
    ("size", "sides"), [(16, (16, 16)), ((8, 12), (8, 12)), ([20, 40], (20, 40)), ([16], (16, 16))]
)
def test_images_of_another_size(size: Any, sides: tuple[int, int]) -> None:
    bright = np.array([10, 20, 30, 40], np.uint8)[:, None, None, None]
    made = rlds_cli.create(
        "local/film", [{"observation": bright * np.ones((32, 24, 3), np.uint8), "action": np.zeros(3)}]
    )
    bytes_, floats = (RldsExperienceReplay(made, image_size=size, totensor=to) for to in (False, True))
    assert bytes_[:]["observation"].shape == (3, *sides, 3) and bytes_[:]["observation"].dtype == torch.uint8
    assert bytes_[:]["next", "observation"][:, 0, 0, 0].tolist() == [20, 30, 40]  # even images stay even
    assert floats[:]["observation"].shape == (3, 3, *sides)
    torch.testing.assert_close(floats[:]["observation"][:, 0, 1, 1], torch.tensor([10, 20, 30]) / 255)
    with pytest.raises(InvalidArgument, match="image_size"):
        RldsExperienceReplay(made, image_size=(0, 3))


def test_resized_as_torchvision_does() -> None:
    vision = pytest.importorskip("torchvision.transforms.v2.functional")
    film = frames_data.film([3, 2])
    expected = vision.resize(RldsExperienceReplay(film, totensor=True)[:]["observation"], [20, 30])
    made = RldsExperienceReplay(film, totensor=True, image_size=(20, 30))[:]["observation"]
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)


# -- RoboSet's seeds


def test_the_number_of_a_robosets_file(tmp_path: Path) -> None:
    for name, trials in (("seed2", 1), ("seed10", 2), ("seed1", 3)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as f:
            for k in range(trials):
                trial = f.create_group(f"Trial{k}")
                trial["observations"], trial["actions"] = np.full((3, 2), trials), np.ones((3, 1))
                trial["rewards"], trial["done"] = np.zeros(3), np.arange(3) == 2
                trial["env_infos/time"] = np.arange(3.0)
    made = import_files(sorted(tmp_path.glob("*.h5")), "local/trials", reader="roboset")
    td = RldsExperienceReplay(made)[:].to_tensordict()
    # TorchRL numbers the files in the order of sorted(): seed1.h5, seed10.h5, seed2.h5.
    by_trials = {3: 0, 2: 1, 1: 2}
    assert td["seed"].dtype == torch.int64 and td["seed"].shape == td.batch_size
    assert td["seed"].tolist() == [by_trials[int(x)] for x in td["observation"][:, 0]]
    some = made.select(episodes=[k for k in range(6) if made.episodes["source"][k] == made.episodes["source"][-1]])
    part = RldsExperienceReplay(some, split_trajs=True)[:]
    assert set(part["seed"][part["mask"]].tolist()) == {by_trials[int(part["observation"][0, 0, 0])]}
    assert "seed" not in RldsExperienceReplay(made, fields=TED)[:].keys()  # noqa: SIM118
    assert "seed" in RldsExperienceReplay(made, fields=TED, seed=True)[:].keys()  # noqa: SIM118


def test_seeds_of_other_datasets(ds: rlds_cli.Dataset) -> None:
    assert "seed" not in RldsExperienceReplay(ds)[:].keys()  # noqa: SIM118
    with pytest.raises(InvalidArgument, match="no archive"):
        RldsExperienceReplay(ds, seed=True)


# -- ids, and what is removed


def test_available_datasets_is_a_list_as_torchrls() -> None:
    ids = RldsExperienceReplay.available_datasets
    assert "d4rl/hopper-medium-v2" in ids and isinstance(ids, list)
    assert isinstance(datasets.RobosetExperienceReplay.available_datasets, list)


def test_delete_removes_what_was_opened_and_nothing_else(home: Path, tmp_path: Path) -> None:
    root, id = tmp_path / "root", "sample/pendulum-d4rl"
    rlds_cli.download(id)
    there = rlds_cli.open_dataset(id).path
    rb = datasets.load_dataset(f"rlds:{id}", root=root)
    assert rb.data_path == there  # of the home: it is here already
    with pytest.raises(RldsError, match="Nothing was removed") as refused:
        rb.delete()
    assert there.is_dir() and refused.value.hint is not None and f"rlds rm {id}" in refused.value.hint
    both = datasets.load_dataset(f"rlds:{id}", root=root, download="force")
    assert both.data_path.is_relative_to(root)
    both.delete()
    assert there.is_dir() and not both.data_path.exists()
    opened = datasets.load_dataset(f"rlds:{id}")
    opened.delete()  # without root it is the home
    assert not there.exists()


def test_delete_in_a_shared_home_and_elsewhere(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rlds_cli.download("sample/pendulum-d4rl", home=tmp_path / "shared")
    monkeypatch.setenv("RLDS_PATH", str(tmp_path / "shared"))
    shared = RldsExperienceReplay("sample/pendulum-d4rl", download=False)
    by_path = RldsExperienceReplay(shared.data_path)
    for rb in (shared, by_path):
        with pytest.raises(RldsError, match="Nothing was removed"):
            rb.delete()
    assert shared.data_path.is_dir()
    made = rlds_cli.create("local/own", [episode(0)])
    with pytest.raises(RldsError, match="created from values in Python") as refused:
        RldsExperienceReplay("local/own").delete()
    assert "rlds rm local/own --yes" in str(refused.value.hint) and made.path.is_dir()
    removing.remove(["local/own"])


# -- scripts


def test_every_class_of_torchrl_takes_our_ids(
    ds: rlds_cli.Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RLDS_HOME", str(ds.path.parents[2]))
    for module, name in __main__.MODULES.items():  # put back after the test
        home = sys.modules[f"torchrl.data.datasets.{module}"]
        monkeypatch.setattr(home, name, getattr(home, name))
        monkeypatch.setattr(datasets, name, getattr(datasets, name))
    __main__.accept_ids()
    robots = datasets.LeRobotExperienceReplay(
        repo_id="rlds:local/known", batch_size=4, slice_len=4, strict_length=False, decode_video=True
    )
    assert isinstance(robots, RldsExperienceReplay) and len(robots.sample()) <= 4
    assert isinstance(datasets.OpenMLExperienceReplay(name="rlds:local/known", batch_size=4), RldsExperienceReplay)
    games = datasets.AtariDQNExperienceReplay(dataset_id="rlds:local/known", slice_len=4, strict_len=False)
    assert isinstance(games, RldsExperienceReplay)
    open_x = datasets.OpenXExperienceReplay("rlds:local/known", slice_len=2, pad=None, shuffle=True)
    assert len(next(iter(open_x))) == 2
    with pytest.raises(InvalidArgument, match="totensor=True: no field"):  # which V-D4RL's class asks for
        datasets.VD4RLExperienceReplay("rlds:local/known", batch_size=4)
