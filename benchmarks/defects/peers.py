"""What other checkers of LeRobot's datasets find in the same files, by their own codes.

``make bench-defects`` installs them in an environment of their own, .bench-data/doctors. What they call a finding is
translated to our kinds by the tables below, generously: where one of their codes may mean several of our kinds, it
counts for each of these. Notes and scores do not count, as ours do not; a flag of robovet's scores does.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".bench-data/doctors/bin"
Named = Iterator[tuple[str, int]]  # a code, and the number of an episode
_STOPPED = 1200  # seconds
_LELINT = (  # it needs torchvision to import lerobot, and no more of it
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from check_exports import without_torchvision;"
    "without_torchvision(); from lerobot_lint.cli import app; app()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A checker: commands that write into a directory, what they wrote, and our kinds by its codes."""

    name: str
    commands: Callable[[str, str], tuple[list[str], ...]]
    named: Callable[[Path], Named]
    kinds: Mapping[str, tuple[str, ...]]

    @property
    def looks_for(self) -> set[str]:
        """Our kinds that it has a code for."""
        return {kind for kinds in self.kinds.values() for kind in kinds}


@dataclass(frozen=True, slots=True)
class NotRun(Exception):
    """Why a peer did not run."""

    why: str


def found_by(peer: Peer, dataset: Path, episodes: int) -> dict[str, set[int]]:
    """Return the episodes that a peer names, by its codes, without codes that name more than half of the episodes.

    Raises
    ------
    NotRun
        It is not installed, or did not end.
    """
    found = defaultdict[str, set[int]](set)
    with tempfile.TemporaryDirectory() as out:
        for command in peer.commands(str(dataset), out):
            if not (BIN / command[0]).exists():
                raise NotRun("not installed")
            _run([str(BIN / command[0]), *command[1:]], Path(out))
        try:
            for code, episode in peer.named(Path(out)):
                found[code].add(episode)
        except (OSError, ValueError, KeyError) as e:
            raise NotRun(f"{type(e).__name__}: {e}") from e
    return {code: named for code, named in found.items() if len(named) <= episodes // 2}


def in_our_words(peer: Peer, found: Mapping[str, set[int]]) -> dict[str, set[int]]:
    """Return the episodes by our kinds."""
    kinds = defaultdict[str, set[int]](set)
    for code, named in found.items():
        for kind in peer.kinds.get(code, ()):
            kinds[kind] |= named
    return kinds


def _run(command: list[str], directory: Path) -> None:
    """Run a command whose exit code says what it found; its output is the file ``stdout``."""
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(directory / "hub"), "COLUMNS": "200"}
    with (directory / "stdout").open("wb") as out, (directory / "stderr").open("wb") as err:
        try:
            subprocess.run(command, cwd=directory, env=environ, stdout=out, stderr=err, timeout=_STOPPED, check=False)
        except subprocess.TimeoutExpired as e:
            raise NotRun(f"stopped after {_STOPPED} s") from e


def _json(file: Path) -> Any:
    return json.loads(file.read_text())


# -- lerobot-doctor: messages, of which a word is its code


_DOCTOR = {
    "dropped frame": ("time-jump",),
    "Mean interval": ("time-jump",),
    "monotonic": ("time-jump",),
    "frozen": ("idle",),
    "jump": ("jump", "dropped-rows", "encoder-wrap"),
    "NaN": ("not-finite",),
    "Inf": ("not-finite",),
    "duplicate": ("duplicate", "near-duplicate"),
    "decode": (),
    "short": (),
    "long": (),
}


def _of_doctor(out: Path) -> Named:
    for check in _json(out / "stdout")["checks"]:
        for said in check["messages"]:
            if said["severity"] not in ("WARN", "FAIL"):
                continue
            text = said["message"]
            numbers = re.findall(r"[Ee]pisode (\d+)", text) or re.findall(r"\d+", "".join(re.findall(r"\[.*\]", text)))
            for code in _DOCTOR if numbers and "action[" not in text else ():
                if code in text:
                    yield from ((code, int(n)) for n in numbers)


# -- physlint: findings of rules


