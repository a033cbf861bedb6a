"""Digests and fingerprint against their definition, worked out by hand with hashlib."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlds_cli

# -- of datasets


def episodes(lengths: list[int]) -> list[dict[str, object]]:
    rng = np.random.default_rng(3)
    return [
        {
            "observation": rng.normal(size=(t + 1, 3)),
            "action": rng.integers(0, 4, t),
            "pixels": rng.integers(0, 255, (t, 40, 40, 3), np.uint8),
            "word": ["a", None, "b"][:t] + ["a"] * (t - 3),
            "next": {"reward": rng.normal(size=t), "terminated": t % 2 == 0},
            "episode": {"task": f"task {t}", "quality": t if t > 2 else None},
        }
        for t in lengths
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("store", ["memmap", "zarr"])
def test_the_fingerprint_of_a_selection_is_that_of_a_copy(tmp_path: Path, store: str) -> None:
    whole = episodes([5, 2, 9, 1, 4])
    ds = rlds_cli.create("local/whole", whole, store=store, cache_dir=tmp_path)  # type: ignore[arg-type]
    part = rlds_cli.create("local/part", [whole[k] for k in (4, 0, 2)], cache_dir=tmp_path)
    assert ds.select(episodes=[4, 0, 2]).fingerprint == part.fingerprint != ds.fingerprint
    assert ds.select(episodes=np.arange(5)).fingerprint == ds.fingerprint


@pytest.mark.thorough
def test_the_fingerprint_covers_the_columns_of_the_user(tmp_path: Path) -> None:
    a = rlds_cli.create("local/a", episodes([5, 2]), cache_dir=tmp_path)
    other = episodes([5, 2])
    other[1]["episode"] = {"task": "task 3", "quality": None}
    assert rlds_cli.create("local/b", other, cache_dir=tmp_path).fingerprint != a.fingerprint


@pytest.mark.thorough
def test_ids_follow_from_content_and_are_unique(tmp_path: Path) -> None:
    whole = episodes([5, 2, 9])
    a = rlds_cli.create("local/a", [*whole, whole[0], whole[0]], cache_dir=tmp_path).store.episodes["id"]
    b = rlds_cli.create("local/b", [whole[2], whole[0]], cache_dir=tmp_path).store.episodes["id"]
    assert a.shape == (5, 16)
    assert len({i.tobytes() for i in a}) == 5
    assert np.array_equal(b, a[[2, 0]])
