"""Procgen episodes in a tar.xz. Expected values are the arrays that were written, and what NumPy reads of members."""

from __future__ import annotations

import io
import json
import lzma
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from image_archives import dgrl_episode, npz_bytes, write_dgrl, write_pickled_dgrl, write_tar
from server import Server

import rlds_cli
from rlds_cli import archives, registry, ted
from rlds_cli.archives import Archive, gen_dgrl
from rlds_cli.archives.formats import compressed
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files
from rlds_cli.registry import lookup

ID = "gen_dgrl/bigfish-1M_E"


def check(ds: Any, made: list[dict[str, np.ndarray]], *, dtype: str = "u1") -> None:
    """A dataset against the episodes that were written; all of them end with a done."""
    assert ds.episodes["length"].tolist() == [len(e["actions"]) for e in made]
    observation, action, reward = (ds.column(n) for n in ("observation", "action", "next/reward"))
    assert observation.dtype == dtype and action.dtype == np.int64
    for start, e in zip(ds.episodes["start"].tolist(), made, strict=True):
        steps = len(e["actions"])
        for t in range(steps):
            assert np.array_equal(observation[start + t], e["observations"][t])
            assert np.array_equal(action[start + t], e["actions"][t])
            assert reward[start + t] == e["rewards"][t, 0]
        # The frame behind a done is of another episode: the last row repeats the one before.
        assert np.array_equal(observation[start + steps], e["observations"][steps - 1])


def codes(ds: Any) -> dict[str, int]:
    return {n["code"]: n["count"] for n in ds.manifest.notes}


@pytest.mark.thorough
def test_episodes_by_hand(tmp_path: Path) -> None:
    made = write_dgrl(tmp_path / "bigfish.tar.xz", [5, 1, 30])
    ds = import_files(tmp_path / "bigfish.tar.xz", "local/bigfish")
    assert ds.manifest.reader == "gen_dgrl"
    check(ds, made)
    assert ds.episodes["end"].tolist() == ["terminated"] * 3
    assert ds.episodes["num_observed"].tolist() == [5, 1, 30]
    assert ds.num_transitions == 36
    assert ds.episodes["seed"].tolist() == [40, 41, 42]
    flags = ds.column("next/terminated")
    assert np.flatnonzero(flags).tolist() == [4, 6, 37]
    assert ds.manifest.facts["observations"] == "float32" and ds.manifest.facts["kept"] == "uint8"
    assert ds.schema["action"].shape == (1,) and ds.schema["next/reward"].shape == ()


def test_an_episode_without_a_done_keeps_its_last_frame(tmp_path: Path) -> None:
    e = dgrl_episode(4, 0) | {"dones": np.array([0, 1, 0, 0], bool)}
    write_tar(tmp_path / "x.tar.xz", [("a.npz", npz_bytes(e))])
    ds = import_files(tmp_path / "x.tar.xz", "local/x")
    assert ds.episodes["end"].tolist() == ["cut"] and ds.episodes["num_observed"].tolist() == [5]
    np.testing.assert_array_equal(ds.column("observation"), e["observations"])
    assert ds.column("next/terminated").tolist() == [0, 1, 0, 0, 0]
    assert ds.column("next/truncated").tolist() == [0, 0, 0, 1, 0]
    assert codes(ds)["terminated-inside"] >= 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("mode", "dtype"), [("w", "f4"), ("w:gz", "u1"), ("w:xz", "f8"), ("w:xz", "i8")])
def test_any_packing_and_dtype(tmp_path: Path, mode: str, dtype: str) -> None:
    made = [dgrl_episode(6, k, dtype=dtype) for k in range(2)]
    write_tar(tmp_path / "x.tar", [(f"{k}.npz", npz_bytes(e)) for k, e in enumerate(made)], mode)
    check(import_files(tmp_path / "x.tar", "local/x"), made)


def test_observations_that_are_no_whole_numbers_stay_as_they_are(tmp_path: Path) -> None:
    made = [dgrl_episode(6, k) for k in range(3)]
    made[2]["observations"][3, 1, 2, 2] = 0.5  # the first episodes look like uint8
    write_tar(tmp_path / "x.tar.xz", [(f"{k}.npz", npz_bytes(e)) for k, e in enumerate(made)])
    ds = import_files(tmp_path / "x.tar.xz", "local/x")
    check(ds, made, dtype="f4")
    assert ds.manifest.facts["kept"] == "float32"
    made[0]["observations"][0, 0, 0, 0] = np.nan
    write_tar(tmp_path / "y.tar.xz", [("0.npz", npz_bytes(made[0]))])
    assert import_files(tmp_path / "y.tar.xz", "local/y").schema["observation"].dtype == "float32"


