"""RLDS datasets as TensorFlow Datasets stores them: Open X-Embodiment, and any other directory of the kind.

``directory`` finds the files and reads the description of a record, ``steps`` makes episodes of records. TensorFlow is
not needed. The names of shards tell their split, and the description their number of episodes, so that part of a
dataset can be downloaded alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives import exported
from rlds_cli.archives.account import (
    COLUMN,
    ENDS,
    EPISODES,
    EXPORT_NAMES,
    LAYOUT,
    METADATA,
    UNREAD,
    Account,
    Ledger,
    left_out,
    used_as,
)
from rlds_cli.archives.exported import EXPORTED, ExportedFile
from rlds_cli.archives.formats import inventory, tfrecord
from rlds_cli.archives.formats.tfrecord import ExampleFeature, parse
from rlds_cli.archives.readers import Archive, ArchivedStep, ArchivedValue, Part, Plan, Replan
from rlds_cli.archives.tfds import directory, steps, undescribed
from rlds_cli.archives.tfds.directory import INFO, SHARD, FeatureLeaf, Features, TfdsDirectory, TfdsShard
from rlds_cli.archives.tfds.steps import LastStep, OtherImages, RecordLayout, RecordOrigin
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import json as documents
from rlds_cli.base.media import image_header
from rlds_cli.base.subset import Subset
from rlds_cli.errors import ArchiveError, CorruptArchive, RldsError, UnknownLayout
from rlds_cli.ted import FLAGS, Chunk, EpisodeData, Field, Note, chunks, lay_out

VERSION = 1
LOOKED_AT = 4  # shards whose first episodes say what is not described
LOOKED_AT_EACH = 2  # of each
_VARY = "images of different sizes; --frames HxW makes them one"


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe an RLDS dataset in a TFDS directory in one line; None for other files."""
    try:
        located = _located(paths)
        if located is None or (
            located.features.is_file() and not directory.is_rlds(directory.read_json(located.features))
        ):
            return None
    except UnknownLayout as e:
        return e.message
    except RldsError:
        return None
    said = sum(s.episodes or 0 for s in located.shards)
    count = f", {said:,} episodes" if all(s.episodes is not None for s in located.shards) else ""
    splits = dict.fromkeys(s.split for s in located.shards)
    files = f"{len(located.shards)} shard{'s' if len(located.shards) > 1 else ''}"
    if not located.features.is_file():
        return f"episodes of RLDS in TFRecords without features.json ({files})"
    return f"RLDS dataset {located.name} (TFRecord, {', '.join(splits)}: {files}{count})"


def _located(files: Sequence[Path]) -> TfdsDirectory | None:
    """Find the parts of a TFDS directory, or the TFRecords of episodes that no description lies beside; else None."""
    located = directory.locate(files)
    if located is None and undescribed.are_episodes(files):
        names = [directory.SHARD.fullmatch(path.name) for path in files]
        shards = (TfdsShard(i, m["split"] if m else "", i, len(files), None) for i, m in enumerate(names))
        return TfdsDirectory(files[0].with_name(directory.FEATURES), {}, tuple(shards))
    return located


def _features(located: TfdsDirectory, files: Sequence[Path]) -> Features:
    """Return the description of the records: that beside them, or what the first of them says."""
    return directory.load(located.features) if located.features.is_file() else undescribed.inferred(files)


def plan(archive: Archive) -> Plan:
    """Find the fields and parts; a part is a shard. Reads the first episodes of up to four shards.

    Raises
    ------
    UnknownLayout
        No RLDS dataset, or more than one; a rule that does not apply.
    CorruptArchive
        A description or a first record is damaged, or they do not agree.
    """
    located = _located(archive.files)
    if located is None:
        raise UnknownLayout(
            "This is not a TFDS directory: there is no NAME-SPLIT.tfrecord-00000-of-00001 beside a features.json.",
            hint="import the directory that holds features.json",
        )
    if archive.episodes_by not in (None, "file"):
        raise UnknownLayout(
            f'episodes_by="{archive.episodes_by}" does not apply: every record of an RLDS dataset is an episode.',
            hint="leave it out",
        )
    before = _before(located)
    found = _without(_features(located, archive.files), before)
    columns = steps.columns(found, _names(found, before, archive.fields))
    seen = _look(archive, located, found)
    rule, decided, doubts = _rule(archive.last_step or before.last_step, seen)
    schema = {name: steps.field(leaf, name, rule) for name, leaf in columns.items()}
    notes = [] if located.features.is_file() else [Note("undescribed", undescribed.NOTE)]
    notes += [*directory.notes(located)] if located.features.is_file() else []
    notes += [*doubts, *steps.left_out([*found.steps.values(), *found.episode.values()])]
    for name, f in schema.items():
        if f.kind == "frames":
            schema[name], odd = _frames(f, columns[name], seen.headers[columns[name].key])
            notes += odd
        if (key := columns[name].key) in before.columns:
            schema[name] = before.columns[key].of(schema[name])
    schema |= {flag: Field(flag, "bool", (), "next") for flag in FLAGS}
    return Plan(
        reader="openx",
        archive=archive,
        schema=tuple(sorted(schema.values(), key=lambda f: f.name)),
        parts=tuple(_part(shard) for shard in located.shards),
        episodes_by="file",
        facts=_facts(located) | {"last_step": rule, "last_step_by": decided},
        notes=tuple(notes),
        account=_account(archive, located, found, columns),
    )


