"""What lies beside a pushed dataset for people and programs: the card, Croissant metadata and the HTML report."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from rlds_cli.dataset import open_dataset
from rlds_cli.progress import Progress, silent
from rlds_cli.remote.addresses import Address
from rlds_cli.remote.index import NAME, Index
from rlds_cli.remote.objects import Objects
from rlds_cli.report.card import MARK, card
from rlds_cli.report.croissant import StoredFile, croissant
from rlds_cli.report.html import GENERATOR, read_content, render

CARD, METADATA, REPORT = "README.md", "croissant.json", "report.html"
_HEAD = 1024  # bytes at the start of a report that hold its generator
_USUAL = 2_000_000  # bytes of a large report
_SHARE = 0.01  # of the bytes that a push sends, which the report may have
_LEAST = 1 / 64  # of the usual numbers of episodes and values


def pages(
    path: Path, index: Index, objects: Objects, *, sent: int | None = None, progress: Progress = silent
) -> Mapping[str, bytes]:
    """Return the pages to be written beside an index, by name. Reads every row once, as the report checks them.

    A card or report at the address that rlds did not write, or that somebody has taken over, is left as it is. After a
    push of few bytes the report shows fewer episodes, so that it is small beside them.

    Parameters
    ----------
    path : Path
        The dataset.
    index : Index
        As it is pushed; of a dataset that grows, the generation that it names.
    objects : Objects
        What is at the address.
    sent : int, optional
        Bytes of objects that this push sends; all unless given.
    """
    ds = open_dataset(path, generation=index.generation)
    address = objects.address
    shown = None if address.scheme == "file" else str(address)
    size = sum(o.size for o in index.objects)
    share = min(1.0, max(_LEAST, _SHARE * (size if sent is None else sent) / _USUAL))
    content = read_content(ds, share=share, progress=progress)
    summary, report = content.summary, render(content)
    described = croissant(summary, _files(index), url=_page(address, objects.where.hub))
    made = {
        CARD: card(summary, address=shown, size=size).encode(),
        METADATA: described.encode(),
        REPORT: report.encode("utf-8", "replace"),
    }
    return {name: page for name, page in made.items() if _is_ours(name, objects)}


def _files(index: Index) -> list[StoredFile]:
    text = index.to_bytes()
    return [
        StoredFile(NAME, len(text), hashlib.sha256(text).hexdigest()),
        StoredFile(index.blocks_name, index.blocks.size, index.blocks.sha256),
        *(StoredFile(o.name, o.size, o.sha256) for o in index.objects),
    ]


def _page(address: Address, hub: str) -> str | None:
    """Return the web page of a dataset on the hub."""
    if address.scheme != "hf":
        return None
    below = f"/tree/{address.revision or 'main'}/{address.path}" if address.path or address.revision else ""
    return f"{hub}/datasets/{address.root}{below.rstrip('/')}"


def _is_ours(name: str, objects: Objects) -> bool:
    """Return whether a page may be written: there is none, or it is one of rlds."""
    if name == METADATA:
        return True
    there = objects.read(name)
    if there is None:
        return True
    return MARK.encode() in there.data if name == CARD else GENERATOR.encode() in there.data[:_HEAD]
