"""Read exported datasets with the libraries whose formats they are, and compare every value, flag and boundary.

Usage: python scripts/check_exports.py [FORMAT ...] [--python FORMAT=PATH]

Each library reads in a process of its own, of the interpreter that is given for the format (this one by default): it
needs NumPy and the library, not rlds. A check whose library is missing fails.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
Episode = dict[str, np.ndarray]  # values of an episode by the name that the library has for them
Values = Iterator[tuple[str, np.ndarray]]  # the same as the dataset has it; names as the library's


@dataclass(frozen=True)
class Check:
    """How a library reads a directory, and what it must give for an episode of a dataset."""

    read: Callable[[Path], list[Episode]]
    expected: Callable[[Any, int], Values]


# -- lerobot


def read_lerobot(directory: Path) -> list[Episode]:
    """Read with ``LeRobotDataset``: columns exactly, frames of videos as it decodes them."""
    without_torchvision()
    return _read_lerobot(directory, statistics=True)


def _read_lerobot(directory: Path, *, statistics: bool) -> list[Episode]:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    ds = LeRobotDataset("local/export", root=directory, video_backend="pyav")
    plain = ds.hf_dataset.with_format(None)
    found: list[Episode] = []
    for k in range(ds.meta.total_episodes):
        about = ds.meta.episodes[k]
        rows = range(about["dataset_from_index"], about["dataset_to_index"])
        assert len(rows) == about["length"]
        items = [dict(plain[i]) for i in rows]
        tensors = [ds[i] for i in rows]
        for item, tensor in zip(items, tensors, strict=True):
            assert item["episode_index"] == k
            item["task"] = tensor["task"]
            for key in ds.meta.video_keys:
                item[key] = np.round(tensor[key].numpy().transpose(1, 2, 0) * 255).astype(np.uint8)
            for key in ds.features:
                if hasattr(tensor[key], "numpy") and key not in ds.meta.camera_keys:
                    np.testing.assert_array_equal(tensor[key].numpy(), np.asarray(item[key], tensor[key].numpy().dtype))
        found.append({key: _stacked([item[key] for item in items]) for key in items[0]})
    for key, stats in ds.meta.stats.items() if statistics else ():
        _check_statistics(ds, key, stats, [e[key] for e in found])
    return found


def _check_statistics(ds: Any, key: str, stats: Mapping[str, Any], values: list[np.ndarray]) -> None:
    """Compare the statistics with those that lerobot computes; quantiles roughly, theirs are from histograms."""
    from lerobot.datasets.compute_stats import aggregate_stats, compute_episode_stats

    if key in ds.meta.camera_keys:
        assert stats["mean"].shape == (3, 1, 1)
        return
    if values[0].ndim > 2 and any(len(v) < 2 for v in values):
        return  # theirs have another shape for an episode of one step, and cannot be joined
    theirs = aggregate_stats([compute_episode_stats({key: v}, {key: ds.features[key]}) for v in values])[key]
    assert set(stats) == set(theirs), key
    for name in stats:
        assert stats[name].shape == theirs[name].shape, (key, name)
        if not name.startswith("q"):
            np.testing.assert_allclose(stats[name], theirs[name], rtol=1e-4, atol=1e-6, err_msg=f"{key} {name}")


def read_lerobot21(directory: Path) -> list[Episode]:
    """Convert with lerobot's own script, the only reader of version 2.1 that it still has; then as above."""
    import shutil

    without_torchvision()
    from lerobot.datasets.v30 import convert_dataset_v21_to_v30 as script

    with tempfile.TemporaryDirectory(prefix="rlds-") as place:
        shutil.copytree(directory, Path(place) / "copy")
        script.convert_dataset("copy", root=place, push_to_hub=False)
        return _read_lerobot(Path(place) / "copy", statistics=False)  # those of 2.1 have other shapes


