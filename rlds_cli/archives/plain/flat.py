"""Read a user's files that hold a row for each step.

Most have as many rows as steps, and are read as those of D4RL. Files that hold final observations, as a last row
without an action or as one observation more per episode than steps, are read episode by episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rlds_cli.archives import once
from rlds_cli.archives.account import Account, Ledger
from rlds_cli.archives.flat import FINAL, OWN, episodes_of, flag_fields, parts_of, same_schema, with_own_next
from rlds_cli.archives.flat_rows import (
    FlatEpisodes,
    NextValuesDiffer,
    Stretch,
    differs,
    is_set,
    stretch_chunks,
)
from rlds_cli.archives.formats import arrow_files, camera_files, image_columns
from rlds_cli.archives.formats.hdf5 import reading
from rlds_cli.archives.formats.image_columns import EncodedColumn
from rlds_cli.archives.formats.table_views import TableView
from rlds_cli.archives.formats.tables import MISSING, Table, open_flat
from rlds_cli.archives.looking import looked_up
from rlds_cli.archives.names import (
    is_observation,
    scalar,
)
from rlds_cli.archives.plain import accounting, arriving, cameras, lacking
from rlds_cli.archives.plain.boundaries import SCAN_ROWS
from rlds_cli.archives.plain.lacking import Settled
from rlds_cli.archives.plain.survey import (
    FileSurvey,
    Filled,
    JoinedFiles,
    are_longer,
    check_final_rows,
    columns_per_episode,
    ended,
    join,
    shaped,
    survey,
    with_final,
)
from rlds_cli.archives.readers import (
    Archive,
    ArchivedStep,
    ArchivedValue,
    EpisodeSummary,
    Part,
    Plan,
    Replan,
    skipped_file,
)
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout
from rlds_cli.ted import END_NAMES, FLAGS, REWARD, VIDEO, Chunk, EpisodeData, Field, Note, Scalar, VideoFrames, chunks

CHECK_ROWS = 1 << 12
_MOST_CARRIED = 8 << 20  # characters of the values that files hold once, which go to the processes that read them


def plan(archive: Archive) -> Plan:
    """Find the fields, parts and boundaries; reads only the columns that mark episodes, and the actions.

    Raises
    ------
    UnknownLayout
        No observations or actions, columns of different lengths, boundaries that contradict each other.
    """
    bad: tuple[Note, ...] = ()
    if archive.skip_bad:
        archive, bad = _without_bad(archive)
    seen = tuple(survey(archive, path) for path in archive.files)
    _check_step_types(archive, seen)
    of_files = lacking.settle(archive, seen)
    joined = join(of_files.archive, of_files.seen)
    settled = lacking.settle_rows(of_files, joined)
    archive, seen, first = settled.archive, settled.seen, settled.seen[0]
    if settled is not of_files or settled.filled:
        joined = join(archive, seen, _filled(settled.filled, first.layout.fields))
    longer = are_longer(archive, seen, joined)
    by_episode = longer or bool(joined.finals.any())
    if longer and archive.arrive:
        raise UnknownLayout(
            f"{archive.name_of(0)} has more observations than rewards, and with --rewards arrive each has its own.",
            hint="rewards with a row for each action are read without --rewards arrive",
        )
    recorded = all(s.layout.comparable or not s.layout.next_columns for s in seen)
    mode = None if not any(s.layout.next_columns for s in seen) or by_episode else FINAL if recorded else OWN
    per_episode = columns_per_episode(seen, joined)
    per_file = _columns_per_file(seen, per_episode)
    episodes = FlatEpisodes(joined.view.stops, joined.finals)
    width = sum(f.row_bytes for f in first.layout.fields)
    return Plan(
        "plain",
        archive,
        _schema(archive, seen, mode, joined.late),
        tuple(parts_of(episodes, width, known=mode != FINAL, whole=joined.view.order is not None)),
        archive.episodes_by or joined.rule,
        facts={
            "next_observations": mode,
            "counts": list(joined.view.counts),
            "read": "episodes" if by_episode else "rows",
            "longer": longer,
            "ordered": joined.view.order is not None,
            "late": joined.late,
            "per_episode": per_episode,
            **_splits(archive),
            **({"per_file": per_file} if per_file else {}),
            **_stated(settled),
        },
        notes=(
            *_notes(seen, per_episode),
            *joined.notes,
            *settled.notes,
            *check_final_rows(archive, first, joined),
            *(() if by_episode or mode is not None else _assumed_order(archive, first, joined)),
            *bad,
        ),
        computed=cameras.computed(first.meaning.fields),
        account=_account(settled, per_episode, late=joined.late),
        episode_summary=_summary(joined),
        beside=tuple(i for i, s in enumerate(seen) if _has_more(s, per_episode)),
        once=_carried(seen) if per_file else (),
    )


def _check_step_types(archive: Archive, seen: Sequence[FileSurvey]) -> None:
    """Refuse rewards beside dm_env's step types, unless it is stated or seen whose they are."""
    for index, s in enumerate(seen):
        if any(key.lower() == arriving.STEP_TYPE for key in s.layout.columns.values()):
            with open_flat(s.path, fill=True) as table:
                arriving.check_order(table, s.keys.get(REWARD), archive.rewards, archive.name_of(index))


