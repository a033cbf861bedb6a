"""Datasets that are fetched for commands that read one: samples, and those at an address."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlds_cli.base import refs, text
from rlds_cli.cli import out

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


def fetch_sample(ref: str, home: Path | None) -> Dataset | None:
    """Open a dataset ``sample/...``, or download it first; None for any other. Samples come with rlds."""
    if not ref.startswith("sample/"):
        return None
    from rlds_cli.make import load

    with out.progress() as progress:
        return load(ref, home=home, progress=progress)


def opened(ref: str, home: Path | None) -> Dataset | None:
    """Open the dataset at an address; None for an id, a file, and the directory of a dataset."""
    if not refs.is_address(ref):
        return None
    from rlds_cli import dataset

    address = dataset.remote_address(refs.parse(ref))
    if address is None:
        return None
    found = dataset.open_dataset(ref, home=home)
    if not found.store.address:
        out.note(
            f"{address}: {found.id} in {found.path} is shown, which came from there or was pushed there; "
            "nothing was fetched"
        )
    return found


def tell(*datasets: Dataset | None) -> None:
    """Say what was fetched of datasets at an address."""
    for ds in datasets:
        if ds is not None and ds.store.address:
            tell_bytes(*ds.store.files.fetched, ds.store.address)


def tell_bytes(size: int, requests: int, address: str) -> None:
    """Say how many bytes were fetched."""
    out.note(f"fetched {text.size_of(size)} in {text.plural(requests, 'request')} from {address}")
