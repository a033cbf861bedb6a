"""Find the TensorDicts among files, and the order in which the rows of each were written.

::

    DIR/buffer_metadata.json                 a dump of a replay buffer; everything else of it is left out
    DIR/storage/...                          its TensorDict, or storage/0, storage/1, ... of an ensemble
    DIR/storage/storage_metadata.json        "len": how many rows of it were written
    DIR/writer/metadata.json                 "cursor": where the next row would be written
    DIR/meta.json                            a TensorDict alone, or a lazy stack of DIR/0, DIR/1, ...

A buffer that is full holds its oldest row at the cursor; one that is not full holds zeros behind its last row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlds_cli import documents
from rlds_cli.archives import Archive
from rlds_cli.archives.hdf5 import is_hdf5, open_file
from rlds_cli.archives.torchrl import tree
from rlds_cli.archives.torchrl.tree import META, Tree
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout
from rlds_cli.ordering import natural

BUFFER, STORAGE, WRITER = "buffer_metadata.json", "storage_metadata.json", "metadata.json"
H5_MARKS = ("_storage_shape", "is_full")
FLAT_MARKS = ("is_full", "shift", "_storage_shape")
HDF5 = (".h5", ".hdf5")
PICKLES = (".pt", ".pth", ".t", ".pkl", ".pickle")


@dataclass(slots=True)
class Store:
    """One TensorDict: its files, and what its replay buffer recorded.

    ``file`` is the JSON or HDF5 file that describes it, ``source`` the number of that file in the archive, ``buffer``
    that of the ``buffer_metadata.json`` it belongs to, or -1. ``written`` and ``cursor`` are None where they are not
    recorded; ``is_buffer`` says that a buffer wrote it.
    """

    file: Path
    source: int
    tree: Tree
    buffer: int = -1
    is_buffer: bool = False
    written: int | None = None
    cursor: int | None = None
    has_writer: bool = False
    marks: dict[str, Any] = field(default_factory=dict)

    @property
    def is_compact(self) -> bool:
        """Whether TED2Flat or TED2Nested, which store observations once, wrote it."""
        return bool(self.marks)

    @property
    def name(self) -> str:
        """The name of the TensorDict in messages."""
        return self.file.name if self.file.suffix in HDF5 else self.file.parent.name


def is_checkpoint(path: Path) -> bool:
    """Whether an HDF5 file is one of TorchRL's H5StorageCheckpointer."""
    if path.suffix not in HDF5 or not is_hdf5(path):
        return False
    with open_file(path) as f:
        return all(m in f for m in H5_MARKS) and any(k.startswith("traj_") for k in f)


def places(files: Sequence[Path]) -> list[tuple[Path, Path | None]]:
    """(``meta.json``, ``storage_metadata.json`` or HDF5 file; the buffer's directory or None) of every TensorDict."""
    buffers = {p.parent for p in files if p.name == BUFFER}
    known = set(files)
    found: dict[Path, Path | None] = {}
    for path in files:
        buffer = next((b for b in path.parents if b in buffers), None)
        if buffer is not None and (buffer / "storage") not in path.parents:
            continue
        if path.name in (META, STORAGE) and not _is_inner(path, known):
            found.setdefault(_described(path, known), buffer)
        elif path.suffix in HDF5 and is_checkpoint(path):
            found[path] = buffer
    return sorted(found.items(), key=lambda x: natural(x[0].as_posix()))


def _is_inner(path: Path, known: set[Path]) -> bool:
    """Whether a directory above describes the same TensorDict."""
    return any(p / META in known for p in path.parent.parents)


def _described(path: Path, known: set[Path]) -> Path:
    """The file that describes a TensorDict: ``meta.json``, or that of a pytree."""
    return path.with_name(META) if path.with_name(META) in known else path


def find(archive: Archive, bad: list[str] | None = None) -> list[Store]:
    """The TensorDicts of an archive, in natural order of their places.

    With ``archive.skip_bad``, those that cannot be read are left out, and ``bad`` receives what is wrong with each.

    Raises
    ------
    UnknownLayout, CorruptArchive, UnsafeArchive
        There is none; or one is of a kind that is not read, is damaged, or links to files outside the archive.
    """
    found: list[Store] = []
    errors: list[ArchiveError] = []
    for file, buffer in places(archive.files):
        try:
            found += _stores(archive, file, buffer)
        except ArchiveError as e:
            errors.append(e)
    if errors and not (archive.skip_bad and found):
        more = f" ({len(errors) - 1} more cannot be read: --skip-bad leaves them out)" if len(errors) > 1 else ""
        raise type(errors[0])(errors[0].message + more, hint=errors[0].hint)
    if bad is not None:
        bad += [e.message for e in errors]
    if not found:
        raise UnknownLayout(
            f"{archive.files[0].name}: no meta.json of a memory-mapped TensorDict is here. Old versions wrote meta.pt, "
            "a pickle, which is not opened.",
            hint="import the directory that TensorDict.memmap(DIR) or ReplayBuffer.dumps(DIR) wrote",
        )
    return found


