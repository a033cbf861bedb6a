"""Parts of an archive: some files, some episodes, a named split. Imports nothing heavy.

::

    --include 'seed1*' --exclude '*.mp4'      files, by their paths or names
    --split train                             episodes of that split
    --episodes 0:100                          of these, the first hundred
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Self

from rlds_cli.base.ids import FRAME_CODECS, FRAME_SIZE, DatasetId
from rlds_cli.errors import ArchiveError, InvalidId

_RANGE = re.compile(r"(?P<start>\d*):(?P<stop>\d*)|(?P<one>\d+)")
_PLAIN = re.compile(r"[A-Za-z0-9.-]+")
_VARIANT = re.compile(r"(?:^|_)(include|exclude|split|episodes)-")
_DESCRIPTIONS = (".json", ".jsonl")


@dataclass(frozen=True, slots=True)
class Subset:
    """The part of an archive to convert; all of it by default. Manifests and readers call it ``portion``.

    Parameters
    ----------
    include, exclude : tuple of str
        Patterns of files, with ``*``, ``?`` and ``[...]``, where ``*`` also matches ``/``. They are matched with the
        whole path and with the name alone. Descriptions (``.json``, ``.jsonl``, files below ``meta/``) are always
        included.
    split : str, optional
        Only the episodes of this split.
    episodes : (int, int or None), optional
        Only the episodes from the first number on and before the second, counted within the split.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    split: str | None = None
    episodes: tuple[int, int | None] | None = None

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude or self.cuts)

    def numbers(self, count: int) -> range:
        """Return the numbers of the wanted episodes among ``count``.

        Raises
        ------
        ArchiveError
            There are too few episodes.
        """
        start, stop = self.episodes or (0, None)
        found = range(count)[start:stop]
        if not found:
            raise ArchiveError(f"There is no episode for {_said(start, stop)}: there are {count:,}, from 0 on.")
        return found

    def no_split(self, there: Iterable[str]) -> ArchiveError:
        """Return the error for an archive with other splits."""
        names = ", ".join(there)
        return ArchiveError(
            f"There is no split {self.split}.", hint=f"its splits are {names}" if names else "it has no splits"
        )

    @property
    def cuts(self) -> bool:
        """True if single episodes are wanted, not just files."""
        return self.split is not None or self.episodes is not None

    @classmethod
    def of(
        cls,
        *,
        include: str | Iterable[str] = (),
        exclude: str | Iterable[str] = (),
        split: str | None = None,
        episodes: str | None = None,
    ) -> Self:
        """Parse the options of a command or a call.

        Raises
        ------
        InvalidId
            ``episodes`` is not ``A:B``, ``A:``, ``:B`` or one number; or an empty pattern or split.
        """
        included, excluded = _patterns(include), _patterns(exclude)
        if "" in (*included, *excluded, split):
            raise InvalidId("An empty pattern or split matches nothing.", hint="--include 'seed1*', --split train")
        return cls(included, excluded, split, _range(episodes) if episodes else None)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Build the part from the ``facts`` of a manifest."""
        episodes = facts.get("episodes")
        return cls(
            tuple(facts.get("include", ())),
            tuple(facts.get("exclude", ())),
            facts.get("split"),
            (episodes[0], episodes[1]) if episodes else None,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The part as JSON values, without defaults."""
        said = {"include": [*self.include], "exclude": [*self.exclude], "split": self.split}
        episodes = {"episodes": [*self.episodes]} if self.episodes else {}
        return {k: v for k, v in said.items() if v} | episodes

    @property
    def name(self) -> str | None:
        """Name of the variant that holds the part: ``split-train_episodes-0-100``; None for the whole archive."""
        patterns = [
            f"{kind}-{_text(','.join(p))}" for kind, p in (("include", self.include), ("exclude", self.exclude)) if p
        ]
        split = [f"split-{_text(self.split)}"] if self.split else []
        bounds = [f"episodes-{self.episodes[0]}-{_end(self.episodes[1])}"] if self.episodes else []
        return "_".join([*patterns, *split, *bounds]) or None

    def __str__(self) -> str:
        """Describe the part: ``episodes 0 to 99 of the split train, of files seed1*``."""
        episodes = [_said(*self.episodes)] if self.episodes else []
        split = [f"the split {self.split}"] if self.split else []
        files = [f"files {' '.join(self.include) or '*'}"] if self.include or self.exclude else []
        without = f" without {' '.join(self.exclude)}" if self.exclude else ""
        return ", of ".join([*episodes, *split, *files]) + without

    def wants(self, path: str) -> bool:
        """Return whether a file of the archive is included and not excluded."""
        if _matches(path, self.exclude):
            return False
        described = path.lower().endswith(_DESCRIPTIONS) or "meta" in path.split("/")[:-1]
        return not self.include or described or _matches(path, self.include)

    def takes(self, path: str) -> bool:
        """Return whether a pattern of ``include`` names a file; True without patterns."""
        return not self.include or _matches(path, self.include)


