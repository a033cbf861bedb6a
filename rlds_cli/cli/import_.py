"""``rlds import``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlds_cli.base import text, visible
from rlds_cli.base.files import child
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app, resumable
from rlds_cli.errors import RldsError, UnknownLayout

if TYPE_CHECKING:
    from rlds_cli.make.importing import ImportPlan


_LARGE, _TIMES = 1 << 30, 4  # bytes of arrays, and their share of the files, from where on compression is named


@app.command("import")
def import_(
    path: Annotated[list[str], typer.Argument(metavar="PATH|GLOB...", help="Files, directories or patterns.")],
    name: Annotated[str, typer.Option("--name", metavar="local/NAME", help="Id of the new dataset.")],
    reader: options.Reader = None,
    map: options.Map = None,
    episodes_by: options.EpisodesBy = None,
    last_step: options.LastStep = None,
    rewards: options.Rewards = None,
    missing: options.Missing = None,
    topics: options.Topics = None,
    hz: options.Hz = None,
    nearest: options.Nearest = None,
    episode_info: options.EpisodeInfo = None,
    facts: options.Facts = None,
    storage: options.Storage = options.Encoding.memmap,
    frames: options.Frames = "encoded",
    jobs: options.Jobs = None,
    skip_bad: options.SkipBad = False,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Make a dataset from your own files.

    Example: rlds import run42.h5 --name local/press --map observation=state/q --map action=cmd
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    # The process that reads the files starts before there are threads, and while this one imports what it needs.
    module = "rlds_cli.archives.planning" if dry_run else "rlds_cli.make.convert.reading"
    started = child.reading(module, both=["rlds_cli.make.importing"])
    with resumable(), started, out.progress() as progress, child.reading(id=name, progress=progress):
        from rlds_cli import look, make
        from rlds_cli.cli import selecting

        mapped = mapping(map or [], episodes_by, rewards)
        what: dict[str, Any] = {
            "reader": reader,
            **mapped,
            "skip_bad": skip_bad,
            "last_step": last_step,
            "missing": missing,
        }
        what |= {"topics": topics.split(",") if topics else None, "hz": hz, "nearest": nearest}
        what |= {"episode_info": episode_info}
        how: dict[str, Any] = {"storage": storage.value, "frames": frames, "jobs": jobs, "force": force}
        about = selecting.facts(facts or [])
        try:
            if dry_run:
                planned = make.plan_import(path, name, **what, **about, home=home).stored(frames)
                out.page(_plan(planned), planned.summary())
                return
            ds = make.import_files(path, name, **what, **how, **about, home=home, progress=progress)
        except UnknownLayout as e:
            if (
                reader or mapped["fields"] or mapped["episodes_by"] or e.folders or make.is_recognised(path)
            ):  # the error is about these options, or says what to add or to name
                raise
            raise _unknown_layout(path[0], name, e) from e
    out.new_dataset(ds)
    if ds.manifest.account:
        tell_account(look.describe_source(ds).account, f"rlds inspect {ds.id} --source lists all")


def tell_account(entries: Sequence[Any], more: str) -> None:
    """Print the account of an archive; ``more`` says where all of it is listed."""
    from rlds_cli import look

    for said in look.account_lines(entries, more=more):
        out.note(said)


def mapping(given: list[str], episodes_by: str | None, rewards: str | None) -> dict[str, Any]:
    """Return ``fields``, ``episodes_by`` and ``rewards`` of an import: those of options, else of files of ``--map``."""
    from rlds_cli.make import read_mapping

    fields: dict[str, str] = {}
    for word in given:
        field, equals, key = word.partition("=")
        if equals:
            fields[field] = key
            continue
        if not Path(word).is_file():
            raise RldsError(
                f'--map "{word}" is neither FIELD=KEY nor a file.',
                hint="as in --map observation=state/q, --map rig.toml",
            )
        file = read_mapping(word)
        fields = {**file.fields, **fields}
        episodes_by, rewards = episodes_by or file.episodes_by, rewards or file.rewards
    return {"fields": fields, "episodes_by": episodes_by, "rewards": rewards}


def _plan(p: ImportPlan) -> str:
    return visible.lines([*plan_lines(p), f"Run without --dry-run to make {p.id}"])


def plan_lines(p: ImportPlan) -> list[str]:
    """The files, fields and episodes that the import would read."""
    from rlds_cli import look

    lines = [f"{p.files[0].name}{f' and {len(p.files) - 1} more' if len(p.files) > 1 else ''}: {p.recognised}"]
    lines += [f"reader {p.reader}, {out.size(p.bytes)}, episodes end by {text.ends_in_words(p.episodes_by)}"]
    keys, width = p.facts.get("fields", {}), max(len(f.name) for f in p.fields)
    for f in sorted(p.fields, key=look.rank):
        kept = f" kept as {f.codec}" if f.codec else ""
        key = f"  from {keys[f.name]}" if f.name in keys else ""
        lines.append(f"  {f.name:{width}}  {f.placement:4}  {f.dtype:8} {list(f.shape)}{kept}{key}")
    if p.rows is not None and p.array_bytes is not None:
        lines.append(f"{p.rows:,} rows, {out.size(p.array_bytes)} of arrays")
        if p.array_bytes > max(_LARGE, _TIMES * p.bytes):
            ways = "--storage zarr compresses them"
            if p.stored("jpeg").fields != p.fields:
                ways += ", --frames jpeg keeps images small"
            lines.append(f"note: that is {p.array_bytes // p.bytes:,} times the files; {ways}")
    if p.episodes is not None:
        lines += _episodes(p.episodes)
    if columns := dict.fromkeys(use for e in p.account for use in e.used_as if use.startswith("episode/")):
        lines.append(f"columns per episode: {', '.join(use.removeprefix('episode/') for use in columns)}")
    lines += [f"note: {n}" for n in p.notes]
    return [*lines, *look.account_lines(p.account)]


def _episodes(seen: Mapping[str, Any]) -> list[str]:
    ends = ", ".join(f"{count:,} {end}" for end, count in seen["ends"].items() if count)
    span = f"{seen['shortest']:,} to {seen['longest']:,}, median {seen['median']:,}"
    episodes = text.plural(seen["episodes"], "episode")
    return [f"{episodes} of {seen['steps']:,} steps ({span}): {ends}"]


def _unknown_layout(path: str, id: str, error: UnknownLayout) -> UnknownLayout:
    """Print the contents of files that no reader knows; return the error with a command to try as its hint.

    It is the error of the library, also where the files have no contents to be printed.
    """
    from rlds_cli import look

    try:
        found = look.describe_file(path)
    except RldsError:
        return error
    out.aside(look.page(replace(found, suggestion=None)))
    return UnknownLayout(error.message, hint=found.suggestion_as(id) or error.hint)
