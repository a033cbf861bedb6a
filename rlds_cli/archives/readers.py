"""Readers, one module per family: they turn the files of an archive into chunks of TED rows.

`Reader` is the protocol that each of these modules follows, and `libraries` lists them: an `Archive` becomes a `Plan`,
and the plan chunks. `boundary` returns one of them behind a boundary.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlds_cli.archives.account import Account, Entry
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files.names import below
from rlds_cli.errors import ArchiveError, InvalidArgument, ReaderError, RldsError
from rlds_cli.ted import CHUNK_BYTES as CHUNK_BYTES
from rlds_cli.ted import CHUNK_ROWS as CHUNK_ROWS
from rlds_cli.ted import Chunk, Field, Note, Scalar
from rlds_cli.ted import Part as Part

if TYPE_CHECKING:
    from rlds_cli.base.subset import Subset

REWARDS = (ACTION, ARRIVE) = ("action", "arrive")  # the step that the reward of a row belongs to
LACKING = (FILL, DROP, REFUSE) = ("fill", "drop", "refuse")  # the fate of fields that some rows do not have


class Signal(Exception):
    """A reader's message to its caller. It is not an error, so it passes the boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoFile:
    """A file that describes episodes, see `episode_info`: those of the file ``of``, or of all files.

    ``alone`` says that ``of`` alone lies in the same folder. ``member`` is the name of one of the episodes; empty for
    all.
    """

    path: Path
    of: Path | None
    alone: bool = False
    member: str = ""


