"""Datasets whose frames are kept encoded, as archives publish them: what ``create`` cannot make."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

import rlds_cli
from rlds_cli.base.files import publishing
from rlds_cli.base.ids import parse
from rlds_cli.homes import Home
from rlds_cli.store import Description, Work, finish
from rlds_cli.ted import Chunk, EncodedFrames, EpisodeData, Field, Part, lay_out

SHAPE = (16, 12, 3)


def jpeg(episode: int, step: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng((episode, step)).integers(0, 256, SHAPE, np.uint8)
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()


def decoded(episode: int, step: int) -> np.ndarray:
    """What Pillow makes of it."""
    return np.asarray(Image.open(io.BytesIO(jpeg(episode, step))))


class Film:
    id, key, stage = "local/film", "film", "convert"
    parts = (Part(None, {}),)
    schema = (
        Field("action", "float32", (2,)),
        Field("next/reward", "float32", (), "next"),
        Field("next/terminated", "bool", (), "next"),
        Field("next/truncated", "bool", (), "next"),
        Field("observation", "uint8", SHAPE, "both", "frames", "jpeg"),
    )

    def __init__(self, lengths: list[int], broken: tuple[int, int] | None) -> None:
        self.lengths, self.broken = lengths, broken

    def read(self, part: Part) -> Iterator[Chunk]:
        yield lay_out(self.schema, [self.episode(k, length) for k, length in enumerate(self.lengths)])

    def episode(self, k: int, length: int) -> EpisodeData:
        files = [jpeg(k, t)[: 100 if (k, t) == self.broken else None] for t in range(length + 1)]
        frames = EncodedFrames(
            np.frombuffer(b"".join(files), np.uint8), np.array([len(file) for file in files], np.int64)
        )
        steps = np.arange(length)
        return EpisodeData(
            {
                "action": np.stack([np.full(length, k), steps], 1).astype(np.float32),
                "next/reward": steps.astype(np.float32),
                "next/terminated": steps == length - 1,
                "next/truncated": np.zeros(length, bool),
                "observation": frames,
            },
            length,
            0,
            row=k,
        )


def film(lengths: list[int], broken: tuple[int, int] | None = None) -> rlds_cli.Dataset:
    """Write episodes of so many steps; the frame of ``broken`` (episode, step) is cut short."""
    return write(Film(lengths, broken))


def write(job: Film) -> rlds_cli.Dataset:
    """Write the episodes of a job."""
    home = Path(os.environ["RLDS_HOME"])
    built = Work(job, home / "partial" / job.key).run(progress=lambda event: None)
    finish(built, Description(job.id))
    publishing.publish(built.directory, Home(home).dataset(parse(job.id)))
    return rlds_cli.open_dataset(job.id)
