"""The journal of decisions in the home: they are kept as they are made, and undone by a record, too.

::

    <home>/decisions/<family>+<name>~<origin>.jsonl     a line for each record, see `base.files.journal`
        {"decision": {"id": "0f3a...", "do": "drop", "by": "ann", "time": "...", "version": 3}}
        {"undo": ["5b1c..."], "by": "ann", "time": "..."}

The origin is of the first version of the dataset: all its versions have one journal, and another dataset that gets the
name later has another. The dataset itself is not written: it may be one of the registry, or of another user.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from rlds_cli.base import ids, settings
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.journal import SharedJournal
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset.decisions import account, agreement, tables
from rlds_cli.dataset.decisions.agreement import Agreement
from rlds_cli.dataset.decisions.allowed import Allowed, allowed
from rlds_cli.dataset.decisions.decision import Decision, now
from rlds_cli.dataset.fixed import OpenDataset
from rlds_cli.errors import InvalidArgument, NameTaken, NoPermission
from rlds_cli.homes import Home, writing
from rlds_cli.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One record of a journal: decisions that were made, or the keys of those that were undone.

    Attributes
    ----------
    decision : Decision, optional
    undone : tuple of str
        Keys of decisions; without them, the entry is of a decision.
    by, time : str
        Who has made or undone it, and when.
    """

    decision: Decision | None = None
    undone: tuple[str, ...] = ()
    by: str = ""
    time: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPart:
    """The entries behind a revision of a journal, in order, and the revision behind them."""

    entries: tuple[Entry, ...]
    revision: int


