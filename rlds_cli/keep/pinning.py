"""Write lock files for datasets, and sync another machine with them.

A lock file is JSON::

    {"rlds_lock": 1, "datasets": [{
        "id": ..., "fingerprint": "rlds1:...", "fields": {name: digest},
        "files": [{"file", "size", "sha256", "url", "revision"}],       of the archive
        "options": {...},                                               options of the conversion
        "made_by": [...],                                               the step of `rlds preprocess` that made it
        "edits": {...},                                                 of a selection, trim, label or drop: see `edits`
        "reproducible": false, "why": ...,                              if no other machine can make it again
        "version": ...,                                                 if it grows or has edits
        "address": ..., "index": sha256 of its index there}]}           if it is at an address

Datasets come after those that they were made of. A lock file is untrusted: `lock_file` checks its values, and what it
would run and read. Files are fetched from the addresses in the registry; from others only if the registry has a hash.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from rlds_cli import homes, registry
from rlds_cli.base import ids, settings
from rlds_cli.base.files import bundles
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.progress import Event, Progress, shown
from rlds_cli.base.refs import Ref
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.base.subset import Subset
from rlds_cli.errors import (
    DatasetNotFound,
    Offline,
    ReaderError,
    RldsError,
    TransferError,
    WrongFingerprint,
    WrongHash,
)
from rlds_cli.homes import Home, exclusive
from rlds_cli.keep import edits, lock_file
from rlds_cli.keep.lock_entries import Entries, may_be_pulled, own_steps
from rlds_cli.keep.lock_file import Locked, UserFunction
from rlds_cli.make import DownloadRequest
from rlds_cli.places import Address, as_url
from rlds_cli.registry import Entry, File
from rlds_cli.store import Facts, History, Manifest, Store, StoredDataset, open_store


@dataclass(frozen=True, slots=True)
class Synced:
    """A dataset of a lock file, now on this disk, and how it was obtained. It has the fingerprint of the lock.

    ``version`` is its number, and ``newest`` that of the newest version here, which an id without a version means.
    ``selected_from`` is the dataset whose episodes were chosen by measures; the account is in the manifest, see
    docs/guides/findings.md.
    """

    id: str
    fingerprint: str
    how: Literal["here", "downloaded", "made"]
    path: Path
    version: int = 1
    newest: int = 1
    selected_from: Path | None = None


def lock(refs: Sequence[str], *, allow_unreproducible: bool = False, home: StrPath | None = None) -> str:
    """Return the text of a lock file for datasets on this disk, and for those that they were made of.

    Parameters
    ----------
    allow_unreproducible : bool
        Also lock datasets that no other machine can make again, marked ``"reproducible": false``. `sync` checks their
        fingerprint, and cannot make them.

    Raises
    ------
    DatasetNotFound
        One of them is not here, or was made of one that is not.
    RldsError
        No other machine can make one of them again; the message says why.
    """
    entries = Entries(home)
    for ref in homes.versions(refs, home=home):
        entries.add(ref)
    locked = entries.datasets()
    lost = next((d for d in locked if not d.reproducible), None)
    if lost is not None and not allow_unreproducible:
        raise RldsError(
            f"{lost.id} cannot be made again on another machine: {lost.why}. Nothing was locked.",
            hint=f"rlds push {lost.id} ADDRESS, then lock it again: it is fetched from there; or "
            "--allow-unreproducible (allow_unreproducible=True) locks it with a mark",
        )
    return documents.dumps({"rlds_lock": lock_file.VERSION, "datasets": [d.to_json() for d in locked]}, "the lock")


def read(file: StrPath) -> tuple[Locked, ...]:
    """Read and check a lock file.

    Raises
    ------
    RldsError
        It cannot be read, is not a lock file, or has a later version; the message names the wrong value.
    """
    hint = "rlds lock ID... > rlds.lock writes one"
    try:
        return lock_file.datasets(documents.load(Path(file), longest=documents.OWN))
    except OSError as e:
        raise RldsError(f"{file} cannot be read: {e.strerror}.", hint=hint) from e
    except lock_file.LaterVersion as e:
        raise RldsError(f"{file} was written by a later rlds.", hint="pip install --upgrade rlds-cli") from e
    except ValueError as e:
        raise RldsError(f"{file} is not a lock file: {e}.", hint=hint) from e


def functions(file: StrPath, *, home: StrPath | None = None) -> tuple[UserFunction, ...]:
    """Return the user functions that `sync` would run. They must be allowed; built-in ones need no permission.

    Raises
    ------
    RldsError
        As `sync`, before it begins.
    """
    return lock_file.wanted(_missing(_checked(file), home))


def hosts(file: StrPath, *, home: StrPath | None = None) -> tuple[str, ...]:
    """Return the web servers that `sync` would send requests to and the registry does not name; they must be allowed.

    Raises
    ------
    RldsError
        As `sync`, before it begins.
    """
    return _hosts(_missing(_checked(file), home), settings.read(home))


@dataclass(frozen=True, slots=True)
class Unallowed:
    """Functions and web servers that `sync` would use, and that the user has to allow."""

    functions: tuple[UserFunction, ...]
    hosts: tuple[str, ...]


def unallowed(
    file: StrPath,
    *,
    allow_code: Sequence[str] = (),
    allow_address: Sequence[str] = (),
    home: StrPath | None = None,
) -> Unallowed:
    """Return what `sync` would ask permission for, besides what is allowed.

    Raises
    ------
    RldsError
        As `sync`, before it begins.
    """
    everything = lock_file.EVERYTHING
    asked = () if everything in allow_address else hosts(file, home=home)
    code = () if everything in allow_code else functions(file, home=home)
    return Unallowed(
        tuple(f for f in code if f.reference not in allow_code),
        tuple(h for h in asked if not {h, h.rpartition(":")[0]} & set(allow_address)),
    )


def _hosts(datasets: Sequence[Locked], where: Settings) -> tuple[str, ...]:
    """Return hosts with their ports; not buckets and the hub, which are services that the user has set up."""
    found: dict[str, None] = {}
    for d in datasets:
        found |= dict.fromkeys(_servers([d.address] if d.address and may_be_pulled(d.id) else []))
        if d.source is None and d.reproducible:
            with suppress(RldsError):  # of a dataset that no registry describes, nor the lock, no file is fetched
                entry = _entry(d)
                urls = [str(f["url"]) for f in d.files if f.get("url") and _is_elsewhere(f, entry, where)]
                known: set[str] = set()
                if entry.line is not None:  # the lock describes it
                    urls += _places(entry)
                    with suppress(RldsError):
                        known = set(_servers(_places(registry.get(str(ids.parse(d.id).base)))))
                found |= dict.fromkeys(host for host in _servers(urls) if host not in known)
    return tuple(found)


def _places(entry: Entry) -> list[str]:
    return [*entry.tree, *(url for f in entry.files for url in f.urls)]


def _servers(urls: Iterable[str]) -> Iterator[str]:
    """Yield the web servers of addresses, with their ports."""
    web = (urlsplit(url) for url in urls if url.startswith(("http://", "https://")))
    return (parts.netloc.rpartition("@")[2].lower() for parts in web)


def _is_elsewhere(file: Mapping[str, Any], entry: Entry, where: Settings) -> bool:
    """Return whether `pinned` uses an address of a file that the registry does not name."""
    name, url = str(file["file"]), str(file["url"])
    known = next((f for f in entry.files if f.path == name), File(name, ()))
    return _may_be_used(url, known, entry, where) and not _is_known(url, known, entry, where)


def _check_hosts(datasets: Sequence[Locked], allowed: bool | Sequence[str], file: StrPath, where: Settings) -> None:
    names = {allowed} if isinstance(allowed, str) else set() if isinstance(allowed, bool) else set(allowed)
    if allowed is True or lock_file.EVERYTHING in names:
        return
    names = {name.lower() for name in names}
    for host in _hosts(datasets, where):
        if not names & {host, host.rpartition(":")[0] or host}:
            raise RldsError(
                f"{os.fspath(file)} would send requests to {host}, which the registry does not name. Nothing was done.",
                hint=f"--allow-address {host} (allow_address=[{host!r}]) allows it; look at the lock first",
            )


def sync(
    file: StrPath,
    *,
    jobs: int = 0,
    force: bool = False,
    allow_code: bool | Sequence[str] = (),
    allow_address: bool | Sequence[str] = (),
    depends_on: Sequence[str | os.PathLike[str]] = (),
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> tuple[Synced, ...]:
    """Obtain all datasets of a lock file, with equal fingerprints.

    Missing datasets are downloaded from exactly the files in the lock, or made by the functions and edits in it.
    Selections, trims, labels and drops are data there, and run nothing. Built-in functions need no permission. A user
    function runs only if it is allowed, and if its source file and all files that it imports have the content in the
    lock. The whole lock is checked before anything is done.

    Parameters
    ----------
    force : bool
        Replace datasets with other content.
    allow_code : bool or sequence of str
        Names of the functions that may run, as in the lock (`functions` lists them); True for all.
    allow_address : bool or sequence of str
        Web servers that may be asked for datasets, by host or host and port (`hosts` lists those that the registry does
        not name); True for all.
    depends_on : sequence of paths
        Files and directories outside the working directory that functions of the lock may read.

    Raises
    ------
    WrongFingerprint
        A dataset has other content, or a function another source. The message names the difference. Datasets that are
        finished stay.
    WrongHash
        The lock contradicts the registry.
    RldsError
        A web server or a function is not allowed, a function cannot be allowed, or the file is not a lock file. Nothing
        was done.
    """
    locked = _checked(file)
    missing = _missing(locked, home)
    _check_hosts(missing, allow_address, file, settings.read(home))
    lock_file.check_granted(missing, allow_code, depends_on, file)
    done: dict[str, Synced] = {}
    for d in locked:
        made = _sync(d, done, jobs, force, home, shown(progress))
        newest = History.of(made.path).newest
        number = d.version if d.recorded else Manifest.read(made.path).version
        done[d.id] = replace(made, version=newest if number is None else number, newest=newest)
    return tuple(done.values())


def _checked(file: StrPath) -> tuple[Locked, ...]:
    """Read a lock file and check that the registry does not contradict it."""
    locked = read(file)
    for d in locked:
        _check_registry(d, file)
    return locked


def _check_registry(d: Locked, file: StrPath) -> None:
    known = registry.listed(d.id)
    base = str(ids.parse(d.id).base)
    if known is not None and known.id != base:
        raise RldsError(f"{file} names the dataset {base}, which the registry calls {known.id}.")
    if d.in_place and d.source is None and known is not None:
        raise RldsError(f"{file} changes {d.id} in its place, which is a dataset of the registry. Nothing was done.")
    wrong = None if d.source or known is None else next(known.contradictions(d.files), None)
    if wrong is not None:
        raise WrongHash(
            f"{file} does not match {base} in the registry: {wrong}. Nothing was done.",
            hint=f"rlds download {base} uses the files in the registry; rlds import takes others, as local/NAME",
        )


def _missing(locked: Sequence[Locked], home: StrPath | None) -> tuple[Locked, ...]:
    return tuple(d for d in locked if _here(d, home) is None and (not d.in_place or _here(_unedited(d), home) is None))


def _unedited(d: Locked) -> Locked:
    """Return the version before the edits of a dataset that was changed in its place."""
    assert d.edits is not None
    return replace(d, fingerprint=d.edits["base"], fields={}, edits=None, version=None)


def _here(d: Locked, home: StrPath | None) -> Path | None:
    """Return the directory of the dataset, or of an earlier version of it, that has the content of the lock."""
    path = homes.path_of(ids.parse(d.id), settings.read(home))
    if path is None:
        return None
    found = StoredDataset(path).with_content(d.fingerprint, d.version, lambda m: _has_facts(m, d))
    return None if found is None else found.path


def _has_facts(m: Manifest, d: Locked) -> bool:
    """Return whether a dataset has the facts that were set."""
    return not d.edits or all(Facts(m).values[name] == v for name, v in d.edits["facts"].items())


def _fingerprint_at(path: Path, version: int) -> str | None:
    """Return the fingerprint of an existing version; None for another one."""
    try:
        return open_store(path, Ref(path, version=version), check=False).fingerprint()
    except DatasetNotFound:
        return None


def _sync(
    d: Locked, done: Mapping[str, Synced], jobs: int, force: bool, home: StrPath | None, tell: Progress
) -> Synced:
    if (same := _here(d, home)) is not None:
        return Synced(d.id, d.fingerprint, "here", same)
    other = homes.path_of(ids.parse(d.id), settings.read(home))
    if d.recorded and other is not None and d.address is None:
        raise _other_version(d, other)
    if other is not None and _succeeds(other, d, home):
        return _earlier(d, other, done, jobs, home, tell)
    if not d.recorded and other is not None and not force and not _precedes(other, d):
        raise _differs(d, other, hint=f"rlds sync --force replaces {d.id}")
    if d.edits is not None:
        source = _sync(_unedited(d), done, jobs, force, home, tell) if d.in_place else done[str(d.source)]
        path = _edited(d, d.edits, source.path, home)
        chosen_from = source.path if d.edits.get("measured") else None
        return Synced(d.id, d.fingerprint, "made", path, selected_from=chosen_from)
    if d.address is not None and may_be_pulled(d.id):
        try:
            path = _pulled(d, d.address, force, home, tell)
            return Synced(d.id, d.fingerprint, "downloaded", path)
        except (TransferError, DatasetNotFound, WrongFingerprint) as e:
            if not d.files:
                raise
            tell(Event(d.id, "note", note=f"{e.message} It is made of its archive instead."))
    if not d.reproducible:
        raise DatasetNotFound(
            f"{d.id} is not here, and the lock says that it cannot be made again: {d.why}.",
            hint="copy its directory from where the lock was written: rlds path " + d.id,
        )
    if d.source:
        path = _made(d, done[d.source].path, jobs, force, home, tell)
    else:
        path = _downloaded(d, jobs, force, home, tell)
    if Manifest.read(path).fingerprint != d.fingerprint:
        raise _differs(d, path, hint=f"rlds rm {d.id} removes it; it stays until then")
    return Synced(d.id, d.fingerprint, "made" if d.made_by else "downloaded", path)


def _precedes(path: Path, d: Locked) -> bool:
    """Return whether the dataset in ``path`` is the one that the edits of the lock make a later version of."""
    m = Manifest.read(path)
    return d.in_place and m.version < (d.version or 0) and m.fingerprint == _unedited(d).fingerprint


def _succeeds(path: Path, d: Locked, home: StrPath | None) -> bool:
    """Return whether the dataset in ``path`` was made of the version of the lock, or of that which its edits change.

    That version itself is not there, and the dataset is in the user's own home.
    """
    m = Manifest.read(path)
    if m.growing or not path.is_relative_to(settings.read(home).home):
        return False
    numbers = {step["source"]: step.get("version") for step in m.provenance if step["id"] == m.id}
    based = d.edits is not None and d.in_place and d.edits["base"] in numbers
    number = numbers.get(d.fingerprint, d.version if based else None)
    return number is not None and number < m.version and number not in History(path).earlier


def _earlier(
    d: Locked, path: Path, done: Mapping[str, Synced], jobs: int, home: StrPath | None, tell: Progress
) -> Synced:
    """Make the version of the lock in a home of its own, and put it among the earlier versions of the dataset."""
    own = Home(settings.read(home).home)
    partial = own.root / "partial"
    safe_files.directory(partial, own.root)
    with tempfile.TemporaryDirectory(prefix="sync-", dir=partial) as work:
        base = _here(_unedited(d), home) if d.in_place else None
        if d.edits is not None and base is not None:
            made = Synced(d.id, d.fingerprint, "made", _edited(d, d.edits, base, work))
        else:
            made = _sync(d, done, jobs, False, work, tell)
        with exclusive(own, ids.parse(d.id), tell):
            return replace(made, path=History(path).keep(made.path))


def _edited(d: Locked, change: Mapping[str, Any], source: Path, home: StrPath | None) -> Path:
    return edits.make(d.id, d.version or 1, change, source, verify=lambda made: _check(d, made), home=home)


def _other_version(d: Locked, path: Path) -> WrongFingerprint:
    """Return the error for a dataset on this disk, but not with the version of the lock."""
    copy = f"copy the directory of {d.id} from where the lock was written, under another name"
    number, found = d.version or 0, _fingerprint_at(path, d.version or 0)
    now = f"has the fingerprint {found}" if found else "is not there, or episodes of it were freed"
    return WrongFingerprint(
        f"The lock pins version {number:,} of {d.id} with {d.fingerprint}; in {path} it {now}.", hint=copy
    )


def _pulled(d: Locked, address: str, force: bool, home: StrPath | None, tell: Progress) -> Path:
    from rlds_cli.places import Pull

    place, where = replace(Address.parse(address), index=d.index), settings.read(home)
    return Pull(place, where, name=d.id).run(expect=d.fingerprint, force=force, progress=tell)


def _downloaded(d: Locked, jobs: int, force: bool, home: StrPath | None, tell: Progress) -> Path:
    from rlds_cli.make import deliver

    id = ids.parse(d.id)
    base = str(id.base)
    known = _entry(d)
    portion = Subset.from_facts(d.options.get("portion") or {})
    where = settings.read(home)
    pins = tuple(pinned(f, known, where) for f in d.files)
    # A part of an archive needs the listing of all files. So does a tree whose files have no remote address of
    # their own, and a store of many files, which the lock pins as one.
    listed = bool(portion) or (bool(known.tree) and not all(map(_is_reachable, pins)))
    listed = listed or any(f.path.startswith(f"{pin.path}/") for pin in pins for f in known.files)
    request = DownloadRequest(
        base,
        frames=str(d.options.get("frames", "encoded")),
        skip_bad=bool(d.options.get("skip_bad")),
        force=force,
        home=home,
        portion=portion,
        files=() if listed else pins,
        pinned=pins if listed else (),
        revision=_revision(d),
        line=known.line,
    )
    if request.variant != id.variant:
        described = id.base.with_variant(request.variant) if request.variant else id.base
        raise RldsError(f"The lock has the options of {described}, but the id {d.id}.")
    try:
        return deliver(request, jobs=jobs, progress=tell, check=lambda made: _check(d, made)).path
    except ReaderError as e:
        raise ReaderError(f"{e.message} {d.id} was made of {_names(d)}{_read_by(d)}.", hint=e.hint) from e
    except TransferError as e:
        if known.line is None or isinstance(e, WrongHash | Offline):
            raise
        told = f"{e.message} Its address may need a token or a user, which a lock does not hold."
        how = f"rlds download URL --name {base}" if id.family == ids.LOCAL else "a user in ~/.netrc"
        raise type(e)(told, hint=f"{how}, and the same command again; {e.hint}") from e


def _entry(d: Locked) -> Entry:
    """Return the entry of a dataset: that of the lock, unless the package's registry has the family."""
    base = str(ids.parse(d.id).base)
    line = d.options.get("entry")
    described = None if line is None else registry.described(base, line)
    if described is not None:
        return described
    try:
        return registry.get(base)
    except RldsError as e:
        own = f"rlds registry add PATH|URL, with the registry that has {base}" if registry.is_new(base) else ""
        raise DatasetNotFound(
            f"{d.id} is not here, and not in the registry: it was made of {_names(d)}{_read_by(d)}.",
            hint=f"{own or f'rlds import PATH --name {d.id}{_reader(d)}'}, and the same command again",
        ) from e