def again(archive: Archive, source: int, buffer: int) -> Store:
    """Open the TensorDict that ``find`` found with these numbers again."""
    directory = archive.files[buffer].parent if buffer >= 0 else None
    return next(_stores(archive, archive.files[source], directory))


def _stores(archive: Archive, file: Path, buffer: Path | None) -> Iterator[Store]:
    number = _number(archive, buffer / BUFFER) if buffer is not None else -1
    if file.suffix in HDF5:
        store = Store(file, _number(archive, file), Tree(file.parent, ()), number, is_buffer=True)
        _add_writer(store, buffer, archive.root)
        yield store
        return
    for described, parsed in trees(file, archive.root):
        store = Store(described, _number(archive, described), parsed, number)
        _add_storage(store, described.parent, archive.root)
        _add_writer(store, buffer, archive.root)
        _add_atari(store)
        yield store


def _number(archive: Archive, file: Path) -> int:
    if file not in archive.files:
        raise UnknownLayout(
            f"{file} is not among the files to import.", hint=f"rlds import {archive.root} --as local/x"
        )
    return archive.files.index(file)


def _add_atari(store: Store) -> None:
    """Adapt a store of TorchRL's Atari datasets: a ring of steps below ``data``, and ``add_count`` of added steps."""
    found = store.tree
    added, action = found.leaves.get("add_count"), found.leaves.get("data/action")
    if found.batch or added is None or added.shape not in ((), (1,)) or action is None or not action.shape:
        return
    found.batch, found.padded = action.shape[:1], True
    found.leaves = {n.removeprefix("data/"): leaf for n, leaf in found.leaves.items() if n.startswith("data/")}
    count = int(added.open().reshape(-1)[0])
    store.is_buffer = store.has_writer = True
    store.written, store.cursor = min(max(count, 0), found.batch[0]), max(count, 0) % max(found.batch[0], 1)


def trees(file: Path, root: Path) -> Iterator[tuple[Path, Tree]]:
    """The TensorDict that a file describes, with the file; or those of a lazy stack, each with its own file."""
    directory = file.parent
    if file.name == STORAGE:
        shapes = documents.load_object(tree.within(file, root)).get("metadata")
        if not isinstance(shapes, dict) or not shapes:
            raise UnknownLayout(
                f"{directory} holds no TensorDict.", hint="LazyMemmapStorage and LazyTensorStorage write one"
            )
        yield file, tree.from_shapes(directory, shapes, root)
        return
    kind = tree.kind_of(tree.load(directory, root))
    if kind == "LazyStackedTensorDict":
        children = sorted((p for p in directory.iterdir() if p.name.isdecimal()), key=lambda p: natural(p.name))
        for child in children:
            yield from trees(child / META, root)
    else:
        inner = directory / "_tensordict"
        yield file, tree.parse(inner if (inner / META).exists() else directory, root)


def _add_storage(store: Store, directory: Path, root: Path) -> None:
    """Add what TorchRL recorded beside the TensorDict: how many rows were written."""
    constants = store.tree.constants
    if all(mark in constants for mark in FLAT_MARKS):
        store.marks = {mark: constants.pop(mark) for mark in FLAT_MARKS}
    path = directory / STORAGE
    if path.exists():
        store.is_buffer = True
        store.written = _count(documents.load_object(tree.within(path, root)).get("len"), path, "len")


def _add_writer(store: Store, buffer: Path | None, root: Path) -> None:
    if buffer is None:
        return
    inner = store.file.parent.relative_to(buffer / "storage").parts
    path = (buffer / "writer").joinpath(*inner[:1], WRITER)
    if path.exists():
        store.is_buffer = store.has_writer = True
        store.cursor = _count(documents.load_object(tree.within(path, root)).get("cursor"), path, "cursor")


def _count(value: Any, path: Path, key: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CorruptArchive(f"{path}: {key} is {str(value)[:40]}; a number of rows is expected.")
    return value


def unread(files: Sequence[Path]) -> list[str]:
    """Files that are pickles, which are left out."""
    return [p.name for p in files if p.suffix in PICKLES]
