"""Make a new dataset by applying a function to every episode, batch or step of another.

>>> from rlds_cli import preprocess
>>> ds = preprocess.run("d4rl/hopper-medium-v2", "my_prep:norm", jobs=4)  # doctest: +SKIP

The built-in functions can be passed by name, as in ``preprocess.run(ds, "normalise")``, or as functions, and be called.
"""

from typing import TYPE_CHECKING, Any

from rlds_cli.preprocess.builtin import MODULES as _BUILTIN
from rlds_cli.preprocess.builtin import catalogue as catalogue
from rlds_cli.preprocess.builtin import get as _get
from rlds_cli.preprocess.functions import unit as unit
from rlds_cli.preprocess.job import state as state
from rlds_cli.preprocess.running import run as run
from rlds_cli.preprocess.shards import ShardReport as ShardReport
from rlds_cli.preprocess.shards import finish as finish
from rlds_cli.preprocess.shards import run_shard as run_shard
from rlds_cli.preprocess.trial import TrialReport as Report
from rlds_cli.preprocess.trial import attempt as attempt
from rlds_cli.store.frames import encode_frames as encode_frames
from rlds_cli.store.video_encoding import encode_video as encode_video

if TYPE_CHECKING:
    from rlds_cli.preprocess.builtin.fields import cast as cast
    from rlds_cli.preprocess.builtin.fields import concatenate as concatenate
    from rlds_cli.preprocess.builtin.fields import normalise as normalise
    from rlds_cli.preprocess.builtin.fields import rename_fields as rename_fields
    from rlds_cli.preprocess.builtin.fields import select_episodes as select_episodes
    from rlds_cli.preprocess.builtin.fields import select_fields as select_fields
    from rlds_cli.preprocess.builtin.fields import top_episodes as top_episodes
    from rlds_cli.preprocess.builtin.frames import crop as crop
    from rlds_cli.preprocess.builtin.frames import encode as encode
    from rlds_cli.preprocess.builtin.frames import grayscale as grayscale
    from rlds_cli.preprocess.builtin.frames import resize as resize
    from rlds_cli.preprocess.builtin.rewards import ogbench_task as ogbench_task
    from rlds_cli.preprocess.builtin.rewards import return_to_go as return_to_go
    from rlds_cli.preprocess.builtin.rewards import reward_from_goal as reward_from_goal
    from rlds_cli.preprocess.builtin.rewards import scale_reward as scale_reward
    from rlds_cli.preprocess.builtin.rewards import sparsify_reward as sparsify_reward

__all__ = [
    "Report",
    "ShardReport",
    "attempt",
    "cast",
    "catalogue",
    "concatenate",
    "crop",
    "encode",
    "encode_frames",
    "encode_video",
    "finish",
    "grayscale",
    "normalise",
    "ogbench_task",
    "rename_fields",
    "resize",
    "return_to_go",
    "reward_from_goal",
    "run",
    "run_shard",
    "scale_reward",
    "select_episodes",
    "select_fields",
    "sparsify_reward",
    "state",
    "top_episodes",
    "unit",
]


def __getattr__(name: str) -> Any:
    function = _get(name) if name in _BUILTIN else None  # imported when used: workers start sooner
    if function is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return function