@dataclass(frozen=True, slots=True)
class Archive:
    """The files of one archive, with the options of the user and the registry.

    Attributes
    ----------
    root : Path
        The directory that the manifest names files relative to.
    files : tuple of Path
        Absolute paths, in the order of reading.
    episodes_by : str or None
        The rule for ends of episodes instead of the family's own: ``flags``, ``timeouts``, ``jumps``, ``field:KEY`` or
        ``file``.
    fields : mapping of str to str
        Keys of the archive by TED names, for ``--map``.
    skip_bad : bool
        Leave out files that cannot be read, with a note for each. Without it they are an error.
    last_step : str or None
        The content of the last step of an RLDS episode: ``action`` or ``observation``.
    partial : bool
        Files were left out on purpose: a described file that is missing is not an error.
    left_out : tuple of Note
        Notes on files that were left out before a reader saw them.
    rewards : str or None
        The step that the reward of a row belongs to: ``action``, the action of the row; ``arrive``, the action of the
        row before. None is ``action``, unless the last row of an episode has a reward and no action.
    missing : str or None
        What becomes of a field that some episodes, files or rows do not have: ``fill`` writes NaN, 0, False or no text
        there, ``drop`` leaves the field out, and ``refuse``, as None, is an error.
    without : tuple of str
        Columns that were dropped so.
    topics : tuple of str
        The topics of a recording that are read, or patterns of them; all without any.
    hz : float or None
        Steps per second of a recording; None makes a step of each message of the action.
    nearest : bool
        Of a topic each step has the nearest message, not the latest.
    beside : tuple of Entry
        Files beside those that were named, which no reader is asked about: the first entries of the account.
    episode_info : str or None
        A pattern of files that describe episodes.
    info : tuple of InfoFile
        The files that do, which no reader is asked about.
    """

    root: Path
    files: tuple[Path, ...]
    episodes_by: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    skip_bad: bool = False
    last_step: str | None = None
    partial: bool = False
    left_out: tuple[Note, ...] = ()
    rewards: str | None = None
    missing: str | None = None
    without: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    hz: float | None = None
    nearest: bool = False
    beside: tuple[Entry, ...] = ()
    episode_info: str | None = None
    info: tuple[InfoFile, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Be pickled with the texts of paths, of which there may be thousands: half the time."""
        others = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "files"}
        return _unpickled, ("\0".join(map(os.fspath, self.files)), others)

    @staticmethod
    def check_options(*, rewards: str | None, missing: str | None) -> None:
        """Raise InvalidArgument unless the options have values that there are."""
        if rewards not in (None, *REWARDS):
            raise InvalidArgument(f"rewards={rewards!r} is neither of {', '.join(REWARDS)}.")
        if missing not in (None, *LACKING):
            raise InvalidArgument(f"missing={missing!r} is neither of {', '.join(LACKING)}.")

    @property
    def may_lack(self) -> bool:
        """Whether fields may be missing in some files, episodes or rows."""
        return self.missing not in (None, REFUSE)

    @property
    def arrive(self) -> bool:
        """True if rewards, flags and discounts stand in the row after their action, as in dm_env."""
        return self.rewards == ARRIVE

    def name_of(self, index: int) -> str:
        """Return file number ``index`` as the manifest names it."""
        return below(self.files[index], self.root)

    def never_written(self) -> Sequence[Note]:
        """Return the note about chunks of its files that were never written."""
        from rlds_cli.archives import unwritten

        return unwritten.notes((self.name_of(i), path) for i, path in enumerate(self.files))


def _unpickled(files: str, others: Mapping[str, Any]) -> Archive:
    return Archive(files=tuple(map(Path, files.split("\0") if files else ())), **others)


@dataclass(frozen=True, slots=True)
class ArchivedStep:
    """One step of one episode, by its place in the archive.

    Attributes
    ----------
    file : Path
    root : Path
        The directory that the manifest names files relative to.
    group : str
        The episode in the file, as the episode table names it.
    first : int
        The first row of the episode in the file.
    step, length : int
        The step, from 0 to ``length`` - 1.
    facts : mapping
        The facts that the plan recorded.
    fields : mapping
        The fields that the user mapped, as in `Archive`.
    """

    file: Path
    root: Path
    group: str
    first: int
    step: int
    length: int
    facts: Mapping[str, Any]
    fields: Mapping[str, str]

    @property
    def name(self) -> str:
        """The file as the manifest names it."""
        return self.file.relative_to(self.root).as_posix()

    @property
    def is_last(self) -> bool:
        """True if the episode ends with this step."""
        return self.step == self.length - 1


@dataclass(frozen=True, slots=True)
class ArchivedValue:
    """One value of one step, as the archive holds it.

    Attributes
    ----------
    field : str
        The field of the dataset. The observation of the next row is ``next/observation``, even if the dataset keeps
        observations once.
    key : str
        The place of the value in the file, for messages.
    value : array, bytes or str
        One row of an array, an encoded frame, or text.
    """

    field: str
    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """The episodes of an archive as far as a plan knows them, for `--dry-run`.

    ``lengths`` [episodes] are the steps of each; ``ends`` counts them by how they end.
    """

    lengths: IntArray
    ends: Mapping[str, int]

    def numbers(self) -> dict[str, Any]:
        """Summarise for people and JSON: the number of episodes, the shortest, median and longest, and the ends."""
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
    """The way an archive is read. It can be pickled, since it goes to worker processes."""

    reader: str
    archive: Archive
    schema: tuple[Field, ...]
    parts: tuple[Part, ...]
    episodes_by: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON; recorded in the manifest (row convention, ...)
    spaces: Mapping[str, Any] = field(default_factory=dict)  # "observation", "action": spaces in Minari's JSON form
    env: Mapping[str, Any] = field(default_factory=dict)  # "id", "spec" (JSON of a Gymnasium EnvSpec), ...
    notes: tuple[Note, ...] = ()
    computed: tuple[str, ...] = ()  # fields that the reader works out, such as ages
    account: Account | None = None  # the fate of all that the files hold; None of a reader that does not say
    episode_summary: EpisodeSummary | None = None
    beside: tuple[int, ...] | None = None  # files that hold more than rows and columns; None if that is not known
    once: tuple[Mapping[str, Scalar], ...] = ()  # of each file its values for the episode table; empty: read again
    several_tasks: bool = False  # the task of an episode changes
    task: Field | None = None  # what is said of episodes, as the reader's field, which is none of the others
    version: int = 0  # of the reader; `Guarded` fills in both
    stored: int = 0  # bytes of the files

    def __post_init__(self) -> None:
        if not isinstance(self.account, Account | None):
            raise ReaderError(f"account is a {type(self.account).__name__}.", hint="Plan(account=ledger.account())")


class Replan(Signal):
    """The archive differs from the plan; start again with ``plan``."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.plan = plan


class Reader(Protocol):
    """The functions and the constant that the module of a family has.

    ``plan`` and ``read`` may raise any error of ``rlds_cli.errors``, and name the file and the key in it. What is said
    of an episode, its instruction, is a field of texts called ``task``: `tasks` makes an episode column of it. A module
    that has nothing of its own to say for ``choose`` or ``look_up`` takes the default by an assignment:
    ``choose = every_file`` and ``look_up = no_values``.

    Attributes
    ----------
    VERSION : int
        The version of the reader, which the manifest records. It is raised when values change.
    """

    VERSION: int

    def recognise(self, paths: Sequence[Path]) -> str | None:
        """Describe the files in one line, by their content; None if they are of another family."""

    def plan(self, archive: Archive) -> Plan:
        """Find the fields, the parts and the rule for episodes of an archive, without reading bulk data."""

    def read(self, plan: Plan, part: Part) -> Iterator[Chunk]:
        """Read the rows of one part, in order and in bounded memory.

        Raises
        ------
        Replan
            The data differ from the plan. The conversion starts again with the plan that the exception carries.
        """

    def metadata(self, plan: Plan) -> Iterator[tuple[str, Array | str]]:
        """Read the values that are not per row (policy weights, model XML), with their names."""

    def choose(
        self, names: Sequence[str], portion: Subset, read: Callable[[str], bytes]
    ) -> tuple[Sequence[str], Subset]:
        """Choose the files that hold a part of an archive, before the files are downloaded.

        Parameters
        ----------
        names : sequence of str
            All files of the archive, relative to its root, in natural order.
        portion : Subset
            The wanted split, and the wanted range of episodes in it.
        read : callable
            Returns the content of a file by its name. It downloads the file, so only small descriptions are asked for.

        Returns
        -------
        files : sequence of str
            The names of the files to download.
        rest : Subset
            The part of ``portion`` that is still to be cut out of the rows of these files.

        Raises
        ------
        ArchiveError
            There is no such split or episode.
        """

    def look_up(self, place: ArchivedStep) -> Iterator[ArchivedValue]:
        """Look up the values of one step in the archive, for ``rlds verify --trace``.

        This is a second, simpler reading of the format: it goes straight to the row, and shares no code with ``read``
        beyond the names of columns, so that a fault of ``read`` does not hide itself.
        """


def every_file(names: Sequence[str], portion: Subset, read: Callable[[str], bytes]) -> tuple[Sequence[str], Subset]:
    """Choose all files: the default for `Reader.choose`."""
    return names, portion


def no_values(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Refuse to look up values: the default for `Reader.look_up`.

    Raises
    ------
    RldsError
        Always.
    """
    raise RldsError(
        f"The reader of {place.file.name} does not look up single values.", hint="rlds verify ID compares digests"
    )


def skipped_file(name: str, error: ArchiveError) -> Note:
    """Make the note for a file that was left out."""
    return Note("skipped-file", "files that cannot be read were left out", 1, f"{name}: {error.message}")
