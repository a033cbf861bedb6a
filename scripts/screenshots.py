"""Take pictures of the reports of the embedded samples and of a dataset with images, for a person to look at.

``report.png`` in the folder is the picture of the README, kept as docs/report.png: the head of one report and its
episode distributions.

Usage: python scripts/screenshots.py [FOLDER]        needs Chromium; default folder: screenshots
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.extend(str(ROOT / "tests" / name) for name in ("support", "contract"))

import chromium  # noqa: E402
import page_data  # noqa: E402

import rlds_cli  # noqa: E402
from rlds_cli.look.report.html import write_page  # noqa: E402

VIEWS = {
    "light": {"width": 1280},
    "dark": {"width": 1280, "dark": True},
    "narrow": {"width": 390, "height": 800},
    "narrow-dark": {"width": 390, "height": 800, "dark": True},
}
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
    print(f"{len(pages)} reports, {len(pages) * len(VIEWS)} pictures in {folder}")
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


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "screenshots")))
