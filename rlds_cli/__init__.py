"""Offline-RL datasets: verified downloads, one TED cache, parallel preprocessing, a fast loader.

>>> import rlds_cli
>>> ds = rlds_cli.download("d4rl/hopper-medium-v2")  # doctest: +SKIP

Importing this module imports nothing heavy; each name is loaded when it is first used.
"""

from __future__ import annotations

from rlds_cli.aliases import MODULES, Aliases

TYPE_CHECKING = (
    False  # `python -m rlds_cli` runs this before it forgets the current directory: nothing else is imported
)

if TYPE_CHECKING:
    from typing import Any

    from rlds_cli import archives as archives
    from rlds_cli import errors as errors
    from rlds_cli import loader as loader
    from rlds_cli import preprocess as preprocess
    from rlds_cli import ted as ted
    from rlds_cli import view as view
    from rlds_cli.archives import dropins as interop  # noqa: F401
    from rlds_cli.archives import formats as formats
    from rlds_cli.archives.exports.exporting import export as export
    from rlds_cli.archives.exports.exporting import plan_export as plan_export
    from rlds_cli.base.media import mp4 as mp4
    from rlds_cli.dataset import Dataset as Dataset
    from rlds_cli.dataset import batch as batch
    from rlds_cli.dataset import open_dataset as open_dataset
    from rlds_cli.homes import find as find
    from rlds_cli.keep import lock as lock
    from rlds_cli.keep import sync as sync
    from rlds_cli.keep import verify as verify
    from rlds_cli.loader.loader import Loader as Loader
    from rlds_cli.look import check as check
    from rlds_cli.look import inspect as inspect
    from rlds_cli.look import measures as measures
    from rlds_cli.look import report as report
    from rlds_cli.make.convert.appending import append as append
    from rlds_cli.make.convert.cameras import Frames as Frames
    from rlds_cli.make.convert.cameras import Video as Video
    from rlds_cli.make.convert.create import create as create
    from rlds_cli.make.convert.merging import merge as merge
    from rlds_cli.make.convert.writer import Writer as Writer
    from rlds_cli.make.convert.writer import writer as writer
    from rlds_cli.make.downloads import published as published
    from rlds_cli.make.downloads.download import download as download
    from rlds_cli.make.downloads.loading import load as load
    from rlds_cli.make.downloads.mirroring import mirror as mirror
    from rlds_cli.make.importing import import_files as import_files
    from rlds_cli.make.record import Record as Record
    from rlds_cli.share import index as index
    from rlds_cli.share import push as push
    from rlds_cli.store.growing.retention import Fifo as Fifo
    from rlds_cli.store.growing.retention import Reservoir as Reservoir
    from rlds_cli.store.growing.retention import Top as Top

__version__ = "0.1.0"

__all__ = [
    "Dataset",
    "Fifo",
    "Frames",
    "Loader",
    "Record",
    "Reservoir",
    "Top",
    "Video",
    "Writer",
    "append",
    "check",
    "create",
    "download",
    "export",
    "find",
    "import_files",
    "index",
    "inspect",
    "load",
    "lock",
    "merge",
    "mirror",
    "open_dataset",
    "plan_export",
    "push",
    "sync",
    "verify",
    "writer",
]

_HOMES = {
    "Dataset": "rlds_cli.dataset",
    "Fifo": "rlds_cli.store.growing.retention",
    "Frames": "rlds_cli.make.convert.cameras",
    "Loader": "rlds_cli.loader.loader",
    "Record": "rlds_cli.make.record",
    "Reservoir": "rlds_cli.store.growing.retention",
    "Top": "rlds_cli.store.growing.retention",
    "Video": "rlds_cli.make.convert.cameras",
    "Writer": "rlds_cli.make.convert.writer",
    "append": "rlds_cli.make.convert.appending",
    "check": "rlds_cli.look",
    "create": "rlds_cli.make.convert.create",
    "download": "rlds_cli.make.downloads.download",
    "export": "rlds_cli.archives.exports.exporting",
    "find": "rlds_cli.homes",
    "import_files": "rlds_cli.make.importing",
    "index": "rlds_cli.share",
    "inspect": "rlds_cli.look",
    "load": "rlds_cli.make.downloads.loading",
    "lock": "rlds_cli.keep",
    "merge": "rlds_cli.make.convert.merging",
    "mirror": "rlds_cli.make",
    "open_dataset": "rlds_cli.dataset",
    "plan_export": "rlds_cli.archives.exports.exporting",
    "push": "rlds_cli.share",
    "sync": "rlds_cli.keep",
    "verify": "rlds_cli.keep",
    "writer": "rlds_cli.make.convert.writer",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in MODULES:
        return import_module(MODULES[name])
    if name not in _HOMES:
        if name.startswith("_"):  # what Python and tools ask for
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from rlds_cli.base import counterparts

        raise counterparts.no_attribute(__name__, name, counterparts.MODULE)
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in MODULES if "." not in name), "__version__", "__doc__"})


Aliases.install()
