"""Pages of S3's ListObjectsV2: XML of strangers, read without a tree and without document types and entities.

::

    <ListBucketResult>
        <Contents><Key>a/b.h5</Key><Size>5</Size><ETag>"..."</ETag></Contents>
        <NextContinuationToken>...</NextContinuationToken>
"""

from __future__ import annotations

from typing import NoReturn
from xml.parsers import expat

from rlds_cli.transfer.client import Refused

_ROOT, _OBJECT, _NEXT = "ListBucketResult", "Contents", "NextContinuationToken"
_LONGEST = 8192  # characters of a value
_FIELDS = ("Key", "Size", "ETag")


def objects(body: bytes) -> tuple[list[dict[str, str]], str | None]:
    """The fields of each object that a page lists, and the token of the next page; raises Refused."""
    reader = _Reader()
    try:
        reader.parser.Parse(body, True)
    except (expat.ExpatError, ValueError, LookupError) as exc:  # LookupError: an encoding that nobody knows
        raise Refused("the answer is not a list of files") from exc
    return reader.found, reader.following or None


class _Reader:
    def __init__(self) -> None:
        self.found: list[dict[str, str]] = []
        self.following = ""
        self._path: list[str] = []  # the elements that are open, without namespaces
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._refuse

    def _refuse(self, *declared: object) -> NoReturn:
        raise Refused("the answer declares a document type, as no list of files does")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name.rpartition(" ")[2])
        if self._path[0] != _ROOT or len(self._path) > 32:
            raise Refused("the answer is not a list of files")
        if self._path == [_ROOT, _OBJECT]:
            self.found.append({})

    def _end(self, name: str) -> None:
        self._path.pop()

    def _text(self, text: str) -> None:
        if self._path == [_ROOT, _NEXT]:
            self.following = _longer(self.following, text)
        elif len(self._path) == 3 and self._path[1] == _OBJECT and (field := self._path[2]) in _FIELDS:
            said = self.found[-1]
            said[field] = _longer(said.get(field, ""), text)


def _longer(text: str, more: str) -> str:
    if len(text) > _LONGEST:
        raise Refused(f"the answer has a value of more than {_LONGEST:,} characters")
    return text + more
