"""Read and check the episode table and the list of sources; `own_columns` has the columns of users."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import mapping
from rlds_cli.errors import DamagedDataset, InvalidEpisode
from rlds_cli.store import layouts, paths
from rlds_cli.store.manifest import Manifest
from rlds_cli.ted import COMPUTED, CUT, TERMINATED

if TYPE_CHECKING:
    from rlds_cli.store.lookups import Indices, LookedUp

_DTYPES = {  # of TED's columns; those of the user's own are in the manifest
    **{name: c.dtype for name, c in COMPUTED.items()},
    **dict.fromkeys(("start", "length", "num_observed", "num_transitions", "row"), "i8"),
    **dict.fromkeys(("source_episode", "source_step"), "i8"),
    "source": "i4", "end": "u1", "id": "u1", "seed": "u8", "has_seed": "?",
}  # fmt: skip
_NEEDED = ("start", "length", "num_observed", "num_transitions", "end", "source", "row", "id")
_ID_BYTES = 16
_SPLITS = "split"
_HINT = "rlds verify ID shows all damage"
_PIECE = 1 << 15  # episodes that are checked at a time


# -- reading


class Columns(Mapping[str, Array]):
    """The columns of a table that are arrays, by name. Those that are looked up are read when they are used."""

    def __init__(self, columns: Mapping[str, LookedUp | Array]) -> None:
        self._stored, self._columns = columns, dict(columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Array:
        found = self._columns[name]
        if not isinstance(found, np.ndarray):
            found = self._columns[name] = found.read()
        return found

    def between(self, name: str, first: int, stop: int) -> Array:
        """Return the values of episodes [first, stop), of which those that are looked up are not kept."""
        found = self._columns[name]
        return found[first:stop] if isinstance(found, np.ndarray) else found.between(first, stop)

    def let_go(self) -> None:
        """Unmap the pages of the columns that are files of their own, which count as memory in use."""
        for column in self._stored.values():
            if isinstance(column, np.ndarray) and column.nbytes:
                mapping.let_go(column.ctypes.data, column.nbytes)


def read_columns(directory: Path, m: Manifest) -> Columns:
    """Read the columns that are arrays, by name; splits as ``split/NAME``.

    Raises
    ------
    DamagedDataset
        One is missing, or has another type or length.
    """
    try:
        if m.episode_columns:
            from rlds_cli.store.own_columns import StoredColumn

            StoredColumn.check_names(m.episode_columns, m.id)
        known: Indices = {}
        columns = _arrays(directory, known)
        if (directory / _SPLITS).exists():
            columns |= {f"{_SPLITS}/{name}": values for name, values in _arrays(directory / _SPLITS, known).items()}
    except InvalidEpisode as e:
        raise DamagedDataset(e.message) from e
    except OSError as e:
        raise _damaged(m, f"cannot be read: {e.strerror}") from e
    for name in _NEEDED:
        if name not in columns:
            raise DamagedDataset(f"{directory} is not the episode table of {m.id}: no {name}.", hint=_HINT)
    for name, values in columns.items():
        kind = "?" if name.startswith(f"{_SPLITS}/") else _DTYPES.get(name, values.dtype)
        shape = (m.counts.episodes, _ID_BYTES) if name == "id" else (m.counts.episodes,)
        if values.shape != shape or values.dtype != np.dtype(kind):
            found = f"{name} is {values.dtype} {list(values.shape)}"
            raise DamagedDataset(f"{directory} is not the episode table of {m.id}: {found}.", hint=_HINT)
    return Columns(columns)


def _arrays(directory: Path, known: Indices) -> dict[str, LookedUp | Array]:
    with os.scandir(directory) as entries:
        below = {unquote(entry.name): Path(entry.path) for entry in entries if entry.is_dir()}
    found = {name: _opened(path, known) for name, path in below.items()}
    return {name: column for name, column in found.items() if column is not None}


def _opened(directory: Path, known: Indices) -> LookedUp | Array | None:
    if not os.path.exists(f"{directory}/{paths.LOOKUP}"):  # noqa: PTH110  (asked for every column)
        return layouts.find(directory)
    from rlds_cli.store import lookups  # selections have some

    return lookups.opened(directory, known)


def check_places(e: Columns, m: Manifest) -> None:
    """Refuse a table whose episodes are not within the rows, share a step, or refer to files that do not exist.

    These are the properties that readers rely on. `integrity.check_table` finds further errors. Episodes may be stored
    in any order, with gaps between them; the last row of one may be the first row of another.

    Raises
    ------
    DamagedDataset
    """
    start, length, observed, counted = e["start"], e["length"], e["num_observed"], e["num_transitions"]
    files, in_order, transitions = max(1, int(m.archive.get("files", 1))), True, 0
    for a in range(0, len(start), _PIECE):  # pieces stay in the processor's cache: ten million episodes take 0.1 s
        b = min(a + _PIECE, len(start))
        first, steps = start[a:b], length[a:b]
        inside = (
            first.min() >= 0 and steps.min() >= 0 and (first < m.counts.rows - steps).all()
        )  # with a final row each
        if not inside:
            raise _damaged(m, f"its episodes are not within the {m.counts.rows:,} rows")
        transitions += int(counted[a:b].sum())
        more, fewer = observed[a:b] - steps, steps - counted[a:b]  # both are 0 or 1
        if int(np.bitwise_or.reduce(more | fewer)) not in (0, 1):
            raise _damaged(m, "num_observed or num_transitions do not fit length")
        following = start[a + 1 : b + 1]
        in_order &= bool((following >= (first + steps)[: len(following)]).all())
        ends, sources = e.between("end", a, b), e.between("source", a, b)
        if not TERMINATED <= ends.min() <= ends.max() <= CUT:
            raise _damaged(m, "end holds an unknown value")
        if not 0 <= sources.min() <= sources.max() < files:
            raise _damaged(m, f"source names files beyond the {files:,}")
    if not in_order:
        order = np.argsort(start, kind="stable")
        if (start[order][1:] < (start + length)[order][:-1]).any():
            raise _damaged(m, "its episodes share steps")
    if transitions != m.counts.transitions:
        raise _damaged(m, f"its transitions are not the {m.counts.transitions:,} of the manifest")


def _damaged(m: Manifest, what: str) -> DamagedDataset:
    return DamagedDataset(f"The episode table of {m.id}: {what}.", hint=_HINT)


def read_texts(directory: Path, count: int) -> list[str]:
    """Read a column of texts, one per episode; raises DamagedDataset."""
    from rlds_cli.store import lookups

    found = lookups.read_strings(directory)
    if len(found) != count:
        raise DamagedDataset(f"{directory} has {len(found):,} texts; {count:,} expected.", hint=_HINT)
    return found


def read_missing(directory: Path, columns: Mapping[str, Array]) -> BoolArray:
    """Return the mask of episodes without a value in a user's column; all False without a mask on disk."""
    count = len(columns["start"])
    if not directory.exists():
        return np.zeros(count, bool)
    from rlds_cli.store import lookups

    found = lookups.read(directory)
    if found.shape != (count,) or found.dtype != bool:
        raise DamagedDataset(f"{directory} is {found.dtype} {list(found.shape)}; bool {[count]} expected.", hint=_HINT)
    return found


def read_sources(directory: Path) -> tuple[dict[str, Any], ...]:
    """Read the list of the archive's files.

    Raises
    ------
    DamagedDataset
        A file has another kind of description, or a name that leads out of the archive.
    """
    return tuple(map(partial(source_of, directory), layouts.read_strings(directory)))


def source_of(directory: Path, text: str | bytes) -> dict[str, Any]:
    """Read the description of a file; raises as `read_sources`."""
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
