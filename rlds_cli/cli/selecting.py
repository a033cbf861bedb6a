"""Episodes that commands select, and values that they set."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlds_cli.cli import out
from rlds_cli.errors import InvalidArgument, RldsError

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

NUMBER, ID = "episode", "id"  # columns of a file of labels


def selected(
    ref: str, *, where: str | None, split: str | None, episodes: str | None, cache_dir: Path | None
) -> Dataset:
    """Open a dataset, and select the episodes that fulfil all conditions."""
    from rlds_cli import refs, settings
    from rlds_cli.dataset import open_dataset
    from rlds_cli.dataset.opening import remote_address

    if remote_address(refs.parse(ref), settings.read(cache_dir)) is not None:
        raise InvalidArgument(f"{ref} is an address: what lies there stays as it is.", hint="the id of a dataset here")
    ds = open_dataset(ref, cache_dir=cache_dir)
    if where is None and split is None and episodes is None:
        return ds
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = ds.select(
            where=where, split=split, episodes=None if episodes is None else numbers(episodes, ds.num_episodes)
        )
    for warning in caught:
        out.note(f"warning: {warning.message}")
    return found


def on_newest(ref: str, change: Callable[[], tuple[Dataset, Dataset]]) -> tuple[Dataset, Dataset]:
    """Apply a change to the newest version, again where another process has made a newer one meanwhile.

    Parameters
    ----------
    ref : str
        The dataset. If it names a version, the change applies to that one alone.
    change : callable
        Opens the dataset and changes it; returns it as it was, and the result.

    Raises
    ------
    NotNewest
        The version that ``ref`` names is not the newest.
    """
    from rlds_cli import refs
    from rlds_cli.dataset import editing

    tried: set[int] = set()
    while True:
        try:
            return change()
        except editing.NotNewest as e:
            if refs.parse(ref).selector is not None or e.version in tried:
                raise
            tried.add(e.version)


def numbers(text: str, count: int) -> list[int]:
    """Return the numbers of ``3,7,10-19``: single ones, and ranges with both ends.

    Raises
    ------
    InvalidArgument
        It is something else, or names an episode that is not there.
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InvalidArgument(
                f"--episodes {text}: {part.strip()!r} is not the number of an episode, nor a range of numbers.",
                hint=f"--episodes 3,7,10-19: numbers from 0 to {count - 1:,}; the last episode is {count - 1:,}, not -1"
                if count
                else "the dataset has no episodes",
            )
        if int(last or first) < int(first):
            raise InvalidArgument(
                f"--episodes {text}: the range {part.strip()} ends before it begins.", hint=f"--episodes {last}-{first}"
            )
        if int(last or first) >= count:
            raise InvalidArgument(
                f"--episodes {text}: there is no episode {int(last or first):,}; the dataset has {count:,}.",
                hint=f"numbers from 0 to {count - 1:,}" if count else None,
            )
        found += range(int(first), int(last or first) + 1)
    return found


def assignments(given: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``NAME=VALUE``: true, false, a number, null for no value, else a text.

    Raises
    ------
    InvalidArgument
        There is no ``=``.
    """
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidArgument(f"{text!r} sets nothing.", hint="NAME=VALUE, such as quality=bad")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float | str | None) else text


def from_file(file: Path, ds: Dataset) -> tuple[list[int], dict[str, list[Any]]]:
    """Return the numbers of the episodes and the values of the columns in a CSV file of labels.

    Raises
    ------
    RldsError
        It cannot be read, has no column ``episode`` or ``id``, or names an episode that is not there.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            rows = list(csv.DictReader(opened, restkey="", strict=True, skipinitialspace=True))
    except (OSError, ValueError, csv.Error) as e:
        raise RldsError(f"{file} cannot be read: {getattr(e, 'strerror', None) or e}.") from e
    names = [*rows[0]] if rows else []
    if (NUMBER in names) == (ID in names) or len(names) < 2:
        raise RldsError(f"{file} needs a column {NUMBER} or {ID}, and one for each label; it has {names}.")
    for line, row in enumerate(rows, 2):
        if "" in row or None in row.values():
            raise RldsError(f"{file}, line {line}: {'more' if '' in row else 'fewer'} values than columns.")
    known = {} if NUMBER in names else {x.tobytes().hex(): k for k, x in enumerate(ds.episodes[ID])}
    index = [_number(row, known, ds, f"{file}, line {line}") for line, row in enumerate(rows, 2)]
    if len(set(index)) < len(index):
        twice = next(k for k in index if index.count(k) > 1)
        raise RldsError(f"{file} names episode {twice} twice.")
    labels: Mapping[str, list[Any]] = {n: [r[n] for r in rows] for n in names if n not in (NUMBER, ID)}
    return index, {n: _typed(values) for n, values in labels.items()}


def _number(row: Mapping[str, Any], known: Mapping[str, int], ds: Dataset, where: str) -> int:
    if ID in row:
        if (found := known.get(str(row[ID]).lower())) is None:
            raise RldsError(f"{where}: {ds.id} has no episode of the id {row[ID]}.")
        return found
    text = str(row[NUMBER]).strip()
    if not text.isdecimal() or int(text) >= ds.num_episodes:
        raise RldsError(f"{where}: {ds.id} has no episode {text}; it has {ds.num_episodes:,}, numbered from 0.")
    return int(text)


def _typed(values: Sequence[str | None]) -> list[Any]:
    """Return the values of a column: flags or numbers if all of them are, else texts; nothing is no value."""
    read = [None if not v else _value(v) for v in values]
    kinds = {type(v) for v in read if v is not None}
    if kinds <= {bool} or kinds <= {int, float}:
        return read
    return [v or None for v in values]
