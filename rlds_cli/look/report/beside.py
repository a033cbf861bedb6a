"""Pages beside a pushed dataset, for people and programs: the card, Croissant metadata and the HTML report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlds_cli.base.progress import Progress, silent
from rlds_cli.dataset import open_dataset
from rlds_cli.look.report.card import MARK, card
from rlds_cli.look.report.croissant import StoredFile, croissant
from rlds_cli.look.report.html import GENERATOR, read_content, render
from rlds_cli.look.report.summary import summarise
from rlds_cli.places import Address, Index
from rlds_cli.places.sources.objects import Objects

CARD, METADATA, REPORT = "README.md", "croissant.json", "report.html"
_HEAD = 1024  # bytes at the start of a report that hold its generator
_USUAL = 2_000_000  # bytes of a large report
_SHARE = 0.01  # of the bytes that a push sends, for episodes and values
_MOST, _SMALLEST = 0.03, 60_000  # of these bytes for the whole report, and bytes that no report falls below
_LEAST = 1 / 64  # of the usual numbers of episodes and values


def pages_beside(
    path: Path,
    index: Index,
    objects: Objects,
    *,
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
    index : Index
        As it is pushed; of a growing dataset, the version that it names.
    objects : Objects
        What is at the address.
    sent : int, optional
        Bytes of objects that this push sends; all unless given.
    always : bool
        Write the report whatever is sent.
    """
    size = sum(o.size for o in index.objects)
    some = not always and sent is not None and sent < size
    ds = open_dataset(f"{path}#v{index.version}")
    shown = None if objects.address.scheme == "file" else str(objects.address)
    made = {}
    summary = None
    if not some or (sent or 0) * _MOST >= _SMALLEST:
        share = min(1.0, max(_LEAST, _SHARE * (size if sent is None or always else sent) / _USUAL))
        content = read_content(ds, share=share, progress=progress)
        summary, report = content.summary, render(content).encode("utf-8", "replace")
        if not some or len(report) <= (sent or 0) * _MOST:
            made[REPORT] = report
    summary = summary or summarise(ds)
    made[CARD] = card(summary, address=shown, size=size).encode()
    made[METADATA] = croissant(summary, _files(index), url=_page(objects.address, objects.where.hub)).encode()
    return {name: page for name, page in made.items() if _is_to_be_written(name, page, objects)}


def _files(index: Index) -> list[StoredFile]:
    return [
        StoredFile(f"indexes/{index.sha256}", len(index.to_bytes()), index.sha256),
        StoredFile(index.groups_name, index.groups.size, index.groups.sha256),
        *(StoredFile(o.name, o.size, o.sha256) for o in index.objects),
    ]


def _page(address: Address, hub: str) -> str | None:
    """Return the web page of a dataset on the hub."""
    if address.scheme != "hf":
        return None
    below = f"/tree/{address.revision or 'main'}/{address.path}" if address.path or address.revision else ""
    return f"{hub}/datasets/{address.root}{below.rstrip('/')}"


def _is_to_be_written(name: str, page: bytes, objects: Objects) -> bool:
    """Return whether a page is another than the one at the address, which is missing or one of rlds."""
    there = objects.read(name)
    if there is None or name == METADATA:
        return there is None or there.data != page
    ours = MARK.encode() in there.data if name == CARD else GENERATOR.encode() in there.data[:_HEAD]
    return ours and there.data != page