def expected_lerobot(ds: Any, k: int) -> Values:
    """The T steps of an episode: without the final observation, and without the flag that rlds sets where it cut."""
    episode, steps = ds.episode(k), int(ds.episodes["length"][k])
    if "task" in episode:
        yield "task", np.asarray(episode["task"])
    for name, f in ds.schema.items():
        if name == "task_at":
            continue  # LeRobot has it as the task of each row
        values = _column(episode, name, steps)
        if name == "next/truncated" and ds.episodes["end"][k] == "cut":
            values = np.zeros_like(values)
        key = {"next/info/done": "next.done"}.get(name, name.replace("/", "."))
        yield key, values.reshape(steps, *(f.shape or ()))
    yield "frame_index", np.arange(steps)
    yield "next.done", np.arange(steps) == steps - 1


def without_torchvision() -> None:
    """Stand in for what lerobot uses of torchvision and accelerate, whose wheels do not fit every torch."""
    from importlib.util import find_spec
    from types import ModuleType, SimpleNamespace

    import torch

    if find_spec("accelerate") is None or find_spec("safetensors") is None:
        sys.modules["accelerate"] = ModuleType("accelerate")
        sys.modules["accelerate"].Accelerator = object  # type: ignore[attr-defined]
    if find_spec("torchvision") is not None:
        return

    class ToTensor:
        def __call__(self, image: Any) -> Any:
            pixels = np.asarray(image)
            pixels = pixels[..., None] if pixels.ndim == 2 else pixels
            return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255

    class Reader:
        def __init__(self, path: str, _: str) -> None:
            import av

            self.container = av.open(path)

        def seek(self, seconds: float, keyframes_only: bool) -> None:
            stream = self.container.streams.video[0]
            self.container.seek(int(seconds / stream.time_base), stream=stream)

        def __iter__(self) -> Iterator[dict[str, Any]]:
            for f in self.container.decode(video=0):
                data = torch.from_numpy(f.to_ndarray(format="rgb24")).permute(2, 0, 1)
                yield {"pts": float(f.pts * f.time_base), "data": data}

    modules = {n: ModuleType(n) for n in ("", "transforms", "transforms.v2", "transforms.v2.functional", "io")}
    modules["transforms"].ToTensor = ToTensor  # type: ignore[attr-defined]
    modules["transforms.v2"].Transform = object  # type: ignore[attr-defined]
    modules["io"].VideoReader = Reader  # type: ignore[attr-defined]
    modules[""].set_video_backend = lambda backend: None  # type: ignore[attr-defined]
    for name, module in modules.items():
        full = f"torchvision.{name}".rstrip(".")
        module.__spec__ = SimpleNamespace(  # type: ignore[assignment]
            name=full, loader=None, origin=None, submodule_search_locations=[]
        )
        sys.modules[full] = module
        above, _, last = full.rpartition(".")
        if above:
            setattr(sys.modules[above], last, module)


# -- tfds


