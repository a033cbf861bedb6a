"""What may be decided on a dataset, and what may come of it, before anybody begins."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rlds_cli import homes
from rlds_cli.base import ids
from rlds_cli.dataset.fixed import OpenDataset
from rlds_cli.homes import Home
from rlds_cli.store import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What decisions on a dataset may become.

    Attributes
    ----------
    decide : bool
        Whether decisions on it are kept.
    version : bool
        Whether they may become its next version; otherwise ``ID@NAME`` alone.
    why : str
        What is not allowed, in words; empty if all is.
    """

    decide: bool
    version: bool
    why: str = ""


def allowed(ds: OpenDataset, where: Home) -> Allowed:
    """Return what may be decided on a dataset, with decisions that are kept in a home."""
    id, address = ids.parse(ds.id), ds.store.address
    if ds.is_selection:
        why = "These are some episodes of a dataset; decisions are kept where all of it is shown."
    elif address:
        why = f"This dataset is read at an address; rlds download {address} makes one here, on which one can decide."
    elif ds.path.is_relative_to(where.root / "partial"):
        why = "These are files that are imported for as long as you look; rlds import makes a dataset of them."
    else:
        why = _not_in_place(ds, homes.is_published(id, derived=bool(ds.manifest.provenance)))
        return Allowed(decide=True, version=not why, why=why)
    return Allowed(decide=False, version=False, why=why)


def _not_in_place(ds: OpenDataset, published: bool) -> str:
    if published:
        return f"{ds.id} is a dataset of the registry: it stays as it is."
    newest = History.of(ds.path).path
    if not any(place.dataset(ids.parse(ds.id)) == newest for place in map(Home, newest.parents)):
        return f"{newest} is not in a home, where its earlier versions would be kept."
    if not os.access(newest.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        return f"{newest} is not yours to change."
    return ""
