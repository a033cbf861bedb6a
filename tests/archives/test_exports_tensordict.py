"""Exports to TensorDict: TensorDict and TorchRL read what was written, and importing it gives the same dataset."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import frames_data
import h5py
import numpy as np
import pytest

import rlds_cli
from rlds_cli.archives.exports.content import Content
from rlds_cli.archives.exports.exporting import plan_export
from rlds_cli.archives.exports.format import Unit
from rlds_cli.archives.torchrl import write as form_of
from rlds_cli.errors import CorruptArchive, ExportError, InvalidArgument, LossyExport
from rlds_cli.make.importing import import_files

torch = pytest.importorskip("torch")
tensordict = pytest.importorskip("tensordict")

COMPACT = {"flat": "FlatStorageCheckpointer", "nested": "NestedStorageCheckpointer", "h5": "H5StorageCheckpointer"}
SIDECAR = "rlds_episodes.json"
DUMPED = ("writer/metadata.json", "storage/storage_metadata.json", "buffer_metadata.json")


def episode(
    k: int, steps: int, end: str = "terminated", *, final: bool = True, inside: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Observations 100 k + t; steps ``inside`` terminate, and the episode goes on."""
    at, last = np.arange(steps), np.arange(steps) == steps - 1
    seen = np.arange(steps + final)
    return {
        "observation": {
            "place": (100.0 * k + seen)[:, None] * [1, -1],
            "picture": np.full((len(seen), 2, 3), k, np.uint8),
        },
        "action": np.float32(100 * k) + at.astype(np.float32)[:, None],
        "info": {"height": at / 8},
        "next": {
            "reward": 1000.0 * k + at,
            "terminated": (last & (end == "terminated")) | np.isin(at, inside),
            "truncated": last & (end == "truncated"),
        },
    }


WHOLE = [episode(0, 3), episode(1, 1, "truncated"), episode(2, 4), episode(3, 2, "truncated")]
# Without final observations, cut, and terminated inside.
ROUGH = [
    episode(0, 3, "truncated", final=False),
    episode(1, 2, "", final=False),
    episode(2, 5, "truncated", inside=(1, 2)),
    episode(3, 1, final=False),
    episode(4, 3, inside=(0,)),
]


def steps_of(episodes: list[dict[str, Any]], *path: str) -> np.ndarray:
    """The values of all steps, without final observations."""
    found = []
    for e in episodes:
        value: Any = e
        for part in path:
            value = value[part]
        found.append(np.asarray(value)[: len(e["action"])])
    return np.concatenate(found)


def finals(e: dict[str, Any], name: str) -> np.ndarray:
    """The next observations of an episode's steps; the last one is repeated where no final one is recorded."""
    seen = e["observation"][name]
    return np.concatenate([seen, seen[-1:]])[1 : len(e["action"]) + 1]


def expected(episodes: list[dict[str, Any]]) -> dict[Any, np.ndarray]:
    """What TorchRL is to hold, from what was written."""
    lengths = [len(e["action"]) for e in episodes]
    last = np.cumsum(lengths) - 1
    terminated = steps_of(episodes, "next", "terminated")
    truncated = np.zeros(len(terminated), bool)
    truncated[last] = ~terminated[last]  # a cut end is truncated in the dataset
    n = len(terminated)
    known = np.ones(n, bool)
    known[last] = [len(e["observation"]["place"]) > len(e["action"]) for e in episodes]
    found = {
        ("observation", "place"): steps_of(episodes, "observation", "place"),
        ("observation", "picture"): steps_of(episodes, "observation", "picture"),
        ("next", "observation", "place"): np.concatenate([finals(e, "place") for e in episodes]),
        ("next", "observation", "picture"): np.concatenate([finals(e, "picture") for e in episodes]),
        "action": steps_of(episodes, "action"),
        ("info", "height"): steps_of(episodes, "info", "height"),
        ("next", "reward"): steps_of(episodes, "next", "reward")[:, None],
        ("next", "terminated"): terminated[:, None],
        ("next", "truncated"): truncated[:, None],
        ("next", "done"): (terminated | truncated)[:, None],
        "episode": np.repeat(np.arange(len(episodes)), lengths),
        **{flag: np.zeros((n, 1), bool) for flag in ("done", "terminated", "truncated")},
    }
    return found if known.all() else found | {("next", "observed"): known[:, None]}


