"""Parse lock files, and check what they may run and read on this machine.

A lock file is untrusted. Every value is checked before it is used; errors name its place. Built-in functions may run,
others only if the user allows them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rlds_cli.base import ids, settings
from rlds_cli.errors import RldsError
from rlds_cli.keep import edits
from rlds_cli.keep.lock_values import InvalidLock, LockValue
from rlds_cli.places import Address, network_schemes
from rlds_cli.registry import problems

if TYPE_CHECKING:
    from rlds_cli.preprocess.sources import LockedFunction

VERSION = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")
_UNITS = ("episode", "batch", "step", "window")
_ARRAYS = ("numpy", "torch", "tensordict")
_MOST_VERSIONS = 1 << 53  # as in manifests
_WIDEST = 1 << 20  # steps before and after, in a window


@dataclass(frozen=True, slots=True)
class Locked:
    """One dataset of a lock file. With edits, ``files``, ``options``, ``made_by`` and ``address`` are of its base."""

    id: str
    fingerprint: str
    fields: Mapping[str, str]
    files: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]
    made_by: Sequence[Mapping[str, Any]] = ()
    reproducible: bool = True
    why: str = ""  # why it is not reproducible
    edits: Mapping[str, Any] | None = None  # what changed the dataset that it was made of; see `maintenance.edits`
    version: int | None = None  # of a growing dataset, or has edits
    address: str | None = None  # where it was pushed to, or came from
    index: str | None = None  # sha256 of the index of this version there

    @property
    def recorded(self) -> bool:
        """Whether nothing makes these episodes again: the number of a version says which they are."""
        return self.version is not None and self.edits is None

    @property
    def source(self) -> str | None:
        """The other dataset of the lock that this one, or its base, is made of; None for one of an archive."""
        if self.edits and self.edits["from"]:
            return str(self.edits["from"])
        return str(self.made_by[0]["from"]) if self.made_by else None

    @property
    def in_place(self) -> bool:
        """Whether the edits made a later version of the dataset that the rest of the entry describes."""
        return self.edits is not None and self.edits["from"] is None

    def to_json(self) -> dict[str, Any]:
        """Return the entry of a lock file; a reproducible dataset has no mark."""
        unmarked = {"reproducible", "why"} if self.reproducible else set()
        unmarked |= {name for name in ("edits", "version", "address", "index") if getattr(self, name) is None}
        return {name: getattr(self, name) for name in Locked.__slots__ if name not in unmarked}


class LaterVersion(ValueError):
    """The lock file has a later version."""


def datasets(content: Any) -> tuple[Locked, ...]:
    """Parse the JSON value of a lock file.

    Raises
    ------
    InvalidLock
        A value is missing, has a wrong type, is too large, or contradicts another one.
    LaterVersion
        The file has a later version.
    """
    top = LockValue(content, "")
    number = top.member("rlds_lock").integer()
    if number > VERSION:
        raise LaterVersion
    if number < 1:
        raise top.member("rlds_lock").wrong("a version")
    found: dict[str, Locked] = {}
    seen: set[str] = set()  # ids in lower case, as some file systems compare them
    for value in top.member("datasets").items():
        value.check_size()
        locked = _dataset(value, found)
        if locked.id.lower() in seen:
            raise value.member("id").wrong("an id that occurs once")
        seen.add(locked.id.lower())
        found[locked.id] = locked
    return tuple(found.values())


def _dataset(value: LockValue, before: Mapping[str, Locked]) -> Locked:
    value.only(tuple(Locked.__slots__))
    id = _id(value.member("id"))
    for _, digest in value.member("fields").members():
        digest.matching(_DIGEST, "a digest of 64 hexadecimal digits")
    steps = value.member("made_by").items()
    for step in steps:
        _check_step(step)
    if len(steps) > 1:
        raise value.member("made_by").wrong("one step")
    if steps:
        _check_source(steps[0].member("from"), id, before)
    _check_options(value.member("options"), str(id.base))
    reproducible, why, version = (value.optional(name) for name in ("reproducible", "why", "version"))
    address, index, edited = value.optional("address"), value.optional("index"), value.optional("edits")
    if index:
        index.matching(_DIGEST, "a sha256 of 64 hexadecimal digits")
    if edited:
        _check_edits(edited, value, id, before)
    return Locked(
        id=str(id),
        fingerprint=value.member("fingerprint").fingerprint(),
        fields=value.member("fields").value,
        files=_files(value.member("files")),
        options=value.member("options").value,
        made_by=tuple(step.value for step in steps),
        reproducible=reproducible is None or reproducible.flag(),
        why=why.text() if why else "",
        edits=edited.mapping() if edited else None,
        version=version.integer() if version else None,
        address=_store_address(address) if address else None,
        index=index.text() if index else None,
    )


def _id(value: LockValue) -> ids.DatasetId:
    try:
        return ids.parse(value.text())
    except RldsError:
        raise value.wrong("a dataset id") from None


def _files(value: LockValue) -> tuple[Mapping[str, Any], ...]:
    found: dict[str, Mapping[str, Any]] = {}
    for file in value.items():
        file.only(("file", "size", "sha256", "url", "revision"))
        name = file.member("file").path()
        if name in found:
            raise file.member("file").wrong("a name that occurs once")
        size, sha256, url, revision = map(file.optional, ("size", "sha256", "url", "revision"))
        found[name] = {
            "file": name,
            "size": None if size is None else size.integer(),
            "sha256": None if sha256 is None else sha256.matching(_DIGEST, "a sha256 of 64 hexadecimal digits"),
            "url": None if url is None else _address(url),
            "revision": None if revision is None else revision.text(),
        }
    return tuple(found.values())


def _address(value: LockValue) -> str:
    """Return an address of the network or the package: other machines do not have a local file."""
    url = value.text()
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise value.wrong("an address") from None
    scheme = url.partition(":")[0]
    if scheme == "package":
        LockValue(url.removeprefix("package:"), value.place).path()
        return url
    remote = scheme in network_schemes() and url.startswith(f"{scheme}://") and bool(parts.netloc)
    if not remote or "@" in parts.netloc:
        raise value.wrong(f"an address of the network ({', '.join(network_schemes())})")
    return url


def _store_address(value: LockValue) -> str:
    """Return the address of a pushed dataset; one with credentials is refused, since `str` of it has none."""
    text = value.text()
    try:
        if str(Address.parse(text)) == text:
            return text
    except RldsError:
        pass
    raise value.wrong("the address of a pushed dataset")


def _check_options(options: LockValue, id: str) -> None:
    """Check the options that `sync` uses: frames, skip_bad, portion, read_by and entry."""
    options.members()
    if entry := options.optional("entry"):
        _check_entry(entry, id)
    frames, skip_bad, portion = map(options.optional, ("frames", "skip_bad", "portion"))
    if frames:
        try:
            ids.frames_variant(frames.text())
        except RldsError:
            raise frames.wrong('"encoded", "raw", "jpeg", "png" or a size') from None
    if skip_bad:
        skip_bad.flag()
    if portion:
        _check_portion(portion)
    for text in read_by.items() if (read_by := options.optional("read_by")) else ():
        text.text()


def _check_entry(entry: LockValue, id: str) -> None:
    """Check the line of a registry that describes the dataset ``id``."""
    line = dict(entry.mapping())
    problem = next(problems(line), None)
    if problem is not None:
        raise InvalidLock(f"{entry.place}: {problem}")
    if line["id"] != id:
        raise entry.member("id").wrong(f"{id}, the dataset that it describes")
    files = entry.optional("files")
    holders = [entry, *(files.items() if files else ())]
    for urls in (u for holder in holders for k in ("urls", "tree") if (u := holder.optional(k))):
        for url in urls.items():
            if _address(url).startswith("package:"):
                raise url.wrong(f"an address of the network ({', '.join(network_schemes())})")
    for file in files.items() if files else ():
        file.member("path").path()


def _check_portion(portion: LockValue) -> None:
    for name in ("include", "exclude"):
        patterns = portion.optional(name)
        for pattern in patterns.items() if patterns else ():
            if not pattern.text():
                raise pattern.wrong("a pattern")
    if split := portion.optional("split"):
        split.text()
    episodes = portion.optional("episodes")
    if episodes is None:
        return
    bounds = episodes.items()
    if len(bounds) != 2:
        raise episodes.wrong("the first episode and the one after the last")
    first = bounds[0].integer()
    if bounds[1].value is not None and bounds[1].integer() <= first:
        raise episodes.wrong("a range of episodes")


def _check_step(step: LockValue) -> None:
    """Check the members of a step of `rlds preprocess` that `sync` uses."""
    for name in ("from", "reference"):
        if not step.member(name).text():
            raise step.member(name).wrong("a name")
    step.member("code").matching(_DIGEST, "a hash of 64 hexadecimal digits")
    step.member("unit").one_of(_UNITS)
    step.member("arrays").one_of(_ARRAYS)
    step.member("args").members()
    for file in step.member("files").items():
        if len(file.items()) != 2:
            raise file.wrong("a file and its sha256")
        file.items()[0].path()
        file.items()[1].matching(_DIGEST, "a sha256 of 64 hexadecimal digits")
    depends = step.optional("depends")
    for _, sha256 in depends.members() if depends else ():
        sha256.matching(_DIGEST, "a sha256 of 64 hexadecimal digits")
    fields = step.optional("fields")
    for field in fields.items() if fields else ():
        field.text()
    if keep_going := step.optional("keep_going"):
        keep_going.flag()
    window = step.optional("window")
    if window is not None and len([n.integer(_WIDEST) for n in window.items()]) != 2:
        raise window.wrong("steps before and steps after")


def _check_source(source: LockValue, id: ids.DatasetId, before: Mapping[str, Locked]) -> None:
    """Check that a dataset is made of an earlier one in the file, and is a variant of the same archive."""
    if source.value not in before:
        raise source.wrong("an earlier dataset of the lock file")
    if id.variant is None or ids.parse(source.value).base != id.base:
        raise source.wrong(f"a dataset that {id} can be made of")


def _check_edits(edited: LockValue, dataset: LockValue, id: ids.DatasetId, before: Mapping[str, Locked]) -> None:
    """Check the edits of a dataset, and that they say of which dataset it was made."""
    edits.check(edited)
    if dataset.member("version").integer(_MOST_VERSIONS) == 0:
        raise dataset.member("version").wrong("the number of a version")
    if source := edited.optional("from"):
        _check_source(source, id, before)
        if edited.member("base").value != before[source.value].fingerprint:
            raise edited.member("base").wrong(f"the fingerprint of {source.value}")
        for name in ("made_by", "files"):
            if dataset.member(name).items():
                raise dataset.member(name).wrong(f"empty: the dataset is made of {source.value}")
        if address := dataset.optional("address"):
            raise address.wrong(f"missing: the dataset is made of {source.value}")


# Functions need NumPy: they are imported only to make a dataset.
EVERYTHING = "all"


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A user function that a lock would run: its file, the dataset that it makes, and its arguments."""

    reference: str
    file: Path
    id: str
    args: Mapping[str, Any]

    def __str__(self) -> str:
        args = ", ".join(f"{name}={value!r}" for name, value in self.args.items())
        return f"{self.reference} ({self.file}), called with {args or 'no arguments'}, to make {self.id}"


