"""The content of a page, gathered from a dataset in bounded memory; most of it is JSON for the page's script."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.dataset import Rows
from rlds_cli.errors import RldsError
from rlds_cli.look.report.columns import Distribution, as_bytes, distribution, evenly, places
from rlds_cli.look.report.html.spreads import Spreads, spread
from rlds_cli.look.report.order import rank
from rlds_cli.ted import END_NAMES, FLAGS, Field, Subtasks

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset
    from rlds_cli.look.checks.check_report import CheckReport
    from rlds_cli.look.checks.findings import Finding
    from rlds_cli.look.report.summary import Summary

BINS = 40
MOST_DOTS = 600
_MOST_HISTOGRAMS = 360  # for all fields together
_TEXT_BYTES = 300_000  # most characters of a column of text; a longer column is left out
_LONGEST = 60  # characters of a text; a longer one is cut
MOST_LISTED = 10_000
MOST_SHOWN = 32
_MOST_OF_FINDINGS = 12  # of the episodes shown
MOST_ELEMENTS = 32  # curves of one field
MOST_CURVES = 80  # curves of all fields
_VALUES = 300_000  # values of all episodes: 1.6 MB as text
_PICTURE_BYTES = 1_700_000  # for all episodes
_MOST_STEPS, _FEWEST_STEPS = 1200, 100
_MOST_FRAMES, _FEWEST_FRAMES = 24, 4
_MOST_IMAGES = 6  # image fields
_MOST_TEXTS = 40  # changes of a text field in an episode
_MOST_EVENTS = 200
HEIGHT = 112  # greatest height of a frame in a strip, in pixels
_SMALL = 64  # images with sides up to this are pixel art, which JPEG would blur

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EpisodeColumn:
    """A column of the table of episodes, ready for JSON.

    ``kind`` says how values are shown: ``episode``, ``whole``, ``number``, ``tenth``, ``count``, ``yes``, ``text``;
    ``end`` are indices into `END_NAMES`, ``splits`` lists of indices into the names of the splits.
    """

    key: str
    label: str
    kind: str
    values: list[Any]


@dataclass(frozen=True, slots=True)
class CurveField:
    """A field with curves: ``indices`` are the elements that are shown, ``hidden`` counts the others.

    ``hold`` says that values hold until the next step: integers and flags.
    """

    name: str
    indices: tuple[str, ...]
    hidden: int
    hold: bool


@dataclass(frozen=True, slots=True)
class Viewing:
    """The content of the viewer, whose ``episodes`` are ready for JSON; ``left_out`` are fields that it does not show.

    An episode has ``steps``, the sampled ones up to T if the final observation is recorded, or their number if it is
    all of them. ``values`` has per field, in the order of ``fields``, little-endian float32 [elements, steps] in
    base64. ``frames`` are [step, URI, width, height] per image field, ``texts`` are [step, text] for every change of a
    text, ``events`` are [step, kind]. ``why`` are the reasons for which the episode was chosen.
    """

    fields: tuple[CurveField, ...]
    images: tuple[str, ...]
    episodes: tuple[Json, ...]
    most_steps: int
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PageContent:
    """The content of a page; ``dots`` are [length, return, end] of at most 600 evenly spaced episodes."""

    summary: Summary
    check: CheckReport
    returns: Distribution | None
    lengths: Distribution | None
    dots: list[tuple[int, float, str]]
    spreads: tuple[Spreads, ...]
    uncounted: tuple[str, ...]
    columns: tuple[EpisodeColumn, ...]
    splits: tuple[str, ...]
    viewing: Viewing


def gather(ds: Dataset, summary: Summary, checked: CheckReport, *, share: float = 1.0) -> PageContent:
    """Gather the content of a page from a whole dataset, its summary and the report of its checks; rows are sampled.

    ``share`` of the usual numbers of episodes, values and pictures makes a smaller page.
    """
    rows, e = Rows(ds), ds.episodes
    fields = [f for f in sorted(ds.schema.values(), key=rank) if f.name not in FLAGS]
    spreads, budget, uncounted = list[Spreads](), _MOST_HISTOGRAMS, list[str]()
    for f in fields:
        counted = spread(rows, f) if budget > 0 else None
        if counted is None:
            uncounted.append(f.name)
            continue
        spreads.append(counted)
        budget -= len(counted.elements)
    chosen = viewed(ds, checked.findings, max(1, round(share * MOST_SHOWN)))
    listed = _listed(ds, chosen, max(MOST_SHOWN, round(share * MOST_LISTED)))
    returns, some = e.get("total_reward"), evenly(ds.num_episodes, MOST_DOTS)
    totals = np.full(len(some), np.nan) if returns is None else returns[some]
    dots = zip(e["length"][some].tolist(), totals.tolist(), map(str, e["end"][some].tolist()), strict=True)
    return PageContent(
        summary=summary,
        check=checked,
        returns=None if returns is None else distribution(returns, bins=BINS),
        lengths=distribution(e["length"], bins=BINS),
        dots=[dot for dot in dots if np.isfinite(dot[1])],
        spreads=tuple(spreads),
        uncounted=tuple(uncounted),
        columns=tuple(_columns(ds, checked.findings, listed)),
        splits=tuple(map(cut, e.splits)),
        viewing=view(rows, chosen, checked.findings, share=share),
    )


# -- the table of episodes


def _listed(ds: Dataset, needed: Iterable[int], most: int) -> IntArray:
    """Choose the episodes of the table, ascending: all of them, or the ``needed`` and evenly spaced ones."""
    if ds.num_episodes <= most:
        return np.arange(ds.num_episodes)
    spaced = evenly(ds.num_episodes, most - min(MOST_SHOWN, most // 2))
    return np.union1d(spaced, np.array(sorted(needed), np.int64))


def _columns(ds: Dataset, findings: Iterable[Finding], k: IntArray) -> Iterator[EpisodeColumn]:
    """Yield the columns of the table for the episodes ``k``; those that the dataset lacks are left out."""
    e: Any = ds.episodes
    yield EpisodeColumn("number", "Episode", "episode", k.tolist())
    yield EpisodeColumn("length", "Length", "whole", e["length"][k].tolist())
    if "total_reward" in e:
        total = e["total_reward"]
        yield EpisodeColumn("total", "Return", "number", _numbers(total[k]))
        with suppress(RldsError):  # no reference scores are known
            yield EpisodeColumn("score", "Score", "tenth", _numbers(100 * ds.normalized_score(total)[k]))
    yield EpisodeColumn("end", "End", "end", [END_NAMES.index(str(end)) for end in e["end"][k]])
    observed = (e["num_observed"] > e["length"])[k].astype(int).tolist()
    yield EpisodeColumn("observed", "Final observation", "yes", observed)
    if "seed" in e and e["has_seed"].any():  # seeds have up to 64 bits, and a number in JavaScript 53
        seeds = zip(e["seed"][k].tolist(), e["has_seed"][k].tolist(), strict=True)
        yield EpisodeColumn("seed", "Seed", "text", [str(s) if has else "" for s, has in seeds])
    if e.splits:
        inside = [[i for i, name in enumerate(e.splits) if e[name][n]] for n in k.tolist()]
        yield EpisodeColumn("splits", "Splits", "splits", inside)
    if groups := _texts(e["group"][k]):
        yield EpisodeColumn("group", "Group", "text", groups)
    for name in ds.store.own_columns:
        values = e[name][k]
        if values.dtype.kind in "iuf":
            yield EpisodeColumn(f"own/{name}", name, "number", _numbers(values))
        else:
            words = ["yes" if v is True else "no" if v is False else v for v in values.tolist()]
            if name == Subtasks.COLUMN:
                words = [v and Subtasks.of(v, ds.id).shown for v in words]
            if texts := _texts(words):
                yield EpisodeColumn(f"own/{name}", name, "text", texts)
    named = Counter(n for f in findings for n in f.named)
    yield EpisodeColumn("findings", "Findings", "count", [named[int(n)] for n in k])


def _numbers(values: Array) -> list[float | None]:
    return [float(f"{x:.7g}") if np.isfinite(x) else None for x in values.tolist()]


def _texts(values: Iterable[Any]) -> list[str] | None:
    texts = [cut(str(v)) if v else "" for v in values]
    size = sum(map(len, texts))
    return texts if 0 < size <= _TEXT_BYTES else None


def cut(text: str, longest: int = _LONGEST) -> str:
    """Shorten a text to ``longest`` characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


