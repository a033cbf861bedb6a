"""What the episodes of a Minari archive hold, column by column, and the one schema that fits them all.

=========================  ================  ======================================================================
archive                    field             rows
=========================  ================  ======================================================================
observations[/key...]      observation/...   T+1
actions[/key...]           action/...        T
rewards                    next/reward       T
terminations, truncations  next/...          T
infos/key...               info/...          T+1; ``next/info/...`` where it has T (what the environment returned after)
state/..., any other       state/...         T+1 or T, recorded by an old StepDataCallback
=========================  ================  ======================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ordering import natural
from rlds_cli.ted import FLAGS, REWARD, Field, Kind, Note, Placement

Path = tuple[str, ...]

CORE = {
    "observations": "observation",
    "actions": "action",
    "rewards": REWARD,
    "terminations": FLAGS[0],
    "truncations": FLAGS[1],
}
_TUPLE = re.compile(r"^_index_(\d+)$")  # element of a Tuple in HDF5
_KINDS: Mapping[Kind, str] = {"array": "", "frames": "encoded images of ", "text": "strings, "}
RESERVED = {"observation", "action", "next", "info"}


@dataclass(frozen=True, slots=True)
class Leaf:
    """One column of one episode: where it is, what a row is, and by how many rows it exceeds the steps.

    ``problem`` says why it cannot be a field, where that is so.
    """

    path: Path
    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    extra: int
    problem: str = ""

    @property
    def key(self) -> str:
        """The path in one string."""
        return "/".join(self.path)


Signature = tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode as messages name it, and its steps."""

    name: str
    steps: int


@dataclass(frozen=True, slots=True)
class Scanned:
    """What ``scan`` of a format finds of each episode: number, name and steps, columns."""

    number: int
    episode: Episode
    leaves: Signature


@dataclass(frozen=True, slots=True)
class Columns:
    """The schema of an archive, the path of each field in it, and what could not be kept."""

    schema: tuple[Field, ...]
    paths: Mapping[str, Path]
    notes: tuple[Note, ...]


def merge(signatures: Mapping[Signature, Episode], renamed: Mapping[str, str]) -> Columns:
    """The fields that all episodes have.

    What only some of them hold, or hold in different shapes, is left out and noted: a field has a value in every
    row, and none is made up. Numbers of different types become the type that holds both.

    Parameters
    ----------
    signatures : mapping
        Each way in which an episode is laid out, with the first episode laid out so.
    renamed : mapping
        Keys of the archive (``infos/success``) to field names, where the user says so.

    Raises
    ------
    CorruptArchive
        Observations, actions, rewards or flags are missing somewhere, or have the wrong number of rows.
    UnknownLayout
        They hold what cannot be a field, or there is nothing.
    """
    found: dict[Path, dict[Episode, Leaf]] = {}
    for signature, episode in signatures.items():
        for leaf in signature:
            found.setdefault(leaf.path, {})[episode] = leaf
    fields: list[Field] = []
    paths: dict[str, Path] = {}
    notes: list[Note] = []
    for path in sorted(found, key=_order):
        try:
            field = _field(path, found[path], list(signatures.values()), renamed)
        except _LeftOut as e:
            notes.append(Note(e.code, e.text))
            continue
        if field.name in paths:
            raise UnknownLayout(
                f'Two columns would be "{field.name}": {"/".join(paths[field.name])}, {"/".join(path)}.'
            )
        fields.append(field)
        paths[field.name] = path
    _require(paths, renamed)
    fields += [Field(name, "bool", placement="next") for name in FLAGS if name not in paths]
    return Columns(tuple(fields), paths, tuple(notes))


class _LeftOut(Exception):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def _order(path: Path) -> tuple[int, object]:
    first = list(CORE).index(path[0]) if path[0] in CORE else len(CORE) + (path[0] != "infos")
    return first, natural("/".join(path))


