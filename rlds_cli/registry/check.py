"""Validate lines of a registry: those of the package (``scripts/check_registry.py``), and those of a user's own."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from rlds_cli.base import ids
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import names
from rlds_cli.base.text import did_you_mean
from rlds_cli.base.visible import shown
from rlds_cli.errors import InvalidId
from rlds_cli.registry.facts import ENTRY_KEYS

Line = dict[str, Any]

LONGEST = 16 << 20  # bytes of a registry; the largest file of the package has 1 MiB
STATUS = ("deprecated", "closed")
_RULE = re.compile(r"flags|timeouts|jumps|file|(field|steps|starts):\S+")
_READER = re.compile(r"[\w.-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_URL = re.compile(
    r"https?://[\w.-]+(:\d+)?/[\w./%()~+-]+(\?[\w./%=&+~:,-]*)?"
    r"|https?://\[[0-9a-f:]+\](:\d+)?/[\w./%()~+-]+(\?[\w./%=&+~:,-]*)?"
    r"|hf://datasets/[\w.-]+/[\w.-]+(@[\w.-]+)?(/[\w.()-]+)*(@[\w.-]+)?"
    r"|(gs|s3)://[a-z0-9._-]+(/[\w.$()~+=-]+)*"
    r"|package:[\w.-]+(/[\w.-]+)+"
    r"|file:///\S+"
)
_LONGEST_TEXT = 10_000  # characters; the longest citation of the package has 1,500
_COUNTS = ("size", "max_episode_steps", "num_steps", "num_episodes")
_SCORES = ("ref_min_score", "ref_max_score")
_LISTS = ("aliases", "urls", "tree", "defects")
FILE_KEYS = ("path", "urls", "size", "sha256")
_EXAMPLE = '{"id": "lab/press", "urls": ["https://host/press.hdf5"]}'
_SHOWN = 60  # characters of a wrong value in a message


def parse(content: bytes, name: str) -> tuple[list[tuple[int, Line]], list[str]]:
    """Read JSON lines; return the objects with the numbers of their lines, and a problem for each other line.

    Parameters
    ----------
    name : str
        Begins each problem, as in ``lab.jsonl:3: ...``.
    """
    found, wrong = [], []
    if len(content) > LONGEST:
        return [], [f"{name}: {len(content):,} bytes are too many for a registry; at most {LONGEST:,} are read"]
    for number, text in enumerate(content.split(b"\n"), start=1):
        if not text.strip():
            continue
        try:
            value = documents.loads(text.decode("utf-8"))
        except ValueError as e:
            wrong.append(f"{name}:{number}: it is not JSON ({e}); a line holds one object, as in {_EXAMPLE}")
            continue
        if not isinstance(value, dict):
            wrong.append(f"{name}:{number}: it is {_said(value)}; a line holds one object, as in {_EXAMPLE}")
            continue
        found.append((number, value))
    return found, wrong


def problems(line: Line) -> Iterator[str]:
    """Yield what is wrong in a line that came with a request or a lock file: types of values, then rules."""
    wrong = list(types(line))
    yield from wrong or rules(line, None)


def types(line: Line) -> Iterator[str]:
    """Yield the keys of a line that no registry has, and values of a wrong type."""
    if "id" not in line:
        yield f"id is missing; a line holds one object, as in {_EXAMPLE}"
    for key, value in line.items():
        if key not in ENTRY_KEYS:
            yield f"{key!r} is not a key of a registry: {', '.join(ENTRY_KEYS)}"
        elif value in (None, "", [], {}):
            yield f"{key} is empty; leave it out"
        elif key == "files":
            yield from _file_types(value)
        elif (expected := _expected(key, value)) is not None:
            yield f"{key} is {_said(value)}; {expected} is expected"


def _file_types(value: object) -> Iterator[str]:
    if not isinstance(value, list) or not all(isinstance(f, dict) for f in value):
        yield f"files is {_said(value)}; a list of objects with path, urls, size and sha256 is expected"
        return
    for k, file in enumerate(value):
        for key in ("path", "urls"):
            if not file.get(key):
                yield f"files[{k}].{key} is missing"
        for key, inner in file.items():
            if key not in FILE_KEYS:
                yield f"files[{k}].{key} is not a key of a file: {', '.join(FILE_KEYS)}"
            elif (expected := _expected(key, inner)) is not None:
                yield f"files[{k}].{key} is {_said(inner)}; {expected} is expected"


def _expected(key: str, value: object) -> str | None:
    """Return what a key takes, if the value is something else."""
    if key in _COUNTS:
        return None if positive(value) else "a positive integer"
    if key in _SCORES:
        return None if isinstance(value, int | float) and not isinstance(value, bool) else "a number"
    if key in _LISTS:
        return None if isinstance(value, list) and all(map(_is_text, value)) else "a list of texts"
    if key == "fields":
        sound = isinstance(value, dict) and all(map(_is_text, value.values()))
        return None if sound else 'an object such as {"observation": "state/q"}'
    return None if _is_text(value) else "a text"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_TEXT


def _said(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def entry(line: Line, known: Collection[str | None], readers: Sequence[str] | None = None) -> Iterator[str]:
    """Yield what is wrong in a line whose values have the right types.

    Parameters
    ----------
    known : collection of str
        Ids that ``replaced_by`` may name.
    readers : sequence of str, optional
        Names that ``format`` may have; any without.
    """
    yield from _places(line)
    yield from (f"{k} {line[k]!r} is not a positive integer" for k in _COUNTS if k in line and not positive(line[k]))
    yield from rules(line, readers)
    scores = [line[k] for k in _SCORES if k in line]
    if len(scores) == 1 or (scores and not scores[0] < scores[1]):
        yield f"reference scores {scores}: both, the lower one first, or none"
    if line.get("status", "closed") not in STATUS:
        yield f"status {line['status']!r} is none of {', '.join(STATUS)}; leave it out when the source is open"
    if line.get("replaced_by", line.get("id")) not in known:
        yield f"replaced_by {line['replaced_by']!r} is not an entry"


def family_of(id: str, family: str) -> Iterator[str]:
    """Yield why an id is not one of a family."""
    try:
        parsed = ids.parse(id)
    except InvalidId as e:
        yield e.message
        return
    if parsed.family != family or parsed.variant:
        yield f"is not of the family {family}, or names a variant"


def rules(line: Mapping[str, Any], readers: Sequence[str] | None) -> Iterator[str]:
    """Yield what is wrong in how a line, or the facts of a family, say that files are read."""
    if not _RULE.fullmatch(line.get("episodes_by", "flags")):
        yield f"episodes_by {line['episodes_by']!r} is not a rule: flags, timeouts, jumps, file, or field:KEY"
    if line.get("last_step", "action") not in ("action", "observation"):
        yield f"last_step {line['last_step']!r} is neither action nor observation"
    if line.get("rewards", "action") not in ("action", "arrive"):
        yield f"rewards {line['rewards']!r} is neither action nor arrive"
    if not is_reader(str(line.get("format", "any"))):
        yield f"format {line['format']!r} is not the name of a reader: lines name no files of code"
    elif readers is not None and line.get("format", readers[0]) not in readers:
        more = did_you_mean(line["format"], readers) or " If a package has it, install that first."
        yield f"format {line['format']!r} is not a reader of rlds or of an installed package.{more}"


def is_reader(name: str) -> bool:
    """Return whether a text may be the name of a reader, and is not that of a file of code."""
    return _READER.fullmatch(name) is not None and not name.endswith(".py")


def _places(line: Line) -> Iterator[str]:
    """Yield what is wrong in where the files are: one file's urls, several files, or a listing; exactly one of them."""
    files = line.get("files", [])
    if sum(k in line for k in ("urls", "tree", "files")) != 1:
        yield "needs exactly one of urls, tree and files"
    if "suffix" in line and "tree" not in line:
        yield "suffix without tree"
    for url in (u for holder in (line, *files) for k in ("urls", "tree") for u in holder.get(k, ())):
        if not _URL.fullmatch(url):
            yield f"{shown(url)} is not a well-formed URL"
    for holder in (line, *files):
        if not _SHA256.fullmatch(holder.get("sha256", "0" * 64)):
            yield f"sha256 {holder['sha256']!r} is not 64 lower-case hex digits"


