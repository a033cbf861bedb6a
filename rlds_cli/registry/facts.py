"""The facts of a registry: families, entries, files and defects; and the entry that a line of a registry describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlds_cli.base.citing import link
from rlds_cli.base.files import names

OWN = "registries"  # in a home: what registries of a user's own keep there
# In the order in which a line holds them.
ENTRY_KEYS = (
    *("id", "aliases", "urls", "tree", "suffix", "files", "size", "sha256"),
    *("env_id", "eval_env_id", "max_episode_steps", "ref_min_score", "ref_max_score"),
    *("num_steps", "num_episodes", "observation", "action", "algorithm", "author"),
    *(
        "format",
        "fields",
        "episodes_by",
        "last_step",
        "rewards",
        "status",
        "replaced_by",
        "defects",
        "licence",
        "paper",
        "homepage",
        "citation",
        "notes",
    ),
)
Status = Literal["open", "deprecated", "closed"]


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
        ``format`` is the name of the reader in ``rlds_cli.archives``; empty if the files decide, as in an import.
    fields : mapping, optional
        Key of the archive for each field, as `importing.plan_import` takes them.
    files : tuple of File
        The archive's files, if they are known before a download.
    tree : tuple of str
        Else: directories or prefixes whose listing gives the files, mirrors tried in order. A file belongs when its
        path ends with ``suffix`` and continues after the prefix with anything but a letter or digit.
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
    rewards : {"action", "arrive"} or None
        What the reward of a row belongs to: its action, or the action of the row before.
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
    rewards: str | None = None
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
    fields: Mapping[str, str] | None = None
    # The line that describes the dataset, unless the package's registry does; manifests and lock files hold it.
    line: Mapping[str, Any] | None = field(default=None, repr=False, compare=False, metadata={"json": False})

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

    def unpublished(self, files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """Yield evidence that a dataset was not made of these files of its archive; see `contradictions`."""
        if self.verifiable and not files:
            yield f"name no file; the registry has {_first_of(f.path for f in self.files)}"
        yield from self.contradictions(files)

    def contradictions(self, files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """Yield how files that a dataset was made of differ from those of this entry; nothing if it names none.

        Parameters
        ----------
        files : sequence of mappings
            ``file``, ``size`` and ``sha256`` of each, as manifests and lock files have them.
        """
        known = {f.path: f for f in self.files}
        for file in files if known else ():
            name = str(file.get("file"))
            published = known.get(name)
            if published is None:
                yield f"{name} is not a file of {self.id}: the registry has {_first_of(known)}"
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


def described(line: Mapping[str, Any], common: Mapping[str, Any], defects: Mapping[str, Defect]) -> Entry:
    """Return the entry of a line, which inherits ``common`` facts."""
    values: dict[str, Any] = {k: v for k, v in line.items() if k not in ("urls", "sha256", "files")}
    if urls := line.get("urls", ()):
        files: tuple[File, ...] = (File(names.of_url(urls[0]), tuple(urls), line.get("size"), line.get("sha256")),)
    else:
        files = tuple(File(**{**f, "urls": tuple(f["urls"])}) for f in line.get("files", ()))
    if files and all(f.size is not None for f in files):
        values["size"] = sum(f.size or 0 for f in files)
    for key in ("tree", "aliases"):
        values[key] = tuple(line.get(key, ()))
    values["defects"] = tuple(defects[c] for c in line.get("defects", ()))
    return Entry(files=files, **{**common, **values})


def entry_of(line: Mapping[str, Any]) -> Entry:
    """Return the entry of a line that no family adds facts to."""
    return described(line, {"family": str(line["id"]).partition("/")[0], "format": "", "line": line}, {})
