"""The times that the viewer tells of a stream are those that Chromium tells of the frames that it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import chromium
import numpy as np
import pytest
from numbered_frames import film
from viewer import viewing

import rlds_cli
from rlds_cli import Video

CHROMIUM = chromium.find()
pytestmark = [pytest.mark.view, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]

ROWS = 100
CAMERA = "observation/cam"
RNG = np.random.default_rng(0)
UNEVEN = np.cumsum(RNG.integers(60, 300, ROWS)).tolist()  # hundredths of a frame of 30 Hz

# Seeks to a time, waits until a frame is shown, and returns what the browser tells of it and the number burnt into it.
SCRIPT = """
async function shownAt(video, time) {
  const told = new Promise((done) => video.requestVideoFrameCallback((now, frame) => done(frame.mediaTime)));
  video.currentTime = time;
  const mediaTime = await Promise.race([told, new Promise((done) => setTimeout(() => done(null), 3000))]);
  const canvas = document.createElement("canvas");
  canvas.width = 160; canvas.height = 32;
  const context = canvas.getContext("2d");
  context.drawImage(video, 0, 0);
  let number = 0;
  for (let bit = 0; bit < 10; bit += 1) {
    number += (context.getImageData(16 * bit + 8, 8, 1, 1).data[1] > 127) << bit;
  }
  return [mediaTime, number];
}
async function readStream(source, times) {
  const video = document.createElement("video");
  video.muted = true;
  document.body.append(video);
  const ready = new Promise((done, fail) => { video.onloadeddata = done; video.onerror = () => fail(video.error); });
  video.src = source;
  await ready;
  const found = [];
  for (const time of times) found.push(await shownAt(video, time));
  return found;
}
"""

CASES: dict[str, dict[str, Any]] = {
    "b frames": {"g": "250", "bf": "3", "preset": "veryfast"},
    "gop 2": {"g": "2"},
    "gop 250": {"g": "250", "bf": "0"},
    "variable rate": {"times": UNEVEN, "g": "40", "bf": "2"},
    "late": {"times": [1000 + 100 * k for k in range(ROWS)], "g": "40", "bf": "2"},
    "vp9": {"codec": "vp9", "g": "40"},
    "webm": {"name": "cam.webm", "codec": "vp9", "g": "40"},
    "late webm": {"name": "cam.webm", "codec": "vp9", "times": [1000 + 100 * k for k in range(ROWS)], "g": "40"},
    "av1": {"codec": "av1", "g": "40"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_times_of_a_stream_are_those_of_the_browser(tmp_path: Path, browser: Any, case: str) -> None:
    options = dict(CASES[case])
    path = film(tmp_path / options.pop("name", "cam.mp4"), range(ROWS), **options)
    episode = {"observation": {"cam": Video(path)}, "action": np.zeros((ROWS - 1, 1), np.float32)}
    ds = rlds_cli.create("local/shown", [episode], progress=False)
    rows = [0, 1, 2, *RNG.permutation(ROWS - 1)[:17].tolist(), ROWS - 1]
    with viewing(ds) as viewer:
        stream = viewer.record("episode", d="~0", episode=0)["cameras"][0]["stream"]
        times = np.array(stream["times"])
        ends = np.append(times[1:], times[-1] + (times[-1] - times[-2]))
        middles = ((times + ends) / 2)[rows].tolist()
        page = browser.visit(viewer.address)
        page.run(SCRIPT)
        assert page.run(f"document.createElement('video').canPlayType({json.dumps(stream['mime'])})") == "probably"
        source = f"media/video?d=~0&field={CAMERA}&video={stream['video']}"
        found = page.run(f"readStream({json.dumps(source)}, {json.dumps(middles)})")
    assert [number for _, number in found] == rows
    np.testing.assert_allclose([np.nan if t is None else t for t, _ in found], times[rows], atol=1e-3)
