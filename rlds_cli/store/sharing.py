"""Fields and whole datasets that share their files with others: hard link, else reflink, else copy."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from rlds_cli import links
from rlds_cli.store.manifest import Stats, StoredField


@dataclass(frozen=True, slots=True)
class Shared:
    """A field whose rows are those of ``field`` of another dataset; ``name`` is what it is called here.

    Where that does not ``last``, the result is said to have the field for itself.
    """

    dataset: Path
    field: StoredField
    stats: Stats | None
    name: str
    lasts: bool = True


def share_tree(source: Path, target: Path, *, sealed: bool = True) -> links.How:
    """Share all files below ``source``; returns how (the worst of its files).

    ``sealed`` says that the copies will be made read-only: a file that may be written now is then copied, not linked.
    A link below ``source`` is a DamagedDataset.
    """
    order: tuple[links.How, ...] = ("link", "reflink", "copy")
    how = 0
    shutil.rmtree(target, ignore_errors=True)
    for file in sorted(source.rglob("*")):
        if file.is_symlink() or file.is_file():
            place = target / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            how = max(how, order.index(links.share(file, place, sealed=sealed)))
    return order[how]
