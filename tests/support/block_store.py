"""A store of blocks of three files that says what it was asked for; other processes import this module, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from rlds_cli.places.remote.cache import BlockFiles
from rlds_cli.places.remote.fetching import Take
from rlds_cli.places.remote.presence import BLOCK, GROUP, BlockFile, Room

FILES = [BlockFile("a/c/0/0", 10 * GROUP + 77), BlockFile("b/c/0", 3 * GROUP), BlockFile("none", 0)]


def content(file: int, start: int, length: int) -> bytes:
    """Bytes that say where they are: each 8 bytes hold file and place."""
    places = np.arange(start // 8, -(-(start + length) // 8), dtype=np.int64) + (file << 50)
    return places.tobytes()[start % 8 :][:length]


class Store:
    """A store that counts what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.before: Callable[[int, int], None] = lambda file, start: None

    def __call__(self, file: int, start: int, length: int, take: Take) -> None:
        self.asked.append((file, start, length))
        self.before(file, start)
        data = content(file, start, length)
        for at in range(0, length, 300_001):  # not at the ends of blocks
            take(data[at : at + 300_001])


def check(file: int, start: int, data: memoryview) -> bool:
    return bytes(data) == content(file, start, len(data))


def opened(root: Path | None, store: Store, limit: int | None = None, name: str = "one", **more: object) -> BlockFiles:
    return BlockFiles(Room(root, limit), name, FILES, store, check=check, where="mem://x", **more)  # type: ignore[arg-type]


def blocks(*groups: int, file: int = 0) -> np.ndarray:
    """The blocks of groups of a file."""
    numbers = [np.arange(g * GROUP // BLOCK, min((g + 1) * GROUP // BLOCK, FILES[file].blocks)) for g in groups]
    return np.concatenate(numbers)


def read(files: BlockFiles, file: int, group: int) -> bool:
    """Hold a group, and say whether its bytes are right."""
    with files.hold([(file, blocks(group, file=file))]):
        data = files.mapped(file)[group * GROUP : (group + 1) * GROUP]
        return data.tobytes() == content(file, group * GROUP, len(data))


def single(files: BlockFiles, block: int) -> bool:
    """Hold one block of the first file, and say whether its bytes are right."""
    with files.hold([(0, np.array([block]))], scattered=[0]):
        data = files.mapped(0)[block * BLOCK : (block + 1) * BLOCK]
        return data.tobytes() == content(0, block * BLOCK, len(data))
