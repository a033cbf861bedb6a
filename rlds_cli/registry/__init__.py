"""The registry of known datasets: entries of ``registry/``, found by id, alias, words or glob. Imports nothing heavy.

::

    registry/families.json     facts that hold for a whole family: licence, citation, defects by code, open hub location
    registry/<family>.jsonl    one dataset a line; keys in the order of ENTRY_KEYS
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rlds_cli import ids
from rlds_cli.errors import InvalidId, UnknownDataset
from rlds_cli.ids import DatasetId
from rlds_cli.text import closest, similar

LOCAL = "local"

_HERE = Path(__file__).parents[1]
# In the order in which a line holds them.
ENTRY_KEYS = (
    *("id", "aliases", "urls", "tree", "suffix", "files", "size", "sha256"),
    *("env_id", "eval_env_id", "max_episode_steps", "ref_min_score", "ref_max_score"),
    *("num_steps", "num_episodes", "observation", "action", "algorithm", "author"),
    *(
        "format",
        "episodes_by",
        "last_step",
        "status",
        "replaced_by",
        "defects",
        "licence",
        "paper",
        "citation",
        "notes",
    ),
)
Status = Literal["open", "deprecated", "closed"]

_GITHUB = re.compile(r"[\w.-]+/(?P<repo>[\w.-]+)#(?P<number>\d+)")


@dataclass(frozen=True, slots=True)
class File:
    """One file of an archive: its name, its addresses (tried in order), and its size if known."""

    path: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Defect:
    """Something known to be wrong or surprising in an archive; ``refs`` say who found it.

    ``shows_as`` are the codes under which ``rlds check`` finds it in the data.
    """

    code: str
    text: str
    refs: tuple[str, ...]
    shows_as: tuple[str, ...] = ()

    @property
    def links(self) -> tuple[str, ...]:
        """References as URLs."""
        return tuple(map(link, self.refs))


@dataclass(frozen=True, slots=True)
class Family:
    """Facts about a whole family; ``num_entries`` counts the entries that are not closed.

    ``open`` is where a dataset without an entry lies on the hub (``{name}`` stands for its name, ``{repo}`` for
    ``OWNER/NAME``, the owner being the family where the id names none), None where every dataset has an entry.
    ``revisions`` are tried in order; ``only`` are patterns of the files that are fetched. ``expansion`` is about
    how many bytes of store come of one byte of archive.
    """

    name: str
    title: str
    format: str
    num_entries: int
    num_closed: int
    expansion: float
    open: str | None = None
    revisions: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    episodes_by: str | None = None
    licence: str | None = None
    paper: str | None = None
    homepage: str | None = None
    host: str | None = None
    citation: str | None = None
    defects: Mapping[str, Defect] | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """Facts about one dataset that are known before a download; None for unknown ones.

    Parameters
    ----------
    id : str
        As in ``d4rl/hopper-medium-v2``.
    family, format : str
        ``format`` is the name of the reader in ``rlds_cli.archives``.
    files : tuple of File
        The archive's files, if they are known before a download.
    tree : tuple of str
        Else: directories or prefixes whose listing gives the files, mirrors tried in order. A file belongs when its
        path ends with ``suffix`` and goes on after the prefix with anything but a letter or digit.
    only : tuple of str
        Patterns of the files to fetch from a listing; all files without patterns.
    size : int or None
        Bytes to download, if known.
    episodes_by : str or None
        The mark of an episode's end: ``flags timeouts jumps field:KEY file``; None leaves it to the reader.
    env_id, eval_env_id, max_episode_steps, ref_min_score, ref_max_score
        The environment, its time limit in steps, and the returns that scores 0 and 1 stand for.
    last_step : {"action", "observation"} or None
        The content of the last step of an RLDS episode; None leaves it to the reader.
    num_steps, num_episodes, observation, action, algorithm, author
        As the source describes it.
    status : {"open", "deprecated", "closed"}
        ``deprecated``: superseded by ``replaced_by``; ``closed``: cannot be downloaded any more.
    aliases : tuple of str
        Other names, such as the source's own.
    """

    id: str
    family: str
    format: str
    files: tuple[File, ...] = ()
    tree: tuple[str, ...] = ()
    suffix: str = ""
    only: tuple[str, ...] = ()
    size: int | None = None
    expansion: float = 1.0
    env_id: str | None = None
    eval_env_id: str | None = None
    max_episode_steps: int | None = None
    ref_min_score: float | None = None
    ref_max_score: float | None = None
    num_steps: int | None = None
    num_episodes: int | None = None
    observation: str | None = None
    action: str | None = None
    algorithm: str | None = None
    author: str | None = None
    episodes_by: str | None = None
    last_step: str | None = None
    status: Status = "open"
    replaced_by: str | None = None
    aliases: tuple[str, ...] = ()
    defects: tuple[Defect, ...] = ()
    licence: str | None = None
    paper: str | None = None
    homepage: str | None = None
    host: str | None = None
    citation: str | None = None
    notes: str | None = None

    @property
    def sha256(self) -> str | None:
        """Hash of the archive, if it is a single file with a known hash."""
        return self.files[0].sha256 if len(self.files) == 1 else None

    @property
    def verifiable(self) -> bool:
        """True if the hash of every file is known before a download."""
        return bool(self.files) and all(f.sha256 for f in self.files)

    @property
    def store_size(self) -> int | None:
        """Estimated bytes of the converted dataset, from ``size``."""
        return None if self.size is None else int(self.size * self.expansion)

    @property
    def names(self) -> tuple[str, ...]:
        """Names for searching, in lower case: the id, and aliases with and without the family."""
        others = [n for a in self.aliases for n in (a, f"{self.family}/{a}")]
        return tuple(n.lower() for n in (self.id, *others))


def link(ref: str) -> str:
    """Return a reference as a URL: ``owner/repo#12`` is an issue or pull request on GitHub, ``arXiv:...`` a paper."""
    if _GITHUB.fullmatch(ref):
        return "https://github.com/" + ref.replace("#", "/issues/")
    return ref.replace("arXiv:", "https://arxiv.org/abs/")


