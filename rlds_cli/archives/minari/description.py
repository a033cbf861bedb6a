"""The description of a Minari archive: its files, its ``metadata.json``, and the one schema that fits all its episodes.

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

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlds_cli.archives.formats.camera_files import is_media
from rlds_cli.archives.formats.hdf5 import is_hdf5
from rlds_cli.base.files import json as documents
from rlds_cli.base.text import natural
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, Field, Kind, Note, Placement

# Versions whose layout this reader was checked against.
VERSIONS = {f"0.4.{n}" for n in range(4)} | {f"0.5.{n}" for n in range(5)}
# Bounds of larger Box spaces are kept as one number where they are all the same: an image space would take megabytes.
LARGE = 1024
_SCORES = ("ref_min_score", "ref_max_score", "num_episodes_average_score")
Described = tuple[int | None, str | None, tuple[Note, ...]]  # seed, options as JSON, what is odd about them
_SPECS = ("env_spec", "eval_env_spec")
_SPEC_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "id": lambda v: isinstance(v, str),
    "max_episode_steps": lambda v: v is None or (isinstance(v, int) and not isinstance(v, bool) and 0 < v < 1 << 63),
}
_FACTS = {
    "dataset_id": "dataset_id",
    "minari_version": "minari_version",
    "author": "author",
    "author_email": "author_email",
    "algorithm_name": "algorithm",
    "description": "description",
    "code_permalink": "code_permalink",
    "docs_url": "docs_url",
    "requirements": "requirements",
    "combined_datasets": "combined_datasets",
    "ref_min_score": "ref_min_score",
    "ref_max_score": "ref_max_score",
    "num_episodes_average_score": "num_episodes_average_score",
    "jpeg_encoding": "jpeg_encoding",
}
LeafPath = tuple[str, ...]
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
Format = Literal["hdf5", "arrow", "parquet"]
SUFFIXES: dict[str, Format] = {".arrow": "arrow", ".parquet": "parquet"}
METADATA = "metadata.json"
EPISODE = re.compile(r"0|[1-9][0-9]{0,17}")


def read(path: Path) -> dict[str, Any]:
    """Read the content of ``metadata.json``.

    Raises
    ------
    CorruptArchive
        It is not JSON, or not an object.
    """
    return documents.load_object(path)


def is_minari(content: Mapping[str, Any]) -> bool:
    """Tell whether a ``metadata.json`` is that of a Minari dataset."""
    return "total_episodes" in content and bool({"data_format", "minari_version", "observation_space"} & set(content))


def facts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the authors and origin of the data, and the reference scores."""
    return {name: metadata[key] for key, name in _FACTS.items() if _is_fact(key, metadata.get(key))}


def _is_fact(key: str, value: Any) -> bool:
    """Tell whether a value exists and is of the expected kind."""
    if key in _SCORES:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if key == "jpeg_encoding":
        return isinstance(value, bool | int)
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(v, str) for v in value))


def space(metadata: Mapping[str, Any], which: str) -> dict[str, Any] | None:
    """Return the space ``which`` ("observation", "action") in Minari's JSON form; None if it is not recorded.

    Raises
    ------
    CorruptArchive
        It is not JSON, or lacks what its type needs.
    """
    value = _parsed(metadata, f"{which}_space")
    if not value:
        return None
    try:
        _check(value)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError) as e:
        raise CorruptArchive(f"metadata.json: {which}_space does not describe a space: {e!r}") from e
    return _compact(value)


