"""A dataset whose blocks arrive late and leave early, for tests: its mapped columns hold garbage instead of them."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from rlds_cli.dataset import Dataset
from rlds_cli.errors import DownloadFailed
from rlds_cli.store import Store, open_store
from rlds_cli.store.blocks import BytePlace
from rlds_cli.store.columns import Column
from rlds_cli.store.local import LocalFiles

GARBAGE = 0xA5


class LateBlocks:
    """Blocks of files: each comes some time after it was announced, in any order, and leaves when nobody holds it.

    ``stays`` keeps blocks that have come, ``delay`` are seconds before any comes. ``broken`` files cannot be had.
    ``came`` counts how often each block came.
    """

    fills = True

    def __init__(self, block: int, *, stays: bool = False, delay: float = 0.0, seed: int = 0) -> None:
        self.block, self.stays, self.delay, self.broken = block, stays, delay, set()
        self.group, self.stay = block, False
        self._true: list[np.ndarray] = []
        self._shown: list[np.ndarray] = []
        self._state: list[np.ndarray] = []
        self._pins: list[np.ndarray] = []
        self.came: list[np.ndarray] = []
        self.lock = threading.Condition()
        self._random = random.Random(seed)
        self._due: list[tuple[int, int]] = []
        self._thread: threading.Thread | None = None
        self.holds = 0
        self.stats = SimpleNamespace(requests=0, fetched=0, evicted=0, filled=0)

    def add(self, values: np.ndarray, pieces: int = 0) -> tuple[np.ndarray, LatePlace]:
        """Take an array as a file; as several of so many rows, of which the first begins before it, with ``pieces``."""
        width = values.nbytes // len(values)
        skip, size = (width * 2, width * pieces) if pieces else (0, values.nbytes)
        true = np.frombuffer(bytes(skip) + values.tobytes(), np.uint8)
        shown = np.full(len(true), GARBAGE, np.uint8)
        first = len(self._true)
        for start in range(0, len(true), size):
            count = -(-min(size, len(true) - start) // self.block)
            self._true.append(true[start : start + size])
            self._shown.append(shown[start : start + size])
            self._state.append(np.zeros(count, np.uint8))
            self._pins.append(np.zeros(count, np.int64))
            self.came.append(np.zeros(count, np.int64))
        place = LatePlace(np.arange(first, len(self._true)), self.block, size, skip)
        return shown[skip:].view(values.dtype).reshape(values.shape), place

    def state(self, file: int) -> np.ndarray:
        return self._state[file]

    def announce(self, wanted, scattered=()):
        wanted = [(file, np.array(blocks)) for file, blocks in wanted]
        with self.lock:
            self.holds += 1
            for file, blocks in wanted:
                assert (np.diff(blocks) > 0).all() and blocks.min() >= 0 and blocks.max() < len(self._state[file])
                self._pins[file][blocks] += 1
                self._due += [(file, b) for b in blocks.tolist() if not self._state[file][b]]
            self._random.shuffle(self._due)
            if self._due and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._deliver, daemon=True)
                self._thread.start()
        return LateHold(self, wanted)

    def hold(self, wanted):
        hold = self.announce(wanted)
        hold.wait()
        return hold

    def fill(self, ranges):
        """Nothing: blocks come when they are announced."""
        return SimpleNamespace(state="", goes_on=False, ranges=ranges)

    def come(self) -> None:
        """Let every block come, and stay."""
        self.stays = True
        self.hold([(f, np.arange(len(s))) for f, s in enumerate(self._state) if len(s)]).release()

    def _deliver(self) -> None:
        time.sleep(self.delay)
        while True:
            with self.lock:
                if not self._due:
                    self._thread = None
                    return
                file, b = self._due.pop()
                if self._pins[file][b] and not self._state[file][b] and file not in self.broken:
                    part = slice(b * self.block, (b + 1) * self.block)
                    self._shown[file][part] = self._true[file][part]
                    self._state[file][b] = 1
                    self.came[file][b] += 1
                    self.stats.requests += 1
                    self.stats.fetched += len(self._true[file][part])
                self.lock.notify_all()

    def release(self, wanted) -> None:
        with self.lock:
            self.holds -= 1
            for file, blocks in wanted:
                self._pins[file][blocks] -= 1
                for b in [] if self.stays else blocks[self._pins[file][blocks] == 0].tolist():
                    self._shown[file][b * self.block : (b + 1) * self.block] = GARBAGE
                    self._state[file][b] = 0


class LateHold:
    def __init__(self, blocks: LateBlocks, wanted) -> None:
        self._blocks, self._wanted, self._released = blocks, wanted, False

    @property
    def is_here(self) -> bool:
        return all(self._blocks._state[file][blocks].all() for file, blocks in self._wanted)

    def wait(self) -> None:
        broken = [file for file, _ in self._wanted if file in self._blocks.broken]
        if broken:
            raise DownloadFailed(f"block 0 of file {broken[0]} cannot be had.")
        with self._blocks.lock:
            assert self._blocks.lock.wait_for(lambda: self.is_here, 120), "blocks that were announced never came"

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._blocks.release(self._wanted)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()

    def __del__(self):
        self.release()


class LatePlace(BytePlace):
    """A place whose blocks are found byte by byte."""

    def wanted(self, starts, stops):
        found = {}
        for start, stop in zip((starts + self.skip).tolist(), (stops + self.skip).tolist(), strict=True):
            for at in range(start, stop):
                file, within = divmod(at, self.file_bytes)
                found.setdefault(int(self.files[file]), set()).add(within // self.block)
        return [(file, np.array(sorted(blocks))) for file, blocks in found.items()]


class LateFiles(LocalFiles):
    """The files of a dataset, read through `LateBlocks`. ``skip`` bytes lie before each array, ``pieces`` cut it up."""

    def __init__(self, path: Path, block: int = 64, *, pieces: int = 0, **rest) -> None:
        super().__init__(path, moves=True)
        self.blocks = LateBlocks(block, **rest)
        self._pieces = pieces
        self._mapped: dict[tuple, tuple[np.ndarray, LatePlace]] = {}

    def _late(self, c: Column) -> tuple[np.ndarray, LatePlace | None]:
        if (c.field, c.part) not in self._mapped:
            values = np.asarray(self.array(c))
            if not values.nbytes:
                return values, None
            self._mapped[c.field, c.part] = self.blocks.add(values, self._pieces)
        return self._mapped[c.field, c.part]

    def mapped(self, c: Column, keep: object = None) -> np.ndarray:
        return self._late(c)[0]

    def place(self, c: Column) -> LatePlace | None:
        return self._late(c)[1]


def LateStore(path: Path, block: int = 64, **rest) -> Store:
    return open_store(LateFiles(path, block, **rest))


def late(dataset: Dataset, block: int = 64, **rest) -> Dataset:
    """The same dataset, of which no block is here."""
    return Dataset(LateStore(dataset.path, block, **rest))
