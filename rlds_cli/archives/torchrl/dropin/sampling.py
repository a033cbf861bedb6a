"""Slices, trajectories one by one, padding and images, as the arguments of TorchRL's dataset classes ask for them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, unravel_key
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement, SliceSampler, SliceSamplerWithoutReplacement
from torchrl.envs.transforms import ToTensorImage

from rlds_cli.archives.torchrl.dropin.errors import BadArgument
from rlds_cli.archives.torchrl.dropin.transitions import as_leaf, as_list
from rlds_cli.base.text import join_name
from rlds_cli.dataset import MOST_CHANNELS, Dataset, Resize, ToFloat

MASK = ("collector", "mask")
_NOT_PADDED = ("index", "collector")


class EpochsOfSlices(SliceSamplerWithoutReplacement):  # type: ignore[misc]  # untyped
    """A slice of each trajectory once; short trajectories are passed over, and leave no gap in a batch."""

    def sample(self, storage: Any, batch_size: int) -> Any:
        """Return the index of a batch, and what the sampler adds to it."""
        self._least = self._adjusted_batch_size(batch_size * (self._batch_size_multiplier or 1))[0]
        return super().sample(storage, batch_size)

    def _get_stop_and_length(self, storage: Any, fallback: bool = True) -> Any:
        start, stop, lengths = super()._get_stop_and_length(storage, fallback)
        long = lengths >= self._least
        if not self.strict_length or long.all() or not long.any():
            return start, stop, lengths
        return start[long], stop[long], lengths[long]


@dataclass(frozen=True, slots=True)
class Draws:
    """How a buffer draws.

    Attributes
    ----------
    num_slices, slice_len : int, optional
        Slices in a batch, or steps in a slice: one of them, or none.
    strict_length : bool
        Trajectories that are shorter than a slice give none; else they are taken whole, and a batch has fewer steps.
    pad : float, bool, optional
        They are filled up with this value, True for 0; None and False for no filling.
    replacement : bool, optional
        False: all once before one comes again. None: only without ``shuffle``, and in a stream.
    shuffle : bool
        False: in the order of the dataset.
    streaming : bool
        Slices of trajectories, each trajectory once.

    Raises
    ------
    BadArgument
        The values contradict each other.
    """

    num_slices: int | None = None
    slice_len: int | None = None
    strict_length: bool = True
    pad: float | bool | None = None
    replacement: bool | None = None
    shuffle: bool = True
    streaming: bool = False

    def __post_init__(self) -> None:
        if self.num_slices is not None and self.slice_len is not None:
            raise BadArgument(f"num_slices={self.num_slices} and slice_len={self.slice_len}: one of them.")
        if self.replacement and (self.streaming or not self.shuffle):
            other = "streaming=True" if self.streaming else "shuffle=False"
            raise BadArgument(f"replacement=True with {other}.", hint=f"{other} takes everything once")
        if self.value is not None and not self.of_slices:
            raise BadArgument(f"pad={self.pad}: there are no slices to fill up.", hint="slice_len= or num_slices=")

    @property
    def of_slices(self) -> bool:
        """Whether slices are drawn, and not single transitions."""
        return self.num_slices is not None or self.slice_len is not None or self.streaming

    @property
    def value(self) -> float | None:
        """Value that fills slices up; None for no filling."""
        if self.pad is None or self.pad is False:
            return None
        return 0 if self.pad is True else self.pad

    def sampler(self) -> Any:
        """Return the sampler that draws so; None for TorchRL's default."""
        once = not self.shuffle or self.streaming if self.replacement is None else not self.replacement
        if not self.of_slices:
            return SamplerWithoutReplacement(shuffle=self.shuffle) if once else None
        strict = self.strict_length and self.value is None
        slices = 1 if self.num_slices is None and self.slice_len is None else self.num_slices
        how = {"num_slices": slices, "slice_len": self.slice_len, "strict_length": strict}
        made = EpochsOfSlices(shuffle=self.shuffle, **how) if once else SliceSampler(cache_values=True, **how)
        made.pad_output = self.value is not None
        return made

    def one_by_one(self, sampler: Any, longest: int) -> tuple[Any, int]:
        """Return sampler and batch size of an iteration for which no batch size is given.

        Slices come one by one, as ``sampler`` draws them; trajectories one by one, or ``num_slices`` of them.
        """
        if self.slice_len is not None:
            return sampler, self.slice_len
        count = self.num_slices or 1
        return EpochsOfSlices(num_slices=count, strict_length=False, shuffle=self.shuffle), count * longest