def env(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``id``, ``spec`` and ``eval_spec`` of the environment: Gymnasium's EnvSpec as JSON values."""
    spec, eval_spec = (_spec(metadata, key) for key in _SPECS)
    found = {"id": (spec or {}).get("id"), "spec": spec, "eval_spec": eval_spec}
    return {k: v for k, v in found.items() if v is not None}


def _spec(metadata: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """Return an EnvSpec without entries of another kind than Gymnasium's, which `notes` names."""
    found = _parsed(metadata, key)
    return found and {k: v for k, v in found.items() if k not in _SPEC_KINDS or _SPEC_KINDS[k](v)}


def _odd(metadata: Mapping[str, Any]) -> list[str]:
    """Find the entries of the metadata that are not kept, since they are of another kind than Minari's."""
    facts = [k for k in _FACTS if metadata.get(k) is not None and not _is_fact(k, metadata[k])]
    specs = {key: _parsed(metadata, key) or {} for key in _SPECS}
    return [
        *facts,
        *(f"{key}.{k}" for key, s in specs.items() for k, fits in _SPEC_KINDS.items() if k in s and not fits(s[k])),
    ]


def notes(metadata: Mapping[str, Any], episodes: int, steps: int) -> list[Note]:
    """Note the differences between the metadata and the data."""
    found = []
    version = metadata.get("minari_version")
    if metadata and str(version) not in VERSIONS:
        found.append(Note("minari-version", f"written by Minari {version}, which this reader was not checked against"))
    if odd := _odd(metadata):
        text = f"entries of metadata.json that are of another kind than Minari's were left out: {', '.join(odd)}"
        found.append(Note("odd-metadata", text, len(odd)))
    for key, here in (("total_episodes", episodes), ("total_steps", steps)):
        stated = metadata.get(key)
        if isinstance(stated, int) and stated != here:
            found.append(Note(key.replace("_", "-"), f"metadata.json says {stated:,} {key[6:]}; there are {here:,}"))
    return found


def _parsed(metadata: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    value = metadata.get(key)
    try:
        value = documents.loads(value) if isinstance(value, str) else value
    except ValueError as e:
        raise CorruptArchive(f"metadata.json: {key} is not JSON: {e}") from e
    if value is not None and not isinstance(value, dict):
        raise CorruptArchive(f"metadata.json: {key} is {type(value).__name__}; an object expected.")
    return value


def _check(space: Mapping[str, Any]) -> None:
    """Check that shapes and subspaces exist and are of the right kind; the errors are Python's."""
    match space["type"]:
        case "Box":
            if any(index(n) < 0 for n in space["shape"]):
                raise ValueError(space["shape"])
            np.dtype(space["dtype"])
        case "MultiDiscrete":
            np.asarray(space["nvec"], np.int64)
        case "MultiBinary":
            [index(n) for n in np.ravel(space["n"]).tolist()]
        case "Dict" | "Tuple":
            inner = space["subspaces"]
            for subspace in inner.values() if space["type"] == "Dict" else inner:
                _check(subspace)


def _compact(space: dict[str, Any]) -> dict[str, Any]:
    """Replace the bounds of a large Box by one number if they are all the same."""
    if space.get("type") == "Box" and math.prod(space.get("shape") or ()) > LARGE:
        return {k: _uniform(v) if k in ("low", "high") else v for k, v in space.items()}
    subspaces = space.get("subspaces")
    if isinstance(subspaces, dict):
        return {**space, "subspaces": {k: _compact(v) for k, v in subspaces.items()}}
    if isinstance(subspaces, list):
        return {**space, "subspaces": [_compact(v) for v in subspaces]}
    return space


def _uniform(bound: Any) -> Any:
    values: set[Any] = set()
    rest = [bound]
    while rest and len(values) < 2:
        value = rest.pop()
        if isinstance(value, list):
            rest += value
        else:
            values.add(value)
    return values.pop() if len(values) == 1 else bound


def described(seed: Any, options: Any) -> Described:
    """Convert the seed and options of an episode to the form of the episode table."""
    text = None if options is None else json.dumps(options, default=plain, sort_keys=True, ensure_ascii=False)
    if seed is None:
        return None, text, ()
    try:
        number = int(seed)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not 0 <= number < 1 << 64:
        return None, text, (Note("seed", f"seeds that are not unsigned 64-bit numbers ({seed}) were left out"),)
    return number, text, ()


def plain(value: Any) -> Any:
    """Convert a value of an HDF5 attribute to a JSON value."""
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


@dataclass(frozen=True, slots=True)
class MinariColumn:
    """One column of one episode: its path, its kind of rows, and the number of rows beyond the steps.

    ``problem`` is the reason why it cannot be a field, or empty.
    """

    path: LeafPath
    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    extra: int
    problem: str = ""

    @property
    def key(self) -> str:
        """The path in one string."""
        return "/".join(self.path)


Signature = tuple[MinariColumn, ...]


@dataclass(frozen=True, slots=True)
class NamedEpisode:
    """An episode as messages name it, and its steps."""

    name: str
    steps: int


@dataclass(frozen=True, slots=True)
class ScannedEpisodes:
    """The findings of a format's ``scan`` about one episode: number, name and steps, columns, and what else it has."""

    number: int
    episode: NamedEpisode
    leaves: Signature
    attributes: tuple[str, ...] = ()  # of the group and what lies in it, as ``PATH@NAME``
    empty: tuple[str, ...] = ()  # groups without members


@dataclass(frozen=True, slots=True)
class Columns:
    """The schema of an archive, the path of each field in it, and notes on columns that were left out."""

    schema: tuple[Field, ...]
    paths: Mapping[str, LeafPath]
    notes: tuple[Note, ...]


def merge(signatures: Mapping[Signature, NamedEpisode], renamed: Mapping[str, str]) -> Columns:
    """Find the fields that all episodes have.

    A column that some episodes lack, or have in another shape, is left out with a note, since a field has a value in
    every row. Numbers of different types become the type that holds both.

    Parameters
    ----------
    signatures : mapping
        Each way in which an episode is laid out, with the first episode laid out so.
    renamed : mapping
        Field names by the keys of the archive (``infos/success``) that the user renames.

    Raises
    ------
    CorruptArchive
        Observations, actions, rewards or flags are missing somewhere, or have the wrong number of rows.
    UnknownLayout
        These columns hold values that cannot be a field, or there are no columns.
    """
    found: dict[LeafPath, dict[NamedEpisode, MinariColumn]] = {}
    for signature, episode in signatures.items():
        for leaf in signature:
            found.setdefault(leaf.path, {})[episode] = leaf
    fields: list[Field] = []
    paths: dict[str, LeafPath] = {}
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


def _order(path: LeafPath) -> tuple[int, object]:
    first = list(CORE).index(path[0]) if path[0] in CORE else len(CORE) + (path[0] != "infos")
    return first, natural("/".join(path))


def _field(
    path: LeafPath,
    leaves: Mapping[NamedEpisode, MinariColumn],
    episodes: Sequence[NamedEpisode],
    renamed: Mapping[str, str],
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


def _shapes(leaves: Mapping[NamedEpisode, MinariColumn]) -> list[str]:
    seen: dict[tuple[Kind, tuple[int, ...]], str] = {}
    for episode, leaf in leaves.items():
        seen.setdefault(
            (leaf.kind, leaf.shape), f"{_KINDS[leaf.kind]}{leaf.dtype} {list(leaf.shape)} in {episode.name}"
        )
    return list(seen.values())


def _check_rows(key: str, leaves: Mapping[NamedEpisode, MinariColumn], core: bool) -> None:
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


def _name(path: LeafPath, extra: int) -> str:
    keys = [_TUPLE.sub(r"\1", key) for key in path[1:]]
    if path[0] in CORE:
        return "/".join((CORE[path[0]], *keys))
    if path[0] == "infos":
        return "/".join(("info" if extra else "next/info", *keys))
    return "/".join((*(["extra"] if path[0] in RESERVED else []), path[0], *keys))


def _placement(key: str, name: str, extra: int) -> Placement:
    after = name.startswith("next/")
    if after and extra:
        raise UnknownLayout(f'{key} has T+1 rows and cannot be "{name}": results of a step have T rows.')
    return "next" if after else "both" if extra else "root"


def _dtype(name: str, leaves: Mapping[NamedEpisode, MinariColumn]) -> str:
    if name in FLAGS:
        return "bool"
    kinds = sorted({leaf.dtype for leaf in leaves.values()})
    return kinds[0] if len(kinds) == 1 else np.result_type(*kinds).name


def _require(paths: Mapping[str, LeafPath], renamed: Mapping[str, str]) -> None:
    keys = {"/".join(p) for p in paths.values()}
    for key, name in renamed.items():
        if key not in keys:
            raise UnknownLayout(
                f'There is no column "{key}" to be "{name}".', hint=f"columns: {', '.join(sorted(keys))}"
            )
    for first in ("observations", "actions"):
        if not any(p[0] == first for p in paths.values()):
            raise CorruptArchive(f"No episode has {first}.")


@dataclass(frozen=True, slots=True)
class MinariFiles:
    """The files, by their index among those of the archive.

    ``metadata`` is a path or None, since it may lie beside files that were named one by one.
    ``parts`` are the data files of each episode in order, empty for HDF5; ``described`` the episodes' own metadata.
    """

    format: Format
    metadata: Path | None
    main: int
    parts: dict[int, list[int]]
    described: dict[int, int]


def _is_hdf5(path: Path) -> bool:
    return not is_media(path) and (path.suffix in (".hdf5", ".h5") or is_hdf5(path))


def locate(files: Sequence[Path]) -> MinariFiles | None:
    """Find the files of an archive by the names that Minari gives them; None if there are none.

    Raises
    ------
    UnknownLayout
        There is more than one dataset.
    """
    named = [i for i, p in enumerate(files) if os.fspath(p).endswith(tuple(SUFFIXES))]  # of thousands of images, too
    parts = [i for i in named if files[i].suffix in SUFFIXES and EPISODE.fullmatch(files[i].parent.name)]
    if parts:
        return _locate_episodes(files, parts)
    main = [i for i, p in enumerate(files) if p.name == "main_data.hdf5"]
    main = main or [i for i, p in enumerate(files) if _is_hdf5(p)]
    if not main:
        return None
    _check_single([files[i] for i in main])
    others = [p for i, p in enumerate(files) if i != main[0] and _is_hdf5(p)]
    if others:
        raise UnknownLayout(
            f"{others[0]} is beside a Minari dataset and does not belong to it.", hint="import them one by one"
        )
    return MinariFiles("hdf5", _metadata_file(files, files[main[0]].parent), main[0], {}, {})


def _locate_episodes(files: Sequence[Path], indices: Sequence[int]) -> MinariFiles:
    roots = {files[i].parent.parent: None for i in indices}
    _check_single(list(roots))
    formats = {SUFFIXES[files[i].suffix] for i in indices}
    if len(formats) > 1:
        raise UnknownLayout(f"{next(iter(roots))} holds episodes in arrow and in parquet.")
    parts: dict[int, list[int]] = {}
    for i in sorted(indices, key=lambda i: natural(files[i].name)):
        parts.setdefault(int(files[i].parent.name), []).append(i)
    names = {str(number) for number in parts}
    described = {int(p.parent.name): i for i, p in enumerate(files) if p.name == METADATA and p.parent.name in names}
    return MinariFiles(
        formats.pop(), _metadata_file(files, next(iter(roots))), -1, dict(sorted(parts.items())), described
    )


def _metadata_file(files: Sequence[Path], directory: Path) -> Path | None:
    path = directory / METADATA
    return path if path in files or path.exists() else None


def _check_single(datasets: Sequence[Path]) -> None:
    if len(datasets) > 1:
        raise UnknownLayout(
            f"There are {len(datasets)} Minari datasets: " + ", ".join(str(d) for d in datasets[:3]) + " ...",
            hint="import them one by one",
        )