class DecisionJournal:
    """The decisions on a dataset that were made in a home; several processes may add to it at once.

    Parameters
    ----------
    ds : Dataset
    home : path, optional
        A home instead of ``RLDS_HOME``.
    """

    def __init__(self, ds: OpenDataset, *, home: StrPath | None = None) -> None:
        self._ds, self._home = ds, Home(settings.read(home).home)
        id, origin = ids.parse(ds.id), _origin(ds.store)
        self._name = self._home.decisions / f"{id.family}+{id.component}"
        self._file = SharedJournal(self._name.with_name(f"{self._name.name}~{origin[:16]}.jsonl"), origin)

    @property
    def allowed(self) -> Allowed:
        """What may be decided on the dataset, and what may come of it."""
        return allowed(self._ds, self._home)

    @property
    def labels(self) -> Path:
        """The file, if there is one, of the labels that are offered to those who decide; see docs/guides/decide.md."""
        return self._name.with_name(f"{self._name.name}.toml")

    def add(
        self, decisions: Iterable[Decision | Mapping[str, Any]], *, instead: Sequence[str] = (), by: str = ""
    ) -> int:
        """Add decisions, all or none of them. They are on the disk when this returns the revision behind them.

        Those that do not say their time get the present one, and those that do not say a version that which is open.
        Decisions of the keys ``instead`` are undone with the same write, by ``by``; keys that are gone are passed over.

        Raises
        ------
        InvalidArgument
            One is not a decision, names no episode of this version, or steps that the episode does not have.
        NoPermission, NoSpace
            The home cannot be written.
        """
        added = [self._completed(Decision.of(d)) for d in decisions]
        records: list[Mapping[str, Any]] = [{"decision": d.record()} for d in added]
        return self._append([*records, *([{"undo": list(instead), "by": by, "time": now()}] if instead else [])])

    def undo(self, keys: Sequence[str], *, by: str = "", time: str = "") -> int:
        """Undo decisions of this journal by their keys, and return the revision behind that.

        What a version has of them already stays in it; `Dataset.restore` makes an earlier one the newest.

        Raises
        ------
        InvalidArgument
            There is no such decision, or it is undone already.
        NoPermission, NoSpace
            The home cannot be written.
        """
        there = {d.key for d in self.made()}
        for key in keys:
            if key not in there:
                raise InvalidArgument(f"There is no decision {key!r:.40} on {self._ds.id}, or it was undone.")
        return self._append([{"undo": list(keys), "by": by, "time": time or now()}])

    def read(self, since: int = 0) -> JournalPart:
        """Return the entries behind a revision, which `read`, `add` or `undo` has returned; all of them behind 0.

        A record of another kind, such as one of a later version of this program, is passed over.

        Raises
        ------
        DamagedDataset, NoPermission
            The file is not a journal of this dataset.
        """
        found = self._file.since(since)
        entries = (_entry(r) for r in found.records)
        return JournalPart(entries=tuple(e for e in entries if e is not None), revision=found.revision)

    def made(self) -> list[Decision]:
        """Return the decisions that were made and not undone, in order; raises as `read`."""
        found: list[Decision | None] = []
        places: dict[str, list[int]] = {}
        for e in self.read().entries:
            if e.decision is not None:
                places.setdefault(e.decision.key, []).append(len(found))
                found.append(e.decision)
            for key in e.undone:
                for k in places.pop(key, ()):
                    found[k] = None
        return [d for d in found if d is not None]

    def pending(self) -> list[Decision]:
        """Return the decisions of `made` that the open version does not have; those that a restore has undone, too."""
        there = {d.key for d in account.applied(self._ds)}
        return [d for d in self.made() if d.key not in there]

    def export(self, file: Path, *, force: bool = False) -> int:
        """Write the decisions of `made` as a CSV file, which `Dataset.apply` reads, and return how many they are.

        Raises
        ------
        NameTaken
            The file exists, and ``force`` is not set.
        NoPermission
            It cannot be written.
        """
        if file.exists() and not force:
            raise NameTaken(f"{file} exists already.", hint="another name, or --force (force=True) replaces it")
        made = self.made()
        try:
            safe_files.replace_text(file, tables.as_csv(made))
        except OSError as e:
            raise NoPermission(f"{file} cannot be written: {e.strerror}.") from e
        return len(made)

    def agreement(self, decisions: StrPath | Iterable[Decision | Mapping[str, Any]] | None = None) -> Agreement:
        """Return how far annotators agree by the decisions of `made`, or of a file or records.

        Raises
        ------
        RldsError
            They cannot be understood.
        """
        if isinstance(decisions, str | PathLike):
            return agreement.agreement(tables.read_file(Path(decisions), self._ds.store))
        return agreement.agreement(self.made() if decisions is None else tables.of_records(decisions))

    def _append(self, records: Sequence[Mapping[str, Any]]) -> int:
        if not records:
            return self._file.since().revision
        with writing(self._home):
            safe_files.directory(self._file.path.parent, self._home.root)
            return self._file.append(records)

    def _completed(self, d: Decision) -> Decision:
        known = self._lengths
        if d.id not in known:
            raise InvalidArgument(f"{self._ds.id}#v{self._ds.store.version} has no episode of the id {d.id}.")
        if d.stop is not None and d.stop > known[d.id]:
            raise InvalidArgument(f"stop {d.stop:,}: episode {d.id} of {self._ds.id} has {known[d.id]:,} steps.")
        return replace(d, time=d.time or now(), version=d.version or self._ds.store.version)

    @property
    def _lengths(self) -> Mapping[str, int]:
        """The steps of the episodes by their ids."""
        if not hasattr(self, "_known"):
            e = self._ds.episodes.whole
            digits = e["id"].tobytes().hex()
            each = (digits[k : k + 32] for k in range(0, len(digits), 32))
            self._known = dict(zip(each, e["length"].tolist(), strict=True))
        return self._known


def _origin(store: Store) -> str:
    """Return what names a dataset through all its versions, and no other dataset that has its name later."""
    m = store.manifest
    begin = next((s["source"] for s in m.provenance if s.get("id") == s.get("from") == m.id), m.fingerprint)
    return hashlib.sha256(f"{m.id} {begin or m.created}".encode()).hexdigest()


def _entry(record: Any) -> Entry | None:
    try:
        if "decision" in record:
            d = Decision.of(record["decision"])
            return Entry(decision=d, by=d.by, time=d.time)
        undone = tuple(map(str, record["undo"]))
        return Entry(undone=undone, by=str(record.get("by", "")), time=str(record.get("time", "")))
    except (InvalidArgument, KeyError, TypeError, AttributeError):
        return None
