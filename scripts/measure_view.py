"""Measure the viewer in Chromium: ``python scripts/measure_view.py [PART...] [--minutes 20]``; prints a table.

start     from the command to the first painted page: of a dataset, and of a home of 1,000 datasets
lists     `rlds list --local` and `rlds du` of that home: seconds of the processor
table     a filter and an order of 1,000,000 episodes, until the page shows them: of numbers, and of texts
curves    an episode of 1,000,000 steps and 16 fields, of a dataset of 1e9 steps, until it is drawn; the server's memory
video     a seek in a stored video, and one frame on
cameras   three cameras of 640x480 at 30 Hz for a minute: frames that are shown in time, and at which row
clicks    minutes of clicking: growth of the memory of the server and of the page
decisions 1,000 decisions by keyboard, 60 ms apart: until they are shown; how many a kill -9 loses
size      bytes of the scripts and the style of the largest page

Each figure stands beside the most that it may be. Datasets lie in a home below the temporary directory, which goes in
the end; --home keeps one.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("tests/support", "benchmarks")]

import chromium  # noqa: E402

import rlds_cli  # noqa: E402

RUNS = 5
DATASETS, EPISODES, STEPS, FIELDS = 1_000, 1_000_000, 1_000_000, 16
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What was measured, in a unit, beside the most that it may be."""

    what: str
    value: float
    most: float
    unit: str

    def __str__(self) -> str:
        reached = "" if self.value <= self.most else "   missed"
        return f"{self.what:70} {self.value:9.3g} {self.unit:4} at most {self.most:g}{reached}"


Figures = Iterator[Figure]
HOME = Path()


def main() -> int:
    """Print the figures; 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--home", type=Path, help="keep the datasets here")
    parser.add_argument("--minutes", type=float, default=20, help="of the clicks")
    given = parser.parse_args()
    if unknown := set(given.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    if chromium.find() is None:
        parser.error(f"Chromium is not installed ({', '.join(chromium.NAMES)})")
    global HOME, MINUTES
    MINUTES = given.minutes
    missed = 0
    with tempfile.TemporaryDirectory(prefix="measure-view-") as temporary:
        HOME = given.home or Path(temporary)
        for name in given.parts or PARTS:
            for figure in PARTS[name]():
                print(figure, flush=True)
                missed += figure.value > figure.most
    return min(missed, 1)


MINUTES = 20.0


# -- the viewer, and a browser


@contextmanager
def viewer(*words: str, home: Path | None = None) -> Iterator[tuple[str, int]]:
    """Run `rlds view` and give the address that it prints, and the number of its process."""
    command = [sys.executable, "-m", "rlds_cli", "view", "--no-open", "--home", str(home or HOME), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


@contextmanager
def browser() -> Iterator[chromium.Browser]:
    """Start a browser that has shown a page already."""
    path = chromium.find()
    assert path is not None
    with chromium.Browser(path) as found:
        found.visit("about:blank")
        yield found


def memory(pid: int) -> int:
    """Bytes that a process holds, without files that it has mapped."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", text)[1]) << 10  # type: ignore[index]


def seconds(call: Callable[[], object]) -> float:
    """The seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def processor(*words: str) -> float:
    """The seconds of the processor that a command takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "rlds_cli", *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# -- datasets


def small(id: str, home: Path) -> None:
    """Ten short episodes."""
    rng = np.random.default_rng(0)
    rlds_cli.create(id, [{"observation": rng.random((9, 3)), "action": rng.random((8, 1))}] * 10, home=home)


def thousand() -> Path:
    """A home of 1,000 datasets."""
    home = HOME / "thousand"
    for k in range(DATASETS):
        if not (home / "datasets" / "local" / f"rig-{k:04}").exists():
            small(f"local/rig-{k:04}", home)
    return home


