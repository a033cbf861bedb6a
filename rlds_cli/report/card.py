"""A dataset card: the README.md beside a pushed dataset, with the YAML metadata that the hub reads.

Names and texts of a dataset may come from strangers. In the text every character that has a meaning in Markdown or HTML
is written as an entity, which renderers never take for markup; in YAML they are double-quoted strings.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from rlds_cli import ids, registry, text, visible
from rlds_cli.dataset import history
from rlds_cli.dataset.provenance import CHANGES
from rlds_cli.errors import InvalidId
from rlds_cli.files.hashing import short
from rlds_cli.registry import link
from rlds_cli.report.plots import tick

if TYPE_CHECKING:
    from rlds_cli.report.columns import Distribution
    from rlds_cli.report.summary import FieldSummary, Summary

# The hub's identifiers of licences, by the names under which archives and the registry state them, in lower case.
_LICENCES = {
    "mit": "mit",
    "apache-2.0": "apache-2.0",
    "apache 2.0": "apache-2.0",
    "bsd-2-clause": "bsd-2-clause",
    "bsd-3-clause": "bsd-3-clause",
    "cc0-1.0": "cc0-1.0",
    "cc0": "cc0-1.0",
    "cc by 4.0": "cc-by-4.0",
    "cc-by-4.0": "cc-by-4.0",
    "cc by-sa 4.0": "cc-by-sa-4.0",
    "cc-by-sa-4.0": "cc-by-sa-4.0",
    "cc by-nc 4.0": "cc-by-nc-4.0",
    "cc-by-nc-4.0": "cc-by-nc-4.0",
    "cc by-nc-sa 4.0": "cc-by-nc-sa-4.0",
    "cc-by-nc-sa-4.0": "cc-by-nc-sa-4.0",
    "gpl-3.0": "gpl-3.0",
    "not stated": "unknown",
}
_OF_ROBOTS = {"lerobot", "openx", "roboset", "robomimic"}  # readers
_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
_MEANT = re.compile(r"[&<>\\`*_\[\]|~$#!{}\"]")  # characters with a meaning inside a line
_BEGINS = re.compile(r"\d+[.)]|[-+=:]")  # and those that begin a list, a heading or a rule
_TAME = re.compile(r"[\w./:@+,= ()-]+", re.ASCII)
MARK = "<!-- rlds push writes this page again, unless this line is removed -->"
_LONGEST = 2000  # characters of a description
_MOST_FIELDS, _MOST_NOTES, _MOST_STEPS = 200, 20, 50


def card(s: Summary, *, address: str | None = None, size: int | None = None) -> str:
    """Return the card of a dataset.

    Parameters
    ----------
    s : Summary
        As of `summarise`.
    address : str, optional
        Where the dataset is pushed to; None for a directory, which others will see under an address of their own.
    size : int, optional
        Bytes at the address; those on this disk unless given.
    """
    parts = [
        f"---\n{_metadata(s)}---\n\n{MARK}",
        f"# {plain(_name(s.id))}",
        _lead(s, size),
        _description(s.about.description),
        _loading(s, address),
        _fields(s.fields),
        _episodes(s),
        _origin(s),
        _provenance(s.provenance),
        _notes(s),
        _licence(s),
        "rlds wrote this page. Beside it, `croissant.json` describes the dataset for programs, and `report.html`, if "
        "it is there, shows its content.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


# -- metadata


def _metadata(s: Summary) -> str:
    """Return the YAML that the hub reads; what is not known is left out."""
    values: dict[str, str | bool | list[str]] = {"pretty_name": _name(s.id)}
    licence = licence_identifier(s.about.licence)
    if licence:
        values["license"] = licence
    values["task_categories"] = ["reinforcement-learning", *(["robotics"] if s.reader in _OF_ROBOTS else [])]
    values["size_categories"] = [size_category(s.counts.steps)]
    values["tags"] = ["rlds", "offline-reinforcement-learning"]
    values["viewer"] = False  # the hub's viewer would show the index instead of the data
    lines = []
    for key, value in values.items():
        if isinstance(value, list):
            lines += [f"{key}:", *(f"- {item}" for item in value)]
        else:
            lines.append(f"{key}: {_quoted(value) if isinstance(value, str) else str(value).lower()}")
    return "".join(f"{line}\n" for line in lines)


def licence_identifier(licence: str | None) -> str | None:
    """Return the hub's identifier of a licence; None for one that it has no identifier for."""
    return _LICENCES.get((licence or "not stated").strip().lower())


def size_category(n: int) -> str:
    """Return the hub's category of a number of rows: ``n<1K``, ``1K<n<10K``, ..., ``n>1T``."""
    k = next((k for k in range(len(_SIZES)) if n < 10 ** (k + 3)), None)
    if k is None:
        return f"n>{_SIZES[-1]}"
    return f"{_SIZES[k - 1]}<n<{_SIZES[k]}" if k else f"n<{_SIZES[0]}"


