"""The account of an archive: the fate of each file, and of each column, key, attribute and group in it.

A reader fills a `Ledger` as it plans. Each thing is used, as a field, a column of the episode table or a fact, or is
left out for a reason. What a file holds is listed by `formats.inventory`, which knows no reader, so that nothing is
missing because nobody thought of it::

    file       ep_0.hdf5                    used as episodes
    file       notes.txt                    left out: not a table
    dataset    ep_*.hdf5: action            used as action
    attribute  ep_*.hdf5: action@unit       used as metadata
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlds_cli.base.limits import MOST_ENTRIES
from rlds_cli.base.media import media_files
from rlds_cli.base.text import natural, plural
from rlds_cli.errors import ReaderError
from rlds_cli.ted import Note

if TYPE_CHECKING:
    from rlds_cli.archives.formats.inventory import Item

FILE = "file"
EPISODES, METADATA, SPLITS = "episodes", "metadata", "splits"  # what things are used as beside fields and columns
ENDS = "ends of episodes"
COLUMN = "episode/"  # a column of the episode table, by its name behind it
LAYOUT = "the layout"
EXPORT_NAMES = "names of an export"
UNREAD = "the layout gives it no meaning"
OF_DATASETS = "such attributes are not read"
EMPTY = "it is empty"
NO_PLACE = "the layout has no such file"
NOT_READ = "the reader does not read it; a note says why if it is damaged"
NOT_A_FIELD = "it has no value of one kind at each step of every episode; a note says why"
NO_STEPS = "its episode has no steps"
NOT_ALL = "some files, episodes or rows do not have it"
EMPTY_EPISODES, BAD_FILES = "empty-episodes", "bad-files"  # codes of notes about episodes that are left out
LEFT_OUT_FILES = "left-out-files"  # that of the note about files of data that nothing names
MORE = "others, of which there are too many to list"
UNTOLD = "files of a reader that gives no account"
_SHOWN, _FILES = 10, 5  # of the files in a note: groups, and files of a group
_NUMBER, _SUFFIX = re.compile(r"\d+"), re.compile(r"\.[A-Za-z]+\d?$")


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a thing: it is used as something, by names, or left out for a reason."""

    used_as: tuple[str, ...] = ()
    left_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Things of one kind and one fate.

    ``name`` is that of the thing; of several with names that differ in numbers alone, a pattern with ``*`` for these.
    ``used_as`` are the names of fields, columns and other things that it is used as.
    """

    kind: str
    name: str
    count: int = 1
    used_as: tuple[str, ...] = ()
    left_out: str = ""

    @property
    def is_file(self) -> bool:
        """Whether it is a file, and not something in one."""
        return self.kind == FILE

    @property
    def is_untold(self) -> bool:
        """Whether it is a file of which the reader says nothing."""
        return UNTOLD in self.used_as

    @classmethod
    def of_files(cls, name: str, count: int, *, left_out: str) -> Entry:
        """Return the entry of files that are left out."""
        return cls(kind=FILE, name=name, count=count, left_out=left_out)

    def as_json(self) -> dict[str, Any]:
        """Return the entry for a manifest, without what is empty; half surrogate pairs become question marks."""
        texts = {"kind": self.kind, "name": self.name, "left_out": self.left_out}
        said: dict[str, Any] = {k: _writable(text) for k, text in texts.items() if text or k == "name"}
        used = {"used_as": [*map(_writable, self.used_as)]} if self.used_as else {}
        return {**said, **used, "count": self.count}

    @classmethod
    def of_json(cls, said: Mapping[str, Any]) -> Entry:
        """Return the entry of a manifest."""
        return cls(**{**said, "used_as": tuple(said.get("used_as", ()))})


def _writable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@lru_cache(1 << 10)
def used_as(*names: str) -> Fate:
    """Return the fate of what is used, as one thing or several."""
    return Fate(used_as=tuple(dict.fromkeys(names)))


@lru_cache(1 << 10)
def left_out(why: str) -> Fate:
    """Return the fate of what is left out."""
    return Fate(left_out=why)


@dataclass(frozen=True, slots=True)
class Account:
    """What becomes of an archive: of its files, by name as the manifest names them, and of the things in them.

    ``each`` are kinds and names of things that every episode has: `completed` counts them when all were read.
    """

    files: Mapping[str, Fate]
    things: tuple[Entry, ...] = ()
    each: tuple[tuple[str, str], ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Files first, then what they hold; what is used before what is left out."""
        told = Ledger()
        for name, fate in self.files.items():
            told.add(FILE, name, fate)
        return sorted_entries((*told.account().things, *self.things))

    def correcting(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """Return ``entries``, made by an earlier plan of the same files, with the things of this account."""
        return sorted_entries((*(e for e in entries if e.is_file), *self.things))

    def completed(self, entries: Iterable[Entry], episodes: int, notes: Iterable[Note]) -> tuple[Entry, ...]:
        """Return ``entries`` of it in which the things of each episode are counted, once all episodes were read.

        Parameters
        ----------
        entries : iterable of Entry
        episodes : int
            The number of those that are used.
        notes : iterable of Note
            The notes of reading, which count those that are left out.
        """
        lost = {EMPTY_EPISODES: 0, BAD_FILES: 0}
        for n in notes:
            lost |= {n.code: lost[n.code] + n.count} if n.code in lost else {}
        reasons = {NO_STEPS: lost[EMPTY_EPISODES], NOT_READ: lost[BAD_FILES]}
        found: list[Entry] = []
        for e in entries:
            if (e.kind, e.name) not in self.each:
                found.append(e)
                continue
            found.append(replace(e, count=episodes))
            found += (Entry(kind=e.kind, name=e.name, count=n, left_out=why) for why, n in reasons.items() if n)
        return sorted_entries(found)


class Ledger:
    """Makes an `Account`, as a reader plans."""

    def __init__(self) -> None:
        self._files: dict[str, Fate] = {}
        self._counts: Counter[tuple[str, str, Fate]] = Counter()
        self._names: dict[tuple[str, str, Fate], str] = {}  # of the one thing that an entry stands for so far
        self._each: set[tuple[str, str]] = set()

    def file(self, name: str, fate: Fate) -> None:
        """State the fate of a file."""
        self._files[name] = fate

    def all_files(self, files: Iterable[Path], root: Path, fates: Mapping[Path, Fate]) -> None:
        """State the fate of the files of an archive below ``root``; those that ``fates`` lacks are left out."""
        for path in files:
            self.file(path.relative_to(root).as_posix(), fates.get(path) or left_out(NO_PLACE))

    def add(self, kind: str, name: str, fate: Fate, count: int = 1) -> None:
        """State the fate of things of one name."""
        if not count:
            return
        key = kind, _pattern(name, whole=kind == FILE), fate
        self._counts[key] += count
        self._names[key] = name if self._names.get(key, name) == name else key[1]

    def each(self, kind: str, name: str, fate: Fate) -> None:
        """State the fate of things of one name that every episode has, of which nobody knows yet how many there are."""
        self.add(kind, name, fate)
        self._each.add((kind, name))

    def drop(self, fields: Collection[str], why: str) -> None:
        """Leave out what was used as some fields alone, and say why."""
        for key in [*self._counts]:
            kind, name, fate = key
            kept = [use for use in fate.used_as if use not in fields]
            if len(kept) == len(fate.used_as):
                continue
            after = kind, name, used_as(*kept) if kept else left_out(why)
            self._counts[after] += self._counts.pop(key)
            self._names[after] = self._names.pop(key) if after not in self._names else name

    def inside(
        self,
        items: Iterable[Item],
        fates: Mapping[str, Fate],
        file: str,
        *,
        others: Callable[[Item], Fate | None] | None = None,
    ) -> None:
        """State the fate of all that a file holds.

        Parameters
        ----------
        items : iterable of Item
            What the file holds, as `formats.inventory.items` lists it.
        fates : mapping of str to Fate
            By the names of items.
        file : str
            For messages.
        others : callable, optional
            Returns the fate of another thing; None leaves it out.

        Raises
        ------
        ReaderError
            ``fates`` names what the file does not hold.
        """
        there = set[str]()
        for item in items:
            there.add(item.name)
            fate = fates.get(item.name) or (others(item) if others is not None else None)
            self.add(item.kind, item.name, fate or unread(item))
        if odd := fates.keys() - there:
            raise ReaderError(f"{file}: the account of the reader names {min(odd)!r}, which the file does not hold.")

    def account(self) -> Account:
        """Return what was said."""
        things = [
            Entry(
                kind=kind,
                name=self._names[kind, name, f],
                count=n,
                used_as=f.used_as,
                left_out=f.left_out,
            )
            for (kind, name, f), n in self._counts.items()
        ]
        return Account(dict(self._files), sorted_entries(things), tuple(sorted(self._each)))


def notes_of_files(root: Path, left_out: Mapping[Path, str]) -> Iterator[Note]:
    """Yield the note that says which files of data below ``root`` are left out, and why, if there are any."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, why in left_out.items():
        name = path.relative_to(root)
        groups[name.parent.as_posix() if media_files.is_image(path) else "", why].append(name.as_posix())
    said = [_several(names, why) for (_, why), names in groups.items()]
    if said:
        text = "; ".join(said[:_SHOWN]) + (f"; and {len(said) - _SHOWN:,} more" if said[_SHOWN:] else "")
        were = "was" if len(left_out) == 1 else "were"
        yield Note(LEFT_OUT_FILES, f"{plural(len(left_out), 'file')} {were} left out: {text}")


def _several(names: Sequence[str], why: str) -> str:
    shown = ", ".join(names[:_FILES]) + (f" and {len(names) - _FILES:,} more" if names[_FILES:] else "")
    return f"{shown} ({why})"


def fates_of(fields: Mapping[str, str], there: Collection[str]) -> dict[str, Fate]:
    """Return the fates of columns, by the keys of fields; a derived key stands for what it is made of."""
    from rlds_cli.archives.formats.tables import made_of  # opens files, which the asking side does not

    names: dict[str, list[str]] = {}
    for field, key in fields.items():
        for part in made_of(key, there):
            names.setdefault(part, []).append(field)
    return {key: used_as(*of) for key, of in names.items()}


def sorted_entries(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Sort entries: files first, then what they hold; what is used before what is left out."""
    return tuple(sorted(entries, key=_order))


def _order(e: Entry) -> tuple[bool, bool, str, Any]:
    return e.kind != FILE, bool(e.left_out), e.kind, natural(e.name)


def unread(item: Item) -> Fate:
    """Return the fate of a thing that a reader does not know."""
    from rlds_cli.archives.formats import inventory  # opens files, which the asking side does not

    if item.use:
        return used_as(item.use)
    if item.kind == inventory.GROUP:
        return left_out(EMPTY)
    return left_out(item.why or (OF_DATASETS if item.kind == inventory.ATTRIBUTE else UNREAD))


def _pattern(name: str, *, whole: bool) -> str:
    """Put ``*`` for the numbers in the folders and groups of a name; with ``whole`` for those behind them, too."""
    if whole:
        folder, slash, last = name.rpartition("/")
        return _without_numbers(folder) + slash + _without_numbers(last, is_file=True)
    above, mark, last = name.rpartition("@") if "@" in name else name.rpartition("/")
    return _NUMBER.sub("*", above) + mark + last


@lru_cache(1 << 12)
def _without_numbers(name: str, *, is_file: bool = False) -> str:
    end = _SUFFIX.search(name) if is_file else None
    stem = name[: end.start()] if end else name
    return _NUMBER.sub("*", stem) + name[len(stem) :]


def recorded_account(entries: Sequence[Entry]) -> tuple[dict[str, Any], ...]:
    """Return an account as a manifest keeps it; of a very long one, what is left out first, and counts of the rest."""
    if len(entries) > MOST_ENTRIES:
        first = sorted(entries, key=lambda e: not e.left_out)
        kept, rest = first[: MOST_ENTRIES - 64], Counter[tuple[str, bool]]()
        for e in first[len(kept) :]:
            rest[e.kind, bool(e.left_out)] += e.count
        more = [
            Entry(kind=kind, name=MORE, count=n, **({"left_out": MORE} if lost else {"used_as": (MORE,)}))
            for (kind, lost), n in rest.items()
        ]
        entries = [*kept, *more]
    return tuple(map(Entry.as_json, entries))
