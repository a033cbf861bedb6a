"""References to issues and papers: ``owner/repo#12``, ``arXiv:...``, a URL; and licences."""

from __future__ import annotations

import re

_GITHUB = re.compile(r"[\w.-]+/(?P<repo>[\w.-]+)#(?P<number>\d+)")
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


def link(ref: str) -> str:
    """Return a reference as a URL: ``owner/repo#12`` is an issue or pull request on GitHub, ``arXiv:...`` a paper."""
    if _GITHUB.fullmatch(ref):
        return "https://github.com/" + ref.replace("#", "/issues/")
    return ref.replace("arXiv:", "https://arxiv.org/abs/")


def short(ref: str) -> str:
    """Shorten a reference for people: ``repo#12``, or the last part of a URL."""
    found = _GITHUB.fullmatch(ref)
    return f"{found['repo']}#{found['number']}" if found else ref.rstrip("/").rpartition("/")[2]


def licence_identifier(licence: str | None) -> str | None:
    """Return the hub's identifier of a licence; None for one that it has no identifier for."""
    return _LICENCES.get((licence or "not stated").strip().lower())