def million() -> str:
    """A million episodes of a step, with a label of numbers and one of texts."""
    id = "local/million"
    if not (HOME / "datasets" / id).exists():
        rng = np.random.default_rng(0)
        rewards = rng.normal(size=(4096, 1)).astype(np.float32)
        one = {"observation": np.zeros((2, 1), np.float32), "action": np.zeros((1, 1), np.float32)}
        made = ({**one, "next": {"reward": rewards[k % 4096]}} for k in range(EPISODES))
        ds = rlds_cli.create(id, made, home=HOME)
        tasks = np.array([f"put the {noun} on the {place}" for noun in ("cup", "ring", "book") for place in "abcdefgh"])
        ds.label({"grade": rng.random(EPISODES), "operator": tasks[rng.integers(0, len(tasks), EPISODES)]})
    return id


def long() -> str:
    """A thousand episodes of a million steps and 16 fields: holes, but for the last one."""
    import growing  # of the benchmarks

    id = "local/long"
    growing.HOME = HOME
    growing.FIELDS = (
        *(rlds_cli.ted.Field(f"observation/joint_{k:02}", "float32", (), "both", "array") for k in range(FIELDS)),
        *(f for f in growing.FIELDS if f.name.startswith(("next/terminated", "next/truncated"))),
    )
    growing.sparse(id, 1_000, length=STEPS, numbers=1)
    return id


# -- the parts


def start() -> Figures:
    """Measure from the command to the first painted page."""
    small_home, large = HOME / "one", thousand()
    if not (small_home / "datasets").exists():
        small("local/rig", small_home)
    for what, home, words, most in (
        ("rlds view ID until the page is painted", small_home, ("local/rig",), 1.5),
        ("the same of a home of 1,000 datasets", large, (), 2.0),
    ):
        found = []
        with browser() as tabs:
            for _ in range(RUNS):
                begin = time.perf_counter()
                with viewer(*words, home=home) as (address, _pid):
                    page = tabs.visit(address)
                    page.wait_for("document.querySelector('#main > *')?.childElementCount > 0")
                    found.append(time.perf_counter() - begin)
        yield Figure(what=what, value=statistics.median(found), most=most, unit="s")


def lists() -> Figures:
    """Measure the commands that list a home."""
    home = thousand()
    for words in (("list", "--local"), ("du",)):
        cost = statistics.median(processor(*words, "--home", str(home)) for _ in range(3))
        yield Figure(what=f"rlds {' '.join(words)} of 1,000 datasets, processor", value=cost, most=1.0, unit="s")


FIRST_ROW = "['.tb-count', '.tb-row:not(.tb-wait)'].map(s => document.querySelector(s)?.textContent).join('')"
TIMED = """new Promise(done => {
  const before = FIRST, start = performance.now();
  ACT;
  const look = () => FIRST && FIRST !== before ? done(performance.now() - start) : requestAnimationFrame(look);
  requestAnimationFrame(look);
})"""


def table() -> Figures:
    """Measure a filter and an order of a million episodes, until the page shows them."""
    id = million()

    def filtered(where: str) -> str:
        box = "document.querySelector('.tb-where')"
        return f"{box}.value = {where!r}; {box}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Enter'}}))"

    def sorted_by(name: str) -> str:
        return f"document.querySelector('[data-column={name}] .tb-sort').click()"

    numbers = [sorted_by("grade"), sorted_by("grade"), sorted_by("total_reward"), sorted_by("total_reward")]
    numbers += [filtered(f"grade > {k / 10}") for k in range(1, 6)]
    numbers += [filtered(f"grade < quantile(grade, 0.{k})") for k in range(1, 6)]
    texts = [sorted_by("operator"), filtered("operator.endswith('b')"), sorted_by("operator")]
    texts += [filtered(f"'{noun}' in operator") for noun in ("ring", "cup", "book")]
    with viewer() as (address, _pid), browser() as tabs:
        page = tabs.visit(f"{address}#/d/{quote(id, safe='')}")
        page.wait_for("document.querySelector('[data-column=operator] .hg-value')")
        for what, acts, most in (
            ("1,000,000 episodes by numbers, median", numbers, 200),
            ("the same by texts, the first time", texts[:1], 500),
            ("the same by texts, then, median", texts[1:], 200),
        ):
            found = []
            for act in acts:
                found.append(page.run(TIMED.replace("FIRST", FIRST_ROW).replace("ACT", act)))
                time.sleep(0.5)  # the histograms follow
            yield Figure(what=what, value=statistics.median(found), most=most, unit="ms")


