"""Tar archives read once, as streams: members one after the other, none of them written anywhere.

A member is a header of 512 bytes and its content, padded to a multiple of that; two blocks of zeros are the end. Names
that do not fit stand in a member of their own before it: ``L`` (GNU) or ``x`` (pax, POSIX.1-2001).

Python's ``tarfile`` takes a damaged header for the end of the archive, reads a pax header of any size into memory, and
keeps an object for every member that it has seen. Here damage is an error, and memory does not grow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from rlds_cli.archives.unpacking import FREE_BYTES, MAX_RATIO, Unpacked
from rlds_cli.errors import CorruptArchive, UnsafeArchive

BLOCK = 512
MAX_EXTENSION = 1 << 20  # bytes of a name or a pax header
READ_BYTES = 1 << 20

_REGULAR, _DIRECTORY = (b"0", b"\0", b"7"), b"5"
_REFUSED = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a named pipe",
    b"S": "a sparse file",
    b"K": "a link with a long target",
}
_RECORD = re.compile(rb"(\d{1,10}) ([^=]+)=", re.DOTALL)  # an extension has less than 10**10 bytes
_SIZE = re.compile(r"[0-9]{1,20}")


@dataclass(slots=True)
class Member:
    """A regular file: ``read`` gives its content, once and forward; ``number`` counts members from 0."""

    name: str
    size: int
    number: int
    stream: Unpacked
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.size

    def read(self, size: int = READ_BYTES) -> bytes:
        """The next bytes, at most ``size``; empty at the end.

        Raises
        ------
        CorruptArchive
            The archive ends inside the member.
        """
        wanted = min(size, self.left)
        data = self.stream.read(wanted)
        self.left -= len(data)
        if len(data) < wanted:
            raise _cut(self.stream, self.name)
        return data


@dataclass(slots=True)
class _Header:
    name: str
    size: int
    kind: bytes


def is_tar(stream: Unpacked) -> bool:
    """Whether a stream begins with the header of a member."""
    block = stream.read(BLOCK)
    return len(block) == BLOCK and any(block) and _checksum(block)


def members(stream: Unpacked) -> Iterator[Member]:
    """The regular files of an archive, in order; what is not read of one is passed over.

    Raises
    ------
    CorruptArchive
        A damaged header, or the archive ends without its end mark.
    UnsafeArchive
        Names that are absolute or climb out of their directory, links, devices, sizes that the archive cannot hold.
    """
    number = 0
    extended: dict[str, str] = {}
    while True:
        block = stream.read(BLOCK)
        if len(block) < BLOCK:
            raise _cut(stream, None)
        if not any(block):
            _drain(stream)
            return
        header = _parsed(stream, block, extended)
        if header.kind in (b"x", b"g", b"L"):
            content = _extension(stream, header)
            found = (
                {"path": content.rstrip(b"\0").decode(errors="replace")}
                if header.kind == b"L"
                else _pax(stream, content)
            )
            if any(key.startswith("GNU.sparse") for key in found):
                raise _refused(stream, header.name, "is a sparse file")
            extended |= found if header.kind != b"g" else {}
            continue
        extended = {}
        if header.kind not in (*_REGULAR, _DIRECTORY):
            raise _refused(stream, header.name, f"is {_REFUSED.get(header.kind, 'of no known kind')}")
        name = _safe(stream, header.name)
        if header.kind == _DIRECTORY or header.name.endswith("/"):
            _pass_over(stream, header, header.size)
            continue
        member = Member(name, header.size, number, stream)
        yield member
        number += 1
        _pass_over(stream, header, member.left)


def _parsed(stream: Unpacked, block: bytes, extended: dict[str, str]) -> _Header:
    if not _checksum(block):
        raise CorruptArchive(
            f"{stream.path.name}: the header of a member is damaged, at byte {stream.given:,} or before.",
            hint=f"delete {stream.path} and fetch it again",
        )
    name = block[:100].split(b"\0")[0].decode(errors="replace")
    prefix = block[345:500].split(b"\0")[0].decode(errors="replace")
    if prefix and block[257:263] == b"ustar\0":
        name = f"{prefix}/{name}"
    size = int(extended["size"]) if _SIZE.fullmatch(extended.get("size", "")) else _number(block[124:136])
    header = _Header(extended.get("path", name), size, block[156:157])
    stored = stream.path.stat().st_size
    if size < 0 or size > MAX_RATIO * stored + FREE_BYTES:
        raise _refused(stream, header.name, f"claims {size:,} bytes in a file of {stored:,}")
    return header


def _checksum(block: bytes) -> bool:
    """The sum of all bytes, those of the sum itself counted as spaces; some old writers took bytes as signed."""
    said = _number(block[148:156])
    plain = block[:148] + b" " * 8 + block[156:]
    return said in (sum(plain), sum(b - 256 if b > 127 else b for b in plain))


def _number(digits: bytes) -> int:
    """Octal digits, or a big-endian number after a byte of 0x80; -1 where it is neither."""
    if digits[0] in (0x80, 0xFF):
        return int.from_bytes(digits[1:], "big") if digits[0] == 0x80 else -1
    text = digits.strip(b" \0")
    try:
        return int(text or b"0", 8)
    except ValueError:
        return -1


def _extension(stream: Unpacked, header: _Header) -> bytes:
    if header.size > MAX_EXTENSION:
        raise _refused(stream, header.name, f"has a header of {header.size:,} bytes")
    content = stream.read(header.size)
    if len(content) < header.size:
        raise _cut(stream, header.name)
    _pass_over(stream, header, 0)
    return content


def _pax(stream: Unpacked, content: bytes) -> dict[str, str]:
    """``<length> <key>=<value>\\n``, one after the other; zeros may pad the end.

    Raises
    ------
    CorruptArchive
        A length is none, or goes beyond the extension.
    """
    found, at = {}, 0
    while content[at:].strip(b"\0"):
        m = _RECORD.match(content, at)
        stop = at + int(m[1]) if m else 0
        if m is None or not m.end() < stop <= len(content):
            raise CorruptArchive(
                f"{stream.path.name}: the pax header of a member is damaged, at byte {stream.given:,} or before.",
                hint=f"delete {stream.path} and fetch it again",
            )
        found[m[2].decode(errors="replace")] = content[m.end() : stop - 1].decode(errors="replace")
        at = stop
    return found


def _pass_over(stream: Unpacked, header: _Header, left: int) -> None:
    """Go to the header that follows: what is left of the content, and its padding."""
    wanted = left + -header.size % BLOCK
    if stream.skip(wanted) < wanted:
        raise _cut(stream, header.name)


def _drain(stream: Unpacked) -> None:
    """Read to the end, so that the checksum of what was packed is looked at."""
    while stream.skip(READ_BYTES):
        pass


def _safe(stream: Unpacked, name: str) -> str:
    parts = [p for p in name.split("/") if p not in ("", ".")]
    if name.startswith(("/", "~", "\\")) or re.match(r"[A-Za-z]:", name):
        raise _refused(stream, name, "is an absolute path")
    if ".." in parts:
        raise _refused(stream, name, "leaves its directory")
    if not name.isprintable() or "\\" in name:
        raise _refused(stream, name, "holds a backslash or a control character")
    return "/".join(parts)


def _refused(stream: Unpacked, name: str, what: str) -> UnsafeArchive:
    return UnsafeArchive(
        f"{stream.path.name}: the member {name[:200]!r} {what}. Nothing of it was written.",
        hint="it is not read; rlds_cli.create takes episodes that you read yourself, where you trust it",
    )


def _cut(stream: Unpacked, name: str | None) -> CorruptArchive:
    where = f"inside {name}" if name else "without the mark of its end"
    return CorruptArchive(
        f"{stream.path.name} is truncated: it ends {where}, after {stream.given:,} bytes of content.",
        hint=f"delete {stream.path} and fetch it again",
    )