_PHYSLINT = {
    "temporal.monotonic": ("time-jump",),
    "temporal.sampling_interval": ("time-jump",),
    "temporal.max_gap": ("time-jump",),
    "temporal.observation_action_delay": ("action-lag",),
    "numeric.finite_values": ("not-finite",),
    "numeric.discontinuity": ("jump", "dropped-rows", "encoder-wrap"),
    "video.frozen_frames": ("frozen-camera",),
    "video.black_frames": ("black-camera",),
    "duplication.exact_episodes": ("duplicate",),
}


def _of_physlint(out: Path) -> Named:
    for rule in _json(out / "found.json")["results"]:
        for f in rule["findings"]:
            if f["severity"] in ("error", "warning") and f["location"]["episode"]:
                yield rule["rule_id"], int(re.sub(r"\D", "", f["location"]["episode"]))


# -- robovet: checks with lists of episodes, and flags of its scores


_ROBOVET = {
    "DATA-107": ("not-finite",),
    "DATA-108": ("dead-joint",),
    "DATA-109": ("empty-task",),
    "TIME-201": ("time-jump",),
    "TIME-202": ("time-jump",),
    "TIME-204": ("time-jump",),
    "STATS-302": ("not-finite",),
    "mostly_idle": ("idle",),
    "rough_motion": ("jump", "dropped-rows"),
    "action_saturated": ("saturated-action",),
    "duplicate_of_ep": ("duplicate", "near-duplicate"),
    "gripper_chatter": (),
    "duration_outlier": (),
}


def _of_robovet(out: Path) -> Named:
    for check in _json(out / "found.json")["results"]:
        if check["severity"] in ("WARN", "FAIL"):
            yield from ((check["check_id"], int(k)) for k in check["episodes"])
    with (out / "scores.csv").open() as file:
        for row in csv.DictReader(file):
            for flag in filter(None, row["flags"].split("|")):
                yield re.sub(r"\d+$", "", flag), int(row["episode_index"])


# -- lerobot-lint: findings of checks


_LELINT_KINDS = {
    "DEAD_JOINT": ("dead-joint",),
    "SATURATED_JOINT": ("saturated-action",),
    "JITTER": ("jump", "dropped-rows", "encoder-wrap"),
    "DISCONTINUITY": ("jump", "dropped-rows", "encoder-wrap"),
    "FROZEN_STATE": ("frozen-signal", "idle"),
    "GRIPPER_INERT": ("inverted-action",),
    "ACTION_STATE_DIVERGENCE": ("inverted-action", "action-lag"),
    "ACTION_RANGE_MISMATCH": ("saturated-action",),
    "TIMESTAMP_NON_MONOTONIC": ("time-jump",),
    "FRAME_DROPS": ("time-jump",),
    "FPS_MISMATCH": ("time-jump",),
    "MISSING_TASK": ("empty-task",),
    "TASK_IMBALANCE": ("lone-task",),
    "FROZEN_CAMERA": ("frozen-camera",),
    "DEGENERATE_IMAGE": ("black-camera", "overexposed-camera", "blurred-camera"),
}


def _of_lelint(out: Path) -> Named:
    for f in _json(out / "found.json")["findings"]:
        if f["severity"] in ("error", "warning") and f["episode"] is not None:
            yield f["check"], int(f["episode"])


PEERS = (
    Peer(
        name="lerobot-doctor",
        commands=lambda dataset, out: (["lerobot-doctor", dataset, "--json"],),
        named=_of_doctor,
        kinds=_DOCTOR,
    ),
    Peer(
        name="physlint",
        commands=lambda dataset, out: (["physlint", "check", dataset, "--json-output", f"{out}/found.json"],),
        named=_of_physlint,
        kinds=_PHYSLINT,
    ),
    Peer(
        name="robovet",
        commands=lambda dataset, out: (
            ["robovet", "doctor", dataset, "--json", f"{out}/found.json"],
            ["robovet", "score", dataset, "--csv", f"{out}/scores.csv"],
        ),
        named=_of_robovet,
        kinds=_ROBOVET,
    ),
    Peer(
        name="lerobot-lint",
        commands=lambda dataset, out: (
            ["python", "-c", _LELINT, str(ROOT / "scripts"), "check", dataset, "--json", f"{out}/found.json"],
        ),
        named=_of_lelint,
        kinds=_LELINT_KINDS,
    ),
)
