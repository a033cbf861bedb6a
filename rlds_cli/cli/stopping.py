"""What a command says when it is interrupted: what is kept, and how to go on."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from rlds_cli import sizes
from rlds_cli.cli import out

if TYPE_CHECKING:
    from rlds_cli.delivery.deliveries import Deliveries

_INTERRUPTED = 130


@contextmanager
def told(planned: Deliveries) -> Iterator[None]:
    """Turn Ctrl-C into a line about what was planned, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        out.note(f"stopped. {_kept(planned)} Go on with:  {_command()}")
        raise typer.Exit(_INTERRUPTED) from None


@contextmanager
def going_on() -> Iterator[None]:
    """Turn Ctrl-C into the command that goes on, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        out.note(f"stopped. Go on with:  {_command()}")
        raise typer.Exit(_INTERRUPTED) from None


def _command() -> str:
    return shlex.join(["rlds", *sys.argv[1:]])


def _kept(planned: Deliveries) -> str:
    from rlds_cli import ids
    from rlds_cli.delivery import pending
    from rlds_cli.home import Home, is_dataset

    place = Home(planned.home)
    wanted = [ids.parse(d.id) for d in planned.datasets if d.here is None]
    ready = [id for id in wanted if is_dataset(place.dataset(id))]
    kept = [sizes.plural(len(ready), "dataset")] if ready else []
    for id in wanted:
        size = 0 if id in ready else pending.left(id, place)
        kept += [f"{sizes.text(size)} of {id}"] if size else []
    return f"Kept: {', '.join(kept)}." if kept else "Nothing had come yet."
