"""HDF5 files with parts that were never written, and with checksums of their own."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from rlds_cli.archives import Archive
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout
from rlds_cli.look import checks
from rlds_cli.make.importing import import_files

N = 40


def write(path: Path, *, rewards: bool = True, upto: int = N, fletcher: bool = False) -> Path:
    """Flat steps, as D4RL keeps them: two episodes, ``rewards`` assigned or not, observations as far as ``upto``."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as f:
        observations = f.create_dataset("observations", (N, 3), "f4", chunks=(10, 3), fletcher32=fletcher)
        observations[:upto] = rng.normal(size=(upto, 3)) + 1
        f["actions"] = rng.normal(size=(N, 2)).astype(np.float32)
        values = f.create_dataset("rewards", (N,), "f4")
        if rewards:
            values[:] = rng.normal(size=N)
        f["terminals"] = np.isin(np.arange(N), (19, 39))
        f["timeouts"] = np.zeros(N, bool)
        f.create_dataset("metadata/nothing", (0, 3), "f4", maxshape=(None, 3), chunks=(5, 3))
        f["metadata/algorithm"] = "none"
    return path


def test_a_whole_file_has_no_note(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5")
    assert Archive(tmp_path, (path,)).never_written() == ()


@pytest.mark.thorough
def test_chunks_that_were_never_written_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", rewards=False, upto=20)
    ds = import_files(path, "local/a")
    assert not ds.column("next/reward").any() and not ds.column("observation")[22:].any()  # what HDF5 reads
    (note,) = [n for n in ds.manifest.notes if n["code"] == "never-written"]
    assert note["count"] == 3
    assert "observations (2 of 4 chunks) of a.hdf5; rewards (1 of 1 chunks) of a.hdf5" in note["text"]
    found = [f for f in checks.check(ds).findings if f.code == "never-written"]
    assert [f.text for f in found] == [note["text"]]


def test_chunks_in_nested_groups_and_odd_corners(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as f:
        d = f.create_dataset("a/b/c", (25, 7), "f8", chunks=(10, 4))  # 3 rows of 2 chunks
        d[:10, :4] = 1
        d[20:, 4:] = 1
    (note,) = Archive(tmp_path, (path,)).never_written()
    assert note.count == 4 and "a/b/c (4 of 6 chunks)" in note.text


def test_a_sound_file_of_another_format_is_not_to_be_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("x,y\n1,2\n")
    for reader in ("robomimic", "roboset"):
        with pytest.raises(ArchiveError) as e:
            import_files(tmp_path / "steps.csv", "local/a", reader=reader)
        assert (e.value.hint or "").startswith(f"rlds inspect {tmp_path / 'steps.csv'} shows what it is")
    for reader in ("d3rlpy", "ogbench"):
        with pytest.raises(UnknownLayout, match="It holds x, y") as e:
            import_files(tmp_path / "steps.csv", "local/a", reader=reader)
        assert "--reader plain" in (e.value.hint or "")


@pytest.mark.thorough
def test_texts_that_are_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as f:
        for k in range(2):
            group = f.create_group(f"data/demo_{k}")
            group["actions"] = np.ones((4, 2))
            group["obs/x"] = np.ones((4, 2))
            group["note"] = np.array(["Grün".encode("latin-1")] * 4, object).astype(h5py.string_dtype())
    with pytest.raises(UnknownLayout, match="holds texts that are not UTF-8"):
        import_files(path, "local/a", reader="robomimic")


@pytest.mark.thorough
def test_a_fletcher32_checksum_that_disagrees(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", fletcher=True)
    import_files(path, "local/sound")
    with h5py.File(path) as f:
        info = f["observations"].id.get_chunk_info(2)
        at = info.byte_offset + 7
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptArchive, match=r"observations cannot be read: .*checksum \(Fletcher32\) does not agree"):
        import_files(path, "local/a")
