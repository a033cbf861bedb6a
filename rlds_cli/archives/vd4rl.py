"""V-D4RL: frames of the DeepMind control suite, 64 px as one npz per episode, 84 px as HDF5 shards.

In both, a row holds an observation, and the action and reward that led to it::

    row            0     1     2     3              T = 3 steps, T+1 rows
    image          o0    o1    o2    o3             -> observation     both; in shards its name is observation
    action         0     a0    a1    a2             -> action          root: of step t is row t+1's
    reward         0     r0    r1    r2             -> next/reward, next/discount, next/terminated: likewise
    step_type      0     1     1     2              shards only; in an npz is_first, is_last, is_terminal
    anything else  s0    s1    s2    s3             -> state/<key>     both

A file of 64 px is one episode, named ``<time>-<uuid>-<rows>.npz``. Files of 84 px (``0.hdf5``, ``1.hdf5``, ...) hold
episodes end to end, and were cut into shards anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds_cli.archives.account import BAD_FILES
from rlds_cli.archives.flat import Flat, FlatEpisodes, FlatLayout
from rlds_cli.archives.flat_rows import Stretch
from rlds_cli.archives.formats.tables import NOT, Table
from rlds_cli.archives.names import row_field
from rlds_cli.archives.readers import Archive, ArchivedStep, Part, Plan
from rlds_cli.archives.variants import Variants
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.subset import EVERYTHING, Subset
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import CUT, REWARD, TERMINATED, TRUNCATED, Field, Note

DISCOUNT = "next/discount"
FIRST, LAST = 0, 2  # of step_type; 1 is any other row
LENGTH, NUMBER = re.compile(r"-(\d+)$"), re.compile(r"(\d+)$")  # at the end of the names of an npz, of a shard


class FrameFamily(Flat):
    """What both sizes have in common; ``frames`` is the column of frames, ``marks`` say where episodes end."""

    name, title, unlike = "vd4rl", "V-D4RL", CorruptArchive
    frames: ClassVar[str]
    marks: ClassVar[tuple[str, ...]]
    needed: ClassVar[tuple[str, ...]]

    def check(self, archive: Archive) -> None:
        """Refuse mappings, rules for ends, and files of both kinds."""
        if archive.fields or archive.episodes_by not in (None, *self.rules):
            raise UnknownLayout(f"{self.title}'s names and ends are fixed; --map and --episodes-by do not apply.")
        if odd := next((p for p in archive.files if not self.is_file(p)), None):
            raise UnknownLayout(
                f"{odd.name} is not of the kind of {archive.files[0].name}, or damaged.",
                hint=f"an archive of {self.title} is all npz or all HDF5: name one of its directories",
            )

    def layout(self, table: Table, archive: Archive) -> FlatLayout:
        """Assign the columns of a file to fields; all have a row for each observation."""
        there = table.columns
        lengths = {key: c.shape[0] if c.shape else None for key, c in there.items()}
        rows = lengths.get("action")
        scalars = [key for key in ("reward", "discount", *self.marks) if key in there]
        if missing := [key for key in self.needed if key not in there]:
            why = f"has no {' and no '.join(missing)}; it holds {', '.join(sorted(there))}"
        elif odd := [f"{key} {n}" for key, n in lengths.items() if n != rows]:
            why = f"is ragged: {', '.join(odd)} rows, action {rows}"
        elif strange := [key for key, c in there.items() if c.dtype.kind not in "biuf"]:
            why = f"holds values that are not numbers: {', '.join(strange)}"
        elif wide := [key for key in scalars if there[key].size != rows]:
            why = f"has more than one value a row in {', '.join(wide)}"
        else:
            names = {self.frames: "observation", "action": "action", "reward": REWARD, "discount": DISCOUNT}
            columns = {names.get(key) or f"state/{key}": key for key in there if key not in self.marks}
            fields = [row_field(n, there[key], scalar=n.startswith("next/")) for n, key in columns.items()]
            placed = [replace(f, placement="both") if f.name.startswith("state/") else f for f in fields]
            terminals = self.terminals(table)
            table.derive([terminals] if terminals else [])
            return FlatLayout(rows or 0, tuple(placed), columns, terminals=terminals, late=True)
        raise self.bad(table, archive, why)

    def bad(self, table: Table, archive: Archive, why: str) -> CorruptArchive:
        """Make the error for a file that is not as V-D4RL's are."""
        return CorruptArchive(f"{table.path.name} {why}.", hint="--skip-bad leaves it out of several")

    def terminals(self, table: Table) -> str | None:
        """Name the column of flags that may be set inside an episode, too."""
        return None

    def joint_schema(self, archive: Archive, schemas: Sequence[tuple[Field, ...]]) -> tuple[Field, ...]:
        """Return the fields of all files: float64 if some are float32."""
        if len({tuple((f.name, f.shape) for f in s) for s in schemas}) > 1:
            return super().joint_schema(archive, schemas)
        return tuple(replace(same[0], dtype=_joint_dtype(same)) for same in zip(*schemas, strict=True))

    def stretch(self, plan: Plan, part: Part, found: FlatLayout) -> Stretch:
        """Note first rows that hold an action or a reward."""
        made = super().stretch(plan, part, found)
        begins = np.append(made.start, made.episodes.stops[:-1])[np.diff(made.episodes.stops, prepend=made.start) > 1]
        return replace(made, flagged=False, odd_values=partial(_first_rows, begins, set()))

    def has_final(self, table: Table, place: ArchivedStep) -> bool:
        """Every episode has its final row."""
        return True


