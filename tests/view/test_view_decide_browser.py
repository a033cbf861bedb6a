"""Deciding in Chromium: the way from forty episodes to decisions on all, by keys and by handles; two side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import chromium
import numpy as np
import page_data
import pytest
import walk
from viewer import Viewer, hold, viewing

import rlds_cli

BROWSER = chromium.find()

pytestmark = [
    pytest.mark.view,
    pytest.mark.skipif(BROWSER is None, reason=f"no Chromium here ({', '.join(chromium.NAMES)})"),
]

ID = "local/arms"
LENGTH = 20
PRESSED = "[...document.querySelectorAll('.dc [aria-pressed=true]')].map(b => b.firstChild.textContent)"
VERDICT = "[...document.querySelectorAll('.dc-bar [aria-pressed=true]')].map(b => b.firstChild.textContent).join()"
HANDLES = "[...document.querySelectorAll('.ln-handle')].map(h => [h.ariaLabel, Number(h.ariaValueNow)])"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))

    def episode(k: int) -> dict[str, Any]:
        rng = np.random.default_rng(k)
        return {"observation": rng.random((LENGTH + 1, 2)), "action": rng.random((LENGTH, 1))}

    ds = rlds_cli.create(ID, map(episode, range(5)), fps=10, progress=False)
    ds.label(subtasks=['[[0, 8, "reach"], [8, 20, "lift"]]'] * 5)
    return tmp_path


@pytest.fixture
def viewer(home: Path) -> Iterator[Viewer]:
    with viewing(by="ann") as found:
        yield found


def shown(browser: chromium.Browser, viewer: Viewer, number: int = 0, query: str = "", **size: int) -> chromium.Page:
    """The page of an episode on which one decides."""
    page = browser.visit(f"{viewer.address}#/q/{quote(ID, safe='')}", **size)
    page.wait_for("document.querySelector('.dc-start:not(:disabled)')")
    page.run(f"location.hash = '#/e/{quote(ID, safe='')}/{number}?v=2&decide=table{query}'")
    there(page, number)
    return page


def there(page: chromium.Page, number: int) -> None:
    page.wait_for(f"{walk.TITLE} === 'Episode {number}' && /decided/.test({walk.COUNT})")


def kept(number: int, by: str = "ann") -> list[tuple[Any, ...]]:
    """What the journal has of an episode: (do, first, stop, text, labels, comment)."""
    ds = rlds_cli.open_dataset(ID)
    id = ds.episodes["id"][number].tobytes().hex()
    made = [d for d in ds.decisions().made() if d.id == id and d.by == by]
    return sorted(((d.do, d.first, d.stop, d.text, dict(d.labels), d.comment) for d in made), key=str)


def until_kept(page: chromium.Page, number: int, expected: list[tuple[Any, ...]]) -> None:
    end = time.monotonic() + 20
    while kept(number) != sorted(expected, key=str):
        assert time.monotonic() < end, kept(number)
        page.run("1")
        time.sleep(0.05)


def keys(page: chromium.Page, text: str) -> None:
    for key in text:
        page.key(key, ord(key.upper()))


def test_from_forty_episodes_with_ten_faults_to_a_saved_selection(
    browser: chromium.Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    ds = page_data.faulty(width=96)
    seen = list[str]()
    with viewing() as viewer:
        page = browser.visit(viewer.address)
        walk.walk(page, seen.append)
        assert page.complaints == []
    assert len(set(seen)) == len(seen) >= 7
    clean = rlds_cli.open_dataset("local/reaching@clean")
    faults = (*page_data.BLACK, *page_data.MISSED)
    stays = [k for k in range(40) if k not in faults]
    lengths = [int(ds.episodes["length"][k]) - page_data.RESTED * (k in page_data.RESTS) for k in stays]
    assert clean.episodes["length"].tolist() == lengths
    whole = [k for k in stays if k not in page_data.RESTS]
    ids = {row.tobytes().hex() for row in clean.episodes["id"]}
    assert {ds.episodes["id"][k].tobytes().hex() for k in whole} < ids
    assert clean.episodes["success"].tolist() == [None if k in page_data.RESTS else True for k in stays]
    assert {d.by for d in ds.decisions().made()} == {"ada"} and rlds_cli.open_dataset("local/reaching").version == 1


# -- by keys


def test_labels_and_a_verdict_by_keys(browser: chromium.Browser, viewer: Viewer) -> None:
    page = shown(browser, viewer)
    keys(page, "yf3")
    assert page.run(PRESSED) == ["no", "3"]
    keys(page, "3")  # the same again takes it away
    assert page.run(PRESSED) == ["no"]
    until_kept(page, 0, [("", None, None, None, {"success": False}, "")])
    keys(page, "d")
    there(page, 1)
    until_kept(page, 0, [("", None, None, None, {"success": False}, ""), ("drop", None, None, None, {}, "")])
    keys(page, "a")
    there(page, 2)
    assert page.run(walk.COUNT) == "2 of 5 decided"
    until_kept(page, 1, [("keep", 0, LENGTH, None, {}, "")])
    page.run("history.back()")
    there(page, 1)
    assert page.run(VERDICT) == "Accept"
    assert page.complaints == []


def asked_ahead(number: int) -> str:
    """Whether the page has got an episode before it is shown, which it asks for once the queue is answered."""
    path = f"/api/episode?d={quote(ID, safe='')}&v=2&episode={number}"
    return f"performance.getEntriesByType('resource').some(e => e.name.endsWith({path!r}))"


def test_an_answer_of_before_a_decision_changes_no_count_and_no_verdict(
    browser: chromium.Browser, viewer: Viewer
) -> None:
    page = shown(browser, viewer)
    page.wait_for(f"{walk.COUNT} === '0 of 5 decided'")
    page.wait_for(asked_ahead(1))  # no answer of episode 0 is on its way any more
    hold(page, "queue")
    keys(page, "a")
    there(page, 1)
    page.wait_for("answers.length === 1")  # it says that one is decided
    keys(page, "a")
    there(page, 2)
    page.wait_for("answers.length === 2")
    page.run("answers.splice(0).forEach((done) => done())")
    page.wait_for("answers.length === 1")  # that of episode 1 was old: it is asked for again
    page.run("answers.shift()()")
    time.sleep(0.5)  # what would be asked ahead of episode 2 is answered
    keys(page, "y")
    assert page.run(walk.COUNT) == "3 of 5 decided"
    keys(page, "a")
    there(page, 3)
    page.run("history.back()")
    there(page, 2)
    assert page.run(VERDICT) == "Accept"
    assert page.run(walk.COUNT) == "3 of 5 decided"


def test_answers_that_are_late_change_no_count_and_no_verdict(browser: chromium.Browser, viewer: Viewer) -> None:
    page = shown(browser, viewer)
    page.wait_for(f"{walk.COUNT} === '0 of 5 decided'")
    hold(page, "queue")
    page.run("answers.push = (done) => setTimeout(done, 400)")
    for number in range(4):
        there(page, number)
        page.wait_for(f"{walk.COUNT} === '{number} of 5 decided'")
        keys(page, "a")
        there(page, number + 1)
    counts = set()
    until = time.monotonic() + 2
    while time.monotonic() < until:
        counts.add(page.run(walk.COUNT))
    assert counts == {"4 of 5 decided"}
    for number in (3, 2, 1):
        page.run("history.back()")
        there(page, number)
        assert page.run(VERDICT) == "Accept"
    keys(page, "z")
    there(page, 3)
    page.wait_for(f"{VERDICT} === '' && {walk.COUNT} === '3 of 5 decided'")


def test_the_next_page_says_what_is_not_kept_yet(browser: chromium.Browser, viewer: Viewer) -> None:
    page = shown(browser, viewer)
    hold(page, "decide")
    keys(page, "a")
    there(page, 1)
    state = "document.querySelector('.dc-state').textContent"
    assert page.run(state) == "…"
    page.wait_for("answers.length === 1")
    page.run("answers.shift()()")
    page.wait_for(f"{state} === ''")
    assert kept(0) == [("keep", 0, LENGTH, None, {}, "")]


def test_what_was_decided_last_is_taken_back(browser: chromium.Browser, viewer: Viewer) -> None:
    page = shown(browser, viewer)
    keys(page, "a")
    there(page, 1)
    keys(page, "2")
    until_kept(page, 1, [("", None, None, None, {"quality": 2}, "")])
    keys(page, "z")
    page.wait_for(f"{PRESSED}.length === 0")
    keys(page, "z")
    there(page, 0)
    page.wait_for(f"{VERDICT} === '' && {walk.COUNT} === '0 of 5 decided'")
    assert kept(0) == kept(1) == []


def test_skipped_ones_come_last(browser: chromium.Browser, viewer: Viewer) -> None:
    page = shown(browser, viewer, 3)
    keys(page, "s")
    there(page, 0)
    for number in (0, 1, 2):
        there(page, number)
        keys(page, "a")
    there(page, 4)
    keys(page, "a")
    page.wait_for("document.querySelector('.dc-end:not([hidden])')?.textContent.includes('1 episode')")
    page.run("document.querySelector('.dc-end button').click()")
    there(page, 3)
    keys(page, "d")
    page.wait_for("document.querySelector('.dc-end:not([hidden])')?.textContent.includes('All are decided')")


def test_texts_are_typed_and_no_keys(browser: chromium.Browser, viewer: Viewer) -> None:
    page = shown(browser, viewer)
    keys(page, "c")
    assert page.run("document.activeElement.ariaLabel") == "comment"
    page.call("Input.insertText", text="a <b>odd</b> one")
    keys(page, "d")
    page.key("Enter", 13)
    until_kept(page, 0, [("", None, None, None, {}, "a <b>odd</b> oned")])
    there(page, 0)


def test_what_others_decided_is_taken_over(browser: chromium.Browser, viewer: Viewer) -> None:
    ds = rlds_cli.open_dataset(ID)
    id = ds.episodes["id"][0].tobytes().hex()
    markup = "<img src=x onerror='globalThis.hurt=1'>"
    ds.decisions().add([{"id": id, "labels": {"quality": 4, "note": markup}, "by": markup, "comment": markup}])
    page = shown(browser, viewer)
    page.run("document.querySelector('.dc-more').open = true")
    assert markup in page.run("document.querySelector('.dc-more').textContent")
    page.run("document.querySelector('.dc-more button').click()")
    until_kept(page, 0, [("", None, None, None, {"quality": 4, "note": markup}, markup)])
    assert page.run("globalThis.hurt ?? null") is None
    assert page.run("document.querySelectorAll('.dc img').length") == 0


# -- steps


def test_steps_that_stay_and_a_split(browser: chromium.Browser, viewer: Viewer) -> None:
    page = shown(browser, viewer, query="&step=4")
    keys(page, "b")
    page.wait_for(f'JSON.stringify({HANDLES}.slice(0, 2)) === \'[["begin of what stays",4],["end of what stays",20]]\'')
    until_kept(page, 0, [("keep", 4, 20, None, {}, "")])
    page.run("document.querySelector('.ln-handle[aria-label=\"end of what stays\"]').focus()")
    for _ in range(3):
        page.key("ArrowLeft", 37)
    until_kept(page, 0, [("keep", 4, 17, None, {}, "")])
    assert page.run("document.activeElement.ariaLabel") == "end of what stays"
    page.run("document.activeElement.blur()")
    for _ in range(16 - 9):
        page.key("ArrowLeft", 37)
    page.wait_for("document.querySelector('.tl').ariaValueNow === '9'")
    keys(page, "t")
    until_kept(page, 0, [("keep", 4, 9, None, {}, ""), ("keep", 9, 17, None, {}, "")])
    keys(page, "a")
    there(page, 1)
    assert len(kept(0)) == 2  # accepted as it is cut


def test_a_handle_is_dragged(browser: chromium.Browser, viewer: Viewer) -> None:
    page = shown(browser, viewer)
    page.run("document.querySelector('.dc-steps').click()")
    page.wait_for("document.querySelectorAll('.ln-handle').length === 5")
    box = "document.querySelector('.ln-track').getBoundingClientRect()"
    left, top, width = (page.run(f"{box}.{side}") for side in ("left", "top", "width"))
    x = [left + width * k / (LENGTH + 1) for k in (0, 3, 6)]
    for kind, at in (("pressed", 0), ("moved", 1), ("moved", 2), ("released", 2)):
        page.mouse(kind, x[at], top + 6, **({"buttons": 1, "button": "left"} if kind == "moved" else {}))
    until_kept(page, 0, [("keep", 6, LENGTH, None, {}, "")])
    assert page.run("document.querySelector('.tl').ariaValueNow") == "6"


def test_sub_tasks_are_named_and_moved(browser: chromium.Browser, viewer: Viewer) -> None:
    page = shown(browser, viewer, query="&step=12")
    keys(page, "g")
    page.wait_for("document.activeElement.className === 'ln-text'")
    page.call("Input.insertText", text="turn")
    page.key("Enter", 13)
    parts = [
        ("subtask", 0, 8, "reach", {}, ""),
        ("subtask", 8, 12, "lift", {}, ""),
        ("subtask", 12, 20, "turn", {}, ""),
    ]
    until_kept(page, 0, parts)
    page.run("document.querySelector('.ln-handle[aria-label=\"end of lift\"]').focus()")
    page.key("ArrowRight", 39)  # the border of both
    until_kept(page, 0, [parts[0], ("subtask", 8, 13, "lift", {}, ""), ("subtask", 13, 20, "turn", {}, "")])
    page.run("document.querySelectorAll('.ln-task')[1].click()")
    page.run("[...document.querySelectorAll('.ln-editor button')][0].click()")
    gone = ("subtask", 8, 13, None, {}, "")
    until_kept(page, 0, [parts[0], gone, ("subtask", 13, 20, "turn", {}, "")])


# -- before one begins


def test_it_says_what_may_be_done(browser: chromium.Browser, home: Path) -> None:
    rlds_cli.download("sample/pendulum-d4rl")
    told = "(document.querySelector('.dc-may')?.textContent ?? '')"
    with viewing(rlds_cli.open_dataset(ID).select(episodes=[1])) as viewer:
        page = browser.visit(f"{viewer.address}#/q/{quote('sample/pendulum-d4rl', safe='')}")
        page.wait_for(f"{told}.includes('stays as it is') && {told}.includes('sample/pendulum-d4rl@NAME')")
        page.run("location.hash = '#/q/~0'")
        page.wait_for(f"{told}.includes('some episodes')")
    with viewing(read_only=True) as viewer:
        page = browser.visit(f"{viewer.address}#/q/{quote(ID, safe='')}")
        page.wait_for(f"{told}.includes('--read-only')")
        assert page.run("document.querySelectorAll('form').length") == 0


def test_the_name_that_the_command_gave_is_not_asked_for(browser: chromium.Browser, viewer: Viewer) -> None:
    page = browser.visit(f"{viewer.address}#/e/{quote(ID, safe='')}/0?decide=table")
    there(page, 0)
    keys(page, "a")
    until_kept(page, 0, [("keep", 0, LENGTH, None, {}, "")])


def test_a_name_is_asked_for_once(browser: chromium.Browser, home: Path) -> None:
    with viewing() as viewer:
        page = browser.visit(f"{viewer.address}#/e/{quote(ID, safe='')}/0?decide=table")
        page.wait_for("document.querySelector('.dc-who')")
        keys(page, "a")
        walk.type_into(page, ".dc-who input", "  grace ")
        page.run("document.querySelector('.dc-who').requestSubmit()")
        there(page, 0)
        keys(page, "a")
        there(page, 1)
        page.wait_for("document.querySelector('.dc-state').textContent === ''")
        page.reload()
        there(page, 1)
        assert {d.by for d in rlds_cli.open_dataset(ID).decisions().made()} == {"grace"}


# -- saving


def test_a_clash_is_settled_and_saved(browser: chromium.Browser, viewer: Viewer) -> None:
    ds = rlds_cli.open_dataset(ID)
    id = ds.episodes["id"][1].tobytes().hex()
    markup = "<img src=x onerror='globalThis.hurt=1'>"
    ds.decisions().add([{"id": id, "labels": {"note": markup}, "by": markup}])
    ds.decisions().add([{"id": id, "labels": {"note": "fine"}, "by": "ann"}])
    page = browser.visit(f"{viewer.address}#/s/{quote(ID, safe='')}")
    page.wait_for("document.querySelector('.sv-clash table')")
    told = page.run("document.querySelector('.sv-clash').textContent")
    assert markup in told and "fine" in told and "episode 1" in told
    assert page.run("document.querySelector('.dc-start').disabled")
    walk.type_into(page, ".sv-clash select", "ann")
    page.wait_for("document.querySelector('.dc-start:not(:disabled)')")
    assert page.run("document.querySelector('.dc-card form code').textContent").endswith("--take ann")
    page.run("document.querySelector('.dc-start').click()")
    page.wait_for(f"document.querySelector('.sv-saved')?.textContent.includes('{ID}#v2')")
    assert rlds_cli.open_dataset(ID).episodes["note"][1] == "fine"
    assert page.run("globalThis.hurt ?? null") is None and page.complaints == []


def test_agreement_of_two_people_leads_to_where_they_disagree(browser: chromium.Browser, viewer: Viewer) -> None:
    ds = rlds_cli.open_dataset(ID)
    ids = [row.tobytes().hex() for row in ds.episodes["id"]]
    marked = {"ann": [True, True, False, False], "bob": [True, False, False, False]}
    said = [{"id": ids[k], "labels": {"success": v}, "by": by} for by, of in marked.items() for k, v in enumerate(of)]
    ds.decisions().add(said)
    first, *_ = ds.decisions().made()
    ds.decisions().add([{"id": ids[0], "labels": {"success": False}, "by": "cid", "reviews": first.key}])
    page = browser.visit(f"{viewer.address}#/s/{quote(ID, safe='')}", width=400, height=800)
    page.wait_for("document.querySelector('.sv-agree table')")
    cells = page.run(
        "[...document.querySelectorAll('.sv-agree tbody tr :is(th, td)')].map(c => c.firstChild.textContent)"
    )
    # 3 of 4 are the same; 1/2 * 1/4 + 1/2 * 3/4 = 1/2 would be by chance: (3/4 - 1/2) / (1 - 1/2)
    assert cells[:4] == ["success", "ann and bob", "3 of 4", "0.50"]
    assert page.run("document.querySelectorAll('.sv-agree tbody tr').length") == 1
    assert "episode 1: ann yes, bob no" in page.run("document.querySelector('.sv-agree li').textContent")
    told = page.run("document.querySelector('.sv-agree > p:last-child').textContent")
    assert told == "cid has looked at what ann decided: 0 confirmed, 1 contradicted."
    assert page.run("document.documentElement.scrollWidth") <= 400
    page.run("document.querySelector('.sv-agree details').open = true")
    page.run("document.querySelector('.sv-agree li a').click()")
    there(page, 1)
    assert page.complaints == []


# -- side by side


def test_two_episodes_move_together(browser: chromium.Browser, home: Path) -> None:
    page_data.recorded("local/pairs", episodes=3)
    with viewing() as viewer:
        page = browser.visit(f"{viewer.address}#/c/{quote('local/pairs', safe='')}/0?with=2&w=1")
        rows = "[...document.querySelectorAll('.cm canvas[data-row]')].map(c => c.dataset.row).join()"
        page.wait_for(f"{rows} === '0,0,0,0'")
        for _ in range(3):
            page.key("ArrowRight", 39)
        page.wait_for(f"{rows} === '3,3,3,3'")
        page.key("End", 35)
        lengths = rlds_cli.open_dataset("local/pairs").episodes["length"]
        page.wait_for(f"{rows} === '{lengths[0]},{lengths[0]},{lengths[2]},{lengths[2]}'")
        walk.type_into(page, ".cm-side:last-child input", "1")
        page.wait_for("location.hash.includes('with=1')")
        page.wait_for("[...document.querySelectorAll('.cm select')].map(s => s.value).join() === '2,1'")
        assert page.complaints == []


# -- every page


@pytest.mark.parametrize("width", [400, 1280])
def test_pages_of_deciding_fit_and_have_names(browser: chromium.Browser, viewer: Viewer, width: int) -> None:
    page = shown(browser, viewer, width=width, height=800)
    keys(page, "bg")
    page.wait_for("document.querySelector('.ln-editor:not([hidden])')")
    roles = {"button", "slider", "combobox", "checkbox", "link", "textbox", "spinbutton", "progressbar"}
    for hash in ("", f"#/q/{quote(ID, safe='')}", f"#/s/{quote(ID, safe='')}", f"#/c/{quote(ID, safe='')}/0?with=1"):
        if hash:
            page.run(f"location.hash = {hash!r}")
            page.wait_for("document.querySelector('.dc-start, .cm .cv-card')")
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.run("[...document.querySelectorAll('.dc-labels dd')].every(d => d.innerText.trim())")
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        named = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n.get("ignored")]
        assert [role for role, name in named if role in roles and not name.strip()] == []


def test_the_largest_page_is_not_large(browser: chromium.Browser, viewer: Viewer) -> None:
    page = shown(browser, viewer)
    entries = (
        "performance.getEntriesByType('resource').filter(e => e.name.includes('/pages/') && !/begin/.test(e.name))"
    )
    assert page.run(f"{entries}.reduce((sum, e) => sum + e.decodedBodySize, 0)") < 120_000