def _assumed_order(archive: Archive, first: FileSurvey, joined: JoinedFiles) -> list[Note]:
    """Note that rewards are taken for those of their own actions, where the files may be in another order."""
    reward = first.keys.get(REWARD)
    if archive.rewards is not None or reward is None:
        return []
    with open_flat(first.path, check=False) as table:
        signs = arriving.signs(table.own)
    begins = np.concatenate([[0], joined.view.stops[:-1]]).astype(np.int64)
    return [arriving.assumed(signs)] if signs and not arriving.has_first_rewards(joined.view, reward, begins) else []


def _stated(settled: Settled) -> dict[str, Any]:
    """Return the facts of a plan that say what the fields are made of, and what the user stated about them."""
    archive, seen = settled.archive, settled.seen
    fields = seen[0].meaning.fields
    return {
        "fields": dict(fields),
        **({"rewards": archive.rewards} if archive.rewards else {}),
        **({"without": list(archive.without)} if archive.without else {}),
        **({"filled": dict(settled.filled)} if settled.filled else {}),
        **cameras.facts(fields, {n: rule for s in seen for n, rule in s.videos.items()}),
    }


def _splits(archive: Archive) -> dict[str, Any]:
    """Return the files of each split, by number, of directories that are splits of one dataset."""
    found: dict[str, list[int]] = {}
    for number, path in enumerate(archive.files):
        if (name := arrow_files.split_of(path)) is not None:
            found.setdefault(name, []).append(number)
    return {"splits": found} if found else {}


def _account(settled: Settled, per_episode: Mapping[str, str], *, late: bool) -> Account:
    """State the fate of the files, and of all that they hold."""
    told, archive = Ledger(), settled.archive
    lacks: dict[str, Any] = {"late": late, "without": archive.without, "filled": settled.filled}
    for index, s in enumerate(settled.seen):
        accounting.of_table(told, archive.name_of(index), s, per_episode, _of_episodes(s, per_episode), **lacks)
    return told.account()


def _notes(seen: Sequence[FileSurvey], per_episode: Mapping[str, str]) -> list[Note]:
    """Return what is said of the columns, each once."""
    listed = set(per_episode.values())
    notes = [n for s in seen for n in (*s.meaning.notes, *(n for n in s.layout.notes if not _is_about(n, listed)))]
    if ignored := ", ".join(dict.fromkeys(key for s in seen for key in s.meaning.ignored)):
        notes.append(Note("root-flags", f"flags at the root, which are False in TED, mark no ends: {ignored}"))
    return [*dict.fromkeys(notes)]


