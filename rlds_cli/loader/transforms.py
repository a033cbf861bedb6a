"""The transforms of a loader, and which of them are applied as columns are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.dataset import Batch, Elementwise, Reward
from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.loader.fields.cached import cached, is_cached
from rlds_cli.loader.fields.columns import BatchColumn
from rlds_cli.loader.fields.fields import no_reward
from rlds_cli.loader.kernel import Value
from rlds_cli.ted import REWARD, Field

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

BatchFunction = Callable[[Batch], Batch | None]


@dataclass(slots=True)
class Transforms:
    """The transforms of a loader: elementwise ones for many batches at once, then functions of one batch.

    ``like`` maps columns to the field that they are transformed like, ``fused`` to how many of their elementwise
    transforms were applied when they were read.
    """

    elementwise: list[Elementwise] = field(default_factory=list)
    functions: list[BatchFunction] = field(default_factory=list)
    like: dict[str, str] = field(default_factory=dict)
    fused: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, transforms: Sequence[Any]) -> Transforms:
        """Split transforms, in order, at the first that is not elementwise: the rest work on batches."""
        first = next((i for i, t in enumerate(transforms) if not isinstance(t, Elementwise)), len(transforms))
        return cls(list(transforms[:first]), list(transforms[first:]))

    def check(self, names: Sequence[str], dataset: Dataset, *, summed: bool) -> None:
        """Refuse transforms that change no field, or that come too late for rewards that are summed.

        Raises
        ------
        NoReward, UnknownField
            A transform changes none of the fields ``names``.
        InvalidArgument
            Rewards change after a function of the batch, with n-step sums.
        """
        late = [t for t in self.functions if isinstance(t, Elementwise)]
        for transform in (*self.elementwise, *late):
            if not any(self._touched(transform, name) for name in names):
                if isinstance(transform, Reward) and REWARD not in dataset.schema:
                    raise no_reward(dataset)
                raise UnknownField(f"{transform} touches none of the fields of this loader: {', '.join(names)}.")
            self._check_cache(transform, names)
            if summed and transform in late and transform.touches(REWARD):
                raise InvalidArgument(
                    f"{transform} would change the n-step sum, not each reward.", hint="put it before the functions"
                )

    def _check_cache(self, transform: Elementwise, names: Sequence[str]) -> None:
        """Refuse a transform that caches frames, and comes after others."""
        for name in names:
            field = self._touched(transform, name)
            if field and transform.resizing(field) is not None and self._touching(name)[:1] != [(transform, field)]:
                raise InvalidArgument(
                    f"{transform} caches frames as they are decoded, and comes after others that change {name}.",
                    hint="put it first",
                )

    def column(self, name: str, values: Any) -> Any:
        """Apply the elementwise transforms to one column."""
        for transform, of in self.left(name):
            values = transform.apply(of, values)
        return values

    def left(self, name: str) -> list[tuple[Elementwise, str]]:
        """Return the elementwise transforms that `column` applies to a column, each with the name of its field."""
        return self._touching(name)[self.fused.get(name, 0) :]

    def change(self, names: Iterable[str], summed: Collection[str]) -> bool:
        """Return whether an elementwise transform is left for one of the columns that are not ``summed``."""
        return any(self.left(name) for name in names if name not in summed)

    def _touching(self, name: str) -> list[tuple[Elementwise, str]]:
        touching = [(t, self._touched(t, name)) for t in self.elementwise]
        return [(t, field) for t, field in touching if field]

    def first(self, name: str) -> Elementwise | None:
        """Return the first transform of a column, if it works on what the archive has: centres it, or caches frames."""
        first = self._touching(name)[:1]
        return next((t for t, f in first if t.centring(f) is not None or t.resizing(f) is not None), None)

    def fuse(self, columns: dict[str, BatchColumn], schema: Mapping[str, Field]) -> None:
        """Have the first transform of a column applied as it is read, where that is possible.

        The kernel normalises float32 columns, of the archive's values; frames are resized, and cached, when they are
        decoded.
        """
        for name, c in columns.items():
            resize = next((t.resizing(field) for t, field in self._touching(name)[:1]), None)
            if resize is not None and c.decoding is not None and is_cached(schema[c.decoding.name]):
                columns[name] = cached(c, resize)
                self.fused[name] = 1
                continue
            output = c.outputs[0]
            kinds = output.value in (Value.COPY, Value.NARROW) and output.dtype == np.float32
            constants = next((t.centring(field) for t, field in self._touching(name)[:1]), None)
            if constants is None or not kinds or c.finish or c.summed:
                continue
            if np.broadcast_shapes(*(x.shape for x in constants), output.shape) == output.shape:
                columns[name] = replace(c, outputs=(replace(output, scale=constants),))
                self.fused[name] = 1

    def batch(self, batch: Batch) -> Batch:
        """Apply the functions of a batch; one that returns None has changed it in place."""
        for function in self.functions:
            if isinstance(function, Elementwise):
                self._each(function, batch)
            else:
                result = function(batch)
                batch = batch if result is None else result
        return batch

    def _each(self, transform: Elementwise, batch: Batch) -> None:
        for name, x in list(batch.leaves()):
            field = self._touched(transform, name)
            if field:
                batch[name] = transform.apply(field, x)

    def _touched(self, transform: Elementwise, name: str) -> str:
        """Return the name under which ``transform`` changes a column: its own, or that of its field; else empty."""
        names = (name, self.like.get(name, name))
        return next((n for n in names if transform.touches(n)), "")
