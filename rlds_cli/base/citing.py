"""References to issues and papers: ``owner/repo#12``, ``arXiv:...``, a URL."""

from __future__ import annotations

import re

_GITHUB = re.compile(r"[\w.-]+/(?P<repo>[\w.-]+)#(?P<number>\d+)")


def link(ref: str) -> str:
    """Return a reference as a URL: ``owner/repo#12`` is an issue or pull request on GitHub, ``arXiv:...`` a paper."""
    if _GITHUB.fullmatch(ref):
        return "https://github.com/" + ref.replace("#", "/issues/")
    return ref.replace("arXiv:", "https://arxiv.org/abs/")


def short(ref: str) -> str:
    """Shorten a reference for people: ``repo#12``, or the last part of a URL."""
    found = _GITHUB.fullmatch(ref)
    return f"{found['repo']}#{found['number']}" if found else ref.rstrip("/").rpartition("/")[2]
