"""The protocol of a format: what it cannot represent, the units of work, and how a unit is written."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from rlds_cli.archives.exports.content import Content, Kind, Loss
from rlds_cli.archives.exports.instructions import Instructions, chosen
from rlds_cli.base import text
from rlds_cli.base.repeated import Repeated
from rlds_cli.errors import ExportError, InvalidArgument
from rlds_cli.ted import CUT, TASK, TASK_AT

UNIT_BYTES = 64 << 20
EPISODES = frozenset[Kind](
    ("final", "unknown-final", "cut", "seeds", "options", "splits", "columns", "metadata")
)  # what may be lost of episodes


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of work: episodes ``first`` to ``stop``, written by one process; the journal has it by its name."""

    name: str
    first: int
    stop: int


class Format(ABC):
    """A format to which datasets are exported; an instance exports one.

    The driver asks for `losses`, applies them to ``content``, and calls `prepare`, `write` for each unit in any order
    and in several processes, and `finish`. Each of them may be called again after a kill, with the files of before.

    Attributes
    ----------
    name : str
        Name on the command line.
    reader : str
        The reader in `archives` that imports the files again.
    can : frozenset of str
        Kinds of `Loss` of episodes that do not happen.
    forms : tuple of str
        Names for the option ``form``, the default first.
    content : Content
    target : Path
        The directory that will hold the files: formats whose metadata contain a name take it from there.
    form : str
        The chosen form.
    threads : bool
        Whether threads write units faster than one: those of a library that lets go of Python's lock do.
    instructed : {"", "episodes", "steps"}
        Whether the format has a place for what is said of an episode: of each that has a text, or of every step.
    instructions : Instructions or None
        The texts for this place.
    """

    name: ClassVar[str]
    reader: ClassVar[str]
    can: ClassVar[frozenset[Kind]] = frozenset()
    forms: ClassVar[tuple[str, ...]] = ()
    threads: ClassVar[bool] = False
    instructed: ClassVar[Literal["", "episodes", "steps"]] = ""

    def __init__(self, content: Content, target: Path, form: str | None = None, task: str | None = None) -> None:
        self.content = content
        self.target = target
        if form is not None and form not in self.forms:
            known = f"--form {'|'.join(self.forms)}" if self.forms else f"{self.name} has no forms"
            raise InvalidArgument(f"{form} is not a form of {self.name}.", hint=known)
        self.form = form or (self.forms[0] if self.forms else "")
        if task and not self.instructed:
            raise InvalidArgument(f"{self.name} has no place for instructions.", hint="leave out --task (task=)")
        self.instructions = Instructions(content, chosen(content, task)) if self.instructed else None

    def losses(self) -> list[Loss]:
        """Return what the format cannot represent of the content."""
        of_texts = (self.instructions or Instructions(self.content, TASK)).losses(filled=self.instructed == "steps")
        return [*_losses_of_episodes(self.content, self.can, self.name), *of_texts, *self.losses_of_fields()]

    def losses_of_fields(self) -> Iterator[Loss]:
        """Yield the losses of single fields: fields left out, renamed, of another type, or decoded."""
        yield from ()

    def check(self) -> None:
        """Refuse content that the format cannot hold at all, whatever is lost; raises RldsError."""
        return

    def units(self) -> Sequence[Unit]:
        """Divide the work; by default ranges of episodes of about 64 MiB."""
        row = sum(self.content.row_bytes(name) for name in self.content.fields)
        return units_of(self.content, max(1, row))

    def size(self) -> int:
        """Return about how many bytes will be written."""
        return self.content.num_rows * sum(self.content.row_bytes(name) for name in self.content.fields)

    def prepare(self, directory: Path) -> None:
        """Make what units write into; called once, before the first unit, and not again when an export continues."""
        return

    @abstractmethod
    def write(self, unit: Unit, directory: Path) -> Any:
        """Write one unit, durably, and return what `finish` needs of it, as JSON values."""

    def finish(self, directory: Path, results: Mapping[str, Any]) -> None:
        """Write what needs all units; ``results`` are those of `write` by the unit's name, in the order of `units`."""
        return

    def notes(self) -> Sequence[str]:
        """Return what the user should know of the files: how their library finds them, what their instructions are."""
        said = self.instructions
        if said is None or said.is_task or not said.name:
            return ()
        what = f"step is its {said.name}" if said.field else f"episode is its column {said.name}"
        return (f"the instruction of each {what}",)

    def files(self, directory: Path) -> Sequence[Path]:
        """Return the files or directories to import again."""
        return [directory]

    def import_options(self) -> Mapping[str, Any]:
        """Return options of `import_files` that importing the files again needs."""
        return {}


