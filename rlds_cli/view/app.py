"""What the server answers: the pages, records as JSON, and what `media` and `curves` make of rows.

Each answer is a function of a `Query`, which runs in a thread. `ROUTES` has them by path; docs/view-interface.md
describes them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rlds_cli import __version__, errors
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument, RldsError
from rlds_cli.view.ranges import NOT_KEPT, Content, answer, is_known
from rlds_cli.view.subjects import Subjects

PAGES = Path(__file__).parent / "pages"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_STATUS = {
    errors.DatasetNotFound: 404,
    errors.UnknownDataset: 404,
    errors.UnknownField: 404,
    errors.InvalidExpression: 422,
    errors.InvalidArgument: 422,
    errors.FrameError: 422,
    errors.MissingPackage: 501,
}


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
    method : str
        ``GET`` or ``HEAD``.
    read_only : bool
        Whether the viewer was started with ``--read-only``.
    """

    subjects: Subjects
    values: Mapping[str, str]
    headers: Mapping[str, str]
    method: str = "GET"
    read_only: bool = False
    decode: bool = False

    @property
    def dataset(self) -> Dataset:
        """The dataset ``d`` at the version ``v``, by default the newest one."""
        return self.subjects.dataset(self.text("d"), self.integer("v", None))

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


Answer = Callable[[Query], Response]


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


def refused(error: RldsError) -> Response:
    """Answer with an error: what happened, and what to do."""
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    body = {"error": error.message, "hint": error.hint, "type": type(error).__name__}
    return Response(as_json(body), status, media_type="application/json")


# -- pages


@lru_cache(maxsize=64)
def _page(name: str) -> tuple[bytes, str]:
    path = PAGES / name
    data = path.read_bytes()
    return data, hashlib.sha256(data).hexdigest()[:20]


def page(query: Query, name: str) -> Response:
    """Answer with a file of the pages."""
    data, etag = _page(name)
    kind = _TYPES[Path(name).suffix]
    content = Content(
        size=len(data),
        read=lambda start, stop: data[start:stop],
        etag=etag,
        media_type=f"{kind}; charset=utf-8",
        cache=NOT_KEPT,
    )
    return answer(content, query.headers, method=query.method)


def about(query: Query) -> Response:
    """Answer with what the command named, and how the viewer was started."""
    named = [{"key": key, "id": ds.id, "address": ds.store.address} for key, ds in query.subjects.named]
    return record(query, {"rlds_version": __version__, "named": named, "read_only": query.read_only})


ROUTES: dict[str, Answer] = {"/api/about": about}


def application(subjects: Subjects, *, read_only: bool = False, decode: bool = False) -> Starlette:
    """Return the application that answers for ``subjects``."""

    async def respond(request: Request, function: Answer) -> Response:
        query = Query(
            subjects=subjects,
            values=dict(request.query_params),
            headers=request.headers,
            method=request.method,
            read_only=read_only,
            decode=decode,
        )
        try:
            return await run_in_threadpool(function, query)
        except RldsError as e:
            return refused(e)

    def route(path: str, function: Answer) -> Route:
        async def endpoint(request: Request) -> Response:
            return await respond(request, function)

        return Route(path, endpoint)

    routes = [route(path, function) for path, function in ROUTES.items()]
    for file in sorted(PAGES.iterdir()):
        name = file.name
        if file.suffix in _TYPES:
            routes.append(route("/" if name == "index.html" else f"/pages/{name}", partial(page, name=name)))
    return Starlette(routes=routes)
