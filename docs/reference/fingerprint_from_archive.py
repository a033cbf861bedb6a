"""The fingerprint of a dataset, from its archive with h5py and NumPy alone: see fingerprint.md.

python docs/reference/fingerprint_from_archive.py FILE        an HDF5 file in one of three layouts:

    D4RL        rows of many episodes end to end, with timeouts       sample/pendulum-d4rl
    Minari      a group for each episode                              sample/cartpole-minari
    RoboHive    a group for each trial, with a NaN action at its end  sample/mountaincar-robohive
"""

import hashlib
import json
import re
import sys

import h5py
import numpy as np

TERMINATED, TRUNCATED, CUT = 0, 1, 2
FLAGS = ("next/terminated", "next/truncated")
NAMES = {
    "observations": "observation",
    "actions": "action",
    "rewards": "next/reward",
    "infos": "info",
    "env_infos": "info",
    **dict.fromkeys(("terminals", "terminations", "done"), FLAGS[0]),
    **dict.fromkeys(("timeouts", "truncations"), FLAGS[1]),
}


# -- the rows of an archive: each layout gives (rows, attributes) of its episodes


def arrays(group):
    """All datasets of a group, under the names of their fields."""
    found = {}
    group.visititems(lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None)
    parts = {tuple(name.split("/")): item for name, item in found.items()}
    return {"/".join([NAMES.get(first, first), *rest]): item for (first, *rest), item in parts.items()}


def d4rl(f):
    """Episodes end at terminals and timeouts; the last of their next observations is the final one."""
    number = len(f["actions"])
    found = {name: item[()] for name, item in arrays(f).items() if item.shape[:1] == (number,)}
    fields = {name: values for name, values in found.items() if not name.startswith("metadata/")}
    for name in ("next/reward", *FLAGS):
        fields[name] = fields[name].reshape(-1)
    fields |= {name: fields[name] != 0 for name in FLAGS}
    following = fields.pop("next_observations", None)
    ends = np.flatnonzero(fields[FLAGS[0]] | fields[FLAGS[1]] | (np.arange(number) == number - 1)) + 1
    for a, b in zip([0, *ends], ends, strict=False):
        rows = {name: values[a:b] for name, values in fields.items()}
        if following is not None:
            rows["observation"] = np.concatenate([rows["observation"], following[b - 1 : b]])
        yield rows, {}


def minari(f):
    """Every group is an episode with T+1 observations; the seed and the options are attributes."""
    for group in numbered(f):
        yield {name: item[()] for name, item in arrays(group).items()}, dict(group.attrs)


def robohive(f):
    """Every group is a trial of T+1 rows. Row t + 1 has the result of step t; the last row has no action."""
    for group in numbered(f):
        rows = {name: item[()] for name, item in arrays(group).items()}
        rows |= {name: rows[name][1:] for name in rows if name.startswith("next/")}
        rows["action"] = rows["action"][:-1]
        yield rows | {FLAGS[1]: np.zeros(len(rows["action"]), bool)}, {}


def numbered(f):
    """The groups of a file in the order of the numbers in their names."""
    return [f[name] for name in sorted(f, key=lambda name: int(re.sub(r"\D", "", name)))]


def episodes(f):
    """The rows that count of each episode by field, how it ends, its seed, and its options as JSON; None for none."""
    layout = d4rl if "actions" in f else minari if "actions" in f.get("episode_0", ()) else robohive
    for rows, attributes in layout(f):
        terminated, truncated = (rows[name].copy() for name in FLAGS)
        end = TERMINATED if terminated[-1] else TRUNCATED if truncated[-1] else CUT
        truncated[-1] |= not terminated[-1]  # an episode that is just cut is truncated, too
        options = {name.removeprefix("options/"): v for name, v in attributes.items() if name.startswith("options/")}
        text = json.dumps(options, default=lambda v: v.item(), sort_keys=True, ensure_ascii=False) if options else None
        yield rows | {FLAGS[1]: truncated}, end, attributes.get("seed"), text


# -- the fingerprint


def sha256(values):
    """Hash of the raw bytes of an array, or of bytes."""
    return hashlib.sha256(values if isinstance(values, bytes) else np.ascontiguousarray(values)).digest()


def digest(name, dtype, shape, placement, kind, content):
    """Hash of a field or a column: of a line that describes it, and of its content."""
    line = json.dumps([name, dtype, shape, placement, kind, None], separators=(",", ":"))
    return sha256(line.encode() + b"\n" + content)


def episode_digest(rows):
    """Hash of one episode of a field; rows of 4 KiB and more are hashed one by one."""
    return sha256(b"".join(map(sha256, rows)) if rows[:1].nbytes >= 4096 else rows)


def field_digest(name, values, length):
    """Hash of the hashes of a field's episodes; what is known after the last step as well is placed ``both``."""
    both = name == "observation" or len(values[0]) > length[0]
    placement = "next" if name.startswith("next/") else "both" if both else "root"
    hashes = b"".join(map(episode_digest, values))
    return digest(name, values[0].dtype.name, list(values[0].shape[1:]), placement, "array", hashes)


def column_digest(name, values):
    """Hash of a column of the episode table: of its values, or of the lengths and bytes of its texts."""
    if isinstance(values, np.ndarray):
        return digest(name, values.dtype.name, [], "episode", "array", values.tobytes())
    encoded = [None if text is None else text.encode() for text in values]
    lengths = np.array([-1 if text is None else len(text) for text in encoded], "<i8")
    return digest(name, "str", [], "episode", "text", sha256(lengths.tobytes() + b"".join(t or b"" for t in encoded)))


def fingerprint(f):
    """Hash of the digests of the fields by name, then of the columns of the episode table by name."""
    all_rows, end, seeds, options = zip(*episodes(f), strict=True)
    length = np.array([len(rows[FLAGS[0]]) for rows in all_rows], np.int64)
    observed = np.array([len(rows["observation"]) for rows in all_rows], np.int64)
    table = {"length": length, "end": np.array(end, np.uint8), "num_observed": observed}
    if any(seed is not None for seed in seeds):
        table["seed"] = np.array([seed or 0 for seed in seeds], np.uint64)
        table["has_seed"] = np.array([seed is not None for seed in seeds])
    if any(options):
        table["options"] = options
    digests = [field_digest(name, [rows[name] for rows in all_rows], length) for name in sorted(all_rows[0])]
    digests += [column_digest(name, values) for name, values in sorted(table.items())]
    return "rlds1:" + sha256(b"".join(digests)).hex()


if __name__ == "__main__":
    with h5py.File(sys.argv[1]) as file:
        print(fingerprint(file))
