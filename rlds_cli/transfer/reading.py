"""A small document of a source, read into memory."""

from __future__ import annotations

from rlds_cli.transfer.client import Client


def body(client: Client, url: str) -> bytes:
    """What a URL answers, asked for with patience; raises Refused, also over more than 64 MiB."""
    return client.document(url)[0]
