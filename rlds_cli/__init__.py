"""Offline-RL datasets: verified downloads, one TED cache, parallel preprocessing, a fast loader.

>>> import rlds_cli
>>> ds = rlds_cli.download("d4rl/hopper-medium-v2")  # doctest: +SKIP

Importing this module imports nothing heavy; each name is loaded when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `python -m rlds_cli` runs this before it forgets the current directory: nothing is imported

if TYPE_CHECKING:
    from typing import Any

    from rlds_cli import archives as archives
    from rlds_cli import checks as checks
    from rlds_cli import errors as errors
    from rlds_cli import exports as exports
    from rlds_cli import formats as formats
    from rlds_cli import importing as importing
    from rlds_cli import interop as interop
    from rlds_cli import loader as loader
    from rlds_cli import preprocess as preprocess
    from rlds_cli import report as report
    from rlds_cli import ted as ted
    from rlds_cli.checks.run import check as check
    from rlds_cli.convert.appending import append as append
    from rlds_cli.convert.cameras import Frames as Frames
    from rlds_cli.convert.cameras import Video as Video
    from rlds_cli.convert.create import create as create
    from rlds_cli.convert.merging import merge as merge
    from rlds_cli.convert.writer import Writer as Writer
    from rlds_cli.convert.writer import writer as writer
    from rlds_cli.dataset import Dataset as Dataset
    from rlds_cli.dataset import batch as batch
    from rlds_cli.dataset import open_dataset as open_dataset
    from rlds_cli.downloads import published as published
    from rlds_cli.downloads.download import download as download
    from rlds_cli.downloads.loading import load as load
    from rlds_cli.exports.exporting import export as export
    from rlds_cli.formats import mp4 as mp4
    from rlds_cli.growing.retention import Fifo as Fifo
    from rlds_cli.growing.retention import Reservoir as Reservoir
    from rlds_cli.growing.retention import Top as Top
    from rlds_cli.home.locate import find as find
    from rlds_cli.importing import import_files as import_files
    from rlds_cli.interop.record import Record as Record
    from rlds_cli.loader.loader import Loader as Loader
    from rlds_cli.maintenance.pinning import lock as lock
    from rlds_cli.maintenance.pinning import sync as sync
    from rlds_cli.maintenance.verification import verify as verify
    from rlds_cli.report.inspecting import inspect as inspect
    from rlds_cli.sharing.indexing import index as index
    from rlds_cli.sharing.mirroring import mirror as mirror
    from rlds_cli.sharing.pushing import push as push

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
    "push",
    "sync",
    "verify",
    "writer",
]

_HOMES = {
    "Dataset": "rlds_cli.dataset",
    "Fifo": "rlds_cli.growing.retention",
    "Frames": "rlds_cli.convert.cameras",
    "Loader": "rlds_cli.loader.loader",
    "Record": "rlds_cli.interop.record",
    "Reservoir": "rlds_cli.growing.retention",
    "Top": "rlds_cli.growing.retention",
    "Video": "rlds_cli.convert.cameras",
    "Writer": "rlds_cli.convert.writer",
    "append": "rlds_cli.convert.appending",
    "check": "rlds_cli.checks.run",
    "create": "rlds_cli.convert.create",
    "download": "rlds_cli.downloads.download",
    "export": "rlds_cli.exports.exporting",
    "find": "rlds_cli.home.locate",
    "import_files": "rlds_cli.importing",
    "index": "rlds_cli.sharing.indexing",
    "inspect": "rlds_cli.report.inspecting",
    "load": "rlds_cli.downloads.loading",
    "lock": "rlds_cli.maintenance.pinning",
    "merge": "rlds_cli.convert.merging",
    "mirror": "rlds_cli.sharing.mirroring",
    "open_dataset": "rlds_cli.dataset",
    "push": "rlds_cli.sharing.pushing",
    "sync": "rlds_cli.maintenance.pinning",
    "verify": "rlds_cli.maintenance.verification",
    "writer": "rlds_cli.convert.writer",
}
# at hand without an import of their own
_MODULES = {
    "archives": "rlds_cli.archives",
    "batch": "rlds_cli.dataset.batch",
    "checks": "rlds_cli.checks",
    "errors": "rlds_cli.errors",
    "exports": "rlds_cli.exports",
    "formats": "rlds_cli.formats",
    "importing": "rlds_cli.importing",
    "interop": "rlds_cli.interop",
    "loader": "rlds_cli.loader",
    "mp4": "rlds_cli.formats.mp4",
    "preprocess": "rlds_cli.preprocess",
    "published": "rlds_cli.downloads.published",
    "report": "rlds_cli.report",
    "ted": "rlds_cli.ted",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__", "__doc__"})