def read_tfds(directory: Path) -> list[Episode]:
    """Read with ``builder_from_directory``, which decodes images."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(directory))
    found: list[Episode] = []
    for split in builder.info.splits:
        before = len(found)
        for record in builder.as_dataset(split=split):
            steps = [dict(_flat(step)) for step in record["steps"].as_numpy_iterator()]
            episode = {key: _stacked([step[key] for step in steps]) for key in steps[0]}
            about = {f"episode/{k}": np.asarray(v.numpy()) for k, v in record.get("episode_metadata", {}).items()}
            found.append(episode | {key: _stacked([v.item()]) for key, v in about.items()})
        assert builder.info.splits[split].num_examples == len(found) - before
    return found


def expected_tfds(ds: Any, k: int) -> Values:
    """The rows of an episode; with the final observation if all are known, where action and reward are 0."""
    steps, known = int(ds.episodes["length"][k]), bool((ds.episodes["num_observed"] > ds.episodes["length"]).all())
    rows = steps + known
    episode = ds.episode(k)
    terminated = np.asarray(episode["next", "terminated"])[:steps].reshape(-1)
    for name, f in ds.schema.items():
        if name in ("next/terminated", "next/truncated"):
            continue
        values = _column(episode, name, steps)
        if f.placement == "both" and known:
            values = np.concatenate([values, _column(episode, f"next/{name}", steps)[-1:]])
        key = {"next/reward": "reward", "next/discount": "discount"}.get(name, name)
        if len(values) < rows and f.kind != "frames":
            filler = (
                np.array([""], values.dtype) if f.kind == "text" else np.zeros((1, *values.shape[1:]), values.dtype)
            )
            values = np.concatenate([values, filler])
        yield key, values
    yield "is_first", np.arange(rows) == 0
    yield "is_last", (np.arange(rows) == rows - 1) & (ds.episodes["end"][k] != "cut")
    yield "is_terminal", np.concatenate([[False] * known, terminated])
    if "seed" in ds.episodes and ds.episodes["has_seed"][k]:
        yield "episode/seed", np.array([ds.episodes["seed"][k]], np.uint64)


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}/")
        else:
            yield f"{above}{key}", value


# -- zarr-replay-buffer


def read_zarr(directory: Path) -> list[Episode]:
    """Read with zarr alone, of version 2 or 3, as ``ReplayBuffer`` does: all rows of all arrays, cut at the ends."""
    import zarr

    (store,) = directory.glob("*.zarr")
    root = zarr.open(str(store), mode="r")
    ends = np.asarray(root["meta"]["episode_ends"][:]).tolist()
    data = root["data"]
    assert all(data[key].shape[0] == ends[-1] for key in data)
    values = {key: np.asarray(data[key][:]) for key in data}
    values = {key: np.array(of.tolist()) if of.dtype.kind in "OT" else of for key, of in values.items()}
    return [{key: of[a:b] for key, of in values.items()} for a, b in zip([0, *ends], ends, strict=False)]


def expected_zarr(ds: Any, k: int) -> Values:
    """The T steps of an episode; flags only where some episode has one, and not the one that rlds sets where it cut."""
    episode, steps, cut = ds.episode(k), int(ds.episodes["length"][k]), ds.episodes["end"] == "cut"
    for name in ds.schema:
        values, key = _column(episode, name, steps), name.removeprefix("observation/").removeprefix("next/")
        if key == "truncated" and cut[k]:
            values = np.zeros_like(values)
        if key not in ("terminated", "truncated") or not cut.all():
            yield ("_".join(key.split("/")) if name != "next/info/done" else "next_info_done"), values


# -- recordings: mcap, rerun


def read_mcap(directory: Path) -> list[Episode]:
    """Read with mcap and its decoder of ROS 2: the messages of each topic in the order of time."""
    from mcap.reader import make_reader
    from mcap_ros2.decoder import DecoderFactory

    found: list[Episode] = []
    for path in sorted(directory.glob("*.mcap")):
        topics: dict[str, list[Any]] = {}
        with path.open("rb") as f:
            for _, channel, _, m in make_reader(f, decoder_factories=[DecoderFactory()]).iter_decoded_messages():
                topics.setdefault(channel.topic[1:], []).append(_of_ros(m))
        found.append({topic: np.stack(values) for topic, values in topics.items()})
    return found


def _of_ros(m: Any) -> np.ndarray:
    if hasattr(m, "layout"):
        return np.asarray(m.data).reshape([d.size for d in m.layout.dim])
    if hasattr(m, "encoding"):
        return np.frombuffer(bytes(m.data), np.uint8).reshape(m.height, m.width, 3)
    return _pixels(bytes(m.data)) if hasattr(m, "format") else np.asarray(m.data)


def _pixels(data: bytes) -> np.ndarray:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def read_rerun(directory: Path) -> list[Episode]:
    """Read with Rerun's own reader: the components of each entity in the order of steps, frames by their times."""
    import rerun

    found: list[Episode] = []
    for path in sorted(directory.glob("*.rrd")):
        rows: dict[str, list[tuple[int, np.ndarray]]] = {}
        videos: dict[str, dict[int, np.ndarray]] = {}
        for chunk in rerun.chunk.RrdReader(path).stream():
            batch, entity = chunk.to_record_batch(), chunk.entity_path[1:]
            if "AssetVideo:blob" in batch.schema.names:
                videos[entity] = _frames(rerun, bytes(batch["AssetVideo:blob"][0].as_py()[0]))
            for k, step in enumerate(batch["step"].to_pylist() if "step" in batch.schema.names else ()):
                row = {name: batch[name][k].as_py() for name in batch.schema.names if name != "time"}
                rows.setdefault(entity, []).append((step, _of_rerun(row, videos.get(entity, {}))))
        ordered = {entity: sorted(of, key=lambda row: row[0]) for entity, of in rows.items()}
        found.append({entity: np.stack([value for _, value in of]) for entity, of in ordered.items()})
    return found


