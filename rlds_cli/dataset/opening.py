"""What a reference names: a dataset in a home, in a directory, or at an address."""

from __future__ import annotations

from rlds_cli import settings
from rlds_cli.growing.opening import open_store
from rlds_cli.home import locate
from rlds_cli.refs import Ref
from rlds_cli.remote import origins
from rlds_cli.remote.versions import NAME as PUSHED
from rlds_cli.settings import Settings, StrPath
from rlds_cli.sources import addresses
from rlds_cli.sources.addresses import Address
from rlds_cli.store.opening import Store


def open_at(
    ref: Ref, cache_dir: StrPath | None = None, *, cache: int | str | None = None, timeout: float | None = None
) -> Store:
    """Open what a reference names, here or at an address; see `rlds_cli.dataset.open_dataset`."""
    where = settings.read(cache_dir)
    here = origins.find(str(ref), where) if addresses.is_address(ref.place) else None
    if here is not None:
        return open_store(here, ref)
    if remote_address(ref, where) is None:
        return open_store(locate.locate(ref.place, cache_dir), ref)
    from rlds_cli.remote.store import open_remote

    return open_remote(str(ref), where, cache=cache, timeout=timeout)


def remote_address(ref: Ref, where: Settings) -> Address | None:
    """Return the address that a reference names; None for an id, and for the directory of a dataset.

    A directory is an address if a dataset was pushed to it, or if it is written as ``file://``.

    Raises
    ------
    InvalidId
        It has a scheme, and is not an address.
    """
    if not addresses.is_address(ref.place):
        return None
    address = addresses.parse(ref.place)
    written = str(ref).lower().startswith("file:")
    if address.scheme == "file" and not written and not (address.directory / PUSHED).is_file():
        return None
    return addresses.parse(str(ref))
