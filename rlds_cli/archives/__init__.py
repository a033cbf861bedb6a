"""Formats of others: readers turn files of an archive into chunks of TED rows, writers export datasets in such formats.

`Reader` is the protocol of readers, also of those of users and packages: an `Archive` becomes a `Plan`, and the plan
chunks. `boundary` returns one of them behind a boundary. `plan_files`, `account_of`, `look_up` and `describe` ask
another process, since files of strangers may do anything; `planner` keeps it for several questions. An `Entry` of an
account is the fate of a file or of something in it. `plan_export` says what a format cannot represent, `export` writes.

`libraries` lists all: ``READERS``, ``FORMATS`` that are written, and drop-ins. A family is a module or folder of its
name. A library is a folder: `read` reads its files, `write` writes them, which `exports` drives, and `dropin` has its
functions and objects, which are `rlds_cli.interop` to users, by `dropins`. Writers and drop-ins are above readers:
they use datasets, which readers know nothing of.

Most readers declare what an engine reads: `flat` rows of many episodes end to end, `grouped` an HDF5 group for each
episode, `recordings` topics at rates of their own. `plain` reads files of a user, and finds their columns, episodes and
cameras. `formats` opens files, and knows no reinforcement learning. `planning` recognises and plans in the process that
`asking` talks to, `plugins` finds readers of others, `account` and `beside` say the fate of everything, `describing`
what other files hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.archives.account import Entry as Entry
    from rlds_cli.archives.account import recorded_account as recorded_account
    from rlds_cli.archives.asking import account_of as account_of
    from rlds_cli.archives.asking import describe as describe
    from rlds_cli.archives.asking import is_recognised as is_recognised
    from rlds_cli.archives.asking import look_up as look_up
    from rlds_cli.archives.asking import plan_again as plan_again
    from rlds_cli.archives.asking import plan_files as plan_files
    from rlds_cli.archives.asking import planner as planner
    from rlds_cli.archives.beside import WithoutData as WithoutData
    from rlds_cli.archives.beside import holds_no_data as holds_no_data
    from rlds_cli.archives.beside import is_beside as is_beside
    from rlds_cli.archives.boundary import check_name as check_name
    from rlds_cli.archives.boundary import choose as choose
    from rlds_cli.archives.boundary import reader as reader
    from rlds_cli.archives.boundary import reader_names as reader_names
    from rlds_cli.archives.boundary import recognise as recognise
    from rlds_cli.archives.exports.exporting import export as export
    from rlds_cli.archives.exports.exporting import plan_export as plan_export
    from rlds_cli.archives.libraries import FORMATS as FORMATS
    from rlds_cli.archives.libraries import READERS as READERS
    from rlds_cli.archives.openers import hdf5 as hdf5
    from rlds_cli.archives.openers import parquet as parquet
    from rlds_cli.archives.openers import zarr_stores as zarr_stores
    from rlds_cli.archives.plugins import ReaderName as ReaderName
    from rlds_cli.archives.readers import Archive as Archive
    from rlds_cli.archives.readers import ArchivedStep as ArchivedStep
    from rlds_cli.archives.readers import ArchivedValue as ArchivedValue
    from rlds_cli.archives.readers import EpisodeSummary as EpisodeSummary
    from rlds_cli.archives.readers import Part as Part
    from rlds_cli.archives.readers import Plan as Plan
    from rlds_cli.archives.readers import Reader as Reader
    from rlds_cli.archives.readers import Replan as Replan
    from rlds_cli.archives.readers import every_file as every_file
    from rlds_cli.archives.readers import no_values as no_values
    from rlds_cli.archives.recognised import answers as answers

__all__ = [
    "Archive",
    "ArchivedStep",
    "ArchivedValue",
    "Entry",
    "EpisodeSummary",
    "FORMATS",
    "Part",
    "Plan",
    "READERS",
    "Reader",
    "ReaderName",
    "WithoutData",
    "Replan",
    "account_of",
    "answers",
    "check_name",
    "choose",
    "describe",
    "every_file",
    "export",
    "holds_no_data",
    "hdf5",
    "is_beside",
    "is_recognised",
    "look_up",
    "no_values",
    "parquet",
    "plan_again",
    "plan_export",
    "plan_files",
    "planner",
    "reader",
    "reader_names",
    "recognise",
    "recorded_account",
    "zarr_stores",
]

lazy(
    __name__,
    {
        "account": "Entry recorded_account",
        "asking": "account_of describe is_recognised look_up plan_again plan_files planner",
        "beside": "WithoutData holds_no_data is_beside",
        "boundary": "check_name choose reader reader_names recognise",
        "exports.exporting": "export plan_export",
        "libraries": "FORMATS READERS",
        "openers": "hdf5 parquet zarr_stores",
        "plugins": "ReaderName",
        "readers": "Archive ArchivedStep ArchivedValue EpisodeSummary Part Plan Reader Replan every_file no_values",
        "recognised": "answers",
    },
)
