"""``rlds view``."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli.base import text
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.progress import silent
from rlds_cli.cli import options, out, remote
from rlds_cli.cli.commands import app
from rlds_cli.errors import UnknownLayout

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


@app.command("view")
def view(
    refs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID|ADDRESS|FILE]...",
            help="Datasets on this disk or at an address, or files; by default the home.",
            autocompletion=options.complete_here,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the server; 0 is any that is free.")
    ] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address, and open no browser.")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Let nothing be changed.")] = False,
    decode: Annotated[
        bool, typer.Option("--decode", help="Decode videos here; their bytes do not reach the browser.")
    ] = False,
    labels: Annotated[
        Path | None,
        typer.Option("--labels", metavar="FILE", help="Labels, choices, keys and a guideline for those who decide."),
    ] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decides; else the page asks.")] = None,
    cache_dir: options.CacheDir = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Look at episodes in the browser, and decide on them.

    Example: rlds view d4rl/hopper-medium-v2
    """
    out.configure(quiet=quiet, verbose=verbose)
    from rlds_cli.view import serve

    with ExitStack() as stack:
        named = []
        first = ""
        for ref in refs or ():
            found = stack.enter_context(_opened(ref, cache_dir))
            if isinstance(found, str):
                first = first or found
            else:
                named.append(found)

        def tell(address: str, port: int) -> None:
            typer.echo(address)  # as it is: the part behind the # names the page
            _tell_how(address, port, no_open=no_open)

        with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
            serve(
                named,
                first=first,
                port=port,
                cache_dir=cache_dir,
                read_only=read_only,
                decode=decode,
                labels=None if labels is None else labels.expanduser().resolve(),
                by=(by or "").strip()[:60],
                tell=tell,
            )
        remote.tell(*named)


def _tell_how(address: str, port: int, *, no_open: bool) -> None:
    """Open the browser, or say how one on another machine comes here."""
    if "SSH_CONNECTION" in os.environ:
        out.note(
            f"on your own machine: ssh -N -L {port}:127.0.0.1:{port} {socket.gethostname()}, then open the address"
        )
    elif not no_open:
        webbrowser.open(address)
    out.note("Ctrl-C ends it")


@contextmanager
def _opened(ref: str, cache_dir: Path | None) -> Iterator[Dataset | str]:
    """Give the id of a dataset of the home, or another dataset: at an address, of a directory, of files."""
    from rlds_cli import home
    from rlds_cli.base import settings
    from rlds_cli.dataset import open_dataset

    remote.fetch_sample(ref, cache_dir)
    there = remote.opened(ref, cache_dir)
    if there is not None:
        yield there
        return
    found, is_dataset = home.version_or_file(ref, cache_dir=cache_dir)
    if not is_dataset:
        with _imported(ref, cache_dir) as ds:
            yield ds
        return
    id = home.id_of(Path(found.place))
    if found.selector is None and home.path_of(id, settings.read(cache_dir)) == Path(found.place):
        yield str(id)
    else:
        yield open_dataset(str(found), cache_dir=cache_dir)


@contextmanager
def _imported(path: str, cache_dir: Path | None) -> Iterator[Dataset]:
    """Import files into a temporary home, which goes in the end; gc removes what a killed process leaves."""
    from rlds_cli import home
    from rlds_cli.base import ids, settings
    from rlds_cli.make import import_files, plan_import

    id = f"local/{_name(path)}"
    try:
        planned = plan_import([path], id, cache_dir=cache_dir)
    except UnknownLayout as e:  # the options that its hint names are those of an import
        hint = f"{e.hint}; options are those of rlds import {path} --as {id}" if e.hint else None
        raise UnknownLayout(e.message, hint=hint) from e
    size = planned.array_bytes if planned.array_bytes is not None else planned.bytes
    own = home.Home(settings.read(cache_dir).home)
    work = ids.parse(f"local/view-{secrets.token_hex(4)}")
    temporary = own.partial(work, "view")
    out.note(f"{path} is imported into {temporary}, about {text.size_of(size)}, which is removed at the end")
    with home.exclusive(own, work, silent):
        safe_files.directory(temporary, own.root)
        try:
            with out.progress() as progress:
                ds = import_files([path], id, cache_dir=temporary, progress=progress)
            yield ds
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _name(path: str) -> str:
    """Return a name for files: what an id can hold of that of the first."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in Path(path).stem.lower())
    return kept.strip("-_")[:60] or "files"