def short(ref: str) -> str:
    """Shorten a reference for people: ``repo#12``, or the last part of a URL."""
    found = _GITHUB.fullmatch(ref)
    return f"{found['repo']}#{found['number']}" if found else ref.rstrip("/").rpartition("/")[2]


def directory() -> Path:
    """Return the directory of the registry: beside the package in a checkout, inside it in a wheel."""
    installed = _HERE / "_registry"
    return installed if installed.is_dir() else _HERE.parent / "registry"


@cache
def families() -> tuple[Family, ...]:
    """Return all families, sorted by name."""
    return tuple(map(family, sorted(_facts())))


def family(name: str) -> Family:
    """Return a family of the registry by its name; raises KeyError."""
    return _family(name, _facts()[name])


def entries(family: str) -> tuple[Entry, ...]:
    """Return the entries of one family, in the order of its file; empty for an unknown family."""
    return _entries(family) if family in _facts() else ()


def search(query: str = "", *, family: str | None = None, present: Sequence[DatasetId] = ()) -> list[Entry]:
    """Search the registry as `home.locate.find` does, which says what ``query`` and ``family`` are.

    ``present`` are datasets on this disk, without variants. Those that the registry does not list follow its entries.
    """
    wanted = family.lower() if family else None
    if wanted is not None:
        _check_family(str(family), {id.family for id in present})
    known = [e for f in families() if wanted in (None, f.name) for e in entries(f.name)]
    added = [e for e in _unregistered(present) if wanted in (None, e.family)]
    words = query.lower().split()
    return [e for e in (*known, *added) if _matches(e, words)]


def get(ref: str) -> Entry:
    """Return the entry of an id, in any case and with any variant, of an alias, or of a name without its family.

    A name without its family (``hopper-medium-v2``, Minari's ``D4RL/door/human-v2``) must be unique among families.

    Raises
    ------
    UnknownDataset
        With the nearest ids as a hint.

    Examples
    --------
    >>> get("DAPG(expert)/door_v2d-v1").id
    'roboset/dapg-expert/door_v2d-v1'
    """
    found = known(ref)
    if found is None:
        raise UnknownDataset(f'"{ref}" is not in the registry.', hint=_hint(_name(ref)))
    return found


def known(ref: str) -> Entry | None:
    """Return the entry as `get` does, or None."""
    return _lookup(_name(ref), unlisted=True)


def listed(ref: str) -> Entry | None:
    """Return the entry as `get` does, or None for a dataset without a line of its own in the registry."""
    return _lookup(_name(ref), unlisted=False)


def _name(ref: str) -> str:
    return ref.strip().partition("@")[0].rstrip("/")


def _lookup(name: str, *, unlisted: bool) -> Entry | None:
    """Find an entry. An id costs reading the file of its family, a user's own dataset none, an alias all of them."""
    key = name.lower()
    family = key.partition("/")[0]
    if family == LOCAL:
        return None
    if family in _facts() and (found := _index_of(family).get(key)):
        return found
    return _index().get(key) or (_unlisted(name) if unlisted else None) or _without_family().get(key)


