"""Frames that are published as arrays, resized while an archive is converted; means are worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlds_cli.make.convert import decoding
from rlds_cli.ted import Chunk, EpisodeData, Field, lay_out


def coarse(blocks: np.ndarray) -> np.ndarray:
    """Frames of twice the height and width whose areas have ``blocks`` as their means."""
    fine = blocks.repeat(2, axis=1).repeat(2, axis=2)
    spread = np.resize(np.array([[3, -3], [-3, 3]]), fine.shape[1:3])
    return (fine.astype(int) + spread.reshape(1, *spread.shape, *[1] * (fine.ndim - 3))).astype("u1")


def chunk(f: Field, rows: np.ndarray) -> Chunk:
    columns = {f.name: rows, "action": np.zeros((len(rows) - 1, 2))}
    return lay_out((f, Field("action", "float64", (2,))), [EpisodeData(columns, len(rows) - 1, 0)])


@pytest.mark.parametrize("shape", [(18, 20, 3), (18, 20), (3, 18, 20)])
def test_raw_frames_are_resized_whatever_their_layout(shape: tuple[int, ...]) -> None:
    first = shape[0] == 3
    channels_last = (18, 20, 3) if len(shape) == 3 else shape
    small = np.random.default_rng(0).integers(10, 240, (5, *channels_last), dtype="u1")
    fine = coarse(small)
    rows, wanted = (np.moveaxis(a, 3, 1) if first else a for a in (fine, small))
    f = Field("observation", "uint8", rows.shape[1:], "both")
    assert decoding.decoded_field(f, "18x20").shape == wanted.shape[1:]
    action = Field("action", "float64", (2,))
    found = list(decoding.decode_chunks(iter([chunk(f, rows)]), (f, action), "18x20", Path()))
    np.testing.assert_array_equal(np.concatenate([c.columns["observation"] for c in found]), wanted)
    assert found[0].columns["action"].shape == (5, 2)
    assert found[-1].episodes.length.tolist() == [4]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "f",
    [
        Field("observation", "uint8", (8, 8), "both"),
        Field("observation", "uint8", (84,), "both"),
        Field("observation", "float32", (64, 64, 3), "both"),
        Field("observation", "uint8", (20, 20, 20), "both"),
    ],
)
def test_what_is_no_frame_stays(f: Field) -> None:
    assert decoding.decoded_field(f, "32x32") == f


def test_raw_stays_raw() -> None:
    f = Field("observation", "uint8", (3, 84, 84), "both")
    assert decoding.decoded_field(f, "raw") == decoding.decoded_field(f, "encoded") == f