def fill(td: Any, value: float) -> None:
    """Fill up slices where they continue beyond their trajectory: numbers with ``value``.

    Flags are False there, texts None, and ``("collector", "mask")`` is False. ``index`` stays that of the last step.
    """
    mask = td.get(MASK, None)
    if mask is None:
        td.set(MASK, torch.ones(td.batch_size, dtype=torch.bool))
        return
    outside = ~mask
    for key in td.keys(True, True, is_leaf=lambda kind: not issubclass(kind, TensorDict)):
        if (key[0] if isinstance(key, tuple) else key) in _NOT_PADDED:
            continue
        x = td.get(key)
        if isinstance(x, torch.Tensor):
            of_rows = outside.view(-1, *(1,) * (x.ndim - 1))
            td.set(key, x.masked_fill(of_rows, False if x.dtype == torch.bool else value))
        else:
            text = np.array([*as_list(x), None], object)[:-1]
            text[outside.numpy()] = None
            td.set(key, as_leaf(text))


@dataclass(frozen=True, slots=True)
class Images:
    """A transform of the images of a TensorDict: ``float32`` in [0, 1] with channels first, of another size.

    Attributes
    ----------
    keys : sequence of str or tuple of str
    to_tensor : bool
        As ``ToTensorImage``; else the values stay bytes, and channels where they are.
    size : (int, int), optional
        Height and width.
    """

    keys: Sequence[str | tuple[str, ...]]
    to_tensor: bool
    size: tuple[int, int] | None

    def __call__(self, td: Any) -> Any:
        """Change the images of ``td``, in place."""
        for key in self.keys:
            if key in td.keys(True):
                td.set(key, self._changed(key, td.get(key)))
        return td

    def _changed(self, key: str | tuple[str, ...], x: torch.Tensor) -> torch.Tensor:
        name = join_name(key)
        last = x.ndim >= 3 and x.shape[-1] <= MOST_CHANNELS
        if self.to_tensor:
            x = ToFloat(name, "hwc").apply(name, x)  # resized as floats, as TorchRL does
        if self.size is not None:
            x = Resize(name, self.size).apply(name, x)
        return x.movedim(-1, -3).contiguous() if self.to_tensor and last else x


def images(
    dataset: Dataset, names: Mapping[str, str], size: int | Sequence[int] | None, to_tensor: bool
) -> Images | None:
    """Return the transform that ``image_size`` and ``totensor`` ask for; None where they ask for nothing.

    ``names`` are those of fields, by their keys.

    Raises
    ------
    BadArgument
        None of the fields has images, or ``size`` is not a size.
    """
    if size is None and not to_tensor:
        return None
    fields = {name for name, f in dataset.schema.items() if f.is_image}
    found = [key for key, name in names.items() if name in fields or name.removeprefix("next/") in fields]
    asked = "totensor=True" if size is None else f"image_size={size}"
    if not found:
        raise BadArgument(f"{asked}: no field of {dataset.id} that is read has images.")
    keys = [unravel_key(tuple(key.split("/"))) for key in found]
    return Images(keys, to_tensor, None if size is None else _sides(size))


def _sides(size: int | Sequence[int]) -> tuple[int, int]:
    try:
        sides = [operator.index(x) for x in (size if isinstance(size, Sequence) else (size,))]
    except TypeError:
        sides = []
    if len(sides) not in (1, 2) or min(sides) < 1:
        raise BadArgument(f"image_size={size!r}: a number of pixels, or height and width.")
    return sides[0], sides[-1]


def makes_tensors(transform: Any) -> bool:
    """Return whether a transform makes tensors of images already."""
    within = transform if hasattr(transform, "__iter__") else [transform]
    return any(isinstance(t, ToTensorImage) for t in within)
