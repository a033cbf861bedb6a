"""The versions of a dataset: when each was made, and of what."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from rlds_cli import homes
from rlds_cli.base import refs, settings, text
from rlds_cli.base.refs import Ref
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.dataset import editing, provenance
from rlds_cli.dataset.decisions import account
from rlds_cli.dataset.fixed import OpenDataset
from rlds_cli.dataset.opening import address_of
from rlds_cli.places import Address, PushedDataset, open_objects
from rlds_cli.store import Facts, History, Manifest, StoredDataset
from rlds_cli.store.history import Made

_PLAIN = re.compile(r"[\w@%+=:,./-]+")  # needs no quotes in a shell
_TYPED = re.compile(r"true|false|null|-?\d+(\.\d+)?([eE][-+]?\d+)?", re.IGNORECASE)
_OPTIONS = ("where", editing.BY_FINDINGS, "split", "episodes", "trim", editing.FROM_FILE)
_LONGEST = 200  # characters of a label


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a dataset.

    Attributes
    ----------
    number : int
        Of the version: ``ID#vNUMBER`` opens it.
    created : str
        ISO-8601 time, UTC.
    change : str
        What made it, as it is typed: ``label --where "take > 3" quality=bad``; or the reader for the first one.
    episodes, steps : int
    fingerprint : str
        Empty for a growing dataset, whose fingerprints are computed when they are asked for.
    tags : tuple of str
        Its names.
    decisions : sequence of mappings
        Who decided what, and when, if decisions made it; see docs/reference/decisions.md.
    """

    number: int
    created: str
    change: str
    episodes: int
    steps: int
    fingerprint: str
    tags: tuple[str, ...] = ()
    decisions: Sequence[Mapping[str, Any]] = ()

    @property
    def decided(self) -> tuple[str, ...]:
        """Who decided what, in words."""
        return tuple(account.lines(self.decisions))


@dataclass(frozen=True, slots=True)
class ProvenanceStep:
    """A step of the provenance of a dataset: a change of episodes or labels, appended files, or a function."""

    record: Mapping[str, Any]

    @property
    def is_edit(self) -> bool:
        """Whether it is a change of episodes, labels or facts."""
        return self.record.get("unit") == provenance.UNIT

    @property
    def appends(self) -> bool:
        """Whether it added episodes of files."""
        return self.record.get("unit") == provenance.APPEND

    @property
    def is_change(self) -> bool:
        """Whether a command made it, and no function."""
        return self.is_edit or self.appends

    @property
    def keeps_episodes(self) -> bool:
        """Whether it is an edit that leaves all episodes as they are."""
        made = self.record["function"]
        labels = made == account.APPLY and account.keeps_episodes(self._decisions)
        return self.is_edit and (labels or made in (editing.LABEL, editing.COMPACT))

    @property
    def _decisions(self) -> Any:
        args = self.record.get("args")
        return args.get(account.DECISIONS) if isinstance(args, Mapping) else None

    @property
    def decided(self) -> tuple[str, ...]:
        """Who decided what, in words, if decisions made it."""
        return tuple(account.lines(self._decisions))

    def described(self) -> str:
        """Return it as text: a change as the command that makes it, or a function and its arguments."""
        step, args = self.record, dict(self.record["args"])
        if self.appends:
            return f"append {args['files']} ({text.plural(args['episodes'], 'episode')})"
        if not self.is_edit:
            return " ".join([step["function"], *(f"{name}={_typed(value)}" for name, value in args.items())])
        if step["function"] == editing.RESTORE:
            return f"restore {step['from']}#v{args['version']}"
        if args.get(editing.FROM_FILE) and editing.BY_EPISODE in args.values():
            args = {n: v for n, v in args.items() if v != editing.BY_EPISODE}
        args.pop(editing.MEASURED, None)
        decisions = args.pop(account.DECISIONS, None)
        if step["function"] == account.APPLY:
            named = [_typed(args[editing.FROM_FILE])] if args.get(editing.FROM_FILE) else []
            return " ".join([account.APPLY, *named, f"({account.counted(decisions)})"])
        selected = args.pop("selected") if type(args.get("selected")) is int else None
        said = ["select" if "trim" in args else step["function"]]
        said += [f"--{name} {_typed(args.pop(name))}" for name in _OPTIONS if name in args]
        facts = [n for n in Facts.NAMES if n in args and n not in step.get("columns", ())]
        said += [_assignment(n, v) for n, v in args.items() if n not in facts]
        said += [f"--set {n}={_value(args[n])}" for n in facts]
        return " ".join(said if selected is None else [*said, f"({text.plural(selected, 'episode')})"])


