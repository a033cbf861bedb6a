"""``rlds info``."""

from __future__ import annotations

import json as json_module
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated
from urllib.parse import urlsplit

import typer

from rlds_cli import look
from rlds_cli.base import citing, refs, subset, visible
from rlds_cli.base.figures import space_text
from rlds_cli.base.files.hashing import short
from rlds_cli.base.text import ends_in_words, plural
from rlds_cli.cli import options, out, remote
from rlds_cli.cli.commands import app
from rlds_cli.errors import DamagedDataset
from rlds_cli.look.report.catalogue import Card, Copy
from rlds_cli.registry import Defect, Entry
from rlds_cli.store import History, Manifest

_RULES = {
    "flags": "end at terminals or timeouts",
    "timeouts": "end at timeouts only; a terminal is kept and does not end an episode",
    "jumps": "end where the observations jump, not where flags say",
    "file": "one per file",
    "": "as in the archive",
}


@app.command("info")
def info(
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID|ADDRESS",
            help="A dataset, downloaded or not, the directory of one, or its address.",
            autocompletion=options.complete_id,
        ),
    ],
    cite: Annotated[bool, typer.Option("--cite", help="Print only the BibTeX entry.")] = False,
    defects: Annotated[bool, typer.Option("--defects", help="Print only the known defects, with references.")] = False,
    fingerprint: Annotated[
        bool, typer.Option("--fingerprint", help="Print only the fingerprint of the dataset on this disk.")
    ] = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show source, licence, task and known defects of a dataset. Nothing is downloaded.

    Example: rlds info d4rl/antmaze-large-play-v2 --defects
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    if cite + defects + fingerprint > 1:
        raise typer.BadParameter("give only one of --cite, --defects and --fingerprint")
    if cite:
        text = look.citation(id, home)
        return out.result({"id": id, "citation": text}, visible.lines(text.split("\n")))
    if fingerprint:
        there = remote.opened(id, home)
        text = there.fingerprint if there else look.fingerprint(id, home)
        remote.tell(there)
        return out.result({"id": id, "fingerprint": text}, text)
    there = remote.opened(id, home)
    card = look.card(there or id, home)
    remote.tell(there)
    if defects:
        return out.result([_defect(d) for d in card.defects], _defects(card))
    return out.result(card, _page(card, id))


def _defect(d: Defect) -> dict[str, object]:
    return {"code": d.code, "text": d.text, "refs": d.refs, "links": d.links}


def _defects(card: Card) -> str:
    if not card.defects:
        return f"no defects of {card.id} are known"
    return visible.lines(
        part for d in card.defects for part in (f"{d.code}: {d.text}", *(f"  {link}" for link in d.links))
    )


def _page(card: Card, ref: str) -> str:
    lines = [_headline(card, ref)]
    if card.entry:
        lines += [_line(*pair) for pair in _source(card.entry, whole=_is_whole(card, card.entry))]
    if card.here and card.here.manifest:
        line = card.here.manifest.options.get("entry")
        if card.entry is None and isinstance(line, dict):
            holders = [h for h in (line, *line.get("files", ())) if h.get("urls")]
            more = f" and {len(holders) - 1:,} more" if len(holders) > 1 else ""
            lines += [_line("source", f"{h['urls'][0]}{more}") for h in holders[:1]]
        lines += [_line(*pair) for pair in _stored(card.here, card.here.manifest)]
    if card.entry and not (card.here and card.here.manifest):
        lines.append(_line("episodes", _episodes(card.entry.episodes_by)))
    if card.variants:
        lines.append(_line("variants", ", ".join(card.variants)))
    if card.entry:
        lines += [_line(*pair) for pair in _remarks(card.entry)]
    return visible.lines(lines)


def _headline(card: Card, ref: str) -> str:
    if card.here is None:
        return f"{card.id}   {_absent(card.entry)}"
    if card.here.manifest is None:
        return f"{card.id}   here, but damaged: {card.here.damage}"
    m = card.here.manifest
    named = refs.named(card.id, m.version, ref)
    if card.here.address is not None:
        size = out.size(card.here.bytes_on_disk)
        return f"{named}   at {card.here.address}: {size}, {m.encoding}   {short(m.fingerprint)}"
    return f"{named}   here: {out.size(card.here.bytes_on_disk)}, {m.encoding}   {short(m.fingerprint)}"


def _absent(entry: Entry | None) -> str:
    if entry and entry.status == "closed":
        return f"not here; the source is closed{f', see {entry.replaced_by}' if entry.replaced_by else ''}"
    if entry is None or entry.size is None:
        return "not here; its size is unknown before the download"
    return f"not here; {out.size(entry.size)} to download, about {out.size(entry.store_size)} of cache"


def _is_whole(card: Card, e: Entry) -> bool:
    """Return whether a dataset has the content that the registry says: it is neither derived nor a part."""
    options = card.here.manifest.options if card.here and card.here.manifest else {}
    return card.id == e.id and not subset.described(options)


