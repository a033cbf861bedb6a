"""``ADDRESS#rlds1:...`` proves what is read: whatever a stranger claims, no wrong value gets out."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import forged_address as forged
import numpy as np
import pytest
from test_remote_store import MAKERS, assert_same
from versions_model import build, draw

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import RldsError, WrongFingerprint, WrongHash
from rlds_cli.loader import Loader, Shuffled, Slice


def wide(_: Path) -> Dataset:
    """Rows that have digests of their own, of a selection with other rows between."""
    rng = np.random.default_rng(3)
    given = [{"observation": rng.normal(size=(n + 1, 600)), "action": rng.normal(size=(n, 2))} for n in (4, 70, 9, 5)]
    return rlds_cli.create("local/wide", given).select(episodes=[3, 0, 2]).save("some")


def merged(_: Path) -> Dataset:
    """Rows in segments."""
    given = [{"observation": np.full((6, 3), k, float), "action": np.full((5, 1), k, float)} for k in range(4)]
    ids = [rlds_cli.create(f"local/m{k}", given[k::2]).id for k in range(2)]
    return rlds_cli.merge(ids, "local/merged")


def adjoining(_: Path) -> Dataset:
    """Parts of episodes, of which one ends with the observation that the next begins with."""
    rng = np.random.default_rng(3)
    given = [replace(draw(rng, n), about={}) for n in (4, 3)]
    return build("local/whole", given).trim({0: [(0, 2), (2, 4)], 1: [(0, 1), (1, 3)]}, "parts")


def compare(got: Dataset, wanted: Dataset) -> None:
    if not wanted.store.table.has_gaps or wanted.store.table.segment_rows:
        assert_same(got, wanted)
        return
    assert got.fingerprint == wanted.fingerprint and got.num_episodes == wanted.num_episodes
    for k in range(wanted.num_episodes):
        mine, theirs = got.episode(k), wanted.episode(k)
        for name in wanted.schema:
            assert np.asarray(mine[name]).tobytes() == np.asarray(theirs[name]).tobytes(), name


# ids, origin and sums are no content
UNCOVERED = (
    "id",
    "source",
    "row",
    "of",
    "first",
    "source_episode",
    "source_step",
    "num_done",
    "num_terminated",
    "num_truncated",
    "total_reward",
)
KINDS: dict[str, Callable[[Path], Dataset]] = {**MAKERS, "wide": wide, "merged": merged, "adjoining": adjoining}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_right_is_read(kind: str, tmp_path: Path) -> None:
    wanted = KINDS[kind](tmp_path)
    rlds_cli.push(wanted.id, tmp_path / "store", pages=False)
    far = tmp_path / "far"
    got = rlds_cli.open_dataset(f"{tmp_path / 'store'}#{wanted.fingerprint}", home=far)
    compare(got, wanted)
    compare(pickle.loads(pickle.dumps(got)), wanted)
    there, here = (Loader(d, 8, window=Slice(2), sampler=Shuffled(), backend="numpy", steps=5) for d in (got, wanted))
    for one, other in zip(there, here, strict=True):
        for (name, x), (_, y) in zip(one.leaves(), other.leaves(), strict=True):
            assert x.dtype == object or x.tobytes() == y.tobytes(), name


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("derived", "imported")])
def test_what_a_stranger_changed_is_refused(kind: str, tmp_path: Path) -> None:
    """Each file with other bytes, under the genuine id, fingerprint and manifest."""
    wanted = KINDS[kind](tmp_path)
    rlds_cli.push(wanted.id, tmp_path / "store", pages=False)
    files, refused, wrong = forged.read(tmp_path / "store"), 0, 0
    beside = ("metadata/", "sources/", *(f"episodes/{name}/" for name in UNCOVERED))
    changed = [path for path in files if "/c/" in path and not path.startswith(beside)]
    for number, path in enumerate(changed):
        content = bytearray(files[path])
        content[::5] = bytes(byte ^ 4 for byte in content[::5])
        at = tmp_path / f"forged{number}"
        forged.write(at, forged.index_of(tmp_path / "store"), {**files, path: bytes(content)})
        for pinned in (True,) if wrong else (True, False):  # without a fingerprint, one wrong value is enough
            ref = f"{at}#{wanted.fingerprint}" if pinned else at
            try:
                compare(rlds_cli.open_dataset(ref, home=tmp_path / f"far{number}{pinned}"), wanted)
            except RldsError:
                refused += pinned
            except AssertionError:
                assert not pinned, path
                wrong += 1
    assert refused > 3
    assert wrong > 0 or kind.startswith("compressed")  # which Zstandard notices


def test_a_claim_of_another_content_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    wanted, other = MAKERS["created"](tmp_path), MAKERS["large"](tmp_path)
    for ds, name in ((wanted, "a"), (other, "b")):
        rlds_cli.push(ds.id, tmp_path / name, pages=False)
    claims = forged.index_of(tmp_path / "a")
    files = forged.read(tmp_path / "b") | {"zarr.json": forged.read(tmp_path / "a")["zarr.json"]}
    forged.write(tmp_path / "b", claims, files)
    with pytest.raises(RldsError):
        rlds_cli.open_dataset(f"{tmp_path / 'b'}#{wanted.fingerprint}", home=tmp_path / "far")
    files = forged.read(tmp_path / "a")
    digests = next(path for path in files if path.startswith("digests/action/c/"))
    forged.write(tmp_path / "a", claims, {**files, digests: bytes(len(files[digests]))})
    with pytest.raises(WrongFingerprint):
        rlds_cli.open_dataset(f"{tmp_path / 'a'}#{wanted.fingerprint}", home=tmp_path / "far")


def test_blocks_that_were_read_without_a_proof_are_proved_all_the_same(tmp_path: Path) -> None:
    wanted = MAKERS["created"](tmp_path)
    rlds_cli.push(wanted.id, tmp_path / "store", pages=False)
    files = forged.read(tmp_path / "store")
    rows = next(path for path in files if path.startswith("action/c/"))
    forged.write(tmp_path / "store", forged.index_of(tmp_path / "store"), {**files, rows: bytes(len(files[rows]))})
    far = tmp_path / "far"
    assert not np.asarray(rlds_cli.open_dataset(tmp_path / "store", home=far).column("action")[:]).any()
    with pytest.raises(WrongHash, match="action"):
        _ = rlds_cli.open_dataset(f"{tmp_path / 'store'}#{wanted.fingerprint}", home=far).column("action")[:]
