"""RL Unplugged's Atari: gzip TFRecords, one tf.Example per episode of a DQN's training, in order.

::

    <Game>/run_<k>-00000-of-00050      one file per checkpoint, 46 games, five runs
      observations       n PNG images, 84x84x1         -> observation        both   (kept encoded)
      actions            n integers                    -> action             root
      unclipped_rewards  n floats                      -> next/reward        next
      clipped_rewards    n floats                      -> next/clipped_reward
      discounts          n floats, the last 0: the episode terminated -> next/discount
      checkpoint_idx, episode_idx, episode_return, clipped_episode_return -> options of the episode

The meaning of the last of n rows is not recorded. TensorFlow Datasets takes it for the terminal observation alone,
and moves the discounts by one row to the step that they belong to; so does this reader (``observation``: T = n - 1),
unless the return that stands beside an episode counts a reward of its last row (``action``: T = n).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import islice
from pathlib import Path

import numpy as np

from rlds_cli.archives.account import EPISODES, UNREAD, Account, Ledger, left_out, used_as
from rlds_cli.archives.formats import inventory, tfrecord
from rlds_cli.archives.formats.tfrecord import ExampleFeature, parse
from rlds_cli.archives.readers import Archive, ArchivedStep, ArchivedValue, Part, Plan, every_file
from rlds_cli.archives.tfds import steps
from rlds_cli.archives.tfds.directory import FeatureLeaf
from rlds_cli.archives.tfds.read import example_of, row
from rlds_cli.archives.tfds.steps import RULES
from rlds_cli.base.array_types import Array
from rlds_cli.errors import ArchiveError, CorruptArchive, RldsError, UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, TERMINATED, TRUNCATED, Chunk, EpisodeData, Field, Note, chunks, lay_out

VERSION = 1
choose = every_file

FRAME = (84, 84, 1)
LOOKED_AT = 4  # files whose first episodes are compared with their returns
LOOKED_AT_EACH = 4

_STEPS = {
    "action": FeatureLeaf("actions", "array", "int64"),
    REWARD: FeatureLeaf("unclipped_rewards", "array", "float32"),
    "next/clipped_reward": FeatureLeaf("clipped_rewards", "array", "float32"),
    "next/discount": FeatureLeaf("discounts", "array", "float32"),
}
_OBSERVATIONS = FeatureLeaf("observations", "frames", "uint8", FRAME)
_EPISODE = {
    "checkpoint_idx": "int64",
    "episode_idx": "int64",
    "episode_return": "float32",
    "clipped_episode_return": "float32",
}
_SCHEMA = (
    Field("action", "int64"),
    Field("next/clipped_reward", "float32", (), "next"),
    Field("next/discount", "float32", (), "next"),
    Field(REWARD, "float32", (), "next"),
    *(Field(flag, "bool", (), "next") for flag in FLAGS),
    Field("observation", "uint8", FRAME, "both", "frames", "png"),
)


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe episodes of RL Unplugged's Atari in one line; None for other files."""
    try:
        if not paths or not tfrecord.is_tfrecord(paths[0]):
            return None
        first = next(_examples(paths[0], paths[0].name), None)
    except RldsError:
        return None
    if first is None or not {_OBSERVATIONS.key, *(x.key for x in _STEPS.values())} <= set(first[1]):
        return None
    return f"RL Unplugged Atari episodes: {len(paths)} file{'s' if len(paths) > 1 else ''}"


def plan(archive: Archive) -> Plan:
    """Make a part per file. Reads the first episodes of up to four files.

    Raises
    ------
    UnknownLayout
        A rule that does not apply.
    CorruptArchive
        A first record is damaged, or is not such an episode.
    """
    if archive.episodes_by not in (None, "file"):
        raise UnknownLayout(
            f'episodes_by="{archive.episodes_by}" does not apply: every record is an episode.', hint="leave it out"
        )
    if archive.fields:
        raise UnknownLayout("--map does not apply: the layout of these episodes is fixed.", hint="leave it out")
    rule, decided = _rule(archive)
    return Plan(
        reader="rlu_atari",
        archive=archive,
        schema=_SCHEMA,
        parts=tuple(Part(None, {"file": i}) for i in range(len(archive.files))),
        episodes_by="file",
        facts={"last_step": rule, "last_step_by": decided},
        account=_account(archive),
    )