def test_lengths_are_those_of_the_episodes(tmp_path: Path) -> None:
    made = [dgrl_episode(n, n) for n in (5, 6)]
    returns = [e["rewards"].sum() for e in made]
    names = [f"20220101T000000_0_7_12_{returns[0]:.2f}.npz", f"20220101T000000_1_6_-1_{returns[1] + 3:.2f}.npz"]
    write_tar(tmp_path / "x.tar.xz", [(n, npz_bytes(e)) for n, e in zip(names, made, strict=True)])
    ds = import_files(tmp_path / "x.tar.xz", "local/x")
    check(ds, made)
    assert codes(ds)["length-in-name"] == 1 and codes(ds)["return-in-name"] == 1
    assert ds.episodes["seed"].tolist() == [12, 0] and ds.episodes["has_seed"].tolist() == [True, False]


def test_other_columns_and_other_members(tmp_path: Path) -> None:
    e = dgrl_episode(4, 0) | {"values": np.arange(4.0), "level": np.arange(5)}
    other = [("README.md", b"hello"), ("._0.npz", b"desktop"), ("data/0.npz", npz_bytes(e))]
    write_tar(tmp_path / "x.tar.xz", other)
    ds = import_files(tmp_path / "x.tar.xz", "local/x")
    assert ds.column("info/values").tolist() == [0, 1, 2, 3, 0]
    assert ds.column("info/level").tolist() == [0, 1, 2, 3, 3]
    assert codes(ds)["other-files"] == 2


PICKLES = {
    "an array of objects": lambda e: _saved(np.array(e, dtype=object)),
    "a pickle": pickle.dumps,
}


def _saved(array: np.ndarray) -> bytes:
    f = io.BytesIO()
    np.save(f, array, allow_pickle=True)
    return f.getvalue()


@pytest.mark.parametrize("what", PICKLES)
def test_pickles_are_refused_and_the_way_out_is_said(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x.tar.xz"
    write_tar(path, [("a_3_1_0.00.npy", PICKLES[what](dgrl_episode(3, 0)))])
    assert archives.recognise([path]) == ("gen_dgrl", "episodes in a tar, pickled: a_3_1_0.00.npy")
    with pytest.raises(UnsafeArchive, match="unpickling can run any code") as e:
        import_files(path, "local/x")
    assert "docs/families/gen_dgrl.md" in str(e.value.hint)
    write_tar(path, [("0.npz", npz_bytes(dgrl_episode(3, 0))), ("1.npy", PICKLES[what](dgrl_episode(3, 0)))])
    for skip_bad in (False, True):
        with pytest.raises(UnsafeArchive, match=r"1\.npy is a pickle"):
            import_files(path, "local/x", skip_bad=skip_bad)


def test_the_script_of_the_docs_converts_pickles_elsewhere(tmp_path: Path) -> None:
    made = write_pickled_dgrl(tmp_path / "pickled.tar.xz", [5, 8])
    script = Path(__file__).parents[2] / "docs" / "families" / "convert_pickled_procgen.py"
    command = [sys.executable, str(script), "pickled.tar.xz", "converted.tar"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    check(import_files(tmp_path / "converted.tar", "local/x"), made)


def test_what_is_no_episode(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.xz"
    good = dgrl_episode(4, 0)
    cases = {
        "is ragged: observations 4": good | {"observations": good["observations"][:-1]},
        "has no dones": {k: v for k, v in good.items() if k != "dones"},
        "does not hold the fields of the first episode: action": good | {"actions": np.zeros((4, 2), "i8")},
    }
    for k, (why, bad) in enumerate(cases.items()):
        write_tar(path, [("0.npz", npz_bytes(good)), ("1.npz", npz_bytes(bad)), ("2.npz", npz_bytes(good))])
        with pytest.raises(ArchiveError, match=why) as e:
            import_files(path, f"local/x{k}")
        assert e.value.hint == "--skip-bad leaves such episodes out"
        ds = import_files(path, f"local/x{k}", skip_bad=True)
        check(ds, [good, good])
        (note,) = [n for n in ds.manifest.notes if n["code"] == "bad-files"]
        assert why.split(":")[0] in note["text"] and note["where"] == "1.npz"
    write_tar(path, [("0.npy", _saved(np.zeros(3)))])
    with pytest.raises(UnknownLayout, match=r"0\.npy is not an npz of an episode"):
        gen_dgrl.plan(Archive(tmp_path, (path,)))
    write_tar(path, [("README", b"")])
    with pytest.raises(UnknownLayout, match="holds no episodes"):
        gen_dgrl.plan(Archive(tmp_path, (path,)))
    with pytest.raises(UnknownLayout, match="do not apply"):
        gen_dgrl.plan(Archive(tmp_path, (path,), "flags"))


def test_a_damaged_episode_is_left_out_when_asked(tmp_path: Path) -> None:
    made = [dgrl_episode(30, k) for k in range(3)]
    contents = [bytearray(npz_bytes(e)) for e in made]
    contents[1][3000] ^= 0xFF
    write_tar(tmp_path / "x.tar", [(f"{k}.npz", bytes(c)) for k, c in enumerate(contents)], "w")
    with pytest.raises(CorruptArchive, match="observations cannot be read"):
        import_files(tmp_path / "x.tar", "local/x")
    check(import_files(tmp_path / "x.tar", "local/x", skip_bad=True), [made[0], made[2]])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.999])
def test_what_breaks_off_is_truncated(tmp_path: Path, share: float) -> None:
    path = tmp_path / "bigfish.tar.xz"
    write_dgrl(path, [30, 30, 30])
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    for skip_bad in (False, True):
        with pytest.raises(CorruptArchive, match=r"bigfish\.tar\.xz is truncated: its xz stream ends at byte") as e:
            import_files(path, "local/x", reader="gen_dgrl", skip_bad=skip_bad)
        assert "fetch it again" in str(e.value.hint)


def test_members_that_reach_out_are_refused(tmp_path: Path) -> None:
    good = npz_bytes(dgrl_episode(4, 0))
    link = tarfile.TarInfo("1.npz")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    for odd in ("/tmp/1.npz", "a/../../1.npz", link):
        write_tar(tmp_path / "x.tar.xz", [("0.npz", good), (odd, b"")])
        with pytest.raises(UnsafeArchive, match=r"x\.tar\.xz: the member"):
            import_files(tmp_path / "x.tar.xz", "local/x")
    assert not (tmp_path / "home/datasets").exists()


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "FREE_BYTES", 1 << 20)
    e = dgrl_episode(4, 0) | {"observations": np.zeros((5, 3, 64, 64), "u1")}
    with tarfile.open(tmp_path / "head.tar", "w") as tar:
        info = tarfile.TarInfo("0.npz")
        info.size = len(npz_bytes(e))
        tar.addfile(info, io.BytesIO(npz_bytes(e)))
        head = (tmp_path / "head.tar").read_bytes()
    for k in range(1, 9):  # each within the limit
        info = tarfile.TarInfo(f"{k}.bin")
        info.size = 1 << 20
        head += info.tobuf() + bytes(1 << 20)
    (tmp_path / "x.tar.xz").write_bytes(lzma.compress(head))
    with pytest.raises(UnsafeArchive, match="packed bytes become more than"):
        import_files(tmp_path / "x.tar.xz", "local/x", reader="gen_dgrl")


