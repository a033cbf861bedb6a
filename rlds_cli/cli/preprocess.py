"""``rlds preprocess``."""

from __future__ import annotations

import json as json_module
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlds_cli.base import text, visible
from rlds_cli.base.figures import number, shape
from rlds_cli.base.files.hashing import short
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app, resumable
from rlds_cli.cli.helping import UsageError
from rlds_cli.errors import RldsError

if TYPE_CHECKING:
    from rlds_cli.look.report.derived import Outcome
    from rlds_cli.preprocess.builtin import Argument, Builtin
    from rlds_cli.preprocess.shards import ShardReport
    from rlds_cli.preprocess.trial import FieldChange, Report, Values


_SHARDS = 10  # missing shards that are listed; the others are counted
_FIELDS = 2  # unchanged fields that are listed; the others are counted


class UnitOption(StrEnum):
    """The data that a function receives in one call."""

    episode = "episode"
    batch = "batch"
    step = "step"
    window = "window"


class ArraysOption(StrEnum):
    """The library of the arrays that a function receives."""

    numpy = "numpy"
    torch = "torch"
    tensordict = "tensordict"


class ExecutorOption(StrEnum):
    """The workers of a job."""

    local = "local"
    ray = "ray"


def _complete_name(incomplete: str) -> list[str]:
    """Complete the name of a built-in function."""
    from rlds_cli.preprocess import catalogue

    return [b.name for b in catalogue() if b.name.startswith(incomplete.replace("-", "_"))]


# -- options

_Id = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="A dataset on this disk, or an address.", autocompletion=options.complete_here),
]
_Fn = Annotated[
    str | None,
    typer.Option(
        "--fn",
        metavar="MOD:FUNC|FILE.py:FUNC|NAME",
        help="Your function, or a built-in one.",
        autocompletion=_complete_name,
    ),
]
_Name = Annotated[
    str | None,
    typer.Option("--name", help="NAME of the result; default: the function's name, for ID@PART it is PART-FUNCTION."),
]
_Unit = Annotated[UnitOption | None, typer.Option("--unit", help="Data that the function receives in one call.")]
_History = Annotated[
    int | None, typer.Option("--history", metavar="N", help="Steps before the current one in a window.")
]
_Future = Annotated[int | None, typer.Option("--future", metavar="N", help="Steps after the current one in a window.")]
_Arrays = Annotated[
    ArraysOption | None,
    typer.Option("--arrays", help="Library of the function's arrays; default: numpy."),
]
_Arg = Annotated[list[str] | None, typer.Option("--arg", metavar="K=V", help="An argument of the function.")]
_Fields = Annotated[
    str | None, typer.Option("--fields", metavar="A,B", help="Fields that the function receives; default: all.")
]
_Try = Annotated[bool, typer.Option("--try", help="Show one episode before and after the function; write nothing.")]
_Episode = Annotated[int | None, typer.Option("--episode", help="Try this episode.", show_default=False)]
_Step = Annotated[int | None, typer.Option("--step", help="Try only this step of the episode.", show_default=False)]
_KeepGoing = Annotated[bool, typer.Option("--keep-going", help="Leave out episodes on which the function fails.")]
_DependsOn = Annotated[
    list[str] | None,
    typer.Option(
        "--depends-on", metavar="FILE", help="File that the function reads: a changed file makes the result again."
    ),
]
_ShardOf = Annotated[
    str | None,
    typer.Option("--shard", metavar="I/N", help="Do only shard I of N (1 to N), on any machine."),
]
_Finish = Annotated[bool, typer.Option("--finish", help="Publish the dataset from its finished shards.")]
_Executor = Annotated[
    ExecutorOption, typer.Option("--executor", help="Run on this machine, or on the nodes of a Ray cluster.")
]
_Address = Annotated[
    str | None,
    typer.Option(
        "--address", metavar="HOST:PORT", help="Address of the Ray cluster; else RAY_ADDRESS, else a local one."
    ),
]
_SourceHome = Annotated[
    str | None,
    typer.Option(
        "--source-home",
        metavar="DIR",
        help="Home with the source, or for the blocks of an address; default: the home of the result.",
        show_default=False,
    ),
]
_List = Annotated[bool, typer.Option("--list", help="List the built-in functions.")]


