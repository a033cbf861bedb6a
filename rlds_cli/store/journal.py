"""Finished parts of a dataset under construction: one JSON line each, believed only where the rows still hash right."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import safe_files
from rlds_cli.errors import NoPermission
from rlds_cli.store import rows
from rlds_cli.store.rows import Position, Written
from rlds_cli.ted import EpisodeTable, Field, Note, Repeated


class Journal:
    """The file ``journal.jsonl`` of a directory; ``key`` says what is being made, and other work is forgotten."""

    def __init__(self, directory: Path, key: str, name: str = "journal.jsonl") -> None:
        self._path = directory / name
        self._key = key

    def begin(self, **about: Any) -> None:
        """Start it anew; ``about`` stands in its first line."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        safe_files.replace_text(self._path, json.dumps({"key": self._key, **about}) + "\n")

    def record(self, part: int, where: str, written: Written) -> None:
        """Add a finished part; ``where`` is its directory relative to the journal's."""
        line = json.dumps({"part": part, "where": where, **_to_json(written)}) + "\n"
        with os.fdopen(safe_files.open_own(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as f:
            f.write(line.encode())

    def load(
        self, directory: Path, schema: Sequence[Field], paths: Mapping[str, str]
    ) -> dict[int, tuple[str, Written]]:
        """The parts that are whole on disk. A journal of other work is started anew."""
        lines = self._lines()
        if not lines or lines[0].get("key") != self._key:
            self.begin()
            return {}
        found: dict[int, tuple[str, Written]] = {}
        for line in lines[1:]:
            written = _from_json(line)
            if rows.rehash(directory / line["where"], schema, paths, written):
                found[line["part"]] = (line["where"], written)
        return found

    def _lines(self) -> list[dict[str, Any]]:
        try:
            with safe_files.updating(self._path) as f:
                data = f.read()
                # A line that a kill cut short is not there; whatever follows would be glued to it.
                whole = data[: data.rfind(b"\n") + 1]
                f.truncate(len(whole))
        except FileNotFoundError:
            return []
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError:
            return []


def read(path: Path) -> tuple[dict[str, Any], list[tuple[int, str, Written]]]:
    """A journal that another process may be writing: its first line, and the parts that it says are finished."""
    try:
        with safe_files.reading(path) as f:
            text = f.read().decode()
        head, *lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return head, [(line["part"], line["where"], _from_json(line)) for line in lines]
    except (OSError, ValueError, KeyError, TypeError, NoPermission):
        return {}, []  # it is just beginning, or gone


def _to_json(w: Written) -> dict[str, Any]:
    e = w.episodes
    return {
        "start": asdict(w.start) | {"strings": {k: len(v) for k, v in w.start.strings.items()}},
        "rows": w.rows,
        "frame_bytes": w.frame_bytes,
        "new_strings": w.new_strings,
        "hashes": w.hashes,
        "notes": [asdict(n) for n in w.notes],
        "episodes": {
            **{name: getattr(e, name).tolist() for name in ("length", "end", "observed", "source", "row")},
            **{name: _given(getattr(e, name)) for name in ("group", "seed", "options")},
            "splits": {k: v.tolist() for k, v in e.splits.items()},
            "extra": e.extra,
        },
    }  # fmt: skip


def _given(values: Sequence[Any]) -> list[Any]:
    """A column of the episode table; empty where it has no values."""
    return [] if isinstance(values, Repeated) else list(values)


def _from_json(d: Mapping[str, Any]) -> Written:
    e = dict(d["episodes"])
    e["splits"] = {k: np.array(v, bool) for k, v in e["splits"].items()}
    # The strings before this part are those of the parts before it; only the position matters for hashing.
    start = Position(d["start"]["rows"], d["start"]["frame_bytes"], {})
    notes = tuple(Note(**n) for n in d["notes"])
    return Written(start, d["rows"], d["frame_bytes"], d["new_strings"], d["hashes"], EpisodeTable(**e), notes)
