"""Croissant metadata of a pushed dataset: JSON-LD of version 1.1, https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html.

The distribution lists the files at the address with their hashes. Fields are named as columns of the file set of all
objects, whose encoding format only rlds reads: programs that read records of Croissant refuse it, and give no wrong
values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from rlds_cli.base import text
from rlds_cli.base.citing import licence_identifier
from rlds_cli.look.report.card import citation

if TYPE_CHECKING:
    from rlds_cli.look.report.summary import FieldSummary, Summary

VERSION = "http://mlcommons.org/croissant/1.1"
_ENCODING = "application/octet-stream"
_OBJECTS = "objects"  # the id of the set of all objects
_STEPS = "steps"
# As the specification gives it.
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{
        name: f"cr:{name}"
        for name in (
            *("arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field", "fileObject"),
            *("fileProperty", "fileSet", "format", "includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5"),
            *("parentField", "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate"),
            *("separator", "source", "subField", "transform"),
        )
    },
    **{name: {"@container": "@language"} for name in ("name", "description")},
    **{name: {"@id": f"cr:{name}", "@type": "@json"} for name in ("data", "examples")},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}
_TYPES = {
    "bool": "sc:Boolean",
    **{f"int{n}": f"cr:Int{n}" for n in (8, 16, 32, 64)},
    **{f"uint{n}": f"cr:UInt{n}" for n in (8, 16, 32, 64)},
    **{f"float{n}": f"cr:Float{n}" for n in (16, 32, 64)},
}
_PLACED = {"root": "At step t.", "next": "The result of step t.", "both": "At step t; its next value is that at t+1."}
_LICENCE_PAGE = "https://spdx.org/licenses/{}"
# Identifiers of SPDX where they differ from those of the hub by more than their case.
_SPDX = {
    "mit": "MIT",
    "apache-2.0": "Apache-2.0",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "gpl-3.0": "GPL-3.0-only",
}
_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}  # pages embed JSON-LD in a script element


class DescribedFile(Protocol):
    """A file at the address of a dataset."""

    @property
    def name(self) -> str:
        """Its name, relative to the address."""

    @property
    def size(self) -> int:
        """Its bytes."""

    @property
    def sha256(self) -> str:
        """The sha256 of its content."""


def croissant(s: Summary, files: Iterable[DescribedFile], *, url: str | None = None) -> str:
    """Return the description of a pushed dataset as JSON-LD.

    Parameters
    ----------
    s : Summary
        As of `summarise`.
    files : iterable of DescribedFile
        Files that hold the dataset.
    url : str, optional
        The web page of the dataset; the homepage of its source unless given.
    """
    licence = licence_identifier(s.about.licence)
    page = url or s.about.homepage
    described: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": VERSION,
        "name": _words(s.id),
        "description": _words(_description(s)),
        "version": "1.0.0" if s.keeps is None else f"1.{s.version}.0",
        "datePublished": s.created,
        "keywords": ["reinforcement learning", "offline reinforcement learning", "rlds", s.fingerprint],
    }
    if page:
        described["url"] = page
    if licence in _SPDX or (licence or "").startswith("cc"):
        described["license"] = _LICENCE_PAGE.format(_SPDX.get(str(licence), str(licence).upper()))
    else:
        described["license"] = _words(s.about.licence or "not stated")
    if s.about.author:
        described["creator"] = {"@type": "sc:Person", "name": _words(s.about.author)}
    if cited := citation(s.id):
        described["citeAs"] = _words(cited)
    described["distribution"] = [*map(_file, files), _objects()]
    described["recordSet"] = [_steps(s)]
    encoded = json.dumps(described, separators=(",", ":"), allow_nan=False) + "\n"
    return re.sub("[<>&]", lambda found: _IN_SCRIPT[found[0]], encoded)


def _description(s: Summary) -> str:
    counts = f"{text.plural(s.counts.steps, 'step')} in {text.plural(s.counts.episodes, 'episode')}"
    told = s.about.description or s.about.title
    return f"{told.rstrip('. ')}. {counts}." if told else f"{counts}."


def _file(file: DescribedFile) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": file.name,
        "name": file.name,
        "contentUrl": file.name,
        "contentSize": f"{file.size} B",
        "encodingFormat": "application/json" if file.name.endswith(".json") else _ENCODING,
        "sha256": file.sha256,
    }


def _objects() -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": _OBJECTS,
        "name": _OBJECTS,
        "description": "The files of the dataset, packed; the index says where each lies.",
        "encodingFormat": _ENCODING,
        "includes": f"{_OBJECTS}/*",
    }


def _steps(s: Summary) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": _STEPS,
        "name": _STEPS,
        "description": (
            "One record for each step of an episode. next/observation, next/reward, next/terminated and "
            "next/truncated are the result of the step's action."
        ),
        "field": [_field(f) for f in s.fields],
    }


def _field(f: FieldSummary) -> dict[str, Any]:
    name = _words(f.name)
    field: dict[str, Any] = {
        "@type": "cr:Field",
        "@id": f"{_STEPS}/{quote(name)}",
        "name": name,
        "description": _PLACED[f.placement],
        "dataType": _type(f),
        "source": {"fileSet": {"@id": _OBJECTS}, "extract": {"column": name}},
    }
    if f.shape and f.kind == "array":
        field |= {"isArray": True, "arrayShape": ",".join(map(str, f.shape))}
    return field


def _type(f: FieldSummary) -> str:
    if f.kind == "text":
        return "sc:Text"
    return "sc:ImageObject" if f.codec else _TYPES.get(f.dtype, "sc:Number")


def _words(value: str) -> str:
    """Return a text without lone surrogates and controls other than line breaks."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in value)
