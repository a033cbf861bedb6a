"""Where a function stands in a pipeline, and what of its messages speaks of the pipeline's source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlds_cli.dataset import Dataset
from rlds_cli.errors import PreprocessError
from rlds_cli.preprocess import failures
from rlds_cli.preprocess.failures import Failure
from rlds_cli.ted import Note

_COMMANDS = ("rlds preprocess ", "rlds_cli.preprocess.")


@dataclass(frozen=True)
class Chain:
    """Function ``number`` of ``count``, from 0 on, which works on ``dataset``; the pipeline began with ``source``.

    ``again`` is the command for one episode of the source but for the episode; ``record`` is what the manifest of the
    result says of the pipeline.
    """

    source: Dataset
    dataset: Dataset
    number: int
    count: int
    again: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)

    def origin(self, episode: int) -> int:
        """The episode of the source that episode ``episode`` of the dataset was made of.

        Both come from the same place in the archive; episodes of one archive differ in that.
        """
        if self.number == 0:
            return episode
        mine, source = self.dataset.store.table(), self.source.store.table()
        same = (source.row == mine.row[episode]) & (source.source == mine.source[episode])
        candidates = [k for k in same.nonzero()[0].tolist() if source.group[k] == mine.group[episode]]
        return int(candidates[0]) if candidates else episode

    def told(self, e: PreprocessError) -> PreprocessError:
        """An error that speaks of the source."""
        message = f"Function {self.number + 1} of {self.count}: {e.message}"
        if e.episode is None or self.number == 0:
            e.message, e.args = message, (message,)
            return e
        origin = self.origin(e.episode)
        message += f" Its episode {e.episode:,} is of episode {origin:,} of {self.source.id}."
        hint = self._again(origin) if e.hint and e.hint.startswith(_COMMANDS) else e.hint
        return PreprocessError(message, hint=hint).at(origin)

    def failures(self, notes: Iterable[Note]) -> tuple[Failure, ...]:
        """All failures of the pipeline up to here, by episodes of the source."""
        own = failures.of(notes)
        if self.number == 0:
            return tuple(own)
        of_source = (replace(f, id=self.source.id, episode=self.origin(f.episode)) for f in own)
        return (*failures.read(self.dataset.path), *(replace(f, again=self._again(f.episode)) for f in of_source))

    def notes(self) -> tuple[Note, ...]:
        """What was noted of the functions before."""
        return tuple(Note(**n) for n in self.dataset.manifest.notes) if self.number else ()

    def _again(self, episode: int) -> str:
        return self.again.replace("EPISODE", str(episode))