def _carried(seen: Sequence[FileSurvey]) -> tuple[Mapping[str, Scalar], ...]:
    """Return the values that each file holds once, so that no file is opened for them again; none if they are long."""
    size = sum(len(str(value)) for s in seen for value in s.once.columns.values())
    return tuple(s.once.columns for s in seen) if size <= _MOST_CARRIED else ()


def _columns_per_file(seen: Sequence[FileSurvey], per_episode: Mapping[str, str]) -> dict[str, str]:
    """Return what the columns are made of that have one value for a file: attributes, if all files that have it do."""
    found: dict[str, str] = {}
    for s in seen:
        for name in s.once.columns:
            if name not in per_episode and found.get(name, once.ATTRIBUTE) == once.ATTRIBUTE:
                found[name] = once.origin(s.once, name)
    return found


def _of_episodes(s: FileSurvey, per_episode: Mapping[str, str]) -> set[str]:
    """Return the columns and attributes of a file that columns of the episode table are made of."""
    return {*per_episode.values(), *(key for name, key in s.once.keys.items() if name not in per_episode)}


def _has_more(s: FileSurvey, per_episode: Mapping[str, str]) -> bool:
    """Tell whether a file holds what is neither per row nor a column of the episode table."""
    return s.left or not _of_episodes(s, per_episode).issuperset((*s.layout.metadata, *s.once.keys.values()))


def _filled(keys: Mapping[str, str], fields: Sequence[Field]) -> Filled:
    """Return the shapes and dtypes of rows of the columns that are filled."""
    known = {f.name: f for f in fields}
    made = {key: known[name] for name, key in keys.items()}
    return {key: (f.shape, np.dtype(object if f.kind == "text" else f.dtype)) for key, f in made.items()}


def _summary(joined: JoinedFiles) -> EpisodeSummary:
    lengths = np.diff(joined.view.stops, prepend=0)
    lengths -= joined.finals
    lengths = lengths.astype(np.min_scalar_type(lengths.max(initial=0)))  # a plan of millions of episodes stays small
    return EpisodeSummary(lengths[lengths > 0], dict(zip(END_NAMES, joined.ends.tolist(), strict=True)))


def _without_bad(archive: Archive) -> tuple[Archive, tuple[Note, ...]]:
    """Leave out the files that cannot be read completely, with notes that name them."""
    good, notes = [], []
    for index, path in enumerate(archive.files):
        try:
            s = survey(archive, path)
            view = TableView((path,), (s.rows,), tuple(s.keys.values()), np.zeros(0, np.int64), fill=True)
            with view.rows(sorted(set(s.keys.values()))) as rows:
                for start in range(0, s.rows, CHECK_ROWS):
                    _check_cameras(s, rows.read(start, min(start + CHECK_ROWS, s.rows)), archive.name_of(index), start)
            good.append(path)
        except ArchiveError as e:
            notes.append(skipped_file(archive.name_of(index), e))
    if not good:
        raise CorruptArchive(f"None of {len(archive.files):,} files can be read: {notes[0].where}")
    return replace(archive, files=tuple(good)), tuple(notes)


def _check_cameras(s: FileSurvey, seen: Mapping[str, Array], name: str, start: int) -> None:
    """Refuse images of a file that are damaged; ``seen`` has its rows from ``start`` on, by their keys."""
    for f in s.layout.fields:
        key = s.keys.get(f.name)
        if f.kind == "frames" and f.codec != VIDEO and key is not None and key in seen:
            image_columns.check(seen[key].tolist(), EncodedColumn(f.codec, f.shape, f.dtype), f"{name}: {key}", start)


# -- schema and parts


def _is_about(note: Note, keys: set[str]) -> bool:
    return note.code == "not-per-row" and note.where.partition(" ")[0] in keys


