"""A dataset with some of its fields under other names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.output.transforms import Elementwise
from rlds_cli.store.opening import Store

TAKEN = ("mask", "source")  # what a mixture adds to its batches


def renamed(dataset: Dataset, rename: Mapping[str, str]) -> Dataset:
    """The same rows and episodes, fields by their new names.

    Parameters
    ----------
    dataset : Dataset
    rename : mapping of str to str
        From the dataset's names to new ones; a name stands for everything nested below it, and ``observation`` for
        ``next/observation`` too.

    Raises
    ------
    UnknownField
        No field has a name that is to be changed.
    InvalidArgument
        Two fields would have one name, or one would move to or from ``next``.
    """
    if not rename:
        return dataset
    names = {name: _new(name, rename) for name in dataset.schema}
    for theirs, ours in rename.items():
        if not any(_below(name, theirs) for name in names):
            dataset.field(theirs)  # says so
        if theirs.startswith("next/") != ours.startswith("next/"):
            raise InvalidArgument(
                f'rename: "{theirs}" to "{ours}" in {dataset.id}: what came of an action stands under "next/", the'
                " rest does not."
            )
        if ours.split("/")[0] in TAKEN:
            raise InvalidArgument(f'rename: "{ours}" is a field that a mixture adds itself.', hint="another name")
    twice = [ours for ours in names.values() if list(names.values()).count(ours) > 1]
    if twice:
        both = " and ".join(f'"{name}"' for name, ours in names.items() if ours == twice[0])
        raise InvalidArgument(
            f'rename: {both} of {dataset.id} would both be "{twice[0]}".', hint="rename the other one, too"
        )
    store = RenamedStore(dataset.path, names)
    store.expect(dataset.store.content, "opened")
    return Dataset(store, dataset._index)


def _below(name: str, key: str) -> bool:
    return name == key or name.startswith(f"{key}/")


def _new(name: str, rename: Mapping[str, str]) -> str:
    """What a field is called now: by the longest name that fits."""
    for prefix in ("", "next/"):
        bare = name.removeprefix(prefix)
        fitting = [key for key in rename if _below(bare, key)] if name.startswith(prefix) else []
        if fitting:
            key = max(fitting, key=len)
            return f"{prefix}{rename[key]}{bare.removeprefix(key)}"
    return name


class RenamedStore(Store):
    """The files of a dataset, its fields by other names.

    Parameters
    ----------
    path : Path
    names : mapping of str to str
        From the name of every field to its new one.
    """

    def __init__(self, path: Path, names: Mapping[str, str]) -> None:
        super().__init__(path)
        self._names = dict(names)
        fields = tuple(replace(f, name=names[f.name]) for f in self.manifest.fields)
        stats = {names[name]: s for name, s in self.manifest.stats.items()}
        # what is packed for loading goes by names and fingerprint: it must not be that of the fields so named before
        digest = hashlib.sha256(json.dumps(self._names, sort_keys=True).encode()).hexdigest()[:16]
        fingerprint = f"{self.manifest.fingerprint}+renamed-{digest}"
        self.manifest = replace(self.manifest, fields=fields, stats=stats, fingerprint=fingerprint)
        self.fields = {names[name]: replace(f, name=names[name]) for name, f in self.fields.items()}
        self._stored = {f.name: f for f in fields}

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self.path, self._names, self.content)


def _again(path: Path, names: Mapping[str, str], content: str) -> RenamedStore:
    store = RenamedStore(path, names)
    store.expect(content, "pickled")
    return store


class EitherName(Elementwise):
    """A transform that speaks of fields by the names of their dataset, or by the new ones.

    Parameters
    ----------
    transform : Elementwise
    rename : mapping of str to str
        From the dataset's names to the new ones.
    """

    def __init__(self, transform: Elementwise, rename: Mapping[str, str]) -> None:
        self._transform = transform
        self._back = {ours: theirs for theirs, ours in rename.items()}

    def touches(self, name: str) -> bool:
        """Whether the field is changed, under either name."""
        return self._transform.touches(_new(name, self._back)) or self._transform.touches(name)

    def apply(self, key: str | tuple[str, ...], x: Any) -> Any:
        """Return the changed values."""
        name = key if isinstance(key, str) else "/".join(key)
        theirs = _new(name, self._back)
        return self._transform.apply(theirs if self._transform.touches(theirs) else name, x)

    def __repr__(self) -> str:
        return repr(self._transform)
