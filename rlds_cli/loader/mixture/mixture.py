"""`Mixture` and `Member`: several datasets as one, each with its fields renamed."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rlds_cli.base.files.hashing import short
from rlds_cli.base.integers import integer, set_integer
from rlds_cli.base.text import is_below, join_name
from rlds_cli.dataset import Dataset, Elementwise, Resize, open_dataset
from rlds_cli.dataset.transforms import Numbers
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.mixture.shares import normalised
from rlds_cli.loader.samplers import Sampler

Weights = Mapping[str, float] | Literal["size"] | Callable[[int], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Member:
    """One dataset of a mixture.

    Parameters
    ----------
    dataset : str, path or Dataset
    rename : mapping of str to str
        ``{"their name": "our name"}``: the dataset's fields under the names that the batches have. A name stands for
        everything nested below it, and ``observation`` for ``next/observation`` too.
    transform : transform, function of a batch, or a sequence of them
        For this member alone, before its samples join the others: `Normalize` with its own statistics; `Reward`, which
        changes each reward before it is summed. A transform may name fields by old or new names. A function gets a
        batch of some samples of this member, with the new names, and is called once when the loader is made.
    sampler : Uniform, Shuffled, Sequential, Weighted or Prioritized, optional
        The choice of this member's samples, instead of the loader's ``sampler``.
    """

    dataset: str | os.PathLike[str] | Dataset
    rename: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    transform: Any = field(default=(), kw_only=True)
    sampler: Sampler | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.dataset, str | os.PathLike | Dataset):
            raise InvalidArgument(f"Member({self.dataset!r}): an id, a path or a dataset is needed.")
        if not isinstance(self.rename, Mapping):
            raise InvalidArgument(f"Member(rename={self.rename!r}): a mapping is needed.", hint=_RENAME)
        if self.sampler is not None and (isinstance(self.sampler, type) or not hasattr(self.sampler, "over")):
            raise InvalidArgument(f"Member(sampler={self.sampler!r}) is not a sampler.", hint="Prioritized()")
        plain = {join_name(theirs): join_name(ours) for theirs, ours in self.rename.items()}
        object.__setattr__(self, "rename", plain)

    def opened(self) -> Member:
        """Return the member with its dataset opened."""
        return self if isinstance(self.dataset, Dataset) else replace(self, dataset=open_dataset(self.dataset))

    def about(self, sampler: Sampler) -> str:
        """Return id, renamed fields and sampler of an opened member, and its content if the dataset does not grow."""
        assert isinstance(self.dataset, Dataset)
        renamed = f", renamed {dict(sorted(self.rename.items()))}" if self.rename else ""
        own = f", {self.sampler}" if self.sampler else ""
        is_fixed = self.dataset.store.why_fixed
        content = f" ({short(content_of(self.dataset, self.sampler or sampler))})" if is_fixed else ""
        return f"{self.dataset.id}{content}{renamed}{own}"

    def content(self, sampler: Sampler) -> str:
        """Return the content, see `content_of`, and the names of an opened member; ``sampler`` is the loader's."""
        assert isinstance(self.dataset, Dataset)
        return _with_names(content_of(self.dataset, self.sampler or sampler), self)


_RENAME = 'rename={"their name": "our name"}'


@dataclass(frozen=True, slots=True)
class Anneal:
    """Weights of a `Mixture` that change linearly: ``Anneal({"a": 1, "b": 0}, {"a": 1, "b": 1}, steps=50_000)``.

    Parameters
    ----------
    start, end : mapping of str to float
        Weights by member; shares are these divided by their sum. Shares move in a straight line from one to the other.
    steps : int
        Batches from the one to the other.
    begin : int
        The batch in which the change begins; before it the weights are ``start``.

    Raises
    ------
    InvalidArgument
        Weights are of different members, negative or all zero; ``steps`` is not positive.

    Examples
    --------
    >>> weights = Anneal({"offline": 1, "online": 0}, {"offline": 1, "online": 1}, steps=100)
    >>> weights(50)
    {'offline': 0.75, 'online': 0.25}
    """

    start: Mapping[str, float]
    end: Mapping[str, float]
    steps: int = field(kw_only=True)
    begin: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        set_integer(self, "steps", 1)
        set_integer(self, "begin", 0)
        if not isinstance(self.start, Mapping) or not isinstance(self.end, Mapping):
            raise InvalidArgument(f"Anneal({self.start!r}, {self.end!r}): two mappings of names to weights are needed.")
        names = list(self.start)
        for which in ("start", "end"):
            shares = normalised(getattr(self, which), names, f" at the {which} of Anneal")
            object.__setattr__(self, which, dict(zip(names, shares, strict=True)))

    def __call__(self, step: int) -> dict[str, float]:
        """Return the share of every member in batch number ``step``."""
        done = min(max(step - self.begin, 0) / self.steps, 1)
        return {name: share * (1 - done) + self.end[name] * done for name, share in self.start.items()}


