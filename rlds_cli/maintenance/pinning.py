"""Write lock files for datasets, and sync another machine with them.

A lock file is JSON::

    {"rlds_lock": 1, "datasets": [{
        "id": ..., "fingerprint": "rlds1:...", "fields": {name: digest},
        "files": [{"file", "size", "sha256", "url", "revision"}],       of the archive
        "options": {...},                                               options of the conversion
        "made_by": [...],                                               steps of `rlds preprocess`, oldest first
        "reproducible": false, "why": ...,                              if no other machine can make it again
        "version": ..., "address": ...}]}                            of one that grows; of one at an address

Datasets come after those that they were made of. A lock file is untrusted: `lock_file` checks its values, and what it
would run and read. Files are fetched from the addresses in the registry; from others only if the registry has a hash.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from rlds_cli import home, ids, registry, settings
from rlds_cli.convert import merging
from rlds_cli.downloads.request import DownloadRequest
from rlds_cli.downloads.sources import local_path, request_url, source_of
from rlds_cli.errors import DatasetNotFound, Offline, RldsError, TransferError, WrongFingerprint, WrongHash
from rlds_cli.files import json as documents
from rlds_cli.growing.store import GrowingStore, is_growing, open_store
from rlds_cli.home import locate
from rlds_cli.maintenance import lock_file
from rlds_cli.maintenance.lock_file import Locked, UserFunction
from rlds_cli.progress import Event, Progress, shown
from rlds_cli.refs import Ref
from rlds_cli.registry import Entry, File, facts
from rlds_cli.remote import addresses, origins
from rlds_cli.settings import Settings, StrPath
from rlds_cli.store import manifest
from rlds_cli.store.commits import Commit
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store
from rlds_cli.subset import Subset

_SELECTING = ("select_episodes", "top_episodes")  # their selection is reproducible


@dataclass(frozen=True, slots=True)
class Synced:
    """A dataset of a lock file that is here now, and how it was obtained. It has the fingerprint of the lock."""

    id: str
    fingerprint: str
    how: Literal["here", "downloaded", "made"]
    path: Path


def lock(refs: Sequence[str], *, allow_unreproducible: bool = False, cache_dir: StrPath | None = None) -> str:
    """Return the text of a lock file for datasets that are here, and for those that they were made of.

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
    found: dict[str, Locked] = {}
    for ref in locate.versions(refs, cache_dir=cache_dir):
        _lock(Path(ref.place), found, cache_dir, ref)
    lost = next((d for d in found.values() if not d.reproducible), None)
    if lost is not None and not allow_unreproducible:
        raise RldsError(
            f"{lost.id} cannot be made again on another machine: {lost.why}. Nothing was locked.",
            hint="--allow-unreproducible (allow_unreproducible=True) locks it with a mark",
        )
    return documents.dumps(
        {"rlds_lock": lock_file.VERSION, "datasets": [_written(d) for d in found.values()]}, "the lock"
    )


def _lock(path: Path, found: dict[str, Locked], cache_dir: StrPath | None, ref: Ref) -> None:
    store = open_store(path, ref)
    m = store.manifest
    if m.id in found:
        return
    address = _address(path, m, store.commit if isinstance(store, GrowingStore) else None)
    if isinstance(store, GrowingStore):
        why = "" if address else "it grows: its episodes were recorded or appended where it is"
        held = store.commit.number
        found[m.id] = Locked(m.id, store.fingerprint(), {}, (), {}, (), not why, why, held, address)
        return
    made_by = _own_steps(m)
    if address is not None and (made_by or m.reader in (merging.READER, "create")):
        found[m.id] = Locked(m.id, m.fingerprint, {f.name: f.digest for f in m.fields}, (), {}, address=address)
        return
    if made_by:
        source, number = locate.locate(str(made_by[0]["from"]), cache_dir), made_by[0].get("version")
        _lock(source, found, cache_dir, Ref(source, version=number))
    digests = {f.name: f.digest for f in m.fields}
    if m.reader == merging.READER:
        why = "it was merged of other datasets, which rlds merge does again"
        found[m.id] = Locked(m.id, m.fingerprint, digests, (), {}, reproducible=False, why=why)
        return
    files = () if made_by else tuple(_shared_with_others(s) for s in store.sources)
    why = _unreproducible(m, made_by)
    options = _options_for_others(m.options)
    found[m.id] = Locked(m.id, m.fingerprint, digests, files, options, made_by, not why, why, None, address)