def _quoted(value: str) -> str:
    """Return a YAML string; JSON's double-quoted strings are YAML, too."""
    return json.dumps(_printable(value), ensure_ascii=False)


# -- sections


def _lead(s: Summary, size: int | None) -> str:
    c, a = s.counts, s.about
    facts = [
        text.plural(c.steps, "step"),
        text.plural(c.episodes, "episode"),
        text.size_of(s.bytes if size is None else size),
    ]
    about = (a.title, a.env_id and f"Environment: {a.env_id}", a.algorithm and f"Behaviour: {a.algorithm}")
    lines = [f"**{', '.join(facts)}.**", *(f"{plain(x)}." for x in about if x)]
    if a.portion:
        lines.append(f"A part of the archive: {plain(a.portion)}.")
    if s.keeps is not None:
        lines.append(f"A dataset that grows, at version {s.version:,}; it keeps {plain(s.keeps or 'everything')}.")
    return "\n".join(lines)


def _description(said: str | None) -> str | None:
    if not said:
        return None
    cut = said if len(said) <= _LONGEST else f"{said[:_LONGEST]} …"
    return "\n".join(filter(None, (plain(line) for line in cut.splitlines())))


def local_name(id: str) -> str:
    """Return the id under which a copy of the dataset ``id`` is kept: its own if it is ``local/...``."""
    try:
        parsed = ids.parse(id)
    except InvalidId:
        return "local/NAME"
    if parsed.family == registry.LOCAL:
        return id
    name = parsed.name.replace("/", "-")
    return f"{registry.LOCAL}/{name}" + (f"-{parsed.variant}" if parsed.variant else "")


def download_command(s_id: str, address: str | None) -> str:
    """Return the command that downloads a pushed dataset."""
    place = "ADDRESS" if address is None else shlex.quote(_printable(visible.shown(address)))
    return f"rlds download {place} --as {shlex.quote(local_name(s_id))}"


def _loading(s: Summary, address: str | None) -> str:
    name = local_name(s.id)
    return "\n".join(
        (
            "## Load",
            "",
            "```sh",
            "pip install rlds-cli",
            download_command(s.id, address),
            "```",
            "",
            "```python",
            "import rlds_cli",
            "from rlds_cli.loader import Loader",
            "",
            f"dataset = rlds_cli.open_dataset({json.dumps(name)})",
            f"for batch in Loader({json.dumps(name)}, batch_size=256):",
            "    ...",
            "```",
            "",
            f"The download checks every block. The fingerprint of the content is `{_printable(s.fingerprint)}`;"
            f" with `#{short(s.fingerprint)}` behind the address it downloads this content or nothing.",
        )
    )


def _fields(fields: tuple[FieldSummary, ...]) -> str:
    rows = [_field(f) for f in fields[:_MOST_FIELDS]]
    more = len(fields) - len(rows)
    table = _table(("Field", "Placed", "Type", "Shape", "Mean", "Std", "Min", "Max"), rows, numbers=4)
    return "\n".join(
        (
            "## Fields",
            "",
            "`root` is at step t, `next` its result at t+1, `both` the same quantity at t and t+1.",
            "",
            table,
            *(("", f"{more:,} more fields are in `report.html`.") if more > 0 else ()),
        )
    )


def _field(f: FieldSummary) -> list[str]:
    kind = f.codec or ("text" if f.kind == "text" else f.dtype)
    numbers = ["" if x is None else tick(x) for x in (f.mean, f.std, f.min, f.max)]
    shape = " × ".join(map(str, f.shape)) or "scalar"
    return [code(f.name), f.placement, kind, shape, *numbers]


def _episodes(s: Summary) -> str:
    c = s.counts
    ends = [f"{n:,} {name}" for name, n in (("terminated", c.terminated), ("truncated", c.truncated), ("cut", c.cut))]
    known = "recorded" if c.final_observations == c.episodes else f"recorded for {c.final_observations:,} episodes"
    spreads = (("Return", s.returns), ("Score", s.scores), ("Length", s.lengths))
    rows = [_spread(name, d) for name, d in spreads if d is not None]
    lines = ["## Episodes", "", f"Ends: {', '.join(ends)}. Final observations: {known}."]
    if c.terminated_inside:
        lines.append(f"{text.plural(c.terminated_inside, 'terminated step')} inside episodes.")
    if s.splits:
        shown = [f"{code(n)} ({text.plural(k, 'episode')})" for n, k in list(s.splits.items())[:_MOST_NOTES]]
        lines.append(f"Splits: {', '.join(shown)}.")
    if rows:
        lines += ["", _table(("", "Min", "Median", "Mean", "Max"), rows, numbers=4)]
    return "\n".join(lines)


