"""The format of a dataset in a page of NumPy: any field of any episode, and the fingerprint. See format.md.

python docs/read_with_numpy.py ~/.cache/rlds/datasets/d4rl/hopper-medium-v2
"""

import hashlib
import json
import sys
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote, unquote

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


def sha256(values):
    """Hash of the raw bytes of an array, or of bytes."""
    return hashlib.sha256(values if isinstance(values, bytes) else np.ascontiguousarray(values)).digest()


def texts_digest(values):
    """Hash of texts: their lengths in bytes, -1 for none, then their bytes."""
    lengths = np.array([-1 if v is None else len(v) for v in values], "<i8")
    return sha256(lengths.tobytes() + b"".join(v or b"" for v in values))


def episode_digest(field, values, videos):
    """Hash of one episode of a field: of its rows, or of the hashes of its rows where these are large or encoded."""
    if field["kind"] == "text":
        return texts_digest(values)
    if field["codec"] == "mp4":  # the hash of the video's file, and the number of the frame
        return sha256(b"".join((videos[n] if n >= 0 else bytes(32)) + k.tobytes() for n, k in values.astype("<i4")))
    if field["kind"] == "frames" or values[:1].nbytes >= 4096:
        return sha256(b"".join(map(sha256, values)))
    return sha256(values)


def digest(head, content):
    """Hash of a field or a column: of a line that describes it, and of its content."""
    return sha256(json.dumps(head, separators=(",", ":")).encode() + b"\n" + content)


def field_digest(dataset, field):
    """Hash of the hashes of a field's episodes: T rows of each, or as many as there are observations."""
    table, values = dataset / "episodes", rows(dataset, field)
    videos = [sha256(v) for v in ragged(dataset / "video" / field["path"])] if field["codec"] == "mp4" else []
    count = array(table / ("num_observed" if field["placement"] == "both" else "length"))
    spans = zip(array(table / "start"), count, strict=True)
    head = [field[key] for key in ("name", "dtype", "shape", "placement", "kind", "codec")]
    return digest(head, b"".join(episode_digest(field, values[a : a + n], videos) for a, n in spans))


def column_digest(path, name, missing):
    """Hash of a column of the episode table; ``missing`` [episodes] says which episodes have no value."""
    if (path / "bytes").exists():
        texts = [None if no else v for v, no in zip(ragged(path), missing, strict=True)]
        return digest([name, "str", [], "episode", "text", None], texts_digest(texts))
    values = array(path)
    mask = missing.tobytes() if missing.any() else b""
    return digest([name, values.dtype.name, [], "episode", "array", None], values.tobytes() + mask)


def columns(dataset):
    """The columns of the episode table that are content: TED's, splits, and the user's own; with missing values."""
    table, manifest = dataset / "episodes", json.loads((dataset / "zarr.json").read_text())["attributes"]["rlds"]
    none = np.zeros(manifest["counts"]["episodes"], bool)
    found = {name: none for name in ("length", "end", "num_observed", "seed", "has_seed", "options")}
    found |= {f"split/{unquote(path.name)}": none for path in (table / "split").glob("*/")}
    found |= dict.fromkeys(manifest.get("episode_columns", {}), none)
    for name in found:
        path = table.joinpath(*(quoted(part) for part in name.split("/", 1)))
        if not path.exists():
            continue
        mask = table / "missing" / path.name
        missing = array(mask) if mask.exists() else none
        if name == "options":
            missing = np.array([not v for v in ragged(path)], bool)
        yield name, path, missing


def quoted(name):
    """The directory of a column: unusual characters are percent-encoded."""
    return quote(name, safe="-_.+=@,~")


def fingerprint(dataset):
    """Hash of the digests of all fields, then of the columns of the episode table, by name."""
    of_columns = {name: column_digest(path, name, missing) for name, path, missing in columns(dataset)}
    digests = [field_digest(dataset, f) for f in fields(dataset)] + [of_columns[name] for name in sorted(of_columns)]
    return "rlds1:" + sha256(b"".join(digests)).hex()


if __name__ == "__main__":
    for name, values in episode(Path(sys.argv[1]), 0).items():
        print(f"{name:30} {getattr(values, 'dtype', 'bytes')!s:8} {np.shape(values)}")
    print(fingerprint(Path(sys.argv[1])))