def _read_by(d: Locked) -> str:
    """Say which reader that is not part of rlds read the files of a dataset; empty for another one."""
    name, *code = d.options.get("read_by") or ("",)
    return f", read by {name} ({', '.join(code)})" if name else ""


def _reader(d: Locked) -> str:
    return f" --reader {d.options['read_by'][0]}" if d.options.get("read_by") else ""


def _check(d: Locked, made: Path) -> None:
    if Manifest.read(made).fingerprint != d.fingerprint:
        as_is = "makes the current one"
        how = (
            f"The lock does not fit {d.id}"
            if d.edits
            else f"Its functions give another result here: rlds preprocess {as_is}"
            if d.made_by
            else f"rlds download {d.id} {as_is}"
        )
        raise _differs(d, made, "would be", hint=f"Nothing is published. {how}")


def _is_reachable(file: File) -> bool:
    """Return whether a file has a remote address, or a local one that exists."""
    return any(path is None or bundles.is_file(path) for path in (as_url(u).local_path for u in file.urls))


def _revision(d: Locked) -> str | None:
    """Return the commit of all files, if they came from a repository."""
    found = {str(f.get("revision")) for f in d.files}
    only = found.pop() if len(found) == 1 else ""
    return only if re.fullmatch(r"[0-9a-f]{40}", only) else None


