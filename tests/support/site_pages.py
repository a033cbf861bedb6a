"""The site as it is built, page by page: where its links lead, and what is wrong with it in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import chromium

SITE = Path(__file__).parents[2] / "site"
WINDOWS = {"desktop": (1280, 900), "phone": (390, 844)}  # pixels

# What is wrong with a page, in words. Tables, code and diagrams scroll in themselves.
_FAULTS = """(() => {
const found = [];
const article = document.querySelector('article'), wide = document.documentElement.clientWidth;
const scrolls = e => e !== document.body
    && (/auto|scroll/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
if (document.documentElement.scrollWidth > wide) found.push(`is ${document.documentElement.scrollWidth} px wide`);
if (article.innerText.trim().length < 80) found.push('is empty');
for (const e of article.querySelectorAll('*')) {
    const box = e.getBoundingClientRect();
    if (box.width && (box.right > wide + 1 || box.left < -1) && !scrolls(e.parentElement))
        found.push(`cuts ${e.outerHTML.slice(0, 90)}`);
}
for (const e of article.querySelectorAll('td code'))
    if (e.innerText.includes('\\\\|')) found.push(`shows a backslash in ${e.innerText}`);
for (const e of document.images)
    if (!e.naturalWidth) found.push(`lacks the picture ${e.getAttribute('src')}`);
for (const e of article.querySelectorAll('thead'))
    if (!e.innerText.trim()) found.push('has a table with an empty head');
return found;
})()"""


def pages() -> list[Path]:
    """The pages, in the order of their names."""
    return sorted(page for page in SITE.rglob("*.html") if page.name != "404.html")


def walk(browser: chromium.Browser) -> Iterator[tuple[Path, str, chromium.Page]]:
    """Each page in each window, the name of which comes second, in one tab; its complaints are those of the page."""
    tab = browser.visit("about:blank")
    for page in pages():
        for k, (name, size) in enumerate(WINDOWS.items()):
            tab.size(*size)  # the theme moves its menus when a page gets wider, not when it gets narrower
            if k == 0:
                tab.go(page.as_uri())
            yield page, name, tab


def faults(tab: chromium.Page) -> list[str]:
    """What is cut, empty, sideways or absent on the page that a tab shows, and what the browser complains of."""
    return [*tab.run(_FAULTS), *tab.complaints]


class _Links(HTMLParser):
    """The anchors that a page has, and the addresses that it names."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {name for key in ("id", "name") if (name := given.get(key))}
        self.addresses += [address for key in ("href", "src") if (address := given.get(key))]


def dead_links() -> Iterator[str]:
    """What pages link to, or show, and the site does not have: files, and anchors of pages."""
    read = {}
    for page in pages():
        read[page] = _Links()
        read[page].feed(page.read_text(encoding="utf-8"))
    for page, links in read.items():
        for address in dict.fromkeys(links.addresses):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment) if target in read else ""
            if not target.exists() or (anchor and anchor not in read[target].anchors):
                yield f"{page.relative_to(SITE)}: {address}"
