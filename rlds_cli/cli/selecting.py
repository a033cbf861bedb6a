"""Episodes that commands select, and values that they set."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlds_cli.base import cells
from rlds_cli.base.cells import Lines
from rlds_cli.cli import out
from rlds_cli.errors import InvalidArgument, RldsError

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

TRIMS = ("idle", "openpi-idle")  # what --trim takes beside functions
NUMBER, ID = "episode", "id"  # columns of a file of labels
SUBTASKS, _INTERVAL = "subtasks", ("first", "stop", "subtask")  # the label that lines with these columns make


def selected(ref: str, *, where: str | None, split: str | None, episodes: str | None, home: Path | None) -> Dataset:
    """Open a dataset, and select the episodes that fulfil all conditions."""
    from rlds_cli.base import refs
    from rlds_cli.dataset import open_dataset, remote_address

    if remote_address(refs.parse(ref)) is not None:
        raise InvalidArgument(f"{ref} is an address: what lies there stays as it is.", hint="the id of a dataset here")
    ds = open_dataset(ref, home=home)
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


def without_findings(ds: Dataset, codes: str, home: Path | None) -> Dataset:
    """Return a dataset without the episodes of findings, and say how many go.

    Raises
    ------
    RldsError
        There is no such code, or a measure was not computed.
    """
    from rlds_cli import look

    found = look.Measures(ds, home=home).dropping([c.strip() for c in codes.split(",")])
    if found.num_episodes == ds.num_episodes:
        out.note(f"note: no episode of {ds.id} has a finding {codes}")
    return found


def trimmed(ds: Dataset, what: str, name: str, *, home: Path | None, **how: Any) -> Dataset:
    """Make ``ID@NAME`` of what stays of a dataset by ``--trim idle`` or ``--trim openpi-idle``.

    Raises
    ------
    RldsError
        A measure was not computed.
    """
    from rlds_cli import look

    found = look.Measures(ds, home=home).trimming(what)
    return found.dataset.trim(found.ranges, name, home=home, **how)


def on_newest(
    ref: str, change: Callable[[], tuple[Dataset, Dataset]], *, numbered: bool = False
) -> tuple[Dataset, Dataset]:
    """Apply a change to the newest version, again where another process has made a newer one meanwhile.

    Parameters
    ----------
    ref : str
        The dataset. If it names a version, the change applies to that one alone.
    change : callable
        Opens the dataset and changes it; returns it as it was, and the result.
    numbered : bool
        It names episodes by their numbers, which may be others in a newer version: then it is tried once.

    Raises
    ------
    NotNewest
        The version that ``ref`` names is not the newest, or there is a newer one of a change by numbers.
    """
    from rlds_cli.base import refs
    from rlds_cli.errors import NotNewest

    tried: set[int] = set()
    while True:
        try:
            return change()
        except NotNewest as e:
            if numbered or refs.parse(ref).selector is not None or e.version in tried:
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


def assignments(given: Sequence[str]) -> dict[str, str]:
    """Return the texts of ``NAME=VALUE``, for `typed`.

    Raises
    ------
    InvalidArgument
        There is no ``=``, or a name is given twice.
    """
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidArgument(f"{text!r} sets nothing.", hint="NAME=VALUE, such as quality=bad")
        if name in found:
            raise InvalidArgument(f"{name} is set twice: {found[name]!r} and {value!r}.")
        found[name] = value
    return found


def measured(names: str, ds: Dataset) -> dict[str, list[float | None]]:
    """Return measures of the episodes of a dataset by name; ``all`` stands for those that were computed.

    Raises
    ------
    RldsError
        One was not computed.
    """
    import numpy as np

    wanted = ds.episodes.measures if names == "all" else [n.strip() for n in names.split(",")]
    if not wanted:
        raise RldsError(f"No measure of {ds.id} was computed.", hint=f"rlds check {ds.id} --measure motion")
    found = dict[str, list[float | None]]()
    for name in wanted:
        if name not in ds.episodes or name in ds.store.own_columns:
            what = "is a label already" if name in ds.store.own_columns else "is not the name of a measure"
            raise InvalidArgument(f"{name} {what}.", hint="rlds check --list explains all measures")
        values = ds.episodes[name].astype(np.float64).tolist()
        found[name] = [v if np.isfinite(v) else None for v in values]
    return found


def facts(given: Sequence[str]) -> dict[str, Any]:
    """Return the facts of ``--set NAME=VALUE``.

    Raises
    ------
    InvalidArgument
        A dataset has no fact of that name.
    """
    from rlds_cli.store import Facts

    found = typed(assignments(given))
    Facts.check_names(found)
    return found


def typed(given: Mapping[str, str], ds: Dataset | None = None) -> dict[str, Any]:
    """Return true, false, a number, null for no value, else a text; always a text in a column of ``ds`` that has texts.

    A text in quotes of JSON is one: ``"3"``.
    """
    texts = _texts(ds)
    read = {name: cells.value_of(text) for name, text in given.items()}
    return {n: given[n] if n in texts and not isinstance(v, str | None) else v for n, v in read.items()}


def _texts(ds: Dataset | None) -> set[str]:
    """Return the names of the episode columns that hold texts."""
    own = {} if ds is None else {n: ds.store.own_column(n) for n in ds.store.own_columns}
    return {n for n, column in own.items() if column.dtype == "str" and not column.missing.all()}


def from_file(file: Path, ds: Dataset, *, named: bool) -> tuple[Dataset, dict[str, list[Any]]]:
    """Return the episodes and the values of the columns in a CSV file of labels.

    Lines with the columns ``first``, ``stop`` and ``subtask`` are intervals of steps, several of an episode.

    Parameters
    ----------
    named : bool
        Whether a user has named the version: numbers are of that one alone.

    Raises
    ------
    RldsError
        It cannot be read, has no column ``episode`` or ``id``, two of one name, or no line below; it names an episode
        that is not there, or one twice; or it has numbers, and no version was named.
    """
    import numpy as np

    from rlds_cli.dataset import Dataset

    lines = Lines.read(file)
    names, rows = lines.names, lines.rows
    if (NUMBER in names) == (ID in names) or len(names) < 2:
        raise RldsError(f"{file} needs a column {NUMBER} or {ID}, and one for each label; it has {names}.")
    if not rows:
        raise RldsError(f"{file} has no labels: there is no line below the names of its columns.")
    if NUMBER in names and not named and ds.version > 1:
        raise InvalidArgument(
            f"{file} names episodes by their numbers, which are others in other versions of {ds.id}. Nothing was "
            "changed.",
            hint=f"{ds.id}#vN says which version they are of; or a column {ID} with the ids of the episodes",
        )
    known = {} if NUMBER in names else {x.tobytes().hex(): k for k, x in enumerate(ds.episodes[ID])}
    index = [_number(row, known, ds, where) for row, where in zip(rows, lines.places, strict=True)]
    table = _Table(index=index, names=names, rows=rows)
    if set(_INTERVAL) <= set(names):
        table = table.with_subtasks(file)
    if len(set(table.index)) < len(table.index):
        twice = Counter(table.index).most_common(1)[0][0]
        raise RldsError(f"{file} names episode {twice} twice.")
    labels: Mapping[str, list[Any]] = {n: [r[n] for r in table.rows] for n in table.names if n not in (NUMBER, ID)}
    texts = _texts(ds)
    chosen = Dataset(ds.store, np.array(table.index), how={"from": file.name})
    return chosen, {n: _typed(values, are_texts=n in texts) for n, values in labels.items()}


@dataclass(frozen=True, slots=True)
class _Table:
    """Lines of a file of labels: the number of the episode of each, and its values by the names of columns."""

    index: list[int]
    names: list[str]
    rows: list[dict[str, Any]]

    def with_subtasks(self, file: Path) -> _Table:
        """Return one line for each episode, whose intervals of steps are its ``subtasks``."""
        if more := [n for n in self.names if n not in (NUMBER, ID, *_INTERVAL)]:
            raise RldsError(
                f"{file} has a line for each interval of steps, and the label {more[0]} of whole episodes.",
                hint="two files",
            )
        found: dict[int, list[tuple[Any, ...]]] = {}
        for line, (k, row) in enumerate(zip(self.index, self.rows, strict=True), 2):
            first, stop, text = (row[n].strip() for n in _INTERVAL)
            if not (first.isdecimal() and stop.isdecimal()):
                raise RldsError(f"{file}, line {line}: first {first!r} and stop {stop!r} are not numbers of steps.")
            found.setdefault(k, []).append((int(first), int(stop), text))
        rows = [{SUBTASKS: json.dumps(told, ensure_ascii=False)} for told in found.values()]
        return _Table(index=list(found), names=[SUBTASKS], rows=rows)


def _number(row: Mapping[str, Any], known: Mapping[str, int], ds: Dataset, where: str) -> int:
    if ID in row:
        if (found := known.get(str(row[ID]).lower())) is None:
            raise RldsError(f"{where}: {ds.id} has no episode of the id {row[ID]}.")
        return found
    text = str(row[NUMBER]).strip()
    if not text.isdecimal() or int(text) >= ds.num_episodes:
        raise RldsError(f"{where}: {ds.id} has no episode {text}; it has {ds.num_episodes:,}, numbered from 0.")
    return int(text)


def _typed(values: Sequence[str], *, are_texts: bool) -> list[Any]:
    """Return the values of a column, None for an empty cell."""
    given = {k: v for k, v in enumerate(values) if v}
    read = dict(zip(given, cells.values_of(list(given.values()), are_texts=are_texts), strict=True))
    return [read.get(k) for k in range(len(values))]
