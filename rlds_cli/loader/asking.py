"""What a loader is asked for, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.mixtures.mixture import Mixture
from rlds_cli.loader.output.transforms import Elementwise
from rlds_cli.loader.reading import BatchFunction, Transforms
from rlds_cli.loader.sampling.samplers import Sampler
from rlds_cli.loader.windowing.windows import Anchors, Transition, Window
from rlds_cli.settings import StrPath

Transform = Elementwise | BatchFunction

_OF_IMAGES = ("torchvision", "kornia", "albumentations")
_FUNCTION = 'def f(batch): batch["observation"] = t(batch["observation"]), and transform=f'


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
    asked: Any = transform
    given = list(asked) if isinstance(asked, Sequence) and not isinstance(asked, str) else [asked]
    for t in given:
        if isinstance(t, type):
            raise InvalidArgument(f"transform={_name(t)} is a class.", hint=f"transform={_name(t)}(...)")
        if not callable(t):
            raise InvalidArgument(f"transform={t!r} is neither a transform nor a function of a batch.", hint=_FUNCTION)
        if hasattr(t, "in_keys") and hasattr(t, "out_keys"):
            raise InvalidArgument(
                f"transform={_name(t)} is for TensorDicts, and a loader gives batches.",
                hint="td = transform(batch.tensordict()) for each batch",
            )
        package, _, module = _home(t).partition(".")
        if package in _OF_IMAGES:
            raise InvalidArgument(f"transform={_name(t)} is for images, and a loader gives batches.", hint=_FUNCTION)
        if package == "rlds_cli" and module.startswith("preprocess."):
            raise InvalidArgument(
                f"transform={_name(t)} is for whole episodes.", hint=f'rlds_cli.preprocess.run(ds, "{_name(t)}")'
            )
    return Transforms.of(given)


def _home(transform: object) -> str:
    """The module that a function, or the class of an object, is from."""
    own = getattr(transform, "__module__", None)
    return own if isinstance(own, str) else type(transform).__module__


def _name(transform: object) -> str:
    return str(getattr(transform, "__name__", type(transform).__name__))