@dataclass(frozen=True, slots=True)
class Mixture:
    """Samples of several datasets in one stream: ``Loader(Mixture({"a": "d4rl/...", "b": ds}, {"a": 3, "b": 1}))``.

    Member and place of sample i follow from i and the weights. With ``exact`` and constant weights members take turns
    so that any B consecutive samples hold weight * B of each, off by less than two: at most one with two members, one
    and a half with three, ``2 - 1 / (K - 1)`` with K (the chairman assignment, Tijdeman 1980). Weights are rounded to
    a period of at most 65,536 samples, in which every member comes at least once.

    Each member has its own order, from the seed and its name, and continues to its next epoch by itself: a mixture ends
    only by ``steps``. ``batch["source"]`` is the number of the member in the order of ``members``. The parts of a batch
    that ranks get hold the shares, too.

    With ``live=True`` members may grow, and be empty at first: the others then take their shares, and ``batch.absent``
    names them. Counts in a batch are those of the largest remainders, and the next batches make up for it.

    Parameters
    ----------
    members : mapping of str to str, path, Dataset or Member
        By names of your own.
    weights : mapping of str to float, "size", `Anneal`, or a function
        Shares of the samples, divided by their sum. ``size``: by the number of windows, so that every window of every
        member comes equally often. A function of the batch's number (`Loader.step`) gives such a mapping for each
        batch; the next batch makes up for rounded counts.
    exact : bool
        False draws the member of every sample independently: counts per batch are multinomial.
    pad : mapping of str to int
        Fields whose last axis differs: zeros are added up to this size, and ``batch["mask", field]`` [B, size] says
        which elements are real. ``observation`` stands for ``next/observation`` too.
    missing : {"error", "zero"}
        A field that a member does not have is an error, or holds zeros there, and ``batch["mask", field]`` [B] says
        which samples have it.

    Raises
    ------
    InvalidArgument
        There are no members, weights do not match them, are negative or all zero, or another value is not possible.
    """

    members: Mapping[str, str | os.PathLike[str] | Dataset | Member]
    weights: Weights = "size"
    exact: bool = field(default=True, kw_only=True)
    pad: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    missing: Literal["error", "zero"] = field(default="error", kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.members, Mapping) or not self.members:
            given: Any = self.members
            listed = isinstance(given, list | tuple) and len(given) > 0
            raise InvalidArgument(
                f"Mixture({self.members!r}): a mapping of names to datasets is needed.",
                hint=mixture_of(given) if listed else _MEMBERS,
            )
        if any(isinstance(m, int | float) for m in self.members.values()):
            raise InvalidArgument(
                f"Mixture({dict(self.members)!r}): the first argument names datasets, the second gives weights.",
                hint=mixture_of(self.members, self.members),
            )
        for name in self.members:
            if not isinstance(name, str) or not name:
                raise InvalidArgument(f"Mixture: {name!r} is not a name of a member.", hint=_MEMBERS)
        members = {name: m if isinstance(m, Member) else Member(m) for name, m in self.members.items()}
        object.__setattr__(self, "members", members)
        if isinstance(self.weights, Mapping):
            shares = normalised(self.weights, self.names)
            object.__setattr__(self, "weights", dict(zip(self.names, shares, strict=True)))
        elif isinstance(self.weights, Anneal):
            normalised(self.weights(0), self.names, " of Anneal")
        elif self.weights != "size" and not callable(self.weights):
            raise InvalidArgument(
                f'Mixture: weights={self.weights!r}: a mapping, "size", or a function of the step is needed.'
            )
        if self.missing not in ("error", "zero"):
            raise InvalidArgument(f'Mixture(missing={self.missing!r}): missing is "error" or "zero".')
        pad = {join_name(name): integer(f'Mixture: pad["{name}"]', size, 1) for name, size in self.pad.items()}
        object.__setattr__(self, "pad", pad)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the members, in order."""
        return tuple(self.members)

    @property
    def parts(self) -> dict[str, Member]:
        """The members by name."""
        return {name: m for name, m in self.members.items() if isinstance(m, Member)}

    def opened(self) -> Mixture:
        """Return the mixture with every dataset opened."""
        return replace(self, members={name: m.opened() for name, m in self.parts.items()})

    @property
    def id(self) -> str:
        """A name for messages."""
        return f"Mixture({', '.join(self.names)})"

    def content(self, sampler: Sampler) -> str:
        """Return the fingerprint of names and content of the opened members, see `content_of`."""
        return fingerprint_of(self, {}, sampler)

    def about(self, sampler: Sampler) -> dict[str, str]:
        """Return the description of every opened member, by name."""
        return {name: m.about(sampler) for name, m in self.parts.items()}

    @property
    def rule(self) -> str:
        """The rule by which members are drawn, as text: part of a loader's state."""
        match self.weights:
            case str():
                weights = "by size"
            case Mapping():
                weights = ", ".join(f"{name} {weight:.12g}" for name, weight in self.weights.items())
            case _:
                weights = function_name(self.weights)
        return f"{'exact' if self.exact else 'multinomial'} counts, weights {weights}"

    def __repr__(self) -> str:
        members = ", ".join(f"{name!r}: {_ref(m)}" for name, m in self.parts.items())
        weights = function_name(self.weights) if callable(self.weights) else repr(self.weights)
        options = "" if self.exact else ", exact=False"
        options += f", pad={self.pad}" if self.pad else ""
        options += "" if self.missing == "error" else f", missing={self.missing!r}"
        return f"Mixture({{{members}}}, {weights}{options})"

    def __reduce__(self) -> tuple[object, ...]:
        if callable(self.weights):
            try:
                pickle.dumps(self.weights)
            except (pickle.PicklingError, AttributeError, TypeError) as e:
                raise pickle.PicklingError(
                    f"Mixture: weights={function_name(self.weights)} cannot be sent to another process: {e}."
                    "\n  hint: a function at the top of a module, or an object of a class that stands there"
                ) from e
        return _again, (dict(self.members), self.weights, self.exact, dict(self.pad), self.missing)


