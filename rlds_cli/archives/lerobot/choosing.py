"""Which files hold a part of a LeRobot dataset, by what ``meta/`` says of each episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rlds_cli.archives.lerobot import description
from rlds_cli.archives.lerobot.description import Info, Listed
from rlds_cli.portions import EVERYTHING, Portion

_DATA = ("data", "videos")  # below these lie the files of episodes, everything else describes


def choose(names: Sequence[str], portion: Portion, read: Callable[[str], bytes]) -> tuple[Sequence[str], Portion]:
    """The descriptions, and the tables and videos that hold the wanted episodes.

    Raises
    ------
    ArchiveError
        There is no such split, or there are not so many episodes.
    """
    info = next((n for n in names if n.split("/")[-2:] == ["meta", "info.json"]), None)
    if info is None:
        return names, portion
    root = info.removesuffix("meta/info.json")
    with TemporaryDirectory(prefix="rlds-") as place:
        known, listed = _described(root, names, read, Path(place))
    everything = {n.removeprefix(root) for n in names}
    listed = [e for e in listed if everything.issuperset(_files(e))]
    if portion.split is not None and portion.split not in known.splits:
        raise portion.no_split(known.splits)
    of_split = [e for e in listed if portion.split in (None, *description.splits(known, e.number))]
    wanted = [of_split[k] for k in portion.numbers(len(of_split))]
    files = {root + f for e in wanted for f in _files(e)}
    chosen = [n for n in names if not n.removeprefix(root).startswith(tuple(f"{d}/" for d in _DATA)) or n in files]
    return chosen, _rest(wanted, [e for e in listed if files.issuperset(root + f for f in _files(e))])


def _described(root: str, names: Sequence[str], read: Callable[[str], bytes], place: Path) -> tuple[Info, list[Listed]]:
    """What ``meta/`` says, read below ``place``."""
    meta = [n for n in names if n.startswith(f"{root}meta/")]
    needed = [n for n in meta if n.endswith(("/info.json", "/episodes.jsonl")) or n.startswith(f"{root}meta/episodes/")]
    files = [place / n for n in needed]
    for name, file in zip(needed, files, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(read(name))
    info = description.read(place / root / "meta" / "info.json")
    videos = [n for n in names if n.startswith(f"{root}videos/")]
    cameras = [k for k, f in info.features.items() if f["dtype"] == "video" and any(f"/{k}/" in v for v in videos)]
    return info, description.episodes(info, files, cameras)


def _files(e: Listed) -> list[str]:
    return [e.data, *(video for video, _ in e.videos.values())]


def _rest(wanted: Sequence[Listed], there: Sequence[Listed]) -> Portion:
    """What is to be cut out of the episodes that the chosen files hold: files of version 3 hold several."""
    numbers = [e.number for e in there if e.length > 0]
    kept = [e.number for e in wanted if e.length > 0]
    if kept == numbers or not kept:
        return EVERYTHING
    start = numbers.index(kept[0])
    return replace(EVERYTHING, episodes=(start, start + len(kept)))
