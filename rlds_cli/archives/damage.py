"""Leave out the files of an archive that cannot be read: ``--skip-bad``.

``sound`` does so for readers that read each file by itself; other readers use ``skipped_file`` as they plan.

Faults of earlier versions of readers, so that ``rlds check`` can name the datasets that have them.

When the ``VERSION`` of a reader is raised because its values were wrong, add a `Fault` to ``FAULTS``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, slots=True)
class ConversionRecord:
    """What the manifest of a dataset records about its conversion.

    Attributes
    ----------
    reader, version : str, int
        The reader, and its ``VERSION`` at that time.
    dtypes : mapping of str to str
        The dtype of every field.
    facts, options : mapping
        The facts of the reader's plan, and the options of the command.
    text : callable
        Returns the text of a metadata entry by its name; empty where there is none.
    """

    reader: str
    version: int
    dtypes: Mapping[str, str]
    facts: Mapping[str, Any]
    options: Mapping[str, Any]
    text: Callable[[str], str]


def _always(made: ConversionRecord) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of all versions of a reader before ``mended``.

    Attributes
    ----------
    mended : int
        The first version without it.
    text : str
        What the reader did, as the end of the sentence "converted by version 1 of the reader X, which ...".
    concerns : callable
        Whether a dataset converted by such a version is affected; all of them unless given.
    """

    mended: int
    text: str
    concerns: Callable[[ConversionRecord], bool] = _always


def faults(made: ConversionRecord) -> list[Fault]:
    """The faults that a dataset has because an older version of its reader converted it."""
    return [f for f in FAULTS.get(made.reader, ()) if made.version < f.mended and f.concerns(made)]


def _has_depth_videos(made: ConversionRecord) -> bool:
    """Whether a depth map, which has more than 8 bits by ``info.json``, was decoded to frames of 8 bits."""
    from rlds_cli.archives.lerobot import depth  # imported here to keep start-up fast

    try:
        features = json.loads(made.text("lerobot/info.json") or "{}").get("features", {})
        keys = {key for name, key in made.facts.get("columns", {}).items() if made.dtypes.get(name) == "uint8"}
        return any(f.get("dtype") == "video" and depth.is_deep(f) for k, f in features.items() if k in keys)
    except (ValueError, AttributeError, TypeError):
        return False


def _ignored_columns(made: ConversionRecord) -> bool:
    """Whether flags alone decided, although there were columns of ids, steps or starts, or names of TED."""
    from rlds_cli.archives.names import IDS, LASTS, STARTS, STEPS  # imported here to keep start-up fast

    if made.options.get("episodes_by"):
        return False
    names = {name.lower() for name in made.dtypes}
    by_flags = bool(made.facts.get("flags")) and bool(names & {*IDS, *STEPS})
    return by_flags or bool(names & {*STARTS, *LASTS}) or any(n.startswith("extra/next") for n in names)


FAULTS: Mapping[str, tuple[Fault, ...]] = {
    "plain": (
        Fault(2, "ignored columns of ids and steps: episodes may be merged or divided wrongly", _ignored_columns),
    ),
    "lerobot": (Fault(2, "decoded 12-bit depth videos to 8 bits", _has_depth_videos),),
}
