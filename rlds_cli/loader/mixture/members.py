"""One member of a mixture: which of its samples, and how they are read.

A dataset with some of its fields under other names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.dataset import Dataset
from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import InvalidArgument, RldsError
from rlds_cli.loader import build
from rlds_cli.loader.arrays.frameworks import Arrays
from rlds_cli.loader.arrays.transforms import Elementwise
from rlds_cli.loader.build import Request
from rlds_cli.loader.fields.fields import Fields
from rlds_cli.loader.mixture.mixture import Member
from rlds_cli.loader.order import VERSION, Order, Positions
from rlds_cli.loader.read import DatasetSource, Gathered, Places, Transforms
from rlds_cli.loader.windows.positions import Samples
from rlds_cli.store.opening import Store
from rlds_cli.ted import Array, IntArray


@lru_cache(maxsize=256)
def order_of(seed: int, name: str, epoch: int, version: int = VERSION) -> Order:
    """The randomness of a member, or with no name of the draws of members; its epochs are its own."""
    digest = hashlib.sha256(f"{seed} {epoch} {name}".encode()).digest()
    return Order(int.from_bytes(digest[:8], "little"), version=version)


class Drawing:
    """A member, and the fields that it is asked for."""

    def __init__(self, name: str, member: Member, request: Request, floats: str | None, *, lenient: bool) -> None:
        self.name, self.member = name, member
        assert isinstance(member.dataset, Dataset)
        with _told(name):
            self.dataset = renamed(member.dataset, member.rename)
            self.request = replace(request.in_steps(self.dataset), views=True)  # merging copies
            window = self.request.window
            self.pool = build.pool(self.dataset, window, request.anchors)
            self.draw = request.sampler.over(self.pool)
            self.fields = Fields(self.pool, window, request.sampler, request.anchors, request.memory, floats)
            self.chosen = self.fields.choose(request.fields, request.extra, lenient=lenient)


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Errors name the member that they are about."""
    try:
        yield
    except RldsError as e:
        raise type(e)(f"Mixture, {name}: {e.message}", hint=e.hint) from None


class Reading:
    """A member that is read.

    Parameters
    ----------
    drawing : Drawing
    names : sequence of str
        Fields of the mixture: those that the member can give are read.
    request : Request
    transforms : Transforms
        Of the loader: rewards pass them before they are summed up.
    arrays : Arrays
    """

    def __init__(
        self, drawing: Drawing, names: Sequence[str], request: Request, transforms: Transforms, arrays: Arrays
    ) -> None:
        self.name, self.dataset, self.pool = drawing.name, drawing.dataset, drawing.pool
        self._endless, self._arrays = request.sampler.endless, arrays
        fields, member = drawing.fields, drawing.member
        given = member.transform if isinstance(member.transform, Sequence) else [member.transform]
        own = [EitherName(t, member.rename) if isinstance(t, Elementwise) and member.rename else t for t in given]
        self.transforms = Transforms.of(own)
        chosen = [name for name in names if name in drawing.chosen or fields.has(name)]
        self.transforms.like = fields.like(chosen)
        with _told(self.name):
            self.transforms.check(chosen, self.dataset, summed=fields.n_step > 1)
            both = Transforms([*self.transforms.elementwise, *transforms.elementwise])
            self.source: DatasetSource = build.read(fields, chosen, drawing.draw, drawing.request, both, arrays.working)

    # -- which samples

    def stretches(self, order: Order, places: IntArray) -> Iterator[tuple[Order, Positions, slice]]:
        """The samples ``places`` [n], ascending, by the member's own epochs: positions there, and which of n.

        ``order`` is that of the mixture.
        """
        own = order_of(order.seed, self.name, order.epoch, order.version)
        if not len(places):
            return
        if self._endless:
            yield own, _dense(places), slice(None)
            return
        total, at = self.pool.guide.total, 0
        while at < len(places):
            passed = int(places[at]) // total
            stop = int(np.searchsorted(places, (passed + 1) * total))
            yield replace(own, epoch=passed), _dense(places[at:stop] - passed * total), slice(at, stop)
            at = stop

    def place(self, order: Order, positions: Positions, longest: int) -> Samples:
        """Where these samples lie; ``longest`` is the length of whole episodes in the batch."""
        draw = self.source.draw
        drawn = draw.draw(order, positions)
        return draw.window.place(self.pool.table, replace(drawn, longest=longest) if longest else drawn, draw.reach)

    def longest(self, order: Order, places: IntArray) -> int:
        """Steps of the longest episode among the member's samples ``places`` [n]; 0 without any."""
        drawn = [self.source.draw.draw(own, at) for own, at, _ in self.stretches(order, places)]
        return max((int(self.pool.table.steps.take(d.episode).max()) for d in drawn), default=0)

    # -- their columns

    def probe(self, longest: int) -> Gathered:
        """One sample, whichever."""
        return self.gather(self.place(Order(0), range(1), longest))

    def gather(self, samples: Samples) -> Gathered:
        """Columns of the samples, after the member's transforms."""
        gathered = self.source.gather(samples)
        if not self.transforms.elementwise and not self.transforms.functions:
            return gathered
        values = gathered.values | {
            name: np.asarray(self.transforms.column(name, x))
            for name, x in self._arrays.convert(gathered.values).items()
            if name not in self.source.summed
        }
        if self.transforms.functions:
            values = self._called(values, gathered.blank)
        return Gathered(values, gathered.blank)

    def _called(self, values: Mapping[str, Array], blank: Mapping[str, Places]) -> dict[str, Array]:
        """What the functions make of a batch of these samples."""
        own = {name: np.array(x, order="C", copy=True if name in blank else None) for name, x in values.items()}
        for name, places in blank.items():
            own[name][places] = None if own[name].dtype == object else 0
        batch = self.transforms.batch(Batch.nest(self._arrays.convert(own)))
        return {name: np.asarray(x) for name, x in batch.numpy().leaves()}


def _dense(places: IntArray) -> Positions:
    """As a range where nothing is left out: all ranks' samples together."""
    first, last = int(places[0]), int(places[-1])
    return range(first, last + 1) if last - first + 1 == len(places) else places


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