def units_of(
    content: Content, row_bytes: int, size: int = UNIT_BYTES, *, first: int = 0, stop: int | None = None
) -> list[Unit]:
    """Divide the episodes, or those from ``first`` to ``stop``, into ranges of about ``size`` bytes."""
    length = content.table.length[first:stop]
    if not len(length):
        return []
    ends = np.cumsum((length + 1) * row_bytes)
    wanted = np.arange(size, int(ends[-1]) + size, size)
    stops = dict.fromkeys(np.minimum(np.searchsorted(ends, wanted) + 1, len(length)).tolist())
    bounds = [first, *(first + n for n in stops)]
    return [Unit(f"{a}-{b}", a, b) for a, b in pairwise(bounds)]


def absent_images(content: Content, name: str) -> int:
    """Count the steps that have no image."""
    count = 0
    for a, b in content.pieces(name):
        steps = np.ones(b - a, bool)
        steps[content.last_rows(a, b) - a] = False
        count += int((content.frame_sizes(name, a, b)[steps] == 0).sum())
    return count


def odd_texts(content: Content) -> Iterator[Loss]:
    """Yield the loss of fields with texts that are no Unicode, such as bytes that were not UTF-8."""
    for name, f in content.fields.items():
        if f.kind == "text" and name != TASK_AT and (odd := sum(map(_is_odd, content.strings(name)))):
            yield Loss("field", f"the texts {name}, of which {odd:,} hold bytes that are not UTF-8", name)


def check_columns(content: Content, format: str) -> None:
    """Refuse columns of episodes, and tasks of steps, whose texts are no Unicode.

    Raises
    ------
    ExportError
    """
    for name, values in content.table.extra.items():
        if (bad := next((k for k, v in enumerate(values) if isinstance(v, str) and _is_odd(v)), None)) is not None:
            way = f"rlds label {content.id} {name}=TEXT --episodes {bad} writes another"
            raise _no_unicode(content, f"{name} of episode {bad:,}", str(values[bad]), format, way)
    said = content.strings(TASK_AT) if TASK_AT in content.fields else []
    if (text := next(filter(_is_odd, said), None)) is not None:
        way = f"rlds preprocess {content.id} --fn FUNCTION, which writes another {TASK}"
        raise _no_unicode(content, TASK, text, format, way)


def _no_unicode(content: Content, what: str, text: str, format: str, hint: str) -> ExportError:
    return ExportError(
        f"{content.id}: the text {what} holds bytes that are not UTF-8, {text[:40]!r}, not one that {format} "
        "could hold.",
        hint=hint,
    )


def _is_odd(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def sync(path: Path) -> None:
    """Write a file through to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _losses_of_episodes(content: Content, can: frozenset[Kind], name: str) -> Iterator[Loss]:
    table, m = content.table, content.dataset.manifest
    count = len(table)
    known = int(table.observed.sum())
    cut = int((table.end == CUT).sum())
    if "final" not in can and known:
        yield Loss("final", f"final observations of {text.plural(known, 'episode')}")
    if "unknown-final" not in can and count - known:
        yield Loss(
            "unknown-final",
            f"{text.plural(count - known, 'episode')} without a recorded final observation:"
            " the last observation will be repeated in its place",
        )
    if "cut" not in can and cut:
        yield Loss("cut", f"{text.plural(cut, 'episode')} cut by the end of the recording: will be truncated")
    if "seeds" not in can and not isinstance(table.seed, Repeated):
        yield Loss("seeds", "seeds of episodes")
    if "options" not in can and not isinstance(table.options, Repeated):
        yield Loss("options", "reset options of episodes")
    if "splits" not in can and table.splits:
        yield Loss("splits", f"named splits: {', '.join(table.splits)}")
    if "columns" not in can and table.extra:
        yield Loss("columns", f"episode columns: {', '.join(table.extra)}")
    if "metadata" not in can and m.metadata:
        some = ", ".join(m.metadata[:5]) + ", ..." * (len(m.metadata) > 5)
        yield Loss("metadata", f"data that are not per row: {some}")
