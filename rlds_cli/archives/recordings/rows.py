"""Rows of a recording: the messages that steps refer to, of which images are read as they are laid out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_cli.archives import recorded_episode
from rlds_cli.archives.formats import image_columns
from rlds_cli.archives.formats.recordings import open_recording
from rlds_cli.archives.formats.topics import SECOND, Recording
from rlds_cli.archives.readers import (
    Part,
    Plan,
)
from rlds_cli.archives.recordings.columns import HEAVY
from rlds_cli.archives.recordings.steps import AGE, at
from rlds_cli.base.array_types import IntArray
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import (
    CUT,
    FLAGS,
    TERMINATED,
    TRUNCATED,
    Chunk,
    EpisodeData,
    Field,
    LazyColumn,
    chunks,
)


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read one recording."""
    first, times = part.args["file"], np.asarray(part.args["times"])
    about: Mapping[str, Any] = part.args["episode"]
    exported, final = bool(about), about.get("observed", True)
    bag = plan.archive.files[first : first + part.args["files"]]
    sent: Mapping[str, IntArray] = {topic: np.asarray(t) for topic, t in part.args["sent"].items()}
    numbers = {topic: at(t, times, nearest=plan.archive.nearest) for topic, t in sent.items()}
    places: Mapping[str, Sequence[str]] = plan.facts["columns"]
    fields, steps = {f.name: f for f in plan.schema}, len(times) - 1
    columns: dict[str, Any] = {}
    with open_recording(bag) as recording:
        light = {k: tuple(places[k]) for n, k in plan.facts["fields"].items() if n in FLAGS or not _is_heavy(fields[n])}
        values = _values(recording, light)
        for name, key in plan.facts["fields"].items():
            topic, leaf = places[key]
            f, of = fields[name], numbers[topic]
            rows = of[: steps + final] if f.placement == "both" else of[1:] if f.placement == "next" else of[:steps]
            if key in light and exported:
                taken = [values[key][i] for i in rows.tolist()]
                columns[name] = recorded_episode.values_of(taken, f, f"{bag[0].name}: {topic}")
            elif key in light:
                columns[name] = _taken(values[key], rows, f)
            else:
                columns[name] = _Images(recording, topic, leaf, f, sent[topic], rows, exported)
        for topic, t in sent.items() if not exported else ():
            age = (times[:steps] - t[numbers[topic][:steps]]) / SECOND
            columns[f"{AGE}{topic.strip('/')}"] = age.astype(np.float32)
        end = about["end"] if exported else _flags(columns, plan.facts["fields"], steps, bag[0].name)
        if exported and end == CUT and FLAGS[1] in columns:
            columns[FLAGS[1]][-1] = True
        of_episode = {"end": end, "source": first, **about}
        yield from chunks(plan.schema, [EpisodeData(columns, steps, **of_episode)])


def _is_heavy(f: Field) -> bool:
    return f.kind == "frames" or f.row_bytes > HEAVY


def _values(recording: Recording, places: Mapping[str, Sequence[str]]) -> dict[str, list[Any]]:
    """Read all values of some columns, each a topic and a leaf, by key."""
    found: dict[str, list[Any]] = {key: [] for key in places}
    of: dict[str, list[tuple[str, str]]] = {}
    for key, (topic, leaf) in places.items():
        of.setdefault(topic, []).append((key, leaf))
    for m in recording.messages([*of]):
        leaves = m.leaves()
        for key, leaf in of[m.topic]:
            found[key].append(leaves.get(leaf))
    return found


def _taken(values: Sequence[Any], rows: IntArray, f: Field) -> Any:
    taken = [values[i] for i in rows.tolist()]
    if f.kind == "text":
        return taken
    if f.name in FLAGS:
        return np.array([bool(np.any(v)) for v in taken], bool)
    return np.array(taken).astype(f.dtype).reshape(len(rows), *f.shape)


def _flags(columns: dict[str, Any], fields: Mapping[str, str], steps: int, file: str) -> int:
    """Complete the flags, which only the last step may have, and return how the episode ends."""
    for name in FLAGS:
        flags = columns.setdefault(name, np.zeros(steps, bool))
        if flags[:-1].any():
            raise UnknownLayout(
                f"{file}: {fields[name]} is set at step {int(np.argmax(flags)):,} of {steps:,}: a recording is one "
                "episode, which ends with its last step.",
                hint="leave out --map of the flag, or cut the recording there",
            )
    end = TERMINATED if columns[FLAGS[0]][-1] else TRUNCATED if columns[FLAGS[1]][-1] else CUT
    columns[FLAGS[1]][-1] |= end == CUT
    return end


class _Images(LazyColumn):
    """Images of the messages that rows refer to, read when they are laid out."""

    def __init__(
        self,
        recording: Recording,
        topic: str,
        leaf: str,
        field: Field,
        times: IntArray,
        rows: IntArray,
        exported: bool,
    ) -> None:
        self._recording, self._topic, self._leaf, self._field = recording, topic, leaf, field
        self._times, self._rows, self._exported = times, rows, exported

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, decoded."""
        return len(self._rows) * self._field.row_bytes

    def cut(self, start: int, stop: int) -> Any:
        """Read the images of rows [start, stop)."""
        f, rows = self._field, self._rows[start:stop]
        if not len(rows):
            return [] if f.kind == "frames" else np.zeros((0, *f.shape), f.dtype)
        wanted, found = {*rows.tolist()}, dict[int, Any]()
        first, last = int(self._times[rows.min()]), int(self._times[rows.max()])
        number = int(np.searchsorted(self._times, first))
        for m in self._recording.messages([self._topic], first, last):
            if number in wanted:
                found[number] = m.leaves().get(self._leaf)
            number += 1
        return self._checked([found[n] for n in rows.tolist()], start)

    def _checked(self, images: list[Any], start: int) -> Any:
        f, where = self._field, f"{self._recording.path.name}: {self._topic}"
        if f.kind == "frames":
            image_columns.check(
                [i if isinstance(i, bytes) else None for i in images],
                image_columns.EncodedColumn(f.codec, f.shape, f.dtype),
                where,
                start,
            )
            return images
        if self._exported:
            return recorded_episode.values_of(images, f, where)
        for image in images:
            if np.shape(image) != f.shape or image.dtype != f.dtype:
                shape = list(np.shape(image))
                raise UnknownLayout(f"{where} has an image of {shape}; {list(f.shape)} is that of the first.")
        return np.stack(images)
