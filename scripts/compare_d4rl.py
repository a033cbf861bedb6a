"""Count what D4RL's helper functions get wrong; prints the table of ``docs/coming-from/d4rl.md``.

Usage: python scripts/compare_d4rl.py ID|FILE[=NAME] ...        NAME: D4RL's environment, for files without timeouts

``rlds_cli.interop.d4rl`` gives what D4RL's own functions give. Here its input is not data but the numbers of their
rows, so that what comes out tells which rows were kept, and which was taken for the next one.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import rlds_cli
from rlds_cli import Dataset
from rlds_cli.base.array_types import Array, BoolArray
from rlds_cli.interop import d4rl
from rlds_cli.make.importing import import_files

TRANSITIONS = {
    "rows": "rows",
    "missing": "transitions left out",
    "inside": "of them inside an episode",
    "foreign": "rows with the next observation of another episode",
    "bootstrapped": "of them not terminal: a target would bootstrap from it",
}
SECTIONS = {
    "": {"steps": "steps", "episodes": "episodes", "transitions": "transitions with `fixed=True`"},
    "`qlearning_dataset`": TRANSITIONS,
    "`qlearning_dataset(terminate_on_end=True)`": TRANSITIONS,
    "`sequence_dataset`": {
        "given": "episodes",
        "false": "of them ending where none ends",
        "steps_missing": "steps left out",
    },
}


def counts(ds: Dataset, env: str | None = None) -> list[dict[str, int]]:
    """The counts of one dataset, by the names in ``SECTIONS``; ``env`` is whose time limit counts."""
    columns = ds.to_numpy("d4rl")
    numbers = np.arange(ds.num_steps, dtype=np.float32)[:, None]
    numbered = {k: columns[k] for k in ("rewards", "terminals", "timeouts") if k in columns}
    numbered |= {"observations": numbers, "actions": numbers}
    last = np.zeros(ds.num_steps, bool)
    last[np.cumsum(ds.episodes["length"]) - 1] = True
    whole = {"steps": ds.num_steps, "episodes": ds.num_episodes, "transitions": ds.num_transitions}
    asked = env or ds.id
    return [
        whole,
        _transitions(d4rl.qlearning_dataset(asked, numbered), last, ds),
        _transitions(d4rl.qlearning_dataset(asked, numbered, terminate_on_end=True), last, ds),
        _sequences([e["observations"][:, 0].astype(np.int64) for e in d4rl.sequence_dataset(asked, numbered)], last),
    ]


def _transitions(made: Mapping[str, Array], last: BoolArray, ds: Dataset) -> dict[str, int]:
    row = made["observations"][:, 0].astype(np.int64)
    foreign = last[row]  # D4RL takes the row after
    usable = np.ones(len(last), bool)
    usable[np.flatnonzero(last)[ds.episodes["num_transitions"] < ds.episodes["length"]]] = False
    usable[row] = False
    return {
        "rows": len(row),
        "missing": int(usable.sum()),
        "inside": int((usable & ~last).sum()),
        "foreign": int(foreign.sum()),
        "bootstrapped": int((foreign & ~made["terminals"]).sum()),
    }


def _sequences(episodes: Sequence[Array], last: BoolArray) -> dict[str, int]:
    return {
        "given": len(episodes),
        "false": sum(not last[e[-1]] for e in episodes),
        "steps_missing": len(last) - sum(map(len, episodes)),
    }


def table(found: Mapping[str, list[dict[str, int]]]) -> list[str]:
    """Lines of Markdown, a column for each dataset."""
    lines = [f"| | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    for i, (section, labels) in enumerate(SECTIONS.items()):
        if section:
            lines.append(f"| **{section}** |{' |' * len(found)}")
        for key, label in labels.items():
            lines.append(f"| {label} | {' | '.join(f'{of[i][key]:,}' for of in found.values())} |")
    return lines


def open_or_import(ref: str, home: Path) -> Dataset:
    """A dataset by its id, or one made of a file."""
    if Path(ref).is_file():
        return import_files(ref, f"local/{Path(ref).stem}", home=home)
    return rlds_cli.download(ref)


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    if not arguments:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as scratch:
        found = {}
        for argument in arguments:
            ref, _, env = argument.partition("=")
            found[Path(ref).stem] = counts(open_or_import(ref, Path(scratch)), env or None)
        print("\n".join(table(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
