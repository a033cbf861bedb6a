"""Choose the kind of source for an address."""

from __future__ import annotations

from rlds_cli.errors import Offline
from rlds_cli.http.client import Client, RetryPolicy
from rlds_cli.settings import Settings
from rlds_cli.sources.addresses import Address
from rlds_cli.sources.objects import POLICY, Objects
from rlds_cli.sources.source import Source


def open_objects(address: Address, where: Settings, *, policy: RetryPolicy | None = None) -> Objects:
    """Return the files below an address; nothing is asked for yet.

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
    return Objects(source_at(address, Client(where, policy=policy or POLICY)))


def source_at(address: Address, client: Client) -> Source:
    """Return the source for an address; raises MissingPackage."""
    if address.scheme == "file":
        from rlds_cli.sources.directory import DirectorySource

        return DirectorySource(address, client)
    if address.scheme in ("s3", "gs"):
        from rlds_cli.sources.buckets import BucketSource, SignedSource, was_forked

        return (SignedSource if was_forked() else BucketSource)(address, client)
    if address.scheme == "hf":
        from rlds_cli.sources.hub import HubSource

        return HubSource(address, client)
    from rlds_cli.sources.web import WebSource

    return WebSource(address, client)
