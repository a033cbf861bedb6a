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


def sha256(values):
    """Hash of the raw bytes of an array."""
    return hashlib.sha256(np.ascontiguousarray(values)).digest()


def digest(name, shape, dtype, placement, content):
    """Hash of a column: of a line that describes it, and of its content."""
    line = json.dumps([name, dtype.name, list(shape), placement, "array", None], separators=(",", ":"))
    return hashlib.sha256(line.encode() + b"\n" + content).digest()


def episode_digest(rows):
    """Hash of one episode of a field; rows of 4 KiB and more are hashed one by one."""
    if rows[:1].nbytes < 4096:
        return sha256(rows)
    return hashlib.sha256(b"".join(map(sha256, rows))).digest()


def episodes(f):
    """The rows of each field of a flat HDF5 file, episode by episode, and the episode table."""
    found = []
    f.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    number = len(f["actions"])
    per_row = [name for name in found if f[name].shape[:1] == (number,) and not name.startswith("metadata")]
    terminals, timeouts = f["terminals"][:].reshape(-1) != 0, f["timeouts"][:].reshape(-1) != 0
    over = terminals | timeouts
    ends = np.flatnonzero(over)
    if not over[-1]:
        ends = np.append(ends, number - 1)  # the file stops in the middle of an episode
    starts, stops = np.concatenate([[0], ends[:-1] + 1]), ends + 1
    table = {
        "length": stops - starts,
        "end": np.select([terminals[ends], timeouts[ends]], [TERMINATED, TRUNCATED], CUT).astype(np.uint8),
    }
    table["num_observed"] = table["length"] + ("next_observations" in f)
    fields = {}
    for name in set(per_row) - {"next_observations", "timeouts"}:
        values = f[name][:]
        if name in ("rewards", "terminals"):
            values = values.reshape(-1)
        values = terminals if name == "terminals" else values
        fields[NAMES.get(name, name.replace("infos", "info", 1))] = [
            values[a:b] for a, b in zip(starts, stops, strict=True)
        ]
    truncated = np.zeros(number, bool)
    truncated[ends] = timeouts[ends] | ~terminals[ends]  # an episode that is just cut is truncated, too
    fields["next/truncated"] = [truncated[a:b] for a, b in zip(starts, stops, strict=True)]
    if "next_observations" in f:  # the last one is recorded as well
        final = f["next_observations"][:][ends]
        fields["observation"] = [np.concatenate([v, final[[k]]]) for k, v in enumerate(fields["observation"])]
    return fields, table


def fingerprint(f):
    """Hash of the digests of the fields by name, then of the columns of the episode table by name."""
    fields, table = episodes(f)
    placement = {name: "next" if name.startswith("next/") else "root" for name in fields} | {"observation": "both"}
    digests = []
    for name, values in sorted(fields.items()):
        hashes = b"".join(map(episode_digest, values))
        digests.append(digest(name, values[0].shape[1:], values[0].dtype, placement[name], hashes))
    for name, column in sorted(table.items()):
        digests.append(digest(name, (), column.dtype, "episode", column.tobytes()))
    return "rlds1:" + hashlib.sha256(b"".join(digests)).hexdigest()


if __name__ == "__main__":
    with h5py.File(sys.argv[1]) as file:
        print(fingerprint(file))
