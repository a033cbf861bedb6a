"""What the server answers: the pages, records as JSON, and what `media` and `curves` make of rows.

Each answer is a function of a `Query`, which runs in a thread. `ROUTES` has them by path;
docs/reference/view-interface.md describes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, cast

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rlds_cli import __version__, errors
from rlds_cli.base.pages import STYLE
from rlds_cli.errors import InvalidArgument, RldsError
from rlds_cli.view.curves import curves
from rlds_cli.view.deciding import decide, decisions, undo
from rlds_cli.view.decoding import Decoding
from rlds_cli.view.episode import episode, step
from rlds_cli.view.frames import frame
from rlds_cli.view.labels import Labels
from rlds_cli.view.query import Answer, NotThere, Query, as_json, record
from rlds_cli.view.queue import queue
from rlds_cli.view.ranges import NOT_KEPT, Content, answer
from rlds_cli.view.samples import batch, image
from rlds_cli.view.saving import apply, exported, plan
from rlds_cli.view.subjects import Subjects
from rlds_cli.view.table import changed, columns, contents, dataset, episodes
from rlds_cli.view.videos import video

PAGES = Path(__file__).parent / "pages"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_STATUS = {
    errors.DatasetNotFound: 404,
    errors.UnknownDataset: 404,
    errors.UnknownField: 404,
    NotThere: 404,
    errors.ClashingDecisions: 409,
    errors.NameTaken: 409,
    errors.NotNewest: 409,
    errors.InvalidExpression: 422,
    errors.InvalidArgument: 422,
    errors.InvalidId: 422,
    errors.FrameError: 422,
    errors.MissingPackage: 501,
}


def refused(error: RldsError) -> Response:
    """Answer with an error: what happened, and what to do."""
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    body = {"error": error.message, "hint": error.hint, "type": type(error).__name__}
    return Response(as_json(body), status, media_type="application/json")


# -- pages


@lru_cache(maxsize=64)
def _page(name: str) -> tuple[bytes, str]:
    data = (STYLE if name == STYLE.name else PAGES / name).read_bytes()
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
    named: list[dict[str, Any]] = [{"key": id, "id": id, "ref": id, "address": None} for id in query.subjects.ids]
    for key, ds in query.subjects.named:
        counts = {"episodes": ds.num_episodes, "steps": ds.num_steps}
        ref = query.subjects.ref(key)
        named.append({"key": key, "id": ds.id, "ref": ref, "address": ds.store.address, **counts})
    started = {"read_only": query.read_only, "decode": query.decode}
    return record(query, {"rlds_version": __version__, "named": named, **started})


ROUTES: dict[str, Answer] = {
    "/api/about": about,
    "/api/home": contents,
    "/api/dataset": dataset,
    "/api/changed": changed,
    "/api/episodes": episodes,
    "/api/columns": columns,
    "/api/episode": episode,
    "/api/step": step,
    "/api/curves": curves,
    "/api/decisions": decisions,
    "/api/queue": queue,
    "/api/plan": plan,
    "/api/batch": batch,
    "/media/batch": image,
    "/media/decisions": exported,
    "/media/frame": frame,
    "/media/video": video,
}

CHANGES: dict[str, Answer] = {  # by POST
    "/api/decide": decide,
    "/api/undo": undo,
    "/api/apply": apply,
}


def _read(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise InvalidArgument(f"The body is not JSON: {str(e)[:80]}.") from e
    if not isinstance(found, dict):
        raise InvalidArgument("The body is not a JSON object.")
    return found


def application(
    subjects: Subjects,
    decoding: Decoding,
    *,
    read_only: bool = False,
    decode: bool = False,
    labels: Labels | None = None,
    by: str = "",
) -> Starlette:
    """Return the application that answers for ``subjects``, with frames that ``decoding`` decodes."""

    async def respond(request: Request, function: Answer) -> Response:
        try:
            body = _read(await request.body()) if request.method == "POST" else {}
        except RldsError as e:
            return refused(e)
        query = Query(
            subjects=subjects,
            values=dict(request.query_params),
            headers=request.headers,
            decoding=decoding,
            is_gone=request.is_disconnected,
            method=request.method,
            read_only=read_only,
            decode=decode,
            fields=request.query_params.getlist("field"),
            body=body,
            labels=labels,
            by=by,
        )
        try:
            if iscoroutinefunction(function):
                found: Response = await function(query)
                return found
            return await run_in_threadpool(cast(Callable[[Query], Response], function), query)
        except RldsError as e:
            return refused(e)

    def route(path: str, function: Answer, method: str = "GET") -> Route:
        async def endpoint(request: Request) -> Response:
            return await respond(request, function)

        return Route(path, endpoint, methods=[method])

    routes = [route(path, function) for path, function in ROUTES.items()]
    routes += [route(path, function, "POST") for path, function in CHANGES.items()]
    for file in (*sorted(PAGES.iterdir()), STYLE):
        name = file.name
        if file.suffix in _TYPES:
            routes.append(route("/" if name == "index.html" else f"/pages/{name}", partial(page, name=name)))
    return Starlette(routes=routes, exception_handlers={404: _nothing, Exception: _failed})


async def _nothing(request: Request, e: Exception) -> Response:
    return refused(NotThere("There is nothing at this address.", hint="rlds view printed that of the pages"))


async def _failed(request: Request, e: Exception) -> Response:
    """Answer where something went wrong that nobody foresaw; the terminal shows what."""
    return refused(RldsError(f"The viewer failed: {type(e).__name__}.", hint="the terminal shows where"))
