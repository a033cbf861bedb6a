"""What a page asks: a dataset and parameters; and records as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from starlette.responses import Response

from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument, RldsError
from rlds_cli.view.decoding import Decoding
from rlds_cli.view.kept import Kept
from rlds_cli.view.labels import Labels
from rlds_cli.view.ranges import is_known
from rlds_cli.view.subjects import Subjects

T = TypeVar("T")


class NotThere(RldsError):
    """What is asked for is not there, in a dataset that is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Query:
    """A request: which dataset it is about, and its parameters.

    Attributes
    ----------
    subjects : Subjects
        The datasets that may be asked for.
    values : mapping of str to str
        The parameters of the address.
    headers : mapping of str to str
    decoding : Decoding
        Who decodes frames.
    is_gone : callable
        Tells whether nobody waits for the answer any more.
    method : str
        ``GET``, ``HEAD`` or ``POST``.
    read_only, decode : bool
        Whether the viewer was started with ``--read-only``, and with ``--decode``.
    fields : sequence of str
        The values of the parameter ``field``, which may be given several times.
    body : mapping
        The record that a change comes with.
    labels : Labels, optional
        Those that the command named.
    by : str
        Who decides, unless the page says so.
    """

    subjects: Subjects
    values: Mapping[str, str]
    headers: Mapping[str, str]
    decoding: Decoding
    is_gone: Callable[[], Awaitable[bool]]
    method: str = "GET"
    read_only: bool = False
    decode: bool = False
    fields: Sequence[str] = ()
    body: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    labels: Labels | None = None
    by: str = ""

    @property
    def dataset(self) -> Dataset:
        """The dataset ``d`` at the version ``v``, by default the newest one."""
        return self.subjects.dataset(self.text("d"), self.integer("v", None))

    def once(self, ds: Dataset, make: Callable[[Dataset], T]) -> T:
        """Return what a function makes of a dataset, which is kept while this is open."""
        return self.subjects.once(ds, make)

    def kept(self, ds: Dataset) -> Kept:
        """Return what is decided on a dataset, which is kept while this is open."""
        return self.once(ds, self.subjects.kept)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a parameter; raises InvalidArgument if it is missing and has no default."""
        value = self.values.get(name, default)
        if value is None:
            raise InvalidArgument(f"The parameter {name} is missing.")
        return value

    def integer(self, name: str, default: Any = dataclasses.MISSING) -> Any:
        """Return a parameter as a whole number; raises InvalidArgument for anything else."""
        value = self.values.get(name)
        if value is None and default is not dataclasses.MISSING:
            return default
        text = self.text(name)
        if len(text) > 18 or not text.removeprefix("-").isdecimal():
            raise InvalidArgument(f"The parameter {name} is {text[:40]}, not a whole number.")
        return int(text)

    def number(self, name: str, default: float | None = None) -> float | None:
        """Return a parameter as a finite number; raises InvalidArgument for anything else."""
        text = self.values.get(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InvalidArgument(f"The parameter {name} is {text[:40]}, not a number.")
        return value

    def episode(self, ds: Dataset) -> int:
        """Return the number of the episode that is asked for; raises InvalidArgument if there is none."""
        number = self.integer("episode")
        if not 0 <= number < ds.num_episodes:
            raise InvalidArgument(f"{ds.id} has no episode {number:,}: there are {ds.num_episodes:,}.")
        return int(number)


Answer = Callable[[Query], Response | Awaitable[Response]]  # functions that wait are coroutines


def record(query: Query, value: Any, *, etag: str | None = None) -> Response:
    """Answer with a record as JSON; or with 304, if whoever asks has the one with this ETag."""
    headers = {"etag": f'"{etag}"'} if etag else {}
    if etag and is_known(headers["etag"], query.headers):
        return Response(status_code=304, headers=headers)
    return Response(as_json(value), headers=headers, media_type="application/json")


def as_json(value: Any) -> bytes:
    """Return a record as JSON: dataclasses as objects, arrays as lists, paths as text, and no number for NaN."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )


def plain(value: Any) -> Any:
    """Return a record as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    return value
