"""Colour on a terminal, by escape sequences of our own: importing rich for a help or an error takes 45 ms."""

from __future__ import annotations

import os
import re
from typing import TextIO

_BOLD, _CYAN, _RED, _DIM, _PLAIN = "\033[1m", "\033[36m", "\033[1;31m", "\033[2m", "\033[0m"
_HEADING = re.compile(r"^(Usage|[A-Z][\w -]*)(:)(?= |$)")
_TERM = re.compile(r"^  (?! )(.+?)(?=  |$)")  # an option or a command, behind which its help stands


def wanted(stream: TextIO) -> bool:
    """Whether a stream shows colour: a terminal does, unless NO_COLOR is set; FORCE_COLOR asks for it anywhere."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def help_page(text: str) -> str:
    """Colour a help: headings, and the names of options and commands below them."""
    lines, terms = [], False
    for line in text.split("\n"):
        heading = _HEADING.match(line)
        if heading:
            terms = line.endswith(":")
            lines.append(f"{_BOLD}{heading[0]}{_PLAIN}{line[heading.end() :]}")
        else:
            lines.append(_TERM.sub(rf"  {_CYAN}\1{_PLAIN}", line) if terms else line)
    return "\n".join(lines)


def error(text: str) -> str:
    """Colour an error: its kind, and the word before its hint."""
    text = re.sub(r"^(\w+):", rf"{_RED}\1:{_PLAIN}", text, count=1)
    return re.sub(r"^  (hint):", rf"  {_CYAN}\1:{_PLAIN}", text, count=1, flags=re.MULTILINE)
