"""Pictures of the reports of the embedded samples and of a dataset with images, for a person to look at.

The upper part of one of them is the picture of the README: ``report.png`` in the folder, kept as docs/report.png.

Usage: python scripts/screenshots.py [FOLDER]        needs Chromium; default folder: screenshots
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import chromium  # noqa: E402
import page_data  # noqa: E402

import rlds_cli  # noqa: E402
from rlds_cli.report.html import write_page  # noqa: E402

VIEWS = {
    "light": {"width": 1280},
    "dark": {"width": 1280, "dark": True},
    "narrow": {"width": 390, "height": 800},
    "narrow-dark": {"width": 390, "height": 800, "dark": True},
}
SHOWN, HEIGHT, COLOURS = "sample-pendulum-d4rl-light.png", 1640, 64  # in the README: as far as the distributions


def main(folder: Path) -> int:
    """Write the reports and their pictures; 1 where a page complains."""
    path = chromium.find()
    if path is None:
        print(f"no Chromium here ({', '.join(chromium.NAMES)})", file=sys.stderr)
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
    with Image.open(folder / SHOWN) as page:
        upper = page.convert("RGB").crop((0, 0, page.width, HEIGHT))
    upper.quantize(COLOURS).save(folder / "report.png", optimize=True)
    print(f"{len(pages)} reports, {len(pages) * len(VIEWS)} pictures in {folder}")
    print(*complaints, sep="\n", end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "screenshots")))
