"""Options that mean the same in every command, and the shell's completion of ids."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


def complete_id(incomplete: str) -> list[str]:
    """Complete an id: datasets in a home first, then those that can be downloaded."""
    from rlds_cli import homes

    present = complete_here(incomplete)
    known = [e.id for e in homes.find() if e.status == "open"]
    return [i for i in dict.fromkeys((*present, *known)) if i.lower().startswith(incomplete.lower())]


def complete_here(incomplete: str) -> list[str]:
    """Complete the id of a dataset in a home, for commands that need one."""
    from rlds_cli import homes
    from rlds_cli.base import settings

    present = sorted({str(id) for found in homes.here(settings.read()).values() for id, _ in found})
    return [i for i in present if i.lower().startswith(incomplete.lower())]


class Encoding(StrEnum):
    """The storage of arrays."""

    memmap = "memmap"
    zarr = "zarr"


Here = Annotated[str, typer.Argument(metavar="ID", help="A dataset on this disk.", autocompletion=complete_here)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no notes.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print more details.")]
Home = Annotated[Path | None, typer.Option("--home", help="Use this home instead of RLDS_HOME.", show_default=False)]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=0, help="Number of worker processes; 0 starts none.", show_default=False),
]
Storage = Annotated[
    Encoding, typer.Option("--storage", help="Storage of arrays: memory-mapped files, or compressed Zarr.")
]
Frames = Annotated[
    str,
    typer.Option(
        "--frames",
        metavar="encoded|raw|jpeg|png|HxW",
        help="Keep images as published, or decode them, or encode raw ones, or decode and resize them.",
    ),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out files that cannot be read, and list them.")]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace an existing dataset and its versions, unless it has tags."),
]
Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="FIELD=KEY|FILE",
        help="Read FIELD from KEY: a name, a pattern (data/*/act, obs_*) or a list ([x, y]); or such pairs from a JSON "
        "or TOML file.",
    ),
]
EpisodesBy = Annotated[
    str | None,
    typer.Option(
        "--episodes-by",
        metavar="RULE",
        help="How episodes are divided: flags, timeouts, jumps, field:KEY, steps:KEY, starts:KEY or file.",
    ),
]
LastStep = Annotated[
    str | None,
    typer.Option("--last-step", metavar="action|observation", help="Content of the last step of an RLDS episode."),
]
Rewards = Annotated[
    str | None,
    typer.Option(
        "--rewards",
        metavar="action|arrive",
        help="The reward and flags of a row belong to its action, or arrive a row after it (dm_env).",
        show_default=False,
    ),
]
Missing = Annotated[
    str | None,
    typer.Option(
        "--missing",
        metavar="fill|drop|refuse",
        help="What becomes of a field that some files, episodes or rows lack: NaN, 0, False or no text there; the "
        "dataset goes without it; or an error.",
        show_default="refuse",
    ),
]
Topics = Annotated[
    str | None,
    typer.Option("--topics", metavar="A,B", help="Topics of a recording, or patterns of them.", show_default=False),
]
Hz = Annotated[
    float | None,
    typer.Option("--hz", help="Steps per second of a recording; else one for each action.", show_default=False),
]
Nearest = Annotated[
    bool | None,
    typer.Option(
        "--nearest/--latest",
        help="A step has the nearest message of each topic, or the latest one.",
        show_default="latest",
    ),
]
EpisodeInfo = Annotated[
    str | None,
    typer.Option(
        "--episode-info",
        metavar="PATTERN",
        help="Files that describe episodes: 'labels/*.json', where * is the name or the number of one.",
        show_default=False,
    ),
]
Reader = Annotated[
    str | None,
    typer.Option(
        "--reader",
        metavar="NAME|FILE.py[:NAME]",
        help="Read the files with this reader: one of rlds, of an installed package, or of a Python file of yours.",
        show_default=False,
    ),
]
Facts = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A fact of the dataset: fps, license, description or depth_unit.",
        show_default=False,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and do nothing.")]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help='Episodes whose columns fulfil it, such as "success and task == \'cube\'" or "return > quantile(return, '
        "0.9)\". Backquotes enclose a name that is not a word: '`success rate` > 0.5'.",
        show_default=False,
    ),
]
Split = Annotated[str | None, typer.Option("--split", metavar="NAME", help="Episodes of a split.", show_default=False)]
Episodes = Annotated[
    str | None,
    typer.Option("--episodes", metavar="3,7,10-19", help="Episodes by number, from 0.", show_default=False),
]
NewName = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Make ID@NAME instead.", show_default=False)
]
Copy = Annotated[bool, typer.Option("--copy", help="Copy rows of another disk or user, instead of referring to them.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")]
