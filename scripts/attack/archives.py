"""Archives of strangers: small files that ask for much, reach elsewhere, or are not what they say."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
import zlib
from pathlib import Path

import h5py
import numcodecs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from PIL import Image
from scene import Scene, attacks, rewrite

import rlds_cli

ATTACKS, attack = attacks()

STEPS = 100


def flat(file: Path, **extra: np.ndarray) -> Path:
    """A sound HDF5 file of two episodes, and what is given with it."""
    with h5py.File(file, "w") as f:
        f["observation"] = np.arange(STEPS * 2, dtype=np.float32).reshape(STEPS, 2)
        f["action"] = np.zeros((STEPS, 1), np.float32)
        f["reward"] = np.ones(STEPS, np.float32)
        f["terminated"] = np.arange(STEPS) % 50 == 49
        f["truncated"] = np.zeros(STEPS, bool)
        for name, values in extra.items():
            f[name] = values
    return file


def brought_in(scene: Scene, path: Path, *options: str) -> bool:
    """Whether a file or directory is imported; it is looked at, too."""
    scene.run("inspect", path)
    result = scene.run("import", path, "--name", "local/evil", *options)
    if result.code == 0:
        scene.run("verify", "local/evil")
        scene.run("inspect", "local/evil")
        scene.run("rm", "local/evil", "--yes")
    elif (scene.home / "datasets" / "local" / "evil").exists():
        scene.fault("a dataset was published and then the import failed")
    return result.code == 0


@attack()
def names_without_an_end(scene: Scene) -> None:
    """Names of fields that are deeper, or longer, than directories can be."""
    with h5py.File(flat(scene.work / "sound.h5"), "r") as f:
        sound = {name: f[name][()] for name in f}
    for name in ("a/" * 2000 + "b", "/".join(["x" * 150] * 30), "\u4e2d" * 5000):
        np.savez(scene.work / "names.npz", **sound, **{f"info/{name}": np.zeros(STEPS)})
        brought_in(scene, scene.work / "names.npz")
        brought_in(scene, flat(scene.work / "names.h5", **{f"info/{name}": np.zeros(STEPS)}))


@attack()
def strings_that_share_their_bytes(scene: Scene) -> None:
    """40,000 strings of one megabyte each, which are all the same bytes of the file."""
    for steps in (STEPS, 40_000):
        file = scene.work / f"strings{steps}.h5"
        with h5py.File(flat(file), "a") as f:
            if steps != STEPS:
                for name in list(f):
                    values = np.resize(f[name][:], (steps, *f[name].shape[1:]))
                    del f[name]
                    f[name] = values
            text = f.create_dataset("info/text", (steps,), h5py.string_dtype())
            text[0] = "x" * (1 << 20)
            text[1:] = [""] * (steps - 1)
            f.flush()
            offset = text.id.get_offset()
        data = bytearray(file.read_bytes())
        data[offset : offset + 16 * steps] = bytes(data[offset : offset + 16]) * steps
        file.write_bytes(bytes(data))
        brought_in(scene, file)


@attack()
def dictionaries_of_parquet(scene: Scene) -> None:
    """Rows that repeat one long value, which takes a few bytes each in the file."""
    for rows, size in ((STEPS, 1 << 20), (8000, 1 << 20), (1_000_000, 1 << 16)):
        value = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * size]))
        columns = {
            "observation": pa.array(np.zeros(rows, np.float32)),
            "action": pa.array(np.zeros(rows, np.float32)),
            "reward": pa.array(np.zeros(rows, np.float32)),
            "terminated": pa.array(np.arange(rows) % 50 == 49),
            "text": value,
        }
        file = scene.work / f"rows{rows}.parquet"
        pq.write_table(pa.table(columns), file, compression="zstd")
        brought_in(scene, file)


@attack(quick=True)
def links_of_hdf5(scene: Scene) -> None:
    """Groups that two links each lead to: a path for every combination."""
    file = flat(scene.work / "links.h5")
    with h5py.File(file, "a") as f:
        group = f.create_group("info/g")
        for _ in range(60):
            below = group.create_group("a")
            group["b"] = below
            group = below
        group["x"] = np.zeros(STEPS, np.float32)
        f["info/loop"] = f["info"]
    brought_in(scene, file)


@attack(quick=True)
def values_of_other_files(scene: Scene) -> None:
    """Columns that lie in files of the user's."""
    size = scene.key.stat().st_size
    for kind in ("external", "link", "virtual", "soft"):
        file = flat(scene.work / f"{kind}.h5")
        with h5py.File(file, "a") as f:
            if kind == "external":
                f.create_dataset("info/key", (size,), np.uint8, external=[(str(scene.key), 0, size)])
            elif kind == "link":
                f["info/key"] = h5py.ExternalLink(str(scene.key), "/")
            elif kind == "soft":
                f["info/key"] = h5py.SoftLink("/info/key")
            else:
                layout = h5py.VirtualLayout((STEPS,), np.float32)
                layout[:] = h5py.VirtualSource(str(scene.work / "external.h5"), "action", (STEPS,))
                f.create_virtual_dataset("info/key", layout)
        brought_in(scene, file)


