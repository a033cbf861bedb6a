"""The content of files that are not datasets, as a `FileReport`.

The arrays of an unknown file are listed from headers alone; names and shapes suggest which field each of them may be.
"""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from shlex import quote
from typing import IO, cast

import h5py

from rlds_cli.archives import planning
from rlds_cli.archives.boundary import recognise
from rlds_cli.archives.file_report import FileReport, Node, name_for
from rlds_cli.archives.formats import git_lfs, hdf5, unfit
from rlds_cli.archives.formats.arrow_tables import ArrowFile
from rlds_cli.archives.formats.step_batches import StepBatches
from rlds_cli.archives.formats.tables import IN_WORDS, container_of, open_flat
from rlds_cli.archives.formats.tfrecord import is_tfrecord
from rlds_cli.archives.formats.zarr_stores import contents_of, is_zarr
from rlds_cli.archives.readers import Archive, Part
from rlds_cli.base.files import bundles
from rlds_cli.base.text import natural
from rlds_cli.errors import CorruptArchive, MissingPackage, UnknownLayout

NAMES: Mapping[str, tuple[str, ...]] = {
    "observation": (
        *("observation", "observations", "obs", "state", "states", "s", "q", "qpos", "x", "features", "proprio"),
        *("joint_pos", "joint_positions", "image", "images", "pixels", "frames"),
    ),
    "action": (
        "action",
        "actions",
        "act",
        "acts",
        "a",
        "cmd",
        "command",
        "commands",
        "ctrl",
        "control",
        "controls",
        "u",
    ),
    "next/reward": ("reward", "rewards", "rew", "rews", "r"),
    "next/terminated": (
        *("terminated", "terminal", "terminals", "termination", "terminations", "is_terminal"),
        *("done", "dones", "d", "success", "successes", "is_success"),
    ),
    "next/truncated": ("truncated", "truncation", "truncations", "timeout", "timeouts", "time_limit"),
    "next/observation": (
        "next_observation",
        "next_observations",
        "next_obs",
        "next_state",
        "next_states",
        "s2",
        "obs2",
    ),
}
EPISODE = ("episode", "episode_id", "episode_index", "episodes", "traj", "traj_id", "trajectory", "trial", "demo")
_MAX_DEPTH = 3
_SCALARS = ("next/reward", "next/terminated", "next/truncated")
_SHORT = {"next/terminated": "terminated", "next/truncated": "truncated"}
_MAGIC: Mapping[bytes, str] = {
    b"PAR1": "a Parquet file without its end",
    b"ARROW1": "an Arrow file without its end",
    b"\xff\xff\xff\xff": "an Arrow stream without its end",
    b"\x1f\x8b": "a gzip-compressed file",
    b"\xfd7zXZ\x00": "an xz-compressed file",
    b"\x28\xb5\x2f\xfd": "a zstd-compressed file",
    b"BZh": "a bzip2-compressed file",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"CDF": "a NetCDF file",
    b"MATLAB 5.0": "a MATLAB file",
}


def describe(given: Path, files: tuple[Path, ...], reader: str | None) -> FileReport:
    """Describe the files of a path, as `asking.describe`."""
    size = sum(_size(f) for f in files)
    root = Path(os.path.commonpath([f.parent for f in files]))
    try:
        found = planning.plan(Archive(root, files), reader)
    except UnknownLayout as e:
        if reader is not None:
            raise
        return _unknown(given, files, size, e)
    plan = found.plan
    return FileReport(
        path=given,
        files=len(files),
        bytes=size,
        what=found.how,
        reader=found.reader,
        fields=plan.schema,
        episodes_by=plan.episodes_by,
        episodes=len(plan.episode_summary.lengths) if plan.episode_summary else _episodes(plan.parts),
        rows=found.rows,
        facts=plan.facts,
        notes=found.notes,
        suggestion=f"rlds import {quote(str(given))} --name local/{name_for(given)}"
        + (f" --reader {quote(reader)}" if reader else ""),
    )


def _size(file: Path) -> int:
    try:
        return bundles.size_of(file)
    except OSError:  # it has vanished since
        return 0


def _episodes(parts: Sequence[Part]) -> int | None:
    """Number of episodes in all parts; None unless the reader has counted them, as a number or a list of lengths."""
    counts = [part.args.get("episodes", part.args.get("lengths")) for part in parts]
    if any(c is None for c in counts):
        return None
    return sum(c if isinstance(c, int) else len(c) for c in counts if c is not None)


def _unknown(given: Path, files: Sequence[Path], size: int, error: UnknownLayout) -> FileReport:
    file = planning.telling(files)
    found = tree(file)
    among = f"the first ({file.name})" if file == files[0] else f"among them {file.name},"
    what = found.what if len(files) == 1 else f"{len(files):,} files, {among} {found.what}"
    level = episode_groups(found.nodes)
    fields = guess_fields(found.nodes)
    return FileReport(
        path=given,
        files=len(files),
        bytes=size,
        what=what,
        episodes=len(level[1]) if level else None,
        why=misses(found) if recognise(files) is None else error.message,
        tree=found.nodes,
        groups=found.groups,
        guessed=fields,
        suggestion=suggested_command(given, found, fields),
    )


