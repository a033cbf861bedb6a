"""What a hostile archive or server may try, family by family: refused with the reason, and nothing is published.

What single parsers refuse is tested in detail beside each (npz, tar, HDF5, TFRecord, names, TLS, tokens); here whole
archives go through ``import_archive``, as a user would give them.
"""

from __future__ import annotations

import ast
import gzip
import io
import json
import os
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import image_archives
import lerobot_archives
import minari_archives
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tfds_files
from d4rl_files import flags, ramp
from d4rl_files import write as write_h5
from family_files import ARFF, _d3rlpy, _robomimic
from server import Server

from rlds_cli import documents
from rlds_cli.archives import npz, parquet, tfrecord, unpacking
from rlds_cli.errors import ArchiveError, CorruptArchive, DownloadFailed, Frames, RldsError, UnsafeArchive
from rlds_cli.importing import import_archive
from rlds_cli.mappings import read as read_mapping
from rlds_cli.transfer import sources
from rlds_cli.transfer.client import Patience

HASTY = Patience(attempts=2, first=0.001, longest=0.01, asked=1.0, connect=2.0, read=1.0)
DEEP = b"[" * 100_000 + b"]" * 100_000


def refused(path: Path, error: type[RldsError] = UnsafeArchive, match: str | None = None, **options: Any) -> None:
    """An import ends with the error, and leaves no dataset."""
    with pytest.raises(error, match=match):
        import_archive(path, "local/hostile", **options)
    assert not list(Path(os.environ["RLDS_HOME"]).glob("datasets/local/*"))


# -- HDF5: links, external storage, virtual datasets, shapes; every family that reads it


def d4rl(root: Path) -> tuple[Path, str]:
    columns = {"observations": ramp(20), "actions": ramp(20, 1), "rewards": np.zeros(20), "terminals": flags(20, 9, 19)}
    return write_h5(root / "a.hdf5", **columns, timeouts=flags(20)), "rewards"


def plain(root: Path) -> tuple[Path, str]:
    columns = {"obs": ramp(20), "action": ramp(20, 1), "reward": np.zeros(20), "dones": flags(20, 9, 19)}
    return write_h5(root / "a.h5", **columns), "reward"


def minari(root: Path) -> tuple[Path, str]:
    return minari_archives.by_hand(root / "m", [minari_archives.plain_episode(seed=k) for k in range(2)]), (
        "episode_0/rewards"
    )


def roboset(root: Path) -> tuple[Path, str]:
    with h5py.File(root / "a.h5", "w") as f:
        for k in range(2):
            trial = {"observations": ramp(6, 3), "actions": ramp(6, 2), "rewards": np.zeros(6), "done": flags(6, 5)}
            for key, value in (trial | {"time": np.arange(6.0), "env_infos/obs_dict/door": ramp(6, 3)}).items():
                f[f"Trial{k}/{key}"] = value
    return root / "a.h5", "Trial0/rewards"


def robomimic(root: Path) -> tuple[Path, str]:
    _robomimic(root / "low_dim.hdf5")
    return root / "low_dim.hdf5", "data/demo_0/rewards"


def d3rlpy(root: Path) -> tuple[Path, str]:
    _d3rlpy(root / "a.h5")
    return root / "a.h5", "rewards"


def vd4rl(root: Path) -> tuple[Path, str]:
    image_archives.write_vd4rl_shards(root / "84px", [6, 6], [7])
    return root / "84px", "reward"


HDF5 = (d4rl, plain, minari, roboset, robomimic, d3rlpy, vd4rl)


def _outside(root: Path, like: h5py.Dataset) -> Path:
    with h5py.File(root / "secret.h5", "w") as f:
        f["secret"] = like[()]
    return root / "secret.h5"


def external_link(root: Path, f: h5py.File, key: str) -> None:
    other = _outside(root, f[key])
    del f[key]
    f[key] = h5py.ExternalLink(str(other), "secret")


def soft_link_to_an_external_one(root: Path, f: h5py.File, key: str) -> None:
    external_link(root, f, key)
    f.move(key, f"{key}_elsewhere")
    f[key] = h5py.SoftLink(f"/{key}_elsewhere")


def external_storage(root: Path, f: h5py.File, key: str) -> None:
    shape, dtype = f[key].shape, f[key].dtype
    (root / "secret.raw").write_bytes(bytes(4096))
    del f[key]
    f.create_dataset(key, shape, dtype, external=[(str(root / "secret.raw"), 0, 4096)])


