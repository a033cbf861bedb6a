"""Pages beside a pushed dataset, for people and programs: the card, Croissant metadata and the HTML report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rlds_cli.base.progress import Progress, silent
from rlds_cli.dataset import open_dataset
from rlds_cli.look.report.card import MARK, card
from rlds_cli.look.report.croissant import DescribedFile, croissant
from rlds_cli.look.report.html import GENERATOR, read_content, render
from rlds_cli.look.report.summary import summarise

CARD, METADATA, REPORT = "README.md", "croissant.json", "report.html"
_HEAD = 1024  # bytes at the start of a report that hold its generator
_USUAL = 2_000_000  # bytes of a large report
_SHARE = 0.01  # of the bytes that a push sends, for episodes and values
_MOST, _SMALLEST = 0.03, 60_000  # of these bytes for the whole report, and bytes that no report falls below
_LEAST = 1 / 64  # of the usual numbers of episodes and values


def pages_beside(
    path: Path,
    stored: Iterable[DescribedFile],
    read: Callable[[str], bytes | None],
    *,
    size: int,
    version: int,
    address: str | None,
    url: str | None,
    sent: int | None = None,
    always: bool = False,
    progress: Progress = silent,
) -> Mapping[str, bytes]:
    """Return the pages to be written beside an index, by name.

    A card or report at the address that rlds did not write, or that somebody has taken over, is left as it is. The
    report reads every row. After a push of a part of the dataset it shows fewer episodes, so that it is small beside
    what is sent; if it cannot be, it is left out, and that of an earlier push stays.

    Parameters
    ----------
    path : Path
        The dataset.
    stored : iterable of DescribedFile
        The files of the version at the address.
    read : callable
        Returns the content of a file at the address by its name; None if there is none.
    size : int
        Bytes of the version at the address.
    version : int
        Of the dataset, as it is pushed.
    address : str, optional
        Where it is pushed to; None for a directory, which others will see under an address of their own.
    url : str, optional
        The web page of the address.
    sent : int, optional
        Bytes of objects that this push sends; all unless given.
    always : bool
        Write the report whatever is sent.
    """
    some = not always and sent is not None and sent < size
    ds = open_dataset(f"{path}#v{version}")
    made = {}
    summary = None
    if not some or (sent or 0) * _MOST >= _SMALLEST:
        share = min(1.0, max(_LEAST, _SHARE * (size if sent is None or always else sent) / _USUAL))
        content = read_content(ds, share=share, progress=progress)
        summary, report = content.summary, render(content).encode("utf-8", "replace")
        if not some or len(report) <= (sent or 0) * _MOST:
            made[REPORT] = report
    summary = summary or summarise(ds)
    made[CARD] = card(summary, address=address, size=size).encode()
    made[METADATA] = croissant(summary, stored, url=url).encode()
    return {name: page for name, page in made.items() if _is_to_be_written(name, page, read(name))}


def _is_to_be_written(name: str, page: bytes, there: bytes | None) -> bool:
    """Return whether a page is another than the one at the address, which is missing or one of rlds."""
    if there is None or name == METADATA:
        return there != page
    ours = MARK.encode() in there if name == CARD else GENERATOR.encode() in there[:_HEAD]
    return ours and there != page
