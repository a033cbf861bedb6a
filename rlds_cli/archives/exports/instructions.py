"""Instructions: the texts of which a format makes what its library calls the task, or the language instruction.

They are what ``task`` says; in a dataset without it, the only other text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlds_cli.archives.exports.content import Content, Loss
from rlds_cli.base.array_types import Array
from rlds_cli.base.text import did_you_mean, plural
from rlds_cli.errors import InvalidArgument
from rlds_cli.ted import TASK, TASK_AT


def texts_of(content: Content) -> list[str]:
    """Return the names of the texts of a dataset: columns of episodes, and fields of steps."""
    own = [n for n, values in content.own_columns.items() if any(isinstance(v, str) for v in values)]
    steps = [n for n, f in content.fields.items() if f.kind == "text" and f.placement != "next" and n != TASK_AT]
    return list(dict.fromkeys([*own, *steps]))


def chosen(content: Content, wanted: str | None) -> str:
    """Return the name of the text that is the instruction; empty for none.

    Parameters
    ----------
    wanted : str or None
        A name, or an empty text for none of them; None chooses ``task``, else the only text.

    Raises
    ------
    InvalidArgument
        There are several, or none of this name.
    """
    there = texts_of(content)
    if wanted is None and (TASK in there or len(there) < 2):
        return TASK if TASK in there else "".join(there)
    if wanted is None:
        raise InvalidArgument(
            f"{content.id} has several texts that could be the instruction: {', '.join(there)}.",
            hint=f'--task {there[0]} (task="{there[0]}") takes that one, --task "" none of them',
        )
    if wanted and wanted not in there:
        known = f"it has {', '.join(there)}" if there else "it has no texts"
        raise InvalidArgument(f"{content.id} has no text {wanted}.{did_you_mean(wanted, there)}", hint=known)
    return wanted


@dataclass(frozen=True)
class Instructions:
    """The texts called ``name`` of a content; nothing if that is empty."""

    content: Content
    name: str

    @property
    def is_task(self) -> bool:
        """Whether they are what the dataset itself calls the task."""
        return self.name == TASK

    @property
    def field(self) -> str | None:
        """The field that has the text of each step; None if there is one text for an episode."""
        name = TASK_AT if self.is_task else self.name
        return name if name in self.content.fields else None

    @property
    def of_episodes(self) -> list[str]:
        """The text of each episode, empty where there is none; of a field, the first of its steps."""
        return [text or "" for text in self._first]

    @property
    def blank(self) -> int:
        """Number of episodes with a text of which nothing can be read."""
        return sum(text is not None and not text.strip() for text in self._first)

    @cached_property
    def _first(self) -> list[str | None]:
        if self.field is None or self.is_task:
            own = self.content.own_columns.get(self.name) or [None] * len(self.content.table)
            return [text if isinstance(text, str) else None for text in own]
        return [self.content.rows(self.field, row, row + 1)[0] for row in self.content.starts.tolist()]

    def of_steps(self, episode: int) -> Sequence[str]:
        """Return the text of each step of an episode, empty where there is none [T]."""
        start, length = int(self.content.starts[episode]), int(self.content.table.length[episode])
        if self.field is None:
            return [self.of_episodes[episode]] * length
        return [text or "" for text in self.content.rows(self.field, start, start + length).tolist()]

    @cached_property
    def missing(self) -> int:
        """Number of the texts that are missing: of episodes, or of steps."""
        if self.field is not None:
            return self.content.missing_texts(self.field)
        return sum(not isinstance(text, str) for text in self.content.own_columns.get(self.name, ()))

    def losses(self, *, filled: bool) -> Iterator[Loss]:
        """Yield what is lost of ``task``; with ``filled``, each step needs a text."""
        of_steps, known = self.content.of_steps, self._stored
        if of_steps is not None and known is not None:
            differ = sum(a != b for a, b in zip(known, of_steps.first, strict=True))
            if differ:
                text = f"the column {TASK} of {plural(differ, 'episode')}, which is not the first text of {TASK_AT}"
                yield Loss("task", text, TASK)
        if filled and self.is_task and self.missing:
            what = plural(self.missing, "step" if self.field else "episode")
            text = f"that {what} {'has' if self.missing == 1 else 'have'} no {TASK}: it will be empty"
            yield Loss("missing", text, self.field or TASK)

    @property
    def _stored(self) -> Sequence[object] | None:
        column = self.content.source.store.own_columns
        if TASK not in column:
            return None
        values = self.content.source.store.own_column(TASK).scalars()
        return [values[k] for k in self.content.source.index.tolist()]

    def codes(self) -> Array:
        """Return the number of the text of each episode among the different ones, in order of their first use."""
        number = {text: k for k, text in enumerate(dict.fromkeys(self.of_episodes))}
        return np.array([number[text] for text in self.of_episodes], np.int64)
