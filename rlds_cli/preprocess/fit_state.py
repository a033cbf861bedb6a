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
from rlds_cli.store.files import component

_ARRAY = "__array__"
_INLINE = 4096  # characters of a state that stand in the manifest too


def to_json(state: Any, where: str) -> str:
    """A state as text. Tuples become lists, tensors and NumPy's numbers arrays; arrays keep their dtype.

    Raises
    ------
    PreprocessError
        It holds something else; ``where`` says who returned it.
    """
    return json.dumps(_encode(state, where, ""), sort_keys=True)


def from_json(text: str, *, writeable: bool = False) -> Any:
    """The state; its arrays are read-only unless said otherwise, for every call is given the same."""
    return _decode(json.loads(text), writeable)


def digest(text: str) -> str:
    """The sha256 of a state."""
    return hashlib.sha256(text.encode()).hexdigest()


def in_provenance(text: str, name: str) -> dict[str, Any]:
    """What the manifest says of a state that is kept as the metadata ``name``; a short one stands there as well."""
    said: dict[str, Any] = {"metadata": name, "sha256": digest(text)}
    return {**said, "value": json.loads(text)} if len(text) <= _INLINE else said


def state(ds: Dataset, function: str | None = None) -> Any:
    """What a function found out in its first pass, when it made ``ds``.

    Parameters
    ----------
    ds : Dataset
        A derived dataset, or one that was derived of one.
    function : str, optional
        The function's name; by default the last that had a first pass.

    Returns
    -------
    Any
        What its ``fit`` and ``merge`` returned last; arrays read-only.

    Raises
    ------
    PreprocessError
        There is none.

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
                raise DamagedDataset(f"{path} holds no state: {e}.", hint=f"rlds verify {ds.id}") from e
    which = f"called {function} " if function else ""
    raise PreprocessError(f"{ds.id} was made by no function {which}with a first pass (fit, merge).")


def _encode(value: Any, where: str, at: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _ARRAY:
                raise PreprocessError(f"{where}: the state{at} has the key {key!r}; keys are texts.")
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
        hint="a state is made of numbers, texts, arrays of numbers, lists, dicts and None",
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
    """A state in a line, for people: of arrays the shape, of numbers four digits."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {brief(item)}" for key, item in value.items())
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list):
        return f"[{len(value)}]"
    return f"{value:.4g}" if isinstance(value, float | np.floating) and math.isfinite(value) else str(value)
