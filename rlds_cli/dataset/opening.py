"""What a reference names: a dataset in a home, in a directory, or at an address."""

from __future__ import annotations

from rlds_cli import home, settings
from rlds_cli.growing.opening import open_store
from rlds_cli.home import locate
from rlds_cli.refs import Ref
from rlds_cli.remote import origins
from rlds_cli.remote.versions import NAME as PUSHED
from rlds_cli.settings import StrPath
from rlds_cli.sources import addresses
from rlds_cli.sources.addresses import Address
from rlds_cli.store.opening import Store


def open_at(
    ref: Ref,
    cache_dir: StrPath | None = None,
    *,
    cache: int | str | None = None,
    timeout: float | None = None,
    fill: bool = True,
) -> Store:
    """Open what a reference names, here or at an address; see `rlds_cli.dataset.open_dataset`."""
    where = settings.read(cache_dir)
    here = origins.find(str(ref), where) if addresses.is_address(ref.place) else None
    if here is not None:
        return open_store(here, ref)
    if remote_address(ref) is None:
        return open_store(locate.locate(ref.place, cache_dir), ref)
    from rlds_cli.remote.store import open_remote

    return open_remote(str(ref), where, cache=cache, timeout=timeout, fill=fill)


def remote_address(ref: Ref) -> Address | None:
    """Return the address at which a reference is opened; None for an id, and for the directory of a dataset.

    The directory of a dataset that has an index is opened as what it is, unless the reference names a version, or is
    written as ``file://``. Raises as `address_of`.
    """
    address = address_of(ref)
    is_here = address is not None and address.scheme == "file" and home.is_dataset(address.directory)
    return None if is_here and ref.selector is None and not _is_url(ref) else address


def address_of(ref: Ref) -> Address | None:
    """Return the address that a reference names; None for an id, and for a directory without an index.

    A directory is an address if a dataset was pushed to it or indexed in it, or if it is written as ``file://``.

    Raises
    ------
    InvalidId
        It has a scheme, and is not an address.
    """
    if not addresses.is_address(ref.place):
        return None
    address = addresses.parse(str(ref))
    has_index = address.scheme != "file" or _is_url(ref) or (address.directory / PUSHED).is_file()
    return address if has_index else None


def _is_url(ref: Ref) -> bool:
    return str(ref).lower().startswith("file:")