def _joint_dtype(same: Sequence[Field]) -> str:
    return np.result_type(*{f.dtype for f in same}).name


def _first_rows(
    begins: IntArray, told: set[int], f: Field, values: Array, start: int
) -> tuple[str, str, BoolArray] | None:
    """Mark the first rows of episodes that hold values of the step before them, each once."""
    if f.name not in ("action", REWARD):
        return None
    here = begins[slice(*np.searchsorted(begins, (start, start + len(values))))]
    odd = [at for at in here.tolist() if at not in told and np.any(values[at - start])]
    told.update(odd)
    marks = np.isin(np.arange(start, start + len(values)), odd)
    text = "first rows have an action or a reward of the step before them; it is left out"
    return ("first-action", text, marks) if odd else None


class EpisodeShards(FrameFamily):
    """64 px: an npz for each episode."""

    container, rules, whole_files = "npz", ("file",), True
    frames = "image"
    marks: ClassVar[tuple[str, ...]] = ("is_first", "is_last", "is_terminal")
    needed: ClassVar[tuple[str, ...]] = ("image", "action", "reward")

    def describe(self, table: Table, paths: Sequence[Path]) -> tuple[str, str] | None:
        """Tell V-D4RL's npz by their columns."""
        there = set(table.columns)
        if not {*self.needed} <= there or not there & {*self.marks, "discount"}:
            return None
        rows = table["action"].shape[:1]
        return "V-D4RL layout", f"an episode of {rows[0] if rows else 0:,} rows"

    def choose(
        self, names: Sequence[str], portion: Subset, read: Callable[[str], bytes]
    ) -> tuple[Sequence[str], Subset]:
        """Choose the files of the wanted episodes, if each file is one; only the rows of shards tell their episodes."""
        files = [n for n in names if n.endswith(".npz")]
        if portion.split is not None or not files:
            return names, portion
        unwanted = {*files} - {files[k] for k in portion.numbers(len(files))}
        return [n for n in names if n not in unwanted], EVERYTHING

    def terminals(self, table: Table) -> str | None:
        """Any value but 0 is a flag, and so is a discount of 0."""
        return f"{NOT}{NOT}is_terminal" if "is_terminal" in table else f"{NOT}discount" if "discount" in table else None

    def episodes(self, table: Table, found: FlatLayout, archive: Archive) -> FlatEpisodes:
        """Find how the episode of a file ends; refuses marks that are in other rows than the first and the last."""
        marks = {key: table.source.array(key).reshape(-1) for key in (*self.marks, "discount") if key in table}
        for key, at in (("is_first", 0), ("is_last", found.rows - 1)):
            rows = np.flatnonzero(marks.get(key, ())).tolist()
            if rows not in ([], [at]):
                listed = ", ".join(map(str, rows[:5]))
                raise self.bad(table, archive, f"{key} is set in rows {listed} of {found.rows}: not one episode")
        over = bool(marks["is_terminal"][-1:].any()) if "is_terminal" in marks else 0 in marks.get("discount", ())[-1:]
        end = TERMINATED if over else TRUNCATED if "is_last" in marks and marks["is_last"][-1:].any() else CUT
        one = np.ones(min(found.rows, 1), np.uint8)
        return FlatEpisodes(found.rows * one.astype(np.int64), one.astype(bool), end * one)

    def facts(
        self, archive: Archive, seen: Sequence[FlatLayout], found: Sequence[FlatEpisodes], mode: str | None
    ) -> Mapping[str, Any]:
        """Record the convention of rows."""
        return {"kind": "npz", "rows": "a row holds the action and reward that led to it"}

    def notes(self, archive: Archive, index: int, found: FlatLayout, episodes: FlatEpisodes) -> Iterator[Note]:
        """Note a name that ends in another length than the file has."""
        yield from super().notes(archive, index, found, episodes)
        said = LENGTH.search(archive.files[index].stem)
        if said and int(said[1]) != found.rows:
            text = "names of files say another number of rows than they have; the files count"
            yield Note("length-in-name", text, 1, archive.name_of(index))

    def metadata(self, plan: Plan) -> Iterator[tuple[str, Array | str]]:
        """Return nothing: every value is per row."""
        return iter(())


