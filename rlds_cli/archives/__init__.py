"""Readers: the archive's files -> chunks of TED rows. One module per family; adding one adds its name below.

A reader is a module with::

    VERSION: int                                                   goes into the manifest; raise it when values change
    recognise(paths) -> str | None                                 what the files are, by content, in one line; or None
    plan(archive) -> Plan                                          fields, parts, episode rule; reads no bulk data
    read(plan, part) -> Iterator[Chunk]                            the rows of one part, in order, in bounded memory
    metadata(plan) -> Iterator[tuple[str, Array | str]]            what is not per row: policy weights, model XML

and, where names or descriptions tell which files hold which episodes or splits::

    choose(names, portion, read) -> tuple[Sequence[str], Portion]  the files of a portion, and what of them it is

``plan`` and ``read`` raise errors of ``rlds_cli.errors`` that name the file and the key; whatever else they raise
becomes CorruptArchive at the boundary (``boundary.Guarded``). ``read`` may raise
``Replan`` when the data turn out to be other than planned; the conversion starts again with the new plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from rlds_cli.archives.boundary import Guarded, Signal
from rlds_cli.errors import UnknownLayout
from rlds_cli.portions import Portion
from rlds_cli.ted import CHUNK_BYTES as CHUNK_BYTES
from rlds_cli.ted import CHUNK_ROWS as CHUNK_ROWS
from rlds_cli.ted import Array, Chunk, Field, IntArray, Note
from rlds_cli.ted import Part as Part

READERS = (
    "torchrl",
    "minari",
    "d3rlpy",
    "d4rl",
    "roboset",
    "openx",
    "rlu_atari",
    "vd4rl",
    "atari_dqn",
    "gen_dgrl",
    "ogbench",
    "robomimic",
    "lerobot",
    "openml",
    "plain",
)


@dataclass(frozen=True, slots=True)
class Archive:
    """The files of one archive and what the registry or the user says about them.

    ``files`` are absolute, in the order that they are read; ``root`` is the directory that the manifest names them
    relative to. ``episodes_by`` overrides the family's rule (``flags``, ``timeouts``, ``jumps``, ``field``, ``file``;
    ``field:KEY`` names the key). ``fields`` maps TED names to keys of the archive, for ``--map``. With ``skip_bad`` a
    reader leaves out files that it cannot read, and says so in a note each; without, they are an error. ``last_step``
    (``action``, ``observation``) says what the last step of an RLDS episode holds. ``partial`` says that files were
    left out on purpose: what is described and not here is no error. ``left_out`` are notes on files that were left out
    before a reader saw them.
    """

    root: Path
    files: tuple[Path, ...]
    episodes_by: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    skip_bad: bool = False
    last_step: str | None = None
    partial: bool = False
    left_out: tuple[Note, ...] = ()

    def name_of(self, index: int) -> str:
        """File number ``index`` as the manifest names it."""
        return self.files[index].relative_to(self.root).as_posix()


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """The episodes of an archive as far as a plan knows them, for `--dry-run`.

    ``lengths`` [episodes] are the steps of each; ``ends`` counts them by how they end.
    """

    lengths: IntArray
    ends: Mapping[str, int]

    def numbers(self) -> dict[str, Any]:
        """Numbers for people and JSON: how many episodes, the shortest, median and longest, and the ends."""
        steps = np.sort(self.lengths)
        some = len(steps) > 0
        span = {
            "shortest": int(steps[0]) if some else 0,
            "median": int(steps[len(steps) // 2]) if some else 0,
            "longest": int(steps[-1]) if some else 0,
        }
        return {"episodes": len(steps), "steps": int(steps.sum()), **span, "ends": dict(self.ends)}


@dataclass(frozen=True, slots=True)
class Plan:
    """How an archive will be read. Picklable: it goes to worker processes."""

    reader: str
    archive: Archive
    schema: tuple[Field, ...]
    parts: tuple[Part, ...]
    episodes_by: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON; recorded in the manifest (row convention, ...)
    spaces: Mapping[str, Any] = field(default_factory=dict)  # "observation", "action": spaces in Minari's JSON form
    env: Mapping[str, Any] = field(default_factory=dict)  # "id", "spec" (JSON of a Gymnasium EnvSpec), ...
    notes: tuple[Note, ...] = ()
    episode_summary: EpisodeSummary | None = None


class Replan(Signal):
    """The archive is not what the plan took it for; start again with ``plan``."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.plan = plan


class Reader(Protocol):
    """What the module of a family provides; see the module's docstring."""

    VERSION: int

    def recognise(self, paths: Sequence[Path]) -> str | None:
        """What the files are, in one line, or None."""

    def plan(self, archive: Archive) -> Plan:
        """Fields, parts and episode rule of an archive."""

    def read(self, plan: Plan, part: Part) -> Iterator[Chunk]:
        """The rows of one part."""

    def metadata(self, plan: Plan) -> Iterator[tuple[str, Array | str]]:
        """What is not per row, by name."""


def reader(name: str) -> Reader:
    """The reader called ``name``, behind the boundary; raises UnknownLayout when there is none."""
    if name not in READERS:
        raise UnknownLayout(f'There is no reader "{name}".', hint=f"one of {', '.join(READERS)}")
    return cast(Reader, Guarded(name, import_module(f"rlds_cli.archives.{name}")))


def choose(
    name: str, names: Sequence[str], portion: Portion, read: Callable[[str], bytes]
) -> tuple[Sequence[str], Portion]:
    """Which of an archive's files the reader called ``name`` needs for a portion; what is to be cut out of their rows.

    All of them unless the reader knows better. ``names`` are relative to the archive's root, as people count;
    ``read`` gives the bytes of one of them, which should be a small description: nothing is here yet.

    Raises
    ------
    ArchiveError
        There is no such split or episode.
    """
    known = getattr(reader(name), "choose", None) if portion.cuts else None
    chosen: tuple[Sequence[str], Portion] = known(names, portion, read) if known else (names, portion)
    return chosen


def recognise(paths: Sequence[Path]) -> tuple[str, str] | None:
    """(reader, one line on what it is) of the first reader that knows the files by their content, or None."""
    for name in READERS:
        found = reader(name).recognise(paths)
        if found:
            return name, found
    return None


def __getattr__(name: str) -> Any:
    if name != "hdf5":  # what readers of HDF5 files open them with
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.hdf5")