def match(ref: str) -> list[Entry]:
    """Return the entries of an id, an alias, or a glob such as ``d4rl/hopper-*-v2``, without closed sources for globs.

    Raises
    ------
    UnknownDataset
        Nothing matches, or nothing that can still be downloaded.
    """
    if not is_glob(ref):
        return [get(ref)]
    pattern = ref.lower()
    found = [e for e in _all() if any(fnmatchcase(n, pattern) for n in e.names)]
    usable = [e for e in found if e.status != "closed"]
    if not found:
        raise UnknownDataset(f'"{ref}" matches no dataset of the registry.', hint=_hint(re.sub(r"[*?\[\]]+", "", ref)))
    if not usable:
        raise UnknownDataset(f'All {len(found)} datasets that "{ref}" matches are closed.', hint=_instead(found[0]))
    return usable


def unpublished(id: str, files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield evidence that a dataset with an id of the registry was not made of the files in its entry."""
    entry = listed(id)
    if entry is not None and entry.verifiable and not files:
        yield f"name no file; the registry has {_first_of(f.path for f in entry.files)}"
    yield from contradictions(id, files)


def contradictions(id: str, files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield how files that a dataset was made of differ from those of its entry; nothing if the entry names no files.

    Parameters
    ----------
    id : str
        Id of the dataset.
    files : sequence of mappings
        ``file``, ``size`` and ``sha256`` of each, as manifests and lock files have them.
    """
    entry = listed(id)
    if entry is None or not entry.files:
        return
    known = {f.path: f for f in entry.files}
    for file in files:
        name = str(file.get("file"))
        published = known.get(name)
        if published is None:
            yield f"{name} is no file of {entry.id}: the registry has {_first_of(known)}"
            continue
        for what, now, then in (
            ("sha256", file.get("sha256"), published.sha256),
            ("size", file.get("size"), published.size),
        ):
            if then is not None and now != then:
                yield f"{name} has {what} {now or 'none'}; the registry has {then}"
                break


def _first_of(names: Iterable[str]) -> str:
    first, *others = names
    return f"{first} and {len(others)} more" if others else first


def suggest(ref: str, count: int = 3, among: Iterable[str] = ()) -> list[str]:
    """Return the ids nearest to ``ref``, best first: those with all its words, then those with a similar spelling.

    ``among`` adds ids to those of the registry.
    """
    from difflib import SequenceMatcher  # 3 ms, and only messages of errors need it

    known = {n: e.id for n, e in _index().items()} | {i.lower(): i for i in among}
    key = ref.lower().partition("@")[0]
    words = [w for w in re.split(r"[\s/_-]+", key) if w]
    holding = [n for n in known if words and all(w in n for w in words)]
    tails = {n.partition("/")[2]: n for n in known if n.startswith(tuple(f"{f}/" for f in _facts()))}
    spelt = similar(key, known, count)
    by_tail = [tails[t] for t in similar(key, tails, count)]
    holding.sort(key=lambda n: (-SequenceMatcher(None, key, n).ratio(), n))
    ranked = [*holding, *spelt, *by_tail] if "/" in key else [*holding, *by_tail, *spelt]
    return list(dict.fromkeys(known[n] for n in ranked))[:count]


def did_you_mean(ref: str, among: Iterable[str] = ()) -> str | None:
    """Return a hint for an unknown id, or None if no known id comes near."""
    key = ref.lower().strip("/")
    if key in _facts():
        return f"that is a family: rlds list --family {key} shows its datasets, '{key}/*' selects all of them"
    near = suggest(ref, among=among)
    return f"did you mean {', '.join(near)}?" if near else None


def is_glob(ref: str) -> bool:
    """Return whether ``ref`` holds ``*``, ``?`` or ``[``."""
    return any(c in ref for c in "*?[")


@cache
def _facts() -> Mapping[str, Any]:
    facts: Mapping[str, Any] = json.loads((directory() / "families.json").read_text(encoding="utf-8"))
    return facts


def lines(family: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a family's file, as JSON objects."""
    with (directory() / f"{family}.jsonl").open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _family(name: str, facts: Mapping[str, Any]) -> Family:
    closed = sum(e.status == "closed" for e in _entries(name))
    listed = {k: tuple(facts[k]) for k in ("revisions", "only") if k in facts}
    facts = {**facts, **listed, "defects": _defects(facts)}
    return Family(name=name, num_entries=len(_entries(name)) - closed, num_closed=closed, **facts)


def _defects(facts: Mapping[str, Any]) -> Mapping[str, Defect]:
    found = facts.get("defects", {}).items()
    return {c: Defect(c, d["text"], tuple(d["refs"]), tuple(d.get("shows_as", ()))) for c, d in found}


@cache
def _entries(family: str) -> tuple[Entry, ...]:
    common = _common(family)
    defects = _defects(_facts()[family])
    return tuple(_entry(line, common, defects) for line in lines(family))


def _common(family: str) -> dict[str, Any]:
    """Return the values that every entry of a family inherits."""
    keys = ("format", "expansion", "episodes_by", "licence", "paper", "homepage", "host", "citation")
    facts = _facts()[family]
    return {"family": family, "only": tuple(facts.get("only", ()))} | {k: v for k, v in facts.items() if k in keys}


def _entry(line: dict[str, Any], common: Mapping[str, Any], defects: Mapping[str, Defect]) -> Entry:
    urls, sha256 = line.pop("urls", ()), line.pop("sha256", None)
    if urls:
        files: tuple[File, ...] = (File(urls[0].rpartition("/")[2], tuple(urls), line.get("size"), sha256),)
    else:
        files = tuple(File(**{**f, "urls": tuple(f["urls"])}) for f in line.pop("files", ()))
    if files and all(f.size is not None for f in files):
        line["size"] = sum(f.size or 0 for f in files)
    for key in ("tree", "aliases"):
        line[key] = tuple(line.get(key, ()))
    line["tree"] = _revisions(line["tree"], common["family"])
    line["defects"] = tuple(defects[c] for c in line.get("defects", ()))
    return Entry(files=files, **{**common, **line})


def _all() -> Iterator[Entry]:
    for name in sorted(_facts()):
        yield from _entries(name)


@cache
def _index() -> Mapping[str, Entry]:
    return {name: entry for entry in _all() for name in reversed(entry.names)}


@cache
def _index_of(family: str) -> Mapping[str, Entry]:
    """Map the ids of one family to entries."""
    return {entry.id.lower(): entry for entry in _entries(family)}


@cache
def _without_family() -> Mapping[str, Entry]:
    """Map names without family to entries, for names that only one family has."""
    of: dict[str, list[Entry]] = {}
    for entry in _all():
        of.setdefault(entry.id.lower().partition("/")[2], []).append(entry)
    return {name: found[0] for name, found in of.items() if len(found) == 1}


def _unlisted(name: str) -> Entry | None:
    """Make an entry for a dataset of an open family, which may be any repository of its hub."""
    try:
        id = ids.parse(name)
    except InvalidId:
        return None
    where = _facts().get(id.family, {}).get("open")
    if where is None:
        return None
    repository = id.name if "/" in id.name else f"{id.family}/{id.name}"
    tree = (where.format(name=id.name, repo=repository),)
    return Entry(id=str(id.base), tree=_revisions(tree, id.family), **_common(id.family))


def _revisions(tree: tuple[str, ...], family: str) -> tuple[str, ...]:
    """Return the addresses of a listing at each revision of a family's datasets, best first."""
    revisions = _facts()[family].get("revisions", ())
    return tuple(f"{url}@{r}" for url in tree for r in revisions) or tree


def _unregistered(present: Sequence[DatasetId]) -> Iterator[Entry]:
    """Make entries for the datasets on this disk that the registry does not list."""
    for id in present:
        if str(id).lower() not in _index():
            yield _unlisted(str(id)) or Entry(id=str(id), family=id.family, format="")


def _matches(entry: Entry, words: list[str]) -> bool:
    names = entry.names
    return all(any(fnmatchcase(n, w) if is_glob(w) else w in n for n in names) for w in words)


def _check_family(family: str, present: Collection[str]) -> None:
    known = {*_facts(), LOCAL, *present}
    if family.lower() not in known:
        near = closest(family.lower(), known)
        hint = f"{near or ', '.join(sorted(known))}? rlds list shows all"
        raise UnknownDataset(f'There is no family "{family}".', hint=hint)


@cache
def _hint(name: str) -> str:
    """Return a hint for an unknown name. It is cached, since a page asks for the same dataset several times."""
    fallback = "rlds list shows all datasets; rlds import PATH --as local/NAME imports files of your own"
    address = ids.address_hint(name)
    if address:
        return address
    own = name.lower().startswith(f"{LOCAL}/")  # never in the registry
    return fallback if own else did_you_mean(name) or fallback


def _instead(entry: Entry) -> str:
    return f"{entry.replaced_by} has taken its place" if entry.replaced_by else "rlds list --all shows why"