def check(td: Any, episodes: list[dict[str, Any]]) -> None:
    wanted = expected(episodes)
    assert set(td.keys(True, True)) == set(wanted) and tuple(td.batch_size) == (len(wanted["action"]),)
    for key, values in wanted.items():
        assert td[key].dtype == torch.from_numpy(values).dtype, key
        np.testing.assert_array_equal(td[key].numpy(), values, str(key))


@pytest.fixture(params=[True, False], ids=["one unit", "a unit each"])
def divided(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes are written one by one, some rows at a time."""
    if not request.param:
        monkeypatch.setattr(form_of, "PIECE", 50)
        monkeypatch.setattr(
            form_of.TensorDict, "units", lambda self: [Unit(str(k), k, k + 1) for k in range(len(self.content.table))]
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("episodes", [WHOLE, ROUGH], ids=["whole", "rough"])
def test_tensordict_reads_what_was_written(episodes: list[Any], divided: None, home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/x", episodes)
    done = rlds_cli.export(ds, "tensordict", tmp_path / "out", jobs=1)
    assert (done.proved, done.losses, done.fingerprint, done.form) == (True, (), ds.fingerprint, "memmap")
    check(tensordict.TensorDict.load_memmap(tmp_path / "out"), episodes)
    again = import_files(tmp_path / "out", "local/again")
    assert again.fingerprint == ds.fingerprint
    assert again.episodes["end"].tolist() == ds.episodes["end"].tolist()
    assert len(again) == len(ds) and again.episode(1)["next/reward"].tolist() == ds.episode(1)["next/reward"].tolist()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("episodes", [WHOLE, ROUGH], ids=["whole", "rough"])
@pytest.mark.parametrize("form", COMPACT)
def test_torchrl_loads_the_compact_forms(
    form: str, episodes: list[Any], divided: None, home: Path, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = pytest.importorskip("torchrl.data")
    ds = rlds_cli.create("local/x", episodes)
    done = rlds_cli.export(ds, "tensordict", tmp_path / "out", form=form, jobs=1)
    assert (done.proved, done.losses, done.fingerprint) == (True, (), ds.fingerprint)
    checkpointer = getattr(data, COMPACT[form])
    empty = data.LazyTensorStorage(ds.num_steps)
    checkpointer().loads(empty, tmp_path / "out")
    check(empty[:], episodes)
    hooks = {
        "flat": lambda: data.Flat2TED()(tensordict.TensorDict.load_memmap(tmp_path / "out")),
        "nested": lambda: data.Nested2TED()(tensordict.TensorDict.load_memmap(tmp_path / "out")),
        "h5": lambda: data.Nested2TED()(
            data.H5Combine()(tensordict.PersistentTensorDict.from_h5(tmp_path / "out" / "checkpoint.h5"))
        ),
    }
    check(hooks[form](), episodes)
    filled = data.LazyTensorStorage(ds.num_steps)
    filled.set(range(ds.num_steps), empty[:].clone().apply(torch.zeros_like))
    checkpointer().loads(filled, tmp_path / "out")  # into a storage that holds other values
    check(filled[:], episodes)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("form", ["flat", "nested"])
def test_compact_forms_are_what_torchrl_writes(form: str, home: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = pytest.importorskip("torchrl.data")
    rlds_cli.export(rlds_cli.create("local/x", WHOLE), "tensordict", tmp_path / "ted")
    rlds_cli.export("local/x", "tensordict", tmp_path / "ours", form=form)
    storage = data.LazyTensorStorage(10)
    storage.set(range(10), tensordict.TensorDict.load_memmap(tmp_path / "ted").clone())
    getattr(data, COMPACT[form])().dumps(storage, tmp_path / "theirs")
    shapes = {json.dumps(json.loads((tmp_path / d / "meta.json").read_text())["shape"]) for d in ("ours", "theirs")}
    assert len(shapes) == 1
    files = {f.relative_to(tmp_path / "theirs") for f in (tmp_path / "theirs").rglob("*.memmap")}
    assert {f.relative_to(tmp_path / "ours") for f in (tmp_path / "ours").rglob("*.memmap")} == files
    for file in files:
        assert (tmp_path / "ours" / file).read_bytes() == (tmp_path / "theirs" / file).read_bytes(), file


@pytest.mark.sampled(1)
@pytest.mark.parametrize("episodes", [WHOLE, ROUGH], ids=["whole", "rough"])
def test_a_dump_of_a_buffer(episodes: list[Any], divided: None, home: Path, tmp_path: Path) -> None:
    made = [e | {"mission": [f"go {k}"] * len(e["action"])} for k, e in enumerate(episodes)]
    ds = rlds_cli.create("local/x", made)
    done = rlds_cli.export(ds, "tensordict", tmp_path / "out", form="buffer", jobs=1)
    assert (done.proved, done.losses, done.fingerprint, done.form) == (True, (), ds.fingerprint, "buffer")
    steps = ds.num_steps
    files = {name: json.loads((tmp_path / "out" / name).read_text()) for name in DUMPED}
    assert files["writer/metadata.json"] == {"cursor": 0, "write_count": steps}
    assert files["storage/storage_metadata.json"] == {"metadata": {}, "is_pytree": False, "len": steps}
    assert files["buffer_metadata.json"]["batch_size"] == 256
    td = tensordict.TensorDict.load_memmap(tmp_path / "out" / "storage")
    assert list(td["mission"]) == [f"go {k}" for k, e in enumerate(episodes) for _ in e["action"]]
    check(td.exclude("mission"), episodes)
    again = import_files(tmp_path / "out", "local/again")
    assert again.fingerprint == ds.fingerprint and again.episodes["end"].tolist() == ds.episodes["end"].tolist()
    if episodes is WHOLE:
        (tmp_path / "out" / SIDECAR).unlink()  # then it is a dump like any other
        plain = import_files(tmp_path / "out", "local/plain")
        assert plain.num_steps == steps and plain.episodes["length"].tolist() == [3, 1, 4, 2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("storage", ["LazyMemmapStorage", "LazyTensorStorage"])
def test_torchrl_loads_the_dump(storage: str, home: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = pytest.importorskip("torchrl.data")
    ds = rlds_cli.create("local/x", ROUGH)
    rlds_cli.export(ds, "tensordict", tmp_path / "out", form="buffer")
    files = {f: f.read_bytes() for f in (tmp_path / "out").rglob("*") if f.is_file()}
    rb = data.TensorDictReplayBuffer(storage=getattr(data, storage)(ds.num_steps), batch_size=4)
    rb.loads(tmp_path / "out")
    assert len(rb) == ds.num_steps and rb.sample().batch_size == (256,) and rb._writer._cursor == 0
    check(rb[:], ROUGH)
    slices = data.TensorDictReplayBuffer(storage=rb.storage, sampler=data.SliceSampler(slice_len=2), batch_size=64)
    x = slices.sample()["observation", "place"][:, 0].view(32, 2)
    assert (x[:, 1] == x[:, 0] + 1).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a buffer which was loaded has no last cursor
        rb.dumps(tmp_path / "theirs")  # what TorchRL writes of it has the same rows
    for name in ("storage/action.memmap", "storage/next/observation/place.memmap", "writer/metadata.json"):
        assert (tmp_path / "theirs" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    rb.empty()
    rb.extend(tensordict.TensorDict.load_memmap(tmp_path / "theirs/storage")[:2].exclude("index"))
    assert len(rb) == 2 and {f: f.read_bytes() for f in files} == files  # it is a copy that is written to


def test_h5_holds_a_group_for_each_trajectory(home: Path, tmp_path: Path) -> None:
    rlds_cli.export(rlds_cli.create("local/x", ROUGH), "tensordict", tmp_path / "out", form="h5")
    with h5py.File(tmp_path / "out" / "checkpoint.h5") as f:
        groups = sorted(k for k in f if k.startswith("traj_"))
        # Steps 1 and 2 of episode 2, and step 0 of episode 4, are done: 3, 2, 2+1+2, 1, 1+2 steps.
        assert [len(f[g]["done"]) for g in groups] == [3, 2, 2, 1, 2, 1, 1, 2]
        assert f["traj_2/observation/place"][:, 0].tolist() == [200, 201, 202]
        assert f["traj_3/observation/place"][:, 0].tolist() == [202, 203]
        assert f["traj_0/observation/place"][:, 0].tolist() == [0, 1, 2, 2] and f["_len"][()] == 14


def test_texts(home: Path, tmp_path: Path) -> None:
    made = [episode(k, 2 + k) | {"mission": [f"go {k}"] * (1 + k) + [None]} for k in range(3)]
    ds = rlds_cli.create("local/x", made)
    done = rlds_cli.export(ds, "tensordict", tmp_path / "out")
    td = tensordict.TensorDict.load_memmap(tmp_path / "out")
    assert list(td["mission"]) == ["go 0", None, "go 1", "go 1", None, "go 2", "go 2", "go 2", None]
    again = import_files(tmp_path / "out", "local/again")
    assert again.fingerprint == done.fingerprint and again.schema["mission"].kind == "text"
    with pytest.raises(LossyExport, match="flat has no place for them"):
        rlds_cli.export(ds, "tensordict", tmp_path / "flat", form="flat")
    assert not list(tmp_path.glob("*flat*"))
    rlds_cli.export(ds, "tensordict", tmp_path / "flat", form="flat", lossy=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["memmap", "buffer", "flat", "h5"])
def test_images_are_decoded(form: str, home: Path, tmp_path: Path) -> None:
    film = frames_data.film([3, 2])
    with pytest.raises(LossyExport, match="observation stored as jpeg: will be decoded"):
        rlds_cli.export(film, "tensordict", tmp_path / "out", form=form)
    done = rlds_cli.export(film, "tensordict", tmp_path / "out", form=form, lossy=True)
    again = import_files(tmp_path / "out", "local/again")
    assert done.proved and again.fingerprint == done.fingerprint and again.schema["observation"].kind == "array"
    if form == "memmap":
        td = tensordict.TensorDict.load_memmap(tmp_path / "out")
        seen = [frames_data.decoded(k, t) for k, t in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))]
        after = [frames_data.decoded(k, t) for k, t in ((0, 1), (0, 2), (0, 3), (1, 1), (1, 2))]
        np.testing.assert_array_equal(td["observation"], seen)
        np.testing.assert_array_equal(td["next", "observation"], after)


def test_what_is_lost_is_listed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = episode(0, 3) | {"index": np.arange(3), "mission": ["a,b"] * 3}
    odd["next"]["observation"] = {"place": np.zeros((3, 2))}  # of its own: not the rows after
    ds = rlds_cli.create("local/odd", [odd])
    fields = [loss.field for loss in plan_export(ds, "tensordict", tmp_path / "out").losses]
    assert fields == ["index", *([] if "next/observation/place" not in ds.schema else ["next/observation/place"])]
    monkeypatch.setattr(form_of, "MOST_TEXTS", 3)
    assert "mission" in [loss.field for loss in plan_export(ds, "tensordict", tmp_path / "out").losses]
    with pytest.raises(InvalidArgument, match="zip is not a form"):
        plan_export(ds, "tensordict", tmp_path / "out", form="zip")
    with pytest.raises(ExportError, match="has no episodes"):
        plan_export(ds.select(episodes=[]), "tensordict", tmp_path / "out")


def test_a_selection_and_spaces(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.download("sample/cartpole-minari")
    some = ds.select(episodes=slice(2, None))
    done = rlds_cli.export(some, "tensordict", tmp_path / "out", lossy=True)
    again = import_files(tmp_path / "out", "local/again")
    assert again.fingerprint == done.fingerprint and again.num_episodes == some.num_episodes
    assert again.manifest.spaces["action"] == ds.manifest.spaces["action"]
    seeds = again.episodes["seed"].tolist()
    assert seeds == some.episodes["seed"].tolist() and len({*seeds}) > 1


def test_what_episodes_have_beside_their_steps(home: Path, tmp_path: Path) -> None:
    rlds_cli.export(rlds_cli.create("local/x", WHOLE), "tensordict", tmp_path / "out")
    file = tmp_path / "out" / SIDECAR
    about = json.loads(file.read_text())
    more = {"seed": [7, None, 2**64 - 1, 0], "options": ['{"a": 1}', None, None, None]}
    columns = {"task": ["push", None, "pull", "push"], "score": [0.5, 1.0, None, 2.0]}
    about["episodes"] |= {**more, "splits": {"train": "1010"}, "columns": columns}
    (tmp_path / "out" / "rlds_metadata").mkdir()
    np.save(tmp_path / "out" / "rlds_metadata" / "w.npy", np.arange(6.0).reshape(2, 3))
    about["metadata"] = {"texts": {"model": "<xml/>"}, "arrays": {"policy/weight": "w.npy"}}
    file.write_text(json.dumps(about))
    ds = import_files(tmp_path / "out", "local/more")
    for form in ("memmap", "buffer", "h5"):
        done = rlds_cli.export(ds, "tensordict", tmp_path / form, form=form)
        again = import_files(tmp_path / form, f"local/{form}")
        assert not done.losses and again.fingerprint == ds.fingerprint == done.fingerprint
        assert again.episodes["train"].tolist() == [True, False, True, False]
        assert again.episodes["task"].tolist() == columns["task"]
        table = again.store.episode_table()
        assert list(table.seed) == more["seed"] and list(table.options) == more["options"]
        kept = dict(Content(again).metadata())
        assert kept["model"] == "<xml/>" and kept["policy/weight"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_without_its_description_it_is_read_like_any_tensordict(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/x", WHOLE)
    rlds_cli.export(ds, "tensordict", tmp_path / "out")
    (tmp_path / "out" / SIDECAR).unlink()
    again = import_files(tmp_path / "out", "local/again")
    assert again.column("observation/place").tolist() == ds.column("observation/place").tolist()
    assert again.episodes["end"].tolist() == ds.episodes["end"].tolist()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export, which is copied before it is changed."""
    directory = tmp_path_factory.mktemp("written")
    ds = rlds_cli.create("local/x", WHOLE, home=directory / "home")
    rlds_cli.export(ds, "tensordict", directory / "out", verify=False)
    return directory / "out"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2"),
        ({"episodes": []}, "does not describe episodes"),
        ({"fields": [{"name": "x"}]}, "describes a field as"),
        ({"fields": []}, "describes no next/terminated"),
        ({"episodes": {"length": [10]}}, "end is not a text"),
        ({"episodes": {"length": [9], "end": "0", "observed": "1"}}, "describes 9 steps"),
        ({"episodes": {"length": [-1, 11], "end": "00", "observed": "11"}}, "positive numbers"),
        ({"episodes": {"length": [10], "end": "3", "observed": "1"}}, "end is not a text"),
        ({"episodes": {"length": [10], "end": "0", "observed": "1", "seed": ["x"]}}, "seed is not a list"),
        ({"episodes": {"length": [10], "end": "0", "observed": "1", "splits": {"a": "11"}}}, "split a"),
        ({"episodes": {"length": [10], "end": "0", "observed": "1"}}, "does not end as its flags say"),
        ({"spaces": 3}, "spaces is not an object"),
        ({"metadata": {"arrays": {"x": "../out/action.memmap"}}}, "not a name of a file"),
        ({"metadata": {"arrays": {"x": "gone.npy"}}}, "gone.npy"),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(
    change: dict[str, Any], message: str, written: Path, home: Path, tmp_path: Path
) -> None:
    shutil.copytree(written, tmp_path / "out")
    file = tmp_path / "out" / SIDECAR
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CorruptArchive, match=message):
        import_files(tmp_path / "out", "local/again")


@pytest.mark.sampled(1)
def test_an_export_goes_on(home: Path, tmp_path: Path, divided: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = rlds_cli.create("local/x", ROUGH)
    for form in ("memmap", "buffer", *COMPACT):
        written: list[str] = []
        write = form_of.TensorDict.write

        def once(self: Any, unit: Unit, directory: Path, write: Any = write, written: list[str] = written) -> Any:
            if len(written) == 1:
                raise KeyboardInterrupt
            written.append(unit.name)
            return write(self, unit, directory)

        with monkeypatch.context() as patched:
            patched.setattr(form_of.TensorDict, "write", once)
            units = len(form_of.TensorDict.units(_made(ds, form, tmp_path)))
            if units > 1:
                with pytest.raises(KeyboardInterrupt):
                    rlds_cli.export(ds, "tensordict", tmp_path / form, form=form, jobs=1)
        assert rlds_cli.export(ds, "tensordict", tmp_path / form, form=form, jobs=1).fingerprint == ds.fingerprint
        shutil.rmtree(tmp_path / form)


def _made(ds: Any, form: str, directory: Path) -> form_of.TensorDict:
    return form_of.TensorDict(Content(ds), directory / form, form)
