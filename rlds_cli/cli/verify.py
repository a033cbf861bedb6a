"""``rlds verify``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli.base import visible
from rlds_cli.base.refs import named as named_version
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app

if TYPE_CHECKING:
    from rlds_cli.keep.repair import Repair
    from rlds_cli.look.report.tracing import Trace
    from rlds_cli.store.integrity import Verification


_MOST = 8  # problems of one dataset that are listed


@app.command("verify")
def verify(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID|GLOB]...", help="Datasets on this disk.", autocompletion=options.complete_here),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Verify all datasets on this disk.")] = False,
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="FINGERPRINT", help="Compare with this fingerprint.", show_default=False),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Download damaged archive files and convert damaged datasets again.")
    ] = False,
    trace: Annotated[
        int | None, typer.Option("--trace", metavar="N", help="Compare N steps with the archive.", show_default=False)
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option("--archive", metavar="DIR", help="Directory of the archive, if it was moved.", show_default=False),
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option(
            "--reader",
            metavar="NAME|FILE.py[:NAME]",
            help="With --trace: the reader that looks values up, if it is a Python file of yours.",
            show_default=False,
        ),
    ] = None,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Hash all files again and compare with the recorded hashes. Exit 1 if something is damaged.

    \b
    Examples:
      rlds verify d4rl/hopper-medium-v2 --expect rlds1:7c1f-09ab-55e2
      rlds verify d4rl/hopper-medium-v2 --trace 100
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    if bool(ids) == all_:
        raise typer.BadParameter("give either IDs or --all")
    if trace is not None:
        _trace(ids or (), trace, archive, reader, home)
        return
    from rlds_cli import keep

    if fix:
        _fix(ids or (), expect, home)
        return
    with out.progress() as progress:
        found = keep.verify_all(ids or (), all_=all_, expect=expect, home=home, progress=progress)
    out.result(found, _verifications(found, ids or ()))
    if not all(v.ok for v in found):
        raise typer.Exit(1)


def _fix(ids: Sequence[str], expect: str | None, home: Path | None) -> None:
    """Repair damaged datasets and verify them again."""
    if expect is not None:
        raise typer.BadParameter("--expect and --fix cannot be combined")
    from rlds_cli import keep

    with out.progress() as progress:
        done = keep.repair_all(ids, all_=not ids, home=home, progress=progress)
    out.result(done, _repairs(done))
    if not all(r.now.ok for r in done):
        raise typer.Exit(1)


def _trace(ids: Sequence[str], steps: int, archive: str | None, reader: str | None, home: Path | None) -> None:
    """Compare values with the archive instead of comparing hashes."""
    from rlds_cli import homes, look

    named = homes.versions(ids, all_=not ids, home=home)
    found = [look.trace(str(ref), steps, archive=archive, reader=reader) for ref in named]
    out.result(found, _traces(found, ids))
    if not all(t.ok for t in found):
        raise typer.Exit(1)


def _verifications(found: Sequence[Verification], refs: Sequence[str] = ()) -> str:
    """One line per dataset, more for problems; and a count."""
    if not found:
        return "nothing here"
    names = [named_version(v.id, v.version, *refs) for v in found]
    width = max(map(len, names))
    lines = [line for v, name in zip(found, names, strict=True) for line in _verification_lines(v, name.ljust(width))]
    good = sum(v.ok for v in found)
    bad = f", {len(found) - good} bad" if good < len(found) else ""
    return visible.lines([*lines, f"{good} ok{bad}"])


def _repairs(done: Sequence[Repair]) -> str:
    """The repairs, and the result of the verification after them."""
    lines = [f"{r.found.id}  {_repair_text(r)}" for r in done if not r.found.ok]
    return visible.lines([*lines, _verifications([r.now for r in done])])


def _repair_text(r: Repair) -> str:
    if r.why:
        return f"not repaired: {r.why}"
    files = [f"fetched {', '.join(r.fetched[:3])}{' ...' if len(r.fetched) > 3 else ''}"] if r.fetched else []
    deleted = [f"deleted {', '.join(f.name for f in r.deleted[:3])}{' ...' if len(r.deleted) > 3 else ''}"]
    done = [*(deleted if r.deleted else []), *files, *(["converted again"] if r.converted else [])]
    return f"was bad ({r.found.problems[0]}); {', '.join(done)}: {'as it was' if r.now.ok else 'still bad'}"


def _verification_lines(v: Verification, name: str) -> list[str]:
    known = ", ".join([f"{v.arrays} arrays", *v.remarks])
    if v.ok:
        return [f"{name}  ok    {known}"]
    blank = " " * (len(name) + 8)
    lines = [f"{name}  BAD   {v.problems[0]}", *(f"{blank}{p}" for p in v.problems[1:_MOST])]
    more = len(v.problems) - _MOST
    lines += [f"{blank}{more:,} more"] if more > 0 else []
    return lines + ([f"{blank}hint: {v.hint}"] if v.hint else [])


def _traces(found: Sequence[Trace], refs: Sequence[str]) -> str:
    """The number of compared values, one step's places in the archive, and the differences."""
    return visible.lines(line for t in found for line in _trace_lines(t, named_version(t.id, t.version, *refs)))


def _trace_lines(t: Trace, name: str) -> list[str]:
    head = f"{t.values:,} values of {t.steps:,} steps, of {', '.join(t.fields)}"
    shown = [f"  {line}" for line in t.example[:_MOST]]
    others = [f"not in the archive as they are: {', '.join(t.others)}"] if t.others else []
    if t.ok:
        return [f"{name}  ok    {head}: as in the archive", *others, "for example", *shown]
    wrong = [f"  {d}" for d in t.differences[:_MOST]]
    more = [f"  {len(t.differences) - _MOST:,} more"] if len(t.differences) > _MOST else []
    return [f"{name}  BAD   {len(t.differences):,} of {head}", *wrong, *more]