def _names(d: Locked) -> str:
    names = [str(f["file"]) for f in d.files]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more if names else "values given in Python"


def _made(d: Locked, source: Path, jobs: int, force: bool, home: StrPath | None, tell: Progress) -> Path:
    from rlds_cli.preprocess import RecordedStep

    (step,) = map(RecordedStep, d.made_by)
    how: dict[str, Any] = {"jobs": jobs, "force": force, "home": home, "progress": tell}
    return step.take(source, d.id, lambda made: _check(d, made.path), **how).path


def _differs(d: Locked, path: Path, now: str = "is", *, hint: str) -> WrongFingerprint:
    store = open_store(path)
    what = "; ".join(_differences(d, store)) or "the episode table differs"
    return WrongFingerprint(
        f"{d.id} {f'in {path} ' if now == 'is' else ''}{now} {store.fingerprint()}; "
        f"the lock says {d.fingerprint}: {what}.",
        hint=hint,
    )


def _differences(d: Locked, store: Store) -> Iterator[str]:
    """In words, from the causes to the effects: files, functions, fields."""
    now = {str(s["file"]): s.get("sha256") for s in store.sources}
    if not d.made_by:
        for file in d.files:
            name, wanted = str(file["file"]), file.get("sha256")
            if name not in now:
                yield f"{name} is not of its archive"
            elif wanted and now[name] != wanted:
                yield f"{name} of its archive has sha256 {now[name]}, not {wanted}"
    for step, was in zip(own_steps(store.manifest), d.made_by, strict=False):
        if step.get("code") != was.get("code"):
            yield f"{was.get('reference')} has another source"
    fields = {f.name: f.digest for f in store.manifest.fields if d.fields}
    for what, names in (
        ("without", d.fields.keys() - fields.keys()),
        ("with also", fields.keys() - d.fields.keys()),
        ("other values in", {n for n in d.fields.keys() & fields.keys() if d.fields[n] != fields[n]}),
    ):
        if names:
            yield f"{what} {', '.join(sorted(names))}"


