"""Archives of single families for ``fuzz.py``: robomimic, RoboHive, d3rlpy, V-D4RL, TorchRL, and Minari's Arrow."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives import Archive, Plan, Reader, Replan
from rlds_cli.archives import reader as reader_of

Targets = dict[str, tuple[tuple[bytes, ...], Callable[[bytes], object]]]

ROWS = 4
LAST = np.arange(ROWS) == ROWS - 1
CLASS = "<class 'tensordict._td.TensorDict'>"


def imported(reader: str, files: Mapping[str, bytes]) -> None:
    """All that a conversion does with an archive of several files behind the boundary of readers."""
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory, name) for name in files]
        for path, content in zip(paths, files.values(), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        module = reader_of(reader)
        module.recognise(paths)
        plan = module.plan(Archive(Path(directory), tuple(paths)))
        try:
            _read(module, plan)
        except Replan as e:
            _read(module, e.plan)
        dict(module.metadata(plan))


def _read(module: Reader, plan: Plan) -> None:
    for part in plan.parts:
        for _ in module.read(plan, part):
            pass


def importing(reader: str, name: str, beside: Mapping[str, bytes] | None = None) -> Callable[[bytes], object]:
    """What imports an input under a name, among other files."""
    return lambda content: imported(reader, {**(beside or {}), name: content})


def hdf5(**columns: object) -> bytes:
    """An HDF5 file; a column is an array, or options of h5py's ``create_dataset``; ``PATH@NAME`` is an attribute."""
    file = io.BytesIO()
    with h5py.File(file, "w") as f:
        for key, value in columns.items():
            path, _, name = key.partition("@")
            if name:
                f.require_group(path).attrs[name] = value
            elif isinstance(value, dict):
                f.create_dataset(key, **value)
            else:
                f[key] = value
        f.attrs["names"] = ["x", "yz"]
    return file.getvalue()


def _robomimic() -> bytes:
    env = json.dumps({"env_name": "Lift", "env_type": 1, "env_kwargs": {"horizon": 5}})
    columns: dict[str, object] = {"data@env_args": env, "mask/train": np.array(["demo_0"], "S")}
    for k in range(2):
        walk = np.arange(2.0 * (ROWS + 1)).reshape(-1, 2) + k
        columns |= {
            f"data/demo_{k}/obs/eef": walk[:-1],
            f"data/demo_{k}/next_obs/eef": walk[1:],
            f"data/demo_{k}/actions": np.zeros((ROWS, 1)),
            f"data/demo_{k}/rewards": np.ones(ROWS),
            f"data/demo_{k}/dones": LAST.astype(int),
            f"data/demo_{k}@num_samples": ROWS,
        }
    return hdf5(**columns)


def _roboset() -> bytes:
    """Two trials as RoboHive writes them: infos are those of the step after."""
    columns: dict[str, object] = {}
    for k in range(2):
        seen = np.arange(3.0 * (ROWS + 1)).reshape(-1, 3) + k
        columns |= {
            f"Trial{k}/observations": seen[:-1],
            f"Trial{k}/actions": np.zeros((ROWS, 2)),
            f"Trial{k}/rewards": np.ones(ROWS),
            f"Trial{k}/done": LAST,
            f"Trial{k}/time": np.arange(ROWS) / 10,
            f"Trial{k}/env_infos/obs_dict/door": seen[1:, 1:2],
            f"Trial{k}/env_infos/solved": LAST,
            f"Trial{k}/env_infos/time": np.arange(ROWS) / 10,
        }
    return hdf5(**columns)


def _d3rlpy_flat() -> bytes:
    ends = np.tile(LAST, 2).astype("f4")
    return hdf5(
        observations=np.ones((2 * ROWS, 4), "f4"),
        actions=np.ones((2 * ROWS, 1), "i4"),
        rewards=np.ones(2 * ROWS, "f4"),
        terminals=ends,
        episode_terminals=ends,
        discrete_action=True,
        version=b"1.0",
    )


def _d3rlpy_buffer() -> bytes:
    columns: dict[str, object] = {"columns": ["observations", "actions", "rewards", "terminated"], "num_episodes": 2}
    for k in range(2):
        columns |= {
            f"observations_{k}": np.ones((ROWS, 2), "f4"),
            f"actions_{k}": np.ones((ROWS, 1), "f4"),
            f"rewards_{k}": np.ones((ROWS, 1), "f4"),
            f"terminated_{k}": bool(k),
        }
    return hdf5(**columns, version="2.1")


def _vd4rl_rows() -> dict[str, Any]:
    return {
        "action": np.zeros((ROWS, 2), "f4"),
        "reward": np.zeros(ROWS, "f4"),
        "discount": np.ones(ROWS, "f4"),
    }


def _vd4rl_file() -> bytes:
    first = np.arange(ROWS) == 0
    more: dict[str, Any] = {"is_first": first, "is_last": LAST, "is_terminal": np.zeros(ROWS, bool)}
    file = io.BytesIO()
    np.savez_compressed(file, image=np.zeros((ROWS, 6, 6, 3), "u1"), **_vd4rl_rows(), **more)
    return file.getvalue()


def _vd4rl_shard() -> bytes:
    kinds = np.ones(ROWS)
    kinds[0], kinds[-1] = 0, 2
    frames = np.zeros((ROWS, 3, 6, 6), "u1")
    return hdf5(observation={"data": frames, "compression": "gzip"}, step_type=kinds, **_vd4rl_rows())


