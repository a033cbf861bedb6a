"""What a lock file may run and read on this machine: functions that come with rlds, and what the user has allowed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlds_cli import ids
from rlds_cli.errors import RldsError
from rlds_cli.keeping.locks import Locked

if TYPE_CHECKING:
    from rlds_cli.preprocess.checked import Found
    from rlds_cli.preprocess.functions import Function

# Functions need NumPy: they are imported where a dataset is to be made.
EVERYTHING = "all"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A function of the user's that would run: where it is, which dataset it makes, and with which arguments."""

    reference: str
    file: Path
    id: str
    args: Mapping[str, Any]

    def __str__(self) -> str:
        args = ", ".join(f"{name}={value!r}" for name, value in self.args.items())
        return f"{self.reference} ({self.file}), called with {args or 'no arguments'}, to make {self.id}"


def wanted(datasets: Sequence[Locked]) -> tuple[Wanted, ...]:
    """The functions of the user's that make ``datasets``; nothing of them is imported.

    Raises
    ------
    PreprocessError
        One of them is no function that a lock may name.
    WrongFingerprint
        The source of one is another now.
    """
    return tuple(
        Wanted(found.reference, found.file, d.id, step["args"])
        for d in datasets
        if d.reproducible
        for step in d.made_by
        if (found := _found(d, step)) is not None
    )


@contextmanager
def granted(
    datasets: Sequence[Locked],
    allow_code: bool | Sequence[str],
    depends_on: Sequence[str | os.PathLike[str]],
    file: str | os.PathLike[str],
) -> Iterator[None]:
    """Meanwhile the functions that make ``datasets`` may run: all of them, and the files that they read, are allowed.

    Raises
    ------
    RldsError
        As of `wanted`; or a function, or a file that it reads, is not allowed.
    """
    found = wanted(datasets)
    names = _names(allow_code)
    for one in found:
        if not names & {one.reference, EVERYTHING}:
            raise RldsError(
                f"{os.fspath(file)} would run a function of yours: {one}. Nothing was done.",
                hint=f"--allow-code {one.reference} (allow_code=[{one.reference!r}]) runs it; look at the lock first",
            )
    for d in datasets:
        for name in _files_read(d):
            _check_file(d, name, depends_on)
    if not found:
        yield
        return
    from rlds_cli.preprocess import checked

    with checked.from_source():
        yield


def _names(allow_code: bool | Sequence[str]) -> set[str]:
    if isinstance(allow_code, bool):
        return {EVERYTHING} if allow_code else set()
    return {allow_code} if isinstance(allow_code, str) else set(allow_code)


def load(step: Mapping[str, Any]) -> str | Function:
    """The function of a step: a built-in one's name, or one of the user's, imported now."""
    from rlds_cli.preprocess import checked

    found = checked.find(str(step["reference"]), _made_of(step))
    return str(step["reference"]) if found is None else checked.load(found)


def depends(d: Locked) -> dict[str, str]:
    """The files that the functions of a dataset depend on, and their sha256."""
    return {name: sha256 for step in d.made_by for name, sha256 in (step.get("depends") or {}).items()}


def _found(d: Locked, step: Mapping[str, Any]) -> Found | None:
    from rlds_cli.preprocess import checked

    try:
        return checked.find(str(step["reference"]), _made_of(step))
    except RldsError as e:
        name = ids.parse(d.id).variant
        e.hint = f"rlds preprocess {step['from']} --fn MODULE:FUNCTION --name {name} makes {d.id} with what you choose"
        raise


def _made_of(step: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(sha256)) for name, sha256 in step["files"])


def _files_read(d: Locked) -> Iterator[str]:
    if not d.made_by or not d.reproducible:
        return
    from rlds_cli.preprocess import builtin, checked

    for step in d.made_by:
        own = ":" in step["reference"] or builtin.get(step["reference"]) is None
        yield from checked.files_read(step["args"] if own else {}, step.get("depends") or {})


def _check_file(d: Locked, name: str, allowed: Sequence[str | os.PathLike[str]]) -> None:
    from rlds_cli.preprocess import checked

    if not checked.is_allowed(name, allowed):
        raise RldsError(
            f"{d.id} was made with the file {name}, which is outside of the working directory. Nothing was read.",
            hint=f"--depends-on {name} (depends_on=[{name!r}]) lets the function read it; look at the lock first",
        )
