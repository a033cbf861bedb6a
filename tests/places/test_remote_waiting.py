"""Progress of work on a dataset at an address: what arrived, and how long it was waited for."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import numpy as np
import pytest
from test_remote_store import large

import rlds_cli
from rlds_cli.archives.exports import exporting
from rlds_cli.base.progress import Bars, Event
from rlds_cli.dataset import Dataset
from rlds_cli.loader import bench
from rlds_cli.look import checks
from rlds_cli.places.remote.fetching import Source, Take
from rlds_cli.share.pushing import push


def late(there: Dataset) -> Dataset:
    """Let every block come 20 ms late."""

    def read(file: int, start: int, length: int, take: Take, source: Source) -> None:
        time.sleep(0.02)
        source(file, start, length, take)

    there.store.files.blocks.prove(read)
    return there


def figures(beside: str) -> tuple[float, float]:
    """MiB that came, and seconds of waiting."""
    found = re.fullmatch(r"([\d.]+) (B|KiB|MiB) came, ([\d.]+) s waiting", beside)
    assert found, beside
    return float(found[1]) / {"B": 1 << 20, "KiB": 1 << 10, "MiB": 1}[found[2]], float(found[3])


@pytest.mark.thorough
def test_events_say_what_came_and_how_long_it_was_waited_for(tmp_path: Path) -> None:
    here = large()
    push(here.id, tmp_path / "store")
    there = late(rlds_cli.open_dataset(tmp_path / "store", home=tmp_path / "far"))
    events: list[Event] = []
    checks.check(there, progress=events.append)
    told = [figures(e.beside) for e in events if e.total is not None]
    stored = there.store.files.blocks.here * there.store.files.blocks.block / (1 << 20)
    assert told[0] == (0.0, 0.0) and told == sorted(told)
    assert told[-1][0] == pytest.approx(stored, abs=1.0) and told[-1][1] >= 0.02
    again: list[Event] = []
    checks.check(there, progress=again.append)
    assert {figures(e.beside) for e in again if e.total is not None} == {(0.0, 0.0)}, "all of it is here"
    checks.check(here, progress=again.append)
    assert not any(e.beside for e in again[len(again) // 2 :])


def test_work_in_other_processes_counts(tmp_path: Path) -> None:
    here = large()
    push(here.id, tmp_path / "store")
    there = rlds_cli.open_dataset(tmp_path / "store", home=tmp_path / "far")
    events: list[Event] = []
    exporting.export(there, "d4rl", tmp_path / "out", lossy=True, jobs=2, verify=False, progress=events.append)
    assert figures([e.beside for e in events if e.total is not None][-1])[0] >= 1.9


def test_bars_show_it() -> None:
    event = Event("a/b", "export", "", 4, 4, "steps", beside="1.0 MiB came, 2.0 s waiting")
    lines = io.StringIO()
    Bars(lines, live=False)(event)
    assert lines.getvalue() == "a/b  export   4 steps, 1.0 MiB came, 2.0 s waiting\n"
    screen = io.StringIO()
    with Bars(screen, live=True) as bars:
        bars(Event("a/b", "export", "", 1, 4, "steps", beside="1.0 MiB came, 0.5 s waiting"))
    assert "1.0 MiB came, 0.5 s waiting" in screen.getvalue()


@pytest.mark.slow
def test_bench_shows_it(tmp_path: Path) -> None:
    push(large().id, tmp_path / "store")
    there = rlds_cli.open_dataset(tmp_path / "store", home=tmp_path / "far")
    events: list[Event] = []
    bench.measure(there, seconds=0.2, progress=events.append)
    assert figures(events[-1].beside)[0] > 1 and np.all(np.diff([e.done for e in events]) >= 0)
