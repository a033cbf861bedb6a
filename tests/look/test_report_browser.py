"""The report in Chromium: nothing complains, the table sorts and filters, the viewer follows. Skipped without one."""

from __future__ import annotations

import re
from pathlib import Path

import chromium
import page_data
import pytest

import rlds_cli
from rlds_cli.look.report.html import write_page

BROWSER = chromium.find()
NAMES = ("cartpole-minari", "mountaincar-robohive", "pendulum-d4rl", "pictures", "hostile")

pytestmark = [
    pytest.mark.view,
    pytest.mark.skipif(BROWSER is None, reason=f"no Chromium here ({', '.join(chromium.NAMES)})"),
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(folder / "home"))
        made = {name: rlds_cli.download(f"sample/{name}") for name in NAMES[:3]}
        made |= {"pictures": page_data.pictures(), "hostile": page_data.hostile()}
        for name, ds in made.items():
            write_page(ds, folder / f"{name}.html")
    return folder


@pytest.fixture
def pendulum(browser: chromium.Browser, reports: Path) -> chromium.Page:
    return browser.open(reports / "pendulum-d4rl.html")


def column(page: chromium.Page, place: int) -> list[str]:
    """What stands in a column of the table, as far as it is shown."""
    found = page.run(
        f"[...document.querySelectorAll('#episode-table tbody tr')].map(r => r.cells[{place}].textContent)"
    )
    assert isinstance(found, list)
    return found


def sort(page: chromium.Page, label: str) -> str:
    """Press the button of a column's head; what the head then says of its order."""
    heads = "[...document.querySelectorAll('#episode-table thead th')]"
    return str(
        page.run(
            f"(() => {{ const head = {heads}.find(h => h.textContent === '{label}');"
            " head.querySelector('button').click(); return head.ariaSort; })()"
        )
    )


