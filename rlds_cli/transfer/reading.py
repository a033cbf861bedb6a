"""A small document of a source, read into memory."""

from __future__ import annotations

from rlds_cli import sizes
from rlds_cli.transfer.client import Client, Refused

LONGEST = 64 << 20  # bytes


def body(client: Client, url: str) -> bytes:
    """What a URL answers, asked for with patience; raises Refused, also over more than 64 MiB."""

    def ask() -> bytes:
        with client.open(url) as response:
            parts, total = [], 0
            for block in client.blocks(response):
                parts.append(block)
                total += len(block)
                if total > LONGEST:
                    raise Refused(f"the answer has more than {sizes.text(LONGEST)}")
            return b"".join(parts)

    return client.persist(ask)
