"""LeRobot: Parquet for numbers, PNG images in it or MP4 videos beside it; v3 many episodes to a file, v2 one.

``description`` reads ``meta/``, ``features`` says what becomes of each column, ``rows`` reads them. An episode of T
rows is T steps whose final observation is not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rlds_cli.archives import Archive, Part, Plan
from rlds_cli.archives.lerobot import description, planning, rows
from rlds_cli.archives.lerobot.choosing import choose as choose
from rlds_cli.archives.lerobot.looking import cells as cells
from rlds_cli.errors import RldsError, UnknownLayout
from rlds_cli.sizes import plural
from rlds_cli.ted import Array, Chunk

VERSION = 2


def recognise(paths: Sequence[Path]) -> str | None:
    """What the files are, in one line, or None."""
    found = description.candidates(paths)
    if not found:
        return None
    try:
        info = description.read(found[0])
    except UnknownLayout:
        return "LeRobot dataset of a layout that is not read"  # `plan` says which, and what to do
    except RldsError:
        return None
    if len(found) > 1:
        return f"{len(found)} LeRobot datasets"  # `plan` asks for one of them
    cameras = [f for f in info.features.values() if f.get("dtype") in ("image", "video")]
    kinds = " and ".join(sorted({f"{f['dtype']}s" for f in cameras}))
    seen = f", {plural(len(cameras), 'camera')} in {kinds}" if cameras else ""
    episodes = plural(info.episodes, "episode") if info.episodes is not None else "episodes"
    return f"LeRobot {info.version} dataset ({episodes}, {info.fps:g} fps{seen})"


def plan(archive: Archive) -> Plan:
    """Fields, parts and episodes. Reads ``meta/``, the schema of one data file, and the head of a frame per camera.

    Raises
    ------
    UnknownLayout
        There is no LeRobot dataset, several, one of a version that is not read, or features that cannot be stored.
    CorruptArchive
        A file is missing or damaged. With ``skip_bad`` the episodes of such files are left out.
    MissingPackage
        pyarrow is not installed.
    """
    found = description.locate(archive.files)
    if found is None:
        raise UnknownLayout("There is no LeRobot dataset here: no meta/info.json.")
    if archive.episodes_by not in (None, "file"):
        raise UnknownLayout(
            f'episodes_by="{archive.episodes_by}" does not apply: LeRobot lists its episodes.', hint="leave it out"
        )
    return planning.plan(archive, description.read(found))


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """The rows of one part, in bounded memory.

    Raises
    ------
    CorruptArchive
        Rows, images or videos are not those that ``meta/`` announces.
    """
    return rows.read(plan, part)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """``meta/info.json`` as text: names of elements, the robot, how videos were encoded."""
    found = description.locate(plan.archive.files)
    if found is not None:
        yield "lerobot/info.json", found.read_text(encoding="utf-8")
