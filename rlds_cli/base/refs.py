"""References to datasets: ``PLACE[#VERSION]``.

::

    local/day1                 an id; or an alias, an address or a path
    local/day1#v3              version 3
    local/day1#icra            the version with the tag ``icra``
    local/day1#rlds1:7c1f...   the newest version with this fingerprint, of which 12 digits or more are given

A path that exists is a place, also where its name has a ``#``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from rlds_cli.base import settings, visible
from rlds_cli.base.settings import StrPath
from rlds_cli.errors import InvalidId, RldsError

SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_NUMBER = re.compile(r"v(0|[1-9][0-9]{0,17})")
_TAG = re.compile(r"(?!v[0-9]+\Z)[A-Za-z][A-Za-z0-9._-]{0,99}")
_FINGERPRINT = re.compile(r"rlds1:([0-9a-f-]{12,80})")
WHOLE = "this is about the whole dataset"
_FORMS = "#v3, a tag such as #icra, or #rlds1:7c1f-09ab-55e2 (12 digits or more of a fingerprint)"


@dataclass(frozen=True, slots=True)
class Ref:
    """A place, and which version of the dataset there is meant; the newest one if none is named.

    Attributes
    ----------
    place : str or path
        An id, an alias, an address or a path.
    version : int, optional
        The number of a version.
    tag : str, optional
        The tag of a version.
    fingerprint : str, optional
        The fingerprint of a version, or its beginning: ``rlds1:`` and 12 to 64 digits without dashes.
    """

    place: StrPath
    version: int | None = None
    tag: str | None = None
    fingerprint: str | None = None

    @property
    def selector(self) -> str | None:
        """What stands after the ``#``; None if the newest version is meant."""
        return self.tag or self.fingerprint or (None if self.version is None else f"v{self.version}")

    def __str__(self) -> str:
        return os.fspath(self.place) + (f"#{self.selector}" if self.selector else "")

    def at(self, path: Path) -> Ref:
        """Return the reference to the same version in a directory."""
        return Ref(path, self.version, self.tag, self.fingerprint)


def parse(text: StrPath) -> Ref:
    """Parse a reference; the place of a path is a path.

    Raises
    ------
    InvalidId
        What stands after the last ``#`` names no version.
    """
    given = os.fspath(text)
    place, mark, name = given.rpartition("#")
    if not mark or os.path.lexists(settings.expanded(given)):
        return Ref(text)
    place_of: StrPath = Path(place) if isinstance(text, os.PathLike) else place
    number, fingerprint = _NUMBER.fullmatch(name), _FINGERPRINT.fullmatch(name)
    if number is not None:
        return Ref(place_of, version=int(number[1]))
    digits = fingerprint[1].replace("-", "") if fingerprint else ""
    if 12 <= len(digits) <= 64:
        return Ref(place_of, fingerprint=f"rlds1:{digits}")
    if is_tag(name):
        return Ref(place_of, tag=name)
    raise InvalidId(f'"#{visible.shown(name)}" does not name a version.', hint=_FORMS)


def whole(text: StrPath, why: str = WHOLE) -> StrPath:
    """Return the place of a reference where a version has no meaning; ``why`` says so in the message.

    Raises
    ------
    RldsError
        The reference names a version.
    InvalidId
    """
    ref = parse(text)
    if ref.selector is not None:
        raise RldsError(
            f"{visible.shown(str(ref))} names a version, and {why}.",
            hint=f"{visible.shown(os.fspath(ref.place))} without #{ref.selector}",
        )
    return ref.place


def is_glob(ref: str) -> bool:
    """Return whether ``ref`` holds ``*``, ``?`` or ``[``."""
    return any(c in ref for c in "*?[")


def is_address(ref: StrPath) -> bool:
    """Return whether a text that may be an id is an address: it has a scheme, or is a path by its form."""
    if isinstance(ref, os.PathLike):
        return True
    return bool(SCHEME.match(ref)) or ref.startswith(("/", "./", "../", "~")) or ref in (".", "..")


def is_tag(name: str) -> bool:
    """Return whether a text can be a tag: a letter, then letters, digits, ``.``, ``_`` and ``-``; not ``v3``."""
    return _TAG.fullmatch(name) is not None


def named(id: str, version: int, *asked: str) -> str:
    """Return ``ID#vN`` where it is not the first version, or a reference in ``asked`` names one; else the id."""
    return f"{id}#v{version}" if version > 1 or any(parse(ref).selector for ref in asked) else id