def _address(path: Path, m: Manifest, commit: Commit | None) -> str | None:
    """Return the address that a dataset is at with this content, if it may be fetched from there under its id."""
    origin = origins.of_dataset(path, commit)
    return origin.address if origin is not None and _may_be_pulled(m.id) else None


def _may_be_pulled(id: str) -> bool:
    """Return whether an address may say what a dataset is; of its own datasets, only the registry does."""
    return ids.parse(id).variant is not None or registry.listed(id) is None


def _written(d: Locked) -> dict[str, Any]:
    """Return a dataset as JSON; reproducible ones have no mark."""
    unmarked = {"reproducible", "why"} if d.reproducible else set()
    unmarked |= {name for name in ("version", "address") if getattr(d, name) is None}
    return {name: value for name, value in asdict(d).items() if name not in unmarked}


def _shared_with_others(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file of an archive, without a local path: locks are shared."""
    return {**source, "url": None} if str(source.get("url")).startswith("file:") else dict(source)


def _options_for_others(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a conversion without addresses of this machine; without the line if it has no others."""
    line = options.get("entry")
    if not isinstance(line, Mapping):
        return dict(options)
    shared = {k: [u for u in line[k] if local_path(u) is None] for k in ("urls", "tree") if k in line}
    files = [{**f, "urls": [u for u in f["urls"] if local_path(u) is None]} for f in line.get("files", ())]
    if not (all(shared.values()) and all(f["urls"] for f in files)):
        return {k: v for k, v in options.items() if k != "entry"}
    return {**options, "entry": {**line, **shared, **({"files": files} if files else {})}}


def _unreproducible(m: Manifest, steps: Sequence[Mapping[str, Any]]) -> str:
    """Say why no other machine can make a dataset again; empty if one can."""
    from rlds_cli.preprocess import builtin

    if not steps:
        return "it was created from values in Python" if m.reader == "create" else ""
    for step in steps:
        reference = step["reference"]
        named = ":" in reference or builtin.get(reference) is not None
        if not named or step.get("held"):
            return (
                f"its function {reference} is in no module (a lambda, defined in a notebook, or with bound arguments)"
            )
    if "of" in steps[0] and steps[0]["reference"].replace("-", "_") not in _SELECTING:
        return f"it was made of a selection of the episodes of {steps[0]['from']}"
    return ""


def _own_steps(m: Manifest) -> tuple[Mapping[str, Any], ...]:
    """Return the steps that made this dataset of another: one, or those of a pipeline."""
    if not m.provenance:
        return ()
    pipeline = m.provenance[-1].get("pipeline")
    return m.provenance[-(len(pipeline["functions"]) if pipeline else 1) :]


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


def functions(file: StrPath, *, cache_dir: StrPath | None = None) -> tuple[UserFunction, ...]:
    """Return the user functions that `sync` would run. They must be allowed; built-in ones need no permission.

    Raises
    ------
    RldsError
        As `sync`, before it begins.
    """
    return lock_file.wanted(_missing(_checked(file), cache_dir))


def hosts(file: StrPath, *, cache_dir: StrPath | None = None) -> tuple[str, ...]:
    """Return the web servers that `sync` would send requests to and the registry does not name; they must be allowed.

    Raises
    ------
    RldsError
        As `sync`, before it begins.
    """
    return _hosts(_missing(_checked(file), cache_dir), settings.read(cache_dir))


def _hosts(datasets: Sequence[Locked], where: Settings) -> tuple[str, ...]:
    """Return hosts with their ports; not buckets and the hub, which are services that the user has set up."""
    found: dict[str, None] = {}
    for d in datasets:
        found |= dict.fromkeys(_servers([d.address] if d.address and _may_be_pulled(d.id) else []))
        if not d.made_by and d.reproducible:
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
    cache_dir: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> tuple[Synced, ...]:
    """Obtain all datasets of a lock file, with equal fingerprints.

    Missing datasets are downloaded from exactly the files in the lock, or made by the functions in it. Built-in
    functions need no permission. A user function runs only if it is allowed, and if its source file and all files that
    it imports have the content in the lock. The whole lock is checked before anything is done.

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
    missing = _missing(locked, cache_dir)
    _check_hosts(missing, allow_address, file, settings.read(cache_dir))
    with lock_file.granted(missing, allow_code, depends_on, file):
        return tuple(_sync(d, jobs, force, cache_dir, shown(progress)) for d in locked)


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
    wrong = None if d.made_by else next(registry.contradictions(base, d.files), None)
    if wrong is not None:
        raise WrongHash(
            f"{file} does not match {base} in the registry: {wrong}. Nothing was done.",
            hint=f"rlds download {base} uses the files in the registry; rlds import takes others, as local/NAME",
        )


def _missing(locked: Sequence[Locked], cache_dir: StrPath | None) -> tuple[Locked, ...]:
    return tuple(d for d in locked if _here(d, cache_dir) is None)


def _here(d: Locked, cache_dir: StrPath | None) -> Path | None:
    """Return the directory of the dataset if it is here with the content of the lock."""
    path = home.find(ids.parse(d.id), settings.read(cache_dir))
    if path is None or is_growing(path) != (d.version is not None):
        return None
    if d.version is not None:
        return path if _fingerprint_at(path, d.version) == d.fingerprint else None
    return path if manifest.read(path).fingerprint == d.fingerprint else None


def _fingerprint_at(path: Path, version: int) -> str | None:
    """Return the fingerprint of a version that is there; None for another one."""
    try:
        return open_store(path, Ref(path, version=version), check=False).fingerprint()
    except DatasetNotFound:
        return None


def _sync(d: Locked, jobs: int, force: bool, cache_dir: StrPath | None, tell: Progress) -> Synced:
    if (same := _here(d, cache_dir)) is not None:
        return Synced(d.id, d.fingerprint, "here", same)
    other = home.find(ids.parse(d.id), settings.read(cache_dir))
    if d.version is not None and other is not None and d.address is None:
        raise _other_version(d, other)
    if d.version is None and other is not None and not force:
        raise _differs(d, other, hint=f"rlds sync --force replaces {d.id}")
    if d.address is not None and _may_be_pulled(d.id):
        try:
            path = _pulled(d, d.address, force, cache_dir, tell)
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
    make = _made if d.made_by else _downloaded
    path = make(d, jobs, force, cache_dir, tell)
    if manifest.read(path).fingerprint != d.fingerprint:
        raise _differs(d, path, hint=f"rlds rm {d.id} removes it; it stays until then")
    return Synced(d.id, d.fingerprint, "made" if d.made_by else "downloaded", path)


def _other_version(d: Locked, path: Path) -> WrongFingerprint:
    """Return the error for a dataset that grows and is here, but not with the version of the lock."""
    copy = f"copy the directory of {d.id} from where the lock was written, under another name"
    if not is_growing(path):
        return WrongFingerprint(f"{d.id} in {path} does not grow; that of the lock does.", hint=copy)
    number, found = d.version or 0, _fingerprint_at(path, d.version or 0)
    now = f"has the fingerprint {found}" if found else "is not there, or episodes of it were freed"
    return WrongFingerprint(
        f"The lock pins version {number:,} of {d.id} with {d.fingerprint}; in {path} it {now}.", hint=copy
    )


def _pulled(d: Locked, address: str, force: bool, cache_dir: StrPath | None, tell: Progress) -> Path:
    from rlds_cli.remote import pulling

    place, where = addresses.parse(address), settings.read(cache_dir)
    return pulling.pull(place, where, as_=d.id, expect=d.fingerprint, force=force, progress=tell)


def _downloaded(d: Locked, jobs: int, force: bool, cache_dir: StrPath | None, tell: Progress) -> Path:
    from rlds_cli.downloads.download import deliver

    id = ids.parse(d.id)
    base = str(id.base)
    known = _entry(d)
    portion = Subset.from_facts(d.options.get("portion") or {})
    where = settings.read(cache_dir)
    pins = tuple(pinned(f, known, where) for f in d.files)
    # A part of an archive needs the listing of all files. So does a tree whose files have no remote address of
    # their own.
    listed = bool(portion) or (bool(known.tree) and not all(map(_is_reachable, pins)))
    request = DownloadRequest(
        base,
        frames=str(d.options.get("frames", "encoded")),
        skip_bad=bool(d.options.get("skip_bad")),
        force=force,
        cache_dir=cache_dir,
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
    except TransferError as e:
        if known.line is None or isinstance(e, WrongHash | Offline):
            raise
        told = f"{e.message} Its address may need a token or a user, which a lock does not hold."
        how = f"rlds download URL --as {base}" if id.family == registry.LOCAL else "a user in ~/.netrc"
        raise type(e)(told, hint=f"{how}, and the same command again; {e.hint}") from e


def _entry(d: Locked) -> Entry:
    """Return the entry of a dataset: that of the lock, unless the package's registry has the family."""
    base = str(ids.parse(d.id).base)
    line = d.options.get("entry")
    if line is not None and registry.is_own(base):
        return facts.entry_of(line)
    try:
        return registry.get(base)
    except RldsError as e:
        own = f"rlds registry add PATH|URL, with the registry that has {base}" if registry.is_new(base) else ""
        raise DatasetNotFound(
            f"{d.id} is not here, and not in the registry: it was made of {_names(d)}.",
            hint=f"{own or f'rlds import PATH --as {d.id}'}, and the same command again",
        ) from e


def _check(d: Locked, made: Path) -> None:
    if manifest.read(made).fingerprint != d.fingerprint:
        as_is = "makes the current one"
        how = (
            f"Its functions give another result here: rlds preprocess {as_is}"
            if d.made_by
            else f"rlds download {d.id} {as_is}"
        )
        raise _differs(d, made, "would be", hint=f"Nothing is published. {how}")


def _is_reachable(file: File) -> bool:
    """Return whether a file has a remote address, or a local one that exists."""
    return any(path is None or path.is_file() for path in map(local_path, file.urls))


def _revision(d: Locked) -> str | None:
    """Return the commit of all files, if they came from a repository."""
    found = {str(f.get("revision")) for f in d.files}
    only = found.pop() if len(found) == 1 else ""
    return only if re.fullmatch(r"[0-9a-f]{40}", only) else None


def _names(d: Locked) -> str:
    names = [str(f["file"]) for f in d.files]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more if names else "values given in Python"


def _of_steps(steps: Sequence[Mapping[str, Any]], key: str) -> Any:
    """Return a value per function for a pipeline, else the value."""
    return [s[key] for s in steps] if len(steps) > 1 else steps[0][key]


def _made(d: Locked, jobs: int, force: bool, cache_dir: StrPath | None, tell: Progress) -> Path:
    from rlds_cli.preprocess import running

    steps = d.made_by
    _check_depends(d)
    found: list[Any] = [lock_file.load(step) for step in steps]
    spans = [s["window"] for s in steps if s.get("window")]
    ds = running.run_checked(
        lambda made: _check(d, made.path),
        str(steps[0]["from"]),
        found if len(found) > 1 else found[0],
        ids.parse(d.id).variant,
        unit=_of_steps(steps, "unit"),
        arrays=_of_steps(steps, "arrays"),
        args=_of_steps(steps, "args"),
        span=spans[0] if spans else (None, None),
        fields=steps[0].get("fields"),
        keep_going=bool(steps[-1].get("keep_going")),
        depends_on=list(lock_file.depends(d)),
        jobs=jobs,
        force=force,
        cache_dir=cache_dir,
        progress=tell,
    )
    return ds.path


def _check_depends(d: Locked) -> None:
    """Check that the files that the functions read are here and unchanged."""
    from rlds_cli.preprocess import sources

    for name, wanted in lock_file.depends(d).items():
        path = settings.expanded(name)
        now = f"has sha256 {sources.digest(path)}" if path.exists() else "is not here"
        if now != f"has sha256 {wanted}":
            raise WrongFingerprint(
                f"{d.id} was made with {name}, which {now}; the lock says sha256 {wanted}.",
                hint=f"put that file there, as {path.absolute()}",
            )


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
    for step, was in zip(_own_steps(store.manifest), d.made_by, strict=False):
        if step.get("code") != was.get("code"):
            yield f"{was.get('reference')} has another source"
    fields = {f.name: f.digest for f in store.manifest.fields}
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
        asked = unquote(request_url(url, where))
        roots = [unquote(root) for root in _roots(known, entry, where)]
    except RldsError:
        return False
    host = urlsplit(asked).netloc
    return ".." not in asked and any(asked.startswith(r) and urlsplit(r).netloc == host for r in roots)


def _roots(known: File, entry: Entry, where: Settings) -> Iterator[str]:
    yield from (request_url(u, where) for u in known.urls)
    yield from (source_of(u).root(u, where) for u in entry.tree)
