"""Choose the kind of store for an address."""

from __future__ import annotations

from rlds_cli.errors import Offline
from rlds_cli.http.client import RetryPolicy
from rlds_cli.remote.addresses import Address
from rlds_cli.remote.objects import Objects
from rlds_cli.settings import Settings


def open_objects(address: Address, where: Settings, *, policy: RetryPolicy | None = None) -> Objects:
    """Return the files below an address; nothing is asked for yet.

    Raises
    ------
    Offline
        The address is of the network, which must not be used.
    MissingPackage
        A package for this kind of store is not installed.
    """
    if address.scheme == "file":
        from rlds_cli.remote.directory import DirectoryObjects

        return DirectoryObjects(address, where, policy=policy)
    if where.offline:
        raise Offline(
            f"{address} is on the network, which is off (RLDS_OFFLINE or --offline).",
            hint="an address that is a directory works without",
        )
    if address.scheme in ("s3", "gs"):
        from rlds_cli.remote.buckets import BucketObjects, SignedObjects, was_forked

        return (SignedObjects if was_forked() else BucketObjects)(address, where, policy=policy)
    if address.scheme == "hf":
        from rlds_cli.remote.hub import HubObjects

        return HubObjects(address, where, policy=policy)
    from rlds_cli.remote.web import WebObjects

    return WebObjects(address, where, policy=policy)
