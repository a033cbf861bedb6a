"""Read what TorchRL and TensorDict write to disk, from JSON and raw files; nothing is unpickled.

::

    TensorDict.memmap(DIR)               TED or columns; [N]; [E, T] or [T, E] with numbers of trajectories; lazy stacks
    ReplayBuffer.dumps(DIR)              the same, with how many rows count and where a ring begins
      FlatStorageCheckpointer            observations once, a row more at every end
      NestedStorageCheckpointer          the same bytes, with a table of the trajectories' shapes
      H5StorageCheckpointer              an HDF5 group per trajectory

A next observation that is the observation of the row after is stored once. If they differ at most steps (n-step
returns, transforms), next observations become fields of their own. Fields have the names of their keys. ``stores``
finds the TensorDicts, ``lanes`` orders their rows in time, and ``boundaries`` finds and reads the episodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives.formats.hdf5 import open_file
from rlds_cli.archives.names import differences, free_name, is_observation
from rlds_cli.archives.readers import Archive, ArchivedStep, ArchivedValue, Part, Plan, Replan, every_file
from rlds_cli.archives.torchrl import accounting, described, stores
from rlds_cli.archives.torchrl.boundaries import (
    EpisodeReading,
    KeyRoles,
    LaneEpisodes,
    NextKeysDiffer,
    episodes,
    mismatches,
    roles_of,
    row,
    wholes,
)
from rlds_cli.archives.torchrl.lanes import MASKS, NEXT, Lanes, opened
from rlds_cli.archives.torchrl.names import BFLOAT16, STORAGE
from rlds_cli.archives.torchrl.signs import HDF5, is_pickled
from rlds_cli.archives.torchrl.signs import recognise as recognise
from rlds_cli.archives.torchrl.stores import TensorLeaf, TensorStore, trees, within
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import json as documents
from rlds_cli.errors import CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.ted import FLAGS, REWARD, Chunk, Field, Note, Placement, chunks

VERSION = 1
choose = every_file
PART_ROWS = 1 << 19
PART_BYTES = 512 << 20
MOST_PARTS = 64  # each part finds the episodes again
# Episodes, steps of each, and bytes that are looked at before anything is read.
SAMPLED, SAMPLED_STEPS, SAMPLED_BYTES = 64, 256, 64 << 20
COMPRESSED = "data_indices.json"
SHORT_NAMES = {"reward": REWARD, "terminated": FLAGS[0], "truncated": FLAGS[1]}
_SLICE = re.compile(r"\[([^\]]*)\]")
_OBSERVED = re.compile(r" observed from (\d+)$")
INDEX = "index"  # the row's place in the buffer, added by its writer


def plan(archive: Archive) -> Plan:
    """Find the fields, parts and episodes; reads flags, trajectory numbers and a sample of the observations.

    Raises
    ------
    UnknownLayout
        Nothing marks the ends of episodes, marks contradict each other, or the kind of storage is not read.
    CorruptArchive
        Files are missing, truncated, do not fit each other, or hold nothing but zeros.
    UnsafeArchive
        Pickles, links out of the directory, impossible shapes.
    """
    _refuse_pickles(archive)
    file = described.described(archive)
    if file is not None:
        return described.plan(archive, file)
    own = {k for store in stores.find(archive) for k in _own(archive, store)}
    return _plan(archive, sorted(own))


def _plan(archive: Archive, own: Sequence[str]) -> Plan:
    bad: list[str] = []
    found = stores.find(archive, bad)
    parts: list[Part] = []
    notes = [Note("skipped-files", f"left out: {why}") for why in bad]
    layouts: list[TensorDictLayout] = []
    rules: list[str] = []
    for store in found:
        with _open(archive, store) as (lanes, roles):
            made = layout(lanes, roles, own)
            layouts.append(made)
            seen = episodes(lanes, roles, archive.episodes_by)
            rules.append(seen.rule)
            notes += [*seen.notes, *_remarks(archive, store, lanes, roles, made)]
            compared = [k for k in roles.pairs if k not in own and not lanes.keys[k].observed]
            parts += _parts(store, seen, made, exact=not compared)
    _check_same(found, layouts)
    pickles = stores.unread(archive.files)
    if pickles:
        text = "pickles are not opened"
        notes.append(Note("pickles", text, len(pickles), ", ".join(sorted(set(pickles)))))
    if own:
        text = "next values differ from the rows after at most steps: they are kept as fields of their own"
        notes.append(Note("next-observation", text, 1, ", ".join(NEXT + k for k in own)))
    stored = _stored(archive, found[0])
    facts = {"own_next": list(own), "keys": layouts[0].keys, "stored": stored}
    return Plan(
        "torchrl",
        archive,
        layouts[0].fields,
        tuple(parts),
        rules[0],
        facts=facts,
        notes=tuple(notes),
        account=accounting.account_of(archive, found, layouts[0].keys, stored),
    )


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the episodes of one part, in chunks of bounded size.

    Raises
    ------
    Replan
        Next values differ from the rows after at most steps.
    """
    if "described" in plan.facts:
        yield from described.read(plan, part)
        return
    store = stores.again(plan.archive, int(part.args["source"]), int(part.args["buffer"]))
    first, stop = int(part.args["first"]), int(part.args["stop"])
    own = list(plan.facts["own_next"])
    with _open(plan.archive, store) as (lanes, roles):
        todo = episodes(lanes, roles, plan.archive.episodes_by).episodes[first:stop]
        pairs = sum(e.steps - 1 for e in todo)
        how = _reading(plan.archive, store, lanes, roles, own, layout(lanes, roles, own), max_cuts=_max_cuts(pairs))
        try:
            yield from chunks(plan.schema, wholes(how, todo))
        except NextKeysDiffer as e:
            raise Replan(_plan(plan.archive, sorted({*own, *e.keys}))) from None


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Read values that JSON holds once for all rows, and descriptions of the environment."""
    if "described" in plan.facts:
        yield from described.metadata(plan)
        return
    found = stores.find(plan.archive)
    for store in found:
        prefix = f"{store.name}/" if len(found) > 1 else ""
        for name, value in store.tree.constants.items():
            yield prefix + name, value if isinstance(value, str) else json.dumps(value)
    for index, path in enumerate(plan.archive.files):
        if path.name == "env_metadata.json":
            yield plan.archive.name_of(index), json.dumps(documents.load_object(within(path, plan.archive.root)))


def _refuse_pickles(archive: Archive) -> None:
    if all(map(is_pickled, archive.files)):
        name = archive.files[0].name
        if name.endswith(".tdz"):
            raise UnknownLayout(f"{name} is a TensorDict in one file.", hint=f"unzip {name} -d DIR; rlds import DIR")
        raise UnsafeArchive(
            f"{name} is a pickle of torch.save, which can run any code when it is opened.",
            hint="if you trust it: torch.load it yourself, write it with TensorDict.memmap(DIR), and import DIR",
        )
    if any(p.name == COMPRESSED for p in archive.files) and not any(p.name == STORAGE for p in archive.files):
        raise UnknownLayout(
            "TorchRL's compressed lists are not read.",
            hint="load the buffer in TorchRL, and dump it with a LazyMemmapStorage",
        )


@contextmanager
def _open(archive: Archive, store: TensorStore) -> Iterator[tuple[Lanes, KeyRoles]]:
    with opened(store) as lanes:
        lanes.rename({SHORT_NAMES.get(k, k): v for k, v in archive.fields.items()})
        _check_written(lanes)
        yield lanes, roles_of(lanes)


def _check_written(lanes: Lanes) -> None:
    """Refuse a TensorDict that ends with zeros in every entry: rows that nobody wrote, or files of nothing but zeros.

    Raises
    ------
    CorruptArchive
        It does, or has no rows.
    """
    if lanes.store.is_buffer or lanes.store.is_compact or any(mask in lanes.keys for mask in MASKS):
        return
    if not any(lane.steps for lane in lanes.lanes):
        raise CorruptArchive(f"{lanes.store.name} has no rows.")
    names = [n for n, k in lanes.keys.items() if k.dtype != "str" and k.row_bytes]
    for lane in lanes.lanes:
        last = lane.steps - 1
        if not any(lanes.take(n, lane, last, last + 1).any() for n in names):
            raise CorruptArchive(
                f"{lanes.store.name}: row {row(lane, last):,} is zero in every entry, as if it was never written.",
                hint="TorchRL wrote such caches of Minari and GenDGRL: rlds download fetches the originals; "
                "of your own, memmap only the rows that were written",
            )


def _own(archive: Archive, store: TensorStore) -> list[str]:
    """Find the keys whose next values are not those of the rows after, in a sample of the episodes."""
    with _open(archive, store) as (lanes, roles):
        compared = [k for k in roles.pairs if not lanes.keys[k].observed]
        if not compared:
            return []
        found = episodes(lanes, roles, archive.episodes_by).episodes
        sample = (
            [found[int(i)] for i in np.unique(np.linspace(0, len(found) - 1, SAMPLED).astype(int))] if found else []
        )
        how = _reading(archive, store, lanes, roles, [], layout(lanes, roles, []), max_cuts=0)
        width = sum(lanes.keys[k].row_bytes for k in compared)
        most = max(2, min(SAMPLED_STEPS, SAMPLED_BYTES // (SAMPLED * max(width, 1))))
        counts = [mismatches(how, e, most) for e in sample]
        pairs = sum(min(e.steps, most) - 1 for e in sample)
    return [k for k in compared if sum(c[k] for c in counts) > _max_cuts(pairs)]


def _reading(
    archive: Archive,
    store: TensorStore,
    lanes: Lanes,
    roles: KeyRoles,
    own: Sequence[str],
    made: TensorDictLayout,
    *,
    max_cuts: int,
) -> EpisodeReading:
    return EpisodeReading(
        lanes=lanes,
        roles=roles,
        fields=made.fields,
        keys=made.keys,
        compared=tuple(k for k in roles.pairs if k not in own and not lanes.keys[k].observed),
        source=store.source,
        max_cuts=max_cuts,
        forgiving=archive.episodes_by not in (None, "flags"),
    )


def _max_cuts(pairs: int) -> int:
    """Return how many of ``pairs`` may differ and still count as ends without a flag: half of them.

    Observations n steps ahead, and transformed ones, differ at nearly all steps. Dividing at fewer loses no transition.
    """
    return max(1, pairs // 2)


def _parts(store: TensorStore, found: LaneEpisodes, made: TensorDictLayout, *, exact: bool) -> Iterator[Part]:
    """Divide the episodes, in their order, into parts of about the same size."""
    width = sum(f.row_bytes for f in made.fields)
    total = sum(e.steps for e in found.episodes)
    limit = max(1, min(PART_ROWS, PART_BYTES // max(width, 1)), total // MOST_PARTS)
    first = rows = 0
    for i, e in enumerate(found.episodes):
        rows += e.steps + 1
        if rows >= limit or i == len(found.episodes) - 1:
            args = {"source": store.source, "buffer": store.buffer, "first": first, "stop": i + 1}
            args["episodes"] = i + 1 - first
            yield Part(rows if exact else None, args)
            first, rows = i + 1, 0


def _check_same(found: Sequence[TensorStore], layouts: Sequence[TensorDictLayout]) -> None:
    for store, made in zip(found, layouts, strict=True):
        if made.fields != layouts[0].fields:
            raise CorruptArchive(
                f"{store.name} and {found[0].name} do not hold the same fields: "
                + "; ".join(differences(made.fields, layouts[0].fields)),
                hint="import them one by one, each with its own name",
            )


def _stored(archive: Archive, store: TensorStore) -> Mapping[str, Any]:
    """Map keys of the plan to keys of the TensorDict, for the keys that ``--map`` renamed."""
    with _open(archive, store) as (lanes, _):
        return {k: v for k, v in lanes.stored.items() if k != v}


def _remarks(
    archive: Archive, store: TensorStore, lanes: Lanes, roles: KeyRoles, made: TensorDictLayout
) -> Iterator[Note]:
    """Make the notes about one TensorDict."""
    if made.left_out:
        text = f"not read: {'; '.join(made.left_out)}"
        yield Note("left-out", text, len(made.left_out), store.name)
    if store.is_buffer and not store.has_writer and not store.is_compact and store.written == store.tree.batch[0]:
        text = "no file says where the ring of a full buffer begins: its rows are read in the order of storage"
        yield Note("no-writer", text, 1, "import the directory that holds writer/metadata.json")
    if not any(f.name.split("/")[0] == "observation" for f in made.fields):
        yield Note("no-observation", "no field is called observation", 1, _hint(roles))
    if len(roles.numbers) > 1:
        text = "episodes are told apart by episode and seed: episode numbers of TorchRL's RoboSet repeat"
        yield Note("repeated-numbers", text, 1, store.name)


def _hint(roles: KeyRoles) -> str:
    return f"--map observation={roles.pairs[0]}" if roles.pairs else ""


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the values of one step, and the next observation."""
    if place.file.suffix in HDF5:
        with open_file(place.file, check=False) as f:
            yield from _of_group(place, f[place.group.partition("[")[0]])
        return
    _, found = next(trees(place.file, place.root))
    leaves = found.leaves
    index = _index(place)
    observed = _OBSERVED.search(place.group)
    if observed:
        row = int(observed[1]) + place.step
        yield from _of_rows(place, leaves, index, row)
        return
    for field, key in place.facts["keys"].items():
        stored = _archive_key(place, key)
        if stored not in leaves:
            continue
        yield ArchivedValue(field, f"{stored}{list(index)}", _value(leaves[stored], index))
        after = leaves.get(_archive_key(place, f"next/{key}"))
        if field.split("/")[0] == "observation" and after is not None and not place.is_last:
            yield ArchivedValue(f"next/{field}", f"{after.name}{list(index)}", _value(after, index))
    for flag in FLAGS[:1]:
        if flag in leaves:
            yield ArchivedValue(flag, f"{flag}{list(index)}", bool(np.any(_value(leaves[flag], index))))


