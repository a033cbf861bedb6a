"""The versions of the dataset at an address, and their tags: ``rlds.json``, the one file there that is replaced.

::

    {"rlds_dataset": 1, "rlds_version": ..., "id": ...,
     "sha256": of this text, with zeros in place of it,
     "tags": {"icra": sha256 of an index, ...},
     "versions": [[number, sha256 of its index, bytes of its index, fingerprint, time, change,
                   episodes, steps], ...]}

The last version is the newest. The index of each is ``indexes/<sha256>``; see `index`. Two versions have the same
number if a dataset was made anew and pushed under the same id. The number then means the later one; the other one is
found by its fingerprint, its tags and the sha256 of its index. A stranger may have written the file, so every value is
checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from rlds_cli import __version__
from rlds_cli.base import ids, refs
from rlds_cli.base.files import json as documents
from rlds_cli.places.remote import index as indexes
from rlds_cli.places.remote import values
from rlds_cli.places.remote.index import Index
from rlds_cli.places.sources.addresses import Address

FORMAT = 1
LONGEST = 64 << 20  # bytes
_MOST = 1 << 17  # versions, and tags
_LONGEST_CHANGE = 1000  # characters
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.+Z-]{5,30}|")
_NONE = "0" * 64
_OWN = b'"sha256": "%s"'


@dataclass(frozen=True, slots=True)
class PushedVersion:
    """A version of a dataset at an address.

    Attributes
    ----------
    number : int
    index : str
        The sha256 of its index, which proves every block of it.
    size : int
        Bytes of the index.
    fingerprint : str
    created : str
        ISO-8601 time at which it was made, UTC.
    change : str
        What made it, as it is typed.
    episodes, steps : int
    """

    number: int
    index: str
    size: int
    fingerprint: str
    created: str
    change: str
    episodes: int
    steps: int

    @property
    def name(self) -> str:
        """Name of its index below the address."""
        return f"indexes/{self.index}"


@dataclass(frozen=True, slots=True)
class Versions:
    """The dataset at an address: its id, its versions, the newest last, and the index that each tag names.

    There is at least one version where a dataset was pushed.
    """

    NAME: ClassVar[str] = "rlds.json"  # of the file, below the address

    id: str
    versions: tuple[PushedVersion, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    rlds_version: str = field(default=__version__)

    @classmethod
    def parse(cls, text: bytes, where: str) -> Self:
        """Read the versions at an address; ``where`` is for messages.

        Raises
        ------
        DamagedDataset
            The text is not one of this program, or was changed.
        NewerFormat
            A later version wrote it.
        """
        with values.refused(where, "does not list the versions of a dataset"):
            content = documents.loads(text, longest=LONGEST)
            if not isinstance(content, dict):
                raise ValueError("not an object")
            values.check_format(content.get("rlds_dataset"), FORMAT, "rlds_dataset", where)
            own = values.sha256(content.get("sha256"))
            plain = text.replace(_OWN % own.encode(), _OWN % _NONE.encode(), 1)
            if hashlib.sha256(plain).hexdigest() != own:
                raise ValueError("it is not as it was written: it has another sha256 than it says")
            versions = tuple(_versions(content.get("versions")))
            tags = content.get("tags")
            if not versions or len({v.index for v in versions}) != len(versions):
                raise ValueError("no version, or one that occurs twice")
            if not isinstance(tags, dict) or len(tags) > _MOST or not all(map(refs.is_tag, tags)):
                raise ValueError("invalid tags")
            if not set(map(values.sha256, tags.values())) <= {v.index for v in versions}:
                raise ValueError("a tag of a version that is not there")
            id = str(ids.parse(values.text(content.get("id"), "id")))
            return cls(id, versions, tags, values.text(content.get("rlds_version"), "rlds_version")[:40])

    @property
    def newest(self) -> PushedVersion:
        """The version that an address without ``#`` means."""
        return self.versions[-1]

    def find(self, address: Address) -> PushedVersion | None:
        """Return the version that an address names; None if it is not there."""
        return next((v for v in reversed(self.versions) if self._is_named(v, address)), None)

    def _is_named(self, version: PushedVersion, address: Address) -> bool:
        return (
            address.matches(version.fingerprint)
            and address.version in (None, version.number)
            and address.index in (None, version.index)
            and (address.tag is None or self.tags.get(address.tag) == version.index)
        )

    def tags_of(self, version: PushedVersion) -> tuple[str, ...]:
        """Return the tags of a version."""
        return tuple(name for name, index in self.tags.items() if index == version.index)

    def to_bytes(self) -> bytes:
        """Return the JSON text."""
        content = {
            "rlds_dataset": FORMAT,
            "rlds_version": self.rlds_version,
            "id": self.id,
            "sha256": _NONE,
            "tags": dict(sorted(self.tags.items())),
        }
        lines = []
        for v in self.versions:
            listed = [v.number, v.index, v.size, v.fingerprint, v.created, v.change, v.episodes, v.steps]
            lines.append(json.dumps(listed, separators=(",", ":")))
        text = (json.dumps(content, indent=0)[:-2] + ',\n"versions": [\n' + ",\n".join(lines) + "\n]\n}\n").encode()
        return text.replace(_OWN % _NONE.encode(), _OWN % hashlib.sha256(text).hexdigest().encode(), 1)

    def added(
        self,
        index: Index,
        *,
        created: str,
        change: str,
        episodes: int,
        steps: int,
        newest: bool,
        tags: Mapping[str, int],
    ) -> Versions:
        """Return the versions at the address after a push.

        Parameters
        ----------
        index : Index
            The index of the version, which replaces that of an existing one.
        created, change, episodes, steps
            See `PushedVersion`.
        newest : bool
            Whether it becomes the newest version; else it is put before those with a greater number.
        tags : mapping of str to int
            Tags of the dataset on this disk, with numbers of versions. They replace those of the same name.
        """
        version = PushedVersion(
            number=index.version,
            index=index.sha256,
            size=len(index.to_bytes()),
            fingerprint=index.fingerprint,
            created=created,
            change=change[:_LONGEST_CHANGE],
            episodes=episodes,
            steps=steps,
        )
        content = version.number, version.fingerprint
        replaced = {v.index for v in self.versions if (v.number, v.fingerprint) == content}
        before = tuple(v for v in self.versions if v.index not in replaced)
        at = len(before) if newest else sum(v.number < version.number for v in before)
        versions = (*before[:at], version, *before[at:])
        named = {name: version.index if i in replaced else i for name, i in self.tags.items()}
        by_number = {v.number: v.index for v in versions}
        named |= {name: by_number[number] for name, number in tags.items() if number in by_number}
        return Versions(index.id, versions, named)

    def kept(self, *, last: int, tagged: bool) -> Versions:
        """Return the last versions, and those with tags if ``tagged``; tags of other versions go with them."""
        named = set(self.tags.values()) if tagged else set()
        listed = enumerate(self.versions)
        return self.of_indexes({v.index for k, v in listed if len(self.versions) - k <= last or v.index in named})

    def of_indexes(self, indexes: Set[str]) -> Versions:
        """Return the versions with some indexes, and their tags."""
        stay = tuple(v for v in self.versions if v.index in indexes)
        return replace(self, versions=stay, tags={name: i for name, i in self.tags.items() if i in indexes})


def _versions(listed: Any) -> Iterator[PushedVersion]:
    for one in values.items(listed, _MOST, "versions"):
        number, index, size, fingerprint, created, change, episodes, steps = values.members(one, 8, "a version")
        if not isinstance(created, str) or not _TIME.fullmatch(created):
            raise ValueError("an invalid time")
        yield PushedVersion(
            values.number(number, 1 << 60, "the number of a version"),
            values.sha256(index),
            values.number(size, indexes.LONGEST + 1, "a size"),
            values.fingerprint(fingerprint),
            created,
            values.text(change, "change")[:_LONGEST_CHANGE],
            values.number(episodes, 1 << 60, "a number of episodes"),
            values.number(steps, 1 << 60, "a number of steps"),
        )
