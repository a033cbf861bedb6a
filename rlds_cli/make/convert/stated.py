"""What a user states of a whole dataset, for its manifest."""

from __future__ import annotations

import math

from rlds_cli.errors import InvalidArgument


def texts(**given: str | None) -> dict[str, str]:
    """Return the texts about a dataset for the manifest."""
    for name, text in given.items():
        if text is not None and not isinstance(text, str):
            raise InvalidArgument(f"{name}={text!r}: a text is needed.")
    return {"licence" if name == "license" else name: text for name, text in given.items() if text}


def rate(fps: float | None) -> dict[str, float]:
    """Return the steps per second for the manifest."""
    if fps is None:
        return {}
    try:
        rate = float(fps)
    except (TypeError, ValueError):
        rate = math.nan
    if isinstance(fps, bool) or not 0 < rate < math.inf:
        raise InvalidArgument(f"fps={fps!r}: a positive number of steps per second is needed.")
    return {"fps": rate}
