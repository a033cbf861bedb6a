"""A static page of all datasets of a store: what each holds, how to load it, and a link to its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from rlds_cli import __version__, text, visible
from rlds_cli.files.hashing import short
from rlds_cli.report.card import download_command
from rlds_cli.report.html.document import document
from rlds_cli.report.html.markup import Markup, join, tag

GENERATOR = "rlds-catalogue"  # the content of the meta tag by which `is_catalogue` recognises a page
_HEADINGS = ("Dataset", "Fields", "Episodes", "Steps", "Size", "Fingerprint", "Load")
_FIGURES = (2, 3, 4)  # columns of numbers
_MOST_FIELDS = 6
_HEAD = 1024  # bytes at the start of a page that contain its generator


@dataclass(frozen=True, slots=True)
class CollectionEntry:
    """A dataset of a store; ``name`` is its directory below the store.

    ``bytes`` are those at the store. ``version`` is None for the first one of a dataset that does not grow. ``report``
    is True if there is a ``report.html`` beside it. ``problem`` says why its index cannot be read; then nothing else is
    known.
    """

    name: str
    id: str = ""
    fingerprint: str = ""
    version: int | None = None
    episodes: int = 0
    steps: int = 0
    bytes: int = 0
    fields: tuple[str, ...] = ()
    report: bool = False
    problem: str | None = None


def render(datasets: Sequence[CollectionEntry], *, address: str | None = None) -> str:
    """Return the page of the datasets of a store.

    Parameters
    ----------
    datasets : sequence of CollectionEntry
        In any order; the page sorts them by name.
    address : str, optional
        The store's; None for a directory, which others will see under an address of their own.
    """
    ordered = sorted(datasets, key=lambda d: text.natural(d.name))
    shown = visible.shown(address).rstrip("/") if address else None
    body = join(
        tag(
            "header",
            tag("p", "Datasets", class_="kind"),
            tag("h1", shown or "Datasets of this store"),
            tag("ul", (tag("li", tag("strong", n), " ", tag("span", of)) for n, of in _tiles(ordered)), class_="tiles"),
            class_="top",
        ),
        tag("main", tag("section", _table(ordered, shown), _use(shown)), id="content"),
        tag("footer", tag("p", f"Made by rlds {__version__}")),
    )
    return document(shown or "Datasets", body, generator=GENERATOR)


def is_catalogue(page: bytes) -> bool:
    """Recognise a page by its generator tag."""
    return f'<meta name="generator" content="{GENERATOR}'.encode() in page[:_HEAD]


def _tiles(datasets: Sequence[CollectionEntry]) -> Iterator[tuple[str, str]]:
    yield f"{len(datasets):,}", "dataset" if len(datasets) == 1 else "datasets"
    yield f"{sum(d.steps for d in datasets):,}", "steps"
    yield f"{sum(d.episodes for d in datasets):,}", "episodes"
    yield text.size_of(sum(d.bytes for d in datasets)), "at the store"


def _table(datasets: Sequence[CollectionEntry], address: str | None) -> Markup:
    head = (tag("th", h, scope="col", class_="figure" if k in _FIGURES else None) for k, h in enumerate(_HEADINGS))
    rows = (_row(d, address) for d in datasets)
    table = tag("table", tag("caption", "All datasets"), tag("thead", tag("tr", head)), tag("tbody", rows))
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="All datasets")


def _row(d: CollectionEntry, address: str | None) -> Markup:
    # `./` keeps a name with a colon from being an address of its own
    place = quote(d.name, errors="replace")
    title = tag("a", d.name, href=f"./{place}/report.html") if d.report else d.name
    if d.problem is not None:
        return tag("tr", tag("th", title, scope="row"), tag("td", d.problem, colspan=len(_HEADINGS) - 1, class_="wrap"))
    grows = tag("span", f" version {d.version:,}", class_="aside") if d.version is not None else None
    cells = (f"{d.episodes:,}", f"{d.steps:,}", text.size_of(d.bytes))
    command = download_command(d.id, f"{address or 'ADDRESS'}/{d.name}")
    return tag(
        "tr",
        tag("th", title, grows, scope="row"),
        tag("td", _fields(d.fields), class_="wrap"),
        (tag("td", cell, class_="figure") for cell in cells),
        tag("td", tag("code", short(d.fingerprint), title=d.fingerprint)),
        tag("td", tag("code", command), class_="wrap"),
    )


def _fields(names: Sequence[str]) -> Markup:
    shown = [tag("code", name) for name in names[:_MOST_FIELDS]]
    more = len(names) - len(shown)
    parts = (item for k, name in enumerate(shown) for item in ((", ", name) if k else (name,)))
    return join(*parts, f" and {more} more" if more > 0 else None)


def _use(address: str | None) -> Markup:
    stands = "" if address else " ADDRESS stands for the address of this page."
    return tag(
        "p",
        "Every block is checked when it arrives. ",
        tag("code", "pip install rlds-cli"),
        f" brings the command.{stands}",
        class_="aside",
    )