def _spread(name: str, d: Distribution) -> list[str]:
    return [name, *(tick(x) for x in (d.min, d.median, d.mean, d.max))]


def _origin(s: Summary) -> str | None:
    a, archive = s.about, s.archive
    first = archive.get("first") or {}
    facts: list[tuple[str, str]] = []
    if first:
        more = int(archive.get("files") or 1) - 1
        facts.append(("Archive", code(str(first.get("file"))) + (f" and {more:,} more" if more > 0 else "")))
    if archive.get("sha256"):
        facts.append(("SHA-256", code(str(archive["sha256"]))))
    if a.source and not a.source.startswith(("file:", "/")):  # a path of somebody's machine
        facts.append(("Source", _linked(visible.shown(a.source))))
    if a.author:
        facts.append(("Author", plain(a.author)))
    if a.paper:
        facts.append(("Paper", _linked(link(a.paper), a.paper)))
    if a.homepage:
        facts.append(("Homepage", _linked(a.homepage)))
    facts.append(("Converted", plain(f"{s.created} by rlds {s.rlds_version}, reader {s.reader}")))
    return "\n".join(("## Origin", "", *(f"- {name}: {value}" for name, value in facts)))


def _provenance(steps: tuple[Mapping[str, Any], ...]) -> str | None:
    if not steps:
        return None
    shown = [f"{k}. {_made(step)}" for k, step in enumerate(steps[:_MOST_STEPS], 1)]
    more = len(steps) - len(shown)
    return "\n".join(("## Provenance", "", *shown, *((f"\n{more:,} more steps.",) if more > 0 else ())))


def _made(step: Mapping[str, Any]) -> str:
    args = ", ".join(f"{k}={v}" for k, v in step["args"].items())
    source, origin = short(step.get("of", step["source"])), code(step["from"])
    if step["unit"] in CHANGES:
        return f"{code(visible.within(history.described(step)))}, from {origin} ({plain(source)})"
    call = code(visible.within(f"{step['reference']}({args})"))
    return f"{call}, unit {plain(step['unit'])}, from {origin} ({plain(source)})"


def _notes(s: Summary) -> str | None:
    found = [f"- {f.severity}: {plain(f.text)}" for f in s.findings]
    if not found:
        return None
    more = len(found) - _MOST_NOTES
    shown = found[:_MOST_NOTES] + ([f"- {more:,} more in `report.html`"] if more > 0 else [])
    return "\n".join(("## Known about the data", "", *shown))


def _licence(s: Summary) -> str:
    lines = ["## Licence and citation", "", f"Licence: {plain(s.about.licence or 'not stated')}."]
    cited = citation(s.id)
    if cited:
        fence = "`" * (max(map(len, re.findall("`+", cited)), default=0) + 3)
        body = "\n".join(_printable(line) for line in cited.splitlines())
        lines += ["", f"{fence}{'bibtex' if cited.startswith('@') else ''}", body, fence]
    return "\n".join(lines)


def citation(id: str) -> str | None:
    """Return how the authors of the source want it to be cited; None if the registry does not know."""
    try:
        entry = registry.known(str(ids.parse(id).base))
    except InvalidId:
        return None
    return entry.citation if entry else None


# -- markup


def plain(value: str) -> str:
    """Escape one line of text, so that a renderer shows it as it is."""
    line = " ".join(_printable(value).split())
    line = _MEANT.sub(lambda found: f"&#{ord(found[0])};", line)
    begins = _BEGINS.match(line)
    if begins:  # its last character makes the list
        at = begins.end() - 1
        line = f"{line[:at]}&#{ord(line[at])};{line[at + 1 :]}"
    return line


def code(value: str) -> str:
    """Return text as code."""
    value = " ".join(_printable(value).split())
    return f"`{value}`" if _TAME.fullmatch(value) else f"<code>{plain(value)}</code>"


def _linked(url: str, words: str | None = None) -> str:
    """Return a link for a web address; other addresses are code."""
    url = _printable(url)
    if not url.startswith(("https://", "http://")) or re.search(r"[\s<>]", url):
        return code(words or url)
    return f'<a href="{escape(url, quote=True)}">{plain(words or url)}</a>'


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: int) -> str:
    """Return a table, of which the last ``numbers`` columns are aligned to the right."""
    head = list(head)
    rule = ["---" if k < len(head) - numbers else "---:" for k in range(len(head))]
    return "\n".join(_cells(row) for row in (head, rule, *rows))


def _cells(row: Iterable[str]) -> str:
    return f"| {' | '.join(row)} |"


def _printable(value: str) -> str:
    """Replace characters that are not seen, such as controls and lone surrogates."""
    return "".join(_seen(value))


def _seen(value: str) -> Iterator[str]:
    for c in value:
        yield c if c.isprintable() else " " if c.isspace() else "\ufffd"


def _name(id: str) -> str:
    return id.removeprefix(f"{registry.LOCAL}/")
