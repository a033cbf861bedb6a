"""The messages of one step, looked up without a plan: the proof of what was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rlds_cli.archives.formats.recordings import open_recording
from rlds_cli.archives.formats.topics import SECOND, Message, Recording
from rlds_cli.archives.names import is_observation
from rlds_cli.archives.readers import (
    ArchivedStep,
    ArchivedValue,
)
from rlds_cli.archives.recordings.steps import is_action
from rlds_cli.ted import (
    FLAGS,
)


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the messages of a step, and those of the next observation."""
    names = place.facts["bags"].get(place.file.relative_to(place.root).as_posix())
    with open_recording([place.root / n for n in names] if names else place.file) as recording:
        wanted: Mapping[str, str] = place.facts["fields"]
        topics = {key: _topic_of(recording, key) for key in wanted.values()}
        every: dict[str, list[Message]] = {}
        for m in recording.messages({*topics.values()}):
            every.setdefault(m.topic, []).append(m)
        if place.facts["exported"]:
            yield from _looked_up_as_exported(place, wanted, every)
            return
        hz = place.facts["hz"]
        first = max(of[0].time for of in every.values())
        last = min((of[-1].time for of in every.values() if len(of) > 1), default=first)
        clock = every[topics[next(k for f, k in sorted(wanted.items()) if is_action(f))]]
        ticks = sorted({m.time for m in clock if first <= m.time <= last})
        for name, key in wanted.items():
            if name in FLAGS:
                continue
            for shift, field in ((0, name), (1, f"next/{name}")):
                if name.startswith("next/") or (shift and not is_observation(name)):
                    field, shift = name, int(name.startswith("next/"))
                now = first + int(np.rint((place.step + shift) * SECOND / hz)) if hz else ticks[place.step + shift]
                of = every[topics[key]]
                if place.facts["nearest"]:
                    m = min(of, key=lambda m: (abs(m.time - now), m.time > now))
                else:
                    m = [m for m in of if m.time <= now][-1]
                leaf = key.removeprefix(topics[key]).strip("/")
                yield ArchivedValue(field, f"{key} at {m.time / SECOND:.6f} s", m.leaves()[leaf])
                if field == name and not is_observation(name):
                    break


def _looked_up_as_exported(
    place: ArchivedStep, wanted: Mapping[str, str], every: Mapping[str, Sequence[Message]]
) -> Iterator[ArchivedValue]:
    for name, topic in wanted.items():
        if name not in FLAGS:
            for shift, field in ((0, name), (1, f"next/{name}")) if is_observation(name) else ((0, name),):
                if place.step + shift < len(every[topic]):
                    m = every[topic][place.step + shift]
                    yield ArchivedValue(field, f"{topic} at {m.time / SECOND:.6f} s", m.leaves()[""])


def _topic_of(recording: Recording, key: str) -> str:
    return max((t for t in recording.topics if key == t or key.startswith(f"{t}/")), key=len)
