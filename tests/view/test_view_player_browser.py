"""The page of an episode in Chromium: it plays, and shows the frame and the values of the row. Skipped without one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import chromium
import numbered_films as films
import numpy as np
import pytest
from page_data import HOSTILE
from viewer import Viewer, viewing

import rlds_cli
from rlds_cli.loader import Loader, Sequential, Slice
from rlds_cli.make import import_files
from rlds_cli.view.server import Server

BROWSER = chromium.find()

pytestmark = [
    pytest.mark.view,
    pytest.mark.skipif(BROWSER is None, reason=f"no Chromium here ({', '.join(chromium.NAMES)})"),
]

STEPS = 120
CANVASES = "[...document.querySelectorAll('.cam canvas')]"
SLIDER = "document.querySelector('[role=slider]')"
LEGEND = "[...document.querySelectorAll('article[aria-label=\"%s\"] .lg-value')].map(v => v.textContent)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("films")


@pytest.fixture(scope="module")
def viewed(folder: Path) -> rlds_cli.Dataset:
    """Cameras of all kinds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(folder / "home"))
        ds = rlds_cli.create(
            "local/films", [episode(folder, k) for k in range(3)], fps=30, depth_unit="mm", progress=False
        )
    damage(ds, films.jpeg(5, tint=92))
    return ds


