"""Flat files of anybody's making: npz, Parquet or HDF5, one row a step, under the names that people use.

npz and Parquet are recognised by these names; HDF5 files that are not D4RL's are read when asked for (``--map``).

Row t holds the observation, the action taken there, and its reward and flags, as in D4RL; so do all rules for ends and
for next observations (``rlds_cli.archives.d4rl``). What this reader adds are the formats and the names::

    observation       observations, observation, obs, states, state
    action            actions, action, acts
    next/reward       rewards, reward, rews
    next/terminated   terminals, terminal, terminations, terminated, dones, done, and masks, where 0 means so
    next/truncated    timeouts, truncations, truncated, truncateds
    next/observation  next_observations, next_observation, next_obs, next_states
    ends              episode_ends, or episode_lengths: a list of them, not one value a row; else, without flags,
                      where episode, episode_id, episode_index, traj, traj_id, trajectory or trial changes

Where there are ``masks``, ``terminals`` say where trajectories end, and not that nothing follows (jaxrl, OGBench).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlds_cli.archives import Archive, Part, Plan, d4rl
from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.archives.d4rl import layout
from rlds_cli.archives.npz import is_npz
from rlds_cli.archives.parquet import is_parquet
from rlds_cli.archives.tables import ENDS, NOT, is_flat, open_flat
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, Array, Chunk

VERSION = 1

NAMES: Mapping[str, tuple[str, ...]] = {
    "observation": ("observations", "observation", "obs", "states", "state"),
    "action": ("actions", "action", "acts"),
    REWARD: ("rewards", "reward", "rews"),
    FLAGS[0]: ("terminals", "terminal", "terminations", "terminated", "dones", "done"),
    FLAGS[1]: ("timeouts", "truncations", "truncated", "truncateds"),
    "next/observation": ("next_observations", "next_observation", "next_obs", "next_states"),
}
MASKS = ("masks", "mask")
NUMBERS = ("episode", "episode_id", "episode_index", "traj", "traj_id", "trajectory", "trial")
LISTS = ("episode_ends", "episode_lengths", "traj_ends", "traj_lengths")
SHORT_NAMES = {"reward": REWARD, "terminated": FLAGS[0], "truncated": FLAGS[1]}


def recognise(paths: Sequence[Path]) -> str | None:
    """What the columns are, in one line, or None where no observations or actions show."""
    if not paths or not all(is_npz(p) or is_parquet(p) for p in paths):
        return None
    with open_flat(paths[0]) as table:
        found, _ = _meanings({n: c.shape for n, c in table.columns.items()}, {})
        if not {"observation", "action"} <= set(found):
            return None
        rows = next((c.shape[0] for n, c in table.columns.items() if c.shape and _is_below(n, found["action"])), 0)
        seen = next((c.shape[0] for n, c in table.columns.items() if c.shape and _is_below(n, found["observation"])), 0)
        if seen != rows:  # an episode with its final observation, most likely: rlds_cli.create takes those
            return None
    kind = "npz" if is_npz(paths[0]) else "Parquet"
    files = f"{len(paths)} {kind} files, the first with " if len(paths) > 1 else f"{kind}, "
    return f"columns of rows: {files}{rows:,} rows; " + ", ".join(found.values())


def plan(archive: Archive) -> Plan:
    """Fields, parts and episode rule, as of D4RL's layout. Reads the flags.

    Raises
    ------
    UnknownLayout, CorruptArchive
        As ``rlds_cli.archives.d4rl.plan`` raises them.
    """
    if not all(map(is_flat, archive.files)):
        odd = next(p for p in archive.files if not is_flat(p))
        raise UnknownLayout(f"{odd.name} is neither npz nor Parquet nor HDF5.", hint=f"rlds inspect {odd}")
    with open_flat(archive.files[0]) as table:
        chosen = {SHORT_NAMES.get(k, k): v for k, v in archive.fields.items()}
        found, ends = _meanings({n: c.shape for n, c in table.columns.items()}, chosen)
    asked = replace(archive, fields=found, episodes_by=archive.episodes_by or ends)
    made = d4rl.plan(asked)
    return replace(made, reader="plain", facts={**made.facts, "fields": found})


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """The rows of one part, in chunks of bounded size; raises as ``rlds_cli.archives.d4rl.read`` does."""
    return d4rl.read(plan, part)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Columns that are not one value a row, and attributes."""
    return d4rl.metadata(plan)


def _meanings(columns: Mapping[str, Any], chosen: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """Field -> key, chosen ones first; and the rule for ends that a list of them makes."""
    by_name = {n.split("/", 1)[0].lower(): n.split("/", 1)[0] for n in reversed(list(columns))}
    found: dict[str, str] = {}
    ends = None
    taken = set(chosen.values())
    for field, names in NAMES.items():
        if any(k == field or k.startswith(field + "/") for k in chosen):
            continue
        key = next((by_name[n] for n in names if n in by_name and by_name[n] not in taken), None)
        if key is not None:
            found[field] = key
    masks = next((by_name[n] for n in MASKS if n in by_name and by_name[n] not in taken), None)
    if masks and FLAGS[0] not in chosen:
        if FLAGS[0] in found and FLAGS[1] not in {*found, *chosen}:
            found[FLAGS[1]] = found[FLAGS[0]]
        found[FLAGS[0]] = NOT + masks
        ends = "timeouts" if FLAGS[1] in {*found, *chosen} else None
    lists = next((by_name[n] for n in LISTS if n in by_name and by_name[n] not in taken), None)
    if lists:
        return found | dict(chosen), f"field:{ENDS}{lists}"
    number = next((by_name[n] for n in NUMBERS if n in by_name and not set(FLAGS) & {*found, *chosen}), None)
    return found | dict(chosen), f"field:{number}" if number else ends


def _is_below(name: str, key: str) -> bool:
    return name == key or name.startswith(key + "/")


def cells(spot: Spot) -> Iterator[Cell]:
    """What stands in the row of a step, and in the row after; for `rlds verify --trace`."""
    row = spot.first + spot.step
    with open_flat(spot.file, check=False) as table:
        found = layout.of(table, spot.name, spot.facts["fields"])
        keys = {**found.columns, **{f"next/{n}": key for n, key in found.next_columns.items()}}
        if found.terminals:
            keys[FLAGS[0]] = found.terminals
        with table.rows(set(keys.values())) as rows:
            seen = rows.read(row, row + 2)
    for name, key in keys.items():
        yield Cell(name, f"{key}[{row}]", bool(seen[key][0]) if name == FLAGS[0] else seen[key][0])
        if name.split("/")[0] == "observation" and f"next/{name}" not in keys and not spot.is_last:
            yield Cell(f"next/{name}", f"{key}[{row + 1}]", seen[key][1])
