"""The versions of a dataset and their names: its directory is the newest, and earlier ones lie beside it.

A version is a whole dataset of its own, whose files of rows are shared with the others by hard links::

    <home>/datasets/<family>/<name>/           the newest version
    <home>/versions/<family>/<name>/<number>/  each earlier one

So whatever opens, checks or copies a dataset does the same with a version. On a disk without hard links the newest one
refers to the earlier one that has the files. A change is published as any dataset is: the new directory takes the place
of the newest one in one step, after that one has got a place among the earlier ones.

A growing dataset keeps all versions in its own directory: one for each record of its log of commits.

Tags are names of versions, in ``tags.json`` of the dataset's directory. They are about a dataset, and not part of it:
no digest covers them, and a merge leaves them behind. A push adds them to the list of versions at the address.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlds_cli.base import refs, visible
from rlds_cli.base.files import disk, publishing, trees
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.hashing import short
from rlds_cli.base.files.locks import flock
from rlds_cli.base.refs import Ref
from rlds_cli.base.text import plural
from rlds_cli.errors import DamagedDataset, DatasetNotFound, InvalidId, NameTaken, NoPermission, RldsError
from rlds_cli.store import files, paths, references
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.references import ReferencedVersion

if TYPE_CHECKING:
    from rlds_cli.store.commits import Commit

_MOVING = ".moving"  # beside the earlier versions of a dataset, while the newest one moves to them
_LONGEST_TAGS = 1 << 20  # bytes of the file


@dataclass(frozen=True, slots=True)
class Made:
    """A version as records say that it was made.

    ``step`` is that of its provenance that made it; without one ``by`` says what did: a reader, a writer's commit.
    The fingerprint is empty where it is computed when it is asked for.
    """

    number: int
    created: str
    step: Mapping[str, Any] | None
    by: str
    episodes: int
    steps: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class History:
    """The versions of the dataset in ``path``, and their tags.

    Who changes a history holds the lock of the dataset.
    """

    path: Path
    REFERENCE: ClassVar[str] = references.FILE  # the name of files that say where else rows are stored

    @classmethod
    def of(cls, version: Path) -> History:
        """Return the history that the directory of any version belongs to."""
        path = version.absolute()
        if len(path.parents) > 3 and path.parents[2].name == paths.VERSIONS and path.name.isdecimal():
            found = path.parents[3] / "datasets" / path.parents[1].name / path.parent.name
            return cls(found if found.is_dir() else path)
        return cls(path)

    # -- which versions there are

    @property
    def beside(self) -> Path:
        """The directory of the earlier versions."""
        return paths.earlier_versions(self.path)

    @property
    def earlier(self) -> list[int]:
        """Numbers of the earlier versions on this disk, in order. Higher ones belong to a dataset before it."""
        try:
            numbers = sorted(int(p.name) for p in self.beside.iterdir() if p.name.isdecimal())
            return [n for n in numbers if n < Manifest.read(self.path).version]
        except (OSError, IndexError, DamagedDataset):
            return []

    @property
    def newest(self) -> int:
        """Number of the newest version."""
        return self._last.number if self._grows else Manifest.read(self.path).version

    @property
    def directories(self) -> list[Path]:
        """The directories of the versions on this disk, the newest first."""
        return [self.path, *(self.beside / str(n) for n in reversed(self.earlier))]

    def at(self, number: int) -> Path:
        """Return the directory of a version of a dataset that does not grow.

        Raises
        ------
        DatasetNotFound
            It is not here; the message names those that are.
        """
        if number == Manifest.read(self.path).version:
            return self.path
        if number in self.earlier:
            return self.beside / str(number)
        raise self._missing(number)

    def made(self) -> list[Made]:
        """Return how each version that is here was made, the oldest first, of a dataset that does not grow."""
        return [
            Made(
                number=m.version,
                created=m.created,
                step=m.provenance[-1] if m.provenance else None,
                by=m.reader,
                episodes=m.counts.episodes,
                steps=m.counts.steps,
                fingerprint=m.fingerprint,
            )
            for m in map(Manifest.read, reversed(self.directories))
        ]

    def resolve(self, ref: Ref, fingerprint: Callable[[Path, int], str]) -> int:
        """Return the number of the version that a reference means; the newest one if it names none.

        Parameters
        ----------
        ref : Ref
            Its place is not used.
        fingerprint : callable
            Returns the fingerprint of a version of the dataset in a directory; raises DatasetNotFound for one that was
            freed.

        Raises
        ------
        DatasetNotFound
            There is no such version or tag.
        """
        if ref.selector is None:
            return self.newest
        if ref.tag is not None or ref.version is not None:
            number = self._tagged(ref.tag) if ref.tag is not None else ref.version
            if number is not None and number in self._numbers():
                return number
            raise self._missing(number or 0)
        for number in self._numbers():
            with suppress(DatasetNotFound):
                if fingerprint(self.path, number).startswith(ref.fingerprint or ""):
                    return number
        raise DatasetNotFound(
            f"No version of {self.path} has the fingerprint {short(ref.fingerprint or '')}.",
            hint="rlds inspect shows the fingerprint of the newest one",
        )

    def _missing(self, number: int) -> DatasetNotFound:
        found = self._numbers()
        there = f"version {found[0]:,} is the only one" if len(found) == 1 else f"the newest is {found[0]:,}"
        return DatasetNotFound(f"{self.path} has no version {number:,}; {there}.", hint=f"#v{found[0]}")

    @property
    def _grows(self) -> bool:
        return (self.path / paths.COMMITS).exists()

    @property
    def _last(self) -> Commit:
        from rlds_cli.store import commits  # few datasets grow

        return commits.last(self.path)

    def _numbers(self) -> range | list[int]:
        """Return the numbers of all versions, the newest first."""
        if self._grows:
            return range(self._last.number, -1, -1)
        return [Manifest.read(self.path).version, *reversed(self.earlier)]

    # -- rows in other datasets

    @property
    def sources(self) -> tuple[ReferencedVersion, ...]:
        """The versions of other datasets that the newest version refers to; whether they are there is not checked.

        Raises
        ------
        DamagedDataset
            A reference cannot be read, or the dataset holds something else than directories and regular files.
        """
        return references.sources(self.path)

    def referring_to(self, dataset: Path) -> Iterator[ReferencedVersion]:
        """Yield the versions of the dataset in a directory that versions of this one refer to; damaged ones do not."""
        top = dataset.resolve()
        for place in self.directories:
            with suppress(DamagedDataset):
                every = references.sources(place)
                yield from (s for s in every if top in (d.resolve() for d in s.datasets(place / "zarr.json")))

    def _check_not_referred(self) -> None:
        """Refuse to replace a dataset that has the rows of others in the home, if these cannot have names of their own.

        Raises
        ------
        NameTaken
        """
        path = self.path
        if not (path / "zarr.json").exists() or disk.takes_links(path.parent):
            return
        others = (p for p in path.parents[1].glob("*/*") if p != path and (p / "zarr.json").exists())
        for other in others:
            for place in History(other).directories:
                if any(path in s.datasets(place / "zarr.json") for s in references.sources(place)):
                    id = Manifest.read(other).id
                    raise NameTaken(
                        f"{path} has the rows of {id}, since its disk has no hard links. Nothing was replaced.",
                        hint=f"rlds compact {id} writes rows of its own for it",
                    )

    # -- changes

    def publish(self, built: Path) -> None:
        """Make the dataset in ``built`` the newest version; the one that was becomes an earlier one.

        A crash at any moment leaves the one or the other as the newest. Where files cannot get second names, the
        directory of the newest version moves to the earlier ones, and references of others follow it. A crash before
        the new one is in its place leaves a mark, and `restore` moves it back.
        """
        moving = self.beside / _MOVING
        self._carry(built)
        if not disk.takes_links(self.path.parent):
            publishing.seal(built)  # so that the place is empty for two renames alone
            safe_files.make(moving.parent)
            safe_files.write_bytes(moving, b"")
        self.keep(self.path)
        publishing.publish(built, self.path)
        moving.unlink(missing_ok=True)

    @property
    def is_moving(self) -> bool:
        """Whether the newest version moves to the earlier ones, or a process that moved it has ended before."""
        return (self.beside / _MOVING).exists()

    def restore(self) -> None:
        """Move the newest version back if the process that was to publish the next one has ended before."""
        numbers = [int(p.name) for p in self.beside.iterdir() if p.name.isdecimal()]
        if not self.path.exists() and numbers:
            (self.beside / str(max(numbers))).rename(self.path)
        (self.beside / _MOVING).unlink(missing_ok=True)

    def keep(self, version: Path) -> Path:
        """Give the version in a directory a place among the earlier ones, by its number; return the place.

        Its files get second names there; where they cannot, its directory moves there.
        """
        m, version_id = Manifest.read_with_version_id(version)
        place = self.beside / str(m.version)
        if not _holds(place, version_id):
            aside = place.with_name(f".{place.name}.new")
            trees.discard(aside)
            if disk.takes_links(place):
                from rlds_cli.store import sharing  # imports NumPy, which `rlds du` does without

                sharing.link_tree(version, aside, apart=(paths.TAGS,))
            else:
                aside = version
            if place.is_dir():  # of a dataset that this one has replaced
                publishing.remove(place)
            safe_files.make(place.parent)
            aside.rename(place)
            (place / paths.TAGS).unlink(missing_ok=True)
        return place

    def replace(self, built: Path, *, growing: bool = False) -> None:
        """Put the dataset in ``built`` in the place of this one, if there is one, and of its earlier versions.

        A dataset that is made again with the same content keeps tags and earlier versions. So does the copy of a
        growing dataset, of which a later version is fetched.

        Raises
        ------
        NameTaken
            The dataset has tags, or has the rows of another one in a home without hard links; nothing was replaced.
        """
        self._check_not_referred()
        again = growing
        if not growing and (self.path / "zarr.json").exists():
            new = Manifest.read(built)
            try:
                old = Manifest.read(self.path)
                again = (new.fingerprint, new.version) == (old.fingerprint, old.version)
            except RldsError:  # the manifest is repaired
                again = True
        if again:
            self._carry(built)
            publishing.publish(built, self.path, growing=growing)
            return
        self.check_replaceable()
        publishing.publish(built, self.path)
        self._remove_earlier()

    def supersede(self, built: Path) -> None:
        """Put the dataset in ``built`` in the place of this one: as a later version of it if its number is one.

        Raises
        ------
        NameTaken
            As `replace`.
        """
        there = (self.path / "zarr.json").exists() and not self._grows
        if there and Manifest.read(self.path).version < Manifest.read(built).version:
            self.publish(built)
        else:
            self.replace(built)

    def check_replaceable(self) -> None:
        """Refuse to replace a dataset that has tags: somebody relies on these versions.

        Raises
        ------
        NameTaken
        """
        named = self.tags_shown
        if named:
            id = Manifest.read(self.path).id
            count = plural(len(self._numbers()), "version")
            raise NameTaken(
                f"{id} has tags: {named}. Replacing it would remove them, and {count}. Nothing was replaced.",
                hint=f"another name; or rlds rm {id}, which removes it with its tags, and the same command again",
            )

    def prune(self, kept: Collection[int]) -> None:
        """Remove earlier versions without a tag.

        Those of the numbers ``kept`` stay as well, and those whose rows one that stays refers to.
        """
        stay = {*kept, *self.tags.values()}
        there = {number: references.sources(self.at(number)) for number in self.earlier}
        stay |= {s.version for n in stay & there.keys() for s in there[n] if self.path in s.datasets(self.path)}
        for number in sorted(there.keys() - stay):
            publishing.remove(self.at(number))

    def remove(self) -> None:
        """Remove the dataset with all its versions."""
        publishing.remove(self.path)
        self._remove_earlier()

    def _remove_earlier(self) -> None:
        if self.beside.is_dir():
            publishing.remove(self.beside)

    def _carry(self, newer: Path) -> None:
        """Give the directory of a newer version the tags of a dataset, and what `rlds index` wrote beside its files."""
        if (self.path / paths.TAGS).exists() and not (newer / paths.TAGS).exists():
            safe_files.write_bytes(newer / paths.TAGS, (self.path / paths.TAGS).read_bytes())
        for file in trees.files(self.path):
            name = file.relative_to(self.path).as_posix()
            if paths.is_indexed(name):
                (newer / name).parent.mkdir(safe_files.DIRECTORY, exist_ok=True)
                disk.share(file, newer / name, sealed=True)

    # -- tags

    @property
    def tags(self) -> dict[str, int]:
        """The number of the version of every tag, sorted by name.

        Raises
        ------
        DamagedDataset
            The file holds something else.
        """
        path = self.path / paths.TAGS
        try:
            found = documents.loads(files.read_regular(path, _LONGEST_TAGS), longest=_LONGEST_TAGS)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as e:
            raise DamagedDataset(f"{path} cannot be read: {e}.", hint=f"without {path} the dataset has no tags") from e
        if not isinstance(found, dict) or not all(
            refs.is_tag(name) and type(number) is int and number >= 0 for name, number in found.items()
        ):
            raise DamagedDataset(f"{path} does not hold tags.", hint=f"without {path} the dataset has no tags")
        return dict(sorted(found.items()))

    @property
    def tags_shown(self) -> str:
        """The tags with their versions as text, ``icra (v2), paper (v3)``; empty without tags."""
        return ", ".join(f"{name} (v{number})" for name, number in self.tags.items())

    def tag(self, name: str, version: int, *, force: bool = False) -> None:
        """Give a tag to a version; with ``force``, also one that another version has.

        Raises
        ------
        InvalidId
            The text is not a tag.
        NameTaken
            Another version has the tag.
        NoPermission
            The directory may not be written.
        """
        if not refs.is_tag(name):
            raise InvalidId(
                f'"{visible.shown(name)}" cannot be a tag.',
                hint="a letter, then letters, digits, `.`, `_` and `-`; v and a number names a version itself",
            )
        with self._changing_tags() as tags:
            known = tags.get(name, version)
            if known != version and not force:
                raise NameTaken(
                    f"{self.path}: version {known:,} has the tag {name}.", hint=f"--force moves it to {version:,}"
                )
            tags[name] = version

    def untag(self, name: str) -> None:
        """Remove a tag.

        Raises
        ------
        DatasetNotFound
            No version has it.
        NoPermission
            The directory may not be written.
        """
        with self._changing_tags() as tags:
            self._tagged(name)
            del tags[name]

    def _tagged(self, name: str) -> int:
        """Return the number of the version that has a tag; raises DatasetNotFound if none has."""
        found, path = self.tags, self.path
        if name not in found:
            known = f"its tags are {', '.join(found)}" if found else f"rlds tag {path} {name} tags the newest version"
            raise DatasetNotFound(f"{path} has no tag {visible.shown(name)}.", hint=known)
        return found[name]

    @contextmanager
    def _changing_tags(self) -> Iterator[dict[str, int]]:
        """Let the caller change the tags, one process at a time, and replace the file."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            with suppress(OSError):  # not on every file system
                flock(descriptor, self.path)
            tags = self.tags
            yield tags
            text = documents.dumps(dict(sorted(tags.items())), paths.TAGS)
            safe_files.replace_text(self.path / paths.TAGS, text)
        except OSError as e:
            if e.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise disk.disk_error(e, self.path / paths.TAGS, kept="The tags are as they were.") from e
            raise NoPermission(f"{self.path} may not be written, and its tags are kept there.") from e
        finally:
            os.close(descriptor)


def _holds(place: Path, version_id: str) -> bool:
    """Return whether a version is stored in ``place``."""
    try:
        return Manifest.read_with_version_id(place)[1] == version_id
    except (RldsError, OSError):
        return False
