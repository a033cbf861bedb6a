"""What a loader's state says, and when it may be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlds_cli.errors import WrongState
from rlds_cli.hashing import short
from rlds_cli.loader.mixtures.mixture import Mixture
from rlds_cli.loader.sampling import order
from rlds_cli.loader.schedule import Spot
from rlds_cli.loader.wholes import whole

if TYPE_CHECKING:
    from rlds_cli.loader.loading import Loader


_MIXED = ("members", "weights")  # only mixtures have these


def save(loader: Loader, spot: Spot) -> dict[str, Any]:
    """Where ``loader`` is, and what that place is a place in."""
    return {**_kind(loader), "epoch": spot.epoch, "samples": spot.sample}


def _kind(loader: Loader) -> dict[str, Any]:
    dataset = loader.dataset
    mixed = {"members": dataset.about, "weights": dataset.rule} if isinstance(dataset, Mixture) else {}
    return {
        "order": loader.order_version,
        "dataset": loader.dataset.id,
        "fingerprint": loader.dataset.fingerprint,
        "sampler": repr(loader.sampler),
        "window": repr(loader.window),
        "anchors": loader.anchors,
        "seed": loader.seed,
        **mixed,
    }


def load(loader: Loader, state: Mapping[str, Any]) -> Spot:
    """Read the place out of ``state``; its order may be an older one than that of ``loader``.

    Raises
    ------
    WrongState
        It is not a place in the order of ``loader``.
    """
    mine = _kind(loader)
    if not isinstance(state, Mapping):
        raise WrongState(f"this is not the state of a loader, but of type {type(state).__name__}.")
    missing = [key for key in (*mine, "epoch", "samples") if key not in state and key not in _MIXED]
    if missing:
        raise WrongState(f"this is not the state of a loader: no {', '.join(missing)}.")
    keys = dict.fromkeys([*mine, *(key for key in _MIXED if key in state)])
    wrong = [key for key in keys if key not in ("order", "dataset") and state.get(key) != mine.get(key)]
    if state["order"] not in order.VERSIONS:
        wrong.insert(0, "order")
    if wrong:
        raise WrongState(
            f"this state is of {_summary(state)}; this loader is on {_summary(mine)}."
            f" They differ in {', '.join(wrong)}.",
            hint=_hint(wrong, state, mine),
        )
    return Spot(*(_count(name, state[name]) for name in ("epoch", "samples")))


def _count(name: str, value: Any) -> int:
    try:
        return whole(name, value, 0, WrongState)
    except WrongState as e:
        raise WrongState(f"this is not the state of a loader: {e.message}") from None


def _summary(kind: Mapping[str, Any]) -> str:
    return (
        f"{kind['dataset']} ({short(str(kind['fingerprint']))}) with {kind['sampler']}, {kind['window']},"
        f" anchors={kind['anchors']!r}, seed {kind['seed']}"
    )


def _hint(wrong: list[str], state: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    if "order" in wrong:
        known = " and ".join(map(str, order.VERSIONS))
        return f"it was saved by a release of rlds with order {state['order']}; this one knows {known}"
    if all("members" in kind for kind in (state, mine)) and wrong[0] in ("fingerprint", *_MIXED):
        theirs = {**state["members"], "weights": state.get("weights")}
        ours = {**mine["members"], "weights": mine["weights"]}
        return f"it was saved with {', '.join(f'{k}: {v}' for k, v in theirs.items() if ours.get(k) != v)}"
    if "fingerprint" in wrong:
        return "the same dataset, and the same selection of it"
    return "Loader(..., " + ", ".join(f"{key}={_argument(key, state[key])}" for key in wrong) + ")"


def _argument(key: str, value: Any) -> str:
    """As it is typed; windows and samplers are kept as that."""
    return repr(value) if key == "anchors" else str(value)