@pytest.mark.thorough
def test_long_episodes_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write_dgrl(tmp_path / "x.tar.xz", [40, 3, 25, 2, 60])
    monkeypatch.setattr(ted.chunks, "__kwdefaults__", {"rows": 7, "size": 1 << 24})
    ds = import_files(tmp_path / "x.tar.xz", "local/x")
    check(ds, made)
    monkeypatch.setattr(ted.chunks, "__kwdefaults__", {"rows": 1 << 16, "size": 1 << 14})
    assert import_files(tmp_path / "x.tar.xz", "local/y").fingerprint == ds.fingerprint


def test_steps_are_traced_back_to_the_members(tmp_path: Path) -> None:
    write_dgrl(tmp_path / "x.tar.xz", [5, 3])
    import_files(tmp_path / "x.tar.xz", "local/x")
    found = trace("local/x", 100)
    assert found.ok and (found.steps, found.values) == (8, 8 * 4 + 6)
    assert found.fields == ("action", "next/reward", "next/terminated", "observation")


@pytest.mark.thorough
def test_recognised_by_content(tmp_path: Path) -> None:
    write_dgrl(tmp_path / "x.tar.xz", [3])
    kind, what = archives.recognise([tmp_path / "x.tar.xz"]) or ("", "")
    assert kind == "gen_dgrl" and what.startswith("Procgen layout: a tar of episodes, the first bigfish/2022")
    for name, content in (("a", b""), ("b", b"\xfd7zXZ\x00nonsense"), ("c", lzma.compress(b"x" * 2000))):
        (tmp_path / name).write_bytes(content)
        assert gen_dgrl.recognise([tmp_path / name]) is None
    write_tar(tmp_path / "d.tar", [("a.txt", b"text")], "w")
    assert gen_dgrl.recognise([tmp_path / "d.tar"]) is None


# The registry


@pytest.mark.thorough
def test_from_either_address_of_the_host(tmp_path: Path) -> None:
    made = write_dgrl(tmp_path / "bigfish.tar.xz", [5, 8])
    content = (tmp_path / "bigfish.tar.xz").read_bytes()
    urls = registry.get(ID).files[0].urls
    assert len(urls) == 2
    for k, url in enumerate(urls):
        with Server() as server:
            server.add(urlsplit(url).path, content, drops=[len(content) // 2])
            ds = rlds_cli.download(ID, source=server.url, home=tmp_path / str(k))
        assert ds.id == ID
        check(ds, made)


def test_the_registry_holds_every_fact() -> None:
    entries = lookup.entries("gen_dgrl")
    assert len(entries) == 128 and all(e.files[0].path.endswith(".tar.xz") for e in entries)
    facts = Path(__file__).parents[1] / "data" / "registry-facts" / "gen_dgrl.json"
    for fact in json.loads(facts.read_text()):
        wanted = {u for u in fact["urls"] if u.endswith(".tar.xz")}
        assert set(registry.get(fact["id"]).files[0].urls) == wanted
