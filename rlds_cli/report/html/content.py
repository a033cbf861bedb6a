"""The content of a page, gathered from a dataset in bounded memory."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image as Pillow

from rlds_cli.dataset.rows import Rows
from rlds_cli.errors import RldsError
from rlds_cli.report.columns import Distribution, as_bytes, channels_last, distribution, evenly, is_image, places
from rlds_cli.report.html.spreads import Spreads, spread
from rlds_cli.report.order import rank
from rlds_cli.ted import END_NAMES, FLAGS, Array, Field, IntArray

if TYPE_CHECKING:
    from rlds_cli.checks.findings import CheckReport, Finding
    from rlds_cli.dataset import Dataset
    from rlds_cli.report.summary import Summary

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


@dataclass(frozen=True, slots=True)
class Dot:
    """An episode in the chart of returns against lengths."""

    number: int
    length: int
    total: float
    end: str


@dataclass(frozen=True, slots=True)
class PageContent:
    """The content of the sections of a page; ``dots`` are at most 600 evenly spaced episodes."""

    summary: Summary
    check: CheckReport
    returns: Distribution | None
    lengths: Distribution | None
    dots: tuple[Dot, ...]
    spreads: tuple[Spreads, ...]
    uncounted: tuple[str, ...]
    listing: EpisodeListing
    viewing: Viewing


def gather(ds: Dataset, summary: Summary, checked: CheckReport, *, share: float = 1.0) -> PageContent:
    """Gather the content of a page from a whole dataset, its summary and the report of its checks; rows are sampled.

    ``share`` of the usual numbers of episodes, values and pictures makes a smaller page.
    """
    rows = Rows(ds)
    fields = [f for f in sorted(ds.schema.values(), key=rank) if f.name not in FLAGS]
    spreads, room, uncounted = list[Spreads](), _MOST_HISTOGRAMS, list[str]()
    for f in fields:
        found = spread(rows, f) if room > 0 else None
        if found is None:
            uncounted.append(f.name)
            continue
        spreads.append(found)
        room -= len(found.elements)
    chosen = viewed(ds, checked.findings, max(1, round(share * MOST_SHOWN)))
    returns = ds.episodes.get("total_reward")
    return PageContent(
        summary=summary,
        check=checked,
        returns=None if returns is None else distribution(returns, bins=BINS),
        lengths=distribution(ds.episodes["length"], bins=BINS),
        dots=_dots(ds),
        spreads=tuple(spreads),
        uncounted=tuple(uncounted),
        listing=list_episodes(ds, checked.findings, chosen, max(MOST_SHOWN, round(share * MOST_LISTED))),
        viewing=view(rows, chosen, checked.findings, share=share),
    )


def _dots(ds: Dataset) -> tuple[Dot, ...]:
    e = ds.episodes
    if "total_reward" not in e:
        return ()
    k = evenly(ds.num_episodes, MOST_DOTS)
    columns = (e["length"][k].tolist(), e["total_reward"][k].tolist(), e["end"][k].tolist())
    found = zip(k.tolist(), *columns, strict=True)
    return tuple(Dot(number, length, total, end) for number, length, total, end in found if np.isfinite(total))


@dataclass(frozen=True, slots=True)
class EpisodeListing:
    """Columns over the listed episodes, ready for JSON; ``of`` is the number of episodes in the dataset.

    ``end`` has indices into END_NAMES, ``splits`` lists of indices into ``split_names``. A column that the dataset
    lacks is None. ``own`` are the user's own columns, as numbers or texts.
    """

    of: int
    number: list[int]
    length: list[int]
    total: list[float | None] | None
    score: list[float | None] | None
    end: list[int]
    observed: list[int]
    findings: list[int]
    group: list[str] | None
    seed: list[str] | None
    splits: list[list[int]] | None
    split_names: list[str]
    own: dict[str, list[Any]]

    @property
    def ends(self) -> tuple[str, ...]:
        """The names that ``end`` has indices into."""
        return END_NAMES


def list_episodes(
    ds: Dataset, findings: Iterable[Finding], needed: Iterable[int], most: int = MOST_LISTED
) -> EpisodeListing:
    """List all episodes, or at most ``most``: the ``needed`` ones, and evenly spaced ones."""
    e, k = ds.episodes, listed(ds, needed, most)
    total = e.get("total_reward")
    score = None if total is None else _scores(ds, total)
    named = Counter(n for f in findings for n in f.named)
    splits = e.splits
    return EpisodeListing(
        of=ds.num_episodes,
        number=k.tolist(),
        length=e["length"][k].tolist(),
        total=None if total is None else _numbers(total[k]),
        score=None if score is None else _numbers(score[k]),
        end=[END_NAMES.index(str(end)) for end in e["end"][k]],
        observed=(e["num_observed"] > e["length"])[k].astype(int).tolist(),
        findings=[named[int(n)] for n in k],
        group=_texts(e["group"][k]),
        seed=_seeds(ds, k),
        splits=[[i for i, name in enumerate(splits) if e[name][n]] for n in k.tolist()] if splits else None,
        split_names=[cut(name) for name in splits],
        own={name: values for name in ds.store.own_columns if (values := _own(e[name][k])) is not None},
    )


def _scores(ds: Dataset, total: Array) -> Array | None:
    try:
        return 100 * ds.normalized_score(total)
    except RldsError:
        return None


def _numbers(values: Array) -> list[float | None]:
    return [float(f"{x:.7g}") if np.isfinite(x) else None for x in values.tolist()]


def _texts(values: Iterable[Any]) -> list[str] | None:
    texts = [cut(str(v)) if v else "" for v in values]
    size = sum(map(len, texts))
    return texts if 0 < size <= _TEXT_BYTES else None


def _own(values: Array) -> list[Any] | None:
    """Numbers as they are; flags and texts as words."""
    if values.dtype.kind in "iuf":
        return _numbers(values)
    words = {True: "yes", False: "no", None: ""}
    return _texts([words[v] if v is None or isinstance(v, bool) else v for v in values.tolist()])


def _seeds(ds: Dataset, k: IntArray) -> list[str] | None:
    """Seeds as text: they have up to 64 bits, and a number in JavaScript 53."""
    e: Any = ds.episodes
    if "seed" not in e or not e["has_seed"].any():
        return None
    return [str(s) if has else "" for s, has in zip(e["seed"][k].tolist(), e["has_seed"][k].tolist(), strict=True)]


def cut(text: str, longest: int = _LONGEST) -> str:
    """Shorten a text to ``longest`` characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


