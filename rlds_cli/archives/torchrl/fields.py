"""Fields of a dataset from the keys of a TensorDict: their own names, in TED's placements."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rlds_cli.archives.hdf5 import free_name, is_observation
from rlds_cli.archives.torchrl.boundaries import KeyRoles
from rlds_cli.archives.torchrl.lanes import NEXT, Lanes
from rlds_cli.ted import FLAGS, REWARD, Field, Placement

INDEX = "index"  # the row's place in the buffer, added by its writer


@dataclass(frozen=True, slots=True)
class Layout:
    """``fields`` of the dataset, the key of each (flags have none), and what is left out."""

    fields: tuple[Field, ...]
    keys: dict[str, str]
    left_out: tuple[str, ...]


def layout(lanes: Lanes, roles: KeyRoles, own: Collection[str]) -> Layout:
    """Assign the keys to fields; ``own`` are keys whose next values become fields of their own."""
    keys: dict[str, str] = {}
    fields = [Field(flag, "bool", (), "next") for flag in FLAGS]
    left_out = list(lanes.left_out)
    for key, about in lanes.keys.items():
        if key in _unread(lanes, roles, own):
            continue
        if about.dtype.startswith("complex"):
            left_out.append(f"{key} ({about.dtype})")
            continue
        name, shape = (REWARD, about.shape) if key == roles.reward else (free_name(key, keys), about.shape)
        if name == REWARD and shape == (1,):
            shape = ()
        if name != key and name != REWARD and key.startswith(NEXT):
            left_out.append(f"{key} (another entry has this name)")
            continue
        keys[name] = key
        kind = "text" if about.dtype == "str" else "array"
        fields.append(Field(name, about.dtype, shape, _placement(key, name, roles, own), kind))  # type: ignore[arg-type]
    if NEXT + "reward" in lanes.keys and "reward" in lanes.keys:
        left_out.append("reward at the root (that of the step before)")
    return Layout(tuple(sorted(fields, key=lambda f: f.name)), keys, tuple(left_out))


def _unread(lanes: Lanes, roles: KeyRoles, own: Collection[str]) -> set[str]:
    """Keys that become no fields: flags, next values that the rows after hold, and entries of the buffer."""
    flags = ("done", "terminated", "truncated")
    found = {*flags, *(NEXT + f for f in flags), *(NEXT + k for k in roles.pairs if k not in own)}
    if NEXT + "reward" in lanes.keys:
        found.add("reward")
    if roles.mask:
        found.add(roles.mask)
    if lanes.store.is_buffer:
        found.add(INDEX)
    return found


def _placement(key: str, name: str, roles: KeyRoles, own: Collection[str]) -> Placement:
    if name.startswith(NEXT):
        return "next"
    if key in roles.pairs:
        return "root" if key in own and key not in roles.observations else "both"
    return "both" if is_observation(key) and not roles.pairs else "root"
