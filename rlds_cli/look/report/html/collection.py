"""A static page of all datasets of a store: what each holds, how to load it, and a link to its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from rlds_cli.base import text, visible
from rlds_cli.look.report import rendering
from rlds_cli.look.report.card import download_command

GENERATOR = "rlds-catalogue"  # the content of the meta tag by which a page is recognised
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


@dataclass(frozen=True, slots=True)
class CollectionPage:
    """The page of the datasets of a store.

    Attributes
    ----------
    datasets : sequence of CollectionEntry
        In any order; the page sorts them by name.
    address : str, optional
        The store's; None for a directory, which others will see under an address of their own.
    """

    datasets: Sequence[CollectionEntry]
    address: str | None = None

    def render(self) -> str:
        """Return the page."""
        shown = visible.shown(self.address).rstrip("/") if self.address else None
        return rendering.render(
            "catalogue.html",
            title=shown or "Datasets",
            generator=GENERATOR,
            scripted=False,
            address=shown,
            datasets=sorted(self.datasets, key=lambda d: text.natural(d.name)),
            # `./` keeps a name with a colon from being an address of its own
            report_address=lambda d: f"./{quote(d.name, errors='replace')}/report.html",
            command=lambda d: download_command(d.id, f"{shown or 'ADDRESS'}/{d.name}"),
        )

    @staticmethod
    def recognises(page: bytes) -> bool:
        """Return whether rlds wrote a page, as its generator tag says."""
        return f'<meta name="generator" content="{GENERATOR}'.encode() in page[:_HEAD]
