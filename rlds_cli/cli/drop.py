"""``rlds drop``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app
from rlds_cli.errors import InvalidArgument

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


@app.command("drop")
def drop(
    id: options.Here,
    where: options.Where = None,
    split: options.Split = None,
    episodes: options.Episodes = None,
    name: options.NewName = None,
    force: options.Force = False,
    copy: options.Copy = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Leave episodes out of a dataset. Earlier versions have them, and their rows stay on the disk.

    A dataset of the registry is not changed in its place: --name makes ID@NAME.

    Example: rlds drop local/day1 --where "quality == 'bad'"
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.cli import selecting

    if where is None and split is None and episodes is None:
        raise InvalidArgument("Which episodes?", hint="--where, --split or --episodes")

    def change() -> tuple[Dataset, Dataset]:
        ds = selecting.selected(id, where=where, split=split, episodes=episodes, home=home)
        return ds, ds.drop(name=name, force=force, copy=copy, home=home)

    out.new_version(selecting.on_newest(id, change, numbered=episodes is not None)[1])
