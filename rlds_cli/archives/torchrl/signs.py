"""The signs of files that TorchRL and TensorDict write: what every import asks, before their reader is imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from rlds_cli.archives.formats.hdf5 import is_hdf5, open_file
from rlds_cli.archives.torchrl.names import BUFFER, DESCRIPTION, META, STORAGE
from rlds_cli.base.files import json as documents

H5_MARKS = ("_storage_shape", "is_full")
HDF5 = (".h5", ".hdf5")
PICKLES = (".pt", ".pth", ".t", ".pkl", ".pickle")


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe files of TorchRL or TensorDict in one line; None for other files."""
    names = {p.name for p in paths}
    if BUFFER in names:
        return f"TorchRL's replay buffer: {_count(paths)}"
    if DESCRIPTION in names:
        return f"TensorDict that rlds exported: {_count(paths)}"
    if META in names and any(is_tensordict(p) for p in paths if p.name == META):
        return f"memory-mapped TensorDict: {_count(paths)}"
    if STORAGE in names:
        return f"TorchRL's storage: {_count(paths)}"
    if any(n.endswith("meta.pt") for n in names) and any(p.suffix == ".memmap" for p in paths):
        return "memory-mapped tensors, described by a pickle"
    if len(paths) == 1 and is_checkpoint(paths[0]):
        return "TorchRL's checkpoint of trajectories (HDF5)"
    return "pickled by torch.save" if paths and all(map(is_pickled, paths)) else None


def _count(paths: Sequence[Path]) -> str:
    """Name the form, and count the arrays."""
    names = {p.name for p in paths}
    arrays = sum(n.endswith(".memmap") and not n.endswith(".shape.memmap") for n in (p.name for p in paths))
    if not arrays:
        return "H5 form"
    nested = any(n.endswith(".shape.memmap") for n in names)
    flat = any(p.parent.name == "is_full" for p in paths)
    return f"{'Nested' if nested else 'Flat' if flat else 'TED'} form, {arrays:,} arrays"


def is_pickled(path: Path) -> bool:
    """Tell whether a file was written by ``torch.save``, or is a TensorDict in one file."""
    if path.suffix not in (*PICKLES, ".tdz"):
        return False
    try:
        with ZipFile(path) as z:
            return any(n.rpartition("/")[2] in ("data.pkl", META) for n in z.namelist())
    except (OSError, BadZipFile):
        return path.suffix in (".pt", ".pth")


def is_checkpoint(path: Path) -> bool:
    """Tell whether an HDF5 file was written by TorchRL's H5StorageCheckpointer."""
    if path.suffix not in HDF5 or not is_hdf5(path):
        return False
    with open_file(path) as f:
        return all(m in f for m in H5_MARKS) and any(k.startswith("traj_") for k in f)


def is_tensordict(path: Path) -> bool:
    """Tell whether a ``meta.json`` was written by tensordict."""
    if path.name != META:
        return False
    try:
        content = documents.load(path)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and isinstance(content.get("_type"), str) and "<class '" in content["_type"]
