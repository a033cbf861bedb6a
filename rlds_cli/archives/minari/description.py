"""``metadata.json``: what a Minari archive says about itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import documents
from rlds_cli.errors import CorruptArchive
from rlds_cli.ted import Note

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


def read(path: Path) -> dict[str, Any]:
    """The content of ``metadata.json``.

    Raises
    ------
    CorruptArchive
        It is not JSON, or not an object.
    """
    return documents.load_object(path)


def is_minari(content: Mapping[str, Any]) -> bool:
    """Whether a ``metadata.json`` is that of a Minari dataset."""
    return "total_episodes" in content and bool({"data_format", "minari_version", "observation_space"} & set(content))


def facts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Who made the data, how, and the reference scores."""
    return {name: metadata[key] for key, name in _FACTS.items() if _is_fact(key, metadata.get(key))}


def _is_fact(key: str, value: Any) -> bool:
    """Whether a value is there, and of the kind that is shown under its name."""
    if key in _SCORES:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if key == "jpeg_encoding":
        return isinstance(value, bool | int)
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(v, str) for v in value))


def space(metadata: Mapping[str, Any], which: str) -> dict[str, Any] | None:
    """The space ``which`` ("observation", "action") in Minari's JSON form, or None where it is not recorded.

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
    """``id``, ``spec`` and ``eval_spec`` of the environment: Gymnasium's EnvSpec as JSON values."""
    spec, eval_spec = (_spec(metadata, key) for key in _SPECS)
    found = {"id": (spec or {}).get("id"), "spec": spec, "eval_spec": eval_spec}
    return {k: v for k, v in found.items() if v is not None}


def _spec(metadata: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """An EnvSpec without entries that are of another kind than Gymnasium's; `notes` names these."""
    found = _parsed(metadata, key)
    return found and {k: v for k, v in found.items() if k not in _SPEC_KINDS or _SPEC_KINDS[k](v)}


def _odd(metadata: Mapping[str, Any]) -> list[str]:
    """The entries of the metadata that are of another kind than Minari's, and are therefore not kept."""
    facts = [k for k in _FACTS if metadata.get(k) is not None and not _is_fact(k, metadata[k])]
    specs = {key: _parsed(metadata, key) or {} for key in _SPECS}
    return [
        *facts,
        *(f"{key}.{k}" for key, s in specs.items() for k, fits in _SPEC_KINDS.items() if k in s and not fits(s[k])),
    ]


def notes(metadata: Mapping[str, Any], episodes: int, steps: int) -> list[Note]:
    """Where the metadata and the data part."""
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
    """That shapes and subspaces are there and of the right kind; raises what Python raises."""
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
    """One number for the bounds of a large Box whose bounds are all the same."""
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
    """Seed and options of an episode as the episode table holds them."""
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
    """A value of an HDF5 attribute as a JSON value."""
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
