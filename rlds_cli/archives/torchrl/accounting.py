"""The account of TensorDicts: their files, and the entries of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlds_cli.archives.account import (
    ENDS,
    EPISODES,
    LAYOUT,
    METADATA,
    NO_PLACE,
    Account,
    Fate,
    Ledger,
    left_out,
    used_as,
)
from rlds_cli.archives.formats import inventory
from rlds_cli.archives.formats.inventory import ATTRIBUTE, KEY, Item
from rlds_cli.archives.readers import Archive
from rlds_cli.archives.torchrl.lanes import MASKS, NEXT
from rlds_cli.archives.torchrl.signs import HDF5, PICKLES
from rlds_cli.archives.torchrl.stores import TensorStore
from rlds_cli.base.text import is_below

FLAGS = ("done", "terminated", "truncated", "is_init")
NO_FIELD = "it has no value at each step; a note says why"


def account_of(
    archive: Archive,
    found: Sequence[TensorStore],
    keys: Mapping[str, str],
    stored: Mapping[str, str],
    *,
    exported: bool = False,
) -> Account:
    """State the fate of the files of TensorDicts and of their entries.

    Parameters
    ----------
    found : sequence of TensorStore
    keys : mapping of str to str
        The entry of each field.
    stored : mapping of str to str
        What an entry is called in the files, where the user renamed it.
    exported : bool
        A file beside the TensorDict describes its episodes.
    """
    told, fates = Ledger(), dict[Path, Fate]()
    names = {stored.get(key, key): name for name, key in keys.items()}
    for store in found:
        if store.file.suffix in HDF5:
            fates[store.file] = used_as(EPISODES)
            told.inside(inventory.items(store.file), {}, store.file.name, others=lambda item: _of_item(item, names))
            continue
        for name, leaf in store.tree.leaves.items():
            fates[leaf.path] = fate = _fate(name, names)
            fates[leaf.path.with_suffix(".shape.memmap")] = fate
            told.add(KEY, name, fate)
        for name in store.tree.texts:
            told.add(KEY, name, _fate(name, names))
        for name in store.tree.constants:
            told.add(KEY, name, used_as(METADATA))
        for entry in store.tree.left_out:
            name, _, why = entry.partition(" (")
            told.add(KEY, name, left_out(why.removesuffix(")") or NO_FIELD))
    told.all_files(
        archive.files, archive.root, {path: fates.get(path) or _of_file(path, exported) for path in archive.files}
    )
    return told.account()


def _fate(name: str, names: Mapping[str, str]) -> Fate:
    """Return the fate of an entry; next values, and a reward at the root beside the next one, are special."""
    if name in names:
        return used_as(names[name])
    last = name.rpartition("/")[2]
    if last in FLAGS:
        return used_as(ENDS)
    if name in MASKS:
        return used_as("the mask of padded steps")
    if is_below(name, NEXT.rstrip("/")):
        now = name.removeprefix(NEXT)
        return used_as(f"next/{names[now]}" if now in names else ENDS if last in FLAGS else name)
    if name == "reward":
        return left_out("at the root it is that of the step before")
    return left_out("it is the place of a row in the buffer" if name == "index" else NO_FIELD)


def _of_item(item: Item, names: Mapping[str, str]) -> Fate | None:
    """Return the fate of a dataset of a checkpoint, whose groups are trajectories."""
    if item.kind == ATTRIBUTE:
        return None
    group, _, name = item.name.partition("/")
    return _fate(name or group, names) if name else used_as(LAYOUT)


def _of_file(path: Path, exported: bool) -> Fate:
    if path.suffix in PICKLES:
        return left_out("pickles are not opened")
    if path.name == "env_metadata.json" or (exported and path.parent.name.startswith("rlds_")):
        return used_as(METADATA)
    if path.suffix in (".json", ".memmap"):
        return used_as(LAYOUT) if path.suffix == ".json" else left_out("no entry of a TensorDict is in it")
    return left_out(NO_PLACE)
