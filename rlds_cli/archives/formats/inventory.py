"""What a file holds, by name: datasets, groups and attributes of HDF5, arrays of npz, columns of tables.

No reader is asked: the account of an archive compares what a reader says with this list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlds_cli.archives.formats import (
    arrow_files,
    arrow_tables,
    hdf5,
    imitation,
    parquet,
    rllib_episodes,
    step_batches,
    text_tables,
    tianshou,
)
from rlds_cli.archives.formats.npz import open_npz
from rlds_cli.archives.formats.step_batches import StepBatches
from rlds_cli.archives.formats.tables import OF_LIBRARIES, container_of, open_flat
from rlds_cli.archives.formats.zarr_stores import contents_of
from rlds_cli.base.files import trees
from rlds_cli.base.files.bundles import INFO, STATE, is_saved_table

DATASET, GROUP, ATTRIBUTE, ARRAY, COLUMN, KEY = "dataset", "group", "attribute", "array", "column", "key"
PART = "part"  # a file of a directory that is one file of an archive
FEATURE, TOPIC = "feature", "topic"  # of TFRecords and recordings, whose readers list them
ORDER = "the order of rows"
ROWS = "rows"
BOUNDS = "ends of episodes"
PICKLED = "pickled objects are never read"
UNLISTED = f"{STATE} does not name it"
OWN = "the library that wrote the file keeps it for itself"
UNNAMED = "it has no name"
DESCRIBES = "it describes the table for the library that wrote it"


@dataclass(frozen=True, slots=True)
class Item:
    """A thing in a file.

    ``kind`` is a constant of this module; groups are those without members, as the others are told by these. An
    attribute is called ``PATH@NAME``, a key that describes a table ``@NAME``. ``why`` says why no reader can read it,
    ``use`` what it is used as when the file is opened.
    """

    kind: str
    name: str
    why: str = ""
    use: str = ""


def items(path: Path) -> tuple[Item, ...]:
    """List what a file holds; nothing for a format whose content its reader lists.

    Raises
    ------
    ArchiveError
        The file cannot be read.
    """
    kind = container_of(path)
    if kind is None:
        return ()
    if kind == "hdf5":
        found = hdf5.contents(path)
        names = {DATASET: found.datasets, GROUP: found.empty, ATTRIBUTE: found.attributes}
        above, order = "", tuple[str, ...]()
        if tianshou.is_of_buffer(found):  # whose columns are called by their names below a group
            above, order = f"{tianshou.ROWS}/", tianshou.OF_RINGS
        listed = [(kind, name.removeprefix(above)) for kind, of in names.items() for name in of]
        own = _of_libraries(found.attributes)
        return tuple(
            Item(kind, name, why=OWN if name in own else "", use=ORDER if name.lstrip("@") in order else "")
            for kind, name in listed
        )
    if kind == "zarr":
        store = contents_of(path)
        arrays = [Item(ARRAY, a.name, why=a.why) for a in store.arrays.values()]
        return (*arrays, *(Item(ATTRIBUTE, f"{of}@{n}") for of, said in store.attributes.items() for n in said))
    if kind == "npz":
        with open_npz(path) as npz:
            if not imitation.is_rollouts(npz.members):
                return tuple(Item(ARRAY, name) for name in npz.members)
            uses = {imitation.INDICES: BOUNDS}
            pickled = (Item(ARRAY, name, why=PICKLED) for name in npz.pickled)
            return (*(Item(ARRAY, name, use=uses.get(name, "")) for name in npz.members), *pickled)
    return tuple(_columns(path, kind))


def _of_libraries(attributes: Sequence[str]) -> set[str]:
    """Return the attributes that libraries write for themselves, as `formats.tables.OF_LIBRARIES` are."""
    owners = {name.removesuffix("@CLASS") for name in attributes if name.endswith("@CLASS")}
    return {n for n in attributes if n.rpartition("@")[0] in owners and n.rpartition("@")[2] in OF_LIBRARIES}


def _columns(path: Path, kind: str) -> Iterator[Item]:
    schema = {"parquet": parquet.schema, "arrow": arrow_files.schema}.get(kind, text_tables.schema)(path)
    columns, why = schema, dict[str, str]()
    if step_batches.may_be(schema) or rllib_episodes.may_be(schema):
        with open_flat(path, fill=True) as table:
            if isinstance(table.source, StepBatches):
                columns, why = table.source.schema, dict(table.source.left_out)
    for top in columns:
        for name, of in arrow_tables.leaves(top):
            known = arrow_tables.is_known(of)
            yield Item(COLUMN, name, why.get(name, "") or ("" if known else arrow_tables.unfit(of)))
            if arrow_tables.is_image(of):
                yield Item(COLUMN, f"{name}/path", "the image itself is kept")
    if is_saved_table(path):
        yield from _of_directory(path)
    for key in schema.metadata or {}:
        yield Item(KEY, f"@{key.decode(errors='replace')}", DESCRIBES)
    for _ in range(text_tables.unnamed(path)):
        yield Item(COLUMN, "", UNNAMED)


def _of_directory(path: Path) -> Iterator[Item]:
    """List the files of a directory that is a table: its shards, its two documents, and what is left of other work."""
    shards = arrow_files.shards(path)
    for file in sorted(trees.files(path)):
        name = file.relative_to(path).as_posix()
        if name == INFO:
            yield Item(ATTRIBUTE, f"@{INFO}")
        else:
            use = ROWS if file in shards else ORDER if name == STATE else ""
            yield Item(PART, name, why="" if use else UNLISTED, use=use)