# -- the viewer


def viewed(ds: Dataset, findings: Iterable[Finding], most: int = MOST_SHOWN) -> dict[int, tuple[str, ...]]:
    """Choose the episodes of the viewer: (number -> reasons), in order.

    Of more than ``most``: best and worst, median, longest and shortest, those with findings, and evenly spaced ones.
    """
    reasons: dict[int, list[str]] = {}
    for number, why in _candidates(ds, findings):
        if number in reasons:
            if why and why not in reasons[number]:
                reasons[number].append(why)
        elif len(reasons) < most:
            reasons[number] = [why] if why else []
    return {k: tuple(reasons[k]) for k in sorted(reasons)}


def _candidates(ds: Dataset, findings: Iterable[Finding]) -> Iterator[tuple[int, str]]:
    if not ds.num_episodes:
        return
    lengths, returns = np.asarray(ds.episodes["length"]), ds.episodes.get("total_reward")
    if returns is not None and np.isfinite(returns).any():
        returns = np.where(np.isfinite(returns), returns, np.nan)
        yield int(np.nanargmax(returns)), "highest return"
        yield int(np.nanargmin(returns)), "lowest return"
        yield int(np.nanargmin(np.abs(returns - np.nanmedian(returns)))), "median return"
    yield int(lengths.argmax()), "longest"
    yield int(lengths.argmin()), "shortest"
    named = dict.fromkeys(k for f in findings for k in f.named[:_MOST_OF_FINDINGS] if k < ds.num_episodes)
    yield from ((k, "finding") for k in list(named)[:_MOST_OF_FINDINGS])
    yield from ((int(k), "") for k in evenly(ds.num_episodes, MOST_SHOWN))


