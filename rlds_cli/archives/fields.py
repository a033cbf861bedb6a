"""The fields that the columns of an archive become: their names, placements and types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import h5py
import numpy as np

from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import Field, Kind, Placement
from rlds_cli.text import is_below


def row_field(name: str, d: h5py.Dataset, *, scalar: bool = False) -> Field:
    """Return the field ``name`` of a dataset with one value per row; ``scalar`` reads rows ``(N, 1)`` as scalars.

    Raises
    ------
    UnknownLayout
        Values that no field can hold: compounds, references, sequences of varying length.
    """
    placement: Placement = "next" if name.startswith("next/") else "both" if is_observation(name) else "root"
    shape = d.shape[1:]
    text = h5py.check_string_dtype(d.dtype) is not None
    if (scalar or text) and shape == (1,):
        shape = ()
    if (text and shape) or not (text or d.dtype.kind in "biufc") or d.dtype.names or d.dtype.itemsize > 16:
        what = "compound" if d.dtype.names else f"{d.dtype} {list(shape)}"
        raise UnknownLayout(
            f"{Path(d.file.filename).name}: {d.name} holds {what} values, which a field cannot hold.",
            hint="rlds_cli.create(ID, episodes) takes anything that you can read yourself",
        )
    kind: Kind = "text" if text else "array"
    return Field(name, "str" if text else np.dtype(d.dtype.str).newbyteorder("=").name, shape, placement, kind)


def is_observation(name: str) -> bool:
    """Return whether a field belongs to the observation."""
    return name.split("/", 1)[0] == "observation"


def expand(found: Iterable[str], field: str, key: str) -> dict[str, str]:
    """Map field names to keys: of the dataset ``key``, or of all datasets below the group ``key``."""
    if key in found:
        return {field: key}
    return {f"{field}/{k[len(key) + 1 :]}": k for k in found if k.startswith(key + "/")}


def free_name(key: str, taken: Iterable[str]) -> str:
    """Return ``key`` as a field name, moved below ``extra/`` if it clashes with a name that is taken."""
    clash = any(is_below(key, t) or is_below(t, key) for t in taken)
    return f"extra/{key}" if clash else key


def differences(a: Iterable[Field], b: Iterable[Field]) -> Iterator[str]:
    """Describe each field that two lists do not share."""
    left, right = {f.name: f for f in a}, {f.name: f for f in b}
    for name in sorted({*left, *right}):
        if left.get(name) != right.get(name):
            said = [f"{f.dtype} {list(f.shape)}" if f else "absent" for f in (left.get(name), right.get(name))]
            yield f"{name} is {said[0]} and {said[1]}"
