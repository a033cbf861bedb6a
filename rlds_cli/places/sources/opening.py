"""Choose the kind of source for an address."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from rlds_cli.base.http.client import Client, RetryPolicy
from rlds_cli.base.progress import Event, Progress, silent
from rlds_cli.base.settings import Settings
from rlds_cli.errors import Offline
from rlds_cli.places.sources import objects
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.objects import Objects
from rlds_cli.places.sources.place import Place

_QUIET = 5.0  # seconds after a note about a wait in which other threads wait for the same, as a rule


def open_objects(
    address: Address, where: Settings, *, policy: RetryPolicy | None = None, progress: Progress = silent
) -> Objects:
    """Return the files below an address; nothing is asked for yet.

    ``progress`` receives a note when a transfer waits, and after which failure.

    Raises
    ------
    Offline
        The address is of the network, which must not be used.
    MissingPackage
        A package for this kind of source is not installed.
    """
    if where.offline and address.scheme != "file":
        raise Offline(
            f"{address} is on the network, which is off (RLDS_OFFLINE or --offline).",
            hint="an address that is a directory works without",
        )
    policy = replace(policy or objects.POLICY, told=_notes(address, progress))
    return Objects(place_at(address, Client(where, policy=policy)))


def _notes(address: Address, progress: Progress) -> Callable[[str], None]:
    """Return a function that passes notes on, but not one for each thread that waits."""
    lock, last = threading.Lock(), -_QUIET

    def told(note: str) -> None:
        nonlocal last
        with lock:
            if time.monotonic() - last < _QUIET:
                return
            last = time.monotonic()
        progress(Event(str(address), "note", note=note))

    return told


def place_at(address: Address, client: Client) -> Place:
    """Return the source for an address; raises MissingPackage."""
    if address.scheme == "file":
        from rlds_cli.places.sources.directory import DirectoryPlace

        return DirectoryPlace(address, client)
    if address.scheme in ("s3", "gs"):
        from rlds_cli.places.sources.buckets import BucketPlace, SignedPlace, was_forked

        return (SignedPlace if was_forked() else BucketPlace)(address, client)
    if address.scheme == "hf":
        from rlds_cli.places.sources.hub import HubPlace

        return HubPlace(address, client)
    from rlds_cli.places.sources.web import WebPlace

    return WebPlace(address, client)
