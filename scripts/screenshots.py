"""Take pictures of the site, of the viewer, and of the reports of the embedded samples, for a person to look at.

``site-*.png`` are sheets of all pages of the site, as they are on a desktop and on a phone: `make docs` builds it.
``report.png`` in the folder is the picture of docs/guides/report.md: the head of one report and its episode
distributions. ``view-*.png`` and ``decide-*.png`` are kept in docs/pictures, too.

Usage: python scripts/screenshots.py [FOLDER]        needs Chromium; default folder: screenshots
"""

from __future__ import annotations

import base64
import io
import os
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.extend(str(ROOT / "tests" / name) for name in ("support", "contract"))

import chromium  # noqa: E402
import page_data  # noqa: E402
import site_pages  # noqa: E402
import walk  # noqa: E402
from viewer import viewing  # noqa: E402

import rlds_cli  # noqa: E402
from rlds_cli.look.report.html import write_page  # noqa: E402

VIEWS = {
    "light": {"width": 1280},
    "dark": {"width": 1280, "dark": True},
    "narrow": {"width": 390, "height": 800},
    "narrow-dark": {"width": 390, "height": 800, "dark": True},
}
# Of the viewer: where its address leads, what must be there, what is pressed before, and the height of the window.
PAGES = {
    "home": ("#/", "document.querySelector('main a')", "", 620),
    "episodes": (
        "#/d/local%2Freaching?where=success",
        "[...document.querySelectorAll('.tb-row img')].filter(i => i.complete && i.naturalWidth).length > 12",
        "",
        760,
    ),
    "episode": (
        "#/e/local%2Freaching/3?step=21",
        "[...document.querySelectorAll('.cam canvas')].every(c => c.dataset.row === '21')",
        "",
        900,
    ),
    "sheet": (
        "#/d/local%2Freaching",
        "document.querySelectorAll('.sh-grid canvas').length > 8",
        "[...document.querySelectorAll('button')].find(b => b.textContent.startsWith('Play the first'))",
        760,
    ),
}
SHEETS = {"desktop": (6, 4, 320), "phone": (12, 3, 160)}  # pages beside and below each other, and their width in pixels
TALL = 2.2  # how often the width of a page is the height that a sheet shows of it, at most
WALK = 700  # pixels, the height of the window in which one decides
SHOWN, COLOURS = "sample-pendulum-d4rl", 64  # the report in the README
HIDE = "document.querySelectorAll('section').forEach(s => s.hidden = s.id != 'distributions')"
BOTTOM = "Math.ceil(document.getElementById('distributions').getBoundingClientRect().bottom + scrollY) - 2"


def main(folder: Path) -> int:
    """Write the reports and their pictures; return 1 if a page has errors or warnings."""
    path = chromium.find()
    if path is None:
        print(f"Chromium is not installed ({', '.join(chromium.NAMES)})", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"RLDS_HOME": home, "RLDS_OFFLINE": "1"}
        made = [rlds_cli.download(entry.id) for entry in rlds_cli.find(family="sample")]
        made += [page_data.pictures(), page_data.hostile()]
        pages = [folder / f"{ds.id.replace('/', '-')}.html" for ds in made]
        for ds, page in zip(made, pages, strict=True):
            write_page(ds, page.resolve(), force=True)
    complaints = []
    with chromium.Browser(path) as browser:
        for page in pages:
            for name, view in VIEWS.items():
                tab = browser.open(page.resolve(), **view)
                tab.screenshot(folder / f"{page.stem}-{name}.png")
                complaints += [f"{page.name}, {name}: {c}" for c in tab.complaints]
        for_readme(browser, folder)
        complaints += viewer(browser, folder)
        complaints += deciding(browser, folder)
        complaints += site(browser, folder)
    print(f"{len(pages)} reports, {len(pages) * len(VIEWS) + len(PAGES)} pictures in {folder}")
    print(*complaints, sep="\n", end="\n" if complaints else "")
    return 1 if complaints else 0