@pytest.fixture(scope="module")
def viewer(folder: Path, viewed: rlds_cli.Dataset) -> Iterator[Viewer]:
    """Datasets ``~0``: `viewed`; ``~1``: trimmed; ``~2``: a video of another rate; ``~3``: markup."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(folder / "home"))
        trimmed = viewed.trim({0: (37, 90)}, "short")
        with viewing(viewed, trimmed, other_rate(folder), hostile(), home=folder / "home") as found:
            yield found


def episode(folder: Path, number: int) -> dict[str, object]:
    rows = range(STEPS + 1)
    between = films.film(folder / f"shared{number}.mp4", [*range(4000, 4031), *rows, 4001, 4002], options={"g": "12"})
    uneven = np.cumsum(np.random.default_rng(number).integers(12, 60, len(rows))).tolist()
    videos = {
        "b_frames": rlds_cli.Video(films.film(folder / f"b{number}.mp4", rows, options={"g": "250", "bf": "3"})),
        "pairs": rlds_cli.Video(films.film(folder / f"p{number}.mp4", rows, options={"g": "2", "bf": "0"}, tint=30)),
        "shared": rlds_cli.Video(between, 31, 31 + len(rows)),
        "uneven": rlds_cli.Video(films.film(folder / f"u{number}.mp4", rows, times=uneven, tint=60)),
        "hevc": rlds_cli.Video(hevc(folder / f"h{number}.mp4", rows)),
    }
    images = [films.jpeg(k, tint=90 + number) for k in rows]
    state = np.stack([np.sin(np.arange(STEPS + 1) / 10 + k) for k in range(3)], 1).astype(np.float32)
    return {
        "observation": {
            "state": state,
            "images": {**videos, "jpeg": rlds_cli.Frames(images), "depth": rlds_cli.Frames(map(films.depth, rows))},
        },
        "action": state[1:] + 1,
        "next": {"reward": np.arange(STEPS, dtype=np.float32), "terminated": np.arange(STEPS) == STEPS - 1},
        "subtask": ["reach"] * 50 + ["<b>lift</b>"] * (STEPS - 50),
    }


def damage(ds: rlds_cli.Dataset, image: bytes) -> None:
    """Overwrite the beginning of an image where it is stored."""
    for file in ds.path.rglob("*"):
        if file.is_file() and (at := file.read_bytes().find(image)) >= 0:
            file.chmod(0o600)
            with file.open("r+b") as f:
                f.seek(at)
                f.write(bytes(100))
            return
    raise AssertionError("no file has this image")


def hevc(path: Path, rows: range) -> Path:
    options = {"x265-params": "log-level=none:cutree=0"}
    return films.film(path, rows, codec="libx265", options=options, tint=120)


def other_rate(folder: Path) -> rlds_cli.Dataset:
    """Rows at 10 Hz beside a video of 30 frames a second: of each three frames a row has one."""
    (folder / "slow").mkdir()
    films.film(folder / "slow" / "cam.mp4", range(300), options={"g": "30", "bf": "2"})
    lines = [f"{k / 10},{k},{k},0" for k in range(100)]
    (folder / "slow" / "log.csv").write_text(
        "\n".join(["timestamp,observation.x,observation.y,action_0", *lines]) + "\n"
    )
    return import_files(folder / "slow", "local/slow", episodes_by="file", progress=False)


def hostile() -> rlds_cli.Dataset:
    name = HOSTILE.replace("/", "∕")
    one = {
        "observation": {name: np.zeros((9, 2), np.float32), "huge": np.zeros((9, 900), np.float32)},
        "action": np.zeros((8, 1), np.float32),
        "task_at": [HOSTILE, "x" * 100_000, *[HOSTILE] * 6],
    }
    return rlds_cli.create("local/hostile", [one], progress=False)


def visit(
    browser: chromium.Browser, viewer: Viewer, key: int = 0, number: int = 0, *, width: int = 1280, **query: object
) -> chromium.Page:
    """Open an episode, and wait until its row and curves are shown."""
    asked = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
    page = browser.visit(f"{viewer.address}#/e/~{key}/{number}?{asked}", width=width)
    page.wait_for("document.querySelector('.ep')")
    page.wait_for(f"{CANVASES}.every(c => 'row' in c.dataset)")
    return page


def row(page: chromium.Page) -> int:
    return int(page.run(f"{SLIDER}.ariaValueNow"))


def press(page: chromium.Page, keys: str) -> None:
    """Press keys one after the other: letters and signs, or a name such as ``ArrowRight``."""
    codes = {",": 188, ".": 190, "+": 187, "-": 189, "?": 191, "ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35}
    for key in [keys] if keys in codes else keys:
        page.key(key, codes.get(key, ord(key.upper()[0])))


def go(page: chromium.Page, to: int, rows: int) -> None:
    """Click on the time line."""
    x, y, width = (page.run(f"{SLIDER}.getBoundingClientRect().{side}") for side in ("left", "top", "width"))
    for kind in ("pressed", "released"):
        page.mouse(kind, x + (to + 0.5) * width / rows, y + 15)


def burnt(page: chromium.Page) -> dict[str, int]:
    """The numbers that the canvases show, by camera."""
    found = page.run(f"Object.fromEntries({CANVASES}.map(c => [c.ariaLabel, {films.READ}(c)]))")
    assert isinstance(found, dict)
    return {name.rpartition("/")[2]: number for name, number in found.items() if "depth" not in name}


# -- frames


@pytest.mark.slow
@pytest.mark.parametrize(("key", "rows", "numbers"), [(0, 121, 1), (1, 54, 1), (2, 100, 3)])
def test_the_frame_on_the_page_is_the_frame_of_the_row(
    browser: chromium.Browser, viewer: Viewer, key: int, rows: int, numbers: int
) -> None:
    page = visit(browser, viewer, key)
    first = 37 if key == 1 else 0
    seen = np.random.default_rng(key).permutation(rows)[:100].tolist()
    for at in seen:
        go(page, at, rows)
        page.wait_for(f"{CANVASES}.every(c => c.dataset.row === '{at}')")
        assert row(page) == at
        assert set(burnt(page).values()) == {first + numbers * at}, at
    notes = page.run(
        "[...document.querySelectorAll('.cam')].map(f => [f.querySelector('canvas').ariaLabel, "
        "f.querySelector('.cam-note').textContent])"
    )
    decoded = {name.rpartition("/")[2] for name, note in notes if note}
    assert decoded == (set() if key == 2 else {"hevc"}), notes


@pytest.mark.slow
@pytest.mark.parametrize("speed", ["1", "4"])
def test_it_plays_and_every_frame_is_that_of_its_row(browser: chromium.Browser, viewer: Viewer, speed: str) -> None:
    page = visit(browser, viewer)
    page.run(
        "(() => { globalThis.seen = []; let last = -1; const look = () => {"
        f" const row = Number({SLIDER}.ariaValueNow);"
        f" if (row !== last) seen.push([row, ...{CANVASES}.filter(c => !/depth/.test(c.ariaLabel))"
        f" .flatMap(c => [Number(c.dataset.row), {films.READ}(c)])]); last = row; requestAnimationFrame(look); }};"
        " look(); })()"
    )
    page.run(
        f"(() => {{ const s = document.querySelector('[aria-label=speed]'); s.value = '{speed}';"
        " s.dispatchEvent(new Event('change')); })()"
    )
    press(page, " ")
    page.wait_for(f"{SLIDER}.ariaValueNow === '{STEPS}'")
    page.wait_for("document.querySelector('.tr-play').ariaLabel.startsWith('play')")
    shown = page.run("seen")
    assert len(shown) > 5
    for at, *cameras in shown:
        assert at >= 0
        for told, read in zip(cameras[::2], cameras[1::2], strict=True):
            assert told == read  # the page knows which frame it shows
            assert at == told if speed == "1" else 0 <= at - told <= 6  # 50 ms of 120 rows a second


def test_a_video_plays(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer, 2)
    assert page.run("document.querySelectorAll('.cam video').length") == 1
    press(page, "i ")  # a loop: it does not come to its end meanwhile
    page.wait_for(f"Number({SLIDER}.ariaValueNow) > 12")
    press(page, "k")
    at = row(page)
    page.wait_for(f"{CANVASES}[0].dataset.row === '{at}'")
    assert burnt(page) == {"cam": 3 * at}
    assert page.complaints == []


def test_a_frame_that_is_slow_to_come_after_a_seek_is_awaited(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer, 2)
    found = page.run(
        """(async () => {
          const { Stream } = await import(new URL('pages/stream.js', document.baseURI));
          const stream = new Stream('', [0, 0.1, 0.2], () => {}, () => {});
          stream.video = Object.assign(new EventTarget(), { pause() {}, load() {}, remove() {}, removeAttribute() {} });
          const seeked = () => setTimeout(() => stream.video.dispatchEvent(new Event('seeked')), 5);
          Object.defineProperty(stream.video, 'currentTime', { set: seeked });
          stream.keep = () => {};
          setTimeout(() => {
            stream.presented++;
            stream.kept.push({ k: 1, frame: { close() {} } });
            stream.seen?.();
          }, 1000);
          const found = await stream.seek(1);
          stream.close();
          return found;
        })()"""
    )
    assert found is True


def test_a_browser_that_shows_other_frames_first_is_asked_again(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer, 2)
    sought, found = page.run(
        """(async () => {
          const { Stream } = await import(new URL('pages/stream.js', document.baseURI));
          const stream = new Stream('', [0, 0.1, 0.2], () => {}, () => {});
          const sought = [];
          stream.video = Object.assign(new EventTarget(), { pause() {}, load() {}, remove() {}, removeAttribute() {} });
          const seeked = (time) => {
            sought.push(Math.floor(time * 10));
            setTimeout(() => {
              stream.video.dispatchEvent(new Event('seeked'));
              stream.presented++; // the frame of before
            }, 5);
            if (sought.length === 3) setTimeout(() => stream.kept.push({ k: 1, frame: { close() {} } }), 1000);
          };
          Object.defineProperty(stream.video, 'currentTime', { set: seeked });
          stream.keep = () => {};
          const found = await stream.seek(1);
          stream.close();
          return [sought, found];
        })()"""
    )
    assert found is True and sought == [1, 1, 1]


def test_a_video_that_has_to_play_goes_to_no_row_that_was_asked_for_before(
    browser: chromium.Browser, viewer: Viewer
) -> None:
    page = visit(browser, viewer, 2)
    went = page.run(
        """(async () => {
          const { Stream } = await import(new URL('pages/stream.js', document.baseURI));
          const went = [];
          const failed = (why) => why.includes('another frame') && went.push('failed');
          const stream = new Stream('', [0, 0.1, 0.2], () => went.push('arrived'), failed);
          stream.video = Object.assign(new EventTarget(), { pause() {}, load() {}, remove() {}, removeAttribute() {} });
          stream.video.play = async () => went.push('plays');
          stream.presented = 1;
          const seeked = (time) => {
            went.push(Math.floor(time * 10));
            setTimeout(() => {
              if (time < 0.1) stream.kept.push({ k: 0, frame: { close() {} } });
              stream.presented++;
              stream.video.dispatchEvent(new Event('seeked'));
            }, 5);
          };
          Object.defineProperty(stream.video, 'currentTime', { set: seeked });
          stream.keep = () => {};
          stream.request(2);
          await new Promise((done) => setTimeout(done, 50));
          await stream.play(0, 1, (row) => row / 10);
          await new Promise((done) => setTimeout(done, 1500));
          stream.close();
          return went;
        })()"""
    )
    assert went == [2, 0, "plays"], went


def test_a_player_asks_another_source_for_the_row_that_it_awaits(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer, 2)
    asked = page.run(
        """(async () => {
          const { Player } = await import(new URL('pages/player.js', document.baseURI));
          const shown = [], there = new Set();
          const source = (asked) => ({ period: 0, play: asked, request: asked, stop() {}, ahead() {} });
          const camera = { source: source(() => {}), has: () => true, ready: (row) => there.has(row), show() {} };
          camera.draw = (row) => shown.push(row);
          const cameras = { parts: [camera], show() {} };
          const player = new Player({ rows: 9, time: { rate: 30 }, cameras, told() {} });
          player.row = 4;
          player.play();
          camera.source = source((row) => there.add(row));
          await new Promise((done) => setTimeout(done, 500));
          player.close();
          return shown[0];
        })()"""
    )
    assert asked == 4


def test_pictures_that_are_slow_stop_no_videos(browser: chromium.Browser, viewer: Viewer) -> None:
    """One step takes the pictures longer than the episode, and videos have no more than five frames ahead."""
    page = visit(browser, viewer, 2)
    shown = page.run(
        """(async () => {
          const { Player } = await import(new URL('pages/player.js', document.baseURI));
          const shown = [];
          let last = 0;
          const base = { stop() {}, request() {}, ahead() {}, play() {} };
          const video = { ...base, period: 0, ahead: (row) => (last = row + 4), next: (row) => row + 1, leave() {} };
          const part = (source, ready) => ({ source, ready, has: () => true, draw() {}, show() {} });
          const parts = [part({ ...base, period: 5000 }, () => true), part(video, (row) => row <= last)];
          const told = (what) => what === 'row' && shown.push(player.row);
          const player = new Player({ rows: 30, time: { rate: 30 }, cameras: { parts, show() {} }, told });
          player.play(1, 4);
          const end = performance.now() + 20000;
          while (player.playing && performance.now() < end) await new Promise((done) => setTimeout(done, 20));
          player.close();
          return shown;
        })()"""
    )
    assert shown[-1] == 29 and shown == sorted(shown), shown


def test_a_video_that_ends_without_its_last_frames_goes_to_them(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer, 2)
    went, shown = page.run(
        """(async () => {
          const { Player } = await import(new URL('pages/player.js', document.baseURI));
          const { Stream } = await import(new URL('pages/stream.js', document.baseURI));
          const went = [], shown = [];
          const failed = (why) => why.includes('another frame') && went.push('failed');
          const stream = new Stream('', [0, 0.1, 0.2], () => {}, failed);
          stream.video = new EventTarget();
          Object.assign(stream.video, { paused: true, ended: false, pause() {}, load() {}, remove() {} });
          stream.video.removeAttribute = () => {};
          stream.video.play = async () => {
            if (stream.video.ended) went.push('again');
            stream.video.ended = true; // the browser drops all other frames
          };
          const seek = (time) => {
            const k = Math.floor(time * 10);
            went.push(k);
            stream.video.ended = false;
            setTimeout(() => {
              stream.kept.push({ k, frame: { close() {} } });
              stream.at = k;
              stream.video.dispatchEvent(new Event('seeked'));
            }, 20);
          };
          Object.defineProperty(stream.video, 'currentTime', { set: seek });
          stream.keep = () => {};
          const camera = { source: stream, has: () => true, ready: (row, slack) => stream.ready(row, slack) };
          Object.assign(camera, { draw() {}, show() {} });
          const told = (what) => what === 'row' && shown.push([player.row, stream.ready(player.row)]);
          const cameras = { parts: [camera], show() {} };
          const player = new Player({ rows: 3, time: { rate: 10 }, cameras, told });
          player.play();
          const end = performance.now() + 20000;
          while (player.playing && performance.now() < end) await new Promise((done) => setTimeout(done, 20));
          player.close();
          stream.close();
          return [went, shown];
        })()"""
    )
    assert went == [0, 1, 2], (went, shown)
    assert shown == [[0, True], [1, True], [2, True]]  # the row changes once its frame is there


def test_a_damaged_frame_says_why(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer, 0, 2, step=5)
    why = "[...document.querySelectorAll('.cam-why:not([hidden])')].map(p => p.textContent).join()"
    assert "jpeg" in page.wait_for(why)
    press(page, ".")
    page.wait_for(f"{CANVASES}.every(c => c.dataset.row === '6')")
    assert page.run(why) == ""


def test_depth_is_shown_in_a_range(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer)
    canvas = f"{CANVASES}.find(c => /depth/.test(c.ariaLabel))"
    pixel = f"(c => [...c.getContext('2d').getImageData(c.width / 2, c.height / 2, 1, 1).data].slice(0, 3))({canvas})"
    page.wait_for(f"{pixel}[0] < 40")  # near is dark
    page.run("(i => { i.value = i.min; i.dispatchEvent(new Event('input')); })(document.querySelector('.depth input'))")
    page.wait_for(f"{pixel}[0] > 40")
    assert len(set(page.run(pixel))) == 1
    page.run("document.querySelector('.depth [type=checkbox]').click()")
    page.wait_for(f"new Set({pixel}).size === 3")


# -- keys and links


def test_keys(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer, step=40)
    for keys, expected in {".": 41, ",,": 39, "ArrowRight": 40, "ArrowLeft": 39, "End": 120, "Home": 0}.items():
        press(page, keys)
        assert row(page) == expected, keys
    page.key("ArrowRight", 39, shift=True)
    assert row(page) == 30  # a second
    press(page, "i")
    press(page, "...o")
    loop = "document.querySelector('.tr-loop:not([hidden])')?.textContent ?? ''"
    assert "30–33" in page.run(loop)
    press(page, "x")
    assert page.run(loop) == ""
    press(page, "?")
    page.wait_for("document.querySelector('dialog').open")
    page.key("Escape", 27)
    assert not page.run("document.querySelector('dialog').open")
    press(page, "j")
    page.wait_for(f"Number({SLIDER}.ariaValueNow) < 25")
    press(page, "i")  # a loop: it does not come to its end meanwhile
    press(page, "l")
    at = row(page)
    page.wait_for(f"Number({SLIDER}.ariaValueNow) > {at}")
    press(page, "k")
    assert page.run("document.querySelector('.tr-play').ariaLabel") == "play (space)"
    assert page.complaints == []


def test_a_loop_is_played_again(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer, 2, step=20)
    press(page, "i....o")
    press(page, " ")
    page.run(f"(() => {{ globalThis.rows = []; setInterval(() => rows.push(Number({SLIDER}.ariaValueNow)), 5); }})()")
    page.wait_for("rows.filter((r, k) => k && r < rows[k - 1]).length >= 3")  # a busy machine leaves out rows
    assert page.run("rows.every(r => r >= 20 && r <= 24)")


def test_a_loop_is_played_again_where_the_browser_drops_its_frames(browser: chromium.Browser, viewer: Viewer) -> None:
    """The browser drops the frames of the loop while it plays, and shows those behind it: the player seeks each row."""
    page = visit(browser, viewer, 2, step=20)
    page.run("""(real => {
        HTMLVideoElement.prototype.requestVideoFrameCallback = function (told) {
            return real.call(this, (now, frame) => {
                const dropped = !this.paused && frame.mediaTime > 2.05 && frame.mediaTime < 2.75;
                if (dropped) this.requestVideoFrameCallback(told);
                else told(now, frame);
            });
        };
    })(HTMLVideoElement.prototype.requestVideoFrameCallback)""")
    press(page, "i....o")
    press(page, " ")
    page.run(f"(() => {{ globalThis.rows = []; setInterval(() => rows.push(Number({SLIDER}.ariaValueNow)), 5); }})()")
    page.wait_for("rows.filter((r, k) => k && r < rows[k - 1]).length >= 3")
    assert set(page.run("rows")) == {20, 21, 22, 23, 24}


def test_the_address_has_the_step_and_leads_to_it(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer, step=33)
    assert row(page) == 33
    entries = page.run("history.length")
    press(page, ".....")
    page.wait_for("new URLSearchParams(location.hash.split('?')[1]).get('step') === '38'")
    assert page.run("history.length") == entries
    assert page.run(f"{SLIDER}.ariaValueText") == "step 38 of 120, 1.27 s"


def test_lines_that_do_the_same(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer, 0, 1)
    for button, line in {
        "copy command": "rlds inspect local/films#v1 --episode 1",
        "copy Python": 'ds = rlds_cli.open_dataset("local/films#v1")\nds.episode(1)',
    }.items():
        page.run(f"[...document.querySelectorAll('button')].find(b => b.textContent === '{button}').click()")
        page.wait_for(f"document.getElementById('said').textContent.includes({json.dumps(line)})")


@pytest.mark.parametrize("place", ["", "#/d/~0", "#/e/~0/0"])
def test_a_page_is_not_large(browser: chromium.Browser, viewer: Viewer, place: str) -> None:
    page = browser.visit(viewer.address + place)
    page.wait_for("document.querySelector('main > div > *')")
    entries = "performance.getEntriesByType('resource').filter(e => e.name.includes('/pages/'))"
    assert page.run(f"{entries}.reduce((sum, e) => sum + e.decodedBodySize, 0)") < 120_000


def test_the_next_episode_is_the_next_of_the_table(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer, 0, 2, where="length > 0", desc=1, at=0)
    assert "1 of 3 that match" in page.run("document.querySelector('header.ep-head').textContent")
    press(page, "n")
    page.wait_for("document.querySelector('h1')?.textContent === 'Episode 1'")
    press(page, "n")
    page.wait_for("document.querySelector('h1')?.textContent === 'Episode 0'")
    press(page, "p")
    page.wait_for("document.querySelector('h1')?.textContent === 'Episode 1'")
    table = page.run("document.querySelector('.ep-title a.soft').getAttribute('href')")
    assert table.startswith("#/d/~0?") and "desc=1" in table and "at=1" in table
    assert page.run("document.querySelector('#top a.id').getAttribute('href')") == table


def test_values_at_a_step_are_those_of_the_archive(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer, step=77)
    page.wait_for("/step 77/.test(document.querySelector('.st summary').textContent)")
    cells = json.loads(
        page.run(
            "JSON.stringify([...document.querySelectorAll('.st tr')].map(r => [...r.cells].map(c => c.textContent)))"
        )
    )
    values = dict(cells)
    assert values["subtask"] == "<b>lift</b>" and float(values["next/reward"]) == 77
    told = [float(v) for v in values["observation/state"].split()[1::2]]
    np.testing.assert_allclose(told, np.sin(7.7 + np.arange(3)), rtol=1e-6)


def test_values_follow_while_it_plays(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer)
    page.wait_for("/step 0/.test(document.querySelector('.st summary').textContent)")
    rewards = "[...document.querySelectorAll('.st tr')].find(r => r.cells[0].textContent === 'next/reward').cells[1]"
    page.run(
        f"(() => {{ const value = {rewards}; globalThis.seen = new Map(); const look = () => {{"
        " seen.set(document.querySelector('.st summary').textContent, value.textContent);"
        " requestAnimationFrame(look); }; look(); })()"
    )
    press(page, " ")
    page.wait_for("seen.size > 5")
    press(page, "End")
    page.wait_for("seen.get('All values of the final observation') === '–'")
    played = {caption.rpartition(" ")[2]: value for caption, value in page.run("[...seen]")[:-1]}
    assert played == {step: step for step in played}  # of the same step, each of them
    asked = [url for url in page.requests if "api/step" in url]
    assert any("count=" in url and "count=1&" not in f"{url}&" for url in asked)


# -- curves


def test_values_under_the_pointer(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer)
    plot = "document.querySelector('article[aria-label=\"observation/state\"] .cv-plot').getBoundingClientRect()"
    x, y, width = (page.run(f"{plot}.{side}") for side in ("left", "top", "width"))
    legend = LEGEND % "observation/state"
    for at, said in ((0, "step 0 of"), (60, "step 60 of"), (120, "final observation")):
        page.mouse("moved", x + 48 + (at + 0.5) * (width - 48) / (STEPS + 1), y + 20)
        page.wait_for(f"/{said}/.test(document.querySelector('.cv-under').textContent)")
        found = [float(v) for v in page.wait_for(f"(v => v.every(t => !/[–…]/.test(t)) && v)({legend})")]
        np.testing.assert_allclose(found, np.sin(at / 10 + np.arange(3)), atol=1e-4)


def test_zoom_by_drag_keys_and_wheel(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer, step=60)
    plot = "document.querySelector('.cv-plot').getBoundingClientRect()"
    x, y, width = (page.run(f"{plot}.{side}") for side in ("left", "top", "width"))
    part = "(w => w.hidden ? 100 : parseFloat(w.style.width))(document.querySelector('.tl-window'))"
    at = [x + 48 + k * (width - 48) / (STEPS + 1) for k in (30.5, 59.5)]
    page.mouse("pressed", at[0], y + 20)
    page.mouse("moved", (at[0] + at[1]) / 2, y + 20, buttons=1)
    page.mouse("moved", at[1], y + 20, buttons=1)
    page.mouse("released", at[1], y + 20)
    assert page.run(part) == pytest.approx(100 * 30 / 121, abs=0.01)
    assert row(page) == 60  # selecting a range is no click
    press(page, "-")
    assert page.run(part) == pytest.approx(100 * 60 / 121, abs=0.01)
    press(page, "0")
    assert page.run(part) == 100
    page.mouse("wheel", x + width / 2, y + 20, deltaX=0, deltaY=-40, modifiers=2)
    page.wait_for(f"{part} < 90")
    press(page, "0")
    page.mouse("pressed", at[0], y + 20)
    page.mouse("released", at[0], y + 20)
    assert row(page) == 30


def test_the_legend_and_the_list_of_fields(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer)
    items = "[...document.querySelectorAll('article[aria-label=action] .lg-item')]"
    pressed = f"{items}.map(i => i.ariaPressed).join()"
    page.run(f"{items}[1].click()")
    assert page.run(pressed) == "true,false,true"
    page.run(f"{items}[2].dispatchEvent(new Event('dblclick'))")
    assert page.run(pressed) == "false,false,true"
    page.run("document.querySelector('[aria-label=\"all elements of action\"]').click()")
    assert page.run(pressed) == "true,true,true"
    cards = "[...document.querySelectorAll('.cv-card')].map(c => c.ariaLabel)"
    assert "action" in page.run(cards)
    page.run("document.querySelector('[aria-label=\"hide action\"]').click()")
    assert "action" not in page.run(cards)
    assert "action" not in page.run("new URLSearchParams(location.hash.split('?')[1]).get('fields')")
    page.run(
        "(s => { s.value = 'act'; s.dispatchEvent(new Event('input')); })(document.querySelector('.ch [type=search]'))"
    )
    assert page.run("[...document.querySelectorAll('.ch-row:not([hidden])')].map(r => r.textContent)") == ["action3"]
    page.run("document.querySelector('.ch-row:not([hidden]) input').click()")
    assert "action" in page.run(cards)


def test_episodes_that_are_left_leave_nothing(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer)
    page.call("Performance.enable")
    counts = []
    for turn in range(8):
        number = turn % 2
        page.run(f"location.hash = '#/e/~0/{number}?step={turn}'")
        page.wait_for(f"document.querySelector('h1')?.textContent === 'Episode {number}'")
        page.wait_for(f"{CANVASES}.every(c => 'row' in c.dataset)")
        page.call("HeapProfiler.collectGarbage")
        counts.append({m["name"]: m["value"] for m in page.call("Performance.getMetrics")["metrics"]})
    for name in ("Nodes", "JSEventListeners"):
        assert counts[-1][name] < 2 * counts[1][name], name


# -- batches of a loader


def test_batches_of_a_loader(browser: chromium.Browser, viewer: Viewer, viewed: rlds_cli.Dataset) -> None:
    chosen = ["observation/state", "observation/images/jpeg", "action", "subtask"]
    loader = Loader(viewed, 4, window=Slice(12, after=11), sampler=Sequential(), fields=chosen)
    last = len(loader) - 1
    with Server(loader=loader) as server:
        page = browser.visit(f"{server.address}#/b/{last}")
        page.wait_for("document.querySelectorAll('.ba-cards article').length === 4")
        assert page.run("document.querySelectorAll('.ba-cards canvas').length") == 8
        page.wait_for("[...document.querySelectorAll('.ba-strip img')].slice(0, 6).every(i => i.naturalWidth)")
        padded = "[...document.querySelectorAll('article')].map(a => a.querySelectorAll('.ba-pad').length)"
        assert page.run(padded) == [8, 9, 10, 11]  # the last four steps of an episode begin the last four slices
        assert "<b>lift</b>" in page.run("document.querySelector('article').textContent")
        press(page, "p")
        page.wait_for(f"document.querySelector('h1')?.textContent === 'Batch {last - 1}'")
        page.wait_for(f"{padded}.join() === '4,5,6,7'")
        assert page.complaints == []


# -- every page


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_markup_is_text(browser: chromium.Browser, viewer: Viewer, width: int, dark: bool) -> None:
    page = visit(browser, viewer, 3, width=width)
    page.media(dark=dark)
    page.wait_for("document.querySelectorAll('.cv-card').length >= 2")
    time.sleep(0.3)  # what it asks for after that would hurt now
    assert page.run("typeof globalThis.hurt") == "undefined"
    assert page.run("document.querySelectorAll('main img, main script').length") == 0
    assert HOSTILE in page.run("document.querySelector('.st-texts').textContent")
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.complaints == []


def test_controls_have_names(browser: chromium.Browser, viewer: Viewer) -> None:
    page = visit(browser, viewer)
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "slider", "combobox", "checkbox", "link", "searchbox", "image", "DisclosureTriangle"}
    named = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in tree if not n.get("ignored")]
    assert {role for role, name in named if role in roles and not name.strip()} == set()
    assert ("slider", "step") in named
