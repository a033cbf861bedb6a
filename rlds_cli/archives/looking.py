"""The values of one step by the columns of an archive, for `Reader.look_up` of every family whose files have rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from rlds_cli.archives.readers import ArchivedValue
from rlds_cli.ted import FLAGS


def looked_up(
    keys: Mapping[str, str],
    seen: Mapping[str, Any],
    rows: tuple[int, int | None],
    *,
    late: Collection[str] = (),
    both: Collection[str] = (),
    above: str = "",
) -> Iterator[ArchivedValue]:
    """Yield the values of a step, and the next observations.

    Parameters
    ----------
    keys : mapping of str to str
        The column of each field.
    seen : mapping of str to array or sequence
        Of each column the value in the row of the step, and in the row after if there is one.
    rows : (int, int or None)
        The numbers of these rows, for messages.
    late : collection of str
        The fields whose values of the step stand in the row after.
    both : collection of str
        The fields whose values in the row after are next observations.
    above : str
        What the names of the columns begin with, for messages.
    """
    for name, key in keys.items():
        values, at = seen[key], int(name in late)
        if at < len(values):
            value = values[at]
            if name == FLAGS[0]:
                value = bool(np.all((value != 0) & (value == value)))  # NaN is not set
            yield ArchivedValue(name, f"{above}{key}[{rows[at]}]", value)
        if name in both and len(values) > 1:
            yield ArchivedValue(f"next/{name}", f"{above}{key}[{rows[1]}]", values[1])
