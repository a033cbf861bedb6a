"""What a reference names: a dataset in a home, in a directory, or at an address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rlds_cli  # `published` is of a package above: its name is loaded when it is used
from rlds_cli import homes
from rlds_cli.base import refs, settings
from rlds_cli.base.refs import Ref
from rlds_cli.base.settings import StrPath
from rlds_cli.store import Store, open_store

if TYPE_CHECKING:
    from rlds_cli.places import Address, Published
    from rlds_cli.places.remote.listing import Listing


def open_at(
    ref: Ref,
    home: StrPath | None = None,
    *,
    cache: int | str | None = None,
    timeout: float | None = None,
    fill: bool = True,
) -> Store:
    """Open what a reference names, here or at an address; see `rlds_cli.dataset.open_dataset`."""
    where = settings.read(home)
    if not refs.is_address(ref.place):
        return open_store(homes.locate(ref.place, where), ref)
    from rlds_cli.places import Origins

    here = Origins.find(str(ref), where)
    if here is not None or remote_address(ref) is None:
        return open_store(here or homes.locate(ref.place, where), ref)
    from rlds_cli.places import open_remote

    def prepare(address: Address) -> Published:
        return rlds_cli.published.prepare(address, home=where.home)

    return open_remote(str(ref), where, cache=cache, timeout=timeout, fill=fill, prepare=prepare)


def listed_at(ref: StrPath, *, home: StrPath | None = None) -> Listing:
    """List the dataset at an address, else those in directories directly below it; raises as `places.datasets_at`."""
    from rlds_cli.places import Address, datasets_at

    return datasets_at(Address.parse(ref), settings.read(home))


def remote_address(ref: Ref) -> Address | None:
    """Return the address at which a reference is opened; None for an id, and for the directory of a dataset.

    The directory of a dataset that has an index is opened as what it is, unless the reference names a version, or is
    written as ``file://``. Raises as `address_of`.
    """
    if not refs.is_address(ref.place):
        return None
    from rlds_cli.places import Address

    address = Address.parse(str(ref))
    is_here = address.scheme == "file" and homes.is_dataset(address.directory)
    return None if is_here and ref.selector is None and not _is_url(ref) else address_of(ref)


def address_of(ref: Ref) -> Address | None:
    """Return the address that a reference names; None for an id, and for a directory without an index.

    A directory is an address if a dataset was pushed to it or indexed in it, or if it is written as ``file://``.

    Raises
    ------
    InvalidId
        It has a scheme, and is not an address.
    """
    if not refs.is_address(ref.place):
        return None
    from rlds_cli.places import Address, Versions

    address = Address.parse(str(ref))
    has_index = address.scheme != "file" or _is_url(ref) or (address.directory / Versions.NAME).is_file()
    return address if has_index else None


def _is_url(ref: Ref) -> bool:
    return str(ref).lower().startswith("file:")
