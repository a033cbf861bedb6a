"""Description of files that are not datasets: what a reader would make of them, or their arrays and a command to try.

Another process reads the files (`files.child`), with `archives.describe`.
"""

from __future__ import annotations

from pathlib import Path

from rlds_cli.archives.file_report import FileReport as FileReport
from rlds_cli.archives.file_report import Node as Node
from rlds_cli.archives.file_report import name_for as name_for
from rlds_cli.base import ids
from rlds_cli.base.files import child
from rlds_cli.base.progress import Progress, silent
from rlds_cli.base.settings import StrPath

READER = "rlds_cli.archives.describing"  # the module whose function reads the files
_MOST_FILES = 50_000


def describe_file(path: StrPath, *, reader: str | None = None, progress: Progress | None = None) -> FileReport:
    """Describe a file, a directory or a glob of files; nothing is written, and no more is read than needed.

    Parameters
    ----------
    path : path
    reader : str, optional
        As in `importing.plan_import`.

    Raises
    ------
    ArchiveError
        There is no file; it is damaged, or an HTML page under an archive's name (CorruptArchive); it would execute code
        or refers to files outside itself, or needs more memory than an archive may (UnsafeArchive).
    """
    with child.reading(READER, progress=progress or silent):  # which starts while this process imports what it needs
        from rlds_cli.archives import ReaderName, describe
        from rlds_cli.look.files.given import files_to_import

        files = files_to_import([path], ids.parse("local/x"), most=_MOST_FILES).files
        return describe(Path(path), files, None if reader is None else ReaderName(reader).resolved())
