"""Digests of a dataset's files, which cover all bytes that the digests of fields do not.

``digests/zarr.json`` lists the sha256 of every file but three kinds: plain rows and their digests, which the digests of
episodes cover; the manifest, which holds the sha256 of that list; and tags, which change. The manifest holds a hash of
itself, too, taken with zeros in its place. These digests find damage. They do not find a deliberate change, after which
all files can be hashed anew: that takes a fingerprint, a lock file or a sha256 from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rlds_cli.base.files import arrays
from rlds_cli.base.files.hashing import sha256_of
from rlds_cli.base.threads import each
from rlds_cli.errors import DamagedDataset
from rlds_cli.store import lookups, paths, rows
from rlds_cli.store.columns import VIDEOS, has_row_digests, stored_row
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.paths import ROW_DIGESTS
from rlds_cli.ted import VIDEO


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong: ``where`` is a field or another part; ``episodes`` and ``bytes`` are half-open ranges there."""

    where: str
    what: str
    episodes: tuple[int, int] | None = None
    bytes: tuple[int, int] | None = None

    def __str__(self) -> str:
        span = f"bytes {self.bytes[0]:,}-{self.bytes[1] - 1:,} " if self.bytes else ""
        if self.episodes:
            first, last = self.episodes[0], self.episodes[1] - 1
            span = f"episode {first:,} " if first == last else f"episodes {first:,}-{last:,} "
        return f"{self.where}: {span}{self.what}"

    def directories(self, m: Manifest) -> list[Path]:
        """Return the directories below the dataset with rows, videos and digests of rows of the field at fault."""
        where = f"{self.where} "
        blamed = [f for f in m.fields if where.startswith((f"{f.name} ", f"{ROW_DIGESTS}/{f.name} "))]
        return [Path(root, f.path) for f in blamed for root in ("", VIDEOS, ROW_DIGESTS)]


def seal(directory: Path, m: Manifest, *, known: Mapping[str, str] = {}, threads: int = 2) -> Manifest:
    """Write the list of digests and then the manifest, the last two files of a dataset; return the final manifest.

    ``known`` holds digests of files by path: those that another dataset recorded for shared files.
    """
    there = lookups.files(directory)
    # Digests of episodes cover plain rows and digests of rows, and the shape the bytes behind them, to which the writer
    # of a growing dataset that has the same file may add.
    of_rows: list[str] = []
    for f in m.fields:
        of_rows += [f"{ROW_DIGESTS}/{f.path}/"] if has_row_digests(f) else []
        of_rows += [f"{VIDEOS}/{f.path}/bytes/"] if f.codec == VIDEO else []
        of_rows += [f"{f.path}/"] if m.encoding == "memmap" else []
    covered, listed = tuple(of_rows), dict[str, str]()
    for name in sorted(there.keys() - {m.FILE, m.LISTING, paths.TAGS}):
        if name.endswith("zarr.json") or not name.startswith(covered):
            listed[name] = ""

    def add(name: str) -> None:
        listed[name] = known.get(name) or lookups.sha256_of_file(there[name])

    each(add, listed, threads)
    (directory / m.LISTING).unlink(missing_ok=True)  # it may be a link to another dataset's
    arrays.write_group(directory / "digests", {"files": listed})
    m = replace(m, files=sha256_of(directory / m.LISTING))
    m.write(directory)
    return m


def below(files: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    """Return the digests below the directory ``old`` of another dataset, under the name ``new`` that shares it."""
    return {new + name.removeprefix(old): digest for name, digest in files.items() if name.startswith(f"{old}/")}


def check(directory: Path, m: Manifest, threads: int) -> tuple[Problem, ...]:
    """Compare the manifest and every listed file with their digests."""
    problems = [] if m.has_own_digest(directory) else [Problem("manifest", "its digest is not that of zarr.json")]
    try:
        intact = m.files == sha256_of(directory / m.LISTING)
    except OSError as e:
        return (*problems, Problem(m.LISTING, f"cannot be read: {e.strerror}"))
    if not intact:
        return (*problems, Problem(m.LISTING, "is not what the manifest says: the digests of files"))
    damaged, files = dict[str, str](), m.listed(directory)
    there = lookups.files(directory, damaged=damaged)
    problems += [Problem(name, what) for name, what in sorted(damaged.items())]
    names = sorted(name for name in files if not name.startswith(tuple(f"{lookup}/" for lookup in damaged)))
    compared = dict[str, Problem | None].fromkeys(names)

    def compare(name: str) -> None:
        compared[name] = _compare(there.get(name), name, files[name])

    each(compare, names, threads)
    problems += filter(None, compared.values())
    added = sorted(n for n in there.keys() - set(files) if n.startswith("episodes/") and "/." not in n)
    return (*problems, *(Problem(n, "is not of this dataset") for n in added))


def _compare(file: Path | lookups.WholeFile | None, name: str, digest: str) -> Problem | None:
    if file is None:
        return Problem(name, "is missing")
    try:
        same = lookups.sha256_of_file(file) == digest
        return None if same else Problem(name, "is not what it was when it was written")
    except OSError as e:
        return Problem(name, f"cannot be read: {e.strerror}")
    except DamagedDataset as e:
        return Problem(name, e.message)


def row_files(m: Manifest) -> dict[str, int | None]:
    """Return the files of rows, which the list of digests does not name, with sizes where they are known.

    They are those of arrays that are not in segments; compressed rows are named by the list.
    """
    found: dict[str, int | None] = {}
    for f in m.fields:
        if f.codec == VIDEO:
            found[arrays.data_file(Path(VIDEOS, f.path, "bytes"), 1).as_posix()] = None
        if has_row_digests(f) and m.counts.rows:
            of_rows = arrays.data_file(Path(ROW_DIGESTS, f.path), 2)
            found[of_rows.as_posix()] = arrays.file_size((m.counts.rows, 32), "uint8")
        if m.encoding != "memmap":
            continue
        dtype, shape = stored_row(f)
        sizes = {
            "rows": arrays.file_size((m.counts.rows, *shape), dtype),
            "offsets": arrays.file_size((m.counts.rows, 2), "int64"),
            "bytes": None,
        }
        files = {file.as_posix(): sizes[part] for part, file in rows.files(Path(), f, f.path).items()}
        found |= {path: size for path, size in files.items() if size != 0}  # an array without bytes has no file
    return found
