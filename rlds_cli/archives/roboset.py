"""RoboHive's HDF5: one group per trial, several files (seeds) per archive; and RoboSet's, recorded from hardware.

Every trial is an episode. ``done`` becomes ``next/terminated``; a trial that ends without it is cut. RoboHive's
recorders disagree about the meaning of a row, and their files do not record it. There are three conventions::

    trace   (o_t, a_t) with the reward, done and infos on arrival at o_t; a last row with a NaN action: T = h - 1 steps,
            T+1 observations and infos; next/reward of step t is row t+1's
    path    (o_t, a_t, r_t, done_t) and the infos after the step: T = h, no final observation, next/info/...
    demo    (o_t, a_t, r_t, done_t) and the infos before it: T = h, no final observation, info/...

A trial whose last action is NaN is a trace. In the others ``env_infos/obs_dict``, which holds the components of an
observation, equals the observations of the row after (path) or of the same row (demo). In a trace the reward and
``done`` of row 0 came before any step, and are left out. The datasets of a trial::

    RoboHive                                     RoboSet (hardware)
    Trial<k>/observations   [h, ...] or group    Trial<k>/data/{qp,qv,tau,rgb,d,...}_*  -> observation/<key>
             actions        [h, ...]                      data/ctrl_*                   -> action/<key>
             rewards        [h]                           data/time                     -> time
             done           [h]                           data/user*                    -> info/<key>
             time           [h]                           derived/*                     -> info/derived/<key>
             env_infos/*    [h, ...] -> info/<key>        config/*                      -> metadata
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives.account import METADATA, Fate, used_as
from rlds_cli.archives.formats.hdf5 import attributes, keys_found, plain, reading
from rlds_cli.archives.formats.hdf5_rows import components
from rlds_cli.archives.formats.inventory import Item
from rlds_cli.archives.grouped import Group, Grouped
from rlds_cli.archives.names import common_rows, expand, free_name, is_observation, row_field
from rlds_cli.archives.readers import Archive, Plan
from rlds_cli.base.array_types import Array
from rlds_cli.base.text import is_below, natural
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, Field, Note

TRACE, PATH, DEMO = "trace", "path", "demo"
PIECES = "info/obs_dict/"
TRIALS = 8
ROWS = 256
MAX_COMPONENTS = 1024
GROUP = re.compile(r"(trial|rollout)_?\d+", re.IGNORECASE)
CORE = {"observations": "observation", "actions": "action", "rewards": REWARD, "done": FLAGS[0], "time": "time"}
SHORT_NAMES = {"reward": REWARD, "terminated": FLAGS[0]}
INFOS = "env_infos/"


class RoboSet(Grouped):
    """A group for each trial, in one of three conventions of rows."""

    name, title, what = "roboset", "RoboHive", "trials"
    example = "Trial0, Trial1, ..."
    mapped = True

    def describe(self, f: h5py.File, paths: Sequence[Path]) -> tuple[str, str] | None:
        """Tell RoboHive's schema from RoboSet's, by the keys of the first trial."""
        groups = self.groups(f)
        for name in groups[:1]:
            if "observations" in f[name] and "actions" in f[name]:
                return "RoboHive layout", f"{len(groups):,} trials"
            if isinstance(f[name].get("data"), h5py.Group):
                return "RoboSet layout", f"{len(groups):,} trials"
        return None

    def groups(self, f: h5py.File) -> list[str]:
        """Name the trials of a file, in the order of their numbers."""
        return sorted((k for k in f if GROUP.fullmatch(k) and isinstance(f.get(k), h5py.Group)), key=natural)

    def group(self, where: str, name: str, found: Mapping[str, h5py.Dataset], archive: Archive) -> Group:
        """Describe one trial; the keys that the user names come first."""
        columns = {field: key for key in found if (field := _meaning(key)) and found[key].shape}
        for field, key in ((SHORT_NAMES.get(k, k), v) for k, v in archive.fields.items()):
            expanded = expand(found, field, key.strip("/"))
            if not expanded:
                raise UnknownLayout(f'{where} has no "{key}".', hint=f"it holds {keys_found(found)}")
            columns = {k: v for k, v in columns.items() if k != field and v not in expanded.values()} | expanded
        for field in ("observation", "action"):
            if not any(is_below(k, field) for k in columns):
                raise UnknownLayout(
                    f"{where} has no {field}s. It holds {keys_found(found)}.",
                    hint=f"name the key: --map {field}=KEY",
                )
        rows = common_rows(where, {key: found[key] for key in columns.values()})
        claimed = set(columns.values())
        for key, d in found.items():
            constant = key.split("/", 1)[0] in ("config", "metadata")
            if key not in claimed and d.shape and d.shape[0] == rows and not constant:
                columns[free_name(key, {*columns, *FLAGS})] = key
        fields = {k: row_field(k, found[key], scalar=k in (REWARD, FLAGS[0])) for k, key in sorted(columns.items())}
        per_row = set(columns.values())
        return Group(name, rows, columns, {}, fields, tuple(key for key in found if key not in per_row))

    def is_known(self, key: str) -> bool:
        """Tell the keys of the layouts."""
        return _meaning(key) is not None

    def look(self, f: h5py.File, path: Path, found: list[Group]) -> list[Group]:
        """Find the convention of a file."""
        with reading(path, "the last rows"):
            about = _convention(f, found)
        return [replace(g, about=about) for g in found]

    def notes(self, f: h5py.File, name: str, found: Sequence[Group]) -> Iterator[Note]:
        """Note trials of a trace that end with an action."""
        _, odd = found[0].about
        if odd:
            text = "trials of a trace end with an action; its outcome is not recorded, and it is left out"
            yield Note("last-action", text, len(odd), f"{odd[0]} of {name}")

    def facts(
        self, archive: Archive, found: Sequence[Sequence[Group]], chance: Sequence[str]
    ) -> tuple[dict[str, Any], list[Note]]:
        """Record the convention of each file, and the keys that are not per row."""
        said = {archive.name_of(i): of_file[0].about[0] for i, of_file in enumerate(found)}
        rows, notes = _settle(said, infos=any(name.startswith("info/") for name in found[0][0].fields))
        constants = sorted({key for of_file in found for g in of_file for key in g.constants})
        return {"rows": rows, "constants": constants}, notes

    def arranged(self, g: Group, name: str, facts: Mapping[str, Any]) -> Group:
        """Place the fields as the conventions of all files hold them."""
        rows: Mapping[str, str] = facts["rows"]
        convention = next((c for c in (TRACE, PATH) if c in rows.values()), DEMO)
        g = g.without({*facts["constants"]})
        made = {key: _placed(g.fields[n], convention) for n, key in g.columns.items()}
        fields = {f.name: f for f in made.values()}
        columns = {f.name: key for key, f in made.items()}
        return replace(g, columns=columns, fields=fields, late=rows[name] == TRACE, about=None)

    def fate(self, item: Item) -> Fate | None:
        """State the fate of attributes: those of the file and of trials are kept."""
        owner, at, _ = item.name.rpartition("@")
        return used_as(METADATA) if at and (not owner or GROUP.fullmatch(owner)) else None

    def constants(self, f: h5py.File, plan: Plan, name: str) -> Iterator[tuple[str, Array | str]]:
        """Return constants and attributes by trial."""
        yield from attributes(f)
        for group in self.groups(f):
            yield from ((f"{group}/{key}", value) for key, value in attributes(f[group]))
            for key in plan.facts["constants"]:
                d = f[group].get(key)
                if isinstance(d, h5py.Dataset) and (value := plain(d)) is not None:
                    yield f"{group}/{key}", value


def _convention(f: h5py.File, trials: Sequence[Group]) -> tuple[str | None, list[str]]:
    """Find the convention of one file, None if its content does not decide; also the trials of a trace that differ."""
    ends = {t.group: _ends_without_action(f[t.group], t) for t in trials if t.rows}
    if ends and sum(ends.values()) * 2 >= len(ends):
        return TRACE, [group for group, without in ends.items() if not without]
    same = after = 0
    for trial in [t for t in trials if t.rows >= 3][:TRIALS]:
        here = _votes(f[trial.group], trial)
        same, after = same + here[0], after + here[1]
    return None if same == after else DEMO if same > after else PATH, []


def _settle(found: Mapping[str, str | None], *, infos: bool) -> tuple[dict[str, str], list[Note]]:
    """Settle the convention of each file, so that one schema holds all; a note tells of each guess.

    Undecided files follow the decided ones, or else are read as ``demo``. Traces and demos go together, since a demo
    lacks only the last row. Paths with infos go with neither, since their infos belong to the next row.

    Raises
    ------
    UnknownLayout
        The files follow conventions that no one schema holds.
    """
    said = sorted({c for c in found.values() if c})
    if infos and PATH in said and len(said) > 1:
        listed = ", ".join(f"{name}: {c}" for name, c in found.items() if c)
        raise UnknownLayout(
            f"the files follow different row conventions: {listed}.",
            hint="import them one by one, each with its own name",
        )
    guess = next((c for c in (PATH, DEMO) if c in said), DEMO)
    notes = [
        Note(
            "row-convention",
            f"the row convention is unknown: read as {guess} (infos of row t are known at t)",
            1,
            name,
        )
        for name, c in found.items()
        if c is None and infos
    ]
    return {name: c or guess for name, c in found.items()}, notes


def _ends_without_action(group: h5py.Group, trial: Group) -> bool:
    actions = [key for field, key in trial.columns.items() if field == "action" or field.startswith("action/")]
    last = [np.asarray(group[key][trial.rows - 1]) for key in actions]
    return all(a.dtype.kind == "f" and a.size > 0 and bool(np.isnan(a).all()) for a in last)


def _votes(group: h5py.Group, trial: Group) -> tuple[int, int]:
    """Count the components of obs_dict that equal an observation in the same row, and in the row after."""
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


def _meaning(key: str) -> str | None:
    first, _, rest = key.partition("/")
    if first in CORE:
        return f"{CORE[first]}/{rest}" if rest else CORE[first]
    if key.startswith(INFOS):
        return "info/" + key.removeprefix(INFOS)
    if first == "derived":
        return f"info/{key}"
    if first == "data":
        kind = {"ctrl": "action/", "user": "info/", "time": ""}.get(re.split(r"[_/]", rest)[0], "observation/")
        return kind + rest
    return None


def _placed(field: Field, convention: str) -> Field:
    """Place a field as files of this convention hold it."""
    name, placement = field.name, field.placement
    if is_observation(name) or name == "time":
        placement = "both"
    elif name.startswith("info/") and convention == "path":
        name, placement = f"next/{name}", "next"
    elif convention == "trace" and placement == "root" and name.split("/", 1)[0] != "action":
        placement = "both"
    return Field(name, field.dtype, field.shape, placement, field.kind)


READER = RoboSet()
