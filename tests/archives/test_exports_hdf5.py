"""Exports in HDF5, read by minari and h5py: every value, flag and boundary is what the user gave."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

import rlds_cli
from rlds_cli.archives.exports.exporting import plan_export
from rlds_cli.errors import ExportError, InvalidArgument, LossyExport
from rlds_cli.make import importing
from rlds_cli.ted import EncodedFrames

Episode = dict[str, Any]
FORMATS = ("minari", "d4rl", "robomimic")


def episode(steps: int, end: str = "terminated", *, final: bool = True, first: int = 0, **more: Any) -> Episode:
    """Observation t is [first + t, -t], action t is first + t, the reward after it (first + t) / 2."""
    t, last = np.arange(steps + final), np.arange(steps) == steps - 1
    return {
        "observation": np.stack([first + t, -t], 1).astype(np.float32),
        "action": first + np.arange(steps),
        "next": {
            "reward": (first + np.arange(steps)) / 2,
            "terminated": last & (end in ("terminated", "both")),
            "truncated": last & (end in ("truncated", "both")),
        },
        **more,
    }


def kinds(ds: rlds_cli.Dataset, to: str) -> list[str]:
    """The losses in short, as field:kind."""
    return sorted(f"{loss.field}:{loss.kind}".strip(":") for loss in plan_export(ds, to, "out").losses)


def jpegs(count: int, shape: tuple[int, ...] = (40, 36, 3)) -> EncodedFrames:
    """Images of one colour each: all bytes of image i are i."""
    found = []
    for i in range(count):
        file = io.BytesIO()
        Image.fromarray(np.full(shape, i, np.uint8)).save(file, "JPEG")
        found.append(file.getvalue())
    return EncodedFrames(np.frombuffer(b"".join(found), np.uint8), np.array([len(f) for f in found]), shape, "jpeg")


# -- Minari


def test_minari_reads_what_was_given(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    given = [
        episode(3, "terminated", first=10, info={"height": np.arange(4) * 1.5}),
        episode(2, "truncated", first=20, info={"height": np.arange(3) * 2.5}),
        episode(4, "cut", first=30, info={"height": np.arange(5) * 3.5}),
    ]
    given[0]["next"]["terminated"][0] = True  # and continues
    ds = rlds_cli.create("local/three", given)
    done = rlds_cli.export(ds, "minari", tmp_path / "minari" / "lab" / "three-v1")
    assert not done.losses and done.fingerprint == ds.fingerprint
    there = minari.load_dataset("lab/three-v1")
    assert (there.id, there.total_episodes, there.total_steps) == ("lab/three-v1", 3, 9)
    for seen, e in zip(there, given, strict=True):
        assert (seen.observations == e["observation"]).all() and seen.observations.dtype == np.float32
        assert (seen.actions == e["action"]).all() and (seen.rewards == e["next"]["reward"]).all()
        assert seen.terminations.tolist() == e["next"]["terminated"].tolist()
        assert (seen.infos["height"] == e["info"]["height"]).all()
    assert [e.truncations.tolist() for e in there] == [[False] * 3, [False, True], [False] * 4]  # a cut has no flag
    assert there.observation_space.shape == (2,) and there.action_space.shape == ()
    assert {len(e) for e in there.sample_episodes(2)} < {2, 3, 4}
    assert [e.id for e in there.filter_episodes(lambda e: e.terminations[-1])] == [0]


def test_minari_holds_dicts_tuples_texts_and_images(home: Path, tmp_path: Path) -> None:
    minari = pytest.importorskip("minari")
    given = []
    for steps in (3, 2):
        e = episode(steps)
        says = [f"step {i} é" for i in range(steps + 1)]
        e["observation"] = {"camera": jpegs(steps + 1), "pose": e["observation"], "says": says}
        e["action"] = (e["action"], np.ones((steps, 2), np.float32))
        given.append(e)
    box = {"type": "Box", "dtype": "float32", "shape": [2], "low": -1.0, "high": 1.0}
    action = {"type": "Tuple", "subspaces": [{"type": "Discrete", "n": 5}, box]}
    ds = rlds_cli.create("local/many", given, action_space=action)
    done = rlds_cli.export(ds, "minari", tmp_path / "many")
    assert done.fingerprint == ds.fingerprint and not done.losses
    there = minari.MinariDataset(tmp_path / "many" / "data")
    for seen, steps in zip(there, (3, 2), strict=True):
        assert seen.observations["camera"].mean((1, 2, 3)).tolist() == list(range(steps + 1))
        assert seen.observations["says"] == [f"step {i} é" for i in range(steps + 1)]
        assert isinstance(seen.actions, tuple) and seen.actions[0].tolist() == list(range(steps))
        assert there.action_space.contains((int(seen.actions[0][1]), seen.actions[1][1]))
    with h5py.File(tmp_path / "many" / "data" / "main_data.hdf5") as f:  # not one byte was encoded anew
        data = given[0]["observation"]["camera"]
        assert f["episode_0/observations/camera"][0].tobytes() == data.data[: data.lengths[0]].tobytes()


def test_minari_keeps_seeds_options_and_the_description(home: Path, tmp_path: Path) -> None:
    minari = pytest.importorskip("minari")
    ds = rlds_cli.download("sample/cartpole-minari")
    done = rlds_cli.export(ds, "minari", tmp_path / "cartpole-v0")
    assert done.fingerprint == ds.fingerprint and not done.losses
    from rlds_cli.samples import __path__ as samples

    before = minari.MinariDataset(Path(samples[0]) / "cartpole-minari" / "data")
    after = minari.MinariDataset(tmp_path / "cartpole-v0" / "data")
    assert after.observation_space == before.observation_space and after.env_spec == before.env_spec
    for name in ("author", "algorithm_name", "description"):
        assert after.storage.metadata.get(name) == before.storage.metadata.get(name)
    numbers = range(before.total_episodes)
    for a, b in zip(
        before.storage.get_episode_metadata(numbers), after.storage.get_episode_metadata(numbers), strict=True
    ):
        assert a.get("seed") == b.get("seed") and str(a.get("options")) == str(b.get("options"))
    for a, b in zip(before, after, strict=True):
        assert (a.observations == b.observations).all() and (a.infos["upright"] == b.infos["upright"]).all()


def test_what_minari_cannot_say_is_listed(home: Path, tmp_path: Path) -> None:
    e = episode(3, final=False, info={"x": np.arange(3)}, cost=np.arange(3), words=["a", None, "c"])
    ds = rlds_cli.create("local/odd", [e])
    assert kinds(ds, "minari") == [
        "cost:name", "cost:placement", "info/x:placement", "unknown-final", "words:missing", "words:name",
        "words:placement",
    ]  # fmt: skip
    with pytest.raises(LossyExport, match="info/x has no value at the final observation"):
        rlds_cli.export(ds, "minari", tmp_path / "odd")
    rlds_cli.export(ds, "minari", tmp_path / "odd", lossy=True)
    with h5py.File(tmp_path / "odd" / "data" / "main_data.hdf5") as f:
        assert f["episode_0/observations"][:, 0].tolist() == [0, 1, 2, 2]
        assert f["episode_0/infos/cost"][:].tolist() == [0, 1, 2, 2]
        assert f["episode_0/infos/words"].asstr()[:].tolist() == ["a", "", "c", "c"]


def test_the_id_of_minari_is_that_of_the_directory(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = rlds_cli.create("local/one", [episode(2)])
    done = rlds_cli.export(ds, "minari", tmp_path / "my data")
    about = json.loads((tmp_path / "my data" / "data" / "metadata.json").read_text())
    assert about["dataset_id"] == "my-data-v0" and "my-data-v0" in done.notes[0]
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    with pytest.raises(InvalidArgument, match="is not an id of Minari"):
        rlds_cli.export(ds, "minari", tmp_path / "sets" / "lab" / "one")


def test_options_that_attributes_cannot_hold_are_a_loss(home: Path, tmp_path: Path) -> None:
    exact = [{"a": 1, "b": {"c": [0.5, 2.0], "d": "é", "e": True, "f": ["x", "y"]}}, None, {"a": 2}]
    for k, options in enumerate((exact, [{"a": None}], [{"a": [1, "b"]}], [{"a": [1, 2.5]}], [{"a": {}}])):
        with rlds_cli.writer(f"local/o{k}") as w:
            for o in options:
                w.begin(options=None if o is None else json.dumps(o, sort_keys=True, ensure_ascii=False))
                w.add([0.5], 1, 1.0, truncated=True, next_observation=[1.5])
        ds = rlds_cli.open_dataset(f"local/o{k}")
        lost = [kind for kind in kinds(ds, "minari") if kind == "options"]
        assert lost == ([] if options is exact else ["options"])
        assert rlds_cli.export(ds, "minari", tmp_path / f"o{k}", lossy=True).proved


# -- robomimic


def test_robomimic_has_a_group_for_each_demonstration(home: Path, tmp_path: Path) -> None:
    given = [episode(3 + k % 2, "terminated" if k else "cut", first=10 * k) for k in range(12)]
    for e in given:
        e["observation"] = {"pose": e["observation"], "ring": e["observation"][:, 0] * 2}
    first = rlds_cli.create("local/demos", given)
    rlds_cli.export(first, "robomimic", tmp_path / "first")
    with h5py.File(tmp_path / "first" / "first.hdf5", "a") as f:
        f["mask/train"] = [f"demo_{k}".encode() for k in range(12) if k != 3]
    ds = importing.import_files(tmp_path / "first", "local/again")
    done = rlds_cli.export(ds, "robomimic", tmp_path / "demos")
    assert not done.losses and done.fingerprint == ds.fingerprint
    with h5py.File(tmp_path / "demos" / "demos.hdf5") as f:
        assert json.loads(f["data"].attrs["env_args"]).keys() == {"env_name", "env_type", "env_kwargs"}
        assert f["data"].attrs["total"] == sum(len(e["action"]) for e in given)
        for k, e in enumerate(given):
            demo = f[f"data/demo_{k}"]
            assert demo.attrs["num_samples"] == len(e["action"])
            assert (demo["obs/pose"][:] == e["observation"]["pose"][:-1]).all()
            assert (demo["next_obs/ring"][:] == e["observation"]["ring"][1:]).all()
            assert (demo["actions"][:] == e["action"]).all() and (demo["rewards"][:] == e["next"]["reward"]).all()
            assert demo["dones"][:].tolist() == [0] * (len(e["action"]) - 1) + [int(k > 0)]
        assert sorted(f["mask/train"].asstr()) == sorted(f"demo_{k}" for k in range(12) if k != 3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("of_steps", [True, False])
@pytest.mark.parametrize(
    ("texts", "tasks"), [(("", "go"), [None, "go"]), (("z\0z", "go"), ["z\0z", "go"]), ((" ", ""), None)]
)
def test_texts_of_which_nothing_can_be_read_are_no_tasks(
    texts: tuple[str, str], tasks: list[str | None] | None, of_steps: bool, tmp_path: Path
) -> None:
    """The others are, also where HDF5 cannot hold the field that they are from."""
    given = [episode(3, "terminated", first=10 * k) for k in range(2)]
    for e, text in zip(given, texts, strict=True):
        e |= {"said": [text] * 3} if of_steps else {"episode": {"task": text}}
    ds = rlds_cli.create("local/said", given)
    done = rlds_cli.export(ds, "robomimic", tmp_path / "said", lossy=True, jobs=1)
    again = importing.import_files(tmp_path / "said", "local/again", reader="robomimic")
    assert again.fingerprint == done.fingerprint
    assert (list(again.episodes["task"]) if "task" in again.episodes else None) == tasks


def test_the_instruction_may_be_a_field_that_gets_another_name(tmp_path: Path) -> None:
    given = [episode(3, "terminated", states=["lift", "lift", "lift"], other=["a", "b", "c"])]
    ds = rlds_cli.create("local/said", given)
    done = rlds_cli.export(ds, "robomimic", tmp_path / "said", task="states", lossy=True, jobs=1)
    assert ("name", "states") in {(loss.kind, loss.field) for loss in done.losses}
    again = importing.import_files(tmp_path / "said", "local/again", reader="robomimic")
    assert again.fingerprint == done.fingerprint and list(again.episodes["task"]) == ["lift"]


def test_robomimic_itself_reads_what_was_given(home: Path, tmp_path: Path) -> None:
    specs = pytest.importorskip("robomimic.utils.obs_utils")
    dataset = pytest.importorskip("robomimic.utils.dataset")
    given = [episode(3 + k % 2, first=10 * k) for k in range(12)]
    for e in given:
        e["observation"] = {"pose": e["observation"]}
    rlds_cli.export(rlds_cli.create("local/demos", given), "robomimic", tmp_path / "demos")
    specs.initialize_obs_utils_with_obs_specs({"obs": {"low_dim": ["pose"]}})
    keys = ["actions", "rewards", "dones"]
    seen = dataset.SequenceDataset(str(tmp_path / "demos" / "demos.hdf5"), ["pose"], keys, load_next_obs=True)
    steps = [(e, t) for e in given for t in range(len(e["action"]))]
    assert len(seen) == len(steps)
    for i, (e, t) in enumerate(steps):
        assert (seen[i]["obs"]["pose"][0] == e["observation"]["pose"][t]).all()
        assert (seen[i]["next_obs"]["pose"][0] == e["observation"]["pose"][t + 1]).all()
        assert (seen[i]["actions"][0], seen[i]["rewards"][0]) == (e["action"][t], e["next"]["reward"][t])
        assert seen[i]["dones"][0] == e["next"]["terminated"][t]


def test_what_robomimic_cannot_say_is_listed(home: Path, tmp_path: Path) -> None:
    given = [episode(3, "truncated", info={"x": np.arange(4)}), episode(2, "both", info={"x": np.arange(3)})]
    ds = rlds_cli.create("local/odd", given)
    assert kinds(ds, "robomimic") == ["info/x:placement", "next/truncated:flags", "observation:name"]
    rlds_cli.export(ds, "robomimic", tmp_path / "odd", lossy=True)
    with h5py.File(tmp_path / "odd" / "odd.hdf5") as f:
        assert f["data/demo_0/dones"][:].tolist() == [0, 0, 0] and f["data/demo_1/dones"][:].tolist() == [0, 1]
        assert f["data/demo_0/obs/flat"].shape == (3, 2) and f["data/demo_0/info/x"][:].tolist() == [0, 1, 2]
    two = rlds_cli.create("local/two", [episode(2) | {"action": {"a": np.arange(2), "b": np.arange(2)}}])
    with pytest.raises(ExportError, match="no one action"):
        rlds_cli.export(two, "robomimic", tmp_path / "two", lossy=True)


# -- D4RL


def test_d4rl_says_steps_that_terminate_inside_episodes(home: Path, tmp_path: Path) -> None:
    ends = [episode(4, "truncated", first=10), episode(3, "truncated", first=20), episode(3, "cut", first=30)]
    ends[0]["next"]["terminated"][1:3] = True
    ds = rlds_cli.create("local/maze", ends)
    done = rlds_cli.export(ds, "d4rl", tmp_path / "maze")
    assert not done.losses and done.fingerprint == ds.fingerprint
    with h5py.File(tmp_path / "maze" / "maze.hdf5") as f:
        assert np.flatnonzero(f["terminals"][:]).tolist() == [1, 2]
        assert np.flatnonzero(f["timeouts"][:]).tolist() == [3, 6]
    ends[1] = episode(3, "terminated", first=20)
    ds = rlds_cli.create("local/maze2", ends)
    assert kinds(ds, "d4rl") == ["next/truncated:flags"]
    rlds_cli.export(ds, "d4rl", tmp_path / "maze2", lossy=True)
    with h5py.File(tmp_path / "maze2" / "maze2.hdf5") as f:
        assert np.flatnonzero(f["timeouts"][:]).tolist() == [3, 6]


def test_d4rl_gives_its_samples_back(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.download("sample/pendulum-d4rl")
    done = rlds_cli.export(ds, "d4rl", tmp_path / "pendulum")
    assert not done.losses and done.fingerprint == ds.fingerprint
    from rlds_cli.samples import __path__ as samples

    def values(path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with h5py.File(path) as f:
            f.visititems(lambda name, d: found.update({name: d[()]}) if isinstance(d, h5py.Dataset) else None)
        return found

    before, after = values(Path(samples[0]) / "pendulum-d4rl.hdf5"), values(tmp_path / "pendulum" / "pendulum.hdf5")
    assert set(before) - {"timeouts"} <= set(after)
    for name, value in before.items():
        same = np.ravel(value), np.ravel(after[name])
        assert np.array_equal(*same), name


def test_d4rl_keeps_next_observations_of_their_own(home: Path, tmp_path: Path) -> None:
    given = [episode(30), episode(20, "truncated")]
    for e in given:
        e["next"]["observation"] = e["observation"][1:] + 100
        e["next"]["observation"][-1] -= 100  # the final observation
    ds = rlds_cli.create("local/own", given)
    assert kinds(ds, "d4rl") == []
    rlds_cli.export(ds, "d4rl", tmp_path / "own")
    with h5py.File(tmp_path / "own" / "own.hdf5") as f:
        assert f["next_observations"][0].tolist() == given[0]["next"]["observation"][0].tolist()


# -- all of them


def hard() -> dict[str, list[Episode]]:
    """Datasets that some format has trouble with."""
    odd_names = {"infos": np.arange(3), ".": np.arange(3), "a\n/b": np.arange(3), "metadata": {"x": np.arange(3)}}
    more = {"info": {"_index_1": np.arange(4), "x": np.arange(4)}, "states": np.arange(4), "mask": np.arange(3)}
    both = episode(3, **odd_names, **more)
    both["next"] |= {"info": {"x": np.arange(3)}, "cost": np.arange(3.0), "own": {"flag": np.arange(3) > 1}}
    rewards = episode(3)
    rewards["next"]["reward"] = {"a": np.arange(3.0), "b": np.arange(3)}
    silent = episode(3)
    del silent["next"]["reward"]
    vector = episode(3)
    vector["next"]["reward"] = np.ones((3, 2))
    own = [episode(60), episode(5)]
    for e in own:
        e["next"]["observation"] = e["observation"][1:].copy()
        e["next"]["observation"][2] += 1
    types = {t: np.arange(4).astype(t) for t in ("f2", "f4", "i1", "u2", "u8", "bool", "complex64", "complex128")}
    texts = {"text": ["a", "", "c"], "info": {"t": ["x", None, "é", "last"]}, "bytes": ["\udc80", "b", "c\0"]}
    images = episode(3, camera=jpegs(3), info={"view": jpegs(4)})
    images["observation"] = {"raw": np.arange(4 * 32 * 33, dtype=np.uint8).reshape(4, 32, 33), "coded": jpegs(4)}
    small = episode(3)
    small["observation"] = jpegs(4, (8, 9, 3))
    wide = {"none": np.zeros((3, 0)), "grid": np.ones((3, 2, 1, 2), np.int8)}
    inside = [episode(5, "truncated"), episode(4), episode(3, "cut")]
    inside[0]["next"]["terminated"][1] = True
    return {
        "names": [both],
        "rewards": [rewards],
        "no rewards": [silent],
        "vector rewards": [vector],
        "own next": own,
        "types": [episode(3, info=types)],
        "texts": [episode(3, **texts)],
        "images": [images],
        "small images": [small],
        "shapes": [episode(3, **wide)],
        "flags": inside,
        "mixed": [episode(3, final=False), episode(2, "cut"), episode(1, "both")],
        "no finals": [episode(3, final=False), episode(1, "truncated", final=False), episode(2, "cut", final=False)],
    }


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", list(hard()))
def test_every_export_proves_itself_after_its_losses(home: Path, tmp_path: Path, name: str) -> None:
    ds = rlds_cli.create("local/hard", hard()[name])
    task = "" if name == "texts" else None  # of several texts none is taken for the instruction
    for to in FORMATS:
        losses = plan_export(ds, to, tmp_path / to, task=task).losses
        done = rlds_cli.export(ds, to, tmp_path / to, task=task, lossy=True, jobs=1)
        assert done.proved
        assert (done.fingerprint == ds.fingerprint) >= (not losses)
