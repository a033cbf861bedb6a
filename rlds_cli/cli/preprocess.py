"""``rlds preprocess``."""

from __future__ import annotations

import json as json_module
import sys
import traceback
from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from typing import Annotated, Any

import typer

from rlds_cli.cli import options, out
from rlds_cli.errors import RldsError


class Unit(StrEnum):
    """What a function is given at a time."""

    episode = "episode"
    batch = "batch"
    step = "step"
    window = "window"


class Arrays(StrEnum):
    """What its values are."""

    numpy = "numpy"
    torch = "torch"
    tensordict = "tensordict"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("preprocess")(preprocess)


def preprocess(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="A dataset that is here.", autocompletion=options.complete_id)
    ],
    fn: Annotated[str, typer.Option("--fn", metavar="MOD:FUNC|FILE.py:FUNC", help="The function.")],
    name: Annotated[str | None, typer.Option("--name", help="ID@NAME is made; else the function's name.")] = None,
    unit: Annotated[Unit | None, typer.Option("--unit", help="What the function is given at a time.")] = None,
    history: Annotated[int | None, typer.Option("--history", metavar="N", help="Steps before, of a window.")] = None,
    future: Annotated[int | None, typer.Option("--future", metavar="N", help="Steps after, of a window.")] = None,
    arrays: Annotated[Arrays, typer.Option("--arrays", help="What its values are.")] = Arrays.numpy,
    arg: Annotated[list[str] | None, typer.Option("--arg", metavar="K=V", help="An argument of the function.")] = None,
    fields: Annotated[str | None, typer.Option("--fields", metavar="A,B", help="Give it these alone.")] = None,
    try_: Annotated[bool, typer.Option("--try", help="Show one episode before and after; write nothing.")] = False,
    episode: Annotated[int | None, typer.Option("--episode", help="Try it on this one.", show_default=False)] = None,
    step: Annotated[int | None, typer.Option("--step", help="Of it, this step alone.", show_default=False)] = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Leave out episodes that FUNC fails on.")] = False,
    jobs: options.Jobs = None,
    force: options.Force = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Make a new dataset with a function of yours. It sees every episode, batch or step of ID and makes ID@NAME.

    Example: rlds preprocess d4rl/hopper-medium-v2 --fn my_prep.py:norm --try
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import preprocess as library
    from rlds_cli.cli.pages import making
    from rlds_cli.preprocess import outcome

    how: dict[str, Any] = {"unit": unit and unit.value, "arrays": arrays.value, "args": _arguments(arg or [])}
    how |= {"history": history, "future": future}
    how |= {"fields": fields.split(",") if fields else None, "jobs": jobs, "cache_dir": cache_dir}
    alone = try_ or episode is not None
    if step is not None and episode is None:
        raise typer.BadParameter("needs --episode", param_hint="--step")
    with (
        _explained(debug=alone and jobs == 0, verbose=verbose),
        redirect_stdout(sys.stderr),
        out.progress() as progress,
    ):
        if alone:
            report = library.attempt(id, fn, name, episode=episode or 0, step=step, **how)
        else:
            made = outcome.of(library.run(id, fn, name, keep_going=keep_going, force=force, progress=progress, **how))
    out.result(report, making.trial(report)) if alone else out.result(made, making.outcome(made))


def _arguments(given: list[str]) -> dict[str, Any]:
    """``K=V``, V as JSON or a Python literal where it is one, else as text."""
    arguments: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--arg")
        arguments[key] = _value(value)
    return arguments


def _value(text: str) -> Any:
    for read in (json_module.loads, literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError):
            continue
    return text


@contextmanager
def _explained(*, debug: bool, verbose: bool) -> Iterator[None]:
    """Show where a function failed: in the debugger with ``--episode K -j 0`` on a terminal, else as its traceback."""
    try:
        yield
    except RldsError as e:
        cause = e.__cause__
        if cause is None or not (debug or verbose):
            raise
        out.note("".join(traceback.format_exception(cause)).rstrip())
        if debug and sys.stdin.isatty() and cause.__traceback__ is not None:
            out.error(e)
            import pdb

            pdb.post_mortem(cause.__traceback__)
        raise
