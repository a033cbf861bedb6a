"""robomimic's HDF5: one group per demonstration below ``data``, named splits below ``mask``; and robosuite's raw files.

``next_obs[t]`` is ``obs[t+1]``, so it is read for the final observation alone and compared with the rest; if it
differs, it is kept as ``next/observation/<key>``. ``dones`` become ``next/terminated``; a demonstration that ends
without one is cut::

    data/demo_<k>/obs/<key>        [T, ...]   -> observation/<key>
                  next_obs/<key>   [T, ...]   the final observation, and a check on the others
                  actions          [T, ...]   -> action
                  rewards          [T]        -> next/reward
                  dones            [T]        -> next/terminated
                  states           [T, ...]   -> state; observation, where there is no other (raw files)
                  anything else    [T, ...]   -> a root field of its own name (actions_abs, joint_torques)
    mask/<split>                              names of demonstrations

What is said of a demonstration is its task: ``lang`` of the attribute ``ep_meta`` (RoboCasa), ``language_instruction``
of ``problem_info`` of all (LIBERO), or an attribute of its own. Single values among its attributes, and in ``ep_meta``,
are columns of the episode table.

Raw files of robosuite 0.3 have no ``actions``. The operator's commands stand in for them: joint velocities, gripper
actuations, and the hands' ``dpos`` and ``dquat``, some of them of zero width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives import episode_info, once, tasks
from rlds_cli.archives.account import COLUMN, METADATA, SPLITS, Fate, used_as
from rlds_cli.archives.formats.hdf5 import attribute, attribute_values, attributes, datasets, keys_found, plain
from rlds_cli.archives.formats.inventory import Item
from rlds_cli.archives.grouped import FINAL, NEXT, OWN, Group, Grouped
from rlds_cli.archives.names import free_name, row_field
from rlds_cli.archives.readers import Archive, Plan
from rlds_cli.archives.tasks import episode_column
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import json as documents
from rlds_cli.base.text import natural
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, Note, Scalar

MODEL = "attributes/model_file"
NUM_SAMPLES = "num_samples"
DATA, MASK = "data", "mask"
LANG = "lang"
EP_META = "ep_meta"
SAID = {EP_META: LANG, "problem_info": "language_instruction", "env_args": LANG}  # the members of attributes in JSON
NOT_COLUMNS = {NUM_SAMPLES, "model_file", *SAID, *tasks.NAMES, LANG}  # attributes of demonstrations with a meaning
GROUP = re.compile(r"demo_\d+")
MEANINGS = {"actions": "action", "rewards": REWARD, "dones": FLAGS[0], "states": "state"}
OBSERVATION, NEXT_OBSERVATION = "obs/", "next_obs/"
# What robosuite 0.3 recorded in place of actions.
COMMANDS = re.compile(r"joint_velocities|gripper_actuations|(left|right)_(dpos|dquat)")
MAX_MASKS = 4096


class RobomimicFamily(Grouped):
    """A group for each demonstration, with next observations."""

    name, title, what, parent = "robomimic", "robomimic", "demonstrations", f"{DATA}/"
    example = "data/demo_0, data/demo_1, ..."

    def describe(self, f: h5py.File, paths: Sequence[Path]) -> tuple[str, str] | None:
        """Tell robomimic's files from robosuite's."""
        groups = self.groups(f)
        if not groups or not {"actions", "states"} & set(f[DATA][groups[0]]):
            return None
        kind = "robomimic" if "obs" in f[DATA][groups[0]] else "robosuite's raw"
        return f"{kind} layout", f"{len(groups):,} demonstrations"

    def groups(self, f: h5py.File) -> list[str]:
        """Name the demonstrations of a file, in the order of their numbers."""
        data = f.get(DATA)
        if not isinstance(data, h5py.Group):
            return []
        return sorted((k for k in data if GROUP.fullmatch(k) and isinstance(data.get(k), h5py.Group)), key=natural)

    def group(self, where: str, name: str, found: Mapping[str, h5py.Dataset], archive: Archive) -> Group:
        """Describe one demonstration: T is the rows of the actions, or else of the states."""
        rows = next(
            (int(d.shape[0]) for k in ("actions", "states") if (d := found.get(k)) is not None and d.shape), None
        )
        if rows is None:
            raise UnknownLayout(f"{where} has neither actions nor states. It holds {keys_found(found)}.")
        per_row = [k for k, d in found.items() if d.shape and (d.shape[0] == rows or self.is_known(k))]
        columns, next_keys = _meanings(per_row)
        if not any(c == "action" or c.startswith("action/") for c in columns):
            raise UnknownLayout(f"{where} has no actions. It holds {keys_found(found)}.")
        if not any(c == "observation" or c.startswith("observation/") for c in columns):
            raise UnknownLayout(f"{where} has neither observations nor states. It holds {keys_found(found)}.")
        claimed = {*columns.values(), *next_keys.values()}
        if odd := {key: found[key].shape[0] for key in sorted(claimed) if found[key].shape[0] != rows}:
            listed = ", ".join(f"{key} {n}" for key, n in odd.items())
            raise CorruptArchive(f"{where} has {rows} steps, and columns of other lengths: {listed}.")
        fields = {k: row_field(k, found[key], scalar=k in (REWARD, FLAGS[0])) for k, key in sorted(columns.items())}
        following = {f"next/{k}": row_field(f"next/{k}", found[key]) for k, key in next_keys.items()}
        for field, key in next_keys.items():
            if field in fields and found[key].shape[1:] != fields[field].shape:
                raise CorruptArchive(
                    f"{where}: {key} has rows of {found[key].shape[1:]}, {field} of {fields[field].shape}."
                )
        constants = tuple(k for k in found if k not in claimed)
        return Group(name, rows, columns, next_keys, fields, constants, next_fields=following)

    def is_known(self, key: str) -> bool:
        """Tell the keys of the layout."""
        return key in MEANINGS or key.startswith((OBSERVATION, NEXT_OBSERVATION))

    def facts(
        self, archive: Archive, found: Sequence[Sequence[Group]], chance: Sequence[str]
    ) -> tuple[dict[str, Any], list[Note]]:
        """Record whether next observations are used or left out."""
        first = found[0][0]
        mode = FINAL if first.has_all_next else OWN if first.next_keys else None
        return {NEXT: mode} | ({"not_per_row": chance} if chance else {}), []

    def arranged(self, g: Group, name: str, facts: Mapping[str, Any]) -> Group:
        """Take out what is per row by chance."""
        return g.without(set(facts.get("not_per_row", ())))

    def environment(self, f: h5py.File) -> dict[str, Any]:
        """Return the environment as ``env_args`` or robosuite's own attributes describe it."""
        about = {key: value for key, value in attribute_values(f[DATA]) if isinstance(value, str | bytes)}
        args = _document(about.get("env_args"))
        if isinstance(args.get("env_name"), str):
            return {"id": args["env_name"], "args": args}
        return {"id": str(about["env"])} if "env" in about else {}

    def notes(self, f: h5py.File, name: str, found: Sequence[Group]) -> Iterator[Note]:
        """Make the notes about one file."""
        if all("observation" in d.columns for d in found):
            yield Note("states-only", "no observations are recorded: simulator states are used instead", 1, name)
        there = {d.group for d in found}
        unknown = sorted(n for members in self.splits(f, name).values() for n in members - there)
        if unknown:
            yield Note(
                "unknown-demos",
                "names in masks do not match any demonstration",
                len(unknown),
                f"{unknown[0]} of {name}",
            )
        said = {
            d.group: attribute(f[DATA][d.group], NUM_SAMPLES) for d in found if NUM_SAMPLES in f[DATA][d.group].attrs
        }
        if wrong := [d.group for d in found if d.group in said and not np.array_equal(said[d.group], d.rows)]:
            text = "demonstrations have another number of steps than they say"
            yield Note("num-samples", text, len(wrong), f"{wrong[0]} of {name}")

    def splits(self, f: h5py.File, name: str) -> Mapping[str, set[str]]:
        """Read the named splits of a file, with the demonstrations of each.

        Raises
        ------
        CorruptArchive
            A mask that is not a list of names.
        """
        group = f.get(MASK)
        if not isinstance(group, h5py.Group):
            return {}
        found: dict[str, set[str]] = {}
        for key, d in datasets(group).items():
            if h5py.check_string_dtype(d.dtype) is None or len(found) >= MAX_MASKS:
                raise CorruptArchive(
                    f"{name}: mask/{key} holds {d.dtype} values; names of demonstrations are expected."
                )
            found[key] = set(map(str, np.ravel(d.asstr(errors="replace")[()])))
        return found

    def task(self, f: h5py.File, group: str) -> str | None:
        """Return the instruction of a demonstration: its own, or that of all of a file."""
        return _said(f[DATA][group]) or _said(f[DATA])

    def once(self, f: h5py.File, group: str) -> Mapping[str, Scalar]:
        """Return the single values among the attributes of a demonstration, such as the success and the seed."""
        return _once(f, group).columns

    def fate(self, item: Item) -> Fate | None:
        """State the fate of attributes, and of the masks."""
        owner, at, key = item.name.rpartition("@")
        if not at:
            return used_as(SPLITS) if item.name.startswith(f"{MASK}/") else None
        if (owner, key) in ((DATA, "env_args"), (DATA, "env")):
            return used_as(METADATA, "the environment")
        if key in (*SAID, *tasks.NAMES, LANG):
            members = (f"{COLUMN}{EP_META}_*",) if key == EP_META and owner != DATA else ()
            return used_as(METADATA, tasks.COLUMN, *members)
        group = owner.removeprefix(f"{DATA}/")
        if group != owner and key == NUM_SAMPLES:
            return used_as("a check of the steps")
        if GROUP.fullmatch(group) and key not in NOT_COLUMNS:
            return used_as(f"{COLUMN}{episode_column(key)}")
        return used_as(METADATA) if owner in ("", DATA) or GROUP.fullmatch(group) else None

    def constants(self, f: h5py.File, plan: Plan, name: str) -> Iterator[tuple[str, Array | str]]:
        """Return attributes, constants and model files.

        Many demonstrations share one model: each stands once, as ``models/<k>``, and ``model`` [demonstrations] says
        which.
        """
        yield from attributes(f)
        yield from ((f"{DATA}/{key}", value) for key, value in attributes(f[DATA]))
        models: dict[str, int] = {}
        which: list[int] = []
        for group in self.groups(f):
            about = dict(attributes(f[DATA][group]))
            model = about.pop(MODEL, None)
            which.append(models.setdefault(str(model), len(models)) if model is not None else -1)
            about.pop("attributes/num_samples", None)
            for key in _once(f, group).keys.values():
                about.pop(key.removeprefix(f"{DATA}/{group}/"), None)
            yield from ((f"{group}/{key}", value) for key, value in about.items())
            for key in self.arranged(self.described(f, group, plan.archive), name, plan.facts).constants:
                if (value := plain(f[DATA][group][key])) is not None:
                    yield f"{group}/{key}", value
        yield from ((f"models/{k}", text) for text, k in models.items())
        if models:
            yield "model", np.array(which, np.int64)