@attack(quick=True)
def images_of_other_directories(scene: Scene) -> None:
    """Tables whose cameras are pictures of the user's: by name, by a link to a picture, to a folder, to a video."""
    private = scene.work / "private"
    private.mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)
    Image.fromarray(pixels).save(private / "me.png")
    for kind in ("name", "absolute", "link", "folder", "video"):
        table = scene.work / kind
        (table / "frames").mkdir(parents=True)
        Image.fromarray(np.zeros((24, 32, 3), np.uint8)).save(table / "frames" / "0.png")
        named = {"name": "../private/me.png", "absolute": f"{private}/me.png"}.get(kind, "frames/0.png")
        lines = ["observation.x,observation.cam,action,episode", *(f"{t},{named},0,0" for t in range(2))]
        (table / "log.csv").write_text("\n".join(lines) + "\n")
        if kind == "link":
            (table / "frames" / "1.png").symlink_to(private / "me.png")
        elif kind == "folder":
            (table / "other").symlink_to(private)
        elif kind == "video":
            (table / "other.mp4").symlink_to(private / "me.png")
        scene.run("inspect", table / "log.csv")
        if scene.run("import", table, "--name", "local/evil").code == 0:
            ds = rlds_cli.open_dataset("local/evil", home=scene.home)
            for name, f in ds.schema.items():
                if f.kind == "frames" and any((x == pixels).all() for x in ds.gather(name, np.arange(2))):
                    scene.fault(f"a picture of the user's is in {name} ({kind})")
            scene.run("rm", "local/evil", "--yes")


