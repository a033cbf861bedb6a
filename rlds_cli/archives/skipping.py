"""Leave out the files of an archive that cannot be read: ``--skip-bad``.

``sound`` does so for readers that read each file by itself; other readers use ``skipped_file`` as they plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlds_cli.archives import Archive, Replan, reader, recognise
from rlds_cli.errors import ArchiveError, CorruptArchive, RldsError, UnknownLayout
from rlds_cli.ted import Note

# Readers that stop at the first damaged file. The others leave damaged files out themselves.
APART = ("d3rlpy", "d4rl", "gen_dgrl", "ogbench", "robomimic", "roboset")
_SHOWN = 5


def sound(name: str, archive: Archive) -> Archive:
    """The archive without the files that the reader ``name`` cannot read from the first row to the last.

    Raises
    ------
    ArchiveError
        No file can be read.
    """
    if name not in APART or len(archive.files) < 2:
        return archive
    bad = {path: e for path in archive.files if (e := _fault(name, replace(archive, files=(path,)))) is not None}
    if not bad:
        return archive
    good = tuple(path for path in archive.files if path not in bad)
    if not good:
        raise next(iter(bad.values()))
    more = f"; and {len(bad) - _SHOWN:,} more" if len(bad) > _SHOWN else ""
    text = f"files were left out. {'; '.join(e.message for e in [*bad.values()][:_SHOWN])}{more}"
    first = next(iter(bad)).relative_to(archive.root).as_posix()
    return replace(archive, files=good, left_out=(*archive.left_out, Note("bad-files", text, len(bad), first)))


def _fault(name: str, alone: Archive) -> RldsError | None:
    """What is wrong with the only file of an archive; a file that only needs another plan is sound."""
    module = reader(name)
    try:
        plan = module.plan(alone)
        for part in plan.parts:
            for _ in module.read(plan, part):
                pass
    except Replan:
        return None
    except (CorruptArchive, UnknownLayout) as e:
        return e
    return None


def skipped_file(name: str, error: ArchiveError) -> Note:
    """Make the note for a file that was left out."""
    return Note("skipped-file", "files that cannot be read were left out", 1, f"{name}: {error.message}")


def recognise_most(files: Sequence[Path]) -> tuple[str, str] | None:
    """The reader that recognises most of the files, and how it describes the first of them; None where none does."""
    found: Counter[str] = Counter()
    said: dict[str, str] = {}
    for path in files:
        try:
            known = recognise([path])
        except ArchiveError:
            continue
        if known:
            found[known[0]] += 1
            said.setdefault(*known)
    if not found:
        return None
    name = found.most_common(1)[0][0]
    return name, f"{said[name]}, and {len(files) - 1:,} other files"
