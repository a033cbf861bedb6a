"""A transform of depth fields: `Metres`."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.errors import UnknownField
from rlds_cli.loader.output.transforms import Elementwise, stands_for
from rlds_cli.ted import Array, join_name

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

_CODES = 1 << 12
_PER_METRE = {"m": 1.0, "mm": 1000.0}


class Metres(Elementwise):
    """Depth as ``float32`` metres, by what the archive says of its values; ``next`` fields like those at the root.

    ===================================== ===========================================================================
    the archive has                       metres of a value x
    ===================================== ===========================================================================
    codes of 12 bits, logarithmic         ``exp(x / 4095 * (log(max + shift) - log(min + shift)) + log(min + shift))
                                          - shift``
    codes of 12 bits, linear              ``x / 4095 * (max - min) + min``
    millimetres; metres                   ``x / 1000``; ``x``
    ===================================== ===========================================================================

    The formula is that of lerobot (``dequantize_depth``), with the parameters that ``meta/info.json`` records for the
    field: ``ds.manifest.facts["depth"]`` shows them. Codes give metres within [min, max]. A camera that saw nothing
    mostly recorded 0, which is ``min`` in codes, and 0 m in millimetres.

    Parameters
    ----------
    dataset : Dataset
        Whose manifest says what its depth fields hold.
    fields : str or sequence of str, optional
        Depth fields, or names above them such as ``observation``; all unless given.

    Raises
    ------
    UnknownField
        There is no depth field of that name.

    Examples
    --------
    >>> loader = Loader(ds, 64, transform=Metres(ds))  # doctest: +SKIP
    """

    def __init__(self, dataset: Dataset, fields: str | Sequence[str] | None = None) -> None:
        known: Mapping[str, Mapping[str, Any]] = {
            name: said for name, said in dataset.manifest.facts.get("depth", {}).items() if name in dataset.schema
        }
        asked = [join_name(f) for f in ([fields] if isinstance(fields, str) else fields or ())]
        lost = [f for f in asked if not any(stands_for(f, name) for name in known)]
        if lost or not known:
            what = f'"{lost[0]}" is no depth field' if lost else "there is no depth field"
            raise UnknownField(f"{what} of {dataset.id}.", hint=", ".join(known) or "ds.manifest.facts has no depth")
        chosen = {n: d for n, d in known.items() if not asked or any(stands_for(f, n) for f in asked)}
        self._tables = {name: _table(said) for name, said in chosen.items()}

    def touches(self, name: str) -> bool:
        """Whether the field ``name`` is changed."""
        return name.removeprefix("next/") in self._tables

    def apply(self, key: str | tuple[str, ...], x: Any) -> Any:
        """Metres of values of the field ``key``.

        Parameters
        ----------
        key : str or tuple
        x : array or tensor [..., H, W, 1]

        Returns
        -------
        float32 array or tensor of the shape of ``x``
        """
        table = self._tables.get(join_name(key).removeprefix("next/"))
        if table is None:
            raise UnknownField(f'"{join_name(key)}" is no depth field here; {", ".join(self._tables)}.')
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor):
            if isinstance(table, float):
                return x.to(torch.float32) / table
            return torch.as_tensor(table, device=x.device)[x.to(torch.int32).clamp(max=_CODES - 1)]
        x = np.asarray(x)
        return x.astype(np.float32) / np.float32(table) if isinstance(table, float) else table.take(x, mode="clip")

    def __repr__(self) -> str:
        return f"Metres({', '.join(self._tables)})"


def _table(said: Mapping[str, Any]) -> Array | float:
    """The metres of every code; or how many units a metre has."""
    if "unit" in said:
        return _PER_METRE[said["unit"]]
    low, high, shift = (float(said[name]) for name in ("depth_min", "depth_max", "shift"))
    share = np.arange(_CODES) / (_CODES - 1)
    if said["use_log"]:
        bottom, top = math.log(low + shift), math.log(high + shift)
        metres = np.exp(share * (top - bottom) + bottom) - shift
    else:
        metres = share * (high - low) + low
    return metres.clip(low, high).astype(np.float32)