def _of_rows(
    place: ArchivedStep, leaves: dict[str, TensorLeaf], index: tuple[int, ...], row: int
) -> Iterator[ArchivedValue]:
    """Read a step of a flat buffer, whose observations have rows of their own."""
    steps = leaves["done"].shape[0]
    for field, key in place.facts["keys"].items():
        leaf = leaves[_archive_key(place, key)]
        both = leaf.shape[0] != steps
        yield ArchivedValue(field, f"{leaf.name}[{row if both else index[0]}]", _value(leaf, (row,) if both else index))
        if both and field.split("/")[0] == "observation":
            yield ArchivedValue(f"next/{field}", f"{leaf.name}[{row + 1}]", _value(leaf, (row + 1,)))


def _of_group(place: ArchivedStep, group: h5py.Group) -> Iterator[ArchivedValue]:
    for field, key in place.facts["keys"].items():
        d = group[_archive_key(place, key)]
        yield ArchivedValue(field, f"{d.name}[{place.step}]", d[place.step])
        if field.split("/")[0] == "observation" and len(d) > len(group["done"]):
            yield ArchivedValue(f"next/{field}", f"{d.name}[{place.step + 1}]", d[place.step + 1])


def _index(place: ArchivedStep) -> tuple[int, ...]:
    """Find the index of a step in the TensorDict, from the slices in the episode table."""
    step = place.step
    for text in _SLICE.findall(place.group):
        parts = text.split(",")
        start, stop = next(map(int, p.split(":")) for p in parts if ":" in p)
        if step < stop - start:
            return tuple(start + step if ":" in p else int(p) for p in parts)
        step -= stop - start
    return (place.first + place.step,)


def _archive_key(place: ArchivedStep, key: str) -> str:
    return str(place.facts["stored"].get(key, key))


def _value(leaf: TensorLeaf, index: tuple[int, ...]) -> Array:
    value = np.array(leaf.open()[index])
    if leaf.dtype == BFLOAT16:
        return (value.astype(np.uint32) << 16).view(np.float32)
    return value


@dataclass(frozen=True, slots=True)
class TensorDictLayout:
    """The ``fields`` of the dataset, the key of each (flags have none), and the keys that are left out."""

    fields: tuple[Field, ...]
    keys: dict[str, str]
    left_out: tuple[str, ...]


def layout(lanes: Lanes, roles: KeyRoles, own: Collection[str]) -> TensorDictLayout:
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
    return TensorDictLayout(tuple(sorted(fields, key=lambda f: f.name)), keys, tuple(left_out))


def _unread(lanes: Lanes, roles: KeyRoles, own: Collection[str]) -> set[str]:
    """Find the keys that become no fields: flags, next values that the rows after hold, and entries of the buffer."""
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
