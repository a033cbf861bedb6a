"""``rlds preprocess``."""

from __future__ import annotations

import json as json_module
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
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


class Executor(StrEnum):
    """Who works."""

    local = "local"
    ray = "ray"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("preprocess")(preprocess)


def _complete_name(incomplete: str) -> list[str]:
    """Names of built-in functions, for the shell's completion."""
    from rlds_cli.preprocess.builtin import MODULES

    return [n for n in MODULES if n.startswith(incomplete.replace("-", "_"))]


def preprocess(
    id: Annotated[
        str | None, typer.Argument(metavar="ID", help="A dataset that is here.", autocompletion=options.complete_here)
    ] = None,
    fn: Annotated[
        list[str] | None,
        typer.Option(
            "--fn",
            metavar="MOD:FUNC|FILE.py:FUNC|NAME",
            help="The function: yours, or a built-in one. Given several times, they work one after the other.",
            autocompletion=_complete_name,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="ID@NAME is made; else the function's name.")] = None,
    unit: Annotated[
        list[Unit] | None, typer.Option("--unit", help="What the function is given at a time; for several, each.")
    ] = None,
    history: Annotated[int | None, typer.Option("--history", metavar="N", help="Steps before, of a window.")] = None,
    future: Annotated[int | None, typer.Option("--future", metavar="N", help="Steps after, of a window.")] = None,
    arrays: Annotated[
        list[Arrays] | None, typer.Option("--arrays", help="What its values are; numpy unless given.")
    ] = None,
    arg: Annotated[list[str] | None, typer.Option("--arg", metavar="K=V", help="An argument of the function.")] = None,
    fields: Annotated[str | None, typer.Option("--fields", metavar="A,B", help="Give it these alone.")] = None,
    try_: Annotated[bool, typer.Option("--try", help="Show one episode before and after; write nothing.")] = False,
    episode: Annotated[int | None, typer.Option("--episode", help="Try it on this one.", show_default=False)] = None,
    step: Annotated[int | None, typer.Option("--step", help="Of it, this step alone.", show_default=False)] = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Leave out episodes that FUNC fails on.")] = False,
    depends_on: Annotated[
        list[str] | None,
        typer.Option("--depends-on", metavar="FILE", help="FUNC reads this file too: another content, another result."),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option("--shard", metavar="I/N", help="Do this share of it, 1/N to N/N, on any machine."),
    ] = None,
    finish: Annotated[bool, typer.Option("--finish", help="Publish what all shards have made.")] = False,
    executor: Annotated[
        Executor, typer.Option("--executor", help="Processes of this machine, or the nodes of a Ray cluster.")
    ] = Executor.local,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT", help="The Ray cluster; else RAY_ADDRESS, else one here."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the built-in functions.")] = False,
    jobs: options.Jobs = None,
    force: options.Force = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Make a new dataset, ID@NAME, with a function of yours or a built-in one. It sees every episode, batch or step.

    \b
    Examples:
      rlds preprocess d4rl/hopper-medium-v2 --fn my_prep.py:norm --try
      rlds preprocess d4rl/hopper-medium-v2 --fn top_episodes --arg percent=10
      rlds preprocess d4rl/hopper-medium-v2 --fn my_prep.py:norm --shard 2/8
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import preprocess as library
    from rlds_cli.cli.pages import preprocess
    from rlds_cli.report import derived

    how: dict[str, Any] = {"args": _arguments(arg or [])}
    how |= {"unit": _one_or_all(unit), "arrays": _one_or_all(arrays) or "numpy"}
    how |= {"history": history, "future": future}
    how |= {"fields": fields.split(",") if fields else None, "jobs": jobs, "cache_dir": cache_dir}
    alone = try_ or episode is not None
    if list_:
        return out.result(library.catalogue(), preprocess.catalogue(library.catalogue()))
    if id is None or not fn:
        raise typer.BadParameter("is missing", param_hint="ID" if id is None else "--fn")
    if step is not None and episode is None:
        raise typer.BadParameter("needs --episode", param_hint="--step")
    if alone + finish + (shard is not None) > 1:
        raise typer.BadParameter("one of them at a time", param_hint="--try, --shard, --finish")
    if executor != Executor.local and (alone or finish or shard is not None):
        raise typer.BadParameter("is for a whole job", param_hint="--executor")
    if address is not None and executor == Executor.local:
        raise typer.BadParameter("needs --executor ray", param_hint="--address")
    which: Any = fn if len(fn) > 1 else fn[0]
    making_it: dict[str, Any] = {"keep_going": keep_going, "force": force, "depends_on": depends_on or ()}
    with (
        nullcontext() if alone else options.going_on(),
        _explained(debug=alone and jobs == 0, verbose=verbose),
        redirect_stdout(sys.stderr),
        out.progress() as progress,
    ):
        if alone:
            report = library.attempt(id, which, name, episode=episode or 0, step=step, **how)
            text = preprocess.trial(report)
        elif shard is not None:
            share = library.run_shard(id, which, name, shard=_share(shard), progress=progress, **making_it, **how)
            text = preprocess.share(share)
        else:
            where = {} if finish else {"executor": executor.value, "address": address}
            make: Callable[..., Any] = library.finish if finish else library.run
            made = derived.summarise(make(id, which, name, progress=progress, **where, **making_it, **how))
            text = preprocess.outcome(made)
    return out.result(report if alone else share if shard is not None else made, text)


def _one_or_all(given: Sequence[StrEnum] | None) -> str | list[str] | None:
    """What was given once, for all functions, or once for each."""
    values = [v.value for v in given or ()]
    return values if len(values) > 1 else values[0] if values else None


def _share(text: str) -> tuple[int, int]:
    """``I/N``."""
    number, slash, count = text.partition("/")
    if not (slash and number.strip().isdecimal() and count.strip().isdecimal()):
        raise typer.BadParameter(f"{text!r} is not I/N, as in 1/4", param_hint="--shard")
    return int(number), int(count)


def _arguments(given: list[str]) -> dict[str, Any]:
    """``K=V``, V as JSON or a Python literal where it is one, else as text; ``0x84`` is a size, not hexadecimal."""
    arguments: dict[str, Any] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not equals or not key.rpartition(".")[2].isidentifier():
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--arg")
        arguments[key] = _value(value)
    return arguments


def _value(text: str) -> Any:
    if text.lower().startswith("0x"):
        return text
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
        out.note(out.traceback(cause))
        if debug and sys.stdin.isatty() and cause.__traceback__ is not None:
            out.error(e)
            import pdb

            pdb.post_mortem(cause.__traceback__)
        raise