def _once(f: h5py.File, group: str) -> once.Once:
    """Read the attributes of a demonstration that become columns of the episode table, and members of RoboCasa's."""
    found = once.of_object(f, Path(f.filename), f"{DATA}/{group}")
    kept = {c: key for c, key in found.keys.items() if key.rpartition("/")[2] not in NOT_COLUMNS}
    columns = {column: found.columns[column] for column in kept}
    said = _document(dict(attribute_values(f[DATA][group])).get(EP_META))
    members = {k: v for k, v in said.items() if k != LANG and v is not None and episode_info.is_single(v)}
    return once.Once({episode_column(f"{EP_META}/{k}"): v for k, v in members.items()} | columns, kept)


def _document(text: Any) -> dict[str, Any]:
    """Return the object that an attribute holds as JSON; an empty one for anything else."""
    try:
        found = documents.loads(text) if isinstance(text, str | bytes) else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _said(group: h5py.Group) -> str | None:
    """Return the instruction that a group's attributes give: in JSON, or as a text."""
    about = {key: value for key, value in attribute_values(group) if isinstance(value, str | bytes)}
    for key, member in SAID.items():
        text = _document(about.get(key)).get(member)
        if isinstance(text, list) and all(isinstance(part, str) for part in text):
            text = "".join(text)  # as LIBERO reads it
        if isinstance(text, str) and text.strip():
            return text
    plain = (about[name] for name in (*tasks.NAMES, LANG) if name in about)
    return next((v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in plain if v.strip()), None)


def _meanings(keys: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    columns = {MEANINGS[k]: k for k in keys if k in MEANINGS}
    columns |= {f"observation/{k.removeprefix(OBSERVATION)}": k for k in keys if k.startswith(OBSERVATION)}
    next_keys = {f"observation/{k.removeprefix(NEXT_OBSERVATION)}": k for k in keys if k.startswith(NEXT_OBSERVATION)}
    if not any(c.startswith("observation/") for c in columns) and "state" in columns:
        columns["observation"] = columns.pop("state")
    if "action" not in columns:
        columns |= {f"action/{k}": k for k in keys if COMMANDS.fullmatch(k)}
    for key in keys:
        if key not in columns.values() and key not in next_keys.values():
            columns[free_name(key, {*columns, *FLAGS})] = key
    return columns, next_keys


READER = RobomimicFamily()
