"""The format of a dataset in a page of NumPy: any field of any episode, and the fingerprint. See format.md.

python docs/read_with_numpy.py ~/.cache/rlds/datasets/d4rl/hopper-medium-v2
"""

import hashlib
import json
import sys
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import numpy as np


def array(path):
    """The rows of an array: its one file starts with them, little-endian, in C order."""
    about = json.loads((path / "zarr.json").read_text())
    shape, dtype = tuple(about["shape"]), np.dtype(about["data_type"]).newbyteorder("<")
    file = path.joinpath("c", *["0"] * len(shape))
    return np.memmap(file, dtype, "r", shape=shape) if 0 not in shape else np.zeros(shape, dtype)


def ragged(path):
    """Encoded frames or strings: their bytes lie end to end, and offsets say where each begins."""
    data, offsets = array(path / "bytes").tobytes(), array(path / "offsets").tolist()
    return [data[a:b] for a, b in pairwise(offsets)]


def rows(dataset, field):
    """One value per row of the store: an array, or a list of bytes for frames and text."""
    if field["codec"] == "mp4":  # number of the video (its file: ragged(dataset / "video" / path)) and of the frame
        return array(dataset / field["path"])
    if field["kind"] == "text":
        table = [*ragged(dataset / "text" / field["path"]), None]  # code -1: no text
        return [table[code] for code in array(dataset / field["path"])]
    return (ragged if field["kind"] == "frames" else array)(dataset / field["path"])


def fields(dataset):
    """All fields, sorted by name."""
    manifest = json.loads((dataset / "zarr.json").read_text())["attributes"]["rlds"]
    return sorted(manifest["fields"], key=lambda f: f["name"])


def episode(dataset, k):
    """T+1 rows of what is known at both ends of a step, T rows of what belongs to the step."""
    start, length = (int(array(dataset / "episodes" / name)[k]) for name in ("start", "length"))
    return {f["name"]: rows(dataset, f)[start : start + length + (f["placement"] == "both")] for f in fields(dataset)}


def digest(name, dtype, shape, placement, kind, values, videos=()):
    """Hash of a column: a line that describes it, then the hashes of its blocks of 65,536 rows."""
    h = hashlib.sha256(json.dumps([name, dtype, shape, placement, kind], separators=(",", ":")).encode() + b"\n")
    for block in (values[a : a + 65536] for a in range(0, len(values), 65536)):
        if isinstance(block, list):
            lengths = np.array([-1 if v is None else len(v) for v in block], "<i8")
            h.update(hashlib.sha256(lengths.tobytes() + b"".join(v or b"" for v in block)).digest())
        else:
            h.update(hashlib.sha256(np.ascontiguousarray(block)).digest())
    for video in videos:
        h.update(hashlib.sha256(video).digest())
    return h.digest()


def videos(dataset, field):
    """The MP4 files of a field whose frames are in videos."""
    return ragged(dataset / "video" / field["path"]) if field["codec"] == "mp4" else ()


def fingerprint(dataset):
    """Hash of the digests of all fields, then of the columns of the episode table that are content, by name."""
    head = ("name", "dtype", "shape", "placement", "kind")
    digests = [digest(*(f[key] for key in head), rows(dataset, f), videos(dataset, f)) for f in fields(dataset)]
    table, content = dataset / "episodes", {"start", "length", "end", "num_observed", "seed", "has_seed", "options"}
    columns = {unquote(path.relative_to(table).as_posix()): path for path in table.glob("**/")}
    for name, path in sorted(columns.items()):
        if name == "options":
            digests.append(digest(name, "str", [], "episode", "text", [v or None for v in ragged(path)]))
        elif name in content or (name.count("/") == 1 and name.startswith("split/")):
            digests.append(digest(name, array(path).dtype.name, [], "episode", "array", array(path)))
    return "rlds1:" + hashlib.sha256(b"".join(digests)).hexdigest()


if __name__ == "__main__":
    for name, values in episode(Path(sys.argv[1]), 0).items():
        print(f"{name:30} {getattr(values, 'dtype', 'bytes')!s:8} {np.shape(values)}")
    print(fingerprint(Path(sys.argv[1])))