@app.command("preprocess")
def preprocess(
    id: _Id = None,
    fn: _Fn = None,
    name: _Name = None,
    unit: _Unit = None,
    history: _History = None,
    future: _Future = None,
    arrays: _Arrays = None,
    arg: _Arg = None,
    fields: _Fields = None,
    try_: _Try = False,
    episode: _Episode = None,
    step: _Step = None,
    keep_going: _KeepGoing = False,
    depends_on: _DependsOn = None,
    shard: _ShardOf = None,
    finish: _Finish = False,
    executor: _Executor = ExecutorOption.local,
    address: _Address = None,
    source_home: _SourceHome = None,
    list_: _List = False,
    jobs: options.Jobs = None,
    force: options.Force = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Make a dataset ID@NAME with your function or a built-in one.

    The function is called for every episode, batch, step or window.

    \b
    Examples:
      rlds preprocess d4rl/hopper-medium-v2 --fn my_prep.py:norm --try
      rlds preprocess d4rl/hopper-medium-v2 --fn top_episodes --arg percent=10
      rlds preprocess d4rl/hopper-medium-v2 --fn my_prep.py:norm --shard 2/8
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import preprocess as library
    from rlds_cli.dataset import open_dataset
    from rlds_cli.look import summarise_derived

    how: dict[str, Any] = {"args": _arguments(arg or [])}
    how |= {"unit": unit and unit.value, "arrays": arrays.value if arrays else "numpy"}
    how |= {"history": history, "future": future}
    how |= {"fields": fields.split(",") if fields else None, "jobs": jobs, "home": home}
    if list_:
        return out.result(library.catalogue(), _catalogue(library.catalogue()))
    if id is None or not fn:
        raise UsageError("Missing argument 'ID'." if id is None else "Missing option '--fn'.")
    alone = try_ or episode is not None
    if step is not None and episode is None:
        raise typer.BadParameter("needs --episode", param_hint="--step")
    _check_together(alone=alone, shard=shard, finish=finish, executor=executor, address=address)
    source: Any = id if source_home is None else open_dataset(id, home=source_home)
    job_options: dict[str, Any] = {
        "keep_going": keep_going,
        "force": force,
        "depends_on": depends_on or (),
    }
    with (
        nullcontext() if alone else resumable(),
        _explained(debug=alone and jobs == 0, verbose=verbose),
        redirect_stdout(sys.stderr),
        out.progress() as progress,
    ):
        shown: tuple[Report | ShardReport | Outcome, str]
        if alone:
            tried = library.attempt(source, fn, name, episode=episode or 0, step=step, **how)
            shown = tried, _trial(tried)
        elif shard is not None:
            share = library.run_shard(
                source, fn, name, shard=_parse_shard(shard), progress=progress, **job_options, **how
            )
            shown = share, _shard(share)
        else:
            make: Callable[..., Any] = library.finish if finish else library.run
            where = {} if finish else {"executor": executor.value, "address": address}
            outcome = summarise_derived(make(source, fn, name, progress=progress, **where, **job_options, **how))
            shown = outcome, _outcome(outcome)
    return out.result(*shown)


def _check_together(
    *, alone: bool, shard: str | None, finish: bool, executor: ExecutorOption, address: str | None
) -> None:
    """Raise BadParameter for options that exclude each other."""
    if alone + finish + (shard is not None) > 1:
        raise typer.BadParameter("only one of them may be given", param_hint="--try, --shard, --finish")
    if executor != ExecutorOption.local and (alone or finish or shard is not None):
        raise typer.BadParameter("works on a whole job only", param_hint="--executor")
    if address is not None and executor == ExecutorOption.local:
        raise typer.BadParameter("needs --executor ray", param_hint="--address")


def _parse_shard(text: str) -> tuple[int, int]:
    """Parse ``I/N``."""
    number, slash, count = text.partition("/")
    if not (slash and number.strip().isdecimal() and count.strip().isdecimal()):
        raise typer.BadParameter(f"{text!r} is not I/N, as in 1/4", param_hint="--shard")
    return int(number), int(count)


def _arguments(given: list[str]) -> dict[str, Any]:
    """Parse ``K=V``: V as JSON, as a Python literal, or as text; ``0x84`` is a size, not a hexadecimal number."""
    arguments: dict[str, Any] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
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
    """Show the failure of a function: with ``--episode K -j 0`` on a terminal in the debugger, else as a traceback."""
    try:
        yield
    except RldsError as e:
        cause = e.__cause__
        if cause is None or not (debug or verbose):
            raise
        out.note(out.traceback(cause))
        if debug and sys.stdin.isatty() and cause.__traceback__ is not None:
            out.failure(e)
            import pdb

            pdb.post_mortem(cause.__traceback__)
        raise


def _outcome(o: Outcome) -> str:
    """The new dataset, its size on disk, and its notes and findings."""
    shared = f", {out.size(o.shared)} shared with its source" if o.shared else ""
    lines = [f"{o.id}   {short(o.fingerprint)}   {out.size(o.bytes)}: +{out.size(o.added)} on disk{shared}"]
    if o.copied:
        lines.append(f"note: copied, since they cannot be linked: {', '.join(o.copied)}")
    lines += [f"note: {n}" for n in o.notes]
    lines += [f"{f.severity}: {f.code}: {f.text}" for f in o.findings]
    return visible.lines([*lines, *([f"errors: {o.errors}"] if o.errors else [])])


def _shard(r: ShardReport) -> str:
    """The rows of a finished shard, and the shards that are missing."""
    if r.published:
        return f"{r.id} already exists"
    done = f"{text.plural(r.parts, 'chunk')}, {text.plural(r.rows, 'row')}"
    lines = [f"{r.id}, shard {r.shard}/{r.shards}: {done}"]
    if not r.missing:
        return visible.lines([*lines, "all shards are finished: the same command with --finish publishes them"])
    named = ", ".join(f"{n}/{r.shards}" for n in r.missing[:_SHARDS])
    more = f" and {len(r.missing) - _SHARDS} more" if len(r.missing) > _SHARDS else ""
    return visible.lines([*lines, f"missing shards: {named}{more}"])


def _catalogue(built_in: Sequence[Builtin]) -> str:
    """The built-in functions with their arguments, and the loader's option for the same."""
    width = max(len(b.name) for b in built_in)
    lines = []
    for b in built_in:
        called = f"{b.name:{width}}  {' '.join(map(_argument, b.arguments))}"
        lines += [out.by_words(called, indent=" " * (width + 2)), out.by_words(f"    {b.summary}", indent=" " * 4)]
        lines += [out.by_words(f"    while loading: {b.loader}", indent=" " * 8)] if b.loader else []
    return visible.lines([*lines, "", "arguments are given as --arg NAME=VALUE; those in brackets are optional"])


def _argument(a: Argument) -> str:
    if a.required:
        return f"{a.name}=..."
    return f"[{a.name}]" if a.default is None else f"[{a.name}={a.default}]"


def _trial(r: Report) -> str:
    """One episode before and after the function, and an estimate for the whole dataset."""
    fitted = f", fitted on {r.fitted}" if r.fitted else ""
    where = (
        f"episode {r.episode:,} ({r.length:,} steps)" if r.step is None else f"episode {r.episode:,}, step {r.step:,}"
    )
    lines = [f"{r.function}({r.unit}) on {where}{fitted}, {text.duration(r.seconds)}"]
    if not r.returned:
        return visible.lines([*lines, "  dropped: the function returned no episode"])
    if r.returned != (r.length,):
        lines.append(f"  returned {len(r.returned)} of {', '.join(f'{n:,}' for n in r.returned)} steps")
    notes = [f"  note: {r.note}"] if r.note else []
    return visible.lines([*lines, *_fields(r), *notes, _whole(r)])


def _fields(r: Report) -> Iterator[str]:
    told = [c for c in r.fields if c.what in ("changed", "new", "removed")]
    rows = [(c.name, _values(c.before) or c.what, _values(c.after) or c.what, _size(c)) for c in told]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    for name, before, after, size in rows:
        yield f"  {name:{widths[0]}}  {before:{widths[1]}}  →  {after:{widths[2]}}  {size}".rstrip()
    for what in ("untouched", "not read"):
        names = [c.name for c in r.fields if c.what == what]
        if names:
            how = (
                "linked, 0 B" if r.linked else f"written, {out.size(sum(c.bytes for c in r.fields if c.what == what))}"
            )
            yield f"  {_some(names)}  {what}: {how}"


def _size(c: FieldChange) -> str:
    return f"+{out.size(c.bytes)}" if c.bytes else ""


def _values(v: Values | None) -> str:
    if v is None:
        return ""
    moments = f"  mean {number(v.mean)} std {number(v.std)}" if v.mean is not None else ""
    return f"{v.dtype} {shape(v.shape)}{moments}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _FIELDS
    return ", ".join(names[:_FIELDS]) + (f", {more} more" if more > 0 else "")


def _whole(r: Report) -> str:
    workers = f" with {r.jobs} workers" if r.jobs > 1 else ""
    return (
        f"whole dataset: about {text.duration(r.total_seconds)}{workers}, +{out.size(r.total_bytes)}.  "
        f"Run without --try to make {r.id}"
    )
