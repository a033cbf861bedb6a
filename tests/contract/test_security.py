"""What a hostile archive or server may try, family by family: refused with the reason, and nothing is published.

What single parsers refuse is tested in detail beside each (npz, tar, HDF5, TFRecord, names, TLS, tokens); here whole
archives go through ``import_files``, as a user would give them.
"""

from __future__ import annotations

import ast
import gzip
import os
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import image_archives
import lerobot_archives
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tfds_files
from family_files import ARFF
from hostile_files import (
    HDF5,
    IMAGES,
    JSON,
    MEMBERS,
    NPZ,
    TRICKS,
    d3rlpy,
    d4rl,
    file_of,
    minari_parquet,
    npz_of,
    openx,
    repacked,
    robomimic,
    with_images,
)
from server import Server

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.archives import boundary
from rlds_cli.archives.formats import compressed
from rlds_cli.base.files import json as documents
from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.errors import ArchiveError, CorruptArchive, DownloadFailed, RldsError, UnsafeArchive
from rlds_cli.make.downloads import listing
from rlds_cli.make.importing import import_files, read_mapping

HASTY = RetryPolicy(attempts=2, first=0.001, longest=0.01, asked=1.0, connect=60.0, read=60.0)
DEEP = b"[" * 100_000 + b"]" * 100_000


def refused(path: Path, error: type[RldsError] = UnsafeArchive, match: str | None = None, **options: Any) -> None:
    """An import ends with the error, and leaves no dataset."""
    with pytest.raises(error, match=match):
        import_files(path, "local/hostile", **options)
    assert not list(Path(os.environ["RLDS_HOME"]).glob("datasets/local/*"))


# -- HDF5: links, external storage, virtual datasets, shapes; every family that reads it


@pytest.mark.parametrize("family", HDF5, ids=lambda f: f.__name__)
def test_the_archives_themselves_are_fine(tmp_path: Path, family: Callable[[Path], tuple[Path, str]]) -> None:
    path, key = family(tmp_path)
    with h5py.File(file_of(path)) as f:
        assert isinstance(f[key], h5py.Dataset)
    ds = import_files(path, "local/fine", reader=family.__name__)
    assert ds.num_episodes == 2 or family in (robomimic, d3rlpy)
    assert ds.manifest.reader == family.__name__


@pytest.mark.parametrize("trick", TRICKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("family", HDF5, ids=lambda f: f.__name__)
def test_hdf5_reaches_nothing_outside_and_claims_nothing_absurd(
    tmp_path: Path, family: Callable[[Path], tuple[Path, str]], trick: Callable[[Path, h5py.File, str], None]
) -> None:
    path, key = family(tmp_path)
    with h5py.File(file_of(path), "a") as f:
        trick(tmp_path, f, key)
    refused(path, reader=family.__name__)


# -- tar and npz: names, links, devices, a thousandfold size


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
@pytest.mark.parametrize("odd", MEMBERS)
def test_members_of_a_tar(tmp_path: Path, odd: str, mode: str) -> None:
    good = image_archives.npz_bytes(image_archives.dgrl_episode(4, 0))
    path = tmp_path / "x.tar.xz"
    image_archives.write_tar(path, [("0.npz", good), (MEMBERS[odd], b"")], mode)
    refused(path, match="the member")
    assert not Path("/tmp/1.npz").exists()


@pytest.mark.sampled(7)
@pytest.mark.parametrize("family", ["vd4rl", "ogbench", "plain", "gen_dgrl"])
@pytest.mark.parametrize("trick", NPZ)
def test_members_of_an_npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, trick: str) -> None:
    monkeypatch.setattr(boundary, "FREE_BYTES", 1 << 20)
    if family == "gen_dgrl":
        (tmp_path / "0.npz").write_bytes(image_archives.npz_bytes(image_archives.dgrl_episode(4, 0)))
        content = repacked(tmp_path / "0.npz", NPZ[trick])
        (tmp_path / "0.npz").unlink()
        path = tmp_path / "x.tar.xz"
        image_archives.write_tar(path, [("0_0_4_40_1.00.npz", content)])
    else:
        path, place = npz_of(family, tmp_path)
        import_files(path, "local/fine")
        place.write_bytes(repacked(place, NPZ[trick]))
        shutil.rmtree(os.environ["RLDS_HOME"])
    refused(path, ArchiveError, reader=family)


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
    monkeypatch.setattr(compressed, "FREE_BYTES", 1 << 20)
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
        openx(tmp_path / "a", [tfds_files.image(np.zeros((4, 5, 3), np.uint8))] * 3)
        next((tmp_path / "a").glob("*.tfrecord-*")).write_bytes(_framed(length))
    else:
        (tmp_path / "a").mkdir()
        (tmp_path / "a/run_1-00000-of-00001").write_bytes(gzip.compress(_framed(length)))
    refused(tmp_path / "a", match="claims .* bytes; at most", reader=family)


