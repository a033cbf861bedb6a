"""Rows of a remote dataset: the blocks of coming runs are announced, and held while they are read.

::

    run k        locate -> touch -> announce   ................   wait -> gather -> release
    run k + 1             locate -> touch -> announce   ................   wait -> gather -> release
                                             '-- the blocks arrive --'

The kernel itself says which blocks a gather reads (`kernel.Touches`). Two things are known only when rows are there:
where a flag ends the sum of an n-step transition, and where encoded frames lie. The first is announced as if no flag
ended a sum, and asked again when the flags are there; of the second, the table of frames is read first.

Where all blocks of all columns are here, they are held together, and nothing is touched any more: reading is as fast as
that of a local dataset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from rlds_cli.loader.kernel import BlockRange, Bound, Plan, Touches, address
from rlds_cli.store import arrays
from rlds_cli.ted import VIDEO, Array, IntArray

if TYPE_CHECKING:
    from pathlib import Path

    from rlds_cli.dataset import Dataset

Wanted = list[tuple[int, IntArray]]  # number of a file, ascending numbers of its blocks
MOST_RUNS_AHEAD = 64  # runs that are announced before they are read
MISSING_AHEAD = 256  # blocks on their way at which no further run is announced
TRIES = 64  # runs without a missing block, after which it is asked whether everything is here


class Hold(Protocol):
    """Blocks that stay until they are released."""

    def wait(self) -> None:
        """Wait until all blocks are here; raises DownloadFailed naming the block."""
        ...

    def release(self) -> None:
        """Let the blocks go."""
        ...


class Counts(Protocol):
    """Counts of the blocks of one dataset in this process."""

    waited: float
    requests: int
    fetched: int
    evicted: int


class Blocks(Protocol):
    """The blocks of a remote dataset's files of rows, see `rlds_cli.remote.cache.BlockFiles`."""

    @property
    def stats(self) -> Counts:
        """What was fetched so far."""
        ...

    @property
    def block(self) -> int:
        """Bytes of a block."""
        ...

    def number(self, path: Path) -> int:
        """Return the number of a file."""
        ...

    def state(self, file: int) -> Array:
        """Return the state of each block of a file: nonzero where it is here."""
        ...

    def announce(self, wanted: Wanted) -> Hold:
        """Hold blocks, and begin to fetch those that are missing."""
        ...

    def hold_all(self, files: Sequence[int]) -> Hold | None:
        """Hold whole files if every block is here; else None."""
        ...


def blocks_of(dataset: Dataset) -> Blocks | None:
    """Return the blocks of a remote dataset; None for one that lies on this machine."""
    found: Blocks | None = getattr(dataset.store, "blocks", None)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class RowFile:
    """The file of one array of a remote dataset: its number, and all of it, mapped."""

    number: int
    content: Array


def row_files(dataset: Dataset) -> list[RowFile]:
    """Return the files of all columns of a remote dataset whose rows have a fixed size."""
    store, blocks = dataset.store, blocks_of(dataset)
    assert blocks is not None
    found = []
    for name, f in dataset.schema.items():
        content = mapped(dataset, name) if f.kind in ("array", "text") or f.codec == VIDEO else None
        if content is not None and content.nbytes:
            path = arrays.data_file(store.directory(name), content.ndim).relative_to(store.path)
            found.append(RowFile(blocks.number(path), content))
    return found


def mapped(dataset: Dataset, name: str) -> Array:
    """Return the rows of a column of a remote dataset as they are mapped: only blocks that are held have true values."""
    content: Array = dataset.store.mapped(name)  # type: ignore[attr-defined]
    assert content.flags.c_contiguous and content.flags.aligned, name  # else the kernel would read a copy
    return content


class Arrival:
    """The blocks that a gather reads, on their way or here; they stay until this object is released or forgotten.

    Attributes
    ----------
    missing : int
        Blocks that were not here when they were announced.
    """

    def __init__(self, blocks: Blocks, wanted: Wanted, later: Callable[[], Wanted] | None, missing: int) -> None:
        self.missing = missing
        self._blocks, self._later = blocks, later
        self._holds = [blocks.announce(wanted)]

    def wait(self) -> None:
        """Wait until all blocks are here.

        Raises
        ------
        DownloadFailed
            One of them cannot be had.
        """
        self._holds[0].wait()
        if self._later is not None:
            later, self._later = self._later, None
            hold = self._blocks.announce(later())
            self._holds.append(hold)
            hold.wait()

    def release(self) -> None:
        """Let the blocks go."""
        for hold in self._holds:
            hold.release()
        self._holds = []

    def __del__(self) -> None:
        self.release()


class RemoteReads:
    """The blocks that a plan reads.

    Parameters
    ----------
    blocks : Blocks
    plan : Plan
    files : sequence of RowFile
        All files that the plan may read.
    sums : bool
        Flags end sums.
    """

    def __init__(self, blocks: Blocks, plan: Plan, files: Sequence[RowFile], *, sums: bool) -> None:
        self.blocks, self._sums = blocks, sums
        ranges = [BlockRange(address(f.content), f.content.nbytes, -(-f.content.nbytes // blocks.block)) for f in files]
        self._touches = Touches(plan, ranges, blocks.block)
        self._numbers = [f.number for f in files]
        self._read = [self._numbers[i] for i in self._touches.files]
        self._whole: Hold | None = None
        self._process, self._tries = os.getpid(), 0

    @property
    def whole(self) -> bool:
        """True while all blocks of all files are here, and held."""
        return self._whole is not None and self._process == os.getpid()

    def look(self) -> bool:
        """Hold all files if every block is here; return whether it is."""
        if not self.whole:
            self._process, self._tries = os.getpid(), TRIES
            self._whole = self.blocks.hold_all(self._read)
        return self.whole

    def announce(self, bound: Bound, n: int) -> Arrival | None:
        """Announce the blocks that reading samples [0, n) takes; None where all files are held."""
        if self.whole:
            return None
        wanted = self._wanted(bound, n, before=self._sums)
        missing = self._missing(wanted)
        self._tries = TRIES if missing else self._tries - 1
        if self._tries <= 0 and self.look():
            return None
        later = (lambda: self._wanted(bound, n, before=False)) if self._sums else None
        return Arrival(self.blocks, wanted, later, missing)

    def _wanted(self, bound: Bound, n: int, *, before: bool) -> Wanted:
        return [(self._numbers[i], found) for i, found in self._touches.blocks(bound, 0, n, before=before)]

    def _missing(self, wanted: Wanted) -> int:
        return sum(len(found) - int(np.count_nonzero(self.blocks.state(file)[found])) for file, found in wanted)
