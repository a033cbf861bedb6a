"""The source of a dataset: its archive, and the fate of each file, column, key, attribute and group in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlds_cli.archives import Entry
from rlds_cli.dataset import Dataset
from rlds_cli.errors import RldsError


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """Result of ``rlds inspect ID --source``.

    ``archive`` has the source's ``files``, ``bytes``, ``sha256`` and ``first`` file, ``options`` are those of the
    import or download. ``account`` says of each file, and of what it holds, as which field, column of the episode
    table or fact it is used, or why it is left out.
    """

    id: str
    reader: str
    archive: Mapping[str, Any]
    options: Mapping[str, Any]
    account: tuple[Entry, ...]


def describe_source(dataset: Dataset) -> SourceReport:
    """Describe the source of a dataset.

    Raises
    ------
    RldsError
        The dataset was made of no archive, or keeps no account of it.
    """
    m = dataset.manifest
    if not m.account:
        base = m.id.partition("@")[0]
        raise RldsError(
            f"{m.id} keeps no account of a source: it was recorded, or made from another dataset.",
            hint=f"rlds inspect {base} --source" if m.provenance and base != m.id else f"rlds inspect {m.id}",
        )
    return SourceReport(
        id=m.id,
        reader=m.reader_named,
        archive=m.archive,
        options=m.options,
        account=tuple(map(Entry.of_json, m.account)),
    )
