"""Cameras at rates of their own, beside states at 50 Hz: each row has the frame or image that was the last one."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from PIL import Image
from test_loader_frame_cache import jpeg
from test_own_cameras import film

import rlds_cli
from rlds_cli.archives.exports.exporting import export
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset
from rlds_cli.keep import compacting
from rlds_cli.loader import Loader, Resize, Shuffled, Slice, Transition
from rlds_cli.make.convert import appending
from rlds_cli.make.importing import import_files
from rlds_cli.store import frames

HZ, CAMERAS = 50, {"wide": 10, "wrist": 30}
Part = tuple[str, int, int]  # a recording, its first step and the one behind its last


class Recorder:
    """Writes a day of recordings, and knows what they show."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.frames: dict[str, dict[str, np.ndarray]] = {}
        self.states: dict[str, np.ndarray] = {}

    def record(self, day: str, lengths: Sequence[int]) -> Path:
        for k, steps in enumerate(lengths):
            name = f"{day}/ep_{k}"
            directory = self.root / name
            directory.mkdir(parents=True)
            self.frames[name] = {}
            for camera, hz in CAMERAS.items():
                last = np.arange(steps) * hz // HZ  # the frame that is shown at each step
                self.frames[name][camera] = film(directory / f"{camera}.mp4", int(last[-1]) + 1, fps=hz)[last]
            self.states[name] = np.random.default_rng(len(self.states)).normal(size=steps)
            columns = {"timestamp": 9.0 + np.arange(steps) / HZ, "q": self.states[name], "action": np.arange(steps) / 4}
            pa.csv.write_csv(pa.table(columns), directory / "log.csv")
        return self.root / day

    def check(self, ds: Dataset, parts: Sequence[Part]) -> None:
        """Compare every frame and state of a dataset whose episodes are ``parts``."""
        assert ds.num_episodes == len(parts)
        for k, (name, first, stop) in enumerate(parts):
            e = ds.episode(k)
            count = len(e["q"])
            assert count in (stop - first, stop - first - 1)  # the last row may be the final observation
            np.testing.assert_array_equal(e["q"].reshape(-1), self.states[name][first : first + count])
            for camera in CAMERAS:
                expected = self.frames[name][camera][first : first + count]
                np.testing.assert_array_equal(e["observation", camera], expected)
                now = np.arange(first, first + len(e["action"])) / HZ
                last = np.floor(now * CAMERAS[camera] + 1e-6) / CAMERAS[camera]
                np.testing.assert_allclose(e["info", "age", camera].reshape(-1), now - last, atol=2e-6)


