"""Episodes that were left out because the function failed on them: ``errors.jsonl`` in the dataset's directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rlds_cli.files import safe as safe_files
from rlds_cli.store.build import FAILED, FAILURES
from rlds_cli.ted import Note


@dataclass(frozen=True, slots=True)
class Failure:
    """An episode that was left out.

    Parameters
    ----------
    id : str
        Id of the source.
    episode : int
        Number of the episode in the source.
    step : int or None
        Number of the step, if it is known.
    function : str
    exception : str
        Name of the exception's class; empty if the function returned something that cannot be stored.
    message : str
        Message with step, shapes and line.
    again : str
        The command that runs the episode again.
    """

    id: str
    episode: int
    step: int | None
    function: str
    exception: str
    message: str
    again: str


def failures_of(notes: Iterable[Note]) -> Iterator[Failure]:
    """Yield the failures among notes."""
    return (Failure(**json.loads(n.where)) for n in notes if n.code == FAILED)


def for_manifest(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Shorten the notes of failures to the episode, as the manifest stores them."""
    return tuple(replace(n, where=_episode(n)) if n.code == FAILED else n for n in notes)


def _episode(n: Note) -> str:
    return f"episode {json.loads(n.where)['episode']}"


def write_failures(directory: Path, found: Iterable[Failure]) -> None:
    """Write ``errors.jsonl``, one failure per line; no file if there are no failures."""
    lines = [json.dumps(asdict(failure)) + "\n" for failure in found]
    if lines:
        directory.mkdir(parents=True, exist_ok=True)
        safe_files.write_bytes(directory / FAILURES, "".join(lines).encode())


def read_failures(directory: Path) -> tuple[Failure, ...]:
    """Read ``errors.jsonl`` of a dataset's directory; empty if there is no such file."""
    try:
        return tuple(Failure(**json.loads(line)) for line in (directory / FAILURES).read_text().splitlines())
    except OSError:
        return ()
