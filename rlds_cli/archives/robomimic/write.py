"""robomimic's HDF5: a group for each demonstration, and named splits.

::

    <directory>/<name>.hdf5
        data/            attributes total, env_args
            demo_<k>/    attributes num_samples, ep_meta: {"lang": what is said of it}
                obs/<key>       [T, ...] of observation/<key>
                next_obs/<key>  [T, ...] of the row after, where the final observation of every episode is recorded
                actions rewards dones   [T]; dones are next/terminated
                states          [T, ...] of state
                <name>          [T, ...] of any other field
        mask/<split>     names of demonstrations
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives.exports.content import UNTERMINATED, Loss
from rlds_cli.archives.exports.hdf5 import Column, GroupedFormat, HDF5Layout, Names, OwnNext, fitting, losses_of_finals
from rlds_cli.archives.exports.instructions import Instructions
from rlds_cli.base.array_types import Array
from rlds_cli.base.text import is_below, plural
from rlds_cli.errors import ExportError
from rlds_cli.ted import FLAGS, REWARD, TASK, TRUNCATED

_NAMES = Names(
    exact={"action": "actions", REWARD: "rewards", FLAGS[0]: "dones", "state": "states"},
    roots={"observation": "obs", "next/observation": "next_obs"},
)
_FLAT = "observation/flat"  # robomimic's name for an observation without keys
_COMPARED = 4096  # bytes of rows that the reader compares, all of them
_GYM = 2  # robomimic's number of environments of Gym
_OBJECTS = 900_000  # that rlds reads of a file with untrusted trees


class Robomimic(GroupedFormat):
    """robomimic's layout."""

    name = "robomimic"
    reader = "robomimic"
    can = frozenset(("final", "unknown-final", "cut", "splits", "columns"))
    instructed = "episodes"

    def group(self, episode: int) -> str:
        """Return the group of an episode."""
        return f"data/demo_{episode}"

    # -- what is lost

    def losses(self) -> list[Loss]:
        """Return the losses; that of ``total`` and ``env_args``, which are written anew, is none."""
        content = self.content
        anew = {"data/attributes/total", "data/attributes/env_args"}
        known = set(content.dataset.manifest.metadata) <= anew
        found = [loss for loss in super().losses() if not (known and loss.kind == "metadata")]
        found += losses_of_finals(content)
        used = self._said.name
        others = [n for n in content.table.extra if n != TASK or used != TASK]
        blank = self._said.blank if used else 0
        if others or used not in ("", TASK) or blank:
            absent = f"that {plural(blank, 'episode')} with an empty text will have no task"
            lost = f"episode columns: {', '.join(others)}" if others else "that there is no task"
            lost = absent if blank and not others and used == TASK else lost
            became = "" if used in ("", TASK) else f"; {used} will be {TASK}"
            found.append(Loss("columns", lost + became, becomes=used))
        truncated = int((content.table.end == TRUNCATED).sum())
        terminated, both = (content.flag_at_ends(name) for name in FLAGS)
        if truncated or (terminated & both).any() or content.flags_inside[1]:
            text = "robomimic has one flag, dones, which is next/terminated"
            text += f": {plural(truncated, 'truncated episode')} will be cut" if truncated else ""
            found.append(Loss("flags", text, FLAGS[1], UNTERMINATED))
        for split in content.table.splits:
            if not content.table.splits[split].any() or fitting(split, ()) != split:
                found.append(
                    Loss("splits", f"the split {split}, which has no episodes or a name that HDF5 lacks", split)
                )
        return found

    @property
    def _said(self) -> Instructions:
        assert self.instructions is not None
        return self.instructions

    def losses_of_fields(self) -> Iterator[Loss]:
        """Yield the losses of fields: names, placements, texts, images; ``next/truncated`` has none of its own."""
        actions = [n for n in self.content.fields if n.startswith("action/")]

        def wanted(name: str) -> str:
            return "action" if actions == [name] else _wanted(name)

        losses = _NAMES.losses(self.content, self._own_next_fits(), wanted)
        yield from (loss for loss in losses if loss.field != FLAGS[1])
        if REWARD not in self.content.fields:
            yield Loss("added", "that there are no rewards: they will be 0", REWARD, "float64")

    def _own_next_fits(self) -> bool:
        """Return whether next observations that are fields of their own are read as such again."""
        own = OwnNext.of(self.content)
        if own is None or not own.whole:  # those of a part of the observations leave the final ones unknown
            return own is not None and not self.content.table.observed.any()
        rows = [f.row_bytes for n, f in self.content.fields.items() if is_below(n, "observation")]
        return own.finals and own.differ > 0 and bool(self.content.table.observed.all()) and max(rows) <= _COMPARED

    def check(self) -> None:
        """Refuse datasets without observations, or without one field of actions."""
        names = self.content.fields
        for root in ("observation/", "action"):
            if not any(n.startswith(root) for n in names) or (root == "action" and root not in names):
                what = "one action" if root == "action" else "observation"
                raise ExportError(
                    f"{self.content.id} has no {what} that robomimic could hold.",
                    hint="rlds preprocess joins several actions in one field" if root == "action" else "",
                )
        if len(self.content.table) * (len(names) + 4) > _OBJECTS:
            raise ExportError(f"{len(self.content.table):,} demonstrations are too many for one file.")

    # -- what is written

    def columns(self) -> list[Column]:
        """Return the datasets of a demonstration."""
        known = bool(self.content.table.observed.all())
        found = []
        for name, f in self.content.fields.items():
            if name == FLAGS[1]:
                continue
            key = _NAMES.path(name)
            found.append(Column.of(f, key, dtype="int64" if name == FLAGS[0] else ""))
            if known and name.startswith("observation/") and f"next/{name}" not in self.content.fields:
                found.append(Column.of(f, "next_obs/" + key[4:], "next"))
        return found

    def open(self, f: h5py.File) -> None:
        """Make the group of all demonstrations, with robomimic's description of the environment."""
        data, env = f.create_group("data"), self.content.dataset.manifest.env
        known = env.get("args")
        made: dict[str, Any] = {"env_name": env.get("id") or "", "env_type": _GYM, "env_kwargs": {}}
        data.attrs["total"] = int(self.content.table.length.sum())
        about = json.dumps(known if isinstance(known, dict) else made)
        data.attrs["env_args"] = np.bytes_(
            about
        )  # of fixed length: others lie in a heap, for which readers search files

    def describe(self, make: HDF5Layout, group: h5py.h5g.GroupID, episode: int) -> None:
        """Write the number of steps, and what is said of the demonstration, where RoboCasa has it."""
        make.number(group, "num_samples", int(self.content.table.length[episode]))
        if text := self.content.table.extra.get(TASK, {episode: None})[episode]:
            make.text(group, "ep_meta", json.dumps({"lang": text}))

    def close(self, f: h5py.File) -> None:
        """Write the splits."""
        for split, members in self.content.table.splits.items():
            names = [f"demo_{k}".encode() for k in np.flatnonzero(members).tolist()]
            f.create_dataset(f"mask/{split}", data=np.array(names))

    def values(self, column: Column, values: Array, start: int) -> Array:
        """Return values as they are stored."""
        return values.astype(np.int64) if column.field == FLAGS[0] else values


def _wanted(name: str) -> str:
    """Return the name of the field that robomimic's layout holds the field ``name`` as."""
    if is_below(name, "next/observation") and "/" not in name.removeprefix("next/"):
        return f"next/{_FLAT}"
    if name.startswith(f"{REWARD}/"):
        return f"next/rewards/{name.removeprefix(f'{REWARD}/')}"
    return _FLAT if name == "observation" else name
