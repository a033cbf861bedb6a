"""Measures of the frames of cameras, one episode at a time; a few frames are in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.dataset import Rows
from rlds_cli.errors import DamagedDataset, FrameError
from rlds_cli.look.measures.blocks import Block
from rlds_cli.look.measures.roles import Roles
from rlds_cli.look.measures.vectors import Values, Vectors

LOOK = "look"  # what tells cameras apart: the mean brightness of parts of the picture; no measure
PARTS = 4  # of a side of the picture
_AT_ONCE = 16  # frames
_SIDE = 64  # pixels of a side, about, that brightness is read from
_CROP = 128  # pixels of a side in the middle, that sharpness is read from
_SAME = 0.1  # of 255, the mean difference of frames below which they are the same
_ONE_LEVEL = 1.0  # of 255, which is added to distances: less is noise
_BLACK, _WHITE, _ALL = 16, 250, 0.99
NAMES = (
    *("quality_frozen_run", "quality_frozen_share", "quality_black_share", "quality_overexposed_share"),
    *("quality_sharpness", "quality_brightness", "quality_broken_frames"),
)


def measured(rows: Rows, roles: Roles, k: int) -> Values:
    """Return the measures of the group ``camera`` of one episode [1, cameras]."""
    if not roles.cameras:
        return {}
    moving = _moving(rows, roles, k)
    each = [_of_camera(rows, name, k, moving) for name in roles.cameras]
    found = {name: np.array([[of[name][0] for of in each]]) for name in NAMES}
    return found | {LOOK: np.concatenate([of[LOOK] for of in each])[None]}


def frozen(rows: Rows, roles: Roles, k: int, name: str) -> BoolArray:
    """Return the steps of an episode at which a camera gives the frame of the step before while the states move."""
    return _same(rows, name, k) & _moving(rows, roles, k)


def swapped(looks: Array, count: int) -> Array:
    """Return how much better two cameras fit the usual look of each other [episodes], of looks [episodes, n]."""
    each = looks.reshape(len(looks), count, -1)
    usual = np.nanmedian(each, axis=0)
    away = np.sqrt(((each[:, :, None] - usual[None, None]) ** 2).mean(axis=3))  # of each camera to each usual look
    best = np.zeros(len(looks))
    for i in range(count):
        for j in range(i):
            own, other = away[:, i, i] + away[:, j, j], away[:, i, j] + away[:, j, i]
            best = np.fmax(best, own / (other + _ONE_LEVEL))
    return best


def _moving(rows: Rows, roles: Roles, k: int) -> BoolArray:
    """Return the steps of an episode at which something moves; all of them where no states and actions are known."""
    moving = Vectors(Block(rows, k, k + 1), roles).is_moving
    return moving if roles.states or roles.actions else np.ones_like(moving)


def _frames(rows: Rows, name: str, k: int) -> Iterator[tuple[IntArray, Array]]:
    """Yield the frames of the steps of an episode, a few at a time: steps [n], and frames; broken ones are left out."""
    first, length = int(rows.start[k]), int(rows.length[k])
    for a in range(0, length, _AT_ONCE):
        steps = np.arange(a, min(a + _AT_ONCE, length))
        try:
            yield steps, rows.values(name, first + steps)
        except (FrameError, DamagedDataset):
            for step in steps:
                try:
                    yield np.array([step]), rows.values(name, np.array([first + step]))
                except (FrameError, DamagedDataset):
                    continue


def _grey(frames: Array) -> Array:
    """Return the brightness of some pixels of frames [n, height, width]."""
    height, width = frames.shape[1:3]
    some = frames[:, :: max(1, height // _SIDE), :: max(1, width // _SIDE)]
    return np.asarray(some.mean(axis=3, dtype=np.float32))


def _same(rows: Rows, name: str, k: int) -> BoolArray:
    found, last = np.zeros(int(rows.length[k]), bool), None
    for steps, frames in _frames(rows, name, k):
        found[steps] = _as_before(frames, last)
        last = frames[-1:]
    return found


def _as_before(frames: Array, last: Array | None) -> BoolArray:
    """Return which frames [n] are the same as the one before, of which ``last`` is that of the first."""
    found = np.zeros(len(frames), bool)
    before = frames[:-1] if last is None else np.concatenate([last, frames[:-1]])
    after = frames[len(frames) - len(before) :]
    near = np.abs(_grey(after) - _grey(before)).mean(axis=(1, 2)) < _SAME
    for i in np.flatnonzero(near).tolist():  # some pixels may miss what is small
        near[i] = np.abs(after[i].astype(np.int16) - before[i]).mean() < _SAME
    found[len(frames) - len(before) :] = near
    return found


def _of_camera(rows: Rows, name: str, k: int, moving: BoolArray) -> Values:
    """Return the measures of one camera in one episode [1], and its look."""
    length = int(rows.length[k])
    same, seen, last = np.zeros(length, bool), 0, None
    black, white, sharp, look = 0, 0.0, list[Array](), np.zeros((PARTS, PARTS))
    for steps, frames in _frames(rows, name, k):
        grey = _grey(frames)
        same[steps] = _as_before(frames, last)
        black += int(((grey <= _BLACK).mean(axis=(1, 2)) >= _ALL).sum())
        white += float((grey >= _WHITE).mean(axis=(1, 2)).sum())
        sharp.append(_sharpness(frames))
        rows_of, columns_of = (np.array_split(np.arange(n), PARTS) for n in grey.shape[1:])
        look += [[float(grey[:, r][:, :, c].mean()) * len(grey) for c in columns_of] for r in rows_of]
        seen, last = seen + len(frames), frames[-1:]
    same &= moving
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.astype(np.int8), [0]])))
    longest = int((edges[1::2] - edges[::2]).max(initial=0))
    known = np.concatenate([x[np.isfinite(x)] for x in sharp]) if seen else np.zeros(0)
    sharpness = float(np.median(known)) if len(known) else np.nan
    of_frames = [black / seen, white / seen, sharpness, float(look.mean()) / seen] if seen else [np.nan] * 4
    numbers = [longest, same.mean() if length else np.nan, *of_frames, length - seen]
    found = {n: np.array([x], np.float64) for n, x in zip(NAMES, numbers, strict=True)}
    return found | {LOOK: look.ravel() / seen if seen else np.full(PARTS * PARTS, np.nan)}


def _sharpness(frames: Array) -> Array:
    """Return the energy of the Laplacian in units of that of the gradient, in the middle of frames [n].

    By Parseval's theorem it is a mean of squared spatial frequencies, which contrast and light leave as it is; a frame
    of one colour has none.
    """
    height, width = frames.shape[1:3]
    top, left = max(0, (height - _CROP) // 2), max(0, (width - _CROP) // 2)
    g = frames[:, top : top + _CROP, left : left + _CROP].mean(axis=3, dtype=np.float32)
    beside = g[:, 1:-1, :-2] + g[:, 1:-1, 2:] + g[:, :-2, 1:-1] + g[:, 2:, 1:-1]
    bend = (beside - 4 * g[:, 1:-1, 1:-1]).var(axis=(1, 2))
    slope = sum(np.square(np.diff(g, axis=axis)).mean(axis=(1, 2)) for axis in (1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(bend / slope)
