"""``rlds push``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlds_cli.base import ids, text, visible
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app, resumable

if TYPE_CHECKING:
    from rlds_cli.share.cataloguing import Catalogued
    from rlds_cli.share.pushing import Pushed


@app.command("push")
def push(
    id: Annotated[
        str | None, typer.Argument(metavar="ID", help="A dataset on this disk.", autocompletion=options.complete_here)
    ] = None,
    to: Annotated[
        str | None,
        typer.Argument(
            metavar="TO", help="hf://datasets/OWNER/NAME, s3://BUCKET/PATH, gs://BUCKET/PATH or a directory."
        ),
    ] = None,
    pages: Annotated[
        bool | None,
        typer.Option(
            "--pages/--no-pages",
            help="Write card, Croissant metadata and report; by default no report if little is sent.",
            show_default=False,
        ),
    ] = None,
    catalogue: Annotated[
        str | None,
        typer.Option(
            "--catalogue", metavar="STORE", help="Write a page of all datasets below this address.", show_default=False
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a dataset with another id that the address holds.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all objects of all versions there, and send damaged ones again.")
    ] = False,
    dry_run: options.DryRun = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Push a dataset to an address; only what is missing is sent.

    rlds download ADDRESS fetches it. Earlier versions stay there: rlds log ADDRESS shows them, and rlds gc ADDRESS
    removes them. Tags are sent, too.

    Example: rlds push local/arm s3://our-bucket/arm --catalogue s3://our-bucket
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    if (id is None) != (to is None) or (id is None and catalogue is None):
        raise typer.BadParameter("give ID and TO, or --catalogue STORE, or both")
    found: dict[str, Any] = {}
    lines = []
    if id is not None and to is not None:
        from rlds_cli import share

        common: dict[str, Any] = {"dry_run": dry_run, "home": home}
        with out.progress() as progress, resumable():
            done = share.push(id, to, pages=pages, force=force, verify=verify, progress=progress, **common)
        found["push"] = done
        lines.append(_told(done))
    if catalogue is not None:
        from rlds_cli import share

        page = share.catalogue(catalogue, dry_run=dry_run, home=home)
        found["catalogue"] = page
        lines.append(_listed(page, dry_run=dry_run))
    out.result(found if len(found) > 1 else next(iter(found.values())), visible.Lines("\n".join(lines)))


def _listed(page: Catalogued, *, dry_run: bool) -> str:
    """The page, and the datasets on it that cannot be read."""
    lines = [f"{page.address}{' would list' if dry_run else ' lists'} {text.plural(len(page.datasets), 'dataset')}"]
    lines += [f"{d.name}: {d.problem}" for d in page.datasets if d.problem is not None]
    return visible.lines(lines)


def _told(done: Pushed) -> str:
    """The address, and the bytes that were sent or would be."""
    would = "would be sent" if done.dry_run else "sent"
    sizes = f"{text.size_of(done.sent)} {would}, {text.size_of(done.skipped)} there already"
    named = f"  [{', '.join(done.tags)}]" if done.tags else ""
    lines = [
        f"{done.id}#v{done.version}{named}  {'to' if done.dry_run else 'is at'} {done.address}",
        f"{text.plural(done.objects, 'object')}: {sizes}",
    ]
    if done.mended:
        lines.append(f"{text.size_of(done.mended)} of these were missing or damaged there")
    if done.dropped:
        lines.append(f"with {text.plural(done.dropped, 'dropped episode')}, which rlds compact removes")
    if done.others:
        lines.append(f"with {text.plural(done.others, 'step')} of other episodes, from between its own")
    lines += [f"v{n} is damaged there: rlds push {done.id}#v{n} TO --verify sends what it lacks" for n in done.damaged]
    for tag, number in done.missing.items():
        lines.append(f"tag {tag} names v{number}, which is not there: rlds push {done.id}#v{number} sends it")
    if not done.dry_run:
        # a pin is no part of an address that could hold a secret, and is shown
        name = ids.local_name(done.id)
        renamed = "" if name == done.id else f" --name {shlex.quote(name)}"
        address = shlex.quote(visible.line(done.address))
        lines.append(visible.Lines(f"rlds download {address}#{done.fingerprint}{renamed}"))
    return visible.lines(lines)
