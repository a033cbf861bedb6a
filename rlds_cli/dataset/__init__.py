"""Datasets as users open them: their episodes, rows and batches, selections and changes of them.

`open_dataset` gives a `Dataset`, whose methods are for users. `Rows` reads what is stored of its episodes, end to end,
a `Batch` holds values by nested names, and `Tasks` and `StepTasks` say what episodes are about in words. `compact` and
`remake` write versions that no method makes, by an `Outcome`. A `ProvenanceStep` and a `Version` say how data came to
be, and `ReadAs` how a file did. Transforms (`Resize`, `Normalize`, ...) change fields of batches and of stored steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.dataset.batch import ROOT_FLAGS as ROOT_FLAGS
    from rlds_cli.dataset.batch import Batch as Batch
    from rlds_cli.dataset.batch import register as register
    from rlds_cli.dataset.compaction import compact as compact
    from rlds_cli.dataset.datasets import ArrayLike as ArrayLike
    from rlds_cli.dataset.datasets import Dataset as Dataset
    from rlds_cli.dataset.datasets import open_dataset as open_dataset
    from rlds_cli.dataset.editing import Outcome as Outcome
    from rlds_cli.dataset.editing import append_step as append_step
    from rlds_cli.dataset.editing import remake as remake
    from rlds_cli.dataset.environments import known_spaces as known_spaces
    from rlds_cli.dataset.environments import make_env as make_env
    from rlds_cli.dataset.expressions import expression_of as expression_of
    from rlds_cli.dataset.history import ProvenanceStep as ProvenanceStep
    from rlds_cli.dataset.history import Version as Version
    from rlds_cli.dataset.history import named_versions as named_versions
    from rlds_cli.dataset.history import version_of as version_of
    from rlds_cli.dataset.history import versions_of as versions_of
    from rlds_cli.dataset.layouts import d4rl_fields as d4rl_fields
    from rlds_cli.dataset.layouts import d4rl_steps as d4rl_steps
    from rlds_cli.dataset.opening import listed_at as listed_at
    from rlds_cli.dataset.opening import remote_address as remote_address
    from rlds_cli.dataset.provenance import EpisodeOrigins as EpisodeOrigins
    from rlds_cli.dataset.provenance import ReadAs as ReadAs
    from rlds_cli.dataset.provenance import source_of_step as source_of_step
    from rlds_cli.dataset.provenance import sources_for_another as sources_for_another
    from rlds_cli.dataset.rewards import other_rewards as other_rewards
    from rlds_cli.dataset.rows import Rows as Rows
    from rlds_cli.dataset.scores import reference_scores as reference_scores
    from rlds_cli.dataset.selection import matching as matching
    from rlds_cli.dataset.tasks import StepTasks as StepTasks
    from rlds_cli.dataset.tasks import Tasks as Tasks
    from rlds_cli.dataset.transforms import MOST_CHANNELS as MOST_CHANNELS
    from rlds_cli.dataset.transforms import Clip as Clip
    from rlds_cli.dataset.transforms import Elementwise as Elementwise
    from rlds_cli.dataset.transforms import Metres as Metres
    from rlds_cli.dataset.transforms import Normalize as Normalize
    from rlds_cli.dataset.transforms import Resize as Resize
    from rlds_cli.dataset.transforms import Reward as Reward
    from rlds_cli.dataset.transforms import ToFloat as ToFloat
    from rlds_cli.dataset.transforms import stands_for as stands_for

__all__ = [
    "ArrayLike",
    "Batch",
    "Clip",
    "Dataset",
    "Elementwise",
    "EpisodeOrigins",
    "MOST_CHANNELS",
    "Metres",
    "Normalize",
    "Outcome",
    "ProvenanceStep",
    "ROOT_FLAGS",
    "ReadAs",
    "Resize",
    "Reward",
    "Rows",
    "StepTasks",
    "Tasks",
    "ToFloat",
    "Version",
    "append_step",
    "compact",
    "d4rl_fields",
    "d4rl_steps",
    "expression_of",
    "known_spaces",
    "listed_at",
    "make_env",
    "matching",
    "named_versions",
    "open_dataset",
    "other_rewards",
    "reference_scores",
    "register",
    "remake",
    "remote_address",
    "source_of_step",
    "sources_for_another",
    "stands_for",
    "version_of",
    "versions_of",
]

lazy(
    __name__,
    {
        "batch": "ROOT_FLAGS Batch register",
        "compaction": "compact",
        "datasets": "ArrayLike Dataset open_dataset",
        "editing": "Outcome append_step remake",
        "environments": "known_spaces make_env",
        "expressions": "expression_of",
        "history": "ProvenanceStep Version named_versions version_of versions_of",
        "layouts": "d4rl_fields d4rl_steps",
        "opening": "listed_at remote_address",
        "provenance": "EpisodeOrigins ReadAs source_of_step sources_for_another",
        "rewards": "other_rewards",
        "rows": "Rows",
        "scores": "reference_scores",
        "selection": "matching",
        "tasks": "StepTasks Tasks",
        "transforms": "MOST_CHANNELS Clip Elementwise Metres Normalize Resize Reward ToFloat stands_for",
    },
)