def _schema(archive: Archive, seen: Sequence[FileSurvey], mode: str | None, late: bool) -> tuple[Field, ...]:
    schemas = []
    for s in seen:
        fields = [*s.layout.fields, *flag_fields(), *(s.layout.own_next if mode == OWN else ())]
        if late and s.layout.timeouts_field:
            fields.append(s.layout.timeouts_field)
        schemas.append(tuple(sorted(fields, key=lambda f: f.name)))
    schema, keys = same_schema(archive, schemas), seen[0].keys
    for index, s in enumerate(seen):
        if s.keys != keys:
            name = next(n for n in {**keys, **s.keys} if keys.get(n) != s.keys.get(n))
            with_it, without = (0, index) if name in keys else (index, 0)
            says = (
                f"{name} is called {s.keys[name]} in {archive.name_of(index)}, {keys[name]} in {archive.name_of(0)}."
                if name in keys and name in s.keys
                else f"{archive.name_of(without)} has no {name}, and {archive.name_of(with_it)} has one."
            )
            raise UnknownLayout(says, hint="import them one by one, each with its own name")
    return schema


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the rows of one part, in chunks of bounded size.

    Raises
    ------
    Replan
        Next observations differ from the rows after at most steps.
    CorruptArchive
        A file is damaged.
    """
    filled = plan.facts.get("filled", {})
    first = lacking.completed(survey(plan.archive, plan.archive.files[0]), plan.schema, filled)
    view = _view(plan, part, first)
    extra = _extra(plan, part, view)
    splits: Mapping[str, Sequence[int]] = plan.facts.get("splits", {})
    if plan.facts["read"] == "episodes":
        yield from chunks(plan.schema, _episodes(plan, part, first, view, extra))
        return
    stops = part.args["stops"]
    try:
        for chunk in stretch_chunks(view, _stretch(plan, part, first, view)):
            if extra:
                of = np.searchsorted(stops, chunk.episodes.row, "right").tolist()
                chunk.episodes.extra = {name: [values[k] for k in of] for name, values in extra.items()}
            chunk.episodes.source[:], chunk.episodes.row[:] = view.places(chunk.episodes.row)
            source = chunk.episodes.source
            chunk.episodes.splits = {name: np.isin(source, files) for name, files in splits.items()}
            yield chunk
    except NextValuesDiffer:
        raise Replan(with_own_next(plan, first.layout)) from None


def _extra(plan: Plan, part: Part, view: TableView) -> dict[str, list[Scalar]]:
    """Read the columns of the episode table for the episodes of a part."""
    found: dict[str, list[Scalar]] = {}
    first, count = int(part.args["first"]), len(part.args["stops"])
    for name, key in plan.facts["per_episode"].items():
        lists = []
        for path, rows in zip(plan.archive.files, plan.facts["counts"], strict=True):
            with open_flat(path, check=False, fill=True) as table:
                lists.append(None if table[key].shape[0] == rows else table.source.array(key))
        if any(values is None for values in lists):
            found[name] = _constant(part, view, name, key)
        else:
            values = np.concatenate([v.reshape(-1) for v in lists if v is not None])[first : first + count]
            found[name] = [scalar(v) for v in values]
    return found | _of_files(plan, part, view)


def _of_files(plan: Plan, part: Part, view: TableView) -> dict[str, list[Scalar]]:
    """Read the values that files hold once, for the episodes of a part; None where a file has none."""
    names = plan.facts.get("per_file", {})
    if not names:
        return {}
    begins = np.concatenate([[int(part.args["start"])], part.args["stops"][:-1]]).astype(np.int64)
    of = view.places(begins)[0].tolist()
    values = {file: _held_once(plan, file) for file in dict.fromkeys(of)}
    return {name: [values[file].get(name) for file in of] for name in names}


def _held_once(plan: Plan, file: int) -> Mapping[str, Scalar]:
    """Return the values that a file holds once."""
    if plan.once:
        return plan.once[file]
    path = plan.archive.files[file]
    if set(plan.facts["per_file"].values()) == {once.ATTRIBUTE}:
        return once.attributes_of(path).columns
    return survey(plan.archive, path).once.columns


def _constant(part: Part, view: TableView, name: str, key: str) -> list[Scalar]:
    """Read the values [episodes] of a column that is constant within each episode."""
    found: list[Scalar] = []
    first, stop = int(part.args["start"]), int(part.args["stops"][-1])
    begins = np.concatenate([[first], part.args["stops"][:-1]])
    with view.rows([key]) as rows:
        before: Array | None = None  # the value of the row before the block
        for a in range(first, stop, SCAN_ROWS):
            b = min(a + SCAN_ROWS, stop)
            values = rows.read(a, b)[key].reshape(-1)
            here = begins[slice(*np.searchsorted(begins, (a, b)))] - a
            pairs = values if before is None else np.concatenate([before, values])
            changes = np.flatnonzero(differs(pairs[:-1], pairs[1:])) + (before is None)
            inside = np.setdiff1d(changes, here, assume_unique=True)
            if len(inside):
                raise UnknownLayout(
                    f"{key} changes within an episode, at row {a + int(inside[0]):,}; a column of the episode table "
                    "has one value.",
                    hint=f"leave out --map episode/{name}={key}: it is kept as a field of the steps",
                )
            found += [scalar(v) for v in values[here]]
            before = values[-1:]
    return found


def _view(plan: Plan, part: Part, first: FileSurvey) -> TableView:
    filled = _filled(plan.facts.get("filled", {}), plan.schema)
    if plan.facts["ordered"]:
        return join(plan.archive, [first, *(survey(plan.archive, p) for p in plan.archive.files[1:])], filled).view
    derived = tuple(dict.fromkeys((*first.keys.values(), *first.by.keys)))
    stops = part.args["stops"]
    fill = plan.facts["read"] == "episodes"
    counts = tuple(plan.facts["counts"])
    return TableView(plan.archive.files, counts, derived, stops, fill=fill, filled=filled)


def _stretch(plan: Plan, part: Part, first: FileSurvey, view: TableView) -> Stretch:
    total = sum(plan.facts["counts"])
    return Stretch(
        name_of=plan.archive.name_of,
        total=total,
        start=int(part.args["start"]),
        episodes=episodes_of(part),
        layout=replace(first.layout, rows=total),
        fields=tuple(f for f in plan.schema if f.name not in FLAGS),
        cuts=plan.facts["next_observations"] == FINAL and first.layout.recorded,
        flagged=plan.episodes_by == "flags",
        places=lambda rows: (np.zeros(len(rows), np.int32), rows),
        said_places=view.places,
        videos=partial(_frames, plan, view),
    )


def _frames(plan: Plan, view: TableView, key: str, rows: IntArray) -> VideoFrames:
    """Return the frames of rows of the videos that belong to their files."""
    rule = cameras.times_for(plan.archive.fields, key) or "count"
    file, row = view.places(rows)
    files, of = np.unique(file, return_inverse=True)
    numbers = row.copy()  # by count
    for k, index in enumerate(files.tolist() if rule != "count" else ()):
        with open_flat(plan.archive.files[index], check=False, fill=True) as table:
            every = cameras.frames(table, key, rule, plan.facts["counts"][index])
        numbers[of == k] = every[row[of == k]]
    return cameras.of_videos([plan.archive.name_of(k) for k in files.tolist()], key, of, numbers)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Read columns without one value per row, and attributes; names begin with the file if there are several."""
    several = len(plan.archive.files) > 1
    for index in plan.beside or ():
        path = plan.archive.files[index]
        prefix = f"{plan.archive.name_of(index)}/" if several else ""
        s = survey(plan.archive, path)
        used = _of_episodes(s, plan.facts["per_episode"])
        keys = [k for k in s.layout.metadata if k not in used]
        with open_flat(path, check=False, fill=True) as table, reading(path, "its metadata"):
            yield from ((prefix + name, value) for name, value in table.constants(keys, used))


