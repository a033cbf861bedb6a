"""The TED schema of the store: fields, placements, rows, episodes.

An episode of T steps owns T+1 consecutive rows. Row t holds the ``observation`` at t, the ``action`` taken, and its
results (``next/reward``). The last row holds the final observation, and zeros elsewhere::

    row            0     1     2     3        T = 3 steps
    observation    o0    o1    o2    o3       placement "both": next/observation[t] is row t+1
    action         a0    a1    a2    0        placement "root"
    next/reward    r0    r1    r2    0        placement "next": result of the action of this row
    last           .     .     .     x

If the archive has no final observation, the last row repeats the one before in every field placed "both", and the
episode table has ``num_observed = T``.

`chunks` lays out episodes in this way, in chunks of bounded size; their columns may be in memory, or read when their
rows come (`LazyColumn`). `lay_out` makes one chunk of whole episodes. Readers that fill the rows of
several episodes at once share them out with `pieces`.

`Subtasks` are ranges of the steps of an episode with a text each. `Space` is a space of Gymnasium by its description.
Episodes of users are checked in steps: `flatten` names their fields, `check_episode` compares lengths and completes the
flags, `infer_schema` and `fit_columns` give them dtypes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.base.array_types import Array
    from rlds_cli.ted.columns import Column, EncodedFrames, LazyColumn, Scalar, Text, VideoFrames
    from rlds_cli.ted.computed import COMPUTED, EPISODE_COLUMNS, Computed
    from rlds_cli.ted.episodes import (
        Flat,
        Value,
        check_episode,
        count_steps,
        field_of,
        fit_columns,
        flag_per_step,
        flatten,
        infer_schema,
        is_bytes,
        is_single,
        owned,
        parts_of,
    )
    from rlds_cli.ted.fields import (
        CUT,
        END_NAMES,
        FLAGS,
        REWARD,
        TASK,
        TASK_AT,
        TERMINATED,
        TRUNCATED,
        UNFIT,
        VIDEO,
        Field,
        Kind,
        Placement,
        flags,
    )
    from rlds_cli.ted.layout import (
        CHUNK_BYTES,
        CHUNK_ROWS,
        Chunk,
        EpisodeData,
        EpisodePiece,
        Part,
        chunks,
        lay_out,
        pieces,
    )
    from rlds_cli.ted.notes import Note
    from rlds_cli.ted.spaces import Space
    from rlds_cli.ted.subtasks import Subtasks
    from rlds_cli.ted.tables import EpisodeTable

__all__ = [
    "Flat",
    "Value",
    "check_episode",
    "count_steps",
    "field_of",
    "fit_columns",
    "flag_per_step",
    "flatten",
    "infer_schema",
    "is_bytes",
    "is_single",
    "owned",
    "parts_of",
    "Array",
    "CHUNK_BYTES",
    "CHUNK_ROWS",
    "COMPUTED",
    "CUT",
    "Chunk",
    "Column",
    "Computed",
    "END_NAMES",
    "EPISODE_COLUMNS",
    "EncodedFrames",
    "EpisodeData",
    "EpisodePiece",
    "EpisodeTable",
    "FLAGS",
    "Field",
    "Kind",
    "LazyColumn",
    "Note",
    "Part",
    "Placement",
    "REWARD",
    "Scalar",
    "Space",
    "Subtasks",
    "TASK",
    "TASK_AT",
    "TERMINATED",
    "TRUNCATED",
    "Text",
    "UNFIT",
    "VIDEO",
    "VideoFrames",
    "chunks",
    "flags",
    "lay_out",
    "pieces",
]

lazy(
    __name__,
    {
        ".base.array_types": "Array",
        "fields": (
            "CUT END_NAMES FLAGS Field Kind Placement REWARD TASK TASK_AT TERMINATED TRUNCATED UNFIT VIDEO flags"
        ),
        "computed": "COMPUTED Computed EPISODE_COLUMNS",
        "columns": "Column EncodedFrames LazyColumn Scalar Text VideoFrames",
        "episodes": (
            "Flat Value check_episode count_steps field_of fit_columns flag_per_step flatten infer_schema is_bytes "
            "is_single owned parts_of"
        ),
        "layout": "CHUNK_BYTES CHUNK_ROWS Chunk EpisodeData EpisodePiece Part chunks lay_out pieces",
        "notes": "Note",
        "tables": "EpisodeTable",
        "spaces": "Space",
        "subtasks": "Subtasks",
    },
)