def _account(archive: Archive) -> Account:
    """State the fate of the files, and of the lists of their first records."""
    told, fields = Ledger(), {**_STEPS, "observation": _OBSERVATIONS}
    fates = {leaf.key: used_as(name) for name, leaf in fields.items()} | dict.fromkeys(_EPISODE, used_as("options"))
    told.all_files(archive.files, archive.root, dict.fromkeys(archive.files, used_as(EPISODES)))
    keys = {leaf.key for leaf in fields.values()}
    for index, path in enumerate(archive.files):
        with suppress(ArchiveError) if archive.skip_bad else nullcontext():
            for _, example in islice(_examples(path, archive.name_of(index)), 1):
                keys |= {*example}
    for key in sorted(keys):
        told.add(inventory.FEATURE, key, fates.get(key) or left_out(UNREAD))
    return told.account()


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the episodes of one file.

    Raises
    ------
    CorruptArchive
        A damaged record, or lists of an episode that do not agree.
    """
    notes: list[Note] = []
    yield from chunks(_SCHEMA, _episodes(plan, int(part.args["file"]), notes))
    if notes:
        end = lay_out(_SCHEMA, [])
        end.notes = tuple(notes)
        yield end


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Return nothing: every value is per row."""
    return iter(())


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the values of a step, and the observation after it."""
    lists = example_of(place.file, place.group)
    final = place.facts["last_step"] == "observation"
    for name, leaf in {**_STEPS, "observation": _OBSERVATIONS}.items():
        at = place.step + (final and name == "next/discount")
        yield ArchivedValue(name, f"{leaf.key}[{at}]", row(leaf, lists[leaf.key], at))
    after = place.step + 1
    if final or not place.is_last:
        yield ArchivedValue(
            "next/observation", f"observations[{after}]", row(_OBSERVATIONS, lists["observations"], after)
        )
    ended = place.is_last and lists["discounts"].floats()[-1] == 0
    yield ArchivedValue(FLAGS[0], "discounts[-1]", bool(ended))


def _examples(path: Path, name: str) -> Iterator[tuple[int, Mapping[str, ExampleFeature]]]:
    for record in tfrecord.records(path):
        yield record.number, parse(record.data, where=f"{name}: record {record.number:,}")


def _rule(archive: Archive) -> tuple[str, str]:
    """Decide the meaning of the last row; return the evidence too."""
    if archive.last_step in RULES:
        return str(archive.last_step), "as asked or registered"
    if archive.last_step is not None:
        raise UnknownLayout(f'last_step="{archive.last_step}" is not a valid rule.', hint="action or observation")
    every = max(1, len(archive.files) // LOOKED_AT)
    for index in range(0, len(archive.files), every)[:LOOKED_AT]:
        try:
            name = archive.name_of(index)
            for number, example in islice(_examples(archive.files[index], name), LOOKED_AT_EACH):
                if _counts_last_reward(example, f"{name}: record {number:,}"):
                    return "action", "episode_return counts the last reward"
        except ArchiveError:
            if not archive.skip_bad:
                raise
    return "observation", "nothing counts the last reward"


def _counts_last_reward(example: Mapping[str, ExampleFeature], where: str) -> bool:
    rewards = _list(_STEPS[REWARD], example, where).astype(np.float64)
    said = _episode_value("episode_return", example, where)
    if said is None or not len(rewards) or rewards[-1] == 0:
        return False
    with np.errstate(invalid="ignore"):  # of infinite rewards
        whole, without = rewards.sum(), rewards[:-1].sum()
        return bool(abs(said - whole) < abs(said - without))


def _episodes(plan: Plan, file: int, notes: list[Note]) -> Iterator[EpisodeData]:
    name, empty = plan.archive.name_of(file), 0
    try:
        for number, example in _examples(plan.archive.files[file], name):
            episode = _episode(example, f"{name}: record {number:,}", plan.facts["last_step"], file, number)
            empty += episode is None
            if episode is not None:
                yield episode
    except ArchiveError as e:
        if not plan.archive.skip_bad:
            raise
        notes.append(Note("skipped-files", f"files cannot be read to their end: {e.message}", 1, name))
    if empty:
        notes.append(Note("empty-episodes", "episodes without steps were left out", empty, name))


def _episode(
    example: Mapping[str, ExampleFeature], where: str, rule: str, file: int, number: int
) -> EpisodeData | None:
    found = {name: _list(leaf, example, where) for name, leaf in _STEPS.items()}
    try:
        frames = steps.images(_OBSERVATIONS, _feature(_OBSERVATIONS.key, example, where), where, shape=FRAME)
    except steps.OtherImages as e:
        raise CorruptArchive(f"{where}: an image is not 84x84 grayscale.") from e
    rows = {name: len(column) for name, column in found.items()} | {"observation": len(frames)}
    if len(set(rows.values())) > 1:
        raise CorruptArchive(f"{where}: lists have different numbers of rows: {rows}.")
    n, filler = len(frames), rule == "observation"
    length = n - filler
    if length < 1:
        return None
    end = TERMINATED if found["next/discount"][-1] == 0 else TRUNCATED
    notes: tuple[Note, ...] = ()
    if filler and found[REWARD][-1] != 0:
        notes = (
            Note("last-reward", "rewards in the row of the final observation are not 0, and are left out", 1, where),
        )
    columns = {name: column[:length] for name, column in found.items()}
    if filler:
        columns["next/discount"] = found["next/discount"][1:]
    last = np.arange(length) == length - 1
    flags = {FLAGS[0]: last & (end == TERMINATED), FLAGS[1]: last & (end == TRUNCATED)}
    assert isinstance(frames, steps.EncodedImages)
    return EpisodeData(
        {**columns, "observation": steps.present(frames, f"{where}: observations"), **flags},
        length,
        end,
        observed=filler,
        source=file,
        group=f"record_{number}",
        options=_options(example, where),
        notes=notes,
    )


def _options(example: Mapping[str, ExampleFeature], where: str) -> str | None:
    said = {key: _episode_value(key, example, where) for key in _EPISODE}
    known = {k: v for k, v in said.items() if v is not None}
    return json.dumps(known, sort_keys=True) if known else None


def _episode_value(key: str, example: Mapping[str, ExampleFeature], where: str) -> float | int | None:
    if key not in example:
        return None
    found = steps.array(FeatureLeaf(key, "array", _EPISODE[key]), example[key], where)
    value = found[0].item() if len(found) == 1 else None
    return value if value is not None and np.isfinite(value) else None


def _list(leaf: FeatureLeaf, example: Mapping[str, ExampleFeature], where: str) -> Array:
    return steps.array(leaf, _feature(leaf.key, example, where), where)


def _feature(key: str, example: Mapping[str, ExampleFeature], where: str) -> ExampleFeature:
    if key not in example:
        raise CorruptArchive(f"{where} has no {key}.")
    return example[key]