def virtual_of_another_file(root: Path, f: h5py.File, key: str) -> None:
    shape, dtype = f[key].shape, f[key].dtype
    layout = h5py.VirtualLayout(shape, dtype)
    layout[...] = h5py.VirtualSource(str(_outside(root, f[key])), "secret", shape)
    del f[key]
    f.create_virtual_dataset(key, layout)


def virtual_of_absurd_shape(root: Path, f: h5py.File, key: str) -> None:
    shape, dtype = f[key].shape, f[key].dtype
    layout = h5py.VirtualLayout((1 << 40, *shape[1:]), dtype)
    layout[: shape[0]] = h5py.VirtualSource(".", f"{key}_real", shape)
    f.move(key, f"{key}_real")
    f.create_virtual_dataset(key, layout, fillvalue=0)


def absurd_shape(root: Path, f: h5py.File, key: str) -> None:
    shape, dtype = f[key].shape, f[key].dtype
    del f[key]
    f.create_dataset(key, (1 << 40, *shape[1:]), dtype, chunks=(1024, *shape[1:]), compression="gzip")


def absurd_shape_scale_offset(root: Path, f: h5py.File, key: str) -> None:
    shape = f[key].shape
    del f[key]
    chunks = (1024, *shape[1:])
    f.create_dataset(key, (1 << 40, *shape[1:]), "i4", chunks=chunks, scaleoffset=0)[: shape[0]] = 0


