"""Find the datasets that refer to the rows of another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rlds_cli.base import settings
from rlds_cli.base.settings import StrPath
from rlds_cli.errors import DamagedDataset
from rlds_cli.home import Home
from rlds_cli.store import paths, references, versions
from rlds_cli.store.references import ReferencedVersion


def to(dataset: Path, cache_dir: StrPath | None = None) -> Iterator[tuple[Path, ReferencedVersion]]:
    """Yield the datasets in the user's homes that refer to a version of another one, with that version.

    Datasets in homes of others refer to it as well, and are not known here.

    Parameters
    ----------
    cache_dir : path, optional
        A home that is used instead of ``RLDS_HOME``, whose datasets are looked at as well.
    """
    top, homes = dataset.resolve(), [*settings.read(cache_dir).homes, *settings.read().homes]
    for root in dict.fromkeys(homes):
        for _, path in Home(root).datasets():
            for place in (path, *(paths.earlier_versions(path) / str(n) for n in versions.earlier(path))):
                with suppress(DamagedDataset):
                    every = references.sources(place)
                    found = (s for s in every if top in (d.resolve() for d in s.datasets(place / "zarr.json")))
                    yield from ((path, source) for source in found)
