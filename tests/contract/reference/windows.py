"""The windows of an episode, and every value in them, one step at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Episode = Mapping[str, Any]

REWARD, DONE, FLAGS = "next/reward", "next/done", ("next/terminated", "next/truncated")


@dataclass(frozen=True)
class Window:
    """One window: its anchor step, the steps that it holds, which of them are real, and its fields by name."""

    anchor: int
    steps: tuple[int, ...]
    real: tuple[bool, ...]
    fields: dict[str, np.ndarray]


# -- episodes


def flat(episode: Episode, prefix: str = "") -> dict[str, Any]:
    """Fields by full name."""
    found: dict[str, Any] = {}
    for name, value in episode.items():
        found |= flat(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def length(episode: Episode) -> int:
    """T."""
    return len(episode["action"])


def recorded(episode: Episode) -> int:
    """Rows of observations: T + 1, or T where the final one is unknown."""
    return len(episode["observation"])


def transitions(episode: Episode) -> int:
    """Steps that a value-based learner may use: all but a last one after which nothing is known and nothing ended."""
    known = recorded(episode) > length(episode) or episode["next"]["terminated"][-1]
    return length(episode) if known else length(episode) - 1


def done(episode: Episode, t: int) -> bool:
    """Whether step t terminated or truncated."""
    return bool(episode["next"]["terminated"][t] or episode["next"]["truncated"][t])


def value(episode: Episode, name: str, t: int) -> np.ndarray:
    """A field of a batch at step t; rewards, flags and scalar floats have an axis of one element."""
    if name == "next/observation":
        return np.asarray(episode["observation"][min(t + 1, recorded(episode) - 1)])
    if name == DONE:
        return np.array([done(episode, t)])
    row = np.asarray(flat(episode)[name][t], None if name != "text" else object)
    return row.reshape(1) if name in (REWARD, *FLAGS) or (row.shape == () and row.dtype.kind == "f") else row


def n_step(episode: Episode, t: int, n: int, gamma: float) -> tuple[float, int]:
    """The discounted sum of rewards from step t on, and of how many steps."""
    total, k = 0.0, 0
    while k < n and t + k < transitions(episode):
        total += gamma**k * float(episode["next"]["reward"][t + k])
        k += 1
        if done(episode, t + k - 1):
            break
    return total, k


def names_of(episode: Episode) -> list[str]:
    """All fields of a batch that follow from the data alone."""
    return [*flat(episode), "next/observation", DONE]


# -- windows


def steps_of(episode: Episode, n: int = 1, gamma: float = 0.99, *, every_step: bool = False) -> list[Window]:
    """Transitions over up to ``n`` steps, or single steps whose next observation need not be known."""
    made = []
    for t in range(length(episode) if every_step else transitions(episode)):
        total, k = n_step(episode, t, n, gamma) if n > 1 else (0.0, 1)
        last = t + k - 1
        fields = {
            name: value(episode, name, last if name.startswith("next/") else t)
            for name in names_of(episode)
            if not (every_step and name == "next/observation")
        }
        fields["next/observed"] = np.array([last + 1 < recorded(episode)])
        if n > 1:
            fields |= {REWARD: np.array([total]), "next/discount": np.array([gamma**k])}
        made.append(Window(t, tuple(range(t, t + k)), (True,) * k, fields))
    return made


def slices(
    episode: Episode,
    size: int,
    *,
    before: int = 0,
    after: int = 0,
    stride: int = 1,
    fill: str = "edge",
    pad: str | None = None,
) -> list[Window]:
    """Runs of ``size`` steps that begin at -before, -before + stride, ..., and end ``after`` beyond the last step.

    With ``pad`` all places without a step are on that side.
    """
    T = length(episode)
    starts = [s for s in range(-before, T, stride) if s + size <= T + after]
    return [run(episode, s, size, fill, pad) for s in starts]


def whole(episode: Episode, size: int, fill: str = "edge") -> list[Window]:
    """The first ``size`` steps; an episode of fewer is filled up."""
    return [run(episode, 0, size, fill)]


def run(episode: Episode, first: int, size: int, fill: str, pad: str | None = None) -> Window:
    """``size`` steps from ``first`` on; outside the episode stands the nearest step, or zeros."""
    T = length(episode)
    steps = tuple(min(max(t, 0), T - 1) for t in range(first, first + size))
    real = tuple(0 <= t < T for t in range(first, first + size))
    if pad is not None:
        there = tuple(t for t in range(first, first + size) if 0 <= t < T)
        rest = size - len(there)
        steps = (there[0],) * rest + there if pad == "left" else there + (there[-1],) * rest
        real = (False,) * rest + (True,) * len(there) if pad == "left" else (True,) * len(there) + (False,) * rest
    fields = {name: filled([value(episode, name, t) for t in steps], real, fill) for name in names_of(episode)}
    known = [np.array([t + 1 < recorded(episode)]) for t in steps]
    return Window(max(first, 0), steps, real, fields | {"next/observed": filled(known, real, fill)})


def filled(rows: list[np.ndarray], real: Sequence[bool], fill: str) -> np.ndarray:
    """Rows one above the other, zeros (of text None) in place of those that are not real where ``fill`` says so."""
    blank = np.zeros_like(rows[0]) if rows[0].dtype != object else np.array(None, object)
    return np.stack([row if ok or fill == "edge" else blank for row, ok in zip(rows, real, strict=True)])


def around(
    episode: Episode,
    offsets: Mapping[str, Sequence[float]],
    *,
    before: int | None = None,
    after: int | None = None,
    fill: str = "edge",
    fps: float | None = None,
    every_step: bool = False,
) -> list[Window]:
    """Rows of some fields at ``offsets`` from a step t, in steps or with ``fps`` in seconds; other fields at t.

    The next observation has the offsets of the observation, one row later, unless it has offsets of its own. Masks are
    ``mask/NAME``.
    """
    plain = {n: [round(x * fps) if fps else int(x) for x in given] for n, given in offsets.items()}
    low, high = min(map(min, plain.values())), max(map(max, plain.values()))
    made = []
    for t in range(length(episode) if every_step else transitions(episode)):
        if before is not None and t + low < -before:
            continue
        if after is not None and t + high > length(episode) - 1 + after:
            continue
        fields = {}
        for name in names_of(episode):
            if every_step and name == "next/observation":
                continue
            own = plain.get(name)
            if own is None and name == "next/observation":
                own = plain.get("observation")
            if own is None:
                fields[name] = value(episode, name, t)
            else:
                fields[name], fields[f"mask/{name}"] = at_rows(episode, name, [t + x for x in own], fill)
        fields["next/observed"] = np.array([t + 1 < recorded(episode)])
        made.append(Window(t, (t,), (True,), fields))
    return made


def at_rows(episode: Episode, name: str, steps: list[int], fill: str) -> tuple[np.ndarray, np.ndarray]:
    """Values of a field at any steps, and which of these there are: observations have a row more where it is known."""
    if name in ("observation", "next/observation"):
        later = int(name == "next/observation")
        return rows_at(episode["observation"], [t + later for t in steps], fill)
    return rows_at([value(episode, name, t) for t in range(length(episode))], steps, fill)


def rows_at(rows: Sequence[Any], numbers: Sequence[int], fill: str) -> tuple[np.ndarray, np.ndarray]:
    """The rows with these numbers, and which of these there are; in place of others the nearest, or zeros."""
    real = [0 <= number < len(rows) for number in numbers]
    inside = [np.asarray(rows[min(max(number, 0), len(rows) - 1)]) for number in numbers]
    return filled(inside, real, fill), np.array(real)
