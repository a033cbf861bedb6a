"""The facts of a dataset that a user may set: fps, license, description, depth_unit. Needs no NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rlds_cli.errors import InvalidArgument
from rlds_cli.store.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Facts:
    """What a manifest says of the facts that a user may set."""

    NAMES: ClassVar[tuple[str, ...]] = ("fps", "license", "description", "depth_unit")
    UNITS: ClassVar[tuple[str, ...]] = ("mm", "m")

    manifest: Manifest

    @classmethod
    def check_names(cls, names: Iterable[str]) -> None:
        """Raise InvalidArgument for a name that is not one of a fact."""
        unknown = sorted(set(names) - set(cls.NAMES))
        if unknown:
            raise InvalidArgument(f"{unknown[0]} is not a fact of a dataset.", hint=f"facts: {', '.join(cls.NAMES)}")

    @property
    def values(self) -> dict[str, Any]:
        """The value of each of them; None if it is not known."""
        m = self.manifest
        texts = {name: m.facts.get("licence" if name == "license" else name) for name in self.NAMES[1:]}
        return {"fps": m.env.get("fps"), **texts}

    @property
    def depth(self) -> dict[str, Mapping[str, Any]]:
        """What the values of each depth field are: as the archive says, else images of 16 bits have ``depth_unit``."""
        m = self.manifest
        unit = m.facts.get("depth_unit")
        deep = [f.name for f in m.fields if (f.kind, f.dtype) == ("frames", "uint16")]
        of_dataset: dict[str, Mapping[str, Any]] = {name: {"unit": unit} for name in deep if unit is not None}
        return of_dataset | dict(m.facts.get("depth", {}))

    @classmethod
    def check_unit(cls, unit: Any) -> None:
        """Raise InvalidArgument for a unit of depth that there is not."""
        if unit not in (None, *cls.UNITS):
            raise InvalidArgument(f"depth_unit={unit!r} is neither of {', '.join(cls.UNITS)}.")

    def differing(self, other: Facts) -> dict[str, tuple[Any, Any]]:
        """Return those that differ by name, each with its value here and in ``other``."""
        there = other.values
        return {name: (value, there[name]) for name, value in self.values.items() if value != there[name]}

    def replaced(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members of the manifest that say these values; a fact whose value is None is taken away.

        Raises
        ------
        InvalidArgument
            A value is not one of its fact.
        """
        m, members = self.manifest, dict[str, Any]()
        if "fps" in values:
            fps = values["fps"]
            if fps is not None and (isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < 1e9):
                raise InvalidArgument(f"fps={fps!r}: a number of steps a second is needed.")
            members["env"] = {**m.env, "fps": None if fps is None else float(fps)}
        wrong = next((n for n, t in values.items() if n != "fps" and not isinstance(t, str | None)), None)
        if wrong is not None:
            raise InvalidArgument(f"{wrong}={values[wrong]!r}: a text is needed.")
        self.check_unit(values.get("depth_unit"))
        texts = {"licence" if n == "license" else n: t for n, t in values.items() if n != "fps"}
        if texts:
            members["facts"] = {n: t for n, t in {**m.facts, **texts}.items() if t is not None}
        return members
