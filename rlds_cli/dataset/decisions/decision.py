"""One decision on an episode: labels of it, and whether and which of its steps stay; a sub-task in some of them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
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
        if not isinstance(self.id, str) or not _ID.fullmatch(self.id.lower()):
            raise InvalidArgument(
                f"id {self.id!r:.80} is not that of an episode: 32 hexadecimal digits.",
                hint='numbers name other episodes once some are dropped; ds.episodes["id"] has the ids',
            )
        if not self.id.islower() and not self.id.isdecimal():
            self._set("id", self.id.lower())
        if self.do not in _DOES:
            raise InvalidArgument(f"do {self.do!r:.80} is none of drop, keep, subtask and nothing.")
        for name in ("first", "stop", "version"):
            if isinstance(value := getattr(self, name), np.integer):
                self._set(name, int(value))
        self._check_steps()
        for name, longest in _LONGEST.items():
            if (value := getattr(self, name)) is not None and value != "":
                _check_text(name, value, longest)
                self._set(name, value.strip())
        if self.time:
            self._set("time", _utc(self.time))
        if type(self.version) is not int or not 0 <= self.version < _MOST:
            raise InvalidArgument(f"version {self.version!r:.80} is not the number of a version.")
        if not isinstance(self.reviews, str) or not _KEY.fullmatch(self.reviews):
            raise InvalidArgument(f"reviews {self.reviews!r:.80} is not the key of a decision: 16 hexadecimal digits.")
        if not isinstance(self.labels, Mapping):
            raise InvalidArgument(f"labels {self.labels!r:.80} are not values by column.")
        if self.labels:
            self._set("labels", {name: _label(name, value) for name, value in self.labels.items()})

    def _check_steps(self) -> None:
        first, stop = self.first, self.stop
        if self.do in ("", "drop"):
            given = next((n for n in ("first", "stop", "text") if getattr(self, n) is not None), None)
            if given is not None:
                does = f"do {self.do}" if self.do else "a decision without do"
                raise InvalidArgument(f"{given} {getattr(self, given)!r:.80}: {does} has none.", hint="keep or subtask")
            return
        for name, value in (("first", first), ("stop", stop)):
            if type(value) is not int or not 0 <= value < _MOST:
                raise InvalidArgument(f"{name} {value!r:.80} is not the number of a step.", hint=_RANGE)
        if cast("int", first) >= cast("int", stop):
            raise InvalidArgument(f"Steps {first} to {stop} are none: stop is behind first.", hint=_RANGE)
        if self.do == "keep" and self.text is not None:
            raise InvalidArgument(f"text {self.text!r:.80}: keep has none.", hint="do subtask, or a comment")
        if self.text is not None and str(self.text).strip() in ("", "null"):
            raise InvalidArgument(f"text {self.text!r} does not say what is done there.", hint="None takes it away")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

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


_MEMBERS = tuple(f.name for f in fields(Decision))


def now() -> str:
    """Return the time as decisions say it: ISO-8601, UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _utc(time: str) -> str:
    try:
        given = datetime.fromisoformat(time)
    except ValueError:
        raise InvalidArgument(f"time {time!r} is not a time.", hint="ISO-8601, such as 2026-03-01T09:30:00Z") from None
    at = given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)
    return at.isoformat(timespec="milliseconds" if at.microsecond else "seconds")


def _check_text(name: str, value: Any, longest: int) -> None:
    if not isinstance(value, str) or len(value) > longest:
        what = f"has {len(value):,} characters" if isinstance(value, str) else f"is {value!r:.80}"
        raise InvalidArgument(f"{name} {what}; a text of at most {longest:,} is needed.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} {value!r:.80} is not valid Unicode.") from None


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


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
