"""Cameras at rates of their own, beside states at 50 Hz: each row has the frame that was shown last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from test_own_cameras import film

import rlds_cli
from rlds_cli.convert import appending
from rlds_cli.dataset import Dataset
from rlds_cli.exports.exporting import export
from rlds_cli.importing import import_files
from rlds_cli.loader import Loader, Resize, Shuffled, Transition

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

    rlds_cli.push(grown, tmp_path / "address")
    recorder.check(rlds_cli.open_dataset(str(tmp_path / "address"), cache_dir=tmp_path / "other"), parts)
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