def _field(
    path: Path, leaves: Mapping[Episode, Leaf], episodes: Sequence[Episode], renamed: Mapping[str, str]
) -> Field:
    key, core = "/".join(path), path[0] in CORE
    missing = [e for e in episodes if e not in leaves]
    if missing and core:
        raise CorruptArchive(f"{missing[0].name}: {key} is missing; {next(iter(leaves)).name} has it.")
    if missing:
        raise _LeftOut(
            "partial-column", f"{key} is not in every episode ({missing[0].name} lacks it) and was left out."
        )
    for episode, leaf in leaves.items():
        if leaf.problem and core:
            raise UnknownLayout(f"{episode.name}: {key} cannot be read: {leaf.problem}.")
        if leaf.problem:
            raise _LeftOut("unreadable-column", f"{key} was left out: {leaf.problem}.")
    _check_rows(key, leaves, core)
    first = next(iter(leaves.values()))
    if len({(leaf.kind, leaf.shape) for leaf in leaves.values()}) > 1:
        text = f"{key} has rows of different shape: " + ", ".join(_shapes(leaves))
        if core:
            raise CorruptArchive(f"{text}.")
        raise _LeftOut("ragged-column", f"{text}; it was left out.")
    name = renamed.get(key) or _name(path, first.extra)
    return Field(name, _dtype(name, leaves), first.shape, _placement(key, name, first.extra), first.kind)


def _shapes(leaves: Mapping[Episode, Leaf]) -> list[str]:
    seen: dict[tuple[Kind, tuple[int, ...]], str] = {}
    for episode, leaf in leaves.items():
        seen.setdefault(
            (leaf.kind, leaf.shape), f"{_KINDS[leaf.kind]}{leaf.dtype} {list(leaf.shape)} in {episode.name}"
        )
    return list(seen.values())


def _check_rows(key: str, leaves: Mapping[Episode, Leaf], core: bool) -> None:
    expected = (1 if key.split("/")[0] == "observations" else 0,) if core else (0, 1)
    extra = {leaf.extra for leaf in leaves.values()}
    for episode, leaf in leaves.items():
        if leaf.extra not in expected:
            rows = " or ".join(f"{episode.steps + n:,}" for n in expected)
            raise CorruptArchive(
                f"{episode.name}: {key} has {episode.steps + leaf.extra:,} rows; {rows} expected, as the episode has "
                f"{episode.steps:,} steps."
            )
    if len(extra) > 1:
        where = {leaf.extra: episode.name for episode, leaf in leaves.items()}
        raise CorruptArchive(f"{key} has as many rows as steps in {where[0]}, and one more in {where[1]}.")


def _name(path: Path, extra: int) -> str:
    keys = [_TUPLE.sub(r"\1", key) for key in path[1:]]
    if path[0] in CORE:
        return "/".join((CORE[path[0]], *keys))
    if path[0] == "infos":
        return "/".join(("info" if extra else "next/info", *keys))
    return "/".join((*(["extra"] if path[0] in RESERVED else []), path[0], *keys))


def _placement(key: str, name: str, extra: int) -> Placement:
    after = name.startswith("next/")
    if after and extra:
        raise UnknownLayout(f'{key} has T+1 rows and cannot be "{name}": what comes after a step has T.')
    return "next" if after else "both" if extra else "root"


def _dtype(name: str, leaves: Mapping[Episode, Leaf]) -> str:
    if name in FLAGS:
        return "bool"
    kinds = sorted({leaf.dtype for leaf in leaves.values()})
    return kinds[0] if len(kinds) == 1 else np.result_type(*kinds).name


def _require(paths: Mapping[str, Path], renamed: Mapping[str, str]) -> None:
    keys = {"/".join(p) for p in paths.values()}
    for key, name in renamed.items():
        if key not in keys:
            raise UnknownLayout(
                f'There is no column "{key}" to be "{name}".', hint=f"columns: {', '.join(sorted(keys))}"
            )
    for first in ("observations", "actions"):
        if not any(p[0] == first for p in paths.values()):
            raise CorruptArchive(f"No episode has {first}.")