def _account(archive: Archive, located: TfdsDirectory, found: Features, columns: Mapping[str, FeatureLeaf]) -> Account:
    """State the fate of the files, and of the features that they are said to hold."""
    before = _before(located)
    told, beside = Ledger(), located.features.with_name
    fates = {archive.files[s.file]: used_as(EPISODES) for s in located.shards}
    fates |= {beside(name): used_as(METADATA, LAYOUT) for name in (directory.FEATURES, directory.INFO)}
    told.all_files(archive.files, archive.root, fates | {beside(EXPORTED): used_as(EXPORT_NAMES)})
    features = {key: used_as(ENDS) for key in steps.MARKS} | {x.key: used_as(name) for name, x in columns.items()}
    for leaf in found.steps.values():
        fate = left_out(leaf.problem) if leaf.problem else features.get(leaf.key) or left_out(UNREAD)
        told.add(inventory.FEATURE, leaf.key, fate)
    for leaf in found.episode.values():
        why = leaf.problem or ("images of an episode are not read" if leaf.kind == "frames" else "")
        use = COLUMN + steps.column_of(leaf, columns) if steps.is_single(leaf) and not before.found else "options"
        told.add(inventory.FEATURE, leaf.key, left_out(why) if why else used_as(use))
    return told.account()


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the episodes of one shard.

    Raises
    ------
    CorruptArchive
        A damaged record, or fewer records than the dataset says.
    Replan
        Images turn out to be of different sizes.
    """
    located = _located(plan.archive.files)
    assert located is not None
    before = _before(located)
    found = _without(_features(located, plan.archive.files), before)
    fields = {f.name: f for f in plan.schema}
    columns = steps.columns(found, _names(found, before, plan.archive.fields))
    layout = RecordLayout(fields, columns, found.steps, found.episode, plan.facts["last_step"], before)
    notes: list[Note] = []
    episodes = _episodes(plan.archive, part, layout, notes)
    try:
        yield from chunks(plan.schema, episodes)
    except OtherImages as e:
        raise Replan(_with_images_of_any_size(plan, layout, e.key)) from None
    if notes:
        end = lay_out(plan.schema, [])
        end.notes = tuple(notes)
        yield end


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Read the two descriptions, as text."""
    located = _located(plan.archive.files)
    assert located is not None
    for name in (directory.FEATURES, directory.INFO):
        path = located.features.with_name(name)
        if path.is_file():
            yield f"tfds/{name}", path.read_text(encoding="utf-8", errors="replace")


def _before(located: TfdsDirectory) -> ExportedFile:
    """Return what an export says of the columns, if the dataset is one of rlds that was exported."""
    return exported.read(located.features.with_name(EXPORTED))


def _without(found: Features, before: ExportedFile) -> Features:
    """Return the leaves without those that an export added for others."""
    added = {f"{directory.STEPS}/{key}" for key in before.added}
    return replace(found, steps={key: leaf for key, leaf in found.steps.items() if key not in added})


