"""Batches for training: a `Loader` takes a sampler (`Uniform`, `Shuffled`) and a window (`Transition`, `Slice`).

>>> from rlds_cli.loader import Loader, Slice
>>> loader = Loader("d4rl/hopper-medium-v2", 64, window=Slice(20, after=19))  # doctest: +SKIP

`reader` reads transitions by number, without drawing. `measure` measures the speed of loading. `check_packed`,
`lock_of_packed` and `discard_frames` look after what loaders leave in a home: packed rows and cached frames.

`opening` says what a loader draws from, and `build` makes its source; `schedule` and `order` number the samples,
`samplers` draw windows, `windows` and `index` say which rows these are, `fields` which columns. `read` leads through a
batch: `kernel` gathers rows, which `storage` maps, packs, caches, or holds at an address or on a device; `arrays` makes
tensors. `mixture` joins several datasets, `live` takes up new versions, `waiting` waits for the first, `state` and
`stats` are what is kept and counted, `numbered` reads without drawing.
"""

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.dataset import Batch as Batch
    from rlds_cli.dataset import Clip as Clip
    from rlds_cli.dataset import Metres as Metres
    from rlds_cli.dataset import Normalize as Normalize
    from rlds_cli.dataset import Resize as Resize
    from rlds_cli.dataset import Reward as Reward
    from rlds_cli.dataset import ToFloat as ToFloat
    from rlds_cli.loader.bench import measure as measure
    from rlds_cli.loader.fields.goals import Goals as Goals
    from rlds_cli.loader.fields.goals import ReturnToGo as ReturnToGo
    from rlds_cli.loader.loader import Loader as Loader
    from rlds_cli.loader.mixture.mixture import Anneal as Anneal
    from rlds_cli.loader.mixture.mixture import Member as Member
    from rlds_cli.loader.mixture.mixture import Mixture as Mixture
    from rlds_cli.loader.numbered import reader as reader
    from rlds_cli.loader.samplers import Sampler as Sampler
    from rlds_cli.loader.samplers.pairs import Pairs as Pairs
    from rlds_cli.loader.samplers.prioritized import Prioritized as Prioritized
    from rlds_cli.loader.samplers.uniform import Sequential as Sequential
    from rlds_cli.loader.samplers.uniform import Shuffled as Shuffled
    from rlds_cli.loader.samplers.uniform import Uniform as Uniform
    from rlds_cli.loader.samplers.weighted import Weighted as Weighted
    from rlds_cli.loader.stats import LoaderStats as LoaderStats
    from rlds_cli.loader.storage.check import check_packed as check_packed
    from rlds_cli.loader.storage.frame_cache import discard_frames as discard_frames
    from rlds_cli.loader.storage.packed import lock_of_packed as lock_of_packed
    from rlds_cli.loader.waiting import Live as Live
    from rlds_cli.loader.windows.offsets import Offsets as Offsets
    from rlds_cli.loader.windows.windows import Episode as Episode
    from rlds_cli.loader.windows.windows import Slice as Slice
    from rlds_cli.loader.windows.windows import Transition as Transition
    from rlds_cli.loader.windows.windows import Window as Window

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
    "check_packed",
    "discard_frames",
    "lock_of_packed",
    "measure",
    "reader",
]

lazy(
    __name__,
    {
        ".dataset.batch": "Batch",
        ".dataset.transforms": "Clip Metres Normalize Resize Reward ToFloat",
        "bench": "measure",
        "fields.goals": "Goals ReturnToGo",
        "loader": "Loader",
        "mixture.mixture": "Anneal Member Mixture",
        "numbered": "reader",
        "samplers": "Sampler",
        "samplers.pairs": "Pairs",
        "samplers.prioritized": "Prioritized",
        "samplers.uniform": "Sequential Shuffled Uniform",
        "samplers.weighted": "Weighted",
        "stats": "LoaderStats",
        "storage.check": "check_packed",
        "storage.frame_cache": "discard_frames",
        "storage.packed": "lock_of_packed",
        "waiting": "Live",
        "windows.offsets": "Offsets",
        "windows.windows": "Episode Slice Transition Window",
    },
)