DRAWN = (
    "[...document.querySelectorAll('.cv-card canvas')].length === COUNT && "
    "[...document.querySelectorAll('.cv-card canvas')].every(c => /from -/.test(c.ariaLabel ?? ''))"
)
CANVASES = "[...document.querySelectorAll('.cam canvas')]"
SLIDER = "document.querySelector('[role=slider]')"


def curves() -> Figures:
    """Measure how fast an episode of a million steps is drawn: the page is there, and shows another one."""
    id = long()
    fields = ",".join(quote(f"observation/joint_{k:02}", safe="") for k in range(FIELDS))
    with browser() as tabs, viewer(id) as (address, pid):
        address = address.partition("#")[0]
        page = tabs.visit(f"{address}#/e/{quote(id, safe='')}/997?fields={quote(fields)}", height=2600)
        page.wait_for(DRAWN.replace("COUNT", str(FIELDS)))
        before, found = memory(pid), []
        for k in range(20):
            target = f"#/e/{quote(id, safe='')}/{998 + k % 2}?fields={quote(fields)}"
            found.append(
                page.run(
                    f"(async () => {{ const begin = performance.now(); location.hash = {target!r};"
                    " await new Promise(r => addEventListener('hashchange', r, {once: true}));"
                    f" while (!({DRAWN.replace('COUNT', str(FIELDS))})) await new Promise(requestAnimationFrame);"
                    " return performance.now() - begin; })()"
                )
            )
        slowest = float(np.percentile(found, 95))
        yield Figure(what="an episode of 1e6 steps and 16 fields, drawn, 95 %", value=slowest, most=250, unit="ms")
        grown = (memory(pid) - before) / MIB
        yield Figure(what="memory of the server for it", value=grown, most=150, unit="MiB")


def filmed(id: str, cameras: int, seconds: int) -> str:
    """An episode at 30 Hz with videos of 640x480."""
    if not (HOME / "datasets" / id).exists():
        import numbered_films

        rows = range(30 * seconds + 1)
        options = {"g": "30", "bf": "2", "preset": "veryfast"}
        views = {}
        for k in range(cameras):
            file = HOME / f"{id.replace('/', '-')}-{k}.mp4"
            numbered_films.film(file, rows, options=options, width=640, height=480, tint=30 * k)
            views[f"camera{k}"] = rlds_cli.Video(file)
        state = np.random.default_rng(0).normal(size=(len(rows), 7)).astype(np.float32)
        one = {"observation": {"state": state, **views}, "action": state[1:]}
        rlds_cli.create(id, [one], fps=30, home=HOME)
    return id


def opened(tabs: chromium.Browser, address: str, id: str, cameras: int) -> chromium.Page:
    """Show the first episode of a dataset, and wait until its cameras do."""
    page = tabs.visit(f"{address.partition('#')[0]}#/e/{quote(id, safe='')}/0")
    page.wait_for(f"{CANVASES}.length === {cameras} && {CANVASES}.every(c => c.dataset.row === '0')")
    return page


def video() -> Figures:
    """Measure seeks in a stored video, and steps of a frame."""
    id = filmed("local/filmed", 1, 60)
    with browser() as tabs, viewer(id) as (address, _pid):
        page = opened(tabs, address, id, 1)
        left, top, width = (page.run(f"{SLIDER}.getBoundingClientRect().{side}") for side in ("left", "top", "width"))
        seeks = []
        for row in np.random.default_rng(0).integers(0, 1801, 40).tolist():
            begin = time.perf_counter()
            for kind in ("pressed", "released"):
                page.mouse(kind, left + (row + 0.5) * width / 1801, top + 15)
            page.wait_for(f"{CANVASES}[0].dataset.row === {SLIDER}.ariaValueNow")
            seeks.append(1000 * (time.perf_counter() - begin))
        yield Figure(what="a seek in a stored video, median", value=statistics.median(seeks), most=300, unit="ms")
        steps = []
        for _ in range(40):
            begin = time.perf_counter()
            row = int(page.run(f"{SLIDER}.ariaValueNow"))
            page.key(".", 190)
            page.wait_for(f"{CANVASES}[0].dataset.row === '{min(1800, row + 1)}'")
            steps.append(1000 * (time.perf_counter() - begin))
        yield Figure(what="one frame on, median", value=statistics.median(steps), most=100, unit="ms")


