"""One decision on an episode: labels of it, and whether and which of its steps stay; a sub-task in some of them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cache, partial
from itertools import repeat
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np

from rlds_cli.base.text import did_you_mean
from rlds_cli.errors import InvalidArgument, InvalidEpisode
from rlds_cli.store import StoredColumn
from rlds_cli.ted import Scalar, Subtasks

Do = Literal["", "drop", "keep", "subtask"]
_DOES = get_args(Do)
_ID = re.compile(r"[0-9a-f]{32}")
_KEY = re.compile(r"([0-9a-f]{16})?")
_LONGEST = {"by": 100, "time": 40, "comment": 1 << 16, "text": 1 << 16}  # characters
_MOST = 1 << 53  # steps and versions: far above any, and JSON keeps them
_RANGE = "first and stop: the first step that stays, and the one behind the last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one person has decided on one episode at one moment.

    Attributes
    ----------
    id : str
        Of the episode in the dataset that was looked at: 32 hexadecimal digits.
    do : {"", "drop", "keep", "subtask"}
        Nothing but labels; leave the episode out; keep steps [first, stop) of it, where several such decisions of one
        annotator split it; or say what is done in steps [first, stop), which trims nothing.
    first, stop : int, optional
        Steps [first, stop), of ``keep`` and ``subtask`` alone. An episode is kept whole by [0, its length).
    text : str, optional
        What is done there, of ``subtask`` alone; None takes away what is said of these steps.
    labels : mapping
        Values by episode column: a flag, a number or a text. None takes a label away; a column that is missing here
        stays as it is.
    by : str
        Who has decided; empty if that is not said.
    time : str
        ISO-8601, UTC; empty if that is not said. A time without a zone is taken as UTC.
    version : int
        The version of the dataset that was looked at; 0 if that is not said.
    comment : str
    reviews : str
        The `key` of a decision of somebody else that was looked at: this one confirms it where both say the same, and
        takes its place where they differ. Empty for none.

    Raises
    ------
    InvalidArgument
        A member is something else; the message names it with its value.
    """

    id: str
    do: Do = ""
    first: int | None = None
    stop: int | None = None
    text: str | None = None
    labels: Mapping[str, Scalar] = field(default_factory=dict)
    by: str = ""
    time: str = ""
    version: int = 0
    comment: str = ""
    reviews: str = ""

    NAMES: ClassVar[tuple[str, ...]] = ("id", "do", "first", "stop", "text", "by", "time", "version", "comment")

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            if name == "by":  # behind what says which steps
                _check_steps(self.do, self.first, self.stop, self.text)
            object.__setattr__(self, name, check(getattr(self, name)))

    @classmethod
    def of(cls, record: Decision | Mapping[str, Any]) -> Decision:
        """Return the decision that a mapping with these members says, as `record` gives it.

        Raises
        ------
        InvalidArgument
            A member is unknown or wrong.
        """
        if isinstance(record, Decision):
            return record
        if not isinstance(record, Mapping):
            raise InvalidArgument(f"{record!r:.80} is not a decision, but a {type(record).__name__}.")
        if "id" not in record:
            raise InvalidArgument(
                f"A decision needs the id of an episode; there is {', '.join(map(str, record))!r:.80}."
            )
        for name in record.keys() - _MEMBERS:
            near = did_you_mean(str(name), _MEMBERS)
            raise InvalidArgument(f"A decision has no member {name!r:.80}.{near}", hint="labels are in labels")
        return cls(**record)

    @classmethod
    def of_columns(
        cls, count: int, members: Mapping[str, Mapping[int, Any]], labels: Mapping[str, Mapping[int, Any]]
    ) -> list[Decision]:
        """Return the decisions of the rows of a table. Equal texts of a column are checked once.

        Parameters
        ----------
        count : int
            Of the rows.
        members, labels : mapping of str to mapping of int to value
            The values of a column, by the numbers of the rows that have one.

        Raises
        ------
        InvalidArgument
            A value is wrong, or a row has no id; `of` says what is wrong in a row.
        """
        if len(members["id"]) < count:
            raise InvalidArgument("A decision needs the id of an episode.")
        made = [cls.__new__(cls) for _ in range(count)]
        for f in fields(cls):
            _fill(f.name, made, repeat(f.default))
        for name, values in members.items():
            _fill(name, [made[k] for k in values], _each(_CHECKS[name], [*values.values()]))
        said: list[dict[str, Scalar]] = [{} for _ in made]
        for name, values in labels.items():
            for k, value in zip(values, _each(partial(_label, name), [*values.values()]), strict=True):
                said[k][name] = value
        _fill("labels", made, said)
        for d in made:
            _check_steps(d.do, d.first, d.stop, d.text)
        return made

    def record(self) -> dict[str, Any]:
        """Return the members that are given, as JSON values."""
        said = {name: getattr(self, name) for name in _MEMBERS}
        found = {name: value for name, value in said.items() if value not in ("", None, 0) and value != {}}
        return found | ({"first": 0} if self.first == 0 else {})

    @property
    def key(self) -> str:
        """16 hexadecimal digits that name it: the hash of its `record`. The same decision has it in every file."""
        text = json.dumps(self.record(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def now() -> str:
    """Return the time as decisions say it: ISO-8601, UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _id(given: Any) -> str:
    if not isinstance(given, str) or not _ID.fullmatch(id := given.lower()):
        raise InvalidArgument(
            f"id {given!r:.80} is not that of an episode: 32 hexadecimal digits.",
            hint='numbers name other episodes once some are dropped; ds.episodes["id"] has the ids',
        )
    return id


def _do(given: Any) -> Any:
    if given not in _DOES:
        raise InvalidArgument(f"do {given!r:.80} is none of drop, keep, subtask and nothing.")
    return given


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _text(name: str, given: Any) -> Any:
    if given is None or given == "":
        return given
    _check_text(name, given, _LONGEST[name])
    return given.strip()


def _time(given: Any) -> Any:
    """Return a time as `now` says it."""
    if not (text := _text("time", given)):
        return text
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(f"time {text!r} is not a time.", hint="ISO-8601, such as 2026-03-01T09:30:00Z") from None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    return at.isoformat(timespec="milliseconds" if at.microsecond else "seconds")


def _version(given: Any) -> Any:
    value = _plain(given)
    if type(value) is not int or not 0 <= value < _MOST:
        raise InvalidArgument(f"version {value!r:.80} is not the number of a version.")
    return value


def _reviews(given: Any) -> str:
    if not isinstance(given, str) or not _KEY.fullmatch(given):
        raise InvalidArgument(f"reviews {given!r:.80} is not the key of a decision: 16 hexadecimal digits.")
    return given


def _labels(given: Any) -> dict[str, Scalar]:
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"labels {given!r:.80} are not values by column.")
    return {name: _label(name, value) for name, value in given.items()}


def _check_text(name: str, value: Any, longest: int) -> None:
    if not isinstance(value, str) or len(value) > longest:
        what = f"has {len(value):,} characters" if isinstance(value, str) else f"is {value!r:.80}"
        raise InvalidArgument(f"{name} {what}; a text of at most {longest:,} is needed.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} {value!r:.80} is not valid Unicode.") from None


def _label(name: str, value: Any) -> Scalar:
    """Return the value of a label as a plain one, with its name checked."""
    if error := _wrong_name(name):
        raise InvalidArgument(error)
    value = _plain(value)
    if isinstance(value, str):
        _check_text(f"label {name}", value, _LONGEST["text"])
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(f"label {name}: {value} is not a value.", hint="None (null in a file) takes a label away")
    elif value is not None and type(value) not in (bool, int, float):
        raise InvalidArgument(f"label {name} is {value!r:.80}; a flag, a number or a text is needed.")
    return cast("Scalar", value)


@cache
def _wrong_name(name: str) -> str:
    """Return why an episode column cannot have a name; empty if it can."""
    if name == Subtasks.COLUMN:
        return f"label {name}: do subtask decides on {name}, with first, stop and text."
    try:
        StoredColumn.check_names([name], "labels")
    except InvalidEpisode as e:
        return e.message
    return ""


def _check_steps(do: Do, first: int | None, stop: int | None, text: str | None) -> None:
    """Refuse steps and a text that do not belong to what is done."""
    if do in ("", "drop"):
        for name, given in (("first", first), ("stop", stop), ("text", text)):
            if given is not None:
                does = f"do {do}" if do else "a decision without do"
                raise InvalidArgument(f"{name} {given!r:.80}: {does} has none.", hint="keep or subtask")
        return
    for name, value in (("first", first), ("stop", stop)):
        if type(value) is not int or not 0 <= value < _MOST:
            raise InvalidArgument(f"{name} {value!r:.80} is not the number of a step.", hint=_RANGE)
    if cast("int", first) >= cast("int", stop):
        raise InvalidArgument(f"Steps {first} to {stop} are none: stop is behind first.", hint=_RANGE)
    if do == "keep" and text is not None:
        raise InvalidArgument(f"text {text!r:.80}: keep has none.", hint="do subtask, or a comment")
    if text is not None and str(text).strip() in ("", "null"):
        raise InvalidArgument(f"text {text!r} does not say what is done there.", hint="None takes it away")


_CHECKS: Mapping[str, Callable[[Any], Any]] = {  # each returns a member as decisions have it, or raises InvalidArgument
    "id": _id,
    "do": _do,
    "first": _plain,
    "stop": _plain,
    "by": partial(_text, "by"),
    "time": _time,
    "comment": partial(_text, "comment"),
    "text": partial(_text, "text"),
    "version": _version,
    "reviews": _reviews,
    "labels": _labels,
}
_MEMBERS = tuple(f.name for f in fields(Decision))


def _each(check: Callable[[Any], Any], values: Sequence[Any]) -> Sequence[Any]:
    """Check every value, and equal texts once."""
    if not set(map(type, values)) <= {str, type(None)}:
        return [check(value) for value in values]
    checked = {value: check(value) for value in set(values)}
    return [checked[value] for value in values]


def _fill(name: str, decisions: Sequence[Decision], values: Iterable[Any]) -> None:
    """Give decisions that are being made a member each."""
    deque(map(getattr(Decision, name).__set__, decisions, values), maxlen=0)
