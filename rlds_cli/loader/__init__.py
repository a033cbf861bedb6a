"""Batches for training: a `Loader` takes a sampler (`Uniform`, `Shuffled`) and a window (`Transition`, `Slice`).

>>> from rlds_cli.loader import Loader, Slice
>>> loader = Loader("d4rl/hopper-medium-v2", 64, window=Slice(20, after=19))  # doctest: +SKIP
"""

from rlds_cli.dataset.batch import Batch
from rlds_cli.dataset.transforms import Clip, Metres, Normalize, Resize, Reward, ToFloat
from rlds_cli.loader.fields.goals import Goals, ReturnToGo
from rlds_cli.loader.loader import Loader
from rlds_cli.loader.mixture.mixture import Anneal, Member, Mixture
from rlds_cli.loader.samplers import Sampler
from rlds_cli.loader.samplers.pairs import Pairs
from rlds_cli.loader.samplers.prioritized import Prioritized
from rlds_cli.loader.samplers.uniform import Sequential, Shuffled, Uniform
from rlds_cli.loader.samplers.weighted import Weighted
from rlds_cli.loader.stats import LoaderStats
from rlds_cli.loader.waiting import Live
from rlds_cli.loader.windows.offsets import Offsets
from rlds_cli.loader.windows.windows import Episode, Slice, Transition, Window

__all__ = [
    "Anneal",
    "Batch",
    "Clip",
    "Episode",
    "Goals",
    "Live",
    "Loader",
    "LoaderStats",
    "Member",
    "Metres",
    "Mixture",
    "Normalize",
    "Offsets",
    "Pairs",
    "Prioritized",
    "Resize",
    "ReturnToGo",
    "Reward",
    "Sampler",
    "Sequential",
    "Shuffled",
    "Slice",
    "ToFloat",
    "Transition",
    "Uniform",
    "Weighted",
    "Window",
]


def __dir__() -> list[str]:
    return __all__
