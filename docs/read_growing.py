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

COMMIT = struct.Struct("<8s18qd32s4xI")
COUNTS = ("number", "rows", "episodes", "departed", "about", "sources", "strings", "first_row", "first_episode", "kept")
EPISODE = np.dtype(
    [
        *((name, "<i8") for name in ("start", "length", "num_observed", "num_transitions", "row")),
        *(("seed", "<u8"), ("total_reward", "<f8"), ("num_done", "<i8"), ("num_terminated", "<i8")),
        *(("about", "<i8"), ("about_bytes", "<i4"), ("source", "<i4")),
        *(("end", "u1"), ("has_seed", "?"), ("protected", "?"), ("open", "?"), ("born", "<u4")),
        ("id", "u1", (16,)),
    ]
)


COLUMNS = {"length": "<i8", "end": "u1", "num_observed": "<i8"}


def commit(dataset):
    """The newest whole record of the log: a commit that was killed may have left half a record behind it."""
    data, size = (dataset / "commits.log").read_bytes(), COMMIT.size
    for number in range(len(data) // size - 1, -1, -1):
        record = data[number * size : (number + 1) * size]
        _, *values, crc = COMMIT.unpack(record)
        if crc == zlib.crc32(record[:-4]) and values[0] == number:
            return dict(zip(COUNTS, values, strict=False))
    raise SystemExit(f"{dataset} has no version")


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
    known = (dataset / "strings.log").read_bytes()[: commit(dataset)["strings"]]
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


def digest(dataset, field, e):
    """Hash of an episode of one field: of the rows that count, or of the lengths and bytes of its texts."""
    count = int(e["num_observed"] if field["placement"] == "both" else e["length"])
    values = episode(dataset, e)[field["name"]][:count]
    if field["kind"] == "text":
        return text_hash(values)
    if len(values) and values[0].nbytes >= 4096:  # large rows have hashes of their own
        return hashlib.sha256(b"".join(hashlib.sha256(row.tobytes()).digest() for row in values)).digest()
    return hashlib.sha256(values.tobytes()).digest()


def text_hash(values):
    """Hash of texts: of their lengths in bytes, -1 for none, and of their bytes."""
    encoded = [None if v is None else v.encode("utf-8", "surrogateescape") for v in values]
    lengths = np.array([-1 if v is None else len(v) for v in encoded], "<i8")
    return hashlib.sha256(lengths.tobytes() + b"".join(v or b"" for v in encoded)).digest()


def columns(dataset, episodes):
    """The columns of the episode table that count: name -> dtype and content."""
    told, count = [about(dataset, e) for e in episodes], len(episodes)
    found = {name: (np.dtype(d).name, episodes[name].astype(d).tobytes()) for name, d in COLUMNS.items()}
    if episodes["has_seed"].any():
        found["seed"] = "uint64", np.where(episodes["has_seed"], episodes["seed"], 0).astype("<u8").tobytes()
        found["has_seed"] = "bool", episodes["has_seed"].tobytes()
    if any(t.get("options") for t in told):
        found["options"] = "str", text_hash([t.get("options") or None for t in told])
    for name in {name for t in told for name in t.get("splits", ())}:
        found[f"split/{name}"] = "bool", np.array([name in t.get("splits", ()) for t in told]).tobytes()
    for name in {name for t in told for name in t.get("extra", {})}:
        values = [t.get("extra", {}).get(name) for t in told]
        there = [v for v in values if v is not None]
        if isinstance(there[0], str):
            found[name] = "str", text_hash(values)
            continue
        kind = (
            "float64" if any(isinstance(v, float) for v in there) else "bool" if isinstance(there[0], bool) else "int64"
        )
        kind = "uint64" if kind == "int64" and max(there) >= 1 << 63 else kind
        filled = np.array([(np.nan if kind == "float64" else 0) if v is None else v for v in values], kind)
        missing = b"" if len(there) == count else bytes(v is None for v in values)
        found[name] = kind, filled.tobytes() + missing
    return found


def hashed(head, content):
    """Hash of a field or of a column: of a line that describes it, and of its content."""
    return hashlib.sha256(json.dumps(head, separators=(",", ":")).encode() + b"\n" + content).digest()


def fingerprint(dataset):
    """Hash of the hashes of the fields, by name, and of the columns of the episode table, by name."""
    episodes, h = kept(dataset, commit(dataset)), hashlib.sha256()
    for f in fields(dataset)[0]:
        head = [f[key] for key in ("name", "dtype", "shape", "placement", "kind", "codec")]
        h.update(hashed(head, b"".join(digest(dataset, f, e) for e in episodes)))
    for name, (dtype, content) in sorted(columns(dataset, episodes).items()):
        h.update(hashed([name, dtype, [], "episode", "text" if dtype == "str" else "array", None], content))
    return f"rlds1:{h.hexdigest()}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    for name, values in episode(path, kept(path, commit(path))[0]).items():
        print(f"{name:30} {getattr(values, 'dtype', 'text')!s:8} {np.shape(values)}")
    print(fingerprint(path))
