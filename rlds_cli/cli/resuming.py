"""``rlds download --resume-all``: one after the other, whatever becomes of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rlds_cli.cli import out, render, stopping
from rlds_cli.errors import ArchiveError, TransferError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlds_cli.dataset import Dataset
    from rlds_cli.delivery.orders import Order


def resume(orders: Sequence[Order], *, jobs: int, dry_run: bool) -> None:
    """Go on with each of ``orders``; exit 1 where one failed, after all of them."""
    from rlds_cli.delivery import deliveries

    if not orders:
        out.result([], "nothing to go on with")
        return
    if dry_run:
        planned = deliveries.plan(orders, guess=True)
        out.page(render.deliveries(planned), planned)
        return
    made: list[Dataset] = []
    with out.progress() as progress:
        for order in orders:
            try:
                planned = deliveries.plan([order], progress=progress)
                out.note(render.deliveries(planned))
                with stopping.told(planned):
                    made.append(deliveries.deliver(order, jobs=jobs, progress=progress))
            except (TransferError, ArchiveError) as e:  # of this one; a full disk is everybody's
                out.error(e)
    render.made(made)
    if len(made) < len(orders):
        raise typer.Exit(1)