def own_places(line: Line, *, local: bool) -> Iterator[str]:
    """Yield addresses that a user's own registry, or a lock file, may not name.

    Parameters
    ----------
    local : bool
        Whether files of this machine may be named: by a registry that is one, and not by one that came over a network.
    """
    files = line.get("files", [])
    for url in (u for holder in (line, *files) for k in ("urls", "tree") for u in holder.get(k, ())):
        if url.startswith("package:"):
            yield f"{url} is a file of rlds itself; https://, hf://, s3:// and gs:// addresses are expected"
        elif url.startswith("file:") and not local:
            yield f"{url} is a file of one machine, and this registry comes from another"
        elif shown(url) != url or "@" in urlsplit(url).netloc:
            yield f"{shown(url)} holds a user, a token or a parameter that may be one; ~/.netrc is the place for them"
    for url in line.get("urls", ())[:1]:
        if not names.of_url(url) or names.of_url(url).startswith("."):
            yield f"{shown(url)} names a directory; urls are addresses of one file, and tree is a directory"
    for f in files:
        if f["path"].startswith("/") or ".." in f["path"].split("/") or "\\" in f["path"]:
            yield f"files: {f['path']!r} is not a relative path without `..`"


def positive(value: object) -> bool:
    """Return whether a value is an integer above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
