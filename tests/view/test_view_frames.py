"""The frame that the viewer sends is the frame of the row: numbers burnt into frames are read from what it answers."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_archives import encode_depth
from numbered_frames import encoded, film, number_of, picture, pictures, seconds_of
from PIL import Image
from viewer import Viewer, viewing

import rlds_cli
from rlds_cli import Frames, Video
from rlds_cli.dataset import Dataset
from rlds_cli.make import import_files
from rlds_cli.ted import Field
from rlds_cli.view.decoding import Encoded, drawn
from rlds_cli.view.pictures import Showing

ROWS = 100
CAMERA = "observation/cam"
RNG = np.random.default_rng(0)
UNEVEN = np.cumsum(RNG.integers(20, 300, ROWS + 1)).tolist()  # hundredths of a frame


def made(camera: Any, rows: int = ROWS + 1) -> Dataset:
    """A dataset of one episode, whose camera shows a row for each observation."""
    episode = {"observation": {"cam": camera}, "action": np.zeros((rows - 1, 1), np.float32)}
    return rlds_cli.create("local/shown", [episode], progress=False, force=True)


def of_film(tmp_path: Path, name: str = "cam.mp4", **options: Any) -> Dataset:
    return made(Video(film(tmp_path / name, range(ROWS + 1), **options)))


def in_files(tmp_path: Path, codec: str) -> Dataset:
    for k in range(ROWS + 1):
        (tmp_path / f"{k}.{codec}").write_bytes(encoded(k, codec))
    return made(Frames(tmp_path / f"{k}.{codec}" for k in range(ROWS + 1)))


def of_depth(tmp_path: Path) -> Dataset:
    for k in range(ROWS + 1):
        Image.fromarray(picture(k, "uint16", 5000)).save(tmp_path / f"{k}.png")
    return made(Frames(tmp_path / f"{k}.png" for k in range(ROWS + 1)))


def in_deep_video(tmp_path: Path) -> Dataset:
    """Depth of 12 bits, as LeRobot keeps it."""
    codes = np.stack([picture(k, "uint16", 4000) for k in range(ROWS + 1)])
    encode_depth(tmp_path / "cam.mp4", codes, "libx265", "gray12le")
    return made(Video(tmp_path / "cam.mp4"))


def shared(tmp_path: Path) -> Dataset:
    """The second of two episodes in one file."""
    whole = film(tmp_path / "cam.mp4", [*range(900, 950), *range(ROWS + 1)], g="250", bf="3")
    parts = [(Video(whole, 0, 50), 49), (Video(whole, 50), ROWS)]
    episodes = [{"observation": {"cam": v}, "action": np.zeros((n, 1), np.float32)} for v, n in parts]
    return rlds_cli.create("local/shown", episodes, progress=False).select(episodes=[1])


def trimmed(tmp_path: Path) -> Dataset:
    """A range of an episode."""
    whole = made(Video(film(tmp_path / "cam.mp4", [*range(900, 907), *range(ROWS + 1)], g="30", bf="2")), ROWS + 8)
    return whole.trim({0: (7, ROWS + 7)}, "part")


def own_rates(tmp_path: Path) -> Dataset:
    """A camera of 10 Hz beside rows of 50 Hz: a row has the last frame that was shown by then."""
    rows = 5 * 40
    times = np.arange(rows) / 50
    table = {"timestamp": times, "action": np.zeros(rows), "observation/x": np.arange(rows, dtype=np.float32)}
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    film(tmp_path / "cam.mp4", range(40), fps=10, g="12")
    return import_files(tmp_path, "local/shown", episodes_by="file", progress=False)


CASES: dict[str, tuple[Callable[..., Dataset], dict[str, Any]]] = {
    "b frames": (of_film, {"g": "250", "bf": "3", "preset": "veryfast"}),
    "gop 2": (of_film, {"g": "2"}),
    "gop 250": (of_film, {"g": "250", "bf": "0"}),
    "variable rate": (of_film, {"times": UNEVEN, "g": "40", "bf": "2"}),
    "hevc": (of_film, {"codec": "hevc", "x265": "keyint=50"}),
    "mkv": (of_film, {"name": "cam.mkv", "g": "40", "bf": "2"}),
    "vp9": (of_film, {"name": "cam.webm", "codec": "vp9", "g": "40"}),
    "shared": (shared, {}),
    "trimmed": (trimmed, {}),
    "own rates": (own_rates, {}),
    "jpeg": (in_files, {"codec": "jpeg"}),
    "png": (in_files, {"codec": "png"}),
    "depth": (of_depth, {}),
    "depth in a video": (in_deep_video, {}),
    "raw": (lambda path: made(pictures(range(ROWS + 1))), {}),
}


def expected(case: str, step: int) -> int:
    return step // 5 if case == "own rates" else step


def shown(viewer: Viewer, step: int, **values: Any) -> int:
    answer = viewer.ask("media/frame", d="~0", episode=0, step=step, field=CAMERA, **values)
    assert answer.status == 200, answer.body
    return number_of(answer.body)


@pytest.mark.parametrize("case", CASES)
def test_the_frame_of_a_row_is_sent(tmp_path: Path, case: str) -> None:
    make, options = CASES[case]
    ds = make(tmp_path, **options)
    depth = {"low": 0, "high": 4000} if case.startswith("depth") else {}
    steps = [*range(20), *range(19, 0, -1), *RNG.permutation(ROWS)[:61].tolist()]
    with viewing(ds) as viewer:
        for step in steps:
            assert shown(viewer, step, **depth) == expected(case, step), step
        for step in RNG.permutation(ROWS)[:10].tolist():
            assert shown(viewer, step, height=20, **depth) == expected(case, step)


@pytest.mark.parametrize("case", ["b frames", "gop 2", "variable rate", "shared", "trimmed", "own rates", "vp9"])
def test_the_times_of_a_stream_are_those_of_its_frames(tmp_path: Path, case: str) -> None:
    make, options = CASES[case]
    ds = make(tmp_path, **options)
    with viewing(ds) as viewer:
        e = viewer.record("episode", d="~0", episode=0)
        stream = e["cameras"][0]["stream"]
        asked = {"d": "~0", "field": CAMERA, "video": stream["video"]}
        file, head = (viewer.ask("media/video", method=method, **asked) for method in ("GET", "HEAD"))
    path = next(tmp_path.glob("cam.*"))
    assert file.body == path.read_bytes() and head.body == b""
    assert head.headers["etag"] == f'"{hashlib.sha256(file.body).hexdigest()}"'
    assert head.headers["content-length"] == str(len(file.body)) == str(stream["bytes"])
    seconds = np.array(seconds_of(path))
    first = {"shared": 50, "trimmed": 7}.get(case, 0)
    frames = [first + expected(case, step) for step in range(e["rows"])]
    np.testing.assert_allclose(stream["times"], seconds[frames], atol=2e-6)


def test_pictures_are_sent_as_they_are_stored_unless_all_is_decoded(tmp_path: Path) -> None:
    ds = in_files(tmp_path, "jpeg")
    asked = {"d": "~0", "episode": 0, "step": 3, "field": CAMERA}
    with viewing(ds) as viewer:
        answer = viewer.ask("media/frame", **asked)
        assert (answer.body, answer.headers["content-type"]) == (encoded(3, "jpeg"), "image/jpeg")
        again = viewer.ask("media/frame", headers={"if-none-match": answer.headers["etag"]}, **asked)
        assert (again.status, again.body) == (304, b"")
    with viewing(ds, decode=True) as viewer:
        answer = viewer.ask("media/frame", **asked)
        assert answer.body != encoded(3, "jpeg") and number_of(answer.body) == 3


def test_with_decode_no_video_is_sent(tmp_path: Path) -> None:
    with viewing(of_film(tmp_path), decode=True) as viewer:
        assert viewer.record("episode", d="~0", episode=0)["cameras"][0]["stream"] is None
        assert viewer.ask("media/video", d="~0", field=CAMERA, video=0).status == 422
        assert shown(viewer, 41) == 41


def test_a_range_of_depth(tmp_path: Path) -> None:
    """Without one, it is that of most values: here all are 0, which stands for none, or 5000."""
    with viewing(of_depth(tmp_path)) as viewer:
        camera = viewer.record("episode", d="~0", episode=0)["cameras"][0]
    assert camera["depth"] == {"unit": None, "low": 5000.0, "high": 5000.0}


def test_what_cannot_be_shown_says_why(tmp_path: Path) -> None:
    ds = in_files(tmp_path, "png")
    asked = {"d": "~0", "episode": 0, "step": 0, "field": CAMERA}
    with viewing(ds) as viewer:
        for wrong, status in (
            ({"step": ROWS + 1}, 404), ({"step": -1}, 404), ({"field": "action"}, 422), ({"field": "none"}, 404),
            ({"height": 0}, 422), ({"height": 10**9}, 422), ({"episode": 1}, 422), ({"low": "nan"}, 422),
        ):  # fmt: skip
            answer = viewer.ask("media/frame", **{**asked, **wrong})
            assert answer.status == status and answer.record["error"], wrong
        assert viewer.ask("media/video", d="~0", field=CAMERA, video=0).status == 422


def test_images_of_different_sizes_have_sizes_of_their_own() -> None:
    how = Showing(field=Field("image", "uint8", (0, 0, 3), "both", "frames", "png"), height=10)
    data, _ = drawn(Encoded(name="local/shown, image", row=0, image=encoded(5, "png")), how)
    assert number_of(data) == 5 and Image.open(io.BytesIO(data)).size == (50, 10)


def test_raw_images_of_few_colours_stay_sharp() -> None:
    rng = np.random.default_rng(0)
    for values, kind in ((rng.integers(0, 2, (84, 84)) * 255, "png"), (rng.integers(0, 256, (84, 84, 3)), "jpeg")):
        frames = np.stack([values] * 4).astype(np.uint8)
        with viewing(made(frames, 4)) as viewer:
            answer = viewer.ask("media/frame", d="~0", episode=0, step=0, field=CAMERA)
        assert answer.headers["content-type"] == f"image/{kind}"
        if kind == "png":
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(answer.body))), values)


@pytest.mark.parametrize(
    ("shape", "values", "pixel"),
    [
        ((20, 30), 7, (7, 7, 7)),
        ((20, 30, 1), 7, (7, 7, 7)),
        ((3, 20, 30), np.array([1, 2, 3])[:, None, None], (1, 2, 3)),
        ((4, 20, 30), np.array([1, 2, 3, 4])[:, None, None], (4, 4, 4)),  # the newest of a stack
        ((20, 30, 4), np.array([1, 2, 3, 4]), (4, 4, 4)),
        ((20, 30, 4), np.array([1, 2, 3, 255]), (1, 2, 3)),  # opaque
    ],
)
def test_raw_images_of_every_layout(shape: tuple[int, ...], values: Any, pixel: tuple[int, ...]) -> None:
    frames = np.broadcast_to(np.asarray(values, np.uint8), (4, *shape)).copy()
    with viewing(made(frames, 4)) as viewer:
        camera = viewer.record("episode", d="~0", episode=0)["cameras"][0]
        answer = viewer.ask("media/frame", d="~0", episode=0, step=0, field=CAMERA)
    assert (camera["height"], camera["width"], camera["codec"]) == (20, 30, "raw")
    assert answer.headers["content-type"] == "image/png"  # small images are not blurred
    image = Image.open(io.BytesIO(answer.body)).convert("RGB")
    assert image.size == (30, 20) and image.getpixel((5, 5)) == pixel


# -- at an address


def test_an_address_is_asked_for_what_is_shown(tmp_path: Path) -> None:
    """Of a large video, a range of its bytes fetches the blocks with them alone."""
    from rlds_cli.share.pushing import push

    path = film(tmp_path / "cam.mp4", range(ROWS + 1), g="20")
    push(made(Video(path)).id, tmp_path / "store")
    ds = rlds_cli.open_dataset(tmp_path / "store", home=tmp_path / "other")
    assert ds.store.address
    with viewing(ds) as viewer:
        camera = viewer.record("episode", d="~0", episode=0)["cameras"][0]
        asked = {"d": "~0", "field": CAMERA, "video": camera["stream"]["video"]}
        part = viewer.ask("media/video", headers={"range": "bytes=1000-1999"}, **asked)
        assert (part.status, part.body) == (206, path.read_bytes()[1000:2000])
        assert viewer.ask("media/video", **asked).body == path.read_bytes()
        assert [shown(viewer, step) for step in (7, 8, 70)] == [7, 8, 70]


def test_a_dataset_that_grows(tmp_path: Path) -> None:
    def episode(first: int) -> dict[str, Any]:
        path = film(tmp_path / f"{first}.mp4", range(first, first + 20), g="8", bf="2")
        return {"observation": {"cam": Video(path)}, "action": np.zeros((19, 1), np.float32)}

    with rlds_cli.writer("local/log") as w:
        w.add_episodes([episode(100)])
        w.commit()
        with viewing(rlds_cli.open_dataset("local/log")) as viewer:
            assert shown(viewer, 7) == 107
            w.add_episodes([episode(200)])
            w.commit()
            answer = viewer.ask("media/frame", d="~0", episode=1, step=19, field=CAMERA)
            assert number_of(answer.body) == 219 and shown(viewer, 8) == 108


# -- what strangers send


def test_a_camera_whose_tables_are_damaged_leaves_the_others(tmp_path: Path) -> None:
    ds = of_film(tmp_path)
    table = next(p for p in ds.path.rglob("video/**/spans/c/**/*") if p.is_file())
    table.chmod(0o644)
    table.write_bytes(b"\x7f" * table.stat().st_size)
    with viewing(rlds_cli.open_dataset("local/shown")) as viewer:
        e = viewer.record("episode", d="~0", episode=0)
        answer = viewer.ask("media/frame", d="~0", episode=0, step=0, field=CAMERA)
        video = viewer.ask("media/video", d="~0", field=CAMERA, video=0)
    (camera,) = e["cameras"]
    assert "spans" in camera["error"] and camera["stream"] is None and e["steps"] == ROWS
    assert answer.status == video.status == 500 and "spans" in answer.record["error"]
