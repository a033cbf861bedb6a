"""The language columns of LeRobot 0.6: lists of annotations, as the texts of steps.

::

    language_persistent   each row has the list of its episode; an annotation holds from its timestamp on
        {style: subtask, timestamp: 0.5, content: lift}             language/subtask        None  None   lift  lift
    language_events       an annotation holds at the frame of its row alone
        {style: vqa, role: user, camera: observation.images.top}    language/vqa/user/top   None  What?  None  None

The rules are those of ``lerobot.datasets.language_render``. At a time the annotation of a persistent style is active
whose timestamp is the latest that is not after it (``active_at``), and of a frame one is chosen by style, role and
camera (``emitted_at``). Where they find several, lerobot raises an error: these annotations, those that call tools and
those without a style stay JSON, in a field with the name of the column.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from rlds_cli.archives.formats import parquet
from rlds_cli.archives.lerobot import description
from rlds_cli.archives.lerobot.features import LerobotFeature
from rlds_cli.archives.lerobot.names import EVENT_STYLES, LANGUAGE, PERSISTENT_STYLES
from rlds_cli.errors import CorruptArchive
from rlds_cli.ted import Field, Note, Text

ABOVE = "language"  # the group of the fields
_PERSISTENT, _EVENTS = LANGUAGE
_SUBTASK = "subtask"  # the persistent style of what is done
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CAMERA = "observation.images."
_MOST = 256  # fields
_SEVERAL, _CALLS, _NO_TEXT = "several of one kind at one time", "calls of tools", "no text"
_NO_TIME, _NO_STYLE, _UNFIT = "no time", "no style", "a style, role or camera that names no field"


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """What tells the annotations of a field from others."""

    column: str
    style: str
    role: str
    camera: str = ""  # behind ``observation.images.``

    @property
    def name(self) -> str:
        """The field, by all that tells it from others."""
        return "/".join(part for part in (ABOVE, self.style, self.role, self.camera) if part)


def _kind(row: Mapping[str, Any], column: str) -> Kind | str:
    """Return the kind of an annotation, or why it has none."""
    style, role, camera = row.get("style"), row.get("role"), row.get("camera")
    if style is None:
        return _CALLS if row.get("tool_calls") else _NO_STYLE
    if column == _PERSISTENT and not (isinstance(t := row.get("timestamp"), int | float) and not math.isnan(t)):
        return _NO_TIME
    parts = [style, role]
    if camera is not None:
        parts.append(camera.removeprefix(_CAMERA) if str(camera).startswith(_CAMERA) else None)
    fits = all(isinstance(part, str) and _PLAIN.fullmatch(part) for part in parts)
    elsewhere = EVENT_STYLES if column == _PERSISTENT else PERSISTENT_STYLES
    return Kind(column, *parts) if fits and style not in elsewhere else _UNFIT


class Annotations:
    """The list of a row."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], column: str) -> None:
        self.rows, self.column = rows, column
        self.odd: dict[int, str] = {}  # why annotations stay JSON, by place; the text of some is that of a step, too
        self.told: dict[Kind, dict[float, list[int]]] = {}  # places by kind and time
        for at, row in enumerate(rows):
            kind = _kind(row, column)
            if isinstance(kind, str):
                self.odd[at] = kind
                continue
            time = float(row["timestamp"]) if column == _PERSISTENT else 0.0
            self.told.setdefault(kind, {}).setdefault(time, []).append(at)
            if row.get("tool_calls") or row.get("content") is None:
                self.odd[at] = _CALLS if row.get("tool_calls") else _NO_TEXT
        several = (places for of_time in self.told.values() for places in of_time.values() if len(places) > 1)
        self.odd |= dict.fromkeys(chain.from_iterable(several), _SEVERAL)

    def kinds(self) -> dict[Kind, int]:
        """Return the number of annotations that are texts of steps, by kind."""
        found: dict[Kind, int] = {}
        for kind, of_time in self.told.items():
            texts = [at for (at, *others) in of_time.values() if not others and self._text(at) is not None]
            found |= {kind: len(texts)} if texts else {}
        return found

    def odd_kinds(self) -> set[Kind]:
        """Return the kinds of which an annotation stays JSON, or says nothing."""
        blank = {at for at, row in enumerate(self.rows) if not str(row.get("content") or "").strip()}
        odd = self.odd.keys() | blank
        return {kind for kind, of in self.told.items() if not odd.isdisjoint(chain.from_iterable(of.values()))}

    def text(self, kind: Kind, time: float) -> str | None:
        """Return the text of a kind at a time; None where there is none, or several."""
        of_time = self.told.get(kind)
        if of_time is None or math.isnan(time):
            return None
        times = self._times.setdefault(kind, sorted(of_time))
        last = bisect_right(times, time) if self.column == _PERSISTENT else len(times)
        places = of_time[times[last - 1]] if last else []
        return self._text(places[0]) if len(places) == 1 else None

    def _text(self, at: int) -> str | None:
        content = self.rows[at].get("content")
        return None if content is None else str(content)

    @cached_property
    def _times(self) -> dict[Kind, list[float]]:
        return {}

    def json(self, fields: Collection[Kind]) -> str | None:
        """Return the annotations that no text of a step, of the kinds of ``fields``, says; None if there are none."""
        others = (places for kind, of in self.told.items() if kind not in fields for places in of.values())
        rest = sorted({*self.odd, *chain.from_iterable(others)})
        return description.json_text([self.rows[at] for at in rest]) if rest else None