def _of_rerun(row: Mapping[str, Any], frames: Mapping[int, np.ndarray]) -> np.ndarray:
    if "EncodedImage:blob" in row:
        return _pixels(bytes(row["EncodedImage:blob"][0]))
    if "VideoFrameReference:timestamp" in row:
        return frames[row["VideoFrameReference:timestamp"][0]]
    if "Tensor:data" in row:
        return np.asarray(row["Tensor:data"][0]["buffer"]).reshape(row["Tensor:data"][0]["shape"])
    if "Image:buffer" in row:
        about = row["Image:format"][0]
        return np.asarray(row["Image:buffer"][0], np.uint8).reshape(about["height"], about["width"], -1)
    return np.asarray(row.get("rlds:value") or row.get("Scalars:scalars") or row["TextDocument:text"][0])


def _frames(rerun: Any, data: bytes) -> dict[int, np.ndarray]:
    """Decode all frames of a video, by the times that Rerun has for them."""
    import av

    times = sorted(rerun.AssetVideo(contents=data, media_type="video/mp4").read_frame_timestamps_nanos().tolist())
    with av.open(io.BytesIO(data), options={"ignore_editlist": "1"}) as file:
        shown = {f.pts: f.to_ndarray(format="rgb24") for f in file.decode(video=0)}
    return dict(zip(times, (shown[pts] for pts in sorted(shown)), strict=True))


def expected_recordings(ds: Any, k: int) -> Values:
    """All rows of an episode, with the final observation where it is known; without the flag that rlds sets."""
    steps, observed = int(ds.episodes["length"][k]), int(ds.episodes["num_observed"][k])
    episode = ds.episode(k)
    for name, f in ds.schema.items():
        values = _column(episode, name, steps)
        if f.placement == "both" and observed > steps:
            values = np.concatenate([values, _column(episode, f"next/{name}", steps)[-1:]])
        if name == "next/truncated" and ds.episodes["end"][k] == "cut":
            values = np.zeros_like(values)
        yield name, values


CHECKS = {
    "zarr-replay-buffer": Check(read_zarr, expected_zarr),
    "mcap": Check(read_mcap, expected_recordings),
    "rerun": Check(read_rerun, expected_recordings),
    "lerobot": Check(read_lerobot, expected_lerobot),
    "lerobot2.1": Check(read_lerobot21, expected_lerobot),
    "tfds": Check(read_tfds, expected_tfds),
}


# -- datasets


def datasets(place: Path) -> Iterator[tuple[str, Any]]:
    """Datasets with every kind of field and of end."""
    sys.path.extend(str(ROOT / "tests" / name) for name in ("support", "contract"))
    import lerobot_archives

    import rlds_cli
    from rlds_cli.make.importing import import_files

    yield "samples", rlds_cli.download("sample/cartpole-minari").select(episodes=[3, 0])
    yield "flat", rlds_cli.download("sample/pendulum-d4rl").select(episodes=[1, 25])
    yield "kinds", rlds_cli.create("local/kinds", [_kinds(5, "terminated"), _kinds(3, "truncated"), _kinds(1, "cut")])
    images = lerobot_archives.write_v3(place / "images", lerobot_archives.Content(image=("top",)))
    yield "images", import_files(images, "local/images")
    videos = lerobot_archives.Content(video=("top",), lengths=(12, 8, 20), per_video=2)
    yield "videos", import_files(lerobot_archives.write_v3(place / "videos", videos), "local/videos")