def test_a_gzip_of_records_that_unpacks_to_a_thousandfold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "FREE_BYTES", 1 << 20)
    (tmp_path / "a").mkdir()
    record = tfds_files.framed(bytes(32 << 20))
    (tmp_path / "a/run_1-00000-of-00001").write_bytes(gzip.compress(record))
    refused(tmp_path / "a", match="more than 1,000 for each", reader="rlu_atari")


def test_a_deflated_tensor_that_inflates_to_more(tmp_path: Path) -> None:
    images = [tfds_files.image(np.zeros((4, 5, 3), np.uint8))] * 3
    fine = import_files(openx(tmp_path / "fine", images, zlib.compress(bytes(1 << 20))), "local/fine")
    shutil.rmtree(fine.path)
    refused(openx(tmp_path / "a", images, zlib.compress(bytes(64 << 20))), CorruptArchive, match="1,048,577 bytes")


@pytest.mark.parametrize("family", ["plain", "lerobot", "openml"])
def test_parquet_that_claims_more_than_it_could_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.setattr(boundary, "FREE_BYTES", 0)
    monkeypatch.setattr(boundary, "MAX_RATIO", 1)
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
    refused(root, match="claims .* and has|becomes more than", reader=family)


def test_a_line_of_arff_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "a.arff").write_text(ARFF + "1" * (2 << 20))
    refused(tmp_path / "a.arff", match="a line of more than", reader="openml")


def test_a_chunk_of_hdf5_that_inflates_to_more(tmp_path: Path) -> None:
    path, _ = d4rl(tmp_path)
    with h5py.File(path, "a") as f:
        del f["observations"]
        d = f.create_dataset("observations", (20, 512), "f4", chunks=(20, 512), compression="gzip")
        d.id.write_direct_chunk((0, 0), zlib.compress(bytes(64 << 20)))
    refused(path, CorruptArchive, match="a chunk of 40,960 bytes unpacks to more")


# -- images


@pytest.mark.parametrize("codec", IMAGES)
@pytest.mark.parametrize("family", ["openx", "rlu_atari", "lerobot", "minari"])
def test_images_of_absurd_dimensions(tmp_path: Path, family: str, codec: str) -> None:
    bomb = IMAGES[codec]
    path = tmp_path / "a"
    if family == "openx":
        openx(path, [bomb] * 3)
    elif family == "rlu_atari":
        lists = {"observations": [bomb] * 3, "actions": np.zeros(3, np.int64), "checkpoint_idx": [1]}
        ones = {k: np.ones(3, np.float32) for k in ("unclipped_rewards", "clipped_rewards", "discounts")}
        tfds_files.write_records(path / "run_1-00000-of-00001", [tfds_files.example(lists | ones)], packed=True)
    elif family == "lerobot":
        lerobot_archives.write_v2(path, lerobot_archives.Content(image=("top",)))
        for file in (path / "data").rglob("*.parquet"):
            with_images(file, [bomb])
    else:
        minari_parquet(path, bomb)
    refused(path, match="of (60000x60000|65000x65000)", reader=family)


@pytest.mark.parametrize("codec", IMAGES)
def test_a_later_image_of_absurd_dimensions_is_not_decoded(tmp_path: Path, codec: str) -> None:
    root = lerobot_archives.write_v2(tmp_path / "a", lerobot_archives.Content(image=("top",), lengths=(4,)))
    file = next((root / "data").rglob("*.parquet"))
    fine = pq.read_table(file)["observation.images.top"][0].as_py()["bytes"]
    with_images(file, [fine, IMAGES[codec]])
    for options in ({"frames": "raw"}, {}):
        refused(root, match="row 1 of a block: an image of (60000x60000|65000x65000)", **options)


def test_a_video_of_absurd_dimensions(tmp_path: Path) -> None:
    root = lerobot_archives.write_v2(tmp_path / "a", lerobot_archives.Content(video=("top",), lengths=(4,)))
    (file,) = root.rglob("*.mp4")
    content = bytearray(file.read_bytes())
    at = content.index(b"avc1", content.index(b"stsd")) + 28
    assert struct.unpack_from(">HH", content, at) == (lerobot_archives.W, lerobot_archives.H)
    struct.pack_into(">HH", content, at, 65_000, 65_000)
    file.write_bytes(content)
    refused(root, match="has frames of 65000x65000")


# -- JSON


TEXTS = {"deep": DEEP, "huge": b"[" + b" " * documents.LONGEST + b"]", "number": b'{"a": ' + b"9" * 5000 + b"}"}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("where", JSON)
def test_descriptions_are_bounded(tmp_path: Path, where: str, text: str) -> None:
    family, make = JSON[where]
    path = make(tmp_path, TEXTS[text])
    refused(path, ArchiveError)
    refused(path, CorruptArchive, reader=family)


