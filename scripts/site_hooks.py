"""Hooks of MkDocs: pages and examples outside of ``docs/`` are part of the site, and links to them lead there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/RESULTS.md")

_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository and the examples."""
    for name in (*PAGES, *(f"examples/{f.name}" for f in sorted((ROOT / "examples").glob("*.py")))):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links to files of the repository links within the site, where ``docs/`` is the root."""
    shown = Path(page.file.src_uri)
    written = shown if page.file.src_uri in PAGES else Path("docs", shown)

    def within(link: re.Match[str]) -> str:
        target = os.path.normpath(written.parent / link[1]).removeprefix("docs/")
        return f"]({os.path.relpath(target, shown.parent)}"

    return _LINK.sub(within, markdown)
