"""Charts, contact sheets and videos: what is drawn is what is in the data."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from conftest import run_rlds
from frames_data import decoded, film
from made_once import sample_dataset
from PIL import Image

import rlds_cli
from rlds_cli import create
from rlds_cli.dataset.rows import Rows
from rlds_cli.errors import MissingPackage, RldsError, UnknownField
from rlds_cli.look.report import plots
from rlds_cli.look.report.columns import Histogram

NS = {"s": "http://www.w3.org/2000/svg"}


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)


def bars_of(text: str) -> list[tuple[float, float, int]]:
    """(least, greatest, count) of every bar, as it says when pointed at."""
    found = []
    for rect in parsed(text).iterfind("s:rect", NS):
        title = rect.find("s:title", NS)
        assert title is not None and title.text is not None
        numbers = [float(x.replace(",", "")) for x in re.split(" to |: ", title.text)]
        found.append((numbers[0], numbers[-2], int(numbers[-1])))
    return found


@pytest.fixture
def ds() -> rlds_cli.Dataset:
    rng = np.random.default_rng(0)
    return create(
        "local/x",
        [
            {
                "observation": np.arange(3.0 * (5 + k)).reshape(-1, 3),
                "action": np.full((4 + k, 2, 2), float(k)),
                "next": {"reward": np.full(4 + k, 1.0), "terminated": True},
                "info": {"name": ["a"] * (4 + k), "n": rng.integers(0, 5, 4 + k)},
            }
            for k in range(8)
        ],
    )


# SVG


def test_bars_say_their_range_and_count() -> None:
    text = plots.bars(Histogram((3, 0, 1), 0.0, 6.0), title="a < b & c")
    assert bars_of(text) == [(0, 2, 3), (4, 6, 1)]
    assert next(t.text for t in parsed(text).iterfind("s:text", NS)) == "a < b & c"
    heights = [float(r.get("height", 0)) for r in parsed(text).iterfind("s:rect", NS)]
    assert heights[0] == pytest.approx(3 * heights[1], rel=0.01)
    one = plots.bars(Histogram((7,), 2.0, 2.0), title="x")
    assert bars_of(one) == [(2, 2, 7)]
    assert bars_of(plots.bars(Histogram((), 0.0, 0.0), title="nothing")) == []


def test_curves_break_where_nothing_is_known() -> None:
    text = plots.curves(
        [plots.Curve("a", [0.0, 1.0, None, float("nan"), 2.0, 3.0]), plots.Curve("b", [1.0])], title="t"
    )
    paths = [p.get("d", "") for p in parsed(text).iterfind("s:path", NS) if p.find("s:title", NS) is not None]
    assert [p.count("M") for p in paths] == [2, 1]
    assert [p.count("L") for p in paths] == [2, 0]
    parsed(plots.curves([], title="none"))
    parsed(plots.curves([plots.Curve("c", [1.0, 1.0])], title="flat"))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (-0.4, 0.7, [0, 0.5]), (3, 3, [3]), (0, 1e6, None), (1e-9, 3e-9, None)],
)
def test_ticks_are_round_and_inside(low: float, high: float, expected: list[float] | None) -> None:
    found = plots.ticks(low, high)
    assert expected is None or found == pytest.approx(expected)
    assert 1 <= len(found) <= 8 and low - 1e-12 <= min(found) and max(found) <= high * (1 + 1e-9) + 1e-12


# plots


def test_returns_and_lengths(ds: rlds_cli.Dataset) -> None:
    for what in ("returns", "lengths", "total_reward", "length"):
        found = bars_of(plots.plot(ds, what))
        assert sum(n for *_, n in found) == 8
        assert (found[0][0], found[-1][1]) == (4, 11)
    assert sum(n for *_, n in bars_of(plots.plot(ds, "num_done"))) == 8


def test_fields_and_elements(ds: rlds_cli.Dataset) -> None:
    steps = sum(range(4, 12))
    assert sum(n for *_, n in bars_of(plots.plot(ds, "observation"))) == 3 * steps
    found = bars_of(plots.plot(ds, "action[1, 0]"))
    assert [n for *_, n in found] == list(range(4, 12))  # the action is the episode's number
    assert sum(n for *_, n in bars_of(plots.plot(ds, "info/n"))) == steps


def test_one_episode_is_drawn_as_curves(ds: rlds_cli.Dataset) -> None:
    text = plots.plot(ds, "observation", episode=-1)
    paths = [p for p in parsed(text).iterfind("s:path", NS) if p.find("s:title", NS) is not None]
    assert [p.find("s:title", NS).text for p in paths] == ["[0]", "[1]", "[2]"]  # type: ignore[union-attr]
    assert [p.get("d", "").count("L") for p in paths] == [11] * 3  # 12 observations
    assert "episode 7 of local/x" in text
    one = plots.plot(ds, "action[0, 1]", episode=0)
    assert "action[0, 1], episode 0" in one


def test_a_long_episode_keeps_its_extremes() -> None:
    o = np.zeros(100_000)
    o[54_321], o[77_777] = 5, -3
    ds = create("local/long", [{"observation": o, "action": np.zeros(len(o) - 1)}])
    text = plots.plot(ds, "observation", episode=0)
    assert len(text) < 100_000
    (path,) = (p.get("d", "") for p in parsed(text).iterfind("s:path", NS) if p.find("s:title", NS) is not None)
    heights = [float(p.split()[1]) for p in re.split("[ML]", path)[1:]]
    assert (min(heights), max(heights)) == (36, plots.HEIGHT - 44)


@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        ("nothing", UnknownField, "no field"),
        ("info/name", RldsError, "holds no numbers"),
        ("action[2, 0]", RldsError, r"no element \[2, 0\]"),
        ("action[1]", RldsError, "no element"),
        ("end", RldsError, "not a column of numbers"),
    ],
)
def test_what_cannot_be_drawn(ds: rlds_cli.Dataset, what: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        plots.plot(ds, what)


def test_there_are_no_returns_without_rewards() -> None:
    ds = create("local/g", [{"observation": np.zeros(3), "action": np.zeros(2)}])
    with pytest.raises(UnknownField, match="no rewards"):
        plots.plot(ds, "returns")
    with pytest.raises(RldsError, match="has no episode 1"):
        plots.plot(ds, "action", episode=1)


# frames


def test_a_sheet_shows_frames_in_order() -> None:
    """Four frames of one colour each, on a sheet where each takes 160 x 160 pixels, 4 apart, below their numbers."""
    colours = np.array([[200, 0, 0], [0, 200, 0], [0, 0, 200], [90, 90, 90]], np.uint8)
    o = np.broadcast_to(colours[:, None, None], (4, 32, 32, 3))
    ds = create("local/c", [{"observation": o, "action": np.zeros((3, 1))}])
    for episode in (None, 0):
        sheet = np.asarray(plots.contact_sheet(ds, episode=episode))
        assert sheet.shape == (4 + 160 + 16, 4 + 4 * 164, 3)
        assert [tuple(sheet[100, 4 + 164 * k + 80]) for k in range(4)] == [tuple(c) for c in colours]


def test_encoded_frames_and_long_episodes() -> None:
    ds = film([3, 100, 5])
    assert plots.contact_sheet(ds, "observation").size == (8 * (120 + 4) + 4, 3 * (160 + 16) + 4)
    assert plots.contact_sheet(ds, "observation", episode=1).size == (8 * (120 + 4) + 4, 6 * (160 + 16) + 4)
    f = ds.schema["observation"]
    rows = Rows(ds)
    at = plots.episode_rows(rows, f, 1)
    assert len(at) == 101
    np.testing.assert_array_equal(plots.pictures(rows, f, at[[0, 7]])[1], decoded(1, 7))


@pytest.mark.parametrize(
    ("shape", "where"),
    [((20, 24), ...), ((20, 24, 1), np.s_[..., 0]), ((1, 20, 24), np.s_[:, 0]), ((4, 20, 24), np.s_[:, 3])],
)
def test_layouts_of_frames(shape: tuple[int, ...], where: object) -> None:
    o = np.random.default_rng(0).integers(0, 255, (3, *shape), np.uint8)
    ds = create("local/i", [{"observation": o, "action": np.zeros((2, 1))}])
    found = plots.pictures(Rows(ds), plots.image_field(ds), np.arange(3))
    grey = o if where is ... else o[where]  # type: ignore[index]
    np.testing.assert_array_equal(found, np.repeat(grey[..., None], 3, -1))


def test_frames_of_three_channels_before_rows_and_columns() -> None:
    rgb = np.random.default_rng(0).integers(0, 255, (3, 3, 20, 24), np.uint8)
    ds = create("local/j", [{"observation": rgb, "action": np.zeros((2, 1))}])
    np.testing.assert_array_equal(
        plots.pictures(Rows(ds), plots.image_field(ds), np.arange(3)), rgb.transpose(0, 2, 3, 1)
    )


def test_which_field_is_meant(ds: rlds_cli.Dataset) -> None:
    with pytest.raises(RldsError, match="no image fields"):
        plots.image_field(ds)
    with pytest.raises(RldsError, match="observation of local/x holds no images"):
        plots.image_field(ds, "observation")
    o = np.zeros((3, 32, 32, 3), np.uint8)
    two = create("local/two", [{"observation": {"left": o, "right": o}, "action": np.zeros((2, 1))}])
    with pytest.raises(RldsError, match="2 image fields") as e:
        plots.image_field(two)
    assert "observation/left, observation/right" in str(e.value.hint)
    assert plots.image_field(two, "observation/right").name == "observation/right"


# videos


def test_a_video_has_every_frame(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    o = np.zeros((100, 33, 41, 3), np.uint8)
    o[:, :, :] = (2 * np.arange(100))[:, None, None, None]
    ds = create("local/v", [{"observation": o, "action": np.zeros((99, 1))}], fps=12.5)
    assert plots.write_video(ds, tmp_path / "v.mp4", 0) == 100
    with av.open(str(tmp_path / "v.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.average_rate, stream.width % 2, stream.height % 2) == (12.5, 0, 0)
        assert stream.height >= 256
        levels = [frame.to_ndarray(format="rgb24").mean() for frame in container.decode(stream)]
    assert levels == pytest.approx((2.0 * np.arange(100)).tolist(), abs=4)
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".mp4"] == ["v.mp4"]


def test_without_av(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingPackage, match="av") as e:
        plots.write_video(film([2]), tmp_path / "v.mp4", 0)
    assert e.value.hint == "pip install 'rlds-cli[video]'"


# the commands


def rlds(*args: object) -> subprocess.CompletedProcess[str]:
    done = run_rlds(*args)
    return subprocess.CompletedProcess(args, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_files_are_written(ds: rlds_cli.Dataset, tmp_path: Path) -> None:
    done = rlds("inspect", "local/x", "--plot", "returns", "-o", tmp_path / "r.svg", "--json")
    assert json.loads(done.stdout)["bytes"] == (tmp_path / "r.svg").stat().st_size
    assert sum(n for *_, n in bars_of((tmp_path / "r.svg").read_text())) == 8
    film([4])
    assert rlds("inspect", "local/film", "--plot", "observation", "-o", tmp_path / "s.png").returncode == 0
    with Image.open(tmp_path / "s.png") as sheet:
        assert sheet.format == "PNG"
    for wrong, code, said in (
        (("--plot", "returns", "-o", tmp_path / "r.png"), 2, "written as SVG"),
        (("--plot", "returns"), 2, "-o returns.svg"),
        (("--plot", "nothing", "-o", tmp_path / "r.svg"), 1, "UnknownField"),
        (("--plot", "returns", "-o", tmp_path / "none" / "r.svg"), 1, "there is no directory"),
        (("--plot", "returns", "-o", tmp_path / "v.mp4"), 2, "written as SVG"),
    ):
        failed = rlds("inspect", "local/x", *wrong)
        assert failed.returncode == code and said in " ".join(failed.stderr.split()), failed.stderr


# the page in terminals of any kind


@pytest.mark.slow
def test_no_line_of_the_page_is_too_long(ds: rlds_cli.Dataset) -> None:
    from io import StringIO

    from rich.console import Console

    from rlds_cli.look.checks import check
    from rlds_cli.look.pages.checks import CheckPage
    from rlds_cli.look.pages.inspect import EpisodePage, SummaryPage
    from rlds_cli.look.report import describe_episode, summarise

    pages = (
        SummaryPage(summarise(ds)),
        SummaryPage(summarise(sample_dataset("cartpole-minari"), elements=True)),
        SummaryPage(summarise(sample_dataset("mountaincar-robohive"))),
        EpisodePage(describe_episode(ds, 3)),
        CheckPage(check(ds)),
    )
    for page, columns in product(pages, (200, 120, 100, 80, 60, 40)):
        console = Console(file=StringIO(), width=columns, force_terminal=True, color_system=None)
        console.print(page, crop=False)
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert lines and max(len(line.rstrip()) for line in lines) <= columns


@pytest.mark.slow
def test_pipes_have_no_colour_and_break_no_line(ds: rlds_cli.Dataset) -> None:
    sample_dataset("pendulum-d4rl")
    for command in (("inspect", "local/x"), ("check", "local/x"), ("diff", "local/x", "sample/pendulum-d4rl")):
        shown = rlds(*command).stdout
        assert "\x1b" not in shown and shown
        assert all(line == line.rstrip() for line in shown.splitlines())
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    command = [sys.executable, "-m", "rlds_cli", "inspect", "local/x"]
    ascii_only = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert ascii_only.stdout.isascii()


def test_nested_fields_stand_below_their_name() -> None:
    from rlds_cli.look.pages.inspect import tree
    from rlds_cli.look.report import summarise

    o = {"grip": np.zeros((3, 2)), "arm": {"q": np.ones((3, 7))}}
    ds = create("local/t", [{"observation": o, "action": np.zeros((2, 1)), "info": {"x": np.zeros(2)}}])
    lines = [(entry.mark + ", ".join(entry.names), entry.heading) for entry in tree(summarise(ds).fields)]
    assert lines == [
        ("observation", True),
        ("├─ arm/q", False),
        ("└─ grip", False),
        ("action", False),
        ("next/terminated", False),
        ("next/truncated", False),
        ("info/x", False),
    ]