@pytest.mark.parametrize("text", TEXTS)
def test_descriptions_within_hdf5_are_bounded(tmp_path: Path, text: str) -> None:
    path, _ = robomimic(tmp_path)
    with h5py.File(path, "a", track_order=True) as f:
        del f["data"].attrs["env_args"]
        f["data"].attrs["env_args"] = TEXTS[text][:60_000].decode()
    assert "args" not in import_files(path, "local/a").manifest.env


@pytest.mark.parametrize("text", TEXTS)
def test_mapping_files_are_bounded(tmp_path: Path, text: str) -> None:
    (tmp_path / "map.json").write_bytes(TEXTS[text])
    with pytest.raises(RldsError, match="cannot be read as a mapping"):
        read_mapping(tmp_path / "map.json")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("source", ["hub", "gs", "s3"])
def test_listings_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, text: str) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("rlds_cli.base.http.client.LONGEST", documents.LONGEST)
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
            listing.list_files([url], server.settings(tmp_path), policy=HASTY)


def test_a_listing_that_grows_as_it_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entities of entities: some hundred bytes that stand for gigabytes."""
    monkeypatch.setenv("NO_PROXY", "*")
    more = "".join(f'<!ENTITY e{k} "{f"&e{k - 1};" * 10}">' for k in range(1, 11))
    key = "<Contents><Key>x/&e10;</Key></Contents>"
    laughs = f'<!DOCTYPE x [<!ENTITY e0 "ha">{more}]><ListBucketResult>{key}</ListBucketResult>'
    with Server() as server:
        server.add("/data/", laughs.encode())
        with pytest.raises(DownloadFailed):
            listing.list_files(["s3://data/x"], server.settings(tmp_path), policy=HASTY)


# -- the package itself


PACKAGE = Path(__file__).parents[2] / "rlds_cli"


def _texts() -> dict[Path, str]:
    """The code of the package by file."""
    return {p: p.read_text() for p in PACKAGE.rglob("*.py")}


# The rooms that read what strangers wrote: none of them can unpickle anything.
READS = ("archives", "homes", "keep", "look", "make", "places", "registry", "share", "store", "ted")


def _name(function: ast.expr) -> str:
    """``np.load`` of a call of it; an empty text where something else than a name is called."""
    if isinstance(function, ast.Attribute):
        return f"{_name(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def _calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    return [(_name(n.func), n) for n in ast.walk(tree) if isinstance(n, ast.Call)]


_RUNS = re.compile(r"pickle|np\.load|numpy\.load|torch\.load|eval\(|exec\(|os\.system|marshal|shelve|dill|joblib|yaml")


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["of those words", "every"])
def test_nothing_that_is_read_is_unpickled(every: bool) -> None:
    """Quickly: in the files that have the word at all."""
    parsed = {p: ast.parse(s) for p, s in _texts().items() if every or _RUNS.search(s)}
    loads = [(p, c) for p, tree in parsed.items() for name, c in _calls(tree) if name in ("np.load", "numpy.load")]
    assert loads
    for path, call in loads:
        said = {k.arg: ast.unparse(k.value) for k in call.keywords}
        assert said.get("allow_pickle") == "False", path
    for path, tree in parsed.items():
        imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        imported |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not imported & {"marshal", "shelve", "dill", "joblib", "yaml"}, path
        room, *below = path.relative_to(PACKAGE).parts
        if room in READS and "dropin" not in below:  # a drop-in reads no files, and sends functions to its workers
            assert not imported & {"pickle", "cloudpickle"}, path
        names = {name for name, _ in _calls(tree)}
        if path.parts[-2:] == ("preprocess", "stacking.py"):
            names.remove("exec")  # a loop over steps, in which names are literals: see the test below
        assert not names & {"torch.load", "eval", "exec", "os.system"}, path


@pytest.mark.parametrize("name", ["x'] or exit() or v['", 'x"\\', "x\n    exit()", "{exit()}", "\\'] = exit() #"])
def test_names_of_fields_are_no_code_of_the_loop_over_steps(home: Path, name: str) -> None:
    def twice(step: dict[str, Any]) -> dict[str, Any]:
        step["info"][name] = step["info"][name] * 2
        return step

    episode = {"observation": np.zeros((5, 2)), "action": np.zeros((4, 1)), "info": {name: np.arange(4.0)}}
    ds = rlds_cli.create("local/named", [episode])
    made = preprocess.run(ds, twice, "twice", unit="step", jobs=0, progress=False)
    assert made.episode(0)["info"][name][:, 0].tolist() == [0, 2, 4, 6]


def test_no_option_takes_a_secret() -> None:
    """What stands on a command line is in the list of processes of everybody on the machine."""
    for path in (PACKAGE / "cli").rglob("*.py"):
        tree = ast.parse(path.read_text())
        texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        assert not [t for t in texts if t.startswith("--") and ("token" in t or "password" in t)], path
