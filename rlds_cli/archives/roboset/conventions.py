"""What a row of a trial means: RoboHive's recorders disagree, and their files do not say.

::

    trace   (o_t, a_t) with the reward, done and infos on arrival at o_t; a last row with a NaN action: T = h - 1 steps,
            T+1 observations and infos; next/reward of step t is row t+1's
    path    (o_t, a_t, r_t, done_t) and the infos after the step: T = h, no final observation, next/info/...
    demo    (o_t, a_t, r_t, done_t) and the infos before it: T = h, no final observation, info/...

A trial whose last action is NaN is a trace. Else ``env_infos/obs_dict``, which holds the pieces of an observation,
equals the observations of the row after (path) or of the same row (demo).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import h5py
import numpy as np

from rlds_cli.archives.hdf5_rows import components
from rlds_cli.archives.roboset.trials import Trial
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import Array, Note

TRACE, PATH, DEMO = "trace", "path", "demo"

PIECES = "info/obs_dict/"
TRIALS = 8
ROWS = 256
MAX_COMPONENTS = 1024


def of_file(f: h5py.File, trials: Sequence[Trial]) -> tuple[str | None, list[str]]:
    """The convention of one file, None where its content does not decide; and the trials of a trace that are none."""
    ends = {t.group: _ends_without_action(f[t.group], t) for t in trials if t.rows}
    if ends and sum(ends.values()) * 2 >= len(ends):
        return TRACE, [group for group, without in ends.items() if not without]
    same = after = 0
    for trial in [t for t in trials if t.rows >= 3][:TRIALS]:
        here = _votes(f[trial.group], trial)
        same, after = same + here[0], after + here[1]
    return None if same == after else DEMO if same > after else PATH, []


def settle(found: Mapping[str, str | None], *, infos: bool) -> tuple[dict[str, str], list[Note]]:
    """One reading for all files of an archive, by file, with notes where it is a guess.

    Files that do not say follow those that do, else are read as ``demo``. Traces and demos go together, for what a
    demo lacks is the last row only; paths with infos do not, for theirs belong to the next row.

    Raises
    ------
    UnknownLayout
        The files follow conventions that no one schema holds.
    """
    said = sorted({c for c in found.values() if c})
    if infos and PATH in said and len(said) > 1:
        listed = ", ".join(f"{name}: {c}" for name, c in found.items() if c)
        raise UnknownLayout(
            f"the files lay out their rows in ways that do not go together: {listed}.",
            hint="import them apart, under names of their own",
        )
    guess = next((c for c in (PATH, DEMO) if c in said), DEMO)
    notes = [
        Note(
            "row-convention",
            f"nothing tells what a row means: read as {guess} (infos of row t are known at t)",
            1,
            name,
        )
        for name, c in found.items()
        if c is None and infos
    ]
    return {name: c or guess for name, c in found.items()}, notes


def _ends_without_action(group: h5py.Group, trial: Trial) -> bool:
    actions = [key for field, key in trial.columns.items() if field == "action" or field.startswith("action/")]
    last = [np.asarray(group[key][trial.rows - 1]) for key in actions]
    return all(a.dtype.kind == "f" and a.size > 0 and bool(np.isnan(a).all()) for a in last)


def _votes(group: h5py.Group, trial: Trial) -> tuple[int, int]:
    """How many components of obs_dict equal one of the observations: in the same row, in the row after."""
    seen = [_head(group, key) for field, key in trial.columns.items() if field.split("/", 1)[0] == "observation"]
    wide = [s for s in seen if s is not None]
    pieces = [_head(group, key) for field, key in trial.columns.items() if field.startswith(PIECES)]
    if not wide:
        return 0, 0
    observed, same, after = np.concatenate(wide, axis=1), 0, 0
    # A constant component equals itself in any row, and tells nothing.
    for piece in (p.astype(observed.dtype) for p in pieces if p is not None):
        for column in piece[:, (piece != piece[0]).any(axis=0)].T:
            same += bool((observed == column[:, None]).all(axis=0).any())
            after += bool((observed[1:] == column[:-1, None]).all(axis=0).any())
    return same, after


def _head(group: h5py.Group, key: str) -> Array | None:
    d = group[key]
    if d.dtype.kind not in "biuf" or int(np.prod(d.shape[1:], dtype=np.int64)) > MAX_COMPONENTS:
        return None
    return components(d[:ROWS])
