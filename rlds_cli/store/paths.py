"""Turn field names into paths below a dataset, and check paths that a manifest names. Needs neither NumPy nor zarr."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Iterable, Set
from pathlib import Path

from rlds_cli.errors import RldsError

REFERENCE = "reference.json"  # in the place of an array whose rows are stored in another dataset, see `references`
LOOKUP = "lookup.json"  # in the place of an array whose rows are some of another one's, see `lookups`
LOOKUPS = "__lookups"  # beside the fields, none of which can have this name: numbers of such rows
ROW_DIGESTS = "rows"  # beside the fields: digests of their rows
VERSIONS = "versions"
COMMITS = "commits.log"  # of a growing dataset, see `commits`
TAGS = "tags.json"  # names of versions
FAILURES = "errors.jsonl"  # episodes that are left out, a line each
# Names beside the fields in a dataset's directory.
RESERVED = frozenset({"episodes", "metadata", "text", "video", "digests", "rows", "sources", TAGS, VERSIONS})
_PLAIN = frozenset(string.ascii_letters + string.digits + "-_.+=@,~")
_MAX_BYTES = 200
_MOST_LEVELS, _LONGEST = 64, 1500  # of a path that is written: systems take 1,024 to 4,096 bytes, with the home's
_MOST_READ, _LONGEST_READ = 512, 4096
_INDEXED = re.compile(r"rlds\.json|(objects|blocks|groups|indexes)/[0-9a-f]{64}")
_COMPONENT = re.compile(
    r"(?!\.|__|zarr\.json$|reference\.json$|lookup\.json$)[A-Za-z0-9\-_.+=@,~%]{1,250}", re.IGNORECASE
)


def component(text: str) -> str:
    """Return a directory name for one component of a field name, percent-encoding all unusual characters."""
    encoded = "".join(c if c in _PLAIN else "".join(f"%{b:02X}" for b in c.encode()) for c in text)
    if not encoded:
        return "%"
    if encoded[0] == "." or encoded.startswith("__") or encoded.lower() in ("zarr.json", REFERENCE, LOOKUP):
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    if len(encoded) > _MAX_BYTES:
        encoded = f"{encoded[: _MAX_BYTES - 17]}~{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return encoded


def components(name: str) -> list[str]:
    """Return the directory names for a field name with ``/``.

    Raises
    ------
    RldsError
        It is deeper, or longer, than a file system takes.
    """
    parts = [component(c) for c in name.split("/")]
    if len(parts) > _MOST_LEVELS or sum(map(len, parts)) > _LONGEST:
        raise RldsError(
            f'The name "{name[:60]}..." of {len(parts):,} levels and {len(name):,} characters cannot be stored.',
            hint=f"a name has at most {_MOST_LEVELS} levels, and about {_LONGEST:,} characters",
        )
    return parts


def assign_paths(names: Iterable[str]) -> dict[str, str]:
    """Return a path for each field name. Paths differ by more than case, and none lies below another.

    Raises
    ------
    RldsError
        As of `components`.
    """
    taken: set[str] = set()
    above: set[str] = set()  # directories that hold fields
    result = {}
    for name in sorted(names):
        parts = components(name)
        if parts[0].lower() in RESERVED:
            parts[0] = f"%{ord(parts[0][0]):02X}{parts[0][1:]}"
        for k in range(1, len(parts)):
            parts[:k] = _numbered(parts[:k], taken)
            above.add("/".join(parts[:k]).lower())
        path = "/".join(_numbered(parts, taken | above))
        taken.add(path.lower())
        result[name] = path
    return result


def _numbered(parts: list[str], taken: Set[str]) -> list[str]:
    """Return the path, with a number added to its last part if the path is taken in any case of letters."""
    path, n = parts, 1
    while "/".join(path).lower() in taken:
        n += 1
        path = [*parts[:-1], f"{parts[-1]}~{n}"]
    return path


def is_indexed(name: str) -> bool:
    """Return whether a file beside a dataset's own is one that `rlds index` writes."""
    return _INDEXED.fullmatch(name) is not None


def is_field_path(path: str) -> bool:
    """Return whether a field can have this path: relative, canonical, made by `component`, not reserved."""
    parts = path.split("/")
    if len(path) > _LONGEST_READ or len(parts) > _MOST_READ:
        return False
    return all(_COMPONENT.fullmatch(part) for part in parts) and parts[0].lower() not in RESERVED


def is_array_path(path: str) -> bool:
    """Return whether an array of a dataset can have this path: that of a field, or below it, or among its tables."""
    parts = path.split("/")
    short = len(path) <= _LONGEST_READ and len(parts) <= _MOST_READ
    return short and all(_COMPONENT.fullmatch(part) for part in parts)


def earlier_versions(dataset: Path) -> Path:
    """Return the directory of the earlier versions of the dataset in a directory of a home."""
    dataset = dataset.absolute()
    return dataset.parents[2] / VERSIONS / dataset.parent.name / dataset.name