def absurd_chunks(root: Path, f: h5py.File, key: str) -> None:
    values = f[key][()]
    del f[key]
    chunks = ((1 << 31) // max(1, values[:1].nbytes), *values.shape[1:])
    f.create_dataset(key, values.shape, values.dtype, maxshape=(None, *values.shape[1:]), chunks=chunks)


def endless_circle(root: Path, f: h5py.File, key: str) -> None:
    f[f"{key}_around"] = h5py.SoftLink("/")


TRICKS = (
    external_link,
    soft_link_to_an_external_one,
    external_storage,
    virtual_of_another_file,
    virtual_of_absurd_shape,
    absurd_shape,
    absurd_shape_scale_offset,
    absurd_chunks,
)


def _file(path: Path) -> Path:
    return path if path.is_file() else min((*path.rglob("*.hdf5"), *path.rglob("*.h5")))


@pytest.mark.parametrize("family", HDF5, ids=lambda f: f.__name__)
def test_the_archives_themselves_are_fine(tmp_path: Path, family: Callable[[Path], tuple[Path, str]]) -> None:
    path, key = family(tmp_path)
    with h5py.File(_file(path)) as f:
        assert isinstance(f[key], h5py.Dataset)
    ds = import_archive(path, "local/fine", format=family.__name__)
    assert ds.num_episodes == 2 or family in (robomimic, d3rlpy)
    assert ds.manifest.reader == family.__name__


@pytest.mark.parametrize("trick", TRICKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("family", HDF5, ids=lambda f: f.__name__)
def test_hdf5_reaches_nothing_outside_and_claims_nothing_absurd(
    tmp_path: Path, family: Callable[[Path], tuple[Path, str]], trick: Callable[[Path, h5py.File, str], None]
) -> None:
    path, key = family(tmp_path)
    with h5py.File(_file(path), "a") as f:
        trick(tmp_path, f, key)
    refused(path, format=family.__name__)


# -- tar and npz: names, links, devices, a thousandfold size


def _link(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("1.npz")
    info.type, info.linkname = kind, "/etc/passwd"
    return info


MEMBERS = {
    "absolute": "/tmp/1.npz",
    "climbs": "a/../../1.npz",
    "symbolic link": _link(tarfile.SYMTYPE),
    "hard link": _link(tarfile.LNKTYPE),
    "character device": _link(tarfile.CHRTYPE),
    "block device": _link(tarfile.BLKTYPE),
    "named pipe": _link(tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
@pytest.mark.parametrize("odd", MEMBERS)
def test_members_of_a_tar(tmp_path: Path, odd: str, mode: str) -> None:
    good = image_archives.npz_bytes(image_archives.dgrl_episode(4, 0))
    path = tmp_path / "x.tar.xz"
    image_archives.write_tar(path, [("0.npz", good), (MEMBERS[odd], b"")], mode)
    refused(path, match="the member")
    assert not Path("/tmp/1.npz").exists()


def _npz_of(family: str, root: Path) -> tuple[Path, Path]:
    """An archive that holds npz, and where to put another."""
    if family == "vd4rl":
        image_archives.write_vd4rl(root / "64px", [6, 6])
        return root / "64px", min((root / "64px").iterdir())
    rows = {"observations": ramp(20), "actions": ramp(20, 1), "terminals": flags(20, 9, 19)}
    name = {"ogbench": "pointmaze-medium-navigate-v0.npz", "plain": "rollouts.npz"}[family]
    rows |= {"qpos": ramp(20), "qvel": ramp(20)} if family == "ogbench" else {"rewards": np.zeros(20)}
    np.savez_compressed(root / name, **rows)
    return root / name, root / name


def _repacked(path: Path, change: Callable[[str, bytes], tuple[str, bytes]]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(*change(info.filename, old.read(info)))
    return file.getvalue()


def _npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


BOMB = _npy(np.zeros(8 << 20, "u1"))
PICKLED = _npy(np.array([{"a": 1}] * 20, object))
ABSURD = _npy(np.zeros(20, "f4")).replace(b"(20,), }            ", b"(4398046511104,), }", 1)
NPZ: dict[str, Callable[[str, bytes], tuple[str, bytes]]] = {
    "absolute": lambda name, data: (f"/{name}" if name.startswith("action") else name, data),
    "climbs": lambda name, data: (f"../{name}" if name.startswith("action") else name, data),
    "bomb": lambda name, data: (name, BOMB),
    "pickled": lambda name, data: (name, PICKLED if name.startswith("action") else data),
    "header": lambda name, data: (name, ABSURD if name.startswith("action") else data),
}


@pytest.mark.parametrize("family", ["vd4rl", "ogbench", "plain", "gen_dgrl"])
@pytest.mark.parametrize("trick", NPZ)
def test_members_of_an_npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, trick: str) -> None:
    monkeypatch.setattr(npz, "FREE_BYTES", 1 << 20)
    if family == "gen_dgrl":
        (tmp_path / "0.npz").write_bytes(image_archives.npz_bytes(image_archives.dgrl_episode(4, 0)))
        content = _repacked(tmp_path / "0.npz", NPZ[trick])
        (tmp_path / "0.npz").unlink()
        path = tmp_path / "x.tar.xz"
        image_archives.write_tar(path, [("0_0_4_40_1.00.npz", content)])
    else:
        path, place = _npz_of(family, tmp_path)
        import_archive(path, "local/fine")
        place.write_bytes(_repacked(place, NPZ[trick]))
        shutil.rmtree(os.environ["RLDS_HOME"])
    refused(path, CorruptArchive if trick == "header" else UnsafeArchive, format=family)


# -- decompression, bounded


def test_gzip_of_replay_logs(tmp_path: Path) -> None:
    here = tmp_path / "logs"
    image_archives.ReplayLog(here, 20).episodes([15, 8, 12, 30])
    header = np.lib.format.header_data_from_array_1_0(np.zeros((20, 16, 16), "u1"))
    for dump in here.glob("$store$_observation_ckpt.*.gz"):
        with gzip.open(dump, "wb") as f:
            np.lib.format.write_array_header_1_0(f, header | {"shape": (20, 1 << 20, 1 << 16)})
            f.write(bytes(1 << 20))
    refused(here, CorruptArchive, match="says it has 1,374,389,534,720 bytes, and is")


def test_a_tar_that_unpacks_to_a_thousandfold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "FREE_BYTES", 1 << 20)
    good = image_archives.npz_bytes(image_archives.dgrl_episode(4, 0))
    path = tmp_path / "x.tar.xz"
    image_archives.write_tar(path, [("0_0_4_40_1.00.npz", good), ("1.bin", bytes(32 << 20))])
    refused(path, match="packed bytes become more than|claims")


def _framed(length: int) -> bytes:
    head = struct.pack("<Q", length)
    return head + struct.pack("<I", tfds_files.mask(head)) + bytes(64)


@pytest.mark.parametrize("family", ["openx", "rlu_atari"])
@pytest.mark.parametrize("length", [1 << 31, 1 << 40, (1 << 64) - 1])
def test_lengths_of_records(tmp_path: Path, family: str, length: int) -> None:
    if family == "openx":
        _openx(tmp_path / "a", [tfds_files.image(np.zeros((4, 5, 3), np.uint8))] * 3)
        next((tmp_path / "a").glob("*.tfrecord-*")).write_bytes(_framed(length))
    else:
        (tmp_path / "a").mkdir()
        (tmp_path / "a/run_1-00000-of-00001").write_bytes(gzip.compress(_framed(length)))
    refused(tmp_path / "a", match="claims .* bytes; at most", format=family)


def test_a_gzip_of_records_that_unpacks_to_a_thousandfold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "FREE_OUTPUT", 1 << 20)
    (tmp_path / "a").mkdir()
    record = tfds_files.framed(bytes(32 << 20))
    (tmp_path / "a/run_1-00000-of-00001").write_bytes(gzip.compress(record))
    refused(tmp_path / "a", match="more than 512 for each", format="rlu_atari")


def _openx(path: Path, images: list[bytes], state: bytes | None = None) -> Path:
    steps: dict[str, Any] = {
        "observation": {"image": tfds_files.picture(4, 5, 3), "state": tfds_files.tensor("float32", 2)},
        "action": tfds_files.tensor("float32", 1),
        **tfds_files.FLAGS,
    }
    lists: dict[str, Any] = {
        "steps/observation/image": images,
        "steps/observation/state": np.zeros((3, 2), np.float32),
        "steps/action": np.zeros((3, 1), np.float32),
        "steps/is_first": np.arange(3) == 0,
        "steps/is_last": np.arange(3) == 2,
        "steps/is_terminal": np.arange(3) == 2,
    }
    if state is not None:
        steps["observation"]["state"] = tfds_files.tensor("uint8", 1 << 20, encoding="zlib")
        lists["steps/observation/state"] = [state] * 3
    return tfds_files.write_dataset(path, steps, {"train": [[tfds_files.example(lists)]]})


def test_a_deflated_tensor_that_inflates_to_more(tmp_path: Path) -> None:
    images = [tfds_files.image(np.zeros((4, 5, 3), np.uint8))] * 3
    fine = import_archive(_openx(tmp_path / "fine", images, zlib.compress(bytes(1 << 20))), "local/fine")
    shutil.rmtree(fine.path)
    refused(_openx(tmp_path / "a", images, zlib.compress(bytes(64 << 20))), CorruptArchive, match="1,048,577 bytes")


@pytest.mark.parametrize("family", ["plain", "lerobot", "openml"])
def test_parquet_that_claims_more_than_it_could_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.setattr(parquet, "FREE_BYTES", 0)
    monkeypatch.setattr(parquet, "MAX_RATIO", 1)
    rows = 1 << 17
    if family == "lerobot":
        root = lerobot_archives.write_v2(tmp_path / "a", lerobot_archives.Content(lengths=(rows,)))
        path = next((root / "data").rglob("*.parquet"))
        whole = pq.read_table(path).slice(0, 1)
        pq.write_table(whole.take(pa.array(np.zeros(rows, np.int64))), path)
    elif family == "openml":
        root = path = tmp_path / "adult.parquet"
        table = {"age": np.full(rows, 39.0), "workclass": ["State"] * rows, "class": pa.array(["a", "b"] * (rows // 2))}
        pq.write_table(pa.table(table), path, row_group_size=rows)
    else:
        root = path = tmp_path / "a.parquet"
        table = {"obs": np.zeros(rows), "action": np.zeros(rows), "dones": np.zeros(rows, bool)}
        pq.write_table(pa.table(table), path, row_group_size=rows)
    refused(root, match="claims .* and has", format=family)


def test_a_line_of_arff_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "a.arff").write_text(ARFF + "1" * (2 << 20))
    refused(tmp_path / "a.arff", match="a line of more than", format="openml")


def test_a_chunk_of_hdf5_that_inflates_to_more(tmp_path: Path) -> None:
    path, _ = d4rl(tmp_path)
    with h5py.File(path, "a") as f:
        del f["observations"]
        d = f.create_dataset("observations", (20, 512), "f4", chunks=(20, 512), compression="gzip")
        d.id.write_direct_chunk((0, 0), zlib.compress(bytes(64 << 20)))
    refused(path, CorruptArchive, match="a chunk of 40,960 bytes unpacks to more")


# -- images


def png(height: int, width: int) -> bytes:
    content = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    end = b"IEND"
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (content, end)
    )


def jpeg(height: int, width: int) -> bytes:
    whole = tfds_files.image(np.zeros((16, 16, 3), np.uint8), "jpeg")
    at = whole.index(b"\xff\xc0") + 5
    return whole[:at] + struct.pack(">HH", height, width) + whole[at + 4 :]


IMAGES = {"png": png(60_000, 60_000), "jpeg": jpeg(65_000, 65_000)}


@pytest.mark.parametrize("codec", IMAGES)
@pytest.mark.parametrize("family", ["openx", "rlu_atari", "lerobot", "minari"])
def test_images_of_absurd_dimensions(tmp_path: Path, family: str, codec: str) -> None:
    bomb = IMAGES[codec]
    path = tmp_path / "a"
    if family == "openx":
        _openx(path, [bomb] * 3)
    elif family == "rlu_atari":
        lists = {"observations": [bomb] * 3, "actions": np.zeros(3, np.int64), "checkpoint_idx": [1]}
        ones = {k: np.ones(3, np.float32) for k in ("unclipped_rewards", "clipped_rewards", "discounts")}
        tfds_files.write_records(path / "run_1-00000-of-00001", [tfds_files.example(lists | ones)], packed=True)
    elif family == "lerobot":
        lerobot_archives.write_v2(path, lerobot_archives.Content(image=("top",)))
        for file in (path / "data").rglob("*.parquet"):
            _with_images(file, [bomb])
    else:
        _minari_arrow(path, bomb)
    refused(path, match="of (60000x60000|65000x65000)", format=family)


def _with_images(file: Path, images: list[bytes]) -> None:
    table = pq.read_table(file)
    at = table.column_names.index("observation.images.top")
    rows = [{"bytes": images[k % len(images)], "path": "x"} for k in range(len(table))]
    pq.write_table(table.set_column(at, table.field(at), pa.array(rows, table.field(at).type)), file)


def _minari_arrow(path: Path, image: bytes) -> None:
    (path / "data/0").mkdir(parents=True)
    columns = {
        "observations": pa.array([image] * 3, pa.binary()),
        "actions": pa.array([0, 1, 0]),
        **{k: pa.array(np.zeros(3, bool)) for k in ("terminations", "truncations")},
        "rewards": pa.array(np.zeros(3)),
    }
    pq.write_table(pa.table(columns), path / "data/0/part-0.parquet")
    (path / "data/0/metadata.json").write_text(json.dumps({"id": 0, "total_steps": 2}))
    about = {"total_episodes": 1, "total_steps": 2, "data_format": "parquet", "minari_version": "0.5.4"}
    (path / "data/metadata.json").write_text(json.dumps(about))


@pytest.mark.parametrize("codec", IMAGES)
def test_a_later_image_of_absurd_dimensions_is_not_decoded(tmp_path: Path, codec: str) -> None:
    root = lerobot_archives.write_v2(tmp_path / "a", lerobot_archives.Content(image=("top",), lengths=(4,)))
    file = next((root / "data").rglob("*.parquet"))
    fine = pq.read_table(file)["observation.images.top"][0].as_py()["bytes"]
    _with_images(file, [fine, IMAGES[codec]])
    refused(root, Frames, match="is not decoded", frames="raw")
    ds = import_archive(root, "local/encoded")
    start = int(ds.episodes["start"][0])
    assert ds.gather("observation/images/top", np.array([start])).shape == (1, 48, 64, 3)
    with pytest.raises(Frames, match="is not decoded"):
        ds.gather("observation/images/top", np.array([start + 1]))


def test_a_video_of_absurd_dimensions(tmp_path: Path) -> None:
    root = lerobot_archives.write_v2(tmp_path / "a", lerobot_archives.Content(video=("top",), lengths=(4,)))
    (file,) = root.rglob("*.mp4")
    content = bytearray(file.read_bytes())
    at = content.index(b"avc1", content.index(b"stsd")) + 28
    assert struct.unpack_from(">HH", content, at) == (lerobot_archives.W, lerobot_archives.H)
    struct.pack_into(">HH", content, at, 65_000, 65_000)
    file.write_bytes(content)
    refused(root, match="claims frames of 65000x65000")


# -- JSON


def _lerobot_json(root: Path, text: bytes) -> Path:
    made = lerobot_archives.write_v2(root / "a", lerobot_archives.Content(lengths=(3,)))
    (made / "meta/info.json").write_bytes(text)
    return made


def _lerobot_lines(root: Path, text: bytes) -> Path:
    made = lerobot_archives.write_v2(root / "a", lerobot_archives.Content(lengths=(3,)))
    (made / "meta/episodes.jsonl").write_bytes(text)
    return made


def _openx_json(name: str) -> Callable[[Path, bytes], Path]:
    def make(root: Path, text: bytes) -> Path:
        made = _openx(root / "a", [tfds_files.image(np.zeros((4, 5, 3), np.uint8))] * 3)
        (made / name).write_bytes(text)
        return made

    return make


def _minari_json(root: Path, text: bytes) -> Path:
    path, _ = minari(root)
    (path / "metadata.json").write_bytes(text)
    return path


def _minari_space(root: Path, text: bytes) -> Path:
    about = {"observation_space": text.decode()}
    return minari_archives.by_hand(root / "m", [minari_archives.plain_episode()], about)


JSON = {
    "info.json": ("lerobot", _lerobot_json),
    "episodes.jsonl": ("lerobot", _lerobot_lines),
    "features.json": ("openx", _openx_json("features.json")),
    "dataset_info.json": ("openx", _openx_json("dataset_info.json")),
    "metadata.json": ("minari", _minari_json),
    "a space in metadata.json": ("minari", _minari_space),
}
TEXTS = {"deep": DEEP, "huge": b"[" + b" " * documents.LONGEST + b"]", "number": b'{"a": ' + b"9" * 5000 + b"}"}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("where", JSON)
def test_descriptions_are_bounded(tmp_path: Path, where: str, text: str) -> None:
    family, make = JSON[where]
    path = make(tmp_path, TEXTS[text])
    refused(path, ArchiveError)
    refused(path, CorruptArchive, format=family)


@pytest.mark.parametrize("text", TEXTS)
def test_descriptions_within_hdf5_are_bounded(tmp_path: Path, text: str) -> None:
    path, _ = robomimic(tmp_path)
    with h5py.File(path, "a", track_order=True) as f:
        del f["data"].attrs["env_args"]
        f["data"].attrs["env_args"] = TEXTS[text][:60_000].decode()
    assert "args" not in import_archive(path, "local/a").manifest.env


@pytest.mark.parametrize("text", TEXTS)
def test_mapping_files_are_bounded(tmp_path: Path, text: str) -> None:
    (tmp_path / "map.json").write_bytes(TEXTS[text])
    with pytest.raises(RldsError, match="cannot be read as a mapping"):
        read_mapping(tmp_path / "map.json")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("source", ["hub", "gs", "s3"])
def test_listings_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, text: str) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("rlds_cli.transfer.client.LONGEST", documents.LONGEST)
    with Server() as server:
        url, page = {
            "hub": ("hf://datasets/o/r", "/api/datasets/o/r/tree/main"),
            "gs": ("gs://data/x", "/storage/v1/b/data/o"),
            "s3": ("s3://data/x", "/data/"),
        }[source]
        server.add(page, TEXTS[text])
        server.add("/api/datasets/o/r/revision/main", b'{"sha": "' + b"0" * 40 + b'"}')
        server.add(f"/api/datasets/o/r/tree/{'0' * 40}", TEXTS[text])
        with pytest.raises(DownloadFailed):
            sources.list_files([url], server.settings(tmp_path), patience=HASTY)


# -- the package itself


SOURCES = {p: ast.parse(p.read_text()) for p in (Path(__file__).parents[1] / "rlds_cli").rglob("*.py")}
READS_ARCHIVES = ("archives", "transfer", "delivery", "store", "keeping", "report", "checks")


def _calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    return [(ast.unparse(n.func), n) for n in ast.walk(tree) if isinstance(n, ast.Call)]


def test_nothing_that_is_read_is_unpickled() -> None:
    loads = [(p, c) for p, tree in SOURCES.items() for name, c in _calls(tree) if name in ("np.load", "numpy.load")]
    assert loads
    for path, call in loads:
        said = {k.arg: ast.unparse(k.value) for k in call.keywords}
        assert said.get("allow_pickle") == "False", path
    for path, tree in SOURCES.items():
        imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        imported |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not imported & {"marshal", "shelve", "dill", "joblib", "yaml"}, path
        if path.parts[path.parts.index("rlds_cli") + 1] in READS_ARCHIVES:
            assert not imported & {"pickle", "cloudpickle"}, path
        names = {name for name, _ in _calls(tree)}
        assert not names & {"torch.load", "eval", "exec", "os.system"}, path


def test_no_option_takes_a_secret() -> None:
    """What stands on a command line is in the list of processes of everybody on the machine."""
    for path, tree in SOURCES.items():
        if "cli" in path.parts:
            texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            assert not [t for t in texts if t.startswith("--") and ("token" in t or "password" in t)], path
