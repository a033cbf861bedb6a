"""Entries of a lock file, for datasets that are on this disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlds_cli import homes, registry
from rlds_cli.base import ids, settings
from rlds_cli.base.refs import Ref
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import ProvenanceStep
from rlds_cli.errors import DatasetNotFound, RldsError
from rlds_cli.keep import edits
from rlds_cli.keep.lock_file import Locked
from rlds_cli.make import MERGED
from rlds_cli.places import Origins, as_url
from rlds_cli.places.remote.origins import Origin
from rlds_cli.store import Manifest, Store, StoredDataset, open_store

_SELECTING = ("select_episodes", "top_episodes")  # their selection is reproducible


class Entries:
    """The datasets of a lock file, each after those that it was made of, and with one version."""

    def __init__(self, home: StrPath | None) -> None:
        self._home = home
        self._found: dict[str, tuple[int, Locked]] = {}  # number of the version, and the entry, by id

    def datasets(self) -> list[Locked]:
        """Return the entries."""
        return [d for _, d in self._found.values()]

    def add(self, ref: Ref, within: tuple[str, ...] = ()) -> Store:
        """Add a version of a dataset, and what it was made of.

        Parameters
        ----------
        ref : Ref
            With the directory of the dataset as its place.
        within : tuple of str
            Ids of the datasets that were made of it, the nearest last.

        Raises
        ------
        RldsError
            The lock would hold two versions of a dataset.
        DatasetNotFound
            What it was made of is not here.
        """
        path = Path(ref.place)
        store = open_store(path, ref)
        m = store.manifest
        number = store.version
        if m.id in within:
            raise RldsError(f"{m.id} was replaced by a dataset that was made of it. Nothing was locked.")
        if m.id not in self._found:
            self._found[m.id] = number, self._entry(path, store, (*within, m.id))
        if self._found[m.id][0] != number:
            why = f"{within[-1]} was made of v{number}" if within else f"v{number} was named"
            raise RldsError(
                f"A lock file has one version of {m.id}. It would need two: v{self._found[m.id][0]}, and {why}.",
                hint="a lock file for each",
            )
        return store

    def _entry(self, path: Path, store: Store, within: tuple[str, ...]) -> Locked:
        m, fingerprint = store.manifest, store.fingerprint()
        if store.table.pinned_version is not None:
            place = _place(m.id, Origins(path).of_version(store.version_id))
            why = "" if place else "it grows: its episodes were recorded or appended where it is"
            entry = Locked(m.id, fingerprint, {}, (), {}, (), not why, why, None, store.table.pinned_version)
            return replace(entry, **place)
        entry = Locked(m.id, fingerprint, {f.name: f.digest for f in m.fields}, (), {})
        edited, made_by = edits.steps_of(m), own_steps(m)
        is_new = bool(edited) and edited[-1]["source"] != fingerprint  # not only its facts, or where rows are
        if is_new and (pushed := _place(m.id, Origins(path).of_content(fingerprint))):
            return replace(entry, **pushed)
        if (later := _since_pushed(path, store, edited)) is not None:
            return replace(entry, **later)
        in_place = bool(edited) and edited[0]["from"] == m.id
        place = _place(m.id, Origins(path).of_content(edited[0]["source"] if in_place else fingerprint))
        if edited and not (place and in_place) and (result := _place(m.id, Origins(path).of_content(fingerprint))):
            return replace(entry, **result)
        if edited:
            source = None if in_place else self._add_source(edited[0], within)
            entry = replace(
                entry, edits=edits.described(store, edited, source, edits.of_source(store, source)), version=m.version
            )
        if edited and not in_place:
            return entry
        if place and (made_by or _is_appended(m) or m.reader in (MERGED, "create")):
            return replace(entry, **place)
        whole = not made_by or self._add_source_of_function(made_by[0], within)
        why = _unreproducible(m, made_by, whole)
        entry = replace(entry, reproducible=not why, why=why, made_by=made_by)
        if m.reader == MERGED:
            return entry
        files = () if made_by else tuple(_shared_with_others(s) for s in store.sources)
        return replace(entry, files=files, options=_options_for_others(m), **place)

    def _add_source(self, step: Mapping[str, Any], within: tuple[str, ...]) -> Store:
        """Add the version that a step changed."""
        path = homes.locate(str(step["from"]), settings.read(self._home))
        number = _version_made_of(path, step)
        if number is None:
            raise DatasetNotFound(
                f"{within[-1]} was made of {step['from']} with the fingerprint {step['source']}, "
                "which is that of no version here.",
                hint=f"make {within[-1]} again",
            )
        return self.add(Ref(path, version=number), within)

    def _add_source_of_function(self, step: Mapping[str, Any], within: tuple[str, ...]) -> bool:
        """Add the version that a function read, or the newest; return whether it read all episodes of that version."""
        path = homes.locate(str(step["from"]), settings.read(self._home))
        number = _version_made_of(path, step)
        self.add(Ref(path, version=number), within)
        return number is not None and "of" not in step


def _version_made_of(path: Path, step: Mapping[str, Any]) -> int | None:
    """Return the number of the version of the dataset in ``path`` that a step was made of; None for none."""
    found = StoredDataset(path).with_content(str(step.get("of", step["source"])), step.get("version"))
    return None if found is None else found.version


def _since_pushed(path: Path, store: Store, edited: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the address of the version that was pushed last, and the edits since, as members of an entry.

    None if no version but the first was pushed. That one may be made of its archive, too.
    """
    m = store.manifest
    for k in range(len(edited) - 1, 0, -1):
        source = str(edited[k]["source"])
        place = _place(m.id, Origins(path).of_content(source))
        number = _version_made_of(path, edited[k]) if place else None
        if number is not None:
            with suppress(DatasetNotFound):  # the pushed version lacks an episode
                episodes = edits.of_version(store, open_store(path, Ref(path, version=number)))
                later = edits.described(store, edited[k:], None, episodes)
                return {"edits": later, "version": m.version, **place}
        elif place and all(ProvenanceStep(step).keeps_episodes for step in edited[k:]):
            later = edits.described(store, edited[k:], None, None)
            return {"edits": later, "version": m.version, **place}
    return None