def pinned(file: Mapping[str, Any], entry: Entry, where: Settings) -> File:
    """Return a file with the addresses, size and hash to fetch it with.

    Size and hash of the registry take precedence over those of the lock. An address that is not in the registry counts
    only if the registry has the hash: otherwise a lock could publish other files under this name.
    """
    name, url = str(file["file"]), file.get("url")
    known = next((f for f in entry.files if f.path == name), File(name, ()))
    came = [url] if url and _may_be_used(url, known, entry, where) else []
    return File(
        path=name,
        urls=tuple(dict.fromkeys([*came, *known.urls])),
        size=file.get("size") if known.size is None else known.size,
        sha256=known.sha256 or file.get("sha256"),
    )


def _may_be_used(url: str, known: File, entry: Entry, where: Settings) -> bool:
    if url.startswith("package:"):
        return url in known.urls
    return known.sha256 is not None or _is_known(url, known, entry, where)


def _is_known(url: str, known: File, entry: Entry, where: Settings) -> bool:
    """Return whether an address is in the registry, or below one that is."""
    try:
        asked = unquote(as_url(url).request(where))
        roots = [unquote(root) for root in _roots(known, entry, where)]
    except RldsError:
        return False
    host = urlsplit(asked).netloc
    return ".." not in asked and any(asked.startswith(r) and urlsplit(r).netloc == host for r in roots)


def _roots(known: File, entry: Entry, where: Settings) -> Iterator[str]:
    yield from (as_url(u).request(where) for u in known.urls)
    yield from (as_url(u).request_root(where) for u in entry.tree)
