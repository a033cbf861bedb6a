"""Find the datasets that refer to the rows of another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rlds_cli.errors import DamagedDataset
from rlds_cli.home import Home
from rlds_cli.ids import DatasetId
from rlds_cli.settings import Settings
from rlds_cli.store import paths, references, versions
from rlds_cli.store.references import Source


def to(dataset: Path, where: Settings) -> Iterator[tuple[Path, Source]]:
    """Yield the datasets in the user's homes that refer to a version of another one, with that version.

    Datasets in homes of others refer to it as well, and are not known here.
    """
    top = dataset.resolve()
    for _, path in _all(where):
        for place in (path, *(paths.earlier_versions(path) / str(n) for n in versions.earlier(path))):
            with suppress(DamagedDataset):
                found = (s for s in references.sources(place) if Path(s.dataset).resolve() == top)
                yield from ((path, source) for source in found)


def _all(where: Settings) -> Iterator[tuple[DatasetId, Path]]:
    for root in where.homes:
        yield from Home(root).datasets()