# -- the choice of episodes


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
        middle = np.abs(returns - np.nanmedian(returns))
        yield int(np.nanargmax(returns)), "highest return"
        yield int(np.nanargmin(returns)), "lowest return"
        yield int(np.nanargmin(middle)), "median return"
    yield int(lengths.argmax()), "longest"
    yield int(lengths.argmin()), "shortest"
    named = dict.fromkeys(k for f in findings for k in f.named[:_MOST_OF_FINDINGS] if k < ds.num_episodes)
    yield from ((k, "finding") for k in list(named)[:_MOST_OF_FINDINGS])
    yield from ((int(k), "") for k in evenly(ds.num_episodes, MOST_SHOWN))


def listed(ds: Dataset, needed: Iterable[int], most: int = MOST_LISTED) -> IntArray:
    """Choose the episodes of the table, ascending: all of them, or the ``needed`` and evenly spaced ones."""
    if ds.num_episodes <= most:
        return np.arange(ds.num_episodes)
    spaced = evenly(ds.num_episodes, most - min(MOST_SHOWN, most // 2))
    return np.union1d(spaced, np.array(sorted(needed), np.int64))


# -- how episodes are viewed


@dataclass(frozen=True, slots=True)
class Picture:
    """A frame as a data URI, and its size in pixels."""

    uri: str
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class CurveField:
    """A field with curves: ``indices`` are the elements that are shown, ``hidden`` counts the others."""

    name: str
    dtype: str
    placement: str
    indices: tuple[str, ...]
    hidden: int


@dataclass(frozen=True, slots=True)
class Viewed:
    """One episode of the viewer.

    ``steps`` are the sampled steps, up to T if the final observation is recorded. ``values`` has per field, in the
    order of ``Viewing.fields``, little-endian float32 [elements, steps] in base64. ``frames`` are (step, picture) per
    image field, ``texts`` are (step, text) for every change of a text, ``events`` are (step, kind). ``why`` are the
    reasons for which the episode was chosen.
    """

    number: int
    length: int
    why: tuple[str, ...]
    steps: list[int]
    values: list[str]
    frames: dict[str, list[tuple[int, Picture]]]
    texts: dict[str, list[tuple[int, str]]]
    events: list[tuple[int, str]]
    source: str


@dataclass(frozen=True, slots=True)
class Viewing:
    """The content of the viewer; ``left_out`` are names of fields that it does not show."""

    fields: tuple[CurveField, ...]
    images: tuple[str, ...]
    episodes: tuple[Viewed, ...]
    most_steps: int
    left_out: tuple[str, ...]


def view(
    rows: Rows, chosen: Mapping[int, Sequence[str]], findings: Iterable[Finding], *, share: float = 1.0
) -> Viewing:
    """Read the ``chosen`` episodes (number -> reasons)."""
    schema = sorted(rows.dataset.schema.values(), key=rank)
    pictured = [f for f in schema if is_image(f)][:_MOST_IMAGES]
    arrays = [f for f in schema if f.kind == "array" and f.name not in FLAGS and not is_image(f) and 0 not in f.shape]
    numeric = [f for f in arrays if np.dtype(f.dtype).kind != "c"]  # a curve of real parts would be another field
    curves = _curves(numeric)
    kept = [f for f in numeric if f.name in {c.name for c in curves}]
    elements = max(1, sum(len(c.indices) for c in curves))
    most = max(_FEWEST_STEPS, min(_MOST_STEPS, int(share * _VALUES) // (elements * max(1, len(chosen)))))
    film = _Film(rows, pictured, len(chosen), share * _PICTURE_BYTES)
    texts, groups = [f for f in schema if f.kind == "text"], rows.dataset.episodes["group"].tolist()
    reader = _EpisodeReader(rows, kept, curves, texts, film, most, groups)
    places = {k: [p.step for f in findings for p in f.places if p.episode == k and p.step is not None] for k in chosen}
    episodes = tuple(reader.read(k, tuple(why), places[k]) for k, why in chosen.items())
    shown = {f.name for f in (*kept, *pictured)} | {f.name for f in schema if f.kind == "text"} | set(FLAGS)
    left = tuple(f.name for f in schema if f.name not in shown)
    return Viewing(tuple(curves), tuple(f.name for f in pictured), episodes, most, left)


def _curves(fields: Sequence[Field]) -> list[CurveField]:
    """Choose fields and elements for the curves: the first ones, up to the limits above."""
    room, found = MOST_CURVES, []
    for f in fields:
        if room <= 0:
            break
        width = int(np.prod(f.shape, dtype=np.int64))
        take = min(width, MOST_ELEMENTS, room)
        names = places(f.shape)[:take] if f.shape else [""]
        found.append(CurveField(f.name, f.dtype, f.placement, tuple(names), width - take))
        room -= take
    return found


@dataclass(frozen=True, slots=True)
class _EpisodeReader:
    rows: Rows
    fields: Sequence[Field]
    curves: Sequence[CurveField]
    texts: Sequence[Field]
    film: _Film
    most: int
    groups: Sequence[str]

    def read(self, number: int, why: tuple[str, ...], named: Sequence[int]) -> Viewed:
        start, length = int(self.rows.start[number]), int(self.rows.length[number])
        observed = length + int(self.rows.observed[number])
        steps = evenly(observed, self.most)
        steps = np.union1d(steps, np.array([s for s in named if s < observed], np.int64)).astype(np.int64)
        values = [_curve(self.rows, f, c, start, steps, length) for f, c in zip(self.fields, self.curves, strict=True)]
        return Viewed(
            number=number,
            length=length,
            why=why,
            steps=steps.tolist(),
            values=values,
            frames=self.film.frames(start, length, observed),
            texts={f.name: _changes(self.rows, f, start, steps, length) for f in self.texts},
            events=_events(self.rows, start, length),
            source=_source(self.rows.dataset, number, self.groups[number]),
        )


def _known(f: Field, steps: IntArray, length: int) -> IntArray:
    """The steps at which a field has a value; the final one only for a field with placement ``both``."""
    return steps if f.placement == "both" else steps[steps < length]


def _curve(rows: Rows, f: Field, c: CurveField, start: int, steps: IntArray, length: int) -> str:
    known = _known(f, steps, length)
    out = np.full((len(c.indices), len(steps)), np.nan, "<f4")
    values = rows.at(f.name, start + known).reshape(len(known), -1)[:, : len(c.indices)]
    with np.errstate(over="ignore"):
        out[:, : len(known)] = values.T
    return base64.b64encode(out.tobytes()).decode()


def _changes(rows: Rows, f: Field, start: int, steps: IntArray, length: int) -> list[tuple[int, str]]:
    known = _known(f, steps, length)
    codes = rows.at(f.name, start + known)
    changed = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    at = np.array([0, *changed[: _MOST_TEXTS - 1]][: len(codes)], np.int64)
    texts = zip(known[at].tolist(), rows.store.texts(f.name, codes[at]), strict=True)
    return [(step, "" if text is None else cut(str(text), 300)) for step, text in texts]


def _events(rows: Rows, start: int, length: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for name in FLAGS:
        if name in rows.store.fields and length:
            values = rows.at(name, np.arange(start, start + length)).reshape(length, -1).any(1)
            found += [(int(step), name.partition("/")[2]) for step in np.flatnonzero(values)[:_MOST_EVENTS]]
    return sorted(found)


def _source(ds: Dataset, number: int, group: str) -> str:
    e: Any = ds.episodes
    index = int(e["source"][number])
    file = str(ds.store.sources[index].get("file") or "") if index < len(ds.store.sources) else ""
    where = [cut(part) for part in (file, group) if part]
    return ", ".join([*where, f"row {int(e['row'][number]):,}"]) if where else ""


class _Film:
    """Reads film strips within a budget of bytes for all episodes."""

    def __init__(self, rows: Rows, fields: Sequence[Field], episodes: int, room: float) -> None:
        self._rows, self._fields = rows, fields
        self._room = room / max(1, len(fields) * episodes)  # of one field in one episode

    def frames(self, start: int, length: int, observed: int) -> dict[str, list[tuple[int, Picture]]]:
        """(step, picture) at evenly spaced steps, per image field."""
        return {f.name: self._strip(f, start, observed if f.placement == "both" else length) for f in self._fields}

    def _strip(self, f: Field, start: int, count: int) -> list[tuple[int, Picture]]:
        first = next((p for p in (self._picture(f, start + step) for step in range(min(count, 1))) if p), None)
        size = len(first.uri) if first else 4096
        most = int(min(_MOST_FRAMES, max(_FEWEST_FRAMES, self._room // size)))
        found, used = list[tuple[int, Picture]](), 0
        for step in evenly(count, most).tolist():
            shown = self._picture(f, start + step)
            if shown is None:
                continue
            used += len(shown.uri)
            if found and used > 1.5 * self._room:
                break
            found.append((step, shown))
        return found

    def _picture(self, f: Field, row: int) -> Picture | None:
        at = np.array([row])
        try:
            if f.kind == "frames" and not self._rows.sizes(f.name, at)[0]:
                return None
            return picture(f, self._rows.values(f.name, at)[0])
        except RldsError:
            return None  # a frame that does not decode is a finding, not the end of a report


# -- images


def picture(f: Field, frame: Array, *, height: int = HEIGHT) -> Picture:
    """Encode a frame [*f.shape], at most ``height`` pixels high, as PNG or JPEG, whichever is smaller."""
    image = Pillow.fromarray(np.ascontiguousarray(_plane(f, as_bytes(frame))))
    image = image.convert("L" if image.mode in ("L", "LA") else "RGB")
    if image.height > height:
        width = max(1, round(image.width * height / image.height))
        image = image.resize((min(width, 4 * height), height), Pillow.Resampling.BOX)
    kind, encoded = min(_encodings(image), key=lambda pair: len(pair[1]))
    uri = f"data:image/{kind};base64,{base64.b64encode(encoded).decode()}"
    return Picture(uri, image.width, image.height)


def _plane(f: Field, frame: Array) -> Array:
    if frame.ndim == 2:
        return frame
    last = f.kind == "frames" or channels_last(f.shape)
    channels = f.shape[2] if last else f.shape[0]
    frame = frame if last else np.moveaxis(frame, 0, -1)
    if channels == 1:
        return frame[..., 0]
    return frame[..., -1] if channels == 4 and f.kind == "array" else frame


def _encodings(image: Pillow.Image) -> list[tuple[str, bytes]]:
    kinds: list[tuple[str, dict[str, int | bool]]] = [("png", {"optimize": True})]
    if max(image.size) > _SMALL:
        kinds.append(("jpeg", {"quality": 78}))
    encoded = []
    for kind, options in kinds:
        file = io.BytesIO()
        image.save(file, kind, **options)
        encoded.append((kind, file.getvalue()))
    return encoded
