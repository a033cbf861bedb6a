"""The manifest of a dataset: ``attributes["rlds"]`` of its ``zarr.json``. Needs neither NumPy nor zarr."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.hashing import sha256_of
from rlds_cli.errors import DamagedDataset, NewerFormat
from rlds_cli.store import files, validation

if TYPE_CHECKING:
    from rlds_cli.store.commits import Commit
    from rlds_cli.ted import Field, Kind, Placement

_OWN = "rlds_sha256"  # of the manifest's file, in it
_KEY = f'"{_OWN}": "'
_NO_DIGEST = "0" * 64
_checked: set[str] = set()  # sha256 of the files of manifests that this process has checked
_NOT_FINITE = (b'"NaN"', b'Infinity"')  # texts of numbers
_AS_IT_IS = {str, int, bool, type(None)}  # of JSON


@dataclass(frozen=True, slots=True)
class StoredField:
    """A field in the manifest; ``path`` is its directory, ``digest`` the sha256 of its content."""

    name: str
    path: str
    dtype: str
    shape: tuple[int, ...]
    placement: str
    kind: str
    codec: str | None
    digest: str

    @property
    def field(self) -> Field:
        """The field that it describes."""
        from rlds_cli.ted import Field  # a manifest is read without NumPy

        placement, kind = cast("Placement", self.placement), cast("Kind", self.kind)
        return Field(self.name, self.dtype, self.shape, placement, kind, self.codec)


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of one field over the T steps of all episodes, per element of a row, in float64.

    ``mean std min max q01 q99`` have the shape of a row, or are numbers when a row has more than 4,096 elements (then
    over all elements). NaN and infinities are left out; ``nonfinite`` counts them. ``q01``, ``q99`` and ``histogram``
    are of at most 65,536 evenly spaced steps. ``histogram`` counts all elements in 16 equal bins of [low, high].
    """

    mean: Any
    std: Any
    min: Any
    max: Any
    q01: Any
    q99: Any
    count: int
    nonfinite: int = 0
    histogram: tuple[int, ...] = ()
    low: float = 0.0
    high: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "histogram", tuple(self.histogram))  # a list in JSON


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of rows, episodes and steps of a dataset."""

    rows: int
    episodes: int
    steps: int
    transitions: int
    terminated: int
    truncated: int
    cut: int
    final_observations: int
    terminated_inside: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything about a dataset that does not grow with its data."""

    FILE: ClassVar = "zarr.json"
    LISTING: ClassVar = "digests/zarr.json"  # the list of the digests of files, see `sealing`
    FORMAT: ClassVar = 1
    GROWING_FORMAT: ClassVar = 2  # of growing datasets, which format 1 does not know
    LONGEST: ClassVar = 64 << 20  # bytes of the file, written or read

    format: int
    id: str
    encoding: str
    fields: tuple[StoredField, ...]
    counts: Counts
    fingerprint: str
    created: str
    rlds_version: str
    reader: str = ""
    reader_version: int = 0
    reader_source: str = ""  # the code of a reader that is not part of rlds: sha256:... of its file, or its package
    episodes_by: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    spaces: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, Any] = field(default_factory=dict)
    stats: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    archive: Mapping[str, Any] = field(default_factory=dict)  # files, bytes, sha256 of all source files together
    options: Mapping[str, Any] = field(default_factory=dict)
    provenance: tuple[Mapping[str, Any], ...] = ()  # the chain of preprocess steps, oldest first
    metadata: tuple[str, ...] = ()
    notes: tuple[Mapping[str, Any], ...] = ()
    account: tuple[Mapping[str, Any], ...] = ()  # the fate of the archive and all that it holds
    shared: Mapping[str, str] = field(default_factory=dict)  # field -> how it came from the source: link, reflink, copy
    episode_columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # the user's own: dtype and digest
    files: str = ""  # sha256 of the list of the digests of files, see `sealing`
    growing: Mapping[str, Any] = field(default_factory=dict)  # of a growing dataset: rows of a segment, what is kept
    version: int = 1  # counts the changes of a dataset in its place

    @property
    def preprocessed(self) -> tuple[str, ...]:
        """The fields that preprocess functions added, changed or removed."""
        return tuple(name for step in self.provenance for name in step.get("changed", ()))

    @property
    def reader_named(self) -> str:
        """The reader for people, with its code if it is not part of rlds: ``rig (lab-rig 1.2)``."""
        code = re.sub(r"(sha256:\w{12})\w+", r"\1...", self.reader_source)
        return f"{self.reader} ({code})" if code else self.reader

    @property
    def reader_notes(self) -> tuple[Mapping[str, Any], ...]:
        """The notes of a reader on the archive; those of checks, which have a severity, are on these very episodes."""
        return tuple(n for n in self.notes if "severity" not in n)

    def is_made_of(self, sources: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether these are the files of the archive, wherever they are."""
        now = summarise_sources(sources)
        return all(self.archive.get(k) == now.get(k) for k in ("files", "bytes", "sha256"))

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON values; NaN and infinities become strings, as Zarr writes them."""
        known = self.stats if isinstance(self.stats, dict) else {}  # others are computed when they are asked for
        result = _encode(replace(self, stats=known))
        assert isinstance(result, dict)
        for name in ("account", "episode_columns", "growing", "reader_source"):
            if not result[name]:
                del result[name]  # most datasets have none
        return result

    # -- its file

    @classmethod
    def read(cls, dataset: Path) -> Manifest:
        """Read and check the manifest of a dataset's directory, which may come from a stranger.

        Growing datasets: the counts are those of the newest version, and the fingerprint is empty: a store computes it.

        Raises
        ------
        DamagedDataset
            ``zarr.json`` cannot be read, is not of a dataset, or says what no dataset of this program says.
        NewerFormat
            A later version wrote it.
        """
        return cls.read_with_version_id(dataset)[0]

    @classmethod
    def read_with_version_id(cls, dataset: Path) -> tuple[Manifest, str]:
        """Return `read` of a dataset, and the sha256 of the file, which are of the same moment."""
        path = dataset / cls.FILE
        try:
            text = files.read_regular(path, cls.LONGEST)
            attributes = documents.loads(text, longest=cls.LONGEST)["attributes"]["rlds"]
            found = attributes["format"]
            if not isinstance(found, int) or isinstance(found, bool) or found < 1:
                raise ValueError(f"format {str(found)[:40]!r}")
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise DamagedDataset(f"{path} is not the manifest of a dataset ({type(e).__name__}: {e}).") from e
        if found > cls.GROWING_FORMAT:
            writer = str(attributes.get("rlds_version", "a later version"))[:40]
            raise NewerFormat(
                f"{dataset} has format {str(found)[:40]}, written by rlds {writer};"
                f" this version reads up to {cls.GROWING_FORMAT}.",
                hint="pip install --upgrade rlds-cli",
            )
        try:
            digest = hashlib.sha256(text).hexdigest()
            if digest not in _checked:  # a command reads a manifest several times
                validation.check(attributes)
                _checked.add(digest)
            if bool(attributes.get("growing")) != (found == cls.GROWING_FORMAT):
                kind = "grows" if found == cls.FORMAT else "does not grow"
                raise ValueError(f"format {found} of a dataset that {kind}")
            m = from_json(attributes, plain=not any(name in text for name in _NOT_FINITE))
            if bool(m.fingerprint) == bool(m.growing):
                raise ValueError("a fingerprint of a growing dataset, or none of one that does not")
            if m.growing:
                from rlds_cli.store import commits

                m = m.at(commits.last(dataset))
            return m, digest
        except ValueError as e:
            raise DamagedDataset(f"{path}: {e}.", hint="--force makes the dataset again") from e

    def write(self, dataset: Path) -> None:
        """Write the file, with its own digest."""
        _write(dataset, self.to_json())

    @classmethod
    def rename(cls, dataset: Path, id: str) -> None:
        """Give the dataset in a directory another id, unless it has that one."""
        m = cls.read(dataset)
        if m.id == id:
            return
        if m.growing:  # whose file has the counts of the first version
            text = files.read_regular(dataset / cls.FILE, cls.LONGEST)
            values = documents.loads(text, longest=cls.LONGEST)["attributes"]["rlds"]
            _write(dataset, {**values, "id": id})
        else:
            replace(m, id=id).write(dataset)

    @classmethod
    def has_own_digest(cls, dataset: Path) -> bool:
        """Return whether the file in a dataset's directory has the digest that it states."""
        text = (dataset / cls.FILE).read_bytes().decode("utf-8", "surrogateescape")
        plain = _with_digest(text, _NO_DIGEST)
        return hashlib.sha256(plain.encode("utf-8", "surrogateescape")).hexdigest() == text.rpartition(_KEY)[2][:64]

    # -- the list of digests

    @classmethod
    def listed(cls, dataset: Path) -> dict[str, str]:
        """Return the listed digests of a dataset's files by path; empty without a list. See `sealing`."""
        try:
            text = files.read_regular(dataset / cls.LISTING, documents.OWN)
            found: Any = documents.loads(text, longest=documents.OWN)["attributes"]["files"]
        except (OSError, ValueError, KeyError, TypeError, DamagedDataset):
            return {}
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}

    def check_listing(self, dataset: Path) -> None:
        """Refuse a dataset whose list of digests differs from the one that the manifest names.

        Raises
        ------
        DamagedDataset
        """
        try:
            intact = self.files == sha256_of(dataset / self.LISTING)
        except OSError:
            intact = False
        if not intact:
            raise DamagedDataset(
                f"{dataset / self.LISTING} is not what the manifest says.", hint=f"rlds verify {self.id}"
            )

    def at(self, g: Commit) -> Manifest:
        """Return the manifest of a growing dataset as it is at a version."""
        from rlds_cli.store import commits

        return replace(self, counts=Counts(**commits.counts_of(g)))


