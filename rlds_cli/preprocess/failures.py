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
    """One episode that was left out.

    Parameters
    ----------
    id : str
        The source.
    episode : int
        Its number there.
    step : int or None
        Where that is known.
    function : str
    exception : str
        The name of what was raised; empty where something was returned that cannot be stored.
    message : str
        All that is known of it.
    again : str
        The command that makes it happen again.
    """

    id: str
    episode: int
    step: int | None
    function: str
    exception: str
    message: str
    again: str


def failures_of(notes: Iterable[Note]) -> Iterator[Failure]:
    """The failures among notes."""
    return (Failure(**json.loads(n.where)) for n in notes if n.code == FAILED)


def for_manifest(notes: Iterable[Note]) -> tuple[Note, ...]:
    """The notes as the manifest has them: failures by their episode alone."""
    return tuple(replace(n, where=_episode(n)) if n.code == FAILED else n for n in notes)


def _episode(n: Note) -> str:
    return f"episode {json.loads(n.where)['episode']}"


def write_failures(directory: Path, found: Iterable[Failure]) -> None:
    """Write ``errors.jsonl``, one failure a line, unless there is none."""
    lines = [json.dumps(asdict(failure)) + "\n" for failure in found]
    if lines:
        directory.mkdir(parents=True, exist_ok=True)
        safe_files.write_bytes(directory / FAILURES, "".join(lines).encode())


def read_failures(directory: Path) -> tuple[Failure, ...]:
    """The failures that stand in ``errors.jsonl`` of a dataset's directory."""
    try:
        return tuple(Failure(**json.loads(line)) for line in (directory / FAILURES).read_text().splitlines())
    except OSError:
        return ()
