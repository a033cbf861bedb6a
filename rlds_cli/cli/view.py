"""``rlds view``."""

from __future__ import annotations

import html
import os
import secrets
import shlex
import shutil
import socket
import tempfile
import threading
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


_SECONDS = 60.0  # in which a browser starts


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
    home: options.Home = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Look at episodes in the browser, and decide on them.

    Example: rlds view d4rl/hopper-medium-v2
    """
    out.configure(quiet=quiet, verbose=verbose)
    from rlds_cli.view import serve

    with ExitStack() as stack:
        named, ids, names = [], list[str](), set[str]()
        for ref in refs or ():
            found = stack.enter_context(_opened(ref, home, names))
            if isinstance(found, str):
                ids.append(found)
            else:
                named.append(found)

        def tell(address: str, port: int) -> None:
            typer.echo(address)  # as it is: the part behind the # names the page
            if "SSH_CONNECTION" in os.environ:
                forward = f"ssh -N -L {port}:127.0.0.1:{port} {socket.gethostname()}"
                out.note(f"on your own machine: {forward}, then open the address")
            elif not no_open:
                stack.enter_context(_browser(address))
            out.note("Ctrl-C ends it")

        with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
            serve(
                named,
                ids=ids,
                port=port,
                home=home,
                read_only=read_only,
                decode=decode,
                labels=None if labels is None else labels.expanduser().resolve(),
                by=(by or "").strip()[:60],
                tell=tell,
            )
        remote.tell(*named)


@contextmanager
def _browser(address: str) -> Iterator[None]:
    """Open the browser at a file that only this user can read, and which leads to the address.

    All users of a machine see the command line of a browser, and the address is a password. The file goes when the
    browser has had time to read it, or in the end.
    """
    to = html.escape(address)
    lines = ['<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">']
    lines += [f'<meta http-equiv="refresh" content="0; url={to}"><title>rlds view</title><a href="{to}">rlds view</a>']
    with tempfile.TemporaryDirectory(prefix="rlds-view-", ignore_cleanup_errors=True) as folder:  # of mode 0700
        page = Path(folder) / "open.html"
        safe_files.replace_text(page, "\n".join(lines), mode=0o600)
        later = threading.Timer(_SECONDS, page.unlink, kwargs={"missing_ok": True})
        later.daemon = True
        later.start()
        if not webbrowser.open(page.as_uri()):
            out.note("no browser was found: open the address in one")
        try:
            yield
        finally:
            later.cancel()


@contextmanager
def _opened(ref: str, home: Path | None, names: set[str]) -> Iterator[Dataset | str]:
    """Give the id of a dataset of the home, or another dataset: at an address, of a directory, of files.

    Files get a name that is not yet among ``names``, and which is added to them.
    """
    from rlds_cli import homes
    from rlds_cli.base import settings
    from rlds_cli.dataset import open_dataset

    remote.fetch_sample(ref, home)
    there = remote.opened(ref, home)
    if there is not None:
        yield there
        return
    found, is_dataset = homes.version_or_file(ref, home=home)
    if not is_dataset:
        with _imported(ref, _name(Path(ref), names), home) as ds:
            yield ds
        return
    id = homes.id_of(Path(found.place))
    if found.selector is None and homes.path_of(id, settings.read(home)) == Path(found.place):
        yield str(id)
    else:
        yield open_dataset(str(found), home=home)


@contextmanager
def _imported(path: str, name: str, home: Path | None) -> Iterator[Dataset]:
    """Import files into a temporary home, which goes in the end; gc removes what a killed process leaves."""
    from rlds_cli import homes
    from rlds_cli.base import ids, settings
    from rlds_cli.make import import_files, plan_import

    id = f"local/{name}"
    try:
        planned = plan_import([path], id, home=home)
    except UnknownLayout as e:  # the options that its hint names are those of an import
        if e.folders:
            named = " ".join(shlex.quote(str(folder)) for folder in e.folders)
            raise UnknownLayout(e.message, hint=f"rlds view {named}") from e
        hint = f"{e.hint}; options are those of rlds import {path} --name {id}" if e.hint else None
        raise UnknownLayout(e.message, hint=hint) from e
    kept = planned.bytes if any(f.kind != "array" for f in planned.fields) else 0  # images and videos, as they are
    size = planned.bytes if planned.array_bytes is None else planned.array_bytes + kept
    own = homes.Home(settings.read(home).home)
    work = ids.parse(f"local/view-{secrets.token_hex(4)}")
    temporary = own.partial(work, "view")
    out.note(f"{path} is imported into {temporary}, about {text.size_of(size)}, which is removed at the end")
    with homes.exclusive(own, work, silent):
        safe_files.directory(temporary, own.root)
        try:
            with out.progress() as progress:
                ds = import_files([path], id, home=temporary, progress=progress)
            yield ds
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _name(path: Path, names: set[str]) -> str:
    """Return a name for files that is not taken: what an id can hold of theirs, and of the folders that they are in."""
    parts = [path.stem, *(folder.name for folder in path.absolute().parents)]
    for count in range(1, len(parts) + 1):
        text = "-".join(reversed(parts[:count])).lower()
        kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in text)
        name = kept.strip("-_")[-60:].strip("-_") or "files"
        if name not in names:
            break
    names.add(name)
    return name
