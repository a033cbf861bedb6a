"""Make a new dataset by applying a function to every episode, batch or step of another.

>>> from rlds_cli import preprocess
>>> ds = preprocess.run("d4rl/hopper-medium-v2", "my_prep:norm", jobs=4)  # doctest: +SKIP

`run` does all of it, `run_shard` a part on one of several machines, whose parts `finish` joins; `state` says how far a
job is, and `attempt` what a function would change. `find_function` is that of a name, with its declared
`unit`. A `RecordedStep` is work that was done: what it needs, and how it is done again.
`ranges_of` are the steps that a function of an episode chooses.

The built-in functions can be passed by name, as in ``preprocess.run(ds, "normalise")``, or as functions, and be called;
`catalogue` lists them.

`running` and `shards` lead through a run: `task` describes it, `plan` plans the fields, `job` divides it, `workers` do
the parts, `completing` keeps those of an earlier plan, `publish` ends it, and `reuse` takes over earlier results. A
function is found by `functions`, hashed with what it reads by `sources`, called by `calling`, on whole `episodes` or on
`steps`; `reading`, `lazy`, `forms` and `stacking` make its arguments and take its results. `builtin` has ours.
"""

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.preprocess.builtin import catalogue as catalogue
    from rlds_cli.preprocess.builtin.fields import cast as cast
    from rlds_cli.preprocess.builtin.fields import concatenate as concatenate
    from rlds_cli.preprocess.builtin.fields import normalise as normalise
    from rlds_cli.preprocess.builtin.fields import rename_fields as rename_fields
    from rlds_cli.preprocess.builtin.fields import select_episodes as select_episodes
    from rlds_cli.preprocess.builtin.fields import select_fields as select_fields
    from rlds_cli.preprocess.builtin.fields import top_episodes as top_episodes
    from rlds_cli.preprocess.builtin.frames import crop as crop
    from rlds_cli.preprocess.builtin.frames import encode as encode
    from rlds_cli.preprocess.builtin.frames import encode_frames as encode_frames
    from rlds_cli.preprocess.builtin.frames import encode_video as encode_video
    from rlds_cli.preprocess.builtin.frames import grayscale as grayscale
    from rlds_cli.preprocess.builtin.frames import resize as resize
    from rlds_cli.preprocess.builtin.rewards import ogbench_task as ogbench_task
    from rlds_cli.preprocess.builtin.rewards import return_to_go as return_to_go
    from rlds_cli.preprocess.builtin.rewards import reward_from_goal as reward_from_goal
    from rlds_cli.preprocess.builtin.rewards import scale_reward as scale_reward
    from rlds_cli.preprocess.builtin.rewards import sparsify_reward as sparsify_reward
    from rlds_cli.preprocess.functions import find_function as find_function
    from rlds_cli.preprocess.functions import unit as unit
    from rlds_cli.preprocess.job import state as state
    from rlds_cli.preprocess.ranges import ranges_of as ranges_of
    from rlds_cli.preprocess.recorded import RecordedStep as RecordedStep
    from rlds_cli.preprocess.running import run as run
    from rlds_cli.preprocess.shards import ShardReport as ShardReport
    from rlds_cli.preprocess.shards import finish as finish
    from rlds_cli.preprocess.shards import run_shard as run_shard
    from rlds_cli.preprocess.trial import Report as Report
    from rlds_cli.preprocess.trial import attempt as attempt

__all__ = [
    "RecordedStep",
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
    "find_function",
    "grayscale",
    "normalise",
    "ogbench_task",
    "ranges_of",
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

lazy(
    __name__,
    {
        "builtin": "catalogue",
        "builtin.fields": "cast concatenate normalise rename_fields select_episodes select_fields top_episodes",
        "builtin.frames": "crop encode encode_frames encode_video grayscale resize",
        "builtin.rewards": "ogbench_task return_to_go reward_from_goal scale_reward sparsify_reward",
        "functions": "find_function unit",
        "job": "state",
        "ranges": "ranges_of",
        "recorded": "RecordedStep",
        "running": "run",
        "shards": "ShardReport finish run_shard",
        "trial": "Report attempt",
    },
)
