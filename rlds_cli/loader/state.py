"""The state of a loader: a position, and the order of samples in which it is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlds_cli.base.files.hashing import short
from rlds_cli.base.integers import integer
from rlds_cli.dataset import Dataset
from rlds_cli.errors import WrongState
from rlds_cli.loader import order
from rlds_cli.loader.mixture.mixture import Mixture
from rlds_cli.loader.samplers import Sampler
from rlds_cli.loader.schedule import Position
from rlds_cli.loader.windows.windows import Window

_MIXED = ("members", "weights")  # only mixtures have these


def identity(
    dataset: Dataset | Mixture,
    *,
    sampler: Sampler,
    window: Window,
    seed: int,
    content: str,
) -> dict[str, Any]:
    """Return what decides the order of samples: a position of another order means nothing.

    ``content`` is that of the dataset, see `content_of`; of a live loader that of a version.
    """
    mixed = {"members": dataset.about(sampler), "weights": dataset.rule} if isinstance(dataset, Mixture) else {}
    return {
        "order": order.VERSION,
        "dataset": dataset.id,
        "fingerprint": content,
        "sampler": repr(sampler),
        "window": repr(window),
        "anchors": getattr(window, "anchors", "transitions"),  # of a window of the user's own
        "seed": seed,
        **mixed,
    }


def save(mine: Mapping[str, Any], position: Position) -> dict[str, Any]:
    """Return the state at ``position`` of the order `identity` ``mine``."""
    return {**mine, "epoch": position.epoch, "samples": position.sample}


def load(mine: Mapping[str, Any], state: Mapping[str, Any]) -> Position:
    """Read the position out of ``state``.

    Raises
    ------
    WrongState
        The state is not a position in this order.
    """
    check_type(state)
    missing = [key for key in (*mine, "epoch", "samples") if key not in state and key not in _MIXED]
    if missing:
        raise WrongState(f"this is not the state of a loader: no {', '.join(missing)}.")
    keys = dict.fromkeys([*mine, *(key for key in _MIXED if key in state)])
    wrong = [key for key in keys if key != "dataset" and state.get(key) != mine.get(key)]
    if wrong:
        raise WrongState(
            f"this state is of {_summary(state)}; this loader is on {_summary(mine)}."
            f" They differ in {', '.join(wrong)}.",
            hint=_hint(wrong, state, mine),
        )
    return Position(*(_count(name, state[name]) for name in ("epoch", "samples")))


def check_type(state: Any) -> None:
    """Refuse what is not a mapping.

    Raises
    ------
    WrongState
    """
    if not isinstance(state, Mapping):
        raise WrongState(f"this is not the state of a loader, but of type {type(state).__name__}.")


def _count(name: str, value: Any) -> int:
    try:
        return integer(name, value, 0, WrongState)
    except WrongState as e:
        raise WrongState(f"this is not the state of a loader: {e.message}") from None


def _summary(kind: Mapping[str, Any]) -> str:
    return (
        f"{kind['dataset']} ({short(str(kind['fingerprint']))}) with {kind['sampler']}, {kind['window']},"
        f" anchors={kind['anchors']!r}, seed {kind['seed']}"
    )


def _hint(wrong: list[str], state: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    if "order" in wrong:
        return f"it was saved by a release of rlds with order {state['order']}; this one has {order.VERSION}"
    if all("members" in kind for kind in (state, mine)) and wrong[0] in ("fingerprint", *_MIXED):
        theirs = {**state["members"], "weights": state.get("weights")}
        ours = {**mine["members"], "weights": mine["weights"]}
        return f"it was saved with {', '.join(f'{k}: {v}' for k, v in theirs.items() if ours.get(k) != v)}"
    if "fingerprint" in wrong:
        return "the same dataset, and the same selection of it"
    return "Loader(..., " + ", ".join(f"{key}={_argument(key, state[key])}" for key in wrong) + ")"


def _argument(key: str, value: Any) -> str:
    """Return a value as one types it; windows and samplers are kept as text."""
    return repr(value) if key == "anchors" else str(value)