# -- suggestions: names of arrays by field, in the order of preference


def misses(found: FileTree) -> str | None:
    """List what each reader of HDF5 misses in a file."""
    if found.kind != "hdf5":
        return None
    tops = {n.name.partition("/")[0] for n in found.nodes}
    d4rl = " and ".join(f'"{key}"' for key in ("observations", "actions") if key not in tops)
    missing = [f"d4rl: no {d4rl}"] if d4rl else []
    return "; ".join([*missing, 'minari: no "episode_<k>"', 'roboset: no "Trial<k>"', 'robomimic: no "data/demo_<k>"'])


def guess_fields(nodes: Sequence[Node]) -> dict[str, str]:
    """Guess the array of each field, from arrays with one row per step; empty without an observation and an action.

    If groups are episodes, a pattern stands for the arrays of all groups: ``data/*/cmd``.
    """
    level = episode_groups(nodes)
    if level is None:
        return _guess(nodes)
    pattern, groups = level
    first = next(iter(groups.values()))
    return {field: f"{pattern}/{key}" for field, key in _guess(first, final=True).items()}


def episode_groups(nodes: Sequence[Node]) -> tuple[str, dict[str, list[Node]]] | None:
    """Find groups that contain the same arrays: a pattern for them, and the arrays of each by names inside it."""
    for depth in range(_MAX_DEPTH):
        parents = dict.fromkeys(tuple(p[:depth]) for n in nodes if len(p := n.name.split("/")) > depth + 1)
        for parent in parents:
            groups: dict[str, list[Node]] = {}
            for n in nodes:
                parts = n.name.split("/")
                if tuple(parts[:depth]) == parent and len(parts) > depth + 1:
                    local = replace(n, name="/".join(parts[depth + 1 :]))
                    groups.setdefault("/".join(parts[: depth + 1]), []).append(local)
            same = Counter(frozenset(n.name for n in found) for found in groups.values())
            names, count = max(same.items(), key=lambda item: item[1], default=(frozenset(), 0))
            if count > 1 and _guess(next(g for g in groups.values() if {n.name for n in g} == names), final=True):
                alike = {g: found for g, found in groups.items() if {n.name for n in found} == names}
                return "/".join([*parent, "*"]), alike
    return None


def _guess(nodes: Sequence[Node], *, final: bool = False) -> dict[str, str]:
    """Guess fields; with ``final``, observations may have one row more than the other arrays."""
    rows = _common_rows(nodes)
    found: dict[str, str] = {}
    for field, names in NAMES.items():
        allowed = (rows, rows + 1, rows - 1) if final and field in ("observation", "action") else (rows,)
        steps = [n for n in nodes if n.shape and n.shape[0] in allowed]
        fitting = [n for n in steps if n.name not in found.values() and _fits(n, field)]
        best = _best(fitting, names)
        if best:
            found[field] = best
    return found if {"observation", "action"} <= set(found) else {}


def _common_rows(nodes: Sequence[Node]) -> int:
    counts = Counter(n.shape[0] for n in nodes if n.shape)
    return max(counts, key=lambda rows: (counts[rows], rows), default=0)


def _fits(node: Node, field: str) -> bool:
    assert node.shape is not None
    numeric = node.dtype.startswith(("int", "uint", "float", "bool", "complex"))
    return numeric and (field not in _SCALARS or node.shape[1:] in ((), (1,)))


def _best(nodes: Iterable[Node], names: Sequence[str]) -> str | None:
    ranked = [(score, n.name) for n in nodes if (score := _score(n.name, names)) is not None]
    return min(ranked)[1] if ranked else None


def _score(name: str, names: Sequence[str]) -> tuple[int, int, int] | None:
    """Rank a path for a field: a match of its last component first, then preference, then depth; None for no match."""
    parts = name.lower().split("/")
    for above, part in enumerate(reversed(parts)):
        if part in names:
            return (min(above, 1), names.index(part), len(parts))
    return None


def suggested_command(path: Path, found: FileTree, fields: Mapping[str, str]) -> str | None:
    """A command that may import the file; None if no fields were guessed."""
    id = f"local/{name_for(path)}"
    if found.kind in IN_WORDS and fields:
        grouped = any("/*/" in key or key.startswith("*/") for key in fields.values())
        ends = [f"--episodes-by field:{key}"] if (key := _episode_key(found.nodes)) else []
        if grouped:
            ends = ["--episodes-by file"] if _may_be_batches(found.nodes, fields) else []
        elif not ends and not {"next/terminated", "next/truncated"} & set(fields):
            ends = ["--episodes-by jumps"]
        maps = [f"--map {_SHORT.get(k, k)}={quote(v)}" for k, v in fields.items()]
        return " ".join([f"rlds import {quote(str(path))} --name {id}", *maps, *ends, "--dry-run"])
    return None


