"""Make datasets: from values in Python, from files of a user, from archives of the registry, and from other datasets.

`create` takes episodes, and `writer` opens a `Writer`, for `Frames` and `Video`, too; `record` has environments that
write what happens in them. `import_files` and `append` read files of a user; `plan_import` and `plan_append` say what
would come of them. `merge` joins datasets, which are `MERGED` then. `download` fetches what the registry or an address
names, and `load` only what is not here; `deliver` does it by a `DownloadRequest`, after `plan_download`. `fetch_again`
fetches files of an archive alone, and `mirror` copies archives of the registry to a store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.make.convert.appending import append as append
    from rlds_cli.make.convert.appending import plan_append as plan_append
    from rlds_cli.make.convert.cameras import Frames as Frames
    from rlds_cli.make.convert.cameras import Video as Video
    from rlds_cli.make.convert.create import create as create
    from rlds_cli.make.convert.merging import MERGED as MERGED
    from rlds_cli.make.convert.merging import merge as merge
    from rlds_cli.make.convert.merging import plan_merge as plan_merge
    from rlds_cli.make.convert.writer import writer as writer
    from rlds_cli.make.downloads.again import fetch_again as fetch_again
    from rlds_cli.make.downloads.download import deliver as deliver
    from rlds_cli.make.downloads.download import download as download
    from rlds_cli.make.downloads.download import expand_refs as expand_refs
    from rlds_cli.make.downloads.download import plan_download as plan_download
    from rlds_cli.make.downloads.download import reading_options as reading_options
    from rlds_cli.make.downloads.fetch.planning import remembered as remembered
    from rlds_cli.make.downloads.loading import load as load
    from rlds_cli.make.downloads.mirroring import mirror as mirror
    from rlds_cli.make.downloads.request import DownloadRequest as DownloadRequest
    from rlds_cli.make.importing import import_files as import_files
    from rlds_cli.make.importing import is_recognised as is_recognised
    from rlds_cli.make.importing import plan_import as plan_import
    from rlds_cli.make.importing import read_mapping as read_mapping

__all__ = [
    "DownloadRequest",
    "Frames",
    "MERGED",
    "Video",
    "append",
    "create",
    "deliver",
    "download",
    "expand_refs",
    "fetch_again",
    "import_files",
    "is_recognised",
    "load",
    "merge",
    "mirror",
    "plan_append",
    "plan_download",
    "plan_import",
    "plan_merge",
    "read_mapping",
    "reading_options",
    "remembered",
    "writer",
]

lazy(
    __name__,
    {
        "convert.appending": "append plan_append",
        "convert.cameras": "Frames Video",
        "convert.create": "create",
        "convert.merging": "MERGED merge plan_merge",
        "convert.writer": "writer",
        "downloads.again": "fetch_again",
        "downloads.download": "deliver download expand_refs plan_download reading_options",
        "downloads.fetch.planning": "remembered",
        "downloads.loading": "load",
        "downloads.mirroring": "mirror",
        "downloads.request": "DownloadRequest",
        "importing": "import_files is_recognised plan_import read_mapping",
    },
)
