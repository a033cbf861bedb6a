"""Procgen episodes of the generalisation benchmark: a tar.xz of one npz per episode, streamed once.

::

    <time>_<number>_<length>_<level>_<return>.npz
        observations   [T+1, 3, 64, 64] float32, whole numbers 0 to 255   -> observation      both, uint8
        actions        [T, 1] int64                                       -> action           root
        rewards        [T, 1] float32                                     -> next/reward
        dones          [T]                                                -> next/terminated; a time limit is one, too

Environments reset themselves: the frame after a done is the first one of the next episode, in another level. It is no
final observation, and is left out. ``episodes`` reads members, ``content`` tells what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rlds_cli.archives import Archive, Part, Plan, Replan
from rlds_cli.archives.gen_dgrl import content
from rlds_cli.archives.gen_dgrl.episodes import episodes
from rlds_cli.archives.gen_dgrl.looking import cells as cells
from rlds_cli.archives.pieces import chunks
from rlds_cli.archives.tar import is_tar, members
from rlds_cli.archives.unpacking import open_unpacked
from rlds_cli.errors import RldsError, UnknownLayout
from rlds_cli.ted import Array, Chunk, Note, merge_notes

VERSION = 1


def recognise(paths: Sequence[Path]) -> str | None:
    """Procgen episodes in a tar, in one line, or None."""
    try:
        for path in paths:
            with open_unpacked(path) as stream:
                if not is_tar(stream):
                    return None
        if not paths:
            return None
        with open_unpacked(paths[0]) as stream:
            first = next((m for m in members(stream) if content.is_episode(m.name)), None)
            if first is None:
                return None
            head = first.read(len(content.NPY))
            if content.is_pickle(head):
                return f"episodes in a tar, pickled: {first.name}"
            return content.recognised(first, head)
    except RldsError:
        return None


def plan(archive: Archive) -> Plan:
    """Fields by the first episode of every file; a file is a part, and nobody knows its rows ahead.

    Raises
    ------
    UnknownLayout
        No episodes, or options that do not apply.
    UnsafeArchive
        Pickled episodes; members that are links or lie elsewhere.
    CorruptArchive
        Files that do not hold the same fields.
    """
    return _plan(archive, exact=False)


def _plan(archive: Archive, *, exact: bool) -> Plan:
    """``exact`` keeps the observations' dtype, where they are not whole numbers 0 to 255 after all."""
    if archive.fields or archive.episodes_by not in (None, "file"):
        raise UnknownLayout("Procgen's names and ends are fixed; --map and --episodes-by do not apply.")
    found = [content.layout(path, exact=exact, skip_bad=archive.skip_bad) for path in archive.files]
    for path, other in zip(archive.files, found, strict=True):
        if other.schema != found[0].schema:
            raise UnknownLayout(
                f"{path.name} does not hold the fields of {archive.files[0].name}: {other.schema}; {found[0].schema}.",
                hint="import them one by one, under names of their own",
            )
    facts = {"observations": found[0].stored, "kept": found[0].kept}
    return Plan(
        reader="gen_dgrl",
        archive=archive,
        schema=found[0].schema,
        parts=tuple(Part(None, {"file": i, "exact": exact}) for i in range(len(archive.files))),
        episodes_by="file",
        facts=facts,
    )


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """The episodes of one file, as they come.

    Raises
    ------
    CorruptArchive
        The file is damaged or breaks off; an episode is ragged. With ``skip_bad`` such an episode is left out.
    UnsafeArchive
        Members that are links, lie elsewhere, are pickled or of impossible size.
    Replan
        Observations turn out to be other than whole numbers 0 to 255: they are all kept as they are.
    """
    notes: list[Note] = []
    before: Chunk | None = None  # held back, to carry what is known at the end only
    try:
        for chunk in chunks(plan.schema, episodes(plan, int(part.args["file"]), notes)):
            if before is not None:
                yield before
            before = chunk
    except content.NotWhole as e:
        raise Replan(_plan(plan.archive, exact=True)) from e
    if before is not None:
        before.notes = (*before.notes, *merge_notes(notes))
        yield before


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Nothing that is not per row."""
    return iter(())