def enter(page: chromium.Page, id: str, value: str) -> None:
    page.run(
        f"(() => {{ const control = document.getElementById('{id}'); control.value = '{value}';"
        " control.dispatchEvent(new Event('input', {bubbles: true}));"
        " control.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def said(page: chromium.Page, id: str) -> str:
    return str(page.run(f"document.getElementById('{id}').textContent"))


# -- every page


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_no_page_complains_or_asks_for_anything(
    browser: chromium.Browser, reports: Path, name: str, width: int, dark: bool
) -> None:
    page = browser.open(reports / f"{name}.html", width=width, dark=dark)
    assert page.complaints == []
    assert page.requests == [(reports / f"{name}.html").as_uri()]
    assert page.run("typeof globalThis.hurt") == "undefined"
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.querySelectorAll('.lane path.curve[d^=M]').length") > 2
    assert page.run("[...document.images].every(i => i.complete && i.naturalWidth > 0 || !i.src)")


def test_light_and_dark_differ(browser: chromium.Browser, reports: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = (browser.open(reports / "cartpole-minari.html", dark=d).run(colour) for d in (False, True))
    brightness = [sum(map(int, re.findall(r"\d+", c))) for c in (light, dark)]
    assert brightness[0] > 650 and brightness[1] < 100


def test_text_stands_out_from_its_ground(browser: chromium.Browser, reports: Path) -> None:
    """Contrast of at least 4.5, as WCAG 2 asks for (1.4.3)."""
    for dark in (False, True):
        page = browser.open(reports / "pictures.html", dark=dark)
        pairs = page.run(
            "['--text', '--soft', '--accent', '--warn', '--bad'].flatMap(f => ['--page', '--card'].map(g => "
            "[f, g].map(v => getComputedStyle(document.documentElement).getPropertyValue(v).trim())))"
        )
        assert [pair for pair in pairs if contrast(*pair) < 4.5] == []


def contrast(one: str, other: str) -> float:
    """Of two colours ``#rrggbb``, by the formula of WCAG 2."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_it_prints(pendulum: chromium.Page) -> None:
    pendulum.media(media="print")
    assert pendulum.run("getComputedStyle(document.getElementById('filters')).display") == "none"
    assert len(pendulum.pdf()) > 20_000


# -- the table


def test_the_table_sorts(pendulum: chromium.Page) -> None:
    assert column(pendulum, 0) == [str(k) for k in range(25)]
    assert sort(pendulum, "Return") == "descending"
    returns = [float(v.replace(",", "")) for v in column(pendulum, 2)]
    assert len(returns) == 25 and returns == sorted(returns, reverse=True)
    assert sort(pendulum, "Return") == "ascending"
    returns = [float(v.replace(",", "")) for v in column(pendulum, 2)]
    assert returns == sorted(returns)
    orders = pendulum.run("[...document.querySelectorAll('#episode-table th[aria-sort]')].map(h => h.ariaSort)")
    assert orders.count("none") == len(orders) - 1
    assert pendulum.complaints == []


def test_the_table_turns_its_pages(pendulum: chromium.Page) -> None:
    assert said(pendulum, "listed") == "26 episodes; 1 to 25 shown."
    assert pendulum.run("document.getElementById('page-before').disabled")
    pendulum.run("document.getElementById('page-after').click()")
    assert column(pendulum, 0) == ["25"] and said(pendulum, "page-number") == "Page 2 of 2"
    assert pendulum.run("document.getElementById('page-after').disabled")


def test_the_table_filters_and_says_how_in_python(pendulum: chromium.Page, reports: Path) -> None:
    ds = rlds_cli.open_dataset("sample/pendulum-d4rl", home=reports / "home")
    enter(pendulum, "filter-total-least", "-150")
    enter(pendulum, "filter-end", "truncated")
    code = said(pendulum, "selection")
    assert code == (
        'rlds_cli.open_dataset("sample/pendulum-d4rl").select(where="end == \'truncated\' and total_reward >= -150")'
    )
    where = "end == 'truncated' and total_reward >= -150"
    assert [int(n) for n in column(pendulum, 0)] == ds.select(where=where).episodes.index.tolist()
    assert "of 26 episodes match" in said(pendulum, "listed")
    enter(pendulum, "filter-total-least", "1e9")
    assert column(pendulum, 0) == [] and said(pendulum, "listed").endswith("none shown.")
    pendulum.run("document.querySelector('#filters button[type=reset]').click()")
    pendulum.run("new Promise(done => setTimeout(done, 20))")
    assert len(column(pendulum, 0)) == 25


def test_the_table_works_by_keyboard(pendulum: chromium.Page) -> None:
    pendulum.run("document.querySelectorAll('#episode-table thead button')[1].focus()")
    pendulum.key("Enter", 13)
    assert pendulum.run("document.querySelectorAll('#episode-table thead th')[1].ariaSort") == "descending"
    assert pendulum.run("document.activeElement.textContent") == "Length"


# -- the viewer


def test_a_finding_leads_to_its_step(browser: chromium.Browser, reports: Path) -> None:
    page = browser.open(reports / "pictures.html")
    page.run("document.querySelector('.findings a').click()")
    page.run("new Promise(done => setTimeout(done, 50))")
    assert page.run("location.hash") == "#episode-17-step-12"
    assert said(page, "step-number").startswith("step 12 of ")
    assert page.run("document.activeElement.id") == "step"
    assert page.run("document.getElementById('episode').selectedOptions[0].textContent").startswith("17: ")
    at = "[...document.querySelectorAll('.group')].find(g => g.textContent.startsWith('observation/state'))"
    values = page.run(f"[...{at}.querySelectorAll('.now')].map(n => n.textContent)")
    assert values[3] == "–" and "–" not in values[:3]  # the value that is not a number
    assert page.run("[...document.querySelectorAll('.chip.is-error')].length") == 1
    assert page.complaints == []


def test_an_address_opens_at_its_step(browser: chromium.Browser, reports: Path) -> None:
    page = browser.open(reports / "cartpole-minari.html", address="#episode-3-step-40")
    assert said(page, "step-number") == "step 40 of 500"
    assert browser.open(reports / "cartpole-minari.html", address="#episode-99").complaints == []


def test_curves_follow_the_step(browser: chromium.Browser, reports: Path) -> None:
    ds = rlds_cli.open_dataset("sample/pendulum-d4rl", home=reports / "home")
    page = browser.open(reports / "pendulum-d4rl.html", address="#episode-4-step-0")
    start = int(ds.episodes["start"][4])
    for _ in range(7):
        page.key("ArrowRight", 39)
    assert said(page, "step-number") == "step 7 of 200"
    assert page.run("document.getElementById('step').getAttribute('aria-valuetext')") == "step 7 of 200"
    shown = [
        float(v.replace(",", "")) for v in page.run("[...document.querySelectorAll('.now')].map(n => n.textContent)")
    ]
    expected = [
        *ds.column("observation")[start + 7],
        *ds.column("action")[start + 7],
        ds.column("next/reward")[start + 7],
    ]
    assert shown[:5] == pytest.approx([float(x) for x in expected], rel=1e-3)
    cursors = page.run("[...document.querySelectorAll('.lane .cursor')].map(c => c.getAttribute('x1'))")
    assert len(cursors) > 5 and set(cursors) == {"21.0"}  # 7 of 200 steps of 600
    page.key("End", 35)
    assert said(page, "step-number") == "step 200 of 200"


def test_pointing_at_a_curve_moves_the_step(pendulum: chromium.Page) -> None:
    pendulum.run("document.querySelector('.lane svg').scrollIntoView({block: 'center', behavior: 'instant'})")
    x, y, width = pendulum.run(
        "(() => { const box = document.querySelector('.lane svg').getBoundingClientRect();"
        " return [box.x, box.y + 20, box.width]; })()"
    )
    pendulum.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + width / 4, y=y)
    assert said(pendulum, "step-number") == "step 50 of 200"


def test_film_strips_follow_and_lead(browser: chromium.Browser, reports: Path) -> None:
    page = browser.open(reports / "pictures.html")
    assert page.run("document.querySelectorAll('.film').length") == 2
    page.run("document.querySelectorAll('.film')[0].querySelectorAll('button')[3].click()")
    step = page.run("document.querySelectorAll('.film')[0].querySelectorAll('button')[3].textContent")
    assert said(page, "step-number").startswith(f"step {step} of ")
    current = page.run("[...document.querySelectorAll('.film [aria-current] img')].map(i => i.alt)")
    assert current[0] == f"observation/front at step {step}" and len(current) == 2
    assert page.run("document.querySelector('.large').src === document.querySelector('[aria-current] img').src")


def test_it_plays_and_stops_at_the_end(browser: chromium.Browser, reports: Path) -> None:
    page = browser.open(reports / "pictures.html")
    page.run(
        "(() => { const step = document.getElementById('step'); step.value = step.max - 3;"
        " step.dispatchEvent(new Event('input')); })()"
    )
    page.run("document.getElementById('play').click()")
    assert page.run("document.getElementById('play').ariaPressed") == "true"
    page.run(
        "new Promise(done => { const wait = setInterval(() => { if (document.getElementById('play').ariaPressed"
        " === 'false') { clearInterval(wait); done(); } }, 20); })"
    )
    assert page.run("document.getElementById('step').value === document.getElementById('step').max")


def test_one_scale_for_all_episodes(pendulum: chromium.Page) -> None:
    ranges = "[...document.querySelectorAll('.lane .range')].map(r => r.textContent)"
    before = pendulum.run(ranges)
    pendulum.run("document.getElementById('common').click()")
    common = pendulum.run(ranges)
    pendulum.run("document.getElementById('episode-after').click()")
    assert pendulum.run(ranges) == common != before