def _source(e: Entry, *, whole: bool) -> Iterator[tuple[str, str]]:
    if e.files or e.tree:
        yield "source", _origin(e)
    if e.status == "closed":
        yield "status", f"closed: {e.notes or e.host}; --from takes a copy"
    if e.status == "deprecated":
        yield "status", f"deprecated{f': use {e.replaced_by}' if e.replaced_by else ''}"
    legal = [e.licence or "not stated", *([f"paper {e.paper}"] if e.paper else [])]
    yield "licence", "   ".join([*legal, *(["--cite for BibTeX"] if e.citation else [])])
    if task := "; ".join(_task(e)):
        yield "task", task
    if content := "; ".join(_content(e)):
        yield ("content", content) if whole else ("archive", f"{e.id}: {content}")


def _origin(e: Entry) -> str:
    if not e.files:
        place = f"{e.tree[0].removeprefix('hf://')} on the hub" if e.tree[0].startswith("hf:") else e.tree[0]
        return place if e.status == "closed" else f"{place}; files and hashes from its listing"
    url, digest = e.files[0].urls[0], e.sha256
    parts = urlsplit(url)
    place = {"package": "this package", "hf": "huggingface.co"}.get(parts.scheme, parts.netloc)
    plain = "plain HTTP; " if parts.scheme == "http" else ""
    known = f"sha256 {digest[:8]}… known" if digest else "sha256 known" if e.verifiable else "sha256 not known"
    mirrors = len(e.files[0].urls) - 1
    count = f"{len(e.files)} files; " if len(e.files) > 1 else ""
    more = f", {plural(mirrors, 'mirror')}" if mirrors else ""
    return f"{place} ({count}{plain}{known}){more}"


def _task(e: Entry) -> Iterator[str]:
    if e.env_id:
        yield e.env_id + (f", {e.max_episode_steps:,} steps" if e.max_episode_steps else "")
    if e.ref_min_score is not None and e.ref_max_score is not None:
        yield f"score 0 = {round(e.ref_min_score, 3):,}, 1 = {round(e.ref_max_score, 3):,}"


def _content(e: Entry) -> Iterator[str]:
    if e.num_steps and e.num_episodes:
        yield f"{e.num_steps:,} steps, {e.num_episodes:,} episodes"
    if e.observation and e.action:
        yield f"observation {e.observation}, action {e.action}"
    if e.algorithm:
        yield f"by {e.algorithm}{f' ({e.author})' if e.author else ''}"


def _stored(copy: Copy, m: Manifest) -> Iterator[tuple[str, str]]:
    c = m.counts
    yield "path", str(copy.path)
    with suppress(DamagedDataset):
        for source in History(copy.path).sources:
            yield "rows in", str(source)
    if text := m.facts.get("description"):
        yield "about", str(text)
    if text := m.facts.get("licence"):
        yield "licence", "   ".join([str(text), *(["--cite for BibTeX"] if m.facts.get("citation") else [])])
    if m.reader == "create" and m.env.get("id"):
        yield "task", str(m.env["id"])
    if m.spaces and m.reader == "create":
        yield "spaces", "; ".join(f"{name} {space_text(space)}" for name, space in m.spaces.items())
    if part := subset.described(m.options):
        yield "part", f"not all of the archive: {part}"
    yield "steps", f"{c.steps:,}, of them {c.transitions:,} transitions"
    ends = f"{c.terminated:,} terminated, {c.truncated:,} truncated, {c.cut:,} cut"
    rule = "as created" if m.reader == "create" and not m.episodes_by else _episodes(m.episodes_by)
    yield "episodes", f"{c.episodes:,}: {ends}; {rule}"
    for k, line in enumerate(_chain(m)):
        yield "made of" if k == 0 else "", line
    reader = f", reader {m.reader_named}" if m.reader and not m.provenance else ""
    yield "made", f"{m.created} by rlds {m.rlds_version}{reader}"


def _chain(m: Manifest) -> Iterator[str]:
    """The steps from the archive to the dataset, a line each."""
    if m.provenance and m.archive.get("sha256"):
        count = m.archive["files"]
        yield f"{plural(count, 'archive file')}, sha256 {m.archive['sha256']}"
    for step in m.provenance:
        if step["unit"] in ("dataset", "append"):  # `ProvenanceStep.is_change`, which is slow to import
            from rlds_cli.dataset import ProvenanceStep

            yield f"{step['from']} ({short(step['source'])}) by {ProvenanceStep(step).described()}"
            continue
        args = ", ".join(f"{k}={json_module.dumps(v)}" for k, v in step["args"].items())
        code = f", source {step['code'][:8]}"
        yield f"{step['from']} ({short(step['source'])}) by {step['reference']}({args}){code}"


def _episodes(rule: str | None) -> str:
    rule = rule or ""
    if (said := ends_in_words(rule)) != rule:
        return f"by {said}"
    return f"end where {rule.partition(':')[2]} changes" if rule.startswith("field:") else _RULES.get(rule, rule)


def _remarks(e: Entry) -> Iterator[tuple[str, str]]:
    for k, d in enumerate(e.defects):
        refs = ", ".join(map(citing.short, d.refs))
        yield "defects" if k == 0 else "", f"{d.text} ({refs})"
    if e.notes:
        yield "notes", e.notes


def _line(key: str, text: str) -> str:
    width = out.terminal_width()
    if width is None:
        return f"{key:10}{text}"
    text = visible.line(f"{key:10}{text}")
    return visible.lines(textwrap.wrap(text, max(width, 40), subsequent_indent=" " * 10, break_on_hyphens=False))
