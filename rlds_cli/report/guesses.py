"""Which array of an unknown file may be which field, by names and shapes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

from rlds_cli.report.trees import Node, Tree

# In the order of preference.
NAMES: Mapping[str, tuple[str, ...]] = {
    "observation": (
        *("observation", "observations", "obs", "state", "states", "s", "q", "qpos", "x", "features", "proprio"),
        *("joint_pos", "joint_positions", "image", "images", "pixels", "frames"),
    ),
    "action": (
        "action",
        "actions",
        "act",
        "acts",
        "a",
        "cmd",
        "command",
        "commands",
        "ctrl",
        "control",
        "controls",
        "u",
    ),
    "next/reward": ("reward", "rewards", "rew", "rews", "r"),
    "next/terminated": (
        *("terminated", "terminal", "terminals", "termination", "terminations", "is_terminal"),
        *("done", "dones", "d", "success", "successes", "is_success"),
    ),
    "next/truncated": ("truncated", "truncation", "truncations", "timeout", "timeouts", "time_limit"),
    "next/observation": (
        "next_observation",
        "next_observations",
        "next_obs",
        "next_state",
        "next_states",
        "s2",
        "obs2",
    ),
}
EPISODE = ("episode", "episode_id", "episode_index", "episodes", "traj", "traj_id", "trajectory", "trial", "demo")
_MAX_DEPTH = 3
_SCALARS = ("next/reward", "next/terminated", "next/truncated")
_SHORT = {"next/terminated": "terminated", "next/truncated": "truncated"}


def misses(found: Tree) -> str | None:
    """Why no reader of HDF5 takes a file: what each of them looks for."""
    if found.kind != "hdf5":
        return None
    tops = {n.name.partition("/")[0] for n in found.nodes}
    d4rl = " and ".join(f'"{key}"' for key in ("observations", "actions") if key not in tops)
    missing = [f"d4rl: no {d4rl}"] if d4rl else []
    return "; ".join([*missing, 'minari: no "episode_<k>"', 'roboset: no "Trial<k>"', 'robomimic: no "data/demo_<k>"'])


def guess_fields(nodes: Sequence[Node]) -> dict[str, str]:
    """TED name -> array, for those arrays that have one row per step; empty where no action or observation shows.

    Where groups are episodes, the arrays of all of them: ``data/*/cmd``.
    """
    level = episode_groups(nodes)
    if level is None:
        return _guess(nodes)
    pattern, groups = level
    first = next(iter(groups.values()))
    return {field: f"{pattern}/{key}" for field, key in _guess(first, final=True).items()}


def episode_groups(nodes: Sequence[Node]) -> tuple[str, dict[str, list[Node]]] | None:
    """The level at which several groups hold the same arrays, and the arrays below each, by their names there."""
    for depth in range(_MAX_DEPTH):
        parents = dict.fromkeys(tuple(p[:depth]) for n in nodes if len(p := n.name.split("/")) > depth + 1)
        for parent in parents:
            groups: dict[str, list[Node]] = {}
            for n in nodes:
                parts = n.name.split("/")
                if tuple(parts[:depth]) == parent and len(parts) > depth + 1:
                    local = replace(n, name="/".join(parts[depth + 1 :]))
                    groups.setdefault("/".join(parts[: depth + 1]), []).append(local)
            same = Counter(frozenset(n.name for n in found) for found in groups.values())
            names, count = max(same.items(), key=lambda item: item[1], default=(frozenset(), 0))
            if count > 1 and _guess(next(g for g in groups.values() if {n.name for n in g} == names), final=True):
                alike = {g: found for g, found in groups.items() if {n.name for n in found} == names}
                return "/".join([*parent, "*"]), alike
    return None


def _guess(nodes: Sequence[Node], *, final: bool = False) -> dict[str, str]:
    """``final``: observations may have a row more than the others."""
    rows = _common_rows(nodes)
    found: dict[str, str] = {}
    for field, names in NAMES.items():
        allowed = (rows, rows + 1, rows - 1) if final and field in ("observation", "action") else (rows,)
        steps = [n for n in nodes if n.shape and n.shape[0] in allowed]
        fitting = [n for n in steps if n.name not in found.values() and _fits(n, field)]
        best = _best(fitting, names)
        if best:
            found[field] = best
    return found if {"observation", "action"} <= set(found) else {}


def _common_rows(nodes: Sequence[Node]) -> int:
    counts = Counter(n.shape[0] for n in nodes if n.shape)
    return max(counts, key=lambda rows: (counts[rows], rows), default=0)


def _fits(node: Node, field: str) -> bool:
    assert node.shape is not None
    numeric = node.dtype.startswith(("int", "uint", "float", "bool", "complex"))
    return numeric and (field not in _SCALARS or node.shape[1:] in ((), (1,)))


def _best(nodes: Iterable[Node], names: Sequence[str]) -> str | None:
    ranked = [(score, n.name) for n in nodes if (score := _score(n.name, names)) is not None]
    return min(ranked)[1] if ranked else None


def _score(name: str, names: Sequence[str]) -> tuple[int, int, int] | None:
    """How well a path goes with a field: its last component, else one above; then preference; then depth."""
    parts = name.lower().split("/")
    for above, part in enumerate(reversed(parts)):
        if part in names:
            return (min(above, 1), names.index(part), len(parts))
    return None


def suggested_command(path: Path, found: Tree, fields: Mapping[str, str]) -> str | None:
    """The command that may read the file; None where nothing shows."""
    id = f"local/{name_for(path)}"
    if found.kind in ("hdf5", "npz", "parquet", "csv", "jsonl") and fields:
        grouped = any("/*/" in key or key.startswith("*/") for key in fields.values())
        ends = [f"--episodes-by field:{key}"] if (key := _episode_key(found.nodes)) else []
        if grouped:
            ends = []
        elif not ends and not {"next/terminated", "next/truncated"} & set(fields):
            ends = ["--episodes-by jumps"]
        maps = [f"--map {_SHORT.get(k, k)}={quote(v)}" for k, v in fields.items()]
        return " ".join([f"rlds import {quote(str(path))} --as {id}", *maps, *ends, "--dry-run"])
    return None


def name_for(path: Path) -> str:
    """A name for a dataset made of a file."""
    return re.sub(r"[^a-z0-9_-]+", "-", path.stem.lower()).strip("-") or "mine"


def _episode_key(nodes: Sequence[Node]) -> str | None:
    rows = _common_rows(nodes)
    columns = [n for n in nodes if n.shape and n.shape[0] == rows and n.shape[1:] in ((), (1,)) and "int" in n.dtype]
    return _best(columns, EPISODE)
