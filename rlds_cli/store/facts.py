"""The facts of a dataset that a user may set: fps, license, description. Needs no NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlds_cli.errors import InvalidArgument
from rlds_cli.store.manifest import Manifest

FACTS = ("fps", "license", "description")


def check_names(facts: Iterable[str]) -> None:
    """Raise InvalidArgument for a name that is not one of a fact."""
    unknown = sorted(set(facts) - set(FACTS))
    if unknown:
        raise InvalidArgument(f"{unknown[0]} is not a fact of a dataset.", hint=f"facts: {', '.join(FACTS)}")


def facts_of(m: Manifest) -> dict[str, Any]:
    """Return the facts of a dataset that a user may set."""
    return {"fps": m.env.get("fps"), "license": m.facts.get("licence"), "description": m.facts.get("description")}


def described_facts(m: Manifest, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a manifest that say these facts; one that is None is taken away."""
    described: dict[str, Any] = {}
    if "fps" in facts:
        fps = facts["fps"]
        if fps is not None and (isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < 1e9):
            raise InvalidArgument(f"fps={fps!r}: a number of steps a second is needed.")
        described["env"] = {**m.env, "fps": None if fps is None else float(fps)}
    wrong = next((n for n, t in facts.items() if n != "fps" and not isinstance(t, str | None)), None)
    if wrong is not None:
        raise InvalidArgument(f"{wrong}={facts[wrong]!r}: a text is needed.")
    texts = {"licence" if n == "license" else n: t for n, t in facts.items() if n != "fps"}
    if texts:
        described["facts"] = {n: t for n, t in {**m.facts, **texts}.items() if t is not None}
    return described