_KEYS = frozenset(f.name for f in fields(Manifest))


def summarise_sources(sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return number, size and one sha256 of the archive files.

    The sha256 of a single file is its own; that of several files is the hash of the lines ``sha256  file``.
    """
    if not sources:
        return {}
    hashes = [s.get("sha256") for s in sources]
    listing = "".join(f"{s.get('sha256')}  {s.get('file')}\n" for s in sources)
    whole = hashes[0] if len(hashes) == 1 else hashlib.sha256(listing.encode()).hexdigest()
    return {
        "files": len(sources),
        "bytes": sum(int(s.get("size") or 0) for s in sources),
        "sha256": whole if all(hashes) else None,
        "first": dict(next((s for s in sources if not s.get("recorded")), sources[0])),
    }


def from_json(d: Mapping[str, Any], *, plain: bool = False) -> Manifest:
    """Build a manifest from the result of ``to_json``; unknown keys are ignored.

    Statistics that are ``plain`` hold no text that stands for a number.
    """
    d = {k: v for k, v in d.items() if k in _KEYS}
    stored = tuple(StoredField(**{**f, "shape": tuple(f["shape"])}) for f in d.pop("fields"))
    counts = Counts(**d.pop("counts"))
    for name in ("provenance", "metadata", "notes", "account"):
        d[name] = tuple(d.get(name, ()))
    return Manifest(fields=stored, counts=counts, **{**d, "stats": d["stats"] if plain else _decode(d["stats"])})


def _write(dataset: Path, values: Mapping[str, Any]) -> None:
    """Write the file of a manifest, given as the values of its JSON text, with its own digest."""
    from rlds_cli.base.files import arrays  # imports NumPy

    plain = arrays.group_document({"rlds": values, _OWN: _NO_DIGEST})
    text = _with_digest(plain.decode(), hashlib.sha256(plain).hexdigest())
    safe_files.make(dataset)
    safe_files.write_bytes(dataset / Manifest.FILE, text.encode())


def _with_digest(text: str, digest: str) -> str:
    head, key, tail = text.rpartition(_KEY)
    return head + key + digest + tail[64:]


def _encode(value: Any) -> Any:
    if type(value) in _AS_IT_IS:
        return value
    if isinstance(value, list | tuple):
        return [_encode(v) for v in value]
    if hasattr(value, "tolist"):
        return _encode(value.tolist())
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(k): _encode(v) for k, v in value.items()}
    if is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name)) for f in fields(value)}
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _decode(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_decode(v) for v in value]
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value
