"""A dataset that grows in a page of NumPy: any field of any episode, and the fingerprint. See format.md.

python docs/read_growing.py ~/.cache/rlds/datasets/local/run7
"""

import hashlib
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np

GENERATION = struct.Struct("<8s18qd32s4xI")
COUNTS = ("number", "rows", "episodes", "departed", "about", "sources", "strings", "first_row", "first_episode", "kept")
EPISODE = np.dtype(
    [
        *((name, "<i8") for name in ("start", "length", "num_observed", "num_transitions", "row")),
        *(("seed", "<u8"), ("total_reward", "<f8"), ("num_done", "<i8"), ("num_terminated", "<i8")),
        *(("about", "<i8"), ("about_bytes", "<i4"), ("source", "<i4")),
        *(("end", "u1"), ("has_seed", "?"), ("protected", "?"), ("open", "?"), ("unused", "V4"), ("digest", "V32")),
    ]
)


def generation(dataset):
    """The newest whole record of the log: a commit that was killed may have left half a record behind it."""
    data, size = (dataset / "generations.log").read_bytes(), GENERATION.size
    for number in range(len(data) // size - 1, -1, -1):
        record = data[number * size : (number + 1) * size]
        _, *values, crc = GENERATION.unpack(record)
        if crc == zlib.crc32(record[:-4]) and values[0] == number:
            return dict(zip(COUNTS, values, strict=False))
    raise SystemExit(f"{dataset} has no generation")


def fields(dataset):
    """All fields, sorted by name, and the rows of a segment."""
    manifest = json.loads((dataset / "zarr.json").read_text())["attributes"]["rlds"]
    return sorted(manifest["fields"], key=lambda f: f["name"]), manifest["growing"]["segment_rows"]


def kept(dataset, g):
    """The records of the episodes that are kept."""
    e = np.fromfile(dataset / "episodes.log", EPISODE, g["episodes"])
    stays = np.arange(len(e)) >= g["first_episode"]
    stays[np.fromfile(dataset / "departed.log", "<i8", g["departed"])] = False
    return e[stays]


def rows(dataset, field, segment_rows, first, stop):
    """Rows of a field, from the files of its segments: K holds the rows from K * segment_rows on."""
    dtype, shape = np.dtype("<i4" if field["kind"] == "text" else field["dtype"]), tuple(field["shape"])
    parts = []
    for k in range(first // segment_rows, (stop - 1) // segment_rows + 1):
        file = dataset.joinpath(field["path"], "c", str(k), *["0"] * len(shape))
        segment = np.memmap(file, dtype.newbyteorder("<"), "r", shape=(segment_rows, *shape))
        parts.append(segment[max(0, first - k * segment_rows) : stop - k * segment_rows])
    return np.concatenate(parts)


def texts(dataset, field, codes):
    """The strings of a text field for codes; -1 is no text."""
    known = (dataset / "strings.log").read_bytes()[: generation(dataset)["strings"]]
    lines = map(json.loads, known.splitlines())
    table = [*(text for name, text in lines if name == field["name"]), None]
    return [table[code] for code in codes]


def about(dataset, e):
    """What the fixed records have no place for: group, options, splits, extra."""
    with (dataset / "about.log").open("rb") as file:
        file.seek(int(e["about"]))
        return json.loads(file.read(int(e["about_bytes"])) or "{}")


def episode(dataset, e):
    """All T+1 rows of every field of an episode."""
    known, segment_rows = fields(dataset)
    first, stop = int(e["start"]), int(e["start"] + e["length"] + 1)
    found = {f["name"]: rows(dataset, f, segment_rows, first, stop) for f in known}
    return found | {f["name"]: texts(dataset, f, found[f["name"]]) for f in known if f["kind"] == "text"}


def digest(dataset, e):
    """Hash of an episode: a line of what is known of it, then the hash of the rows of each field by name."""
    told = about(dataset, e)
    seed = int(e["seed"]) if e["has_seed"] else None
    head = [*(int(e[name]) for name in ("length", "end", "num_observed")), seed, told.get("options")]
    h = hashlib.sha256(json.dumps([*head, sorted(told.get("splits", []))], separators=(",", ":")).encode() + b"\n")
    for _, values in sorted(episode(dataset, e).items()):
        data = json.dumps(values).encode() if isinstance(values, list) else values.tobytes()
        h.update(hashlib.sha256(data).digest())
    return h.digest()


def fingerprint(dataset):
    """Hash of the fields, and of the sums over all episodes of 1,024 numbers that follow from each one's digest."""
    sums = np.zeros(1024, "<u2")
    for e in kept(dataset, generation(dataset)):
        sums += np.frombuffer(hashlib.shake_128(digest(dataset, e)).digest(2048), "<u2")
    described = [[f[key] for key in ("name", "dtype", "shape", "placement", "kind")] for f in fields(dataset)[0]]
    line = json.dumps(described, separators=(",", ":")).encode() + b"\n"
    return "rlds2:" + hashlib.sha256(line + sums.tobytes()).hexdigest()


if __name__ == "__main__":
    path = Path(sys.argv[1])
    for name, values in episode(path, kept(path, generation(path))[0]).items():
        print(f"{name:30} {getattr(values, 'dtype', 'text')!s:8} {np.shape(values)}")
    print(fingerprint(path))
