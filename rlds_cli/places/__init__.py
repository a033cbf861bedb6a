"""Places that files are read from and written to: web servers, the hub, buckets, directories.

`open_objects` opens what was pushed to an `Address`; a `Body` is written there, unless somebody has `Overtaken` the
writer.

`as_url` says what a URL of an archive names, and asks its place for the files, unless it leaves that `Unanswered`; URLs
of `network_schemes` mean the same on every machine. A `FileDownload` brings a `RemoteFile` to the disk, and a
`FileRecord` beside it says where it came from.

`open_remote` opens a dataset at an address. A `Pull` brings it into a home. `datasets_at` lists those at an address. A
`Published` dataset is one of LeRobot on the hub, prepared to be read there. `Origins` are the addresses that a dataset
of a home came from or was pushed to. A `RemoteDirectory` holds in a home what was read at an address.

What was pushed is a format: `Versions` of a dataset, an `Index` of each, and objects whose parts of `BLOCK` and `GROUP`
bytes have hashes. A `PushedDataset` reads it; a `Hasher` and an `IndexBuilder` make it.

`sources` has a class for each kind of place, the engine `transfer` that brings bytes from it, and `objects`, which
tries again; `urls` a class for each kind of URL. `files` brings one file of an archive to the disk, with connections
side by side. `remote` has datasets at an address: the format
(`index`, `versions`, `blocks`, `building`), reading it (`store`, `files`, `cache`, `flights`, `filling`, `proving`),
bringing all of it (`pulling`), and what of it is on this disk (`leases`, `origins`, `presence`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.places.files.file_download import FileDownload as FileDownload
    from rlds_cli.places.files.records import FileRecord as FileRecord
    from rlds_cli.places.files.remote_file import RemoteFile as RemoteFile
    from rlds_cli.places.remote.blocks import BLOCK as BLOCK
    from rlds_cli.places.remote.blocks import GROUP as GROUP
    from rlds_cli.places.remote.building import Hasher as Hasher
    from rlds_cli.places.remote.building import IndexBuilder as IndexBuilder
    from rlds_cli.places.remote.index import Index as Index
    from rlds_cli.places.remote.leases import RemoteDirectory as RemoteDirectory
    from rlds_cli.places.remote.listing import datasets_at as datasets_at
    from rlds_cli.places.remote.origins import Origins as Origins
    from rlds_cli.places.remote.published import Published as Published
    from rlds_cli.places.remote.pulling import Pull as Pull
    from rlds_cli.places.remote.reading import PushedDataset as PushedDataset
    from rlds_cli.places.remote.store import open_remote as open_remote
    from rlds_cli.places.remote.versions import Versions as Versions
    from rlds_cli.places.sources.addresses import Address as Address
    from rlds_cli.places.sources.opening import open_objects as open_objects
    from rlds_cli.places.sources.place import Body as Body
    from rlds_cli.places.sources.place import Overtaken as Overtaken
    from rlds_cli.places.urls.kinds import as_url as as_url
    from rlds_cli.places.urls.kinds import network_schemes as network_schemes
    from rlds_cli.places.urls.url import Unanswered as Unanswered

__all__ = [
    "BLOCK",
    "GROUP",
    "Address",
    "Body",
    "FileDownload",
    "FileRecord",
    "Hasher",
    "Index",
    "IndexBuilder",
    "Origins",
    "Overtaken",
    "Published",
    "Pull",
    "PushedDataset",
    "RemoteDirectory",
    "RemoteFile",
    "Unanswered",
    "Versions",
    "as_url",
    "datasets_at",
    "network_schemes",
    "open_objects",
    "open_remote",
]

lazy(
    __name__,
    {
        "files.file_download": "FileDownload",
        "files.records": "FileRecord",
        "files.remote_file": "RemoteFile",
        "remote.blocks": "BLOCK GROUP",
        "remote.building": "Hasher IndexBuilder",
        "remote.index": "Index",
        "remote.leases": "RemoteDirectory",
        "remote.listing": "datasets_at",
        "remote.origins": "Origins",
        "remote.published": "Published",
        "remote.pulling": "Pull",
        "remote.reading": "PushedDataset",
        "remote.store": "open_remote",
        "remote.versions": "Versions",
        "sources.addresses": "Address",
        "sources.opening": "open_objects",
        "sources.place": "Body Overtaken",
        "urls.kinds": "as_url network_schemes",
        "urls.url": "Unanswered",
    },
)