def _place(id: str, origin: Origin | None) -> dict[str, Any]:
    """Return address and index of an origin, as members of an entry; none if its id may not be taken from there."""
    if origin is None or not may_be_pulled(id):
        return {}
    return {"address": origin.address, "index": origin.index}


def may_be_pulled(id: str) -> bool:
    """Return whether an address may say what a dataset is; of its own datasets, only the registry does."""
    return ids.parse(id).variant is not None or registry.listed(id) is None


def _shared_with_others(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file of an archive, without a local path: locks are shared."""
    return {**source, "url": None} if str(source.get("url")).startswith("file:") else dict(source)


def _options_for_others(m: Manifest) -> dict[str, Any]:
    """Return the options of a conversion without addresses of this machine; without the line if it has no others.

    A reader that is not part of rlds is one of them.
    """
    options = dict(m.options) | ({"read_by": [m.reader, m.reader_source]} if m.reader_source else {})
    line = options.get("entry")
    if not isinstance(line, Mapping):
        return options
    shared = {k: [u for u in line[k] if as_url(u).local_path is None] for k in ("urls", "tree") if k in line}
    files = [{**f, "urls": [u for u in f["urls"] if as_url(u).local_path is None]} for f in line.get("files", ())]
    if not (all(shared.values()) and all(f["urls"] for f in files)):
        return {k: v for k, v in options.items() if k != "entry"}
    return {**options, "entry": {**line, **shared, **({"files": files} if files else {})}}


def _unreproducible(m: Manifest, steps: Sequence[Mapping[str, Any]], whole: bool) -> str:
    """Say why no other machine can make a dataset again; empty if one can. ``whole``: of all episodes of its source."""
    from rlds_cli.preprocess import RecordedStep

    if m.reader == MERGED:
        return "it was merged of other datasets, which rlds merge does again"
    if _is_appended(m):
        return "files were appended to it"
    if not steps and (before := _unedited_steps(m)):
        return f"it is a copy of {before[-1]['id']}, which was made by {before[-1]['reference']}"
    if not steps:
        return "it was created from values in Python" if m.reader == "create" else ""
    for step in steps:
        if not RecordedStep(step).is_named or step.get("held"):
            return (
                f"its function {step['reference']} is in no module "
                "(a lambda, defined in a notebook, or with bound arguments)"
            )
    if not whole and steps[0]["reference"].replace("-", "_") not in _SELECTING:
        return (
            f"it was made of a selection of the episodes of {steps[0]['from']}, or of other content of it "
            "(ds.select(...).save(NAME) gives a selection a name)"
        )
    return ""


def own_steps(m: Manifest) -> tuple[Mapping[str, Any], ...]:
    """Return the step of preprocess that made the first version of this dataset, if it was made by one."""
    steps = _unedited_steps(m)
    if not steps or ProvenanceStep(steps[-1]).is_change:
        return ()
    return steps[-1:]


def _is_appended(m: Manifest) -> bool:
    return any(ProvenanceStep(step).appends for step in m.provenance)


def _unedited_steps(m: Manifest) -> tuple[Mapping[str, Any], ...]:
    return m.provenance[: len(m.provenance) - len(edits.steps_of(m))]
