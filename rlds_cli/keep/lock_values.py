"""Values of a lock file, with their places for messages. Nothing is believed: each has its type and range checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlds_cli.base.files import names
from rlds_cli.errors import RldsError

_LONGEST_TEXT = 4096
_DEEPEST = 32  # levels of lists and objects
_LARGEST = 1 << 63  # a signed integer of 64 bits
_SHOWN = 60  # characters of a wrong value
_FINGERPRINT = re.compile(r"rlds1:[0-9a-f]{64}")
_PLAIN_NAME = re.compile(r"\w{1,60}", re.ASCII)  # a member that a place shows without quotes


class InvalidLock(ValueError):
    """A value is not valid in a lock file; the message names its place."""


@dataclass(frozen=True, slots=True)
class LockValue:
    """A value and its place, such as ``datasets[3].files[0].size``."""

    value: Any
    place: str

    def wrong(self, wanted: str) -> InvalidLock:
        """Return the error that the value is not what is wanted."""
        kind = "an object" if isinstance(self.value, dict) else "a list" if isinstance(self.value, list) else None
        text = kind or json.dumps(self.value)
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        return InvalidLock(f"{self.place or 'it'} is {shown}, not {wanted}")

    def member(self, name: str) -> LockValue:
        """Return a member; raises InvalidLock without it."""
        here = self.mapping()
        if name not in here:
            raise InvalidLock(f'{self.place or "it"} has no "{name}"')
        return self._below(name)

    def optional(self, name: str) -> LockValue | None:
        """Return a member; None if it is missing or null."""
        return self._below(name) if self.mapping().get(name) is not None else None

    def _below(self, name: str) -> LockValue:
        key = name if _PLAIN_NAME.fullmatch(name) else f"[{json.dumps(name[:_SHOWN])}]"
        dot = "." if self.place and not key.startswith("[") else ""
        return LockValue(self.value[name], f"{self.place}{dot}{key}")

    def mapping(self) -> Mapping[str, Any]:
        """Return an object; raises InvalidLock for another value, as all of these do."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        return self.value

    def members(self) -> list[tuple[str, LockValue]]:
        """Return the members of an object, with names that can be printed."""
        found = []
        for name in self.mapping():
            LockValue(name, f"a name in {self.place}").text()
            found.append((name, self._below(name)))
        return found

    def only(self, known: Sequence[str]) -> None:
        """Refuse members of other names."""
        unknown = next((name for name in self.mapping() if name not in known), None)
        if unknown is not None:
            raise InvalidLock(
                f"{self.place or 'it'} has {json.dumps(unknown[:_SHOWN])}, which is not a member of lock files"
            )

    def listed(self) -> list[Any]:
        """Return a list, whose items may be many, without their places."""
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return self.value

    def item(self, k: int) -> LockValue:
        """Return an item of a list."""
        return LockValue(self.value[k], f"{self.place}[{k}]")

    def items(self) -> list[LockValue]:
        """Return the items of a list."""
        return [self.item(k) for k in range(len(self.listed()))]

    def text(self) -> str:
        """Return a short text that can be printed."""
        if not isinstance(self.value, str):
            raise self.wrong("a text")
        if len(self.value) > _LONGEST_TEXT:
            raise self.wrong(f"a text of at most {_LONGEST_TEXT:,} characters")
        if not self.value.isprintable():
            raise self.wrong("a text that can be printed")
        return self.value

    def matching(self, pattern: re.Pattern[str], wanted: str) -> str:
        """Return a text that matches a pattern as a whole."""
        if not isinstance(self.value, str) or not pattern.fullmatch(self.value):
            raise self.wrong(wanted)
        return self.value

    def fingerprint(self) -> str:
        """Return a fingerprint."""
        return self.matching(_FINGERPRINT, "a fingerprint, rlds1: and 64 digits")

    def one_of(self, known: Sequence[str]) -> str:
        """Return a text that is one of those known."""
        if self.value not in known:
            raise self.wrong(f"one of {', '.join(known)}")
        return str(self.value)

    def integer(self, largest: int = _LARGEST) -> int:
        """Return a whole number from 0 up to, but without, ``largest``."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or not 0 <= self.value < largest:
            raise self.wrong("a whole number")
        return self.value

    def flag(self) -> bool:
        """Return a flag."""
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def path(self) -> str:
        """Return a relative path that stays below its directory."""
        name = self.text()
        try:
            return names.safe(name)
        except RldsError:
            raise self.wrong("a relative path without `..`") from None

    def check_size(self) -> None:
        """Refuse values that are nested too deeply, and integers of more than 64 bits."""
        level, depth = [self.value], 0
        while level:
            large = next((v for v in level if isinstance(v, int) and not -_LARGEST <= v < 2 * _LARGEST), None)
            if large is not None:
                raise InvalidLock(f"{self.place} holds an integer of {len(str(abs(large)))} digits, not of 64 bits")
            holders = [v for v in level if isinstance(v, dict | list)]
            if holders and depth == _DEEPEST:
                raise InvalidLock(f"{self.place} is nested more than {_DEEPEST} levels deep")
            level = [inner for v in holders for inner in (v.values() if isinstance(v, dict) else v)]
            depth += 1