@pytest.mark.thorough
def test_import_trim_label_merge_append_push_and_export(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    first = import_files(recorder.record("day1", [40, 61, 27]), "local/day1", progress=False)
    recorder.check(first, [("day1/ep_0", 0, 40), ("day1/ep_1", 0, 61), ("day1/ep_2", 0, 27)])
    parts = [("day1/ep_0", 5, 31), ("day1/ep_1", 3, 20), ("day1/ep_1", 30, 55), ("day1/ep_2", 0, 27)]
    trimmed = first.trim({0: (5, 31), 1: [(3, 20), (30, 55)]}, "short")
    recorder.check(trimmed, parts)
    labelled = trimmed.label({"success": [True, False, True, True]})
    recorder.check(labelled, parts)
    assert labelled.episodes["success"].tolist() == [True, False, True, True]

    import_files(recorder.record("day2", [33, 50]), "local/day2", progress=False)
    merged = rlds_cli.merge(["local/day1@short", "local/day2"], "local/all")
    parts += [("day2/ep_0", 0, 33), ("day2/ep_1", 0, 50)]
    recorder.check(merged, parts)
    appending.append("local/all", recorder.record("day3", [44]), progress=False)
    grown = rlds_cli.open_dataset("local/all")
    parts += [("day3/ep_0", 0, 44)]
    recorder.check(grown, parts)

    rlds_cli.push(grown, tmp_path / "address", pages=False)
    recorder.check(rlds_cli.open_dataset(str(tmp_path / "address"), home=tmp_path / "other"), parts)
    assert export("local/all", "lerobot", tmp_path / "lerobot", lossy=True).proved
    recorder.check(import_files(tmp_path / "lerobot", "local/back", progress=False), parts)


def test_batches_have_the_frame_that_was_shown_last(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    recorder = Recorder(tmp_path)
    ds = import_files(recorder.record("day", [40]), "local/day", progress=False)
    frames = recorder.frames["day/ep_0"]
    small = Resize("observation/wide", (16, 24), cache="1GiB")
    resized = np.asarray(small.apply("observation/wide", torch.from_numpy(frames["wide"])))
    shown = {(): frames["wide"], (small,): resized}
    tiny = Resize("observation/wide", (16, 24), cache=1)  # each frame is that of several steps, and none is kept
    for transform, wide in [((tiny,), resized), *shown.items(), *shown.items()]:
        how = {"window": Transition(anchors="steps"), "sampler": Shuffled(), "fields": ["observation", "step"]}
        for batch in Loader(ds, 8, transform=transform, backend="numpy", **how):  # type: ignore[arg-type]
            np.testing.assert_array_equal(batch["observation", "wrist"], frames["wrist"][batch["step"]])
            np.testing.assert_array_equal(batch["observation", "wide"], wide[batch["step"]])


# -- images


def seen(seed: int, count: int) -> list[bytes]:
    """JPEG images of a slow camera, each of other pixels."""
    rng = np.random.default_rng(seed)
    return [jpeg(rng.integers(0, 255, (24, 32, 3), np.uint8)) for _ in range(count)]


def slow_images(k: int, steps: int = 50) -> tuple[dict[str, Any], list[bytes]]:
    """An episode at 50 Hz with a camera of 10 Hz, and what the camera gave at each row."""
    images = seen(k, -(-(steps + 1) // 5))
    rows = [images[t // 5] for t in range(steps + 1)]
    truncated = np.arange(steps) == steps - 1
    episode = {
        "observation": {"camera": rlds_cli.Frames(rows), "state": np.arange(steps + 1.0) + k},
        "action": np.arange(float(steps)),
        "next": {"reward": np.ones(steps), "terminated": np.zeros(steps, bool), "truncated": truncated},
    }
    return episode, rows


def check_images(ds: Dataset, expected: Sequence[Sequence[bytes]]) -> None:
    assert ds.num_episodes == len(expected)
    for k, images in enumerate(expected):
        start = int(ds.episodes["start"][k])
        assert [ds.store.frames("observation/camera").packet(start + t) for t in range(len(images))] == list(images)
        decoded = np.stack([np.asarray(Image.open(io.BytesIO(x))) for x in images])
        found = ds.episode(k)["observation", "camera"]
        np.testing.assert_array_equal(found, decoded[: len(found)])
        assert len(found) >= len(images) - 1  # the last row may be the final observation


@pytest.mark.sampled(1)
@pytest.mark.parametrize("encoding", ["memmap", "zarr"])
def test_an_image_that_rows_share_is_stored_once(encoding: Literal["memmap", "zarr"]) -> None:
    episodes, rows = zip(*(slow_images(k) for k in range(3)), strict=True)
    ds = rlds_cli.create("local/slow", episodes, storage=encoding)
    images = sum(len(image) for of in rows for image in dict.fromkeys(of))
    assert len(ds.store.frames("observation/camera").data) == images
    check_images(ds, rows)
    assert rlds_cli.verify(ds.id).ok and not [f for f in rlds_cli.check(ds).findings if f.severity == "error"]
    repeated = rlds_cli.create("local/apart", episodes, frames="raw")  # the same pixels, for each row
    fast = Loader(ds, 16, window=Slice(6), sampler=Shuffled(), seed=0, backend="numpy")
    plain = Loader(repeated, 16, window=Slice(6), sampler=Shuffled(), seed=0, backend="numpy")
    for a, b in zip(fast, plain, strict=True):
        np.testing.assert_array_equal(a["observation", "camera"], b["observation", "camera"])


@pytest.mark.slow
def test_shared_images_through_every_change(tmp_path: Path) -> None:
    (e, a), (f, b), (g, c) = (slow_images(k) for k in range(3))
    first = rlds_cli.create("local/slow", [e, f])
    trimmed = first.trim({0: (3, 31), 1: (0, 50)}, "short")
    expected = [a[3:32], b]
    check_images(trimmed, expected)
    check_images(trimmed.label({"good": [True, False]}).select(where="good"), expected[:1])
    with rlds_cli.writer("local/run") as w:
        w.add_episodes([g, e])
    check_images(w.dataset(), [c, a])
    assert len(w.dataset().store.frames("observation/camera").data) == sum(map(len, {*a, *c}))
    merged = rlds_cli.merge([trimmed, w.dataset()], "local/all")
    expected += [c, a]
    check_images(merged, expected)
    assert rlds_cli.verify(merged.id).ok
    assert compacting.compact(merged.id).changed
    merged = rlds_cli.open_dataset(merged.id)
    check_images(merged, expected)
    assert len(merged.store.frames("observation/camera").data) == sum(map(len, {*a[3:32], *b, *c})) + sum(
        map(len, {*a})
    )
    rlds_cli.push("local/all", str(tmp_path / "shelf"), pages=False)
    far = rlds_cli.open_dataset(str(tmp_path / "shelf"), home=tmp_path / "other")
    check_images(far, expected)
    pinned = rlds_cli.open_dataset(f"{tmp_path / 'shelf'}#{far.fingerprint}", home=tmp_path / "third")
    check_images(pinned, expected)
    export(merged, "lerobot", tmp_path / "lerobot", lossy=True, progress=False)
    back = import_files(tmp_path / "lerobot", "local/back", progress=False)
    assert len(back.store.frames("observation/camera").data) < 1.1 * len(merged.store.frames("observation/camera").data)


def test_a_hostile_dataset_that_shares_a_large_image_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MOST_REPEATED", 4096)
    ds = rlds_cli.create("local/slow", [slow_images(0)[0]])
    with pytest.raises(DamagedDataset, match="not within its bytes"):
        ds.store.frames("observation/camera").encoded(np.arange(51))


def ages(period: float, steps: int, dropped: tuple[int, ...] = (), late: float = 0.0) -> np.ndarray:
    """Age at each of ``steps`` at 50 Hz of what comes every ``period``, without those dropped, and up to ``late``."""
    came = np.arange(int(steps / HZ / period) + 2) * period
    came = np.delete(came + np.random.default_rng(0).uniform(0, late, len(came)) * (late > 0), dropped)
    came[0] = 0.0
    now = np.arange(steps) / HZ
    return now - came[np.searchsorted(came, now + 1e-9, "right") - 1]


def aged(**columns: np.ndarray) -> Dataset:
    steps = len(next(iter(columns.values())))
    rng = np.random.default_rng(1)
    one = {"observation": rng.normal(size=(steps + 1, 3)), "action": rng.normal(size=(steps, 2))}
    return rlds_cli.create("local/aged", [{**one, "next": {"terminated": True}, "info": {"age": columns}}], force=True)


def test_gaps_and_uneven_rates_are_found() -> None:
    even = aged(wide=ages(0.1, 500), wrist=ages(1 / 30, 500))
    assert not [f for f in rlds_cli.check(even).findings if f.check == "ages"]
    stopped = aged(wide=ages(0.1, 500, dropped=(20, 21, 22)), wrist=ages(1 / 30, 500))
    (gap,) = [f for f in rlds_cli.check(stopped).findings if f.check == "ages"]
    assert (gap.code, gap.severity, gap.field) == ("age-gap", "warning", "info/age/wide")
    assert gap.places[0].step is not None and 100 < gap.places[0].step <= 115  # it comes again at step 115
    uneven = aged(wide=ages(0.1, 500, late=0.09))
    assert [f.code for f in rlds_cli.check(uneven).findings if f.check == "ages"] == ["uneven-rate"]