def _names(found: Features, before: ExportedFile, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return keys by field name: those that the user chose, and those of an export."""
    return {n: key for n, key in before.names(chosen).items() if key in found.steps or n in chosen}


def _facts(located: TfdsDirectory) -> dict[str, Any]:
    said = {"dataset": located.info.get("name"), "version": located.info.get("version")}
    return {k: str(v) for k, v in said.items() if v}


@dataclass(slots=True)
class _Seen:
    """Findings in the first episodes: whether the last action is a filler, and the headers of images by key."""

    fillers: list[bool]
    headers: dict[str, set[image_header.ImageHeader]]


def _look(archive: Archive, located: TfdsDirectory, found: Features) -> _Seen:
    seen = _Seen([], {leaf.key: set() for leaf in found.steps.values()})
    for shard in located.shards[:: max(1, len(located.shards) // LOOKED_AT)][:LOOKED_AT]:
        name = archive.name_of(shard.file)
        try:
            for record in islice(tfrecord.records(archive.files[shard.file]), LOOKED_AT_EACH):
                where = f"{name}: record {record.number:,}"
                example = parse(record.data, where=where)
                filler = steps.last_action_is_filler(example, found.steps, where)
                seen.fillers += [] if filler is None else [filler]
                for leaf in found.steps.values():
                    if leaf.kind == "frames" and leaf.key in example:
                        seen.headers[leaf.key].update(_headers(example[leaf.key]))
        except ArchiveError:
            if not archive.skip_bad:
                raise
    return seen


def _headers(feature: ExampleFeature) -> Iterator[image_header.ImageHeader]:
    for a, b in zip(*(x.tolist() for x in feature.places()), strict=True):
        header = image_header.read(feature.data, a, b)
        if header is not None:
            yield header


def _rule(asked: str | None, seen: _Seen) -> tuple[LastStep, str, Sequence[Note]]:
    """Decide the meaning of the last step; return the evidence too, and a note if the data contradict it."""
    filler = bool(seen.fillers) and all(seen.fillers)
    if asked is None:
        return ("observation", "last actions are 0", ()) if filler else ("action", "last actions are not 0", ())
    for rule in steps.RULES:
        if asked == rule:
            text = "last actions are all 0: --last-step observation would leave them out"
            odd = Note("last-action", text, len(seen.fillers))
            return rule, "as asked or registered", [odd] if filler and rule == "action" else ()
    raise UnknownLayout(f'last_step="{asked}" is not a valid rule.', hint="action or observation")


def _frames(f: Field, leaf: FeatureLeaf, headers: Collection[image_header.ImageHeader]) -> tuple[Field, Sequence[Note]]:
    """Give a field of frames the codec and shape of the first images."""
    if not headers:
        return f, ()
    codec = min(h.codec for h in headers)
    shapes = {h.shape for h in headers}
    if len(shapes) > 1:
        vary = replace(f, codec=codec, shape=(0, 0, max(s[2] for s in shapes)))
        return vary, [Note("image-sizes", f"{f.name}: {_VARY}")]
    (shape,) = shapes
    said = tuple(n or m for n, m in zip(leaf.shape, shape, strict=True))
    odd = [Note("image-shape", f"{leaf.key} is said to be {list(leaf.shape)}, and its images are {list(shape)}")]
    return replace(f, codec=codec, shape=shape), [] if said == shape else odd


def _part(shard: TfdsShard) -> Part:
    return Part(None, {"file": shard.file, "split": shard.split, "episodes": shard.episodes})


def _episodes(archive: Archive, part: Part, layout: RecordLayout, notes: list[Note]) -> Iterator[EpisodeData]:
    file, said = int(part.args["file"]), part.args["episodes"]
    name, count, empty = archive.name_of(file), 0, 0
    try:
        for record in tfrecord.records(archive.files[file]):
            origin = RecordOrigin(file, name, record.number, str(part.args["split"]))
            episode = layout.read(parse(record.data, where=str(origin)), origin)
            count, empty = count + 1, empty + (episode is None)
            if episode is not None:
                yield episode
        if said is not None and count != said:
            raise CorruptArchive(
                f"{name} holds {count:,} episodes; {directory.INFO} says {said:,}.",
                hint=f"delete {archive.files[file]} and fetch it again",
            )
    except ArchiveError as e:
        if not archive.skip_bad:
            raise
        notes.append(Note("skipped-files", f"files cannot be read to their end: {e.message}", 1, name))
    if empty:
        notes.append(Note("empty-episodes", "episodes without steps were left out", empty, name))


def _with_images_of_any_size(plan: Plan, layout: RecordLayout, key: str) -> Plan:
    schema = list(plan.schema)
    names = {name for name, leaf in layout.columns.items() if leaf.key == key}
    for i, f in enumerate(schema):
        if f.name in names:
            schema[i] = replace(f, shape=(0, 0, f.shape[2]))
    notes = (*plan.notes, *(Note("image-sizes", f"{name}: {_VARY}") for name in sorted(names)))
    return replace(plan, schema=tuple(schema), notes=notes)


def choose(names: Sequence[str], portion: Subset, read: Callable[[str], bytes]) -> tuple[Sequence[str], Subset]:
    """Choose the descriptions, and the shards that hold the wanted episodes.

    Raises
    ------
    ArchiveError
        There is no such split, or there are not so many episodes.
    """
    found = {i: m for i, n in enumerate(names) if (m := SHARD.fullmatch(n.rpartition("/")[2]))}
    described = next((n for n in names if n.rpartition("/")[2] == INFO), None)
    if portion.split is not None:
        kept = {i: m for i, m in found.items() if m["split"] == portion.split}
        if not kept:
            raise portion.no_split(dict.fromkeys(m["split"] for m in found.values()))
    else:
        kept = found
    rest = replace(portion, split=None)
    if portion.episodes is not None and described is not None:
        shards = directory.ordered(kept, _json(read(described)))
        counts = [s.episodes for s in shards if s.episodes is not None]
        if len(counts) == len(shards):
            chosen, before = _holding(portion.numbers(sum(counts)), shards)
            start, stop = portion.episodes
            rest = replace(rest, episodes=(start - before, None if stop is None else stop - before))
            kept = {s.file: found[s.file] for s in chosen}
    return [n for i, n in enumerate(names) if i not in found or i in kept], rest


def _holding(wanted: range, shards: Iterable[TfdsShard]) -> tuple[list[TfdsShard], int]:
    """Find the shards that hold the episodes, and count the episodes in the shards before these."""
    chosen: list[TfdsShard] = []
    at = before = 0
    for shard in shards:
        count = shard.episodes or 0
        if at + count > wanted.start and at < wanted.stop:
            before = before if chosen else at
            chosen.append(shard)
        at += count
    return chosen, before


def _json(content: bytes) -> Mapping[str, Any]:
    try:
        value = documents.loads(content)
    except ValueError as e:
        raise CorruptArchive(f"{INFO} is not JSON: {e}.") from e
    return value if isinstance(value, dict) else {}


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up a step and the observations after it; depth images and deflated tensors are left out.

    The values are cut out of their lists by position.
    """
    before = exported.read(place.file.with_name(EXPORTED))
    beside = TfdsDirectory(place.file.with_name(directory.FEATURES), {}, ())
    found = _without(_features(beside, [place.file]), before)
    lists = example_of(place.file, place.group)
    final = place.facts["last_step"] == "observation"
    names = _names(found, before, place.fields)
    for name, leaf in steps.columns(found, names).items():
        if leaf.key not in lists or leaf.packed_image or leaf.encoding != "none":
            continue
        scalar = name in ("next/reward", "next/discount")
        yield ArchivedValue(name, f"{leaf.key}[{place.step}]", row(leaf, lists[leaf.key], place.step, scalar=scalar))
        both = name.split("/")[0] == "observation" or (
            final and steps.field(leaf, name, "observation").placement == "both"
        )
        if both and (final or not place.is_last):
            yield ArchivedValue(
                f"next/{name}", f"{leaf.key}[{place.step + 1}]", row(leaf, lists[leaf.key], place.step + 1)
            )
    if steps.TERMINAL in lists:
        at = place.step + final
        yield ArchivedValue(FLAGS[0], f"{steps.TERMINAL}[{at}]", bool(lists[steps.TERMINAL].integers()[at]))


@lru_cache(maxsize=1)  # steps are asked for in their order, several of one episode
def example_of(file: Path, group: str) -> Mapping[str, ExampleFeature]:
    """Read the lists of one record, by the name that the reader gives its episode."""
    number = int(group.rpartition("_")[2])
    for record in tfrecord.records(file):
        if record.number == number:
            return parse(record.data, where=f"{file.name}: record {number:,}")
    raise CorruptArchive(f"{file.name} has no record {number:,}.", hint=f"delete {file} and fetch it again")


def row(leaf: FeatureLeaf, feature: ExampleFeature, at: int, *, scalar: bool = False) -> object:
    """Return row ``at`` of a list: bytes of an image, text, or an array of the leaf's dtype and shape."""
    if feature.kind == "bytes":
        data = feature.strings()[at]
        return data.decode("utf-8", "replace") if leaf.kind == "text" else data
    width = math.prod(leaf.shape)
    values = feature.floats() if feature.kind == "float" else feature.integers()
    return values[at * width : (at + 1) * width].astype(np.dtype(leaf.dtype)).reshape(() if scalar else leaf.shape)