def for_readme(browser: chromium.Browser, folder: Path) -> None:
    """Write report.png: the head of a report and its episode distributions, without the sections between."""
    tab = browser.open((folder / f"{SHOWN}.html").resolve(), **VIEWS["light"])
    tab.run(HIDE)
    bottom = tab.run(BOTTOM)
    tab.screenshot(folder / "report.png")
    with Image.open(folder / "report.png") as page:
        upper = page.convert("RGB").crop((0, 0, page.width, bottom))
    upper.quantize(COLOURS).save(folder / "report.png", optimize=True)


def viewer(browser: chromium.Browser, folder: Path) -> list[str]:
    """Write the pictures of the viewer; return what its pages complain of."""
    complaints = []
    with tempfile.TemporaryDirectory() as home:
        os.environ["RLDS_HOME"] = home
        for entry in rlds_cli.find(family="sample"):
            rlds_cli.download(entry.id)
        page_data.recorded()
        with viewing() as server:
            for name, (target, there, pressed, height) in PAGES.items():
                tab = browser.visit(server.address + target, width=1280, height=height)
                if pressed:
                    tab.wait_for(f"Boolean({pressed})")
                    tab.run(f"{pressed}.click()")
                tab.wait_for(f"Boolean({there})")
                time.sleep(2)  # curves and pictures below
                shot(tab, folder / f"view-{name}.png")
                complaints += [f"view-{name}: {c}" for c in tab.complaints]
    return complaints


def shot(tab: chromium.Page, file: Path) -> None:
    """Write a picture of what the window shows."""
    taken = tab.call("Page.captureScreenshot", format="png")["data"]
    with Image.open(io.BytesIO(base64.b64decode(taken))) as page:
        page.convert("RGB").quantize(128).save(file, optimize=True)


def deciding(browser: chromium.Browser, folder: Path) -> list[str]:
    """Write a picture of each step from forty episodes to a saved selection; return what the pages complain of."""
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"HOME": home, "RLDS_HOME": f"{home}/rlds"}
        page_data.faulty()
        with viewing() as server:
            tab = browser.visit(server.address, width=1280, height=WALK)

            def picture(name: str) -> None:
                time.sleep(7 if name in ("review", "saved") else 2)  # what was said last goes away
                shot(tab, folder / f"decide-{name}.png")

            walk.walk(tab, picture)
            tab.run("location.hash = '#/c/local%2Freaching/3?with=2&step=30'")
            tab.wait_for("document.querySelectorAll('.cm .cam canvas[data-row]').length === 4")
            tab.size(1280, 760)
            picture("compare")
            return [f"decide: {c}" for c in tab.complaints]


def site(browser: chromium.Browser, folder: Path) -> list[str]:
    """Write the sheets of the site; return what is wrong with its pages."""
    taken: dict[str, list[Image.Image]] = {name: [] for name in SHEETS}
    complaints = [f"dead link: {link}" for link in site_pages.dead_links()]
    for page, window, tab in site_pages.walk(browser):
        complaints += [f"{page.name}, {window}: {fault}" for fault in site_pages.faults(tab)]
        taken[window].append(small(tab, SHEETS[window][2]))
    for window, (across, down, width) in SHEETS.items():
        pictures = taken[window]
        for k, start in enumerate(range(0, len(pictures), across * down)):
            sheet(pictures[start : start + across * down], across, width).save(folder / f"site-{window}-{k + 1}.png")
    return complaints


def small(tab: chromium.Page, width: int) -> Image.Image:
    """The upper part of a page, of this width."""
    wide = tab.run("document.documentElement.clientWidth")
    high = min(tab.run("document.documentElement.scrollHeight"), int(TALL * wide))
    clip = {"x": 0, "y": 0, "width": wide, "height": high, "scale": width / wide}
    answer = tab.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    return Image.open(io.BytesIO(base64.b64decode(answer["data"]))).convert("RGB")


def sheet(pictures: list[Image.Image], across: int, width: int) -> Image.Image:
    """Pictures beside and below each other."""
    height = int(TALL * width)
    rows = -(-len(pictures) // across)
    whole = Image.new("RGB", (across * (width + 8), rows * (height + 8)), "gray")
    for k, picture in enumerate(pictures):
        whole.paste(picture, (k % across * (width + 8) + 4, k // across * (height + 8) + 4))
    return whole


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "screenshots")))
