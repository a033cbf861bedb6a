"""What is said of an episode, its task: a text for each step as readers give it, as stored a column of episodes.

::

    steps of a reader     task      pick  pick  pick  place  place       whatever the archive calls it
    as stored             task      pick                                 of the episode: the first one
                          task_at   pick  pick  pick  place  place       where an episode of the dataset has several

A reader declares the texts by calling their field ``task``. A text that follows from values alone is none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import EPISODE_COLUMNS, TASK, TASK_AT, UNFIT, Chunk, EpisodeTable, Field, Note

NAMES = (TASK, "language_instruction", "natural_language_instruction", "instruction")  # of such texts, the first best
COLUMN = f"episode/{TASK}"  # as an account of an archive calls it
BOTH = (COLUMN, TASK_AT)
MAX_TEXT = 4096  # characters of a text in the episode table; longer ones are not per row
AT = Field(TASK_AT, "str", (), "root", "text")
_SEVERAL = "several-tasks"
_TEXT = f"episodes have several tasks one after the other: {TASK} is the first, {TASK_AT} that of each step"


def episode_column(key: str) -> str:
    """Make the name of a column of the episode table, other than those of TED's own columns."""
    name = UNFIT.sub("_", key.replace("/", "_"))
    return f"own_{name}" if name.lower() in EPISODE_COLUMNS else name


class SeveralTasks(Exception):
    """An episode has several tasks, and there is no field for those of its steps."""


class Divided(NamedTuple):
    """The fields of a reader without the one that says what episodes are about, and that one."""

    others: tuple[Field, ...]
    task: Field | None


def divided(schema: Sequence[Field], where: str, *, names: Sequence[str] = (), mapped: Collection[str] = ()) -> Divided:
    """Find what is said of episodes among the fields of a reader.

    Parameters
    ----------
    where : str
        The archive, for messages.
    names : sequence of str
        Further names that the reader gives such texts; the first that the archive has counts.
    mapped : collection of str
        Names that the user gave, for which ``names`` do not count.

    Raises
    ------
    UnknownLayout
        ``task_at`` is something else, or there is a second text for each step.
    """
    fields = {f.name: f for f in schema}
    at = fields.get(TASK_AT)
    texts = [fields[n] for n in (TASK, TASK_AT) if n in fields and fields[n].kind == "text"]
    if at is not None and (at not in texts or at.placement == "next" or len(texts) > 1):
        odd = f"stands beside {TASK}" if len(texts) > 1 else f"is {at.dtype} {list(at.shape)}"
        raise UnknownLayout(
            f"{where}: {TASK_AT} {odd}; it is the name of the text that says what is to be done at a step.",
            hint=f"another name: --map NAME={TASK_AT}",
        )
    if TASK not in fields and at is None:
        others = (fields[n] for n in names if n in fields and n not in mapped)
        texts = [f for f in others if f.kind == "text"][:1]
    if not texts:
        return Divided(tuple(schema), None)
    return Divided(tuple(f for f in schema if f is not texts[0]), texts[0])


def as_read(schema: Sequence[Field], task: Field | None) -> tuple[Field, ...]:
    """Return the fields as their reader gives them."""
    return tuple(schema) if task is None else _sorted([*(f for f in schema if f.name != TASK_AT), task])


def with_steps(schema: Sequence[Field]) -> tuple[Field, ...]:
    """Return fields with that of the tasks of steps."""
    return _sorted([*schema, AT])


def _sorted(fields: Sequence[Field]) -> tuple[Field, ...]:
    return tuple(sorted(fields, key=lambda f: f.name))


def said(chunks: Iterator[Chunk], task: Field, name_of: Callable[[int], str], *, steps: bool) -> Iterator[Chunk]:
    """Make columns of episodes of the texts in the chunks of a reader, and with ``steps`` the field of steps.

    Parameters
    ----------
    task : Field
        Of the texts.
    name_of : callable
        Returns the name of a file by its number, for messages.

    Raises
    ------
    SeveralTasks
        An episode has several texts, and there are no ``steps``.
    UnknownLayout
        The archive says something else of an episode in another place.
    """
    before = list[str | None]()  # the different texts so far of the episode that continues
    for chunk in chunks:
        texts: Any = chunk.columns[task.name]
        at: list[str | None] = [None] * len(texts)
        first, several, begin = list[str | None](), 0, 0
        for stop in [*np.flatnonzero(chunk.last).tolist(), len(texts)]:
            before = list(dict.fromkeys([*before, *texts[begin:stop]]))
            if len(before) > 1 and not steps:
                raise SeveralTasks
            at[begin:stop] = texts[begin:stop]
            if stop < len(texts):
                first.append(next((text for text in before if text is not None), None))
                several += len(before) > 1
                before = []
            begin = stop + 1
        columns = {name: column for name, column in chunk.columns.items() if name != task.name}
        columns |= {TASK_AT: at} if steps else {}
        notes = (Note(_SEVERAL, _TEXT, several),) if several else ()
        yield Chunk(columns, chunk.last, _with_tasks(chunk.episodes, first, name_of), (*chunk.notes, *notes))


def _with_tasks(table: EpisodeTable, found: Sequence[str | None], name_of: Callable[[int], str]) -> EpisodeTable:
    """Return the episodes with what is said of them; what an archive says of them in two ways has to agree."""
    known = table.extra.get(TASK, [None] * len(found))
    for k, (a, b) in enumerate(zip(known, found, strict=True)):
        if a is not None and b is not None and a != b:
            raise UnknownLayout(
                f"{name_of(int(table.source[k]))}: the task of {table.group[k] or 'an episode'} is {a!r:.60} as a value"
                f" of the episode, and {b!r:.60} at its first step.",
                hint="--map reads one of them as another name",
            )
    both = [a if b is None else b for a, b in zip(known, found, strict=True)]
    return replace(table, extra={**table.extra, TASK: both})
