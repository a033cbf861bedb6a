"""A job of five parts, of two episodes each; other processes import this module, and neither pytest nor a test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rlds_cli.base.progress import Stage
from rlds_cli.ted import TERMINATED, Chunk, EncodedFrames, EpisodeData, Field, Note, Part, lay_out

SCHEMA = (
    Field("action", "int16", (2,)),
    Field("next/terminated", "bool", (), "next"),
    Field("next/truncated", "bool", (), "next"),
    Field("observation/pixels", "uint8", (4, 4), "both", "frames", "png"),
    Field("info/word", "str", (), "root", "text"),
)
WORDS = ["zero", "one", "two", "three", "four", "five"]
PARTS = 5


class Interrupted(Exception):
    pass


def episodes(part: int) -> list[EpisodeData]:
    """Two episodes; their lengths, words and frames follow from the number of the part."""
    made = []
    for k in (2 * part, 2 * part + 1):
        t = 3 + k
        lengths = np.array([1 + (k + i) % 4 for i in range(t + 1)], np.int64)
        terminated = np.arange(t) == t - 1
        columns = {
            "action": np.arange(2 * t, dtype=np.int16).reshape(t, 2) + 100 * k,
            "next/terminated": terminated,
            "next/truncated": np.zeros(t, bool),
            "observation/pixels": EncodedFrames(np.full(int(lengths.sum()), k, np.uint8), lengths),
            "info/word": [None if i % 3 == 2 else WORDS[(part + i) % len(WORDS)] for i in range(t)],
        }
        made.append(EpisodeData(columns, t, TERMINATED, row=k, group=f"g{k}", seed=2**63 + k))
    return made


@dataclass
class Job:
    known: bool = False
    fail_at: int | None = None
    key: str = "k"
    id: str = "local/x"
    stage: Stage = "convert"
    schema: tuple[Field, ...] = SCHEMA
    parts: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes = [sum(e.length + 1 for e in episodes(p)) for p in range(PARTS)]
        self.parts = [Part(n if self.known else None, {"part": p}) for p, n in enumerate(sizes)]

    def name(self, number: int) -> str:
        return f"part {number}"

    def read(self, part: Part) -> Iterator[Chunk]:
        number = part.args["part"]
        for e in episodes(number):
            if number == self.fail_at and e.row % 2:
                raise Interrupted
            chunk = lay_out(self.schema, [_only(e, self.schema)])
            chunk.notes = (Note("seen", "episodes"),)
            yield chunk


def _only(e: EpisodeData, schema: tuple[Field, ...]) -> EpisodeData:
    e.columns = {f.name: e.columns[f.name] for f in schema}
    return e
