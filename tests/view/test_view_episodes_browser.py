"""The home, a dataset and the table of its episodes in Chromium: searched, sorted, filtered, scrolled, followed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import chromium
import numpy as np
import page_data
import pytest
from viewer import Viewer, viewing

import rlds_cli

BROWSER = chromium.find()

pytestmark = [
    pytest.mark.view,
    pytest.mark.skipif(BROWSER is None, reason=f"no Chromium here ({', '.join(chromium.NAMES)})"),
]

ROWS = "[...document.querySelectorAll('.tb-row:not(.tb-wait)')]"
NUMBERS = f"{ROWS}.map(r => Number(r.firstChild.textContent.replaceAll(',', '')))"
COUNT = "document.querySelector('.tb-count').textContent"
WHERE = "document.querySelector('.tb-where').value"
DRAWN = "document.querySelectorAll('.tb-row:not(.tb-wait)').length && document.querySelector('.hg-plot')"

CONDITIONS = """(async () => {
  const url = new URL('pages/where.js', document.baseURI);
  const { among, between, condition, quoted, withCondition } = await import(url);
  const name = NAME, found = [], q = quoted(name), other = between(name, 7, 8);
  const numbers = [between(name, 1.5, 2e-7), between(name, null, -3), between(name, 4, null)];
  const texts = [among(name, ["it's", "b\\\\"]), among(name, ['one'])];
  const rest = [true, false, null].map(x => among(name, [x]));
  for (const before of ['', 'x == 3', "x == 3 or y in ('a', 'b')", "task == 'a and b'"]) {
    for (const wanted of [...numbers, ...texts, ...rest]) {
      const one = withCondition(before, name, wanted), two = withCondition(one, name, other);
      const c = condition(one, name), none = withCondition(two, name, '');
      const is = [one.endsWith(wanted), condition(before, name) === null, two.endsWith(other)];
      is.push(c !== null && one.slice(c.at, c.at + c.length) === wanted, wanted === q || !two.includes(wanted));
      is.push(none === before || none === '(' + before + ')');
      if (is.includes(false)) found.push([wanted, ...is]);
    }
  }
  return found;
})()"""
MILLION = """(async () => {
  const { Rows } = await import(new URL('pages/rows.js', document.baseURI));
  const box = document.createElement('div');
  document.body.replaceChildren(box);
  Object.assign(box.style, { height: '400px', overflow: 'auto' });
  globalThis.asked = [];
  const draw = row => {
    const e = document.createElement('p');
    Object.assign(e.style, { position: 'absolute', height: '34px', margin: 0 });
    e.textContent = row ?? '…';
    return e;
  };
  const fetchPage = async (first, count) => {
    asked.push(first);
    return Array.from({ length: count }, (_, k) => String(first + k));
  };
  globalThis.rows = new Rows(box, { height: 34, open() {}, draw, fetchPage });
  rows.reset({ count: 1e6, first: 0 });
})()"""


def episode(k: int) -> dict[str, Any]:
    rng = np.random.default_rng(k)
    steps = int(rng.integers(1, 60))
    return {
        "observation": rng.standard_normal((steps + 1, 2)).astype(np.float32),
        "action": rng.standard_normal((steps, 1)).astype(np.float32),
        "next": {"reward": rng.standard_normal(steps).astype(np.float32), "terminated": bool(k % 2)},
        "episode": {
            "task": ("pull", "it's \\ odd", "push")[k % 3],
            "success rate": float(rng.random()) if k % 4 else float("nan"),
            **({"won": bool(k % 5)} if k % 7 else {}),
        },
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(folder))
        rlds_cli.create("local/many", map(episode, range(400)), license="MIT", description="recorded in the lab")
        rlds_cli.open_dataset("local/many").select(episodes=[3]).label(quality="bad")
        page_data.pictures(episodes=30)
        page_data.hostile()
        yield folder


@pytest.fixture(scope="module")
def viewer(home: Path) -> Iterator[Viewer]:
    with viewing(rlds_cli.open_dataset("local/many").select(episodes=[5, 9])) as found:
        yield found


@pytest.fixture
def many(browser: chromium.Browser, viewer: Viewer) -> chromium.Page:
    return at(browser, viewer, "local/many")


@pytest.fixture(scope="module")
def ds(home: Path) -> rlds_cli.Dataset:
    return rlds_cli.open_dataset("local/many")


def at(browser: chromium.Browser, viewer: Viewer, key: str, query: str = "", wait: str = DRAWN) -> chromium.Page:
    page = browser.visit(f"{viewer.address}#/d/{quote(key, safe='')}{query}")
    page.wait_for(wait)
    return page


def enter(page: chromium.Page, where: str) -> None:
    page.run(
        f"(() => {{ const box = document.querySelector('.tb-where'); box.value = {json.dumps(where)};"
        " box.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'})); })()"
    )


def press(page: chromium.Page, selector: str, text: str) -> None:
    """Press the element of this text, of those that a selector finds."""
    every = f"[...document.querySelectorAll({json.dumps(selector)})]"
    found = f"{every}.find(e => e.textContent.startsWith({json.dumps(text)}))"
    page.wait_for(f"Boolean({found})")
    page.run(f"{found}.click()")


def first_rows(page: chromium.Page, expected: list[int]) -> None:
    """Wait until the first rows are these episodes."""
    page.wait_for(f"JSON.stringify({NUMBERS}.slice(0, 8)) === '{json.dumps(expected[:8], separators=(',', ':'))}'")


# -- the home


def test_the_home_is_searched(browser: chromium.Browser, viewer: Viewer) -> None:
    page = browser.visit(viewer.address)
    names = "[...document.querySelectorAll('.hm-bar ~ .hm-list .hm-name .id')].map(e => e.textContent)"
    page.wait_for(f"{names}.length === 3")

    def search(words: str) -> list[str]:
        page.run(
            f"(() => {{ const box = document.querySelector('.hm-search'); box.value = '{words}';"
            " box.dispatchEvent(new Event('input')); })()"
        )
        return page.run(names)

    assert search("lab RECORDED") == ["local/many"]
    assert search("nothing like it") == []
    assert search("reach") == ["local/reaching"]
    search("")
    page.wait_for("[...document.querySelectorAll('.hm-said')].some(e => e.textContent.includes('pull'))")
    assert search("push") == ["local/many"]  # a task
    search("")
    assert "findings" in page.run("[...document.querySelectorAll('.hm-choice')].map(e => e.textContent).join()")
    page.run(
        "(() => { const box = document.querySelectorAll('.hm-choice select')[3]; box.value = 'errors';"
        " box.dispatchEvent(new Event('change')); })()"
    )
    assert "local/many" not in page.run(names) and "local/reaching" in page.run(names)
    assert page.run("location.hash") == "#/?findings=errors"
    assert page.run("document.querySelector('.hm-named .hm-said').textContent") == ""
    assert page.complaints == []


# -- the table


def test_rows_show_the_values_of_the_episodes(many: chromium.Page, ds: rlds_cli.Dataset) -> None:
    heads = many.run("[...document.querySelectorAll('.tb-sort')].map(b => b.textContent.trim())")
    assert heads[:4] == ["episode", "length", "total_reward", "end"]
    place = heads.index("task")
    cells = many.run(
        f"{ROWS}.slice(0, 5).map(r => [r.children[0], r.children[1], r.children[{place}]].map(c => c.textContent))"
    )
    assert cells == [[str(k), str(ds.episodes["length"][k]), ds.episodes["task"][k]] for k in range(5)]
    assert many.run(COUNT) == "400 episodes"
    assert many.complaints == []


def test_a_press_on_a_head_sorts(many: chromium.Page, ds: rlds_cli.Dataset) -> None:
    rewards = ds.episodes["total_reward"]
    press(many, ".tb-sort", "total_reward")
    first_rows(many, np.argsort(rewards, kind="stable").tolist())
    press(many, ".tb-sort", "total_reward")
    first_rows(many, np.argsort(-rewards, kind="stable").tolist())
    assert many.run("document.querySelector('[data-column=total_reward]').ariaSort") == "descending"
    assert "sort=total_reward&desc=1" in many.run("location.hash")
    many.run("history.back()")
    first_rows(many, np.argsort(rewards, kind="stable").tolist())
    press(many, ".tb-sort", "success rate")
    rate = ds.episodes["success rate"]
    first_rows(many, np.argsort(rate, kind="stable").tolist())


def test_an_expression_filters(many: chromium.Page, ds: rlds_cli.Dataset) -> None:
    where = "length > quantile(length, 0.5) and task == 'push'"
    chosen = ds.select(where=where).episodes.index.tolist()

    enter(many, where)

    many.wait_for(f"{COUNT} === '{len(chosen)} of 400 episodes'")
    first_rows(many, chosen)
    many.run("document.querySelector('.tb-same').open = true")
    lines = many.run("[...document.querySelectorAll('.tb-line code')].map(e => e.textContent)")
    assert (
        lines[0] == "rlds episodes local/many --where 'length > quantile(length, 0.5) and task == '\"'\"'push'\"'\"''"
    )
    assert lines[-1] == f"rlds_cli.open_dataset('local/many').select(where={where!r})"


def test_what_cannot_be_understood_is_said_below(many: chromium.Page) -> None:
    enter(many, "lenght > 3")
    many.wait_for("document.querySelector('.tb-error').textContent.includes('Did you mean')")
    assert many.run(COUNT) == "400 episodes" and len(many.run(NUMBERS)) > 5
    enter(many, "length > 3")
    many.wait_for("document.querySelector('.tb-error').textContent === ''")


def test_a_range_of_a_histogram_is_dragged(many: chromium.Page, ds: rlds_cli.Dataset) -> None:
    box = many.run(
        "(() => { const r = document.querySelector('[data-column=total_reward] .hg-plot').getBoundingClientRect();"
        " return [r.left, r.top + r.height / 2, r.width]; })()"
    )
    for kind, share in (("moved", 0.4), ("pressed", 0.4), ("moved", 0.7), ("released", 0.7)):
        many.mouse(kind, box[0] + share * box[2], box[1])
    many.wait_for(f"{WHERE} !== ''")
    where = many.run(WHERE)
    rewards = ds.episodes["total_reward"]
    low, high = (float(part) for part in where.split(" <= total_reward <= "))
    span = rewards.max() - rewards.min()
    assert abs(low - rewards.min() - 0.4 * span) < 0.02 * span and abs(high - rewards.min() - 0.7 * span) < 0.02 * span
    many.wait_for(f"{COUNT}.startsWith('{int(((rewards >= low) & (rewards <= high)).sum())} of')")

    many.wait_for("document.querySelector('[data-column=total_reward] .hg-set')")
    for kind in ("pressed", "released"):
        many.mouse(kind, box[0] + 0.1 * box[2], box[1])
    many.wait_for(f"{WHERE} === '' && {COUNT} === '400 episodes'")


@pytest.mark.parametrize(
    ("query", "rows", "where"),
    [
        ("?sort=nothing&where=length%20%3E%2030", "length > 30", "length > 30"),
        ("?where=lenght%20%3E%203", None, "lenght > 3"),
        ("?sort=nothing&where=lenght%20%3E%203&desc=1", None, "lenght > 3"),
    ],
)
def test_a_link_that_is_wrong_shows_what_it_can(
    browser: chromium.Browser, viewer: Viewer, ds: rlds_cli.Dataset, query: str, rows: str | None, where: str
) -> None:
    page = at(browser, viewer, "local/many", query)
    page.wait_for("/nothing|Did you mean/.test(document.querySelector('.tb-error').textContent)")
    first_rows(page, (ds.select(where=rows) if rows else ds).episodes.index.tolist())
    assert page.run(WHERE) == where


def test_what_is_under_the_pointer_stays_until_it_is_lifted(many: chromium.Page) -> None:
    plot = "document.querySelector('[data-column=length] .hg-plot')"
    x, y, width = (many.run(f"{plot}.getBoundingClientRect().{side}") for side in ("left", "top", "width"))
    many.run(f"globalThis.plot = {plot}")
    many.mouse("pressed", x + 0.3 * width, y + 20)
    enter(many, "length > 0 and won")  # as if a dataset grew meanwhile: all heads are made anew
    many.wait_for(f"{COUNT}.includes(' of ')")
    many.mouse("moved", x + 0.6 * width, y + 20, buttons=1)
    assert many.run("plot.isConnected")
    many.mouse("released", x + 0.6 * width, y + 20)
    many.wait_for(f"{WHERE}.includes('<= length <=')")


def test_a_range_of_a_histogram_is_set_by_keys(many: chromium.Page, ds: rlds_cli.Dataset) -> None:
    many.run("document.querySelector('[data-column=length] .hg-handle').focus()")
    many.key("ArrowRight", 39)
    many.key("ArrowRight", 39)
    many.wait_for(f"{WHERE} !== ''")
    name, low = many.run(WHERE).split(" >= ")
    many.wait_for(f"{COUNT}.startsWith('{int((ds.episodes[name] >= float(low)).sum())} of')")
    assert name == "length"
    assert many.run("document.activeElement.ariaLabel") == "least length"


def test_values_are_pressed(many: chromium.Page, ds: rlds_cli.Dataset) -> None:
    tasks, won = ds.episodes["task"], ds.episodes["won"]
    press(many, "[data-column=task] .hg-value", "it's")
    many.wait_for(f"{COUNT}.startsWith('{int((tasks == tasks[1]).sum())} of')")
    press(many, "[data-column=task] .hg-value", "pull")
    both = np.isin(tasks.astype(str), [tasks[0], tasks[1]])
    many.wait_for(f"{COUNT}.startsWith('{int(both.sum())} of')")
    press(many, "[data-column=won] .hg-value", "no")
    many.wait_for(f"{WHERE}.includes(' and won == False')")
    lost = both & np.array([v is False for v in won])
    many.wait_for(f"{COUNT}.startsWith('{int(lost.sum())} of')")
    press(many, "[data-column=won] .hg-value", "none")
    none = both & np.array([v is None for v in won])
    many.wait_for(f"{COUNT}.startsWith('{int(none.sum())} of')")
    press(many, "[data-column=won] .hg-value", "none")
    press(many, "[data-column=task] .hg-value", "pull")
    press(many, "[data-column=task] .hg-value", "it's")
    many.wait_for(f"{WHERE} === ''")
    assert many.complaints == []


@pytest.mark.parametrize("name", ["length", "success rate", "quality/idle", "in", "näme", "a.b"])
def test_conditions_are_put_in_and_taken_out(many: chromium.Page, name: str) -> None:
    script = CONDITIONS.replace("NAME", json.dumps(name))
    assert many.run(script) == []


def test_keys_alone_lead_to_an_episode(many: chromium.Page) -> None:
    many.run("document.querySelector('.tb-box').focus()")
    for key, code in (("ArrowDown", 40), ("ArrowDown", 40), ("End", 35), ("ArrowUp", 38)):
        many.key(key, code)
    many.wait_for("document.querySelector('.rw-current')?.firstChild.textContent === '398'")
    many.key("Enter", 13)
    many.wait_for("location.hash.startsWith('#/e/local%2Fmany/398')")
    many.run("history.back()")
    many.wait_for(f"{NUMBERS}.includes(398)")  # where it was left


def test_a_million_rows_are_a_few_elements(many: chromium.Page) -> None:
    many.run(MILLION)
    shown = (
        "[...document.querySelectorAll('.rw-inner p')].filter(e => { const r = e.getBoundingClientRect(),"
        " b = rows.box.getBoundingClientRect(); return r.bottom > b.top && r.top < b.bottom; }).map(e => e.textContent)"
    )
    many.wait_for(f"{shown}[0] === '0'")
    assert many.run("document.querySelectorAll('.rw-inner p').length") < 30
    many.run("rows.box.scrollTop = 1e9")
    many.wait_for(f"{shown}.at(-1) === '999999'")
    many.run("rows.box.scrollBy(0, -340)")  # ten rows, though a pixel of the bar stands for several
    many.wait_for(f"{shown}.at(-1) === '999989'")
    many.run("rows.show(654321)")
    many.wait_for(f"{shown}[0] === '654321'")
    many.run("rows.box.scrollTop = rows.box.scrollHeight / 2")
    many.wait_for(f"Math.abs(Number({shown}[0]) - 500000) < 100")
    assert many.run("document.querySelector('.rw-inner').offsetHeight") < 16e6
    assert len(many.run("asked")) < 20


def test_rows_stay_where_they_were_behind_another_tab(many: chromium.Page) -> None:
    many.run("document.querySelector('.tb-box').scrollTop = 34 * 200")
    many.wait_for(f"{NUMBERS}.includes(205)")
    press(many, ".ds-tab", "About")
    many.wait_for("document.querySelector('.ds-about')")
    press(many, ".ds-tab", "Episodes")
    seen = "document.elementFromPoint(60, 500)?.closest('.tb-row')?.firstChild.textContent ?? 0"
    many.wait_for(f"Number({seen}) >= 200")
    assert many.run("document.querySelector('.tb-box').scrollTop") == 34 * 200
    many.run("for (const tab of ['about', 'episodes']) document.getElementById(`tab-${tab}`).click()")  # in one frame
    many.wait_for(f"Number({seen}) >= 200")


def test_other_columns_are_chosen(many: chromium.Page, ds: rlds_cli.Dataset) -> None:
    many.run("document.querySelector('.tb .ch').open = true")
    press(many, ".tb .ch-row", "row")
    many.wait_for("document.querySelector('[data-column=row] .hg-plot')")
    place = "[...document.querySelectorAll('.tb-th')].findIndex(e => e.dataset.column === 'row')"
    many.wait_for(f"{ROWS}[2]?.children[{place}]?.textContent === '{ds.episodes['row'][2]}'")


# -- pictures


def test_the_first_and_last_frames_are_in_the_rows(browser: chromium.Browser, viewer: Viewer) -> None:
    page = at(
        browser, viewer, "local/reaching", wait="[...document.querySelectorAll('.pic')].some(i => i.naturalWidth)"
    )
    page.wait_for(f"{ROWS}.slice(0, 3).every(r => [...r.querySelectorAll('.pic')].filter(i => i.naturalHeight)[3])")
    sources = page.run("[...document.querySelector('.tb-strip').querySelectorAll('img')].map(i => i.src)")
    length = rlds_cli.open_dataset("local/reaching").episodes["length"][0]
    assert "step=0" in sources[0] and f"step={length - 1}" in sources[1] and "height=64" in sources[0]
    assert page.complaints == []


def test_a_sheet_plays_many_episodes_at_once(browser: chromium.Browser, viewer: Viewer) -> None:
    page = at(browser, viewer, "local/reaching", wait="document.querySelectorAll('.pic').length")
    press(page, ".tb-bar button", "Play the first")
    pixels = (
        "[...document.querySelectorAll('.sh-canvas')].slice(0, 3).map(c => [...c.getContext('2d').getImageData(0, 0,"
        " c.width, c.height).data].reduce((a, b, k) => (a + b * (k % 97)) % 1e9, 0)).join()"
    )
    page.wait_for("document.querySelectorAll('.sh-tile').length === 24")
    page.wait_for("!/ of /.test(document.querySelector('.sh-bar [role=status]').textContent)")
    before = page.run(pixels)
    page.wait_for(f"{pixels} !== '{before}'")
    press(page, ".sh-bar button", "More")
    page.wait_for("document.querySelectorAll('.sh-tile').length === 30")
    press(page, ".sh-bar button", "Pause")
    page.run("location.hash = '#/'")
    page.wait_for("!document.querySelector('.sh')")
    assert [c for c in page.complaints if "willReadFrequently" not in c] == []  # this test reads pixels back


# -- the dataset


def test_findings_lead_to_their_episodes(browser: chromium.Browser, viewer: Viewer) -> None:
    page = at(browser, viewer, "local/reaching", "?tab=findings", wait="document.querySelector('.ds-places a')")
    link = page.run("document.querySelector('.ds-places a').getAttribute('href')")
    assert link.startswith("#/e/local%2Freaching/17?") and "step=12" in link
    press(page, ".ds-card button", "Show this episode")
    page.wait_for(f"JSON.stringify({NUMBERS}) === '[17]'")


def test_what_a_dataset_is(browser: chromium.Browser, viewer: Viewer) -> None:
    page = at(browser, viewer, "local/many", "?tab=about", wait="document.querySelector('.ds-fields')")
    said = page.run("document.querySelector('.ds-about').innerText")
    for text in ("recorded in the lab", "MIT", "observation", "float32", "label --episodes 3 quality=bad"):
        assert text in said
    assert page.run("document.querySelectorAll('.ds-spread svg').length") == 2
    assert page.complaints == []


def test_versions_are_opened(browser: chromium.Browser, viewer: Viewer) -> None:
    page = at(
        browser,
        viewer,
        "local/many",
        "?tab=versions",
        wait="document.querySelectorAll('.ds-fields tbody tr').length === 2",
    )
    press(page, ".ds-fields a", "v1")
    page.wait_for(DRAWN)
    page.wait_for("document.querySelector('.ds-pinned').textContent.includes('version 1')")
    assert "quality" not in page.run("[...document.querySelectorAll('.tb-sort')].map(b => b.textContent.trim())")
    press(page, ".ds-pinned a", "Show the newest")
    page.wait_for("document.querySelector('[data-column=quality]')")


def test_names_and_texts_with_markup_are_texts(browser: chromium.Browser, viewer: Viewer) -> None:
    for tab, wait in (
        ("episodes", DRAWN),
        ("about", "document.querySelector('.ds-fields')"),
        ("findings", "document.querySelector('.ds-card')"),
    ):
        page = at(browser, viewer, "local/hostile", f"?tab={tab}", wait=wait)
        assert page.run("globalThis.hurt ?? null") is None
        assert page.run("document.querySelectorAll('#main img:not(.pic), #main script').length") == 0
        assert page.complaints == []


def test_a_selection_is_shown(browser: chromium.Browser, viewer: Viewer) -> None:
    page = at(browser, viewer, "~0")
    page.wait_for(f"{COUNT} === '2 episodes'")
    assert page.run("document.querySelector('h1').textContent") == "local/many"
    page.run("document.querySelector('.tb-same').open = true")
    assert page.run("[...document.querySelectorAll('.tb-line code')].map(e => e.textContent)") == ["ds"]


def test_it_follows_a_dataset_that_grows_and_says_when_it_is_gone(browser: chromium.Browser, tmp_path: Path) -> None:
    with viewing(home=tmp_path) as viewer:
        with rlds_cli.writer("local/growing", home=tmp_path) as writer:
            writer.add_episodes(map(episode, range(3)))
            writer.commit()
            page = at(browser, viewer, "local/growing")
            page.wait_for(f"{COUNT} === '3 episodes'")
            page.run(f"globalThis.row = {ROWS}[0]; globalThis.link = row.querySelector('a').href")
            writer.add_episodes(map(episode, range(3, 8)))
            writer.commit()
            page.wait_for(f"{COUNT} === '8 episodes' && JSON.stringify({NUMBERS}) === '[0,1,2,3,4,5,6,7]'")
            page.wait_for("document.querySelector('.ds-facts').textContent.startsWith('8 episodes')")
            assert page.run(
                f"{ROWS}[0] === row && row.querySelector('a').href !== link"
            )  # its pictures are not redrawn
        shutil.rmtree(tmp_path / "datasets" / "local" / "growing")
        page.wait_for("document.querySelector('.problem')?.textContent.includes('is not in this home')")


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(browser: chromium.Browser, viewer: Viewer, width: int) -> None:
    for query, wait in (
        ("", DRAWN),
        ("?tab=about", "document.querySelector('.ds-fields')"),
        ("?tab=versions", "document.querySelector('.ds-fields')"),
    ):
        page = at(browser, viewer, "local/many", query, wait=wait)
        page.size(width, 800)
        assert page.run("document.documentElement.scrollWidth") <= width


def test_every_control_has_a_name(browser: chromium.Browser, viewer: Viewer) -> None:
    for hash, wait in (
        ("", "document.querySelector('.hm-list a')"),
        ("#/d/local%2Fmany", DRAWN),
        ("#/d/local%2Freaching", "document.querySelector('.pic')"),
    ):
        page = browser.visit(viewer.address + hash)
        page.wait_for(wait)
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        roles = {"button", "link", "textbox", "searchbox", "combobox", "slider", "checkbox", "tab", "grid", "image"}
        unnamed = [
            n
            for n in nodes
            if n.get("role", {}).get("value") in roles and not n.get("ignored") and not n.get("name", {}).get("value")
        ]
        assert unnamed == []