def _kinds(steps: int, end: str) -> dict[str, Any]:
    rng = np.random.default_rng(steps)
    last = np.arange(steps) == steps - 1
    flags = {"terminated": last & (end == "terminated"), "truncated": last & (end == "truncated")}
    return {
        "observation": {
            "state": rng.normal(size=(steps, 3)),
            "grid": rng.integers(0, 256, (steps, 8, 9), np.uint8),
            "text": [f"é {k}" for k in range(steps)],
        },
        "action": rng.normal(size=(steps, 2)).astype(np.float32),
        "info": {"flag": last, "count": rng.integers(-(2**20), 2**20, steps), "small": last.astype(np.int8)},
        "next": {"reward": rng.normal(size=steps).astype(np.float32), **({} if end == "cut" else flags)},
    }


# -- comparison


def check(name: str, python: str) -> int:
    """Export all datasets to a format, read them with its library, and return the number of those that differ."""
    from rlds_cli.archives.exports.exporting import export

    wrong = 0
    with tempfile.TemporaryDirectory(prefix="rlds-") as temporary:
        place = Path(temporary)
        os.environ["RLDS_HOME"] = str(place / "home")
        for title, ds in datasets(place):
            target = place / f"{name}-{title}"
            made = export(ds, name, target, lossy=True, progress=False)
            command = [python, __file__, "--read", name, str(target), str(place / "read.npz")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            found = _loaded(place / "read.npz") if done.returncode == 0 else []
            said = [done.stderr.strip()[-2000:]] if done.returncode else [*_differences(CHECKS[name], ds, found)]
            lost = f" (lost: {', '.join(loss.kind for loss in made.losses)})" if made.losses else ""
            print(f"{name:12} {title:8} {'; '.join(said) or 'equal'}{lost}", flush=True)
            wrong += bool(said)
    return wrong


def _differences(check: Check, ds: Any, found: list[Episode]) -> Iterator[str]:
    if len(found) != ds.num_episodes:
        yield f"{len(found)} episodes for {ds.num_episodes}"
        return
    for k, episode in enumerate(found):
        for key, values in check.expected(ds, k):
            if key not in episode:
                yield f"episode {k} has no {key}"
            elif not _same(episode[key], values):
                yield f"episode {k}: {key} differs"


def _same(found: np.ndarray, wanted: np.ndarray) -> bool:
    if wanted.dtype.kind in "UO":
        return [_text(v) for v in found.tolist()] == [_text(v) for v in wanted.tolist()]
    found = found[: len(wanted)] if wanted.dtype == np.uint8 and wanted.ndim == 4 else found
    found = found.reshape(wanted.shape) if found.size == wanted.size else found
    return found.shape == wanted.shape and bool(np.array_equal(found, wanted, equal_nan=wanted.dtype.kind == "f"))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else "" if value is None else str(value)


def _column(episode: Any, name: str, rows: int) -> np.ndarray:
    values = episode[tuple(name.split("/"))]
    return np.asarray(values[:rows])


def _stacked(values: list[Any]) -> np.ndarray:
    """Rows as an array; texts as Unicode, images as pixels."""
    if isinstance(values[0], bytes):
        return np.array([v.decode() for v in values])
    return np.stack([np.asarray(v) for v in values])


def _loaded(path: Path) -> list[Episode]:
    with np.load(io.BytesIO(path.read_bytes())) as file:
        order = json.loads(str(file["order"]))
        return [{key: file[f"{k}/{key}"] for key in keys} for k, keys in enumerate(order)]


def _read(name: str, directory: Path, out: Path) -> None:
    found = CHECKS[name].read(directory)
    arrays = {f"{k}/{key}": values for k, e in enumerate(found) for key, values in e.items()}
    np.savez(out, order=np.array(json.dumps([list(e) for e in found])), **arrays)


def main() -> int:
    """Check the formats that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", metavar="FORMAT")
    parser.add_argument("--python", action="append", default=[], metavar="FORMAT=PATH")
    parser.add_argument("--read", nargs=3, metavar=("FORMAT", "DIR", "OUT"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.read:
        _read(asked.read[0], Path(asked.read[1]), Path(asked.read[2]))
        return 0
    pythons = dict(p.split("=", 1) for p in asked.python)
    known = [name for name in CHECKS if name != "rerun" or find_spec("rerun")]  # `make` installs no Rerun
    return min(1, sum(check(name, pythons.get(name, sys.executable)) for name in asked.formats or known))


if __name__ == "__main__":
    sys.exit(main())