_MEMBERS = 'Mixture({"a": "d4rl/hopper-medium-v2", "b": dataset}, {"a": 3, "b": 1})'


def mixture_of(refs: Iterable[object], weights: Mapping[str, Any] | None = None) -> str:
    """Return the code of a mixture of these datasets, ids or paths, with weights by ref if there are some."""
    shown = [str(ref.id if isinstance(ref, Dataset) else getattr(ref, "dataset", ref)) for ref in refs]
    plain = {ref: ref.rstrip("/").rpartition("/")[2] for ref in shown}
    names = {ref: name if list(plain.values()).count(name) == 1 else ref for ref, name in plain.items()}
    members = ", ".join(f'"{name}": "{ref}"' for ref, name in names.items())
    shares = ", ".join(f'"{names[str(ref)]}": {weight}' for ref, weight in (weights or {}).items())
    return f"Mixture({{{members}}}, {{{shares}}})" if shares else f"Mixture({{{members}}})"


def _again(members: Any, weights: Any, exact: bool, pad: Any, missing: Any) -> Mixture:
    return Mixture(members, weights, exact=exact, pad=pad, missing=missing)


def _ref(member: Member) -> str:
    return repr(member.dataset.id if isinstance(member.dataset, Dataset) else os.fspath(member.dataset))


def function_name(function: Any) -> str:
    """Return ``module:name`` of a function, and the repr of an object, unless that shows its address."""
    if hasattr(function, "__qualname__"):
        return f"{function.__module__}:{function.__qualname__}"
    text, kind = repr(function), type(function)
    return text if " at 0x" not in text else f"{kind.__module__}:{kind.__qualname__}"


def content_of(dataset: Dataset, sampler: Sampler) -> str:
    """Return what a loader's state knows the content of a dataset by.

    It is the fingerprint of the fields, of TED's columns, and of the user's columns that the sampler reads. Other
    labels do not change the order of samples.
    """
    ignored = set(dataset.store.own_columns).difference(sampler.columns)
    if not ignored:
        return dataset.fingerprint
    return dataset.store.fingerprint(dataset.episodes.index if dataset.is_selection else None, ignored=ignored)