EVERYTHING = Subset()


def described(options: Mapping[str, Any]) -> str | None:
    """Describe the part of its archive that a dataset holds, from its manifest's options; None for all of it."""
    facts = options.get("portion")
    if not facts:
        return None
    here, there = facts.get("files") or (0, 0)
    files = f"; {here:,} of {there:,} files" if there > 1 else ""
    return f"{Subset.from_facts(facts)}{files}"


def is_subset(variant: str) -> bool:
    """Return whether the name of a variant is that of a part of an archive."""
    return _VARIANT.search(variant) is not None


def command(id: DatasetId) -> str:
    """Return the command that makes a variant: a download of a part, or a preprocess run."""
    if not is_subset(id.variant or ""):
        return f"rlds preprocess {id.base} --fn ... --name {id.variant}"
    said = ""
    for word in str(id.variant).split("_"):
        kind, _, what = word.partition("-")
        if kind == "split":
            said += f" --split {what}"
        elif kind == "episodes" and (bounds := re.fullmatch(r"(\d+)-(\d+|end)", what)):
            said += f" --episodes {bounds[1]}:{bounds[2].replace('end', '')}"
        elif kind in ("raw", *FRAME_CODECS) or FRAME_SIZE.fullmatch(kind):
            said += f" --frames {kind}"
        else:
            return f"rlds download {id.base} --include GLOB"
    return f"rlds download {id.base}{said}"


def _patterns(given: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([given] if isinstance(given, str) else given))


def _range(text: str) -> tuple[int, int | None]:
    match = _RANGE.fullmatch(text.strip())
    if match is None or text.strip() == ":":
        raise InvalidId(f'"{text}" is not a range of episodes.', hint="0:100 for the first hundred, 100: for the rest")
    if match["one"]:
        return int(match["one"]), int(match["one"]) + 1
    start, stop = int(match["start"] or 0), int(match["stop"]) if match["stop"] else None
    if stop is not None and stop <= start:
        raise InvalidId(f'"{text}" holds no episode.', hint="0:100 for the first hundred")
    return start, stop


def _end(stop: int | None) -> str:
    return "end" if stop is None else str(stop)


def _said(start: int, stop: int | None) -> str:
    if stop is None:
        return f"episodes {start:,} to the last"
    return f"episode {start:,}" if stop == start + 1 else f"episodes {start:,} to {stop - 1:,}"


def _text(text: str) -> str:
    """Return text for use in an id: itself if it fits, else its valid characters and a hash."""
    if _PLAIN.fullmatch(text) and len(text) <= 40:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]
    return "-".join(filter(None, (re.sub(r"[^A-Za-z0-9.]+", "-", text)[:40].strip("-."), digest)))


def _matches(path: str, patterns: Iterable[str]) -> bool:
    name = path.rpartition("/")[2]
    return any(
        fnmatchcase(path, p) or fnmatchcase(name, p) or fnmatchcase(path, f"{p.rstrip('/')}/*") for p in patterns
    )
