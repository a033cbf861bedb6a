"""How the elements of a row of a field are called, and which state an action may be drawn over."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice, product
from typing import Any

from rlds_cli.base.files import json as documents
from rlds_cli.base.text import is_below
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset
from rlds_cli.ted import Field

MOST = 256  # elements of a field that are shown
_LEROBOT = "lerobot/info.json"  # metadata of a dataset that was imported from LeRobot
_LONGEST = 60  # characters of a name
_STATES = ("state", "qpos", "joint", "position", "proprio", "pose")  # in the names of fields that actions aim at

Names = Mapping[str, tuple[str, ...]]


def names_of(ds: Dataset) -> Names:
    """Return the names of the elements of fields, as far as the archive has them; a set of names fits the shape."""
    return _of_lerobot(ds)


def _of_lerobot(ds: Dataset) -> Names:
    if _LEROBOT not in ds.manifest.metadata:
        return {}
    try:
        features = documents.loads(ds.store.table.metadata.text(_LEROBOT)).get("features")
    except (ValueError, AttributeError, DamagedDataset):
        return {}
    named = {str(key).replace(".", "/"): of for key, of in features.items()} if isinstance(features, dict) else {}
    found = {}
    for name, f in ds.schema.items():
        of = named.get(name.replace(".", "/"))
        told = _listed(of.get("names")) if isinstance(of, dict) else []
        if f.kind == "array" and told and len(told) == math.prod(f.shape):
            found[name] = tuple(text[:_LONGEST] for text in told)
    return found


def _listed(names: Any) -> list[str]:
    """Return names as one list: a list of texts, or the lists of a mapping (``{"motors": [...]}``) end to end."""
    if isinstance(names, dict):
        names = [name for of in names.values() for name in (of if isinstance(of, list) else [of])]
    told = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if told else []


def elements(f: Field, names: Names) -> list[str]:
    """Return the names of the first elements of a row, or their indices: ``0``, or ``0,1`` in two axes."""
    if f.name in names:
        return list(names[f.name][:MOST])
    return [",".join(map(str, place)) for place in islice(product(*map(range, f.shape)), MOST)]


def hidden(f: Field) -> int:
    """Return how many elements of a row are not shown."""
    return max(0, math.prod(f.shape) - MOST)


def partner(f: Field, ds: Dataset, names: Names) -> str | None:
    """Return the state that an action may be drawn over: of the same names, or of one width and named as a state."""
    if not is_below(f.name, "action") or f.kind != "array" or not f.shape:
        return None
    states = [s for s in ds.schema.values() if s.kind == "array" and s.placement == "both" and s.shape == f.shape]
    for s in states:
        if f.name in names and names[f.name] == names.get(s.name):
            return s.name
    alike = [s.name for s in states if any(word in s.name.rpartition("/")[2].lower() for word in _STATES)]
    return alike[0] if alike else None
