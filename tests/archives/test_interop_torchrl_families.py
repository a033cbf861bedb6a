"""Keys of TorchRL's classes for fields of their families; values as the archives that are written here have them."""

from __future__ import annotations

import io
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_archives import ReplayLog, write_vd4rl
from PIL import Image

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.make.importing import import_files

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, at import
    pytest.importorskip("torchrl.data")
    from torchrl.data import SliceSampler, datasets

    from rlds_cli.interop.torchrl import RldsExperienceReplay, __main__

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Got conflicting batch_sizes")


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in __main__.MODULES.items():  # put back after the test
        home = sys.modules[f"torchrl.data.datasets.{module}"]
        monkeypatch.setattr(home, name, getattr(home, name))
        monkeypatch.setattr(datasets, name, getattr(datasets, name))
    __main__.accept_ids()


def test_pixels_and_state_of_vd4rl(tmp_path: Path, accepted: None) -> None:
    made = write_vd4rl(tmp_path / "64px", [5, 3])
    ds = import_files(tmp_path / "64px", "local/walker")
    rb = RldsExperienceReplay(ds, 4)
    td = rb[:].to_tensordict()
    for key, name in (("pixels", "image"), (("state", "height"), "height")):
        after = ("next", key) if isinstance(key, str) else ("next", *key)
        np.testing.assert_array_equal(td[key], np.concatenate([e[name][:-1] for e in made]))
        np.testing.assert_array_equal(td[after], np.concatenate([e[name][1:] for e in made]))
    assert td["is_init"].tolist() == [True] + 4 * [False] + [True] + 2 * [False]
    assert "observation" not in td.keys() and "pixels" in rb.observation_spec.keys()  # noqa: SIM118
    assert RldsExperienceReplay(ds, fields=["observation"])[:]["pixels"].shape == td["pixels"].shape
    resized = datasets.VD4RLExperienceReplay("rlds:local/walker", 2, image_size=16).sample()
    assert resized["pixels"].shape == resized["next", "pixels"].shape == (2, 3, 16, 16)
    slices = RldsExperienceReplay(ds, 6, sampler=SliceSampler(slice_len=3)).sample()
    assert slices["is_init"].flatten().tolist() == 2 * [True, False, False]  # as TorchRL marks slices
    made_of = preprocess.run(ds, lambda e: {"observation": e["observation"][:, :8]}, "small")
    assert "observation" in RldsExperienceReplay(made_of)[:].keys()  # noqa: SIM118  (no longer what V-D4RL published)


def test_metadata_of_atari(tmp_path: Path) -> None:
    log = ReplayLog(tmp_path / "Pong" / "replay_logs", 20)
    log.episodes([15, 8, 12, 30])
    rb = RldsExperienceReplay(import_files(tmp_path / "Pong" / "replay_logs", "local/pong"), 4)
    td = rb[:].to_tensordict()
    frames = [frame.tobytes() for frame, *_ in log.truth]
    add = {step: k for k, step in enumerate(log.adds)}
    expected = []
    for frame in td["observation"].numpy():
        at = add[frames.index(frame.tobytes())]
        expected.append(20 * (at // 20 + (at % 20 == 19) + 1) - 1)  # its last row was written first
    said = td["metadata"]
    assert [int(x["add_count"]) for x in said] == expected and len({*expected}) == 3
    assert said[0]["invalid_range"].tolist() == [18, 19, 0, 1, 2] and said[0]["dataset_id"] == "local/pong"
    assert rb[2]["metadata"] is not None and int(rb[:3]["metadata"]["add_count"]) == 19  # one for all
    assert len(pickle.loads(pickle.dumps(rb)).sample()) == 4
    padded = RldsExperienceReplay(rb.dataset, 40, slice_len=20, pad=0).sample()
    assert {int(x["add_count"]) for x in padded["metadata"] if x is not None} <= {19, 39, 59}
    assert RldsExperienceReplay(rb.dataset, 2, split_trajs=True).sample()["mask"].any()


@pytest.mark.parametrize("kinds", ["both", "numbers"])
def test_x_and_y_of_openml(tmp_path: Path, accepted: None, kinds: str) -> None:
    table: dict[str, Any] = {
        "age": pa.array([39, 50, 38], pa.int64()),
        "work": pa.array(["State", None, "Private"]).dictionary_encode(),
        "weight": pa.array([1.5, 2.5, 3.5]),
        "class": pa.array(["no", "yes", "yes"]).dictionary_encode(),
    }
    if kinds == "numbers":
        del table["work"]
    pq.write_table(pa.table(table), tmp_path / "dataset_1.pq")
    import_files(tmp_path / "dataset_1.pq", "local/people")
    rb = datasets.OpenMLExperienceReplay("rlds:local/people", 3)
    numbers = [[39, 1.5], [50, 2.5], [38, 3.5]]
    categories = [[1], [-1], [0]] if kinds == "both" else [[], [], []]  # of Private and State
    td = rb[:].to_tensordict()
    assert td["X"].dtype == torch.float64 and td["y"].dtype == torch.int64
    assert td["X"].tolist() == [a + b for a, b in zip(numbers, categories, strict=True)]
    assert td["y"].tolist() == [0, 1, 1] and rb.max_outcome_val == 1
    assert set(td.keys()) == {"X", "y"}
    assert sorted(rb.sample()["index"].tolist()) == [0, 1, 2]  # each once, as in TorchRL's class
    from torchrl.envs.libs.openml import OpenMLEnv

    env = OpenMLEnv("rlds:local/people", batch_size=[2])
    start = env.reset()
    assert start["observation"].shape == (2, len(td["X"][0]))
    assert env.step(start.set("action", start["y"]))["next", "reward"].tolist() == [[1.0], [1.0]]


def test_what_a_buffer_says_of_its_values(tmp_path: Path) -> None:
    frame = io.BytesIO()
    Image.new("RGB", (6, 8)).save(frame, "PNG")
    e = {"observation": 3 * [frame.getvalue()], "action": np.zeros(2), "next": {"terminated": True}}
    ds = rlds_cli.create("local/said", [{**e, "episode": {"task": "push"}}])
    rb = RldsExperienceReplay(ds, fields=["all", "task"])
    assert "observation: uint8[2, 8, 6, 3]" in repr(rb[:]) and "task: text[2]" in repr(rb[:])
    assert "task" not in rb[:].keys(True, True)