def _torchrl(more: int = 2) -> dict[str, bytes]:
    """A dump of a replay buffer that has room for some rows more."""
    room = ROWS + more
    ends = np.append(LAST, np.zeros(more, bool))[:, None]
    tensors = {
        "observation": np.arange(2 * room, dtype="f4").reshape(-1, 2),
        "action": np.zeros((room, 1), "f4"),
        **{name: np.zeros((room, 1), bool) for name in ("done", "terminated", "truncated")},
        "next/observation": np.arange(2, 2 * room + 2, dtype="f4").reshape(-1, 2),
        "next/reward": np.ones((room, 1), "f4"),
        **{f"next/{name}": ends for name in ("done", "terminated")},
        "next/truncated": np.zeros((room, 1), bool),
    }
    kinds = {"f": "torch.float32", "b": "torch.bool"}
    described: dict[str, dict[str, object]] = {"": {"next": {"type": "TensorDict"}}, "next/": {}}
    for key, values in tensors.items():
        above, name = ("next/", key[5:]) if key.startswith("next/") else ("", key)
        shape = list(values.shape)
        described[above][name] = {
            "device": "cpu",
            "shape": shape,
            "dtype": kinds[values.dtype.kind],
            "is_nested": False,
        }
    about = {"shape": [room], "device": "cpu", "_type": CLASS}
    return {
        "buffer_metadata.json": b'{"batch_size": 8, "consume_after_n_samples": null}',
        "storage/storage_metadata.json": json.dumps({"metadata": {}, "is_pytree": False, "len": ROWS}).encode(),
        "writer/metadata.json": json.dumps({"cursor": ROWS, "write_count": ROWS}).encode(),
        **{f"storage/{above}meta.json": json.dumps({**d, **about}).encode() for above, d in described.items()},
        **{f"storage/{key}.memmap": values.tobytes() for key, values in tensors.items()},
    }


def _exported() -> tuple[bytes, dict[str, bytes]]:
    """The description of an exported TensorDict, and its other files."""
    files = {name.removeprefix("storage/"): data for name, data in _torchrl(0).items() if name.startswith("storage/")}
    fields = [
        {"name": name, "dtype": dtype, "shape": shape, "placement": placement, "kind": "array"}
        for name, dtype, shape, placement in (
            ("action", "float32", [1], "root"),
            ("observation", "float32", [2], "both"),
            *((f"next/{name}", "bool", [], "next") for name in ("terminated", "truncated")),
            ("next/reward", "float32", [], "next"),
        )
    ]
    episodes = {"length": [ROWS], "end": "0", "observed": "1", "seed": [3], "options": ["{}"], "splits": {"train": "1"}}
    columns, metadata = {"task": ["push"]}, {"texts": {"model": "<xml/>"}, "arrays": {}}
    about = {"version": 1, "form": "memmap", "fields": fields, "episodes": {**episodes, "columns": columns}}
    described = json.dumps({**about, "spaces": {}, "env": {}, "metadata": metadata}).encode()
    return described, {"rlds_episodes.json": described, **files}


def _arrow(compression: str | None) -> bytes:
    import pyarrow as pa

    table = pa.table(
        {
            "observations": pa.array([[0.5, 1.0]] * (ROWS + 1), pa.list_(pa.float32(), 2)),
            "actions": pa.array([0] * (ROWS + 1)),
            "rewards": [1.0] * (ROWS + 1),
            "terminations": [*LAST.tolist(), False],
            "truncations": [False] * (ROWS + 1),
        }
    )
    file = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2)
    return file.getvalue()


def targets(minari: bytes) -> Targets:
    """The targets by name: valid inputs, and what is done with others; ``minari`` describes a dataset of Minari."""
    dump, (exported, beside_it) = _torchrl(), _exported()
    described = json.loads(minari) | {"total_episodes": 1, "total_steps": ROWS, "data_format": "arrow"}
    beside = {
        "metadata.json": json.dumps(described).encode(),
        "0/metadata.json": json.dumps({"id": 0, "total_steps": ROWS}).encode(),
    }
    return {
        "robomimic": ((_robomimic(),), importing("robomimic", "x.hdf5")),
        "roboset": ((_roboset(),), importing("roboset", "x.h5")),
        "d3rlpy": ((_d3rlpy_flat(), _d3rlpy_buffer()), importing("d3rlpy", "x.h5")),
        "vd4rl": ((_vd4rl_file(),), importing("vd4rl", f"20220101T000000-{0:032x}-{ROWS}.npz")),
        "vd4rl_shard": ((_vd4rl_shard(),), importing("vd4rl", "0.hdf5")),
        "torchrl": ((dump["storage/meta.json"],), importing("torchrl", "storage/meta.json", dump)),
        "torchrl_next": ((dump["storage/next/meta.json"],), importing("torchrl", "storage/next/meta.json", dump)),
        **{
            f"torchrl_{name}": ((dump[path],), importing("torchrl", path, dump))
            for name, path in (("storage", "storage/storage_metadata.json"), ("writer", "writer/metadata.json"))
        },
        "torchrl_exported": ((exported,), importing("torchrl", "rlds_episodes.json", beside_it)),
        "arrow": ((_arrow(None), _arrow("zstd")), importing("minari", "0/part-0.arrow", beside)),
    }