def wanted(datasets: Sequence[Locked]) -> tuple[UserFunction, ...]:
    """Return the user functions that make ``datasets``, without importing them.

    Raises
    ------
    PreprocessError
        One of them is not a function that a lock may name.
    WrongFingerprint
        The source of one has changed.
    """
    return tuple(
        UserFunction(found.reference, found.file, d.id, step["args"])
        for d in datasets
        if d.reproducible
        for step in d.made_by
        if (found := _found(d, step)) is not None
    )


def check_granted(
    datasets: Sequence[Locked],
    allow_code: bool | Sequence[str],
    depends_on: Sequence[str | os.PathLike[str]],
    file: str | os.PathLike[str],
) -> None:
    """Check that the user allows all functions that make ``datasets``, and the files that they read.

    Raises
    ------
    RldsError
        As `wanted`; or a function, or a file that it reads, is not allowed.
    """
    found = wanted(datasets)
    names = _names(allow_code)
    for one in found:
        if not names & {one.reference, EVERYTHING}:
            raise RldsError(
                f"{os.fspath(file)} would run your function {one}. Nothing was done.",
                hint=f"--allow-code {one.reference} (allow_code=[{one.reference!r}]) runs it; look at the lock first",
            )
    for d in datasets:
        for name in _files_read(d):
            _check_file(d, name, depends_on)