# -- episode by episode


def _episodes(
    plan: Plan, part: Part, first: FileSurvey, view: TableView, extra: Mapping[str, Sequence[Scalar]]
) -> Iterator[EpisodeData]:
    """Read the episodes of a part, with their final observations if the files hold them."""
    keys = first.keys
    observed = {n: k for n, k in keys.items() if is_observation(n)}
    stepwise = {n: k for n, k in keys.items() if n not in observed}
    longer = plan.facts["longer"]
    finals = set(part.args["finals"].tolist())
    missing = _missing_keys(plan, stepwise)
    view = replace(view, derived=(*view.derived, *missing))
    seen_at = view if not longer else replace(view, counts=_observation_counts(plan))
    wanted = {*stepwise.values(), *missing}
    with seen_at.rows(sorted(set(observed.values()))) as observations, view.rows(sorted(wanted)) as steps:
        start = int(part.args["start"])
        for k, stop in enumerate(part.args["stops"].tolist()):
            length = stop - start - (k in finals)
            shift = int(part.args["first"]) + k if longer else 0
            o = observations.read(start + shift, stop + shift + longer)
            s = steps.read(start, stop)
            if length:
                e = _episode(plan, first, view, (start, length), {n: o[c] for n, c in observed.items()}, s)
                e.extra = {name: values[k] for name, values in extra.items()}
                yield e
            start = stop


