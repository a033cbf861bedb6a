"""Lock files: which datasets, of which content, made of which files; and the same on another machine.

A lock file is JSON::

    {"rlds_lock": 1, "datasets": [{
        "id": ..., "fingerprint": "rlds1:...", "fields": {name: digest},
        "files": [{"file", "size", "sha256", "url", "revision"}],       of the archive
        "options": {...},                                               how it was converted
        "made_by": [...],                                               steps of `rlds preprocess`, oldest first
        "reproducible": false, "why": ...}]}                            where no other machine can make it again

Datasets come after those that they were made of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rlds_cli import documents, home, ids, registry, settings, targets
from rlds_cli.bars import shown
from rlds_cli.delivery.orders import Order
from rlds_cli.entries import File
from rlds_cli.errors import DatasetNotFound, RldsError, WrongFingerprint
from rlds_cli.portions import Portion
from rlds_cli.progress import Progress
from rlds_cli.settings import StrPath
from rlds_cli.store import manifest
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store
from rlds_cli.transfer import local

VERSION = 1
_SELECTING = ("select_episodes", "top_episodes")  # they select episodes by themselves, the same ones each time


@dataclass(frozen=True, slots=True)
class Locked:
    """One dataset of a lock file."""

    id: str
    fingerprint: str
    fields: Mapping[str, str]
    files: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]
    made_by: Sequence[Mapping[str, Any]] = ()
    reproducible: bool = True
    why: str = ""  # not


@dataclass(frozen=True, slots=True)
class Synced:
    """What was done to have a locked dataset; all of them have the fingerprint of the lock."""

    id: str
    fingerprint: str
    how: Literal["here", "downloaded", "made"]
    path: Path


def lock(refs: Sequence[str], *, allow_unreproducible: bool = False, cache_dir: StrPath | None = None) -> str:
    """The text of a lock file for datasets that are here, and for those that they were made of.

    Parameters
    ----------
    allow_unreproducible : bool
        Lock also what no other machine can make again, marked ``"reproducible": false``: `sync` knows its fingerprint,
        and cannot make it.

    Raises
    ------
    DatasetNotFound
        One of them is not here, or was made of one that is not.
    RldsError
        No other machine can make one of them again; the message says why.
    """
    found: dict[str, Locked] = {}
    for path in targets.datasets(refs, everything=False, cache_dir=cache_dir):
        _lock(path, found, cache_dir)
    lost = next((d for d in found.values() if not d.reproducible), None)
    if lost is not None and not allow_unreproducible:
        raise RldsError(
            f"{lost.id} cannot be made again on another machine: {lost.why}. Nothing was locked.",
            hint="--allow-unreproducible (allow_unreproducible=True) locks it, marked so",
        )
    return documents.dumps({"rlds_lock": VERSION, "datasets": [_written(d) for d in found.values()]}, "the lock")


def _lock(path: Path, found: dict[str, Locked], cache_dir: StrPath | None) -> None:
    store = Store(path)
    m = store.manifest
    if m.id in found:
        return
    made_by = _own_steps(m)
    if made_by:
        _lock(targets.locate(str(made_by[0]["from"]), cache_dir), found, cache_dir)
    digests = {f.name: f.digest for f in m.fields}
    files = () if made_by else store.sources
    why = _unreproducible(m, made_by)
    found[m.id] = Locked(m.id, m.fingerprint, digests, files, dict(m.options), made_by, not why, why)


def _written(d: Locked) -> dict[str, Any]:
    """As JSON; what can be made again has no mark."""
    unmarked = ("reproducible", "why") if d.reproducible else ()
    return {name: value for name, value in asdict(d).items() if name not in unmarked}


def _unreproducible(m: Manifest, steps: Sequence[Mapping[str, Any]]) -> str:
    """Why no other machine can make a dataset again, whatever it has; empty where one can."""
    from rlds_cli.preprocess import builtin

    if not steps:
        return "it was created of values given in Python" if m.reader == "create" else ""
    for step in steps:
        reference = str(step.get("reference"))
        named = ":" in reference or builtin.get(reference) is not None
        if not named or step.get("held"):
            return (
                f"its function {reference} is in no module (a lambda, of a notebook, or with arguments that it holds)"
            )
    if "+" in str(steps[0].get("source")) and str(steps[0].get("reference")).replace("-", "_") not in _SELECTING:
        return f"it was made of a selection of the episodes of {steps[0]['from']}"
    return ""


def _own_steps(m: Manifest) -> tuple[Mapping[str, Any], ...]:
    """The steps that made this dataset of another: one, or those of a pipeline."""
    if not m.provenance:
        return ()
    pipeline = m.provenance[-1].get("pipeline")
    return m.provenance[-(len(pipeline["functions"]) if pipeline else 1) :]


def read(file: StrPath) -> tuple[Locked, ...]:
    """The datasets of a lock file.

    Raises
    ------
    RldsError
        It cannot be read, is no lock file, or of a later version.
    """
    try:
        content = documents.load(Path(file), longest=documents.OWN)
        version = int(content["rlds_lock"])
        if version > VERSION:
            raise RldsError(f"{file} was written by a later rlds.", hint="pip install --upgrade rlds-cli")
        return tuple(Locked(**d) for d in content["datasets"])
    except OSError as e:
        raise RldsError(f"{file} cannot be read: {e.strerror}.", hint="rlds lock ID... > rlds.lock writes one") from e
    except (ValueError, KeyError, TypeError) as e:
        raise RldsError(f"{file} is not a lock file ({e}).", hint="rlds lock ID... > rlds.lock writes one") from e


def sync(
    file: StrPath,
    *,
    jobs: int = 0,
    force: bool = False,
    cache_dir: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> tuple[Synced, ...]:
    """Have all datasets of a lock file here, with equal fingerprints.

    Those that are missing are downloaded from the very files that the lock names, or made by the functions that it
    names, which must be importable here.

    Parameters
    ----------
    force : bool
        Replace datasets of other content.

    Raises
    ------
    WrongFingerprint
        A dataset that is here, or was made now, has other content; the message says what differs. What was made before
        stays.
    """
    return tuple(_sync(d, jobs, force, cache_dir, shown(progress)) for d in read(file))


def _sync(d: Locked, jobs: int, force: bool, cache_dir: StrPath | None, tell: Progress) -> Synced:
    here = home.find(ids.parse(d.id), settings.read(cache_dir))
    if here is not None and manifest.read(here).fingerprint == d.fingerprint:
        return Synced(d.id, d.fingerprint, "here", here)
    if here is not None and not force:
        raise _differs(d, here, hint=f"rlds sync --force makes {d.id} anew")
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


def _downloaded(d: Locked, jobs: int, force: bool, cache_dir: StrPath | None, tell: Progress) -> Path:
    from rlds_cli.delivery.deliveries import deliver

    base = str(ids.parse(d.id).base)
    try:
        known = registry.get(base)
    except RldsError as e:
        raise DatasetNotFound(
            f"{d.id} is not here, and not of the registry: it was made of {_names(d)}.",
            hint=f"rlds import PATH --as {d.id}, and the same command again",
        ) from e
    places = {f.path: f.urls for f in known.files}
    portion = Portion.from_facts(d.options.get("portion") or {})
    pins = tuple(_pinned(f, places) for f in d.files)
    # Which part a file is tells a listing of all of them, and where it is, where it came from a place of its own.
    listed = bool(portion) or (bool(known.tree) and not all(map(_may_be_had, pins)))
    order = Order(
        base,
        frames=str(d.options.get("frames", "encoded")),
        skip_bad=bool(d.options.get("skip_bad")),
        force=force,
        cache_dir=cache_dir,
        portion=portion,
        files=() if listed else pins,
        pinned=pins if listed else (),
        revision=_revision(d),
    )
    return deliver(order, jobs=jobs, progress=tell, check=lambda made: _check(d, made)).path


def _check(d: Locked, made: Path) -> None:
    if manifest.read(made).fingerprint != d.fingerprint:
        raise _differs(d, made, "would be", hint=f"Nothing is published. rlds download {d.id} has it as it is now")


def _may_be_had(file: File) -> bool:
    """Whether one of its places is likely to be there on this machine."""
    return any(not local.is_local(u) or local.path_of(u).is_file() for u in file.urls)


def _revision(d: Locked) -> str | None:
    """The commit that all files are of, where they came from a repository."""
    found = {str(f.get("revision")) for f in d.files}
    only = found.pop() if len(found) == 1 else ""
    return only if re.fullmatch(r"[0-9a-f]{40}", only) else None


def _pinned(file: Mapping[str, Any], places: Mapping[str, tuple[str, ...]]) -> File:
    """A file as it was: from where it came, else from where the registry knows it, and with its hash."""
    urls = [str(file["url"])] if file.get("url") else []
    return File(
        path=str(file["file"]),
        urls=tuple(dict.fromkeys([*urls, *places.get(str(file["file"]), ())])),
        size=file.get("size"),
        sha256=file.get("sha256"),
    )


def _names(d: Locked) -> str:
    names = [str(f["file"]) for f in d.files]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more if names else "values given in Python"


def _of_steps(steps: Sequence[Mapping[str, Any]], key: str) -> Any:
    """For a pipeline one value for each function, else the value."""
    return [s[key] for s in steps] if len(steps) > 1 else steps[0][key]


def _made(d: Locked, jobs: int, force: bool, cache_dir: StrPath | None, tell: Progress) -> Path:
    from rlds_cli import preprocess

    steps = d.made_by
    depends = _depends(d)
    spans = [s["window"] for s in steps if "window" in s]
    history, future = spans[0] if spans else (None, None)
    ds = preprocess.run(
        str(steps[0]["from"]),
        _of_steps(steps, "reference"),
        ids.parse(d.id).variant,
        unit=_of_steps(steps, "unit"),
        arrays=_of_steps(steps, "arrays"),
        args=_of_steps(steps, "args"),
        history=history,
        future=future,
        fields=steps[0]["fields"],
        keep_going=bool(steps[-1].get("keep_going")),
        depends_on=depends,
        jobs=jobs,
        force=force,
        cache_dir=cache_dir,
        progress=tell,
    )
    return ds.path


def _depends(d: Locked) -> list[str]:
    """The files that the functions read, which must be here as they were."""
    from rlds_cli.preprocess import dependencies

    found: dict[str, str] = {name: sha for step in d.made_by for name, sha in (step.get("depends") or {}).items()}
    for name, wanted in found.items():
        path = Path(name).expanduser()
        now = f"has sha256 {dependencies.digest(path)}" if path.exists() else "is not here"
        if now != f"has sha256 {wanted}":
            raise WrongFingerprint(
                f"{d.id} was made with {name}, which {now}; the lock says sha256 {wanted}.",
                hint=f"put that file there, as {path.absolute()}",
            )
    return list(found)


def _differs(d: Locked, path: Path, now: str = "is", *, hint: str) -> WrongFingerprint:
    store = Store(path)
    what = "; ".join(_differences(d, store)) or "the episode table differs"
    return WrongFingerprint(
        f"{d.id} {f'in {path} ' if now == 'is' else ''}{now} {store.manifest.fingerprint}; "
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
            yield f"{was.get('reference')} has another source now"
    fields = {f.name: f.digest for f in store.manifest.fields}
    for what, names in (
        ("without", d.fields.keys() - fields.keys()),
        ("with also", fields.keys() - d.fields.keys()),
        ("other values in", {n for n in d.fields.keys() & fields.keys() if d.fields[n] != fields[n]}),
    ):
        if names:
            yield f"{what} {', '.join(sorted(names))}"
