"""A growing dataset that is copied: its log of versions says how much of each other file belongs to the newest one.

So a copy that was made while a writer was at work is a version like any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlds_cli.base.files import arrays
from rlds_cli.base.files import safe as safe_files
from rlds_cli.store import commits
from rlds_cli.store.commits import Commit
from rlds_cli.store.growing import logs
from rlds_cli.store.growing.table import LoggedTable
from rlds_cli.store.manifest import StoredField


@dataclass(frozen=True, slots=True)
class CommitLog:
    """The log of the versions of a growing dataset, up to the newest of which the record is whole.

    Attributes
    ----------
    content : bytes
        Of the file.
    newest : Commit
    """

    content: bytes
    newest: Commit

    @classmethod
    def parse(cls, content: bytes) -> CommitLog | None:
        """Return the log in the bytes of a file, which may end anywhere; None if no record is whole."""
        cut = range(0, len(content) - commits.BYTES + 1, commits.BYTES)
        records = [commits.unpacked(content[at : at + commits.BYTES]) for at in cut]
        whole = [g for number, g in enumerate(records) if g is not None and g.number == number]
        return cls(content[: (whole[-1].number + 1) * commits.BYTES], whole[-1]) if whole else None

    def logs(self, fields: Sequence[StoredField]) -> dict[str, int]:
        """Return the bytes of each other log that belong to the newest version, given the fields of the dataset."""
        return logs.sizes(self.newest, fields)

    def complete(self, dataset: Path) -> Mapping[str, int]:
        """Write what a copy of the newest version needs besides the manifest, the logs and the segments of rows.

        Parameters
        ----------
        dataset : Path
            Its directory, with the manifest and the logs.

        Returns
        -------
        mapping of str to int
            The segments that hold rows of the version, and their bytes.

        Raises
        ------
        DamagedDataset
            A log is not possible.
        """
        safe_files.write_bytes(dataset / commits.FILE, self.content)
        for name, data in logs.made(self.newest).items():
            safe_files.write_bytes(dataset / name, data)
        table = LoggedTable.open(dataset, check=False)
        found = dict[str, int]()
        for c in table.all_columns():
            directory = dataset / c.directory
            for group in reversed(c.directory.parents[:-1]):
                arrays.write_group(dataset / group)
            directory.mkdir(safe_files.DIRECTORY, exist_ok=True)
            safe_files.write_bytes(directory / "zarr.json", json.dumps(c.document).encode())
            found |= {c.file(number).as_posix(): c.size for number in (c.needed if c.width else ())}
        return found
