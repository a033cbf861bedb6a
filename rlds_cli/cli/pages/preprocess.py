"""What ``rlds preprocess`` says to people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rlds_cli import text, visible
from rlds_cli.cli import out
from rlds_cli.cli.pages.figures import number, shape
from rlds_cli.files.hashing import short

if TYPE_CHECKING:
    from rlds_cli.preprocess.builtin import Argument, Builtin
    from rlds_cli.preprocess.shards import ShardReport
    from rlds_cli.preprocess.trial import Change, Report, Values
    from rlds_cli.report.derived import Outcome

_SHARDS = 10  # that are named; the others are counted
_NAMED = 2  # fields of which nothing is to be said that are named; the others are counted


def outcome(o: Outcome) -> str:
    """What was made, and what it takes."""
    shared = f", {out.size(o.shared)} shared with its source" if o.shared else ""
    lines = [f"{o.id}   {short(o.fingerprint)}   {out.size(o.bytes)}: +{out.size(o.added)} on disk{shared}"]
    if o.copied:
        lines.append(f"note: copied, for they cannot be linked: {', '.join(o.copied)}")
    lines += [f"note: {n}" for n in o.notes]
    lines += [f"{f.severity}: {f.code}: {f.text}" for f in o.findings]
    return visible.lines([*lines, *([f"errors: {o.errors}"] if o.errors else [])])


def share(r: ShardReport) -> str:
    """What a shard has done, and which are missing."""
    if r.published:
        return f"{r.id} is here already"
    lines = [f"{r.id}, shard {r.shard}/{r.shards}: {_counted(r.parts, 'chunk')}, {_counted(r.rows, 'row')}"]
    if not r.missing:
        return visible.lines([*lines, "all shards are there: the same command with --finish publishes them"])
    named = ", ".join(f"{n}/{r.shards}" for n in r.missing[:_SHARDS])
    more = f" and {len(r.missing) - _SHARDS} more" if len(r.missing) > _SHARDS else ""
    return visible.lines([*lines, f"not there yet: {named}{more}"])


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def catalogue(built_in: Sequence[Builtin]) -> str:
    """The built-in functions with their arguments, and how the loader does the same."""
    width = max(len(b.name) for b in built_in)
    lines = []
    for b in built_in:
        lines += [f"{b.name:{width}}  {' '.join(map(_argument, b.arguments))}", f"    {b.summary}"]
        lines += [f"    while loading: {b.loader}"] if b.loader else []
    return visible.lines([*lines, "", "arguments are given as --arg NAME=VALUE; those in brackets need not be"])


def _argument(a: Argument) -> str:
    if a.required:
        return f"{a.name}=..."
    return f"[{a.name}]" if a.default is None else f"[{a.name}={a.default}]"


def trial(r: Report) -> str:
    """One episode before and after, and what the whole dataset would take."""
    fitted = f", fitted on {r.fitted}" if r.fitted else ""
    where = (
        f"episode {r.episode:,} ({r.length:,} steps)" if r.step is None else f"episode {r.episode:,}, step {r.step:,}"
    )
    lines = [f"{r.function}({r.unit}) on {where}{fitted}, {text.duration(r.seconds)}"]
    if not r.returned:
        return visible.lines([*lines, "  dropped: the function returned None"])
    if r.returned != (r.length,):
        lines.append(f"  returned {len(r.returned)} of {', '.join(f'{n:,}' for n in r.returned)} steps")
    return visible.lines([*lines, *_fields(r), _whole(r)])


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


def _size(c: Change) -> str:
    return f"+{out.size(c.bytes)}" if c.bytes else ""


def _values(v: Values | None) -> str:
    if v is None:
        return ""
    moments = f"  mean {number(v.mean)} std {number(v.std)}" if v.mean is not None else ""
    return f"{v.dtype} {shape(v.shape)}{moments}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f", {more} more" if more > 0 else "")


def _whole(r: Report) -> str:
    workers = f" with {r.jobs} workers" if r.jobs > 1 else ""
    return (
        f"whole dataset: about {text.duration(r.total_seconds)}{workers}, +{out.size(r.total_bytes)}.  "
        f"Run without --try to make {r.id}"
    )
