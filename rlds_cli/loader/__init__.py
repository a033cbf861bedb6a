"""Batches for training: which samples (`Uniform`, `Shuffled`, `Sequential`), of what (`Transition`, `Slice`).

>>> from rlds_cli.loader import Loader, Slice
>>> loader = Loader("d4rl/hopper-medium-v2", 64, window=Slice(20, after=19))  # doctest: +SKIP
"""

from rlds_cli.batch import Batch
from rlds_cli.loader.content.goals import Goals
from rlds_cli.loader.content.returns import ReturnToGo
from rlds_cli.loader.loading import Loader
from rlds_cli.loader.mixtures.mixture import Member, Mixture
from rlds_cli.loader.output.depth import Metres
from rlds_cli.loader.output.images import Resize, ToFloat
from rlds_cli.loader.output.transforms import Clip, Normalize, Reward
from rlds_cli.loader.sampling.prioritized import Prioritized
from rlds_cli.loader.sampling.samplers import Sampler, Sequential, Shuffled, Uniform
from rlds_cli.loader.sampling.weighted import Weighted
from rlds_cli.loader.windowing.offsets import Offsets
from rlds_cli.loader.windowing.windows import Episode, Slice, Transition, Window

__all__ = [
    "Batch",
    "Clip",
    "Episode",
    "Goals",
    "Loader",
    "Member",
    "Metres",
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
