"""RLDS in TFRecord files, against the values that the test wrote, and the shared sample against a parser of its own."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA
from PIL import Image
from tfds_files import (
    FLAGS,
    TEXT,
    Node,
    decoded,
    example,
    image,
    picture,
    sequence,
    tensor,
    write_dataset,
    write_records,
)

import rlds_cli
from rlds_cli.archives.tfds import steps
from rlds_cli.archives.tfds.directory import FeatureLeaf
from rlds_cli.errors import ArchiveError, CorruptArchive, DatasetNotFound, FrameError, UnknownLayout, UnsafeArchive
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import

STEP = {
    "observation": {"image": picture(6, 8, 3), "state": tensor("float32", 4), "at/two": tensor("int32", 2)},
    "action": {"arm": tensor("float32", 2), "grip": tensor("bool")},
    "reward": tensor("float32"),
    "discount": tensor("float32"),
    "language_instruction": TEXT,
    **FLAGS,
}
META = {"file_path": TEXT, "episode_id": tensor("int64"), "weights": tensor("float32", 3)}


def episode(n: int, seed: int = 0, *, terminal: bool = True, filler: bool = False, last: bool = True) -> dict[str, Any]:
    """The lists of an episode of n steps, as arrays; ``images`` are the frames before they were encoded."""
    rng = np.random.default_rng([n, seed])
    arm = rng.standard_normal((n, 2)).astype(np.float32)
    grip = rng.random(n) < 0.5
    if filler:
        arm[-1], grip[-1] = 0, False
    return {
        "images": rng.integers(0, 256, (n, 6, 8, 3)).astype(np.uint8),
        "state": rng.standard_normal((n, 4)).astype(np.float32),
        "two": rng.integers(-5, 5, (n, 2)),
        "arm": arm,
        "grip": grip,
        "reward": rng.standard_normal(n).astype(np.float32) * (np.arange(n) < n - filler),
        "text": [f"pick up cup {seed}"] * n,
        "first": np.arange(n) == 0,
        "last": (np.arange(n) == n - 1) & last,
        "terminal": (np.arange(n) == n - 1) & terminal,
        "id": seed,
    }


def record(e: dict[str, Any], *, packed: bool = True, codec: str = "png", **changed: Any) -> bytes:
    lists = {
        "steps/observation/image": [image(x, codec) for x in e["images"]],
        "steps/observation/state": e["state"],
        "steps/observation/at/two": e["two"],
        "steps/action/arm": e["arm"],
        "steps/action/grip": e["grip"].astype(int),
        "steps/reward": e["reward"],
        "steps/discount": np.ones(len(e["arm"]), np.float32),
        "steps/language_instruction": e["text"],
        **{f"steps/is_{k}": e[k].astype(int) for k in ("first", "last", "terminal")},
        "episode_metadata/file_path": [f"/data/{e['id']}.npy"],
        "episode_metadata/episode_id": [e["id"]],
        "episode_metadata/weights": np.array([0.5, np.nan, 2], np.float32),
    }
    return example({**lists, **changed}, packed=packed)


def toy(path: Path, episodes: list[dict[str, Any]], **options: Any) -> Path:
    records = [record(e) for e in episodes]
    return write_dataset(path / "toy" / "1.0.0", STEP, {"train": [records]}, metadata=META, **options)


def rows(ds: rlds_cli.Dataset, number: int) -> slice:
    start = int(ds.episodes["start"][number])
    return slice(start, start + int(ds.episodes["length"][number]) + 1)


def column(ds: rlds_cli.Dataset, name: str, number: int = 0) -> np.ndarray:
    where = rows(ds, number)
    return np.asarray(ds.gather(name, np.arange(where.start, where.stop)))


# -- values


@pytest.mark.thorough
def test_every_value_of_every_step(tmp_path: Path) -> None:
    written = [episode(5, 1), episode(1, 2), episode(9, 3, terminal=False), episode(4, 4, terminal=False, last=False)]
    ds = import_files(toy(tmp_path, written), "local/toy")
    assert ds.episodes["length"].tolist() == [5, 1, 9, 4]
    assert ds.episodes["end"].tolist() == ["terminated", "terminated", "truncated", "cut"]
    assert ds.episodes["num_observed"].tolist() == [5, 1, 9, 4]
    assert ds.manifest.facts["last_step"] == "action"
    for i, e in enumerate(written):
        n = len(e["arm"])
        again = [*range(n), n - 1]  # no final observation: the last one again
        assert np.array_equal(column(ds, "observation/image", i), e["images"][again])
        assert np.array_equal(column(ds, "observation/state", i), e["state"][again])
        assert np.array_equal(column(ds, "observation/at/two", i), e["two"][again])
        assert np.array_equal(column(ds, "action/arm", i)[:-1], e["arm"])
        assert np.array_equal(column(ds, "action/grip", i)[:-1], e["grip"])
        assert np.array_equal(column(ds, "next/reward", i)[:-1], e["reward"])
        assert column(ds, "next/discount", i)[:-1].tolist() == [1] * n
        assert np.array_equal(column(ds, "next/terminated", i)[:-1], e["terminal"])
        assert column(ds, "next/truncated", i)[:-1].tolist() == [False] * (n - 1) + [not e["terminal"][-1]]
        assert column(ds, "task", i)[:-1].tolist() == e["text"]
    dtypes = {n: f.dtype for n, f in ds.schema.items()}
    assert dtypes["observation/at/two"] == "int32"
    assert dtypes["action/grip"] == "bool"


@pytest.mark.thorough
def test_lists_that_are_not_packed(tmp_path: Path) -> None:
    e = episode(6, 1)
    path = write_dataset(tmp_path / "a", STEP, {"train": [[record(e, packed=False)]]}, metadata=META)
    assert import_files(path, "local/a").fingerprint == import_files(toy(tmp_path, [e]), "local/b").fingerprint


@pytest.mark.thorough
def test_what_holds_for_an_episode_is_kept_as_options(tmp_path: Path) -> None:
    ds = import_files(toy(tmp_path, [episode(3, 7)]), "local/toy")
    assert (ds.episodes["episode_id"][0], ds.episodes["file_path"][0]) == (7, "/data/7.npy")
    assert json.loads(ds.episodes["options"][0]) == {"weights": [0.5, None, 2.0]}
    assert ds.episodes["group"].tolist() == ["record_0"]


@pytest.mark.slow
def test_splits_and_shards(tmp_path: Path) -> None:
    shards = {"train": [[record(episode(2, i)) for i in range(3)], [record(episode(3, 9))]], "val": [[]]}
    shards["val"] = [[record(episode(4, 5))]]
    path = write_dataset(tmp_path / "a", STEP, shards, metadata=META)
    ds = import_files(path, "local/a")
    assert ds.episodes["length"].tolist() == [2, 2, 2, 3, 4]
    assert len(ds.select(split="train").episodes) == 4
    assert ds.select(split="val").episodes["length"].tolist() == [4]
    parallel = import_files(path, "local/b", jobs=2)
    assert parallel.fingerprint == ds.fingerprint


@pytest.mark.thorough
def test_the_files_may_be_named_one_by_one(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "a", STEP, {"train": [[record(episode(2))], [record(episode(3))]]}, metadata=META)
    planned = plan_import(path / "*.tfrecord-00001-of-00002", "local/a")
    assert planned.recognised == "RLDS dataset toy 1.0.0 (TFRecord, train: 1 shard, 1 episodes)"
    assert [n for n in planned.notes if "not here" in n] == ["files of train are not here, of 2"]
    assert import_files(path / "*.tfrecord-00001-of-00002", "local/a").episodes["length"].tolist() == [3]


# -- the last step


def test_the_last_step_holds_the_final_observation(tmp_path: Path) -> None:
    written = [episode(5, 1, filler=True), episode(3, 2, filler=True, terminal=False), episode(1, 3, filler=True)]
    ds = import_files(toy(tmp_path, written), "local/toy")
    assert ds.manifest.facts["last_step"] == "observation"
    assert ds.episodes["length"].tolist() == [4, 2]
    assert ds.episodes["end"].tolist() == ["terminated", "truncated"]
    assert ds.episodes["num_observed"].tolist() == [5, 3]
    for i, e in enumerate(written[:2]):
        n = len(e["arm"]) - 1
        assert np.array_equal(column(ds, "observation/image", i), e["images"])
        assert np.array_equal(column(ds, "observation/state", i), e["state"])
        assert np.array_equal(column(ds, "action/arm", i)[:-1], e["arm"][:-1])
        assert np.array_equal(column(ds, "next/reward", i)[:-1], e["reward"][:-1])
        assert column(ds, "next/terminated", i)[:-1].tolist() == [False] * (n - 1) + [bool(e["terminal"][-1])]
    assert {n["code"]: n["count"] for n in ds.manifest.notes}["empty-episodes"] == 1


@pytest.mark.thorough
@pytest.mark.parametrize(("rule", "length", "transitions"), [("action", 5, 4), ("observation", 4, 4)])
def test_the_rule_may_be_said(tmp_path: Path, rule: str, length: int, transitions: int) -> None:
    path = toy(tmp_path, [episode(5, 1, terminal=False)])
    ds = import_files(path, "local/toy", last_step=rule)
    assert ds.episodes["length"].tolist() == [length]
    assert ds.num_transitions == transitions
    assert ds.manifest.facts["last_step_by"] == "as asked or registered"
    assert ds.manifest.options["last_step"] == rule
    codes = [n["code"] for n in ds.manifest.notes]
    assert ("last-reward" in codes) == (rule == "observation")


def test_a_rule_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UnknownLayout, match='last_step="both" is not a valid rule'):
        plan_import(toy(tmp_path, [episode(2)]), "local/toy", last_step="both")


# -- images


def test_images_of_different_sizes_need_one(tmp_path: Path) -> None:
    e = episode(4, 1)
    frames = [np.full((5 + i, 7, 3), 40 * i, np.uint8) for i in range(4)]
    steps = STEP | {"observation": {**STEP["observation"], "image": picture(-1, -1, 3)}}
    changed = {"steps/observation/image": [image(f) for f in frames]}
    records = [record(episode(4, 0)) for _ in range(5)] + [record(e, **changed)]  # beyond the episodes looked at first
    path = write_dataset(tmp_path / "a", steps, {"train": [records]}, metadata=META)
    ds = import_files(path, "local/a")
    assert ds.schema["observation/image"].shape == (0, 0, 3)
    assert "observation/image: images of different sizes; --frames HxW makes them one" in [
        n["text"] for n in ds.manifest.notes
    ]
    with pytest.raises(FrameError, match="of different sizes"):
        column(ds, "observation/image", 5)
    resized = import_files(path, "local/b", frames="16x12")
    got = column(resized, "observation/image", 5)
    assert got.shape == (5, 16, 12, 3)
    assert [int(x.mean()) for x in got] == [0, 40, 80, 120, 120]


@pytest.mark.thorough
def test_jpeg_bytes_are_kept_though_png_is_said(tmp_path: Path) -> None:
    e = episode(3, 1)
    path = write_dataset(tmp_path / "a", STEP, {"train": [[record(e, codec="jpeg")]]}, metadata=META)
    ds = import_files(path, "local/a")
    assert ds.schema["observation/image"].codec == "jpeg"
    wanted = np.stack([decoded(image(x, "jpeg")) for x in e["images"]])
    assert np.array_equal(column(ds, "observation/image")[:-1], wanted)


def test_a_second_header_of_a_depth_image() -> None:
    leaf = FeatureLeaf("depth", "frames", "uint16", (6, 8, 1))
    small, large = image(np.zeros((6, 8, 1), np.uint16)), image(np.zeros((60, 8, 1), np.uint16))
    data = small[:33] + large[8:33] + small[33:]  # 33 bytes: the mark, and the header with its checksum
    rows = steps.PackedImages(steps.EncodedImages(data, np.array([0]), np.array([len(data)])), leaf, "depth")
    with pytest.raises(CorruptArchive, match="60x8 after all"):
        rows.cut(0, 1)


def test_depth_images_are_decoded(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    depth = rng.integers(0, 65536, (3, 6, 8, 1)).astype(np.uint16)
    metres = rng.standard_normal((3, 6, 8, 1)).astype(np.float32)
    rgba = metres.view(np.uint8).reshape(3, 6, 8, 4)
    steps = STEP | {
        "observation": {
            **STEP["observation"],
            "depth": picture(6, 8, 1, dtype="uint16"),
            "metres": picture(6, 8, 1, dtype="float32"),
        }
    }
    changed = {
        "steps/observation/depth": [image(d) for d in depth],
        "steps/observation/metres": [image(d) for d in rgba],
    }
    for rule, length in (("action", 3), ("observation", 2)):
        records = [record(episode(3, 1), **changed)]
        path = write_dataset(tmp_path / rule, steps, {"train": [records]}, metadata=META)
        ds = import_files(path, f"local/{rule}", last_step=rule)
        assert ds.schema["observation/depth"].dtype == "uint16"
        assert np.array_equal(column(ds, "observation/depth")[:length], depth[:length])
        assert np.array_equal(column(ds, "observation/metres")[:3], metres)


def test_an_image_with_absurd_dimensions_is_refused(tmp_path: Path) -> None:
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header + bytes(4)
    e = record(episode(2), **{"steps/observation/image": [bomb, bomb]})
    path = write_dataset(tmp_path / "a", STEP, {"train": [[e]]}, metadata=META)
    with pytest.raises(UnsafeArchive, match=r"60000x60000.* too large to decode"):
        import_files(path, "local/a")


@pytest.mark.thorough
def test_long_episodes_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = [episode(40, 1), episode(3, 2), episode(70, 3)]
    path = toy(tmp_path, written)
    whole = import_files(path, "local/a")
    from rlds_cli import ted

    monkeypatch.setattr(ted.chunks, "__kwdefaults__", {"rows": 7, "size": 2000})
    assert import_files(path, "local/b").fingerprint == whole.fingerprint


# -- other features


def test_tensors_kept_as_bytes_and_deflated(tmp_path: Path) -> None:
    steps = STEP | {
        "observation": {
            "raw": tensor("uint16", 2, 3, encoding="bytes"),
            "packed": tensor("float64", 3, encoding="zlib"),
            "label": Node(classLabel={"numClasses": "5"}),
            "three": sequence(tensor("float32", 2), 3),
        }
    }
    raw = np.arange(24, dtype="<u2").reshape(4, 2, 3)
    packed = np.linspace(0, 1, 12).reshape(4, 3)
    three = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    lists = {
        "steps/observation/raw": [x.tobytes() for x in raw],
        "steps/observation/packed": [zlib.compress(x.tobytes()) for x in packed],
        "steps/observation/label": [1, 2, 3, 4],
        "steps/observation/three": three,
    }
    path = write_dataset(tmp_path / "a", steps, {"train": [[record(episode(4), **lists)]]}, metadata=META)
    ds = import_files(path, "local/a")
    assert np.array_equal(column(ds, "observation/raw")[:-1], raw)
    assert np.array_equal(column(ds, "observation/packed")[:-1], packed)
    assert column(ds, "observation/label")[:-1].tolist() == [1, 2, 3, 4]
    assert np.array_equal(column(ds, "observation/three")[:-1], three)


def test_what_cannot_be_stored_is_left_out_and_named(tmp_path: Path) -> None:
    extra = {
        "clip": Node(video={}),
        "ragged": sequence(tensor("float32")),
        "words": tensor("string", 3),
        "none": tensor("float32", 0),
    }
    path = write_dataset(tmp_path / "a", STEP | extra, {"train": [[record(episode(3))]]}, metadata=META)
    planned = plan_import(path, "local/a")
    assert [n.split(":")[0] for n in planned.notes] == [
        f"steps/{k} is left out" for k in ("clip", "ragged", "words", "none")
    ]
    assert not {"clip", "ragged", "words", "none"} & {f.name for f in planned.fields}


def test_keys_may_be_mapped(tmp_path: Path) -> None:
    e = episode(4, 1)
    ds = import_files(toy(tmp_path, [e]), "local/toy", fields={"observation/pose": "observation/state"})
    assert "observation/state" not in ds.schema
    assert np.array_equal(column(ds, "observation/pose")[:-1], e["state"])
    with pytest.raises(UnknownLayout, match='The steps have no "steps/nothing"'):
        plan_import(toy(tmp_path, [e]), "local/toy", fields={"action": "nothing"})


@pytest.mark.thorough
def test_flags_that_nobody_wrote(tmp_path: Path) -> None:
    steps = {k: v for k, v in STEP.items() if k not in (*FLAGS, "reward", "discount")}
    path = write_dataset(tmp_path / "a", steps, {"train": [[record(episode(3))]]}, metadata=META)
    ds = import_files(path, "local/a")
    assert "next/reward" not in ds.schema
    assert ds.episodes["end"].tolist() == ["cut"]


def test_texts_that_are_no_utf8(tmp_path: Path) -> None:
    path = toy(tmp_path, [])
    write_records(
        path / "toy-train.tfrecord-00000-of-00001",
        [record(episode(2), **{"steps/language_instruction": [b"caf\xe9", b"tea"]})],
    )
    (path / "dataset_info.json").unlink()
    ds = import_files(path, "local/a")
    assert column(ds, "task_at").tolist() == ["caf�", "tea", None] and ds.episodes["task"].tolist() == ["caf�"]
    assert "not-utf8" in [n["code"] for n in ds.manifest.notes]


# -- damage


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"steps/reward": [1.0]}, "lists have different numbers of rows: .*next/reward 1"),
        ({"steps/observation/state": [1.0] * 11}, r"state has 11 values; rows of shape \[4\] expected"),
        ({"steps/observation/state": [1, 2, 3]}, "state is a list of int64; float32 expected"),
        ({"steps/action/grip": [2, 0, 0]}, "grip holds 0 to 2, which are not bool"),
        ({"steps/observation/image": [b"no image"] * 3}, "8 bytes that are neither PNG nor JPEG"),
        ({"steps/observation/image": [*[image(np.zeros((6, 8, 3), np.uint8))] * 2, b""]}, "row 2: an image of 0 bytes"),
        ({"steps/observation/image": [1, 2, 3]}, "image is a list of int64; images expected"),
        ({"steps/language_instruction": [1.0, 2.0, 3.0]}, "language_instruction is a list of float"),
    ],
)
def test_records_that_do_not_fit(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    records = [record(episode(3))] * 5 + [record(episode(3), **changed)]
    path = write_dataset(tmp_path / "a", STEP, {"train": [records]}, metadata=META)
    with pytest.raises(CorruptArchive, match=rf"toy-train.*: record 5.*{why}"):
        import_files(path, "local/a")
    with pytest.raises(DatasetNotFound):
        rlds_cli.open_dataset("local/a")


def test_a_list_that_is_missing(tmp_path: Path) -> None:
    e = record(episode(3)).replace(b"steps/reward", b"steps/rewerd")
    path = write_dataset(tmp_path / "a", STEP, {"train": [[e]]}, metadata=META)
    with pytest.raises(
        CorruptArchive, match=r"record 0 has no steps/reward; features.json requires it in every episode"
    ):
        import_files(path, "local/a")


def test_a_shard_that_ends_early(tmp_path: Path) -> None:
    path = toy(tmp_path, [episode(3, i) for i in range(4)])
    shard = path / "toy-train.tfrecord-00000-of-00001"
    write_records(shard, [record(episode(3, i)) for i in range(2)])
    with pytest.raises(CorruptArchive, match=r"holds 2 episodes; dataset_info.json says 4"):
        import_files(path, "local/a")
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(CorruptArchive, match=r"record 1 at byte [\d,]+: the file ends inside it"):
        import_files(path, "local/a")
    ds = import_files(path, "local/a", skip_bad=True)
    assert ds.episodes["length"].tolist() == [3]
    assert "skipped-files" in [n["code"] for n in ds.manifest.notes]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("no json", UnknownLayout),
        ("[]", UnknownLayout),
        ('{"featuresDict": {"features": {"image": {}}}}', UnknownLayout),
        ('{"featuresDict": {"features": {"steps": {"sequence": {"feature": 5}}}}}', CorruptArchive),
        (json.dumps({"featuresDict": {"features": {"steps": sequence(tensor("float32"))}}}), UnknownLayout),
    ],
)
def test_descriptions_that_are_none(tmp_path: Path, content: str, error: type[ArchiveError]) -> None:
    path = toy(tmp_path, [episode(2)])
    (path / "features.json").write_text(content)
    with pytest.raises(error):
        plan_import(path, "local/a")


def test_shapes_that_cannot_be(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "a", STEP | {"huge": tensor("uint8", 1 << 20, 1 << 20)}, {"train": [[]]})
    with pytest.raises(CorruptArchive, match="does not describe features as TFDS does"):
        plan_import(path, "local/a")


def test_two_datasets_are_not_one(tmp_path: Path) -> None:
    toy(tmp_path / "a", [episode(2)])
    toy(tmp_path / "b", [episode(2)])
    with pytest.raises(UnknownLayout, match="There are 2 TFDS directories"):
        plan_import([tmp_path / "a", tmp_path / "b"], "local/a")


@pytest.mark.parametrize("rule", ["action", "observation"])
def test_steps_are_traced_back_to_the_records(tmp_path: Path, rule: str) -> None:
    import_files(toy(tmp_path, [episode(5, 1), episode(7, 2, terminal=False)]), "local/toy", last_step=rule)
    found = trace("local/toy", 100)
    assert found.ok and set(found.fields) == {*rlds_cli.open_dataset("local/toy").schema} - {"next/truncated"}


# -- the shared sample, read by a parser of the test's own


def slow_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def slow_fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        tag, at = slow_varint(data, at)
        size, at = slow_varint(data, at)
        yield tag >> 3, data[at : at + size]
        at += size


def slow_example(data: bytes) -> dict[str, list[Any]]:
    found = {}
    for _, features in slow_fields(data):
        for _, entry in slow_fields(features):
            parts = dict(slow_fields(entry))
            ((kind, values),) = slow_fields(parts[2])
            lists = [content for _, content in slow_fields(values)]
            if kind == 2:
                lists = [x for (x,) in struct.iter_unpack("<f", lists[0])] if lists else []
            elif kind == 3:
                numbers, at = [], 0
                while lists and at < len(lists[0]):
                    value, at = slow_varint(lists[0], at)
                    numbers.append(value)
                lists = numbers
            found[parts[1].decode()] = lists
    return found


@pytest.mark.thorough
def test_the_bridge_sample_equals_its_file() -> None:
    path = DATA / "openx/bridge_dataset/1.0.0"
    ds = import_files(path, "local/bridge")
    data, at, number = (path / "bridge_dataset-val.tfrecord-00000-of-00001").read_bytes(), 0, 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        lists = slow_example(data[at + 12 : at + 12 + size])
        at, n = at + size + 16, len(lists["steps/reward"])
        assert int(ds.episodes["length"][number]) == n
        for name, width in (("action", 7), ("observation/state", 7), ("language_embedding", 512)):
            wanted = np.array(lists[f"steps/{name}"], np.float32).reshape(n, width)
            assert np.array_equal(column(ds, name, number)[:n], wanted)
        assert column(ds, "next/reward", number)[:n].tolist() == lists["steps/reward"]
        assert column(ds, "next/terminated", number)[:n].tolist() == lists["steps/is_terminal"]
        texts = [b.decode() for b in lists["steps/language_instruction"]]
        assert column(ds, "task", number)[:n].tolist() == texts
        for camera in range(4):
            wanted = np.stack(
                [np.asarray(Image.open(io.BytesIO(b))) for b in lists[f"steps/observation/image_{camera}"]]
            )
            assert np.array_equal(column(ds, f"observation/image_{camera}", number)[:n], wanted)
        assert ds.episodes["episode_id"][number] == lists["episode_metadata/episode_id"][0]
        assert ds.episodes["file_path"][number].encode() == lists["episode_metadata/file_path"][0]
        number += 1
    assert number == len(ds.episodes) == 25
    assert ds.select(split="val").num_steps == ds.num_steps


# -- records that nothing describes


def undescribed(n: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng([n, seed])
    marks = np.arange(n)
    return {
        "steps/observation/state": rng.standard_normal((n, 3)).astype(np.float32),
        "steps/observation/image": [image(rng.integers(0, 256, (6, 8, 3)).astype(np.uint8)) for _ in range(n)],
        "steps/action": rng.standard_normal((n, 2)).astype(np.float32),
        "steps/count": rng.integers(-9, 9, n),
        "steps/reward": rng.standard_normal(n).astype(np.float32),
        "steps/language_instruction": [f"do {seed}"] * n,
        "steps/is_first": (marks == 0).astype(int),
        "steps/is_last": (marks == n - 1).astype(int),
        "steps/is_terminal": np.zeros(n, int),
        "episode_metadata/file_path": [f"/data/{seed}.npy"],
    }


@pytest.mark.parametrize("name", ["data.tfrecord", "robot-train.tfrecord-00000-of-00001"])
def test_episodes_without_a_description_are_read_by_their_keys(tmp_path: Path, name: str) -> None:
    made = [undescribed(n, k) for k, n in enumerate((4, 1, 6))]
    records = (example({k: v if isinstance(v, list) else v.ravel().tolist() for k, v in e.items()}) for e in made)
    file = write_records(tmp_path / "data" / name, records)
    ds = import_files(file, "local/x", progress=False)
    assert ds.episodes["length"].tolist() == [4, 1, 6] and ds.episodes["end"].tolist() == ["truncated"] * 3
    assert ds.episodes["task"].tolist() == ["do 0", "do 1", "do 2"]
    for k, e in enumerate(made):
        found = ds.episode(k)
        np.testing.assert_array_equal(found["observation", "state"], e["steps/observation/state"])
        np.testing.assert_array_equal(found["action"], e["steps/action"])
        np.testing.assert_array_equal(np.ravel(found["next", "reward"]), e["steps/reward"])
        np.testing.assert_array_equal(np.ravel(found["count"]), e["steps/count"])
        np.testing.assert_array_equal(found["observation", "image"][0], decoded(e["steps/observation/image"][0]))
    assert any(n["code"] == "undescribed" for n in ds.manifest.notes) and trace(ds, 2).ok


def test_other_records_without_a_description_are_refused_by_what_they_hold(tmp_path: Path) -> None:
    rows = ({"observation": [float(t), 1.0], "action": [0.5], "episode": [0]} for t in range(4))
    file = write_records(tmp_path / "data/a.tfrecord", map(example, rows))
    with pytest.raises(UnknownLayout, match=r"TFRecord without features\.json.*action, episode, observation") as e:
        plan_import(file, "local/x")
    assert "features.json" in str(e.value.hint)