def named_versions(ref: StrPath, *, home: StrPath | None = None) -> Sequence[Version]:
    """Return the versions of what a reference names, here or at an address, until the one that it names, oldest first.

    Raises
    ------
    DatasetNotFound, UnknownDataset
        It is neither here nor there, or has no such version.
    DamagedDataset, NewerFormat, DownloadFailed, Offline
    """
    named = refs.parse(ref)
    address = address_of(named)
    if address is not None:
        return _pushed(address, settings.read(home))
    return versions_of(homes.dataset(named.place, home=home), named)


def version_of(ref: StrPath | OpenDataset, *, home: StrPath | None = None) -> Ref:
    """Return the version of a directory that a reference names, or that a dataset is open at.

    Raises
    ------
    DatasetNotFound, UnknownDataset
        It is not on this disk.
    """
    if isinstance(ref, str | PathLike):
        return homes.version(ref, home=home)
    return Ref(History.of(ref.path).path, version=ref.store.version)


def versions_of(path: Path, until: Ref | None = None) -> Sequence[Version]:
    """Return the versions of the dataset in ``path`` on this disk, oldest first.

    The last one is that which ``until`` names; DatasetNotFound is raised if it is not here.
    """
    id, named, last = Manifest.read(path).id, History(path).tags, StoredDataset(path).number_of(until)
    return [_version(made, id, named) for made in StoredDataset(path).made() if last is None or made.number <= last]


def _pushed(address: Address, where: Settings) -> Sequence[Version]:
    """Return the versions at an address until the one that it names, the newest last.

    Raises
    ------
    DatasetNotFound
        No dataset was pushed there, or no such version.
    DamagedDataset, NewerFormat, DownloadFailed, Offline
    """
    with open_objects(address, where) as objects:
        there = PushedDataset(objects).versions_until_named()
    return [
        Version(v.number, v.created, v.change, v.episodes, v.steps, v.fingerprint, there.tags_of(v))
        for v in there.versions
    ]


def _version(made: Made, id: str, named: Mapping[str, int]) -> Version:
    step = ProvenanceStep({"unit": provenance.UNIT, "from": id, **(made.step or {})})
    change = made.by if made.step is None else step.described()
    held = tuple(tag for tag, number in named.items() if number == made.number)
    return Version(
        number=made.number,
        created=made.created,
        change=change,
        episodes=made.episodes,
        steps=made.steps,
        fingerprint=made.fingerprint,
        tags=held,
        decisions=(step.record.get("args") or {}).get(account.DECISIONS, ()),
    )


def _typed(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) or value == editing.BY_EPISODE:
        return value
    return shlex.quote(value) if set(value) & set('"$`\\!') else f'"{value}"'


def _assignment(column: str, value: Any) -> str:
    """Return a label as it is typed; a name with blanks needs quotes of the shell, too."""
    said = _value(value)
    return f"{column}={said}" if _PLAIN.fullmatch(column) else shlex.quote(column) + f"={said}"


def _value(value: Any) -> str:
    """Return the value of a label or fact as it is typed, shortened: a text that reads like a number is in quotes."""
    if isinstance(value, str) and len(value) > _LONGEST:
        value = value[:_LONGEST] + "..."
    looks_typed = isinstance(value, str) and _TYPED.fullmatch(value)
    return shlex.quote(json.dumps(value)) if looks_typed else _typed(value)
