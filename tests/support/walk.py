"""The way from forty episodes, ten of which have a fault, to a saved selection, as somebody goes it in the browser.

The test of it and the pictures of docs/guides/decide.md are both made by `walk`.
"""

from __future__ import annotations

from collections.abc import Callable

import chromium
from page_data import BLACK, MISSED, RESTED, RESTS

Picture = Callable[[str], None]
TITLE = "document.querySelector('h1')?.textContent"
COUNT = "document.querySelector('.dc-count')?.textContent"
SHOWN = "[...document.querySelectorAll('.cam canvas')].every(c => c.dataset.row) && document.querySelector('.cam')"


def walk(page: chromium.Page, picture: Picture = lambda name: None, *, by: str = "ada") -> None:
    """Go from the home to ``local/reaching@clean``; ``picture`` is called with the name of each step."""
    press(page, ".hm-entry", "local/reaching")
    page.wait_for("document.querySelectorAll('.tb-row:not(.tb-wait)').length && document.querySelector('.hg-plot')")
    page.wait_for("[...document.querySelectorAll('.pic')].filter(i => i.naturalWidth).length > 8")
    picture("table")
    press(page, ".tb-bar a", "Decide")
    page.wait_for("document.querySelector('.dc-form')")
    type_into(page, ".dc-form input[type=text]", by)
    page.wait_for(
        "document.querySelector('.dc-start:not(:disabled)') && document.querySelector('.dc-done output').textContent"
    )
    picture("begin")
    press(page, ".dc-start", "Begin")
    for number in range(40):
        at(page, number)
        if number in RESTS:
            trim(page)
            if number == RESTS[0]:
                picture("trim")
        elif number in BLACK:
            page.key("9", 57)  # recording
        elif number in MISSED:
            page.key("f", 70)
            page.key("6", 54)  # missed
        else:
            page.key("y", 89)
        if number in (0, BLACK[0]):
            page.key("End", 35)
            page.wait_for(SHOWN)
            picture("accept" if number == 0 else "reject")
        page.key(*("d", 68) if number in (*BLACK, *MISSED) else ("a", 65))
    page.wait_for("document.querySelector('.dc-end:not([hidden]) a')")
    assert page.run(COUNT) == "40 of 40 decided"
    press(page, ".dc-end a", "Review")
    save(page, "clean", picture)


def at(page: chromium.Page, number: int) -> None:
    """Wait until an episode is shown, and its keys are heard."""
    page.wait_for(f"{TITLE} === 'Episode {number}' && {SHOWN} && /decided/.test({COUNT})")


def trim(page: chromium.Page) -> None:
    """Let the episode begin where the arm begins to move."""
    for _ in range(RESTED):
        page.key("ArrowRight", 39)
    page.key("b", 66)
    page.wait_for(f"document.querySelector('.ln-handle')?.ariaValueNow === '{RESTED}'")


def save(page: chromium.Page, name: str, picture: Picture) -> None:
    """Review what is decided, and save it as ``ID@name``."""
    page.wait_for("document.querySelector('.sv-counts')")
    type_into(page, ".sv-name", name)
    picture("review")
    press(page, "button", "Save")
    page.wait_for("document.querySelector('.sv-saved')")
    picture("saved")


def press(page: chromium.Page, selector: str, text: str) -> None:
    """Press the first element that a selector finds and whose text begins so."""
    found = f"[...document.querySelectorAll({selector!r})].find(e => e.innerText.trim().startsWith({text!r}))"
    page.wait_for(f"Boolean({found})")
    page.run(f"{found}.click()")


def type_into(page: chromium.Page, selector: str, text: str) -> None:
    """Put a text into a field, as typing does."""
    box = f"document.querySelector({selector!r})"
    page.run(f"{box}.value = {text!r}; for (const n of ['input', 'change']) {box}.dispatchEvent(new Event(n))")
