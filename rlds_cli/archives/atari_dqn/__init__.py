"""Replay logs of DQN on Atari games, as Dopamine writes them: gzip of one ``.npy`` per column and checkpoint.

::

    replay_logs/$store$_observation_ckpt.<N>.gz   [C, 84, 84] uint8, one frame a row   -> observation       both
                $store$_action_ckpt.<N>.gz        [C] int32                            -> action            root
                $store$_reward_ckpt.<N>.gz        [C] float32, clipped                 -> next/reward
                $store$_terminal_ckpt.<N>.gz      [C] uint8                            -> next/terminated
                add_count_ckpt.<N>.gz, invalid_range_ckpt.<N>.gz                       how far the log was written

C is a million. ``logs`` finds the files of each log, ``order`` the order in which rows were written, ``frames`` reads
them in that order. The frame after the end of an episode was never written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rlds_cli.archives import Archive, Part, Plan
from rlds_cli.archives.atari_dqn import logs, order
from rlds_cli.archives.atari_dqn.looking import cells as cells
from rlds_cli.archives.atari_dqn.rows import chunks
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, Array, Chunk, Field, Note

VERSION = 1

NAMES = {"observation": "observation", "action": "action", "reward": REWARD, "terminal": FLAGS[0]}
TIME_LIMIT = 27_000  # steps of four frames: half an hour of play, the runner's limit


def recognise(paths: Sequence[Path]) -> str | None:
    """Dopamine's logs in one line, or None."""
    found = {p: m for p in paths if (m := logs.NAME.fullmatch(p.name))}
    if not any(m["prefix"] and m["store"] == "observation" for m in found.values()):
        return None
    numbers = {(p.parent, int(m["number"])) for p, m in found.items()}
    runs = len({parent for parent, _ in numbers})
    return f"Dopamine replay logs: {len(numbers)} checkpoints" + (f" of {runs} runs" if runs > 1 else "")


def plan(archive: Archive) -> Plan:
    """Fields, parts and episodes. Reads actions, rewards and terminals, and the headers of frames.

    Raises
    ------
    UnknownLayout
        No logs, options that do not apply, or runs that do not hold the same columns.
    CorruptArchive
        Checkpoints that lack a column, or whose columns do not agree.
    """
    if archive.fields or archive.episodes_by not in (None, "flags"):
        raise UnknownLayout("Names and ends of Dopamine's logs are fixed; --map and --episodes-by do not apply.")
    checkpoints, notes = logs.find(archive)
    schema = _schema(checkpoints)
    parts: list[Part] = []
    said: list[Note] = []
    for run in order.runs(checkpoints):
        of_run, odd = order.parts(run)
        parts += of_run
        said += odd
    lengths = [e[1] for p in parts for e in p.args["episodes"]]
    if at := lengths.count(TIME_LIMIT):
        text = f"episodes of {TIME_LIMIT:,} steps end at the time limit, which the log calls a terminal"
        said.append(Note("time-limit", text, at))
    return Plan(
        reader="atari_dqn",
        archive=archive,
        schema=schema,
        parts=tuple(parts),
        episodes_by="flags",
        facts={"checkpoints": [f"{c.where}{c.number}" for c in checkpoints], "capacity": checkpoints[0].capacity},
        notes=(*notes, *said),
    )


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """The episodes that begin in one checkpoint, in chunks of bounded size; the frames are streamed.

    Raises
    ------
    CorruptArchive
        A file is damaged, or what should be padding is not.
    """
    return chunks(plan, part, NAMES)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Nothing that is not per row."""
    return iter(())


def _schema(checkpoints: Sequence[logs.Checkpoint]) -> tuple[Field, ...]:
    first = checkpoints[0]
    for c in checkpoints:
        if c.kinds != first.kinds or c.capacity != first.capacity:
            raise UnknownLayout(
                f"{c.where}checkpoint {c.number} does not hold what {first.where}checkpoint {first.number} holds: "
                f"{c.capacity:,} rows of {c.kinds}; {first.capacity:,} rows of {first.kinds}.",
                hint="import runs that agree, each under a name of its own",
            )
    fields = [Field(flag, "bool", (), "next") for flag in FLAGS]
    for store, (dtype, shape) in first.kinds.items():
        if store != "terminal":
            name = NAMES.get(store) or f"info/{store}"
            placement = "both" if store == "observation" else "next" if name == REWARD else "root"
            fields.append(Field(name, dtype, shape, placement))  # type: ignore[arg-type]  # one of the three
    return tuple(sorted(fields, key=lambda f: f.name))
