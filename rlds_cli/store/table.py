"""The episode table and the list of sources as they are read: checked, for readers go by what they say."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np

from rlds_cli import documents
from rlds_cli.errors import DamagedDataset, InvalidEpisode
from rlds_cli.store import arrays, episode_columns
from rlds_cli.store.manifest import Manifest
from rlds_cli.ted import CUT, TERMINATED, Array, BoolArray

_DTYPES = {  # of TED's columns; those of the user's own are in the manifest
    **dict.fromkeys(("start", "length", "num_observed", "num_transitions", "row", "num_done", "num_terminated"), "i8"),
    "source": "i4", "end": "u1", "seed": "u8", "has_seed": "?", "total_reward": "f8",
}  # fmt: skip
_NEEDED = ("start", "length", "num_observed", "num_transitions", "end", "source", "row")
_SPLITS, _MISSING = "split", "missing"
_HINT = "rlds verify ID names what else is wrong"


def read_columns(directory: Path, m: Manifest) -> dict[str, Array]:
    """The columns that are arrays, by name; splits as ``split/NAME``.

    Raises
    ------
    DamagedDataset
        One is missing, or has another type or length.
    """
    try:
        episode_columns.check_names(m.episode_columns, m.id)
        columns = _arrays(directory)
        if (directory / _SPLITS).exists():
            columns |= {f"{_SPLITS}/{name}": values for name, values in _arrays(directory / _SPLITS).items()}
    except InvalidEpisode as e:
        raise DamagedDataset(e.message) from e
    except OSError as e:
        raise _damaged(m, f"cannot be read: {e.strerror}") from e
    for name in _NEEDED:
        if name not in columns:
            raise DamagedDataset(f"{directory} is not the episode table of {m.id}: no {name}.", hint=_HINT)
    for name, values in columns.items():
        kind = "?" if name.startswith(f"{_SPLITS}/") else _DTYPES.get(name, values.dtype)
        if values.shape != (m.counts.episodes,) or values.dtype != np.dtype(kind):
            found = f"{name} is {values.dtype} {list(values.shape)}"
            raise DamagedDataset(f"{directory} is not the episode table of {m.id}: {found}.", hint=_HINT)
    return columns


def _arrays(directory: Path) -> dict[str, Array]:
    return {unquote(p.name): arrays.read(p) for p in directory.iterdir() if p.is_dir() and arrays.is_array(p)}


def check_places(e: dict[str, Array], m: Manifest) -> None:
    """Refuse a table whose episodes do not lie end to end on the rows of the store, or that names what is not there.

    `consistency.check_table` says more of what is wrong; this is what readers rely on.

    Raises
    ------
    DamagedDataset
    """
    start, length = e["start"], e["length"]
    if not len(start):
        ends_well = m.counts.rows == 0
    else:
        ends_well = start[0] == 0 and start[-1] + length[-1] + 1 == m.counts.rows
    if not ends_well or (length < 0).any() or (start[1:] - start[:-1] != length[:-1] + 1).any():
        raise _damaged(m, f"its episodes do not lie end to end on the {m.counts.rows:,} rows")
    observed, transitions = e["num_observed"] - length, length - e["num_transitions"]
    if (observed >> 1).any() or (transitions >> 1).any():
        raise _damaged(m, "num_observed or num_transitions do not go with length")
    if int(e["num_transitions"].sum()) != m.counts.transitions:
        raise _damaged(m, f"its transitions are not the {m.counts.transitions:,} of the manifest")
    if len(start) and not TERMINATED <= e["end"].min() <= e["end"].max() <= CUT:
        raise _damaged(m, "end names an end that is none")
    files = max(1, int(m.archive.get("files", 1)))
    if len(start) and not 0 <= e["source"].min() <= e["source"].max() < files:
        raise _damaged(m, f"source names files beyond the {files:,}")


def _damaged(m: Manifest, what: str) -> DamagedDataset:
    return DamagedDataset(f"The episode table of {m.id}: {what}.", hint=_HINT)


def read_texts(directory: Path, count: int) -> list[str]:
    """A column of texts, one per episode; raises DamagedDataset."""
    found = arrays.read_strings(directory)
    if len(found) != count:
        raise DamagedDataset(f"{directory} has {len(found):,} texts; {count:,} expected.", hint=_HINT)
    return found


def read_missing(directory: Path, columns: dict[str, Array]) -> BoolArray:
    """Which episodes have no value in a column of the user's own; none where nothing is said."""
    count = len(columns["start"])
    if not directory.exists():
        return np.zeros(count, bool)
    found = arrays.read(directory)
    if found.shape != (count,) or found.dtype != bool:
        raise DamagedDataset(f"{directory} is {found.dtype} {list(found.shape)}; bool {[count]} expected.", hint=_HINT)
    return found


def read_sources(directory: Path) -> tuple[dict[str, Any], ...]:
    """The files of the archive; their names lie below it.

    Raises
    ------
    DamagedDataset
        One is described otherwise, or its name leads out of the archive.
    """
    return tuple(_source(directory, text) for text in arrays.read_strings(directory))


def _source(directory: Path, text: str) -> dict[str, Any]:
    try:
        found = documents.loads(text)
        file = PurePosixPath(found["file"])
        fits = not file.is_absolute() and ".." not in file.parts and "\0" not in found["file"]
        texts = all(isinstance(found.get(key), str | None) for key in ("url", "sha256", "revision"))
        sized = isinstance(found.get("size"), int | None) and not isinstance(found.get("size"), bool)
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise DamagedDataset(f"{directory}: {text[:80]!r} does not describe a file: {e}.", hint=_HINT) from e
    if not (fits and texts and sized):
        raise DamagedDataset(f"{directory}: {text[:80]!r} does not describe a file of an archive.", hint=_HINT)
    return dict(found)