def lists(column: Any, name: str, where: str) -> Iterator[Annotations]:
    """Yield the annotations of each row of a column; rows with equal lists share theirs.

    Raises
    ------
    CorruptArchive
        A value is something else than a list of annotations.
    """
    before, found = None, Annotations((), name)
    for value in column:
        if before is None or not value.equals(before):
            rows = value.as_py() or []
            if not isinstance(rows, list) or not all(row is None or isinstance(row, dict) for row in rows):
                raise CorruptArchive(f"{where}: {name} holds {str(rows)[:80]!r}: not a list of annotations.")
            found = Annotations([row for row in rows if row is not None], name)
        before = value
        yield found


@dataclass(frozen=True, slots=True)
class Language:
    """What the language columns of a dataset become.

    Attributes
    ----------
    kinds : mapping of str to Kind
        By field, in the order of names.
    rest : tuple of str
        The columns of which something stays JSON, in a field of the column's name.
    notes : tuple of Note
        What stays JSON, and why.
    subtask : str
        The field that says the sub-task of each step, if nothing of it is ambiguous: one role has the style, and
        lerobot finds one text, or none, at each time. It may become intervals; "" otherwise.
    """

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    rest: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    subtask: str = ""

    @property
    def features(self) -> list[LerobotFeature]:
        """The fields."""
        kinds = {name: kind for name, kind in self.kinds.items() if name != self.subtask}
        chosen = [LerobotFeature(kind.column, _text_field(name)) for name, kind in kinds.items()]
        return [*chosen, *(LerobotFeature(column, _text_field(column), nested=True) for column in self.rest)]

    @property
    def facts(self) -> dict[str, list[str]]:
        """The column of each field, and style, role and camera of its annotations; for the plan."""
        chosen = {name: [k.column, k.style, k.role, k.camera] for name, k in self.kinds.items()}
        return chosen | {column: [column] for column in self.rest}


def _text_field(name: str) -> Field:
    return Field(name, "str", (), "root", "text")


def survey(files: Iterable[Path], columns: Sequence[str], taken: Collection[str]) -> Language:
    """Find the fields of the language ``columns`` of data files, without names that are ``taken``."""
    found, why, rest, odd = Counter[Kind](), Counter[str](), dict[str, None](), set[Kind]()
    last: dict[str, Annotations] = {}
    for path in files:
        for batch in description.batches(path, columns, parquet.BATCH_ROWS):
            for name in (name for name in columns if name in batch.schema.names):
                for of_row in lists(batch.column(name), name, str(path)):
                    again = name == _PERSISTENT and name in last and of_row.rows == last[name].rows
                    last[name] = of_row
                    if not again and of_row.rows:
                        found.update(of_row.kinds())
                        why.update(of_row.odd.values())
                        rest |= {name: None} if of_row.odd else {}
                        odd |= of_row.odd_kinds()
    kinds = _named(found, taken)
    unnamed = found.keys() - set(kinds.values())
    why[_UNFIT] += sum(found[kind] for kind in unnamed)
    rest |= dict.fromkeys(kind.column for kind in sorted(unnamed))
    listed = "; ".join(f"{count:,} with {reason}" for reason, count in sorted(why.items()) if count)
    notes = [Note("language-json", f"annotations stay JSON: {listed}", why.total(), next(iter(rest)))] if rest else []
    said = [name for name, kind in kinds.items() if kind.column == _PERSISTENT and kind.style == _SUBTASK]
    alike = [kind for kind in found if kind.column == _PERSISTENT and kind.style == _SUBTASK]
    certain = len(said) == len(alike) == 1 and not alike[0].camera and alike[0] not in odd
    return Language(kinds, tuple(c for c in columns if c in rest), tuple(notes), said[0] if certain else "")


def _named(found: Collection[Kind], taken: Collection[str]) -> dict[str, Kind]:
    """Name the fields: a persistent style by itself if one role alone has it. No name is above another one."""
    of_style = Counter((kind.column, kind.style) for kind in found)
    alone = {k for k in found if k.column == _PERSISTENT and of_style[k.column, k.style] == 1 and not k.camera}
    names = {kind: f"{ABOVE}/{kind.style}" if kind in alone else kind.name for kind in found}
    named: dict[str, Kind] = {}
    for kind, name in sorted(names.items(), key=lambda item: (-item[1].count("/"), item[1])):
        if len(named) < _MOST and not any(
            f"{a}/".startswith(f"{b}/") for o in (*taken, *named) for a, b in ((o, name), (name, o))
        ):
            named[name] = kind
    return dict(sorted(named.items()))


def texts(facts: Mapping[str, Sequence[str]], block: Any, times: Sequence[float], where: str) -> dict[str, Text]:
    """Return the texts of the rows of a block, by field.

    Parameters
    ----------
    facts : mapping of str to sequence of str
        `Language.facts`.
    block : pyarrow.Table
    times : sequence of float
        The timestamps of the rows, in seconds.
    """
    out: dict[str, Text] = {name: [None] * block.num_rows for name in facts}
    for column in dict.fromkeys(of[0] for of in facts.values()):
        kinds = {name: Kind(*of) for name, of in facts.items() if of[0] == column and len(of) > 1}
        of_fields, stays = {*kinds.values()}, out.get(column)
        if column not in block.column_names:
            continue
        for row, found in enumerate(lists(block[column], column, where)):
            if found.rows:
                for name, kind in kinds.items():
                    out[name][row] = found.text(kind, times[row])
                if stays is not None:
                    stays[row] = found.json(of_fields)
    return out