def _may_be_batches(nodes: Sequence[Node], fields: Mapping[str, str]) -> bool:
    """Return whether rows of groups look like batches of steps, as those of two arms do.

    `steps.check_steps` refuses them unless a rule says that they are steps.
    """
    if not set(fields) <= {"observation", "action"}:
        return False
    shapes = [n.shape or () for key in fields.values() for n in nodes if fnmatchcase(n.name, key)]
    return bool(shapes) and all(len(shape) > 2 for shape in shapes)


def _episode_key(nodes: Sequence[Node]) -> str | None:
    rows = _common_rows(nodes)
    columns = [n for n in nodes if n.shape and n.shape[0] == rows and n.shape[1:] in ((), (1,)) and "int" in n.dtype]
    return _best(columns, EPISODE)


# -- arrays in a file that no reader knows


@dataclass(frozen=True, slots=True)
class FileTree:
    """The arrays of a file.

    ``kind`` is one of ``formats.tables.CONTAINERS``, ``npy`` or ``other``; ``what`` says so in words.
    """

    kind: str
    what: str
    nodes: tuple[Node, ...] = ()
    groups: int = 0


def tree(file: Path) -> FileTree:
    """List the arrays of a file.

    Raises
    ------
    CorruptArchive
        The file is empty, truncated, or an HTML page.
    UnsafeArchive
        The file contains pickled Python objects, or refers to files outside itself.
    NoPermission
        The file may not be read.
    """
    git_lfs.check([file])
    if is_zarr(file):
        arrays = contents_of(file).arrays.values()
        nodes = (
            Node(a.name, a.shape, a.why or a.image or ("text" if a.dtype.kind == "O" else str(a.dtype))) for a in arrays
        )
        return FileTree("zarr", "a Zarr store", tuple(sorted(nodes, key=lambda n: natural(n.name))))
    head = unfit.check(file)
    if hdf5.is_hdf5(file):
        return _hdf5(file)
    if head.startswith(unfit.NPY):
        with file.open("rb") as stream:
            return FileTree("npy", "a NumPy array", (_header(stream, "array", file),))
    if head.startswith(b"PK\x03\x04"):
        return _zip(file)
    kind = container_of(file)
    return _arrow(file, kind) if kind else FileTree("other", _by_magic(file, head))


def _hdf5(file: Path) -> FileTree:
    with hdf5.open_file(file) as f:
        items = sorted(hdf5.walk(f), key=lambda item: natural(item[0]))
        nodes = tuple(Node(name, d.shape, _dtype(d)) for name, d in items if isinstance(d, h5py.Dataset))
        return FileTree("hdf5", "an HDF5 file", nodes, sum(isinstance(g, h5py.Group) for _, g in items))


def _dtype(d: h5py.Dataset) -> str:
    if h5py.check_string_dtype(d.dtype) is not None:
        return "text"
    ragged = h5py.check_vlen_dtype(d.dtype)
    return f"ragged {ragged}" if ragged is not None else "compound" if d.dtype.names else str(d.dtype)


def _zip(file: Path) -> FileTree:
    try:
        with zipfile.ZipFile(file) as archive:
            members = [m for m in archive.infolist() if m.filename.endswith(".npy")]
            if not members:
                return FileTree("other", f"a zip archive of {len(archive.infolist()):,} files: unpack it first")
            nodes = []
            for m in members:
                with archive.open(m) as stream:
                    nodes.append(_header(stream, m.filename.removesuffix(".npy"), file))
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as e:
        raise CorruptArchive(f"{file.name} is truncated or damaged: {e}", hint=f"fetch or write {file} again") from e
    return FileTree("npz", "an npz file (NumPy arrays)", tuple(sorted(nodes, key=lambda n: natural(n.name))))


def _arrow(file: Path, kind: str) -> FileTree:
    what = {"jsonl": "a file of JSON lines", "arrow": "an Arrow file"}.get(kind, f"a {IN_WORDS[kind]} file")
    try:
        with open_flat(file, fill=True) as table:
            f = cast(ArrowFile | StepBatches, table.source)
            columns = {n: c for n, c in f.columns.items() if n not in table.hidden}
            nodes = tuple(Node(n, shape, "text" if d.kind == "O" else str(d)) for n, (shape, d) in columns.items())
            nodes += tuple(Node(n, (f.num_rows,), kind) for n, kind in f.left_out.items())
    except MissingPackage:  # the kind of file is known without its package
        return FileTree("other", what)
    return FileTree(kind, what, nodes)


def _header(stream: IO[bytes], name: str, file: Path) -> Node:
    shape, dtype = unfit.npy_header(stream, name, file)
    return Node(name, shape, str(dtype))


def _by_magic(file: Path, head: bytes) -> str:
    for magic, what in _MAGIC.items():
        if head.startswith(magic):
            return what
    if is_tfrecord(file):
        return "a TFRecord"
    if head[257:262] == b"ustar":
        return "a tar archive: unpack it first"
    try:
        head.decode()
    except UnicodeDecodeError:
        return "a file of no known format"
    return "a JSON file" if head.lstrip()[:1] in (b"{", b"[") else "a text file"