def _names(allow_code: bool | Sequence[str]) -> set[str]:
    if isinstance(allow_code, bool):
        return {EVERYTHING} if allow_code else set()
    return {allow_code} if isinstance(allow_code, str) else set(allow_code)


def _found(d: Locked, step: Mapping[str, Any]) -> LockedFunction | None:
    from rlds_cli.preprocess import RecordedStep

    try:
        return RecordedStep(step).user_function()
    except RldsError as e:
        name = ids.parse(d.id).variant
        e.hint = f"rlds preprocess {step['from']} --fn MODULE:FUNCTION --name {name} makes {d.id} with another"
        raise


def _files_read(d: Locked) -> Iterator[str]:
    if not d.made_by or not d.reproducible:
        return
    from rlds_cli.preprocess import RecordedStep

    for step in d.made_by:
        yield from RecordedStep(step).files_read()


def _check_file(d: Locked, name: str, allowed: Sequence[str | os.PathLike[str]]) -> None:
    if not _is_allowed(name, allowed):
        raise RldsError(
            f"{d.id} was made with the file {name}, which is outside the working directory. Nothing was read.",
            hint=f"--depends-on {name} (depends_on=[{name!r}]) lets the function read it; look at the lock first",
        )


def _is_allowed(name: str, allowed: Sequence[str | os.PathLike[str]]) -> bool:
    """Return whether a lock may name this file: it lies below the working directory or an allowed path."""
    try:
        path = settings.expanded(name).resolve()
        roots = [Path.cwd(), *(settings.expanded(p) for p in allowed)]
        return any(path.is_relative_to(root.resolve()) for root in roots)
    except (OSError, ValueError, RuntimeError):  # not a valid file name, or a loop of links
        return False
