"""Batches for training: which samples (`Uniform`, `Shuffled`, `Sequential`), of what (`Transition`, `Slice`).

>>> from rlds_cli.loader import Loader, Slice
>>> loader = Loader("d4rl/hopper-medium-v2", 64, window=Slice(20, after=19))  # doctest: +SKIP
"""

from rlds_cli.batch import Batch
from rlds_cli.loader.goals import Goals
from rlds_cli.loader.images import Resize, ToFloat
from rlds_cli.loader.loading import Loader
from rlds_cli.loader.mixture import Member, Mixture
from rlds_cli.loader.offsets import Offsets
from rlds_cli.loader.prioritized import Prioritized
from rlds_cli.loader.returns import ReturnToGo
from rlds_cli.loader.samplers import Sampler, Sequential, Shuffled, Uniform
from rlds_cli.loader.transforms import Clip, Normalize, Reward
from rlds_cli.loader.weighted import Weighted
from rlds_cli.loader.windows import Episode, Slice, Transition, Window

__all__ = [
    "Batch",
    "Clip",
    "Episode",
    "Goals",
    "Loader",
    "Member",
    "Mixture",
    "Normalize",
    "Offsets",
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