class Shards(FrameFamily):
    """84 px: episodes end to end, cut into files anywhere."""

    container, joined = "hdf5", True
    frames, marks = "observation", ("step_type",)
    needed = ("observation", "action", "reward", "step_type")

    def describe(self, table: Table, paths: Sequence[Path]) -> tuple[str, str] | None:
        """Tell V-D4RL's shards: other logs of dm_env hold no frames, and their actions stand in other rows."""
        known = {*self.needed} <= set(table.columns) and len(table["observation"].shape) == 4
        return ("V-D4RL layout", f"{table['observation'].shape[0]:,} rows") if known else None

    def episodes(self, table: Table, found: FlatLayout, archive: Archive) -> FlatEpisodes:
        """Find the episodes of one shard: each begins with a first row, or after a last one."""
        kind = table.source.array("step_type").reshape(-1)
        if not np.isin(kind, (FIRST, 1, LAST)).all():
            raise self.bad(table, archive, "has step types other than 0 (first), 1 (mid) and 2 (last)")
        over = table.source.array("discount").reshape(-1) == 0 if "discount" in table else np.zeros(len(kind), bool)
        return _episodes(kind, over, np.zeros(1, np.int64))

    def join(
        self, archive: Archive, seen: Sequence[FlatLayout], found: Sequence[FlatEpisodes]
    ) -> tuple[FlatEpisodes, list[Note]]:
        """Find the episodes in the rows of all shards; none runs across a shard that is missing."""
        numbers = [int(m[1]) for p in archive.files if (m := NUMBER.search(p.stem))]
        gaps = [i for i, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1]
        if len(numbers) < len(archive.files):  # without numbers nobody knows which shard is missing
            gaps = [*range(1, len(archive.files))] if any(n.code == BAD_FILES for n in archive.left_out) else []
        starts = np.cumsum([0, *(x.rows for x in seen)])
        kind, over = (np.concatenate([x.about[key] for x in found]) for key in ("kind", "over"))
        joined = _episodes(kind, over, starts[[0, *gaps]])
        return joined, [*self._remarks(archive, gaps, starts, joined)]

    def _remarks(self, archive: Archive, gaps: Sequence[int], starts: IntArray, joined: FlatEpisodes) -> Iterator[Note]:
        if gaps:
            text = "numbers are missing among the shards; episodes that ran into the gap are cut there"
            yield Note("missing-shards", text, len(gaps), archive.name_of(gaps[0]))
        begins = np.append(0, joined.stops[:-1])[: len(joined.stops)]
        if (alone := joined.length < 1).any():
            at = archive.name_of(int(np.searchsorted(starts, begins[alone][0], "right")) - 1)
            yield Note("empty-episodes", "episodes of one row have no step, and are left out", int(alone.sum()), at)
        if (odd := joined.about["kind"][begins] != FIRST).any():
            text = "episodes begin in the middle: their first rows are in no shard"
            yield Note("fragments", text, int(odd.sum()), f"row {begins[odd][0]:,}")
        if (cut := np.asarray(joined.end) == CUT).any():
            text = "episodes have no last row, and are cut"
            yield Note("cut", text, int(np.count_nonzero(cut)), f"row {begins[cut][0]:,}")

    def notes(self, archive: Archive, index: int, found: FlatLayout, episodes: FlatEpisodes) -> Iterator[Note]:
        """Return nothing: `join` makes the notes."""
        yield from ()

    def facts(
        self, archive: Archive, seen: Sequence[FlatLayout], found: Sequence[FlatEpisodes], mode: str | None
    ) -> Mapping[str, Any]:
        """Record the convention of rows."""
        return {"kind": "shards", "rows": "a row holds the action and reward that led to it"}


def _episodes(kind: Array, over: BoolArray, breaks: IntArray) -> FlatEpisodes:
    """Find the episodes in rows of some step types; one begins at each of ``breaks``."""
    begins = kind == FIRST
    begins[1:] |= kind[:-1] == LAST
    begins[breaks[breaks < len(kind)]] = True
    stops = np.append(np.flatnonzero(begins)[1:], len(kind))[: len(kind)]
    last = kind[stops - 1] == LAST
    end = np.where(last & over[stops - 1], TERMINATED, np.where(last, TRUNCATED, CUT)).astype(np.uint8)
    return FlatEpisodes(stops, np.ones(len(stops), bool), end, {"kind": kind, "over": over})


READER = Variants(EpisodeShards(), Shards())
