"""Names in arguments: several in one text, and the fields of a dataset that they mean."""

from __future__ import annotations

from collections.abc import Sequence

from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.ted import join_name

Names = str | Sequence[str]


def listed(names: Names) -> tuple[str, ...]:
    """``"a,b"`` or ``["a", "b"]`` as a tuple.

    Raises
    ------
    InvalidArgument
        It is neither, or empty.
    """
    parts = names.split(",") if isinstance(names, str) else names
    try:
        found = tuple(join_name(p).strip() for p in parts)
    except (TypeError, AttributeError):
        found = ()
    if not found or not all(found):
        raise InvalidArgument(f"{names!r} names no fields.", hint='one, or several as in "observation,action"')
    return tuple(dict.fromkeys(found))


def stored(dataset: Dataset, names: Names) -> tuple[str, ...]:
    """The fields called so or nested below; next values that are kept apart are among them.

    Raises
    ------
    UnknownField, InvalidArgument
        There are none of a name.
    """
    found: dict[str, None] = {}
    for name in listed(names):
        matching = [n for n in dataset.schema if any(_below(m, name) for m in (n, n.removeprefix("next/")))]
        found |= dict.fromkeys(matching or [dataset.field(name).name])
    return tuple(found)


def _below(name: str, above: str) -> bool:
    return name == above or name.startswith(f"{above}/")
