"""Pages in Chromium notice what happens to their datasets meanwhile: they grow, are replaced, removed, or come."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import numpy as np
import pytest
from viewer import Viewer, hold, viewing

import rlds_cli
from rlds_cli.loader import Loader, Sequential
from rlds_cli.view.server import Server

BROWSER = chromium.find()

pytestmark = [
    pytest.mark.view,
    pytest.mark.skipif(BROWSER is None, reason=f"no Chromium here ({', '.join(chromium.NAMES)})"),
]

TITLE = "document.querySelector('h1')?.textContent"
NEWER = "document.querySelector('.ep-newer:not([hidden])')?.textContent ?? ''"
PROBLEM = "document.querySelector('.problem')?.textContent ?? ''"
LISTED = "[...document.querySelectorAll('.hm-entry')].map(e => e.querySelector('.id').textContent)"


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[Viewer]:
    with viewing(home=tmp_path) as found:
        yield found


def episode(steps: int, first: float = 0) -> dict[str, Any]:
    state = first + np.arange(steps + 1, dtype=np.float32)[:, None]
    return {"observation": state, "action": state[1:], "next": {"reward": np.ones(steps, np.float32)}}


def create(home: Path, name: str, *lengths: int) -> None:
    rlds_cli.create(name, map(episode, lengths), home=home, progress=False)


def remove(home: Path, name: str) -> None:
    shutil.rmtree(home / "datasets" / name)


def test_an_episode_says_that_more_were_recorded(browser: chromium.Browser, viewer: Viewer, tmp_path: Path) -> None:
    with rlds_cli.writer("local/growing", home=tmp_path) as writer:
        writer.add_episodes([episode(5)])
        writer.commit()
        page = browser.visit(f"{viewer.address}#/e/local%2Fgrowing/0")
        page.wait_for(f"{TITLE} === 'Episode 0'")
        assert page.run(NEWER) == ""
        writer.add_episodes([episode(6), episode(7)])
        writer.commit()
        page.wait_for(f"({NEWER}).includes('the newest has 2 episodes more')")
        page.run("document.querySelector('.ep-newer button').click()")
        page.wait_for(f"!({NEWER}) && document.querySelector('[rel=next]')")
    assert page.complaints == []


def test_an_episode_of_a_dataset_that_was_replaced_begins_anew(
    browser: chromium.Browser, viewer: Viewer, tmp_path: Path
) -> None:
    create(tmp_path, "local/one", 5, 5)
    page = browser.visit(f"{viewer.address}#/e/local%2Fone/0?v=1&step=3")
    steps = "document.querySelector('[role=slider]')?.ariaValueMax"
    page.wait_for(f"{steps} === '5'")
    remove(tmp_path, "local/one")
    page.wait_for(f"({PROBLEM}).includes('is not in this home')")
    create(tmp_path, "local/one", 9)
    page.wait_for(f"{steps} === '9' && !({PROBLEM})")
    assert "v=1" not in page.run("location.hash")


def test_a_page_waits_for_a_dataset_and_an_episode(browser: chromium.Browser, viewer: Viewer, tmp_path: Path) -> None:
    for target, wait in (
        ("#/d/local%2Flate", "document.querySelector('.tb-count')?.textContent === '1 episode'"),
        ("#/e/local%2Flater/1", f"{TITLE} === 'Episode 1'"),
    ):
        page = browser.visit(viewer.address + target)
        page.wait_for(PROBLEM)
        name = f"local/{'later' if '/e/' in target else 'late'}"
        with rlds_cli.writer(name, home=tmp_path) as writer:
            writer.add_episodes([episode(5)])
            writer.commit()
            if "/e/" in target:
                page.wait_for(f"({PROBLEM}).includes('has no episode 1')")
                writer.add_episodes([episode(5)])
                writer.commit()
            page.wait_for(wait)
            assert page.run(PROBLEM) == ""


def test_an_episode_that_comes_while_the_page_is_told_that_it_is_not_there(
    browser: chromium.Browser, viewer: Viewer, tmp_path: Path
) -> None:
    page = browser.visit(viewer.address)
    with rlds_cli.writer("local/growing", home=tmp_path) as writer:
        writer.add_episodes([episode(5)])
        writer.commit()
        hold(page, "episode?")
        page.run("location.hash = '#/e/local%2Fgrowing/1'")
        page.wait_for("answers.length === 1")
        writer.add_episodes([episode(5)])
        writer.commit()
        page.run("answers.push = (done) => done()")  # none is held any more
        page.run("answers.shift()()")
        page.wait_for(f"{TITLE} === 'Episode 1'")


def test_the_home_is_followed(browser: chromium.Browser, viewer: Viewer, tmp_path: Path) -> None:
    create(tmp_path, "local/one", 5)
    page = browser.visit(viewer.address)
    page.wait_for(f"({LISTED}).join() === 'local/one'")
    page.wait_for("/KiB/.test(document.querySelector('.hm-entry').textContent)")  # what takes longer has come
    page.run("globalThis.first = document.querySelector('.hm-entry')")
    create(tmp_path, "local/alpha", 5)
    page.wait_for(f"({LISTED}).join() === 'local/alpha,local/one'")
    assert page.run("globalThis.first.isConnected")  # a press on it meanwhile is not lost
    rlds_cli.open_dataset("local/one", home=tmp_path).label(grade=3)
    page.wait_for("[...document.querySelectorAll('.hm-entry')].at(-1).textContent.includes('v2')")
    remove(tmp_path, "local/alpha")
    page.wait_for(f"({LISTED}).join() === 'local/one'")
    assert page.complaints == []


def test_batches_say_that_the_dataset_has_changed(browser: chromium.Browser, tmp_path: Path) -> None:
    with rlds_cli.writer("local/growing", home=tmp_path) as writer:
        writer.add_episodes([episode(5)])
        writer.commit()
        ds = rlds_cli.open_dataset("local/growing", home=tmp_path)
        with Server(loader=Loader(ds, 2, sampler=Sequential())) as server:
            page = browser.visit(f"{server.address}#/b/0")
            page.wait_for(f"{TITLE} === 'Batch 0'")
            writer.add_episodes([episode(5)])
            writer.commit()
            page.wait_for("document.querySelector('.ds-pinned').textContent.includes('local/growing has changed')")
        page.wait_for(f"({PROBLEM}).includes('does not answer')")
