"""``rlds compact``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.files.hashing import short
from rlds_cli.base.text import plural
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app

if TYPE_CHECKING:
    from rlds_cli.keep.compacting import Compacted


@app.command("compact")
def compact(
    id: options.Here,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Rewrite a dataset without the rows of episodes that left.

    Contents and fingerprint stay. Earlier versions are removed, but for those that have a tag: rlds drop hides
    episodes, and this removes them. Rows that are stored in another dataset are copied. In a growing dataset,
    readers keep the version that they opened.

    Example: rlds compact local/run7
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import keep

    done = keep.compact(id, home=home)
    out.result(done, _compacted(done))
    if done.waiting:
        held = plural(done.waiting, "episode")
        out.note(f"note: the rows of {held} that left wait for readers or a tag; rlds gc frees them later")


def _compacted(done: Compacted) -> str:
    if not done.changed:
        return f"{done.id}  its episodes lie end to end  {short(done.fingerprint)}"
    sizes = f"{out.size(done.bytes_before)} before, {out.size(done.bytes_after)} now"
    return f"{done.id}  version {done.version:,}  {sizes}  {short(done.fingerprint)}"
