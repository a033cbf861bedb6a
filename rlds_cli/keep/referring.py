"""Find the datasets that refer to the rows of another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlds_cli.base import settings
from rlds_cli.base.settings import StrPath
from rlds_cli.homes import Home
from rlds_cli.store import History
from rlds_cli.store.references import ReferencedVersion


def to(dataset: Path, home: StrPath | None = None) -> Iterator[tuple[Path, ReferencedVersion]]:
    """Yield the datasets in the user's homes that refer to a version of another one, with that version.

    Datasets in homes of others refer to it as well, and are not known here.

    Parameters
    ----------
    home : path, optional
        A home that is used instead of ``RLDS_HOME``, whose datasets are looked at as well.
    """
    homes = [*settings.read(home).homes, *settings.read().homes]
    for root in dict.fromkeys(homes):
        for _, path in Home(root).datasets():
            yield from ((path, source) for source in History(path).referring_to(dataset))