def cameras() -> Figures:
    """Measure when the frames of three cameras are shown while a minute is played, and whether all are of one row."""
    id = filmed("local/three", 3, 60)
    with browser() as tabs, viewer(id) as (address, _pid):
        page = opened(tabs, address, id, 3)
        page.run(
            f"(() => {{ globalThis.seen = []; const canvases = {CANVASES}; let last = '';"
            " const look = (now) => { const rows = canvases.map(c => Number(c.dataset.row));"
            " if (rows.join() !== last) seen.push([now, ...rows]); last = rows.join(); requestAnimationFrame(look); };"
            " requestAnimationFrame(look); })()"
        )
        page.key(" ", 32)
        time.sleep(61)
        shown = np.array(page.run("seen"), np.float64)
    rows = np.diff(shown[:, 1])
    late = np.abs(np.diff(shown[:, 0]) - rows * 1000 / 30) > 50  # after a wait, the clock goes on from there
    apart = float((shown[:, 1:].max(axis=1) != shown[:, 1:].min(axis=1)).sum())
    missed = float(late.sum() + (rows - 1).clip(0).sum())
    yield Figure(what="rows that are late or left out, of 100", value=100 * missed / 1800, most=1, unit="")
    slower = (shown[-1, 0] - shown[0, 0]) / (shown[-1, 1] - shown[0, 1]) * 30 / 1000
    yield Figure(what="seconds for a second of the recording", value=slower, most=1.02, unit="s")
    yield Figure(what="moments at which cameras show different rows", value=apart, most=0, unit="")


def clicks() -> Figures:
    """Measure what the server and the page hold after many clicks, less what they held after the first two minutes."""
    id = filmed("local/filmed", 1, 60)
    if not (HOME / "datasets" / "local" / "rig").exists():
        small("local/rig", HOME)
    rng = np.random.default_rng(0)
    with browser() as tabs, viewer() as (address, pid):
        page = tabs.visit(address)

        def held() -> tuple[int, float]:
            page.call("HeapProfiler.collectGarbage")
            metrics = page.call("Performance.getMetrics")["metrics"]
            return memory(pid), next(m["value"] for m in metrics if m["name"] == "JSHeapUsedSize")

        page.call("Performance.enable")
        targets = ["#/", f"#/d/{quote(id, safe='')}", f"#/e/{quote(id, safe='')}/0", "#/d/local%2Frig"]
        targets += [f"#/e/local%2Frig/{k}" for k in range(10)]
        first, end, before = time.monotonic(), time.monotonic() + 60 * MINUTES, None
        while time.monotonic() < end:
            page.run(f"location.hash = {str(rng.choice(targets))!r}")
            time.sleep(0.3)
            for key in rng.choice([" ", ".", ",", "l", "j", "+", "-", "0"], 5).tolist():
                page.key(key, ord(key.upper()))
                time.sleep(0.05)
            if before is None and time.monotonic() - first > min(120, 6 * MINUTES):
                before = held()
        after = held()
    assert before is not None
    for what, k in (("server", 0), ("page", 1)):
        grown = (after[k] - before[k]) / MIB
        yield Figure(what=f"growth of the {what} in {MINUTES:g} minutes of clicks", value=grown, most=20, unit="MiB")


