"""The state that a first pass returns: numbers, texts, arrays, lists and dicts, stored as JSON without any loss."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset, PreprocessError
from rlds_cli.store import arrays
from rlds_cli.store.paths import component

_ARRAY = "__array__"
_INLINE = 4096  # characters of a state that the manifest repeats


def to_json(state: Any, where: str) -> str:
    """Encode a state. Tuples become lists; tensors and NumPy numbers become arrays; arrays keep their dtype.

    Raises
    ------
    PreprocessError
        It holds something else; ``where`` names the function that returned it.
    """
    return json.dumps(_encode(state, where, ""), sort_keys=True)


def from_json(text: str, *, writeable: bool = False) -> Any:
    """Decode a state. Its arrays are read-only by default, since all calls share them."""
    return _decode(json.loads(text), writeable)


def digest(text: str) -> str:
    """Return the sha256 of an encoded state."""
    return hashlib.sha256(text.encode()).hexdigest()


def in_provenance(text: str, name: str) -> dict[str, Any]:
    """Return the manifest entry of a state stored as metadata ``name``; a short state is included by value."""
    said: dict[str, Any] = {"metadata": name, "sha256": digest(text)}
    return {**said, "value": json.loads(text)} if len(text) <= _INLINE else said


def state(ds: Dataset, function: str | None = None) -> Any:
    """Return the state of the first pass of a function that made ``ds``.

    Parameters
    ----------
    ds : Dataset
        A preprocessed dataset, or one made from it.
    function : str, optional
        Name of the function; by default the last one with a first pass.

    Returns
    -------
    Any
        The final state that ``fit`` and ``merge`` returned; its arrays are read-only.

    Raises
    ------
    PreprocessError
        No function of that name with a first pass made the dataset.

    Examples
    --------
    >>> preprocess.state(ds)["mean"]  # doctest: +SKIP
    """
    for step in reversed(ds.manifest.provenance):
        if "state" in step and function in (None, step.get("function")):
            path = ds.path.joinpath("metadata", *map(component, step["state"]["metadata"].split("/")))
            try:
                return from_json(arrays.read_string(path))
            except (ValueError, TypeError, KeyError, RecursionError) as e:
                raise DamagedDataset(f"{path} is not a valid state: {e}.", hint=f"rlds verify {ds.id}") from e
    which = f"called {function} " if function else ""
    raise PreprocessError(f"{ds.id} was not made by a function {which}with a first pass (fit, merge).")


def _encode(value: Any, where: str, at: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _ARRAY:
                raise PreprocessError(f"{where}: the state{at} has the key {key!r}; keys must be str.")
        return {key: _encode(item, where, f"{at}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item, where, f"{at}[{i}]") for i, item in enumerate(value)]
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf" and value.dtype != np.longdouble:
        return {_ARRAY: value.dtype.name, "shape": list(value.shape), "values": np.ravel(value).tolist()}
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    raise PreprocessError(
        f"{where}: the state{at} is {kind}.",
        hint="a state consists of numbers, text, arrays of numbers, lists, dicts and None",
    )


def _decode(value: Any, writeable: bool) -> Any:
    if isinstance(value, list):
        return [_decode(item, writeable) for item in value]
    if not isinstance(value, dict):
        return value
    if _ARRAY not in value:
        return {key: _decode(item, writeable) for key, item in value.items()}
    array = np.array(value["values"], value[_ARRAY]).reshape(value["shape"])
    array.flags.writeable = writeable
    return array if array.ndim else array[()]


def brief(value: Any) -> str:
    """Summarise a state in one line: shapes of arrays, four digits of numbers."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {brief(item)}" for key, item in value.items())
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list):
        return f"[{len(value)}]"
    return f"{value:.4g}" if isinstance(value, float | np.floating) and math.isfinite(value) else str(value)
