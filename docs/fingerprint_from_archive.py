"""The fingerprint of a dataset, from its archive with h5py and NumPy alone: see fingerprint.md.

python docs/fingerprint_from_archive.py hopper_medium-v2.hdf5           any file in D4RL's layout with timeouts
"""

import hashlib
import json
import sys

import h5py
import numpy as np

TERMINATED, TRUNCATED, CUT = 0, 1, 2
NAMES = {"observations": "observation", "actions": "action", "rewards": "next/reward", "terminals": "next/terminated"}


def digest(name, placement, values):
    """A line that describes a column, then the sha256 of each 65,536 rows of it."""
    line = [name, values.dtype.name, list(values.shape[1:]), placement, "array"]
    h = hashlib.sha256(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    for first in range(0, len(values), 65536):
        h.update(hashlib.sha256(np.ascontiguousarray(values[first : first + 65536])).digest())
    return h.digest()


def spread(values, ends, final=None):
    """T+1 rows of each episode's T: the last is the final observation, its own row again, or zeros."""
    out = []
    for first, end in zip([0, *(ends[:-1] + 1)], ends, strict=True):
        rows = values[first : end + 1]
        out += [rows, np.zeros_like(rows[-1:]) if final is None else final[end : end + 1]]
    return np.concatenate(out)


def columns(f):
    """All columns of a flat HDF5 file as TED has them, and the episode table."""
    found = []
    f.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    number = len(f["actions"])
    per_row = [name for name in found if f[name].shape[:1] == (number,) and not name.startswith("metadata")]
    terminals, timeouts = f["terminals"][:].reshape(-1) != 0, f["timeouts"][:].reshape(-1) != 0
    over = terminals | timeouts
    ends = np.flatnonzero(over)
    if not over[-1]:
        ends = np.append(ends, number - 1)  # the file stops in the middle of an episode
    finals = f["next_observations"][:] if "next_observations" in f else f["observations"][:]
    table = {
        "length": np.diff(ends, prepend=-1),
        "end": np.select([terminals[ends], timeouts[ends]], [TERMINATED, TRUNCATED], CUT).astype(np.uint8),
    }
    table["start"] = np.cumsum(table["length"] + 1) - table["length"] - 1
    table["num_observed"] = table["length"] + ("next_observations" in f)
    rows = {}
    for name in set(per_row) - {"next_observations", "timeouts"}:
        values = f[name][:]
        if name in ("rewards", "terminals"):
            values = values.reshape(-1)
        ted = NAMES.get(name, name.replace("infos", "info", 1))
        rows[ted] = spread(terminals if name == "terminals" else values, ends, finals if ted == "observation" else None)
    truncated = np.zeros(number, bool)
    truncated[ends] = timeouts[ends] | ~terminals[ends]  # an episode that is just cut is truncated, too
    rows["next/truncated"] = spread(truncated, ends)
    return rows, table


def fingerprint(f):
    """Hash of the digests of the fields by name, then of the columns of the episode table by name."""
    rows, table = columns(f)
    placement = {name: "next" if name.startswith("next/") else "root" for name in rows} | {"observation": "both"}
    digests = [digest(name, placement[name], rows[name]) for name in sorted(rows)]
    digests += [digest(name, "episode", table[name]) for name in sorted(table)]
    return "rlds1:" + hashlib.sha256(b"".join(digests)).hexdigest()


if __name__ == "__main__":
    with h5py.File(sys.argv[1]) as file:
        print(fingerprint(file))