@attack()
def shapes_that_nothing_has(scene: Scene) -> None:
    """Columns of HDF5 and NumPy that claim more than memory."""
    for shape, chunks in (((STEPS, 1 << 40), (1, 1 << 20)), ((1 << 40, 2), (1 << 10, 2)), ((STEPS, 1 << 30), None)):
        file = flat(scene.work / "shapes.h5")
        with h5py.File(file, "a") as f:
            f.create_dataset("info/huge", shape, np.uint8, chunks=chunks)
        brought_in(scene, file)
    header = str({"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 1 << 40)}).encode()
    npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n"
    for name in ("observation", "info"):
        file = scene.work / "huge.npz"
        columns = {"observation": np.zeros((STEPS, 2)), "action": np.zeros(STEPS), "reward": np.zeros(STEPS)}
        np.savez(file, **columns, terminated=np.arange(STEPS) % 50 == 49)
        import zipfile

        with zipfile.ZipFile(file, "a") as z:
            z.writestr(f"{name}2.npy", npy)
        brought_in(scene, file)


@attack()
def texts_without_lines(scene: Scene) -> None:
    """CSV and JSON lines of one line, and of deep values."""
    for name, text in (
        ("long.csv", "observation,action,reward,terminated\n" + "1" * (300 << 20)),
        ("quoted.csv", 'observation,action,reward,terminated\n"' + "x\n" * (20 << 20)),
        ("wide.csv", ",".join(f"c{k}" for k in range(300_000)) + "\n" + ",".join("1" * 300_000) + "\n"),
        ("deep.jsonl", "[" * 200_000),
        ("long.jsonl", '{"observation": ' + "9" * (100 << 20)),
    ):
        file = scene.work / name
        file.write_text(text)
        brought_in(scene, file)
        file.unlink()


@attack(quick=True)
def descriptions_of_other_types(scene: Scene) -> None:
    """JSON of Minari and LeRobot with values of other types."""
    source = scene.home / "archives" / "sample" / "cartpole-minari"
    for change in (
        {"max_episode_steps": "x"},
        {"total_episodes": "x"},
        {"observation_space": 5},
        {"author": {"a": []}},
    ):
        copy = scene.work / "minari"
        shutil.copytree(source, copy)
        for file in copy.rglob("metadata.json"):
            rewrite(file, lambda d, c=change: d.update(c))  # type: ignore[misc]
        brought_in(scene, copy)
        shutil.rmtree(copy)
    for info in (7, [], {}, {"codebase_version": 5}, {"codebase_version": "v2.1", "features": "x", "fps": "x"}):
        copy = scene.work / "lerobot"
        (copy / "meta").mkdir(parents=True)
        (copy / "data").mkdir()
        (copy / "meta" / "info.json").write_text(json.dumps(info))
        if brought_in(scene, copy):
            scene.fault(f"info.json of {info!r} was imported")
        shutil.rmtree(copy)


@attack()
def chunks_that_are_packed_twice(scene: Scene) -> None:
    """Chunks of HDF5 whose filters follow one another so that nobody can count what they become."""
    packed = b"".join(map((bomb := zlib.compressobj(9)).compress, [bytes(1 << 24)] * 192)) + bomb.flush()
    packed += bytes(-len(packed) % 4)
    shuffled = np.frombuffer(packed, np.uint8).reshape(-1, 4).T.tobytes()
    for second, data in (("deflate", zlib.compress(packed, 9)), ("shuffle", shuffled)):
        file = flat(scene.work / f"{second}.h5")
        with h5py.File(file, "a") as f:
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((10,))
            plist.set_deflate(9)
            plist.set_deflate(9) if second == "deflate" else plist.set_shuffle()
            space = h5py.h5s.create_simple((STEPS,))
            h5py.h5d.create(f.id, b"twice", h5py.h5t.IEEE_F32LE, space, plist)
            f["twice"].id.write_direct_chunk((0,), data)
        if brought_in(scene, file):
            scene.fault(f"a chunk that went through deflate and {second} was imported")


@attack()
def numbers_that_are_valid(scene: Scene) -> None:
    """Denormal, infinite and largest numbers are data, and come in."""
    file = flat(scene.work / "denormal.h5")
    with h5py.File(file, "a") as f:
        f["info/tiny"] = np.array([0, 5e-324] * (STEPS // 2))
        f["info/huge"] = np.array([1.7e308, -1.7e308] * (STEPS // 2))
        f["info/odd"] = np.array([np.nan, np.inf] * (STEPS // 2))
    if not brought_in(scene, file):
        scene.fault("valid numbers were refused")


@attack()
def names_that_collide(scene: Scene) -> None:
    """Columns and files whose names differ in case or form alone, and names of a terminal."""
    names = {"info/a": 1, "info/A": 2, "info/é": 3, "info/e\u0301": 4, "info/\x1b[2J": 5, "info/..": 6, "info/con": 7}
    file = flat(scene.work / "names.h5")
    with h5py.File(file, "a") as f:
        for name, value in names.items():
            f[name] = np.full(STEPS, value, np.float32)
    brought_in(scene, file)


class _Trap:
    """Its pickle makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def buffer(path: Path, **arrays: np.ndarray) -> Path:
    """A sound replay buffer of two episodes, and what is given with it."""
    shutil.rmtree(path, ignore_errors=True)
    group = zarr.open_group(path, mode="w", zarr_format=2)
    sound = {"data/state": np.ones((STEPS, 3), np.float32), "data/action": np.zeros((STEPS, 1), np.float32)}
    for name, values in {**sound, "meta/episode_ends": np.array([50, STEPS]), **arrays}.items():
        made = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=values.shape,
                                  compressors=numcodecs.Zlib(1))  # fmt: skip
        made[...] = values
    return path


@attack(quick=True)
def codecs_that_run_code(scene: Scene) -> None:
    """A Zarr store whose document names the codec of pickles, in both formats, within shards and among filters."""
    mark = scene.work / "ran"
    values = np.empty(STEPS, object)
    values[:] = [_Trap(mark)] * STEPS
    chunk = numcodecs.Pickle().encode(values)
    text = {"fill_value": None, "shape": [STEPS]}
    old = {**text, "zarr_format": 2, "chunks": [STEPS], "dtype": "|O", "order": "C", "compressor": None}
    pickled = {"name": "numcodecs.pickle", "configuration": {"id": "pickle"}}
    grid = {"name": "regular", "configuration": {"chunk_shape": [STEPS]}}
    new = {**text, "zarr_format": 3, "node_type": "array", "data_type": "string", "chunk_grid": grid,
           "chunk_key_encoding": {"name": "default"}}  # fmt: skip
    shard = {"name": "sharding_indexed", "configuration": {"chunk_shape": [STEPS], "codecs": [pickled]}}
    for name, document in {
        ".zarray": {**old, "filters": [{"id": "pickle"}]},
        "zarr.json": {**new, "codecs": [pickled]},
        "zarr.json ": {**new, "codecs": [shard]},
    }.items():
        path = buffer(scene.work / "evil.zarr") / "data" / "trap"
        (path / "c").mkdir(parents=True)
        (path / name.strip()).write_text(json.dumps(document))
        for place in (path / "0", path / "c" / "0"):
            place.write_bytes(chunk)
        if brought_in(scene, scene.work / "evil.zarr") or mark.exists():
            scene.fault(f"a store of pickles was read ({name})")


@attack()
def chunks_of_zarr_that_inflate(scene: Scene) -> None:
    """A chunk of some kilobytes that inflates to gigabytes, of an array that claims to be small."""
    path = buffer(scene.work / "bomb.zarr")
    packed = zlib.compressobj(9)
    content = b"".join(packed.compress(bytes(64 << 20)) for _ in range(96)) + packed.flush()  # 6 GiB
    (path / "data/state/0.0").write_bytes(content)
    brought_in(scene, path)


def packed(value: object) -> bytes:
    """Write a value as msgpack does, with arrays in the form of msgpack-numpy; bytes of `Raw` stand as they are."""
    if isinstance(value, Raw):
        return value.data
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return struct.pack(">Bq", 0xD3, value)
    if isinstance(value, str):
        return struct.pack(">BI", 0xDB, len(value.encode())) + value.encode()
    if isinstance(value, bytes):
        return struct.pack(">BI", 0xC6, len(value)) + value
    if isinstance(value, dict):
        return struct.pack(">BI", 0xDF, len(value)) + b"".join(packed(x) for item in value.items() for x in item)
    assert isinstance(value, np.ndarray)
    said = {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"data": value.tobytes()}
    return packed({**said, b"shape": Raw(bytes([0x90 | value.ndim]) + b"".join(map(packed, value.shape)))})


class Raw:
    """Bytes of msgpack."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def state(**changed: object) -> dict[object, object]:
    """The state of an episode of RLlib of three steps, with some of it changed."""

    def held(values: np.ndarray) -> dict[object, object]:
        return {"data": values, "lookback": 0, "finalized": True}

    of = {"observations": held(np.zeros((4, 2))), "actions": held(np.zeros(3)), "rewards": held(np.zeros(3))}
    return {"id_": "a", **of, "is_terminated": True, "is_truncated": False, "t_started": 0, "t": 3, **changed}


@attack(quick=True)
def states_that_ask_for_much(scene: Scene) -> None:
    """Episodes of RLlib in msgpack: lists of billions, lists in lists, shapes and types that lie, pickles."""

    def array(dtype: str, shape: tuple[int, ...], data: bytes = bytes(48), kind: bytes = b"") -> dict[object, object]:
        sides = Raw(struct.pack(">BI", 0xDD, len(shape)) + b"".join(map(packed, shape)))
        said = {b"nd": True, b"type": dtype, b"kind": kind, b"shape": sides, b"data": data}
        return {"data": said, "lookback": 0, "finalized": True}

    trap = pickle.dumps(_Trap(scene.work / "ran"))
    for number, odd in enumerate(
        (
            state(rewards=Raw(b"\xdd\xff\xff\xff\xff")),
            state(rewards=Raw(b"\xdf\xff\xff\xff\xff")),
            state(rewards=Raw(b"\xc6\xff\xff\xff\xff")),
            state(rewards=Raw(b"\x91" * 1_000_000 + b"\xc0")),
            state(rewards=Raw(b"\xdd" + struct.pack(">I", 16_000_000) + b"\x90" * 16_000_000)),
            state(rewards=Raw(b"\xdd" + struct.pack(">I", 40_000_000) + b"\x90" * 40_000_000)),
            state(observations=array("<f8", (1 << 40, 1 << 40))),
            state(observations=array("<f8", (-1,))),
            state(observations=array("<f8", (0, 1 << 62))),
            state(observations=array("|V4000000000", (4,))),
            state(observations=array(",".join(["f8"] * 200_000), (1,))),
            state(observations=array("|O", (4,), trap)),
            state(observations=array("<f8", (4,), trap, kind=b"O")),
            state(observations=array("(100000,100000)f8", (1,))),
            state(t=1 << 60),
            state(t_started=-(1 << 60)),
            state(id_="\x1b[2J" * 1000),
        )
    ):
        file = scene.work / "episodes.parquet"
        sound = [packed(state(id_=f"{k}")) for k in range(3)]
        pq.write_table(pa.table({"item": [*sound, packed(odd)]}), file)
        if brought_in(scene, file) and number < 16:
            scene.fault(f"state {number} was imported")
        if (scene.work / "ran").exists():
            scene.fault("a pickle was read")