def _observation_counts(plan: Plan) -> tuple[int, ...]:
    return tuple(survey(plan.archive, path).observations for path in plan.archive.files)


def _missing_keys(plan: Plan, stepwise: Mapping[str, str]) -> set[str]:
    """Return the ``missing:`` columns for the columns that may lack values."""
    with open_flat(plan.archive.files[0], check=False, fill=True) as table:
        filled = {*plan.facts.get("filled", {}).values()}
        return {MISSING + key for key in stepwise.values() if table.may_miss(key) and key not in filled}


def _episode(
    plan: Plan,
    first: FileSurvey,
    view: TableView,
    rows: tuple[int, int],
    observations: Mapping[str, Array],
    steps: Mapping[str, Array],
) -> EpisodeData:
    start, length = rows
    file, at = view.place(start)
    place = f"the episode at row {at:,} of {plan.archive.name_of(file)}"
    schema = {f.name: f for f in plan.schema}
    arrive = plan.archive.arrive
    late = {k: int(arrive and arriving.is_late(n)) for n, k in first.keys.items()}  # rows between action and result
    for key, values in steps.items():
        own = key.removeprefix(MISSING)
        if key.startswith(MISSING) and (none := values[late[own] : length + late[own]]).any():
            raise UnknownLayout(f"{place} has no {own} at step {int(np.argmax(none)):,}.")
    columns: dict[str, Any] = {}
    for name, key in first.keys.items():
        if name in FLAGS or name not in schema:
            continue
        f = schema[name]
        if f.codec == VIDEO:
            columns[name] = _frames(plan, view, key, np.arange(start, start + length))
            continue
        values = observations[name] if name in observations else steps[key][late[key] : length + late[key]]
        columns[name] = shaped(values, f, f"{place}: {key}")
    _join_next(columns, first, steps, length, place)
    terminated, truncated = (_flag(steps, k, length, arrive) for k in (first.layout.terminals, first.layout.timeouts))
    inside = first.layout.timeouts_field
    if plan.facts["late"] and inside and first.layout.timeouts:
        timeouts = steps[first.layout.timeouts][arrive : length + arrive]
        columns[inside.name] = shaped(timeouts, inside, place)
    columns[FLAGS[0]] = terminated
    columns[FLAGS[1]], end = ended(terminated, truncated)
    splits = tuple(name for name, files in plan.facts.get("splits", {}).items() if file in files)
    return EpisodeData(columns, length, end, source=file, row=at, splits=splits)


