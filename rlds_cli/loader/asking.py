"""What a loader is asked for, checked."""

from __future__ import annotations

from collections.abc import Sequence

from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.mixtures.mixture import Mixture
from rlds_cli.loader.output.transforms import Elementwise
from rlds_cli.loader.reading import BatchFunction, Transforms
from rlds_cli.loader.sampling.samplers import Sampler
from rlds_cli.loader.windowing.windows import Anchors, Transition, Window
from rlds_cli.settings import StrPath

Transform = Elementwise | BatchFunction


def opened(dataset: StrPath | Dataset | Mixture) -> Dataset | Mixture:
    """The dataset, or the mixture with its members open."""
    if isinstance(dataset, Mixture):
        return dataset.opened()
    return dataset if isinstance(dataset, Dataset) else open_dataset(dataset)


def check_kinds(window: Window, sampler: Sampler, anchors: Anchors) -> None:
    """Refuse what is no window, no sampler or no kind of anchor.

    Raises
    ------
    InvalidArgument
    """
    if isinstance(window, type) or not hasattr(window, "place"):
        raise InvalidArgument(f"window={window!r} is not a window.", hint="Transition() or Slice(length)")
    if isinstance(sampler, type) or not hasattr(sampler, "over"):
        raise InvalidArgument(f"sampler={sampler!r} is not a sampler.", hint="Uniform(), Shuffled() or Sequential()")
    if anchors not in ("transitions", "steps"):
        raise InvalidArgument(f'anchors={anchors!r}: "transitions" or "steps".')
    if anchors == "steps" and isinstance(window, Transition) and window.n_step > 1:
        raise InvalidArgument(
            f'{window} sums up to a next observation, which anchors="steps" does without.', hint='anchors="transitions"'
        )


def transforms_of(transform: Transform | Sequence[Transform]) -> Transforms:
    """The transforms, in order.

    Raises
    ------
    InvalidArgument
        One cannot be called.
    """
    given = list(transform) if isinstance(transform, Sequence) else [transform]
    for t in given:
        if not callable(t):
            raise InvalidArgument(f"transform={t!r} is neither a transform nor a function of a batch.")
    return Transforms.of(given)