def fingerprint_of(mixture: Mixture, contents: Mapping[str, str], sampler: Sampler) -> str:
    """Return the fingerprint of a mixture with other contents of some members: their fingerprints by name."""
    known = {name: _with_names(contents[name], m) for name, m in mixture.parts.items() if name in contents}
    every = "\n".join(f"{name} {known.get(name) or m.content(sampler)}" for name, m in mixture.parts.items())
    return f"mixture:{hashlib.sha256(every.encode()).hexdigest()}"


def _with_names(content: str, member: Member) -> str:
    return f"{content} {sorted(member.rename.items())}"


TAKEN = ("mask", "source")  # what a mixture adds to its batches


def renamed(dataset: Dataset, rename: Mapping[str, str]) -> Dataset:
    """Return the same rows and episodes with renamed fields.

    Parameters
    ----------
    dataset : Dataset
    rename : mapping of str to str
        From the dataset's names to new ones; a name stands for everything nested below it, and ``observation`` for
        ``next/observation`` too.

    Raises
    ------
    UnknownField
        No field has a name to be changed.
    InvalidArgument
        Two fields would have the same name, or a field would move to or from ``next``.
    """
    if not rename:
        return dataset
    names = {name: _new(name, rename) for name in dataset.schema}
    for theirs, ours in rename.items():
        if not any(is_below(name, theirs) for name in names):
            dataset.field(theirs)  # says so
        if theirs.startswith("next/") != ours.startswith("next/"):
            raise InvalidArgument(
                f'rename: "{theirs}" to "{ours}" in {dataset.id}: outcomes of actions stand under "next/", and'
                " only these."
            )
        if ours.split("/")[0] in TAKEN:
            raise InvalidArgument(f'rename: "{ours}" is a field that a mixture adds itself.', hint="another name")
    twice = [ours for ours in names.values() if list(names.values()).count(ours) > 1]
    if twice:
        both = " and ".join(f'"{name}"' for name, ours in names.items() if ours == twice[0])
        raise InvalidArgument(
            f'rename: {both} of {dataset.id} would both be "{twice[0]}".', hint="rename the other one, too"
        )
    return Dataset(dataset.store.renamed(names), dataset._index)


def _new(name: str, rename: Mapping[str, str]) -> str:
    """Return the new name of a field, by the longest key that covers it."""
    for prefix in ("", "next/"):
        bare = name.removeprefix(prefix)
        fitting = [key for key in rename if is_below(bare, key)] if name.startswith(prefix) else []
        if fitting:
            key = max(fitting, key=len)
            return f"{prefix}{rename[key]}{bare.removeprefix(key)}"
    return name


@dataclass(frozen=True, slots=True)
class OfFields(Elementwise):
    """A transform that changes some of the fields that it could change."""

    transform: Elementwise
    names: frozenset[str]

    def touches(self, name: str) -> bool:
        """Return whether the field is one of them."""
        return name in self.names and self.transform.touches(name)

    def apply(self, key: str | tuple[str, ...], x: Any) -> Any:
        """Return the changed values."""
        return self.transform.apply(key, x)

    def centring(self, name: str) -> tuple[Numbers, Numbers] | None:
        """Return shift and scale, see `Elementwise`."""
        return self.transform.centring(name)

    def resizing(self, name: str) -> Resize | None:
        """Return the cached resizing, see `Elementwise`."""
        return self.transform.resizing(name)


class EitherName(Elementwise):
    """A transform that names fields by their old or their new names.

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
        """Return whether the transform changes the field, under either name."""
        return self._transform.touches(_new(name, self._back)) or self._transform.touches(name)

    def apply(self, key: str | tuple[str, ...], x: Any) -> Any:
        """Return the changed values."""
        name = key if isinstance(key, str) else "/".join(key)
        theirs = _new(name, self._back)
        return self._transform.apply(theirs if self._transform.touches(theirs) else name, x)

    def centring(self, name: str) -> tuple[Numbers, Numbers] | None:
        """Return shift and scale, see `Elementwise`."""
        theirs = _new(name, self._back)
        return self._transform.centring(theirs if self._transform.touches(theirs) else name)

    def resizing(self, name: str) -> Resize | None:
        """Return the cached resizing, see `Elementwise`."""
        return self._transform.resizing(name)

    def __repr__(self) -> str:
        return repr(self._transform)