def _flag(steps: Mapping[str, Array], key: str | None, length: int, arrive: bool) -> BoolArray:
    """Read a flag of the steps [T]; a flag in the row of the final observation counts for the last step."""
    if key is None:
        return np.zeros(length, bool)
    whole_column = is_set(steps, key, len(steps[key]))
    if arrive:
        return whole_column[1 : length + 1]
    flag = whole_column[:length].copy()
    flag[-1] |= bool(whole_column[length:].any())
    return flag


def _join_next(columns: dict[str, Any], first: FileSurvey, steps: Mapping[str, Array], length: int, place: str) -> None:
    """Add final observations from the columns of next observations."""
    for name, key in first.layout.next_columns.items():
        now, after = columns[name], steps[key][:length]
        if isinstance(now, list) or now.shape[1:] != after.shape[1:]:
            continue
        hint = "leave it out: --map next/observation=KEY names another"
        columns[name] = with_final(now, after, length, f"{place}: {key} is not {name} of the row after.", hint)


# -- tracing


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the values of one step and the next; steps in another file are left out."""
    fields = cameras.mapped(place)
    without = tuple(place.facts.get("without", ()))
    fields = {name: key for name, key in fields.items() if key not in without}
    archive = Archive(place.root, (place.file,), fields=fields, rewards=place.facts.get("rewards"), without=without)
    found = survey(archive, place.file)
    with open_flat(place.file, check=False, fill=True) as table:
        table.derive([*found.keys.values(), *found.by.keys])
        row, after = _rows_of(table, found, place)
        if row is None:
            return
        keys = {n: k for n, k in found.keys.items() if not (place.facts["longer"] and is_observation(n))}
        keys = {n: k for n, k in keys.items() if not camera_files.is_video_key(k)}
        actions = {MISSING + k for k in found.by.actions}
        seen = _read_rows(table, {*keys.values(), *actions}, row, after)
    late = {name for name in keys if archive.arrive and arriving.is_late(name)}
    if place.is_last and actions and all(seen[k][-1] for k in actions):  # a flag may stand in the final row
        late |= {name for name in FLAGS if name in keys and not is_set(seen, keys[name], 1)[0]}
    both = {name for name in keys if is_observation(name) and f"next/{name}" not in keys}
    yield from looked_up(keys, seen, (row, after), late=late, both=both)


def _rows_of(table: Table, found: FileSurvey, place: ArchivedStep) -> tuple[int | None, int | None]:
    """Find the rows of a step and of the next step, each None if it is in another file."""
    row, last = place.first + place.step, place.first + place.length
    if not place.facts["ordered"] or found.by.ids is None or found.by.steps is None:
        has_after = not place.is_last or (place.facts["read"] == "episodes" and last < found.rows)
        return (row, row + 1 if has_after and row + 1 < found.rows else None) if row < found.rows else (None, None)
    with table.rows([found.by.ids, found.by.steps]) as rows:
        seen = rows.read(0, found.rows)
    ids, steps = seen[found.by.ids].reshape(-1), seen[found.by.steps].reshape(-1)
    at = [np.flatnonzero((ids == ids[place.first]) & (steps == steps[place.first] + place.step + k)) for k in (0, 1)]
    return tuple(int(a[0]) if len(a) else None for a in at)  # type: ignore[return-value]


def _read_rows(table: Table, keys: set[str], row: int, after: int | None) -> dict[str, Array]:
    """Read one or two rows of some columns."""
    wanted = [row] if after is None else [row, after]
    pieces = []
    for at in wanted:
        with table.rows(keys) as rows:
            pieces.append(rows.read(at, at + 1))
    return {k: np.concatenate([p[k] for p in pieces]) for k in keys}