# When a key has come and when its decision is painted; what is shown is said by the buttons.
WATCHED = """(() => {
  globalThis.shown = [];
  globalThis.idle = [];
  const state = () => [...document.querySelectorAll('.dc-choice, .dc-do')].map(b => b.ariaPressed).join();
  addEventListener('keydown', e => {
    const before = state(), { key, timeStamp } = e;
    const look = () => requestAnimationFrame(() => {
      if (key !== 'w' && state() === before) return look();
      const { port1, port2 } = new MessageChannel();
      port2.onmessage = () => (key === 'w' ? idle : shown).push(performance.now() - timeStamp);
      port1.postMessage(0);
    });
    look();
  }, true);
})()"""
EACH = 0.06  # seconds between two decisions
KEYS, NONE = "y36a", "w"  # success, quality, a kind of failure, accept; and a key that does nothing


def decisions() -> Figures:
    """Measure how fast decisions are shown, and whether the journal has them."""
    id, count = "local/decided", 1000 // len(KEYS)
    rng = np.random.default_rng(0)
    if not (HOME / "datasets" / id).exists():
        one = ({"observation": rng.random((9, 3)), "action": rng.random((8, 1))} for _ in range(count))
        rlds_cli.create(id, one, home=HOME)
    shutil.rmtree(HOME / "decisions", ignore_errors=True)
    with browser() as tabs, viewer("--by", "ann", id) as (address, pid):
        page = tabs.visit(f"{address.partition('#')[0]}#/q/{quote(id, safe='')}")
        page.wait_for("document.querySelector('.dc-start:not(:disabled)')")
        page.run("document.querySelector('.dc-start').click()")
        page.run(WATCHED)
        for k in range(count):
            page.wait_for(
                f"document.querySelector('h1')?.textContent === 'Episode {k}' && document.querySelector('.dc')"
            )
            for key in NONE + KEYS:
                end = time.monotonic() + EACH
                page.key(key, ord(key.upper()))
                time.sleep(max(0.0, end - time.monotonic()))
        last = time.monotonic()
        page.wait_for(f"shown.length >= {count * len(KEYS)}")
        found, nothing = page.run("shown"), page.run("idle")
        time.sleep(max(0.0, last + 1 - time.monotonic()))
        os.kill(pid, signal.SIGKILL)
    for what, times in (("a decision by keyboard, shown", found), ("the frame after a key that does nothing", nothing)):
        yield Figure(what=f"{what}, median", value=statistics.median(times), most=50, unit="ms")
        yield Figure(what=f"{what}, 99 %", value=float(np.percentile(times, 99)), most=50, unit="ms")
    made = rlds_cli.open_dataset(id, home=HOME).decisions(home=HOME).made()
    kept = sum(len(d.labels) for d in made) + sum(d.do == "keep" for d in made)
    yield Figure(what="decisions of 1,000 lost by a kill -9", value=count * len(KEYS) - kept, most=0, unit="")


def size() -> Figures:
    """Measure the scripts and the style that a page fetches."""
    id = filmed("local/filmed", 1, 60)
    largest, named = 0, quote(id, safe="")
    places = [f"d/{named}", f"q/{named}", f"s/{named}", f"e/{named}/0", f"e/{named}/0?decide=table", f"c/{named}/0"]
    with browser() as tabs, viewer("--by", "ann") as (address, _pid):
        for target in ("#/", *(f"#/{place}" for place in places)):
            page = tabs.visit(address + target)
            time.sleep(1)
            of = "performance.getEntriesByType('resource').filter(e => /pages.*(js|css)$/.test(e.name))"
            largest = max(largest, page.run(f"{of}.reduce((sum, e) => sum + e.decodedBodySize, 0)"))
    yield Figure(what="scripts and style of the largest page", value=largest / 1000, most=120, unit="kB")


PARTS: dict[str, Callable[[], Figures]] = {
    "start": start,
    "lists": lists,
    "table": table,
    "curves": curves,
    "video": video,
    "cameras": cameras,
    "clicks": clicks,
    "decisions": decisions,
    "size": size,
}

if __name__ == "__main__":
    sys.exit(main())