def view(
    rows: Rows, chosen: Mapping[int, Sequence[str]], findings: Iterable[Finding], *, share: float = 1.0
) -> Viewing:
    """Read the ``chosen`` episodes (number -> reasons)."""
    schema = sorted(rows.dataset.schema.values(), key=rank)
    images = [f for f in schema if f.is_image][:_MOST_IMAGES]
    texts = [f for f in schema if f.kind == "text"]
    curves = list[tuple[Field, CurveField]]()
    budget = MOST_CURVES
    for f in schema:
        # a curve of the real parts of complex numbers would be another field
        if f.kind != "array" or f.name in FLAGS or f.is_image or 0 in f.shape or np.dtype(f.dtype).kind == "c":
            continue
        width = int(np.prod(f.shape, dtype=np.int64))
        if taken := min(width, MOST_ELEMENTS, budget):
            names = tuple(places(f.shape)[:taken]) if f.shape else ("",)
            curves.append((f, CurveField(f.name, names, width - taken, np.dtype(f.dtype).kind in "biu")))
            budget -= taken
    elements = max(1, MOST_CURVES - budget)
    most = max(_FEWEST_STEPS, min(_MOST_STEPS, int(share * _VALUES) // (elements * max(1, len(chosen)))))
    picture_bytes = share * _PICTURE_BYTES / max(1, len(images) * len(chosen))
    groups = rows.dataset.episodes["group"].tolist()

    episodes = list[Json]()
    for number, why in chosen.items():
        start, length = int(rows.start[number]), int(rows.length[number])
        observed = length + int(rows.observed[number])
        named = (p.step for f in findings for p in f.places if p.episode == number)
        steps = np.union1d(evenly(observed, most), np.array([s for s in named if s is not None and s < observed], int))

        def known(f: Field, steps: IntArray = steps, length: int = length) -> IntArray:
            return steps if f.placement == "both" else steps[steps < length]

        frames = {}
        for f in images:
            count = observed if f.placement == "both" else length
            frames[f.name] = _film_strip(rows, f, start, count, picture_bytes)
        episodes.append(
            {
                "number": number,
                "length": length,
                "why": list(why),
                "steps": observed if len(steps) == observed else steps.tolist(),
                "values": [_curves(rows, f, start, known(f), c, len(steps)) for f, c in curves],
                "frames": frames,
                "texts": {f.name: _changes(rows, f, start, known(f)) for f in texts},
                "events": _events(rows, start, length),
                "source": _source(rows.dataset, number, groups[number]),
            }
        )
    shown = {f.name for f in (*images, *texts)} | {c.name for _, c in curves} | set(FLAGS)
    left_out = tuple(f.name for f in schema if f.name not in shown)
    return Viewing(tuple(c for _, c in curves), tuple(f.name for f in images), tuple(episodes), most, left_out)


def _curves(rows: Rows, f: Field, start: int, known: IntArray, c: CurveField, steps: int) -> str:
    """Return the values at the ``known`` steps, which are the first of all that are shown, in base64."""
    out = np.full((len(c.indices), steps), np.nan, "<f4")
    values = rows.at(f.name, start + known).reshape(len(known), -1)[:, : len(c.indices)]
    with np.errstate(over="ignore"):
        out[:, : len(known)] = values.T
    return base64.b64encode(out.tobytes()).decode()


def _changes(rows: Rows, f: Field, start: int, known: IntArray) -> list[tuple[int, str]]:
    codes = rows.at(f.name, start + known)
    changed = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    at = np.array([0, *changed[: _MOST_TEXTS - 1]][: len(codes)], np.int64)
    texts = zip(known[at].tolist(), rows.store.texts(f.name, codes[at]), strict=True)
    return [(step, "" if text is None else cut(str(text), 300)) for step, text in texts]


def _events(rows: Rows, start: int, length: int) -> list[tuple[int, str]]:
    events: list[tuple[int, str]] = []
    for name in FLAGS:
        if name in rows.store.fields and length:
            values = rows.at(name, np.arange(start, start + length)).reshape(length, -1).any(1)
            events += [(int(step), name.partition("/")[2]) for step in np.flatnonzero(values)[:_MOST_EVENTS]]
    return sorted(events)


def _source(ds: Dataset, number: int, group: str) -> str:
    e: Any = ds.episodes
    index = int(e["source"][number])
    file = str(ds.store.sources[index].get("file") or "") if index < len(ds.store.sources) else ""
    where = [cut(part) for part in (file, group) if part]
    return ", ".join([*where, f"row {int(e['row'][number]):,}"]) if where else ""


# -- images


def _film_strip(rows: Rows, f: Field, start: int, count: int, budget: float) -> list[tuple[int, str, int, int]]:
    """Return [step, URI, width, height] at evenly spaced steps, within about ``budget`` bytes."""
    first = _frame(rows, f, start) if count else None
    most = int(min(_MOST_FRAMES, max(_FEWEST_FRAMES, budget // (len(first[0]) if first else 4096))))
    strip, used = list[tuple[int, str, int, int]](), 0
    for step in evenly(count, most).tolist():
        frame = _frame(rows, f, start + step)
        if frame is None:
            continue
        used += len(frame[0])
        if strip and used > 1.5 * budget:
            break
        strip.append((step, *frame))
    return strip


def _frame(rows: Rows, f: Field, row: int) -> tuple[str, int, int] | None:
    at = np.array([row])
    try:
        if f.kind == "frames" and not rows.sizes(f.name, at)[0]:
            return None
        return picture(f, rows.values(f.name, at)[0])
    except RldsError:
        return None  # a frame that does not decode is a finding, not the end of a report


def picture(f: Field, frame: Array, *, height: int = HEIGHT) -> tuple[str, int, int]:
    """Encode a frame [*f.shape], at most ``height`` pixels high, as PNG or JPEG, whichever is smaller.

    Returns a data URI, and the width and height of the picture.
    """
    frame = as_bytes(frame)
    if frame.ndim == 3:
        last = f.kind == "frames" or f.has_channels_last
        frame = frame if last else np.moveaxis(frame, 0, -1)
        if frame.shape[2] == 1:
            frame = frame[..., 0]
        elif frame.shape[2] == 4 and f.kind == "array":
            frame = frame[..., -1]  # the newest of a stack of grey frames
    image = Image.fromarray(np.ascontiguousarray(frame))
    image = image.convert("L" if image.mode in ("L", "LA") else "RGB")
    if image.height > height:
        width = max(1, round(image.width * height / image.height))
        image = image.resize((min(width, 4 * height), height), Image.Resampling.BOX)
    kinds: list[tuple[str, dict[str, int | bool]]] = [("png", {"optimize": True})]
    if max(image.size) > _SMALL:
        kinds.append(("jpeg", {"quality": 78}))
    encoded = []
    for kind, options in kinds:
        file = io.BytesIO()
        image.save(file, kind, **options)
        encoded.append(f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}")
    return min(encoded, key=len), image.width, image.height
